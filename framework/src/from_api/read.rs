//! Reads a Run that our types may not be able to read: an active one goes on holding its Pod, a Pending one can be ended.

use berth_api::Run;
use berth_api::decode::{self, InvalidObject};
use berth_api::message::bounded;
use berth_api::run::{RunPhase, RunSpec, RunStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::run_object;
use crate::model::{InvalidReason, InvalidRun, Phase, RunObject};

/// A Run, whole or as much of it as can be read.
#[derive(Debug)]
pub struct ReadRun {
    /// The Run; if it can't be decoded, what accounting and a status write need of it.
    pub run: Run,
    /// Why it can't be decoded, if it can't.
    pub undecodable: Option<InvalidObject>,
}

impl ReadRun {
    /// The Run for the model; one that can't be decoded is marked invalid, so that a Pending one is ended by the core like any
    /// other bad Run.
    pub fn object(&self) -> RunObject {
        let mut object = run_object(&self.run);
        if let Some(error) = &self.undecodable {
            object.invalid = Some(InvalidRun { reason: InvalidReason::InvalidSpec, message: bounded(format!("{}: {}", error.path, error.reason)) });
            if error.without_spec {
                // Admitted by the schema and left alone by every reader (reference kruntimes §1).
                object.phase = Phase::Unknown;
            }
        }
        object
    }
}

/// Reads a Run.
///
/// # Errors
/// It can't be decoded and has no name: nothing can be done about it.
#[expect(clippy::result_large_err, reason = "the Run is larger still")]
pub fn read_run(value: Value) -> Result<ReadRun, InvalidObject> {
    match decode::run(value) {
        Ok(run) => Ok(ReadRun { run, undecodable: None }),
        Err(error) if error.name.is_empty() => Err(error),
        Err(error) => Ok(ReadRun { run: remains_of(&error.rest.0), undecodable: Some(error) }),
    }
}

/// What is worth saving of a Run that can't be decoded.
fn remains_of(value: &Value) -> Run {
    let at = |path: &str| value.pointer(path).unwrap_or(&Value::Null);
    let fields = ["namespace", "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels"];
    let metadata: Map<String, Value> = fields.into_iter().filter_map(|field| Some((field.to_owned(), at("/metadata").get(field)?.clone()))).collect();
    let text = |field: &str| at("/status").get(field).and_then(Value::as_str).map(str::to_owned);
    let status = RunStatus {
        phase: RunPhase::parse(&text("phase").unwrap_or_default()),
        assigned_pod: text("assignedPod"),
        assigned_pod_uid: text("assignedPodUID"),
        message: text("message"),
        start_time: or_none(at("/status/startTime")),
        conditions: at("/status/conditions").as_array().into_iter().flatten().filter_map(or_none::<Condition>).collect(),
        ..RunStatus::default()
    };
    let runtime = at("/spec/runtime").as_str().unwrap_or_default().to_owned();
    let (workspace, resources) = (or_none(at("/spec/workspace")), or_none(at("/spec/resources")));
    let spec = RunSpec { runtime, workspace, resources, ..RunSpec::default() };
    Run { metadata: or_none::<ObjectMeta>(&Value::Object(metadata)).unwrap_or_default(), spec, status: Some(status) }
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

    #[test]
    fn a_run_that_cant_be_decoded_keeps_what_can() {
        let condition = json!({"type": "Running", "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let spec = json!({"runtime": "bash", "mode": 5, "resources": {"requests": {"runs": 3}}});
        let status = json!({"phase": "Running", "assignedPod": "p", "assignedPodUID": "pu", "conditions": [condition, 5]});
        let read = read_run(object(spec.clone(), status)).unwrap();
        assert_eq!(read.run.status.as_ref().unwrap().conditions.len(), 1);
        let run = read.object();
        assert_eq!(run.phase, Phase::Active);
        assert_eq!((&*run.runtime, run.assigned_pod.as_deref(), &*run.resource_version), ("bash", Some("p"), "7"));
        assert_eq!(run.requests.as_ref().unwrap().iter().map(|(name, n)| (name.to_string(), n)).collect::<Vec<_>>(), [("runs".to_owned(), 3)]);
        assert_eq!(run.labels.get("x").map(String::as_str), Some("y"));

        let pending = read_run(object(spec, Value::Null)).unwrap().object();
        assert_eq!(pending.phase, Phase::Pending);
        let invalid = pending.invalid.unwrap();
        assert_eq!(invalid.reason, InvalidReason::InvalidSpec);
        assert!(invalid.message.starts_with("spec.mode: "), "{}", invalid.message);
    }

    #[test]
    fn a_run_without_spec_is_left_alone() {
        let mut value = object(Value::Null, Value::Null);
        assert_eq!(read_run(value.clone()).unwrap().object().phase, Phase::Unknown);
        value["metadata"]["name"] = Value::Null;
        assert!(read_run(value).is_err());
    }

    #[test]
    fn a_long_refusal_stays_under_the_limit() {
        let run = read_run(object(json!({"runtime": "r", "mode": "é".repeat(9_000)}), Value::Null)).unwrap();
        assert!(run.object().invalid.unwrap().message.len() < berth_api::constants::MESSAGE_BYTES_MAX);
    }
}
