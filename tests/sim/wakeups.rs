//! One story per wake-up cause: the event alone brings the waiting Run to its Pod, and only that cause is counted.

use std::sync::Arc;

use berth_framework::core::{AttemptResult, Standing, WriteOutcome};
use berth_framework::model::{PodObject, RunObject, WorkspacePhase};
use berth_framework::plugin::WakeCause;
use berth_tests::oracle::Rules;

use crate::stage::{RunExt as _, Stage, active, key, pod, run, workspace};
use crate::world::profile;

/// Run `w` waits; after `event` it is placed by one attempt with that cause, and no other Run was tried.
fn wakes(mut stage: Stage, cause: WakeCause, event: impl FnOnce(&mut Stage)) {
    stage.work();
    assert_eq!(stage.core.standing(&key("w")), Some(Standing::Waiting), "before the event, w waits");
    assert_eq!(stage.wakeups(), [], "before the event, nobody was woken");
    event(&mut stage);
    let attempts = stage.work();
    let [attempt] = &attempts[..] else { panic!("one attempt, not {attempts:#?}") };
    assert_eq!(attempt.key, key("w"));
    assert_eq!(attempt.cause, Some(cause));
    assert!(matches!(attempt.result, AttemptResult::Placed { .. }), "{attempt:#?}");
    assert_eq!(stage.wakeups(), [(cause, 1)]);
    assert_eq!(stage.core.stats().placed_after_flush, 0);
}

fn stage(pods: &[PodObject], runs: &[RunObject]) -> Stage {
    let mut stage = Stage::new();
    pods.iter().for_each(|p| stage.pod(p.clone()));
    runs.iter().for_each(|r| stage.run(r.clone()));
    stage
}

#[test]
fn a_pod_that_becomes_ready_wakes() {
    let stage = stage(&[PodObject { ready: false, ..pod("p", 1) }], &[run("w")]);
    wakes(stage, WakeCause::PodReady, |s| s.pod(pod("p", 1)));
}

#[test]
fn a_new_pod_wakes() {
    wakes(stage(&[pod("full", 0)], &[run("w")]), WakeCause::PodReady, |s| s.pod(pod("p", 1)));
}

#[test]
fn a_heartbeat_that_returns_wakes() {
    let mut stage = stage(&[pod("p", 1)], &[]);
    stage.pass(15_001);
    stage.work();
    assert_eq!(stage.core.stats().went_stale, 1);
    stage.run(run("w"));
    wakes(stage, WakeCause::HeartbeatReturned, |s| {
        let probe_ms = Some(s.now.wall_ms);
        s.pod(PodObject { probe_ms, ..pod("p", 1) });
    });
}

#[test]
fn raised_capacity_wakes() {
    wakes(stage(&[pod("p", 0)], &[run("w")]), WakeCause::CapacityRaised, |s| s.pod(pod("p", 1)));
}

#[test]
fn a_deleted_pod_wakes_who_can_seed_its_term_again() {
    let target = active("t", "drained").labels(&[("app", "x")]);
    let w = run("w").labels(&[("app", "x")]).requires("app=x");
    wakes(stage(&[pod("drained", 0), pod("p", 1)], &[target, w]), WakeCause::PodDeletedOrRelabelled, |s| s.lose_pod("drained"));
}

#[test]
fn a_pod_of_another_runtime_now_wakes_who_can_seed_its_term_again() {
    let target = active("t", "drained").labels(&[("app", "x")]);
    let w = run("w").labels(&[("app", "x")]).requires("app=x");
    let stage = stage(&[pod("drained", 0), pod("p", 1)], &[target, w]);
    wakes(stage, WakeCause::PodDeletedOrRelabelled, |s| s.pod(PodObject { runtime: "python".into(), ..pod("drained", 0) }));
}

