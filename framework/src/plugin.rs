//! The contract of a plugin: small, synchronous, object-safe traits, one per extension point.
//!
//! A cycle runs PreFilter, Filter, Score (and normalise), Reserve, Bind. A plugin implements the points it
//! needs and says so through the `as_*` methods of [`Plugin`]. A verdict is not an error: rejecting is the
//! normal way of a plugin to speak, and has a [`Reason`] from a set the plugin declares.
//!
//! # What makes a plugin cheap
//! `Filter` and `Score` must be pure functions of (state made by PreFilter, [`PodView`]). The host keeps
//! verdicts per *shape* and evaluates again only Pods that changed. A plugin tells in PreFilter what of
//! the Run enters the shape ([`Prepared::key`]), and may point at the few Pods that differ from what the
//! shape says ([`Prepared::overlay`]) or are the only candidates ([`Prepared::narrow`]). A plugin without
//! PreFilter is taken to depend on nothing of the Run. One that can't promise purity declares itself
//! [`Plugin::volatile`] and costs one evaluation per Pod and cycle.

use std::any::Any;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::views::{PodId, PodView, RunView, Snapshot};

/// What a plugin computed in PreFilter for its own later points; read back with [`State::get`].
#[derive(Clone, Default)]
pub struct State(Option<Arc<dyn Any + Send + Sync>>);

impl State {
    /// A state that holds nothing.
    pub const NONE: Self = Self(None);
    /// A state holding `value`.
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }
    /// The value, if it is a `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_deref().and_then(|any| any.downcast_ref())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "State(..)" } else { "State(-)" })
    }
}

/// One member of a plugin's closed set of reasons.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reason {
    /// PascalCase code, for JSON and metrics, as `HeartbeatStale`.
    pub code: &'static str,
    /// Human text used in `N <text>`, as `heartbeat stale`; `{}` is replaced by the rejection's subject.
    pub text: &'static str,
}

/// A plugin's "no": the reason and, where the text has a `{}`, the name it speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rejection {
    /// Member of the plugin's declared reasons.
    pub reason: &'static Reason,
    /// A resource, workspace or selector named in the text; never a Pod.
    pub subject: Option<Arc<str>>,
}

impl Rejection {
    /// A rejection without a subject.
    pub fn new(reason: &'static Reason) -> Self {
        Self { reason, subject: None }
    }
    /// A rejection whose text names `subject`.
    pub fn about(reason: &'static Reason, subject: impl Into<Arc<str>>) -> Self {
        Self { reason, subject: Some(subject.into()) }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Some(subject) => f.write_str(&self.reason.text.replace("{}", subject)),
            None => f.write_str(self.reason.text),
        }
    }
}

/// Why a waiting Run is tried again: one closed set (decisions "Queue").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum WakeCause {
    /// A Pod became available: new, Running, Ready.
    PodReady,
    /// A stale Pod beats again.
    HeartbeatReturned,
    /// A Pod advertises more.
    CapacityRaised,
    /// A Pod went away or changed its labels or annotations.
    PodDeletedOrRelabelled,
    /// An active Run reached a terminal phase (or went back to Pending).
    RunEnded,
    /// An active Run was deleted.
    RunDeleted,
    /// The last target of a required term is gone: the term can be seeded again.
    LastTargetEnded,
    /// A target of a required term appeared on a Pod.
    TargetAppeared,
    /// A Run whose anti-affinity kept this one away has ended.
    AntiAffinityOwnerEnded,
    /// The Run's own labels changed.
    OwnLabelsChanged,
    /// The Run's workspace appeared or changed.
    WorkspaceChanged,
    /// A write that had been counted on failed; what it held is free.
    AssumptionReleased,
    /// A back-off ran out.
    RetryDue,
    /// Another profile is in force.
    ProfileChanged,
}

