//! Many Jobs at once, some of which are cancelled or deleted: each began once at most, each tells a truth, and nothing is left. And the rows that every
//! adapter must pass.

use std::time::Instant;

use anyhow::{Result, ensure};
use berth_tests::job_conformance::conforms;
use berth_tests::opensandbox::{BUSYBOX, Server};
use futures::StreamExt as _;
use serde_json::json;

use super::world::{World, berth, nothing_is_left, shared};
use crate::job_world::{History, exit_code, uid};

const CANARY: &str = "canary-of-the-crowd";

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_runs_once_each_and_leaves_nothing() -> Result<()> {
    let (count, at_once) = (number("BERTH_SANDBOXED_JOBS", 24), number("BERTH_SANDBOXED_AT_ONCE", 8));
    // A server and an engine that no other test has, so that nothing at all may be left there.
    let server = Server::start().await?;
    berth().await?;
    let world = World::of(shared().await?.plane, &server, "crowd", json!({}), json!({"concurrency": 16})).await?;
    world.ready().await?;
    world.secret("crowd", json!({"value": CANARY})).await?;
    let history = History::of(world.jobs.clone());
    let start = Instant::now();
    let one = async |number: usize| -> Result<()> {
        let name = format!("crowd-{number}");
        let env = json!({"task": {"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "crowd", "key": "value"}}}]}});
        let code = i32::try_from(number % 3)?;
        let job = world.script(&name, &format!("[ \"$V\" = {CANARY} ] || exit 9\nsleep 1\nexit {code}"), env).await?;
        let id = uid(&job);
        if number % 8 == 7 {
            // It may end by itself before it is told that it runs, and before the stop comes.
            world.told(&name).await?;
            world.cancel(&name).await?;
            let job = world.until(&name, "over", super::world::LONG, |job| job.status.as_ref().is_some_and(|status| status.completion_time.is_some())).await?;
            ensure!(exit_code(&job).is_none_or(|told| told == code || told > 128), "{name}: {:?}", job.status);
        } else {
            let wanted = if code == 0 { ("True", "Completed") } else { ("False", "ProcessFailed") };
            let job = world.succeeded(&name, wanted.0, wanted.1).await?;
            ensure!(exit_code(&job) == Some(code), "{name}: {:?}", job.status);
        }
        if number == 4 {
            // While others run.
            world.tells_no_secret(&server, berth().await?).await?;
        }
        ensure!(world.begun(&name) == 1, "{name} began {} times", world.begun(&name));
        world.nothing_left(&id).await?;
        world.delete(&name).await?;
        world.gone(&name).await
    };
    let done: Vec<Result<()>> = futures::stream::iter((0..count).map(one)).buffer_unordered(at_once).collect().await;
    done.into_iter().collect::<Result<()>>()?;
    println!("{count} Jobs, {at_once} at a time: {:?}", start.elapsed());
    history.end()?;
    world.tells_no_secret(&server, berth().await?).await?;
    nothing_is_left(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_adapter_does_what_every_adapter_must() -> Result<()> {
    let world = World::new("conforms").await?;
    conforms(&world.jobs, &world.class, BUSYBOX, |uid| {
        let world = &world;
        async move { Ok(world.of_job(&uid).await?.len()) }
    })
    .await
}
