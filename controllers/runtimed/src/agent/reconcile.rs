//! Carries out the steps of the plan for one Run, one after another, until there is nothing to do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::constants::reason;
use berth_api::run::RetryPolicy;
use berth_api::{PersistentWorkspace, Run};
use berth_runtime::ObjectKey;
use berth_runtime::apiclient::{CallError, Precondition, get_uncached, status_merge_patch};
use berth_runtime::events::{EventType, Occurrence, Regarding};
use berth_runtime::workqueue::Next;
use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;
use tokio::process::Child;

use super::locals::{Admission, Entry};
use super::plan::{Standing, Step, fail, is_mine, plan};
use super::store::{Record, WorkspaceUse};
use super::verdict::{Failure, failure_of, failure_of_outputs};
use super::{Agent, fence, job, outputs, processes, server, status, watch, workspace};
use crate::shim::spec::{Exit, Outcome};

/// Steps of one Run in a row; each brings it nearer to rest, so a longer row is a mistake that is tried again later.
const STEPS_MAX: usize = 8;

/// What follows a step.
enum Flow {
    /// Plan again on the same view.
    Again,
    /// Plan again on a view read past the cache: something there is newer than what the cache has.
    Reread,
    /// Until something changes.
    Rest,
    /// Until that time at the latest.
    After(Duration),
}

/// Works on the Run of that name.
pub async fn reconcile(agent: Arc<Agent>, key: ObjectKey) -> Next {
    match work(&agent, &key).await {
        Ok(Flow::After(delay)) => Next::After(delay),
        Ok(_) => Next::Done,
        Err(error) => {
            tracing::warn!(run = %key, %error, "will be tried again");
            Next::Retry
        }
    }
}

async fn work(agent: &Arc<Agent>, key: &ObjectKey) -> Result<Flow, CallError> {
    let mut run = agent.runs.get(key).and_then(|stored| stored.object.as_ref().clone()).map(|run| *run);
    let mut fresh = false;
    for _ in 0..STEPS_MAX {
        if agent.is_gone() {
            return Ok(Flow::Rest); // whoever stops the Runs of a Pod that is gone says nothing about them
        }
        match turn(agent, key, run.as_ref(), fresh).await? {
            Flow::Again => {}
            Flow::Reread => {
                run = read(agent, key).await?;
                fresh = true;
            }
            rest => return Ok(rest),
        }
    }
    Ok(Flow::After(Duration::from_secs(1)))
}

async fn turn(agent: &Arc<Agent>, key: &ObjectKey, run: Option<&Run>, fresh: bool) -> Result<Flow, CallError> {
    let uid = run.and_then(|run| run.metadata.uid.clone()).unwrap_or_default();
    // Runs of that name that are gone, or are no longer this Pod's.
    for stranger in agent.locals.named(key).into_iter().filter(|entry| entry.record.uid != uid) {
        if let Flow::Reread = step(agent, None, Some(&stranger), fresh).await? {
            return Ok(Flow::Reread);
        }
    }
    let entry = agent.locals.get(&uid);
    if run.is_none() {
        return Ok(Flow::Rest);
    }
    let version = run.and_then(|run| run.metadata.resource_version.as_ref());
    if entry.as_ref().is_some_and(|entry| entry.written_on.as_ref() == version) {
        return Ok(Flow::Rest); // the cache has not seen our last write; what it shows next brings us back
    }
    step(agent, run, entry.as_ref(), fresh).await
}

/// The Run as it is stored, whoever's it is.
async fn read(agent: &Agent, key: &ObjectKey) -> Result<Option<Run>, CallError> {
    let api: Api<DynamicObject> = Api::namespaced_with(agent.client.clone(), &agent.me.namespace, &ApiResource::erase::<Run>(&()));
    let Some(found) = get_uncached(&api, &key.name).await? else { return Ok(None) };
    let value = serde_json::to_value(found).unwrap_or_default();
    // One that can't be read is not one that is gone.
    watch::read_run(value, &agent.me.name).map(|run| run.map(|run| *run)).map_err(CallError::Undecodable)
}

