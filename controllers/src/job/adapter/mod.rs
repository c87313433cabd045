//! What an execution backend must be able to do: Ensure, Observe, Cancel, Delete (specification, "Adapter contract"; ADR 0053).
//!
//! An adapter never writes to a Job, decides nothing, and remembers nothing that a restart may not lose. Every operation may be repeated.

pub mod kubernetes;
pub mod opensandbox;

use std::sync::Arc;
use std::time::Duration;

use berth_runtime::ObjectKey;
use berth_runtime::apiclient::CallError;
use berth_runtime::lease::NotLeader;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::api::JobClass;
use super::api::spec::JobSpec;
use super::api::status::Reference;
use super::machine::{Attempt, Backend, after};
use super::reason::{NotAccepted, Readiness};
use super::resolve::Admission;

/// The Job that an operation is about.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Namespace and name.
    pub key: &'a ObjectKey,
    /// `metadata.uid`: the identity of the execution.
    pub uid: &'a str,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// The spec.
    pub spec: &'a JobSpec,
    /// The references on record; empty before the execution is.
    pub recorded: &'a [Reference],
    /// The Job's end is on record and proven: nothing is decided any more on what a watch does not show.
    pub ended: bool,
    /// The leader's term in which this was decided: nothing is sent in another.
    pub term: u64,
}

/// How fresh an observation must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// What a watch has brought is enough.
    Cached,
    /// Asked now, of a quorum.
    Quorum,
}

/// How much Delete removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What is not the recorded execution.
    Strays,
    /// What was held for the end, which is stored now.
    Held,
    /// Everything of the Job's; but nothing while anything of it may run.
    Everything,
    /// Everything, running or not: the Job itself is gone.
    Orphaned,
}

/// How soon what a Job refers to, and is not there, is looked for again: after a tenth of the Job's age, within these bounds.
const MISSING_AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(120));

/// When to look again for what a Job of that age waits for. Nobody watches Secrets, so that each look is a request for each Job that waits.
pub fn missing_again(created: Timestamp, now: Timestamp) -> Timestamp {
    let (least, most) = MISSING_AGAIN;
    let age = Duration::try_from(now.duration_since(created)).unwrap_or_default();
    after(now, (age / 10).clamp(least, most))
}

/// An operation that could not be carried out. None of them may be taken for an answer about the execution.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// We do not lead, or not in that term.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Reason of the note that a process was begun a second time.
pub const NOTE_DUPLICATE: &str = "DuplicateExecution";

/// What an adapter sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The execution and what belongs to it.
    pub backend: Backend,
    /// Why there is none yet, if the backend has said so since.
    pub attempt: Option<Attempt>,
    /// Things that happened and change nothing, as Events for people: reason and note.
    pub notes: Vec<(&'static str, String)>,
    /// When to look again though nothing was told.
    pub look_again: Option<Timestamp>,
}

/// An execution backend.
pub trait Adapter: Send + Sync + 'static {
    /// As `status.execution.adapter` has it.
    fn name(&self) -> &'static str;

    /// `spec.controllerName` of the classes whose Jobs it executes.
    fn controller_name(&self) -> &'static str;

    /// UIDs of Jobs that had this name and still have something here, `live` apart: as far as that is known without asking.
    fn orphans(&self, key: &ObjectKey, live: Option<&str>) -> Vec<String>;

    /// What keeps a Job from being accepted that its class allows: something that it refers to and that this adapter must read. Asked again while there is.
    fn check<'a>(&'a self, _job: Target<'a>) -> BoxFuture<'a, Result<Option<(NotAccepted, String)>, OperationError>> {
        futures::future::ready(Ok(None)).boxed()
    }

    /// Whether the backend of a class answers; None while that is not known.
    fn readiness(&self, class: &JobClass) -> Option<(Readiness, String)>;

    /// What goes on beside Jobs, until `stop`.
    fn run(&self, _stop: CancellationToken) -> BoxFuture<'_, ()> {
        futures::future::ready(()).boxed()
    }

    /// Ensure. Without references on record: makes, or finds by the Job's UID, an execution that can't run yet. With: starts exactly that one;
    /// `admission` may be None then, if the class's parameters are gone.
    ///
    /// Ok(None) says nothing but that it was asked; [`observe`](Adapter::observe) tells. Ok(Some) says why there is none.
    fn ensure<'a>(&'a self, job: Target<'a>, admission: Option<&'a Admission>) -> BoxFuture<'a, Result<Option<Attempt>, OperationError>>;

    /// Observe. `admission` gives the class's graces; None if the class's parameters are gone.
    fn observe<'a>(&'a self, job: Target<'a>, admission: Option<&'a Admission>, freshness: Freshness) -> BoxFuture<'a, Result<Seen, OperationError>>;

    /// Cancel: asks for a stop of the execution.
    fn cancel<'a>(&'a self, job: Target<'a>) -> BoxFuture<'a, Result<(), OperationError>>;

    /// Delete.
    fn delete<'a>(&'a self, job: Target<'a>, extent: Extent) -> BoxFuture<'a, Result<(), OperationError>>;
}

/// The adapters of a process, one for each controllerName.
#[derive(Clone)]
pub struct Adapters(Vec<Arc<dyn Adapter>>);

impl Adapters {
    /// These.
    pub fn new(adapters: Vec<Arc<dyn Adapter>>) -> Self {
        Self(adapters)
    }

    /// Every one.
    pub fn all(&self) -> impl Iterator<Item = &dyn Adapter> {
        self.0.iter().map(|adapter| &**adapter)
    }

    /// The one for classes of that controllerName; None if they are another process's.
    pub fn of(&self, controller_name: &str) -> Option<&dyn Adapter> {
        self.all().find(|adapter| adapter.controller_name() == controller_name)
    }

    /// The controllerNames that this process answers to.
    pub fn controllers(&self) -> Vec<&'static str> {
        self.all().map(Adapter::controller_name).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn what_is_missing_is_looked_for_less_and_less_often() {
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (age, wait) in [(0, 10), (99, 10), (300, 30), (1_200, 120), (86_400, 120)] {
            let now = after(created, Duration::from_secs(age));
            assert_eq!(missing_again(created, now), after(now, Duration::from_secs(wait)), "{age}");
        }
        let before = Timestamp::UNIX_EPOCH;
        assert_eq!(missing_again(created, before), after(before, Duration::from_secs(10)), "a clock that is off");
    }
}
