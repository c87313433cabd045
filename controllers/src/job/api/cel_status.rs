//! The CEL rules of Job.status: the invariants of the specification's state machine, kept by the API server itself, so that not even a
//! leader that has been replaced can break them. Each beside the same rule in Rust; see [`berth_api::rules::cel`].

use berth_api::rules::cel::{CelRule, Check, has, same};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// "A state that is not terminal has Succeeded Unknown, never an absent one."
pub const SUCCEEDED_IS_THERE: CelRule = CelRule {
    rule: "has(self.conditions) && self.conditions.exists(c, c.type == 'Succeeded')",
    message: "Succeeded may not be omitted",
    check: Check::State(|status| condition(status, "Succeeded").is_some()),
};

/// "Succeeded True and False are irreversible, and their reason does not change."
pub const END_IS_FINAL: CelRule = CelRule {
    rule: "!has(oldSelf.conditions) || !oldSelf.conditions.exists(o, o.type == 'Succeeded' && o.status != 'Unknown') || \
           (has(self.conditions) && self.conditions.exists(n, n.type == 'Succeeded' && \
           oldSelf.conditions.exists(o, o.type == 'Succeeded' && o.status == n.status && o.reason == n.reason)))",
    message: "a terminal Succeeded condition is irreversible",
    check: Check::Transition(|new, old| !has_ended(old) || condition(new, "Succeeded") == condition(old, "Succeeded")),
};

/// "Succeeded True and False have completionTime."
pub const END_HAS_TIME: CelRule = CelRule {
    rule: "!has(self.conditions) || !self.conditions.exists(c, c.type == 'Succeeded' && c.status != 'Unknown') || has(self.completionTime)",
    message: "terminal Succeeded requires completionTime",
    check: Check::State(|status| !has_ended(status) || has(status, &["completionTime"])),
};

/// "ResultUnknown sets no completionTime": nothing but an end does.
pub const TIME_HAS_END: CelRule = CelRule {
    rule: "!has(self.completionTime) || (has(self.conditions) && self.conditions.exists(c, c.type == 'Succeeded' && c.status != 'Unknown'))",
    message: "completionTime requires a terminal Succeeded",
    check: Check::State(|status| !has(status, &["completionTime"]) || has_ended(status)),
};

/// "startTime once set does not change."
pub const START_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.startTime) || (has(self.startTime) && self.startTime == oldSelf.startTime)",
    message: "startTime is immutable once set",
    check: Check::Transition(|new, old| !has(old, &["startTime"]) || same_time(new, old, "startTime")),
};

/// "completionTime once set does not change."
pub const COMPLETION_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.completionTime) || (has(self.completionTime) && self.completionTime == oldSelf.completionTime)",
    message: "completionTime is immutable once set",
    check: Check::Transition(|new, old| !has(old, &["completionTime"]) || same_time(new, old, "completionTime")),
};

/// "completionTime is not before startTime."
pub const COMPLETION_AFTER_START: CelRule = CelRule {
    rule: "!has(self.startTime) || !has(self.completionTime) || self.completionTime >= self.startTime",
    message: "completionTime before startTime",
    check: Check::State(|status| {
        !has(status, &["startTime"])
            || !has(status, &["completionTime"])
            || matches!((time(status, "startTime"), time(status, "completionTime")), (Some(start), Some(end)) if end >= start)
    }),
};

/// Times of another epoch are a mistake (a container that could not start is dated 1970), and some can't be read back.
pub const START_IS_SANE: CelRule = CelRule {
    rule: "!has(self.startTime) || (self.startTime > timestamp('2000-01-01T00:00:00Z') && self.startTime < timestamp('9999-01-01T00:00:00Z'))",
    message: "startTime must be a time between the years 2000 and 9999",
    check: Check::State(|status| !has(status, &["startTime"]) || time(status, "startTime").is_some_and(is_sane)),
};

