//! The node's own services die while processes run: nothing is told that nobody knows, and what ended meanwhile is told as it ended.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use berth_tests::node::Service;
use berth_tests::poll::{PATIENCE, stays, until};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::judge::{Begun, End, exited, message, seconds, stopped};
use super::stops::{cancel, running};
use super::world::{A_WHILE, POLITE, World};
use crate::job_world::{condition, succeeded, uid};

/// Runs until the test lets it go, then ends with that code.
fn until_let_go(file: &str, code: i32) -> String {
    format!("until [ -e /node/{file} ]; do sleep 0.1; done; exit {code}")
}

async fn ready(world: &World, status: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    until(&format!("the node's Ready to be {status}"), PATIENCE * 2, || async {
        let conditions = nodes.get("n1").await?.status.unwrap_or_default().conditions.unwrap_or_default();
        Ok(conditions.iter().any(|c| c.type_ == "Ready" && c.status == status).then_some(()))
    })
    .await
}

fn is_unknown(job: &Job) -> bool {
    succeeded(job) == ("Unknown".to_owned(), "ResultUnknown".to_owned())
}

pub async fn the_kubelet_is_killed_and_comes_back(world: &World) -> Result<()> {
    // What is to become of each.
    let jobs = [
        ("lost-goes-on", until_let_go("after", 0), "quick"),
        ("lost-ends", until_let_go("meanwhile", 0), "quick"),
        ("lost-fails", until_let_go("meanwhile", 3), "quick"),
        // Evicted when the node has been lost for two seconds; one has ended by then.
        ("lost-evicted", POLITE.to_owned(), "impatient"),
        ("lost-ends-evicted", until_let_go("meanwhile", 0), "impatient"),
        ("lost-cancelled", POLITE.to_owned(), "quick"),
        ("lost-deleted", POLITE.to_owned(), "quick"),
        ("lost-confirmed", POLITE.to_owned(), "quick"),
    ];
    let begun = jobs.iter().map(|(name, script, class)| running(world, name, script, class));
    let begun = futures::future::try_join_all(begun).await?;
    let of = |name: &str| begun.iter().find(|job| job.metadata.name.as_deref() == Some(name)).context("a Job");

    // Back at once: nobody notices.
    let before: Vec<_> = begun.iter().map(|job| job.status.clone()).collect();
    world.node.kill(Service::Kubelet)?;
    world.node.let_back(Service::Kubelet)?;
    stays("the Jobs", Duration::from_secs(4), || async {
        let now = futures::future::try_join_all(begun.iter().map(|job| world.jobs.get(job.metadata.name.as_deref().unwrap_or_default()))).await?;
        Ok(now.into_iter().map(|job| job.status).eq(before.iter().cloned()))
    })
    .await?;

    let killed = Instant::now();
    world.node.kill(Service::Kubelet)?;
    world.let_go("meanwhile")?;
    let ended_at = Timestamp::now();
    ready(world, "Unknown").await?;
    let all = jobs.iter().map(|(name, ..)| world.when(name, "to be unknown", is_unknown));
    let unknown = futures::future::try_join_all(all).await?;
    eprintln!("unknown {:?} after the kubelet's death", killed.elapsed());
    for job in &unknown {
        ensure!(condition(job, "BackendObserved") == ("False".to_owned(), "NodeLost".to_owned()));
        ensure!(message(job).contains("node n1 doesn't report"), "{}", message(job));
    }
    for name in ["lost-evicted", "lost-ends-evicted"] {
        world.pod(&uid(of(name)?), "to be evicted", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
    }
    cancel(world, "lost-cancelled").await?;
    world.delete("lost-deleted", &DeleteParams::background()).await?;
    let confirm = json!({"metadata": {"annotations": {"execution.ayatori.ddupan.top/confirm-backend-lost": uid(of("lost-confirmed")?)}}});
    world.jobs.patch("lost-confirmed", &PatchParams::default(), &Patch::Merge(confirm)).await?;
    world.ended("lost-confirmed", End { reason: "BackendLost", code: None, result: None, begun: Begun::Once }).await?;
    // However long it takes: no end of those that nobody has confirmed, and nothing in their place.
    stays("the uncertainty", A_WHILE * 3, || async {
        for (name, ..) in &jobs[..7] {
            let job = world.jobs.get(name).await?;
            if !is_unknown(&job) || job.status.and_then(|status| status.completion_time).is_some() || world.pods_of(&uid(of(name)?)).await?.len() != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await?;
    let (code, out, err) = world.berth(&["explain", "job", "lost-evicted"]).await?;
    ensure!(code == 0 && out.contains("(ResultUnknown, class impatient)") && out.contains("an administrator can confirm the loss"), "{out}{err}");

    world.node.let_back(Service::Kubelet)?;
    ready(world, "True").await?;
    for (name, code) in [("lost-ends", 0), ("lost-fails", 3), ("lost-ends-evicted", 0)] {
        let job = world.ended(name, exited(code)).await?;
        ensure!(seconds(ended_at, job.status.context("a status")?.completion_time.context("an end")?.0) > 0);
    }
    let job = world.ended("lost-evicted", stopped("Disrupted", 143)).await?;
    ensure!(message(&job).contains("DeletionByTaintManager"), "{}", message(&job));
    world.ended("lost-cancelled", stopped("Cancelled", 143)).await?;
    world.gone("lost-deleted", &uid(of("lost-deleted")?)).await?;
    world.expect(&uid(of("lost-deleted")?), Begun::Once);
    // It runs as before; the loss that was confirmed stays one, and its process is ended all the same.
    world.unfinished("lost-goes-on", "Running").await?;
    world.let_go("after")?;
    world.ended("lost-goes-on", exited(0)).await?;
    until("the confirmed one to be stopped", PATIENCE, || async { Ok(world.said("stopped")?.contains(&uid(of("lost-confirmed")?)).then_some(())) }).await?;
    ensure!(succeeded(&world.jobs.get("lost-confirmed").await?) == ("False".to_owned(), "BackendLost".to_owned()));
    Ok(())
}

pub async fn containerd_is_killed_and_comes_back(world: &World) -> Result<()> {
    let jobs = [("runtime-goes-on", "runtime-after", 0), ("runtime-ends", "runtime-meanwhile", 0), ("runtime-fails", "runtime-meanwhile", 5)];
    for (name, file, code) in jobs {
        running(world, name, &until_let_go(file, code), "quick").await?;
    }
    world.node.kill(Service::Containerd)?;
    world.let_go("runtime-meanwhile")?;
    // One that comes while nothing can be started.
    world.job("runtime-late", "exit 0", json!({}), json!({})).await?;
    stays("what nobody can have seen", A_WHILE * 2, || async {
        let seen = futures::future::try_join_all(jobs.iter().map(|(name, ..)| world.jobs.get(name))).await?;
        Ok(seen.iter().all(|job| succeeded(job).0 == "Unknown")
            && world.jobs.get("runtime-late").await?.status.is_none_or(|status| status.start_time.is_none()))
    })
    .await?;
    world.node.let_back(Service::Containerd)?;
    for (name, code) in [("runtime-ends", 0), ("runtime-fails", 5), ("runtime-late", 0)] {
        world.ended(name, exited(code)).await?;
    }
    world.unfinished("runtime-goes-on", "Running").await?;
    world.let_go("runtime-after")?;
    world.ended("runtime-goes-on", exited(0)).await.map(drop)
}
