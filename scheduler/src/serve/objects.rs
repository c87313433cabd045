//! What the informers keep of each object: the framework's model, and beside it what a status write must preserve.

use std::sync::Arc;

use berth_api::constants::RESOURCE_RUNS;
use berth_api::{PersistentWorkspace, Run, decode};
use berth_controllers::pods::RuntimePod;
use berth_controllers::runs::{RunView, Stage};
use berth_framework::from_api;
use berth_framework::model::{ObjectKey, Phase, PodObject, RunObject, WorkspaceObject};
use berth_runtime::ObjectKey as StoreKey;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

/// A Run in the informer's store.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenRun {
    /// What the core reasons about.
    pub model: Arc<RunObject>,
    /// `status.conditions` of a Pending Run: a merge patch replaces the list, so the next write sends all of it. Empty for
    /// every other phase, in which the scheduler writes nothing.
    pub conditions: Box<[Condition]>,
    /// What the reconcilers look at beside the model.
    pub life: Life,
}

/// Where a Run stands in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    stage: Stage,
    /// `status.assignedPodUID` while it may be on that Pod.
    pod_uid: Option<Arc<str>>,
    last_use_s: Option<i64>,
    delete_at_s: Option<i64>,
}

impl Life {
    fn of(run: &Run) -> Self {
        let (stage, status) = (Stage::of(run.phase()), run.status.as_ref());
        let seconds = |time: Option<&Time>| time.map(|time| time.0.as_second());
        let start_s = seconds(status.and_then(|status| status.start_time.as_ref()));
        let end_s = seconds(status.and_then(|status| status.completion_time.as_ref()));
        let ttl_s = run.spec.ttl_seconds_after_finished.filter(|ttl_s| *ttl_s > 0 && stage == Stage::Ended);
        let pod_uid = status.and_then(|status| status.assigned_pod_uid.as_deref()).filter(|uid| !uid.is_empty() && stage.is_active()).map(Arc::from);
        Self { stage, pod_uid, last_use_s: start_s.max(end_s), delete_at_s: end_s.zip(ttl_s).map(|(end_s, ttl_s)| end_s.saturating_add(ttl_s.into())) }
    }
}

/// A PersistentWorkspace in the informer's store: for the scheduler and for the reconcilers.
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
    let (model, life) = (read.object(), Life::of(&read.run));
    let conditions = match (model.phase, read.run.status) {
        (Phase::Pending, Some(status)) => status.conditions.into_boxed_slice(),
        _ => Box::default(),
    };
    Ok(SeenRun { model: Arc::new(model), conditions, life })
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

/// What the reconcilers read of a Run.
pub fn run_view(run: &SeenRun) -> Option<RunView<'_>> {
    let SeenRun { model, life, .. } = run;
    let held_runs = model.requests.as_ref().and_then(|requests| requests.iter().next()).map_or(0, |(_, runs)| u64::try_from(runs).unwrap_or(0));
    Some(RunView {
        stage: life.stage,
        pod: model.assigned_pod.as_ref(),
        pod_uid: life.pod_uid.as_ref(),
        runtime: &model.runtime,
        workspace: model.workspace.as_ref(),
        held_runs,
        cancel_requested: model.cancel_requested,
        last_use_s: life.last_use_s,
        delete_at_s: life.delete_at_s,
    })
}

/// What the reconcilers read of a Pod.
pub fn pod_view(pod: &PodObject) -> Option<RuntimePod<'_>> {
    Some(RuntimePod {
        runtime: &pod.runtime,
        signs: pod.signs(),
        agent: pod.workspace_agent,
        runs: pod.capacity.get(RESOURCE_RUNS).map_or(0, |runs| u64::try_from(*runs).unwrap_or(0)),
    })
}

/// What the reconcilers read of a workspace.
pub fn workspace_view(workspace: &SeenWorkspace) -> Option<&PersistentWorkspace> {
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

    #[test]
    fn the_life_of_a_run_is_read_from_its_times() {
        let spec = |ttl_s: i32| json!({"runtime": "bash", "mode": {"task": {}}, "ttlSecondsAfterFinished": ttl_s});
        let (start, end) = ("1970-01-01T00:01:00Z", "1970-01-01T00:02:00Z");
        let undecodable = json!({"runtime": "bash", "mode": 5, "workspace": {"name": "w"}});
        let rows = [
            (spec(9), json!({"phase": "Running", "startTime": start}), (Stage::Claimed, Some(60), None)),
            (spec(9), json!({"phase": "Failed", "startTime": start, "completionTime": end}), (Stage::Ended, Some(120), Some(129))),
            (spec(0), json!({"phase": "Failed", "startTime": start, "completionTime": end}), (Stage::Ended, Some(120), None)),
            (spec(9), json!({"phase": "Failed", "startTime": start}), (Stage::Ended, Some(60), None)),
            (spec(9), json!({"phase": "Running", "completionTime": end}), (Stage::Claimed, Some(120), None)),
            (spec(9), json!({"phase": "Scheduled"}), (Stage::Scheduled, None, None)),
            (spec(9), Value::Null, (Stage::Pending, None, None)),
            (undecodable, json!({"phase": "Running", "startTime": start}), (Stage::Claimed, Some(60), None)),
        ];
        for (spec, status, expected) in rows {
            let run = read_run(object(spec.clone(), status.clone())).unwrap();
            let view = run_view(&run).unwrap();
            assert_eq!((view.stage, view.last_use_s, view.delete_at_s), expected, "{status}");
            assert_eq!(view.workspace.map(|name| &**name), spec["workspace"]["name"].as_str(), "it goes on using its workspace");
        }
    }
}