#[test]
fn an_annotation_that_advertises_an_agent_wakes() {
    let mut stage = Stage::with(&Rules { workspace_fencing: Some(true), ..Rules::default() });
    stage.pod(pod("p", 1));
    stage.workspace(workspace("ws", "p"));
    stage.run(run("w").workspace("ws"));
    let annotations = Arc::new([("kruntimes.io/workspace-agent".to_owned(), "v1".to_owned())].into());
    wakes(stage, WakeCause::PodDeletedOrRelabelled, |s| s.pod(PodObject { workspace_agent: true, annotations, ..pod("p", 1) }));
}

#[test]
fn a_run_that_ends_wakes() {
    wakes(stage(&[pod("p", 1)], &[active("a", "p"), run("w")]), WakeCause::RunEnded, |s| s.end(run("a")));
}

#[test]
fn a_run_that_goes_back_to_pending_wakes_with_its_room() {
    let mut stage = stage(&[pod("p", 1)], &[active("a", "p"), run("w")]);
    stage.work();
    // The retried Run waits its back-off, so that the room is w's.
    stage.run(RunObject { retry_not_before_wall_ms: Some(stage.now.wall_ms + 60_000), ..run("a") });
    let attempts = stage.work();
    assert!(matches!(&attempts[..], [held, w] if held.result == AttemptResult::Held && w.cause == Some(WakeCause::RunEnded)), "{attempts:#?}");
    assert_eq!(stage.wakeups(), [(WakeCause::RunEnded, 1)]);
}

#[test]
fn an_active_run_that_is_deleted_wakes() {
    wakes(stage(&[pod("p", 1)], &[active("a", "p"), run("w")]), WakeCause::RunDeleted, |s| s.lose_run("a"));
}

#[test]
fn the_end_of_the_last_target_wakes_who_can_seed_the_term_again() {
    let target = active("t", "drained").labels(&[("app", "x")]);
    let w = run("w").labels(&[("app", "x")]).requires("app=x");
    wakes(stage(&[pod("drained", 0), pod("p", 1)], &[target, w]), WakeCause::LastTargetEnded, |s| s.end(run("t").labels(&[("app", "x")])));
}

#[test]
fn a_target_that_appears_wakes() {
    wakes(stage(&[pod("p", 2)], &[run("w").requires("app=x")]), WakeCause::TargetAppeared, |s| s.run(active("t", "p").labels(&[("app", "x")])));
}

#[test]
fn an_active_run_that_is_relabelled_into_a_target_wakes() {
    let stage = stage(&[pod("p", 2)], &[active("t", "p"), run("w").requires("app=x")]);
    wakes(stage, WakeCause::TargetAppeared, |s| s.run(active("t", "p").labels(&[("app", "x")])));
}

#[test]
fn the_end_of_who_avoided_it_wakes() {
    let owner = active("o", "p").excludes("app=x");
    let stage = stage(&[pod("p", 2)], &[owner, run("w").labels(&[("app", "x")])]);
    wakes(stage, WakeCause::AntiAffinityOwnerEnded, |s| s.end(run("o").excludes("app=x")));
}

#[test]
fn other_labels_of_its_own_wake() {
    let owner = active("o", "p").excludes("app=x");
    let stage = stage(&[pod("p", 2)], &[owner, run("w").labels(&[("app", "x")])]);
    wakes(stage, WakeCause::OwnLabelsChanged, |s| s.run(run("w").labels(&[("app", "y")])));
}

#[test]
fn each_change_of_its_workspace_wakes() {
    let mut pending = workspace("ws", "p");
    pending.phase = WorkspacePhase::Pending;
    let mut unfenced = workspace("ws", "p");
    unfenced.bound_pod_uid = None;
    let mut other_runtime = workspace("ws", "p");
    other_runtime.runtime = "python".into();
    let elsewhere = workspace("ws", "other");
    for before in [None, Some(pending), Some(unfenced), Some(other_runtime), Some(elsewhere)] {
        let mut stage = stage(&[pod("p", 1)], &[]);
        if let Some(before) = before {
            stage.workspace(before);
        }
        stage.run(run("w").workspace("ws"));
        wakes(stage, WakeCause::WorkspaceChanged, |s| s.workspace(workspace("ws", "p")));
    }
}

