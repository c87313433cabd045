//! KubernetesExecutionParameters: how the Kubernetes adapter makes the Pods of a class (design of Jobs, §3).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of the Kubernetes adapter. Immutable: other parameters are another object. Durations are Go's.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "KubernetesExecutionParameters",
    plural = "kubernetesexecutionparameters",
    singular = "kubernetesexecutionparameters",
    shortname = "kep",
    category = "ayatori",
    derive = "PartialEq",
    doc = "KubernetesExecutionParameters say how Pods of a JobClass are made.",
    printcolumn = r#"{"name":"Service Account","type":"string","jsonPath":".spec.serviceAccountName"}"#,
    printcolumn = r#"{"name":"Security","type":"string","jsonPath":".spec.podSecurityProfile"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesExecutionParametersSpec {
    /// ServiceAccount, in the Job's namespace; absent is `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Whether its token is mounted.
    #[serde(default)]
    pub automount_service_account_token: bool,
    /// RuntimeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// `Restricted` sets what the Pod Security Standard of that name asks for; an image that runs as root then can't start.
    #[serde(default)]
    pub pod_security_profile: PodSecurityProfile,
    /// Seconds between SIGTERM and SIGKILL when an execution is stopped.
    #[serde(default = "default_termination_grace_period_seconds")]
    pub termination_grace_period_seconds: i64,
    /// Pulling of the image.
    #[serde(default)]
    pub image_pull: ImagePull,
    /// How long a refusal of the Pod or of its container may last before the Job fails.
    #[serde(default = "default_create_error_grace_period")]
    pub create_error_grace_period: String,
    /// What proves that a process on a lost node has ended.
    #[serde(default)]
    pub node_lost_policy: NodeLostPolicy,
    /// What is done with containers that others put into the Pod.
    #[serde(default)]
    pub injected_containers: InjectedContainers,
}

/// Pulling of the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePull {
    /// `Always` asks the registry each time, so that an image that is on the node by chance hides no missing Secret.
    #[serde(default)]
    pub policy: PullPolicy,
    /// How long pulls may fail before the Job fails.
    #[serde(default = "default_failure_grace_period")]
    pub failure_grace_period: String,
}

fn default_termination_grace_period_seconds() -> i64 {
    30
}

fn default_create_error_grace_period() -> String {
    "10m".to_owned()
}

fn default_failure_grace_period() -> String {
    "5m".to_owned()
}

impl Default for ImagePull {
    fn default() -> Self {
        Self { policy: PullPolicy::default(), failure_grace_period: default_failure_grace_period() }
    }
}

impl Default for KubernetesExecutionParametersSpec {
    /// What a class without parameters means.
    fn default() -> Self {
        Self {
            service_account_name: None,
            automount_service_account_token: false,
            runtime_class_name: None,
            priority_class_name: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            pod_security_profile: PodSecurityProfile::default(),
            termination_grace_period_seconds: default_termination_grace_period_seconds(),
            image_pull: ImagePull::default(),
            create_error_grace_period: default_create_error_grace_period(),
            node_lost_policy: NodeLostPolicy::default(),
            injected_containers: InjectedContainers::default(),
        }
    }
}

berth_api::open_enum! {
    /// What the Pod's security context asks for.
    PodSecurityProfile, empty = Inherit {
        /// Nothing: what cluster and image say.
        Inherit,
        /// The Pod Security Standard "restricted".
        Restricted,
    }
}

berth_api::open_enum! {
    /// `imagePullPolicy` of the container.
    PullPolicy, empty = Always {
        /// The registry is asked each time.
        Always,
        /// Only if the node has no image of that name.
        IfNotPresent,
        /// Never; the node must have it.
        Never,
    }
}

berth_api::open_enum! {
    /// What proves that a process on a lost node has ended.
    NodeLostPolicy, empty = WaitForConfirmation {
        /// The node's own word, the taint `node.kubernetes.io/out-of-service`, or an administrator's confirmation.
        WaitForConfirmation,
        /// Also that the Node object was deleted.
        TrustNodeDeletion,
    }
}

berth_api::open_enum! {
    /// What is done with containers that others put into the Pod.
    InjectedContainers, empty = StopAfterMain {
        /// The result is that of the Job's own container; when it has ended the rest is stopped.
        StopAfterMain,
        /// The Job fails before it starts.
        Reject,
    }
}
