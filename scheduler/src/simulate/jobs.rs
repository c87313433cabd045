//! Jobs of the input: whether their class would take them and why not, by the rule that `serve` resolves them by. Nothing is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::conditions;
use berth_api::decode::{InvalidObject, decode};
use berth_api::rules::{Definition, FieldError};
use berth_controllers::job::api::names::{ANNOTATION_DEFAULT_CLASS, CONTROLLER_KUBERNETES, CONTROLLER_OPENSANDBOX, GROUP, condition};
use berth_controllers::job::api::resources::ResourceRequirements;
use berth_controllers::job::api::spec::DesiredState;
use berth_controllers::job::api::{JOB, JOB_CLASS, Job, JobClass, KUBERNETES, KubernetesExecutionParameters, OPENSANDBOX, OpenSandboxExecutionParameters};
use berth_controllers::job::controller::{SeenNamespace, read_namespace};
use berth_controllers::job::reason::{Failure, NotAccepted, VALID};
use berth_controllers::job::resolve::{Catalog, KIND_KUBERNETES, KIND_OPENSANDBOX, NamespaceFacts, Policy, Resolution, recall, resolve};
use berth_framework::model::ObjectKey;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use super::read::Place;
use super::world::key_of;

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
    /// Whether it is or would be accepted; null if it is not judged: another controller's, or ended or about to end without being accepted.
    pub accepted: Option<bool>,
    /// Reason of Accepted, as `Valid` or `ResourcesOutOfRange`; `Invalid` if the API refuses it; that of Succeeded if it ended, or will, without being accepted.
    pub reason: String,
    /// Everything that is wrong.
    pub message: String,
    /// The class that it names, or its Namespace for it, if the input has it; of an accepted Job, the one of its status.
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
    /// Where each object stands, and for a Job its place in `jobs`.
    known: BTreeMap<(String, ObjectKey), (Place, usize)>,
    /// Names of classes that the API would refuse.
    refused_classes: BTreeSet<String>,
}

/// What became of an object.
pub enum Taken {
    /// It is the first of its name.
    First,
    /// It is applied over the one that stands there.
    Over(Place),
    /// The API would refuse that change of the one that stands there, which counts.
    Unchanged(Place, Vec<FieldError>),
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
    pub fn take(&mut self, kind: &str, definition: &Definition, value: &Value, place: &Place) -> Result<Taken, InvalidObject> {
        let mut stored = definition.stored(value);
        let key = key_of(value);
        let Some((twin, index)) = self.known.get(&(kind.to_owned(), key.clone())).cloned() else {
            let index = self.jobs.len();
            self.keep(kind, definition, stored, None)?;
            self.known.insert((kind.to_owned(), key), (place.clone(), index));
            return Ok(Taken::First);
        };
        let old = self.stored(kind, &key.name, index);
        if let (Some(members), Some(status)) = (stored.as_object_mut(), old.get("status").filter(|status| !status.is_null())) {
            members.entry("status").or_insert_with(|| status.clone());
        }
        let problems = definition.validate_update(&stored, &old);
        if !problems.is_empty() {
            return Ok(Taken::Unchanged(twin, problems));
        }
        self.keep(kind, definition, stored, Some(index))?;
        self.known.insert((kind.to_owned(), key), (place.clone(), index));
        Ok(Taken::Over(twin))
    }

    #[expect(clippy::result_large_err, reason = "the value itself is larger still")]
    fn keep(&mut self, kind: &str, definition: &Definition, stored: Value, over: Option<usize>) -> Result<(), InvalidObject> {
        match kind {
            KIND_JOB => {
                let job = Ok(decode("Job", definition, stored)?);
                match over.and_then(|index| self.jobs.get_mut(index)) {
                    Some(old) => *old = job,
                    None => self.jobs.push(job),
                }
            }
            KIND_CLASS => keep(&mut self.classes, decode("JobClass", definition, stored)?),
            KIND_KUBERNETES => keep(&mut self.kubernetes, decode(KIND_KUBERNETES, definition, stored)?),
            _ => keep(&mut self.opensandbox, decode(KIND_OPENSANDBOX, definition, stored)?),
        }
        Ok(())
    }

    /// An object that was taken, as it was.
    fn stored(&self, kind: &str, name: &str, index: usize) -> Value {
        match kind {
            KIND_JOB => self.jobs.get(index).and_then(|job| serde_json::to_value(job.as_ref().ok()?).ok()),
            KIND_CLASS => self.classes.get(name).and_then(|class| serde_json::to_value(&**class).ok()),
            KIND_KUBERNETES => self.kubernetes.get(name).and_then(|parameters| serde_json::to_value(&**parameters).ok()),
            _ => self.opensandbox.get(name).and_then(|parameters| serde_json::to_value(&**parameters).ok()),
        }
        .unwrap_or_default()
    }

    /// Takes a Namespace: its labels and the default class.
    pub fn take_namespace(&mut self, name: &str, value: Value) {
        if let Ok(mut seen) = read_namespace(value) {
            // As the API server labels every Namespace.
            seen.labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
            self.namespaces.insert(name.to_owned(), seen);
        }
    }

