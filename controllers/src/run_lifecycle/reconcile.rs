//! The thin part of the lifecycle: who is woken, what is read, what is sent.

use super::apply::{Action, Change, change};
use super::plan::{Plan, PodState, WorkspaceState, may_act, plan};
use super::pods::{Effect, Pods};
use crate::again;
use crate::pods::RuntimePod;
use crate::policy::Policies;
use crate::runs::{ReadRun, RunIndex, RunView, Stage, view};
use berth_api::persistent_workspace::WorkspacePhase;
use berth_api::runtime_ready::{Now, PodSigns, runtime_of};
use berth_api::{PersistentWorkspace, Run, decode};
use berth_runtime::apiclient::{CallError, Precondition, delete_observed, get_json, get_uncached, status_merge_patch};
use berth_runtime::backoff::Backoff;
use berth_runtime::events::{Occurrence, Recorder, Regarding};
use berth_runtime::informer::{Informer, Stored};
use berth_runtime::lease::{Fence, NotLeader};
use berth_runtime::workqueue::{Next, QueueObserver, WorkQueue, run_workers};
use berth_runtime::{Clock, ObjectKey, lock};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a Run is looked at again whose Pod gave cause, and on a closer look none: nobody tells when a Pod outside our watch goes.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(30);

/// What the lifecycle works with. R, P and W are what the process keeps of Runs, Pods and PersistentWorkspaces.
pub struct Context<R, P, W> {
    /// Where objects are read and written.
    pub client: Client,
    /// All Runs.
    pub runs: Informer<R>,
    /// What is needed of a kept Run.
    pub read_run: ReadRun<R>,
    /// The index of `runs`, made before this.
    pub index: RunIndex,
    /// Pods with the label `runtime`, at least.
    pub pods: Informer<P>,
    /// What is needed of a kept Pod; None if it has no label `runtime`.
    pub read_pod: for<'a> fn(&'a P) -> Option<RuntimePod<'a>>,
    /// All workspaces.
    pub workspaces: Informer<W>,
    /// The API object within a kept workspace.
    pub read_workspace: for<'a> fn(&'a W) -> Option<&'a PersistentWorkspace>,
    /// What the scheduler's profiles say; followed as they change.
    pub policies: watch::Receiver<Policies>,
    /// Takes Events.
    pub recorder: Recorder,
    /// Open while this process leads and has listed. What comes while it is closed is dropped; whoever opens it calls [`Lifecycle::look_at_all`].
    pub fence: Fence,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// Runs worked on at once.
    pub workers: usize,
    /// Told of the queue's durations.
    pub observer: Arc<dyn QueueObserver>,
    /// Told of what was done.
    pub acted: Arc<dyn Fn(Action) + Send + Sync>,
}

/// The lifecycle with its queue. Made by [`Lifecycle::new`], which begins to listen; works while [`Lifecycle::run`] does. Clones are one.
pub struct Lifecycle<R, P, W> {
    shared: Arc<Shared<R, P, W>>,
}

struct Shared<R, P, W> {
    context: Context<R, P, W>,
    pods: Mutex<Pods>,
    queue: WorkQueue<ObjectKey>,
    timers: WorkQueue<ObjectKey>,
    /// Every cache is complete. Before, a missing Pod says nothing.
    synced: AtomicBool,
}

