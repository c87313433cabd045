//! What the agent does next with one Run: a pure function of the Run as the API shows it and of what stands on this machine.
//!
//! ```text
//!  Scheduled ──Claim──► Running + Claimed ──Start──► Executing ──► Ended ──Finish──► Succeeded | Failed | Timeout | Cancelled
//!                             ▲                          │ Stop      │
//!                             │                          ▼           ├─► Repeat: Running, attempt+1, Running=False
//!                             │                     (stopping) ──────┘           │ pause is over
//!                             └──────────────── ClaimAgain: Running=True ◄───────┘
//!  not ours (other Pod, UID or attempt; ended; deleted; gone): Stop, then Discard. Nothing is ever written about it.
//! ```
//! Rules: reference kruntimes §7.2, §3.9; decisions, "Life of a Run after Bind". Nothing starts twice in one attempt: Start needs a
//! record that says "claimed", and starting replaces it by one that says "started".

use std::time::Duration;

use berth_api::Run;
use berth_api::conditions::find;
use berth_api::constants::run_condition;
use berth_api::run::RunPhase;

use super::verdict::{Failure, check, is_repeated};
use crate::shim::spec::Exit;

/// The Pod that this agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Label `runtime`.
    pub runtime: String,
    /// Whether functions are carried out: by a Runtime Server alone.
    pub functions: bool,
}

/// Where this machine stands with an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// Recorded as claimed, or to be claimed. Nothing was started.
    Claimed,
    /// Something runs.
    Executing {
        /// It was asked to stop.
        stopping: bool,
    },
    /// It has ended, like this.
    Ended(Exit),
}

/// An attempt on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// UID of the Run.
    pub uid: &'a str,
    /// The attempt, 1-based.
    pub attempt: i32,
    /// Where it stands.
    pub standing: &'a Standing,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing, until something changes.
    Nothing,
    /// Nothing for that long.
    Later(Duration),
    /// Fence, admit, record, and write Running.
    Claim,
    /// Fence, record, and write that the next attempt begins.
    ClaimAgain,
    /// Prepare and start it.
    Start,
    /// Ask it to stop.
    Stop,
    /// Remove what this machine keeps of it.
    Discard,
    /// Read the outputs and report how it ended.
    Finish(Exit),
    /// End the Run.
    End(Failure),
    /// Write that the next attempt will follow.
    Repeat(Failure),
}

/// Whether the Run is assigned to this very Pod. Without a UID that can't be told, so it is not.
pub fn is_mine(run: &Run, me: &Me) -> bool {
    run.status.as_ref().is_some_and(|status| status.assigned_pod.as_deref() == Some(&me.name) && status.assigned_pod_uid.as_deref() == Some(&me.uid))
}

/// Plans the next step. `run` is None if there is no such Run; `now_ms` is the wall clock.
pub fn plan(run: Option<&Run>, local: Option<Local<'_>>, me: &Me, now_ms: i64) -> Step {
    let Some(run) = run.filter(|run| is_mine(run, me) && run.metadata.deletion_timestamp.is_none()) else { return let_go(local) };
    let is_this = |local: &Local<'_>| local.attempt == run.attempt() && run.metadata.uid.as_deref() == Some(local.uid);
    if local.as_ref().is_some_and(|local| !is_this(local)) {
        return let_go(local);
    }
    let standing = local.map(|local| local.standing);
    match run.phase() {
        RunPhase::Scheduled => scheduled(run, standing, me),
        RunPhase::Running | RunPhase::Ready => running(run, standing, now_ms),
        _ => let_go(local),
    }
}

/// Not ours, or ours no longer.
fn let_go(local: Option<Local<'_>>) -> Step {
    match local.map(|local| local.standing) {
        None | Some(Standing::Executing { stopping: true }) => Step::Nothing,
        Some(Standing::Executing { stopping: false }) => Step::Stop,
        Some(_) => Step::Discard,
    }
}

fn scheduled(run: &Run, standing: Option<&Standing>, me: &Me) -> Step {
    if run.spec.cancel_requested {
        return match standing {
            Some(Standing::Executing { stopping: true }) => Step::Nothing,
            Some(Standing::Executing { stopping: false }) => Step::Stop,
            _ => Step::End(Failure::cancelled()),
        };
    }
    match check(run, me) {
        Err(failure) => Step::End(failure),
        // Also if something of this attempt stands here already: then the claim was overwritten, and is made again.
        Ok(()) => Step::Claim,
    }
}

fn running(run: &Run, standing: Option<&Standing>, now_ms: i64) -> Step {
    let cancel = run.spec.cancel_requested;
    match standing {
        Some(Standing::Executing { stopping }) if cancel && !stopping => Step::Stop,
        Some(Standing::Executing { .. }) => Step::Nothing,
        Some(Standing::Ended(exit)) => Step::Finish(exit.clone()),
        _ if cancel => Step::End(Failure::cancelled()),
        None | Some(Standing::Claimed) => {
            let pause = pause_until_ms(run);
            if pause.is_none() && standing.is_none() {
                return lost(run);
            }
            match deadline_ms(run) {
                Some(deadline) if now_ms >= deadline => Step::End(Failure::timeout(run)),
                deadline => match pause {
                    None => Step::Start,
                    Some(until) if now_ms >= until => Step::ClaimAgain,
                    Some(until) => Step::Later(Duration::from_millis(until.min(deadline.unwrap_or(i64::MAX)).saturating_sub(now_ms).unsigned_abs())),
                },
            }
        }
    }
}

fn lost(run: &Run) -> Step {
    fail(run, Failure::lost())
}

/// A failed attempt is repeated if the policy says so.
pub fn fail(run: &Run, failure: Failure) -> Step {
    if is_repeated(run, run.attempt(), &failure) { Step::Repeat(failure) } else { Step::End(failure) }
}

/// While the Run waits for its next attempt: when that may begin.
fn pause_until_ms(run: &Run) -> Option<i64> {
    let running = find(&run.status.as_ref()?.conditions, run_condition::RUNNING)?;
    if running.status != "False" {
        return None;
    }
    let pause = run.spec.retry_policy.clone().unwrap_or_default().pause_before(run.attempt()).unwrap_or_default();
    Some(running.last_transition_time.0.as_millisecond().saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX)))
}

/// When the Run's time is over, by `startTime`; an attempt in place does not begin anew (reference §7.2).
pub fn deadline_ms(run: &Run) -> Option<i64> {
    let timeout = run.spec.timeout().ok().flatten()?;
    let start = run.status.as_ref()?.start_time.as_ref()?.0.as_millisecond();
    Some(start.saturating_add(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
