//! What the plan says, phase by phase and standing by standing.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use berth_api::constants::reason;
use serde_json::{Value, json};

use super::*;
use crate::shim::spec::Outcome;

/// 2026-01-01T00:00:00Z.
const NOW: i64 = 1_767_225_600_000;

fn me() -> Me {
    Me { namespace: "ns".into(), name: "p".into(), uid: "pu".into(), runtime: "bash".into(), functions: false }
}

fn run(spec: Value, status: Value) -> Run {
    let mut object = json!({
        "apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "r", "namespace": "ns", "uid": "u"},
        "spec": {"runtime": "bash", "mode": {"task": {}}},
        "status": {"phase": "Running", "assignedPod": "p", "assignedPodUID": "pu", "startTime": "2025-12-31T23:59:50Z"},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn condition(status: &str, time: &str) -> Value {
    json!([{"type": "Running", "status": status, "reason": "R", "message": "", "lastTransitionTime": time}])
}

fn planned(run: Option<&Run>, attempt: i32, standing: Option<&Standing>) -> Step {
    plan(run, standing.map(|standing| Local { uid: "u", attempt, standing }), &me(), NOW)
}

fn exit(outcome: Outcome) -> Exit {
    Exit { outcome, stderr_tail: String::new(), survivors: Vec::new() }
}

const EXECUTING: Standing = Standing::Executing { stopping: false };
const STOPPING: Standing = Standing::Executing { stopping: true };

#[test]
fn what_is_not_ours_is_stopped_then_discarded_and_never_written_about() {
    let ended = Standing::Ended(exit(Outcome::Exited(0)));
    let mut deleting = run(json!({}), json!({}));
    deleting.metadata.deletion_timestamp = Some(super::super::status::seconds(NOW));
    let mut namesake = run(json!({}), json!({}));
    namesake.metadata.uid = Some("other".into());
    let cases = [
        None,
        Some(run(json!({}), json!({"assignedPod": "q"}))),
        Some(run(json!({}), json!({"assignedPodUID": "old"}))),
        Some(run(json!({}), json!({"assignedPodUID": null}))),
        Some(run(json!({}), json!({"attempt": 2}))),
        Some(run(json!({}), json!({"phase": "Pending"}))),
        Some(run(json!({}), json!({"phase": "Succeeded"}))),
        Some(run(json!({}), json!({"phase": "Cancelled"}))),
        Some(run(json!({}), json!({"phase": "Suspended"}))),
        Some(run(json!({"cancelRequested": true}), json!({"assignedPodUID": "old"}))),
        Some(namesake),
        Some(deleting),
    ];
    for run in &cases {
        let step = |standing| planned(run.as_ref(), 1, Some(standing));
        assert_eq!(
            (step(&EXECUTING), step(&STOPPING), step(&ended), step(&Standing::Claimed)),
            (Step::Stop, Step::Nothing, Step::Discard, Step::Discard),
            "{run:?}"
        );
    }
}

#[test]
fn a_scheduled_run_is_claimed_cancelled_or_refused() {
    let scheduled = |spec: Value| run(spec, json!({"phase": "Scheduled", "startTime": null}));
    assert_eq!(planned(Some(&scheduled(json!({}))), 1, None), Step::Claim);
    assert_eq!(planned(Some(&scheduled(json!({}))), 1, Some(&Standing::Claimed)), Step::Claim, "the claim's answer was lost");
    // Somebody wrote over our claim: the execution of this attempt goes on, and is not begun again.
    assert_eq!(planned(Some(&scheduled(json!({}))), 1, Some(&EXECUTING)), Step::Claim);
    assert_eq!(planned(Some(&scheduled(json!({"cancelRequested": true}))), 1, None), Step::End(Failure::cancelled()));
    assert_eq!(planned(Some(&scheduled(json!({"cancelRequested": true}))), 1, Some(&EXECUTING)), Step::Stop);
    for (spec, reason, names) in [
        (
            json!({"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            reason::INVALID_SPEC,
            "spec.env[0] (\"TOKEN\"): valueFrom",
        ),
        (json!({"env": [{"name": "A", "value": "1"}, {"name": "A=B"}]}), reason::INVALID_SPEC, "spec.env[1]"),
        (json!({"timeout": "abc"}), reason::INVALID_SPEC, "spec.timeout \"abc\""),
        (json!({"resources": {"requests": {"gpu": "500m"}}}), reason::INVALID_RESOURCES, "\"gpu\""),
        (json!({"source": {"repoURL": "file:///etc"}}), reason::INVALID_SPEC, "spec.source.repoURL"),
    ] {
        match planned(Some(&scheduled(spec)), 1, None) {
            Step::End(failure) => assert!(failure.reason == reason && failure.message.contains(names), "{failure:?}"),
            other => assert_eq!(other, Step::Nothing, "{names}"),
        }
    }
}

#[test]
fn nothing_starts_without_a_record_that_says_it_was_not_started() {
    let running = run(json!({}), json!({}));
    assert_eq!(planned(Some(&running), 1, Some(&Standing::Claimed)), Step::Start);
    let lost = Failure::new(reason::EXECUTION_LOST, "runtime execution not found after runtimed restart".into());
    assert_eq!(planned(Some(&running), 1, None), Step::End(lost.clone()));
    assert_eq!(planned(Some(&run(json!({"retryPolicy": {"maxAttempts": 2}}), json!({}))), 1, None), Step::Repeat(lost));
    assert_eq!(planned(Some(&running), 1, Some(&EXECUTING)), Step::Nothing);
    let ended = exit(Outcome::Exited(3));
    assert_eq!(planned(Some(&running), 1, Some(&Standing::Ended(ended.clone()))), Step::Finish(ended));
}

#[test]
fn cancel_and_time_end_what_runs_and_what_waits() {
    let cancelled = run(json!({"cancelRequested": true}), json!({}));
    assert_eq!(planned(Some(&cancelled), 1, Some(&EXECUTING)), Step::Stop);
    assert_eq!(planned(Some(&cancelled), 1, Some(&STOPPING)), Step::Nothing);
    assert_eq!(planned(Some(&cancelled), 1, Some(&Standing::Claimed)), Step::End(Failure::cancelled()));
    assert_eq!(planned(Some(&cancelled), 1, None), Step::End(Failure::cancelled()));
    // It had ended by itself before: that is what is told.
    let ended = exit(Outcome::Exited(0));
    assert_eq!(planned(Some(&cancelled), 1, Some(&Standing::Ended(ended.clone()))), Step::Finish(ended));
    let late = run(json!({"timeout": "5s"}), json!({}));
    assert_eq!(planned(Some(&late), 1, Some(&Standing::Claimed)), Step::End(Failure::timeout(&late)));
    let paused =
        run(json!({"timeout": "5s", "retryPolicy": {"maxAttempts": 3}}), json!({"attempt": 2, "conditions": condition("False", "2026-01-01T00:00:00Z")}));
    assert_eq!(planned(Some(&paused), 2, None), Step::End(Failure::timeout(&paused)));
}

#[test]
fn between_attempts_it_waits_by_the_policy_and_a_restart_changes_nothing() {
    let paused = |time: &str, spec: Value| run(spec, json!({"attempt": 3, "conditions": condition("False", time)}));
    let policy = json!({"retryPolicy": {"maxAttempts": 5, "backoff": "3s"}});
    // Before attempt 3: 6 s.
    for standing in [None, Some(&Standing::Claimed)] {
        assert_eq!(planned(Some(&paused("2026-01-01T00:00:00Z", policy.clone())), 3, standing), Step::Later(Duration::from_secs(6)));
        assert_eq!(planned(Some(&paused("2025-12-31T23:59:54Z", policy.clone())), 3, standing), Step::ClaimAgain);
    }
    // The time of the Run ends the pause if it is over before.
    let timed = json!({"timeout": "12s", "retryPolicy": {"maxAttempts": 5, "backoff": "3s"}});
    assert_eq!(planned(Some(&paused("2026-01-01T00:00:00Z", timed)), 3, None), Step::Later(Duration::from_secs(2)));
    let again = run(policy, json!({"attempt": 3, "conditions": condition("True", "2026-01-01T00:00:00Z")}));
    assert_eq!(planned(Some(&again), 3, Some(&Standing::Claimed)), Step::Start);
}
