//! Stops that somebody asked for: told only once the process has ended, and with what it ended.

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::judge::{Begun, End, exited, message, never, runs, seconds, stopped};
use super::world::{GRACEFUL, POLITE, STUBBORN, World};
use crate::job_world::{condition, exit_code, uid};

/// A Job that runs `script` now.
pub async fn running(world: &World, name: &str, script: &str, class: &str) -> Result<Job> {
    let job = world.job(name, script, json!({}), json!({ "jobClassName": class })).await?;
    world.begun(&uid(&job)).await?;
    world.unfinished(name, "Running").await
}

pub async fn cancel(world: &World, name: &str) -> Result<()> {
    world.jobs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"desiredState": "Cancelled"}}))).await?;
    Ok(())
}

/// Nothing of a Job's container runs, and if it was told to stop politely it has said so.
async fn has_stopped(world: &World, job: &Job, said: bool) -> Result<()> {
    ensure!(!said || world.said("stopped")?.contains(&uid(job)), "{} was told before its process had ended", job.name_any());
    ensure!(!world.pods_of(&uid(job)).await?.iter().any(runs));
    Ok(())
}

pub async fn cancels(world: &World) -> Result<()> {
    for (name, script, code, says) in [("polite", POLITE, 143, true), ("stubborn", STUBBORN, 137, false), ("graceful", GRACEFUL, 0, true)] {
        let name = format!("cancel-{name}");
        let job = running(world, &name, script, "quick").await?;
        cancel(world, &name).await?;
        let asked = world.when(&name, "to ask for the stop", |job| condition(job, "StopRequested") == ("True".to_owned(), "Cancelled".to_owned())).await?;
        ensure!(condition(&asked, "Succeeded").0 == "Unknown" || says, "a stubborn process takes its grace");
        let ended = world.ended(&name, stopped("Cancelled", code)).await?;
        has_stopped(world, &job, says).await?;
        ensure!(ended.status == world.jobs.get(&name).await?.status);
    }
    // Before it could begin.
    let job = world.job("cancel-early", "", json!({"image": "docker.io/team/never:1"}), json!({})).await?;
    world.unfinished("cancel-early", "WaitingForImage").await?;
    cancel(world, "cancel-early").await?;
    world.ended("cancel-early", never("Cancelled")).await?;
    has_stopped(world, &job, false).await?;
    // At birth: it has no execution at all.
    world.job("cancel-at-birth", "", json!({}), json!({"desiredState": "Cancelled"})).await?;
    let job = world.when("cancel-at-birth", "to be over", |job| condition(job, "Succeeded") == ("False".to_owned(), "Cancelled".to_owned())).await?;
    world.expect(&uid(&job), Begun::Never);
    ensure!(job.status.context("a status")?.execution.is_none());
    Ok(())
}

pub async fn deletions_whatever_their_cascade(world: &World) -> Result<()> {
    let cascades = [
        ("background", DeleteParams::background()),
        ("foreground", DeleteParams::foreground()),
        ("orphan", DeleteParams::orphan()),
        ("default", DeleteParams::default()),
    ];
    let each = cascades.into_iter().map(|(cascade, params)| async move {
        let name = format!("delete-{cascade}");
        let job = running(world, &name, POLITE, "quick").await?;
        world.delete(&name, &params).await?;
        world.gone(&name, &uid(&job)).await?;
        world.expect(&uid(&job), Begun::Once);
        anyhow::Ok(())
    });
    futures::future::try_join_all(each).await.map(drop)
}

pub async fn a_pod_that_others_delete(world: &World) -> Result<()> {
    for (name, script, code) in [("pod-deleted", POLITE, 143), ("pod-deleted-graceful", GRACEFUL, 0)] {
        let job = running(world, name, script, "quick").await?;
        let pod = world.pods_of(&uid(&job)).await?.pop().context("a Pod")?;
        world.pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
        // Even a process that then ends with 0 was stopped.
        let ended = world.ended(name, stopped("Disrupted", code)).await?;
        ensure!(message(&ended).contains("the Pod was deleted"), "{}", message(&ended));
        has_stopped(world, &job, true).await?;
    }
    Ok(())
}

/// The Pod object can't go before its end is known: our finalizer holds it, and the kubelet ends the process meanwhile.
pub async fn a_pod_deleted_by_force(world: &World) -> Result<()> {
    let job = running(world, "forced", STUBBORN, "quick").await?;
    let pod = world.pods_of(&uid(&job)).await?.pop().context("a Pod")?;
    world.pods.delete(&pod.name_any(), &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    world.ended("forced", stopped("Disrupted", 137)).await?;
    has_stopped(world, &job, false).await
}

pub async fn evictions(world: &World) -> Result<()> {
    let job = running(world, "evicted", POLITE, "quick").await?;
    let hoarder = world.job("hoarder", "dd if=/dev/zero of=/tmp/much bs=1M count=16 2>/dev/null; sleep 600", json!({}), json!({})).await?;
    let pod = world.pods_of(&uid(&job)).await?.pop().context("a Pod")?;
    world.pods.evict(&pod.name_any(), &Default::default()).await?;
    let ended = world.ended("evicted", stopped("Disrupted", 143)).await?;
    ensure!(message(&ended).contains("EvictionByEvictionAPI"), "{}", message(&ended));
    has_stopped(world, &job, true).await?;
    // By the node itself, for what it keeps on the disk. Its kubelet does not always find the container again to say how it ended.
    let ended = world.when("hoarder", "to end", |job| condition(job, "Succeeded").0 == "False").await?;
    let end = match exit_code(&ended) {
        Some(code) => stopped("Disrupted", code),
        None => End { reason: "BackendLost", code: None, result: None, begun: Begun::Once },
    };
    let ended = world.ended("hoarder", end).await?;
    ensure!(message(&ended).contains("Evicted") && message(&ended).contains("phemeral"), "{}", message(&ended));
    has_stopped(world, &hoarder, false).await
}

pub async fn a_deadline_stops(world: &World) -> Result<()> {
    for (name, script, code) in [("deadline", POLITE, 143), ("deadline-stubborn", STUBBORN, 137)] {
        world.job(name, script, json!({}), json!({"activeDeadlineSeconds": 2})).await?;
        let job = world.ended(name, stopped("DeadlineExceeded", code)).await?;
        let status = job.status.clone().context("a status")?;
        let ran = seconds(status.start_time.context("a start")?.0, status.completion_time.context("an end")?.0);
        ensure!(ran >= 2, "stopped after {ran} s");
    }
    // One that is quicker than its deadline.
    world.job("in-time", "exit 4", json!({}), json!({"activeDeadlineSeconds": 60})).await?;
    world.ended("in-time", exited(4)).await?;
    Ok(())
}
