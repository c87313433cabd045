//! What becomes of one workspace: a pure function of what was observed. `berth simulate` calls it too.
//!
//! ```text
//!            a Runtime Pod is available: the first by name       its Pod object is gone or replaced
//!   Pending ─────────────────────────────────────────────► Bound ─────────────────────────────────► Lost, for ever
//!                                              │   ▲
//!                                              └───┘ its Pod comes and goes as available: condition Available
//! ```
//! Rules: reference §5.1 and decisions, "PersistentWorkspace". A workspace that is being deleted, or in any other phase, is left alone.

use berth_api::conditions::{ConditionStatus, set_condition};
use berth_api::constants::{WORKSPACE_PATH_PREFIX, reason, workspace_condition};
use berth_api::persistent_workspace::{PersistentWorkspaceSpec, PersistentWorkspaceStatus, WorkspacePhase};
use berth_api::runtime_ready::Verdict;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Condition: the spec can be acted on.
pub const ACCEPTED: &str = "Accepted";
/// Condition: the workspace has its Pod.
pub const BOUND: &str = "Bound";

/// A workspace as it was observed.
#[derive(Clone, Copy, Debug)]
pub struct WorkspaceFacts<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// The spec.
    pub spec: &'a PersistentWorkspaceSpec,
    /// The status; None is Pending.
    pub status: Option<&'a PersistentWorkspaceStatus>,
}

/// A Pod of the workspace's namespace whose `runtime` label is the workspace's `spec.runtime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
    /// What the one predicate says of it now.
    pub verdict: Verdict,
}

/// What is known of the Pod that the status names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundPod {
    /// The status names none.
    NotNamed,
    /// The object of that name and UID exists and belongs to the Runtime.
    Exists(Verdict),
    /// The object of that name and UID exists, without the Runtime's label.
    OfAnotherRuntime,
    /// An object of that name exists; the status has no UID to compare.
    UidUnknown,
    /// No object of that name exists. Only to be said of an authoritative read or list.
    Gone,
    /// The object of that name has another UID. Only to be said of an authoritative read or list.
    Replaced,
}

/// A Pod that was looked up by the name in a status.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// Its label `runtime`.
    pub runtime: Option<&'a str>,
    /// What the predicate says of it now.
    pub verdict: Verdict,
}

impl BoundPod {
    /// Compares the Pod of the name in `status` with what the status says; `found` is None if there is no such Pod.
    pub fn compare(runtime: &str, bound_pod_uid: Option<&str>, found: Option<Found<'_>>) -> Self {
        match (found, bound_pod_uid.filter(|uid| !uid.is_empty())) {
            (None, _) => Self::Gone,
            (Some(_), None) => Self::UidUnknown,
            (Some(found), Some(uid)) if found.uid != uid => Self::Replaced,
            (Some(found), Some(_)) if found.runtime != Some(runtime) => Self::OfAnotherRuntime,
            (Some(found), Some(_)) => Self::Exists(found.verdict),
        }
    }
}

/// Why a workspace is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// Its Pod is gone.
    PodDeleted,
    /// Another Pod has the name.
    PodReplaced,
}

impl LostReason {
    /// The reason in conditions and Events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodDeleted => "PodDeleted",
            Self::PodReplaced => "PodReplaced",
        }
    }
}

/// What to write: the whole status wanted, in one write.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Nothing.
    NoChange,
    /// The workspace gets this Pod.
    Bind {
        /// Its name.
        pod: String,
        /// Its UID.
        uid: String,
        /// The status wanted, path included.
        status: Box<PersistentWorkspaceStatus>,
    },
    /// The workspace has lost its Pod.
    Lost {
        /// How.
        reason: LostReason,
        /// The status wanted.
        status: Box<PersistentWorkspaceStatus>,
    },
    /// The phase stays; conditions or `runtime` change.
    Conditions {
        /// The status wanted.
        status: Box<PersistentWorkspaceStatus>,
    },
}

impl Plan {
    /// The status wanted; None for no change.
    pub fn status(&self) -> Option<&PersistentWorkspaceStatus> {
        match self {
            Self::NoChange => None,
            Self::Bind { status, .. } | Self::Lost { status, .. } | Self::Conditions { status } => Some(status),
        }
    }
}

/// Plans the next state of a workspace.
///
/// `pods` are all Pods of its namespace and of `spec.runtime`, in any order; `bound` is what is known of `status.boundPod`
/// (only looked at while Bound); `wall_ms` is the time that changed conditions get, cut to whole seconds.
pub fn plan<'a>(workspace: WorkspaceFacts<'_>, pods: impl IntoIterator<Item = Candidate<'a>>, bound: BoundPod, wall_ms: i64) -> Plan {
    if workspace.deleting {
        return Plan::NoChange;
    }
    let mut status = workspace.status.cloned().unwrap_or_default();
    let mut conditions = Conditions { workspace, status: &mut status, now: seconds(wall_ms) };
    let done = match workspace.status.map_or(&WorkspacePhase::Pending, |status| &status.phase) {
        WorkspacePhase::Pending => pending(&mut conditions, pods),
        WorkspacePhase::Bound => on_a_pod(&mut conditions, pods, bound),
        WorkspacePhase::Lost => {
            conditions.set_lost(None);
            Done::Conditions
        }
        WorkspacePhase::Released | WorkspacePhase::Unknown(_) => return Plan::NoChange,
    };
    if workspace.status == Some(&status) {
        return Plan::NoChange;
    }
    let status = Box::new(status);
    match done {
        Done::Bind { pod, uid } => Plan::Bind { pod, uid, status },
        Done::Lost(reason) => Plan::Lost { reason, status },
        Done::Conditions => Plan::Conditions { status },
    }
}

