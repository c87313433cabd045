//! Runs with a workspace: every way it can be wrong has its own message, never ends the Run, and is over when repaired.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::poll::{PATIENCE, stays, until};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::serve_world::{World, condition, run};

async fn reason(world: &World<'_>, name: &str) -> Result<String> {
    let run = world.runs.get(name).await?;
    Ok(condition(&run, "Scheduled").map(|(_, reason, _)| reason).unwrap_or_default())
}

#[tokio::test]
async fn a_workspace_that_is_missing_pending_or_of_another_runtime_holds_its_runs_until_repaired() -> Result<()> {
    let world = World::new("workspace-repair").await?;
    let _berth = world.berth().await?;
    world.pod("bash-1", "bash", &[("runs", "9")]).await?;

    world.run(run("missing").workspace("w1")).await?;
    world.waits("missing", &["0/1 fit: 1 workspace w1 not found"]).await?;
    ensure!(reason(&world, "missing").await? == "WorkspaceNotReady");
    world.workspace("w1", "bash").await?;
    world.placed_on("missing", "bash-1").await?;

    // Pending: no Pod of its runtime is available yet.
    world.workspace("w2", "python").await?;
    world.run(run("pending").runtime("python").workspace("w2")).await?;
    world.waits("pending", &["no Pod has label runtime=python", "workspace w2 not bound yet"]).await?;
    world.pod("python-1", "python", &[]).await?;
    world.placed_on("pending", "python-1").await?;

    // Of another runtime: immutable, so it is repaired by another workspace of that name.
    world.run(run("incompatible").workspace("w2")).await?;
    world.waits("incompatible", &["workspace w2 of another runtime"]).await?;
    world.workspaces.delete("w2", &DeleteParams::default()).await?;
    world.waits("incompatible", &["workspace w2 not found"]).await?;
    world.workspace("w2", "bash").await?;
    world.placed_on("incompatible", "bash-1").await
}

#[tokio::test]
async fn a_lost_workspace_and_a_replaced_pod_hold_their_runs() -> Result<()> {
    let world = World::new("workspace-lost").await?;
    let berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    world.workspace("w", "bash").await?;
    let bound = world.workspace_when("w", "Bound").await?;
    world.run(run("before").workspace("w")).await?;
    world.placed_on("before", "p").await?;

    world.delete_pod("p").await?;
    let lost = world.workspace_when("w", "Lost").await?;
    ensure!(lost.status.as_ref().and_then(|s| s.bound_pod_uid.clone()) == bound.status.and_then(|s| s.bound_pod_uid), "it still says what it lost");
    world.run(run("after").workspace("w")).await?;
    world.waits("after", &["workspace w lost"]).await?;

    // A namesake of the Pod is another filesystem: nothing changes, for ever.
    world.pod("p", "bash", &[("runs", "9")]).await?;
    world.run(run("free")).await?;
    world.placed_on("free", "p").await?;
    stays("the lost workspace", Duration::from_secs(1), || async {
        Ok(world.standing(&berth, "after").await?.as_deref() == Some("waiting") && world.workspaces.get("w").await?.phase().as_str() == "Lost")
    })
    .await?;
    world.workspaces.delete("w", &DeleteParams::default()).await?;
    until("its finalizer to be taken off", PATIENCE, || async { Ok(world.workspaces.get_opt("w").await?.is_none().then_some(())) }).await?;
    world.workspace("w", "bash").await?;
    world.placed_on("after", "p").await
}

/// The binder would say Lost; the scheduler must not need it to.
#[tokio::test]
async fn the_pods_uid_is_compared_whatever_the_phase_says() -> Result<()> {
    let world = World::new("workspace-uid").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[]).await?;
    world.pod("q", "bash", &[]).await?;
    world.workspace("w", "bash").await?;
    let bound = world.workspace_when("w", "Bound").await?.status.unwrap_or_default();
    let say = |status: serde_json::Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        let workspaces = world.workspaces.clone();
        async move { workspaces.patch_status("w", &PatchParams::default(), &patch).await }
    };

    // Bound without a UID can't be told from a namesake (the neighbour writes no UID).
    say(json!({"boundPodUID": null})).await?;
    world.run(run("unfenced").workspace("w")).await?;
    world.waits("unfenced", &["2 workspace w bound without Pod UID"]).await?;
    say(json!({"boundPodUID": bound.bound_pod_uid})).await?;
    world.placed_on("unfenced", "p").await?;

    // The bound Pod is away: its Runs wait for it by name and go nowhere else.
    world.silence("p");
    world.pod_status("p", false, Timestamp::now()).await?;
    world.run(run("faithful").workspace("w")).await?;
    world.waits("faithful", &["0/2 fit: 1 not ready, 1 not bound to workspace w"]).await?;
    until("condition Available=False", PATIENCE, || async {
        let status = world.workspaces.get("w").await?.status.unwrap_or_default();
        Ok(status.conditions.iter().any(|c| c.type_ == "Available" && c.status == "False").then_some(()))
    })
    .await?;
    ensure!(world.workspaces.get("w").await?.phase().as_str() == "Bound", "it stays Bound while the Pod object exists");
    world.pod_status("p", true, Timestamp::now()).await?;
    world.placed_on("faithful", "p").await
}

#[tokio::test]
async fn where_no_heartbeat_is_required_a_workspace_is_bound_to_a_pod_without_an_agent_and_its_run_placed() -> Result<()> {
    let world = World::new("workspace-silent").await?;
    let _berth = world.berth_with(json!({"profiles": [{"pluginConfig": [{"name": "RuntimeReady", "args": {"requireHeartbeat": false}}]}]})).await?;
    world.create_pod("p", "bash", &[]).await?;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    world.pods.patch_status("p", &PatchParams::default(), &Patch::Strategic(ready)).await?;
    world.workspace("w", "bash").await?;
    let status = world.workspace_when("w", "Bound").await?.status.unwrap_or_default();
    ensure!(status.conditions.iter().any(|c| c.type_ == "Available" && c.status == "True"), "{status:?}");
    world.run(run("at-home").workspace("w")).await?;
    world.placed_on("at-home", "p").await
}
