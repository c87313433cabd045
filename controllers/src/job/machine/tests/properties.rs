//! The invariants of the specification, over random histories: what users do, what backends do, writers that crash or come late, clocks that jump.
//!
//! [`World`](super::world) asserts at each write that the API server's rules take it, that the move is a drawn one, that no end is told while the
//! process may run, that nothing is made or started after a cancel, that the finalizer goes last, and that no Job is deleted before its time.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;

use super::super::*;
use super::world::*;
use crate::job::reason::{Failure, NotAccepted};
use crate::job::resolve::Resolution;

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    Reconcile(Fault),
    /// A process decides, and carries it out at the next `Late`, whatever has happened since.
    Decide,
    Late(Fault),
    Cancel,
    Delete,
    Ttl(Option<i32>),
    ConfirmLoss,
    Guard(bool),
    Node,
    Exit(i32),
    Wait(u8),
    NodeLost(bool),
    Vanish,
    /// Somebody else deletes or evicts the Pod.
    StopByOthers,
    /// Somebody takes the finalizer off.
    NoFinalizer,
    Unreachable(bool),
    Attempt(u8),
    Class(u8),
    PodsRefused(bool),
    JobController,
    Clock(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let fault = || prop_oneof![4 => Just(Fault::None), 1 => Just(Fault::BeforeWrite), 1 => Just(Fault::BeforeAction), 1 => Just(Fault::AfterAction)];
    prop_oneof![
        12 => fault().prop_map(Event::Reconcile),
        2 => Just(Event::Decide),
        2 => fault().prop_map(Event::Late),
        1 => Just(Event::Cancel),
        1 => Just(Event::Delete),
        1 => prop_oneof![Just(None), (0..100_i32).prop_map(Some)].prop_map(Event::Ttl),
        1 => Just(Event::ConfirmLoss),
        1 => any::<bool>().prop_map(Event::Guard),
        5 => Just(Event::Node),
        2 => prop_oneof![Just(0), 1..200_i32].prop_map(Event::Exit),
        1 => (0..3_u8).prop_map(Event::Wait),
        2 => any::<bool>().prop_map(Event::NodeLost),
        1 => Just(Event::Vanish),
        1 => Just(Event::StopByOthers),
        1 => Just(Event::NoFinalizer),
        1 => any::<bool>().prop_map(Event::Unreachable),
        1 => (0..5_u8).prop_map(Event::Attempt),
        2 => (0..4_u8).prop_map(Event::Class),
        1 => any::<bool>().prop_map(Event::PodsRefused),
        2 => Just(Event::JobController),
        4 => prop_oneof![3 => 0..60_i64, 1 => 0..2_000_i64, 1 => -100..0_i64].prop_map(Event::Clock),
    ]
}

fn history() -> impl Strategy<Value = (bool, Option<i64>, Option<i32>, Vec<Event>)> {
    (any::<bool>(), prop::option::of(1..100_i64), prop::option::of(0..100_i32), prop::collection::vec(event(), 1..80))
}

struct Play {
    world: World,
    late: Option<Late>,
    /// Moves that were seen between two looks, one write or one act of a user apart.
    moves: BTreeSet<(State, State)>,
}

impl Play {
    fn new(finalizer: bool, deadline: Option<i64>, ttl: Option<i32>) -> Self {
        let mut extra = json!({});
        if let Some(seconds) = deadline {
            extra["activeDeadlineSeconds"] = json!(seconds);
        }
        if let Some(seconds) = ttl {
            extra["ttlSecondsAfterFinished"] = json!(seconds);
        }
        let mut world = World::new(&extra);
        world.finalizer = finalizer;
        Self { world, late: None, moves: BTreeSet::new() }
    }

    fn happen(&mut self, event: &Event) {
        let world = &mut self.world;
        let was = (world.state(), world.status.clone());
        if world.gone {
            return;
        }
        match event {
            Event::Reconcile(fault) => {
                world.reconcile(*fault);
            }
            Event::Decide => self.late = Some(world.decide()),
            Event::Late(fault) => {
                if let Some(late) = self.late.take() {
                    world.carry_out(&late, *fault);
                }
            }
            Event::Cancel => world.cancel(),
            Event::Delete => world.delete(),
            Event::Ttl(seconds) => world.set_ttl(*seconds),
            Event::ConfirmLoss => {
                // The policy lets it pass only then.
                if world.state() == State::ResultUnknown && world.loss_guarded {
                    world.version += u64::from(!world.loss_confirmed);
                    world.loss_confirmed = true;
                }
            }
            Event::Guard(on) => world.loss_guarded = *on,
            Event::Node => world.node(),
            Event::Exit(code) => world.exit(*code),
            Event::Wait(kind) => {
                let wait = [None, Some(no_image()), Some(no_secret())][usize::from(*kind)].clone();
                for pod in world.pods.iter_mut().filter(|pod| matches!(pod.process, Process::NotBegun(_)) && !pod.gated) {
                    pod.process = Process::NotBegun(wait.clone());
                }
            }
            Event::NodeLost(lost) => world.pods.iter_mut().filter(|pod| !pod.gated).for_each(|pod| pod.lost = *lost),
            Event::Vanish => world.vanish(),
            Event::StopByOthers => world.pods.iter_mut().for_each(|pod| pod.stopping = true),
            Event::NoFinalizer => {
                world.finalizer = false;
                world.version += 1;
                world.gone = world.deleting;
            }
            Event::Unreachable(on) => world.unreachable = on.then_some((3, world.now)),
            Event::Attempt(kind) => {
                world.attempt = match kind {
                    0 => Some(later(60)),
                    1 => Some(Attempt::Refused { failure: Failure::BackendRejected, message: "422".into() }),
                    2 => Some(Attempt::Ambiguous { message: "no answer".into() }),
                    _ => None,
                }
            }
            Event::Class(kind) => {
                world.resolution = match kind {
                    0 => refused(NotAccepted::JobClassNotFound),
                    1 if world.status.as_ref().is_some_and(|status| status.resolved_job_class.is_some()) => {
                        Resolution::Gone { adapter: "kubernetes", message: "gone".into() }
                    }
                    _ => admitted(),
                }
            }
            Event::PodsRefused(on) => world.pods_refused = *on,
            Event::JobController => {
                world.job_controller();
            }
            Event::Clock(seconds) => world.pass(*seconds),
        }
        self.check(was);
    }

