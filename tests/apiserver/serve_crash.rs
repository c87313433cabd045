//! What a crash leaves behind: the API server or the scheduler dies in mid-burst, and still no Run is lost, none is placed twice,
//! no Pod holds more than it can.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_tests::berth::Berth;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::poll::{PATIENCE, until};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;

use super::serve_world::{World, phase, run};

const PODS: usize = 10;
const CAPACITY: usize = 30;
/// More than fit, so that overcommitment would show.
const RUNS: usize = PODS * CAPACITY + 20;

/// Heartbeats would stand still while the API server is away: here they are not what is asked.
fn without_heartbeats() -> serde_json::Value {
    json!({"profiles": [{"pluginConfig": [{"name": "RuntimeReady", "args": {"requireHeartbeat": false}}]}]})
}

async fn burst(world: &World<'_>) -> Result<()> {
    for n in 0..PODS {
        world.pod(&format!("p{n}"), "bash", &[("runs", &CAPACITY.to_string())]).await?;
    }
    futures::stream::iter(0..RUNS).map(|n| world.run(run(&format!("r{n}")))).buffer_unordered(8).try_for_each(|_| async { Ok(()) }).await
}

async fn scheduled(world: &World<'_>) -> Result<usize> {
    Ok(world.all_runs().await?.values().filter(|run| phase(run) == "Scheduled").count())
}

async fn some_are_scheduled(world: &World<'_>, at_least: usize) -> Result<()> {
    until("the burst to be under way", PATIENCE, || async { Ok((scheduled(world).await? >= at_least).then_some(())) }).await
}

/// Everything fits exactly: all Pods are full, the rest waits, and the API server carried out one placement per placed Run.
async fn nothing_is_lost_doubled_or_overcommitted(world: &World<'_>) -> Result<()> {
    until("the burst to be over", PATIENCE, || async { Ok((scheduled(world).await? == PODS * CAPACITY).then_some(())) }).await?;
    let runs = world.all_runs().await?;
    ensure!(runs.len() == RUNS, "{} Runs", runs.len());
    let mut by_pod = BTreeMap::new();
    for run in runs.values().filter(|run| phase(run) == "Scheduled") {
        *by_pod.entry(run.status.clone().unwrap_or_default().assigned_pod.unwrap_or_default()).or_insert(0) += 1;
    }
    ensure!(by_pod.len() == PODS && by_pod.values().all(|n| *n == CAPACITY), "{by_pod:?}");
    ensure!(runs.values().all(|run| matches!(phase(run), "Scheduled" | "Pending")));
    Ok(())
}

/// No Run was written Scheduled twice. The audit log of a killed API server may lack its last lines, never have more.
fn no_run_was_placed_twice(world: &World<'_>, names: impl IntoIterator<Item = String>) -> Result<()> {
    let writes = world.writes_by_run()?;
    for name in names {
        ensure!(writes.get(&name).is_none_or(|n| *n == 1), "{name} was written {:?} times", writes.get(&name));
    }
    Ok(())
}

async fn placed_names(world: &World<'_>) -> Result<Vec<String>> {
    // Those that never had to wait got one write; those that did, also a message.
    let runs = world.all_runs().await?;
    let told = |run: &berth_api::Run| run.status.as_ref().is_some_and(|s| s.conditions.iter().any(|c| c.type_ == "Scheduled" && c.status == "False"));
    Ok(runs.into_iter().filter(|(_, run)| phase(run) == "Scheduled" && !told(run)).map(|(name, _)| name).collect())
}

#[tokio::test]
async fn the_api_server_is_killed_in_mid_burst_and_comes_back() -> Result<()> {
    let plane = ControlPlane::start_with_crds(Options::default()).await?;
    let world = World::on(&plane, "crash-api").await?;
    let mut berth = world.berth_with(without_heartbeats()).await?;
    burst_and(&world, async {
        some_are_scheduled(&world, 40).await?;
        plane.kill_api_server();
        plane.start_api_server().await
    })
    .await?;
    let back = Instant::now();
    nothing_is_lost_doubled_or_overcommitted(&world).await?;
    eprintln!("burst over {:?} after the API server was back", back.elapsed());
    no_run_was_placed_twice(&world, placed_names(&world).await?)?;
    ensure!(berth.get("/readyz").await?.0 == 200);
    berth.process().must_run()
}

