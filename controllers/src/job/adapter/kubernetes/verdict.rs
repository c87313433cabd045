//! What one Pod shows of the Job's process: a pure function of the Pod, of its node's fate, and of the time.
//!
//! The container's own record decides, not the native Job's conditions, which carry no exit code and count a Pod that exits 0 on SIGTERM as
//! Complete (design of Jobs, §0 and §1.13-1.18; each row of the observations on a real node is a fixture of the tests).

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::seen::{Deletion, Main, MainState, Phase, SeenPod};
use super::text;
use crate::job::machine::{Ending, Execution, GiveUp, Started, Wait};
use crate::job::reason::{Failure, Unfinished, Unobserved};

/// A kubelet that has not ended a Pod so long after its grace is not there.
const OVERDUE: SignedDuration = SignedDuration::from_secs(60);

/// How long troubles are waited out (KubernetesExecutionParameters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graces {
    /// Pulls of the image.
    pub pull: Duration,
    /// A Pod or a container that is refused.
    pub create: Duration,
}

/// What is known of a Pod's node beyond the Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeFate {
    /// Nothing.
    #[default]
    Unknown,
    /// Its process can't be running any more: an administrator has marked the node out-of-service, or the class trusts that a deleted
    /// node is gone.
    Over,
}

/// What earlier versions of a Pod told, and its last one need not tell any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// When the process was last seen not to have begun.
    pub waited_until: Option<Timestamp>,
    /// The process had ended before the Pod's deletion was asked for.
    pub ended_undeleted: bool,
    /// When the deletion was asked for.
    pub deletion_requested: Option<Timestamp>,
    /// When it was first seen to run, where it had been seen not to run before: by then it had begun, by our clock.
    pub running_by: Option<Timestamp>,
    /// The node had decided to end the Pod while the process ran: an eviction, a shutdown of the node, the Pod's own deadline. It may tell of the
    /// process's end before it tells of that (`mergePodStatus` holds back phase and reason).
    pub was_being_ended: bool,
}

/// What only asking brings.
#[derive(Clone, Debug, Default)]
pub struct Clues {
    /// Why the native Job can't make its Pod, as an Event has told.
    pub refusal: Option<String>,
    /// A Secret for the registry is missing, as an Event has told.
    pub missing_pull_secret: Option<String>,
    /// The node's fate.
    pub node: NodeFate,
}

/// What a verdict rests on beside the Pod.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// The time, by the API server's clock.
    pub now: Timestamp,
    /// What earlier versions of the Pod told.
    pub earlier: Earlier,
    /// The class's graces.
    pub graces: Graces,
    /// What was asked for.
    pub clues: &'a Clues,
    /// `task.image`.
    pub image: &'a str,
}

/// What the Pod shows.
pub fn execution(pod: &SeenPod, circumstances: &Circumstances<'_>) -> Execution {
    if pod.is_gated() {
        // A Pod that is being deleted gets no node, not even if somebody takes its gate off now.
        return match (pod.deletion, pod.ended) {
            (None, None) => Execution::Idle,
            _ => Execution::Ended(never_ran("the Pod was deleted before it was started")),
        };
    }
    match pod.main.as_ref().map(|main| &main.state) {
        Some(MainState::Terminated { code, reason, message, started, finished }) => {
            let record = Record { code: *code, reason, message, started: *started, finished: *finished };
            Execution::Ended(ended(pod, &record, circumstances))
        }
        Some(MainState::Running { started }) => running(pod, *started, circumstances),
        Some(MainState::Waiting { reason, message }) => waiting(pod, reason, message, circumstances),
        None => waiting(pod, "", "", circumstances),
    }
}

/// When an overdue deletion makes a Pod unknown; None if nothing of the kind is under way.
pub fn overdue_at(pod: &SeenPod) -> Option<Timestamp> {
    let Deletion { due, .. } = pod.deletion.filter(|_| pod.ended.is_none())?;
    due.checked_add(OVERDUE).ok()
}

/// The record of a container that has ended.
struct Record<'a> {
    code: i32,
    reason: &'a str,
    message: &'a str,
    started: Option<Timestamp>,
    finished: Option<Timestamp>,
}

/// Before this a time is none: the kubelet writes 1970 or year 1 for what it doesn't know.
fn is_real(time: &Timestamp) -> bool {
    time.as_second() > 946_684_800
}