enum Done {
    Bind { pod: String, uid: String },
    Lost(LostReason),
    Conditions,
}

fn pending<'a>(conditions: &mut Conditions<'_>, pods: impl IntoIterator<Item = Candidate<'a>>) -> Done {
    let spec = conditions.workspace.spec;
    let accepted = conditions.set_accepted();
    let mut any = false;
    let mut first: Option<Candidate<'a>> = None;
    for pod in pods {
        any = true;
        if pod.verdict == Verdict::Ready && first.is_none_or(|first| pod.name < first.name) {
            first = Some(pod);
        }
    }
    conditions.set_runtime_ready(any);
    conditions.status.runtime = Some(spec.runtime.clone());
    let Some(pod) = first.filter(|_| accepted) else {
        let message = match accepted {
            true => format!("waiting for an available runtime pod of {:?}", spec.runtime),
            false => "the spec is not accepted".to_owned(),
        };
        conditions.set(BOUND, ConditionStatus::False, if accepted { "WaitingForRuntimePod" } else { "NotAccepted" }, &message);
        conditions.set(workspace_condition::AVAILABLE, ConditionStatus::False, "NotBound", "not bound to a runtime pod");
        return Done::Conditions;
    };
    conditions.status.phase = WorkspacePhase::Bound;
    conditions.status.bound_pod = Some(pod.name.to_owned());
    conditions.status.bound_pod_uid = Some(pod.uid.to_owned());
    conditions.status.path = Some(format!("{WORKSPACE_PATH_PREFIX}{}", conditions.workspace.name));
    conditions.set_bound();
    conditions.set_available(BoundPod::Exists(Verdict::Ready));
    Done::Bind { pod: pod.name.to_owned(), uid: pod.uid.to_owned() }
}

fn on_a_pod<'a>(conditions: &mut Conditions<'_>, pods: impl IntoIterator<Item = Candidate<'a>>, bound: BoundPod) -> Done {
    let lost = match bound {
        BoundPod::Gone => Some(LostReason::PodDeleted),
        BoundPod::Replaced => Some(LostReason::PodReplaced),
        _ => None,
    };
    if let Some(reason) = lost {
        conditions.status.phase = WorkspacePhase::Lost;
        conditions.set_lost(Some(reason));
        return Done::Lost(reason);
    }
    conditions.set_accepted();
    conditions.set_runtime_ready(pods.into_iter().next().is_some());
    conditions.set_bound();
    conditions.set_available(bound);
    Done::Conditions
}

/// The conditions of one status, written with the generation that was looked at.
struct Conditions<'a> {
    workspace: WorkspaceFacts<'a>,
    status: &'a mut PersistentWorkspaceStatus,
    now: Time,
}

impl Conditions<'_> {
    fn set(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: &str) {
        // A full list (16, others' conditions) takes no new type; ours are then missing, and nothing else changes.
        let _ = set_condition(&mut self.status.conditions, kind, status, reason, message, &self.now);
        if let Some(condition) = self.status.conditions.iter_mut().find(|condition| condition.type_ == kind) {
            condition.observed_generation = self.workspace.generation;
        }
    }

    fn set_accepted(&mut self) -> bool {
        let spec = self.workspace.spec;
        let problem = if spec.runtime.is_empty() {
            Some("spec.runtime must not be empty".to_owned())
        } else if spec.mode != PersistentWorkspaceSpec::MODE_RUNTIME_POD_LOCAL {
            Some(format!("spec.mode must be {}, not {:?}", PersistentWorkspaceSpec::MODE_RUNTIME_POD_LOCAL, spec.mode))
        } else {
            None
        };
        match &problem {
            None => self.set(ACCEPTED, ConditionStatus::True, "Accepted", "PersistentWorkspace spec accepted"),
            Some(message) => self.set(ACCEPTED, ConditionStatus::False, reason::INVALID_SPEC, message),
        }
        problem.is_none()
    }

    fn set_runtime_ready(&mut self, any_pod: bool) {
        let runtime = &self.workspace.spec.runtime;
        match any_pod {
            true => self.set(workspace_condition::RUNTIME_READY, ConditionStatus::True, reason::RUNTIME_FOUND, &format!("a runtime pod of {runtime:?} exists")),
            false => self.set(
                workspace_condition::RUNTIME_READY,
                ConditionStatus::False,
                reason::RUNTIME_NOT_FOUND,
                &format!("no pod has the label runtime={runtime}"),
            ),
        }
    }

    fn set_bound(&mut self) {
        let message = format!("bound to runtime pod {}", self.status.bound_pod.as_deref().unwrap_or_default());
        self.set(BOUND, ConditionStatus::True, "Bound", &message);
    }

    fn set_available(&mut self, bound: BoundPod) {
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
    fn set_lost(&mut self, reason: Option<LostReason>) {
        let pod = self.status.bound_pod.clone().unwrap_or_default();
        let message = match reason {
            Some(LostReason::PodDeleted) => format!("runtime pod {pod} is gone, and the data with it"),
            Some(LostReason::PodReplaced) => format!("runtime pod {pod} was replaced by a namesake, and the data is gone"),
            None => "the runtime pod is gone, and the data with it".to_owned(),
        };
        let is_false = |kind: &str, status: &PersistentWorkspaceStatus| status.conditions.iter().any(|c| c.type_ == kind && c.status == "False");
        for kind in [BOUND, workspace_condition::AVAILABLE] {
            if reason.is_some() || !is_false(kind, self.status) {
                self.set(kind, ConditionStatus::False, reason.map_or("Lost", LostReason::as_str), &message);
            }
        }
    }
}

/// A time on the wire: whole seconds (reference §0.3).
fn seconds(wall_ms: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(wall_ms.div_euclid(1_000)).unwrap_or_default())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
