//! What holds a Job of an OpenSandbox class back before there is a sandbox: every reason of Accepted=False, and the ways on from there.

use anyhow::Result;
use berth_controllers::job::api::{JobClass, OpenSandboxExecutionParameters};
use berth_tests::job_conformance::merge;
use berth_tests::poll::PATIENCE;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::world::{NAMESPACE, World, shared};
use crate::job_world::{History, condition};
use crate::world::server;

/// A Job's name, what its class has, what it has itself, and the reason of Accepted=False.
type Row = (&'static str, Value, Value, &'static str);

fn of(kind: &str, name: &str, key: &str) -> Value {
    json!({"task": {"env": [{"name": "V", "valueFrom": {kind: {"name": name, "key": key}}}]}})
}

fn rows() -> Vec<Row> {
    vec![
        ("namespace", json!({"namespaceSelector": {"matchLabels": {"no": "such"}}}), json!({}), "NamespaceNotAllowed"),
        ("selector", json!({"namespaceSelector": {"matchLabels": {"no key": "x"}}}), json!({}), "InvalidJobClass"),
        ("kind", json!({"parametersRef": {"kind": "KubernetesExecutionParameters"}}), json!({}), "InvalidParameters"),
        ("absent", json!({"parametersRef": {"name": "no-such-parameters"}}), json!({}), "ParametersNotFound"),
        ("resources", json!({"resources": {"max": {"memory": "32Mi"}}}), json!({}), "ResourcesOutOfRange"),
        ("deadline", json!({"activeDeadlineSeconds": {"required": true}}), json!({}), "DeadlineRequired"),
        ("long", json!({"activeDeadlineSeconds": {"max": 9}}), json!({"activeDeadlineSeconds": 10}), "DeadlineTooLong"),
        ("ttl", json!({"ttlSecondsAfterFinished": {"required": true}}), json!({}), "TTLRequired"),
        ("kept", json!({"ttlSecondsAfterFinished": {"max": 9}}), json!({"ttlSecondsAfterFinished": 10}), "TTLTooLong"),
        ("digest", json!({"imagePolicy": {"requireDigest": true}}), json!({}), "ImageDigestRequired"),
        ("closed", json!({"secretDelivery": "NodeResolved"}), of("secretKeyRef", "held", "k"), "SecretDeliveryNotAllowed"),
        ("empty", json!({}), json!({"task": {"command": []}}), "Unsupported"),
        ("secret", json!({}), of("secretKeyRef", "held-absent", "k"), "SecretNotFound"),
        ("secret-key", json!({}), of("secretKeyRef", "held", "absent"), "SecretKeyNotFound"),
        ("map", json!({}), of("configMapKeyRef", "held-absent", "k"), "ConfigMapNotFound"),
        ("map-key", json!({}), of("configMapKeyRef", "held", "absent"), "ConfigMapKeyNotFound"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_holds_a_job_back_is_told_and_it_waits_goes_on_or_goes() -> Result<()> {
    super::world::berth().await?;
    // Nobody listens there: what is accepted waits for its server, and no sandbox is ever made.
    let world = World::of(shared().await?.plane, server().await?, "held", json!({}), json!({"endpoint": "http://127.0.0.1:9/v1"})).await?;
    world.class_is("BackendReady", "False", "Unreachable").await?;
    let history = History::of(world.jobs.clone());
    world.secret("held", json!({"k": "canary-held"})).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "held"}, "data": {"k": "v"}}))?).await?;
    let classes: Api<JobClass> = Api::all(world.client.clone());

    let rows = rows();
    for (name, class, job, _) in &rows {
        let class_name = format!("held-{name}");
        world.add_class(&class_name, class.clone()).await?;
        let mut spec = json!({"jobClassName": class_name});
        merge(&mut spec, job.clone());
        world.job(&format!("held-{name}"), &["true"], spec).await?;
    }
    world.job("held-no-class", &["true"], json!({"jobClassName": "held-nowhere"})).await?;
    world.job("held-default", &["true"], json!({"jobClassName": null})).await?;
    // One that is accepted, for which its class is kept; the class then takes no other.
    world.add_class("held-leaving", json!({})).await?;
    world.job("held-stays", &["true"], json!({"jobClassName": "held-leaving"})).await?;
    let unavailable = ("False".to_owned(), "BackendUnavailable".to_owned());
    world.until("held-stays", "scheduling", PATIENCE, |job| condition(job, "Scheduled") == unavailable).await?;
    classes.delete("held-leaving", &DeleteParams::default()).await?;
    world.job("held-late", &["true"], json!({"jobClassName": "held-leaving"})).await?;

    let names = rows.iter().map(|(name, _, _, reason)| (*name, *reason));
    for (name, reason) in names.clone().chain([("no-class", "JobClassNotFound"), ("default", "NoDefaultClass"), ("late", "JobClassNotReady")]) {
        let wanted = ("False".to_owned(), reason.to_owned());
        world.until(&format!("held-{name}"), reason, PATIENCE, |job| condition(job, "Accepted") == wanted).await?;
    }
    // On: what was missing comes, or the class changes.
    world.secret("held-absent", json!({"k": "canary-held"})).await?;
    let wider = json!({"spec": {"resources": {"max": {"memory": "64Mi"}}}});
    classes.patch("held-resources", &PatchParams::default(), &Patch::Merge(wider)).await?;
    for name in ["held-secret", "held-resources"] {
        world.until(name, "scheduling", PATIENCE, |job| condition(job, "Scheduled") == unavailable).await?;
    }
    // Away: cancelled, or deleted. And the parameters go by force while a Job rests on them.
    for name in ["held-map", "held-stays", "held-late"] {
        world.cancel(name).await?;
        world.succeeded(name, "False", "Cancelled").await?;
    }
    let parameters: Api<OpenSandboxExecutionParameters> = Api::all(world.client.clone());
    parameters.delete("held", &DeleteParams::default()).await?;
    parameters.patch("held", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
    let gone = ("False".to_owned(), "ParametersGone".to_owned());
    world.until("held-secret", "told that its parameters are gone", PATIENCE, |job| condition(job, "Scheduled") == gone).await?;
    world.cancel("held-secret").await?;
    world.succeeded("held-secret", "False", "Cancelled").await?;
    let all = names.map(|(name, _)| name).chain(["no-class", "default", "stays", "late"]);
    for name in all.clone() {
        world.delete(&format!("held-{name}")).await?;
    }
    for name in all {
        world.gone(&format!("held-{name}")).await?;
    }
    super::world::shows(history, &[&world], "held::what_holds_a_job_back_is_told_and_it_waits_goes_on_or_goes")
}
