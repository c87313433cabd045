//! The ways objects are written: merge patches of the status, of the finalizers or of annotations, and deletes, each a compare-and-swap.

use super::CallError;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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
    let body = json!({
        "metadata": { "uid": observed.uid, "resourceVersion": observed.resource_version },
        "status": status,
    });
    merge_patch(api, Some("status"), name, &body).await
}

/// Merge-patches `metadata.finalizers` of `name` to be `finalizers`: all of them, since a merge patch replaces lists. Otherwise as [`status_merge_patch`].
pub async fn finalizers_merge_patch<K>(api: &Api<K>, name: &str, observed: Precondition<'_>, finalizers: &[String]) -> Result<Written, CallError>
where
    K: kube::Resource + Clone,
{
    let body = json!({"metadata": { "uid": observed.uid, "resourceVersion": observed.resource_version, "finalizers": finalizers }});
    merge_patch(api, None, name, &body).await
}

/// Merge-patches those of the `annotations` of `name`; null removes one. Otherwise as [`status_merge_patch`].
pub async fn annotations_merge_patch<K>(api: &Api<K>, name: &str, observed: Precondition<'_>, annotations: &Value) -> Result<Written, CallError>
where
    K: kube::Resource + Clone,
{
    let body = json!({"metadata": { "uid": observed.uid, "resourceVersion": observed.resource_version, "annotations": annotations }});
    merge_patch(api, None, name, &body).await
}

async fn merge_patch<K>(api: &Api<K>, subresource: Option<&str>, name: &str, body: &Value) -> Result<Written, CallError>
where
    K: kube::Resource + Clone,
{
    let (request, params, patch) = (Request::new(api.resource_url()), PatchParams::default(), Patch::Merge(body));
    let request = match subresource {
        Some(subresource) => request.patch_subresource(subresource, name, &params, &patch),
        None => request.patch(name, &params, &patch),
    };
    let request = request.map_err(|error| CallError::NotSent(error.to_string()))?;
    let answer: Answer = api.clone().into_client().request(request).await?;
    Ok(Written { resource_version: answer.metadata.resource_version })
}

/// Deletes `name`, if it is the observed object in the observed version; else the answer is 409. Never retried here.
pub async fn delete_observed<K>(api: &Api<K>, name: &str, observed: Precondition<'_>) -> Result<(), CallError>
where
    K: kube::Resource + Clone,
{
    let preconditions = Some(Preconditions { uid: Some(observed.uid.to_owned()), resource_version: Some(observed.resource_version.to_owned()) });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    let request = Request::new(api.resource_url()).delete(name, &params).map_err(|error| CallError::NotSent(error.to_string()))?;
    // A Status, or the object if finalizers hold it: neither matters.
    api.clone().into_client().request::<Value>(request).await?;
    Ok(())
}

/// The merge patch (RFC 7386) from `current` to `wanted`: members that differ, null for those to remove.
pub fn merge_difference<S: Serialize>(current: Option<&S>, wanted: &S) -> Value {
    let object = |status: Option<&S>| match status.map(serde_json::to_value) {
        Some(Ok(Value::Object(fields))) => fields,
        _ => Map::new(),
    };
    let (current, wanted) = (object(current), object(Some(wanted)));
    let mut patch: Map<String, Value> = current.keys().filter(|field| !wanted.contains_key(*field)).map(|field| (field.clone(), Value::Null)).collect();
    patch.extend(wanted.into_iter().filter(|(field, value)| current.get(field) != Some(value)));
    Value::Object(patch)
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
