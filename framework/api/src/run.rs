//! Run: one execution of a task or function on a warm Runtime Pod (reference §1.1; spec, "Run Workspace Reference").

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod affinity;
mod compile;
mod phase;
mod status;

pub use affinity::{RunAffinity, RunAffinityRules, RunAffinityTerm, WeightedRunAffinityTerm};
pub use compile::{InvalidRequest, InvalidTerm};
pub use phase::RunPhase;
pub use status::{
    ArtifactFilesystemLocation, ArtifactLocation, ArtifactRef, ArtifactS3Location, ArtifactStore, ArtifactStoreFilesystem, ArtifactStoreS3, RunEndpoint,
    RunStatus,
};

/// What to run and where it may be placed. Everything but `cancelRequested` and `ttlSecondsAfterFinished` is immutable.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kruntimes.io",
    version = "v1alpha1",
    kind = "Run",
    plural = "runs",
    singular = "run",
    shortname = "rn",
    namespaced,
    status = "RunStatus",
    derive = "PartialEq",
    doc = "Run is one execution of a task or function on a warm Runtime Pod.",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Assigned Pod","type":"string","jsonPath":".status.assignedPod"}"#,
    printcolumn = r#"{"name":"Runtime","type":"string","jsonPath":".spec.runtime"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    selectable = ".status.assignedPod",
    selectable = ".status.phase",
    selectable = ".spec.runtime"
)]
#[serde(rename_all = "camelCase")]
pub struct RunSpec {
    /// Name of the Runtime; equals the `runtime` label of the Pods that can run it.
    pub runtime: String,
    /// How it is executed: exactly one of `task` and `function`.
    pub mode: RunMode,
    /// Where the code comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RunSource>,
    /// The PersistentWorkspace of the same namespace that the Run uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceReference>,
    /// Placement relative to other active Runs of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<RunAffinity>,
    /// Capacity of the Runtime Pod held from assignment to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RunResources>,
    /// Environment of the process; `valueFrom` is admitted but not resolved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Longest execution, as a Go duration (`90s`, `1h30m`); absent means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Whether and how a failed attempt is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<RetryPolicy>,
    /// Asks for cancellation; may not go back to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// Seconds after its end when a finished Run is deleted; absent or 0 keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Exactly one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunMode {
    /// A process that runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskMode>,
    /// A callable function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionMode>,
}

/// A process that runs once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskMode {
    /// Relative script file; ignored with an inline source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// Arguments; ignored with an inline source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// A callable function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionMode {
    /// `module.function` to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// Seconds without a call after which the reservation may end; reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i32>,
}

/// Where the code comes from: inline, or a Git repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunSource {
    /// A script of at most 256 KiB; excludes `repoURL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// Relative file the inline source of a function is written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_path: Option<String>,
    /// Git repository to clone.
    #[serde(default, rename = "repoURL", skip_serializing_if = "Option::is_none")]
    pub repo_url: Option<String>,
    /// Commit or ref to check out; needs `repoURL`.
    #[serde(default, rename = "commitSHA", skip_serializing_if = "Option::is_none")]
    pub commit_sha: Option<String>,
}

/// A typed reference to a PersistentWorkspace of the Run's own namespace; it carries intent only (spec).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceReference {
    /// Name of the PersistentWorkspace, a DNS-1123 subdomain.
    pub name: String,
    /// Kind of the workspace provider; only `PersistentWorkspace`.
    #[serde(default = "default_workspace_kind")]
    pub kind: String,
    /// Group and version of the workspace provider in one string; only `kruntimes.io/v1alpha1`.
    #[serde(default = "default_workspace_api_group")]
    pub api_group: String,
}

fn default_workspace_kind() -> String {
    crate::constants::KIND_PERSISTENT_WORKSPACE.to_owned()
}

fn default_workspace_api_group() -> String {
    crate::constants::API_VERSION.to_owned()
}

/// What a Run holds of its Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResources {
    /// Resource name to a non-negative integer quantity; `runs` absent or 0 counts as 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Whether and how a failed attempt is repeated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Attempts including the first; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i32>,
    /// First pause between attempts, as a Go duration; doubles, at most 60 s; 1 s when absent or not positive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    /// Failure reasons that are repeated; empty means every reason but `Cancelled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retryable_reasons: Vec<String>,
}

impl Run {
    /// The phase; a Run without status, or with an empty phase, is Pending (reference §0.2).
    pub fn phase(&self) -> &RunPhase {
        self.status.as_ref().map_or(&RunPhase::Pending, |status| &status.phase)
    }

    /// The attempt it is in, from 1; absent and 0 are the first (reference §1.2).
    pub fn attempt(&self) -> i32 {
        self.status.as_ref().and_then(|status| status.attempt).unwrap_or(1).max(1)
    }
}
