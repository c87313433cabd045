//! The invariants of a Job, told a second time: what of the specification a change from one stored state to another breaks.
//!
//! Written from the specification's sentences alone, over JSON, without any of the code under test. Suites ask it about every change that an
//! API server let pass.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// Every invariant that [`broken`] can name.
pub const INVARIANTS: &[&str] = &[
    "the end is irreversible",
    "startTime does not change",
    "completionTime does not change",
    "completionTime is not before startTime",
    "an end has completionTime, and only an end",
    "Succeeded is never absent",
    "startTime comes after Scheduled",
    "Scheduled does not go back",
    "references are not replaced or removed",
    "no execution after Cancelled",
    "no execution and no start after the end",
    "status is never removed",
    "the resolved class does not change",
    "effective resources do not change",
    "no result before the end",
    "one condition per type",
    "times can be read",
];

/// A Job as far as the invariants speak of it.
struct Seen<'a> {
    status: Option<&'a Value>,
    cancelled: bool,
    /// Status and reason by type.
    conditions: BTreeMap<&'a str, (&'a str, &'a str)>,
    repeated: bool,
    /// References by type, if there is an execution.
    execution: Option<(&'a str, BTreeMap<&'a str, &'a str>)>,
    readable: bool,
    start: Option<Timestamp>,
    completion: Option<Timestamp>,
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

impl<'a> Seen<'a> {
    fn of(job: &'a Value) -> Self {
        let status = job.get("status");
        let list = |at: &str| job.pointer(at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let listed = list("/status/conditions");
        let conditions: BTreeMap<_, _> = listed.iter().map(|c| (text(c, "type"), (text(c, "status"), text(c, "reason")))).collect();
        let execution = job.pointer("/status/execution").map(|execution| {
            let references = list("/status/execution/references").iter().map(|r| (text(r, "type"), text(r, "id"))).collect();
            (text(execution, "adapter"), references)
        });
        let mut readable = true;
        let mut time = |at: &str| -> Option<Timestamp> {
            let written = job.pointer(at)?;
            let read = written.as_str().and_then(|text| text.parse().ok());
            readable &= read.is_some();
            read
        };
        let (start, completion) = (time("/status/startTime"), time("/status/completionTime"));
        for index in 0..listed.len() {
            time(&format!("/status/conditions/{index}/lastTransitionTime"));
        }
        let cancelled = job.pointer("/spec/desiredState").and_then(Value::as_str) == Some("Cancelled");
        Self { status, cancelled, repeated: conditions.len() < listed.len(), conditions, execution, readable, start, completion }
    }

    fn succeeded(&self) -> Option<(&'a str, &'a str)> {
        self.conditions.get("Succeeded").copied()
    }

    fn ended(&self) -> bool {
        self.succeeded().is_some_and(|(status, _)| status == "True" || status == "False")
    }

    fn scheduled(&self) -> bool {
        self.conditions.get("Scheduled").is_some_and(|(status, _)| *status == "True")
    }

    fn part(&self, field: &str) -> Option<&'a Value> {
        self.status?.get(field)
    }
}

/// The invariants that the change from `old` to `new`, both whole objects, breaks.
pub fn broken(old: &Value, new: &Value) -> Vec<&'static str> {
    let (old, new) = (Seen::of(old), Seen::of(new));
    let mut broken = Vec::new();
    let mut demand = |invariant: &'static str, holds: bool| {
        assert!(INVARIANTS.contains(&invariant), "{invariant} is not listed");
        if !holds {
            broken.push(invariant);
        }
    };
    let same_result = old.part("result") == new.part("result");
    demand("the end is irreversible", !old.ended() || old.succeeded() == new.succeeded() && same_result && old.completion == new.completion);
    demand("startTime does not change", old.start.is_none() || old.start == new.start);
    demand("completionTime does not change", old.completion.is_none() || old.completion == new.completion);
    demand("completionTime is not before startTime", new.start.zip(new.completion).is_none_or(|(start, completion)| start <= completion));
    demand("an end has completionTime, and only an end", new.status.is_none() || new.ended() == new.part("completionTime").is_some());
    demand("Succeeded is never absent", new.status.is_none() || new.succeeded().is_some());
    demand("startTime comes after Scheduled", new.part("startTime").is_none() || new.scheduled());
    demand("Scheduled does not go back", !old.scheduled() || new.scheduled());
    let kept = match (&old.execution, &new.execution) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some((adapter, references)), Some((now, present))) => adapter == now && references.iter().all(|(kind, id)| present.get(kind) == Some(id)),
    };
    demand("references are not replaced or removed", kept);
    let first = old.execution.is_none() && new.execution.is_some();
    demand("no execution after Cancelled", !(first && new.cancelled));
    demand("no execution and no start after the end", !old.ended() || !first && (old.part("startTime").is_some() || new.part("startTime").is_none()));
    demand("status is never removed", old.status.is_none() || new.status.is_some());
    for (field, invariant) in [("resolvedJobClass", "the resolved class does not change"), ("effectiveResources", "effective resources do not change")] {
        demand(invariant, old.part(field).is_none() || old.part(field) == new.part(field));
    }
    demand("no result before the end", new.part("result").is_none() || new.ended());
    demand("one condition per type", !new.repeated);
    demand("times can be read", new.readable);
    broken
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(status: Value) -> Value {
        json!({"spec": {"desiredState": "Running"}, "status": status})
    }

    fn succeeded(status: &str, reason: &str) -> Value {
        json!([{"type": "Succeeded", "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }

    #[test]
    fn an_ordinary_end_breaks_nothing_and_each_disorder_is_named() {
        let done = job(json!({"conditions": succeeded("True", "Completed"), "completionTime": "2026-01-01T00:00:00Z"}));
        let before = job(json!({"conditions": succeeded("Unknown", "Running")}));
        assert_eq!(broken(&before, &done), Vec::<&str>::new());
        assert_eq!(broken(&done, &done), Vec::<&str>::new());
        assert_eq!(broken(&done, &before), ["the end is irreversible", "completionTime does not change"]);
        assert_eq!(broken(&done, &json!({"spec": {}}))[..1], ["the end is irreversible"]);
        assert_eq!(broken(&before, &job(json!({"conditions": []}))), ["Succeeded is never absent"]);
        let late = job(json!({"conditions": succeeded("True", "Completed"), "completionTime": "2026-01-01T00:00:00Z", "startTime": "2026-01-01T00:00:01Z"}));
        assert_eq!(broken(&before, &late), ["completionTime is not before startTime", "startTime comes after Scheduled"]);
        let cancelled = json!({"spec": {"desiredState": "Cancelled"}, "status": {"conditions": succeeded("Unknown", "Pending"), "execution": {"adapter": "a", "references": []}}});
        assert_eq!(broken(&before, &cancelled), ["no execution after Cancelled"]);
    }
}
