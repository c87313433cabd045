//! What a plan is on the wire: one status write or one delete, and what people are told of it.

use super::plan::{Fault, Plan};
use berth_api::Run;
use berth_api::conditions::{ConditionStatus, set_condition};
use berth_api::constants::run_condition;
use berth_runtime::events::EventType;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

/// What was done to a Run; a label value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sent back to Pending before it had begun.
    Unassigned,
    /// Sent back to Pending with the next attempt.
    Retried,
    /// Ended Failed.
    Failed,
    /// Ended Cancelled.
    Cancelled,
    /// Deleted after its time to live.
    Deleted,
}

impl Action {
    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::Unassigned, Self::Retried, Self::Failed, Self::Cancelled, Self::Deleted];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unassigned => "unassigned",
            Self::Retried => "retried",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Deleted => "deleted",
        }
    }
}

/// A plan that changes something, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub action: Action,
    /// The merge patch of `status`; None deletes the object.
    pub status: Option<Value>,
    /// Type, reason and note of its Event; a deletion has none.
    pub event: Option<(EventType, &'static str, String)>,
}

/// What `plan` comes to for `run`; None leaves it as it is. `now` is cut to whole seconds.
pub(super) fn change(run: &Run, plan: &Plan, now: &Time) -> Option<Change> {
    let pod = run.status.as_ref().and_then(|status| status.assigned_pod.as_deref()).unwrap_or_default();
    let free = json!({"phase": "Pending", "assignedPod": null, "assignedPodUID": null, "startTime": null, "endpoint": null});
    let change = |action, status, event| Some(Change { action, status: Some(status), event: Some(event) });
    match plan {
        Plan::Leave | Plan::Later(_) => None,
        Plan::Delete => Some(Change { action: Action::Deleted, status: None, event: None }),
        Plan::Unassign { message } => {
            let status = with(free, json!({"message": message}));
            change(Action::Unassigned, status, (EventType::Warning, "StaleRunUnassigned", format!("{message} (pod {pod}); it is placed again")))
        }
        Plan::Retry { attempt, fault } => {
            let conditions = ended_conditions(run, *fault, &[run_condition::RUNNING], now);
            let status = with(free, json!({"attempt": attempt, "message": fault.message, "conditions": conditions}));
            let attempts_max = run.spec.retry_policy.clone().unwrap_or_default().attempts_max();
            let note = format!("{} (pod {pod}); attempt {attempt} of {attempts_max} follows", fault.message);
            change(Action::Retried, status, (EventType::Warning, "StaleRunRetrying", note))
        }
        Plan::End { phase, attempt, fault } => {
            let conditions = ended_conditions(run, *fault, &[run_condition::RUNNING, run_condition::COMPLETED], now);
            let status = json!({"phase": phase, "attempt": attempt, "message": fault.message, "completionTime": now, "conditions": conditions});
            let note = format!("{} (pod {pod}); attempt {attempt} was the last", fault.message);
            match *phase {
                "Cancelled" => change(Action::Cancelled, status, (EventType::Normal, "StaleRunCancelled", format!("{} (pod {pod})", fault.message))),
                _ => change(Action::Failed, status, (EventType::Warning, "StaleRunFailed", note)),
            }
        }
    }
}

impl Change {
    /// Whether a stored object shows that this took effect, whatever others wrote on top of it; `stored` is None if it is gone.
    pub fn is_stored_in(&self, stored: Option<&Value>) -> bool {
        let Some(wanted) = &self.status else { return stored.is_none() };
        let shows = |field: &str| stored.and_then(|object| object.pointer(&format!("/status/{field}"))).unwrap_or(&Value::Null) == &wanted[field];
        ["phase", "message", "assignedPod"].into_iter().filter(|field| wanted.get(field).is_some()).all(shows)
    }
}

