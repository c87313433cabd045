//! What becomes of one Run after it was placed: a pure function of the Run, its Pod, its workspace and the time.
//!
//! ```text
//!             its Pod is gone, replaced, terminating, lost or cordoned; or its workspace does not admit it any more
//!   Scheduled ──────────────────────────────────────────────────────────────► Pending, the same attempt
//!                                                            cancelRequested ─► Cancelled
//!
//!             its Pod is gone, replaced, terminating or lost
//!   Running, Ready ─────┬── retryPolicy allows another attempt ─────────────► Pending, the next attempt
//!                       ├── in the pause before an attempt ─────────────► Pending, the same attempt
//!                       ├── it does not ────────────────────────────────────► Failed, with the reason
//!                       └── cancelRequested ────────────────────────────────► Cancelled
//!
//!             ttlSecondsAfterFinished after completionTime
//!   ended ──────────────────────────────────────────────────────────────────► deleted
//! ```
//! On a Pod that lives and takes Runs everything is the agent's. Pending Runs are the scheduler's. Rules: reference §3.9 and decisions, "Life of a Run after Bind".

use crate::policy::Policy;
use crate::runs::Stage;
use berth_api::Run;
use berth_api::conditions::find;
use berth_api::constants::{reason, run_condition};
use berth_api::liveness::Life;
use berth_api::run::RunPhase;
use std::time::Duration;

/// What is known of the Pod that a Run is assigned to. Only an authoritative read
/// may be acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// It exists, and nothing is held against it.
    Well,
    /// No Pod has the name, or none is assigned.
    Gone,
    /// The Pod of the name has another UID.
    Replaced,
    /// The Pod of the name has another UID, and the assigned one belongs to another Pod that lives: whoever wrote that knows why. Runs
    /// are counted by name; nothing is done.
    Inconsistent,
    /// It is being deleted.
    Terminating,
    /// Its agent has taken no further Runs for 30 s, and goes on with those it has.
    Cordoned,
    /// It has not been Ready for 30 s.
    NotReady,
    /// It is Ready, and its agent has not been heard of for 30 s.
    Silent,
}

/// What is held against a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Failure reason (reference §1.4).
    pub reason: &'static str,
    /// Failure message (reference §3.9).
    pub message: &'static str,
}

impl PodState {
    /// What a Pod is that is not terminating, by the signs of life it gives and its condition Ready.
    pub fn of(life: Life, ready: bool) -> Self {
        match life {
            Life::Well => Self::Well,
            Life::Cordoned => Self::Cordoned,
            Life::Lost if ready => Self::Silent,
            Life::Lost => Self::NotReady,
        }
    }

    /// What a claimed Run on this Pod fails with.
    pub fn fault(self) -> Option<Fault> {
        let fault = |reason, message| Some(Fault { reason, message });
        match self {
            Self::Well | Self::Inconsistent | Self::Cordoned => None,
            Self::Gone => fault(reason::POD_GONE, "assigned pod was deleted"),
            Self::Replaced => fault(reason::POD_GONE, "assigned pod was replaced"),
            Self::Terminating => fault(reason::POD_TERMINATING, "assigned pod is terminating"),
            Self::NotReady => fault(reason::POD_UNHEALTHY, "assigned pod is not ready"),
            Self::Silent => fault(reason::POD_UNHEALTHY, "assigned pod runtimed heartbeat is stale"),
        }
    }

    /// Why a Run that has not begun is not to be on this Pod.
    fn held_against(self) -> Option<Fault> {
        match self {
            Self::Cordoned => Some(Fault { reason: reason::POD_UNHEALTHY, message: "assigned pod takes no further Runs" }),
            _ => self.fault(),
        }
    }

    /// Whether the scheduler would place on such a Pod: then a Run is not taken off it, or it would be placed there again, and again.
    fn is_asked_for(self, asked: Policy) -> bool {
        match self {
            Self::Well | Self::Inconsistent => true,
            Self::Gone | Self::Replaced => false,
            Self::Terminating | Self::NotReady => !asked.readiness,
            Self::Silent | Self::Cordoned => !(asked.readiness && asked.heartbeat),
        }
    }
}

/// What is known of the workspace that a Run names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceState {
    /// The Run names none.
    NotNamed,
    /// It is bound to the Run's Pod and admits Runs.
    Admits,
    /// It is missing, not bound, Lost, Released, being deleted, of another Runtime, or on another Pod: no agent claims a Run for it.
    Refuses,
}

