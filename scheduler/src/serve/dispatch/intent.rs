//! One status write that the core asked for, and the patch that carries it out.

use std::sync::Arc;
use std::time::Instant;

use berth_api::conditions::{ConditionStatus, find, set_condition};
use berth_api::constants::{reason, run_condition};
use berth_framework::core::{Effect, RunRef, WriteId};
use berth_framework::model::Shown;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use opentelemetry::trace::SpanContext;
use serde_json::{Value, json};

/// A write to one Run.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The core is answered with this id.
    pub write: WriteId,
    /// The Run, as the core saw it.
    pub run: RunRef,
    /// What to write.
    pub what: What,
    /// Where it comes from, for log and metrics.
    pub origin: Origin,
}

/// The three writes of the scheduler.
#[derive(Clone, Debug)]
pub enum What {
    /// Pending → Scheduled.
    Bind {
        /// Name of the Pod.
        pod: Arc<str>,
        /// UID of the Pod.
        pod_uid: Arc<str>,
        /// What Bind plugins remarked.
        remarks: Vec<String>,
    },
    /// Pending → Pending: why it waits.
    Waiting {
        /// Condition reason and message.
        shown: Shown,
        /// Codes of the reasons behind it: when they change, there is an Event.
        codes: Arc<[&'static str]>,
    },
    /// Pending → Cancelled or Failed.
    Terminate {
        /// `Cancelled` or `Failed`.
        phase: &'static str,
        /// Condition reason.
        reason: &'static str,
        /// Condition message and `status.message`.
        message: Arc<str>,
    },
}

/// The attempt behind a write.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The term of leadership that the decision fell in: it is sent in no other.
    pub epoch: u64,
    /// Name of the profile that decided.
    pub profile: Arc<str>,
    /// How many attempts the Run has had.
    pub attempts: u32,
    /// How long it had been queued when the decision fell, milliseconds.
    pub queued_for_ms: u64,
    /// When the decision fell.
    pub decided: Instant,
    /// The span of the cycle, if there are traces.
    pub trace: Option<SpanContext>,
}

impl Intent {
    /// The write that an effect asks for.
    pub fn of(effect: Effect, origin: Origin) -> Self {
        match effect {
            Effect::Bind(bind) => {
                let what = What::Bind { pod: bind.pod, pod_uid: bind.pod_uid, remarks: bind.note.remarks };
                Self { write: bind.write, run: bind.run, what, origin }
            }
            Effect::SetWaiting { write, run, shown, codes } => Self { write, run, what: What::Waiting { shown, codes }, origin },
            Effect::Terminate { write, run, phase, reason, message } => Self { write, run, what: What::Terminate { phase, reason, message }, origin },
        }
    }

    /// A message that may wait; everything else goes first.
    pub fn is_message(&self) -> bool {
        matches!(self.what, What::Waiting { .. })
    }

    /// One word for the log and metrics.
    pub fn kind(&self) -> &'static str {
        match self.what {
            What::Bind { .. } => "bind",
            What::Waiting { .. } => "waiting",
            What::Terminate { .. } => "terminate",
        }
    }
}

/// What a write leaves behind of the status, to be merge-patched.
#[derive(Clone, Debug)]
pub struct NewStatus {
    /// The merge patch of `status`.
    pub patch: Value,
    /// All conditions after it.
    pub conditions: Vec<Condition>,
}

impl What {
    /// The status after this write to a Run that carries `conditions`. A merge patch replaces the list, so all of it is sent.
    ///
    /// Of a full list (16) the others are kept and ours is left out: the placement counts, not its condition.
    pub fn status(&self, conditions: &[Condition], now: &Time) -> NewStatus {
        let mut conditions = conditions.to_vec();
        let mut set = |kind, status, reason: &str, message: &str| {
            set_condition(&mut conditions, kind, status, reason, message, now);
        };
        let mut patch = match self {
            Self::Bind { pod, pod_uid, .. } => {
                set(run_condition::SCHEDULED, ConditionStatus::True, reason::ASSIGNED, &assigned_message(pod));
                json!({"phase": "Scheduled", "assignedPod": &**pod, "assignedPodUID": &**pod_uid, "message": null})
            }
            Self::Waiting { shown, .. } => {
                set(run_condition::SCHEDULED, ConditionStatus::False, &shown.reason, &shown.message);
                json!({"phase": "Pending", "message": &*shown.message})
            }
            Self::Terminate { phase, reason, message } => {
                set(run_condition::RUNNING, ConditionStatus::False, reason, message);
                set(run_condition::COMPLETED, ConditionStatus::False, reason, message);
                json!({"phase": phase, "message": &**message, "completionTime": now})
            }
        };
        patch["conditions"] = json!(conditions);
        NewStatus { patch, conditions }
    }

