//! What is measured of Jobs: each step once, by the process whose write made it. How the numbers are called is the observer's matter.

use std::time::Duration;

use berth_api::conditions::find;
use berth_runtime::apiclient::CallError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::api::names::adapter_of;
use super::api::names::condition::{ACCEPTED, BACKEND_OBSERVED, SCHEDULED, STOP_REQUESTED, SUCCEEDED};
use super::api::status::JobStatus;
use super::machine::{JobFacts, after};
use super::reason::{COMPLETED, Failure};

/// Which Jobs a number is of. Both come from administrators and from us; empty while a Job has no class.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Name of the class that it was accepted under.
    pub class: String,
    /// The adapter of that class.
    pub adapter: &'static str,
}

impl Group {
    /// What an adapter does beside any class.
    pub fn of_adapter(adapter: &'static str) -> Self {
        Self { class: String::new(), adapter }
    }

    /// The group of a Job with this status.
    pub fn of(status: Option<&JobStatus>) -> Self {
        let Some(class) = status.and_then(|status| status.resolved_job_class.as_ref()) else { return Self::default() };
        Self { class: class.name.clone(), adapter: adapter_of(&class.controller_name).unwrap_or_default() }
    }
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Accepted, so long after its creation.
    Accepted(Duration),
    /// Its execution was recorded, so long after it was accepted.
    Scheduled(Duration),
    /// The process began, so long after the execution was recorded.
    Started(Duration),
    /// It ended.
    Finished {
        /// Reason of Succeeded: `Completed` or a failure's.
        reason: &'static str,
        /// From the start of the process, if it began.
        ran: Option<Duration>,
        /// From the decision to stop it, if there was one.
        stopped: Option<Duration>,
        /// How long after its deadline, if that ended it.
        overshot: Option<Duration>,
    },
    /// It was deleted and nothing is left of it, so long after the deletion was asked for.
    CleanedUp(Duration),
    /// We deleted it, so long after its time to live was over.
    Expired(Duration),
    /// Its execution is seen again, after nothing certain was known of it.
    Reattached,
    /// Its process was begun a second time by the node.
    StartedTwice,
    /// What was left of a Job that is gone was removed.
    Swept,
    /// What a Job had beside its recorded execution, and never ran, was removed.
    DoubleRemoved,
    /// A write had no answer.
    AnswerLost,
    /// A write met a newer version, or another leader.
    Conflict,
}

/// An operation of the adapter contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes the execution, or starts it.
    Ensure,
    /// Asks what it does.
    Observe,
    /// Stops it.
    Cancel,
    /// Removes what is left of it.
    Delete,
}

/// What is certain after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect, or it was refused.
    Definite,
    /// It had no effect and may be repeated.
    Retry,
    /// It may have taken effect.
    Ambiguous,
}

impl Outcome {
    /// What is certain after this answer.
    pub fn of<T>(answer: &Result<T, CallError>) -> Self {
        match answer {
            Err(error) if error.is_ambiguous() => Self::Ambiguous,
            Err(error) if error.retryable() => Self::Retry,
            _ => Self::Definite,
        }
    }
}

/// A request to an execution backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// As `status.execution.adapter` has it.
    pub adapter: &'static str,
    /// For which operation of the contract.
    pub operation: Operation,
    /// What is certain after it.
    pub outcome: Outcome,
    /// From the request to the whole answer.
    pub took: Duration,
}

/// Told of every step.
pub trait JobObserver: Send + Sync {
    /// A step of a Job of that group.
    fn stepped(&self, group: &Group, step: &Step);
    /// A request to a backend.
    fn requested(&self, request: &Request);
    /// A write to the API server that took effect: `verb` is Kubernetes' (create, patch, delete), `kind` the object's (`Job` is ours,
    /// `batch/Job` the native one).
    fn wrote(&self, kind: &'static str, verb: &'static str);
}

/// Nobody.
impl JobObserver for () {
    fn stepped(&self, _group: &Group, _step: &Step) {}
    fn requested(&self, _request: &Request) {}
    fn wrote(&self, _kind: &'static str, _verb: &'static str) {}
}

/// The steps that turned what `job` tells into `new`.
pub(super) fn steps(job: JobFacts<'_>, new: &JobStatus) -> Vec<Step> {
    let old = job.status;
    let turned = |kind: &str| {
        let is_true = |status: &JobStatus| find(&status.conditions, kind).is_some_and(|condition| condition.status == "True");
        find(&new.conditions, kind).filter(|condition| condition.status == "True" && !old.is_some_and(is_true))
    };
    let since = |kind: &str| find(&new.conditions, kind).map(|condition| condition.last_transition_time.0);
    let mut steps = Vec::new();
    if let Some(accepted) = turned(ACCEPTED) {
        steps.push(Step::Accepted(span(job.created, at(accepted))));
    }
    if let Some(scheduled) = turned(SCHEDULED) {
        steps.push(Step::Scheduled(span(since(ACCEPTED).unwrap_or_else(|| at(scheduled)), at(scheduled))));
    }
    let start = new.start_time.as_ref().map(|time| time.0);
    if let Some(start) = start.filter(|_| old.is_none_or(|old| old.start_time.is_none())) {
        steps.push(Step::Started(span(since(SCHEDULED).unwrap_or(start), start)));
    }
    if turned(BACKEND_OBSERVED).is_some() && old.is_some() {
        steps.push(Step::Reattached);
    }
    let completion = new.completion_time.as_ref().map(|time| time.0);
    if let Some(completion) = completion.filter(|_| old.is_none_or(|old| old.completion_time.is_none())) {
        let ended = find(&new.conditions, SUCCEEDED);
        let failure = ended.filter(|condition| condition.status == "False").and_then(|condition| Failure::parse(&condition.reason));
        let deadline = job.spec.active_deadline_seconds.zip(start).map(|(seconds, start)| after(start, Duration::from_secs(seconds.unsigned_abs())));
        steps.push(Step::Finished {
            reason: failure.map_or(COMPLETED, Failure::as_str),
            ran: start.map(|start| span(start, completion)),
            stopped: since(STOP_REQUESTED).map(|asked| span(asked, completion)),
            overshot: deadline.filter(|_| failure == Some(Failure::DeadlineExceeded)).map(|deadline| span(deadline, completion)),
        });
    }
    steps
}