impl<R, P, W> Clone for Lifecycle<R, P, W> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<R: Send + Sync + 'static, P: Send + Sync + 'static, W: Send + Sync + 'static> Lifecycle<R, P, W> {
    /// Listens to the informers.
    pub fn new(context: Context<R, P, W>) -> Self {
        let queue = WorkQueue::with("run-lifecycle", Backoff::KEYS, context.observer.clone());
        let timers = WorkQueue::new("run-lifecycle-pods");
        let shared = Arc::new(Shared { context, pods: Mutex::default(), queue, timers, synced: AtomicBool::new(false) });
        // An informer outlives nobody here: the handlers hold what they need, and the process ends as a whole.
        let this = shared.clone();
        shared.context.pods.on_change(move |change| {
            let runtime_pod = change.new.and_then(|pod| Some((pod, (this.context.read_pod)(&pod.object)?)));
            let effect = match runtime_pod {
                Some((pod, facts)) => lock(&this.pods).applied(change.key, &pod.uid, facts, this.context.clock.now()),
                None => lock(&this.pods).deleted(change.key),
            };
            this.follow(change.key, &effect);
        });
        let this = shared.clone();
        shared.context.runs.on_change(move |change| {
            if let Some(run) = change.new {
                this.consider(run);
            }
        });
        let this = shared.clone();
        shared.context.workspaces.on_change(move |change| {
            let read = this.context.read_workspace;
            let [old, new] = [change.old, change.new].map(|side| side.and_then(|stored| read(&stored.object)));
            if old.map(admission) != new.map(admission) {
                this.context.index.naming(change.key, Stage::Scheduled).into_iter().for_each(|run| this.queue.add(run));
            }
        });
        Self { shared }
    }

    /// The queue, for its numbers.
    pub fn queue(&self) -> &WorkQueue<ObjectKey> {
        &self.shared.queue
    }

    /// Looks at every Run: to be done when decisions may be made again. On a thread of its own, since there may be a million.
    pub fn look_at_all(&self) -> impl Future<Output = ()> + Send + use<R, P, W> {
        let shared = self.shared.clone();
        let looking = tokio::task::spawn_blocking(move || shared.context.runs.for_each(|run| shared.consider(run)));
        async move {
            if let Err(error) = looking.await {
                tracing::error!(%error, "not every Run was looked at");
            }
        }
    }

    /// Works until `shutdown`. Begins when all three caches are complete.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = &self.shared;
        let context = &shared.context;
        let synced = async { futures::join!(context.pods.synced(), context.runs.synced(), context.workspaces.synced()) };
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = synced => {}
        }
        shared.synced.store(true, Ordering::SeqCst);
        self.look_at_all().await;
        let live = run_workers(&shared.queue, context.workers, shutdown.clone(), |key| {
            let span = tracing::info_span!("reconcile", kind = "Run", object = %key);
            shared.reconcile(key).instrument(span)
        });
        let watch = run_workers(&shared.timers, 1, shutdown.clone(), |pod| {
            let effect = lock(&shared.pods).fired(&pod, context.clock.now());
            shared.follow(&pod, &Effect { look_again: None, ..effect });
            std::future::ready(effect.look_again.map_or(Next::Done, Next::After))
        });
        let follow = async {
            let mut policies = context.policies.clone();
            // Ends with whoever tells them.
            while let Some(Ok(())) = shutdown.run_until_cancelled(policies.changed()).await {
                self.look_at_all().await;
            }
        };
        futures::join!(live, watch, follow);
    }
}

/// What a look at the cache says of a Run.
enum Interest {
    None,
    /// Run and Pod are to be read.
    Read,
    Later(Duration),
}