    /// What holds between any two looks.
    fn check(&mut self, (was, old): (State, Option<JobStatusOf>)) {
        let world = &mut self.world;
        if world.gone {
            return;
        }
        let is = world.state();
        if was != is {
            self.moves.insert((was, is));
        }
        assert!(world.begun <= 1, "begun {} times", world.begun);
        let Some(new) = &world.status else {
            assert_eq!(old, None, "status is gone");
            return;
        };
        assert_eq!(new.completion_time.is_some(), State::of(false, &world.spec, world.status.as_ref()).is_terminal());
        if let (Some(start), Some(end)) = (&new.start_time, &new.completion_time) {
            assert!(start.0 <= end.0);
        }
        if let Some(old) = old {
            assert!(old.start_time.is_none() || old.start_time == new.start_time);
            assert!(old.completion_time.is_none() || (&old.completion_time, &old.result) == (&new.completion_time, &new.result));
            if let Some(execution) = &old.execution {
                assert!(execution.references.iter().all(|reference| new.execution.as_ref().is_some_and(|new| new.references.contains(reference))));
            }
        }
        // A decision that was carried out is not made again.
        let first = world.decide();
        if let Some(status) = &first.decision.status {
            let again = decide(JobFacts { status: Some(status), ..world.facts() }, &first.seen, world.now);
            assert_eq!(again.status, None, "the same observation writes twice: {first:?}");
        }
    }

    /// The world calms down: nodes are back, the backend answers, the class is there, and the clock goes on.
    fn calm(&mut self) {
        let world = &mut self.world;
        (world.attempt, world.unreachable, world.pods_refused, world.loss_guarded) = (None, None, false, true);
        world.resolution = admitted();
        for pod in &mut world.pods {
            pod.lost = false;
            if matches!(pod.process, Process::NotBegun(_)) {
                pod.process = Process::NotBegun(None);
            }
        }
        for _ in 0..12 {
            world.run();
            world.exit(0);
            world.run();
            world.pass(120);
        }
        world.run();
        if world.gone {
            return;
        }
        let vanished = world.status.as_ref().is_some_and(|status| status.execution.is_some()) && world.own().is_none();
        match world.state() {
            State::Succeeded | State::Failed | State::Cancelled => {
                assert_eq!(world.spec.ttl_seconds_after_finished, None, "it is over and should be gone");
                assert!(!world.may_run());
            }
            // Only a Pod that was removed by force leaves a question open; not even its finalizer goes then.
            State::ResultUnknown | State::Cancelling | State::Deleting => assert!(vanished, "{:?} {:?}", world.status, world.pods),
            other => panic!("still {other:?}: {:?} {:?}", world.status, world.pods),
        }
    }
}

/// 3,000 histories, or PROPTEST_CASES of them; none is kept in a file.
fn config() -> Config {
    let given = std::env::var_os("PROPTEST_CASES").is_some();
    let usual = Config::default();
    Config { cases: if given { usual.cases } else { 3_000 }, failure_persistence: None, ..usual }
}

type JobStatusOf = crate::job::api::status::JobStatus;

fn play(finalizer: bool, deadline: Option<i64>, ttl: Option<i32>, events: &[Event]) -> Play {
    let mut play = Play::new(finalizer, deadline, ttl);
    events.iter().for_each(|event| play.happen(event));
    play.calm();
    play
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_history_keeps_the_invariants((finalizer, deadline, ttl, events) in history()) {
        play(finalizer, deadline, ttl, &events);
    }
}

/// The histories are rich enough: each drawn move is made, and no other.
#[test]
fn every_drawn_move_is_made_by_some_history() {
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut made = BTreeSet::new();
    for _ in 0..6_000 {
        let (finalizer, deadline, ttl, events) = history().new_tree(&mut runner).unwrap().current();
        made.extend(play(finalizer, deadline, ttl, &events).moves);
    }
    for (from, to) in &made {
        assert!(allowed(*from, *to), "{from:?} to {to:?} is not drawn");
    }
    let missing: Vec<_> = TRANSITIONS.iter().filter(|transition| !made.contains(&(transition.from, transition.to))).collect();
    assert!(missing.is_empty(), "drawn and never made: {missing:#?}");
}
