//! Names and numbers that are part of the wire: group, labels, annotations, condition types, reasons, limits.

/// API group of every kind in this crate.
pub const GROUP: &str = "kruntimes.io";
/// The one served version.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of every kind in this crate; also the only value of `Run.spec.workspace.apiGroup`.
pub const API_VERSION: &str = "kruntimes.io/v1alpha1";
/// `kind` of a Run.
pub const KIND_RUN: &str = "Run";
/// `kind` of a PersistentWorkspace; also the only value of `Run.spec.workspace.kind`.
pub const KIND_PERSISTENT_WORKSPACE: &str = "PersistentWorkspace";

/// Label on a Runtime Pod that names its Runtime (unprefixed; reference §2).
pub const LABEL_RUNTIME: &str = "runtime";
/// Prefix of the Pod annotations that advertise capacity: `kruntimes.io/capacity.<resource>: <quantity>` (reference §2).
pub const ANNOTATION_CAPACITY_PREFIX: &str = "kruntimes.io/capacity.";
/// Pod annotation of an agent that honours workspaces (decisions, "Scheduling").
pub const ANNOTATION_WORKSPACE_AGENT: &str = "kruntimes.io/workspace-agent";
/// Finalizer of a PersistentWorkspace whose data is still on a Pod (decisions, "PersistentWorkspace").
pub const FINALIZER_WORKSPACE_CLEANUP: &str = "kruntimes.io/workspace-cleanup";
/// The only `topologyKey`: two Runs share the topology when `assignedPod` is equal (spec, "Run Affinity API").
pub const TOPOLOGY_RUNTIME_POD: &str = "kruntimes.io/runtime-pod";
/// Directory, inside a Runtime Pod, below which each PersistentWorkspace has a directory of its own name.
pub const WORKSPACE_PATH_PREFIX: &str = "/workspace/persistent/";

/// The built-in resource: every Run needs at least one `runs` (reference §4).
pub const RESOURCE_RUNS: &str = "runs";
/// `runs` capacity of a Pod whose annotation is missing or invalid (reference §2).
pub const DEFAULT_RUNS_CAPACITY: i64 = 2;
/// `runs` a Run needs when it requests none, or 0 (reference §4).
pub const DEFAULT_RUNS_REQUEST: i64 = 1;

/// Pod condition type of the heartbeat (reference §2).
pub const POD_CONDITION_RUNTIMED_READY: &str = "kruntimes.io/RuntimedReady";
/// A heartbeat is fresh up to and including this age, in milliseconds, for placement (reference §2).
pub const HEARTBEAT_FRESH_MS: i64 = 15_000;
/// A heartbeat older than this, in milliseconds, makes a Run lost (reference §2, reaper).
pub const HEARTBEAT_LOST_MS: i64 = 30_000;

/// Most entries of `status.conditions` (reference §1.2).
pub const CONDITIONS_MAX: usize = 16;
/// Longest `status.message`, in characters (reference §1.2).
pub const STATUS_MESSAGE_CHARS_MAX: usize = 4096;
/// Longest message Berth itself writes, in bytes, exclusive (decisions, "Wire").
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Condition types of a Run (reference §1.4).
pub mod run_condition {
    /// Assigned to a Pod; never reset, so its time is the first assignment.
    pub const SCHEDULED: &str = "Scheduled";
    /// Claimed by an agent.
    pub const RUNNING: &str = "Running";
    /// Ended.
    pub const COMPLETED: &str = "Completed";
    /// Reserved for functions; unused.
    pub const READY: &str = "Ready";
}

/// Condition types of a PersistentWorkspace (decisions, "PersistentWorkspace").
pub mod workspace_condition {
    /// The spec can be acted on.
    pub const ACCEPTED: &str = "Accepted";
    /// The workspace has its Pod.
    pub const BOUND: &str = "Bound";
    /// A Runtime Pod with the workspace's label exists.
    pub const RUNTIME_READY: &str = "RuntimeReady";
    /// The bound Pod is available.
    pub const AVAILABLE: &str = "Available";
    /// The agent has removed the directory.
    pub const CLEANED: &str = "Cleaned";
}

