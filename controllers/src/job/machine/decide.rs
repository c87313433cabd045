//! The decision: from a Job, what is seen of its backend, and the time, to a status, an action, and when to look again.
//!
//! The status is written first, by compare-and-set; only if that succeeded is the action taken. So whatever an action needs to be safe is on
//! record before it: references before the start, the reason before the stop, the end before the evidence of it is given up.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::draft::{Draft, Verdict, after};
use super::input::{Attempt, Ending, Execution, JobFacts, Observation, Started};
use crate::job::api::names::{ADAPTER_KUBERNETES, ADAPTER_OPENSANDBOX};
use crate::job::api::spec::DesiredState;
use crate::job::api::status::{JobResult, JobStatus};
use crate::job::reason::{COMPLETED, ERROR, Failure, NotScheduled, OOM_KILLED, Unfinished, Unobserved};
use crate::job::resolve::{Admission, Parameters, Resolution};

/// What is over within this time is told of together with what comes next, in one write: that a Job waits for its execution, and that its process
/// runs. So a Job that succeeds costs six writes at most, unless it waits and runs for longer than that.
const QUIET: Duration = Duration::from_secs(2);
/// So many failed attempts to see an execution, and so long, before it counts as unknown (design of Jobs, §0).
const UNREACHABLE_FAILURES: u32 = 3;
const UNREACHABLE_AFTER: Duration = Duration::from_secs(30);

/// What to do about a Job.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The whole status wanted; None if it is as it should be.
    pub status: Option<JobStatus>,
    /// What to do once that is written.
    pub action: Action,
    /// When to look again, though nothing changes.
    pub wake: Option<Timestamp>,
}

/// One step. Each may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Put the finalizer on the Job: a backend may exist from now on.
    AddFinalizer,
    /// Make an execution that can't run yet (Ensure, first half).
    Acquire,
    /// Start the recorded execution, and no other (Ensure, second half).
    Start,
    /// Read Job and backend past every cache, and decide again.
    Confirm,
    /// Stop the execution (Cancel).
    Stop,
    /// Remove what is not the recorded execution (Delete).
    Sweep,
    /// Give up evidence that was held for the end, which is stored now (Delete).
    Settle,
    /// Remove everything of the backend (Delete).
    Delete,
    /// Take the confirmation of a loss off the Job: its execution was seen again since.
    DropConfirmation,
    /// Take the finalizer off: nothing is left.
    RemoveFinalizer,
    /// Delete the Job: its time to live is over.
    Expire,
}

/// Decides.
pub fn decide(job: JobFacts<'_>, seen: &Observation, now: Timestamp) -> Decision {
    if seen.resolution == Resolution::Foreign {
        return Decision { status: None, action: foreign(job, seen), wake: None };
    }
    let mut draft = Draft::new(job, now);
    let action = if draft.has_ended() { ended(&mut draft, job, seen) } else { live(&mut draft, job, seen) };
    let (status, wake) = draft.finish();
    // What is about to be read again is told when it has been.
    let status = status.filter(|_| action != Action::Confirm);
    Decision { status, action, wake }
}

/// A Job of another controller is left alone. But a policy may have put our finalizer onto it when it was created, and nobody else may take that off
/// (design of Jobs, §0: what no class of ours resolved is released at once on deletion).
fn foreign(job: JobFacts<'_>, seen: &Observation) -> Action {
    let executed = job.status.is_some_and(|status| status.execution.is_some());
    match job.deleting && job.finalizer && !executed {
        false => Action::Nothing,
        true if seen.confirmed => Action::RemoveFinalizer,
        true => Action::Confirm,
    }
}

fn live(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) -> Action {
    adopt(draft, job, seen);
    if let Execution::Ended(ending) = &seen.backend.execution {
        // What is irreversible must not rest on a cache (design of Jobs, §1.16).
        if !seen.confirmed {
            return Action::Confirm;
        }
        draft.observed();
        let verdict = verdict(draft, job, ending);
        draft.end(&verdict);
        return Action::Nothing;
    }
    let unknown = tell(draft, job, seen);
    if unknown && is_lost(draft, job, seen) {
        if !seen.confirmed {
            return Action::Confirm;
        }
        let who = job.loss_confirmed_by.unwrap_or("an administrator");
        let message = format!("{who} confirmed that the backend is lost; whether the process ended is not known");
        draft.end(&Verdict { failure: Some(Failure::BackendLost), message, result: None });
        return Action::Nothing;
    }
    let action = match stop(draft, job, seen) {
        Some((failure, message)) => stopping(draft, job, seen, failure, &message, unknown),
        // Whatever the execution does, nothing else may become one.
        None if unknown => {
            if seen.backend.strays {
                Action::Sweep
            } else {
                Action::Nothing
            }
        }
        None => going(draft, job, seen),
    };
    // It was about a loss that was none. The next one is for an administrator to confirm again.
    if action == Action::Nothing && job.loss_confirmed && draft.unobserved_since().is_none() { Action::DropConfirmation } else { action }
}

