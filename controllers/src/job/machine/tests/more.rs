//! What the matrix leaves out: quiet reconciles, times, reasons, what becomes of troubles, and the drawn machine.

use std::time::Duration;

use serde_json::{from_value, json};

use super::super::*;
use super::world::*;
use crate::job::api::names::condition::{ACCEPTED, PROGRESSING, SCHEDULED, STOP_REQUESTED};
use crate::job::api::status::JobStatus;
use crate::job::reason::{Failure, NotAccepted, NotScheduled};
use crate::job::resolve::Resolution;

#[test]
fn the_drawing_in_design_is_what_the_code_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../design/job-states.md");
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == drawing(), "{path} is out of date: cargo run -p berth-controllers --example job-states > design/job-states.md");
}

/// Every combination of what the state depends on has the state that the specification's priority gives it.
#[test]
fn states_follow_the_specification_s_priority() {
    let succeeded = [
        None,
        Some(("True", "Completed")),
        Some(("False", "Cancelled")),
        Some(("False", "BackendLost")),
        Some(("Unknown", "Running")),
        Some(("Unknown", "ResultUnknown")),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for bits in 0..32_u32 {
        let bit = |index: u32| bits & (1 << index) != 0;
        let (deleting, cancelled, started, scheduled, accepted) = (bit(0), bit(1), bit(2), bit(3), bit(4));
        for end in succeeded {
            let mut conditions = Vec::new();
            let mut push = |kind: &str, status: &str, reason: &str| {
                conditions.push(json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}));
            };
            push("Accepted", if accepted { "True" } else { "False" }, "R");
            push("Scheduled", if scheduled { "True" } else { "False" }, "R");
            if let Some((status, reason)) = end {
                push("Succeeded", status, reason);
            }
            let mut status = json!({ "conditions": conditions });
            if started {
                status["startTime"] = json!("2026-01-01T00:00:00Z");
            }
            let status: JobStatus = from_value(status).unwrap();
            let spec = from_value(json!({"task": {"image": "i"}, "desiredState": if cancelled { "Cancelled" } else { "Running" }})).unwrap();
            // The priority, told once more as a list of tests.
            let expected = [
                (deleting, State::Deleting),
                (end.is_some_and(|(status, _)| status == "True"), State::Succeeded),
                (end == Some(("False", "Cancelled")), State::Cancelled),
                (end.is_some_and(|(status, _)| status == "False"), State::Failed),
                (cancelled, State::Cancelling),
                (end == Some(("Unknown", "ResultUnknown")), State::ResultUnknown),
                (started, State::Running),
                (scheduled, State::Starting),
                (accepted, State::Scheduling),
                (true, State::Resolving),
            ];
            let expected = expected.iter().find(|(holds, _)| *holds).unwrap().1;
            assert_eq!(State::of(deleting, &spec, Some(&status)), expected);
            seen.insert(expected);
        }
    }
    assert_eq!(seen.len(), State::ALL.len(), "each of the ten states is there");
}

#[test]
fn a_reconcile_that_changes_nothing_writes_nothing() {
    let mut moments: Vec<(&str, World)> = Vec::new();
    let mut waiting = World::new(&json!({}));
    waiting.resolution = refused(NotAccepted::NoDefaultClass);
    moments.push(("resolving", waiting));
    let mut refused_for_now = World::new(&json!({}));
    refused_for_now.attempt = Some(later(10_000_000));
    moments.push(("scheduling", refused_for_now));
    moments.push(("starting", World::new(&json!({}))));
    for (name, state) in [("running", State::Running), ("succeeded", State::Succeeded), ("cancelled", State::Cancelled), ("unknown", State::ResultUnknown)] {
        let mut world = World::new(&json!({}));
        world.run();
        match state {
            State::Succeeded => world.exit(0),
            State::Cancelled => world.cancel(),
            State::ResultUnknown => world.own().unwrap().lost = true,
            _ => {}
        }
        world.run();
        assert_eq!(world.state(), state);
        moments.push((name, world));
    }
    for (name, mut world) in moments {
        world.settle();
        world.pass(10);
        world.settle();
        let (writes, actions) = (world.writes, world.actions.clone());
        for _ in 0..100 {
            world.pass(1);
            let late = world.decide();
            world.carry_out(&late, Fault::None);
        }
        assert_eq!(world.writes, writes, "{name}");
        let others = |actions: &std::collections::BTreeMap<Action, u32>| {
            actions.iter().filter(|(action, _)| !matches!(action, Action::Nothing | Action::Acquire)).map(|(_, times)| times).sum::<u32>()
        };
        assert_eq!(others(&world.actions), others(&actions), "{name}: {:?}", world.actions);
    }
}

