//! JSON patches (RFC 6902): the one patch that can test what it changes.

use super::CallError;
use kube::Api;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Applies `operations` to the object of that name. An operation `test` that fails makes the API server answer 422, and nothing is changed.
///
/// Never retried here; on [`CallError::is_ambiguous`] a read must say what happened.
pub async fn json_patch<K>(api: &Api<K>, name: &str, operations: &Value) -> Result<(), CallError>
where
    K: kube::Resource + Clone,
{
    let not_sent = |error: &dyn std::fmt::Display| CallError::NotSent(error.to_string());
    let body = serde_json::to_vec(operations).map_err(|error| not_sent(&error))?;
    let request = http::Request::patch(format!("{}/{name}", api.resource_url())).header("content-type", "application/json-patch+json");
    let request = request.body(body).map_err(|error| not_sent(&error))?;
    api.clone().into_client().request::<IgnoredAny>(request).await?;
    Ok(())
}
