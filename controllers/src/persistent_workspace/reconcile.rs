//! The thin part of the binder: who is woken, what is read, what the plan is asked.

use super::apply::{Target, has_finalizer};
use super::choose::WorkspaceBinding;
use super::plan::{BoundPod, Found, Observed, Plan, Step, WorkspaceFacts, plan};
use super::tracker::{Effect, Slot, Tracker};
use crate::again;
use crate::pods::RuntimePod;
use crate::policy::Policies;
use crate::runs::RunIndex;
use berth_api::PersistentWorkspace;
use berth_api::constants::ANNOTATION_WORKSPACE_AGENT;
use berth_api::persistent_workspace::WorkspacePhase;
use berth_api::runtime_ready::{Now, PodFacts, runtime_of};
use berth_runtime::apiclient::{CallError, get_uncached};
use berth_runtime::backoff::Backoff;
use berth_runtime::events::Recorder;
use berth_runtime::informer::{Index, Informer, Stored};
use berth_runtime::lease::Fence;
use berth_runtime::workqueue::{Next, QueueObserver, WorkQueue, run_workers};
use berth_runtime::{Clock, ObjectKey, lock};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a Pod that exists outside our watch (it lost its label) is looked at: nobody tells us when it goes.
const OUTSIDE_WATCH_EVERY: Duration = Duration::from_secs(30);
/// `lastUsedTime` alone is worth a write that often (decisions, "PersistentWorkspace").
const USE_WRITTEN_EVERY: Duration = Duration::from_secs(60);

/// What the binder works with. P and W are what the process keeps of Pods and PersistentWorkspaces; the binder shares
/// their informers with whoever else needs them.
pub struct Context<P, W> {
    /// Where workspaces are written and Pods re-read.
    pub client: Client,
    /// Pods with the label `runtime`, at least.
    pub pods: Informer<P>,
    /// What the binder needs of a kept Pod; None if it has no label `runtime`.
    pub read_pod: for<'a> fn(&'a P) -> Option<RuntimePod<'a>>,
    /// All workspaces.
    pub workspaces: Informer<W>,
    /// The API object within a kept workspace; None leaves it alone.
    pub read_workspace: for<'a> fn(&'a W) -> Option<&'a PersistentWorkspace>,
    /// All Runs, by the workspace they name.
    pub runs: RunIndex,
    /// What the scheduler's profiles say; followed as they change.
    pub policies: watch::Receiver<Policies>,
    /// Takes Events `Bound`, `Lost`, `Released` and `AgentCannotClean`.
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
    pub(super) context: Context<P, W>,
    tracker: Arc<Mutex<Tracker>>,
    slots: Index<Slot, W>,
    queue: WorkQueue<ObjectKey>,
    timers: WorkQueue<ObjectKey>,
    /// Versions that successful writes of ours replaced, by workspace, until the cache has caught up.
    superseded: Mutex<HashMap<ObjectKey, Vec<Arc<str>>>>,
    /// Pods that workspaces were given and the cache doesn't show yet: they count as loaded by them.
    given: Mutex<HashMap<ObjectKey, ObjectKey>>,
    /// When `lastUsedTime` was last written, monotonic milliseconds.
    pub(super) use_written: Mutex<HashMap<ObjectKey, u64>>,
}

impl<P: Send + Sync + 'static, W: Send + Sync + 'static> Binder<P, W> {
    /// Listens to both informers and to the Runs.
    pub fn new(context: Context<P, W>) -> Self {
        let queue = WorkQueue::with("persistentworkspace", Backoff::KEYS, context.observer.clone());
        let timers = WorkQueue::new("persistentworkspace-heartbeats");
        let tracker = Arc::<Mutex<Tracker>>::default();
        lock(&tracker).obey(context.policies.borrow().clone(), context.clock.now());
        let read = context.read_workspace;
        let slots = context.workspaces.index(move |key, kept| read(kept).and_then(|workspace| slot_of(key, workspace)));
        context.workspaces.feed(&queue, |change| [change.key.clone()]);
        let used = queue.clone();
        context.runs.on_use(move |workspace| used.add(workspace.clone()));
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
        Self { context, tracker, slots, queue, timers, superseded: Mutex::default(), given: Mutex::default(), use_written: Mutex::default() }
    }

