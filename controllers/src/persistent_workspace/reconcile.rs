//! The thin part of the binder: reads caches, asks [`plan`](super::plan), writes one status, tells people.

use super::heartbeat::HeartbeatPolicy;
use super::plan::{BoundPod, Candidate, Found, Plan, WorkspaceFacts, plan};
use super::tracker::{Effect, OwnedCandidate, RuntimePod, Slot, Tracker};
use berth_api::PersistentWorkspace;
use berth_api::persistent_workspace::{PersistentWorkspaceStatus, WorkspacePhase};
use berth_api::runtime_ready::{Now, PodFacts, runtime_of};
use berth_runtime::apiclient::{CallError, Precondition, get_uncached, status_merge_patch};
use berth_runtime::backoff::Backoff;
use berth_runtime::events::{EventType, Occurrence, Recorder, Regarding};
use berth_runtime::informer::{Index, Informer, Stored};
use berth_runtime::lease::{Fence, NotLeader};
use berth_runtime::workqueue::{Next, QueueObserver, WorkQueue, run_workers};
use berth_runtime::{Clock, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a Pod that exists outside our watch (it lost its label) is looked at: nobody tells us when it goes.
const OUTSIDE_WATCH_EVERY: Duration = Duration::from_secs(30);

/// What the binder works with. P and W are what the process keeps of Pods and PersistentWorkspaces; the binder shares
/// their informers with whoever else needs them.
pub struct Context<P, W> {
    /// Where statuses are written and Pods re-read.
    pub client: Client,
    /// Pods with the label `runtime`, at least.
    pub pods: Informer<P>,
    /// What the binder needs of a kept Pod; None if it has no label `runtime`.
    pub read_pod: for<'a> fn(&'a P) -> Option<RuntimePod<'a>>,
    /// All workspaces.
    pub workspaces: Informer<W>,
    /// The API object within a kept workspace; None leaves it alone.
    pub read_workspace: for<'a> fn(&'a W) -> Option<&'a PersistentWorkspace>,
    /// Takes Events `Bound` and `Lost`.
    pub recorder: Recorder,
    /// Open while this process leads and has listed. What comes while it is closed is dropped; whoever opens it adds every workspace.
    pub fence: Fence,
    /// Both clocks; the same one the scheduler uses.
    pub clock: Arc<dyn Clock>,
    /// Workspaces worked on at once.
    pub workers: usize,
    /// Told of the queue's durations.
    pub observer: Arc<dyn QueueObserver>,
}

/// The binder with its queue. Made by [`Binder::new`], which begins to listen; works while [`Binder::run`] does.
pub struct Binder<P, W> {
    context: Context<P, W>,
    tracker: Arc<Mutex<Tracker>>,
    slots: Index<Slot, W>,
    queue: WorkQueue<ObjectKey>,
    timers: WorkQueue<ObjectKey>,
    /// Resource versions that a successful write of ours replaced, by workspace, until the cache has caught up.
    outdated: Mutex<HashMap<ObjectKey, Arc<str>>>,
    policies: Option<watch::Receiver<HeartbeatPolicy>>,
}

/// Runs a binder until `shutdown`, then finishes the writes that are under way.
pub async fn run<P: Send + Sync + 'static, W: Send + Sync + 'static>(context: Context<P, W>, shutdown: CancellationToken) {
    Binder::new(context).run(shutdown).await;
}

impl<P: Send + Sync + 'static, W: Send + Sync + 'static> Binder<P, W> {
    /// Listens to both informers.
    pub fn new(context: Context<P, W>) -> Self {
        let queue = WorkQueue::with("persistentworkspace", Backoff::KEYS, context.observer.clone());
        let timers = WorkQueue::new("persistentworkspace-heartbeats");
        let tracker = Arc::<Mutex<Tracker>>::default();
        let read = context.read_workspace;
        let slots = context.workspaces.index(move |key, kept| read(kept).and_then(|workspace| slot_of(key, workspace)));
        context.workspaces.feed(&queue, |change| [change.key.clone()]);
        let pods = (tracker.clone(), slots.clone(), queue.clone(), timers.clone(), context.clock.clone(), context.read_pod);
        context.pods.on_change(move |change| {
            let (tracker, slots, queue, timers, clock, read) = &pods;
            let runtime_pod = change.new.and_then(|pod| Some((pod, read(&pod.object)?)));
            let effect = match runtime_pod {
                Some((pod, facts)) => lock(tracker).applied(pod, facts, clock.now()),
                None => lock(tracker).deleted(change.key),
            };
            if let Some(delay) = effect.look_again {
                timers.add_after(change.key.clone(), delay);
            }
            wake(&effect, slots, queue);
        });
        Self { context, tracker, slots, queue, timers, outdated: Mutex::default(), policies: None }
    }

    /// Judges Pods by these policies, each from when it is told on, instead of by the default.
    #[must_use]
    pub fn obeying(mut self, mut policies: watch::Receiver<HeartbeatPolicy>) -> Self {
        self.obey(policies.borrow_and_update().clone());
        self.policies = Some(policies);
        self
    }