/// Records an execution that exists, where that is still allowed; all that follows needs it on record.
fn adopt(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) {
    if let (true, Resolution::Admitted(admission)) = (may_have_been_made(seen), &seen.resolution) {
        draft.accept(admission);
    }
    let references = &seen.backend.references;
    let unreachable = matches!(seen.backend.execution, Execution::Unreachable { .. });
    if references.is_empty() || unreachable || job.deleting || !draft.is_recorded() && job.spec.desired_state == DesiredState::Cancelled {
        return;
    }
    match &seen.resolution {
        Resolution::Admitted(admission) => {
            draft.accept(admission);
            draft.record(adapter_of(admission), references);
        }
        // Accepted before; what has become of the parameters since does not matter.
        Resolution::Gone { adapter, .. } if draft.is_accepted() => draft.record(adapter, references),
        Resolution::Gone { .. } | Resolution::Refused { .. } | Resolution::Foreign => {}
    }
}

/// Whether an execution may exist that nobody can see: a request for it had no answer.
fn may_have_been_made(seen: &Observation) -> bool {
    seen.backend.execution == Execution::Absent && matches!(seen.attempt, Some(Attempt::Ambiguous { .. }))
}

/// The adapter's name, as `status.execution.adapter` has it.
pub fn adapter_of(admission: &Admission) -> &'static str {
    match admission.parameters {
        Parameters::Kubernetes(_) => ADAPTER_KUBERNETES,
        Parameters::OpenSandbox(_) => ADAPTER_OPENSANDBOX,
    }
}

/// Tells what the execution does, as far as it is seen. True if that can't be said.
fn tell(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) -> bool {
    match &seen.backend.execution {
        Execution::Absent if draft.is_recorded() => {
            unknown(draft, Unobserved::PodVanished, "the execution is gone without a trace of its end");
            return true;
        }
        Execution::Absent => {
            if let Some(Attempt::Ambiguous { message }) = &seen.attempt {
                unknown(draft, Unobserved::StartUnconfirmed, message);
                return true;
            }
        }
        Execution::Unknown { reason, message } => {
            unknown(draft, *reason, message);
            return true;
        }
        Execution::Unreachable { failures, since, message } => {
            let limit = after(*since, UNREACHABLE_AFTER);
            if *failures >= UNREACHABLE_FAILURES && draft.now >= limit {
                unknown(draft, Unobserved::BackendUnreachable, message);
            } else {
                draft.wake_at(limit);
            }
            return draft.unobserved_since().is_some();
        }
        Execution::Idle | Execution::Ended(_) => {}
        // What the backend shows of a process that has begun may go back; the Job does not.
        Execution::Starting(_) if draft.start_time().is_some() => {}
        Execution::Starting(None) => {
            draft.getting_on();
            draft.unfinished(Unfinished::Starting, "the process has not started");
        }
        Execution::Starting(Some(wait)) => {
            if wait.give_up.is_none() {
                draft.getting_on();
            }
            draft.unfinished(wait.reason, &wait.message);
        }
        Execution::Running(started) if is_brief(draft, job, *started) => draft.getting_on(),
        Execution::Running(started) => {
            draft.getting_on();
            draft.start(*started);
            draft.unfinished(Unfinished::Running, "the process runs");
        }
    }
    draft.observed();
    false
}

/// Whether a process that has just begun may yet end before it is told that it runs, and there is nothing else to tell. It is looked at again when
/// that is over, or its deadline.
fn is_brief(draft: &mut Draft<'_>, job: JobFacts<'_>, started: Started) -> bool {
    let settled = !draft.is_starting() || draft.stop_reason().is_some() || job.deleting || job.spec.desired_state == DesiredState::Cancelled;
    let start = started.at.max(started.earliest);
    let deadline = job.spec.active_deadline_seconds.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
    let told = after(start, deadline.map_or(QUIET, |deadline| deadline.min(QUIET)));
    // A node whose clock is ahead tells nothing of how long it has run.
    if settled || start > draft.now || draft.now >= told {
        return false;
    }
    draft.wake_at(told);
    true
}

