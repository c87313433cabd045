//! What becomes of one workspace: a pure function of what was observed. `berth simulate` calls it too.
//!
//! ```text
//!            a Runtime Pod is available              its Pod object is gone or replaced
//!   Pending ───────────────────────────► Bound ─────────────────────────────────────────► Lost, for ever
//!                                        │ │ ▲
//!              unused for its whole TTL  │ └─┘ its Pod comes and goes as available: condition Available
//!                                        ▼
//!                                     Released ──► deleted: no active Run left ──► directory removed ──► gone
//! ```
//! Deletion, by its owner or after Released, is held up by a finalizer from before the first bind: until no active Run uses the workspace and
//! the Pod's agent has removed the directory (condition Cleaned), or the Pod is gone, or has no agent. Rules: reference §5.1 and decisions,
//! "PersistentWorkspace". A workspace in a phase of a later version is left alone.

use super::choose::{Candidate, WorkspaceBinding, choose};
use super::conditions::{Cleaning, Conditions};
use crate::runs::Usage;
use berth_api::conditions::find;
use berth_api::constants::{WORKSPACE_PATH_PREFIX, reason, workspace_condition};
use berth_api::persistent_workspace::{CleanupPolicy, PersistentWorkspaceSpec, PersistentWorkspaceStatus, WorkspacePhase};
use berth_api::runtime_ready::Verdict;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

/// A workspace as it was observed.
#[derive(Clone, Copy, Debug)]
pub struct WorkspaceFacts<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// Has the finalizer `kruntimes.io/workspace-cleanup`.
    pub has_finalizer: bool,
    /// The spec.
    pub spec: &'a PersistentWorkspaceSpec,
    /// The status; None is Pending.
    pub status: Option<&'a PersistentWorkspaceStatus>,
}

/// What else was observed, and when.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// What is known of `status.boundPod`; looked at while Bound, Released or being deleted.
    pub bound: BoundPod,
    /// That Pod's agent honours workspaces: it removes directories.
    pub agent: bool,
    /// Who uses the workspace.
    pub usage: Usage,
    /// How a Pod is chosen.
    pub binding: WorkspaceBinding,
    /// Milliseconds until `lastUsedTime` may be written again; 0 is now.
    pub use_writable_in_ms: u64,
    /// The time, milliseconds since the epoch. Times that are written are cut to whole seconds (reference §0.3).
    pub wall_ms: i64,
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
    /// Its agent honours workspaces.
    pub agent: bool,
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

    /// Neither the Pod nor the data on it exists any more.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Gone | Self::Replaced)
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

/// What to do now, and when to look again without being woken.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One step; what follows is planned when its effect shows.
    pub step: Step,
    /// At the latest then; None waits for a change.
    pub look_again: Option<Duration>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// The finalizer is missing on a workspace that has data.
    AddFinalizer,
    /// The workspace gets this Pod: the finalizer, unless it is there, then the status.
    Bind {
        /// Its name.
        pod: String,
        /// Its UID.
        uid: String,
        /// The status wanted, path included.
        status: Box<PersistentWorkspaceStatus>,
    },
    /// The whole status wanted, in one write.
    Write {
        /// What people are told.
        news: News,
        /// The status wanted.
        status: Box<PersistentWorkspaceStatus>,
    },
    /// Its time is over and no new Run was admitted since: the object is deleted.
    Delete,
    /// The data is gone, or nobody can remove it: the object may go.
    RemoveFinalizer,
}

/// What a status write means to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The phase stays; conditions, `runtime` or `lastUsedTime` change.
    None,
    /// The workspace has lost its Pod.
    Lost(LostReason),
    /// Its time is over.
    Released,
    /// It is being deleted, and its Pod has no agent that could remove the directory.
    CannotClean,
}

impl Plan {
    /// The status wanted; None if it stays.
    pub fn status(&self) -> Option<&PersistentWorkspaceStatus> {
        match &self.step {
            Step::Bind { status, .. } | Step::Write { status, .. } => Some(status),
            _ => None,
        }
    }
}

