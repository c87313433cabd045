//! The ten states of a Job: derived, never stored (specification, "State machine"). For logs, metrics and tests.

use crate::job::api::names::condition;
use crate::job::api::spec::{DesiredState, JobSpec};
use crate::job::api::status::JobStatus;
use crate::job::reason::{Failure, Unfinished};

/// Where a Job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Not accepted yet: waits for class, parameters, references or policy.
    Resolving,
    /// Accepted; its execution is being made.
    Scheduling,
    /// There is an execution, and the process has not started.
    Starting,
    /// The process runs.
    Running,
    /// A cancel is asked for and not confirmed.
    Cancelling,
    /// Whether it runs or has ended can't be said.
    ResultUnknown,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Ended by a cancel.
    Cancelled,
    /// Being deleted: stopped, then cleaned up.
    Deleting,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::Resolving,
        Self::Scheduling,
        Self::Starting,
        Self::Running,
        Self::Cancelling,
        Self::ResultUnknown,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Deleting,
    ];

    /// The state, by the specification's priority: Deleting, an end, Cancelling, ResultUnknown, Running, Starting, Scheduling, Resolving.
    pub fn of(deleting: bool, spec: &JobSpec, status: Option<&JobStatus>) -> Self {
        let find = |kind: &str| status.and_then(|status| berth_api::conditions::find(&status.conditions, kind));
        let is_true = |kind: &str| find(kind).is_some_and(|condition| condition.status == "True");
        let succeeded = find(condition::SUCCEEDED).map(|condition| (condition.status.as_str(), condition.reason.as_str()));
        match succeeded {
            _ if deleting => Self::Deleting,
            Some(("True", _)) => Self::Succeeded,
            Some(("False", reason)) if reason == Failure::Cancelled.as_str() => Self::Cancelled,
            Some(("False", _)) => Self::Failed,
            _ if spec.desired_state == DesiredState::Cancelled => Self::Cancelling,
            Some((_, reason)) if reason == Unfinished::ResultUnknown.as_str() => Self::ResultUnknown,
            _ if status.is_some_and(|status| status.start_time.is_some()) => Self::Running,
            _ if is_true(condition::SCHEDULED) => Self::Starting,
            _ if is_true(condition::ACCEPTED) => Self::Scheduling,
            _ => Self::Resolving,
        }
    }

    /// Whether the Job has come to its end; then it is never left but for Deleting.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resolving => "Resolving",
            Self::Scheduling => "Scheduling",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Cancelling => "Cancelling",
            Self::ResultUnknown => "ResultUnknown",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::Deleting => "Deleting",
        }
    }
}