impl WakeCause {
    /// Every cause, in declaration order.
    pub const ALL: [Self; 14] = [
        Self::PodReady,
        Self::HeartbeatReturned,
        Self::CapacityRaised,
        Self::PodDeletedOrRelabelled,
        Self::RunEnded,
        Self::RunDeleted,
        Self::LastTargetEnded,
        Self::TargetAppeared,
        Self::AntiAffinityOwnerEnded,
        Self::OwnLabelsChanged,
        Self::WorkspaceChanged,
        Self::AssumptionReleased,
        Self::RetryDue,
        Self::ProfileChanged,
    ];
    /// The cause as a metric label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodReady => "pod_ready",
            Self::HeartbeatReturned => "heartbeat_returned",
            Self::CapacityRaised => "capacity_raised",
            Self::PodDeletedOrRelabelled => "pod_deleted_or_relabelled",
            Self::RunEnded => "run_ended",
            Self::RunDeleted => "run_deleted",
            Self::LastTargetEnded => "last_target_ended",
            Self::TargetAppeared => "target_appeared",
            Self::AntiAffinityOwnerEnded => "anti_affinity_owner_ended",
            Self::OwnLabelsChanged => "own_labels_changed",
            Self::WorkspaceChanged => "workspace_changed",
            Self::AssumptionReleased => "assumption_released",
            Self::RetryDue => "retry_due",
            Self::ProfileChanged => "profile_changed",
        }
    }
    pub(crate) fn bit(self) -> u32 {
        1 << (self as u8)
    }
}

/// What PreFilter found out about one Run.
#[derive(Debug, Default)]
pub struct Prepared {
    /// What of the Run decides Filter and Score of a Pod outside `overlay`: equal keys, equal answers.
    pub key: Vec<u64>,
    /// If set, only these Pods can be feasible; every other one is charged to this plugin.
    pub narrow: Option<Narrow>,
    /// Pods whose verdict or score differs from what the shape says; few, or the point is lost.
    pub overlay: Vec<PodId>,
    /// State for Pods outside the overlay: a function of `key` alone.
    pub base: State,
    /// Everything about the Run; must be right for every Pod. Used for Pods in `overlay` or `narrow`.
    pub exact: State,
}

/// The candidates a plugin left, and the reason all other Pods are charged with.
#[derive(Debug)]
pub struct Narrow {
    /// The only Pods that can be feasible; empty = nothing is.
    pub pods: Vec<PodId>,
    /// Names of Pods that are not there (yet) but would be candidates; the Run waits for them by name.
    pub awaited: Vec<Arc<str>>,
    /// Charged to every other Pod of the runtime.
    pub rejection: Rejection,
    /// PreFilter alone decided that nothing is feasible, whatever the Pods are: told even when there is none.
    pub refuses: bool,
}

/// Runs once per cycle, before any Pod is looked at.
pub trait PreFilter {
    /// What of the Run matters to this plugin, and for which Pods.
    fn pre_filter(&self, run: RunView<'_>, snapshot: Snapshot<'_>) -> Prepared;
    /// What of the Run alone decides what this plugin will ever say of it: of waiting Runs with equal keys only the oldest is
    /// tried. `None`, the default, is always right: every Run is tried for itself, at the cost of one look per Run and event.
    fn class_key(&self, _run: RunView<'_>) -> Option<Vec<u64>> {
        None
    }
}

/// Says whether one Pod can take the Run.
pub trait Filter {
    /// `true` if a rejection of a Pod holds for every Run with the same requests, whatever else it asks.
    fn same_for_equal_requests(&self) -> bool {
        false
    }
    /// `Ok` if the Pod is feasible as far as this plugin cares.
    ///
    /// # Errors
    /// The rejection, one of the plugin's declared reasons.
    fn filter(&self, state: &State, run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection>;
}

/// A score of 100 in fixed point: scores have a resolution of 1/1000.
pub const MAX_SCORE: i64 = 100_000;

/// How a plugin's raw scores become 0..=[`MAX_SCORE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// The raw score already is 0..=[`MAX_SCORE`]; the host clamps.
    None,
    /// Min-max over the feasible Pods, floored; all equal is 0.
    MinMax,
}