/// From one time to another; nothing if it is the earlier one, which clocks of several machines may say.
pub(super) fn span(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

fn at(condition: &Condition) -> Timestamp {
    condition.last_transition_time.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::job::controller::SeenJob;

    fn time(second: u32) -> String {
        format!("2026-01-02T03:04:{second:02}Z")
    }

    fn condition(kind: &str, status: &str, reason: &str, second: u32) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": time(second)})
    }

    fn job(spec: Value, status: Value) -> SeenJob {
        let mut whole = json!({"metadata": {"name": "j", "creationTimestamp": time(0)}, "spec": {"task": {"image": "i"}}});
        whole["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        if !status.is_null() {
            whole["status"] = status;
        }
        SeenJob::of(from_value(whole).unwrap())
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn each_step_is_told_once_with_how_long_it_took() {
        let accepted = condition("Accepted", "True", "Valid", 2);
        let scheduled = condition("Scheduled", "True", "BackendCreated", 3);
        let running = json!({"conditions": [accepted, scheduled, condition("Succeeded", "Unknown", "Running", 7)], "startTime": time(7)});
        let born = job(json!({}), Value::Null);
        let told = steps(born.facts(), &from_value(running.clone()).unwrap());
        assert_eq!(told, [Step::Accepted(seconds(2)), Step::Scheduled(seconds(1)), Step::Started(seconds(4))]);
        let same = from_value(running.clone()).unwrap();
        let runs = job(json!({"activeDeadlineSeconds": 10}), running);
        assert_eq!(steps(runs.facts(), &same), []);
        let over = json!({"conditions": [accepted, scheduled, condition("StopRequested", "True", "DeadlineExceeded", 17),
            condition("Succeeded", "False", "DeadlineExceeded", 21)], "startTime": time(7), "completionTime": time(21)});
        let ended = Step::Finished { reason: "DeadlineExceeded", ran: Some(seconds(14)), stopped: Some(seconds(4)), overshot: Some(seconds(4)) };
        assert_eq!(steps(runs.facts(), &from_value(over.clone()).unwrap()), [ended]);
        assert_eq!(steps(job(json!({}), over.clone()).facts(), &from_value(over).unwrap()), [], "an end is told once");
    }

    #[test]
    fn an_execution_that_is_seen_again_is_told_once() {
        let status = |observed: &str| json!({"conditions": [condition("BackendObserved", observed, "x", 9), condition("Succeeded", "Unknown", "Running", 9)]});
        let unknown = job(json!({}), status("False"));
        assert_eq!(steps(unknown.facts(), &from_value(status("True")).unwrap()), [Step::Reattached]);
        assert_eq!(steps(unknown.facts(), &from_value(status("False")).unwrap()), []);
        assert_eq!(steps(job(json!({}), status("True")).facts(), &from_value(status("True")).unwrap()), []);
    }

    #[test]
    fn what_is_certain_after_a_request() {
        let refused = |code| Err::<(), _>(CallError::Refused { code, reason: String::new(), message: String::new(), retry_after: None });
        assert_eq!([Ok(()), refused(403), refused(409)].map(|answer| Outcome::of(&answer)), [Outcome::Definite; 3]);
        assert_eq!([refused(429), Err(CallError::NotSent(String::new()))].map(|answer| Outcome::of(&answer)), [Outcome::Retry; 2]);
        assert_eq!(Outcome::of::<()>(&Err(CallError::TimedOut(seconds(1)))), Outcome::Ambiguous);
    }

    #[test]
    fn an_end_without_a_start_and_clocks_that_disagree_are_no_trouble() {
        let cancelled = json!({"conditions": [condition("Succeeded", "False", "Cancelled", 5)], "completionTime": time(5)});
        let told = steps(job(json!({"activeDeadlineSeconds": 10}), Value::Null).facts(), &from_value(cancelled).unwrap());
        assert_eq!(told, [Step::Finished { reason: "Cancelled", ran: None, stopped: None, overshot: None }]);
        assert_eq!(span(time(9).parse().unwrap(), time(3).parse().unwrap()), Duration::ZERO);
    }

    #[test]
    fn a_group_is_the_class_s() {
        use super::super::api::names::CONTROLLER_KUBERNETES;
        let class = |controller: &str| json!({"resolvedJobClass": {"name": "c", "uid": "u", "controllerName": controller}});
        let group = |status: Value| Group::of(Some(&from_value(status).unwrap()));
        assert_eq!(group(class(CONTROLLER_KUBERNETES)), Group { class: "c".to_owned(), adapter: "kubernetes" });
        assert_eq!(group(class("example.com/x")).adapter, "");
        assert_eq!(Group::of(None), Group::default());
    }
}
