//! The Kubernetes adapter: a native Job of a chosen name, one gated Pod, and a start that is bound to that Pod's UID (design of Jobs, §2a).
//!
//! ```text
//! Ensure, first:   POST Job ayj-<uid>      the Job controller makes a Pod that no scheduler takes: it has a gate
//!                  (references on record)   Job and Pod, by UID
//! Ensure, second:  take the gate off        JSON patch: test that Pod's UID, test the gate, remove it; any other Pod keeps its own
//! Cancel:          DELETE that Pod by UID   the native Job then fails, and nothing resumes it
//! Delete, held:    take the finalizer off   once the end is stored, and the native Job has seen its Pod's end
//! ```
//! Values of Secrets and ConfigMaps are never read: the Pod refers to them, and the kubelet resolves them.

mod build;
mod memory;
pub mod names;
mod observe;
mod operate;
pub mod seen;
mod text;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use berth_api::duration;
use berth_runtime::apiclient::{CallError, ReadRetry, get_uncached, read};
use berth_runtime::informer::{Index, Informer, Stored};
use berth_runtime::lease::Fence;
use berth_runtime::{ObjectKey, ServerTime};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};

use super::{Adapter, Extent, Freshness, NOTE_DUPLICATE, OperationError, Seen, Target};
use crate::job::api::JobClass;
use crate::job::api::kubernetes::{KubernetesExecutionParametersSpec, NodeLostPolicy};
use crate::job::api::names::{ADAPTER_KUBERNETES, CONTROLLER_KUBERNETES, reference};
use crate::job::machine::Attempt;
use crate::job::measure::{JobObserver, Operation};
use crate::job::reason::Readiness;
use crate::job::resolve::{Admission, Parameters};
use build::{built_of, native_job};
use memory::Memory;
use names::{LABEL_JOB_UID, native_name};
use observe::{Known, adjusted, is_late, look};
use seen::{MainState, SeenNative, SeenPod};
use verdict::{Circumstances, Clues, Graces, NodeFate, is_given_up_without_its_node};

/// What the adapter works with.
pub struct Tools {
    /// Where native Jobs and Pods are made, released and removed.
    pub client: Client,
    /// Native Jobs with the label of a Job's UID.
    pub natives: Informer<SeenNative>,
    /// Pods with that label.
    pub pods: Informer<SeenPod>,
    /// Open while this process leads.
    pub fence: Fence,
    /// The API server's time.
    pub time: Arc<ServerTime>,
    /// Told of answers that were lost.
    pub steps: Arc<dyn JobObserver>,
}

/// See the module.
pub struct Kubernetes {
    tools: Tools,
    natives_of: Index<ObjectKey, SeenNative>,
    pods_of: Index<ObjectKey, SeenPod>,
    memory: Arc<Memory>,
}

impl Kubernetes {
    /// Listens to both informers.
    pub fn new(tools: Tools) -> Self {
        let natives_of = tools.natives.index(|key, native: &SeenNative| job_key(key, &native.job_name));
        let pods_of = tools.pods.index(|key, pod: &SeenPod| job_key(key, &pod.job_name));
        let memory = Arc::<Memory>::default();
        let (remembers, time) = (memory.clone(), tools.time.clone());
        tools.pods.on_change(move |change| remembers.changed(change.old, change.new, time.now()));
        Self { tools, natives_of, pods_of, memory }
    }

    /// What the watches have brought of a Job's backend.
    fn cached(&self, job: Target<'_>) -> Known {
        let native = self.tools.natives.get(&ObjectKey { namespace: job.key.namespace.clone(), name: Arc::from(native_name(job.uid)) });
        let mut pods = self.pods_of.get(job.key);
        pods.retain(|pod| pod.object.job_uid == job.uid);
        Known::new(job.uid, job.recorded, native, pods)
    }

    /// The same, asked of a quorum. Pods that a watch has brought are read by name; only if there is none left is it asked which there are, since
    /// that is answered by a look at every Pod of the namespace.
    async fn asked(&self, job: Target<'_>) -> Result<Known, CallError> {
        let natives: Api<batch::Job> = Api::namespaced(self.tools.client.clone(), &job.key.namespace);
        let pods: Api<Pod> = Api::namespaced(self.tools.client.clone(), &job.key.namespace);
        let name = native_name(job.uid);
        let cached = self.cached(job).pods;
        let named = futures::future::try_join_all(cached.iter().map(|pod| self.timed(Operation::Observe, get_uncached(&pods, &pod.key.name))));
        let (native, named) = futures::try_join!(self.timed(Operation::Observe, get_uncached(&natives, &name)), named)?;
        let mut found: Vec<Pod> =
            named.into_iter().zip(&cached).filter_map(|(pod, cached)| pod.filter(|pod| pod.metadata.uid.as_deref() == Some(&*cached.uid))).collect();
        if found.is_empty() {
            let labelled = ListParams::default().labels(&format!("{LABEL_JOB_UID}={}", job.uid));
            found = self.timed(Operation::Observe, read(ReadRetry::default(), || pods.list(&labelled))).await?.items;
        }
        let native = native.map(|native| stored(&native.metadata, SeenNative::of(&native)));
        let pods = found.iter().map(|pod| stored(&pod.metadata, SeenPod::of(pod))).collect();
        Ok(Known::new(job.uid, job.recorded, native, pods))
    }