/// What to do with a Run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Leave,
    /// Nothing before that time is over.
    Later(Duration),
    /// Back to Pending with the same attempt: nobody had begun.
    Unassign {
        /// `status.message`, until the scheduler says something better.
        message: String,
    },
    /// Back to Pending with the next attempt.
    Retry {
        /// The attempt that comes.
        attempt: i32,
        /// What the last one ended by.
        fault: Fault,
    },
    /// The end: Failed or Cancelled.
    End {
        /// `Failed` or `Cancelled`.
        phase: &'static str,
        /// The attempt that ended.
        attempt: i32,
        /// Why.
        fault: Fault,
    },
    /// The object is deleted.
    Delete,
}

/// Whether anything may follow for a Run of that stage. Cheap and never wrong to say no: what is cached is asked this before anything is read.
pub fn may_act(stage: Stage, cancel_requested: bool, pod: PodState, workspace: WorkspaceState, asked: Policy) -> bool {
    match stage {
        Stage::Claimed => pod.held_against().is_some(),
        // While an agent is there that sees its Runs, it ends what is cancelled.
        Stage::Scheduled if cancel_requested => pod.held_against().is_some(),
        Stage::Scheduled => !pod.is_asked_for(asked) || (asked.workspace && workspace == WorkspaceState::Refuses && pod != PodState::Inconsistent),
        Stage::Pending | Stage::Ended | Stage::Unknown => false,
    }
}

/// Plans what to do with a Run, as it is stored now.
pub fn plan(run: &Run, pod: PodState, workspace: WorkspaceState, asked: Policy, wall_ms: i64) -> Plan {
    let stage = match Stage::of(run.phase()) {
        Stage::Ended => return ended(run, wall_ms),
        // Its claim is half written.
        Stage::Scheduled if run.status.as_ref().is_some_and(|status| status.start_time.is_some()) => Stage::Claimed,
        stage => stage,
    };
    let cancel_requested = run.spec.cancel_requested;
    if !may_act(stage, cancel_requested, pod, workspace, asked) {
        return Plan::Leave;
    }
    let attempt = run.attempt();
    // The agent goes on with what has begun. It begins nothing more: an attempt that waits is another Pod's to make.
    if stage == Stage::Claimed && pod == PodState::Cordoned && !waits_for_its_attempt(run) {
        return Plan::Leave;
    }
    if cancel_requested {
        return Plan::End { phase: "Cancelled", attempt, fault: Fault { reason: reason::CANCELLED, message: "cancelled by user" } };
    }
    match (stage, pod.held_against()) {
        (Stage::Claimed, Some(fault)) => claimed(run, attempt, fault),
        (_, Some(fault)) if !pod.is_asked_for(asked) => Plan::Unassign { message: format!("{}; the Run had not begun", fault.message) },
        _ => {
            let name = run.spec.workspace.as_ref().map_or("", |workspace| workspace.name.as_str());
            Plan::Unassign { message: format!("workspace {name} does not admit the Run on its assigned pod; the Run had not begun") }
        }
    }
}

fn claimed(run: &Run, attempt: i32, fault: Fault) -> Plan {
    // What is being deleted is never placed again.
    let is_kept = run.metadata.deletion_timestamp.is_none();
    if is_kept && waits_for_its_attempt(run) {
        return Plan::Retry { attempt, fault };
    }
    let retries = is_kept && run.spec.retry_policy.clone().unwrap_or_default().allows_retry(attempt, fault.reason);
    match attempt.checked_add(1).filter(|_| retries) {
        Some(next) => Plan::Retry { attempt: next, fault },
        None => Plan::End { phase: "Failed", attempt, fault },
    }
}

/// Whether it is in the pause before an attempt in place: that was granted by what came before, and has not begun.
fn waits_for_its_attempt(run: &Run) -> bool {
    let conditions = run.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_over = find(conditions, run_condition::RUNNING).is_some_and(|condition| condition.status == "False");
    is_over && run.attempt() > 1 && *run.phase() == RunPhase::Running
}

fn ended(run: &Run, wall_ms: i64) -> Plan {
    let ttl_s = run.spec.ttl_seconds_after_finished.filter(|ttl_s| *ttl_s > 0 && run.metadata.deletion_timestamp.is_none());
    let completed = run.status.as_ref().and_then(|status| status.completion_time.as_ref());
    let Some((ttl_s, completed)) = ttl_s.zip(completed) else { return Plan::Leave };
    let over_ms = completed.0.as_millisecond().saturating_add(i64::from(ttl_s) * 1_000);
    match u64::try_from(over_ms.saturating_sub(wall_ms)) {
        Ok(left_ms) if left_ms > 0 => Plan::Later(Duration::from_millis(left_ms)),
        _ => Plan::Delete,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