/// Plans the next step of a workspace.
///
/// `pods` are all Pods of its namespace and of `spec.runtime`, in any order.
pub fn plan<'a>(workspace: WorkspaceFacts<'_>, pods: impl IntoIterator<Item = Candidate<'a>>, observed: &Observed) -> Plan {
    let mut status = workspace.status.cloned().unwrap_or_default();
    let phase = status.phase.clone();
    let conditions = Conditions { workspace, status: &mut status, now: seconds(observed.wall_ms.div_euclid(1_000)) };
    let Outcome { step, look_again } = match phase {
        WorkspacePhase::Unknown(_) => Outcome::step(Step::Rest),
        _ if workspace.deleting => deleting(conditions, observed),
        WorkspacePhase::Pending => pending(conditions, pods, observed.binding),
        WorkspacePhase::Bound => bound(conditions, pods, observed),
        WorkspacePhase::Released => released(&workspace, observed.bound),
        WorkspacePhase::Lost => {
            let mut conditions = conditions;
            conditions.set_lost(None);
            Outcome::news(News::None)
        }
    };
    let step = match step {
        Ok(step) => step,
        Err(_) if workspace.status == Some(&status) => Step::Rest,
        Err(Pending::Bind { pod, uid }) => Step::Bind { pod, uid, status: Box::new(status) },
        Err(Pending::Write(news)) => Step::Write { news, status: Box::new(status) },
    };
    Plan { step, look_again }
}

/// What a phase comes to: a step, or a write of the status as it was changed meanwhile.
struct Outcome {
    step: Result<Step, Pending>,
    look_again: Option<Duration>,
}

enum Pending {
    Bind { pod: String, uid: String },
    Write(News),
}

impl Outcome {
    fn step(step: Step) -> Self {
        Self { step: Ok(step), look_again: None }
    }

    fn news(news: News) -> Self {
        Self { step: Err(Pending::Write(news)), look_again: None }
    }
}

fn pending<'a>(mut conditions: Conditions<'_>, pods: impl IntoIterator<Item = Candidate<'a>>, binding: WorkspaceBinding) -> Outcome {
    let accepted = conditions.set_accepted();
    let mut pods = pods.into_iter().peekable();
    conditions.set_runtime_ready(pods.peek().is_some());
    conditions.status.runtime = Some(conditions.workspace.spec.runtime.clone());
    let Some(pod) = Some(pods).filter(|_| accepted).and_then(|pods| choose(binding, pods)) else {
        conditions.set_unbound(accepted);
        return Outcome::news(News::None);
    };
    conditions.status.phase = WorkspacePhase::Bound;
    conditions.status.bound_pod = Some(pod.name.to_owned());
    conditions.status.bound_pod_uid = Some(pod.uid.to_owned());
    conditions.status.path = Some(format!("{WORKSPACE_PATH_PREFIX}{}", conditions.workspace.name));
    conditions.set_bound();
    conditions.set_available(BoundPod::Exists(Verdict::Ready));
    Outcome { step: Err(Pending::Bind { pod: pod.name.to_owned(), uid: pod.uid.to_owned() }), look_again: None }
}

fn bound<'a>(mut conditions: Conditions<'_>, pods: impl IntoIterator<Item = Candidate<'a>>, observed: &Observed) -> Outcome {
    let lost = match observed.bound {
        BoundPod::Gone => Some(LostReason::PodDeleted),
        BoundPod::Replaced => Some(LostReason::PodReplaced),
        _ => None,
    };
    if let Some(reason) = lost {
        conditions.status.phase = WorkspacePhase::Lost;
        conditions.set_lost(Some(reason));
        return Outcome::news(News::Lost(reason));
    }
    if !conditions.workspace.has_finalizer {
        return Outcome::step(Step::AddFinalizer);
    }
    conditions.set_accepted();
    conditions.set_runtime_ready(pods.into_iter().next().is_some());
    conditions.set_bound();
    conditions.set_available(observed.bound);
    let use_later = set_last_use(&mut conditions, observed);
    match time_left(&conditions, observed) {
        Some(Duration::ZERO) => {
            conditions.status.phase = WorkspacePhase::Released;
            conditions.set_released();
            Outcome::news(News::Released)
        }
        left => Outcome { look_again: left.into_iter().chain(use_later).min(), ..Outcome::news(News::None) },
    }
}

