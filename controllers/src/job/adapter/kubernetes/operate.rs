//! What the adapter does: each request bears the UID that it is about, is sent in the term it was decided in, and may be repeated.

use std::time::Instant;

use berth_runtime::apiclient::{CallError, get_uncached, json_patch};
use berth_runtime::informer::Stored;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use serde_json::json;

use super::build::{built_of, native_job};
use super::names::{FINALIZER_RESULT, GATE_START, native_name};
use super::observe::{Known, may_let_go};
use super::seen::{SeenNative, SeenPod};
use super::{Kubernetes, parameters_of, recorded_pod, text};
use crate::job::adapter::{OperationError, Target};
use crate::job::api::names::ADAPTER_KUBERNETES;
use crate::job::machine::{Attempt, GiveUp};
use crate::job::measure::{Group, Operation, Outcome, Request, Step};
use crate::job::reason::{Failure, NotScheduled};
use crate::job::resolve::Admission;

impl Kubernetes {
    fn natives(&self, job: Target<'_>) -> Api<batch::Job> {
        Api::namespaced(self.tools.client.clone(), &job.key.namespace)
    }

    fn pods(&self, job: Target<'_>) -> Api<Pod> {
        Api::namespaced(self.tools.client.clone(), &job.key.namespace)
    }

    /// Makes the native Job, or clears away one that can't become the execution any more.
    pub(super) async fn acquire(&self, job: Target<'_>, admission: &Admission) -> Result<Option<Attempt>, OperationError> {
        let wanted = native_job(job.key, job.uid, job.spec, &admission.resources, &parameters_of(Some(admission)));
        let mut known = self.cached(job);
        known.wanted = built_of(&wanted);
        let Some(native) = known.own_native(job.uid) else {
            return if known.usurper(job.uid).is_some() { Ok(None) } else { self.make(job, admission, &wanted).await };
        };
        let spent = native.object.finished || !known.pods.is_empty() && known.own_pod(job.uid, None).is_none();
        if spent || !known.is_adoptable(job.uid) {
            self.remove(job, &known, false).await?;
        }
        Ok(None)
    }

    async fn make(&self, job: Target<'_>, admission: &Admission, wanted: &batch::Job) -> Result<Option<Attempt>, OperationError> {
        let api = self.natives(job);
        let error = match self.write(job, Operation::Ensure, Write(NATIVE, "create"), api.create(&PostParams::default(), wanted)).await {
            Err(OperationError::Call(error)) => error,
            other => return other.map(|_| None),
        };
        if error.is_ambiguous() {
            self.tools.steps.stepped(&Group { class: admission.class.name.clone(), adapter: ADAPTER_KUBERNETES }, &Step::AnswerLost);
        }
        let grace = super::graces(&parameters_of(Some(admission))).create;
        let later = |reason, message: &str, failure: Option<Failure>| {
            let give_up = failure.map(|failure| GiveUp { failure, after: grace });
            Some(Attempt::Later { reason, message: text::refusal(message), give_up })
        };
        Ok(match &error {
            CallError::Refused { code: 422, message, .. } => Some(Attempt::Refused { failure: Failure::BackendRejected, message: text::tidy(message) }),
            error if error.is_already_exists() || error.is_ambiguous() => match get_uncached(&api, &native_name(job.uid)).await? {
                Some(found) if SeenNative::of(&found).job_uid == job.uid => None,
                Some(_) => later(
                    NotScheduled::BackendNameConflict,
                    &format!("Job {} of batch/v1 exists and is not this Job's", native_name(job.uid)),
                    Some(Failure::BackendNameConflict),
                ),
                None => later(NotScheduled::BackendUnavailable, "the API server gave no answer", None),
            },
            CallError::Refused { code: 404, message, .. } => later(NotScheduled::BackendUnavailable, message, None),
            // Quota (403), its own conflict (409), admission, too many requests.
            CallError::Refused { message, .. } => later(NotScheduled::BackendRefuses, message, Some(Failure::BackendUnavailable)),
            _ => later(NotScheduled::BackendUnavailable, "the API server can't be reached", None),
        })
    }

