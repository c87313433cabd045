//! Writes about a Job: each is a compare-and-set on the version that was decided on, in the term it was decided in.

use std::sync::Arc;
use std::time::Duration;

use berth_runtime::apiclient::{CallError, Precondition, annotations_merge_patch, finalizers_merge_patch, get_uncached, merge_difference, status_merge_patch};
use berth_runtime::events::{EventType, Occurrence, Regarding};
use berth_runtime::informer::Stored;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use serde_json::json;

use super::announce::news;
use super::{Controller, SeenJob};
use crate::job::adapter::OperationError;
use crate::job::api::Job;
use crate::job::api::names::{ANNOTATION_CONFIRM_LOST, ANNOTATION_CONFIRMED_BY, FINALIZER_JOB_CLEANUP};
use crate::job::api::status::JobStatus;
use crate::job::machine::{State, after};
use crate::job::measure::{Group, Step, span, steps};
use berth_runtime::lock;

/// The list without that item.
pub(super) fn without(list: &[String], item: &str) -> Vec<String> {
    list.iter().filter(|other| *other != item).cloned().collect()
}

/// Whether a version of an object is older than another of the same one (they are numbers that grow: KEP-5504).
fn is_older(version: &str, than: &str) -> bool {
    version.parse::<u64>().ok().zip(than.parse::<u64>().ok()).is_some_and(|(version, than)| version < than)
}

impl Controller {
    pub(super) fn jobs_in(&self, namespace: &str) -> Api<Job> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    /// The Job as it is now, if it is still the same one.
    pub(super) async fn read_again(&self, stored: &Stored<SeenJob>) -> Result<Option<Stored<SeenJob>>, CallError> {
        let read = get_uncached(&self.jobs_in(&stored.key.namespace), &stored.key.name).await?;
        let Some(job) = read.filter(|job| job.metadata.uid.as_deref() == Some(&*stored.uid)) else { return Ok(None) };
        let resource_version = Arc::from(job.metadata.resource_version.as_deref().unwrap_or_default());
        Ok(Some(Stored { key: stored.key.clone(), uid: stored.uid.clone(), resource_version, object: Arc::new(SeenJob::of(job)) }))
    }

    /// Reads what became of a write without an answer.
    async fn reread(&self, stored: &Stored<SeenJob>) -> Result<Option<Stored<SeenJob>>, CallError> {
        self.stepped(stored, &Step::AnswerLost);
        self.read_again(stored).await
    }

    /// Tells the observer.
    pub(super) fn stepped(&self, stored: &Stored<SeenJob>, step: &Step) {
        self.context.steps.stepped(&Group::of(stored.object.status()), step);
    }

