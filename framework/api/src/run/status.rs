//! What the scheduler, the agents and the controllers say about a Run (reference §1.2). Nothing may be added here:
//! the neighbours write whole objects and erase what they don't know (reference §0.1).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RunPhase;

/// Observed state of a Run. Times have a resolution of one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Phase; absent or empty means Pending.
    #[serde(default)]
    pub phase: RunPhase,
    /// Name of the Runtime Pod; capacity and affinity go by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_pod: Option<String>,
    /// UID of that Pod; may be absent.
    #[serde(default, rename = "assignedPodUID", skip_serializing_if = "Option::is_none")]
    pub assigned_pod_uid: Option<String>,
    /// One diagnostic line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time of the terminal write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Attempt, 1-based; 0 or absent until the first terminal or retry write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// Values the execution reported.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, String>,
    /// Artifacts stored elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifact_refs: Vec<ArtifactRef>,
    /// Snapshot of the store, so that artifacts can be removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_store: Option<ArtifactStore>,
    /// Where a function answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<RunEndpoint>,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Where a function answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunEndpoint {
    /// Only `HTTPS`.
    pub protocol: String,
    /// URL to call.
    pub url: String,
    /// PEM trust bundle, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
}

/// Metadata of one artifact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactRef {
    /// Name, unique within the Run.
    pub name: String,
    /// `filesystem` or `s3`.
    pub driver: String,
    /// `file`, `directory`, `archive` or `blob`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Where it is; matches the driver.
    pub location: ArtifactLocation,
    /// Size in bytes.
    pub size_bytes: i64,
    /// Digest with its algorithm's prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// When it was stored.
    pub created_at: Time,
}

/// Exactly one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactLocation {
    /// In a filesystem store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<ArtifactFilesystemLocation>,
    /// In an S3 bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<ArtifactS3Location>,
}

/// A file below the root of a filesystem store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactFilesystemLocation {
    /// Path relative to the store's root.
    pub path: String,
    /// Claim behind the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_name: Option<String>,
}

/// An object in a bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactS3Location {
    /// Bucket.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
}

/// Snapshot of the artifact store of the Runtime, without secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactStore {
    /// `filesystem` or `s3`.
    pub driver: String,
    /// Set with driver `filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<ArtifactStoreFilesystem>,
    /// Set with driver `s3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<ArtifactStoreS3>,
}

/// A store on a PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactStoreFilesystem {
    /// Name of the claim.
    pub volume_claim_name: String,
}

/// A store in an S3 bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactStoreS3 {
    /// Bucket, without a slash.
    pub bucket: String,
    /// Prefix of every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Endpoint of a service that is not Amazon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Bucket in the path instead of the host name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force_path_style: bool,
    /// Secret with the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_name: Option<String>,
    /// Part size of an upload, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_part_size: Option<i64>,
    /// Parts uploaded at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_concurrency: Option<i32>,
}