/// The conditions after an end or a lost attempt: each of `kinds` False with the fault. A merge patch replaces the list, so all of it is sent.
/// Of a full list (16) the others are kept and ours is left out.
fn ended_conditions(run: &Run, fault: Fault, kinds: &[&str], now: &Time) -> Vec<Condition> {
    let mut conditions = run.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    for kind in kinds {
        set_condition(&mut conditions, kind, ConditionStatus::False, fault.reason, fault.message, now);
    }
    conditions
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        fields.extend(more);
    }
    object
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    const GONE: Fault = Fault { reason: "PodGone", message: "assigned pod was deleted" };

    fn run() -> Run {
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "r", "namespace": "ns", "uid": "u"},
            "spec": {"runtime": "bash", "mode": {"task": {}}, "retryPolicy": {"maxAttempts": 3}},
            "status": {"phase": "Running", "assignedPod": "p", "assignedPodUID": "pu", "startTime": "2026-01-01T00:00:00Z", "attempt": 1,
                "conditions": [condition("Scheduled", "True"), condition("Running", "True"), condition("Ours", "True")]},
        }))
        .unwrap()
    }

    fn told(plan: &Plan) -> (Value, String) {
        let change = change(&run(), plan, &Time(Timestamp::from_second(1_767_225_605).unwrap())).unwrap();
        let mut status = change.status.clone().unwrap();
        let conditions = status["conditions"].take();
        let short = |c: &Value| {
            format!(
                "{}={}/{} {}",
                c["type"].as_str().unwrap(),
                c["status"].as_str().unwrap(),
                c["reason"].as_str().unwrap(),
                c["lastTransitionTime"].as_str().unwrap()
            )
        };
        let conditions: Vec<String> = conditions.as_array().into_iter().flatten().map(|c| short(c).replace("2026-01-01T00:00:", "")).collect();
        assert!(change.is_stored_in(Some(&json!({"status": status}))) && !change.is_stored_in(Some(&json!({"status": {"phase": "Running"}}))));
        assert!(!change.is_stored_in(None));
        let (_, reason, note) = change.event.unwrap();
        status.as_object_mut().unwrap().remove("conditions");
        (status, format!("{reason}: {note}; {}", conditions.join(" ")))
    }

    #[test]
    fn each_change_is_one_whole_status_and_one_event() {
        let (status, event) = told(&Plan::Retry { attempt: 2, fault: GONE });
        assert_eq!(
            status,
            json!({"phase": "Pending", "assignedPod": null, "assignedPodUID": null, "startTime": null, "endpoint": null, "attempt": 2, "message": "assigned pod was deleted"})
        );
        assert_eq!(
            event,
            "StaleRunRetrying: assigned pod was deleted (pod p); attempt 2 of 3 follows; Scheduled=True/R 00Z Running=False/PodGone 05Z Ours=True/R 00Z"
        );

        let (status, event) = told(&Plan::End { phase: "Failed", attempt: 3, fault: GONE });
        assert_eq!(status, json!({"phase": "Failed", "attempt": 3, "message": "assigned pod was deleted", "completionTime": "2026-01-01T00:00:05Z"}));
        assert_eq!(
            event,
            "StaleRunFailed: assigned pod was deleted (pod p); attempt 3 was the last; \
             Scheduled=True/R 00Z Running=False/PodGone 05Z Ours=True/R 00Z Completed=False/PodGone 05Z"
        );

        let (status, event) = told(&Plan::Unassign { message: "m".to_owned() });
        assert_eq!(status, json!({"phase": "Pending", "assignedPod": null, "assignedPodUID": null, "startTime": null, "endpoint": null, "message": "m"}));
        assert_eq!(event, "StaleRunUnassigned: m (pod p); it is placed again; ");

        let cancelled = Fault { reason: "Cancelled", message: "cancelled by user" };
        let (status, event) = told(&Plan::End { phase: "Cancelled", attempt: 1, fault: cancelled });
        assert_eq!(status["phase"], "Cancelled");
        assert!(event.starts_with("StaleRunCancelled: cancelled by user (pod p); "), "{event}");
    }

    #[test]
    fn a_deletion_took_effect_if_the_object_is_gone() {
        let change = change(&run(), &Plan::Delete, &Time(Timestamp::UNIX_EPOCH)).unwrap();
        assert!(change.is_stored_in(None) && !change.is_stored_in(Some(&json!({}))));
    }
}
