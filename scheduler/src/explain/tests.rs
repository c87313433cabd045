//! What is answered about a cluster that was read, without one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use berth_api::decode;
use berth_framework::from_api;
use berth_framework::profile::Registry;
use berth_plugins::Builtin as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::answer::{self, Answer};
use super::live::Live;
use super::print;
use super::rules::{Rules, Source, Trust};
use super::server::Queue;
use crate::config;
use crate::serve::debug_queue::{Doing, Position, RunView};

const AT: &str = "2026-01-01T00:00:00Z";

fn at() -> Timestamp {
    AT.parse().unwrap()
}

fn run(name: &str, change: Value) -> Value {
    let mut run = json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "creationTimestamp": AT},
        "spec": {"runtime": "bash", "mode": {"task": {}}}});
    merge(&mut run, &change);
    run
}

fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => from.iter().for_each(|(key, value)| merge(to.entry(key.clone()).or_insert(Value::Null), value)),
        (to, from) => *to = from.clone(),
    }
}

fn requires(key: &str, value: &str) -> Value {
    let term = json!({"labelSelector": {"matchLabels": {key: value}}, "topologyKey": "kruntimes.io/runtime-pod"});
    json!({"spec": {"affinity": {"runAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}})
}

fn pod(name: &str, runs: i64) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"runtime": "bash"}, "annotations": {"kruntimes.io/capacity.runs": runs.to_string()}},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "kruntimes.io/RuntimedReady", "status": "True", "lastProbeTime": AT}]}})
}

fn on(pod: &str) -> Value {
    json!({"status": {"phase": "Running", "assignedPod": pod}})
}

fn explain(asked: Value, others: &[Value], pods: &[Value]) -> Answer {
    let live = Live {
        run: decode::run(asked).unwrap(),
        others: others.iter().map(|other| from_api::run_object(&decode::run(other.clone()).unwrap())).collect(),
        pods: pods.iter().filter_map(|pod| from_api::pod_object(&serde_json::from_value(pod.clone()).unwrap())).collect(),
        workspace: None,
        warnings: Vec::new(),
    };
    let trust = Trust { source: Source::File, certain: true, contradicted: false, doubt: None };
    let rules = Rules { name: "a file".to_owned(), profiles: config::load(None, &Registry::builtin()).unwrap(), trust };
    answer::judge(rules, live, at(), false).unwrap()
}

