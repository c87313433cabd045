//! The API of execution.ayatori.ddupan.top/v1alpha1: Job, JobClass and the parameters of the two adapters.
//!
//! As in [`berth_api`], the Rust types give the shape and one table of [`rules`] gives the rest: schema, CEL, and the same check offline.
//! The invariants of the state machine are rules of `status`, so that the API server keeps them against whoever writes.

mod cel;
mod cel_class;
mod cel_status;
pub mod class;
pub mod kubernetes;
pub mod names;
pub mod opensandbox;
pub mod resources;
pub mod rules;
pub mod spec;
pub mod status;

use std::sync::LazyLock;

use berth_api::rules::{CrdError, Definition};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use class::JobClass;
pub use kubernetes::KubernetesExecutionParameters;
pub use opensandbox::OpenSandboxExecutionParameters;
pub use spec::Job;

/// Job: its CRD, and the same rules for here.
pub static JOB: LazyLock<Definition> = LazyLock::new(|| Definition::new(Job::crd(), rules::JOB));
/// JobClass.
pub static JOB_CLASS: LazyLock<Definition> = LazyLock::new(|| Definition::new(JobClass::crd(), rules::JOB_CLASS));
/// KubernetesExecutionParameters.
pub static KUBERNETES: LazyLock<Definition> = LazyLock::new(|| Definition::new(KubernetesExecutionParameters::crd(), rules::KUBERNETES));
/// OpenSandboxExecutionParameters.
pub static OPENSANDBOX: LazyLock<Definition> = LazyLock::new(|| Definition::new(OpenSandboxExecutionParameters::crd(), rules::OPENSANDBOX));

/// The CRDs of this group.
///
/// # Errors
/// None on a tested build: the tables of rules fit the types.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, CrdError> {
    [&JOB, &JOB_CLASS, &KUBERNETES, &OPENSANDBOX].into_iter().map(|definition| definition.crd()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_definitions_is_lost_offline() {
        for (definition, table) in [(&JOB, rules::JOB), (&JOB_CLASS, rules::JOB_CLASS), (&KUBERNETES, rules::KUBERNETES), (&OPENSANDBOX, rules::OPENSANDBOX)] {
            assert_eq!(definition.lost_offline(table), Vec::<String>::new());
        }
    }

    /// What the schema fills in and what the Rust types fill in where there was no schema are the same.
    #[test]
    fn defaults_of_types_and_of_rules_agree() {
        use serde_json::{Value, from_value, json, to_value};
        let endpoint = json!({"endpoint": "https://x", "apiKeySecretRef": {"namespace": "a", "name": "b", "key": "c"}});
        let whole = |spec: &Value| json!({ "metadata": {}, "spec": spec });
        let of_rules = |definition: &Definition, spec: &Value| definition.stored(&whole(spec))["spec"].clone();
        let of_type = |spec: &Value| to_value(from_value::<kubernetes::KubernetesExecutionParametersSpec>(spec.clone()).ok()).ok();
        assert_eq!(of_type(&json!({})), Some(of_rules(&KUBERNETES, &json!({}))));
        assert_eq!(of_type(&json!({})), to_value(kubernetes::KubernetesExecutionParametersSpec::default()).ok());
        let of_type = to_value(from_value::<opensandbox::OpenSandboxExecutionParametersSpec>(endpoint.clone()).ok()).ok();
        assert_eq!(of_type, Some(of_rules(&OPENSANDBOX, &endpoint)));
        let class = json!({"controllerName": "a/b"});
        let of_type = to_value(from_value::<class::JobClassSpec>(class.clone()).ok()).ok();
        assert_eq!(of_type, Some(of_rules(&JOB_CLASS, &class)));
        let job = json!({"task": {"image": "i"}});
        let of_type = to_value(from_value::<spec::JobSpec>(job.clone()).ok()).ok();
        assert_eq!(of_type, Some(of_rules(&JOB, &job)));
    }
}
