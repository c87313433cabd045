//! TokenReview and SubjectAccessReview: one question each to the API server, and why it could not be asked.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_runtime::apiclient::CallError;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

/// A review that came to no answer. Says nothing of what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Berth itself may not ask.
    #[error("Berth may not create {0}: its account needs the rights of ClusterRole system:auth-delegator")]
    Forbidden(&'static str),
    /// The API server can't be reached, or fails.
    #[error("the API server does not answer a {kind}: {why}")]
    Unavailable {
        /// What was asked.
        kind: &'static str,
        /// What went wrong.
        why: String,
    },
    /// Too many others ask.
    #[error("no answer within {} s", .0.as_secs())]
    TooSlow(Duration),
}

/// Who a token belongs to; `None` if it belongs to nobody.
pub async fn who(client: &Client, token: &str) -> Result<Option<UserInfo>, Unanswered> {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
    let review = TokenReview { spec, ..TokenReview::default() };
    let answer = Api::<TokenReview>::all(client.clone()).create(&PostParams::default(), &review).await;
    let status = answer.map_err(|error| unanswered("TokenReviews", error))?.status.unwrap_or_default();
    let named = |user: &UserInfo| user.username.as_deref().is_some_and(|name| !name.is_empty());
    Ok(status.user.filter(|user| status.authenticated == Some(true) && named(user)))
}

/// Whether `user` may `verb` the path.
pub async fn may(client: &Client, user: &UserInfo, verb: &str, path: &str) -> Result<bool, Unanswered> {
    let spec = SubjectAccessReviewSpec {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone().map(|extra| extra.into_iter().collect::<BTreeMap<_, _>>()),
        non_resource_attributes: Some(NonResourceAttributes { path: Some(path.to_owned()), verb: Some(verb.to_owned()) }),
        resource_attributes: None,
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let answer = Api::<SubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await;
    let status = answer.map_err(|error| unanswered("SubjectAccessReviews", error))?.status.unwrap_or_default();
    Ok(status.allowed && status.denied != Some(true))
}

fn unanswered(kind: &'static str, error: kube::Error) -> Unanswered {
    let error = CallError::from(error);
    if error.is_forbidden() {
        return Unanswered::Forbidden(kind);
    }
    // A refusal may quote what was sent, and that is a token: only its code and reason are told.
    let why = match error {
        CallError::Refused { code, reason, .. } | CallError::Server { code, reason, .. } => format!("{code} {reason}"),
        CallError::Undecodable(_) => "its answer can't be read".to_owned(),
        other => other.to_string(),
    };
    Unanswered::Unavailable { kind, why }
}
