//! From API objects to the model: total, so that one odd object never hurts another.

mod read;

pub use read::{ReadRun, read_run};

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_api::capacity::Capacity;
use berth_api::constants::{ANNOTATION_WORKSPACE_AGENT, API_VERSION, KIND_PERSISTENT_WORKSPACE, LABEL_RUNTIME, run_condition};
use berth_api::duration::DurationError;
use berth_api::message::bounded;
use berth_api::run::{InvalidTerm, RetryPolicy, RunAffinityTerm};
use berth_api::runtime_ready::PodSigns;
use berth_api::selector::CompiledSelector;
use berth_api::{PersistentWorkspace, Run, conditions, persistent_workspace, run};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::model::{Affinity, InvalidReason, InvalidRun, Labels, ObjectKey, Phase, PodObject, Requests, RunObject, Shown, WorkspaceObject, WorkspacePhase};

fn key_of(meta: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn labels_of(labels: Option<&BTreeMap<String, String>>) -> Labels {
    Arc::new(labels.cloned().unwrap_or_default())
}

/// A Run from its API object. A spec that can't be compiled becomes [`RunObject::invalid`].
pub fn run_object(run: &Run) -> RunObject {
    let meta = &run.metadata;
    let status = run.status.as_ref();
    let (requests, bad_requests) = match requests_of(run) {
        Ok(requests) => (Some(if requests == Requests::default() { one_run() } else { Arc::new(requests) }), None),
        Err(message) => (None, Some(InvalidRun { reason: InvalidReason::InvalidResources, message: bounded(message) })),
    };
    let (affinity, bad_affinity) = match affinity_of(run) {
        Ok(affinity) => (affinity, None),
        Err(message) => (Affinity::default(), Some(InvalidRun { reason: InvalidReason::InvalidSpec, message: bounded(message) })),
    };
    let bad_spec = |message| InvalidRun { reason: InvalidReason::InvalidSpec, message: bounded(message) };
    let bad_workspace = bad_workspace(run).map(bad_spec);
    let bad_duration = bad_duration(run).map(bad_spec);
    let bad_runtime = run.spec.runtime.is_empty().then(|| bad_spec("spec.runtime: must not be empty".into()));
    RunObject {
        key: key_of(meta),
        uid: Arc::from(meta.uid.as_deref().unwrap_or_default()),
        resource_version: Arc::from(meta.resource_version.as_deref().unwrap_or_default()),
        created_s: meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        labels: labels_of(meta.labels.as_ref()),
        deleting: meta.deletion_timestamp.is_some(),
        cancel_requested: run.spec.cancel_requested,
        runtime: Arc::from(run.spec.runtime.as_str()),
        workspace: run.spec.workspace.as_ref().map(|w| Arc::from(w.name.as_str())),
        requests,
        affinity: if affinity == Affinity::default() { no_affinity() } else { Arc::new(affinity) },
        invalid: bad_runtime.or(bad_requests).or(bad_workspace).or(bad_affinity).or(bad_duration),
        phase: phase_of(run),
        assigned_pod: status.and_then(|s| s.assigned_pod.as_deref()).filter(|name| !name.is_empty()).map(Arc::from),
        retry_not_before_wall_ms: retry_not_before(run),
        shown: status.and_then(shown_by),
    }
}

/// Most Runs have no affinity and ask for one of `runs`: they share these.
fn no_affinity() -> Arc<Affinity> {
    static NONE: OnceLock<Arc<Affinity>> = OnceLock::new();
    NONE.get_or_init(Arc::default).clone()
}

fn one_run() -> Arc<Requests> {
    static ONE: OnceLock<Arc<Requests>> = OnceLock::new();
    ONE.get_or_init(Arc::default).clone()
}

fn phase_of(run: &Run) -> Phase {
    match run.phase() {
        phase if phase.is_pending() => Phase::Pending,
        phase if phase.is_active() => Phase::Active,
        phase if phase.is_terminal() => Phase::Terminal,
        _ => Phase::Unknown,
    }
}

fn shown_by(status: &run::RunStatus) -> Option<Shown> {
    let condition = conditions::find(&status.conditions, run_condition::SCHEDULED)?;
    let message = status.message.as_deref().filter(|m| !m.is_empty())?;
    (condition.status == "False" && condition.message == message).then(|| Shown { reason: Arc::from(condition.reason.as_str()), message: Arc::from(message) })
}

fn requests_of(run: &Run) -> Result<Requests, String> {
    let requests = run.spec.requests().map_err(|error| error.to_string())?;
    Ok(Requests::new(requests.into_iter().map(|(name, amount)| (Arc::from(name), amount))))
}

fn bad_workspace(run: &Run) -> Option<String> {
    let workspace = run.spec.workspace.as_ref()?;
    if workspace.name.is_empty() {
        return Some("spec.workspace.name: must not be empty".into());
    }
    if workspace.kind != KIND_PERSISTENT_WORKSPACE {
        return Some(format!("spec.workspace.kind: must be {KIND_PERSISTENT_WORKSPACE}, not {:?}", workspace.kind));
    }
    (workspace.api_group != API_VERSION).then(|| format!("spec.workspace.apiGroup: must be {API_VERSION}, not {:?}", workspace.api_group))
}

/// A duration that nobody can read, which a looser CRD lets pass: neither the agent nor the lifecycle could use it.
fn bad_duration(run: &Run) -> Option<String> {
    let told = |field: &str, error: DurationError, text: Option<&str>| format!("spec.{field}: {error}: {:?}", text.unwrap_or_default());
    if let Err(error) = run.spec.timeout() {
        return Some(told("timeout", error, run.spec.timeout.as_deref()));
    }
    let policy = run.spec.retry_policy.as_ref()?;
    policy.first_pause().err().map(|error| told("retryPolicy.backoff", error, policy.backoff.as_deref()))
}

/// Compiles the affinity of a Run.
///
/// # Errors
/// The field path and what is wrong there.
fn affinity_of(run: &Run) -> Result<Affinity, String> {
    let mut affinity = Affinity::default();
    let Some(spec) = &run.spec.affinity else { return Ok(affinity) };
    for (field, rules) in [("runAffinity", &spec.run_affinity), ("runAntiAffinity", &spec.run_anti_affinity)] {
        let Some(rules) = rules else { continue };
        let required = format!("spec.affinity.{field}.requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = format!("spec.affinity.{field}.preferredDuringSchedulingIgnoredDuringExecution");
        let mut terms = Vec::new();
        for (i, term) in rules.required_during_scheduling_ignored_during_execution.iter().enumerate() {
            terms.push(term_of(&format!("{required}[{i}]"), term)?);
        }
        let mut weighted = Vec::new();
        for (i, term) in rules.preferred_during_scheduling_ignored_during_execution.iter().enumerate() {
            if !(1..=100).contains(&term.weight) {
                return Err(format!("{preferred}[{i}].weight: must be 1 to 100, not {}", term.weight));
            }
            weighted.push((term.weight, term_of(&format!("{preferred}[{i}].runAffinityTerm"), &term.run_affinity_term)?));
        }
        if field == "runAffinity" {
            (affinity.required, affinity.preferred) = (terms, weighted);
        } else {
            (affinity.required_anti, affinity.preferred_anti) = (terms, weighted);
        }
    }
    Ok(affinity)
}

fn term_of(path: &str, term: &RunAffinityTerm) -> Result<CompiledSelector, String> {
    term.compile().map_err(|error| match error {
        InvalidTerm::TopologyKey(_) => format!("{path}.topologyKey: {error}"),
        InvalidTerm::Selector(_) => format!("{path}.labelSelector: {error}"),
    })
}

/// When a retried Run may be tried again: the end of attempt n−1 plus `backoff · 2^(n−2)`, at most 60 s
/// (reference kruntimes §3.2 step 5, §3.9).
fn retry_not_before(run: &Run) -> Option<i64> {
    let status = run.status.as_ref()?;
    let attempt = status.attempt.filter(|n| *n > 1)?;
    let running = conditions::find(&status.conditions, run_condition::RUNNING).filter(|c| c.status == "False")?;
    let policy = run.spec.retry_policy.clone().unwrap_or_default();
    // A backoff that can't be read must not hold the Run for ever: it is as if none were given.
    let pause = policy.pause_before(attempt).or_else(|_| RetryPolicy::default().pause_before(attempt)).unwrap_or_default();
    let backoff = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
    Some(running.last_transition_time.0.as_millisecond().saturating_add(backoff))
}

/// A Runtime Pod from its API object; `None` without a `runtime` label.
pub fn pod_object(pod: &Pod) -> Option<PodObject> {
    let meta = &pod.metadata;
    let runtime = meta.labels.as_ref()?.get(LABEL_RUNTIME)?;
    let PodSigns { running, ready, terminating, heartbeat_true, cordoned, probe_time_ms } = PodSigns::of(pod);
    let annotations = meta.annotations.clone().unwrap_or_default();
    let Capacity { resources, ignored } = Capacity::of(&annotations);
    Some(PodObject {
        key: key_of(meta),
        uid: Arc::from(meta.uid.as_deref().unwrap_or_default()),
        runtime: Arc::from(runtime.as_str()),
        labels: labels_of(meta.labels.as_ref()),
        running,
        ready,
        terminating,
        heartbeat_true,
        cordoned,
        probe_ms: probe_time_ms,
        capacity: Arc::new(resources.into_iter().map(|(resource, amount)| (Arc::from(resource), amount)).collect()),
        bad_capacity: ignored,
        workspace_agent: annotations.contains_key(ANNOTATION_WORKSPACE_AGENT),
        annotations: Arc::new(annotations.into_iter().filter(|(k, _)| k != "kubectl.kubernetes.io/last-applied-configuration").collect()),
    })
}

/// A PersistentWorkspace from its API object.
pub fn workspace_object(workspace: &PersistentWorkspace) -> WorkspaceObject {
    use persistent_workspace::WorkspacePhase as P;
    let status = workspace.status.as_ref();
    let text = |value: Option<&String>| value.filter(|v| !v.is_empty()).map(|v| Arc::from(v.as_str()));
    WorkspaceObject {
        key: key_of(&workspace.metadata),
        uid: Arc::from(workspace.metadata.uid.as_deref().unwrap_or_default()),
        runtime: Arc::from(workspace.spec.runtime.as_str()),
        phase: match workspace.phase() {
            P::Bound => WorkspacePhase::Bound,
            P::Lost => WorkspacePhase::Lost,
            P::Released => WorkspacePhase::Released,
            _ => WorkspacePhase::Pending,
        },
        bound_pod: text(status.and_then(|s| s.bound_pod.as_ref())),
        bound_pod_uid: text(status.and_then(|s| s.bound_pod_uid.as_ref())),
        deleting: workspace.metadata.deletion_timestamp.is_some(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::json;

    use super::*;

    /// 2026-01-02T03:04:05Z.
    const ENDED_MS: i64 = 1_767_323_045_000;

    fn run(spec: &serde_json::Value, status: &serde_json::Value) -> RunObject {
        let mut run = json!({
            "apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "r", "namespace": "ns", "uid": "u"},
            "spec": {"runtime": "bash", "mode": {"task": {}}}, "status": status,
        });
        run["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        run_object(&serde_json::from_value(run).unwrap())
    }

    #[test]
    fn the_back_off_doubles_to_a_minute_and_never_overflows() {
        for (attempt, backoff, expected_ms) in [
            (1, "10s", None),
            (0, "10s", None),
            (-5, "10s", None),
            (2, "10s", Some(10_000)),
            (3, "10s", Some(20_000)),
            (4, "10s", Some(40_000)),
            (5, "10s", Some(60_000)),
            (i32::MAX, "10s", Some(60_000)),
            (i32::MAX, "1ms", Some(60_000)),
            (2, "2562047h47m16.854775807s", Some(60_000)),
            (i32::MAX, "2562047h47m16.854775807s", Some(60_000)),
            (2, "0s", Some(1_000)),
            (3, "-5s", Some(2_000)),
            (4, "nonsense", Some(4_000)),
            (3, "100ms", Some(200)),
        ] {
            let condition = json!({"type": "Running", "status": "False", "reason": "PodGone", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"});
            let status = json!({"phase": "Pending", "attempt": attempt, "conditions": [condition]});
            let object = run(&json!({"retryPolicy": {"backoff": backoff}}), &status);
            assert_eq!(object.retry_not_before_wall_ms, expected_ms.map(|ms| ENDED_MS + ms), "attempt {attempt}, backoff {backoff}");
        }
    }

    #[test]
    fn scheduled_running_and_ready_are_active_and_what_nobody_knows_is_left_alone() {
        for (phases, expected) in [
            (["Pending", "", ""].as_slice(), Phase::Pending),
            (&["Scheduled", "Running", "Ready"], Phase::Active),
            (&["Succeeded", "Failed", "Timeout", "Cancelled"], Phase::Terminal),
            (&["Suspended", "running", "Unknown"], Phase::Unknown),
        ] {
            for phase in phases {
                assert_eq!(run(&json!({}), &json!({"phase": phase, "assignedPod": "p"})).phase, expected, "{phase}");
            }
        }
        assert_eq!(run(&json!({}), &json!({})).phase, Phase::Pending);
        assert_eq!(run(&json!({}), &json!(null)).phase, Phase::Pending);
    }

    #[test]
    fn requests_are_normalised_or_refused_with_the_resource_s_name() {
        for (requests, expected) in [
            (json!({}), Ok("runs=1")),
            (json!({"runs": "0", "gpu": "0"}), Ok("runs=1")),
            (json!({"runs": "3", "gpu": "1k", "cpu": "2"}), Ok("runs=3 cpu=2 gpu=1000")),
            (json!({"mem": "9223372036854775807"}), Ok("runs=1 mem=9223372036854775807")),
            (json!({"mem": "9223372036854775808"}), Err(("mem", ", and is greater than 9223372036854775807"))),
            (json!({"cpu": "500m"}), Err(("cpu", ""))),
            (json!({"gpu": "-1"}), Err(("gpu", ""))),
            (json!({"runs": "one"}), Err(("runs", ""))),
        ] {
            let object = run(&json!({"resources": {"requests": requests}}), &json!({}));
            let text = |requests: &Requests| requests.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ");
            let got = object.requests.as_deref().map(text);
            match expected {
                Ok(expected) => assert_eq!((got.as_deref(), object.invalid), (Some(expected), None), "{requests}"),
                Err((resource, more)) => {
                    let message = format!("resource request {resource:?} must be a non-negative integer{more}");
                    assert_eq!((got, object.invalid), (None, Some(InvalidRun { reason: InvalidReason::InvalidResources, message })), "{requests}");
                }
            }
        }
    }

    #[test]
    fn what_can_t_be_compiled_names_its_field_and_nothing_else_is_lost() {
        let term =
            |operator: &str, topology: &str| json!({"labelSelector": {"matchExpressions": [{"key": "a", "operator": operator}]}, "topologyKey": topology});
        let topology = "kruntimes.io/runtime-pod";
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (affinity, begins) in [
            (json!({"runAffinity": {required: [term("Near", topology)]}}), "spec.affinity.runAffinity.required".to_owned()),
            (
                json!({"runAntiAffinity": {required: [term("Exists", topology), term("Exists", "zone")]}}),
                format!("spec.affinity.runAntiAffinity.{required}[1].topologyKey"),
            ),
            (
                json!({"runAffinity": {preferred: [{"weight": 101, "runAffinityTerm": term("Exists", topology)}]}}),
                format!("spec.affinity.runAffinity.{preferred}[0].weight: must be 1 to 100, not 101"),
            ),
        ] {
            let object = run(&json!({"affinity": affinity}), &json!({"phase": "Running", "assignedPod": "p"}));
            let invalid = object.invalid.unwrap();
            assert!(invalid.reason == InvalidReason::InvalidSpec && invalid.message.starts_with(&begins), "{invalid:?}");
            assert_eq!((*object.affinity == Affinity::default(), object.phase, object.assigned_pod.as_deref()), (true, Phase::Active, Some("p")));
        }
    }
}
