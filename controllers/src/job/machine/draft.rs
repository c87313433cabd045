//! A status in the making: the only place where conditions and times of a Job are set.

use std::time::Duration;

use berth_api::conditions::{ConditionStatus, find, set_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::input::{GiveUp, JobFacts, Started};
use crate::job::api::names::condition::{ACCEPTED, BACKEND_OBSERVED, PROGRESSING, SCHEDULED, STOP_REQUESTED, SUCCEEDED};
use crate::job::api::status::{Execution, JobResult, JobStatus, Reference};
use crate::job::reason::{BACKEND_CREATED, Failure, NotAccepted, NotScheduled, OBSERVED, Unfinished, Unobserved, VALID};
use crate::job::resolve::Admission;

/// Longest message of a condition that is written here, in bytes.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// The condition types that are ours; others' stay as they are.
const OURS: [&str; 6] = [ACCEPTED, SCHEDULED, SUCCEEDED, STOP_REQUESTED, BACKEND_OBSERVED, PROGRESSING];

/// An end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// None is success.
    pub failure: Option<Failure>,
    /// For people.
    pub message: String,
    /// How the process ended, if that is known.
    pub result: Option<JobResult>,
}

/// The status wanted, and when it must be looked at again.
pub(super) struct Draft<'a> {
    job: JobFacts<'a>,
    status: JobStatus,
    /// Whole seconds, as times on the wire are.
    pub now: Timestamp,
    wake: Option<Timestamp>,
}

impl<'a> Draft<'a> {
    pub fn new(job: JobFacts<'a>, now: Timestamp) -> Self {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { job, status: job.status.cloned().unwrap_or_default(), now, wake: None }
    }

    /// The status wanted, if it differs from the one that is there; and when to look again.
    pub fn finish(mut self) -> (Option<JobStatus>, Option<Timestamp>) {
        // A deletion is a generation of its own; it is no news that somebody must be told.
        let only_deleted = self.job.deleting && self.job.status.is_some_and(|old| *old == self.status);
        if !only_deleted && !self.status.conditions.is_empty() {
            self.status.observed_generation = Some(self.job.generation);
            for condition in self.status.conditions.iter_mut().filter(|condition| OURS.contains(&condition.type_.as_str())) {
                condition.observed_generation = Some(self.job.generation);
            }
        }
        let changed = match self.job.status {
            Some(old) => *old != self.status,
            None => self.status != JobStatus::default(),
        };
        (changed.then_some(self.status), self.wake)
    }

