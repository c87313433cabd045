//! The order in which Runs are tried, and what becomes of placements that do not stand.

use berth_framework::core::{AttemptResult, Effect, FLUSH_EVERY_MS, Standing, WriteOutcome};
use berth_framework::model::{InvalidReason, InvalidRun, Phase, RunObject};
use berth_framework::plugin::WakeCause;

use crate::stage::{RunExt as _, Stage, active, key, pod, run};

#[test]
fn a_backlog_is_tried_by_creation_then_uid_however_it_arrives() {
    let mut stage = Stage::new();
    stage.core.stop_placing();
    for (name, created) in [("d", 2), ("b", 1), ("e", 2), ("a", 1), ("c", 1)] {
        stage.run(run(name).created(created));
    }
    stage.pod(pod("p", 3));
    assert_eq!(stage.placed(), [""; 0]);
    stage.core.start_placing();
    assert_eq!(stage.placed(), ["a@p", "b@p", "c@p"]);
    assert_eq!((stage.core.queue().waiting, stage.core.queue().active), (2, 0));
}

/// Whoever may not place yet, or no more, has nothing to wake up for.
#[test]
fn while_nothing_may_be_placed_the_alarm_is_silent() {
    let mut stage = Stage::new();
    stage.run(run("a"));
    stage.work();
    assert!(stage.core.next_wake_ms().is_some_and(|at| at > stage.now.mono_ms), "the alarm is armed");
    stage.core.stop_placing();
    stage.run(run("b"));
    for _ in 0..3 {
        stage.pass(FLUSH_EVERY_MS + 1_000);
        assert_eq!(stage.work(), []);
        assert_eq!(stage.core.next_wake_ms(), None);
    }
    stage.core.start_placing();
    assert_eq!(stage.core.next_wake_ms(), Some(0));
    assert_eq!(stage.work().len(), 1, "b is tried, and nobody else");
    assert_eq!(stage.core.next_wake_ms(), Some(stage.now.mono_ms + 1_000), "its message");
}

#[test]
fn it_is_known_how_many_go_before_a_run_and_what_it_was_tried_for() {
    let mut stage = Stage::new();
    stage.core.stop_placing();
    for (name, created) in [("b", 2), ("a", 1), ("c", 3)] {
        stage.run(run(name).created(created));
    }
    let positions = |stage: &Stage| ["a", "b", "c"].map(|name| stage.core.position(&key(name)).map(|place| (place.before, place.of)));
    let in_order = [Some((0, 3)), Some((1, 3)), Some((2, 3))];
    assert_eq!(positions(&stage), in_order, "to be tried");
    stage.core.start_placing();
    stage.pass(10);
    stage.work();
    let first = stage.now.mono_ms;
    stage.run(run("bigger").created(0).requests(&[("runs", 2)]));
    stage.work();
    assert_eq!(positions(&stage), in_order, "of those that ask for the same");
    assert_eq!(stage.core.position(&key("bigger")).map(|place| (place.before, place.of)), Some((0, 1)));
    let queued = |stage: &Stage| stage.core.queued(&key("b")).expect("known");
    assert_eq!((queued(&stage).standing, queued(&stage).attempts, queued(&stage).cause), (Standing::Waiting, 1, None));
    stage.pass(5);
    stage.run(run("b").created(2).labels(&[("x", "y")]));
    stage.work();
    let again = queued(&stage);
    assert_eq!((again.attempts, again.cause, again.alarm), (2, Some(WakeCause::OwnLabelsChanged), false));
    assert_eq!((again.attempted_ms, again.waiting_since_ms), (Some(stage.now.mono_ms), Some(first)));
    stage.pod(pod("p", 1));
    assert_eq!(stage.placed(), ["a@p"]);
    assert_eq!((stage.core.position(&key("a")), stage.core.queued(&key("a")).map(|queued| queued.standing)), (None, Some(Standing::Assumed)));
}

#[test]
fn a_younger_run_of_the_same_shape_does_not_overtake_one_that_waits() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(active("a", "p"));
    stage.run(run("older").created(1));
    stage.work();
    // Room and a younger Run arrive together.
    stage.end(run("a"));
    stage.run(run("younger").created(2));
    assert_eq!(stage.placed(), ["older@p"]);
    // And a whole queue of older ones stays before it.
    stage.run(run("second").created(1));
    stage.work();
    stage.pod(pod("p", 3));
    stage.run(run("youngest").created(3));
    assert_eq!(stage.placed(), ["second@p", "younger@p"]);
}

