//! From what is known of a Job's native Job and Pods to what the state machine is told: a pure function.

use std::time::Duration;

use berth_api::quantity;
use berth_runtime::informer::Stored;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;

use super::names::native_name;
use super::seen::{SeenNative, SeenPod};
use super::verdict::{Circumstances, execution, overdue_at};
use crate::job::adapter::Seen;
use crate::job::api::kubernetes::InjectedContainers;
use crate::job::api::names::reference;
use crate::job::api::resources::{Amounts, Resource, ResourceRequirements};
use crate::job::api::status::Reference;
use crate::job::machine::{Attempt, Execution, GiveUp, after};
use crate::job::measure::span;
use crate::job::reason::{Failure, NotScheduled};

/// A native Job without a Pod for that long is asked why.
const POD_DUE: Duration = Duration::from_secs(2);
/// How soon it is asked again, and, as the trouble lasts, how seldom: nothing indexes Events, so each question reads all of the namespace.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const ASK_SELDOM: Duration = Duration::from_secs(60);

/// How soon the node of a Pod that was given up is looked at again.
const NODE_AGAIN: Duration = Duration::from_secs(30);

/// Everything that is known of one Job's backend. Made by [`Known::new`].
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The object of the native Job's name.
    pub native: Option<Stored<SeenNative>>,
    /// The Job's Pods.
    pub pods: Vec<Stored<SeenPod>>,
    /// What the native Job must be built of to become the execution; None where nobody asks, or the class's parameters are gone.
    pub wanted: Option<String>,
}

impl Known {
    /// Of the Pods that bear the Job's UID, its own: the recorded one, those of its native Job, and those that an orphaning deletion has cut off,
    /// by their names. A label alone makes nothing ours: a person's copy of a Pod bears it too.
    pub fn new(uid: &str, recorded: &[Reference], native: Option<Stored<SeenNative>>, pods: Vec<Stored<SeenPod>>) -> Self {
        let mut known = Self { native, ..Self::default() };
        let owner = known.own_native(uid).map(|native| native.object.uid.clone());
        let is_recorded = |kind: &str, id: &str| recorded.iter().any(|reference| reference.type_ == kind && reference.id == id);
        let is_owner = |id: &str| owner.as_deref() == Some(id) || is_recorded(reference::JOB, id);
        let is_own = |pod: &Stored<SeenPod>| {
            is_recorded(reference::POD, &pod.uid) || pod.object.owner.as_deref().is_some_and(is_owner) || pod.object.is_named_after(uid)
        };
        known.pods = pods;
        known.pods.retain(is_own);
        known
    }

    /// Whether the native Job may become the execution: it is the Job's by its owner, not only by name and label, which anybody can give to his own;
    /// and it is built of what the class says now.
    pub fn is_adoptable(&self, uid: &str) -> bool {
        let fits =
            |native: &SeenNative| native.owner.as_deref() == Some(uid) && self.wanted.as_ref().is_none_or(|wanted| native.built_of.as_ref() == Some(wanted));
        self.own_native(uid).is_some_and(|native| fits(&native.object))
    }

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
        let native = self.own_native(uid).filter(|_| self.is_adoptable(uid))?;
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
    known.pods.is_empty() && making(known, uid).is_some_and(|native| now >= due(native))
}

/// The native Job, while it may still make a Pod.
fn making<'a>(known: &'a Known, uid: &str) -> Option<&'a SeenNative> {
    known.own_native(uid).map(|native| &*native.object).filter(|native| !native.finished && !native.deleting)
}

/// When its Pod should be there.
fn due(native: &SeenNative) -> Timestamp {
    after(native.created, POD_DUE)
}

/// What the state machine is told.
pub fn look(uid: &str, recorded: Option<&str>, known: &Known, injected: &InjectedContainers, circumstances: &Circumstances<'_>) -> Seen {
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
        None => seen.attempt = why_no_pod(uid, known, circumstances, &mut seen.look_again),
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
    if pod.ended.is_some() && matches!(backend.execution, Execution::Unknown { .. }) {
        // What becomes of its node changes nothing of the Pod.
        seen.look_again = Some(after(circumstances.now, NODE_AGAIN));
    }
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

fn why_no_pod(uid: &str, known: &Known, circumstances: &Circumstances<'_>, look_again: &mut Option<Timestamp>) -> Option<Attempt> {
    let create = circumstances.graces.create;
    if let Some(usurper) = known.usurper(uid) {
        let message = format!("Job {} of batch/v1 exists and is not this Job's", usurper.object.name);
        let give_up = Some(GiveUp { failure: Failure::BackendNameConflict, after: create });
        return Some(Attempt::Later { reason: NotScheduled::BackendNameConflict, message, give_up });
    }
    let native = making(known, uid)?;
    let (due, now) = (due(native), circumstances.now);
    let next = (span(native.created, now) / 4).clamp(ASK_AGAIN, ASK_SELDOM);
    *look_again = Some(if now < due { due } else { after(now, next) });
    if !known.is_adoptable(uid) && known.pods.iter().any(|pod| pod.object.may_run()) {
        let message = format!("Job {} of batch/v1 was not made for this Job, and its Pod runs", native.name);
        let give_up = Some(GiveUp { failure: Failure::BackendNameConflict, after: create });
        return Some(Attempt::Later { reason: NotScheduled::BackendNameConflict, message, give_up });
    }
    let message = circumstances.clues.refusal.clone()?;
    Some(Attempt::Later { reason: NotScheduled::BackendRefuses, message, give_up: Some(GiveUp { failure: Failure::PodRejected, after: create }) })
}

/// That the Pod was given other resources than the Job was accepted with, by a LimitRange or an admission webhook; for people.
pub fn adjusted(pod: &SeenPod, accepted: &ResourceRequirements) -> Option<String> {
    let value = |amount: Option<&Quantity>| amount.map(|amount| quantity::nanos(&amount.0).map_err(|_| amount.0.clone()));
    let mut differences = Vec::new();
    for (part, given, agreed) in [("requests", &pod.resources.requests, &accepted.requests), ("limits", &pod.resources.limits, &accepted.limits)] {
        for resource in Resource::ALL {
            let amount = |amounts: &'_ Option<Amounts>| amounts.as_ref().and_then(|amounts| amounts.get(resource).cloned());
            let (given, agreed) = (amount(given), amount(agreed));
            if value(given.as_ref()) != value(agreed.as_ref()) {
                let text = |amount: Option<Quantity>| amount.map_or_else(|| "none".to_owned(), |amount| amount.0);
                differences.push(format!("{part}.{} {} instead of {}", resource.name(), text(given), text(agreed)));
            }
        }
    }
    (!differences.is_empty()).then(|| format!("the Pod was given other resources than the Job was accepted with: {}", differences.join(", ")))
}
