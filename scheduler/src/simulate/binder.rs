//! The workspace binder in simulation: the reconciler's own plan, applied to the objects of the input.

use std::sync::Arc;

use berth_api::constants::workspace_condition;
use berth_api::persistent_workspace::WorkspacePhase;
use berth_api::runtime_ready::{Availability, Now, PodFacts, runtime_of};
use berth_api::{PersistentWorkspace, conditions};
use berth_controllers::persistent_workspace::HeartbeatPolicy;
use berth_controllers::persistent_workspace::plan::{BOUND, BoundPod, Candidate, Found, WorkspaceFacts, plan};
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::FxHashMap;

/// How often a workspace is planned before what is left is left; one binding and its conditions need two.
const ROUNDS_MAX: usize = 4;

/// The Pods as the binder sees them. Their readiness doesn't change in simulation: who is fresh goes on beating.
pub struct RuntimePods<'p> {
    by_runtime: FxHashMap<(&'p str, &'p str), Vec<Candidate<'p>>>,
    by_name: FxHashMap<(&'p str, &'p str), Found<'p>>,
    now: Now,
}

impl<'p> RuntimePods<'p> {
    /// Looks at every Pod, by what `policy` asks of it.
    pub fn new(pods: impl IntoIterator<Item = &'p Pod>, policy: &HeartbeatPolicy, now: Now) -> Self {
        let mut all = Self { by_runtime: FxHashMap::default(), by_name: FxHashMap::default(), now };
        for pod in pods {
            let text = |text: &'p Option<String>| text.as_deref().unwrap_or_default();
            let (namespace, name, uid) = (text(&pod.metadata.namespace), text(&pod.metadata.name), text(&pod.metadata.uid));
            let runtime = runtime_of(pod);
            let verdict = policy.judge(runtime.unwrap_or_default(), availability(pod, now)).verdict;
            if let Some(runtime) = runtime {
                all.by_runtime.entry((namespace, runtime)).or_default().push(Candidate { name, uid, verdict });
            }
            all.by_name.insert((namespace, name), Found { uid, runtime, verdict });
        }
        all
    }

    /// Plans `workspace` until nothing changes; `true` if anything did.
    pub fn bind(&self, workspace: &mut PersistentWorkspace) -> bool {
        let mut changed = false;
        for _ in 0..ROUNDS_MAX {
            let Some(status) = self.next(workspace) else { break };
            workspace.status = Some(status);
            changed = true;
        }
        changed
    }

    fn next(&self, workspace: &PersistentWorkspace) -> Option<berth_api::persistent_workspace::PersistentWorkspaceStatus> {
        let meta = &workspace.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let status = workspace.status.as_ref();
        let named = status.and_then(|status| status.bound_pod.as_deref()).filter(|pod| !pod.is_empty());
        let bound = match named {
            None => BoundPod::NotNamed,
            Some(pod) => {
                let found = self.by_name.get(&(namespace, pod)).copied();
                let runtime = status.and_then(|status| status.runtime.as_deref()).unwrap_or(&workspace.spec.runtime);
                BoundPod::compare(runtime, status.and_then(|status| status.bound_pod_uid.as_deref()), found)
            }
        };
        let facts = WorkspaceFacts {
            name: meta.name.as_deref().unwrap_or_default(),
            generation: meta.generation,
            deleting: meta.deletion_timestamp.is_some(),
            spec: &workspace.spec,
            status,
        };
        let pods = self.by_runtime.get(&(namespace, workspace.spec.runtime.as_str()));
        plan(facts, pods.into_iter().flatten().copied(), bound, self.now.wall_ms).status().cloned()
    }
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
    let kind = if *workspace.phase() == WorkspacePhase::Bound { workspace_condition::AVAILABLE } else { BOUND };
    conditions::find(&status.conditions, kind).filter(|condition| condition.status == "False").map_or_else(|| "".into(), |c| c.message.as_str().into())
}
