//! JobClass: a grade of service that administrators offer and Jobs name (specification, "jobClassName"; design of Jobs, §3).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resources::{Amounts, ResourceRequirements};

/// Who executes Jobs of this class, with what parameters, and within which limits. A change concerns Jobs that are not accepted yet.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "JobClass",
    plural = "jobclasses",
    singular = "jobclass",
    shortname = "jc",
    category = "ayatori",
    status = "JobClassStatus",
    derive = "PartialEq",
    doc = "JobClass is a grade of service for Jobs: an execution backend and limits.",
    printcolumn = r#"{"name":"Controller","type":"string","jsonPath":".spec.controllerName"}"#,
    printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].reason"}"#,
    printcolumn = r#"{"name":"Backend","type":"string","jsonPath":".status.conditions[?(@.type==\"BackendReady\")].reason"}"#,
    printcolumn = r#"{"name":"Description","type":"string","jsonPath":".spec.description","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct JobClassSpec {
    /// Controller that carries Jobs of this class, as `execution.ayatori.ddupan.top/kubernetes`. Immutable. Classes of
    /// other controllers are left alone.
    pub controller_name: String,
    /// Parameters of that controller, cluster-scoped; absent is its defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ParametersReference>,
    /// For people who choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Namespaces whose Jobs may use the class; absent or empty is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Defaults and limits of CPU and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ClassResources>,
    /// Limits of `activeDeadlineSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<DeadlineLimit>,
    /// Limits of `ttlSecondsAfterFinished`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<TtlLimit>,
    /// Who may read Secrets that a Job names.
    #[serde(default)]
    pub secret_delivery: SecretDelivery,
    /// What images may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_policy: Option<ImagePolicy>,
    /// How long a Job must have been ResultUnknown before its loss can be confirmed; a Go duration.
    #[serde(default = "default_min_loss_confirmation_age")]
    pub min_loss_confirmation_age: String,
}

/// Default of `minLossConfirmationAge`.
pub const MIN_LOSS_CONFIRMATION_AGE: &str = "15m";

fn default_min_loss_confirmation_age() -> String {
    MIN_LOSS_CONFIRMATION_AGE.to_owned()
}

/// A cluster-scoped object with parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParametersReference {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// Defaults and limits of CPU and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassResources {
    /// For what a Job leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<ResourceRequirements>,
    /// No request is below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Amounts>,
    /// No limit is above; also the limit of a Job that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Amounts>,
    /// Greatest limit in multiples of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_limit_request_ratio: Option<Ratios>,
}

/// A factor per resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratios {
    /// Of CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<i32>,
    /// Of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<i32>,
}

/// Limits of a deadline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadlineLimit {
    /// Greatest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// A Job without one is not accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
}

/// Limits of a time to live.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TtlLimit {
    /// Greatest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i32>,
    /// What a Job without one is given when it is created, by the admission policy of the chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommended: Option<i32>,
    /// A Job without one is not accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
}

/// What images may be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePolicy {
    /// The image must be named with its digest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_digest: bool,
}

/// What the controller says about a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobClassStatus {
    /// `metadata.generation` that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one per type: Accepted and BackendReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

berth_api::open_enum! {
    /// Who may read Secrets that a Job names.
    SecretDelivery, empty = NodeResolved {
        /// The node alone: references are passed on, and no value is read by the controller.
        NodeResolved,
        /// The controller reads the values and passes them to the backend.
        ControllerResolved,
    }
}