/// The burst beside `disturb`; creations that met the dead API server are made again.
async fn burst_and(world: &World<'_>, disturb: impl Future<Output = Result<()>>) -> Result<()> {
    let (made, disturbed) = tokio::join!(burst(world), disturb);
    disturbed?;
    if made.is_err() {
        let there = world.all_runs().await?;
        for n in (0..RUNS).filter(|n| !there.contains_key(&format!("r{n}"))) {
            world.run(run(&format!("r{n}"))).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_scheduler_is_killed_in_mid_burst_and_another_goes_on() -> Result<()> {
    let world = World::new("crash-self").await?;
    burst(&world).await?;
    let serve = || async {
        let file = world.plane.scratch().write("crash-self.yaml", config(without_heartbeats()))?;
        world.serve()?.config(&file).start_ready(world.plane.scratch()).await
    };
    let mut kills = 0;
    for at_least in [20, 80, 160] {
        let berth: Berth = serve().await?;
        some_are_scheduled(&world, at_least).await?;
        berth.kill()?;
        kills += usize::from(scheduled(&world).await? < PODS * CAPACITY);
    }
    ensure!(kills > 0, "every kill came after the burst");
    let berth = serve().await?;
    nothing_is_lost_doubled_or_overcommitted(&world).await?;
    no_run_was_placed_twice(&world, placed_names(&world).await?)?;
    let (status, _) = berth.terminate().await?;
    ensure!(status.code() == Some(0));
    Ok(())
}

#[tokio::test]
async fn sigterm_in_mid_burst_drains_and_ends_with_0() -> Result<()> {
    let world = World::new("crash-term").await?;
    let proxy = berth_tests::proxy::Proxy::start(world.plane).await?;
    let file = world.plane.scratch().write("crash-term.yaml", config(without_heartbeats()))?;
    for n in 0..PODS {
        world.pod(&format!("p{n}"), "bash", &[("runs", &CAPACITY.to_string())]).await?;
    }
    // Every bind takes a while: some are always in flight.
    proxy.inject(berth_tests::proxy::Fault::DelayAnswer(Duration::from_millis(400)), usize::MAX, |seen| seen.is("patch", "runs/status"));
    let berth = world.serve_through(&proxy)?.config(&file).arg("--bind-workers=8").start_ready(world.plane.scratch()).await?;
    for n in 0..60 {
        world.run(run(&format!("r{n}"))).await?;
    }
    until("binds to be in flight", PATIENCE, || async { Ok((proxy.count(|seen| seen.is("patch", "runs/status")) >= 8).then_some(())) }).await?;
    let start = Instant::now();
    let (status, log) = berth.terminate().await?;
    ensure!(status.code() == Some(0), "{status}: {log}");
    ensure!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    ensure!(log.contains("stopped") && !log.contains("not everything came to its end"), "{log}");
    let sent = proxy.count(|seen| seen.is("patch", "runs/status"));
    let placed = scheduled(&world).await?;
    ensure!(placed == sent && placed < 60, "{sent} were sent, {placed} are placed");
    ensure!(log.matches("run placed").count() == placed, "each of them was seen to its end");
    Ok(())
}

/// How fast placements are on this API server; the number is for people, the bound only catches a disaster.
#[tokio::test]
async fn a_backlog_read_at_start_is_placed_fast_and_in_order() -> Result<()> {
    let world = World::new("backlog").await?;
    burst(&world).await?;
    let file = world.plane.scratch().write("backlog.yaml", config(without_heartbeats()))?;
    let start = Instant::now();
    let berth = world.serve()?.config(&file).start_ready(world.plane.scratch()).await?;
    berth.metric_at_least("scheduler_schedule_attempts_total", &[("result", "scheduled")], (PODS * CAPACITY) as f64).await?;
    let took = start.elapsed();
    eprintln!("{} placements in {took:?}: {:.0}/s", PODS * CAPACITY, (PODS * CAPACITY) as f64 / took.as_secs_f64());
    ensure!(took < Duration::from_secs(30));
    nothing_is_lost_doubled_or_overcommitted(&world).await?;
    // The newest wait: the oldest were served.
    let runs = world.all_runs().await?;
    let created = |run: &berth_api::Run| run.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let newest_placed = runs.values().filter(|run| phase(run) == "Scheduled").filter_map(created).max();
    let oldest_waiting = runs.values().filter(|run| phase(run) == "Pending").filter_map(created).min();
    ensure!(newest_placed <= oldest_waiting, "{newest_placed:?} was placed before {oldest_waiting:?}");
    Ok(())
}

fn config(mut config: serde_json::Value) -> String {
    config["apiVersion"] = json!("berth.kruntimes.io/v1alpha1");
    config["kind"] = json!("BerthConfiguration");
    config.to_string()
}
