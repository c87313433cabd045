//! The CEL rules of JobClass and of the parameters, each beside the same rule in Rust; see [`berth_api::rules::cel`].

use berth_api::duration;
use berth_api::rules::cel::{CelRule, Check, at, same};
use serde_json::Value;

use super::cel::ordered;

/// Design of Jobs, §3: a class never changes hands.
pub const CONTROLLER_STAYS: CelRule = CelRule {
    rule: "self.controllerName == oldSelf.controllerName",
    message: "controllerName is immutable",
    check: Check::Transition(|new, old| same(new, old, &["controllerName"])),
};

/// On `resources`: a range that admits nothing.
pub const CPU_RANGE: CelRule = CelRule {
    rule: "!has(self.min) || !has(self.max) || !has(self.min.cpu) || !has(self.max.cpu) || \
           quantity(string(self.min.cpu)).compareTo(quantity(string(self.max.cpu))) <= 0",
    message: "min.cpu must not exceed max.cpu",
    check: Check::State(|resources| ordered(resources, &["min", "cpu"], &["max", "cpu"])),
};

/// As [`CPU_RANGE`].
pub const MEMORY_RANGE: CelRule = CelRule {
    rule: "!has(self.min) || !has(self.max) || !has(self.min.memory) || !has(self.max.memory) || \
           quantity(string(self.min.memory)).compareTo(quantity(string(self.max.memory))) <= 0",
    message: "min.memory must not exceed max.memory",
    check: Check::State(|resources| ordered(resources, &["min", "memory"], &["max", "memory"])),
};

/// On `ttlSecondsAfterFinished`: what is recommended must be allowed.
pub const RECOMMENDED_WITHIN_MAX: CelRule = CelRule {
    rule: "!has(self.max) || !has(self.recommended) || self.recommended <= self.max",
    message: "recommended must not exceed max",
    check: Check::State(|limit| match (limit.get("recommended").and_then(Value::as_i64), limit.get("max").and_then(Value::as_i64)) {
        (Some(recommended), Some(max)) => recommended <= max,
        _ => true,
    }),
};

/// Parameters are a template: another one is another object (design of Jobs, §3).
pub const PARAMETERS_STAY: CelRule = CelRule { rule: "self == oldSelf", message: "parameters are immutable", check: Check::Transition(|new, old| new == old) };

/// As [`PARAMETERS_STAY`], but for what may be rotated or tuned.
pub const SANDBOX_PARAMETERS_STAY: CelRule = CelRule {
    rule: "self.endpoint == oldSelf.endpoint && self.execdAccess == oldSelf.execdAccess && self.executionMode == oldSelf.executionMode && \
           self.createTimeout == oldSelf.createTimeout && self.createWindow == oldSelf.createWindow && self.orphanTTL == oldSelf.orphanTTL && \
           self.leaseTTL == oldSelf.leaseTTL && self.maxCreateAttempts == oldSelf.maxCreateAttempts && self.imageAuth == oldSelf.imageAuth && \
           self.resourceMapping == oldSelf.resourceMapping && has(self.platform) == has(oldSelf.platform) && \
           (!has(self.platform) || self.platform == oldSelf.platform)",
    message: "parameters are immutable, except apiKeySecretRef, tls and concurrency",
    check: Check::Transition(|new, old| {
        let fixed = [
            "endpoint",
            "execdAccess",
            "executionMode",
            "createTimeout",
            "createWindow",
            "orphanTTL",
            "leaseTTL",
            "maxCreateAttempts",
            "imageAuth",
            "resourceMapping",
            "platform",
        ];
        same(new, old, &fixed)
    }),
};

/// A sandbox whose create may still be under way must count as possible.
pub const WINDOW_COVERS_CREATE: CelRule = CelRule {
    rule: "duration(self.createWindow) >= duration(self.createTimeout)",
    message: "createWindow must cover createTimeout",
    check: Check::State(|spec| ascending(spec, "createTimeout", "createWindow", false)),
};

/// A sandbox that nobody took must live until its create can't be under way any more, and less than one that was taken.
pub const LEASE_COVERS_ORPHAN: CelRule = CelRule {
    rule: "duration(self.orphanTTL) >= duration('60s') && duration(self.orphanTTL) > duration(self.createWindow) && \
           duration(self.leaseTTL) > duration(self.orphanTTL)",
    message: "leaseTTL must exceed orphanTTL, and orphanTTL createWindow and 60s",
    check: Check::State(|spec| {
        nanos(spec.get("orphanTTL")).is_some_and(|ttl| ttl >= 60 * SECOND)
            && ascending(spec, "createWindow", "orphanTTL", true)
            && ascending(spec, "orphanTTL", "leaseTTL", true)
    }),
};

/// A grace period.
pub const UP_TO_A_WEEK: CelRule = CelRule {
    rule: "duration(self) >= duration('1s') && duration(self) <= duration('168h')",
    message: "must be a Go duration between 1s and 168h",
    check: Check::State(|value| nanos(Some(value)).is_some_and(|nanos| (SECOND..=WEEK).contains(&nanos))),
};

/// An age that may be none at all.
pub const NONE_UP_TO_A_WEEK: CelRule = CelRule {
    rule: "duration(self) >= duration('0s') && duration(self) <= duration('168h')",
    message: "must be a Go duration between 0s and 168h",
    check: Check::State(|value| nanos(Some(value)).is_some_and(|nanos| (0..=WEEK).contains(&nanos))),
};

const SECOND: i64 = 1_000_000_000;
const WEEK: i64 = 168 * 3_600 * SECOND;

fn nanos(value: Option<&Value>) -> Option<i64> {
    duration::parse_go_nanos(value?.as_str()?).ok()
}

fn ascending(spec: &Value, less: &str, more: &str, strictly: bool) -> bool {
    match (nanos(at(spec, &[less])), nanos(at(spec, &[more]))) {
        (Some(less), Some(more)) => less < more || !strictly && less == more,
        _ => false,
    }
}
