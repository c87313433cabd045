//! Sandboxes whose container is restarted behind the server's back: mode FencedCommand runs nothing again, and what it tells is true; in mode Entrypoint
//! the process is the sandbox, and begins again with it, as the documentation says.

use anyhow::Result;
use berth_tests::poll::{PATIENCE, until};
use serde_json::json;

use super::world::{World, berth};
use crate::faulty::{Fate, FaultyProxy};
use crate::job_world::{History, exit_code, uid};
use crate::world::server;

async fn docker(args: &[&str], container: &str) -> Result<()> {
    server().await?.engine.run(&[args, &[container]].concat()).map(drop)
}

/// The container of a Job's sandbox, as the server calls it.
async fn container(world: &World, name: &str) -> Result<String> {
    let id = uid(&world.jobs.get(name).await?);
    Ok(format!("sandbox-{}", world.sandbox(&id).await?.id))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_sandbox_runs_its_command_no_second_time() -> Result<()> {
    berth().await?;
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let world = World::with("restarts", json!({}), json!({"endpoint": proxy.url()})).await?;
    let entry = World::with("restarts-entry", json!({}), json!({"executionMode": "Entrypoint"})).await?;
    let history = History::of(world.jobs.clone());
    // Before it is started: the nonce is planted and on record, the start is on its way.
    proxy.strike("POST", "/command", 1, Fate::Hangs);
    world.script("restart-early", "exit 7", json!({})).await?;
    until("the start to be sent", PATIENCE, || async { Ok((proxy.struck() == 1).then_some(())) }).await?;
    docker(&["restart"], &container(&world, "restart-early").await?).await?;
    // While it runs: its process ends with the container, and is none of those that come after it.
    world.script("restart-late", "sleep 600", json!({})).await?;
    world.script("restart-stopped", "sleep 600", json!({})).await?;
    entry.script("restart-entry", "sleep 8; exit 6", json!({})).await?;
    for (world, name) in [(&world, "restart-late"), (&world, "restart-stopped"), (&entry, "restart-entry")] {
        world.running(name).await?;
    }
    let stopped = container(&world, "restart-stopped").await?;
    docker(&["stop"], &stopped).await?;
    // Unless it has been removed by now.
    let started = docker(&["start"], &stopped).await;
    println!("docker start after docker stop: {started:?}");
    docker(&["restart"], &container(&world, "restart-late").await?).await?;
    docker(&["restart"], &container(&entry, "restart-entry").await?).await?;

    for (world, name, reason, code, begun) in [
        (&world, "restart-early", "ProcessFailed", Some(7), 1),
        (&world, "restart-late", "BackendLost", None, 1),
        (&world, "restart-stopped", "BackendLost", None, 1),
        (&entry, "restart-entry", "ProcessFailed", Some(6), 2),
    ] {
        let job = world.succeeded(name, "False", reason).await?;
        assert_eq!((exit_code(&job), world.begun(name)), (code, begun), "{name}");
        world.nothing_left(&uid(&job)).await?;
    }
    history.end()?;
    Ok(())
}
