//! The conditions of a workspace: types, reasons, texts. All carry the generation that was looked at.

use super::plan::{BoundPod, LostReason, WorkspaceFacts};
use berth_api::conditions::{ConditionStatus, find, set_condition};
use berth_api::constants::{reason, workspace_condition};
use berth_api::persistent_workspace::{PersistentWorkspaceSpec, PersistentWorkspaceStatus};
use berth_api::runtime_ready::Verdict;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The conditions of one status, which is being made anew.
pub(super) struct Conditions<'a> {
    pub workspace: WorkspaceFacts<'a>,
    pub status: &'a mut PersistentWorkspaceStatus,
    pub now: Time,
}

impl Conditions<'_> {
    fn set(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: &str) {
        // A full list (16, others' conditions) takes no new type; ours are then missing, and nothing else changes.
        let _ = set_condition(&mut self.status.conditions, kind, status, reason, message, &self.now);
        if let Some(condition) = self.status.conditions.iter_mut().find(|condition| condition.type_ == kind) {
            condition.observed_generation = self.workspace.generation;
        }
    }

    fn set_false(&mut self, kind: &str, reason: &str, message: &str) {
        self.set(kind, ConditionStatus::False, reason, message);
    }

    /// Whether the spec can be acted on.
    pub fn set_accepted(&mut self) -> bool {
        let spec = self.workspace.spec;
        let problem = if spec.runtime.is_empty() {
            Some("spec.runtime must not be empty".to_owned())
        } else if spec.mode != PersistentWorkspaceSpec::MODE_RUNTIME_POD_LOCAL {
            Some(format!("spec.mode must be {}, not {:?}", PersistentWorkspaceSpec::MODE_RUNTIME_POD_LOCAL, spec.mode))
        } else {
            None
        };
        match &problem {
            None => self.set(workspace_condition::ACCEPTED, ConditionStatus::True, "Accepted", "PersistentWorkspace spec accepted"),
            Some(message) => self.set_false(workspace_condition::ACCEPTED, reason::INVALID_SPEC, message),
        }
        problem.is_none()
    }

    /// Whether a Pod of the Runtime exists, available or not.
    pub fn set_runtime_ready(&mut self, any_pod: bool) {
        let runtime = &self.workspace.spec.runtime;
        match any_pod {
            true => self.set(workspace_condition::RUNTIME_READY, ConditionStatus::True, reason::RUNTIME_FOUND, &format!("a runtime pod of {runtime:?} exists")),
            false => self.set_false(workspace_condition::RUNTIME_READY, reason::RUNTIME_NOT_FOUND, &format!("no pod has the label runtime={runtime}")),
        }
    }

    /// It waits for a Pod, or for a spec that can be accepted.
    pub fn set_unbound(&mut self, accepted: bool) {
        let waiting = format!("waiting for an available runtime pod of {:?}", self.workspace.spec.runtime);
        let (reason, message) = if accepted { ("WaitingForRuntimePod", waiting.as_str()) } else { ("NotAccepted", "the spec is not accepted") };
        self.set_false(workspace_condition::BOUND, reason, message);
        self.set_false(workspace_condition::AVAILABLE, "NotBound", "not bound to a runtime pod");
    }

    /// It has its Pod.
    pub fn set_bound(&mut self) {
        let message = format!("bound to runtime pod {}", self.status.bound_pod.as_deref().unwrap_or_default());
        self.set(workspace_condition::BOUND, ConditionStatus::True, "Bound", &message);
    }

    /// Since when it has its Pod, seconds since the epoch; None if the list is full of others' conditions.
    pub fn bound_s(&self) -> Option<i64> {
        let bound = find(&self.status.conditions, workspace_condition::BOUND).filter(|bound| bound.status == "True");
        bound.map(|bound| bound.last_transition_time.0.as_second())
    }

    /// Whether its Pod is available.
    pub fn set_available(&mut self, bound: BoundPod) {
        let (reason, message) = match bound {
            BoundPod::Exists(Verdict::Ready) => ("PodReady", "the runtime pod is available"),
            BoundPod::Exists(Verdict::NotRunning) => ("PodNotRunning", "the runtime pod is not running"),
            BoundPod::Exists(Verdict::NotReady) => ("PodNotReady", "the runtime pod is not ready"),
            BoundPod::Exists(Verdict::Terminating) => ("PodTerminating", "the runtime pod is terminating"),
            BoundPod::Exists(Verdict::HeartbeatMissing) => ("HeartbeatMissing", "the runtime pod's agent has not reported"),
            BoundPod::Exists(Verdict::HeartbeatStale) => ("HeartbeatStale", "the runtime pod's agent has fallen silent"),
            BoundPod::OfAnotherRuntime => ("PodOfAnotherRuntime", "the pod no longer has the Runtime's label"),
            BoundPod::UidUnknown => ("PodUIDUnknown", "status.boundPodUID is missing, so that the pod can't be told from a namesake"),
            BoundPod::NotNamed | BoundPod::Gone | BoundPod::Replaced => ("PodUnknown", "status.boundPod is missing"),
        };
        let status = if bound == BoundPod::Exists(Verdict::Ready) { ConditionStatus::True } else { ConditionStatus::False };
        self.set(workspace_condition::AVAILABLE, status, reason, message);
    }

    /// The conditions of Lost; without a reason those that are there are kept, as long as they say False.
    pub fn set_lost(&mut self, reason: Option<LostReason>) {
        let pod = self.status.bound_pod.clone().unwrap_or_default();
        let message = match reason {
            Some(LostReason::PodDeleted) => format!("runtime pod {pod} is gone, and the data with it"),
            Some(LostReason::PodReplaced) => format!("runtime pod {pod} was replaced by a namesake, and the data is gone"),
            None => "the runtime pod is gone, and the data with it".to_owned(),
        };
        for kind in [workspace_condition::BOUND, workspace_condition::AVAILABLE] {
            if reason.is_some() || find(&self.status.conditions, kind).is_none_or(|condition| condition.status != "False") {
                self.set_false(kind, reason.map_or("Lost", LostReason::as_str), &message);
            }
        }
    }

    /// Its time is over.
    pub fn set_released(&mut self) {
        let ttl_s = self.workspace.spec.ttl_seconds_after_unused.unwrap_or_default();
        self.set_false(
            workspace_condition::AVAILABLE,
            reason::RELEASED,
            &format!("unused for {ttl_s} s: no run is admitted any more, and the data is removed"),
        );
    }

    /// It is being deleted, and its data is still there.
    pub fn set_deleting(&mut self, cleaning: Cleaning) {
        self.set_false(workspace_condition::AVAILABLE, reason::DELETING, "being deleted: no run is admitted any more");
        let pod = self.status.bound_pod.clone().unwrap_or_default();
        match cleaning {
            // What the agent says of its work is better.
            Cleaning::InUse | Cleaning::WaitingForAgent if self.agent_speaks() => {}
            Cleaning::InUse => self.set_false(workspace_condition::CLEANED, reason::IN_USE, "runs that use the workspace have not ended"),
            Cleaning::WaitingForAgent => {
                self.set_false(
                    workspace_condition::CLEANED,
                    reason::WAITING_FOR_AGENT,
                    &format!("the agent of runtime pod {pod} has not removed the directory yet"),
                );
            }
            Cleaning::NoAgent => {
                let message = format!("runtime pod {pod} advertises no agent that removes directories: {} stays there until the pod goes", self.path());
                self.set_false(workspace_condition::CLEANED, reason::AGENT_CANNOT_CLEAN, &message);
            }
        }
    }

    fn agent_speaks(&self) -> bool {
        let cleaned = find(&self.status.conditions, workspace_condition::CLEANED);
        cleaned.is_some_and(|cleaned| ![reason::IN_USE, reason::WAITING_FOR_AGENT, reason::AGENT_CANNOT_CLEAN].contains(&cleaned.reason.as_str()))
    }

    fn path(&self) -> &str {
        self.status.path.as_deref().unwrap_or("its directory")
    }
}

/// Why the directory of a workspace that is being deleted is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleaning {
    InUse,
    WaitingForAgent,
    NoAgent,
}