/// Design of Jobs, §1.28: nothing but a change writes.
#[test]
fn a_successful_job_costs_three_status_writes_at_most() {
    let mut world = World::new(&json!({}));
    world.run();
    world.exit(0);
    world.run();
    assert_eq!(world.writes, 3);
    // Running is often never seen.
    let mut world = World::new(&json!({}));
    world.settle();
    world.node();
    world.exit(0);
    world.run();
    assert_eq!((world.writes, world.state()), (2, State::Succeeded));
    assert!(world.status.unwrap().start_time.is_some());
}

#[test]
fn a_slow_backend_is_told_of_in_between_and_a_fast_one_is_not() {
    let mut world = World::new(&json!({}));
    world.pods_refused = true;
    world.attempt = None;
    world.native = true;
    world.pods_refused = false;
    let late = world.decide();
    world.carry_out(&late, Fault::BeforeAction);
    assert_eq!(world.writes, 0);
    world.pass(2);
    let late = world.decide();
    world.carry_out(&late, Fault::BeforeAction);
    assert_eq!((world.condition(ACCEPTED).unwrap().0, world.condition(SCHEDULED).unwrap()), ("True".into(), ("False".into(), "Pending".into())));
    assert_eq!(world.succeeded(), ("Unknown".into(), "Scheduling".into()));
}

#[test]
fn a_refusal_for_now_is_told_and_waited_out_for_the_class_s_grace() {
    let mut world = World::new(&json!({}));
    world.attempt = Some(later(600));
    world.settle();
    assert_eq!((world.state(), world.condition(SCHEDULED)), (State::Scheduling, Some(("False".into(), "BackendRefuses".into()))));
    assert_eq!(world.condition(PROGRESSING), Some(("False".into(), "PodRejected".into())));
    world.pass(599);
    world.settle();
    assert_eq!(world.state(), State::Scheduling);
    world.pass(1);
    world.settle();
    assert_eq!((world.state(), world.succeeded()), (State::Failed, ("False".into(), "PodRejected".into())));
    assert_eq!(world.condition(PROGRESSING), None, "the end tells it");

    // Without a grace it is tried for ever.
    let mut world = World::new(&json!({}));
    world.attempt = Some(Attempt::Later { reason: NotScheduled::BackendUnavailable, message: "429".into(), give_up: None });
    world.pass(10_000_000);
    world.settle();
    assert_eq!(world.state(), State::Scheduling);
    world.attempt = None;
    world.run();
    assert_eq!(world.state(), State::Running);
}

#[test]
fn another_trouble_has_its_own_time() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.own().unwrap().process = Process::NotBegun(Some(no_image()));
    world.settle();
    world.pass(200);
    let give_up = GiveUp { failure: Failure::ContainerCreateFailed, after: Duration::from_secs(300) };
    world.own().unwrap().process = Process::NotBegun(Some(Wait { give_up: Some(give_up), ..no_image() }));
    world.settle();
    world.pass(200);
    world.settle();
    assert_eq!(world.state(), State::Starting, "400 s in all, 200 s of this one");
    world.pass(100);
    world.run();
    assert_eq!(world.succeeded().1, "ContainerCreateFailed");
}

#[test]
fn a_process_that_begins_after_it_was_given_up_is_stopped() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.own().unwrap().process = Process::NotBegun(Some(no_image()));
    world.settle();
    world.pass(300);
    world.reconcile(Fault::BeforeAction);
    world.own().unwrap().process = Process::NotBegun(None);
    world.node();
    world.run();
    assert_eq!((world.begun, world.succeeded()), (1, ("False".into(), "ImagePullFailed".into())));
}