/// As [`START_IS_SANE`].
pub const COMPLETION_IS_SANE: CelRule = CelRule {
    rule: "!has(self.completionTime) || (self.completionTime > timestamp('2000-01-01T00:00:00Z') && self.completionTime < timestamp('9999-01-01T00:00:00Z'))",
    message: "completionTime must be a time between the years 2000 and 9999",
    check: Check::State(|status| !has(status, &["completionTime"]) || time(status, "completionTime").is_some_and(is_sane)),
};

/// As [`START_IS_SANE`].
pub const TRANSITION_IS_SANE: CelRule = CelRule {
    rule: "self.lastTransitionTime > timestamp('2000-01-01T00:00:00Z') && self.lastTransitionTime < timestamp('9999-01-01T00:00:00Z')",
    message: "lastTransitionTime must be a time between the years 2000 and 9999",
    check: Check::State(|condition| time(condition, "lastTransitionTime").is_some_and(is_sane)),
};

/// "startTime is not set before Scheduled is True."
pub const START_NEEDS_SCHEDULED: CelRule = CelRule {
    rule: "!has(self.startTime) || (has(self.conditions) && self.conditions.exists(c, c.type == 'Scheduled' && c.status == 'True'))",
    message: "startTime requires Scheduled=True",
    check: Check::State(|status| !has(status, &["startTime"]) || is_true(status, "Scheduled")),
};

/// "Once True, Scheduled does not go back."
pub const SCHEDULED_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.conditions) || !oldSelf.conditions.exists(o, o.type == 'Scheduled' && o.status == 'True') || \
           (has(self.conditions) && self.conditions.exists(n, n.type == 'Scheduled' && n.status == 'True'))",
    message: "Scheduled=True never goes back",
    check: Check::Transition(|new, old| !is_true(old, "Scheduled") || is_true(new, "Scheduled")),
};

/// "Scheduled: an execution exists that can be observed."
pub const SCHEDULED_NEEDS_EXECUTION: CelRule = CelRule {
    rule: "has(self.execution) || !has(self.conditions) || !self.conditions.exists(c, c.type == 'Scheduled' && c.status == 'True')",
    message: "Scheduled=True requires an execution",
    check: Check::State(|status| has(status, &["execution"]) || !is_true(status, "Scheduled")),
};

/// "Accepted: may enter scheduling." An execution of a Job that nobody accepted is nobody's; ours: once True it stays.
pub const EXECUTION_NEEDS_ACCEPTED: CelRule = CelRule {
    rule: "!has(self.execution) || (has(self.resolvedJobClass) && has(self.conditions) && self.conditions.exists(c, c.type == 'Accepted' && c.status == 'True'))",
    message: "an execution requires Accepted=True and resolvedJobClass",
    check: Check::State(|status| !has(status, &["execution"]) || has(status, &["resolvedJobClass"]) && is_true(status, "Accepted")),
};

/// "A Job that ended acquires no execution."
pub const ENDED_GETS_NO_EXECUTION: CelRule = CelRule {
    rule: "!has(self.execution) || has(oldSelf.execution) || !has(oldSelf.completionTime)",
    message: "a finished Job cannot acquire an execution",
    check: Check::Transition(|new, old| !has(new, &["execution"]) || has(old, &["execution"]) || !has(old, &["completionTime"])),
};

/// "References are not removed."
pub const EXECUTION_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.execution) || has(self.execution)",
    message: "execution cannot be removed",
    check: Check::Transition(|new, old| !has(old, &["execution"]) || has(new, &["execution"])),
};

/// On `execution`: another adapter is another execution.
pub const ADAPTER_STAYS: CelRule =
    CelRule { rule: "self.adapter == oldSelf.adapter", message: "adapter is immutable", check: Check::Transition(|new, old| same(new, old, &["adapter"])) };

