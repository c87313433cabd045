//! Whom the tracker wakes, and when its timers fire.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use crate::policy::Policy;
use berth_api::runtime_ready::PodSigns;

const WALL: i64 = 1_700_000_000_000;

fn now(elapsed_ms: u64) -> Now {
    Now { wall_ms: WALL + i64::try_from(elapsed_ms).unwrap(), mono_ms: 1_000 + elapsed_ms }
}

fn pod(uid: &str) -> Stored<()> {
    Stored { key: ObjectKey::new("a", "p"), uid: Arc::from(uid), resource_version: Arc::from("1"), object: Arc::new(()) }
}

/// A healthy Pod whose agent reported at `now(beat_ms)`.
fn beats(beat_ms: i64) -> RuntimePod<'static> {
    RuntimePod {
        runtime: "bash",
        signs: PodSigns { running: true, ready: true, terminating: false, heartbeat_true: true, cordoned: false, probe_time_ms: Some(WALL + beat_ms) },
        agent: true,
        runs: 4,
    }
}

fn on() -> Slot {
    Slot::On(ObjectKey::new("a", "p"))
}

fn waiting(runtime: &str) -> Slot {
    Slot::Waiting { namespace: Arc::from("a"), runtime: Arc::from(runtime) }
}

fn verdict(tracker: &Tracker, at: u64) -> Option<Verdict> {
    tracker.find(&ObjectKey::new("a", "p"), now(at), |found| found.map(|found| found.verdict))
}

#[test]
fn a_heartbeat_that_changes_no_verdict_wakes_nobody_and_arms_no_second_timer() {
    let mut tracker = Tracker::default();
    let first = tracker.applied(&pod("u"), beats(0), now(0));
    assert_eq!(first, Effect { wake: vec![on(), waiting("bash")], look_again: Some(Duration::from_millis(15_001)) });
    for n in 1..4 {
        assert_eq!(tracker.applied(&pod("u"), beats(5_000 * n), now(5_000 * n.unsigned_abs())), Effect::default());
    }
    // The one timer fires, finds the Pod fresh and is armed again for when it would go stale.
    assert_eq!(tracker.fired(&pod("u").key, now(15_001)), Effect { wake: vec![], look_again: Some(Duration::from_millis(15_000)) });
    let stale = tracker.fired(&pod("u").key, now(30_001));
    assert_eq!(stale, Effect { wake: vec![on()], look_again: None });
    // Its return wakes, and arms again.
    let back = tracker.applied(&pod("u"), beats(40_000), now(40_000));
    assert_eq!(back, Effect { wake: vec![on(), waiting("bash")], look_again: Some(Duration::from_millis(15_001)) });
}

#[test]
fn readiness_is_judged_at_the_moment_of_asking() {
    let mut tracker = Tracker::default();
    tracker.applied(&pod("u"), beats(0), now(0));
    assert_eq!(verdict(&tracker, 15_000), Some(Verdict::Ready));
    assert_eq!(verdict(&tracker, 15_001), Some(Verdict::HeartbeatStale));
    let namespace = Arc::from("a");
    let candidates: Vec<_> = tracker.candidates(&namespace, "bash", now(15_001), |pod| pod.name.len() as u64).collect();
    assert_eq!(candidates, [Candidate { name: "p", uid: "u", verdict: Verdict::HeartbeatStale, load: Load { held: 1, capacity: 4 } }]);
}

#[test]
fn losing_readiness_concerns_only_those_on_the_pod() {
    let mut tracker = Tracker::default();
    tracker.applied(&pod("u"), beats(0), now(0));
    let effect = tracker.applied(&pod("u"), RuntimePod { signs: PodSigns { ready: false, ..beats(0).signs }, ..beats(0) }, now(1));
    assert_eq!(effect.wake, [on()]);
    assert_eq!(tracker.applied(&pod("u"), beats(0), now(2)).wake, [on(), waiting("bash")]);
}

#[test]
fn an_agent_that_appears_concerns_those_on_the_pod() {
    let mut tracker = Tracker::default();
    tracker.applied(&pod("u"), RuntimePod { agent: false, ..beats(0) }, now(0));
    assert!(tracker.applied(&pod("u"), beats(0), now(1)).wake.contains(&on()));
    assert!(tracker.find(&pod("u").key, now(1), |found| found.is_some_and(|found| found.agent)));
}

