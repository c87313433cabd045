//! The OpenSandbox adapter: an idle sandbox, which may be duplicated without harm, and a start within it that is fenced by a lock (design of Jobs, §2b).
//!
//! ```text
//! Ensure, first:   POST /sandboxes, idle, short-lived        found again by its metadata; a nonce is planted in it
//!                  (references on record)                    Sandbox and Instance, by id
//! Ensure, second:  renew, then POST /command, fenced         a second start exits 124, one in another instance 97; then Command is on record
//! Cancel:          take the lock, or signal the group; DELETE until the server says 404
//! Delete:          DELETE until then; every so often whatever no Job of ours claims (sweep)
//! ```
//! In mode Entrypoint the create is the start: an Instance is recorded first, and it is posted once, by the process that recorded it.
//!
//! No worker waits for a server: what is to be done is an errand, a task of its own, one at a time for a Job; its end wakes the Job. Only what decides
//! an end is asked for on the spot, and not for long.

mod acquire;
mod build;
mod calls;
mod endpoint;
mod entrypoint;
mod errands;
mod look;
pub mod names;
mod own_secrets;
mod page;
mod secrets;
mod stop;
mod sweep;
mod task;
mod verdict;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_runtime::apiclient::CallError;
use berth_runtime::informer::Informer;
use berth_runtime::lease::Fence;
use berth_runtime::{ObjectKey, ServerTime};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{Adapter, Extent, Freshness, OperationError, Seen, Target};
use crate::job::api::names::{ADAPTER_OPENSANDBOX, CONTROLLER_OPENSANDBOX};
use crate::job::api::{JobClass, OpenSandboxExecutionParameters};
use crate::job::controller::SeenJob;
use crate::job::machine::{Attempt, Execution, after};
use crate::job::measure::JobObserver;
use crate::job::reason::{NotAccepted, NotScheduled, Readiness, Unobserved};
use crate::job::resolve::{Admission, KIND_OPENSANDBOX};
use endpoint::Endpoint;
use own_secrets::Installation;
pub use own_secrets::{OwnSecrets, SecretName};
use page::{Book, Errand, Page};
use task::Task;

/// How soon what had no answer on the spot is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// What the adapter works with.
pub struct Tools {
    /// Where Secrets and ConfigMaps are read.
    pub client: Client,
    /// OpenSandboxExecutionParameters.
    pub parameters: Informer<OpenSandboxExecutionParameters>,
    /// Jobs: what the sweep leaves alone.
    pub jobs: Informer<SeenJob>,
    /// Open while this process leads.
    pub fence: Fence,
    /// The API server's time.
    pub time: Arc<ServerTime>,
    /// Told of requests, and of answers that were lost.
    pub steps: Arc<dyn JobObserver>,
    /// The installation's own Secrets.
    pub secrets: OwnSecrets,
}

/// Who is told of what.
pub type Tell<T> = Box<dyn Fn(T) + Send + Sync>;

/// Who is told that there is news.
pub struct Wake {
    /// Of a Job.
    pub job: Tell<ObjectKey>,
    /// Of the server that parameters of that name are of.
    pub parameters: Tell<Arc<str>>,
}

/// See the module.
pub struct OpenSandbox {
    shared: Arc<Shared>,
}

struct Shared {
    tools: Tools,
    wake: Wake,
    book: Book,
    /// By UID of their parameters.
    endpoints: Mutex<HashMap<String, Arc<Endpoint>>>,
    installation: OnceCell<Installation>,
    /// The current term, and when it was first heard of.
    term: Mutex<(u64, Timestamp)>,
}

impl OpenSandbox {
    /// Nothing is sent yet.
    pub fn new(tools: Tools, wake: Wake) -> Self {
        let term = Mutex::new((u64::MAX, tools.time.now()));
        let shared = Shared { tools, wake, book: Book::default(), endpoints: Mutex::default(), installation: OnceCell::new(), term };
        Self { shared: Arc::new(shared) }
    }

