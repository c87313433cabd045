//! What goes into the core and what comes out: inputs, effects, attempts, counters.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cycle::{Diagnosis, Ranked};
use crate::model::{Delta, ObjectKey, PodObject, RunObject, Shown, WorkspaceObject};
use crate::plugin::{BindNote, Rejection, WakeCause};
use crate::profile::Profiles;

/// Identifies a write the core asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// A Run was seen or is gone.
    Run(Delta<RunObject>),
    /// A Runtime Pod was seen or is gone (or lost its label).
    Pod(Delta<PodObject>),
    /// A PersistentWorkspace was seen or is gone.
    Workspace(Delta<WorkspaceObject>),
    /// How a write ended. A lost answer is neither success nor failure: read first, then tell.
    Answer(WriteId, WriteOutcome),
    /// Other profiles are in force from now on.
    Profiles(Arc<Profiles>),
    /// Nothing but time passed.
    Timer,
}

/// How a write ended, for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is stored; the object's new `resourceVersion`.
    Applied(Arc<str>),
    /// The object had changed: nothing was stored.
    Conflict,
    /// The object is gone.
    Gone,
    /// Refused or failed without effect.
    Failed,
}

/// Something to do for the process around the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the placement: phase, assignedPod, assignedPodUID, condition, message cleared, in one status write.
    Bind(BindIntent),
    /// Show why a Run waits.
    SetWaiting {
        /// Answer with this id.
        write: WriteId,
        /// The Run.
        run: RunRef,
        /// Condition reason and message.
        shown: Shown,
        /// Codes of the reasons behind it, each once, in alphabetical order.
        codes: Arc<[&'static str]>,
    },
    /// End a Run that can't or must not be placed.
    Terminate {
        /// Answer with this id.
        write: WriteId,
        /// The Run.
        run: RunRef,
        /// `Cancelled` or `Failed`.
        phase: &'static str,
        /// Condition reason.
        reason: &'static str,
        /// Condition message and `status.message`.
        message: Arc<str>,
    },
}

impl Effect {
    /// The Run that it is about.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Bind(BindIntent { run, .. }) | Self::SetWaiting { run, .. } | Self::Terminate { run, .. } => &run.key,
        }
    }
}

/// The object a write is about, fenced by what the core saw of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRef {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Arc<str>,
    /// `resourceVersion` the decision was made on.
    pub resource_version: Arc<str>,
}

/// A placement, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindIntent {
    /// Answer with this id.
    pub write: WriteId,
    /// The Run.
    pub run: RunRef,
    /// Name of the Pod.
    pub pod: Arc<str>,
    /// UID of the Pod.
    pub pod_uid: Arc<str>,
    /// What Bind plugins remarked.
    pub note: BindNote,
}

/// One attempt, for the log, metrics, `simulate` and the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The Run.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: Arc<str>,
    /// What became of it.
    pub result: AttemptResult,
    /// Why it was tried again, if it had been waiting.
    pub cause: Option<WakeCause>,
    /// How many attempts it has had, this one included.
    pub attempts: u32,
    /// When it was first queued, monotonic milliseconds.
    pub queued_ms: u64,
    /// What each shadow profile would have done on the same snapshot.
    pub shadows: Vec<ShadowChoice>,
}

/// The answer of a shadow profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowChoice {
    /// The shadow profile's name.
    pub profile: String,
    /// The Pod it would have chosen; `None` = none fits.
    pub pod: Option<Arc<str>>,
    /// It is the same Pod as the active profile's, or none for both.
    pub agrees: bool,
}

/// The result of an [`Attempt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// Assumed on a Pod; the chosen Pod is `ranked[0]`.
    Placed {
        /// UID of the chosen Pod.
        pod_uid: Arc<str>,
        /// The chosen Pod and up to two runners-up (if [`super::Core::keep_ranked`] asked for them).
        ranked: Vec<Ranked>,
    },
    /// No Pod fits.
    Waits {
        /// Why not.
        diagnosis: Arc<Diagnosis>,
    },
    /// A Reserve plugin said no to the chosen Pod; backs off.
    Refused {
        /// The plugin and its reason.
        by: (&'static str, Rejection),
    },
    /// Ends Cancelled or Failed.
    Terminates {
        /// `Cancelled` or `Failed`.
        phase: &'static str,
        /// Condition reason.
        reason: &'static str,
    },
    /// A retried Run whose back-off is not over, back in the queue when it is.
    Held,
}

