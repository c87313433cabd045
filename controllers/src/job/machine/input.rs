//! What a decision is made of: the Job, and what is seen of its backend. The same for every backend.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::job::api::spec::JobSpec;
use crate::job::api::status::{JobStatus, Reference};
use crate::job::reason::{Failure, NotScheduled, Unfinished, Unobserved};
use crate::job::resolve::Resolution;

/// A Job as it was read.
#[derive(Clone, Copy, Debug)]
pub struct JobFacts<'a> {
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// Has our finalizer.
    pub finalizer: bool,
    /// Has the annotation that confirms its loss, with its own UID as the value.
    pub loss_confirmed: bool,
    /// Who confirmed it, if the API server has told.
    pub loss_confirmed_by: Option<&'a str>,
    /// The spec.
    pub spec: &'a JobSpec,
    /// The status.
    pub status: Option<&'a JobStatus>,
}

/// Everything that a decision looks at besides the Job and the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// What class and parameters say: resolved if the Job is not accepted yet, recalled if it is.
    pub resolution: Resolution,
    /// What the backend shows.
    pub backend: Backend,
    /// What came of the last attempt to make the execution, if it made none.
    pub attempt: Option<Attempt>,
    /// Whether job and backend were read past every cache, just now. An end is decided on nothing less.
    pub confirmed: bool,
    /// Whether the policy that guards the confirmation of a loss is in force.
    pub loss_guarded: bool,
    /// How long a Job must have been unobserved before its loss can be confirmed.
    pub loss_min_age: Duration,
}

/// What an adapter sees of a Job's execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backend {
    /// The execution.
    pub execution: Execution,
    /// What the status must record before the execution may start; empty if there is none.
    pub references: Vec<Reference>,
    /// A stop was asked for already, and the backend is at it.
    pub stopping: bool,
    /// Something of this Job's that is not its execution and must go.
    pub strays: bool,
    /// Anything at all that deleting the Job must remove.
    pub leftovers: bool,
    /// Evidence that is held only until the end is stored.
    pub held: bool,
}

/// An execution, as far as the backend shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Execution {
    /// There is none, and nothing that could become one without us.
    #[default]
    Absent,
    /// It exists and can't run before it is started by us.
    Idle,
    /// It was started, and the process has not begun; what it waits for, if that is known.
    Starting(Option<Wait>),
    /// The process runs.
    Running(Started),
    /// It has ended, or never began, and can't go on: proven.
    Ended(Ending),
    /// It may run and may have ended.
    Unknown {
        /// Why that can't be said.
        reason: Unobserved,
        /// The same for people.
        message: String,
    },
    /// The last attempts to see it failed.
    Unreachable {
        /// How many.
        failures: u32,
        /// Since when.
        since: Timestamp,
        /// Why, for people.
        message: String,
    },
}

/// When a process began: what the backend says, and the earliest moment that can be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// By the backend's clock.
    pub at: Timestamp,
    /// It was seen not to run until then.
    pub earliest: Timestamp,
}

/// What keeps a process from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// One of the `WaitingFor…`.
    pub reason: Unfinished,
    /// What is missing, for people; stable while nothing changes.
    pub message: String,
    /// After how long the Job fails, and as what; None waits for ever.
    pub give_up: Option<GiveUp>,
}

/// When a trouble is no longer waited out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp {
    /// What the Job fails with.
    pub failure: Failure,
    /// How long the trouble may last.
    pub after: Duration,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process ended by itself, before any stop could be the cause.
    Exited {
        /// Its exit code.
        code: i32,
        /// It, or a child of it, was ended for using too much memory.
        oom: bool,
        /// When it began, if that is known.
        started: Option<Started>,
        /// For people.
        message: String,
    },
    /// The backend ended it, or will never begin it: somebody asked for a stop.
    Stopped {
        /// Its exit code, if it is the process's own.
        code: Option<i32>,
        /// When it began, if it did.
        started: Option<Started>,
        /// For people.
        message: String,
    },
    /// It could not begin.
    NeverStarted {
        /// Why.
        failure: Failure,
        /// For people.
        message: String,
    },
}

/// What came of an attempt to make an execution, if it made none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Refused for good: the Job fails.
    Refused {
        /// What it fails with.
        failure: Failure,
        /// For people.
        message: String,
    },
    /// Not now; tried again.
    Later {
        /// What Scheduled=False says.
        reason: NotScheduled,
        /// For people.
        message: String,
        /// When it is no longer tried; None tries for ever.
        give_up: Option<GiveUp>,
    },
    /// Nobody knows whether it was made, and once made it runs.
    Ambiguous {
        /// For people.
        message: String,
    },
}