    async fn see(&self, job: Target<'_>, admission: Option<&Admission>, freshness: Freshness) -> Seen {
        let shared = &self.shared;
        let now = shared.tools.time.now();
        let task = match shared.task(job, admission) {
            Ok(Some(task)) => task,
            Ok(None) => return without_a_server(job),
            Err(message) => return unusable(job, message),
        };
        if job.ended && freshness == Freshness::Cached && shared.book.get(job.key, job.uid).is_none() {
            // What is left of Jobs that have ended is found by the sweep, which opens every term.
            return Seen::default();
        }
        let page = shared.page(&task, now);
        if freshness == Freshness::Quorum {
            return self.ask(task, &page, now).await;
        }
        let is_due = page.shown.look_again.is_none_or(|due| now >= due);
        let mut seen = page.shown;
        // A stop that came to nothing yet is under way until it is tried again.
        seen.backend.stopping = page.last == Some(Errand::Stop) && !is_due;
        match page.busy {
            Some(errand) => {
                seen.backend.stopping |= errand == Errand::Stop;
                seen.backend.leftovers |= errand == Errand::Acquire;
                seen.look_again = None; // its end wakes the Job
            }
            // What has no sandbox on record is looked at by who makes one, what has ended by who removes it.
            None if is_due && task.recorded.is_some() && !job.ended && !matches!(seen.backend.execution, Execution::Ended(_)) => {
                shared.spawn(task, Errand::Look);
                seen.look_again = None;
            }
            None => {}
        }
        seen
    }

    /// Asks on the spot; without an answer nothing is certain.
    async fn ask(&self, task: Task, page: &Page, now: Timestamp) -> Seen {
        let unanswered = |message: &str, look_again| {
            let mut seen = page.shown.clone();
            seen.backend.execution = Execution::Unreachable { failures: 0, since: now, message: message.to_owned() };
            seen.backend.leftovers = true;
            seen.look_again = look_again;
            seen
        };
        if let Some(errand) = page.busy {
            // Its end wakes the Job, and then it is asked.
            let mut seen = unanswered("OpenSandbox: something is being done about it", None);
            seen.backend.stopping = errand == Errand::Stop;
            return seen;
        }
        let (asking, facts) = (task.clone(), page.facts.clone());
        let asked = task.endpoint.on_the_spot(async move {
            let mut facts = facts.lock().await;
            asking.confirm(&mut facts).await;
            facts.seen(asking.recorded.is_some(), asking.now())
        });
        let mut seen = asked.await.unwrap_or_else(|| unanswered("OpenSandbox: no answer in time", Some(after(now, ASK_AGAIN))));
        let shown = seen.clone();
        let busy = self.shared.book.change(&task.key, &task.uid, task.term, |page| {
            page.shown = shown;
            page.busy
        });
        seen.backend.stopping = busy.flatten() == Some(Errand::Stop);
        if task.ended && !seen.backend.leftovers {
            self.shared.book.forget(&task.key, &task.uid);
        }
        seen
    }
}