/// On `execution`: "existing references are not silently replaced by another execution."
pub const REFERENCES_STAY: CelRule = CelRule {
    rule: "oldSelf.references.all(o, self.references.exists(n, n.type == o.type && n.id == o.id))",
    message: "an execution reference cannot be replaced or removed",
    check: Check::Transition(|new, old| {
        let list = |execution: &Value| execution.get("references").and_then(Value::as_array).cloned().unwrap_or_default();
        let new = list(new);
        list(old).iter().all(|old| new.iter().any(|new| same(new, old, &["type", "id"])))
    }),
};

/// "result does not change after the end."
pub const RESULT_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.completionTime) || (has(self.result) == has(oldSelf.result) && (!has(self.result) || self.result == oldSelf.result))",
    message: "result is immutable once terminal",
    check: Check::Transition(|new, old| !has(old, &["completionTime"]) || same(new, old, &["result"])),
};

/// A result before the end would be a guess.
pub const RESULT_NEEDS_END: CelRule = CelRule {
    rule: "!has(self.result) || has(self.completionTime)",
    message: "result requires completionTime",
    check: Check::State(|status| !has(status, &["result"]) || has(status, &["completionTime"])),
};

/// A process that did not start before the end was told did not start.
pub const START_IS_FROZEN: CelRule = CelRule {
    rule: "!has(oldSelf.completionTime) || has(self.startTime) == has(oldSelf.startTime)",
    message: "startTime frozen once terminal",
    check: Check::Transition(|new, old| !has(old, &["completionTime"]) || has(new, &["startTime"]) == has(old, &["startTime"])),
};

/// "The class is written into status, so that a change of the default does not change the execution."
pub const CLASS_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.resolvedJobClass) || (has(self.resolvedJobClass) && self.resolvedJobClass == oldSelf.resolvedJobClass)",
    message: "resolvedJobClass is immutable once set",
    check: Check::Transition(|new, old| !has(old, &["resolvedJobClass"]) || same(new, old, &["resolvedJobClass"])),
};

/// As [`CLASS_STAYS`].
pub const EFFECTIVE_RESOURCES_STAY: CelRule = CelRule {
    rule: "!has(oldSelf.effectiveResources) || (has(self.effectiveResources) && self.effectiveResources == oldSelf.effectiveResources)",
    message: "effectiveResources is immutable once set",
    check: Check::Transition(|new, old| !has(old, &["effectiveResources"]) || same(new, old, &["effectiveResources"])),
};

/// Design of Jobs, §0: a Job is not judged again after Accepted=True.
pub const ACCEPTED_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.conditions) || !oldSelf.conditions.exists(o, o.type == 'Accepted' && o.status == 'True') || \
           (has(self.conditions) && self.conditions.exists(n, n.type == 'Accepted' && n.status == 'True'))",
    message: "Accepted=True never goes back",
    check: Check::Transition(|new, old| !is_true(old, "Accepted") || is_true(new, "Accepted")),
};

/// Status and reason of the condition of that type.
fn condition<'a>(status: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let conditions = status.get("conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(kind))?;
    Some((found.get("status")?.as_str()?, found.get("reason")?.as_str()?))
}

fn is_true(status: &Value, kind: &str) -> bool {
    condition(status, kind).is_some_and(|(status, _)| status == "True")
}

fn has_ended(status: &Value) -> bool {
    condition(status, "Succeeded").is_some_and(|(status, _)| status != "Unknown")
}

/// The time in that member; None if there is none, or none that can be read, at which CEL fails.
fn time(value: &Value, member: &str) -> Option<Timestamp> {
    value.get(member)?.as_str()?.parse().ok()
}

/// CEL compares instants, however they are written.
fn same_time(new: &Value, old: &Value, member: &str) -> bool {
    matches!((time(new, member), time(old, member)), (Some(new), Some(old)) if new == old)
}

fn is_sane(time: Timestamp) -> bool {
    const YEAR_2000_S: i64 = 946_684_800;
    const YEAR_9999_S: i64 = 253_370_764_800;
    time.as_second() < YEAR_9999_S && (time.as_second() > YEAR_2000_S || time.as_second() == YEAR_2000_S && time.subsec_nanosecond() > 0)
}
