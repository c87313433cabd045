//! What a waiting Run is told: the text, when it is written, and who waits for whom.

use std::sync::Arc;

use berth_api::constants::MESSAGE_BYTES_MAX;
use berth_framework::core::{FIRST_MESSAGE_AFTER_MS, WriteOutcome};
use berth_framework::diagnosis::WAITING_PREFIX;
use berth_framework::model::{PodObject, RunObject, WorkspaceObject, WorkspacePhase};
use berth_tests::oracle::Rules;

use crate::stage::{RunExt as _, Stage, active, key, pod, run, workspace};

fn beat(stage: &mut Stage, pods: &[PodObject]) {
    for p in pods {
        let probe_ms = Some(stage.now.wall_ms);
        stage.pod(PodObject { probe_ms, ..p.clone() });
    }
}

#[test]
fn each_pod_is_charged_to_the_first_plugin_that_rejects_it() {
    let mut stage = Stage::new();
    let old = stage.now.wall_ms - 60_000;
    stage.pod(PodObject { probe_ms: Some(old), ..pod("stale", 1) });
    stage.pod(pod("bound", 0));
    for i in 0..10 {
        stage.pod(pod(&format!("other-{i}"), 5));
    }
    stage.workspace(workspace("ci-build", "bound"));
    stage.run(run("w").workspace("ci-build"));
    stage.work();
    assert_eq!(stage.text("w"), "waiting for available runtime pods: 0/12 fit: 1 heartbeat stale, 10 not bound to workspace ci-build, 1 insufficient runs");
}

#[test]
fn every_reason_has_its_words() {
    let mut stage = Stage::new();
    stage.pod(PodObject { running: false, ..pod("a", 1) });
    stage.pod(PodObject { ready: false, ..pod("b", 1) });
    stage.pod(PodObject { terminating: true, ..pod("c", 1) });
    stage.pod(PodObject { heartbeat_true: false, ..pod("d", 1) });
    stage.pod(pod("target", 9));
    stage.run(active("t", "target").labels(&[("app", "x")]).excludes("me=w"));
    stage.pod(pod("empty", 9));
    stage.pod(pod("full", 0));
    stage.run(run("w1").labels(&[("me", "v")]).excludes("app=x").requests(&[("runs", 1), ("gpu", 1), ("cpu", 2)]));
    stage.run(run("w2").labels(&[("me", "w")]).requires("app=x"));
    stage.run(run("w3").requires("app=nowhere"));
    stage.run(run("w4").workspace("gone"));
    stage.work();
    let bad = "1 not ready, 1 not running, 1 terminating, 1 without heartbeat";
    let sorted = |text: String| {
        let (head, rows) = text.split_once(" fit: ").expect("rows");
        let mut rows: Vec<&str> = rows.split(", ").collect();
        rows[..4].sort_unstable();
        format!("{head} fit: {}", rows.join(", "))
    };
    let expect = |rest: &str| format!("{WAITING_PREFIX}: 0/7 fit: {bad}, {rest}");
    assert_eq!(sorted(stage.text("w1")), expect("1 with a Run matching required anti-affinity, 1 insufficient cpu, 1 insufficient runs"));
    assert_eq!(sorted(stage.text("w2")), expect("2 without a Run matching required affinity, 1 with a Run whose anti-affinity matches"));
    assert_eq!(sorted(stage.text("w3")), expect("3 no active Run matches required affinity app=nowhere; no Run offers app=nowhere"));
    assert_eq!(sorted(stage.text("w4")), expect("3 workspace gone not found"));
}

#[test]
fn each_state_of_a_workspace_has_its_words() {
    let of = |change: fn(&mut WorkspaceObject)| {
        let mut stage = Stage::with(&Rules { workspace_fencing: Some(true), ..Rules::default() });
        stage.pod(pod("p", 1));
        stage.pod(pod("q", 1));
        let mut w = workspace("w", "p");
        change(&mut w);
        stage.workspace(w);
        stage.run(run("r").workspace("w"));
        stage.work();
        let (head, rows) = stage.text("r").split_once(" fit: ").map(|(head, rows)| (head.to_owned(), rows.to_owned())).expect("rows");
        assert_eq!(head, format!("{WAITING_PREFIX}: 0/2"));
        rows
    };
    assert_eq!(of(|w| w.deleting = true), "2 workspace w being deleted");
    assert_eq!(of(|w| w.runtime = "python".into()), "2 workspace w of another runtime");
    assert_eq!(of(|w| (w.phase, w.bound_pod) = (WorkspacePhase::Pending, None)), "2 workspace w not bound yet");
    assert_eq!(of(|w| w.phase = WorkspacePhase::Lost), "2 workspace w lost");
    assert_eq!(of(|w| w.phase = WorkspacePhase::Released), "2 workspace w released");
    assert_eq!(of(|w| w.bound_pod_uid = None), "2 workspace w bound without Pod UID");
    assert_eq!(of(|w| w.bound_pod_uid = Some("another".into())), "2 not bound to workspace w");
    // Its Pod has no agent that knows of workspaces.
    assert_eq!(of(|_| ()), "1 without an agent for workspaces, 1 not bound to workspace w");
}