async fn step(agent: &Arc<Agent>, run: Option<&Run>, entry: Option<&Entry>, fresh: bool) -> Result<Flow, CallError> {
    let now_ms = agent.clock.now().wall_ms;
    let planned = plan(run, entry.map(Entry::local), &agent.me, now_ms);
    tracing::debug!(run = run.and_then(|run| run.metadata.name.as_deref()).unwrap_or_default(), ?planned, "step");
    match (planned, run, entry) {
        (Step::Nothing, ..) => Ok(Flow::Rest),
        (Step::Later(delay), ..) => Ok(Flow::After(delay)),
        // Nothing that runs is ended on the word of a cache that may be behind.
        (Step::Stop, ..) if !fresh => Ok(Flow::Reread),
        (Step::Stop, _, Some(entry)) => Ok(stop(agent, &entry.record)),
        (Step::Discard, _, Some(entry)) => Ok(discard(agent, &entry.record).await),
        (Step::Claim, Some(run), entry) => claim(agent, run, entry).await,
        (Step::ClaimAgain, Some(run), _) => claim_again(agent, run).await,
        (Step::Start, Some(run), Some(entry)) => start(agent, run, &entry.record).await,
        (Step::Finish(exit), Some(run), Some(entry)) => finish(agent, run, &entry.record, &exit).await,
        (Step::End(failure), Some(run), _) => end(agent, run, &failure).await,
        (Step::Repeat(failure), Some(run), _) => repeat(agent, run, &failure).await,
        // A plan speaks only of what it was shown.
        _ => Ok(Flow::Rest),
    }
}

// ---- what happens on this machine ----------------------------------------------------------------

fn stop(agent: &Arc<Agent>, record: &Record) -> Flow {
    tracing::info!(run = record.name, uid = record.uid, attempt = record.attempt, "stopping");
    agent.locals.update(&record.uid, |entry| entry.standing = Standing::Executing { stopping: true });
    let (agent, uid) = (agent.clone(), record.uid.clone());
    tokio::spawn(async move { agent.stop(&uid).await });
    Flow::Rest
}

async fn discard(agent: &Arc<Agent>, record: &Record) -> Flow {
    if let Some(server) = agent.server.as_ref().filter(|_| record.started || agent.locals.has_started(&record.uid)) {
        server.forget(&record.uid).await;
        if let Some(used) = &record.workspace {
            let own = agent.store.workspace_dir(&used.name).join(job::own_folder(&record.uid));
            if let Err(error) = agent.store.trash(&own) {
                tracing::warn!(path = %own.display(), %error, "can't be removed");
            }
        }
    }
    let (store, uid) = (agent.store.clone(), record.uid.clone());
    let result = tokio::task::spawn_blocking(move || store.discard(&uid)).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    agent.storage_is(&result);
    if result.is_err() {
        return Flow::After(Duration::from_secs(5));
    }
    agent.trash_now.notify_one();
    for key in agent.locals.remove(&record.uid) {
        agent.queue.add(key);
    }
    if let Some(used) = &record.workspace {
        agent.cleaning.add(ObjectKey::new(record.namespace.as_str(), used.name.as_str()));
    }
    Flow::Again
}

/// Watches an execution to its end. `child` is its shim if this process started it.
pub fn follow(agent: Arc<Agent>, uid: String, child: Option<Child>) {
    tokio::spawn(async move {
        let exit = match &agent.server {
            Some(server) => server::ended(&agent, server, &uid, child).await,
            None => processes::ended(agent.store.clone(), uid.clone(), child, agent.args.run_as).await,
        };
        let Some(entry) = agent.locals.get(&uid) else { return };
        tracing::info!(run = entry.record.name, uid, attempt = entry.record.attempt, outcome = ?exit.outcome, "ended");
        agent.locals.update(&uid, |entry| entry.standing = Standing::Ended(exit));
        if agent.claims_nothing() {
            // Which says how many go on.
            agent.beat_now.notify_one();
        }
        agent.queue.add(ObjectKey::new(entry.record.namespace.as_str(), entry.record.name.as_str()));
    });
}

