//! The one way a status is written: a merge patch that is a compare-and-swap.

use super::CallError;
use kube::Api;
use kube::api::{Patch, PatchParams, Request};
use serde::Deserialize;
use serde_json::{Value, json};

/// The object that a write is about: nothing is written to a namesake or to a later version.
#[derive(Clone, Copy, Debug)]
pub struct Precondition<'a> {
    /// `metadata.uid` as it was observed.
    pub uid: &'a str,
    /// `metadata.resourceVersion` as it was observed: the fence.
    pub resource_version: &'a str,
}

/// What a successful write left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The new `metadata.resourceVersion`; unchanged if the write changed nothing.
    pub resource_version: String,
}

/// Merge-patches the status of `name` with `status` (RFC 7386: null removes, lists are replaced).
///
/// The patch carries resourceVersion and UID, so that the API server answers 409 ([`CallError::is_conflict`]) if the
/// object is not the observed one. Of the answer only the metadata is read: it can't be undecodable for our types.
/// Never retried here; on [`CallError::is_ambiguous`] a read must say what happened.
pub async fn status_merge_patch<K>(api: &Api<K>, name: &str, observed: Precondition<'_>, status: &Value) -> Result<Written, CallError>
where
    K: kube::Resource + Clone,
{
    let patch = Patch::Merge(json!({
        "metadata": { "uid": observed.uid, "resourceVersion": observed.resource_version },
        "status": status,
    }));
    let request = Request::new(api.resource_url())
        .patch_subresource("status", name, &PatchParams::default(), &patch)
        .map_err(|error| CallError::NotSent(error.to_string()))?;
    let answer: Answer = api.clone().into_client().request(request).await?;
    Ok(Written { resource_version: answer.metadata.resource_version })
}

#[derive(Deserialize)]
struct Answer {
    metadata: AnswerMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerMeta {
    resource_version: String,
}
