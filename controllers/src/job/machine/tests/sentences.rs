//! Sentences of the specification that its matrix does not ask for; `design/job-specification.md` says which.

use serde_json::json;

use super::super::*;
use super::matrix::{running, some};
use super::world::*;
use crate::job::api::names::condition::STOP_REQUESTED;
use crate::job::reason::NotAccepted;

/// "TTL deletes only the three ends that have completionTime."
#[test]
fn no_state_but_an_end_is_deleted_after_a_time_to_live() {
    let fresh = || World::new(&json!({"ttlSecondsAfterFinished": 0}));
    let mut resolving = fresh();
    resolving.resolution = refused(NotAccepted::NoDefaultClass);
    let mut scheduling = fresh();
    scheduling.attempt = Some(later(1_000_000_000));
    let mut cancelling = running(&json!({"ttlSecondsAfterFinished": 0}));
    cancelling.cancel();
    let mut unknown = running(&json!({"ttlSecondsAfterFinished": 0}));
    unknown.own().unwrap().lost = true;
    let worlds = [
        (State::Resolving, resolving),
        (State::Scheduling, scheduling),
        (State::Starting, fresh()),
        (State::Running, running(&json!({"ttlSecondsAfterFinished": 0}))),
        (State::Cancelling, cancelling),
        (State::ResultUnknown, unknown),
    ];
    for (state, mut world) in worlds {
        for _ in 0..10 {
            world.settle();
            assert_eq!(world.state(), state);
            world.pass(100_000);
        }
        assert_eq!((world.count(Action::Expire), world.deleting), (0, false), "{state:?}");
    }
}

/// "When it is over the controller asks for a stop": also where nobody can say whether the process still runs.
#[test]
fn a_deadline_passes_while_nothing_is_known() {
    let mut world = running(&json!({"activeDeadlineSeconds": 60}));
    world.own().unwrap().lost = true;
    world.settle();
    world.pass(57);
    world.settle();
    assert_eq!((world.state(), world.condition(STOP_REQUESTED)), (State::ResultUnknown, None));
    world.pass(1);
    world.settle();
    assert_eq!((world.state(), world.condition(STOP_REQUESTED)), (State::ResultUnknown, some("True", "DeadlineExceeded")));
    assert!(world.own().unwrap().stopping && world.status.as_ref().unwrap().completion_time.is_none(), "asked for, and not confirmed");
    world.own().unwrap().lost = false;
    world.run();
    assert_eq!(Some(world.succeeded()), some("False", "DeadlineExceeded"));
}

/// "BackendLost only after an administrator's confirmation": of this loss, not of one that was none.
#[test]
fn a_confirmation_that_a_recovery_has_overtaken_counts_for_no_later_loss() {
    let mut world = running(&json!({}));
    let lost = |world: &mut World, lost: bool| {
        world.own().unwrap().lost = lost;
        world.settle();
    };
    lost(&mut world, true);
    world.loss_confirmed = true;
    world.pass(60);
    lost(&mut world, false);
    assert_eq!((world.state(), world.loss_confirmed, world.count(Action::DropConfirmation)), (State::Running, false, 1));
    world.pass(100_000);
    lost(&mut world, true);
    world.pass(900);
    world.settle();
    assert_eq!(world.state(), State::ResultUnknown);
    // Confirmed again, it counts.
    world.loss_confirmed = true;
    world.settle();
    assert_eq!(Some(world.succeeded()), some("False", "BackendLost"));
}

/// A deadline is what a Job is stopped for: whoever ended by itself before somebody looked keeps its own end.
#[test]
fn a_process_that_ended_by_itself_past_its_deadline_keeps_its_end() {
    for (code, status, reason) in [(0, "True", "Completed"), (3, "False", "ProcessFailed")] {
        let mut world = running(&json!({"activeDeadlineSeconds": 60}));
        world.pass(100);
        world.exit(code);
        world.run();
        assert_eq!((Some(world.succeeded()), world.exit_code()), (some(status, reason), Some(code)));
    }
}

/// "Cancelled only once it is confirmed that nothing goes on": a confirmed loss confirms nothing of the kind.
#[test]
fn a_cancelled_job_whose_loss_is_confirmed_is_lost_and_not_cancelled() {
    let mut world = running(&json!({}));
    world.own().unwrap().lost = true;
    world.settle();
    world.cancel();
    world.pass(1_000_000);
    world.settle();
    assert_eq!((world.state(), Some(world.succeeded())), (State::Cancelling, some("Unknown", "ResultUnknown")));
    world.loss_confirmed = true;
    world.settle();
    assert_eq!((world.state(), Some(world.succeeded())), (State::Failed, some("False", "BackendLost")));
}

/// "Errors of a reconcile and their back-off change no result."
#[test]
fn errors_and_retries_change_no_result() {
    let mut world = World::new(&json!({}));
    for round in 0..20 {
        world.attempt = Some(later(1_000));
        world.reconcile([Fault::None, Fault::BeforeWrite, Fault::BeforeAction][round % 3]);
        world.pass(10);
    }
    assert_eq!((world.state(), Some(world.succeeded())), (State::Scheduling, some("Unknown", "Scheduling")));
    world.attempt = None;
    world.run();
    let since = world.now;
    for failures in 1..20 {
        world.unreachable = Some((failures, since));
        world.reconcile(Fault::BeforeWrite);
        world.pass(10);
    }
    assert_eq!((world.state(), world.begun), (State::Running, 1), "nothing was written");
    world.unreachable = None;
    world.exit(0);
    world.run();
    assert_eq!(Some(world.succeeded()), some("True", "Completed"));
}
