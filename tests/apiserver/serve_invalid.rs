//! Objects that were stored under a looser CRD than ours: each ends alone, the others go on.

use anyhow::{Result, ensure};
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::crds;
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::serve_world::{World, condition, message, phase, run};

/// Ours without any rule: what an older or another's CRD may have let in.
fn loose() -> Result<Vec<CustomResourceDefinition>> {
    let mut crds = crds::read()?;
    for crd in &mut crds {
        for version in &mut crd.spec.versions {
            let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            let schema = version.schema.get_or_insert_default();
            schema.open_api_v3_schema = Some(serde_json::from_value::<JSONSchemaProps>(open)?);
            version.selectable_fields = None;
        }
    }
    Ok(crds)
}

#[tokio::test]
async fn undecodable_objects_end_alone_and_valid_ones_beside_them_go_on() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    crds::install_these(&plane.admin()?, &loose()?).await?;
    let world = World::on(&plane, "invalid").await?;
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kruntimes.io", "v1alpha1", "Run"), "runs");
    let raw: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &world.namespace, &kind);
    let task = json!({"task": {}});
    let term = |key: &str| json!({"runAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key, "labelSelector": {"matchLabels": {"a": "b"}}}]}});
    let operator = json!({"runAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kruntimes.io/runtime-pod", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}}]}});
    // Name, spec, reason it ends with (none: left alone), a part of its message.
    let rows: Vec<(&str, Value, Option<&str>, &str)> = vec![
        (
            "huge-ttl",
            json!({"runtime": "bash", "mode": task, "ttlSecondsAfterFinished": 99_999_999_999i64}),
            Some("InvalidSpec"),
            "spec.ttlSecondsAfterFinished",
        ),
        ("runtime-empty", json!({"runtime": "", "mode": task}), Some("InvalidSpec"), "spec.runtime"),
        ("topology", json!({"runtime": "bash", "mode": task, "affinity": term("zone")}), Some("InvalidSpec"), "topologyKey"),
        ("operator", json!({"runtime": "bash", "mode": task, "affinity": operator}), Some("InvalidSpec"), "Near"),
        ("workspace-kind", json!({"runtime": "bash", "mode": task, "workspace": {"name": "w", "kind": "Volume"}}), Some("InvalidSpec"), "spec.workspace.kind"),
        ("half", json!({"runtime": "bash", "mode": task, "resources": {"requests": {"runs": "0.5"}}}), Some("InvalidResources"), "\"runs\""),
        ("text-quantity", json!({"runtime": "bash", "mode": task, "resources": {"requests": {"gpu": "1e1.5"}}}), Some("InvalidResources"), "\"gpu\""),
        ("no-spec", Value::Null, None, ""),
        // Their types are so wrong that our CRD lets nobody write to them, a status neither.
        ("runtime-number", json!({"runtime": 5, "mode": task}), None, "spec.runtime"),
        ("affinity-text", json!({"runtime": "bash", "mode": task, "affinity": "near"}), None, "spec.affinity"),
        ("good", json!({"runtime": "bash", "mode": task}), None, ""),
    ];
    for (name, spec, ..) in &rows {
        let object = json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": name}, "spec": spec});
        raw.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    // Active with a spec that can't be read: it holds its room all the same, and is not ours to end.
    let active = json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "active"}, "spec": {"runtime": "bash", "mode": 1}});
    raw.create(&PostParams::default(), &serde_json::from_value(active)?).await?;
    let running = json!({"status": {"phase": "Running", "assignedPod": "p", "assignedPodUID": "whatever"}});
    raw.patch_status("active", &PatchParams::default(), &Patch::Merge(running)).await?;
    let workspace = json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "PersistentWorkspace", "metadata": {"name": "w"}, "spec": {"runtime": ["bash"]}});
    let workspaces = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kruntimes.io", "v1alpha1", "PersistentWorkspace"), "persistentworkspaces");
    let odd: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &world.namespace, &workspaces);
    odd.create(&PostParams::default(), &serde_json::from_value(workspace)?).await?;

    crds::install(&plane.admin()?).await?;
    world.pod("p", "bash", &[("runs", "2")]).await?;
    let mut berth = world.berth().await?;
    world.placed_on("good", "p").await?;
    for (name, _, reason, says) in rows.iter().filter(|(_, _, reason, _)| reason.is_some()) {
        let ended = until(&format!("{name} to end"), PATIENCE, || async {
            let object = raw.get(name).await?;
            Ok((object.data["status"]["phase"] == "Failed").then_some(object))
        })
        .await?;
        let status = &ended.data["status"];
        let text = status["message"].as_str().unwrap_or_default();
        ensure!(text.contains(says) && text.len() < 1_024, "{name}: {text}");
        let completed = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Completed");
        ensure!(completed.is_some_and(|c| c["reason"] == reason.unwrap_or_default() && c["message"] == text), "{name}: {status}");
        ensure!(status["completionTime"].is_string() && world.status_writes(name)? == 1, "{name}: {status}");
    }
    for name in ["no-spec", "active"] {
        let object = raw.get(name).await?;
        ensure!(world.status_writes(name)? == 0, "{} is left alone: {}", object.name_any(), object.data["status"]);
    }
    for name in ["runtime-number", "affinity-text"] {
        let event = world.event(name, "InvalidSpec").await?;
        ensure!(event.0 == "Warning" && event.1.contains("the API server does not store it"), "{event:?}");
        let refusals = plane.audit().count(|r| r.name == name && r.user == world.account.user && r.is_write())?;
        ensure!(refusals == 1, "{name}: {refusals} writes, all refused");
    }
    // One of two places is held by the Run that can't be read.
    world.run(run("second")).await?;
    world.waits("second", &["0/1 fit: 1 insufficient runs"]).await?;
    // A workspace that can't be read is as good as missing, and others are not.
    world.run(run("odd-workspace").workspace("w")).await?;
    world.waits("odd-workspace", &["workspace w not found"]).await?;
    world.workspace("fine", "bash").await?;
    world.workspace_when("fine", "Bound").await?;
    let good = world.runs.get("good").await?;
    ensure!(phase(&good) == "Scheduled" && message(&good).is_empty() && condition(&good, "Scheduled").is_some());
    berth.process().must_run()
}