    fn obey(&self, policy: HeartbeatPolicy) {
        let effects = lock(&self.tracker).obey(policy, self.context.clock.now());
        for (pod, effect) in effects {
            if let Some(delay) = effect.look_again {
                self.timers.add_after(pod, delay);
            }
            wake(&effect, &self.slots, &self.queue);
        }
    }

    /// The queue, for its numbers.
    pub fn queue(&self) -> &WorkQueue<ObjectKey> {
        &self.queue
    }

    /// Binds until `shutdown`. Begins when both caches are synced: an empty cache must not look like an empty cluster.
    pub async fn run(self, shutdown: CancellationToken) {
        let synced = async { futures::join!(self.context.pods.synced(), self.context.workspaces.synced()) };
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = synced => {}
        }
        let bind = run_workers(&self.queue, self.context.workers, shutdown.clone(), |key| {
            let span = tracing::info_span!("reconcile", kind = "PersistentWorkspace", object = %key);
            self.reconcile(key).instrument(span)
        });
        let beat = run_workers(&self.timers, 1, shutdown.clone(), |pod| std::future::ready(self.timer_fired(&pod)));
        let obey = async {
            let Some(mut policies) = self.policies.clone() else { return };
            // Ends with whoever tells them.
            while let Some(Ok(())) = shutdown.run_until_cancelled(policies.changed()).await {
                let policy = policies.borrow_and_update().clone();
                self.obey(policy);
            }
        };
        futures::join!(bind, beat, obey);
    }

    fn timer_fired(&self, pod: &ObjectKey) -> Next {
        let effect = lock(&self.tracker).fired(pod, self.context.clock.now());
        wake(&effect, &self.slots, &self.queue);
        effect.look_again.map_or(Next::Done, Next::After)
    }

    async fn reconcile(&self, key: ObjectKey) -> Next {
        let Some(stored) = self.context.workspaces.get(&key) else {
            lock(&self.outdated).remove(&key);
            return Next::Done;
        };
        let Some(workspace) = (self.context.read_workspace)(&stored.object) else { return Next::Done };
        let Ok(term) = self.context.fence.admitted() else { return Next::Done };
        if self.is_outdated(&stored) {
            // The cache will tell us of our own write.
            return Next::Done;
        }
        let now = self.context.clock.now();
        let (pods, bound, again) = match self.observe(&key, workspace, now).await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(%error, "the bound pod could not be read");
                return Next::Retry;
            }
        };
        let facts = WorkspaceFacts {
            name: &key.name,
            generation: workspace.metadata.generation,
            deleting: workspace.metadata.deletion_timestamp.is_some(),
            spec: &workspace.spec,
            status: workspace.status.as_ref(),
        };
        let plan = plan(facts, pods.iter().map(OwnedCandidate::as_candidate).collect::<Vec<Candidate<'_>>>(), bound, now.wall_ms);
        match self.apply(&stored, workspace, &plan, term).await {
            Ok(()) => again.map_or(Next::Done, Next::After),
            Err(error) if error.is_not_found() => Next::Done,
            Err(error) if error.is_conflict() => {
                tracing::debug!(%error, "the workspace changed meanwhile");
                Next::Retry
            }
            Err(error) => {
                tracing::warn!(%error, "status not written");
                Next::Retry
            }
        }
    }

    /// What the plan needs, and when to look again without being woken. A Pod missing in the cache is read from the API
    /// server before it counts as gone: a cache may lag, and it doesn't hold Pods without the label.
    async fn observe(
        &self,
        key: &ObjectKey,
        workspace: &PersistentWorkspace,
        now: Now,
    ) -> Result<(Vec<OwnedCandidate>, BoundPod, Option<Duration>), CallError> {
        let pods = lock(&self.tracker).candidates(&key.namespace, &workspace.spec.runtime, now);
        let named = workspace.status.as_ref().filter(|status| status.phase == WorkspacePhase::Bound);
        let named = named.and_then(|status| Some((status, status.bound_pod.as_deref().filter(|pod| !pod.is_empty())?)));
        let Some((status, pod)) = named else { return Ok((pods, BoundPod::NotNamed, None)) };
        let runtime = status.runtime.as_deref().unwrap_or(&workspace.spec.runtime);
        let compare = |found: Option<Found<'_>>| BoundPod::compare(runtime, status.bound_pod_uid.as_deref(), found);
        let pod_key = ObjectKey { namespace: key.namespace.clone(), name: Arc::from(pod) };
        let cached = lock(&self.tracker).find(&pod_key, now, compare);
        if workspace.metadata.deletion_timestamp.is_some() || !matches!(cached, BoundPod::Gone | BoundPod::Replaced) {
            return Ok((pods, cached, None));
        }
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let read = get_uncached(&api, pod).await?;
        let found = read.as_ref().map(|pod| Found {
            uid: pod.metadata.uid.as_deref().unwrap_or_default(),
            runtime: runtime_of(pod),
            verdict: lock(&self.tracker).policy().judge(runtime, PodFacts::observe(None, pod, now).availability(now)).verdict,
        });
        let bound = compare(found);
        let again = (!matches!(bound, BoundPod::Gone | BoundPod::Replaced)).then_some(OUTSIDE_WATCH_EVERY);
        Ok((pods, bound, again))
    }

    async fn apply(&self, stored: &Stored<W>, workspace: &PersistentWorkspace, plan: &Plan, term: u64) -> Result<(), CallError> {
        let Some(wanted) = plan.status() else { return Ok(()) };
        let api: Api<PersistentWorkspace> = Api::namespaced(self.context.client.clone(), &stored.key.namespace);
        let observed = Precondition { uid: &stored.uid, resource_version: &stored.resource_version };
        let patch = difference(workspace.status.as_ref(), wanted);
        let sent = match self.context.fence.begin(term) {
            // Kept until the answer is there.
            Ok(_sending) => status_merge_patch(&api, &stored.key.name, observed, &patch).await,
            Err(NotLeader) => return Ok(()),
        };
        match sent {
            Ok(written) => {
                if *written.resource_version != *stored.resource_version {
                    lock(&self.outdated).insert(stored.key.clone(), stored.resource_version.clone());
                }
            }
            Err(error) if error.is_ambiguous() => {
                let now = get_uncached(&api, &stored.key.name).await?;
                let happened = now.is_some_and(|now| now.metadata.uid.as_deref() == Some(&stored.uid) && now.status.as_ref() == Some(wanted));
                if !happened {
                    return Err(error);
                }
                tracing::info!(%error, "the answer of a write was lost; a read shows that it took effect");
            }
            Err(error) => return Err(error),
        }
        self.tell(stored, wanted, plan);
        Ok(())
    }

    fn tell(&self, stored: &Stored<W>, wanted: &PersistentWorkspaceStatus, plan: &Plan) {
        let pod = wanted.bound_pod.as_deref().unwrap_or_default();
        let (type_, reason, action, note) = match plan {
            Plan::NoChange | Plan::Conditions { .. } => return,
            Plan::Bind { uid, .. } => {
                tracing::info!(pod, pod_uid = uid, "workspace bound");
                (EventType::Normal, "Bound", "Bind", format!("bound to runtime pod {pod}"))
            }
            Plan::Lost { reason, .. } => {
                tracing::info!(pod, reason = reason.as_str(), "workspace lost");
                let note = format!("runtime pod {pod} is gone, and the data with it ({})", reason.as_str());
                (EventType::Warning, "Lost", "Lose", note)
            }
        };
        let regarding = Regarding::of::<PersistentWorkspace>(stored.key.clone(), stored.uid.clone());
        self.context.recorder.publish(Occurrence { regarding, type_, reason, action, note });
    }

    fn is_outdated(&self, stored: &Stored<W>) -> bool {
        let mut outdated = lock(&self.outdated);
        match outdated.get(&stored.key) {
            Some(version) if *version == stored.resource_version => true,
            Some(_) => {
                outdated.remove(&stored.key);
                false
            }
            None => false,
        }
    }
}