fn unknown(draft: &mut Draft<'_>, reason: Unobserved, message: &str) {
    draft.getting_on();
    draft.unobserved(reason, message);
}

/// Whether an administrator's confirmation counts: guarded by a policy, and not sooner than the class allows.
fn is_lost(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) -> bool {
    let Some(since) = draft.unobserved_since().filter(|_| job.loss_confirmed && seen.loss_guarded) else { return false };
    let earliest = after(since, seen.loss_min_age);
    if draft.now < earliest {
        draft.wake_at(earliest);
    }
    draft.now >= earliest
}

/// Why the execution must stop or never start, if it must. What was decided first counts.
fn stop(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) -> Option<(Failure, String)> {
    if let Some(failure) = draft.stop_reason() {
        return Some((failure, "a stop was decided".to_owned()));
    }
    if job.deleting {
        return Some((Failure::Cancelled, "the Job is being deleted".to_owned()));
    }
    if job.spec.desired_state == DesiredState::Cancelled {
        return Some((Failure::Cancelled, "desiredState is Cancelled".to_owned()));
    }
    if let (Some(start), Some(seconds)) = (draft.start_time(), job.spec.active_deadline_seconds) {
        let deadline = after(start, Duration::from_secs(seconds.unsigned_abs()));
        if draft.now >= deadline {
            return Some((Failure::DeadlineExceeded, format!("ran longer than activeDeadlineSeconds {seconds}")));
        }
        draft.wake_at(deadline);
    }
    match &seen.backend.execution {
        Execution::Starting(Some(wait)) => {
            let give_up = wait.give_up?;
            draft.in_trouble(give_up, &wait.message).then(|| (give_up.failure, wait.message.clone()))
        }
        _ => None,
    }
}

/// A stop was decided: carry it through, to its confirmation.
fn stopping(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation, failure: Failure, message: &str, unknown: bool) -> Action {
    let backend = &seen.backend;
    let may_run = draft.is_recorded() || unknown || !matches!(backend.execution, Execution::Absent | Execution::Idle);
    if may_run {
        // A deletion is its own record of why.
        if !job.deleting {
            draft.request_stop(failure, message);
        }
        return if backend.stopping { Action::Nothing } else { Action::Stop };
    }
    if job.deleting {
        return clean_up(job, seen);
    }
    // Nothing was started, and after Cancelled nothing can be: the API server refuses to record it.
    draft.end(&Verdict { failure: Some(failure), message: format!("{message}; it was not started"), result: None });
    Action::Nothing
}

/// No stop was decided: on towards an execution.
fn going(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) -> Action {
    let backend = &seen.backend;
    if draft.is_recorded() {
        if backend.execution == Execution::Idle {
            draft.unfinished(Unfinished::Starting, "the process has not started");
        }
        return match backend.execution {
            _ if !job.finalizer => Action::AddFinalizer,
            Execution::Idle => Action::Start,
            _ if backend.strays => Action::Sweep,
            _ => Action::Nothing,
        };
    }
    let admission = match &seen.resolution {
        Resolution::Refused { reason, message } => {
            draft.refuse(*reason, message);
            // What was made while the class still allowed it can't start any more.
            return if backend.leftovers { Action::Delete } else { Action::Nothing };
        }
        Resolution::Gone { message, .. } => {
            draft.not_scheduled(NotScheduled::ParametersGone, message);
            return Action::Nothing;
        }
        Resolution::Foreign => return Action::Nothing,
        Resolution::Admitted(admission) => admission,
    };
    match &seen.attempt {
        Some(Attempt::Refused { failure, message }) => {
            draft.accept(admission);
            draft.end(&Verdict { failure: Some(*failure), message: message.clone(), result: None });
            return Action::Nothing;
        }
        Some(Attempt::Later { reason, message, give_up }) => {
            draft.accept(admission);
            draft.not_scheduled(*reason, message);
            if let Some(give_up) = give_up
                && draft.in_trouble(*give_up, message)
            {
                draft.end(&Verdict { failure: Some(give_up.failure), message: message.clone(), result: None });
                return Action::Nothing;
            }
        }
        Some(Attempt::Ambiguous { .. }) | None => tell_of_scheduling(draft, job, admission),
    }
    if job.finalizer { Action::Acquire } else { Action::AddFinalizer }
}

