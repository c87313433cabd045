//! What the reconcilers need of Runs, by the Pod they are on and by the workspace they name.
//!
//! One index for all of them, kept in the watch task of the Runs: a change costs what it changes, and a Run costs its name twice.

use berth_api::run::RunPhase;
use berth_runtime::informer::{Change, Informer, Stored};
use berth_runtime::{Clock, ObjectKey, lock};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Where a Run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Pending, or no phase yet.
    Pending,
    /// Assigned to a Pod, not claimed.
    Scheduled,
    /// Claimed: Running or Ready.
    Claimed,
    /// Succeeded, Failed, Timeout, Cancelled.
    Ended,
    /// A phase of a later version.
    Unknown,
}

impl Stage {
    /// The stage of a phase.
    pub fn of(phase: &RunPhase) -> Self {
        match phase {
            RunPhase::Pending => Self::Pending,
            RunPhase::Scheduled => Self::Scheduled,
            RunPhase::Running | RunPhase::Ready => Self::Claimed,
            RunPhase::Succeeded | RunPhase::Failed | RunPhase::Timeout | RunPhase::Cancelled => Self::Ended,
            RunPhase::Unknown(_) => Self::Unknown,
        }
    }

    /// May be using what it was given: it is on a Pod, as far as can be told.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Scheduled | Self::Claimed | Self::Unknown)
    }
}

/// What the reconcilers read of a Run, whatever the process keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunView<'a> {
    /// Where it stands.
    pub stage: Stage,
    /// `status.assignedPod`.
    pub pod: Option<&'a Arc<str>>,
    /// `status.assignedPodUID`.
    pub pod_uid: Option<&'a Arc<str>>,
    /// `spec.runtime`.
    pub runtime: &'a str,
    /// `spec.workspace.name`.
    pub workspace: Option<&'a Arc<str>>,
    /// `runs` it holds while it is active.
    pub held_runs: u64,
    /// `spec.cancelRequested`.
    pub cancel_requested: bool,
    /// The later of `startTime` and `completionTime`, seconds since the epoch.
    pub last_use_s: Option<i64>,
    /// Ended, and to be deleted then: `completionTime` plus a positive `ttlSecondsAfterFinished`, seconds since the epoch.
    pub delete_at_s: Option<i64>,
}

/// Reads the view of a kept Run; None leaves it out.
pub type ReadRun<R> = for<'a> fn(&'a R) -> Option<RunView<'a>>;

/// Runs by Pod and by workspace. Clones share it.
#[derive(Clone)]
pub struct RunIndex {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    listeners: RwLock<Vec<Listener>>,
    synced: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

/// Told of a workspace whose use has changed.
type Listener = Box<dyn Fn(&ObjectKey) + Send + Sync>;

#[derive(Default)]
struct State {
    /// Active Runs by the Pod they are assigned to.
    by_pod: HashMap<ObjectKey, OnPod>,
    /// Runs that have not ended by the workspace they name, and when it was last used.
    by_workspace: HashMap<ObjectKey, Users>,
}

#[derive(Default)]
struct OnPod {
    names: BTreeSet<Arc<str>>,
    held_runs: u64,
}

#[derive(Default)]
struct Users {
    live: HashMap<Arc<str>, Stage>,
    active: usize,
    last_s: Option<i64>,
}

/// Who uses a workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Runs that name it and have not ended.
    pub live: usize,
    /// Those of them that may be on a Pod: Scheduled, Running, Ready, or of a phase of a later version.
    pub active: usize,
    /// Latest claim or end of such a Run that was seen, seconds since the epoch, not in the future.
    pub last_s: Option<i64>,
}