    /// Writes the status; answers the version that it is then.
    pub(super) async fn write_status(&self, stored: &Stored<SeenJob>, wanted: &JobStatus, term: u64) -> Result<Arc<str>, OperationError> {
        let api = self.jobs_in(&stored.key.namespace);
        let observed = Precondition { uid: &stored.uid, resource_version: &stored.resource_version };
        let patch = merge_difference(stored.object.status(), wanted);
        let sent = {
            let _sending = self.context.fence.begin(term)?;
            status_merge_patch(&api, &stored.key.name, observed, &patch).await
        };
        let version: Arc<str> = match sent {
            Ok(written) => Arc::from(written.resource_version),
            Err(error) if error.is_ambiguous() => match self.reread(stored).await? {
                Some(now) if now.object.status() == Some(wanted) => {
                    tracing::info!(%error, "the answer of a write was lost; a read shows that it took effect");
                    now.resource_version
                }
                _ => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        self.context.steps.wrote("Job", "patch");
        lock(&self.outdated).insert(stored.key.clone(), version.clone());
        self.tell(stored, wanted);
        Ok(version)
    }

    fn tell(&self, stored: &Stored<SeenJob>, wanted: &JobStatus) {
        let job = &stored.object.job;
        let deleting = job.metadata.deletion_timestamp.is_some();
        let state = |status| State::of(deleting, &job.spec, status);
        let (from, to) = (state(stored.object.status()), state(Some(wanted)));
        if from != to {
            tracing::info!(uid = &*stored.uid, from = from.name(), to = to.name(), "job state");
        }
        let group = Group::of(Some(wanted));
        steps(stored.object.facts(), wanted).iter().for_each(|step| self.context.steps.stepped(&group, step));
        for (type_, reason, note) in news(stored.object.status(), wanted) {
            self.publish(stored, type_, reason, note);
        }
    }

    pub(super) fn publish(&self, stored: &Stored<SeenJob>, type_: EventType, reason: &'static str, note: String) {
        let regarding = Regarding::of::<Job>(stored.key.clone(), stored.uid.clone());
        self.context.recorder.publish(Occurrence { regarding, type_, reason, action: "Execute", note });
    }

    /// Puts the finalizer onto the Job, or takes it off.
    pub(super) async fn set_finalizer(&self, stored: &Stored<SeenJob>, version: &str, on: bool, term: u64) -> Result<(), OperationError> {
        let current = stored.object.job.metadata.finalizers.as_deref().unwrap_or_default();
        let mut wanted = without(current, FINALIZER_JOB_CLEANUP);
        if on {
            wanted.push(FINALIZER_JOB_CLEANUP.to_owned());
        }
        let observed = Precondition { uid: &stored.uid, resource_version: version };
        {
            let _sending = self.context.fence.begin(term)?;
            finalizers_merge_patch(&self.jobs_in(&stored.key.namespace), &stored.key.name, observed, &wanted).await?;
        }
        self.context.steps.wrote("Job", "patch");
        if let (false, Some(deletion)) = (on, &stored.object.job.metadata.deletion_timestamp) {
            self.stepped(stored, &Step::CleanedUp(span(deletion.0, self.context.time.now())));
        }
        Ok(())
    }

    /// Takes the confirmation of a loss off the Job, and who gave it.
    pub(super) async fn drop_confirmation(&self, stored: &Stored<SeenJob>, version: &str, term: u64) -> Result<(), OperationError> {
        let annotations = json!({ANNOTATION_CONFIRM_LOST: null, ANNOTATION_CONFIRMED_BY: null});
        let observed = Precondition { uid: &stored.uid, resource_version: version };
        {
            let _sending = self.context.fence.begin(term)?;
            annotations_merge_patch(&self.jobs_in(&stored.key.namespace), &stored.key.name, observed, &annotations).await?;
        }
        self.context.steps.wrote("Job", "patch");
        let note = "the execution is seen again: the confirmation of its loss was taken away".to_owned();
        self.publish(stored, EventType::Warning, "ConfirmationOvertaken", note);
        Ok(())
    }

    /// Deletes the Job whose time to live is over: exactly the version in which that was read.
    pub(super) async fn expire(&self, stored: &Stored<SeenJob>, version: &str, term: u64) -> Result<(), OperationError> {
        let exactly = Preconditions { uid: Some(stored.uid.to_string()), resource_version: Some(version.to_owned()) };
        let _sending = self.context.fence.begin(term)?;
        self.jobs_in(&stored.key.namespace).delete(&stored.key.name, &DeleteParams::background().preconditions(exactly)).await.map_err(CallError::from)?;
        self.context.steps.wrote("Job", "delete");
        tracing::info!(uid = &*stored.uid, "job deleted: its time to live is over");
        let job = &stored.object.job;
        let due = job.status.as_ref().and_then(|status| status.completion_time.as_ref()).zip(job.spec.ttl_seconds_after_finished);
        if let Some((completion, ttl)) = due {
            let due = after(completion.0, Duration::from_secs(u64::from(ttl.unsigned_abs())));
            self.stepped(stored, &Step::Expired(span(due, self.context.time.now())));
        }
        Ok(())
    }

    /// Whether the cache still shows a version from before a write of ours. It will tell of the write.
    pub(super) fn is_outdated(&self, stored: &Stored<SeenJob>) -> bool {
        let mut outdated = lock(&self.outdated);
        let Some(written) = outdated.get(&stored.key) else { return false };
        let older = is_older(&stored.resource_version, written);
        if !older {
            outdated.remove(&stored.key);
        }
        older
    }
}