#[test]
fn the_start_is_clamped_between_what_was_seen_and_now() {
    for (at, earliest, expected) in [
        ("2026-11-29T09:00:00Z", "2026-11-29T09:59:59Z", "2026-11-29T09:59:59Z"),
        ("2026-11-29T11:00:00Z", "2026-11-29T09:59:59Z", "2026-11-29T10:00:00Z"),
        ("2026-11-29T09:59:59.9Z", "2026-11-29T09:59:00Z", "2026-11-29T09:59:59Z"),
        ("1970-01-01T00:00:00Z", "2026-11-29T11:00:00Z", "2026-11-29T10:00:00Z"),
    ] {
        let mut world = World::new(&json!({}));
        world.settle();
        let (mut seen, _) = world.look(false);
        seen.backend.execution = Execution::Running(Started { at: at.parse().unwrap(), earliest: earliest.parse().unwrap() });
        let told = |seconds| decide(world.facts(), &seen, after(world.now, Duration::from_secs(seconds))).status;
        // A clock that is ahead is told of at once; the others after a while.
        let status = told(0).or_else(|| told(2)).unwrap();
        assert_eq!(status.start_time.unwrap().0, expected.parse().unwrap(), "{at}");
    }
}

#[test]
fn a_clock_that_goes_back_ends_no_job_before_its_start() {
    let mut world = World::new(&json!({}));
    world.run();
    let start = world.status.as_ref().unwrap().start_time.clone().unwrap().0;
    world.pass(-3_600);
    world.exit(0);
    world.run();
    assert_eq!(world.status.unwrap().completion_time.unwrap().0, start);
}

#[test]
fn a_stop_by_others_is_a_disruption_or_a_loss_and_keeps_the_true_code() {
    let stopped = |code| Ending::Stopped { code, started: None, message: "evicted".into() };
    for (ending, reason, code) in [
        (stopped(Some(143)), "Disrupted", Some(143)),
        (stopped(Some(0)), "Disrupted", Some(0)),
        (stopped(None), "BackendLost", None),
        (Ending::NeverStarted { failure: Failure::PodRejected, message: "OutOfcpu".into() }, "PodRejected", None),
        (Ending::NeverStarted { failure: Failure::StartFailed, message: "no such file".into() }, "StartFailed", None),
    ] {
        let mut world = World::new(&json!({}));
        world.settle();
        world.own().unwrap().gated = false;
        world.own().unwrap().process = Process::Done(ending);
        world.run();
        assert_eq!((world.succeeded(), world.exit_code()), (("False".into(), reason.into()), code));
        assert!(world.status.unwrap().start_time.is_none());
    }
}

#[test]
fn too_much_memory_is_told_in_the_result() {
    for (code, status, reason) in [(137, "False", "ProcessFailed"), (0, "True", "Completed")] {
        let mut world = World::new(&json!({}));
        world.run();
        world.own().unwrap().process = Process::Done(Ending::Exited { code, oom: true, started: None, message: String::new() });
        world.run();
        assert_eq!(world.succeeded(), (status.into(), reason.into()));
        assert_eq!(world.status.unwrap().result.unwrap().reason.as_deref(), Some("OOMKilled"));
    }
}

#[test]
fn a_job_of_another_controller_is_not_touched() {
    let mut world = World::new(&json!({}));
    world.resolution = Resolution::Foreign;
    world.settle();
    assert_eq!((world.writes, world.finalizer, world.actions.keys().copied().collect::<Vec<_>>()), (0, true, vec![Action::Nothing]));
    // The finalizer that a policy put onto it at its creation is nobody else's to take off.
    world.deleting = true;
    world.settle();
    assert_eq!((world.writes, world.finalizer, world.count(Action::Delete)), (0, false, 0));
}

#[test]
fn a_process_that_ends_soon_is_told_of_in_one_write() {
    let started = |world: &World| world.status.as_ref().unwrap().start_time.as_ref().map(|time| time.0);
    let begun = |extra: &serde_json::Value| {
        let mut world = World::new(extra);
        world.settle();
        world.node();
        let since = world.now;
        world.settle();
        (world, since)
    };
    let (mut world, since) = begun(&json!({}));
    assert_eq!((world.state(), world.writes, world.decide().decision.wake), (State::Starting, 1, Some(after(since, Duration::from_secs(2)))));
    world.pass(1);
    world.exit(0);
    world.settle();
    assert_eq!((world.state(), world.writes, started(&world)), (State::Succeeded, 2, Some(since)), "scheduled, ended");
    // One that goes on.
    let (mut world, since) = begun(&json!({}));
    world.pass(2);
    world.settle();
    assert_eq!((world.state(), world.writes, started(&world)), (State::Running, 2, Some(since)));
    // A deadline is not missed for it, and a stop is told at once.
    let (mut world, since) = begun(&json!({"activeDeadlineSeconds": 1}));
    world.pass(1);
    world.settle();
    assert_eq!((world.condition(STOP_REQUESTED).unwrap().1.as_str(), started(&world)), ("DeadlineExceeded", Some(since)));
    let (mut world, since) = begun(&json!({}));
    world.cancel();
    world.settle();
    assert_eq!((world.condition(STOP_REQUESTED).unwrap().1.as_str(), started(&world)), ("Cancelled", Some(since)));
}