#[test]
fn a_failed_bind_wakes_who_wants_the_room() {
    for outcome in [WriteOutcome::Failed, WriteOutcome::Gone, WriteOutcome::Conflict] {
        let mut stage = stage(&[pod("p", 1)], &[run("a"), run("w").created(1)]);
        stage.work();
        let binds = stage.binds();
        let [bind] = &binds[..] else { panic!("one bind, not {binds:?}") };
        let write = bind.write;
        wakes(stage, WakeCause::AssumptionReleased, |s| s.answer(write, outcome));
    }
}

#[test]
fn a_back_off_that_is_over_wakes() {
    let mut stage = stage(&[pod("p", 1)], &[run("a")]);
    stage.work();
    let write = stage.binds()[0].write;
    stage.answer(write, WriteOutcome::Conflict);
    assert_eq!(stage.work(), []);
    assert_eq!((stage.core.standing(&key("a")), stage.core.next_event_ms()), (Some(Standing::Backoff), Some(1_000)));
    stage.pass(999);
    assert_eq!(stage.work(), []);
    stage.pass(1);
    let attempts = stage.work();
    assert!(matches!(&attempts[..], [a] if a.cause == Some(WakeCause::RetryDue)), "{attempts:#?}");
    assert_eq!(stage.wakeups(), [(WakeCause::RetryDue, 1)]);
}

#[test]
fn errors_back_off_from_1_s_to_10_s() {
    let mut stage = stage(&[pod("p", 1)], &[run("a")]);
    for expected in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
        stage.pod(PodObject { probe_ms: Some(stage.now.wall_ms), ..pod("p", 1) });
        stage.work();
        let write = stage.binds()[0].write;
        stage.answer(write, WriteOutcome::Failed);
        assert_eq!(stage.core.next_event_ms(), Some(stage.now.mono_ms + expected));
        stage.pass(expected);
    }
}

#[test]
fn another_profile_wakes() {
    let stage = stage(&[PodObject { heartbeat_true: false, ..pod("p", 1) }], &[run("w")]);
    let lenient = profile(&Rules { runtime_ready: Some(false), ..Rules::default() });
    wakes(stage, WakeCause::ProfileChanged, |s| {
        s.core.handle(berth_framework::core::Input::Profiles(Arc::new(lenient.into())), s.now);
    });
}

#[test]
fn a_heartbeat_that_expires_changes_the_verdict_and_wakes_nobody() {
    let mut stage = stage(&[pod("p", 1), pod("q", 0)], &[active("a", "p"), run("w")]);
    stage.work();
    assert_eq!(stage.text("w"), "waiting for available runtime pods: 0/2 fit: 2 insufficient runs");
    stage.pass(15_001);
    assert_eq!(stage.work(), []);
    assert_eq!((stage.core.stats().went_stale, stage.wakeups()), (2, vec![]));
    let explained = stage.core.explain(&key("w")).expect("known");
    let codes: Vec<_> = explained.pods.iter().map(|p| p.verdicts[0].1.as_ref().map(|r| r.reason.code)).collect();
    assert_eq!(codes, [Some("HeartbeatStale"); 2]);
    // The next attempt tells it.
    stage.run(run("v"));
    stage.work();
    assert_eq!(stage.text("v"), "waiting for available runtime pods: 0/2 fit: 2 heartbeat stale");
}

#[test]
fn heartbeats_that_change_no_verdict_wake_nobody() {
    let mut stage = stage(&[pod("p", 0)], &[run("w")]);
    stage.work();
    for _ in 0..10 {
        stage.pass(5_000);
        stage.pod(PodObject { probe_ms: Some(stage.now.wall_ms), ..pod("p", 0) });
        assert_eq!(stage.work(), []);
    }
    assert_eq!(stage.wakeups(), []);
}

