//! The specification's test matrix, row by row.

use serde_json::json;

use super::super::*;
use super::world::*;
use crate::job::api::names::condition::{ACCEPTED, BACKEND_OBSERVED, SCHEDULED, STOP_REQUESTED, SUCCEEDED};
use crate::job::reason::NotAccepted;

fn words(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

pub fn some(status: &str, reason: &str) -> Option<(String, String)> {
    Some(words(status, reason))
}

/// A Job whose process runs.
pub fn running(extra: &serde_json::Value) -> World {
    let mut world = World::new(extra);
    world.run();
    assert_eq!(world.state(), State::Running);
    world
}

/// A Job whose execution exists and has not begun.
fn starting(extra: &serde_json::Value) -> World {
    let mut world = World::new(extra);
    world.settle();
    assert_eq!(world.state(), State::Starting);
    world
}

#[test]
fn normal_create_start_exit_0() {
    let mut world = World::new(&json!({}));
    world.settle();
    assert_eq!((world.condition(ACCEPTED), world.condition(SCHEDULED)), (some("True", "Valid"), some("True", "BackendCreated")));
    world.pass(5);
    let begun = world.now;
    world.run();
    world.pass(7);
    world.exit(0);
    let end = world.now;
    world.run();
    let status = world.status.clone().unwrap();
    assert_eq!(world.succeeded(), words("True", "Completed"));
    assert_eq!((status.start_time.unwrap().0, status.completion_time.unwrap().0, world.exit_code()), (begun, end, Some(0)));
    assert_eq!((world.begun, world.pods.len()), (1, 1), "one Ensure, one process");
    assert_eq!(world.states, [State::Resolving, State::Starting, State::Running, State::Succeeded]);
    assert_eq!(world.writes, 3, "scheduled, started, ended");
}

#[test]
fn normal_main_process_exits_non_zero() {
    let mut world = running(&json!({}));
    world.exit(3);
    world.run();
    assert_eq!((world.succeeded(), world.exit_code()), (words("False", "ProcessFailed"), Some(3)));
    assert_eq!(world.state(), State::Failed);
}

#[test]
fn resolution_job_class_created_later() {
    let mut world = World::new(&json!({}));
    world.resolution = refused(NotAccepted::JobClassNotFound);
    world.settle();
    assert_eq!((world.condition(ACCEPTED), world.succeeded()), (some("False", "JobClassNotFound"), words("Unknown", "Pending")));
    assert_eq!(world.count(Action::Acquire), 0, "nothing is made before the class is there");
    assert_eq!(world.state(), State::Resolving);
    world.resolution = admitted();
    world.run();
    assert_eq!((world.state(), world.begun), (State::Running, 1));
}

#[test]
fn resolution_secret_or_config_map_or_key_created_later() {
    // The node resolves: there is one Pod, which waits for ever, and nothing of any value is told.
    let mut world = starting(&json!({"activeDeadlineSeconds": 9}));
    world.own().unwrap().process = Process::NotBegun(Some(no_secret()));
    world.pass(100_000);
    world.run();
    assert_eq!((world.state(), world.succeeded()), (State::Starting, words("Unknown", "WaitingForReference")));
    assert_eq!(world.status.as_ref().unwrap().start_time, None, "no start, so no deadline");
    world.own().unwrap().process = Process::NotBegun(None);
    world.run();
    assert_eq!((world.state(), world.begun), (State::Running, 1));

    // The controller resolves: the Job is not accepted before.
    let mut world = World::new(&json!({}));
    world.resolution = refused(NotAccepted::SecretKeyNotFound);
    world.settle();
    assert_eq!((world.state(), world.condition(ACCEPTED)), (State::Resolving, some("False", "SecretKeyNotFound")));
    world.resolution = admitted();
    world.run();
    assert_eq!((world.state(), world.begun), (State::Running, 1));
}

#[test]
fn backend_image_pull_or_provisioning_failure() {
    let mut world = starting(&json!({}));
    world.own().unwrap().process = Process::NotBegun(Some(no_image()));
    world.run();
    assert_eq!((world.state(), world.succeeded()), (State::Starting, words("Unknown", "WaitingForImage")));
    world.pass(299);
    world.run();
    assert_eq!(world.state(), State::Starting, "within the grace");
    world.pass(1);
    world.run();
    assert_eq!((world.state(), world.succeeded()), (State::Failed, words("False", "ImagePullFailed")));
    let status = world.status.clone().unwrap();
    let told = status.conditions.iter().find(|condition| condition.type_ == SUCCEEDED).unwrap();
    assert_eq!(told.message, "not found", "the cause, not how the Pod went");
    assert_eq!((status.start_time, status.completion_time.map(|time| time.0), world.begun), (None, Some(world.now), 0));

    // A backend that refuses for good, before there is an execution.
    let mut world = World::new(&json!({}));
    world.attempt = Some(Attempt::Refused { failure: crate::job::reason::Failure::BackendRejected, message: "no".into() });
    world.settle();
    assert_eq!((world.state(), world.succeeded()), (State::Failed, words("False", "BackendRejected")));
    assert_eq!((world.condition(ACCEPTED), world.condition(SCHEDULED)), (some("True", "Valid"), None));

    // An image that comes in time.
    let mut world = starting(&json!({}));
    world.own().unwrap().process = Process::NotBegun(Some(no_image()));
    world.run();
    world.pass(200);
    world.own().unwrap().process = Process::NotBegun(None);
    world.run();
    assert_eq!(world.state(), State::Running);
}

#[test]
fn idempotency_crash_after_ensure_before_the_status_is_written() {
    let mut world = World::new(&json!({}));
    world.reconcile(Fault::AfterAction);
    assert!(world.native && world.pods.len() == 1 && world.status.is_none());
    let first = world.pods[0].id;
    // Another process, with nothing in memory: it decides to record what it finds, and dies.
    world.reconcile(Fault::BeforeWrite);
    world.run();
    assert_eq!((world.pods.len(), world.pods[0].id, world.begun, world.state()), (1, first, 1, State::Running));
}

#[test]
fn idempotency_repeated_reconciles_and_events() {
    let mut world = running(&json!({}));
    world.exit(0);
    world.run();
    let (status, writes) = (world.status.clone(), world.writes);
    for _ in 0..100 {
        world.pass(1);
        world.reconcile(Fault::None);
    }
    assert_eq!((world.status.clone(), world.writes, world.begun), (status, writes, 1));
}

#[test]
fn recovery_controller_restarts_in_every_state_that_is_not_the_end() {
    // Every reconcile dies at each of its points, whatever the state; then it is repeated.
    for fault in [Fault::BeforeWrite, Fault::BeforeAction, Fault::AfterAction] {
        for (extra, end) in [(json!({}), State::Succeeded), (json!({"desiredState": "Cancelled"}), State::Cancelled)] {
            let mut world = World::new(&extra);
            for _ in 0..30 {
                world.reconcile(fault);
                world.reconcile(Fault::None);
                world.node();
            }
            world.exit(0);
            world.reconcile(fault);
            world.run();
            assert_eq!(world.state(), end, "{fault:?}");
            assert!(world.begun <= 1, "{fault:?}");
        }
    }
}

#[test]
fn unknown_ensure_or_observe_timed_out() {
    let mut world = running(&json!({"ttlSecondsAfterFinished": 0}));
    let since = world.now;
    world.unreachable = Some((1, since));
    world.pass(60);
    world.run();
    assert_eq!(world.state(), State::Running, "one failure is none");
    world.unreachable = Some((3, since));
    world.run();
    assert_eq!((world.state(), world.succeeded()), (State::ResultUnknown, words("Unknown", "ResultUnknown")));
    assert_eq!(world.condition(BACKEND_OBSERVED), some("False", "BackendUnreachable"));
    world.pass(1_000_000);
    world.run();
    assert_eq!(world.status.as_ref().unwrap().completion_time, None);
    assert_eq!((world.count(Action::Expire), world.begun, world.state()), (0, 1, State::ResultUnknown));

    // The same of an Ensure whose request starts the process.
    let mut world = World::new(&json!({"ttlSecondsAfterFinished": 0}));
    world.attempt = Some(Attempt::Ambiguous { message: "no answer".into() });
    world.settle();
    assert_eq!((world.state(), world.condition(BACKEND_OBSERVED)), (State::ResultUnknown, some("False", "StartUnconfirmed")));
    assert_eq!((world.status.as_ref().unwrap().completion_time.clone(), world.count(Action::Acquire)), (None, 0), "no second Ensure");
}

#[test]
fn unknown_backend_recovers_and_the_task_is_found_running() {
    let mut world = running(&json!({}));
    world.own().unwrap().lost = true;
    world.run();
    assert_eq!((world.state(), world.condition(BACKEND_OBSERVED)), (State::ResultUnknown, some("False", "NodeLost")));
    let start = world.status.as_ref().unwrap().start_time.clone();
    world.pass(600);
    world.own().unwrap().lost = false;
    world.run();
    assert_eq!((world.state(), world.succeeded()), (State::Running, words("Unknown", "Running")));
    assert_eq!((world.condition(BACKEND_OBSERVED), world.status.as_ref().unwrap().start_time.clone()), (some("True", "Observed"), start));
}

#[test]
fn unknown_administrator_confirms_the_loss() {
    let mut world = running(&json!({"ttlSecondsAfterFinished": 5}));
    world.vanish();
    world.run();
    assert_eq!((world.state(), world.condition(BACKEND_OBSERVED)), (State::ResultUnknown, some("False", "PodVanished")));
    assert_eq!(world.begun, 1, "the replacement never runs");
    world.loss_confirmed = true;
    world.pass(899);
    world.run();
    assert_eq!(world.state(), State::ResultUnknown, "too soon");
    world.loss_guarded = false;
    world.pass(10);
    world.run();
    assert_eq!(world.state(), State::ResultUnknown, "an annotation that nobody guards says nothing");
    world.loss_guarded = true;
    world.run();
    assert_eq!((world.state(), world.succeeded(), world.exit_code()), (State::Failed, words("False", "BackendLost"), None));
    // It is a word, not a proof: the finalizer stays until there is one, or force.
    world.pass(5);
    world.run();
    assert!(world.deleting && !world.gone && world.finalizer);

    // While the backend says that it runs there is nothing to confirm.
    let mut world = running(&json!({}));
    world.loss_confirmed = true;
    world.pass(100_000);
    world.run();
    assert_eq!(world.state(), State::Running);
}

#[test]
fn cancel_while_resolving_scheduling_starting_and_running() {
    let mut world = World::new(&json!({}));
    world.resolution = refused(NotAccepted::NoDefaultClass);
    world.settle();
    world.cancel();
    world.settle();
    assert_eq!((world.state(), world.succeeded(), world.begun), (State::Cancelled, words("False", "Cancelled"), 0));

    let mut world = World::new(&json!({}));
    world.reconcile(Fault::AfterAction);
    world.cancel();
    assert_eq!(world.state(), State::Cancelling);
    world.run();
    assert_eq!((world.state(), world.begun, world.pods.len(), world.native), (State::Cancelled, 0, 0, false), "what was made is removed");
    assert_eq!(world.status.as_ref().unwrap().execution, None);

    let mut world = starting(&json!({}));
    world.cancel();
    world.settle();
    assert_eq!(world.state(), State::Cancelling, "the stop is not confirmed");
    assert_eq!(world.condition(STOP_REQUESTED), some("True", "Cancelled"));
    world.node();
    world.settle();
    assert_eq!((world.state(), world.begun), (State::Cancelled, 0));

    let mut world = running(&json!({}));
    world.cancel();
    world.settle();
    assert_eq!((world.state(), world.succeeded()), (State::Cancelling, words("Unknown", "Running")), "a requested stop keeps the last reason");
    world.node();
    world.settle();
    assert_eq!((world.state(), world.succeeded(), world.exit_code()), (State::Cancelled, words("False", "Cancelled"), Some(143)));
}

#[test]
fn race_cancel_and_success() {
    let mut world = running(&json!({}));
    world.exit(0);
    world.cancel();
    world.run();
    assert_eq!((world.state(), world.succeeded()), (State::Succeeded, words("True", "Completed")));

    // The process ends by itself between the stop's record and the stop.
    let mut world = running(&json!({}));
    world.cancel();
    world.reconcile(Fault::BeforeAction);
    assert_eq!(world.condition(STOP_REQUESTED), some("True", "Cancelled"));
    world.exit(0);
    world.run();
    assert_eq!(world.succeeded(), words("True", "Completed"));

    let mut world = running(&json!({}));
    world.cancel();
    world.reconcile(Fault::BeforeAction);
    world.exit(9);
    world.run();
    assert_eq!((world.succeeded(), world.exit_code()), (words("False", "ProcessFailed"), Some(9)));
}

#[test]
fn timeout_active_deadline() {
    let mut world = running(&json!({"activeDeadlineSeconds": 60}));
    world.pass(57);
    world.settle();
    assert_eq!(world.condition(STOP_REQUESTED), None);
    world.pass(1);
    world.settle();
    assert_eq!((world.condition(STOP_REQUESTED), world.state()), (some("True", "DeadlineExceeded"), State::Running));
    // A cancel afterwards comes too late to be the reason.
    world.cancel();
    world.settle();
    assert_eq!(world.state(), State::Cancelling);
    world.node();
    world.settle();
    assert_eq!((world.state(), world.succeeded()), (State::Failed, words("False", "DeadlineExceeded")));
}

#[test]
fn delete_in_every_state_that_is_not_the_end() {
    let resolving = || {
        let mut world = World::new(&json!({}));
        world.resolution = refused(NotAccepted::NoDefaultClass);
        world.settle();
        world
    };
    let scheduling = || {
        let mut world = World::new(&json!({}));
        world.reconcile(Fault::AfterAction);
        world
    };
    let cancelling = || {
        let mut world = running(&json!({}));
        world.cancel();
        world.settle();
        world
    };
    let unknown = || {
        let mut world = running(&json!({}));
        world.own().unwrap().lost = true;
        world.run();
        world
    };
    for (name, mut world) in [
        ("resolving", resolving()),
        ("scheduling", scheduling()),
        ("starting", starting(&json!({}))),
        ("running", running(&json!({}))),
        ("cancelling", cancelling()),
    ] {
        world.delete();
        let could_run = world.may_run();
        assert_eq!(world.state(), State::Deleting);
        world.settle();
        assert_eq!(world.gone, !could_run && world.pods.is_empty(), "{name}: it stays while its process may run");
        world.run();
        assert!(world.gone && world.pods.is_empty() && !world.native, "{name}");
    }
    let mut world = unknown();
    world.delete();
    world.run();
    assert!(!world.gone && world.finalizer, "nothing is proven");
    world.own().unwrap().lost = false;
    world.run();
    assert!(world.gone);
}

#[test]
fn delete_while_the_backend_is_unreachable() {
    let mut world = running(&json!({}));
    world.delete();
    world.unreachable = Some((9, world.created));
    world.pass(3_600);
    for _ in 0..20 {
        world.reconcile(Fault::None);
    }
    assert!(!world.gone && world.finalizer);
    assert_eq!(world.succeeded(), words("Unknown", "ResultUnknown"));
    world.unreachable = None;
    world.run();
    assert!(world.gone);
}

#[test]
fn ttl_of_each_end() {
    for (name, end) in [("succeeded", 0), ("failed", 3), ("cancelled", -1)] {
        let mut world = running(&json!({"ttlSecondsAfterFinished": 30}));
        if end < 0 {
            world.cancel();
        } else {
            world.exit(end);
        }
        world.run();
        assert!(world.state().is_terminal(), "{name}");
        world.pass(29);
        world.run();
        assert!(!world.deleting, "{name}: not before its time");
        world.pass(1);
        world.run();
        assert!(world.gone, "{name}");
        assert_eq!(world.count(Action::Expire), 1, "{name}");
    }
}

#[test]
fn ttl_controller_restarts_while_it_waits() {
    let mut world = running(&json!({"ttlSecondsAfterFinished": 30}));
    world.exit(0);
    world.run();
    let late = world.decide();
    // Whoever starts now finds the same moment in the status.
    let (seen, _) = world.look(false);
    let decision = decide(world.facts(), &seen, world.now);
    assert_eq!(decision.wake.map(|wake| wake.as_second()), Some(world.now.as_second() + 30));
    world.pass(31);
    // The old process comes late with its decision to do nothing.
    world.carry_out(&late, Fault::None);
    world.run();
    assert_eq!((world.gone, world.count(Action::Expire)), (true, 1));
}

#[test]
fn ttl_extended_near_its_end() {
    let mut world = running(&json!({"ttlSecondsAfterFinished": 30}));
    world.exit(0);
    world.run();
    world.pass(30);
    let (seen, _) = world.look(false);
    assert_eq!(decide(world.facts(), &seen, world.now).action, Action::Confirm, "read again before it is deleted");
    world.set_ttl(Some(60));
    world.run();
    assert!(!world.deleting);
    assert_eq!(world.status.as_ref().unwrap().observed_generation, Some(2));
    world.set_ttl(None);
    world.pass(1_000_000);
    world.run();
    assert!(!world.deleting, "without a time to live it stays");
    world.set_ttl(Some(0));
    world.run();
    assert!(world.gone);
}

#[test]
fn isolation_a_namesake_is_another_job() {
    // What the old process decided about the old Job does nothing to the new one: versions differ, and its Pod is not the recorded one.
    let mut old = starting(&json!({}));
    old.resolution = admitted();
    let mut ready = World::new(&json!({}));
    ready.reconcile(Fault::AfterAction);
    let late = ready.decide();
    let mut new = World::new(&json!({}));
    new.version = 100;
    assert!(!new.carry_out(&late, Fault::None));
    assert_eq!((new.status.clone(), new.begun), (None, 0));
    // What belongs to no execution of this Job is swept.
    let mut world = running(&json!({}));
    let mut stray = world.pods[0].clone();
    (stray.id, stray.gated) = (99, true);
    world.pods.push(stray);
    world.settle();
    assert_eq!((world.pods.len(), world.count(Action::Sweep)), (1, 1));
}

#[test]
fn references_are_added_and_stay() {
    use crate::job::api::names::reference;
    use crate::job::api::status::Reference;
    let mut world = running(&json!({}));
    let with = |id: &str| vec![Reference { type_: reference::COMMAND.into(), id: id.into() }];
    for (id, expected) in [("c-1", "c-1"), ("c-2", "c-1")] {
        let (mut seen, _) = world.look(false);
        seen.backend.references.extend(with(id));
        if let Some(status) = decide(world.facts(), &seen, world.now).status {
            world.status = Some(status);
        }
        let execution = world.status.as_ref().unwrap().execution.clone().unwrap();
        assert_eq!((execution.id(reference::COMMAND), execution.references.len()), (Some(expected), 3));
    }
}
