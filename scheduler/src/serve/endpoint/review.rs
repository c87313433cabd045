//! TokenReview and SubjectAccessReview: one question each to the API server, and why it could not be asked.
//!
//! Sent raw: kube's own calls log an answer that they can't read, and the answer to a TokenReview quotes the token.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_runtime::apiclient::CallError;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::client::Body;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A review that came to no answer. Says nothing of what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Berth itself may not ask.
    #[error("Berth may not create {0}s: its account needs the rights of ClusterRole system:auth-delegator")]
    Forbidden(String),
    /// The API server can't be reached, or fails.
    #[error("the API server does not answer a {kind}: {why}")]
    Unavailable {
        /// What was asked.
        kind: String,
        /// What went wrong.
        why: String,
    },
    /// Too many others ask, or the API server is silent.
    #[error("no answer within {} s", .0.as_secs())]
    TooSlow(Duration),
}

/// Who a token belongs to; `None` if it belongs to nobody.
pub async fn who(client: &Client, token: &str) -> Result<Option<UserInfo>, Unanswered> {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
    let status = ask(client, &TokenReview { spec, ..TokenReview::default() }).await?.status.unwrap_or_default();
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
    let status = ask(client, &SubjectAccessReview { spec, ..SubjectAccessReview::default() }).await?.status.unwrap_or_default();
    Ok(status.allowed && status.denied != Some(true))
}

/// Of what the API server says, only its status code is told on.
async fn ask<K>(client: &Client, review: &K) -> Result<K, Unanswered>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    let kind = K::kind(&()).into_owned();
    let unavailable = |why: String| Unanswered::Unavailable { kind: K::kind(&()).into_owned(), why };
    let body = serde_json::to_vec(review).map_err(|error| unavailable(error.to_string()))?;
    let request = Request::post(K::url_path(&(), None)).header(CONTENT_TYPE, "application/json").body(Body::from(body));
    let request = request.map_err(|error| unavailable(error.to_string()))?;
    let answer = client.send(request).await.map_err(|error| unavailable(CallError::from(error).to_string()))?;
    match answer.status() {
        StatusCode::FORBIDDEN => return Err(Unanswered::Forbidden(kind)),
        status if !status.is_success() => return Err(unavailable(status.to_string())),
        _ => {}
    }
    let body = answer.into_body().collect_bytes().await.map_err(|error| unavailable(CallError::from(error).to_string()))?;
    serde_json::from_slice(&body).map_err(|_| unavailable("its answer can't be read".to_owned()))
}