/// Accepted, and its execution is under way: told at once if something else was told before, else only if it takes its time.
fn tell_of_scheduling(draft: &mut Draft<'_>, job: JobFacts<'_>, admission: &Admission) {
    let loud = after(job.created, QUIET);
    if draft.is_told() || draft.now >= loud {
        draft.accept(admission);
        draft.not_scheduled(NotScheduled::Pending, "the execution is being made");
        draft.getting_on();
    } else {
        draft.wake_at(loud);
    }
}

/// What an ending means for the Job.
fn verdict(draft: &mut Draft<'_>, job: JobFacts<'_>, ending: &Ending) -> Verdict {
    let result = |code: i32, reason: &str| Some(JobResult { exit_code: Some(code), reason: Some(reason.to_owned()) });
    match ending {
        Ending::Exited { code, oom, started, message } => {
            if let Some(started) = started {
                draft.start(*started);
            }
            let reason = match (code, oom) {
                (_, true) => OOM_KILLED,
                (0, false) => COMPLETED,
                (_, false) => ERROR,
            };
            let failure = (*code != 0).then_some(Failure::ProcessFailed);
            Verdict { failure, message: message.clone(), result: result(*code, reason) }
        }
        Ending::Stopped { code, started, message } => {
            if let Some(started) = started {
                draft.start(*started);
            }
            let asked = draft.stop_reason().or((job.deleting || job.spec.desired_state == DesiredState::Cancelled).then_some(Failure::Cancelled));
            let failure = asked.unwrap_or(if code.is_some() { Failure::Disrupted } else { Failure::BackendLost });
            // Why it was stopped comes first; of a process that never began there is nothing to add.
            let message = match draft.stop_message() {
                Some(why) if draft.start_time().is_none() && code.is_none() => why.to_owned(),
                Some(why) => format!("{why}; {message}"),
                None => message.clone(),
            };
            Verdict { failure: Some(failure), message, result: code.and_then(|code| result(code, failure.as_str())) }
        }
        Ending::NeverStarted { failure, message } => Verdict { failure: Some(*failure), message: message.clone(), result: None },
    }
}

/// After the end: clean up, and go when the time has come.
fn ended(draft: &mut Draft<'_>, job: JobFacts<'_>, seen: &Observation) -> Action {
    let backend = &seen.backend;
    // A loss that was confirmed is no proof of a stop; the backend may still give one.
    let unproven = draft.unobserved_since().is_some();
    if unproven {
        let nothing_was_made = !draft.is_recorded() && backend.execution == Execution::Absent && !may_have_been_made(seen);
        let proof = nothing_was_made || matches!(backend.execution, Execution::Ended(_));
        match backend.execution {
            _ if proof && !seen.confirmed => return Action::Confirm,
            _ if proof => draft.observed(),
            Execution::Idle | Execution::Starting(_) | Execution::Running(_) if !backend.stopping => return Action::Stop,
            _ if job.deleting => return Action::Nothing,
            _ => {}
        }
    }
    let proven = draft.unobserved_since().is_none();
    if backend.strays {
        return Action::Sweep;
    }
    // Also of a Job that is being deleted: what runs beside its process is stopped by nothing else.
    if proven && backend.held {
        return Action::Settle;
    }
    if job.deleting {
        return clean_up(job, seen);
    }
    if !draft.is_recorded() && backend.leftovers {
        return Action::Delete;
    }
    let (Some(end), Some(seconds)) = (draft.completion_time(), job.spec.ttl_seconds_after_finished) else { return Action::Nothing };
    let expiry = after(end, Duration::from_secs(u64::from(seconds.unsigned_abs())));
    if draft.now < expiry {
        draft.wake_at(expiry);
        return Action::Nothing;
    }
    if seen.confirmed { Action::Expire } else { Action::Confirm }
}

/// Nothing runs and nothing can: remove what is left, then let the Job go.
fn clean_up(job: JobFacts<'_>, seen: &Observation) -> Action {
    match (seen.backend.leftovers, job.finalizer, seen.confirmed) {
        (true, ..) => Action::Delete,
        (false, true, true) => Action::RemoveFinalizer,
        (false, true, false) => Action::Confirm,
        (false, false, _) => Action::Nothing,
    }
}
