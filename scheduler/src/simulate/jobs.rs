//! Jobs of the input: whether their class would take them and why not, by the rule that `serve` resolves them by. Nothing is executed.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::decode::{InvalidObject, decode};
use berth_api::rules::Definition;
use berth_controllers::job::api::names::{CONTROLLER_KUBERNETES, GROUP};
use berth_controllers::job::api::resources::ResourceRequirements;
use berth_controllers::job::api::{JOB, JOB_CLASS, Job, JobClass, KUBERNETES, KubernetesExecutionParameters, OPENSANDBOX, OpenSandboxExecutionParameters};
use berth_controllers::job::controller::{SeenNamespace, read_namespace};
use berth_controllers::job::resolve::{Catalog, KIND_KUBERNETES, KIND_OPENSANDBOX, NamespaceFacts, Policy, Resolution, resolve};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

/// Kind of a Job.
pub const KIND_JOB: &str = "Job";
const KIND_CLASS: &str = "JobClass";

/// One Job, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it would be accepted; null if its class belongs to another controller.
    pub accepted: Option<bool>,
    /// Reason of Accepted, as `Valid` or `ResourcesOutOfRange`; `Invalid` if the API refuses it.
    pub reason: String,
    /// Everything that is wrong.
    pub message: String,
    /// The class, if it was found.
    pub job_class: Option<String>,
    /// CPU and memory that it would have.
    pub effective_resources: Option<ResourceRequirements>,
}

/// What the input holds of Jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    jobs: Vec<Result<Job, JobReport>>,
    classes: BTreeMap<String, Arc<JobClass>>,
    kubernetes: BTreeMap<String, Arc<KubernetesExecutionParameters>>,
    opensandbox: BTreeMap<String, Arc<OpenSandboxExecutionParameters>>,
    namespaces: BTreeMap<String, SeenNamespace>,
}

impl Catalog for Jobs {
    fn class(&self, name: &str) -> Option<Arc<JobClass>> {
        self.classes.get(name).cloned()
    }
    fn kubernetes(&self, name: &str) -> Option<Arc<KubernetesExecutionParameters>> {
        self.kubernetes.get(name).cloned()
    }
    fn opensandbox(&self, name: &str) -> Option<Arc<OpenSandboxExecutionParameters>> {
        self.opensandbox.get(name).cloned()
    }
}

/// The rules of a kind of this group; None if it is none of ours.
pub fn definition(kind: &str, group: &str) -> Option<&'static Definition> {
    match (group, kind) {
        (GROUP, KIND_JOB) => Some(&JOB),
        (GROUP, KIND_CLASS) => Some(&JOB_CLASS),
        (GROUP, KIND_KUBERNETES) => Some(&KUBERNETES),
        (GROUP, KIND_OPENSANDBOX) => Some(&OPENSANDBOX),
        _ => None,
    }
}

impl Jobs {
    /// Takes an object as the API would store it.
    ///
    /// # Errors
    /// It can't be read.
    #[expect(clippy::result_large_err, reason = "the value itself is larger still")]
    pub fn take(&mut self, kind: &str, definition: &Definition, value: &Value) -> Result<(), InvalidObject> {
        let stored = definition.stored(value);
        match kind {
            KIND_JOB => self.jobs.push(Ok(decode("Job", definition, stored)?)),
            KIND_CLASS => keep(&mut self.classes, decode("JobClass", definition, stored)?),
            KIND_KUBERNETES => keep(&mut self.kubernetes, decode(KIND_KUBERNETES, definition, stored)?),
            _ => keep(&mut self.opensandbox, decode(KIND_OPENSANDBOX, definition, stored)?),
        }
        Ok(())
    }

    /// Takes a Namespace: its labels and the default class.
    pub fn take_namespace(&mut self, name: &str, value: Value) {
        if let Ok(seen) = read_namespace(value) {
            self.namespaces.insert(name.to_owned(), seen);
        }
    }

    /// Notes a Job that the API refuses.
    pub fn refuse(&mut self, namespace: &str, name: &str, message: String) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let reason = "Invalid".to_owned();
        self.jobs.push(Err(JobReport { namespace, name, accepted: Some(false), reason, message, job_class: None, effective_resources: None }));
    }

    /// What becomes of each, in input order.
    pub fn judge(&self) -> Vec<JobReport> {
        self.jobs.iter().map(|job| job.as_ref().map_or_else(Clone::clone, |job| self.judged(job))).collect()
    }

    fn judged(&self, job: &Job) -> JobReport {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let nothing = SeenNamespace::default();
        let seen = self.namespaces.get(&namespace).unwrap_or(&nothing);
        let facts = NamespaceFacts { name: &namespace, labels: &seen.labels, annotations: &seen.annotations };
        // As `serve`: no controller holds the classes of an input.
        let policy = Policy { controllers: &[CONTROLLER_KUBERNETES], classes_are_held: false };
        let report = |accepted, reason: &str, message: String| JobReport {
            namespace: namespace.clone(),
            name: name.clone(),
            accepted,
            reason: reason.to_owned(),
            message,
            job_class: None,
            effective_resources: None,
        };
        match resolve(&job.spec, facts, self, policy) {
            Resolution::Admitted(admission) => JobReport {
                job_class: Some(admission.class.name.clone()),
                effective_resources: Some(admission.resources.clone()),
                ..report(Some(true), "Valid", String::new())
            },
            Resolution::Refused { reason, message } => report(Some(false), reason.as_str(), message),
            Resolution::Foreign | Resolution::Gone { .. } => report(None, "", "its class belongs to another controller".to_owned()),
        }
    }
}

fn keep<K: kube::Resource>(into: &mut BTreeMap<String, Arc<K>>, object: K) {
    into.insert(object.name_any(), Arc::new(object));
}
