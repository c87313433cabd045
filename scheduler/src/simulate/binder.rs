//! The workspace binder in simulation: the reconciler's own plan, applied to the objects of the input.

use std::sync::Arc;

use berth_api::constants::{RESOURCE_RUNS, workspace_condition};
use berth_api::persistent_workspace::{PersistentWorkspaceStatus, WorkspacePhase};
use berth_api::runtime_ready::{Availability, Now, PodFacts};
use berth_api::{PersistentWorkspace, Run, conditions};
use berth_controllers::persistent_workspace::plan::{BoundPod, Found, Observed, WorkspaceFacts, plan};
use berth_controllers::persistent_workspace::{Candidate, Load};
use berth_controllers::policy::Policies;
use berth_controllers::runs::{Stage, Usage};
use berth_framework::from_api;
use berth_framework::model::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::FxHashMap;

use super::world::World;

/// How often a workspace is planned before what is left is left; one binding and its conditions need two.
const ROUNDS_MAX: usize = 4;

/// Namespace and name.
type Key<'w> = (&'w str, &'w str);

/// The world as the binder sees it. Readiness doesn't change in simulation (who is fresh goes on beating), and nothing expires while it runs:
/// what has expired when the clock starts is released.
pub struct Binder<'w> {
    by_runtime: FxHashMap<Key<'w>, Vec<Candidate<'w>>>,
    by_name: FxHashMap<Key<'w>, Found<'w>>,
    usage: FxHashMap<Key<'w>, Usage>,
    /// What counts towards the load of each Pod.
    held: FxHashMap<ObjectKey, u64>,
    policies: &'w Policies,
    now: Now,
}

impl<'w> Binder<'w> {
    /// Looks at everything.
    pub fn new(world: &'w World, policies: &'w Policies, now: Now) -> Self {
        let (by_runtime, by_name, usage, held) = Default::default();
        let mut binder = Self { by_runtime, by_name, usage, held, policies, now };
        world.pods.iter().map(|pod| &pod.object).chain(&world.unlabelled_pods).for_each(|pod| binder.take_pod(pod));
        world.runs.iter().for_each(|run| binder.take_run(&run.object));
        world.workspaces.iter().for_each(|workspace| binder.load(&workspace.object));
        binder
    }

    fn take_pod(&mut self, pod: &'w Pod) {
        let (namespace, name, uid) = (text(&pod.metadata.namespace), text(&pod.metadata.name), text(&pod.metadata.uid));
        let runtime = berth_api::runtime_ready::runtime_of(pod);
        let verdict = self.policies.of(runtime.unwrap_or_default()).judge(availability(pod, self.now)).verdict;
        let object = from_api::pod_object(pod);
        let agent = object.as_ref().is_some_and(|object| object.workspace_agent);
        if let (Some(runtime), Some(object)) = (runtime, object) {
            let capacity = object.capacity.get(RESOURCE_RUNS).and_then(|runs| u64::try_from(*runs).ok()).unwrap_or(0);
            self.by_runtime.entry((namespace, runtime)).or_default().push(Candidate { name, uid, verdict, load: Load { held: 0, capacity } });
        }
        self.by_name.insert((namespace, name), Found { uid, runtime, verdict, agent });
    }

    fn take_run(&mut self, run: &'w Run) {
        let namespace = text(&run.metadata.namespace);
        let (stage, status) = (Stage::of(run.phase()), run.status.as_ref());
        if let Some(workspace) = &run.spec.workspace {
            let times = status.into_iter().flat_map(|status| [&status.start_time, &status.completion_time]).flatten();
            let last_s = times.map(|time| time.0.as_second().min(self.now.wall_ms.div_euclid(1_000))).max();
            let usage = self.usage.entry((namespace, &workspace.name)).or_default();
            usage.live += usize::from(stage != Stage::Ended);
            usage.active += usize::from(stage.is_active());
            usage.last_s = usage.last_s.max(last_s);
        }
        if let Some(pod) = status.and_then(|status| status.assigned_pod.as_deref()).filter(|_| stage.is_active()) {
            let runs = run.spec.requests().ok().and_then(|requests| u64::try_from(*requests.get(RESOURCE_RUNS)?).ok());
            self.hold(namespace, pod, runs.unwrap_or(0));
        }
    }

