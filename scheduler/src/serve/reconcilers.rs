//! The reconcilers beside the scheduler, on the same informers: the PersistentWorkspace binder and the Run lifecycle.

use std::sync::Arc;

use berth_controllers::persistent_workspace::{self, Binder};
use berth_controllers::policy::Policies;
use berth_controllers::run_lifecycle::{self, Lifecycle};
use berth_controllers::runs::RunIndex;
use berth_framework::model::PodObject;
use berth_runtime::events::Recorder;
use berth_runtime::informer::Informer;
use berth_runtime::lease::Fence;
use berth_runtime::workqueue::WorkQueue;
use berth_runtime::{Clock, ObjectKey};
use kube::Client;
use tokio::sync::watch;

use super::metrics::Metrics;
use super::objects::{self, SeenRun, SeenWorkspace};

/// Workspaces worked on at once.
const BINDER_WORKERS: usize = 4;
/// Runs that are past their Pod, or their time, worked on at once.
const LIFECYCLE_WORKERS: usize = 8;

/// What they work with.
pub struct Tools {
    /// Where they read and write.
    pub client: Client,
    /// Runs.
    pub runs: Informer<SeenRun>,
    /// Runtime Pods.
    pub pods: Informer<PodObject>,
    /// Workspaces.
    pub workspaces: Informer<SeenWorkspace>,
    /// What the profiles in force say to them.
    pub policies: watch::Receiver<Policies>,
    /// Takes their Events.
    pub recorder: Recorder,
    /// Asked before every send.
    pub fence: Fence,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Both of them, listening.
pub struct Reconcilers {
    /// Binds, releases and lets go of workspaces.
    pub binder: Binder<PodObject, SeenWorkspace>,
    /// Sees to Runs that their Pod can't see to.
    pub lifecycle: Lifecycle<SeenRun, PodObject, SeenWorkspace>,
    workspaces: Informer<SeenWorkspace>,
}

impl Reconcilers {
    /// Begins to listen.
    pub fn new(tools: Tools) -> Self {
        let Tools { client, runs, pods, workspaces, policies, recorder, fence, clock, metrics } = tools;
        let index = RunIndex::new(&runs, objects::run_view, clock.clone());
        let binder = Binder::new(persistent_workspace::Context {
            client: client.clone(),
            pods: pods.clone(),
            read_pod: objects::pod_view,
            workspaces: workspaces.clone(),
            read_workspace: objects::workspace_view,
            runs: index.clone(),
            policies: policies.clone(),
            recorder: recorder.clone(),
            fence: fence.clone(),
            clock: clock.clone(),
            workers: BINDER_WORKERS,
            observer: metrics.clone(),
        });
        let lifecycle = Lifecycle::new(run_lifecycle::Context {
            client,
            runs,
            read_run: objects::run_view,
            index,
            pods,
            read_pod: objects::pod_view,
            workspaces: workspaces.clone(),
            read_workspace: objects::workspace_view,
            policies,
            recorder,
            fence,
            clock,
            workers: LIFECYCLE_WORKERS,
            observer: metrics.clone(),
            acted: Arc::new(move |action| metrics.client.run_lifecycle(action)),
        });
        Self { binder, lifecycle, workspaces }
    }

    /// Their queues, for their numbers.
    pub fn queues(&self) -> [WorkQueue<ObjectKey>; 2] {
        [self.binder.queue().clone(), self.lifecycle.queue().clone()]
    }

    /// What is to be done when placing begins: every object is looked at, since they dropped what came while this process stood by.
    pub fn look_at_all(&self) -> Box<dyn Fn() + Send> {
        let (workspaces, queue, lifecycle) = (self.workspaces.clone(), self.binder.queue().clone(), self.lifecycle.clone());
        Box::new(move || {
            workspaces.for_each(|workspace| queue.add(workspace.key.clone()));
            // It has begun; nothing waits for its end.
            drop(lifecycle.look_at_all());
        })
    }
}