#[test]
fn without_pods_a_refusal_is_still_told() {
    let mut stage = Stage::new();
    stage.run(run("w").workspace("gone"));
    stage.run(run("v"));
    stage.work();
    assert_eq!(stage.text("w"), "waiting for available runtime pods: 0/0 fit: no Pod has label runtime=bash, workspace gone not found");
    assert_eq!(stage.text("v"), "waiting for available runtime pods: 0/0 fit: no Pod has label runtime=bash");
    let reason = |stage: &mut Stage, name| stage.core.waiting_on(&key(name), stage.now).expect("waits").1.reason;
    assert_eq!(&*reason(&mut stage, "w"), "WorkspaceNotReady");
    assert_eq!(&*reason(&mut stage, "v"), "Unschedulable");
}

#[test]
fn the_first_message_comes_after_a_second_of_waiting() {
    let mut stage = Stage::new();
    stage.run(run("w"));
    stage.work();
    assert_eq!(stage.messages(), []);
    assert_eq!(stage.core.next_event_ms(), Some(FIRST_MESSAGE_AFTER_MS));
    stage.pass(999);
    stage.work();
    assert_eq!(stage.messages(), []);
    stage.pass(1);
    stage.work();
    let messages = stage.messages();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].1.message.starts_with(WAITING_PREFIX));
}

#[test]
fn who_is_placed_within_a_second_is_told_nothing() {
    let mut stage = Stage::new();
    stage.run(run("w"));
    stage.work();
    stage.pass(900);
    stage.pod(pod("p", 1));
    stage.work();
    stage.pass(5_000);
    stage.work();
    assert_eq!(stage.messages(), []);
}

/// A Pod that comes or goes must not rewrite the messages of everybody who waits.
#[test]
fn a_message_is_rewritten_only_by_an_attempt_of_that_run() {
    let mut stage = Stage::new();
    let full = pod("full", 0);
    stage.pod(full.clone());
    stage.run(run("w").requests(&[("gpu", 1)]));
    stage.work();
    stage.pass(1_000);
    stage.work();
    let messages = stage.messages();
    let (write, shown) = &messages[0];
    stage.stored(*write);
    stage.run(RunObject { shown: Some(shown.clone()), ..run("w").requests(&[("gpu", 1)]) });
    for i in 0..20 {
        stage.pod(pod(&format!("small-{i}"), 0));
        stage.pass(500);
        beat(&mut stage, std::slice::from_ref(&full));
        stage.work();
    }
    assert_eq!(stage.messages(), [], "nobody tried w again");
    // Its own change has it tried again, and that tells more Pods.
    stage.run(RunObject { shown: Some(shown.clone()), ..run("w").requests(&[("gpu", 2)]) });
    stage.work();
    let messages = stage.messages();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].1.message.contains("0/21 fit"), "{messages:?}");
}

#[test]
fn a_message_that_is_shown_already_is_not_written_again() {
    let mut stage = Stage::new();
    stage.run(run("w"));
    stage.work();
    let text = stage.text("w");
    let shown = berth_framework::model::Shown { reason: "Unschedulable".into(), message: text.as_str().into() };
    // As after a restart: the object shows it.
    let mut again = Stage::new();
    again.run(RunObject { shown: Some(shown), ..run("w") });
    again.work();
    again.pass(10_000);
    again.work();
    assert_eq!(again.messages(), []);
}

#[test]
fn a_message_that_could_not_be_written_is_written_a_second_later() {
    for (outcome, again) in [(WriteOutcome::Conflict, 1), (WriteOutcome::Failed, 1), (WriteOutcome::Gone, 0), (WriteOutcome::Applied("9".into()), 0)] {
        let mut stage = Stage::new();
        stage.run(run("w"));
        stage.work();
        stage.pass(1_000);
        stage.work();
        let write = stage.messages()[0].0;
        stage.pass(100);
        stage.answer(write, outcome.clone());
        stage.pass(999);
        stage.work();
        assert_eq!(stage.messages(), [], "{outcome:?}");
        stage.pass(1);
        stage.work();
        assert_eq!(stage.messages().len(), again, "{outcome:?}");
    }
}