    /// Takes the gate off the recorded Pod.
    pub(super) async fn start(&self, job: Target<'_>, recorded: &str) -> Result<(), OperationError> {
        let known = self.cached(job);
        let Some(pod) = known.own_pod(job.uid, Some(recorded)) else { return Ok(()) };
        let Some(index) = pod.object.gates.iter().position(|gate| gate == GATE_START) else { return Ok(()) };
        let at = format!("/spec/schedulingGates/{index}");
        let operations = json!([
            {"op": "test", "path": "/metadata/uid", "value": recorded},
            {"op": "test", "path": format!("{at}/name"), "value": GATE_START},
            {"op": "remove", "path": at},
        ]);
        self.patch_pod(job, Operation::Ensure, pod, &operations).await
    }

    /// Deletes the recorded Pod, or, with none on record, whatever could be taken for one.
    pub(super) async fn stop(&self, job: Target<'_>) -> Result<(), OperationError> {
        let known = self.cached(job);
        match known.own_pod(job.uid, recorded_pod(job)) {
            Some(pod) => self.delete_pod(job, Operation::Cancel, pod).await,
            None => Ok(()),
        }
    }

    pub(super) async fn remove_strays(&self, job: Target<'_>) -> Result<(), OperationError> {
        let known = self.cached(job);
        for pod in known.strays(recorded_pod(job)) {
            self.delete_pod(job, Operation::Delete, pod).await?;
            if pod.object.deletion.is_none() {
                self.tools.steps.stepped(&Group::of_adapter(ADAPTER_KUBERNETES), &Step::DoubleRemoved);
            }
            self.let_go(job, pod).await?;
        }
        Ok(())
    }

    /// The end is stored: what still runs beside the process is stopped, and when the native Job has seen its Pod's end the Pod is let go.
    pub(super) async fn give_up_held(&self, job: Target<'_>) -> Result<(), OperationError> {
        let known = self.cached(job);
        let Some(pod) = known.own_pod(job.uid, recorded_pod(job)) else { return Ok(()) };
        if may_let_go(&pod.object, known.own_native(job.uid).map(|native| &*native.object)) {
            return self.let_go(job, pod).await;
        }
        if pod.object.others_run { self.delete_pod(job, Operation::Delete, pod).await } else { Ok(()) }
    }

    pub(super) async fn remove_everything(&self, job: Target<'_>, even_running: bool) -> Result<(), OperationError> {
        // The cache may not show what was made a moment ago.
        let known = self.asked(job).await?;
        self.remove(job, &known, even_running).await
    }

    /// Removes the native Job and its Pods as they were read, each by UID and version: a request that comes late finds them changed, and a Pod that
    /// was started meanwhile is not taken away. Pods first, so that one that was started keeps its native Job.
    async fn remove(&self, job: Target<'_>, known: &Known, even_running: bool) -> Result<(), OperationError> {
        if let Some(pod) = known.pods.iter().find(|pod| !even_running && pod.object.may_run()) {
            tracing::info!(pod = &*pod.key.name, "nothing is removed while a process of the Pod may run");
            return Ok(());
        }
        for pod in known.pods.iter().filter(|pod| pod.object.deletion.is_none()) {
            let params = DeleteParams::default().preconditions(exactly(pod));
            gone_is_fine(
                self.write(job, Operation::Delete, Write(POD, "delete"), self.pods(job).delete(&pod.key.name, &params)).await,
                CallError::is_not_found,
            )?;
        }
        if let Some(native) = known.own_native(job.uid).filter(|native| !native.object.deleting) {
            // Always in the background: batch/v1 orphans otherwise.
            let params = DeleteParams::background().preconditions(exactly(native));
            let deleted = self.write(job, Operation::Delete, Write(NATIVE, "delete"), self.natives(job).delete(&native.key.name, &params)).await;
            gone_is_fine(deleted, CallError::is_not_found)?;
        }
        for pod in &known.pods {
            self.let_go(job, pod).await?;
        }
        Ok(())
    }

