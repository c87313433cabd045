//! The native Job of a Job: a pure function of the Job and of its admission.
//!
//! It is born unsuspended with a Pod that can't be scheduled (a gate), and has none of batch/v1's own deadlines, retries or times to live: those
//! would end or remove the execution behind our back (design of Jobs, §1 and §2a).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use berth_runtime::ObjectKey;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::names::{ANNOTATION_BUILT_OF, ANNOTATION_JOB, CONTAINER, FINALIZER_RESULT, GATE_START, LABEL_JOB_NAME, LABEL_JOB_UID, native_name};
use crate::job::api::kubernetes::{KubernetesExecutionParametersSpec, PodSecurityProfile};
use crate::job::api::names::API_VERSION;
use crate::job::api::resources::{Amounts, Resource, ResourceRequirements};
use crate::job::api::spec::{EnvVar, JobSpec, KeyReference};

/// The native Job to make.
pub fn native_job(key: &ObjectKey, uid: &str, spec: &JobSpec, resources: &ResourceRequirements, parameters: &KubernetesExecutionParametersSpec) -> batch::Job {
    let labels = BTreeMap::from([(LABEL_JOB_UID.to_owned(), uid.to_owned()), (LABEL_JOB_NAME.to_owned(), key.name.to_string())]);
    let pod_annotations = BTreeMap::from([(ANNOTATION_JOB.to_owned(), format!("{}/{}/{uid}", key.namespace, key.name))]);
    let template = core::PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels.clone()),
            annotations: Some(pod_annotations),
            finalizers: Some(vec![FINALIZER_RESULT.to_owned()]),
            ..ObjectMeta::default()
        }),
        spec: Some(pod_spec(spec, resources, parameters)),
    };
    let spec = batch::JobSpec {
        parallelism: Some(1),
        completions: Some(1),
        backoff_limit: Some(0),
        pod_replacement_policy: Some("Failed".to_owned()),
        template,
        ..batch::JobSpec::default()
    };
    let annotations = BTreeMap::from([(ANNOTATION_BUILT_OF.to_owned(), fingerprint(&spec))]);
    batch::Job {
        metadata: ObjectMeta {
            name: Some(native_name(uid)),
            namespace: Some(key.namespace.to_string()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(key, uid)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Of what a native Job was built, as its annotation says.
pub fn built_of(native: &batch::Job) -> Option<String> {
    native.metadata.annotations.as_ref()?.get(ANNOTATION_BUILT_OF).cloned()
}

/// So that garbage collection takes the native Job if the Job goes without us. Nothing relies on it: it is stripped by an orphaning deletion.
fn owner(key: &ObjectKey, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "Job".to_owned(),
        name: key.name.to_string(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Tells builds apart. Another version of Berth may tell the same one differently: an idle native Job is then made anew.
fn fingerprint(spec: &batch::JobSpec) -> String {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(spec).unwrap_or_default().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn pod_spec(spec: &JobSpec, resources: &ResourceRequirements, parameters: &KubernetesExecutionParametersSpec) -> core::PodSpec {
    let restricted = parameters.pod_security_profile == PodSecurityProfile::Restricted;
    let secrets: Vec<_> = spec.task.image_pull_secrets.iter().map(|secret| core::LocalObjectReference { name: secret.name.clone() }).collect();
    core::PodSpec {
        restart_policy: Some("Never".to_owned()),
        scheduling_gates: Some(vec![core::PodSchedulingGate { name: GATE_START.to_owned() }]),
        containers: vec![container(spec, resources, parameters, restricted)],
        image_pull_secrets: Some(secrets).filter(|secrets| !secrets.is_empty()),
        service_account_name: parameters.service_account_name.clone(),
        automount_service_account_token: Some(parameters.automount_service_account_token),
        // The environment is the Job's, not the namespace's Services'.
        enable_service_links: Some(false),
        runtime_class_name: parameters.runtime_class_name.clone(),
        priority_class_name: parameters.priority_class_name.clone(),
        node_selector: Some(parameters.node_selector.clone()).filter(|selector| !selector.is_empty()),
        tolerations: Some(parameters.tolerations.clone()).filter(|tolerations| !tolerations.is_empty()),
        termination_grace_period_seconds: Some(parameters.termination_grace_period_seconds),
        security_context: restricted.then(|| core::PodSecurityContext {
            run_as_non_root: Some(true),
            seccomp_profile: Some(core::SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..core::PodSecurityContext::default()
        }),
        ..core::PodSpec::default()
    }
}

fn container(spec: &JobSpec, resources: &ResourceRequirements, parameters: &KubernetesExecutionParametersSpec, restricted: bool) -> core::Container {
    let argv = |words: &[String]| Some(words.iter().map(|word| literal(word)).collect::<Vec<_>>()).filter(|words| !words.is_empty());
    let env: Vec<_> = spec.task.env.iter().map(variable).collect();
    core::Container {
        name: CONTAINER.to_owned(),
        image: Some(spec.task.image.clone()),
        image_pull_policy: Some(parameters.image_pull.policy.as_str().to_owned()),
        command: argv(&spec.task.command),
        args: argv(&spec.task.args),
        working_dir: spec.task.working_dir.clone(),
        env: Some(env).filter(|env| !env.is_empty()),
        resources: Some(core::ResourceRequirements {
            requests: amounts(resources.requests.as_ref()),
            limits: amounts(resources.limits.as_ref()),
            ..core::ResourceRequirements::default()
        }),
        security_context: restricted.then(|| core::SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(core::Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..core::SecurityContext::default()
        }),
        ..core::Container::default()
    }
}

/// The kubelet expands `$(NAME)` and takes `$$` for `$`; what the Job says is meant as it is (design of Jobs, §0).
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn variable(env: &EnvVar) -> core::EnvVar {
    let from = env.value_from.as_ref();
    core::EnvVar {
        name: env.name.clone(),
        value: env.value.as_deref().map(literal),
        value_from: from.map(|from| core::EnvVarSource {
            secret_key_ref: from.secret_key_ref.as_ref().map(|KeyReference { name, key, optional }| core::SecretKeySelector {
                name: name.clone(),
                key: key.clone(),
                optional: *optional,
            }),
            config_map_key_ref: from.config_map_key_ref.as_ref().map(|KeyReference { name, key, optional }| core::ConfigMapKeySelector {
                name: name.clone(),
                key: key.clone(),
                optional: *optional,
            }),
            ..core::EnvVarSource::default()
        }),
    }
}

fn amounts(amounts: Option<&Amounts>) -> Option<BTreeMap<String, Quantity>> {
    let amounts = amounts?;
    let list = Resource::ALL.into_iter().filter_map(|resource| Some((resource.name().to_owned(), amounts.get(resource)?.clone())));
    Some(list.collect::<BTreeMap<_, _>>()).filter(|amounts| !amounts.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn built(spec: Value, parameters: Value) -> Value {
        let key = ObjectKey::new("ci", "hello");
        let resources = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "512Mi"}});
        to_value(native_job(&key, "u-1", &from_value(spec).unwrap(), &from_value(resources).unwrap(), &from_value(parameters).unwrap())).unwrap()
    }

    #[test]
    fn the_native_job_is_gated_held_and_never_ends_by_itself() {
        let job = built(json!({"task": {"image": "i"}, "activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5}), json!({}));
        assert_eq!(job["metadata"]["name"], "ayj-u-1");
        assert_eq!(job["metadata"]["labels"], json!({LABEL_JOB_UID: "u-1", LABEL_JOB_NAME: "hello"}));
        assert_eq!(job["metadata"]["namespace"], "ci", "an owner of another namespace counts as absent");
        let owner = json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job", "name": "hello", "uid": "u-1", "controller": true});
        assert_eq!(job["metadata"]["ownerReferences"], json!([owner]));
        let mut spec = job["spec"].clone();
        let template = spec.as_object_mut().unwrap().remove("template").unwrap();
        // No deadline and no time to live: those are ours.
        assert_eq!(spec, json!({"parallelism": 1, "completions": 1, "backoffLimit": 0, "podReplacementPolicy": "Failed"}));
        assert_eq!(template["metadata"]["finalizers"], json!([FINALIZER_RESULT]));
        assert_eq!(template["metadata"]["annotations"], json!({ANNOTATION_JOB: "ci/hello/u-1"}));
        assert_eq!(
            template["spec"],
            json!({
                "restartPolicy": "Never", "schedulingGates": [{"name": GATE_START}], "automountServiceAccountToken": false, "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "main", "image": "i", "imagePullPolicy": "Always",
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "512Mi"}}}],
            })
        );
    }

    #[test]
    fn argv_and_environment_arrive_as_they_were_given() {
        let task = json!({
            "image": "i", "command": ["/bin/sh", "-c"], "args": ["echo $HOME $(TARGET) $$ a$"], "workingDir": "/w",
            "env": [
                {"name": "TARGET", "value": "$(HOME)"},
                {"name": "S", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k", "optional": true}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}},
            ],
            "imagePullSecrets": [{"name": "pull"}],
        });
        let pod = built(json!({ "task": task }), json!({}))["spec"]["template"]["spec"].clone();
        let main = &pod["containers"][0];
        assert_eq!(main["command"], json!(["/bin/sh", "-c"]));
        assert_eq!(main["args"], json!(["echo $$HOME $$(TARGET) $$$$ a$$"]));
        assert_eq!(main["workingDir"], "/w");
        assert_eq!(main["env"][0], json!({"name": "TARGET", "value": "$$(HOME)"}));
        assert_eq!(main["env"][1], json!({"name": "S", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k", "optional": true}}}));
        assert_eq!(main["env"][2], json!({"name": "C", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}}));
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "pull"}]));
    }

    #[test]
    fn the_class_s_parameters_are_in_the_pod() {
        let parameters = json!({
            "serviceAccountName": "runner", "automountServiceAccountToken": true, "runtimeClassName": "gvisor", "priorityClassName": "low",
            "nodeSelector": {"pool": "jobs"}, "tolerations": [{"operator": "Exists"}], "podSecurityProfile": "Restricted",
            "terminationGracePeriodSeconds": 5, "imagePull": {"policy": "IfNotPresent", "failureGracePeriod": "1m"},
        });
        let pod = built(json!({"task": {"image": "i"}}), parameters)["spec"]["template"]["spec"].clone();
        for (field, value) in [
            ("serviceAccountName", json!("runner")),
            ("automountServiceAccountToken", json!(true)),
            ("runtimeClassName", json!("gvisor")),
            ("priorityClassName", json!("low")),
            ("nodeSelector", json!({"pool": "jobs"})),
            ("tolerations", json!([{"operator": "Exists"}])),
            ("terminationGracePeriodSeconds", json!(5)),
            ("securityContext", json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})),
        ] {
            assert_eq!(pod[field], value, "{field}");
        }
        assert_eq!(pod["containers"][0]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(pod["containers"][0]["securityContext"], json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}));
    }

    #[test]
    fn builds_are_told_apart() {
        let hash = |spec: Value, parameters: Value| built(spec, parameters)["metadata"]["annotations"][ANNOTATION_BUILT_OF].clone();
        let one = hash(json!({"task": {"image": "i"}}), json!({}));
        assert_eq!(one, hash(json!({"task": {"image": "i"}, "ttlSecondsAfterFinished": 9}), json!({})));
        assert_ne!(one, hash(json!({"task": {"image": "j"}}), json!({})));
        assert_ne!(one, hash(json!({"task": {"image": "i"}}), json!({"runtimeClassName": "x"})));
    }
}