#[test]
fn freed_room_wakes_the_oldest_whose_request_fits() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 2));
    stage.run(active("a", "p"));
    stage.run(active("b", "p"));
    stage.run(run("big").requests(&[("runs", 2)]).created(1));
    stage.run(run("small").created(2));
    stage.work();
    stage.end(run("a"));
    assert_eq!(stage.placed(), ["small@p"]);
    stage.lose_run("small");
    stage.end(run("b"));
    assert_eq!(stage.placed(), ["big@p"]);
}

#[test]
fn a_cancelled_or_invalid_run_ends_at_once_also_while_it_waits() {
    let mut stage = Stage::new();
    stage.run(run("a"));
    stage.run(run("b"));
    stage.work();
    stage.run(RunObject { cancel_requested: true, ..run("a") });
    let invalid = Some(InvalidRun { reason: InvalidReason::InvalidSpec, message: "spec: bad".into() });
    stage.run(RunObject { invalid: invalid.clone(), ..run("b") });
    stage.run(RunObject { invalid: invalid.clone(), cancel_requested: true, ..run("c") });
    stage.run(RunObject { invalid, ..run("d") });
    stage.run(RunObject { deleting: true, ..run("e") });
    let ends: Vec<(String, &str)> = stage
        .work()
        .into_iter()
        .map(|a| if let AttemptResult::Terminates { reason, .. } = a.result { (a.key.name.to_string(), reason) } else { panic!("{a:?}") })
        .collect();
    let expected = [("a", "Cancelled"), ("b", "InvalidSpec"), ("c", "Cancelled"), ("d", "InvalidSpec")];
    assert_eq!(ends, expected.map(|(name, reason)| (name.to_owned(), reason)));
    assert_eq!(stage.effects.iter().filter(|e| matches!(e, Effect::Terminate { .. })).count(), 4);
    assert_eq!(stage.wakeups(), [], "nobody was helped");
}

#[test]
fn a_retried_run_is_held_until_its_back_off_is_over() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(RunObject { retry_not_before_wall_ms: Some(stage.now.wall_ms + 7_000), ..run("a") });
    let attempts = stage.work();
    assert!(matches!(&attempts[..], [a] if a.result == AttemptResult::Held), "{attempts:?}");
    assert_eq!((stage.core.standing(&key("a")), stage.core.next_event_ms()), (Some(Standing::Backoff), Some(7_000)));
    stage.pass(7_000);
    assert_eq!(stage.placed(), ["a@p"]);
}

#[test]
fn a_hold_far_in_the_future_neither_overflows_nor_ends() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(RunObject { retry_not_before_wall_ms: Some(i64::MAX), ..run("a") });
    stage.work();
    stage.pass(1_000_000);
    assert_eq!(stage.work(), []);
    assert_eq!(stage.core.standing(&key("a")), Some(Standing::Backoff));
    // Whoever takes the hold away has it tried at once.
    stage.pod(pod("p", 0));
    stage.run(run("a"));
    assert_eq!(stage.work().len(), 1);
}

#[test]
fn a_bind_is_one_write_fenced_by_what_was_seen() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(run("other"));
    stage.run(run("a"));
    stage.work();
    let binds = stage.binds();
    let [bind] = &binds[..] else { panic!("{binds:?}") };
    assert_eq!((&*bind.run.key.name, &*bind.run.uid, &*bind.run.resource_version), ("a", "uid-a", "2"));
    assert_eq!((&*bind.pod, &*bind.pod_uid), ("p", "uid-p"));
    assert!(bind.note.remarks.is_empty());
}

// ---- regressions: answers and changes that come at a bad time --------------------------------------

/// Placed, ended and Pending again before the answer to the first bind comes: it must not undo the second placement.
#[test]
fn a_late_answer_does_not_release_a_newer_placement() {
    for outcome in [WriteOutcome::Conflict, WriteOutcome::Failed, WriteOutcome::Gone, WriteOutcome::Applied("1".into())] {
        let mut stage = Stage::new();
        stage.pod(pod("p", 1));
        stage.run(run("a"));
        stage.work();
        let first = stage.binds()[0].write;
        stage.run(active("a", "p"));
        stage.run(run("a"));
        assert_eq!(stage.placed(), ["a@p"]);
        stage.answer(first, outcome.clone());
        assert_eq!(stage.work(), []);
        assert_eq!(stage.core.counted_on(&key("a")).as_deref(), Some("p"), "{outcome:?}");
        assert_eq!(stage.core.standing(&key("a")), Some(Standing::Assumed));
    }
}