fn ended(pod: &SeenPod, record: &Record<'_>, circumstances: &Circumstances<'_>) -> Ending {
    if record.reason == "StartError" || record.reason == "ContainerCannotRun" {
        let message = format!("the process could not be started: {}", text::tidy(record.message));
        return Ending::NeverStarted { failure: Failure::StartFailed, message };
    }
    let finished = record.finished.filter(is_real);
    let started = record.started.filter(is_real).map(|at| began(pod, at, circumstances));
    // The kubelet makes up 137 without times for a container that it can't find (design of Jobs, §1.14).
    let Some(finished) = finished.filter(|_| record.reason != "ContainerStatusUnknown") else {
        return Ending::Stopped { code: None, started, message: "the container is gone, and its exit code is not known".to_owned() };
    };
    let oom = record.reason == "OOMKilled";
    let told = match (record.code, oom) {
        (code, false) => format!("exit code {code}"),
        (code, true) => format!("exit code {code}; a process of it was ended for using too much memory"),
    };
    let ran = record.started.filter(is_real).map(|started| finished.duration_since(started));
    if ended_by_itself(pod, finished, ran, &circumstances.earlier) {
        return Ending::Exited { code: record.code, oom, started, message: told };
    }
    let cause = match (&pod.reason, &pod.disruption) {
        (None, None) if pod.deletion.is_none() => "the node ended the Pod".to_owned(),
        (Some(reason), _) => format!("{reason}: {}", text::tidy(pod.message.as_deref().unwrap_or_default())),
        (None, Some(reason)) => format!("the Pod was deleted ({reason})"),
        (None, None) => "the Pod was deleted".to_owned(),
    };
    Ending::Stopped { code: Some(record.code), started, message: format!("{cause}; {told}") }
}

/// Whether no stop can have been the cause: the Pod has not been deleted, or later than the process ended, and was not evicted by its kubelet.
/// Times are whole seconds; the same second proves nothing, nor does a deletion of which nobody saw when it was asked for.
///
/// The end is told by the node's clock and the deletion by the API server's. Where the process was seen to begin, its end is taken from that and from how
/// long it `ran`, which no clock that is off makes wrong; elsewhere, as after a restart, both clocks are trusted.
fn ended_by_itself(pod: &SeenPod, finished: Timestamp, ran: Option<SignedDuration>, earlier: &Earlier) -> bool {
    let evicted = earlier.was_being_ended || pod.ended == Some(Phase::Failed) && pod.reason.is_some();
    let had_ended_by = |at: Timestamp| match (earlier.running_by, ran) {
        (None, _) => finished < at,
        (Some(by), Some(ran)) => finished < at && by.checked_add(ran + SignedDuration::from_secs(1)).is_ok_and(|end| end <= at),
        (Some(_), None) => false,
    };
    let ended_first = |deletion: Deletion| earlier.ended_undeleted || earlier.deletion_requested.or(deletion.requested).is_some_and(had_ended_by);
    !evicted && pod.deletion.is_none_or(ended_first)
}

fn began(pod: &SeenPod, at: Timestamp, circumstances: &Circumstances<'_>) -> Started {
    let earliest = circumstances.earlier.waited_until.or(pod.scheduled).unwrap_or(pod.created);
    Started { at, earliest: earliest.max(pod.scheduled.unwrap_or(pod.created)) }
}

fn never_ran(message: &str) -> Ending {
    Ending::Stopped { code: None, started: None, message: message.to_owned() }
}

fn running(pod: &SeenPod, started: Option<Timestamp>, circumstances: &Circumstances<'_>) -> Execution {
    let lost = |message: &str| Execution::Unknown { reason: Unobserved::NodeLost, message: message.to_owned() };
    let node = pod.node.as_deref().unwrap_or("of the Pod");
    let begun = began(pod, started.filter(is_real).unwrap_or(circumstances.now), circumstances);
    if circumstances.clues.node == NodeFate::Over {
        let message = format!("node {node} is out of service; how the process ended is not known");
        return Execution::Ended(Ending::Stopped { code: None, started: Some(begun), message });
    }
    if pod.ended.is_some() {
        // Written by the control plane, without the node: the process may go on (design of Jobs, §1.15).
        return lost(&format!("node {node} is lost; the Pod was given up while its process was running"));
    }
    if pod.silent {
        return lost(&format!("node {node} doesn't report; the process was running when it last did"));
    }
    if overdue_at(pod).is_some_and(|limit| circumstances.now >= limit) {
        return lost(&format!("node {node} has not ended the Pod in its grace period"));
    }
    Execution::Running(begun)
}