/// Where a Run stands in the queue, for `explain`, `/debug/queue` and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// To be tried next.
    Active,
    /// Waits for a point in time.
    Backoff,
    /// Waits for an event.
    Waiting,
    /// Placed; the write or its confirmation is under way.
    Assumed,
    /// Being ended.
    Terminating,
    /// Not ours to place.
    Idle,
}

/// Where a Run that is to be placed stands in the queue, and how it came there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Where it stands.
    pub standing: Standing,
    /// Attempts so far.
    pub attempts: u32,
    /// When it was last tried, monotonic milliseconds.
    pub attempted_ms: Option<u64>,
    /// Since when it waits, monotonic milliseconds: from the first attempt that found no Pod.
    pub waiting_since_ms: Option<u64>,
    /// Why it was last queued; `None`: it was new, or [`Queued::alarm`].
    pub cause: Option<WakeCause>,
    /// It was the alarm flush that queued it last.
    pub alarm: bool,
    /// When its back-off is over, monotonic milliseconds.
    pub until_ms: Option<u64>,
}

/// A Run's place among those it competes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// So many go first.
    pub before: usize,
    /// Of so many, itself included: Runs to be tried, or waiting Runs that ask for the same.
    pub of: usize,
}

/// Counters, only ever growing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Attempts that placed a Run.
    pub scheduled: u64,
    /// Attempts that found no Pod.
    pub unschedulable: u64,
    /// Attempts refused at Reserve, binds that failed.
    pub errors: u64,
    /// Binds that met a conflict.
    pub bind_conflicts: u64,
    /// Refusals at Reserve.
    pub reserve_conflicts: u64,
    /// Runs that came to be tried without having waited: new, made Pending again, changed during a back-off.
    pub queued: u64,
    /// Times a Run began to back off.
    pub backed_off: u64,
    /// Waiting Runs tried again, by cause (index of [`WakeCause::ALL`]).
    pub wakeups: [u64; WakeCause::ALL.len()],
    /// Pods rejected by (plugin, reason code), as charged in diagnoses.
    pub rejections: FxHashMap<(&'static str, &'static str), u64>,
    /// Runs that only the alarm flush placed: lost wake-ups. Must stay 0.
    pub placed_after_flush: u64,
    /// Pods that went stale by timer.
    pub went_stale: u64,
    /// Waiting messages asked for.
    pub messages: u64,
}

/// Gauges of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    /// To be tried.
    pub active: usize,
    /// Waiting for a point in time.
    pub backoff: usize,
    /// Waiting for an event.
    pub waiting: usize,
}

/// How much of what is derived from the objects is kept; grows and shrinks with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Verdict tables.
    pub tables: usize,
    /// Sets of labels, of Runs.
    pub label_sets: usize,
    /// Affinity terms.
    pub terms: usize,
    /// (namespace, runtime) pairs that have a Pod or a Run.
    pub domains: usize,
    /// Namespaces that have a Run to be placed.
    pub namespaces: usize,
}

/// Every Pod × plugin verdict for one Run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The Run's runtime.
    pub runtime: Arc<str>,
    /// Pods of that runtime in the Run's namespace, by name.
    pub pods: Vec<PodExplanation>,
}

/// One Pod of an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodExplanation {
    /// The Pod's name.
    pub pod: Arc<str>,
    /// No plugin rejects it.
    pub fits: bool,
    /// Plugin name and its rejection, `None` = passes; in profile order.
    pub verdicts: Vec<(&'static str, Option<Rejection>)>,
    /// Resources that do not fit.
    pub short: Vec<Short>,
}

/// A resource of which a Pod has too little left for a Run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// The resource.
    pub resource: Arc<str>,
    /// How many units are missing.
    pub missing: i128,
    /// How many the Pod advertises; 0 of `runs` is a drain.
    pub capacity: i64,
}

/// What would become of a Run if it were tried now, without trying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Every feasible Pod, best first.
    pub ranked: Vec<Ranked>,
    /// Why none fits, if none does.
    pub diagnosis: Option<Diagnosis>,
    /// Condition reason and message that a waiting Run would show.
    pub shown: Option<Shown>,
}