/// Condition reasons and failure reasons (reference §1.4, decisions).
pub mod reason {
    /// Scheduled=True.
    pub const ASSIGNED: &str = "Assigned";
    /// Scheduled=False: no Pod fits.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// Scheduled=False: WorkspaceFencing rejected in PreFilter.
    pub const WORKSPACE_NOT_READY: &str = "WorkspaceNotReady";
    /// Running=True, first claim.
    pub const CLAIMED: &str = "Claimed";
    /// Running=True, a further attempt.
    pub const RETRYING: &str = "Retrying";
    /// Running=False after success.
    pub const COMPLETED: &str = "Completed";
    /// Completed=True.
    pub const RUN_COMPLETED: &str = "RunCompleted";
    /// Failure: cancelled by the user.
    pub const CANCELLED: &str = "Cancelled";
    /// Failure: a value in `spec.resources.requests` is no non-negative integer.
    pub const INVALID_RESOURCES: &str = "InvalidResources";
    /// Failure: the object can't be decoded or compiled (ours; decisions, "Wire").
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Failure: ran past `spec.timeout`.
    pub const TIMEOUT: &str = "Timeout";
    /// Failure: the source could not be prepared.
    pub const PREPARE_SOURCE: &str = "PrepareSource";
    /// Failure: Execute failed.
    pub const RUNTIME_EXECUTE: &str = "RuntimeExecute";
    /// Failure: the process failed.
    pub const RUNTIME_ERROR: &str = "RuntimeError";
    /// Failure: the execution is unknown after a restart.
    pub const EXECUTION_LOST: &str = "ExecutionLost";
    /// Failure: the assigned Pod is gone or replaced.
    pub const POD_GONE: &str = "PodGone";
    /// Failure: the assigned Pod is terminating.
    pub const POD_TERMINATING: &str = "PodTerminating";
    /// Failure: the assigned Pod is not ready or its heartbeat is stale.
    pub const POD_UNHEALTHY: &str = "PodUnhealthy";
    /// Failure: the outputs file can't be read.
    pub const OUTPUTS_INVALID: &str = "OutputsInvalid";
    /// Failure: the outputs exceed a limit.
    pub const OUTPUTS_TOO_LARGE: &str = "OutputsTooLarge";
    /// Failure: an artifact can't be stored.
    pub const ARTIFACT_INVALID: &str = "ArtifactInvalid";
    /// Heartbeat reason on the Pod condition.
    pub const HEARTBEAT: &str = "Heartbeat";
    /// Heartbeat=False: the agent takes no further Runs and goes on with those it has (ours; ADR 0044).
    pub const CORDONED: &str = "Cordoned";
    /// RuntimeReady=True of a workspace.
    pub const RUNTIME_FOUND: &str = "RuntimeFound";
    /// RuntimeReady=False of a workspace.
    pub const RUNTIME_NOT_FOUND: &str = "RuntimeNotFound";
    /// Cleaned=False: the Pod advertises no agent that cleans.
    pub const AGENT_CANNOT_CLEAN: &str = "AgentCannotClean";
    /// Cleaned=False: Runs that use the workspace have not ended.
    pub const IN_USE: &str = "InUse";
    /// Cleaned=False: the agent has not removed the directory yet.
    pub const WAITING_FOR_AGENT: &str = "WaitingForAgent";
    /// Cleaned=True: the agent has removed the directory, or found none.
    pub const REMOVED: &str = "Removed";
    /// Cleaned=False: the agent could not remove the directory, and tries again.
    pub const REMOVE_FAILED: &str = "RemoveFailed";
    /// Available=False: expired; no new Run is admitted.
    pub const RELEASED: &str = "Released";
    /// Available=False: being deleted.
    pub const DELETING: &str = "Deleting";
}
