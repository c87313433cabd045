//! What is known of classes, parameters and Namespaces, and which Jobs wait for which of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_runtime::ObjectKey;
use berth_runtime::informer::{Index, Informer};

use super::seen::{SeenJob, SeenNamespace};
use crate::job::api::names::ANNOTATION_DEFAULT_CLASS;
use crate::job::api::spec::JobSpec;
use crate::job::api::{JobClass, KubernetesExecutionParameters, OpenSandboxExecutionParameters};
use crate::job::resolve::{Catalog, NamespaceFacts, Policy, Resolution, resolve};

/// What a Job that is not accepted waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WaitsFor {
    /// The class of that name.
    Class(Arc<str>),
    /// The default class of that Namespace.
    DefaultOf(Arc<str>),
}

/// Clones share.
#[derive(Clone)]
pub(super) struct Known {
    classes: Informer<JobClass>,
    kubernetes: Informer<KubernetesExecutionParameters>,
    opensandbox: Informer<OpenSandboxExecutionParameters>,
    namespaces: Informer<SeenNamespace>,
    waiting: Index<WaitsFor, SeenJob>,
    waiting_in: Index<Arc<str>, SeenJob>,
    /// Namespaces by their default class.
    defaults: Index<Arc<str>, SeenNamespace>,
    /// Classes by kind and name of their parameters.
    by_parameters: Index<(String, String), JobClass>,
}

fn cluster(name: &str) -> ObjectKey {
    ObjectKey::new("", name)
}

impl Known {
    pub fn new(
        classes: Informer<JobClass>,
        kubernetes: Informer<KubernetesExecutionParameters>,
        opensandbox: Informer<OpenSandboxExecutionParameters>,
        namespaces: Informer<SeenNamespace>,
        jobs: &Informer<SeenJob>,
    ) -> Self {
        let waiting = jobs.index(|key, job: &SeenJob| {
            job.waits().then(|| match &job.job.spec.job_class_name {
                Some(name) => WaitsFor::Class(Arc::from(name.as_str())),
                None => WaitsFor::DefaultOf(key.namespace.clone()),
            })
        });
        let waiting_in = jobs.index(|key, job: &SeenJob| job.waits().then(|| key.namespace.clone()));
        let defaults =
            namespaces.index(|_, namespace: &SeenNamespace| namespace.annotations.get(ANNOTATION_DEFAULT_CLASS).map(|name| Arc::from(name.as_str())));
        let by_parameters =
            classes.index(|_, class: &JobClass| class.spec.parameters_ref.as_ref().map(|reference| (reference.kind.clone(), reference.name.clone())));
        Self { classes, kubernetes, opensandbox, namespaces, waiting, waiting_in, defaults, by_parameters }
    }

    /// Resolves a Job that is not accepted yet.
    pub fn resolve(&self, spec: &JobSpec, namespace: &str, controllers: &[&str]) -> Resolution {
        let none = BTreeMap::new();
        let seen = self.namespaces.get(&cluster(namespace));
        let facts = NamespaceFacts {
            name: namespace,
            labels: seen.as_ref().map_or(&none, |seen| &seen.object.labels),
            annotations: seen.as_ref().map_or(&none, |seen| &seen.object.annotations),
        };
        resolve(spec, facts, self, Policy { controllers, classes_are_held: true })
    }

    /// Jobs that wait for a class, by its name or as a default.
    pub fn jobs_of_class(&self, name: &Arc<str>) -> Vec<ObjectKey> {
        let mut jobs = self.waiting.keys(&WaitsFor::Class(name.clone()));
        for namespace in self.defaults.keys(name) {
            jobs.extend(self.waiting.keys(&WaitsFor::DefaultOf(namespace.name)));
        }
        jobs
    }

    /// Jobs that wait for a class with those parameters.
    pub fn jobs_of_parameters(&self, kind: &str, name: &str) -> Vec<ObjectKey> {
        self.classes_of_parameters(kind, name).iter().flat_map(|class| self.jobs_of_class(class)).collect()
    }

    /// Jobs that wait in a Namespace.
    pub fn jobs_of_namespace(&self, name: &Arc<str>) -> Vec<ObjectKey> {
        self.waiting_in.keys(name)
    }

    /// Names of the classes that name those parameters.
    pub fn classes_of_parameters(&self, kind: &str, name: &str) -> Vec<Arc<str>> {
        self.by_parameters.keys(&(kind.to_owned(), name.to_owned())).into_iter().map(|key| key.name).collect()
    }
}

impl Catalog for Known {
    fn class(&self, name: &str) -> Option<Arc<JobClass>> {
        self.classes.get(&cluster(name)).map(|class| class.object)
    }

    fn kubernetes(&self, name: &str) -> Option<Arc<KubernetesExecutionParameters>> {
        self.kubernetes.get(&cluster(name)).map(|parameters| parameters.object)
    }

    fn opensandbox(&self, name: &str) -> Option<Arc<OpenSandboxExecutionParameters>> {
        self.opensandbox.get(&cluster(name)).map(|parameters| parameters.object)
    }
}
