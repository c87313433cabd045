//! From what is known of a Job's native Job and Pods to what the state machine is told: a pure function.

use berth_runtime::informer::Stored;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::names::native_name;
use super::seen::{SeenNative, SeenPod};
use super::verdict::{Circumstances, execution, overdue_at};
use crate::job::adapter::Seen;
use crate::job::api::kubernetes::InjectedContainers;
use crate::job::api::names::reference;
use crate::job::api::status::Reference;
use crate::job::machine::{Attempt, Execution, GiveUp};
use crate::job::reason::{Failure, NotScheduled};

/// A native Job without a Pod for that long is asked why.
const POD_DUE: SignedDuration = SignedDuration::from_secs(2);
/// How soon it is asked again.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Everything that is known of one Job's backend.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The object of the native Job's name.
    pub native: Option<Stored<SeenNative>>,
    /// Pods that carry the Job's UID or belong to that native Job.
    pub pods: Vec<Stored<SeenPod>>,
}

/// What only asking brings, where it matters.
#[derive(Clone, Debug, Default)]
pub struct Clues {
    /// Why the native Job can't make its Pod.
    pub refusal: Option<String>,
}

impl Known {
    /// The native Job, if it is this Job's: by name and label.
    pub fn own_native(&self, uid: &str) -> Option<&Stored<SeenNative>> {
        self.native.as_ref().filter(|native| native.object.name == native_name(uid) && native.object.job_uid == uid)
    }

    /// The object that has the native Job's name and is not this Job's.
    pub fn usurper(&self, uid: &str) -> Option<&Stored<SeenNative>> {
        self.native.as_ref().filter(|native| native.object.job_uid != uid)
    }

    /// The Pod of the execution: the recorded one; else the oldest of the native Job's that can still run.
    pub fn own_pod(&self, uid: &str, recorded: Option<&str>) -> Option<&Stored<SeenPod>> {
        if let Some(recorded) = recorded {
            return self.pods.iter().find(|pod| &*pod.uid == recorded);
        }
        let native = self.own_native(uid)?;
        let live = self
            .pods
            .iter()
            .filter(|pod| pod.object.owner.as_deref() == Some(&native.object.uid) && pod.object.ended.is_none() && pod.object.deletion.is_none());
        live.min_by(|a, b| (a.object.created, &a.object.name).cmp(&(b.object.created, &b.object.name)))
    }

    /// Pods that are this Job's and not its execution.
    pub fn strays<'a>(&'a self, recorded: Option<&'a str>) -> impl Iterator<Item = &'a Stored<SeenPod>> {
        self.pods.iter().filter(move |pod| Some(&*pod.uid) != recorded)
    }
}

/// Whether a native Job has had time for its Pod and has none: then its Events are worth asking for.
pub fn is_late(known: &Known, uid: &str, now: Timestamp) -> bool {
    known
        .own_native(uid)
        .is_some_and(|native| !native.object.finished && !native.object.deleting && now >= native.object.created.saturating_add_or_max(POD_DUE))
        && known.pods.is_empty()
}

/// What the state machine is told.
pub fn look(uid: &str, recorded: Option<&str>, known: &Known, clues: &Clues, injected: &InjectedContainers, circumstances: &Circumstances<'_>) -> Seen {
    let native = known.own_native(uid);
    let pod = known.own_pod(uid, recorded);
    let mut seen = Seen::default();
    let backend = &mut seen.backend;
    backend.leftovers = native.is_some() || !known.pods.is_empty();
    backend.strays = recorded.is_some() && known.strays(recorded).any(|pod| pod.object.deletion.is_none() || pod.object.is_held());
    match pod {
        Some(pod) => {
            of_pod(&pod.object, native.map(|native| &*native.object), recorded, injected, circumstances, &mut seen);
        }
        None if recorded.is_some() => {}
        None => seen.attempt = why_no_pod(uid, known, clues, circumstances, &mut seen.look_again),
    }
    seen
}

fn of_pod(
    pod: &SeenPod,
    native: Option<&SeenNative>,
    recorded: Option<&str>,
    injected: &InjectedContainers,
    circumstances: &Circumstances<'_>,
    seen: &mut Seen,
) {
    let backend = &mut seen.backend;
    let rejected = *injected == InjectedContainers::Reject && !pod.injected.is_empty();
    if recorded.is_none() && rejected && pod.is_gated() {
        let message = format!("containers were put into the Pod, and the class forbids it: {}", pod.injected.join(", "));
        seen.attempt = Some(Attempt::Refused { failure: Failure::ContainersInjected, message });
        return;
    }
    backend.execution = execution(pod, circumstances);
    backend.stopping = pod.deletion.is_some();
    // An unrecorded Pod that can't run any more is nothing to record.
    let dead = recorded.is_none() && matches!(backend.execution, Execution::Ended(_)) && pod.is_gated();
    if dead {
        backend.execution = Execution::Absent;
    } else {
        backend.references = references(pod, native);
    }
    backend.held = pod.is_held() && (may_let_go(pod, native) || pod.others_run && pod.deletion.is_none());
    seen.look_again = overdue_at(pod).filter(|limit| *limit > circumstances.now);
}

/// Whether a Pod whose Job has ended can be let go: the native Job has seen its end and makes no other, or it never could run.
pub(super) fn may_let_go(pod: &SeenPod, native: Option<&SeenNative>) -> bool {
    native.is_none_or(|native| native.finished) || pod.is_gated() && pod.deletion.is_some()
}

/// What the status records: the native Job and the Pod, by UID.
fn references(pod: &SeenPod, native: Option<&SeenNative>) -> Vec<Reference> {
    let job = pod.owner.clone().or_else(|| native.map(|native| native.uid.clone()));
    let job = job.map(|id| Reference { type_: reference::JOB.to_owned(), id });
    job.into_iter().chain([Reference { type_: reference::POD.to_owned(), id: pod.uid.clone() }]).collect()
}

fn why_no_pod(uid: &str, known: &Known, clues: &Clues, circumstances: &Circumstances<'_>, look_again: &mut Option<Timestamp>) -> Option<Attempt> {
    let create = circumstances.graces.create;
    if let Some(usurper) = known.usurper(uid) {
        let message = format!("Job {} of batch/v1 exists and is not this Job's", usurper.object.name);
        let give_up = Some(GiveUp { failure: Failure::BackendNameConflict, after: create });
        return Some(Attempt::Later { reason: NotScheduled::BackendNameConflict, message, give_up });
    }
    let native = known.own_native(uid).filter(|native| !native.object.finished && !native.object.deleting)?;
    let due = native.object.created.saturating_add_or_max(POD_DUE);
    *look_again = Some(if circumstances.now < due { due } else { circumstances.now.saturating_add_or_max(ASK_AGAIN) });
    let message = clues.refusal.clone()?;
    Some(Attempt::Later { reason: NotScheduled::BackendRefuses, message, give_up: Some(GiveUp { failure: Failure::PodRejected, after: create }) })
}

/// Addition that stops at the end of time.
trait OrMax {
    fn saturating_add_or_max(self, span: SignedDuration) -> Timestamp;
}

impl OrMax for Timestamp {
    fn saturating_add_or_max(self, span: SignedDuration) -> Timestamp {
        self.checked_add(span).unwrap_or(Timestamp::MAX)
    }
}
