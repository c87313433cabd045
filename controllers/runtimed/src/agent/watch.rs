//! What the agent sees of the cluster: the Runs assigned to its Pod and the workspaces bound to it, and nothing else.

use std::time::Duration;

use berth_api::{PersistentWorkspace, Run, decode};
use berth_runtime::apiclient::CallError;
use berth_runtime::informer::WatchConfig;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use serde_json::Value;

/// Below [`BLIND_AFTER`](super::heartbeat::BLIND_AFTER): who says that it is blind says so no longer than it is.
const LIST_AFTER: Duration = Duration::from_secs(10);

/// An object of a watch; `None` in a watch that could not be narrowed, for one that is another Pod's.
pub type Seen<T> = Option<Box<T>>;

/// The watch on objects of kind K whose `field` is `value`. If the CRD has no such selectable field: on all of the namespace.
///
/// # Errors
/// The API server can't be asked.
pub async fn narrowed<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str, field: &str, value: &str) -> Result<WatchConfig, CallError> {
    let fields = format!("{field}={value}");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()));
    let all = WatchConfig { namespace: Some(namespace.to_owned()), list_after: Some(LIST_AFTER), ..WatchConfig::default() };
    match api.list(&ListParams::default().fields(&fields).limit(1)).await.map_err(CallError::from) {
        Ok(_) => Ok(WatchConfig { fields: Some(fields), ..all }),
        Err(CallError::Refused { code: 400, message, .. }) => {
            tracing::warn!(kind = %K::kind(&()), field, %message, "the CRD has no such selectable field: the whole namespace is watched; install Berth's CRDs");
            Ok(all)
        }
        Err(error) => Err(error),
    }
}

/// Reads a Run, if it is assigned to that Pod.
///
/// # Errors
/// Our types can't read it.
pub fn read_run(value: Value, pod: &str) -> Result<Seen<Run>, String> {
    if value.pointer("/status/assignedPod").and_then(Value::as_str) != Some(pod) {
        return Ok(None);
    }
    let mut run = decode::run(value).map_err(|error| format!("{}: {}", error.path, error.reason))?;
    run.metadata.managed_fields = None;
    Ok(Some(Box::new(run)))
}

/// Reads a PersistentWorkspace, if it is bound to that Pod.
///
/// # Errors
/// Our types can't read it.
pub fn read_workspace(value: Value, pod: &str) -> Result<Seen<PersistentWorkspace>, String> {
    if value.pointer("/status/boundPod").and_then(Value::as_str) != Some(pod) {
        return Ok(None);
    }
    let mut workspace = decode::persistent_workspace(value).map_err(|error| format!("{}: {}", error.path, error.reason))?;
    workspace.metadata.managed_fields = None;
    Ok(Some(Box::new(workspace)))
}