    /// The queue, for its numbers.
    pub fn queue(&self) -> &WorkQueue<ObjectKey> {
        &self.queue
    }

    /// Works until `shutdown`. Begins when all three caches are synced: an empty cache must not look like an empty cluster, nor like one where nobody
    /// uses anything.
    pub async fn run(self, shutdown: CancellationToken) {
        let synced = async { futures::join!(self.context.pods.synced(), self.context.workspaces.synced(), self.context.runs.synced()) };
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
            let mut policies = self.context.policies.clone();
            policies.mark_changed();
            // Ends with whoever tells them.
            while let Some(Ok(())) = shutdown.run_until_cancelled(policies.changed()).await {
                let policies = policies.borrow_and_update().clone();
                self.obey(policies);
            }
        };
        futures::join!(bind, beat, obey);
    }

    fn obey(&self, policies: Policies) {
        let effects = lock(&self.tracker).obey(policies, self.context.clock.now());
        for (pod, effect) in effects {
            if let Some(delay) = effect.look_again {
                self.timers.add_after(pod, delay);
            }
            wake(&effect, &self.slots, &self.queue);
        }
    }

    fn timer_fired(&self, pod: &ObjectKey) -> Next {
        let effect = lock(&self.tracker).fired(pod, self.context.clock.now());
        wake(&effect, &self.slots, &self.queue);
        effect.look_again.map_or(Next::Done, Next::After)
    }

    async fn reconcile(&self, key: ObjectKey) -> Next {
        let Some(stored) = self.context.workspaces.get(&key) else {
            self.forget(&key);
            return Next::Done;
        };
        let Some(workspace) = (self.context.read_workspace)(&stored.object) else { return Next::Done };
        let Ok(term) = self.context.fence.admitted() else { return Next::Done };
        if self.is_superseded(&stored) {
            // The cache will tell us of our own write.
            return Next::Done;
        }
        let now = self.context.clock.now();
        let bound = match self.look(&key, workspace, now).await {
            Ok(bound) => bound,
            Err(error) => {
                tracing::warn!(%error, "the bound pod could not be read");
                return Next::Retry;
            }
        };
        let Plan { step, look_again } = self.plan(&key, workspace, &bound, now);
        let target = Target { stored: &stored, workspace, term };
        let applied = self.apply(&target, &step).await;
        if applied.is_err() && matches!(step, Step::Bind { .. }) {
            lock(&self.given).remove(&key);
        }
        match applied {
            Ok(()) => look_again.into_iter().chain(bound.look_again).min().map_or(Next::Done, Next::After),
            Err(error) if error.is_not_found() => Next::Done,
            Err(error) if error.is_conflict() => {
                tracing::debug!(%error, "the workspace changed meanwhile");
                Next::Retry
            }
            Err(error) => {
                tracing::warn!(%error, "not written");
                again(&error)
            }
        }
    }

    /// Asks the plan, with the caches as they are at this moment.
    fn plan(&self, key: &ObjectKey, workspace: &PersistentWorkspace, bound: &LookedAt, now: Now) -> Plan {
        let runtime = &workspace.spec.runtime;
        let facts = WorkspaceFacts {
            name: &key.name,
            generation: workspace.metadata.generation,
            deleting: workspace.metadata.deletion_timestamp.is_some(),
            has_finalizer: has_finalizer(workspace),
            spec: &workspace.spec,
            status: workspace.status.as_ref(),
        };
        let written_ms = lock(&self.use_written).get(key).copied();
        let every_ms = u64::try_from(USE_WRITTEN_EVERY.as_millis()).unwrap_or(u64::MAX);
        let observed = Observed {
            bound: bound.pod,
            agent: bound.agent,
            usage: self.context.runs.usage(key),
            binding: lock(&self.tracker).policies().of(runtime).binding,
            use_writable_in_ms: written_ms.map_or(0, |written_ms| written_ms.saturating_add(every_ms).saturating_sub(now.mono_ms)),
            wall_ms: now.wall_ms,
        };
        // One at a time from the look at loads to what it leads to, so that those who choose at once see each other.
        let mut given = lock(&self.given);
        if *workspace.phase() != WorkspacePhase::Pending {
            given.remove(key);
        }
        let held = |pod: &ObjectKey| match observed.binding {
            WorkspaceBinding::FirstByName => 0,
            WorkspaceBinding::LeastLoaded => self.load(pod, &given),
        };
        let plan = plan(facts, lock(&self.tracker).candidates(&key.namespace, runtime, now, held), &observed);
        if let Step::Bind { pod, .. } = &plan.step {
            given.insert(key.clone(), ObjectKey { namespace: key.namespace.clone(), name: Arc::from(pod.as_str()) });
        }
        plan
    }

    /// What counts towards the load of a Pod: what its Runs hold, and its workspaces.
    fn load(&self, pod: &ObjectKey, given: &HashMap<ObjectKey, ObjectKey>) -> u64 {
        let slot = Slot::On(pod.clone());
        let unseen = given.iter().filter(|(workspace, to)| *to == pod && !self.slots.contains(&slot, workspace)).count();
        let workspaces = u64::try_from(self.slots.count(&slot) + unseen).unwrap_or(u64::MAX);
        self.context.runs.held_runs(pod).saturating_add(workspaces)
    }

    /// The Pod that the status names. One that is missing in the cache is read from the API server before it counts as gone: a cache may
    /// lag, and it doesn't hold Pods without the label.
    async fn look(&self, key: &ObjectKey, workspace: &PersistentWorkspace, now: Now) -> Result<LookedAt, CallError> {
        let status = workspace.status.as_ref().filter(|status| matches!(status.phase, WorkspacePhase::Bound | WorkspacePhase::Released));
        let named = status.and_then(|status| Some((status, status.bound_pod.as_deref().filter(|pod| !pod.is_empty())?)));
        let Some((status, pod)) = named else { return Ok(LookedAt { pod: BoundPod::NotNamed, agent: false, look_again: None }) };
        let runtime = status.runtime.as_deref().unwrap_or(&workspace.spec.runtime);
        let compare = |found: Option<Found<'_>>, look_again| {
            let agent = found.is_some_and(|found| found.agent);
            LookedAt { pod: BoundPod::compare(runtime, status.bound_pod_uid.as_deref(), found), agent, look_again }
        };
        let pod_key = ObjectKey { namespace: key.namespace.clone(), name: Arc::from(pod) };
        let cached = lock(&self.tracker).find(&pod_key, now, |found| compare(found, None));
        if !cached.pod.is_gone() {
            return Ok(cached);
        }
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let read = get_uncached(&api, pod).await?;
        let found = read.as_ref().map(|pod| Found {
            uid: pod.metadata.uid.as_deref().unwrap_or_default(),
            runtime: runtime_of(pod),
            verdict: lock(&self.tracker).policies().of(runtime).judge(PodFacts::observe(None, pod, now).availability(now)).verdict,
            agent: pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(ANNOTATION_WORKSPACE_AGENT)),
        });
        let read = compare(found, Some(OUTSIDE_WATCH_EVERY));
        Ok(if read.pod.is_gone() { LookedAt { look_again: None, ..read } } else { read })
    }

    /// Our write turned version `from` into `to`.
    pub(super) fn supersede(&self, key: &ObjectKey, from: &str, to: &str) {
        if from != to {
            lock(&self.superseded).entry(key.clone()).or_default().push(Arc::from(from));
        }
    }

    fn is_superseded(&self, stored: &Stored<W>) -> bool {
        let mut superseded = lock(&self.superseded);
        let is_old = superseded.get(&stored.key).is_some_and(|versions| versions.contains(&stored.resource_version));
        if !is_old {
            superseded.remove(&stored.key);
        }
        is_old
    }

    /// Nothing is kept of a workspace that is gone.
    fn forget(&self, key: &ObjectKey) {
        lock(&self.superseded).remove(key);
        lock(&self.given).remove(key);
        lock(&self.use_written).remove(key);
        self.context.runs.forget(key);
    }
}

/// What is known of the Pod that a status names.
struct LookedAt {
    pod: BoundPod,
    /// Its agent honours workspaces.
    agent: bool,
    /// When to look again without being woken.
    look_again: Option<Duration>,
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
        WorkspacePhase::Bound | WorkspacePhase::Released => {
            let pod = status?.bound_pod.as_deref()?;
            Some(Slot::On(ObjectKey { namespace: key.namespace.clone(), name: Arc::from(pod) }))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