/// Starts a claimed attempt. Whatever keeps it from starting is how it ended.
async fn start(agent: &Arc<Agent>, run: &Run, record: &Record) -> Result<Flow, CallError> {
    let (working, run, of) = (agent.clone(), run.clone(), record.clone());
    let started = tokio::task::spawn_blocking(move || start_blocking(&working, &run, &of)).await;
    match started.unwrap_or_else(|error| Err(Outcome::NotStarted(error.to_string()))) {
        Ok(child) => {
            tracing::info!(run = record.name, uid = record.uid, attempt = record.attempt, "started");
            agent.locals.update(&record.uid, |entry| entry.standing = Standing::Executing { stopping: false });
            follow(agent.clone(), record.uid.clone(), Some(child));
            Ok(Flow::Rest)
        }
        Err(outcome) => {
            let exit = Exit { outcome, stderr_tail: String::new(), survivors: Vec::new() };
            agent.locals.update(&record.uid, |entry| entry.standing = Standing::Ended(exit));
            Ok(Flow::Again)
        }
    }
}

fn start_blocking(agent: &Arc<Agent>, run: &Run, record: &Record) -> Result<Child, Outcome> {
    let run_as = agent.args.run_as;
    let prepared = |error: &dyn std::fmt::Display| Outcome::NotPrepared(error.to_string());
    let workspace_dir = match &record.workspace {
        Some(used) => Some(workspace::prepare(&agent.store, used, run_as).map_err(|error| prepared(&error))?),
        None => None,
    };
    agent.trash_now.notify_one();
    workspace::make_run_dir(&agent.store, &record.uid, run_as).map_err(|error| prepared(&format!("mkdir: {error}")))?;
    let mut spec = job::spec(agent, run, record, workspace_dir);
    if agent.server.is_some() {
        let order = job::order(agent, run, &mut spec).map_err(|error| prepared(&error))?;
        let text = serde_json::to_vec(&order).map_err(|error| prepared(&error))?;
        std::fs::write(agent.store.state_dir(&record.uid).join(server::ORDER_FILE), text).map_err(|error| prepared(&error))?;
    }
    // From here on it counts as started, whatever happens.
    agent.store.started(record).map_err(|error| prepared(&error))?;
    processes::start(&agent.store, &record.uid, &spec).map_err(|error| Outcome::NotStarted(error.to_string()))
}

// ---- what is written -----------------------------------------------------------------------------

