//! What the informers keep of Jobs and Namespaces, and how each kind is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::decode::decode;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::job::adapter::kubernetes::seen::{SeenNative, SeenPod};
use crate::job::api::names::{ANNOTATION_CONFIRM_LOST, ANNOTATION_CONFIRMED_BY, FINALIZER_JOB_CLEANUP};
use crate::job::api::spec::TaskSpec;
use crate::job::api::status::JobStatus;
use crate::job::api::{JOB, JOB_CLASS, Job, JobClass, KUBERNETES, KubernetesExecutionParameters, OPENSANDBOX, OpenSandboxExecutionParameters};
use crate::job::machine::JobFacts;

/// A Job in the informer's store: without what nobody needs, and of one that has ended without its task.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenJob {
    /// The object.
    pub job: Job,
}

impl SeenJob {
    /// What is kept of a Job.
    pub fn of(mut job: Job) -> Self {
        job.metadata.managed_fields = None;
        if job.status.as_ref().is_some_and(|status| status.completion_time.is_some()) {
            // A finished Job is never executed: its argv and environment may be large, and there may be many.
            job.spec.task = TaskSpec { image: std::mem::take(&mut job.spec.task.image), ..TaskSpec::default() };
        }
        Self { job }
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.job.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The status.
    pub fn status(&self) -> Option<&JobStatus> {
        self.job.status.as_ref()
    }

    /// What a decision looks at.
    pub fn facts(&self) -> JobFacts<'_> {
        let meta = &self.job.metadata;
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|annotations| annotations.get(key));
        JobFacts {
            generation: meta.generation.unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: meta.deletion_timestamp.is_some(),
            finalizer: meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER_JOB_CLEANUP),
            loss_confirmed: annotation(ANNOTATION_CONFIRM_LOST).is_some_and(|uid| Some(uid) == meta.uid.as_ref()),
            loss_confirmed_by: annotation(ANNOTATION_CONFIRMED_BY).map(String::as_str),
            spec: &self.job.spec,
            status: self.job.status.as_ref(),
        }
    }

    /// UID of the class that a Job which has not ended was accepted under.
    pub fn class_in_use(&self) -> Option<Arc<str>> {
        let status = self.status().filter(|status| status.completion_time.is_none())?;
        Some(Arc::from(status.resolved_job_class.as_ref()?.uid.as_str()))
    }

    /// As [`class_in_use`](Self::class_in_use), of the parameters.
    pub fn parameters_in_use(&self) -> Option<Arc<str>> {
        let status = self.status().filter(|status| status.completion_time.is_none())?;
        Some(Arc::from(status.resolved_job_class.as_ref()?.parameters_ref.as_ref()?.uid.as_str()))
    }

    /// Whether it waits to be accepted.
    pub fn waits(&self) -> bool {
        self.status().is_none_or(|status| status.completion_time.is_none() && status.resolved_job_class.is_none())
    }
}

/// A Namespace: what classes and their default go by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenNamespace {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of this group.
    pub annotations: BTreeMap<String, String>,
}

/// Reads a Job.
///
/// # Errors
/// It can't be read; which field, and why.
pub fn read_job(value: Value) -> Result<SeenJob, String> {
    decode::<Job>("Job", &JOB, value).map(SeenJob::of).map_err(|error| error.to_string())
}

/// Reads a JobClass; as [`read_job`].
///
/// # Errors
/// As [`read_job`].
pub fn read_class(value: Value) -> Result<JobClass, String> {
    decode("JobClass", &JOB_CLASS, value).map_err(|error| error.to_string())
}

/// Reads KubernetesExecutionParameters; as [`read_job`].
///
/// # Errors
/// As [`read_job`].
pub fn read_kubernetes(value: Value) -> Result<KubernetesExecutionParameters, String> {
    decode("KubernetesExecutionParameters", &KUBERNETES, value).map_err(|error| error.to_string())
}

/// Reads OpenSandboxExecutionParameters; as [`read_job`].
///
/// # Errors
/// As [`read_job`].
pub fn read_opensandbox(value: Value) -> Result<OpenSandboxExecutionParameters, String> {
    decode("OpenSandboxExecutionParameters", &OPENSANDBOX, value).map_err(|error| error.to_string())
}

/// Reads a Namespace.
///
/// # Errors
/// None; what can't be read is absent.
pub fn read_namespace(value: Value) -> Result<SeenNamespace, String> {
    let map = |at: &str| -> BTreeMap<String, String> {
        let members = value.pointer(at).and_then(Value::as_object).into_iter().flatten();
        members.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    };
    let mut annotations = map("/metadata/annotations");
    annotations.retain(|key, _| crate::job::adapter::kubernetes::names::is_ours(key));
    Ok(SeenNamespace { labels: map("/metadata/labels"), annotations })
}

/// Reads a native Job.
///
/// # Errors
/// It can't be read.
pub fn read_native(value: Value) -> Result<SeenNative, String> {
    serde_json::from_value::<batch::Job>(value).map(|job| SeenNative::of(&job)).map_err(|error| error.to_string())
}

/// Reads a Pod.
///
/// # Errors
/// It can't be read.
pub fn read_pod(value: Value) -> Result<SeenPod, String> {
    serde_json::from_value::<Pod>(value).map(|pod| SeenPod::of(&pod)).map_err(|error| error.to_string())
}