fn waiting(pod: &SeenPod, reason: &str, message: &str, circumstances: &Circumstances<'_>) -> Execution {
    if is_given_up_without_its_node(pod) && circumstances.clues.node != NodeFate::Over {
        let message = format!("node {} is lost; the Pod was given up, and its process may have begun since", pod.node.as_deref().unwrap_or_default());
        return Execution::Unknown { reason: Unobserved::NodeLost, message };
    }
    if pod.ended.is_some() {
        return Execution::Ended(ended_waiting(pod));
    }
    if pod.deletion.is_some() {
        if pod.node.is_none() {
            return Execution::Ended(never_ran("the Pod was deleted before it had a node"));
        }
        if overdue_at(pod).is_some_and(|limit| circumstances.now >= limit) {
            let message = format!("node {} has not ended the Pod in its grace period", pod.node.as_deref().unwrap_or_default());
            return Execution::Unknown { reason: Unobserved::NodeLost, message };
        }
        return Execution::Starting(None);
    }
    if pod.node.is_none() {
        let wait = |message: &String| Wait { reason: Unfinished::WaitingForNode, message: text::tidy(message), give_up: None };
        return Execution::Starting(pod.unschedulable.as_ref().map(wait));
    }
    Execution::Starting(wait(reason, message, circumstances))
}

/// Whether the control plane has ended the Pod, and what its node does nobody knows: a node that can't reach the API server goes on with a Pod that it
/// has, and may pull the image and begin the process (design of Jobs, §1.15).
pub fn is_given_up_without_its_node(pod: &SeenPod) -> bool {
    pod.ended.is_some() && pod.node.is_some() && pod.disruption.as_deref() == Some("DeletionByPodGC") && !pod.main.as_ref().is_some_and(Main::has_ended)
}

/// A Pod that ended without the Job's container having begun.
fn ended_waiting(pod: &SeenPod) -> Ending {
    let failed = |failure: Failure, message: String| Ending::NeverStarted { failure, message };
    let told = |fallback: &str| match (&pod.reason, &pod.message) {
        (Some(reason), Some(message)) => format!("{reason}: {}", text::tidy(message)),
        (Some(reason), None) => reason.clone(),
        (None, Some(message)) => text::tidy(message),
        (None, None) => fallback.to_owned(),
    };
    if let (Some(init), None, None, None) = (&pod.failed_init, pod.deletion, &pod.disruption, &pod.reason) {
        return failed(Failure::StartFailed, init.clone());
    }
    if pod.deletion.is_none() && pod.disruption.is_none() && pod.main.is_none() {
        // The kubelet refused it, as with OutOfcpu.
        return failed(Failure::PodRejected, told("the node refused the Pod"));
    }
    never_ran(&told("the Pod ended before the process began"))
}

/// What a container that has not begun waits for.
fn wait(reason: &str, message: &str, circumstances: &Circumstances<'_>) -> Option<Wait> {
    let Graces { pull, create } = circumstances.graces;
    let image = circumstances.image;
    let of_image = |failure, after, message| Wait { reason: Unfinished::WaitingForImage, message, give_up: Some(GiveUp { failure, after }) };
    let of_container =
        |message| Wait { reason: Unfinished::WaitingForContainer, message, give_up: Some(GiveUp { failure: Failure::ContainerCreateFailed, after: create }) };
    Some(match reason {
        "InvalidImageName" => of_image(Failure::InvalidImageName, Duration::ZERO, format!("{image} is no name of an image")),
        "ErrImageNeverPull" => of_image(Failure::ImagePullFailed, Duration::ZERO, format!("the node has no image {image}, and the class forbids to pull it")),
        "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" | "SignatureValidationFailed" => {
            match &circumstances.clues.missing_pull_secret {
                Some(missing) => of_image(Failure::ImagePullSecretUnavailable, pull, text::tidy(missing)),
                None => of_image(Failure::ImagePullFailed, pull, text::pull_failure(image, message)),
            }
        }
        "CreateContainerConfigError" if names_a_missing_reference(message) => {
            Wait { reason: Unfinished::WaitingForReference, message: text::tidy(message), give_up: None }
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "PreCreateHookError" | "PreStartHookError" | "PostStartHookError" => {
            of_container(text::tidy(message))
        }
        // ContainerCreating, PodInitializing, or nothing: it is under way.
        _ => return None,
    })
}

/// `secret "late" not found`, `couldn't find key token in Secret ns/name`, and the same of ConfigMaps: waited for, for ever.
fn names_a_missing_reference(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let names = message.contains("secret") || message.contains("configmap");
    names && (message.contains("not found") || message.contains("couldn't find key")) && !message.contains("runasnonroot")
}