/// Sends a status; what follows a failure is decided on what is stored then.
async fn write(agent: &Agent, run: &Run, what: &'static str, patch: &Value) -> Result<bool, CallError> {
    let (Some(name), Some(uid), Some(version)) = (&run.metadata.name, &run.metadata.uid, &run.metadata.resource_version) else { return Ok(false) };
    debug_assert!(is_mine(run, &agent.me), "a plan writes about Runs of this Pod alone");
    let api: Api<Run> = Api::namespaced(agent.client.clone(), &agent.me.namespace);
    match status_merge_patch(&api, name, Precondition { uid, resource_version: version }, patch).await {
        Ok(_) => {
            agent.locals.update(uid, |entry| entry.written_on = Some(version.clone()));
            Ok(true)
        }
        // Somebody else wrote, or nobody knows whether we did: read, and plan on that.
        Err(error) if error.is_conflict() || error.is_not_found() || error.is_ambiguous() => {
            tracing::info!(run = name, what, %error, "not written, or not known to be; reading what is stored");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

async fn claim(agent: &Arc<Agent>, run: &Run, entry: Option<&Entry>) -> Result<Flow, CallError> {
    let name = run.metadata.name.as_deref().unwrap_or_default();
    if agent.claims_nothing() {
        return Ok(Flow::Rest);
    }
    if run.spec.runtime != agent.me.runtime {
        tracing::warn!(run = name, runtime = run.spec.runtime, "assigned to this Pod, which is of another runtime: left alone");
        return Ok(Flow::Rest);
    }
    let used = match usable_workspace(agent, run, false).await? {
        Ok(used) => used,
        // The lifecycle sends it back; when it does, the watch says so.
        Err(why) => {
            tracing::info!(run = name, why, "not claimed");
            if let Some(Entry { record, standing: Standing::Claimed, .. }) = entry {
                discard(agent, record).await;
            }
            return Ok(Flow::After(Duration::from_secs(10)));
        }
    };
    match entry {
        // Recorded for a workspace that has been replaced by a namesake since.
        Some(Entry { record, standing: Standing::Claimed, .. }) if record.workspace != used => return Ok(discard(agent, record).await),
        Some(_) => {}
        None => {
            let record = record(agent, run, used);
            if agent.locals.admit(&record) == Admission::Full {
                tracing::debug!(run = name, "no room");
                return Ok(Flow::Rest);
            }
            if !begin(agent, &record).await {
                return Ok(Flow::After(Duration::from_secs(5)));
            }
        }
    }
    let now = status::seconds(agent.clock.now().wall_ms);
    match write(agent, run, "claim", &status::claim(run, &now)).await? {
        true => {
            tracing::info!(run = name, attempt = run.attempt(), "claimed");
            Ok(Flow::Rest)
        }
        false => Ok(Flow::Reread),
    }
}

async fn claim_again(agent: &Arc<Agent>, run: &Run) -> Result<Flow, CallError> {
    if agent.claims_nothing() {
        return Ok(Flow::After(Duration::from_secs(1)));
    }
    let used = match usable_workspace(agent, run, true).await? {
        Ok(used) => used,
        Err(why) => return end(agent, run, &Failure::new(reason::PREPARE_SOURCE, why)).await,
    };
    let record = record(agent, run, used);
    agent.locals.insert(record.clone());
    if !begin(agent, &record).await {
        return Ok(Flow::After(Duration::from_secs(5)));
    }
    let now = status::seconds(agent.clock.now().wall_ms);
    if !write(agent, run, "retry", &status::claim_again(run, &now)).await? {
        return Ok(Flow::Reread);
    }
    publish(agent, run, EventType::Normal, "RunRetrying", format!("attempt {} begins", record.attempt));
    Ok(Flow::Rest)
}

/// The workspace by a read past every cache, so that a namesake's data is never handed out.
async fn usable_workspace(agent: &Agent, run: &Run, again: bool) -> Result<Result<Option<WorkspaceUse>, String>, CallError> {
    let found = match &run.spec.workspace {
        Some(named) => {
            let api: Api<PersistentWorkspace> = Api::namespaced(agent.client.clone(), &agent.me.namespace);
            get_uncached(&api, &named.name).await?
        }
        None => None,
    };
    Ok(fence::usable(run, found.as_ref(), &agent.me, again))
}

fn record(agent: &Agent, run: &Run, workspace: Option<WorkspaceUse>) -> Record {
    let meta = &run.metadata;
    Record {
        namespace: agent.me.namespace.clone(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        pod_uid: agent.me.uid.clone(),
        attempt: run.attempt(),
        // The plan has checked them.
        requests: run.spec.requests().unwrap_or_default(),
        workspace,
        claimed_ms: agent.clock.now().wall_ms,
        started: false,
    }
}

/// Makes the claim durable; gives its room back if that fails.
async fn begin(agent: &Arc<Agent>, record: &Record) -> bool {
    let (store, of) = (agent.store.clone(), record.clone());
    let result = tokio::task::spawn_blocking(move || store.begin(&of)).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    agent.storage_is(&result);
    if result.is_err() {
        agent.locals.remove(&record.uid).into_iter().for_each(|key| agent.queue.add(key));
    }
    result.is_ok()
}

async fn finish(agent: &Arc<Agent>, run: &Run, record: &Record, exit: &Exit) -> Result<Flow, CallError> {
    if let Some(failure) = failure_of(run, exit) {
        return report(agent, run, failure).await;
    }
    let path = agent.store.run_dir(&record.uid).join(job::OUTPUTS_FILE);
    let outputs = tokio::task::spawn_blocking(move || outputs::read(&path)).await;
    match outputs.unwrap_or_else(|error| Err(outputs::OutputsError::Unreadable(std::io::Error::other(error)))) {
        Ok(outputs) => succeed(agent, run, record, &outputs).await,
        Err(error) => report(agent, run, failure_of_outputs(&error)).await,
    }
}

async fn succeed(agent: &Arc<Agent>, run: &Run, record: &Record, outputs: &BTreeMap<String, String>) -> Result<Flow, CallError> {
    let now_ms = agent.clock.now().wall_ms;
    if !write(agent, run, "success", &status::succeeded(run, outputs, &status::seconds(now_ms))).await? {
        return Ok(Flow::Reread);
    }
    agent.metrics.run_ended("Succeeded", Duration::from_millis(now_ms.saturating_sub(record.claimed_ms).unsigned_abs()));
    if record.attempt > 1 {
        publish(agent, run, EventType::Normal, "RunSucceeded", format!("succeeded in attempt {}", record.attempt));
    }
    Ok(Flow::Rest)
}

async fn report(agent: &Arc<Agent>, run: &Run, failure: Failure) -> Result<Flow, CallError> {
    match fail(run, failure) {
        Step::Repeat(failure) => repeat(agent, run, &failure).await,
        Step::End(failure) => end(agent, run, &failure).await,
        _ => Ok(Flow::Rest),
    }
}

async fn end(agent: &Arc<Agent>, run: &Run, failure: &Failure) -> Result<Flow, CallError> {
    let now_ms = agent.clock.now().wall_ms;
    if !write(agent, run, "end", &status::failed(run, failure, &status::seconds(now_ms))).await? {
        return Ok(Flow::Reread);
    }
    tracing::info!(run = run.metadata.name, reason = failure.reason, message = failure.message, "ended");
    let start = run.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now_ms, |start| start.0.as_millisecond());
    agent.metrics.attempt_failed(failure.reason);
    agent.metrics.run_ended(failure.phase().as_str(), Duration::from_millis(now_ms.saturating_sub(start).unsigned_abs()));
    let (attempt, max) = (run.attempt(), run.spec.retry_policy.as_ref().map_or(1, RetryPolicy::attempts_max));
    let (type_, event) = match failure.reason {
        reason::CANCELLED => (EventType::Normal, "RunCancelled"),
        _ if max > 1 && attempt >= max => (EventType::Warning, "RunRetriesExhausted"),
        _ => (EventType::Warning, "RunFailed"),
    };
    publish(agent, run, type_, event, format!("attempt {attempt} of {max}: {}: {}", failure.reason, failure.message));
    Ok(Flow::Rest)
}

async fn repeat(agent: &Arc<Agent>, run: &Run, failure: &Failure) -> Result<Flow, CallError> {
    let now = status::seconds(agent.clock.now().wall_ms);
    if !write(agent, run, "repeat", &status::repeat(run, failure, &now)).await? {
        return Ok(Flow::Reread);
    }
    agent.metrics.attempt_failed(failure.reason);
    agent.metrics.retried();
    publish(agent, run, EventType::Warning, "RunFailedRetrying", format!("attempt {}: {}: {}", run.attempt(), failure.reason, failure.message));
    Ok(Flow::Rest)
}

fn publish(agent: &Agent, run: &Run, type_: EventType, reason: &'static str, note: String) {
    let key = ObjectKey::new(agent.me.namespace.as_str(), run.metadata.name.as_deref().unwrap_or_default());
    let uid = run.metadata.uid.as_deref().unwrap_or_default().into();
    agent.recorder.publish(Occurrence { regarding: Regarding::of::<Run>(key, uid), type_, reason, action: "Executing", note });
}