impl RunIndex {
    /// An index of the Runs of `runs`, kept before any handler that is added later runs. The clock limits times that lie in the future.
    pub fn new<R: Send + Sync + 'static>(runs: &Informer<R>, read: ReadRun<R>, clock: Arc<dyn Clock>) -> Self {
        let of = runs.clone();
        let synced = move || {
            let of = of.clone();
            async move { of.synced().await }.boxed()
        };
        let shared = Arc::new(Shared { state: Mutex::default(), listeners: RwLock::default(), synced: Box::new(synced) });
        let kept = shared.clone();
        runs.on_change(move |change| kept.apply(change, read, clock.now().wall_ms.div_euclid(1_000)));
        Self { shared }
    }

    /// Calls `listener` in the watch task with every workspace whose use has changed, existing or not. It must not block.
    pub fn on_use(&self, listener: impl Fn(&ObjectKey) + Send + Sync + 'static) {
        self.shared.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Waits until the Runs are listed. Before, nobody uses anything as far as is known here.
    pub fn synced(&self) -> BoxFuture<'static, ()> {
        (self.shared.synced)()
    }

    /// Names of the active Runs that are assigned to a Pod.
    pub fn on_pod(&self, pod: &ObjectKey) -> Vec<ObjectKey> {
        let state = lock(&self.shared.state);
        let names = state.by_pod.get(pod).into_iter().flat_map(|on| &on.names);
        names.map(|name| ObjectKey { namespace: pod.namespace.clone(), name: name.clone() }).collect()
    }

    /// `runs` that the active Runs of a Pod hold.
    pub fn held_runs(&self, pod: &ObjectKey) -> u64 {
        lock(&self.shared.state).by_pod.get(pod).map_or(0, |on| on.held_runs)
    }

    /// Who uses a workspace, existing or not.
    pub fn usage(&self, workspace: &ObjectKey) -> Usage {
        let state = lock(&self.shared.state);
        state.by_workspace.get(workspace).map_or_else(Usage::default, |users| Usage { live: users.live.len(), active: users.active, last_s: users.last_s })
    }

    /// Names of the Runs of that stage that name a workspace.
    pub fn naming(&self, workspace: &ObjectKey, stage: Stage) -> Vec<ObjectKey> {
        let state = lock(&self.shared.state);
        let live = state.by_workspace.get(workspace).into_iter().flat_map(|users| &users.live);
        live.filter(|(_, is)| **is == stage).map(|(name, _)| ObjectKey { namespace: workspace.namespace.clone(), name: name.clone() }).collect()
    }

    /// Forgets when a workspace was last used, if it doesn't exist and no Run that has not ended names it.
    pub fn forget(&self, workspace: &ObjectKey) {
        let mut state = lock(&self.shared.state);
        if state.by_workspace.get(workspace).is_some_and(|users| users.live.is_empty()) {
            state.by_workspace.remove(workspace);
        }
    }
}

impl Shared {
    fn apply<R>(&self, change: &Change<'_, R>, read: ReadRun<R>, now_s: i64) {
        let same = change.old.zip(change.new).is_some_and(|(old, new)| old.uid == new.uid);
        let (old, new) = (view(read, change.old), view(read, change.new));
        lock(&self.state).replace(change.key, old, new, same, now_s);
        let used = |view: &RunView<'_>| (view.workspace.cloned(), view.stage != Stage::Ended, view.stage.is_active(), view.last_use_s);
        let (old, new) = (old.as_ref().map(used), new.as_ref().map(used));
        if same && old == new {
            return;
        }
        let names = [old, new].map(|used| used.and_then(|(workspace, ..)| workspace));
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for name in names.into_iter().flatten().collect::<BTreeSet<_>>() {
            let workspace = ObjectKey { namespace: change.key.namespace.clone(), name };
            listeners.iter().for_each(|listener| listener(&workspace));
        }
    }
}

impl State {
    /// `same`: both sides are one object.
    fn replace(&mut self, run: &ObjectKey, old: Option<RunView<'_>>, new: Option<RunView<'_>>, same: bool, now_s: i64) {
        let key = |name: &Arc<str>| ObjectKey { namespace: run.namespace.clone(), name: name.clone() };
        if let Some(old) = old {
            if let Some(pod) = old.pod.filter(|_| old.stage.is_active()).map(key) {
                self.leave_pod(&pod, &run.name, old.held_runs);
            }
            if let Some(workspace) = old.workspace.map(key) {
                // An object that is gone while it was claimed has been used until now.
                let end_s = (!same && old.stage == Stage::Claimed).then_some(now_s);
                self.leave_workspace(&workspace, &run.name, end_s);
            }
        }
        if let Some(new) = new {
            if let Some(pod) = new.pod.filter(|_| new.stage.is_active()).map(key) {
                let on = self.by_pod.entry(pod).or_default();
                on.names.insert(run.name.clone());
                on.held_runs = on.held_runs.saturating_add(new.held_runs);
            }
            if let Some(workspace) = new.workspace.map(key) {
                let users = self.by_workspace.entry(workspace).or_default();
                if new.stage != Stage::Ended {
                    users.live.insert(run.name.clone(), new.stage);
                    users.active += usize::from(new.stage.is_active());
                }
                users.used(new.last_use_s.map(|last_s| last_s.min(now_s)));
            }
        }
    }

    fn leave_pod(&mut self, pod: &ObjectKey, run: &Arc<str>, held_runs: u64) {
        let Some(on) = self.by_pod.get_mut(pod) else { return };
        if on.names.remove(run) {
            on.held_runs = on.held_runs.saturating_sub(held_runs);
        }
        if on.names.is_empty() {
            self.by_pod.remove(pod);
        }
    }

    fn leave_workspace(&mut self, workspace: &ObjectKey, run: &Arc<str>, end_s: Option<i64>) {
        let Some(users) = self.by_workspace.get_mut(workspace) else { return };
        if let Some(stage) = users.live.remove(run) {
            users.active -= usize::from(stage.is_active());
        }
        users.used(end_s);
    }
}

impl Users {
    fn used(&mut self, at_s: Option<i64>) {
        self.last_s = self.last_s.max(at_s);
    }
}

/// What is read of one side of a change.
pub(crate) fn view<R>(read: ReadRun<R>, side: Option<&Stored<R>>) -> Option<RunView<'_>> {
    read(&side?.object)
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;
