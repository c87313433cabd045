//! PersistentWorkspace: a directory on one Runtime Pod that Runs share (reference §1.5; spec; decisions).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::open_enum::open_enum;

/// Which Runtime backs the workspace and how long its data is kept.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kruntimes.io",
    version = "v1alpha1",
    kind = "PersistentWorkspace",
    plural = "persistentworkspaces",
    singular = "persistentworkspace",
    shortname = "pw",
    namespaced,
    status = "PersistentWorkspaceStatus",
    derive = "PartialEq",
    doc = "PersistentWorkspace is a directory on one Runtime Pod that Runs share.",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Runtime","type":"string","jsonPath":".spec.runtime"}"#,
    printcolumn = r#"{"name":"Bound Pod","type":"string","jsonPath":".status.boundPod"}"#,
    printcolumn = r#"{"name":"Available","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name":"Last Used","type":"date","priority":1,"jsonPath":".status.lastUsedTime"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    selectable = ".status.boundPod"
)]
#[serde(rename_all = "camelCase")]
pub struct PersistentWorkspaceSpec {
    /// Runtime whose Pods can back the workspace; immutable.
    pub runtime: String,
    /// Only `RuntimePodLocal`: the data lives on one Pod.
    #[serde(default = "default_mode")]
    pub mode: String,
    /// Seconds after the last use when the data may be removed; absent or 0 keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_unused: Option<i32>,
    /// Whether `ttlSecondsAfterUnused` applies.
    #[serde(default)]
    pub cleanup_policy: CleanupPolicy,
}

fn default_mode() -> String {
    PersistentWorkspaceSpec::MODE_RUNTIME_POD_LOCAL.to_owned()
}

impl PersistentWorkspaceSpec {
    /// The only mode.
    pub const MODE_RUNTIME_POD_LOCAL: &'static str = "RuntimePodLocal";
}

/// Observed state of a PersistentWorkspace. Times have a resolution of one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentWorkspaceStatus {
    /// Phase; absent or empty means Pending.
    #[serde(default)]
    pub phase: WorkspacePhase,
    /// Runtime that backs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Name of the Pod that holds the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_pod: Option<String>,
    /// UID of that Pod: a namesake is another Pod with another filesystem (spec).
    #[serde(default, rename = "boundPodUID", skip_serializing_if = "Option::is_none")]
    pub bound_pod_uid: Option<String>,
    /// Directory inside the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Latest claim or end of a Run that names the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_time: Option<Time>,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl PersistentWorkspace {
    /// The phase; a workspace without status, or with an empty phase, is Pending.
    pub fn phase(&self) -> &WorkspacePhase {
        self.status.as_ref().map_or(&WorkspacePhase::Pending, |status| &status.phase)
    }
}

open_enum! {
    /// Phase of a PersistentWorkspace (decisions, "PersistentWorkspace").
    ///
    /// ```text
    /// Pending ─► Bound ─► Lost      the Pod is gone or replaced, for ever
    ///              └────► Released  its time is over; no new Run is admitted
    /// ```
    WorkspacePhase, empty = Pending {
        /// No Pod yet.
        Pending,
        /// Lives on the Pod of name `boundPod` and UID `boundPodUID`.
        Bound,
        /// Its Pod is gone, and the data with it.
        Lost,
        /// Expired; about to be deleted.
        Released,
    }
}

open_enum! {
    /// Whether the time to live applies (reference §1.5).
    CleanupPolicy, empty = DeleteAfterTTL {
        /// Removed `ttlSecondsAfterUnused` after the last use.
        DeleteAfterTTL,
        /// Kept; the time to live is ignored.
        Retain,
    }
}

/// How a workspace gets its Pod, as a profile of the scheduler's configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkspaceBinding {
    /// The first available Pod by name (reference §5.1).
    #[default]
    FirstByName,
    /// The available Pod with the smallest load, by share of its `runs`.
    LeastLoaded,
}