#[test]
fn what_runs_beside_an_ended_process_is_stopped_though_the_job_is_being_deleted() {
    let mut world = World::new(&json!({}));
    world.run();
    world.exit(0);
    world.run();
    world.deleting = true;
    let (seen, _) = world.look(false);
    for (strays, held, expected) in [(true, true, Action::Sweep), (false, true, Action::Settle), (false, false, Action::Delete)] {
        let mut seen = seen.clone();
        (seen.backend.strays, seen.backend.held, seen.backend.leftovers) = (strays, held, true);
        assert_eq!(decide(world.facts(), &seen, world.now).action, expected);
    }
}

#[test]
fn the_finalizer_is_there_before_anything_is_made() {
    let mut world = World::new(&json!({}));
    world.finalizer = false;
    assert_eq!(world.decide(), world.decide());
    world.reconcile(Fault::None);
    assert_eq!((world.finalizer, world.native, world.count(Action::Acquire)), (true, false, 0));
    // Somebody takes it off while the process runs: it is put back.
    world.run();
    world.finalizer = false;
    world.run();
    assert!(world.finalizer);
}

#[test]
fn parameters_that_are_gone_are_waited_for_and_do_not_matter_once_there_is_an_execution() {
    let gone = || Resolution::Gone { adapter: "kubernetes", message: "p does not exist".into() };
    let mut world = World::new(&json!({}));
    world.attempt = Some(later(10_000));
    world.settle();
    world.attempt = None;
    world.resolution = gone();
    world.settle();
    assert_eq!(world.condition(SCHEDULED), Some(("False".into(), "ParametersGone".into())));
    assert_eq!((world.state(), world.native), (State::Scheduling, false));
    world.native = true;
    world.job_controller();
    world.run();
    assert_eq!((world.state(), world.begun), (State::Running, 1), "its Pod had been made");
    world.exit(0);
    world.run();
    assert_eq!(world.state(), State::Succeeded);
}

#[test]
fn what_a_class_no_longer_allows_is_removed_before_it_starts() {
    let mut world = World::new(&json!({}));
    world.reconcile(Fault::AfterAction);
    world.resolution = refused(NotAccepted::ResourcesOutOfRange);
    world.settle();
    assert_eq!((world.state(), world.pods.len(), world.native, world.begun), (State::Resolving, 0, false, 0));
}

#[test]
fn a_pod_that_was_deleted_before_it_was_recorded_is_replaced() {
    let mut world = World::new(&json!({}));
    world.reconcile(Fault::AfterAction);
    world.pods[0].stopping = true;
    world.run();
    assert_eq!((world.state(), world.begun), (State::Running, 1));
    assert_eq!(world.pods[0].id, 2);
}

#[test]
fn a_node_that_comes_back_after_a_confirmed_loss_is_stopped_and_proves_it() {
    let mut world = World::new(&json!({}));
    world.run();
    world.own().unwrap().lost = true;
    world.run();
    world.pass(900);
    world.loss_confirmed = true;
    world.run();
    assert_eq!(world.succeeded(), ("False".into(), "BackendLost".into()));
    let end = world.status.clone().unwrap().completion_time;
    world.delete();
    world.run();
    assert!(!world.gone, "a word is no proof");
    world.own().unwrap().lost = false;
    world.run();
    assert!(world.gone, "{:?}", world.pods);
    assert_eq!((world.status.clone().unwrap().completion_time, world.succeeded().1.as_str()), (end, "BackendLost"));
    assert!(world.count(Action::Stop) >= 1);
}

#[test]
fn the_generation_is_told_in_the_status_and_in_each_condition() {
    let mut world = World::new(&json!({}));
    world.run();
    world.set_ttl(Some(5));
    world.run();
    let status = world.status.unwrap();
    assert_eq!(status.observed_generation, Some(2));
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(2)), "{:?}", status.conditions);
}
