//! What `berth serve` does without a right or a CRD that it needs: it tries rarely, says so once, and goes on when it is there.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use hyper::StatusCode;
use serde_json::json;

use super::serve_world::{World, run};

/// More often than any test asks.
const ALWAYS: usize = 1_000_000;

#[tokio::test]
async fn without_the_right_to_write_each_run_is_told_of_once_and_tried_rarely() -> Result<()> {
    const RUNS: usize = 3;
    let world = World::new("rights-write").await?;
    let proxy = Proxy::start(world.plane).await?;
    let berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    let denied = proxy.inject(Fault::Answer(StatusCode::FORBIDDEN), ALWAYS, |seen| seen.is("patch", "runs/status"));
    for n in 0..RUNS {
        world.run(run(&format!("r{n}"))).await?;
    }
    until("every message to be refused", PATIENCE, || async { Ok((denied.hits() == RUNS).then_some(())) }).await?;
    for n in 0..RUNS {
        let name = format!("r{n}");
        let told = until("the Event", PATIENCE, || async { Ok(world.events(&name, "FailedScheduling").await?.pop()) }).await?;
        ensure!(told.0 == "Warning" && told.1.contains("the API server does not store it"), "{told:?}");
    }
    stays("one request per Run", Duration::from_secs(5), || async { Ok(denied.hits() == RUNS) }).await?;
    ensure!(berth.log().matches("write refused").count() == RUNS, "one warning per Run:\n{}", berth.log());
    // The right is there; another version of a Run is tried at once, the others when a minute is over.
    denied.remove();
    world.patch_run("r1", json!({"metadata": {"labels": {"touched": "yes"}}})).await?;
    world.waits("r1", &["no Pod has label runtime=bash"]).await?;
    Ok(())
}

#[tokio::test]
async fn without_crd_or_right_to_list_it_waits_and_then_begins() -> Result<()> {
    for (code, namespace) in [(StatusCode::NOT_FOUND, "rights-crd"), (StatusCode::FORBIDDEN, "rights-list")] {
        let world = World::new(namespace).await?;
        let proxy = Proxy::start(world.plane).await?;
        let absent = proxy.inject(Fault::Answer(code), ALWAYS, |seen| seen.is("list", "persistentworkspaces"));
        world.pod("p", "bash", &[]).await?;
        world.run(run("r")).await?;
        let mut berth = world.serve_through(&proxy)?.start(world.plane.scratch())?;
        until("two tries", PATIENCE, || async { Ok((absent.hits() >= 2).then_some(())) }).await?;
        berth.process().must_run()?;
        ensure!(berth.get("/readyz").await?.0 != 200, "{code}: it can't be ready");
        ensure!(world.status_writes("r")? == 0, "{code}: nothing is placed on half a picture");
        absent.remove();
        berth.ready().await?;
        world.placed_on("r", "p").await?;
    }
    Ok(())
}