    /// Asks to be looked at again at `time` at the latest.
    pub fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }

    fn set(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: &str) {
        let message = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        // A list that others have filled takes no new type; CEL then refuses the write, and that is told.
        let _ = set_condition(&mut self.status.conditions, kind, status, reason, message, &Time(self.now));
    }

    fn find(&self, kind: &str) -> Option<&Condition> {
        find(&self.status.conditions, kind)
    }

    fn is(&self, kind: &str, status: &str) -> bool {
        self.find(kind).is_some_and(|condition| condition.status == status)
    }

    pub fn has_ended(&self) -> bool {
        self.status.completion_time.is_some()
    }

    pub fn is_accepted(&self) -> bool {
        self.is(ACCEPTED, "True")
    }

    /// Whether anything was told already.
    pub fn is_told(&self) -> bool {
        self.find(SUCCEEDED).is_some()
    }

    /// Whether it was told last that the process is about to start.
    pub fn is_starting(&self) -> bool {
        self.find(SUCCEEDED).is_some_and(|condition| condition.reason == Unfinished::Starting.as_str())
    }

    pub fn is_recorded(&self) -> bool {
        self.status.execution.is_some()
    }

    pub fn start_time(&self) -> Option<Timestamp> {
        self.status.start_time.as_ref().map(|time| time.0)
    }

    pub fn completion_time(&self) -> Option<Timestamp> {
        self.status.completion_time.as_ref().map(|time| time.0)
    }

    pub fn refuse(&mut self, reason: NotAccepted, message: &str) {
        self.set(ACCEPTED, ConditionStatus::False, reason.as_str(), message);
        self.unfinished(Unfinished::Pending, message);
    }

    /// Accepted=True with its class and resources, both once and for all.
    pub fn accept(&mut self, admission: &Admission) {
        if !self.is_accepted() {
            self.set(ACCEPTED, ConditionStatus::True, VALID, &format!("accepted under JobClass {}", admission.class.name));
        }
        self.status.resolved_job_class.get_or_insert_with(|| admission.class.clone());
        self.status.effective_resources.get_or_insert_with(|| admission.resources.clone());
    }

    pub fn not_scheduled(&mut self, reason: NotScheduled, message: &str) {
        if !self.is(SCHEDULED, "True") {
            self.set(SCHEDULED, ConditionStatus::False, reason.as_str(), message);
        }
        self.unfinished(Unfinished::Scheduling, message);
    }

    /// Records the execution, once; afterwards only new types of references are added.
    pub fn record(&mut self, adapter: &str, references: &[Reference]) {
        let execution = self.status.execution.get_or_insert_with(|| Execution { adapter: adapter.to_owned(), references: Vec::new() });
        for reference in references {
            if execution.references.iter().all(|known| known.type_ != reference.type_) {
                execution.references.push(reference.clone());
            }
        }
        if !self.is(SCHEDULED, "True") {
            self.set(SCHEDULED, ConditionStatus::True, BACKEND_CREATED, &format!("the {adapter} backend has an execution"));
        }
    }

    pub fn unfinished(&mut self, reason: Unfinished, message: &str) {
        self.set(SUCCEEDED, ConditionStatus::Unknown, reason.as_str(), message);
    }

    /// Sets startTime, once: not before `earliest`, not after now. Without Scheduled there is none.
    pub fn start(&mut self, started: Started) {
        if self.status.start_time.is_none() && self.is(SCHEDULED, "True") {
            let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
            let earliest = whole(started.earliest).min(self.now);
            self.status.start_time = Some(Time(whole(started.at).clamp(earliest, self.now)));
        }
    }

    /// Ends the Job.
    pub fn end(&mut self, verdict: &Verdict) {
        let (status, reason) = match verdict.failure {
            None => (ConditionStatus::True, crate::job::reason::COMPLETED),
            Some(failure) => (ConditionStatus::False, failure.as_str()),
        };
        // The clock may have gone back since the start.
        self.now = self.start_time().map_or(self.now, |start| start.max(self.now));
        self.set(SUCCEEDED, status, reason, &verdict.message);
        self.status.completion_time = Some(Time(self.now));
        self.status.result.clone_from(&verdict.result);
        self.getting_on();
    }

    /// What the Job ends with once its stop is confirmed, if one was asked for.
    pub fn stop_reason(&self) -> Option<Failure> {
        let condition = self.find(STOP_REQUESTED).filter(|condition| condition.status == "True")?;
        // A word of a later version: it was a stop, whatever for.
        Some(Failure::parse(&condition.reason).unwrap_or(Failure::Cancelled))
    }

    /// Why that stop was asked for, for people.
    pub fn stop_message(&self) -> Option<&str> {
        self.find(STOP_REQUESTED).filter(|condition| condition.status == "True").map(|condition| condition.message.as_str())
    }

    /// Writes down that a stop was decided, and why; the first one counts.
    pub fn request_stop(&mut self, failure: Failure, message: &str) {
        if self.stop_reason().is_none() {
            self.set(STOP_REQUESTED, ConditionStatus::True, failure.as_str(), message);
        }
    }

    /// Since when nothing certain is known, if so.
    pub fn unobserved_since(&self) -> Option<Timestamp> {
        self.find(BACKEND_OBSERVED).filter(|condition| condition.status == "False").map(|condition| condition.last_transition_time.0)
    }

    pub fn unobserved(&mut self, reason: Unobserved, message: &str) {
        self.set(BACKEND_OBSERVED, ConditionStatus::False, reason.as_str(), message);
        self.unfinished(Unfinished::ResultUnknown, message);
    }

    pub fn observed(&mut self) {
        if self.unobserved_since().is_some() {
            self.set(BACKEND_OBSERVED, ConditionStatus::True, OBSERVED, "the backend tells what the execution does");
        }
    }

    /// A trouble that may pass: since when it lasts, and whether that is too long. Another trouble begins anew.
    pub fn in_trouble(&mut self, give_up: GiveUp, message: &str) -> bool {
        if self.find(PROGRESSING).is_some_and(|condition| condition.reason != give_up.failure.as_str()) {
            self.getting_on();
        }
        self.set(PROGRESSING, ConditionStatus::False, give_up.failure.as_str(), message);
        let since = self.find(PROGRESSING).map_or(self.now, |condition| condition.last_transition_time.0);
        let end = after(since, give_up.after);
        self.wake_at(end);
        self.now >= end
    }

    /// The trouble is over, or the Job.
    pub fn getting_on(&mut self) {
        self.status.conditions.retain(|condition| condition.type_ != PROGRESSING);
    }
}

/// `time + span`, at most the end of time.
pub(crate) fn after(time: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| time.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}