/// Ranks feasible Pods.
pub trait Score {
    /// The raw score of one feasible Pod; higher is better.
    fn score(&self, state: &State, run: RunView<'_>, pod: PodView<'_>) -> i64;
    /// How raw scores are normalised.
    fn normalize(&self) -> Normalize {
        Normalize::None
    }
    /// An exact order among Pods whose totals tie; smaller is better. See [`Plugin::offers_tie`].
    fn tie(&self, _run: RunView<'_>, _pod: PodView<'_>) -> Option<TieKey> {
        None
    }
}

/// An exact order for ties: a fraction, then an integer; smaller is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TieKey {
    /// Compared first.
    pub first: Fraction,
    /// Compared when `first` is equal.
    pub second: i128,
}

/// An exact fraction with a positive denominator.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    num: i128,
    den: i64,
}

impl Fraction {
    /// `num / den`; a denominator below 1 is taken as 1.
    pub fn new(num: impl Into<i128>, den: i64) -> Self {
        Self { num: num.into(), den: den.max(1) }
    }
}

impl Default for Fraction {
    fn default() -> Self {
        Self { num: 0, den: 1 }
    }
}

impl PartialEq for Fraction {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Fraction {}
impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (i128::from(self.den), i128::from(other.den));
        if let (Some(one), Some(two)) = (self.num.checked_mul(b), other.num.checked_mul(a)) {
            return one.cmp(&two);
        }
        // Whole parts first, then the rests, which are below the denominators: nothing overflows.
        let whole = self.num.div_euclid(a).cmp(&other.num.div_euclid(b));
        whole.then_with(|| (self.num.rem_euclid(a) * b).cmp(&(other.num.rem_euclid(b) * a)))
    }
}

/// The last look before a placement is counted: the invariants a plugin guards, on the chosen Pod.
pub trait Reserve {
    /// `Ok` if the placement may be assumed.
    ///
    /// # Errors
    /// The rejection; the Run backs off and is tried again.
    fn reserve(&self, state: &State, run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection>;
}

/// Adds to the bind, as data; the host writes it.
pub trait Bind {
    /// Annotates the intent of placing `run` on `pod`.
    fn bind(&self, run: RunView<'_>, pod: PodView<'_>, intent: &mut BindNote);
}

/// What Bind plugins may say about a placement: lines for the log and the `Scheduled` Event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BindNote {
    /// Short remarks; 8 are kept, each cut to 128 bytes.
    pub remarks: Vec<String>,
}

/// A plugin: a name, its reasons and events, and the points it implements.
pub trait Plugin: Send + Sync {
    /// Unique name, as in the profile.
    fn name(&self) -> &'static str;
    /// Every reason this plugin can reject with.
    fn reasons(&self) -> &'static [Reason] {
        &[]
    }
    /// The events that can end a rejection of this plugin. Must not be empty where `reasons` is not.
    fn events(&self) -> &'static [WakeCause] {
        &[]
    }
    /// `true` if Filter or Score depend on more than state and Pod: costs one evaluation per Pod and cycle.
    fn volatile(&self) -> bool {
        false
    }
    /// Reason of the waiting condition when this plugin's PreFilter leaves no candidate; `Unschedulable` if `None`.
    fn refusal_reason(&self) -> Option<&'static str> {
        None
    }
    /// `true` if [`Score::tie`] orders Pods; the first such plugin of a profile decides ties.
    fn offers_tie(&self) -> bool {
        false
    }
    /// This plugin at PreFilter.
    fn as_pre_filter(&self) -> Option<&dyn PreFilter> {
        None
    }
    /// This plugin at Filter.
    fn as_filter(&self) -> Option<&dyn Filter> {
        None
    }
    /// This plugin at Score.
    fn as_score(&self) -> Option<&dyn Score> {
        None
    }
    /// This plugin at Reserve.
    fn as_reserve(&self) -> Option<&dyn Reserve> {
        None
    }
    /// This plugin at Bind.
    fn as_bind(&self) -> Option<&dyn Bind> {
        None
    }
}