    /// A bound workspace counts towards the load of its Pod.
    fn load(&mut self, workspace: &PersistentWorkspace) {
        if matches!(workspace.phase(), WorkspacePhase::Bound | WorkspacePhase::Released)
            && let Some(pod) = workspace.status.as_ref().and_then(|status| status.bound_pod.as_deref())
        {
            self.hold(text(&workspace.metadata.namespace), pod, 1);
        }
    }

    fn hold(&mut self, namespace: &str, pod: &str, runs: u64) {
        let held = self.held.entry(ObjectKey::new(namespace, pod)).or_default();
        *held = held.saturating_add(runs);
    }

    /// Plans `workspace` until nothing changes; `true` if anything did.
    pub fn bind(&mut self, workspace: &mut PersistentWorkspace) -> bool {
        let mut changed = false;
        for _ in 0..ROUNDS_MAX {
            let Some(status) = self.next(workspace) else { break };
            let was_pending = *workspace.phase() == WorkspacePhase::Pending;
            workspace.status = Some(status);
            if was_pending {
                self.load(workspace);
            }
            changed = true;
        }
        changed
    }

    fn next(&self, workspace: &PersistentWorkspace) -> Option<PersistentWorkspaceStatus> {
        let meta = &workspace.metadata;
        let (namespace, name, runtime) = (text(&meta.namespace), text(&meta.name), workspace.spec.runtime.as_str());
        let status = workspace.status.as_ref();
        let named = status.and_then(|status| status.bound_pod.as_deref()).filter(|pod| !pod.is_empty());
        let found = named.and_then(|pod| self.by_name.get(&(namespace, pod)).copied());
        let bound = match named {
            None => BoundPod::NotNamed,
            Some(_) => {
                let of = status.and_then(|status| status.runtime.as_deref()).unwrap_or(runtime);
                BoundPod::compare(of, status.and_then(|status| status.bound_pod_uid.as_deref()), found)
            }
        };
        let deleting = meta.deletion_timestamp.is_some();
        // Finalizers are nothing to look at here: they are as the binder wants them.
        let facts = WorkspaceFacts { name, generation: meta.generation, deleting, has_finalizer: true, spec: &workspace.spec, status };
        let observed = Observed {
            bound,
            agent: found.is_some_and(|found| found.agent),
            usage: self.usage.get(&(namespace, name)).copied().unwrap_or_default(),
            binding: self.policies.of(runtime).binding,
            use_writable_in_ms: 0,
            wall_ms: self.now.wall_ms,
        };
        let pods = self.by_runtime.get(&(namespace, runtime)).into_iter().flatten();
        let loaded = |pod: &Candidate<'w>| {
            let held = self.held.get(&ObjectKey::new(namespace, pod.name)).copied().unwrap_or(0);
            Candidate { load: Load { held, ..pod.load }, ..*pod }
        };
        plan(facts, pods.map(loaded), &observed).status().cloned()
    }
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

/// What the one predicate says of a Pod at first sight.
pub fn availability(pod: &Pod, now: Now) -> Availability {
    PodFacts::observe(None, pod, now).availability(now)
}

/// Why a workspace is not usable, or an empty text.
pub fn message(workspace: &PersistentWorkspace) -> Arc<str> {
    if workspace.metadata.deletion_timestamp.is_some() {
        return "being deleted".into();
    }
    let Some(status) = &workspace.status else { return "".into() };
    let kind = match workspace.phase() {
        WorkspacePhase::Bound | WorkspacePhase::Released => workspace_condition::AVAILABLE,
        _ => workspace_condition::BOUND,
    };
    conditions::find(&status.conditions, kind).filter(|condition| condition.status == "False").map_or_else(|| "".into(), |c| c.message.as_str().into())
}