    async fn see(&self, job: Target<'_>, admission: Option<&Admission>, freshness: Freshness) -> Result<Seen, OperationError> {
        let recorded = recorded_pod(job);
        let parameters = parameters_of(admission);
        let mut known = match freshness {
            Freshness::Cached => self.cached(job),
            Freshness::Quorum => self.asked(job).await?,
        };
        if freshness == Freshness::Cached && !job.ended && recorded.is_some() && known.own_pod(job.uid, recorded).is_none() {
            // A cache proves no absence.
            known = self.asked(job).await?;
        }
        if let (None, Some(_), Some(admission)) = (recorded, &known.native, admission) {
            known.wanted = built_of(&native_job(job.key, job.uid, job.spec, &admission.resources, &parameters));
        }
        let pod = known.own_pod(job.uid, recorded).map(|pod| pod.object.clone());
        let clues = self.clues(job, &known, pod.as_deref(), &parameters).await?;
        let earlier = pod.as_ref().map(|pod| self.memory.earlier(&pod.uid)).unwrap_or_default();
        let circumstances = Circumstances { now: self.tools.time.now(), earlier, graces: graces(&parameters), clues: &clues, image: &job.spec.task.image };
        let mut seen = look(job.uid, recorded, &known, &parameters.injected_containers, &circumstances);
        if let Some(pod) = &pod {
            seen.notes.extend(self.memory.take_duplicate(&pod.uid).map(|note| (NOTE_DUPLICATE, note)));
            let accepted = admission.filter(|_| recorded.is_none()).map(|admission| &admission.resources);
            seen.notes.extend(accepted.and_then(|accepted| adjusted(pod, accepted)).map(|note| ("ResourcesAdjusted", note)));
        }
        Ok(seen)
    }

    /// What only asking brings, asked where it matters.
    async fn clues(&self, job: Target<'_>, known: &Known, pod: Option<&SeenPod>, parameters: &KubernetesExecutionParametersSpec) -> Result<Clues, CallError> {
        let mut clues = Clues::default();
        if recorded_pod(job).is_none() && is_late(known, job.uid, self.tools.time.now()) {
            clues.refusal = self.told(&job.key.namespace, &native_uid(known), "FailedCreate").await?.map(|message| text::refusal(&message));
        }
        let Some(pod) = pod else { return Ok(clues) };
        if pod.has_pull_secrets && is_pulling_in_vain(pod) {
            clues.missing_pull_secret = self.told(&job.key.namespace, &pod.uid, "FailedToRetrieveImagePullSecret").await?;
        }
        if pod.ended.is_some() && is_still_running(pod) || is_given_up_without_its_node(pod) {
            clues.node = self.fate(pod, &parameters.node_lost_policy).await?;
        }
        Ok(clues)
    }

    /// The last Event of that reason about the object of that UID.
    async fn told(&self, namespace: &str, uid: &str, reason: &str) -> Result<Option<String>, CallError> {
        let events: Api<Event> = Api::namespaced(self.tools.client.clone(), namespace);
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid},reason={reason}"));
        let list = self.timed(Operation::Observe, read(ReadRetry::default(), || events.list(&about))).await?;
        let latest = list.items.into_iter().max_by_key(|event| {
            let time = event.last_timestamp.as_ref().map(|time| time.0);
            time.or_else(|| event.event_time.as_ref().map(|time| time.0)).or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
        });
        Ok(latest.and_then(|event| event.message))
    }

    /// Whether the process of a Pod that was given up can still run.
    async fn fate(&self, pod: &SeenPod, policy: &NodeLostPolicy) -> Result<NodeFate, CallError> {
        const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
        let Some(name) = &pod.node else { return Ok(NodeFate::Unknown) };
        let node = self.timed(Operation::Observe, get_uncached(&Api::<Node>::all(self.tools.client.clone()), name)).await?;
        let over = match node {
            None => *policy == NodeLostPolicy::TrustNodeDeletion,
            Some(node) => node.spec.into_iter().flat_map(|spec| spec.taints.unwrap_or_default()).any(|taint| taint.key == OUT_OF_SERVICE),
        };
        Ok(if over { NodeFate::Over } else { NodeFate::Unknown })
    }
}

