//! The objects the scheduler reasons about: lean, decoded once, shared by `Arc`.
//!
//! They are made from API objects by [`crate::from_api`] and hold what placing needs and nothing else.
//! Times are integers: wall clock in milliseconds since the Unix epoch, monotonic in milliseconds since
//! an arbitrary start. The core never reads a clock; every input carries [`Now`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use berth_api::constants::{DEFAULT_RUNS_REQUEST, RESOURCE_RUNS, reason};
use berth_api::selector::CompiledSelector;

use berth_api::runtime_ready::PodSigns;
pub use berth_api::runtime_ready::{Now, Verdict as Readiness};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The object's namespace.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// A key from anything string-like.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Labels of an object, shared.
pub type Labels = Arc<BTreeMap<String, String>>;

/// What a Run asks for: `runs`, and other resources by name, each a positive integer.
///
/// Source: reference kruntimes §4.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requests {
    runs: i64,
    others: Vec<(Arc<str>, i64)>,
}

impl Requests {
    /// Positive amounts, as [`berth_api::run::RunSpec::requests`] normalises them; `runs` is 1 if it is not among them.
    pub fn new(entries: impl IntoIterator<Item = (Arc<str>, i64)>) -> Self {
        let mut others: BTreeMap<Arc<str>, i64> = entries.into_iter().collect();
        let runs = others.remove(RESOURCE_RUNS).unwrap_or(DEFAULT_RUNS_REQUEST);
        Self { runs, others: others.into_iter().collect() }
    }

    /// What a Run holds whose requests can't be read: nothing (reference kruntimes §4 "Holders").
    pub(crate) fn nothing() -> Self {
        Self { runs: 0, others: Vec::new() }
    }

    /// Resource and amount: `runs` first, then by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        std::iter::once((RESOURCE_RUNS, self.runs)).chain(self.others.iter().map(|(name, amount)| (&**name, *amount)))
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::new([])
    }
}

/// The affinity of a Run, compiled. Every term is about the topology `kruntimes.io/runtime-pod`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// Every one of these must have a target on the Pod, or be seedable.
    pub required: Vec<CompiledSelector>,
    /// Weight (1..=100) and selector: attracts.
    pub preferred: Vec<(i32, CompiledSelector)>,
    /// None of these may have a target on the Pod.
    pub required_anti: Vec<CompiledSelector>,
    /// Weight (1..=100) and selector: repels.
    pub preferred_anti: Vec<(i32, CompiledSelector)>,
}

/// Why a Run can't be scheduled at all, whatever the cluster looks like; it ends Failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRun {
    /// `InvalidResources` or `InvalidSpec` (decisions "Wire").
    pub reason: InvalidReason,
    /// Names the field; under 1,024 bytes.
    pub message: String,
}

/// The closed set of reasons of [`InvalidRun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InvalidReason {
    /// A value of `spec.resources.requests` is not a non-negative integer.
    InvalidResources,
    /// Anything else that passes the CRD but can't be decoded or compiled.
    InvalidSpec,
}

impl InvalidReason {
    /// The reason as written in the Run's conditions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidResources => reason::INVALID_RESOURCES,
            Self::InvalidSpec => reason::INVALID_SPEC,
        }
    }
}

/// Where a Run stands, as far as placing cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `Pending`, empty or absent: to be placed.
    Pending,
    /// `Scheduled`, `Running` or `Ready`: holds capacity and is an affinity target.
    Active,
    /// `Succeeded`, `Failed`, `Timeout`, `Cancelled`.
    Terminal,
    /// A phase this version does not know: left alone, holds nothing.
    Unknown,
}

