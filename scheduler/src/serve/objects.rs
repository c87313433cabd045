//! What the informers keep of each object: the framework's model, and beside it what a status write must preserve.

use std::sync::Arc;

use berth_api::{PersistentWorkspace, decode};
use berth_controllers::persistent_workspace::RuntimePod;
use berth_framework::from_api;
use berth_framework::model::{ObjectKey, Phase, PodObject, RunObject, WorkspaceObject};
use berth_runtime::ObjectKey as StoreKey;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

/// A Run in the informer's store.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenRun {
    /// What the core reasons about.
    pub model: Arc<RunObject>,
    /// `status.conditions` of a Pending Run: a merge patch replaces the list, so the next write sends all of it. Empty for
    /// every other phase, in which we write nothing.
    pub conditions: Box<[Condition]>,
}

/// A PersistentWorkspace in the informer's store: for the scheduler and for the binder.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenWorkspace {
    /// What the core reasons about.
    pub model: Arc<WorkspaceObject>,
    /// The object itself, without managed fields and annotations.
    pub api: PersistentWorkspace,
}

/// The store's key of a model key.
pub fn store_key(key: &ObjectKey) -> StoreKey {
    StoreKey { namespace: key.namespace.clone(), name: key.name.clone() }
}

/// The model's key of a store key.
pub fn model_key(key: &StoreKey) -> ObjectKey {
    ObjectKey { namespace: key.namespace.clone(), name: key.name.clone() }
}

/// Reads a Run. One that our types can't read is kept with what can be read of it and marked invalid, so that a Pending one
/// is ended by the core like any other bad Run and an active one goes on holding its capacity.
///
/// # Errors
/// The object has no name: nothing can be done about it.
pub fn read_run(value: Value) -> Result<SeenRun, String> {
    let read = from_api::read_run(value).map_err(|error| error.to_string())?;
    let model = read.object();
    let conditions = match (model.phase, read.run.status) {
        (Phase::Pending, Some(status)) => status.conditions.into_boxed_slice(),
        _ => Box::default(),
    };
    Ok(SeenRun { model: Arc::new(model), conditions })
}

/// Reads a Pod with the label `runtime`.
///
/// # Errors
/// It is no Pod as core/v1 has it, or lacks the label.
pub fn read_pod(value: Value) -> Result<PodObject, String> {
    let pod: Pod = serde_json::from_value(value).map_err(|error| error.to_string())?;
    from_api::pod_object(&pod).ok_or_else(|| "no label runtime".to_owned())
}

/// Reads a PersistentWorkspace.
///
/// # Errors
/// Our types can't read it; to Runs that name it, it is as good as missing.
pub fn read_workspace(value: Value) -> Result<SeenWorkspace, String> {
    let mut api = decode::persistent_workspace(value).map_err(|error| format!("{}: {}", error.path, error.reason))?;
    api.metadata.managed_fields = None;
    api.metadata.annotations = None;
    Ok(SeenWorkspace { model: Arc::new(from_api::workspace_object(&api)), api })
}

/// What the binder reads of a Pod.
pub fn binder_pod(pod: &PodObject) -> Option<RuntimePod<'_>> {
    Some(RuntimePod {
        runtime: &pod.runtime,
        running: pod.running,
        ready: pod.ready,
        terminating: pod.terminating,
        heartbeat_true: pod.heartbeat_true,
        probe_time_ms: pod.probe_ms,
    })
}

/// What the binder reads of a workspace.
pub fn binder_workspace(workspace: &SeenWorkspace) -> Option<&PersistentWorkspace> {
    Some(&workspace.api)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(spec: Value, status: Value) -> Value {
        json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "spec": spec, "status": status, "metadata": {
            "namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"x": "y"}}})
    }

    fn condition(kind: &str) -> Value {
        json!({"type": kind, "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn conditions_are_kept_while_a_run_is_pending() {
        let spec = json!({"runtime": "bash", "mode": {"task": {}}});
        let pending = read_run(object(spec.clone(), json!({"phase": "Pending", "conditions": [condition("Running")]}))).unwrap();
        assert_eq!(pending.conditions.len(), 1);
        let ended = read_run(object(spec, json!({"phase": "Failed", "conditions": [condition("Running")]}))).unwrap();
        assert!(ended.conditions.is_empty());
    }
}