    async fn delete_pod(&self, job: Target<'_>, operation: Operation, pod: &Stored<SeenPod>) -> Result<(), OperationError> {
        if pod.object.deletion.is_some() {
            return Ok(());
        }
        let params = DeleteParams::default().preconditions(Preconditions { uid: Some(pod.uid.to_string()), resource_version: None });
        let deleted = self.write(job, operation, Write(POD, "delete"), self.pods(job).delete(&pod.key.name, &params)).await;
        gone_is_fine(deleted, |error| error.is_not_found() || error.is_conflict())
    }

    /// Takes the finalizer off a Pod.
    async fn let_go(&self, job: Target<'_>, pod: &Stored<SeenPod>) -> Result<(), OperationError> {
        let Some(index) = pod.object.finalizers.iter().position(|finalizer| finalizer == FINALIZER_RESULT) else { return Ok(()) };
        let at = format!("/metadata/finalizers/{index}");
        let operations = json!([
            {"op": "test", "path": "/metadata/uid", "value": &*pod.uid},
            {"op": "test", "path": at, "value": FINALIZER_RESULT},
            {"op": "remove", "path": at},
        ]);
        self.patch_pod(job, Operation::Delete, pod, &operations).await
    }

    async fn patch_pod(&self, job: Target<'_>, operation: Operation, pod: &Stored<SeenPod>, operations: &serde_json::Value) -> Result<(), OperationError> {
        if self.memory.is_replaced(&pod.uid, &pod.resource_version) {
            return Ok(());
        }
        match self.write(job, operation, Write(POD, "patch"), json_patch(&self.pods(job), &pod.key.name, operations)).await {
            Err(OperationError::Call(error)) if error.is_not_found() => Ok(()),
            // A test of it failed: the Pod has changed, and the change is on its way to us.
            Err(OperationError::Call(CallError::Refused { code: 422, message, .. })) => {
                tracing::debug!(pod = &*pod.key.name, message, "the Pod is not as it was");
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.memory.replaced(&pod.uid, &pod.resource_version);
                Ok(())
            }
        }
    }

    /// Sends a write in the term in which it was decided, and tells what came of it.
    async fn write<T, E: Into<CallError>>(
        &self,
        job: Target<'_>,
        operation: Operation,
        Write(kind, verb): Write,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, OperationError> {
        let _sending = self.tools.fence.begin(job.term)?;
        let answer = self.timed(operation, request).await;
        if answer.is_ok() {
            self.tools.steps.wrote(kind, verb);
        }
        Ok(answer?)
    }

    /// Sends a request, and tells how long it took and what is certain after it.
    pub(super) async fn timed<T, E: Into<CallError>>(&self, operation: Operation, request: impl Future<Output = Result<T, E>>) -> Result<T, CallError> {
        let begun = Instant::now();
        let answer = request.await.map_err(Into::into);
        let (outcome, took) = (Outcome::of(&answer), begun.elapsed());
        self.tools.steps.requested(&Request { adapter: ADAPTER_KUBERNETES, operation, outcome, took });
        answer
    }
}

/// Kind and verb of a write, as `berth_job_api_writes_total` has them.
struct Write(&'static str, &'static str);

const NATIVE: &str = "batch/Job";
const POD: &str = "Pod";

/// The object of that UID in that version.
fn exactly<T>(stored: &Stored<T>) -> Preconditions {
    Preconditions { uid: Some(stored.uid.to_string()), resource_version: Some(stored.resource_version.to_string()) }
}

/// What was to be removed is gone, as `is_gone` tells by the refusal.
fn gone_is_fine<T>(result: Result<T, OperationError>, is_gone: impl Fn(&CallError) -> bool) -> Result<(), OperationError> {
    match result {
        Err(OperationError::Call(error)) if is_gone(&error) => Ok(()),
        other => other.map(|_| ()),
    }
}
