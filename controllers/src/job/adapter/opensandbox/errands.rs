//! What errands share: which server a Job is on, what is remembered of it, and how one is begun.

use std::sync::Arc;
use std::time::Duration;

use berth_runtime::lock;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::Mutex as AsyncMutex;

use super::Shared;
use super::calls::Calls;
use super::endpoint::Endpoint;
use super::own_secrets::{self, Installation, NoInstallation};
use super::page::{Errand, Facts, Page, Recorded};
use super::task::Task;
use crate::job::adapter::Target;
use crate::job::api::opensandbox::OpenSandboxExecutionParametersSpec;
use crate::job::api::resources::ResourceRequirements;
use crate::job::machine::{Execution, after};
use crate::job::resolve::{Admission, Parameters};

/// A Job that is older than our term by that much may have been at work in another's: times of objects are whole seconds.
const INHERITED: Duration = Duration::from_secs(2);

/// How soon what panicked is tried again.
const AFTER_PANIC: Duration = Duration::from_secs(15);

impl Shared {
    /// Takes note of the term that is spoken of.
    pub(super) fn begin_term(&self, term: u64) {
        let mut known = lock(&self.term);
        if known.0 != term {
            *known = (term, self.tools.time.now());
        }
    }

    pub(super) fn is_inherited(&self, created: Timestamp) -> bool {
        created <= after(lock(&self.term).1, INHERITED)
    }

    /// What is to be done about a Job; None if nobody knows on which server.
    pub(super) fn task(self: &Arc<Self>, job: Target<'_>, admission: Option<&Admission>) -> Result<Option<Task>, String> {
        let known = self.book.get(job.key, job.uid);
        let (endpoint, resources) = match admission {
            Some(Admission { class, resources, parameters: Parameters::OpenSandbox(spec) }) => {
                let Some(reference) = &class.parameters_ref else { return Ok(None) };
                (self.endpoint(&reference.uid, &reference.name, spec)?, resources.clone())
            }
            _ => match known {
                Some(page) => (page.endpoint, ResourceRequirements::default()),
                None => return Ok(None),
            },
        };
        Ok(Some(self.task_on(endpoint, job, resources)))
    }

    fn task_on(self: &Arc<Self>, endpoint: Arc<Endpoint>, job: Target<'_>, resources: ResourceRequirements) -> Task {
        Task {
            shared: self.clone(),
            key: job.key.clone(),
            uid: Arc::from(job.uid),
            created: job.created,
            spec: Arc::new(job.spec.clone()),
            recorded: Recorded::of(job.recorded),
            ended: job.ended,
            inherited: self.is_inherited(job.created),
            term: job.term,
            endpoint,
            resources,
        }
    }

    /// What is to be done about a Job that is gone.
    pub(super) fn orphan(self: &Arc<Self>, job: Target<'_>, endpoint: Arc<Endpoint>) -> Task {
        let task = self.task_on(endpoint, job, ResourceRequirements::default());
        Task { spec: Arc::default(), recorded: Recorded::default(), ended: true, inherited: true, ..task }
    }

    /// The server of those parameters; made anew when what may be changed of them has.
    pub(super) fn endpoint(&self, uid: &str, name: &str, spec: &OpenSandboxExecutionParametersSpec) -> Result<Arc<Endpoint>, String> {
        let mut endpoints = lock(&self.endpoints);
        if let Some(endpoint) = endpoints.get(uid).filter(|endpoint| *endpoint.spec == *spec) {
            return Ok(endpoint.clone());
        }
        let calls = Arc::new(Calls(self.tools.steps.clone()));
        let endpoint = Arc::new(Endpoint::new(Arc::from(name), Arc::new(spec.clone()), calls)?);
        endpoints.insert(uid.to_owned(), endpoint.clone());
        Ok(endpoint)
    }

    /// What is remembered of the Job in this term.
    pub(super) fn page(&self, task: &Task, now: Timestamp) -> Page {
        self.book.page(&task.key, &task.uid, task.term, || {
            let mut facts = Facts::of(task.recorded.clone());
            let recorded = task.recorded.is_some();
            if recorded {
                // Whoever gave it a life gave it no longer one than that.
                facts.lives_until = Some(task.life_at_most(now));
                facts.look_for_strays = true;
                facts.execution = Execution::Unreachable { failures: 0, since: now, message: "not looked at yet".to_owned() };
            }
            let mut shown = facts.seen(recorded, now);
            // Another leader may have made one.
            shown.backend.leftovers |= !recorded && task.inherited && !task.ended;
            Page { facts: Arc::new(AsyncMutex::new(facts)), shown, ..Page::new(task.uid.clone(), task.term, task.endpoint.clone()) }
        })
    }

    /// Begins an errand, unless one is under way.
    pub(super) fn spawn(self: &Arc<Self>, task: Task, errand: Errand) {
        let begun = self.book.change(&task.key, &task.uid, task.term, |page| {
            page.endpoint = task.endpoint.clone();
            page.busy.is_none().then(|| {
                page.busy = Some(errand);
                page.facts.clone()
            })
        });
        let Some(facts) = begun.flatten() else { return };
        let span = tracing::info_span!("errand", kind = ?errand, object = %task.key);
        let work = async move {
            let mut done = Done { task: task.clone(), is_written: false };
            let mut facts = facts.lock().await;
            task.carry_out(errand, &mut facts).await;
            let shown = facts.seen(task.recorded.is_some(), task.shared.tools.time.now());
            let is_over = task.ended && !shown.backend.leftovers;
            task.shared.book.change(&task.key, &task.uid, task.term, |page| {
                page.shown = shown;
                page.last = page.busy.take();
            });
            done.is_written = true;
            if is_over {
                task.shared.book.forget(&task.key, &task.uid);
            }
        };
        tokio::spawn(tracing::Instrument::instrument(work, span));
    }

    /// What makes this installation itself.
    pub(super) async fn installation(&self) -> Result<&Installation, NoInstallation> {
        self.installation.get_or_try_init(|| own_secrets::installation(&self.tools.client, &self.tools.secrets.installation)).await
    }
}

/// Wakes the Job when an errand is over, also one that panicked, which is as good as one that came to nothing.
struct Done {
    task: Task,
    /// What came of it is on the page, which may be another errand's already.
    is_written: bool,
}

impl Drop for Done {
    fn drop(&mut self) {
        let Self { task, is_written } = self;
        if !*is_written {
            task.shared.book.change(&task.key, &task.uid, task.term, |page| {
                page.last = page.busy.take();
                page.shown.look_again = Some(after(task.now(), AFTER_PANIC));
            });
        }
        (task.shared.wake.job)(task.key.clone());
    }
}
