//! What the informers keep of each object: the framework's model, and beside it what a status write must preserve.

use std::sync::Arc;

use berth_api::run::{RunSpec, RunStatus};
use berth_api::{PersistentWorkspace, Run, decode};
use berth_controllers::persistent_workspace::RuntimePod;
use berth_framework::from_api;
use berth_framework::model::{InvalidReason, InvalidRun, ObjectKey, Phase, PodObject, RunObject, WorkspaceObject};
use berth_runtime::ObjectKey as StoreKey;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Longest message about a Run that can't be read, bytes (decisions "Wire": under 1,024).
const MESSAGE_BYTES_MAX: usize = 1_000;

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
    let rest = Remains::of(&value);
    match decode::run(value) {
        Ok(run) => Ok(seen(&run, None)),
        Err(error) if error.name.is_empty() => Err(error.to_string()),
        Err(error) => {
            let mut message = format!("{}: {}", error.path, error.reason);
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            let mut run = seen(&rest.into_run(), Some(InvalidRun { reason: InvalidReason::InvalidSpec, message }));
            if error.without_spec {
                // Admitted by the schema and left alone by every reader (reference kruntimes §1).
                Arc::make_mut(&mut run.model).phase = Phase::Unknown;
            }
            Ok(run)
        }
    }
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

fn seen(run: &Run, invalid: Option<InvalidRun>) -> SeenRun {
    let mut model = from_api::run_object(run);
    if invalid.is_some() {
        model.invalid = invalid;
    }
    let conditions = match (model.phase, &run.status) {
        (Phase::Pending, Some(status)) => status.conditions.clone().into_boxed_slice(),
        _ => Box::default(),
    };
    SeenRun { model: Arc::new(model), conditions }
}

/// What is worth saving of a Run that can't be read: everything that accounting and a status write need.
struct Remains {
    metadata: Value,
    runtime: Value,
    resources: Value,
    status: Value,
}

impl Remains {
    fn of(value: &Value) -> Self {
        let at = |path: &str| value.pointer(path).cloned().unwrap_or_default();
        let mut metadata = Map::new();
        for field in ["namespace", "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels"] {
            if let Some(value) = value.pointer("/metadata").and_then(|meta| meta.get(field)) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
        Self { metadata: Value::Object(metadata), runtime: at("/spec/runtime"), resources: at("/spec/resources"), status: at("/status") }
    }

    fn into_run(self) -> Run {
        let text = |field: &str| self.status.get(field).and_then(Value::as_str).map(str::to_owned);
        let conditions = self.status.get("conditions").and_then(Value::as_array);
        let status = RunStatus {
            phase: berth_api::run::RunPhase::parse(&text("phase").unwrap_or_default()),
            assigned_pod: text("assignedPod"),
            assigned_pod_uid: text("assignedPodUID"),
            message: text("message"),
            conditions: conditions.into_iter().flatten().filter_map(or_none::<Condition>).collect(),
            ..RunStatus::default()
        };
        let spec = RunSpec { runtime: self.runtime.as_str().unwrap_or_default().to_owned(), resources: or_none(&self.resources), ..RunSpec::default() };
        Run { metadata: or_none::<ObjectMeta>(&self.metadata).unwrap_or_default(), spec, status: Some(status) }
    }
}

fn or_none<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
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

    #[test]
    fn a_run_that_cant_be_read_keeps_what_can() {
        let spec = json!({"runtime": "bash", "mode": 5, "resources": {"requests": {"runs": 3}}});
        let status = json!({"phase": "Running", "assignedPod": "p", "assignedPodUID": "pu", "conditions": [condition("Running"), 5]});
        let run = read_run(object(spec.clone(), status)).unwrap().model;
        assert_eq!(run.phase, Phase::Active);
        assert_eq!((&*run.runtime, run.assigned_pod.as_deref(), &*run.resource_version), ("bash", Some("p"), "7"));
        assert_eq!(run.requests.as_ref().unwrap().iter().map(|(name, n)| (name.to_string(), n)).collect::<Vec<_>>(), [("runs".to_owned(), 3)]);
        assert_eq!(run.labels.get("x").map(String::as_str), Some("y"));

        let pending = read_run(object(spec, Value::Null)).unwrap();
        assert_eq!(pending.model.phase, Phase::Pending);
        let invalid = pending.model.invalid.clone().unwrap();
        assert_eq!(invalid.reason, InvalidReason::InvalidSpec);
        assert!(invalid.message.starts_with("spec.mode: "), "{}", invalid.message);
    }

    #[test]
    fn a_run_without_spec_is_left_alone() {
        let mut value = object(Value::Null, Value::Null);
        assert_eq!(read_run(value.clone()).unwrap().model.phase, Phase::Unknown);
        value["metadata"]["name"] = Value::Null;
        assert!(read_run(value).is_err());
    }

    #[test]
    fn a_long_refusal_stays_under_the_limit() {
        let run = read_run(object(json!({"runtime": "r", "mode": "é".repeat(9_000)}), Value::Null)).unwrap();
        assert!(run.model.invalid.as_ref().unwrap().message.len() <= MESSAGE_BYTES_MAX);
    }
}
