//! What the informers keep of native Jobs and their Pods: what a verdict can rest on, and no more. No value of a Secret is in it: the API holds
//! references alone.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::build::built_of;
use super::names::{CONTAINER, FINALIZER_RESULT, GATE_START, LABEL_JOB_NAME, LABEL_JOB_UID, native_name};
use crate::job::api::resources::{Amounts, Resource, ResourceRequirements};

/// A native Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenNative {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// The label with the Job's UID, and the one with its name.
    pub job_uid: String,
    /// The Job's name, as the label has it.
    pub job_name: String,
    /// What it was built of.
    pub built_of: Option<String>,
    /// UID of its controller.
    pub owner: Option<String>,
    /// When it was created.
    pub created: Timestamp,
    /// Is being deleted.
    pub deleting: bool,
    /// Is Complete or Failed: it makes no Pod any more.
    pub finished: bool,
}

/// A Pod with a Job's label.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenPod {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// The Job's UID, as the label has it.
    pub job_uid: String,
    /// The Job's name, as the label has it.
    pub job_name: String,
    /// UID of its controller.
    pub owner: Option<String>,
    /// When it was created.
    pub created: Timestamp,
    /// When its deletion was asked for, and when its grace is over.
    pub deletion: Option<Deletion>,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// Names of its scheduling gates.
    pub gates: Vec<String>,
    /// Its node.
    pub node: Option<String>,
    /// Failed or Succeeded.
    pub ended: Option<Phase>,
    /// `status.reason`, as `Evicted`.
    pub reason: Option<String>,
    /// `status.message`.
    pub message: Option<String>,
    /// When it got its node.
    pub scheduled: Option<Timestamp>,
    /// Why it has none, if the scheduler has said so.
    pub unschedulable: Option<String>,
    /// Its node doesn't report: Ready is False without a reason while its containers are ready.
    pub silent: bool,
    /// Reason of condition DisruptionTarget.
    pub disruption: Option<String>,
    /// The Job's own container; None if the kubelet has said nothing of it.
    pub main: Option<Main>,
    /// Its node has decided to end it: Ready is False for PodFailed while `main` runs.
    pub is_being_ended: bool,
    /// Another container of it runs, one for its init included.
    pub others_run: bool,
    /// What `main` asks for and may use.
    pub resources: ResourceRequirements,
    /// Containers that are not the Job's.
    pub injected: Vec<String>,
    /// An init container that failed, for people.
    pub failed_init: Option<String>,
    /// Names Secrets for its registry.
    pub has_pull_secrets: bool,
}

/// A deletion under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// When it was asked for; None if this version of the object doesn't tell.
    pub requested: Option<Timestamp>,
    /// When the grace is over.
    pub due: Timestamp,
}

/// How a Pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All containers with 0.
    Succeeded,
    /// Otherwise.
    Failed,
}

/// The Job's own container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Main {
    /// Identity of the container in its runtime.
    pub id: Option<String>,
    /// How often it was started again.
    pub restarts: i32,
    /// What it does.
    pub state: MainState,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MainState {
    /// Not begun.
    Waiting {
        /// As `ErrImagePull`; empty if nothing is said.
        reason: String,
        /// For people.
        message: String,
    },
    /// Runs.
    Running {
        /// Since.
        started: Option<Timestamp>,
    },
    /// Ended.
    Terminated {
        /// Exit code, true or invented.
        code: i32,
        /// As `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
        reason: String,
        /// For people.
        message: String,
        /// When it began; None or long ago if nobody knows.
        started: Option<Timestamp>,
        /// When it ended; None if nobody knows.
        finished: Option<Timestamp>,
    },
}

impl SeenNative {
    /// What is kept of it.
    pub fn of(job: &batch::Job) -> Self {
        let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let label = |key: &str| job.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default();
        Self {
            name: job.metadata.name.clone().unwrap_or_default(),
            uid: job.metadata.uid.clone().unwrap_or_default(),
            job_uid: label(LABEL_JOB_UID),
            job_name: label(LABEL_JOB_NAME),
            built_of: built_of(job),
            owner: controller(&job.metadata),
            created: created(&job.metadata),
            deleting: job.metadata.deletion_timestamp.is_some(),
            finished: conditions.into_iter().any(|c| c.status == "True" && matches!(c.type_.as_str(), "Complete" | "Failed")),
        }
    }
}