impl Adapter for Kubernetes {
    fn name(&self) -> &'static str {
        ADAPTER_KUBERNETES
    }

    fn controller_name(&self) -> &'static str {
        CONTROLLER_KUBERNETES
    }

    fn orphans(&self, key: &ObjectKey, live: Option<&str>) -> Vec<String> {
        let natives = self.natives_of.get(key).into_iter().map(|native| native.object.job_uid.clone());
        let pods = self.pods_of.get(key).into_iter().filter(|pod| pod.object.is_named_after(&pod.object.job_uid)).map(|pod| pod.object.job_uid.clone());
        let mut uids: Vec<String> = natives.chain(pods).collect();
        uids.retain(|uid| !uid.is_empty() && Some(uid.as_str()) != live);
        uids.sort_unstable();
        uids.dedup();
        uids
    }

    fn readiness(&self, _class: &JobClass) -> Option<(Readiness, String)> {
        // The backend is the API server that the class was read from.
        Some((Readiness::Reachable, "the API server answers".to_owned()))
    }

    fn ensure<'a>(&'a self, job: Target<'a>, admission: Option<&'a Admission>) -> BoxFuture<'a, Result<Option<Attempt>, OperationError>> {
        async move {
            match (recorded_pod(job), admission) {
                (Some(pod), _) => self.start(job, pod).await.map(|()| None),
                (None, Some(admission)) => self.acquire(job, admission).await,
                (None, None) => Ok(None),
            }
        }
        .boxed()
    }

    fn observe<'a>(&'a self, job: Target<'a>, admission: Option<&'a Admission>, freshness: Freshness) -> BoxFuture<'a, Result<Seen, OperationError>> {
        self.see(job, admission, freshness).boxed()
    }

    fn cancel<'a>(&'a self, job: Target<'a>) -> BoxFuture<'a, Result<(), OperationError>> {
        self.stop(job).boxed()
    }

    fn delete<'a>(&'a self, job: Target<'a>, extent: Extent) -> BoxFuture<'a, Result<(), OperationError>> {
        async move {
            match extent {
                Extent::Strays => self.remove_strays(job).await,
                Extent::Held => self.give_up_held(job).await,
                Extent::Everything => self.remove_everything(job, false).await,
                Extent::Orphaned => self.remove_everything(job, true).await,
            }
        }
        .boxed()
    }
}

/// The key of the Job that an object belongs to, by its label; None without one.
fn job_key(key: &ObjectKey, job_name: &str) -> Option<ObjectKey> {
    (!job_name.is_empty()).then(|| ObjectKey { namespace: key.namespace.clone(), name: Arc::from(job_name) })
}

/// UID of the Pod on record.
fn recorded_pod(job: Target<'_>) -> Option<&str> {
    job.recorded.iter().find(|reference| reference.type_ == reference::POD).map(|reference| reference.id.as_str())
}

fn native_uid(known: &Known) -> String {
    known.native.as_ref().map(|native| native.object.uid.clone()).unwrap_or_default()
}

fn stored<T>(meta: &kube::core::ObjectMeta, object: T) -> Stored<T> {
    let text = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
    Stored {
        key: ObjectKey { namespace: text(&meta.namespace), name: text(&meta.name) },
        uid: text(&meta.uid),
        resource_version: text(&meta.resource_version),
        object: Arc::new(object),
    }
}

/// The class's parameters; the defaults if they are gone, which only concerns graces then.
fn parameters_of(admission: Option<&Admission>) -> Arc<KubernetesExecutionParametersSpec> {
    match admission.map(|admission| &admission.parameters) {
        Some(Parameters::Kubernetes(parameters)) => parameters.clone(),
        _ => Arc::default(),
    }
}

fn graces(parameters: &KubernetesExecutionParametersSpec) -> Graces {
    // The schema admits nothing that can't be read; a week is its maximum.
    let read = |text: &str| duration::parse_go(text).unwrap_or(Duration::from_secs(604_800));
    Graces { pull: read(&parameters.image_pull.failure_grace_period), create: read(&parameters.create_error_grace_period) }
}

fn is_pulling_in_vain(pod: &SeenPod) -> bool {
    let waits = |reason: &str| matches!(reason, "ErrImagePull" | "ImagePullBackOff");
    pod.main.as_ref().is_some_and(|main| matches!(&main.state, MainState::Waiting { reason, .. } if waits(reason)))
}

fn is_still_running(pod: &SeenPod) -> bool {
    pod.main.as_ref().is_some_and(|main| matches!(main.state, MainState::Running { .. }))
}

#[cfg(test)]
mod tests;
