//! Tables of the plan: every phase × every state of the Pod × what else matters; attempts; the time to live.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use serde_json::{Value, json};

const PODS: [PodState; 8] = [
    PodState::Well,
    PodState::Gone,
    PodState::Replaced,
    PodState::Inconsistent,
    PodState::Terminating,
    PodState::NotReady,
    PodState::Silent,
    PodState::Cordoned,
];

/// 2026-01-01T00:00:00Z.
const ENDED_MS: i64 = 1_767_225_600_000;

fn run(spec: &Value, status: &Value) -> Run {
    let mut run = json!({
        "apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "r", "namespace": "ns", "uid": "u"},
        "spec": {"runtime": "bash", "mode": {"task": {}}, "workspace": {"name": "w"}}, "status": status,
    });
    run["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(run).unwrap()
}

/// One letter for a plan: `.` leave, `u` unassign, `R` retry, `F` failed, `C` cancelled, `D` delete.
fn letter(plan: &Plan) -> char {
    match plan {
        Plan::Leave | Plan::Later(_) => '.',
        Plan::Unassign { .. } => 'u',
        Plan::Retry { .. } => 'R',
        Plan::End { phase: "Failed", .. } => 'F',
        Plan::End { .. } => 'C',
        Plan::Delete => 'D',
    }
}

/// Every phase there is: what the status says, and whether somebody has begun.
fn phases() -> [(&'static str, Value); 12] {
    let on_a_pod = |phase: &str| json!({"phase": phase, "assignedPod": "p", "assignedPodUID": "u"});
    let claimed = |phase: &str| {
        let mut status = on_a_pod(phase);
        status["startTime"] = json!("2026-01-01T00:00:00Z");
        status
    };
    let ended = |phase: &str| {
        let mut status = claimed(phase);
        status["completionTime"] = json!("2026-01-01T00:00:00Z");
        status
    };
    [
        ("none", json!(null)),
        ("Pending", json!({"phase": "Pending"})),
        ("Scheduled", on_a_pod("Scheduled")),
        ("Scheduled, begun", claimed("Scheduled")),
        ("Running", claimed("Running")),
        ("Ready", claimed("Ready")),
        ("Succeeded", ended("Succeeded")),
        ("Failed", ended("Failed")),
        ("Timeout", ended("Timeout")),
        ("Cancelled", ended("Cancelled")),
        ("Suspended", claimed("Suspended")),
        ("Running, unbegun", on_a_pod("Running")),
    ]
}

#[test]
fn every_phase_on_every_pod() {
    use WorkspaceState::{Admits, Refuses};
    let every = Policy::default();
    let (no_heartbeat, nothing) = (Policy { heartbeat: false, ..every }, Policy { readiness: false, heartbeat: false, workspace: false, ..every });
    let retry = json!({"retryPolicy": {"maxAttempts": 2}});
    let cancel = json!({"cancelRequested": true, "retryPolicy": {"maxAttempts": 2}});
    // Columns: Well Gone Replaced Inconsistent Terminating NotReady Silent Cordoned.
    let table: [(&str, Value, WorkspaceState, Policy, &str, &str); 9] = [
        ("no retry policy", json!({}), Admits, every, ".uu.uuuu", ".FF.FFF."),
        ("an attempt left", retry.clone(), Admits, every, ".uu.uuuu", ".RR.RRR."),
        ("cancelled", cancel.clone(), Admits, every, ".CC.CCCC", ".CC.CCC."),
        ("cancelled, and the workspace is lost", cancel, Refuses, every, ".CC.CCCC", ".CC.CCC."),
        ("placement asks for no heartbeat", retry.clone(), Admits, no_heartbeat, ".uu.uu..", ".RR.RRR."),
        ("placement asks for nothing", retry.clone(), Admits, nothing, ".uu.....", ".RR.RRR."),
        ("the workspace does not admit it", retry.clone(), Refuses, every, "uuu.uuuu", ".RR.RRR."),
        ("the same without a heartbeat", retry.clone(), Refuses, no_heartbeat, "uuu.uuuu", ".RR.RRR."),
        ("placement does not look at workspaces", retry, Refuses, nothing, ".uu.....", ".RR.RRR."),
    ];
    for (row, spec, workspace, asks, scheduled, claimed) in table {
        for (phase, status) in phases() {
            let run = run(&spec, &status);
            let planned: String = PODS.iter().map(|pod| letter(&plan(&run, *pod, workspace, asks, ENDED_MS))).collect();
            let expected = match phase {
                "Scheduled" => scheduled,
                "Scheduled, begun" | "Running" | "Ready" | "Running, unbegun" => claimed,
                _ => "........",
            };
            assert_eq!(planned, expected, "{row}: {phase}");
            // What the cache is asked first agrees, but for a claim that is half written.
            if phase != "Scheduled, begun" {
                let may: String = PODS
                    .iter()
                    .map(|pod| may_act(Stage::of(run.phase()), run.spec.cancel_requested, *pod, workspace, asks))
                    .map(|may| if may { 'x' } else { '.' })
                    .collect();
                // For a claimed Run on a cordoned Pod only a closer look tells whether its attempt has begun.
                let asked = if expected == claimed { format!("{}x", &expected[..7]) } else { expected.to_owned() };
                assert_eq!(may, asked.replace(|c| c != '.', "x"), "{row}: {phase}");
            }
        }
    }
}

#[test]
fn the_texts_are_the_neighbours() {
    let faults = PODS.map(|pod| pod.fault().map(|fault| (fault.reason, fault.message)));
    let expected = [
        None,
        Some(("PodGone", "assigned pod was deleted")),
        Some(("PodGone", "assigned pod was replaced")),
        None,
        Some(("PodTerminating", "assigned pod is terminating")),
        Some(("PodUnhealthy", "assigned pod is not ready")),
        Some(("PodUnhealthy", "assigned pod runtimed heartbeat is stale")),
        None,
    ];
    assert_eq!(faults, expected);
    let scheduled = run(&json!({}), &json!({"phase": "Scheduled", "assignedPod": "p"}));
    let message = |pod, workspace| match plan(&scheduled, pod, workspace, Policy::default(), 0) {
        Plan::Unassign { message } => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(message(PodState::Gone, WorkspaceState::Refuses), "assigned pod was deleted; the Run had not begun");
    assert_eq!(message(PodState::Cordoned, WorkspaceState::Refuses), "assigned pod takes no further Runs; the Run had not begun");
    assert_eq!(message(PodState::Well, WorkspaceState::Refuses), "workspace w does not admit the Run on its assigned pod; the Run had not begun");
}

#[test]
fn attempts_are_counted_without_overflow_and_reasons_are_obeyed() {
    let policy = |max: i32, reasons: &[&str]| json!({"retryPolicy": {"maxAttempts": max, "retryableReasons": reasons}});
    let table: [(&str, Value, Value, Option<i32>, i32); 13] = [
        ("the first", policy(2, &[]), json!(null), Some(2), 1),
        ("0 is the first", policy(2, &[]), json!(0), Some(2), 1),
        ("below 0, too", policy(2, &[]), json!(-7), Some(2), 1),
        ("the second of three", policy(3, &[]), json!(2), Some(3), 2),
        ("the last", policy(3, &[]), json!(3), None, 3),
        ("past the last", policy(3, &[]), json!(9), None, 9),
        ("a hundred", policy(100, &[]), json!(99), Some(100), 99),
        ("the largest number there is", policy(i32::MAX, &[]), json!(i32::MAX), None, i32::MAX),
        ("one before it", policy(i32::MAX, &[]), json!(i32::MAX - 1), Some(i32::MAX), i32::MAX - 1),
        ("no policy", json!({}), json!(1), None, 1),
        ("none allowed", policy(-3, &[]), json!(1), None, 1),
        ("this reason is listed", policy(3, &["Timeout", "PodGone"]), json!(1), Some(2), 1),
        ("this reason is not", policy(3, &["Timeout", "podgone"]), json!(1), None, 1),
    ];
    for (row, spec, attempt, next, ended) in table {
        let run = run(&spec, &json!({"phase": "Running", "assignedPod": "p", "attempt": attempt}));
        match (plan(&run, PodState::Gone, WorkspaceState::Admits, Policy::default(), 0), next) {
            (Plan::Retry { attempt, .. }, Some(next)) => assert_eq!(attempt, next, "{row}"),
            (Plan::End { phase: "Failed", attempt, fault }, None) => assert_eq!((attempt, fault.reason), (ended, "PodGone"), "{row}"),
            (other, _) => panic!("{row}: {other:?}"),
        }
    }
}

#[test]
fn an_attempt_that_waits_out_its_pause_has_not_begun_and_is_not_counted() {
    let condition =
        |status: &str| json!([{"type": "Running", "status": status, "reason": "RuntimeError", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let planned = |attempt: i32, phase: &str, running: &str, pod| {
        let status = json!({"phase": phase, "assignedPod": "p", "attempt": attempt, "conditions": condition(running)});
        let run = run(&json!({"retryPolicy": {"maxAttempts": 2, "retryableReasons": ["RuntimeError"]}}), &status);
        match plan(&run, pod, WorkspaceState::Admits, Policy::default(), 0) {
            Plan::Retry { attempt, fault } => format!("attempt {attempt}: {}", fault.reason),
            Plan::End { phase, .. } => phase.to_owned(),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(planned(2, "Running", "False", PodState::Gone), "attempt 2: PodGone", "whatever reasons are retried: it was granted before");
    assert_eq!(planned(2, "Running", "False", PodState::Silent), "attempt 2: PodUnhealthy");
    assert_eq!(planned(2, "Running", "False", PodState::Cordoned), "attempt 2: PodUnhealthy", "the agent begins nothing more");
    assert_eq!(planned(2, "Running", "True", PodState::Cordoned), "Leave", "and goes on with what has begun");
    assert_eq!(planned(2, "Running", "False", PodState::Well), "Leave");
    assert_eq!(planned(2, "Running", "True", PodState::Gone), "Failed", "it has begun");
    assert_eq!(planned(1, "Running", "False", PodState::Gone), "Failed", "no agent writes that");
}

#[test]
fn what_is_being_deleted_is_never_placed_again_and_never_deleted_twice() {
    let deleting = |status| {
        let mut run = run(&json!({"retryPolicy": {"maxAttempts": 5}, "ttlSecondsAfterFinished": 1}), &status);
        run.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        run
    };
    let planned = |status, pod| letter(&plan(&deleting(status), pod, WorkspaceState::Refuses, Policy::default(), ENDED_MS * 2));
    assert_eq!(planned(json!({"phase": "Running", "assignedPod": "p"}), PodState::Gone), 'F');
    assert_eq!(planned(json!({"phase": "Scheduled", "assignedPod": "p"}), PodState::Well), 'u', "it holds up nobody, and Pending it stays");
    assert_eq!(planned(json!({"phase": "Failed", "completionTime": "2026-01-01T00:00:00Z"}), PodState::Gone), '.');
}

#[test]
fn a_finished_run_is_deleted_when_its_time_is_over() {
    let later = |ms: u64| Plan::Later(Duration::from_millis(ms));
    let table: [(&str, Value, Value, i64, Plan); 10] = [
        ("kept", json!(null), json!("2026-01-01T00:00:00Z"), 99_999_999, Plan::Leave),
        ("0 keeps it", json!(0), json!("2026-01-01T00:00:00Z"), 99_999_999, Plan::Leave),
        ("below 0, too", json!(-1), json!("2026-01-01T00:00:00Z"), 99_999_999, Plan::Leave),
        ("without the time of its end", json!(1), json!(null), 99_999_999, Plan::Leave),
        ("just ended", json!(60), json!("2026-01-01T00:00:00Z"), 0, later(60_000)),
        ("a moment before", json!(60), json!("2026-01-01T00:00:00Z"), 59_999, later(1)),
        ("now", json!(60), json!("2026-01-01T00:00:00Z"), 60_000, Plan::Delete),
        ("long ago", json!(60), json!("1970-01-01T00:00:00Z"), 0, Plan::Delete),
        ("ended in our future", json!(60), json!("2026-01-01T00:01:00Z"), 0, later(120_000)),
        ("the longest", json!(i32::MAX), json!("9999-12-30T00:00:00Z"), 0, later(253_402_128_000_000 - 1_767_225_600_000 + 2_147_483_647_000)),
    ];
    for (row, ttl, completed, after_ms, expected) in table {
        for phase in ["Succeeded", "Failed", "Timeout", "Cancelled"] {
            let run = run(&json!({"ttlSecondsAfterFinished": ttl}), &json!({"phase": phase, "completionTime": completed}));
            assert_eq!(plan(&run, PodState::Gone, WorkspaceState::NotNamed, Policy::default(), ENDED_MS + after_ms), expected, "{row}");
        }
        let running = run(&json!({"ttlSecondsAfterFinished": ttl}), &json!({"phase": "Running", "completionTime": completed}));
        assert_eq!(plan(&running, PodState::Well, WorkspaceState::NotNamed, Policy::default(), ENDED_MS + after_ms), Plan::Leave, "{row}");
    }
}
