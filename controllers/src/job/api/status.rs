//! What the controller says about a Job (specification, "Status"). Only the controller writes it; CEL keeps its invariants.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resources::ResourceRequirements;

/// Observed state of a Job. There is no phase: it follows from conditions and times. Times have a resolution of one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// `metadata.generation` that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one per type: Accepted, Scheduled, Succeeded, and StopRequested, BackendObserved, Progressing when there is something to tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The class that the Job was accepted under. Set once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_job_class: Option<ResolvedJobClass>,
    /// CPU and memory that the execution really has. Set once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_resources: Option<ResourceRequirements>,
    /// The execution. References are added, never replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// When the process started. Set once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the Job came to its end. Set once, with Succeeded True or False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// How the process ended. Frozen with completionTime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// A JobClass as it was resolved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedJobClass {
    /// Name of the class.
    pub name: String,
    /// UID of the class.
    pub uid: String,
    /// `spec.controllerName` of the class.
    pub controller_name: String,
    /// The class's parameters; absent if it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ResolvedParameters>,
}

/// Parameters as they were resolved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedParameters {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// What is needed to find the execution again after a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Execution {
    /// Adapter that made it: `kubernetes` or `opensandbox`.
    pub adapter: String,
    /// Opaque references, one per type. For diagnosis; no logic of a caller may build on them.
    pub references: Vec<Reference>,
}

/// One reference; it holds no address and no credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reference {
    /// What it refers to.
    #[serde(rename = "type")]
    pub type_: String,
    /// Its identity there.
    pub id: String,
}

/// How the process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// Exit code of the main process, if the backend could tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// One PascalCase word, as `Completed` or `OOMKilled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Execution {
    /// The id of the reference of that type.
    pub fn id(&self, type_: &str) -> Option<&str> {
        self.references.iter().find(|reference| reference.type_ == type_).map(|reference| reference.id.as_str())
    }
}
