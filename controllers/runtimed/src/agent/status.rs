//! The status writes of a Run, as merge patches (reference kruntimes §1.3, §1.4). Each is sent as a compare-and-swap.

use std::collections::BTreeMap;

use berth_api::Run;
use berth_api::conditions::{ConditionStatus, set_condition};
use berth_api::constants::{reason, run_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::verdict::Failure;

/// A time on the wire: whole seconds (reference §0.3).
pub fn seconds(wall_ms: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(wall_ms.div_euclid(1_000)).unwrap_or_default())
}

/// Scheduled → Running.
pub fn claim(run: &Run, now: &Time) -> Value {
    let start = run.status.as_ref().and_then(|status| status.start_time.clone()).unwrap_or_else(|| now.clone());
    json!({"phase": "Running", "startTime": start, "conditions": running(run, ConditionStatus::True, reason::CLAIMED, "claimed by runtimed", now)})
}

/// The next attempt begins, on this Pod.
pub fn claim_again(run: &Run, now: &Time) -> Value {
    json!({"phase": "Running", "conditions": running(run, ConditionStatus::True, reason::RETRYING, "Retry after failure", now)})
}

/// The attempt has failed and another will follow, on this Pod.
pub fn repeat(run: &Run, failure: &Failure, now: &Time) -> Value {
    json!({
        "phase": "Running",
        "attempt": run.attempt().saturating_add(1),
        "message": failure.message,
        "conditions": running(run, ConditionStatus::False, failure.reason, &failure.message, now),
    })
}

/// The Run has succeeded.
pub fn succeeded(run: &Run, outputs: &BTreeMap<String, String>, now: &Time) -> Value {
    let mut conditions = running(run, ConditionStatus::False, reason::COMPLETED, "", now);
    set_condition(&mut conditions, run_condition::COMPLETED, ConditionStatus::True, reason::RUN_COMPLETED, "Completed successfully", now);
    json!({
        "phase": "Succeeded",
        "message": "execution completed",
        "completionTime": now,
        "attempt": run.attempt(),
        "outputs": if outputs.is_empty() { Value::Null } else { json!(outputs) },
        "conditions": conditions,
    })
}

/// The Run has ended otherwise.
pub fn failed(run: &Run, failure: &Failure, now: &Time) -> Value {
    let mut conditions = running(run, ConditionStatus::False, failure.reason, &failure.message, now);
    set_condition(&mut conditions, run_condition::COMPLETED, ConditionStatus::False, failure.reason, &failure.message, now);
    json!({
        "phase": failure.phase().as_str(),
        "message": failure.message,
        "completionTime": now,
        "attempt": run.attempt(),
        "conditions": conditions,
    })
}

fn running(run: &Run, status: ConditionStatus, reason: &str, message: &str, now: &Time) -> Vec<Condition> {
    let mut conditions = run.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    // With 16 conditions of others ours is left out; the phase says it all the same.
    set_condition(&mut conditions, run_condition::RUNNING, status, reason, message, now);
    conditions
}