impl Adapter for OpenSandbox {
    fn name(&self) -> &'static str {
        ADAPTER_OPENSANDBOX
    }

    fn controller_name(&self) -> &'static str {
        CONTROLLER_OPENSANDBOX
    }

    fn orphans(&self, key: &ObjectKey, live: Option<&str>) -> Vec<String> {
        self.shared.book.others(key, live)
    }

    fn check<'a>(&'a self, job: Target<'a>) -> BoxFuture<'a, Result<Option<(NotAccepted, String)>, OperationError>> {
        async move {
            match secrets::environment(&self.shared.tools.client, &job.key.namespace, &job.spec.task.env).await {
                Ok(_) => Ok(None),
                Err(secrets::Unresolved::Missing(missing)) => Ok(Some(missing)),
                Err(secrets::Unresolved::Call(error)) => Err(error.into()),
            }
        }
        .boxed()
    }

    fn readiness(&self, class: &JobClass) -> Option<(Readiness, String)> {
        let reference = class.spec.parameters_ref.as_ref().filter(|reference| reference.kind == KIND_OPENSANDBOX)?;
        let parameters = self.shared.tools.parameters.get(&ObjectKey::new("", reference.name.as_str()))?;
        // By UID: one that was deleted and made again is another.
        match self.shared.endpoint(&parameters.uid, &reference.name, &parameters.object.spec) {
            Ok(endpoint) => endpoint.readiness(),
            Err(why) => Some((Readiness::InvalidParameters, format!("{KIND_OPENSANDBOX} {}: {why}", reference.name))),
        }
    }

    fn ensure<'a>(&'a self, job: Target<'a>, admission: Option<&'a Admission>) -> BoxFuture<'a, Result<Option<Attempt>, OperationError>> {
        async move {
            let Ok(Some(task)) = self.shared.task(job, admission) else { return Ok(None) };
            let now = self.shared.tools.time.now();
            let page = self.shared.page(&task, now);
            let errand = if task.recorded.is_some() { Errand::Start } else { Errand::Acquire };
            // A start follows a look that has just shown that there was none; an attempt has its time.
            if errand == Errand::Start || page.shown.look_again.is_none_or(|due| now >= due) {
                self.shared.spawn(task, errand);
            }
            Ok(None)
        }
        .boxed()
    }

    fn observe<'a>(&'a self, job: Target<'a>, admission: Option<&'a Admission>, freshness: Freshness) -> BoxFuture<'a, Result<Seen, OperationError>> {
        async move {
            self.shared.begin_term(job.term);
            Ok(self.see(job, admission, freshness).await)
        }
        .boxed()
    }

    fn cancel<'a>(&'a self, job: Target<'a>) -> BoxFuture<'a, Result<(), OperationError>> {
        self.send_off(job, Errand::Stop);
        futures::future::ready(Ok(())).boxed()
    }

    fn delete<'a>(&'a self, job: Target<'a>, extent: Extent) -> BoxFuture<'a, Result<(), OperationError>> {
        async move {
            if extent == Extent::Orphaned {
                return self.remove_orphan(job).await;
            }
            self.send_off(job, Errand::Remove);
            Ok(())
        }
        .boxed()
    }

    fn run(&self, stop: CancellationToken) -> BoxFuture<'_, ()> {
        sweep::run(self.shared.clone(), stop).boxed()
    }
}

impl OpenSandbox {
    /// Begins an errand about a Job that was observed before, unless its last attempt asked for time.
    fn send_off(&self, job: Target<'_>, errand: Errand) {
        let Ok(Some(task)) = self.shared.task(job, None) else { return };
        let now = self.shared.tools.time.now();
        let waits = |page: Page| page.last == Some(errand) && page.shown.look_again.is_some_and(|due| now < due);
        let is_waiting = self.shared.book.get(job.key, job.uid).is_some_and(waits);
        if !is_waiting {
            self.shared.spawn(task, errand);
        }
    }

    /// The Job is gone: nothing waits for it, so it is done here.
    async fn remove_orphan(&self, job: Target<'_>) -> Result<(), OperationError> {
        let Some(page) = self.shared.book.get(job.key, job.uid) else { return Ok(()) };
        let task = self.shared.orphan(job, page.endpoint.clone());
        self.shared.begin_term(job.term);
        let page = self.shared.page(&task, self.shared.tools.time.now());
        let (removing, facts) = (task.clone(), page.facts.clone());
        let removed = task.endpoint.on_the_spot(async move {
            let mut facts = facts.lock().await;
            removing.remove_all(&mut facts).await
        });
        match removed.await {
            Some(Ok(())) => {
                self.shared.book.forget(job.key, job.uid);
                Ok(())
            }
            Some(Err(task::Trouble::NotLeader(error))) => Err(error.into()),
            Some(Err(task::Trouble::Call(error))) => Err(error.into()),
            // Tried again, and at the next sweep.
            Some(Err(_)) | None => Err(CallError::NotSent("a sandbox of a Job that is gone is not removed yet".to_owned()).into()),
        }
    }
}

/// The parameters are gone, and with them the only way to ask.
fn without_a_server(job: Target<'_>) -> Seen {
    let mut seen = Seen::default();
    if !job.recorded.is_empty() && !job.ended {
        let message = "the parameters that name the server are gone".to_owned();
        seen.backend.execution = Execution::Unknown { reason: Unobserved::BackendUnreachable, message };
        seen.backend.leftovers = true;
    }
    seen
}

/// The parameters can't be used.
fn unusable(job: Target<'_>, message: String) -> Seen {
    let mut seen = without_a_server(job);
    if job.recorded.is_empty() {
        seen.attempt = Some(Attempt::Later { reason: NotScheduled::BackendUnavailable, message, give_up: None });
    }
    seen
}