#[test]
fn a_run_that_is_deleted_during_its_bind_does_not_come_back() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(run("a"));
    stage.work();
    let write = stage.binds()[0].write;
    stage.run(RunObject { deleting: true, ..run("a") });
    assert_eq!(stage.core.counted_on(&key("a")).as_deref(), Some("p"), "the bind may still be stored");
    stage.answer(write, WriteOutcome::Conflict);
    stage.pass(60_000);
    assert_eq!(stage.work(), []);
    assert_eq!((stage.core.counted_on(&key("a")), stage.core.queue().backoff), (None, 0));
}

/// A relist may skip the Active state: then only the version tells that the Run was bound and let go again.
#[test]
fn a_run_that_is_pending_again_after_its_bind_starts_anew() {
    for answer_first in [true, false] {
        let mut stage = Stage::new();
        stage.pod(pod("p", 1));
        stage.run(run("a"));
        stage.work();
        let write = stage.binds()[0].write;
        if answer_first {
            stage.stored(write);
            stage.run(run("a"));
        } else {
            stage.run(run("skipped"));
            stage.lose_run("skipped");
            stage.run(run("a"));
            assert_eq!(stage.work(), [], "the bind may be newer still");
            stage.answer(write, WriteOutcome::Applied("2".into()));
        }
        assert_eq!(stage.placed(), ["a@p"], "answered first: {answer_first}");
    }
}

#[test]
fn a_pending_view_from_before_the_bind_changes_nothing() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(run("a"));
    stage.work();
    let write = stage.binds()[0].write;
    stage.answer(write, WriteOutcome::Applied("100".into()));
    stage.run(run("a").labels(&[("late", "yes")]));
    assert_eq!(stage.work(), []);
    assert_eq!(stage.core.counted_on(&key("a")).as_deref(), Some("p"));
}

#[test]
fn a_run_that_was_ended_and_is_pending_again_is_tried_again() {
    let mut stage = Stage::new();
    stage.run(RunObject { cancel_requested: true, ..run("a") });
    stage.work();
    let Some(Effect::Terminate { write, .. }) = stage.effects.pop() else { panic!("ends") };
    stage.answer(write, WriteOutcome::Applied("5".into()));
    stage.pod(pod("p", 1));
    for _ in 0..5 {
        stage.run(run("other"));
    }
    // Newer than what we wrote, and nobody ever showed us the end.
    stage.run(run("a"));
    assert_eq!(stage.placed(), ["a@p"]);
}

#[test]
fn a_placement_seen_elsewhere_counts_there() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.pod(pod("q", 0));
    stage.run(run("a"));
    stage.run(run("w").created(1));
    assert_eq!(stage.placed(), ["a@p"]);
    stage.run(active("a", "q"));
    assert_eq!(stage.placed(), ["w@p"]);
    assert_eq!(stage.core.counted_on(&key("a")).as_deref(), Some("q"));
}

/// The invariant is checked when a Run is placed; what was placed on an assumption stays where it is.
#[test]
fn a_follower_of_an_assumption_stands_when_the_bind_it_followed_fails() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 9));
    let follower = |name: &str| run(name).requires("app=x").created(1);
    stage.run(run("leader").labels(&[("app", "x")]));
    stage.run(follower("follower"));
    assert_eq!(stage.placed(), ["leader@p", "follower@p"]);
    let binds = stage.binds();
    stage.answer(binds[0].write, WriteOutcome::Conflict);
    stage.stored(binds[1].write);
    stage.run(RunObject { affinity: follower("follower").affinity, ..active("follower", "p").created(1) });
    assert_eq!(stage.work(), []);
    assert_eq!((stage.core.standing(&key("leader")), stage.core.counted_on(&key("leader"))), (Some(Standing::Backoff), None));
    assert_eq!(stage.core.counted_on(&key("follower")).as_deref(), Some("p"), "it stands");
    // The next one finds no target, until the leader is placed after all.
    stage.run(follower("late"));
    assert_eq!(stage.placed(), [""; 0]);
    stage.pass(1_000);
    assert_eq!(stage.placed(), ["leader@p", "late@p"]);
}

/// Some later version of the API has a phase of its own: whoever knows it is in charge.
#[test]
fn a_run_of_an_unknown_phase_is_left_alone_and_holds_nothing() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    let unknown = RunObject { phase: Phase::Unknown, assigned_pod: Some("p".into()), ..run("a").labels(&[("app", "x")]) };
    stage.run(unknown.clone());
    stage.run(RunObject { cancel_requested: true, ..unknown.clone() });
    stage.run(run("follower").requires("app=x"));
    assert_eq!(stage.placed(), [""; 0], "no target");
    assert_eq!((stage.core.standing(&key("a")), stage.core.counted_on(&key("a"))), (None, None));
    stage.run(run("w"));
    assert_eq!(stage.placed(), ["w@p"]);
    // It may come back to a phase we know.
    stage.run(RunObject { phase: Phase::Active, ..unknown });
    assert_eq!(stage.core.counted_on(&key("a")).as_deref(), Some("p"));
    stage.effects.clear();
    stage.pass(2_000);
    stage.work();
    assert!(stage.effects.iter().all(|effect| matches!(effect, Effect::SetWaiting { run, .. } if &*run.key.name != "a")), "{:?}", stage.effects);
}