impl SeenPod {
    /// What is kept of it.
    pub fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let statuses = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        let inits = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
        let scheduled = condition("PodScheduled");
        let main = statuses.iter().find(|status| status.name == CONTAINER);
        let named = spec.map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            job_uid: label(LABEL_JOB_UID),
            job_name: label(LABEL_JOB_NAME),
            owner: controller(meta),
            created: created(meta),
            deletion: deletion(meta),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            gates: spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten()).map(|gate| gate.name.clone()).collect(),
            node: spec.and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty()),
            ended: match status.and_then(|status| status.phase.as_deref()) {
                Some("Succeeded") => Some(Phase::Succeeded),
                Some("Failed") => Some(Phase::Failed),
                _ => None,
            },
            reason: status.and_then(|status| status.reason.clone()).filter(|reason| !reason.is_empty()),
            message: status.and_then(|status| status.message.clone()).filter(|message| !message.is_empty()),
            scheduled: scheduled
                .filter(|condition| condition.status == "True")
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            unschedulable: scheduled.filter(|condition| condition.status == "False").and_then(unschedulable),
            silent: condition("Ready").is_some_and(|ready| ready.status == "False" && ready.reason.as_deref().unwrap_or_default().is_empty())
                && condition("ContainersReady").is_some_and(|ready| ready.status == "True"),
            disruption: condition("DisruptionTarget").filter(|target| target.status == "True").map(|target| target.reason.clone().unwrap_or_default()),
            is_being_ended: main.is_some_and(is_running)
                && condition("Ready").is_some_and(|ready| ready.status == "False" && ready.reason.as_deref() == Some("PodFailed")),
            main: main.map(Main::of),
            resources: spec.and_then(|spec| spec.containers.iter().find(|container| container.name == CONTAINER)).map(resources).unwrap_or_default(),
            others_run: statuses.iter().filter(|status| status.name != CONTAINER).chain(inits).any(is_running),
            injected: named.into_iter().flatten().map(|container| container.name.clone()).filter(|name| name != CONTAINER).collect(),
            failed_init: inits.iter().find_map(failed),
            has_pull_secrets: spec.is_some_and(|spec| spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty())),
        }
    }

    /// Whether the Job controller named it, for the native Job of the Job of that UID.
    pub fn is_named_after(&self, uid: &str) -> bool {
        self.name.strip_prefix(&native_name(uid)).is_some_and(|rest| rest.starts_with('-'))
    }

    /// Has the gate that it was born with.
    pub fn is_gated(&self) -> bool {
        self.gates.iter().any(|gate| gate == GATE_START)
    }

    /// Whether a process of it may run, now or later: it was released, and has not ended.
    pub fn may_run(&self) -> bool {
        !self.is_gated() && self.ended.is_none() && !(self.node.is_none() && self.deletion.is_some())
    }

    /// Has the finalizer that holds it for the end.
    pub fn is_held(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == FINALIZER_RESULT)
    }
}

impl Main {
    fn of(status: &ContainerStatus) -> Self {
        let state = status.state.as_ref();
        Self { id: status.container_id.clone().filter(|id| !id.is_empty()), restarts: status.restart_count, state: MainState::of(state) }
    }

    /// Whether the process has begun and ended, as far as the kubelet says.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, MainState::Terminated { .. })
    }

    /// Whether the process has not begun, as far as the kubelet says.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, MainState::Waiting { .. })
    }
}

impl MainState {
    fn of(state: Option<&ContainerState>) -> Self {
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        match state {
            Some(ContainerState { terminated: Some(ended), .. }) => Self::Terminated {
                code: ended.exit_code,
                reason: ended.reason.clone().unwrap_or_default(),
                message: ended.message.clone().unwrap_or_default(),
                started: time(&ended.started_at),
                finished: time(&ended.finished_at),
            },
            Some(ContainerState { running: Some(running), .. }) => Self::Running { started: time(&running.started_at) },
            Some(ContainerState { waiting: Some(waiting), .. }) => {
                Self::Waiting { reason: waiting.reason.clone().unwrap_or_default(), message: waiting.message.clone().unwrap_or_default() }
            }
            _ => Self::Waiting { reason: String::new(), message: String::new() },
        }
    }
}

fn controller(meta: &ObjectMeta) -> Option<String> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

fn resources(container: &Container) -> ResourceRequirements {
    let amounts = |amounts: &Option<BTreeMap<String, Quantity>>| {
        let mut kept = Amounts::default();
        for resource in Resource::ALL {
            *kept.slot(resource) = amounts.as_ref().and_then(|amounts| amounts.get(resource.name())).cloned();
        }
        Some(kept).filter(|kept| *kept != Amounts::default())
    };
    let resources = container.resources.clone().unwrap_or_default();
    ResourceRequirements { requests: amounts(&resources.requests), limits: amounts(&resources.limits) }
}

fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The deletion was asked for a grace before it is due, unless a later request has shortened the grace so far that the end of it had passed: then the
/// API server puts the time of that request, and a grace of 0 or 1 s (`rest.BeforeDelete`). A kubelet's last word about a Pod that it has ended is
/// such a request, so a Pod that is held then shows a time at which its process had long been stopped.
fn deletion(meta: &ObjectMeta) -> Option<Deletion> {
    const AS_IT_WAS_ASKED_FOR: i64 = 2;
    let due = meta.deletion_timestamp.as_ref()?.0;
    let grace = meta.deletion_grace_period_seconds.filter(|grace| *grace >= AS_IT_WAS_ASKED_FOR);
    Some(Deletion { requested: grace.and_then(|grace| due.checked_sub(SignedDuration::from_secs(grace)).ok()), due })
}

fn unschedulable(condition: &PodCondition) -> Option<String> {
    // A gated Pod says SchedulingGated, which is nothing to tell.
    (condition.reason.as_deref() == Some("Unschedulable")).then(|| condition.message.clone().unwrap_or_default())
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn failed(status: &ContainerStatus) -> Option<String> {
    let ended = status.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    Some(format!("init container {} ended with exit code {}", status.name, ended.exit_code))
}
