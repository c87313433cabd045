//! JobClasses and parameters: held while they may be needed, and told whether they can be used.

use std::sync::Arc;

use berth_runtime::ObjectKey;
use berth_runtime::apiclient::{CallError, Precondition, merge_difference, status_merge_patch};
use berth_runtime::informer::{Change, Stored};
use berth_runtime::workqueue::Next;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::apply::without;
use super::reconcile::OURS;
use super::{Controller, SeenJob};
use crate::job::adapter::OperationError;
use crate::job::api::names::FINALIZER_CLASS_IN_USE;
use crate::job::api::{JobClass, KubernetesExecutionParameters};
use crate::job::class_plan::{Hold, class_status, hold};
use crate::job::reason::Readiness;

/// A class, or parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClassKey {
    /// JobClass of that name.
    Class(Arc<str>),
    /// KubernetesExecutionParameters of that name.
    Kubernetes(Arc<str>),
}

impl ClassKey {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Class(_) => "JobClass",
            Self::Kubernetes(_) => "KubernetesExecutionParameters",
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Class(name) | Self::Kubernetes(name) => name,
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
    let parameters = class.parameters_ref.as_ref().map(|reference| ClassKey::Kubernetes(Arc::from(reference.name.as_str())));
    [ClassKey::Class(Arc::from(class.name.as_str()))].into_iter().chain(parameters).collect()
}

impl Controller {
    pub(super) async fn reconcile_class(&self, key: ClassKey) -> Next {
        let Ok(term) = self.context.fence.admitted() else { return Next::Done };
        let done = match &key {
            ClassKey::Class(name) => self.hold_class(name, term).await,
            ClassKey::Kubernetes(name) => self.hold_parameters(name, term).await,
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
        if !OURS.contains(&class.object.spec.controller_name.as_str()) {
            return Ok(());
        }
        let api = Api::<JobClass>::all(self.context.client.clone());
        let in_use = !self.users.keys(&class.uid).is_empty();
        if self.set_hold(&api, &class.object.metadata, hold(&class.object.metadata, in_use), term).await? {
            return Ok(()); // its change comes back
        }
        // The backend is the API server that this was read from.
        let ready = Some((Readiness::Reachable, "the API server answers"));
        let Some(status) = class_status(&class.object, &self.known, ready, self.context.time.now()) else { return Ok(()) };
        let observed = Precondition { uid: &class.uid, resource_version: &class.resource_version };
        let patch = merge_difference(class.object.status.as_ref(), &status);
        let _sending = self.context.fence.begin(term)?;
        status_merge_patch(&api, name, observed, &patch).await?;
        Ok(())
    }

    async fn hold_parameters(&self, name: &Arc<str>, term: u64) -> Result<(), OperationError> {
        let Some(parameters) = self.context.informers.kubernetes.get(&ObjectKey::new("", name.clone())) else { return Ok(()) };
        let api = Api::<KubernetesExecutionParameters>::all(self.context.client.clone());
        let in_use = !self.users_of_parameters.keys(&parameters.uid).is_empty();
        self.set_hold(&api, &parameters.object.metadata, hold(&parameters.object.metadata, in_use), term).await?;
        Ok(())
    }

    /// True if it wrote.
    async fn set_hold<K>(&self, api: &Api<K>, meta: &ObjectMeta, hold: Hold, term: u64) -> Result<bool, OperationError>
    where
        K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let finalizers = meta.finalizers.as_deref().unwrap_or_default();
        let wanted = match hold {
            Hold::Leave => return Ok(false),
            Hold::Add => finalizers.iter().cloned().chain([FINALIZER_CLASS_IN_USE.to_owned()]).collect(),
            Hold::Release => without(finalizers, FINALIZER_CLASS_IN_USE),
        };
        let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": wanted}});
        let _sending = self.context.fence.begin(term)?;
        api.patch(meta.name.as_deref().unwrap_or_default(), &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(CallError::from)?;
        Ok(true)
    }
}