#[test]
fn a_run_relabelled_while_it_is_assumed_on_a_pod_that_is_gone_is_still_counted_there() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(run("a"));
    stage.work();
    stage.lose_pod("p");
    stage.run(run("a").labels(&[("app", "x")]));
    stage.pod(pod("q", 1));
    assert_eq!(stage.core.counted_on(&key("a")).as_deref(), Some("p"));
    // The Pod is back: what is assumed on its name holds its room.
    stage.pod(pod("p", 1));
    stage.run(run("follower").requires("app=x"));
    assert_eq!(stage.placed(), [""; 0]);
    assert_eq!(stage.text("follower"), "waiting for available runtime pods: 0/2 fit: 1 without a Run matching required affinity, 1 insufficient runs");
}

#[test]
fn an_assumed_run_that_becomes_invalid_keeps_its_anti_affinity_until_it_ends() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 5));
    stage.run(run("a").excludes("app=x"));
    stage.work();
    let invalid = Some(InvalidRun { reason: InvalidReason::InvalidResources, message: "bad".into() });
    stage.run(RunObject { requests: None, invalid, ..run("a").excludes("app=x") });
    stage.run(run("w").labels(&[("app", "x")]));
    assert_eq!(stage.placed(), [""; 0]);
}

#[test]
fn an_active_run_with_unreadable_requests_is_a_target_that_holds_nothing() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(RunObject { requests: None, ..active("t", "p").labels(&[("app", "x")]) });
    stage.run(run("w").requires("app=x"));
    assert_eq!(stage.placed(), ["w@p"]);
}

#[test]
fn the_timer_of_a_pod_that_is_gone_says_nothing_about_its_namesake() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(active("holder", "p"));
    stage.lose_pod("p");
    // The new Pod's heartbeat is 14 s old: it goes stale long before the old one would have.
    let probe_ms = Some(stage.now.wall_ms - 14_000);
    stage.pod(berth_framework::model::PodObject { uid: "another".into(), probe_ms, ..pod("p", 2) });
    stage.pass(1_001);
    stage.run(run("w"));
    stage.work();
    assert_eq!(stage.text("w"), "waiting for available runtime pods: 0/1 fit: 1 heartbeat stale");
}

/// The id of a request is reused; what was found out for the old one must not be believed for the new one.
#[test]
fn a_verdict_for_one_request_is_not_believed_for_another() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 2));
    stage.run(run("fits").requests(&[("runs", 2)]));
    assert_eq!(stage.placed(), ["fits@p"]);
    stage.lose_run("fits");
    stage.run(run("gone").requests(&[("runs", 2)]));
    stage.work();
    stage.lose_run("gone");
    stage.run(run("big").requests(&[("runs", 3)]));
    assert_eq!(stage.placed(), [""; 0]);
    assert_eq!(stage.text("big"), "waiting for available runtime pods: 0/1 fit: 1 insufficient runs");
}

#[test]
fn a_pod_of_the_same_name_is_another_pod_but_what_is_on_the_name_counts() {
    let mut stage = Stage::new();
    stage.pod(pod("p", 1));
    stage.run(active("a", "p"));
    stage.pod(berth_framework::model::PodObject { uid: "another".into(), ..pod("p", 1) });
    stage.run(run("w"));
    assert_eq!(stage.placed(), [""; 0]);
    stage.run(RunObject { phase: Phase::Unknown, ..run("a") });
    assert_eq!(stage.placed(), ["w@p"]);
}

#[test]
fn sums_of_huge_requests_do_not_overflow() {
    let mut stage = Stage::new();
    let mut p = pod("p", i64::MAX);
    p.capacity = std::sync::Arc::new([("runs".into(), i64::MAX), ("mem".into(), i64::MAX)].into());
    stage.pod(p);
    for i in 0..5 {
        stage.run(active(&format!("a{i}"), "p").requests(&[("mem", i64::MAX), ("runs", i64::MAX)]));
    }
    stage.run(run("w").requests(&[("mem", i64::MAX)]));
    stage.run(run("v").requests(&[("runs", i64::MAX)]));
    assert_eq!(stage.placed(), [""; 0]);
    for i in 0..5 {
        stage.lose_run(&format!("a{i}"));
    }
    assert_eq!(stage.placed(), ["v@p"]);
}