    /// Whether a stored status shows that this write took effect, whatever others wrote on top of it.
    pub fn is_stored_in(&self, status: &Value) -> bool {
        let text = |field: &str| status.get(field).and_then(Value::as_str).unwrap_or_default();
        match self {
            // The agent may have claimed, even ended it; nobody but us assigns.
            Self::Bind { pod, pod_uid, .. } => {
                text("assignedPod") == &**pod && text("assignedPodUID") == &**pod_uid && !matches!(text("phase"), "" | "Pending")
            }
            Self::Waiting { shown, .. } => text("message") == &*shown.message && shows(status, shown),
            Self::Terminate { phase, message, .. } => text("phase") == *phase && text("message") == &**message,
        }
    }
}

fn shows(status: &Value, shown: &Shown) -> bool {
    let conditions: Vec<Condition> = status.get("conditions").and_then(|list| serde_json::from_value(list.clone()).ok()).unwrap_or_default();
    find(&conditions, run_condition::SCHEDULED).is_some_and(|c| c.status == "False" && c.reason == *shown.reason && c.message == *shown.message)
}

/// Message of condition Scheduled=True (reference kruntimes §1.4).
pub fn assigned_message(pod: &str) -> String {
    format!("assigned to runtime pod {pod}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::new(second, 0).unwrap())
    }

    fn bind() -> What {
        What::Bind { pod: "p".into(), pod_uid: "u".into(), remarks: Vec::new() }
    }

    fn waiting(message: &str) -> What {
        What::Waiting { shown: Shown { reason: "Unschedulable".into(), message: message.into() }, codes: [].into() }
    }

    #[test]
    fn conditions_of_others_are_kept_and_times_tell_when_the_status_changed() {
        let mut others = Vec::new();
        set_condition(&mut others, "Ours", ConditionStatus::True, "Kept", "kept", &at(1));
        let first = waiting("a").status(&others, &at(10)).conditions;
        let second = waiting("b").status(&first, &at(20)).conditions;
        let bound = bind().status(&second, &at(30));
        let scheduled = |list: &[Condition]| find(list, "Scheduled").unwrap().clone();
        assert_eq!(scheduled(&second).last_transition_time, at(10), "the status did not change");
        assert_eq!(scheduled(&bound.conditions).last_transition_time, at(30));
        assert_eq!(scheduled(&bound.conditions).message, "assigned to runtime pod p");
        assert_eq!(find(&bound.conditions, "Ours"), find(&others, "Ours"));
        assert_eq!(bound.patch["message"], Value::Null, "the waiting text goes");
        assert_eq!(bound.patch["conditions"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_full_list_of_conditions_does_not_keep_a_run_from_being_placed() {
        let mut full = Vec::new();
        for i in 0..16 {
            set_condition(&mut full, &format!("T{i}"), ConditionStatus::True, "R", "", &at(1));
        }
        let bound = bind().status(&full, &at(2));
        assert_eq!(bound.conditions, full);
        assert_eq!(bound.patch["assignedPod"], "p");
    }

    #[test]
    fn a_terminal_write_is_whole() {
        let what = What::Terminate { phase: "Failed", reason: "InvalidSpec", message: "m".into() };
        let status = what.status(&[], &at(5)).patch;
        assert_eq!((&status["phase"], &status["message"], &status["completionTime"]), (&json!("Failed"), &json!("m"), &json!("1970-01-01T00:00:05Z")));
        let kinds: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|c| (c["type"].clone(), c["status"].clone(), c["reason"].clone())).collect();
        assert_eq!(kinds, [(json!("Running"), json!("False"), json!("InvalidSpec")), (json!("Completed"), json!("False"), json!("InvalidSpec"))]);
    }

    #[test]
    fn what_is_stored_tells_whether_our_write_took_effect() {
        let rows = [
            (json!({"phase": "Scheduled", "assignedPod": "p", "assignedPodUID": "u"}), true),
            (json!({"phase": "Succeeded", "assignedPod": "p", "assignedPodUID": "u"}), true),
            (json!({"phase": "Scheduled", "assignedPod": "p", "assignedPodUID": "other"}), false),
            (json!({"phase": "Pending", "assignedPod": "p", "assignedPodUID": "u"}), false),
            (json!({}), false),
        ];
        for (status, stored) in rows {
            assert_eq!(bind().is_stored_in(&status), stored, "{status}");
        }
        for what in [waiting("w"), What::Terminate { phase: "Failed", reason: "R", message: "m".into() }] {
            assert!(what.is_stored_in(&what.status(&[], &at(1)).patch));
            assert!(!what.is_stored_in(&json!({"phase": "Pending"})));
        }
    }
}