impl<R: Send + Sync + 'static, P: Send + Sync + 'static, W: Send + Sync + 'static> Shared<R, P, W> {
    fn follow(&self, pod: &ObjectKey, effect: &Effect) {
        if let Some(delay) = effect.look_again {
            self.timers.add_after(pod.clone(), delay);
        }
        if effect.wake {
            self.context.index.on_pod(pod).into_iter().for_each(|run| self.queue.add(run));
        }
    }

    /// A Run is there in this state: queues it if there is something to do, now or later.
    fn consider(&self, run: &Stored<R>) {
        if !self.synced.load(Ordering::SeqCst) {
            return;
        }
        let Some(view) = view(self.context.read_run, Some(run)) else { return };
        match self.interest(&run.key, view) {
            Interest::None => {}
            Interest::Read => self.queue.add(run.key.clone()),
            Interest::Later(delay) => self.queue.add_after(run.key.clone(), delay),
        }
    }

    fn interest(&self, key: &ObjectKey, run: RunView<'_>) -> Interest {
        let now = self.context.clock.now();
        if let Some(delete_at_s) = run.delete_at_s {
            let left_ms = delete_at_s.saturating_mul(1_000).saturating_sub(now.wall_ms);
            return match u64::try_from(left_ms) {
                Ok(left_ms) if left_ms > 0 => Interest::Later(Duration::from_millis(left_ms)),
                _ => Interest::Read,
            };
        }
        let Some(pod) = run.pod.filter(|_| matches!(run.stage, Stage::Scheduled | Stage::Claimed)) else { return Interest::None };
        let pod_key = ObjectKey { namespace: key.namespace.clone(), name: pod.clone() };
        let uid = run.pod_uid.map(|uid| &**uid);
        let state = lock(&self.pods).state(&pod_key, uid, now);
        let workspace = self.workspace(key, run.workspace.map(|name| &**name), run.runtime, pod, uid);
        match may_act(run.stage, run.cancel_requested, state, workspace, self.context.policies.borrow().of(run.runtime)) {
            true => Interest::Read,
            // Whatever that is about: nobody tells when it ends.
            false if state == PodState::Inconsistent => Interest::Later(LOOK_AGAIN_EVERY),
            false => Interest::None,
        }
    }

    /// What the cache says of the workspace that a Run names.
    fn workspace(&self, run: &ObjectKey, name: Option<&str>, runtime: &str, pod: &str, pod_uid: Option<&str>) -> WorkspaceState {
        let Some(name) = name else { return WorkspaceState::NotNamed };
        let key = ObjectKey { namespace: run.namespace.clone(), name: Arc::from(name) };
        let Some(stored) = self.context.workspaces.get(&key) else { return WorkspaceState::Refuses };
        let Some(workspace) = (self.context.read_workspace)(&stored.object) else { return WorkspaceState::Refuses };
        let (admits, bound_pod, bound_uid) = admission(workspace);
        let is_here = bound_pod == Some(pod) && bound_uid.is_some() && (pod_uid.is_none() || bound_uid == pod_uid);
        if admits && is_here && workspace.spec.runtime == runtime { WorkspaceState::Admits } else { WorkspaceState::Refuses }
    }

    async fn reconcile(&self, key: ObjectKey) -> Next {
        let Some(stored) = self.context.runs.get(&key) else { return Next::Done };
        let Some(view) = view(self.context.read_run, Some(&stored)) else { return Next::Done };
        let Ok(term) = self.context.fence.admitted() else { return Next::Done };
        match self.interest(&key, view) {
            Interest::None => return Next::Done,
            Interest::Later(delay) => return Next::After(delay),
            Interest::Read => {}
        }
        match self.act(&key, term).await {
            Ok(next) => next,
            Err(error) if error.is_not_found() => Next::Done,
            Err(error) if error.is_conflict() => {
                tracing::debug!(%error, "the Run changed meanwhile");
                Next::Retry
            }
            Err(error) => {
                tracing::warn!(%error, "the Run could not be seen to");
                again(&error)
            }
        }
    }

    /// Reads, plans, and does what follows.
    async fn act(&self, key: &ObjectKey, term: u64) -> Result<Next, CallError> {
        let api: Api<Run> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let Some(stored) = get_json(&api, &key.name).await? else { return Ok(Next::Done) };
        let run = match decode::run(stored) {
            Ok(run) => run,
            Err(error) => {
                tracing::warn!(%error, "left alone: it can't be read");
                return Ok(Next::Done);
            }
        };
        let (pod, workspace) = if run.phase().is_active() { self.look(key, &run).await? } else { (PodState::Inconsistent, WorkspaceState::NotNamed) };
        let now = self.context.clock.now();
        let planned = plan(&run, pod, workspace, self.context.policies.borrow().of(&run.spec.runtime), now.wall_ms);
        if let Plan::Later(delay) = planned {
            return Ok(Next::After(delay));
        }
        let Some(change) = change(&run, &planned, &Time(Timestamp::from_second(now.wall_ms.div_euclid(1_000)).unwrap_or_default())) else {
            return Ok(if run.phase().is_active() { Next::After(LOOK_AGAIN_EVERY) } else { Next::Done });
        };
        self.send(&api, key, &run, &change, term).await?;
        Ok(Next::Done)
    }

    /// The Pod and the workspace of an active Run, the Pod as it is stored now.
    async fn look(&self, key: &ObjectKey, run: &Run) -> Result<(PodState, WorkspaceState), CallError> {
        let status = run.status.as_ref();
        let text = |field: Option<&String>| field.filter(|text| !text.is_empty()).cloned();
        let Some(name) = text(status.and_then(|status| status.assigned_pod.as_ref())) else {
            // Active on no Pod: not by our doing.
            return Ok((PodState::Inconsistent, WorkspaceState::NotNamed));
        };
        let uid = text(status.and_then(|status| status.assigned_pod_uid.as_ref()));
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let pod = get_uncached(&api, &name).await?;
        let state =
            self.state(&ObjectKey { namespace: key.namespace.clone(), name: Arc::from(name.as_str()) }, uid.as_deref(), pod.as_ref(), self.context.clock.now());
        let named = run.spec.workspace.as_ref().map(|workspace| workspace.name.as_str());
        Ok((state, self.workspace(key, named, &run.spec.runtime, &name, uid.as_deref())))
    }

    fn state(&self, key: &ObjectKey, assigned_uid: Option<&str>, pod: Option<&Pod>, now: Now) -> PodState {
        let Some(pod) = pod else { return PodState::Gone };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(assigned) = assigned_uid.filter(|assigned| *assigned != uid) {
            return if lock(&self.pods).lives_elsewhere(key, assigned) { PodState::Inconsistent } else { PodState::Replaced };
        }
        let signs = PodSigns::of(pod);
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_starting = conditions.is_none_or(|conditions| conditions.iter().all(|condition| condition.type_ != "Ready"));
        if signs.terminating {
            PodState::Terminating
        } else if runtime_of(pod).is_none() || is_starting {
            PodState::Well
        } else {
            PodState::of(lock(&self.pods).life(key, uid, signs, now), signs.ready)
        }
    }

    async fn send(&self, api: &Api<Run>, key: &ObjectKey, run: &Run, change: &Change, term: u64) -> Result<(), CallError> {
        let uid = run.metadata.uid.clone().unwrap_or_default();
        let resource_version = run.metadata.resource_version.clone().unwrap_or_default();
        let observed = Precondition { uid: &uid, resource_version: &resource_version };
        let sent = match self.context.fence.begin(term) {
            // Kept until the answer is there.
            Ok(_sending) => match &change.status {
                Some(status) => status_merge_patch(api, &key.name, observed, status).await.map(drop),
                None => delete_observed(api, &key.name, observed).await,
            },
            Err(NotLeader) => return Ok(()),
        };
        if let Err(error) = sent {
            let happened = error.is_ambiguous() && change.is_stored_in(get_json(api, &key.name).await?.as_ref());
            if !happened {
                return Err(error);
            }
            tracing::info!(%error, "the answer of a write was lost; a read shows that it took effect");
        }
        self.tell(key, uid, run, change);
        Ok(())
    }

    fn tell(&self, key: &ObjectKey, uid: String, run: &Run, change: &Change) {
        let pod = run.status.as_ref().and_then(|status| status.assigned_pod.as_deref()).unwrap_or_default();
        tracing::info!(pod, note = change.event.as_ref().map(|(_, _, note)| note.as_str()), "run {}", change.action.as_str());
        (self.context.acted)(change.action);
        if let Some((type_, reason, note)) = &change.event {
            let regarding = Regarding::of::<Run>(key.clone(), Arc::from(uid));
            self.context.recorder.publish(Occurrence { regarding, type_: *type_, reason, action: "Reaping", note: note.clone() });
        }
    }
}

/// Whether a workspace admits Runs, and where: all that a Run on its Pod depends on.
fn admission(workspace: &PersistentWorkspace) -> (bool, Option<&str>, Option<&str>) {
    let status = workspace.status.as_ref();
    let admits = *workspace.phase() == WorkspacePhase::Bound && workspace.metadata.deletion_timestamp.is_none();
    let bound_pod = status.and_then(|status| status.bound_pod.as_deref()).filter(|pod| !pod.is_empty());
    let bound_uid = status.and_then(|status| status.bound_pod_uid.as_deref()).filter(|uid| !uid.is_empty());
    (admits, bound_pod, bound_uid)
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