/// Writes down the latest use: with whatever else is written, alone at most once in a while. When to come back for it.
fn set_last_use(conditions: &mut Conditions<'_>, observed: &Observed) -> Option<Duration> {
    let known_s = conditions.status.last_used_time.as_ref().map(|time| time.0.as_second());
    // What came before is about a namesake that was deleted.
    let is_ours = |last_s: &i64| conditions.bound_s().is_none_or(|bound_s| *last_s >= bound_s);
    let latest_s = observed.usage.last_s.filter(|last_s| Some(*last_s) > known_s && is_ours(last_s))?;
    let changed = conditions.workspace.status != Some(&*conditions.status);
    if observed.use_writable_in_ms > 0 && !changed {
        return Some(Duration::from_millis(observed.use_writable_in_ms));
    }
    conditions.status.last_used_time = Some(seconds(latest_s));
    None
}

/// How long until a workspace that nobody uses has been unused for its whole time to live. None: no such time.
fn time_left(conditions: &Conditions<'_>, observed: &Observed) -> Option<Duration> {
    let spec = conditions.workspace.spec;
    let ttl_s = spec.ttl_seconds_after_unused.filter(|ttl_s| *ttl_s > 0 && spec.cleanup_policy == CleanupPolicy::DeleteAfterTTL)?;
    if observed.usage.live > 0 {
        return None;
    }
    // Without the condition (a list full of others') nobody knows since when it is bound: then it is kept.
    let bound_s = conditions.bound_s()?;
    let used_s = conditions.status.last_used_time.as_ref().map(|time| time.0.as_second());
    // Of a clock that is ahead only as much is believed as ours says.
    let since_s = used_s.into_iter().chain(observed.usage.last_s).fold(bound_s, i64::max).min(observed.wall_ms.div_euclid(1_000));
    let over_ms = since_s.saturating_add(i64::from(ttl_s)).saturating_mul(1_000);
    Some(Duration::from_millis(u64::try_from(over_ms.saturating_sub(observed.wall_ms)).unwrap_or(0)))
}

fn released(workspace: &WorkspaceFacts<'_>, bound: BoundPod) -> Outcome {
    Outcome::step(if workspace.spec.cleanup_policy != CleanupPolicy::DeleteAfterTTL {
        // Its owner has thought better of it: nobody gets in any more, and nothing is removed.
        Step::Rest
    } else if !workspace.has_finalizer && bound != BoundPod::NotNamed && !bound.is_gone() {
        Step::AddFinalizer
    } else {
        Step::Delete
    })
}

fn deleting(mut conditions: Conditions<'_>, observed: &Observed) -> Outcome {
    // Others' finalizers hold it; ours can't be added any more.
    if !conditions.workspace.has_finalizer {
        return Outcome::step(Step::Rest);
    }
    let has_data = matches!(conditions.status.phase, WorkspacePhase::Bound | WorkspacePhase::Released) && observed.bound != BoundPod::NotNamed;
    if !has_data || observed.bound.is_gone() {
        return Outcome::step(Step::RemoveFinalizer);
    }
    if observed.usage.active > 0 {
        conditions.set_deleting(Cleaning::InUse);
        return Outcome::news(News::None);
    }
    let cleaned = |status: &str, reason: Option<&str>| {
        find(&conditions.status.conditions, workspace_condition::CLEANED).is_some_and(|c| c.status == status && reason.is_none_or(|reason| c.reason == reason))
    };
    if cleaned("True", None) {
        return Outcome::step(Step::RemoveFinalizer);
    }
    if observed.agent && observed.bound != BoundPod::UidUnknown {
        conditions.set_deleting(Cleaning::WaitingForAgent);
        return Outcome::news(News::None);
    }
    let told = cleaned("False", Some(reason::AGENT_CANNOT_CLEAN));
    conditions.set_deleting(Cleaning::NoAgent);
    // The condition may have found no room in the list.
    let is_told = told || find(&conditions.status.conditions, workspace_condition::CLEANED).is_none();
    if is_told { Outcome::step(Step::RemoveFinalizer) } else { Outcome::news(News::CannotClean) }
}

/// A time on the wire.
fn seconds(since_epoch_s: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(since_epoch_s).unwrap_or_default())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