#[test]
fn a_message_that_keeps_failing_backs_off_as_every_error_does() {
    let mut stage = Stage::new();
    stage.run(run("w"));
    stage.work();
    stage.pass(1_000);
    stage.work();
    for wait in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
        let write = stage.messages()[0].0;
        stage.answer(write, WriteOutcome::Failed);
        // An attempt in between is no reason to write sooner.
        stage.run(run("w").requests(&[("gpu", i64::try_from(wait).expect("small"))]));
        stage.work();
        stage.pass(wait - 1);
        stage.work();
        assert_eq!(stage.messages(), [], "{wait}");
        stage.pass(1);
        stage.work();
    }
    // One that is stored ends the row of errors.
    let (write, _) = stage.messages().remove(0);
    stage.stored(write);
    stage.pod(pod("p", 0));
    stage.run(run("w").requests(&[("gpu", 7)]));
    stage.pass(1_000);
    stage.work();
    let (write, _) = stage.messages().remove(0);
    stage.answer(write, WriteOutcome::Failed);
    assert_eq!(stage.core.next_event_ms(), Some(stage.now.mono_ms + 1_000));
}

#[test]
fn a_long_account_is_cut() {
    let mut stage = Stage::new();
    for i in 0..100 {
        let mut p = pod(&format!("p{i}"), 5);
        p.capacity = Arc::new([(Arc::from("runs"), 5)].into());
        stage.pod(p);
    }
    // Each Pod lacks another resource first: the earlier ones are advertised.
    for i in 0..100 {
        let capacity = (0..i).map(|r| (Arc::from(format!("resource-with-a-long-name-{r:03}")), 1)).chain([(Arc::from("runs"), 5)]);
        let capacity = Arc::new(capacity.collect());
        stage.pod(PodObject { capacity, ..pod(&format!("p{i}"), 5) });
    }
    let names: Vec<String> = (0..100).map(|r| format!("resource-with-a-long-name-{r:03}")).collect();
    let wants: Vec<(&str, i64)> = names.iter().map(|n| (n.as_str(), 1)).collect();
    stage.run(run("w").requests(&wants));
    stage.work();
    let text = stage.text("w");
    assert!(text.len() < MESSAGE_BYTES_MAX && text.ends_with('…') && text.starts_with(WAITING_PREFIX), "{text}");
}

// ---- Runs that wait for each other ---------------------------------------------------------------

fn stuck(runs: &[RunObject], of: &str) -> String {
    let mut stage = Stage::new();
    stage.pod(pod("p", 50));
    runs.iter().for_each(|r| stage.run(r.clone()));
    stage.work();
    let text = stage.text(of);
    text.split_once("; ").map_or_else(String::new, |(_, stuck)| stuck.to_owned())
}

#[test]
fn runs_that_wait_for_each_other_say_so() {
    let a = run("a").labels(&[("app", "a")]).requires("app=b");
    let b = run("b").labels(&[("app", "b")]).requires("app=a");
    assert_eq!(stuck(&[a.clone(), b.clone()], "a"), "waits for ns/b, which waits for it");
    assert_eq!(stuck(&[a.clone(), b.clone()], "b"), "waits for ns/a, which waits for it");
    // Who depends on the two is stuck too, but not in the circle.
    let c = run("c").requires("app=a");
    assert_eq!(stuck(&[a.clone(), b.clone(), c], "c"), "waits for ns/a, which can't be placed either");
    // A third that seeds the label breaks the circle.
    let seed = run("seed").labels(&[("app", "a")]).requests(&[("gpu", 1)]);
    assert_eq!(stuck(&[a, b, seed], "a"), "");
}

#[test]
fn a_circle_of_three_is_one() {
    let of = |name: &str, needs: &str| run(name).labels(&[("app", name)]).requires(&format!("app={needs}"));
    let runs = [of("a", "b"), of("b", "c"), of("c", "a")];
    assert_eq!(stuck(&runs, "b"), "waits for ns/c, which waits for it");
}

#[test]
fn a_label_that_nobody_offers_is_named() {
    assert_eq!(stuck(&[run("a").requires("app=x")], "a"), "no Run offers app=x");
    // Another runtime's Run is no help.
    let other = RunObject { runtime: "python".into(), ..run("o").labels(&[("app", "x")]) };
    assert_eq!(stuck(&[run("a").requires("app=x"), other], "a"), "no Run offers app=x");
}

#[test]
fn affinity_and_anti_affinity_with_oneself_run_one_at_a_time() {
    let one = |name: &str| run(name).labels(&[("app", "x")]).requires("app=x").excludes("app=x");
    let text = stuck(&[one("a"), one("b")], "b");
    assert!(text.starts_with("runs one at a time"), "{text}");
}

#[test]
fn who_waits_for_a_run_that_waits_for_room_is_not_stuck() {
    let leader = run("leader").labels(&[("app", "x")]).requests(&[("gpu", 1)]);
    assert_eq!(stuck(&[leader, run("a").requires("app=x")], "a"), "");
}
