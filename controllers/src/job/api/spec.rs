//! Job: what is executed once, and what may still be changed (specification, "Spec").

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resources::ResourceRequirements;
use super::status::JobStatus;

/// One execution. Everything but `desiredState` and `ttlSecondsAfterFinished` is immutable.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "Job",
    plural = "jobs",
    singular = "job",
    shortname = "ajob",
    category = "ayatori",
    namespaced,
    status = "JobStatus",
    derive = "PartialEq",
    doc = "Job is one execution of a process with a limited time and a definite end.",
    printcolumn = r#"{"name":"Class","type":"string","jsonPath":".status.resolvedJobClass.name"}"#,
    printcolumn = r#"{"name":"Succeeded","type":"string","jsonPath":".status.conditions[?(@.type==\"Succeeded\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Succeeded\")].reason"}"#,
    printcolumn = r#"{"name":"Exit","type":"integer","jsonPath":".status.result.exitCode"}"#,
    printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTime"}"#,
    printcolumn = r#"{"name":"Completed","type":"date","jsonPath":".status.completionTime"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Backend","type":"string","jsonPath":".status.execution.adapter","priority":1}"#,
    selectable = ".spec.jobClassName",
    selectable = ".spec.desiredState"
)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// JobClass that says where and how it is executed. Absent: the class of the Namespace's annotation
    /// `execution.ayatori.ddupan.top/default-job-class`; without one the Job waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_class_name: Option<String>,
    /// What is executed.
    pub task: TaskSpec,
    /// CPU and memory; what is missing comes from the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Seconds from the start of the execution, not of the Job, after which it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after its end when the Job is deleted; 0 at once, absent never. May be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// `Cancelled` stops the execution and keeps the Job; there is no way back.
    #[serde(default)]
    pub desired_state: DesiredState,
}

/// A process in a container image. `command` and `args` are argv: no shell is put between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// OCI image reference; the class may ask for a digest.
    pub image: String,
    /// Secrets of the namespace, of type kubernetes.io/dockerconfigjson, for a private registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalReference>,
    /// Replaces the image's entrypoint; empty keeps it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments of the command or of the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Absolute path; absent is the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Environment; names are unique.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
}

/// An object of the Job's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalReference {
    /// Its name.
    pub name: String,
}

/// A variable: exactly one of `value` and `valueFrom`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name, printable ASCII without `=`.
    pub name: String,
    /// Value as it is; nothing in it is expanded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where the value is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// A key of a Secret of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// A key of a ConfigMap of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
}

/// One key of an object of the Job's namespace. If object or key is missing the Job waits for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyReference {
    /// Name of the object.
    pub name: String,
    /// Key within it.
    pub key: String,
    /// Without the object or the key the variable is left out, and nothing waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

berth_api::open_enum! {
    /// What the user wants of an execution.
    DesiredState, empty = Running {
        /// It may run.
        Running,
        /// It must stop, or never start.
        Cancelled,
    }
}