#[test]
fn a_relabelled_pod_concerns_both_runtimes() {
    let mut tracker = Tracker::default();
    tracker.applied(&pod("u"), beats(0), now(0));
    let effect = tracker.applied(&pod("u"), RuntimePod { runtime: "python", ..beats(0) }, now(1));
    assert_eq!(effect.wake, [on(), waiting("python"), waiting("bash")]);
    let namespace = Arc::from("a");
    assert_eq!(["bash", "python"].map(|runtime| tracker.candidates(&namespace, runtime, now(1), |_| 0).count()), [0, 1]);
}

#[test]
fn a_namesake_inherits_no_heartbeat() {
    let mut tracker = Tracker::default();
    // By a clock an hour behind: only a change that was seen makes it fresh.
    tracker.applied(&pod("u"), beats(-3_600_000), now(0));
    tracker.applied(&pod("u"), beats(-3_595_000), now(5_000));
    assert_eq!(verdict(&tracker, 5_000), Some(Verdict::Ready));
    tracker.applied(&pod("v"), beats(-3_590_000), now(10_000));
    assert_eq!(verdict(&tracker, 10_000), Some(Verdict::HeartbeatStale));
}

#[test]
fn a_deleted_pod_concerns_those_on_it_and_the_last_one_also_those_who_wait() {
    let mut tracker = Tracker::default();
    let other = Stored { key: ObjectKey::new("a", "q"), ..pod("w") };
    tracker.applied(&pod("u"), beats(0), now(0));
    tracker.applied(&other, beats(0), now(0));
    assert_eq!(tracker.deleted(&pod("u").key).wake, [on()]);
    assert_eq!(tracker.deleted(&other.key).wake, [Slot::On(other.key.clone()), waiting("bash")]);
    assert_eq!(tracker.deleted(&other.key), Effect::default());
    assert_eq!(tracker.fired(&other.key, now(1)), Effect::default());
}

/// A policy that requires no heartbeat.
fn waiving() -> Policy {
    Policy { heartbeat: false, ..Policy::default() }
}

/// No heartbeat is required of the Pods of a Runtime.
fn waived(runtime: &str) -> Policies {
    Policies::new(Policy::default(), [(runtime.to_owned(), waiving())].into())
}

/// A Pod that is Ready and whose agent has never beaten.
const SILENT: RuntimePod<'static> = RuntimePod {
    runtime: "bash",
    signs: PodSigns { running: true, ready: true, terminating: false, heartbeat_true: false, cordoned: false, probe_time_ms: None },
    agent: true,
    runs: 2,
};

#[test]
fn without_a_required_heartbeat_a_ready_pod_is_available_and_no_timer_runs() {
    let mut tracker = Tracker::default();
    tracker.obey(waived("bash"), now(0));
    assert_eq!(tracker.applied(&pod("u"), SILENT, now(0)), Effect { wake: vec![on(), waiting("bash")], look_again: None });
    assert_eq!(verdict(&tracker, 0), Some(Verdict::Ready));
    assert_eq!(tracker.applied(&pod("u"), beats(0), now(0)), Effect::default(), "a heartbeat is no news");
    assert_eq!(verdict(&tracker, 60_000), Some(Verdict::Ready), "and its end neither");
    let other = RuntimePod { runtime: "python", ..SILENT };
    tracker.applied(&pod("u"), other, now(0));
    assert_eq!(verdict(&tracker, 0), Some(Verdict::HeartbeatMissing), "of another Runtime");
}

#[test]
fn another_policy_wakes_those_for_whom_it_changes_something_and_arms_what_can_go_stale() {
    let mut tracker = Tracker::default();
    let waived = Policies::new(waiving(), [("python".to_owned(), Policy::default())].into());
    tracker.applied(&pod("u"), SILENT, now(0));
    let key = pod("u").key;
    let freed = vec![(key.clone(), Effect { wake: vec![on(), waiting("bash")], look_again: None })];
    assert_eq!(tracker.obey(waived.clone(), now(0)), freed);
    assert_eq!(tracker.obey(waived, now(0)), [(key.clone(), Effect::default())], "the same again");
    tracker.applied(&pod("u"), beats(0), now(0));
    let timed = Effect { wake: vec![], look_again: Some(Duration::from_millis(14_001)) };
    assert_eq!(tracker.obey(Policies::default(), now(1_000)), [(key.clone(), timed)]);
    assert_eq!(tracker.fired(&key, now(15_001)), Effect { wake: vec![on()], look_again: None });
}
