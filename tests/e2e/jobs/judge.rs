//! What a Job must tell in the end: how it ended, and that all of its status fits that, itself and its container's record.

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::job_world::{condition, exit_code, succeeded};

/// Whether a Job's process began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    Once,
    Never,
    /// It did, and does not say so.
    Unsaid,
    /// It was stopped at any moment.
    Perhaps,
}

/// How a Job must have ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Reason of Succeeded; True only for Completed.
    pub reason: &'static str,
    /// `result.exitCode`.
    pub code: Option<i32>,
    /// `result.reason`.
    pub result: Option<&'static str>,
    pub begun: Begun,
}

/// The process ended with that code by itself.
pub fn exited(code: i32) -> End {
    let (reason, result) = if code == 0 { ("Completed", "Completed") } else { ("ProcessFailed", "Error") };
    End { reason, code: Some(code), result: Some(result), begun: Begun::Once }
}

/// It ran, and was stopped for that reason.
pub fn stopped(reason: &'static str, code: i32) -> End {
    End { reason, code: Some(code), result: Some(reason), begun: Begun::Once }
}

/// It never began.
pub fn never(reason: &'static str) -> End {
    End { reason, code: None, result: None, begun: Begun::Never }
}

/// What an ended Job must tell, whatever its end.
pub fn judge(job: &Job, pod: Option<&Pod>, end: End) -> Result<()> {
    let status = job.status.clone().context("a status")?;
    let verdict = if end.reason == "Completed" { "True" } else { "False" };
    ensure!(succeeded(job) == (verdict.to_owned(), end.reason.to_owned()), "it ended {:?}, not {}", succeeded(job), end.reason);
    ensure!(exit_code(job) == end.code, "exit code {:?}, not {:?}", exit_code(job), end.code);
    let result = status.result.as_ref().and_then(|result| result.reason.as_deref());
    ensure!(result == end.result, "result {result:?}, not {:?}", end.result);
    let generation = job.metadata.generation;
    ensure!(status.observed_generation == generation && status.conditions.iter().all(|condition| condition.observed_generation == generation));
    let completion = status.completion_time.clone().context("no completionTime")?.0;
    let told = status.conditions.iter().find(|condition| condition.type_ == "Succeeded").context("no Succeeded")?;
    ensure!(completion == told.last_transition_time.0, "completionTime is when the end was told");
    ensure!(condition(job, "Accepted").0 == "True");
    ensure!(status.start_time.is_some() == (end.begun != Begun::Never), "startTime {:?}", status.start_time);
    let Some(execution) = &status.execution else {
        ensure!(end.begun == Begun::Never, "no execution");
        return Ok(());
    };
    ensure!(condition(job, "Scheduled") == ("True".to_owned(), "BackendCreated".to_owned()));
    ensure!(execution.adapter == "kubernetes" && execution.id("Job").is_some() && execution.id("Pod").is_some(), "{execution:?}");
    if let Some(start) = &status.start_time {
        let created = job.creation_timestamp().context("created")?.0;
        ensure!(created <= start.0 && start.0 <= completion, "created {created}, started {}, completed {completion}", start.0);
    }
    let Some(pod) = pod else { return Ok(()) };
    ensure!(execution.id("Pod") == pod.metadata.uid.as_deref(), "another Pod");
    // The container's own record.
    let statuses = pod.status.clone().unwrap_or_default().container_statuses.unwrap_or_default();
    let record = statuses.iter().find(|status| status.name == "main").and_then(|main| main.state.clone()).and_then(|state| state.terminated);
    let real = |time: Timestamp| time.as_second() > 1_000_000_000;
    if let Some(record) = record.filter(|_| end.code.is_some()) {
        ensure!(Some(record.exit_code) == end.code, "the record says {}", record.exit_code);
        let (began, start) = (record.started_at.context("startedAt")?.0, status.start_time.context("startTime")?.0);
        // Later by what its kubelet was late with, if it was seen waiting until then (design of Jobs, "Times").
        ensure!(!real(began) || seconds(began, start) >= 0, "started at {start}, by the container {began}");
        ensure!(record.finished_at.context("finishedAt")?.0 <= completion, "told before it ended");
    }
    Ok(())
}

/// Whether a Pod's container `main` runs.
pub fn runs(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.into_iter().any(|status| status.name == "main" && status.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// The message of Succeeded.
pub fn message(job: &Job) -> String {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|condition| condition.type_ == "Succeeded").map(|condition| condition.message.clone()).unwrap_or_default()
}

/// Seconds from one to another.
pub fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second() - from.as_second()
}
