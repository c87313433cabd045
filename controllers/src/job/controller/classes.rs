//! JobClasses and parameters: held while they may be needed, and told whether they can be used.

use std::sync::Arc;

use berth_runtime::ObjectKey;
use berth_runtime::apiclient::{CallError, Precondition, ReadRetry, finalizers_merge_patch, merge_difference, read, status_merge_patch};
use berth_runtime::informer::{Change, Informer, Stored};
use berth_runtime::workqueue::Next;
use kube::Api;
use kube::api::ListParams;
use kube::core::ObjectMeta;

use super::apply::without;
use super::{Controller, SeenJob};
use crate::job::adapter::OperationError;
use crate::job::api::names::{CONTROLLER_OPENSANDBOX, FINALIZER_CLASS_IN_USE};
use crate::job::api::{Job, JobClass};
use crate::job::class_plan::{Hold, class_status, hold};
use crate::job::resolve::{KIND_KUBERNETES, KIND_OPENSANDBOX};

/// A class, or parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClassKey {
    /// JobClass of that name.
    Class(Arc<str>),
    /// KubernetesExecutionParameters of that name.
    Kubernetes(Arc<str>),
    /// OpenSandboxExecutionParameters of that name.
    OpenSandbox(Arc<str>),
}

impl ClassKey {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Class(_) => "JobClass",
            Self::Kubernetes(_) => KIND_KUBERNETES,
            Self::OpenSandbox(_) => KIND_OPENSANDBOX,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Class(name) | Self::Kubernetes(name) | Self::OpenSandbox(name) => name,
        }
    }
}

/// What a change of a Job may have freed: the class and the parameters that it no longer needs.
pub(super) fn freed_by(change: &Change<'_, SeenJob>) -> Vec<ClassKey> {
    let needed = |side: Option<&Stored<SeenJob>>| side.and_then(|job| job.object.class_in_use());
    let (Some(old), Some(before)) = (change.old, needed(change.old)) else { return Vec::new() };
    if needed(change.new) == Some(before) {
        return Vec::new();
    }
    let Some(class) = old.object.status().and_then(|status| status.resolved_job_class.as_ref()) else { return Vec::new() };
    let parameters = class.parameters_ref.as_ref().map(|reference| {
        let name = Arc::from(reference.name.as_str());
        if reference.kind == KIND_OPENSANDBOX { ClassKey::OpenSandbox(name) } else { ClassKey::Kubernetes(name) }
    });
    [ClassKey::Class(Arc::from(class.name.as_str()))].into_iter().chain(parameters).collect()
}

impl Controller {
    pub(super) async fn reconcile_class(&self, key: ClassKey) -> Next {
        let Ok(term) = self.context.fence.admitted() else { return Next::Done };
        let done = match &key {
            ClassKey::Class(name) => self.hold_class(name, term).await,
            ClassKey::Kubernetes(name) => self.hold_parameters(KIND_KUBERNETES, &self.context.informers.kubernetes, name, term).await,
            // Another process's, where this one has no such adapter.
            ClassKey::OpenSandbox(_) if self.adapters.of(CONTROLLER_OPENSANDBOX).is_none() => Ok(()),
            ClassKey::OpenSandbox(name) => self.hold_parameters(KIND_OPENSANDBOX, &self.context.informers.opensandbox, name, term).await,
        };
        match done {
            Ok(()) | Err(OperationError::NotLeader(_)) => Next::Done,
            Err(OperationError::Call(error)) if error.is_not_found() => Next::Done,
            Err(error) => {
                tracing::warn!(%error, "not held");
                Next::Retry
            }
        }
    }

    async fn hold_class(&self, name: &Arc<str>, term: u64) -> Result<(), OperationError> {
        let Some(class) = self.context.informers.classes.get(&ObjectKey::new("", name.clone())) else { return Ok(()) };
        let Some(adapter) = self.adapters.of(&class.object.spec.controller_name) else { return Ok(()) };
        let api = Api::<JobClass>::all(self.context.client.clone());
        let in_use = !self.users.keys(&class.uid).is_empty();
        if self.set_hold(&api, "JobClass", &class.object.metadata, hold(&class.object.metadata, in_use), term).await? {
            return Ok(()); // its change comes back
        }
        let ready = adapter.readiness(&class.object);
        let ready = ready.as_ref().map(|(readiness, message)| (*readiness, message.as_str()));
        let Some(status) = class_status(&class.object, &self.known, ready, self.context.time.now()) else { return Ok(()) };
        let observed = Precondition { uid: &class.uid, resource_version: &class.resource_version };
        let patch = merge_difference(class.object.status.as_ref(), &status);
        let _sending = self.context.fence.begin(term)?;
        status_merge_patch(&api, name, observed, &patch).await?;
        self.context.steps.wrote("JobClass", "patch");
        Ok(())
    }

    async fn hold_parameters<K>(&self, kind: &'static str, known: &Informer<K>, name: &Arc<str>, term: u64) -> Result<(), OperationError>
    where
        K: kube::Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let Some(parameters) = known.get(&ObjectKey::new("", name.clone())) else { return Ok(()) };
        let api = Api::<K>::all(self.context.client.clone());
        let in_use = !self.users_of_parameters.keys(&parameters.uid).is_empty();
        self.set_hold(&api, kind, parameters.object.meta(), hold(parameters.object.meta(), in_use), term).await?;
        Ok(())
    }

    /// True if it wrote.
    async fn set_hold<K>(&self, api: &Api<K>, kind: &'static str, meta: &ObjectMeta, hold: Hold, term: u64) -> Result<bool, OperationError>
    where
        K: kube::Resource + Clone,
    {
        let finalizers = meta.finalizers.as_deref().unwrap_or_default();
        let uid = meta.uid.as_deref().unwrap_or_default();
        let wanted = match hold {
            Hold::Leave => return Ok(false),
            Hold::Add => finalizers.iter().cloned().chain([FINALIZER_CLASS_IN_USE.to_owned()]).collect(),
            // A Job that was accepted a moment ago is in no cache yet; after this one none can be: what is being deleted accepts nothing.
            Hold::Release if self.is_in_use(uid).await? => return Ok(false),
            Hold::Release => without(finalizers, FINALIZER_CLASS_IN_USE),
        };
        let observed = Precondition { uid, resource_version: meta.resource_version.as_deref().unwrap_or_default() };
        let _sending = self.context.fence.begin(term)?;
        finalizers_merge_patch(api, meta.name.as_deref().unwrap_or_default(), observed, &wanted).await?;
        self.context.steps.wrote(kind, "patch");
        Ok(true)
    }

    /// Whether a Job that has not ended names this UID as its class's or its parameters', asked past every cache: once in the life of a class.
    async fn is_in_use(&self, uid: &str) -> Result<bool, CallError> {
        let jobs = Api::<Job>::all(self.context.client.clone());
        let mut page = ListParams::default().limit(500);
        loop {
            let list = read(ReadRetry::default(), || jobs.list(&page)).await?;
            let uses = |job: Job| {
                let job = SeenJob::of(job);
                [job.class_in_use(), job.parameters_in_use()].into_iter().flatten().any(|used| &*used == uid)
            };
            if list.items.into_iter().any(uses) {
                return Ok(true);
            }
            let Some(next) = list.metadata.continue_.filter(|next| !next.is_empty()) else { return Ok(false) };
            page = page.continue_token(&next);
        }
    }
}