    /// Notes an object that the API refuses; true if its report will tell.
    pub fn refuse(&mut self, kind: &str, key: &ObjectKey, message: &str) -> bool {
        let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
        match kind {
            KIND_JOB => {
                let (reason, message) = ("Invalid".to_owned(), message.to_owned());
                self.jobs.push(Err(JobReport { namespace, name, accepted: Some(false), reason, message, job_class: None, effective_resources: None }));
                true
            }
            KIND_CLASS => {
                self.refused_classes.insert(name);
                false
            }
            _ => false,
        }
    }

    /// Whether there is a Job of that name.
    pub fn has(&self, key: &ObjectKey) -> bool {
        self.known.contains_key(&(KIND_JOB.to_owned(), key.clone()))
    }

    /// What becomes of each, in input order.
    pub fn judge(&self) -> Vec<JobReport> {
        self.jobs.iter().map(|job| job.as_ref().map_or_else(Clone::clone, |job| self.judged(job))).collect()
    }

    fn judged(&self, job: &Job) -> JobReport {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let report = |accepted, reason: &str, message: String| JobReport {
            namespace: namespace.clone(),
            name: name.clone(),
            accepted,
            reason: reason.to_owned(),
            message,
            job_class: None,
            effective_resources: None,
        };
        if let Some((accepted, reason, message)) = self.settled(job) {
            let status = job.status.clone().unwrap_or_default();
            return JobReport {
                job_class: status.resolved_job_class.map(|class| class.name),
                effective_resources: status.effective_resources,
                ..report(accepted, &reason, message)
            };
        }
        let nothing = SeenNamespace::default();
        let seen = self.namespaces.get(&namespace).unwrap_or(&nothing);
        let facts = NamespaceFacts { name: &namespace, labels: &seen.labels, annotations: &seen.annotations };
        // As `serve`: no controller holds the classes of an input.
        let policy = Policy { controllers: &[CONTROLLER_KUBERNETES, CONTROLLER_OPENSANDBOX], classes_are_held: false };
        let named = job.spec.job_class_name.as_ref().or_else(|| seen.annotations.get(ANNOTATION_DEFAULT_CLASS)).cloned();
        let told = match resolve(&job.spec, facts, self, policy) {
            Resolution::Admitted(admission) => JobReport { effective_resources: Some(admission.resources.clone()), ..report(Some(true), VALID, String::new()) },
            Resolution::Refused { reason, message } => {
                let missing = self.missing(reason, &namespace, named.as_deref());
                report(Some(false), reason.as_str(), message + &missing)
            }
            Resolution::Foreign | Resolution::Gone { .. } => report(None, "", "its class belongs to another controller".to_owned()),
        };
        JobReport { job_class: named.filter(|name| self.classes.contains_key(name)), ..told }
    }

    /// What the input lacks, or has otherwise: the cluster may know more.
    fn missing(&self, reason: NotAccepted, namespace: &str, class: Option<&str>) -> String {
        match (reason, class) {
            (NotAccepted::NoDefaultClass | NotAccepted::NamespaceNotAllowed, _) if !self.namespaces.contains_key(namespace) => {
                format!(" (the input has no Namespace {namespace})")
            }
            (NotAccepted::JobClassNotFound, Some(name)) if self.refused_classes.contains(name) => " (the API would refuse the one of the input)".to_owned(),
            (NotAccepted::JobClassNotFound, _) if self.classes.is_empty() => " (the input has no JobClass)".to_owned(),
            (NotAccepted::JobClassNotFound, Some(name)) => {
                let nearest = self.classes.keys().map(|known| (strsim::levenshtein(known, name), known)).min();
                nearest.filter(|(distance, _)| *distance <= 3).map_or_else(String::new, |(_, known)| format!("; did you mean {known}?"))
            }
            _ => String::new(),
        }
    }

    /// What is not judged, or never again: whether it was accepted, reason and message.
    fn settled(&self, job: &Job) -> Option<(Option<bool>, String, String)> {
        let status = job.status.clone().unwrap_or_default();
        if status.resolved_job_class.is_some() {
            let again = "it was accepted and is not judged again";
            // Its parameters matter until it has its execution.
            let gone = if status.execution.is_none() && status.completion_time.is_none() { recall(&status, self).err() } else { None };
            return Some((Some(true), VALID.to_owned(), gone.map_or_else(|| again.to_owned(), |gone| format!("{again}, but can't go on: {gone}"))));
        }
        if let (Some(_), Some(end)) = (&status.completion_time, conditions::find(&status.conditions, condition::SUCCEEDED)) {
            return Some((None, end.reason.clone(), "it has ended and is not judged again".to_owned()));
        }
        let why = match job.spec.desired_state {
            _ if job.metadata.deletion_timestamp.is_some() => "it is being deleted, and was not accepted before",
            DesiredState::Cancelled => "desiredState is Cancelled: it ends without being accepted",
            DesiredState::Running | DesiredState::Unknown(_) => return None,
        };
        Some((None, Failure::Cancelled.as_str().to_owned(), why.to_owned()))
    }
}

fn keep<K: kube::Resource>(into: &mut BTreeMap<String, Arc<K>>, object: K) {
    into.insert(object.name_any(), Arc::new(object));
}