/// A Run as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunObject {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion` of this view: the fence of every write about it.
    pub resource_version: Arc<str>,
    /// `metadata.creationTimestamp`, whole seconds since the epoch.
    pub created_s: i64,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `metadata.deletionTimestamp` is set: never placed.
    pub deleting: bool,
    /// `spec.cancelRequested`.
    pub cancel_requested: bool,
    /// `spec.runtime`: only Pods with this `runtime` label are candidates.
    pub runtime: Arc<str>,
    /// `spec.workspace.name`, in the Run's namespace.
    pub workspace: Option<Arc<str>>,
    /// `spec.resources.requests`, normalised; `None` if unparsable, then an active Run holds nothing.
    pub requests: Option<Arc<Requests>>,
    /// `spec.affinity`, compiled; empty if it can't be.
    pub affinity: Arc<Affinity>,
    /// Why this Run can't be scheduled at all; a Pending one ends Failed.
    pub invalid: Option<InvalidRun>,
    /// `status.phase`.
    pub phase: Phase,
    /// `status.assignedPod`.
    pub assigned_pod: Option<Arc<str>>,
    /// A retried Run (attempt above 1) is not placed before this wall time (reference kruntimes §3.2 step 5, §3.9).
    pub retry_not_before_wall_ms: Option<i64>,
    /// The waiting text that the object shows now: condition reason and message.
    pub shown: Option<Shown>,
}

impl RunObject {
    /// Whether another version of the Run asks for the same, so that what was found out for it still holds.
    pub(crate) fn asks_the_same(&self, other: &Self) -> bool {
        let Self { labels, requests, affinity, runtime, workspace, .. } = other;
        (&self.labels, &self.requests, &self.affinity, &self.runtime, &self.workspace) == (labels, requests, affinity, runtime, workspace)
    }
}

/// The waiting text an object carries: condition `Scheduled=False` reason and `status.message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Reason of condition `Scheduled=False`.
    pub reason: Arc<str>,
    /// `status.message`.
    pub message: Arc<str>,
}

/// A Runtime Pod as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObject {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// Label `runtime`.
    pub runtime: Arc<str>,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `metadata.annotations` without `kubectl.kubernetes.io/last-applied-configuration`.
    pub annotations: Labels,
    /// `status.phase` is Running.
    pub running: bool,
    /// Condition Ready is True.
    pub ready: bool,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// Condition `kruntimes.io/RuntimedReady` is True.
    pub heartbeat_true: bool,
    /// It is False, and says that the agent goes on with the Runs it has.
    pub cordoned: bool,
    /// Its `lastProbeTime`, wall milliseconds.
    pub probe_ms: Option<i64>,
    /// Advertised capacity, floored to integers; `runs` absent counts as 2 (decisions "Capacity").
    pub capacity: Arc<BTreeMap<Arc<str>, i64>>,
    /// Capacity annotations that were ignored (negative or unparsable): resource and value, for a Warning Event.
    pub bad_capacity: Vec<(String, String)>,
    /// Annotation `kruntimes.io/workspace-agent`: the Pod's agent honours workspaces.
    pub workspace_agent: bool,
}

impl PodObject {
    /// What it says of its availability.
    pub fn signs(&self) -> PodSigns {
        let Self { running, ready, terminating, heartbeat_true, cordoned, probe_ms, .. } = *self;
        PodSigns { running, ready, terminating, heartbeat_true, cordoned, probe_time_ms: probe_ms }
    }
}

/// Phase of a PersistentWorkspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkspacePhase {
    /// Not bound yet (also: absent or unknown phase).
    Pending,
    /// Bound to one Pod.
    Bound,
    /// Its Pod is gone; for ever.
    Lost,
    /// Expired; being deleted.
    Released,
}

/// A PersistentWorkspace as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceObject {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `spec.runtime`.
    pub runtime: Arc<str>,
    /// `status.phase`.
    pub phase: WorkspacePhase,
    /// `status.boundPod`.
    pub bound_pod: Option<Arc<str>>,
    /// `status.boundPodUID`.
    pub bound_pod_uid: Option<Arc<str>>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// One ordered change of one object, as the informer saw it.
#[derive(Clone, Debug)]
pub enum Delta<T> {
    /// The object exists and looks like this.
    Applied(Arc<T>),
    /// The object of this key and UID no longer exists.
    Deleted {
        /// Namespace and name.
        key: ObjectKey,
        /// UID of the object that is gone.
        uid: Arc<str>,
    },
}
