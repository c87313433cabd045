//! OpenSandboxExecutionParameters: the server of a class and how it is used (design of Jobs, §3).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of the OpenSandbox adapter. Immutable but for `apiKeySecretRef`, `tls` and `concurrency`. Durations are Go's.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "OpenSandboxExecutionParameters",
    plural = "opensandboxexecutionparameters",
    singular = "opensandboxexecutionparameters",
    shortname = "oep",
    category = "ayatori",
    derive = "PartialEq",
    doc = "OpenSandboxExecutionParameters name an OpenSandbox server and how Jobs of a JobClass use it.",
    printcolumn = r#"{"name":"Endpoint","type":"string","jsonPath":".spec.endpoint"}"#,
    printcolumn = r#"{"name":"Mode","type":"string","jsonPath":".spec.executionMode"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct OpenSandboxExecutionParametersSpec {
    /// Base URL without credentials and query; references are only meaningful to the server that issued them.
    pub endpoint: String,
    /// Secret with the API key; may be rotated.
    pub api_key_secret_ref: SecretKeyReference,
    /// How the server's certificate is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// How a sandbox's execd is reached.
    #[serde(default)]
    pub execd_access: ExecdAccess,
    /// How the task is run in its sandbox.
    #[serde(default)]
    pub execution_mode: ExecutionMode,
    /// How long one create may take.
    #[serde(default = "default_create_timeout")]
    pub create_timeout: String,
    /// How long a sandbox whose create had no answer may still appear.
    #[serde(default = "default_create_window")]
    pub create_window: String,
    /// How long a sandbox lives that no Job has taken; at least 60s.
    #[serde(default = "default_orphan_ttl", rename = "orphanTTL")]
    pub orphan_ttl: String,
    /// How long a sandbox of a Job without deadline lives unless renewed.
    #[serde(default = "default_lease_ttl", rename = "leaseTTL")]
    pub lease_ttl: String,
    /// Creates per Job at most.
    #[serde(default = "default_max_create_attempts")]
    pub max_create_attempts: i32,
    /// What becomes of requests.
    #[serde(default)]
    pub resource_mapping: ResourceMapping,
    /// Whether the server takes registry credentials per request.
    #[serde(default)]
    pub image_auth: ImageAuth,
    /// Platform of the image; absent is the server's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Requests to the server at once.
    #[serde(default = "default_concurrency")]
    pub concurrency: i32,
}

/// One key of a Secret of any namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKeyReference {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Key within it.
    pub key: String,
}

/// How a server's certificate is trusted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// PEM certificates in base64, beside those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
}

/// What becomes of requests, which not every server knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceMapping {
    /// What becomes of them.
    #[serde(default)]
    pub requests: RequestMapping,
}

/// A platform.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// Operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// Architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
}

fn default_create_timeout() -> String {
    "3m".to_owned()
}

fn default_create_window() -> String {
    "5m".to_owned()
}

fn default_orphan_ttl() -> String {
    "10m".to_owned()
}

fn default_lease_ttl() -> String {
    "24h".to_owned()
}

fn default_max_create_attempts() -> i32 {
    3
}

fn default_concurrency() -> i32 {
    50
}

berth_api::open_enum! {
    /// How a sandbox's execd is reached.
    ExecdAccess, empty = ServerProxy {
        /// Through the server.
        ServerProxy,
        /// At the endpoint that the server names.
        Direct,
    }
}

berth_api::open_enum! {
    /// How the task is run in its sandbox.
    ExecutionMode, empty = FencedCommand {
        /// As a command that at most one start can win; the image needs `sh`.
        FencedCommand,
        /// As the sandbox's entrypoint; for images without a shell.
        Entrypoint,
    }
}

berth_api::open_enum! {
    /// What becomes of requests.
    RequestMapping, empty = AdmissionOnly {
        /// They are checked against the class and not passed on.
        AdmissionOnly,
        /// They are passed on as resourceRequests.
        SendAsRequests,
        /// A Job that has any is not accepted.
        Reject,
    }
}

berth_api::open_enum! {
    /// Whether the server takes registry credentials per request.
    ImageAuth, empty = PerRequest {
        /// It does.
        PerRequest,
        /// It doesn't: a Job with imagePullSecrets is not accepted.
        Unsupported,
    }
}