fn printed(answer: &Answer) -> String {
    let mut out = Vec::new();
    print::print(answer, &BTreeMap::new(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn runs_that_wait_for_each_other_are_told_as_the_scheduler_tells_them() {
    let (a, b) = (run("a", requires("app", "b")), run("b", requires("app", "a")));
    let labelled = |mut run: Value, app: &str| {
        merge(&mut run, &json!({"metadata": {"labels": {"app": app}}}));
        run
    };
    let told = explain(labelled(a, "a"), &[labelled(b, "b")], &[pod("p", 2)]);
    let message = told.waiting.unwrap().message;
    let expected = "waiting for available runtime pods: 0/1 fit: 1 no active Run matches required affinity app=b; waits for ns/b, which waits for it";
    assert_eq!(message, expected);
    let told = explain(run("c", requires("app", "nobody")), &[], &[pod("p", 2)]);
    assert!(told.waiting.unwrap().message.ends_with("app=nobody; no Run offers app=nobody"));
}

#[test]
fn nothing_has_to_change_for_a_run_that_is_not_to_be_placed() {
    let full = [pod("p", 0)];
    let later = "2026-01-01T00:01:00Z";
    let rows = [
        (json!({"metadata": {"deletionTimestamp": AT, "finalizers": ["x/y"]}}), "It is being deleted and is not placed any more", 0),
        (json!({"spec": {"cancelRequested": true}}), "It is to be cancelled and is not placed any more", 0),
        (json!({"status": {"phase": "Succeeded"}}), "It has ended; a Run like it would fit on no Pod now", 0),
        (on("p"), "It is on p; placed anew it would fit on no Pod now", 0),
        (json!({}), "It waits, and would fit on no Pod now", 1),
    ];
    for (change, verdict, changes) in rows {
        let told = explain(run("a", change), &[], &full);
        assert_eq!((told.verdict.as_str(), told.smallest_changes.len()), (verdict, changes));
        assert_eq!(printed(&told).contains("would place it"), changes > 0, "{verdict}");
    }
    let ended = json!({"type": "Running", "status": "False", "reason": "PodGone", "message": "", "lastTransitionTime": AT});
    let held = json!({"spec": {"retryPolicy": {"maxAttempts": 3, "backoff": "60s"}}, "status": {"phase": "Pending", "attempt": 2, "conditions": [ended]}});
    let told = explain(run("a", held), &[], &[pod("p", 1)]);
    assert_eq!(told.verdict, format!("It waits until {later} for its retry; but for that it would be placed on p now"));
}

#[test]
fn every_pod_is_marked_by_what_it_is_to_the_run() {
    let row = |told: &Answer, pod: &str| printed(told).lines().find(|line| line.trim_start().starts_with(&format!("{pod} "))).unwrap().trim().to_owned();
    // Its Pod was drained after it was placed there; q is where it would be placed now.
    let told = explain(run("a", on("p")), &[], &[pod("p", 0), pod("q", 1), pod("r", 0)]);
    for (pod, mark) in [("p", "here; no more"), ("q", "would take"), ("r", "no")] {
        assert!(row(&told, pod).split_once(' ').unwrap().1.trim_start().starts_with(mark), "{}", printed(&told));
    }
    assert_eq!(told.would_take.as_deref(), Some("q"));
    // Without its Pod, as after a drain.
    let told = explain(run("a", on("gone")), &[], &[pod("q", 1)]);
    assert!(row(&told, "q").contains("would take"), "{}", printed(&told));
    assert!(told.pods[0].chosen);
    let told = explain(run("a", on("q")), &[], &[pod("q", 1)]);
    assert!(row(&told, "q").contains("here"), "{}", printed(&told));
}

#[test]
fn of_many_pods_the_best_are_shown_and_the_others_folded() {
    let mut pods: Vec<Value> = (0..50).map(|n| pod(&format!("full-{n:02}"), 0)).collect();
    pods.extend([pod("good", 2), pod("better", 4), pod("best", 8), pod("fourth", 1)]);
    let text = printed(&explain(run("a", json!({})), &[], &pods));
    let table = text.split_once("The best of 54 Pods of runtime bash, now:\n").unwrap().1;
    let names: Vec<&str> = table.lines().skip(1).take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["best", "better", "good"], "{text}");
    assert!(table.contains("would take") && table.contains("Capacity 87.5"), "scores: {text}");
    assert!(table.contains("Of 54 Pods 4 fit; the others by first rejection:\n      50  Capacity InsufficientCapacity\n"), "{text}");
    assert!(table.ends_with("54 Pods; -o json tells the verdict on each.\n"), "{text}");
    // None fits: no table, only reasons.
    let text = printed(&explain(run("a", json!({})), &[], &pods[..50]));
    assert!(text.contains("Pods by first rejection:\n      50  Capacity InsufficientCapacity\n") && !text.contains("The best of"), "{text}");
}

#[test]
fn the_queue_is_told_in_words() {
    let mut told = explain(run("a", json!({})), &[], &[pod("p", 0)]);
    let view = |standing: &str, position: Option<(usize, usize)>, cause: Option<&str>, attempts| RunView {
        namespace: "ns".into(),
        name: "a".into(),
        standing: standing.to_owned(),
        position: position.map(|(before, of)| Position { before, of }),
        cause: cause.map(str::to_owned),
        attempts,
        last_attempt: (attempts > 0).then(at),
        waiting_since: (standing == "waiting").then(at),
        backoff_until: (standing == "backoff").then(at),
        reason: None,
        message: None,
        pod: None,
    };
    let rows = [
        (
            Some(view("waiting", Some((0, 2)), Some("run_ended"), 3)),
            format!(
                "waits for an event, the first of 2 that ask for the same; 7 Runs are pending\n  tried 3 times, last at {AT} because of run_ended; waits since {AT}"
            ),
        ),
        (Some(view("active", Some((4, 9)), None, 0)), "to be tried, behind 4 of 9 to be tried; 7 Runs are pending".to_owned()),
        (Some(view("active", Some((0, 1)), None, 0)), "to be tried; 7 Runs are pending".to_owned()),
        (Some(view("backoff", None, None, 1)), format!("backs off until {AT}; 7 Runs are pending\n  tried once, last at {AT}")),
        (None, "not there: the scheduler has not seen it yet, or does not place it; 7 Runs are pending".to_owned()),
    ];
    let queue = |run| Queue { state: Doing::Placing, leader: None, namespace: None, served: true, pending: 7, run };
    for (run, text) in rows {
        told.queue = Some(queue(run));
        assert!(printed(&told).contains(&format!("\nIn the queue: {text}\n")), "{text}: {}", printed(&told));
    }
    let standby = Queue { state: Doing::Standby, leader: Some("berth-1_ab".to_owned()), ..queue(Some(view("standby", None, None, 0))) };
    let elsewhere = Queue { served: false, namespace: Some("other".to_owned()), ..queue(None) };
    for (queue, text) in [
        (standby, "this process stands by; berth-1_ab, by the Lease, places, and knows more"),
        (elsewhere, "not of this process, which serves namespace other alone"),
    ] {
        told.queue = Some(queue);
        assert!(printed(&told).contains(&format!("\nIn the queue: {text}\n")), "{}", printed(&told));
    }
}
