//! What follows binding, on a real API server: finalizers of older objects, use, time to live, deletion, namesakes.

use std::time::Duration;

use anyhow::Result;
use berth_tests::poll::{PATIENCE, stays, until};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::binder::{A_WHILE, BINDING, World};

/// A Run on Pod p that names workspace w.
async fn running(world: &World, name: &str) -> Result<()> {
    let run = json!({"metadata": {"name": name}, "spec": {"runtime": "bash", "mode": {"task": {}}, "workspace": {"name": "w"}}});
    world.runs().create(&PostParams::default(), &serde_json::from_value(run)?).await?;
    say(world, name, json!({"phase": "Running", "assignedPod": "p", "startTime": now()})).await
}

async fn say(world: &World, run: &str, status: Value) -> Result<()> {
    world.runs().patch_status(run, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    Ok(())
}

async fn ends(world: &World, run: &str) -> Result<()> {
    say(world, run, json!({"phase": "Succeeded", "completionTime": now()})).await
}

/// As on the wire: whole seconds.
fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

/// What the agent says when it has removed the directory: the whole list, on the version that it read.
async fn agent_cleaned(world: &World) -> Result<()> {
    let workspace = world.workspaces().get("w").await?;
    let mut conditions = json!(workspace.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default());
    if let Some(list) = conditions.as_array_mut() {
        list.retain(|condition| condition["type"] != "Cleaned");
        list.push(json!({"type": "Cleaned", "status": "True", "reason": "Removed", "message": "", "lastTransitionTime": now()}));
    }
    let patch = json!({"metadata": {"uid": workspace.uid(), "resourceVersion": workspace.resource_version()}, "status": {"conditions": conditions}});
    world.workspaces().patch_status("w", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn older_workspaces_without_the_finalizer_get_it() -> Result<()> {
    let world = World::new("binder-older").await?;
    let uid = world.available_pod("p").await?;
    for name in ["w", "pending"] {
        world.workspace(name).await?;
    }
    world.patch("w", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await?;
    let bound = json!({"status": {"phase": "Bound", "runtime": "bash", "boundPod": "p", "boundPodUID": uid, "path": "/workspace/persistent/w"}});
    world.workspaces().patch_status("w", &PatchParams::default(), &Patch::Merge(bound)).await?;
    let _binder = world.binder()?;
    world.becomes("w", "Bound p PodReady").await?;
    world.becomes("pending", "Bound p PodReady").await?;
    assert_eq!(world.workspaces().get("w").await?.finalizers(), ["example.com/hold", "kruntimes.io/workspace-cleanup"]);
    assert_eq!((world.writes("w"), world.writes("pending")), (BINDING.map(str::to_owned).to_vec(), BINDING.map(str::to_owned).to_vec()));
    Ok(())
}

#[tokio::test]
async fn a_workspace_deleted_while_used_stays_until_its_run_ended_and_its_directory_is_removed() -> Result<()> {
    let world = World::new("binder-used").await?;
    let _binder = world.binder()?;
    let pod = world.available_pod("p").await?;
    let uid = world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    running(&world, "r").await?;
    until("lastUsedTime", PATIENCE, async || Ok(world.status("w").await?.last_used_time)).await?;

    world.workspaces().delete("w", &DeleteParams::default()).await?;
    world.becomes("w", "Bound p Deleting InUse").await?;
    world.remains("w", "Bound p Deleting InUse").await?;
    ends(&world, "r").await?;
    world.becomes("w", "Bound p Deleting WaitingForAgent").await?;
    world.remains("w", "Bound p Deleting WaitingForAgent").await?;
    agent_cleaned(&world).await?;
    world.becomes("w", "gone").await?;

    // Under the same name comes another workspace, which is bound anew.
    world.beat("p").await?;
    let again = world.workspace("w").await?;
    assert_ne!(uid, again);
    world.becomes("w", "Bound p PodReady").await?;
    let status = world.status("w").await?;
    assert_eq!((status.bound_pod_uid, status.last_used_time), (Some(pod), None));
    Ok(())
}

#[tokio::test]
async fn what_nobody_can_clean_is_let_go_and_says_so() -> Result<()> {
    let world = World::new("binder-agentless").await?;
    let _binder = world.binder()?;
    world.pod_with("p", json!({})).await?;
    world.beat("p").await?;
    world.workspace("w").await?;
    world.workspace("lost").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.becomes("lost", "Bound p PodReady").await?;
    world.workspaces().delete("w", &DeleteParams::default()).await?;
    world.becomes("w", "gone").await?;
    world.event("w", "Warning", "AgentCannotClean").await?;
    // Before that it may have been told that it waits, if it was seen before the Pod was.
    let writes = world.writes("w");
    let told = writes.iter().position(|write| *write == "patch").unwrap_or_default();
    assert!(told <= 1 && writes[told..] == ["patch", "patch status", "patch status", "patch"], "{writes:?}");

    world.delete_pod("p").await?;
    world.becomes("lost", "Lost p PodDeleted").await?;
    world.workspaces().delete("lost", &DeleteParams::default()).await?;
    world.becomes("lost", "gone").await?;
    // One that waits holds nothing and is held by nothing.
    world.workspace("waits").await?;
    world.becomes("waits", "Pending - NotBound").await?;
    world.workspaces().delete("waits", &DeleteParams::default()).await?;
    world.becomes("waits", "gone").await
}

#[tokio::test]
async fn a_pod_that_goes_lets_its_deleted_workspaces_go() -> Result<()> {
    let world = World::new("binder-pod-gone").await?;
    let _binder = world.binder()?;
    world.available_pod("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    running(&world, "r").await?;
    world.workspaces().delete("w", &DeleteParams::default()).await?;
    world.becomes("w", "Bound p Deleting InUse").await?;
    world.delete_pod("p").await?;
    world.becomes("w", "gone").await
}

#[tokio::test]
async fn an_unused_workspace_is_released_and_deleted_and_a_used_one_is_not() -> Result<()> {
    let world = World::new("binder-ttl").await?;
    let _binder = world.binder()?;
    world.available_pod("p").await?;
    world.workspace_with("w", json!({"ttlSecondsAfterUnused": 2})).await?;
    world.workspace_with("retained", json!({"ttlSecondsAfterUnused": 1, "cleanupPolicy": "Retain"})).await?;
    world.becomes("retained", "Bound p PodReady").await?;
    world.becomes("w", "Bound p PodReady").await?;
    running(&world, "r").await?;
    stays("in use", Duration::from_secs(4), async || Ok(world.told("w").await?.starts_with("Bound p "))).await?;
    ends(&world, "r").await?;
    // The time to live counts from the end of the last Run.
    stays("just used", Duration::from_millis(900), async || Ok(world.told("w").await?.starts_with("Bound p "))).await?;
    world.becomes("w", "Released p Deleting WaitingForAgent").await?;
    world.event("w", "Normal", "Released").await?;
    agent_cleaned(&world).await?;
    world.becomes("w", "gone").await?;
    assert!(world.told("retained").await?.starts_with("Bound p "));
    Ok(())
}

#[tokio::test]
async fn a_time_that_ran_out_while_the_controller_was_down_is_seen_at_its_start() -> Result<()> {
    let world = World::new("binder-down").await?;
    {
        let _binder = world.binder()?;
        world.available_pod("p").await?;
        for name in ["w", "used"] {
            world.workspace_with(name, json!({"ttlSecondsAfterUnused": 3})).await?;
            world.becomes(name, "Bound p PodReady").await?;
        }
    }
    // While it is down, time passes; and of one a Run was created and has ended meanwhile.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let run = json!({"metadata": {"name": "u"}, "spec": {"runtime": "bash", "mode": {"task": {}}, "workspace": {"name": "used"}}});
    world.runs().create(&PostParams::default(), &serde_json::from_value(run)?).await?;
    say(&world, "u", json!({"phase": "Succeeded", "assignedPod": "p", "startTime": now(), "completionTime": now()})).await?;
    world.beat("p").await?;
    let used_at = std::time::Instant::now();
    let _binder = world.binder()?;
    world.becomes("w", "Released p Deleting WaitingForAgent").await?;
    until("the other's time", PATIENCE, async || Ok(world.told("used").await?.starts_with("Released").then_some(()))).await?;
    // Whole seconds: 3 s after the second in which it was used.
    assert!(used_at.elapsed() >= Duration::from_secs(2), "{:?}", used_at.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_time_raised_at_the_last_moment_wins() -> Result<()> {
    let world = World::new("binder-raised").await?;
    let _binder = world.binder()?;
    world.available_pod("p").await?;
    world.workspace_with("w", json!({"ttlSecondsAfterUnused": 3})).await?;
    world.becomes("w", "Bound p PodReady").await?;
    // The binder doesn't see the edit before its time has come: its write is refused.
    world.proxy.hold_watches("persistentworkspaces");
    world.patch("w", json!({"spec": {"ttlSecondsAfterUnused": 3_600}})).await?;
    let refused = async || {
        let conflicts = world.proxy.count(|seen| seen.name == "w" && seen.is("patch", "persistentworkspaces/status") && seen.code == Some(409));
        Ok((conflicts > 0).then_some(()))
    };
    until("a refused release", PATIENCE, refused).await?;
    world.proxy.release_watches("persistentworkspaces");
    stays("Bound", A_WHILE * 2, async || Ok(world.told("w").await?.starts_with("Bound p "))).await?;
    assert_eq!(world.proxy.count(|seen| seen.is("delete", "persistentworkspaces")), 0);
    Ok(())
}

#[tokio::test]
async fn a_deletion_whose_answer_is_lost_happens_once() -> Result<()> {
    use berth_tests::proxy::Fault;
    let world = World::new("binder-delete").await?;
    world.proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("delete", "persistentworkspaces"));
    let _binder = world.binder()?;
    world.available_pod("p").await?;
    world.workspace_with("w", json!({"ttlSecondsAfterUnused": 1})).await?;
    world.becomes("w", "Released p Deleting WaitingForAgent").await?;
    assert_eq!(world.proxy.count(|seen| seen.is("delete", "persistentworkspaces") && seen.code == Some(200)), 1);
    Ok(())
}