fn wake<W>(effect: &Effect, slots: &Index<Slot, W>, queue: &WorkQueue<ObjectKey>) {
    for slot in &effect.wake {
        slots.keys(slot).into_iter().for_each(|key| queue.add(key));
    }
}

/// What a workspace listens for; None once nothing of a Pod can change it.
fn slot_of(key: &ObjectKey, workspace: &PersistentWorkspace) -> Option<Slot> {
    let status = workspace.status.as_ref();
    match workspace.phase() {
        WorkspacePhase::Pending => Some(Slot::Waiting { namespace: key.namespace.clone(), runtime: Arc::from(workspace.spec.runtime.as_str()) }),
        WorkspacePhase::Bound => {
            let pod = status?.bound_pod.as_deref()?;
            Some(Slot::On(ObjectKey { namespace: key.namespace.clone(), name: Arc::from(pod) }))
        }
        _ => None,
    }
}

/// The merge patch (RFC 7386) from `current` to `wanted`: fields that differ, null for those to remove.
fn difference(current: Option<&PersistentWorkspaceStatus>, wanted: &PersistentWorkspaceStatus) -> Value {
    let object = |status: Option<&PersistentWorkspaceStatus>| match status.map(serde_json::to_value) {
        Some(Ok(Value::Object(fields))) => fields,
        _ => Map::new(),
    };
    let (current, wanted) = (object(current), object(Some(wanted)));
    let mut patch: Map<String, Value> = current.keys().filter(|field| !wanted.contains_key(*field)).map(|field| (field.clone(), Value::Null)).collect();
    patch.extend(wanted.into_iter().filter(|(field, value)| current.get(field) != Some(value)));
    Value::Object(patch)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