#[test]
fn without_required_heartbeats_a_silent_pod_that_becomes_ready_wakes() {
    let mut stage = Stage::with(&Rules { runtime_ready: Some(false), ..Rules::default() });
    let silent = PodObject { heartbeat_true: false, ..pod("p", 1) };
    stage.pod(PodObject { ready: false, ..silent.clone() });
    stage.run(run("w"));
    wakes(stage, WakeCause::PodReady, |s| s.pod(silent));
}

#[test]
fn freed_room_goes_on_to_the_next_until_nobody_takes_it() {
    let big = active("big", "p").requests(&[("runs", 3)]);
    let mut stage = stage(&[pod("p", 3)], &[big]);
    for (name, runs, created) in [("first", 2, 1), ("too-big", 2, 2), ("third", 1, 3), ("fourth", 1, 4)] {
        stage.run(run(name).requests(&[("runs", runs)]).created(created));
    }
    assert_eq!(stage.placed(), [""; 0]);
    stage.end(run("big").requests(&[("runs", 3)]));
    assert_eq!(stage.placed(), ["first@p", "third@p"]);
}

#[test]
fn one_freed_place_wakes_one_run_however_many_wait() {
    let mut stage = stage(&[pod("p", 1)], &[active("a", "p")]);
    for i in 0..1_000 {
        stage.run(run(&format!("w{i:04}")).created(i));
    }
    stage.work();
    let before = stage.core.work();
    stage.end(run("a"));
    assert_eq!(stage.placed(), ["w0000@p"]);
    assert_eq!(stage.wakeups(), [(WakeCause::RunEnded, 1)]);
    let looked_at = stage.core.work().runs - before.runs;
    assert!(looked_at <= 4, "{looked_at} Runs looked at");
}

#[test]
fn a_release_wakes_the_oldest_whose_terms_hold() {
    let anti = |name: &str, created| run(name).excludes("app=x").created(created);
    let mut stage = stage(&[pod("p", 2)], &[active("x", "p").labels(&[("app", "x")]), active("a", "p"), anti("blocked", 1), run("w").created(2)]);
    assert_eq!(stage.placed(), [""; 0]);
    stage.end(run("a"));
    assert_eq!(stage.placed(), ["w@p"]);
}

/// A Pod's "no" to the oldest Run of a group was taken for the whole group; the events that may end it are the group's,
/// and stay so when the group shrinks to one class and its oldest Run goes.
#[test]
fn who_was_passed_over_with_its_group_hears_what_the_group_waits_for() {
    let mut stage = stage(&[pod("p", 1)], &[active("x", "p").labels(&[("app", "x")])]);
    stage.run(run("b1").excludes("app=x").created(2));
    stage.run(run("w").excludes("app=x").created(3));
    stage.work();
    // Both wait for the target to end. Then the room shrinks, and an older one waits for room.
    stage.pod(pod("p", 0));
    stage.run(run("older").created(1));
    stage.work();
    stage.end(run("x").labels(&[("app", "x")]));
    assert_eq!(stage.work(), [], "the older one does not fit, so none of its group does");
    stage.lose_run("older");
    stage.lose_run("b1");
    wakes(stage, WakeCause::CapacityRaised, |s| s.pod(pod("p", 1)));
}

/// Capacity is an annotation too: one write may raise it and change what another plugin waits for.
#[test]
fn capacity_raised_together_with_another_annotation_wakes_for_both() {
    let mut stage = Stage::with(&Rules { workspace_fencing: Some(true), ..Rules::default() });
    stage.pod(pod("p", 1));
    stage.workspace(workspace("ws", "p"));
    stage.run(run("w").workspace("ws"));
    wakes(stage, WakeCause::CapacityRaised, |s| s.pod(PodObject { workspace_agent: true, ..pod("p", 2) }));
}
