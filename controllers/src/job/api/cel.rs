//! The CEL rules of Job.spec, of resources and of the object as a whole, each beside the same rule in Rust; see [`berth_api::rules::cel`].
//!
//! A rule on an optional field is not asked when the field is added or removed; so what must not change is compared one level up.

use berth_api::quantity;
use berth_api::rules::cel::{CelRule, Check, at, has, same};
use serde_json::Value;

use super::names::JOB_NAME_CHARS_MAX;

/// Names travel in labels (design of Jobs, §1.27).
pub const NAME_IS_SHORT: CelRule = CelRule {
    rule: "size(self.metadata.name) <= 63",
    message: "name must be at most 63 characters",
    check: Check::State(|job| at(job, &["metadata", "name"]).and_then(Value::as_str).is_none_or(|name| name.chars().count() <= JOB_NAME_CHARS_MAX)),
};

/// Without this, a status could be removed and made anew, and every rule of transition with it.
pub const STATUS_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.status) || has(self.status)",
    message: "status cannot be removed",
    check: Check::Transition(|new, old| !has(old, &["status"]) || has(new, &["status"])),
};

/// Specification, "invariants": after Cancelled no execution is made. It settles cancel against start in the API server.
pub const CANCELLED_GETS_NO_EXECUTION: CelRule = CelRule {
    rule: "!has(self.status) || !has(self.status.execution) || (has(oldSelf.status) && has(oldSelf.status.execution)) || \
           !has(self.spec.desiredState) || self.spec.desiredState != 'Cancelled'",
    message: "a cancelled Job cannot acquire an execution",
    check: Check::Transition(|new, old| !has(new, &["status", "execution"]) || has(old, &["status", "execution"]) || !is_cancelled(new.get("spec"))),
};

/// Specification, "immutability".
pub const TASK_STAYS: CelRule = CelRule {
    // Lists with keys are equal whatever their order, for CEL.
    rule: "self.task == oldSelf.task && (!has(self.task.env) || self.task.env.map(e, e.name) == oldSelf.task.env.map(e, e.name)) && \
           (!has(self.task.imagePullSecrets) || self.task.imagePullSecrets.map(s, s.name) == oldSelf.task.imagePullSecrets.map(s, s.name))",
    message: "task is immutable",
    check: Check::Transition(|new, old| same(new, old, &["task"])),
};

/// Specification, "immutability"; the stricter reading: from creation on.
pub const CLASS_NAME_STAYS: CelRule = CelRule {
    rule: "has(self.jobClassName) == has(oldSelf.jobClassName) && (!has(self.jobClassName) || self.jobClassName == oldSelf.jobClassName)",
    message: "jobClassName is immutable",
    check: Check::Transition(|new, old| same(new, old, &["jobClassName"])),
};

/// Specification, "immutability". A quantity that is written otherwise (`1`, `1000m`) is a change.
pub const RESOURCES_STAY: CelRule = CelRule {
    rule: "has(self.resources) == has(oldSelf.resources) && (!has(self.resources) || self.resources == oldSelf.resources)",
    message: "resources is immutable",
    check: Check::Transition(|new, old| same(new, old, &["resources"])),
};

/// Specification, "immutability".
pub const DEADLINE_STAYS: CelRule = CelRule {
    rule: "has(self.activeDeadlineSeconds) == has(oldSelf.activeDeadlineSeconds) && \
           (!has(self.activeDeadlineSeconds) || self.activeDeadlineSeconds == oldSelf.activeDeadlineSeconds)",
    message: "activeDeadlineSeconds is immutable",
    check: Check::Transition(|new, old| same(new, old, &["activeDeadlineSeconds"])),
};

/// Specification, "desiredState": one way.
pub const CANCELLED_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.desiredState) || oldSelf.desiredState != 'Cancelled' || (has(self.desiredState) && self.desiredState == 'Cancelled')",
    message: "desiredState cannot leave Cancelled",
    check: Check::Transition(|new, old| !is_cancelled(Some(old)) || is_cancelled(Some(new))),
};

fn is_cancelled(spec: Option<&Value>) -> bool {
    spec.and_then(|spec| spec.get("desiredState")).and_then(Value::as_str) == Some("Cancelled")
}

/// Specification, "environment".
pub const ONE_OF_VALUE_AND_SOURCE: CelRule = CelRule {
    rule: "has(self.value) != has(self.valueFrom)",
    message: "exactly one of value, valueFrom",
    check: Check::State(|env| has(env, &["value"]) != has(env, &["valueFrom"])),
};

/// Specification, "environment".
pub const ONE_SOURCE: CelRule = CelRule {
    rule: "has(self.secretKeyRef) != has(self.configMapKeyRef)",
    message: "exactly one of secretKeyRef, configMapKeyRef",
    check: Check::State(|source| has(source, &["secretKeyRef"]) != has(source, &["configMapKeyRef"])),
};

/// Specification, "resources".
pub const QUANTITY_IS_POSITIVE: CelRule = CelRule {
    rule: "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
    message: "must be a positive quantity",
    check: Check::State(|value| amount(Some(value)).is_some_and(|amount| amount > 0)),
};

/// Specification, "resources".
pub const CPU_REQUEST_WITHIN_LIMIT: CelRule = CelRule {
    rule: "!has(self.requests) || !has(self.limits) || !has(self.requests.cpu) || !has(self.limits.cpu) || \
           quantity(string(self.requests.cpu)).compareTo(quantity(string(self.limits.cpu))) <= 0",
    message: "requests.cpu must not exceed limits.cpu",
    check: Check::State(|resources| ordered(resources, &["requests", "cpu"], &["limits", "cpu"])),
};

/// Specification, "resources".
pub const MEMORY_REQUEST_WITHIN_LIMIT: CelRule = CelRule {
    rule: "!has(self.requests) || !has(self.limits) || !has(self.requests.memory) || !has(self.limits.memory) || \
           quantity(string(self.requests.memory)).compareTo(quantity(string(self.limits.memory))) <= 0",
    message: "requests.memory must not exceed limits.memory",
    check: Check::State(|resources| ordered(resources, &["requests", "memory"], &["limits", "memory"])),
};

/// An amount, in 10^-9; None if it is absent or no quantity.
fn amount(value: Option<&Value>) -> Option<i128> {
    match value? {
        Value::String(text) => quantity::nanos(text).ok(),
        Value::Number(number) => quantity::nanos(&number.to_string()).ok(),
        _ => None,
    }
}

/// Whether the amount at `less` is at most the one at `more`, if both are there. What is no quantity fails CEL's conversion.
pub(super) fn ordered(value: &Value, less: &[&str], more: &[&str]) -> bool {
    match (at(value, less), at(value, more)) {
        (Some(less), Some(more)) => matches!((amount(Some(less)), amount(Some(more))), (Some(less), Some(more)) if less <= more),
        _ => true,
    }
}
