//! The Docker engine down and up while Jobs run, are being created and are being cancelled: dockerd ended by SIGTERM, which stops its containers, and by
//! SIGKILL, which leaves them running until the next dockerd stops them. Engines and servers are the test's own.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_controllers::job::api::Job;
use berth_opensandbox::Metadata;
use berth_tests::image::Image;
use berth_tests::opensandbox::Server;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::registry::{Registry, Terms};
use kube::Api;
use serde_json::{Value, json};

use super::world::{LONG, NAMESPACE, World, berth, shared};
use crate::job_world::{History, condition, exit_code, uid};

/// How long the pull takes during which the engine goes.
const PULL: Duration = Duration::from_secs(8);

/// What becomes of a Job: status and reason of Succeeded, and its code.
type End<'a> = (&'a str, &'a str, Option<i32>);
const LOST: End<'_> = ("False", "BackendLost", None);
const CANCELLED: End<'_> = ("False", "Cancelled", None);
/// What SIGTERM from outside makes of a Job of mode Entrypoint, as the documentation says.
const AS_IF_ENDED: End<'_> = ("True", "Completed", Some(0));

/// One engine, with a class of each mode on its server.
struct Bed {
    server: Server,
    fenced: World,
    entry: World,
    /// Begins the names of its Jobs.
    prefix: &'static str,
}

impl Bed {
    async fn new(prefix: &'static str) -> Result<Self> {
        let server = Server::start().await?;
        let plane = shared().await?.plane;
        let parameters = |mode: &str| json!({"executionMode": mode, "createTimeout": "30s", "createWindow": "40s"});
        let fenced = World::of(plane, &server, &format!("{prefix}-fenced"), json!({}), parameters("FencedCommand")).await?;
        let entry = World::of(plane, &server, &format!("{prefix}-entry"), json!({"minLossConfirmationAge": "0s"}), parameters("Entrypoint")).await?;
        fenced.ready().await?;
        entry.ready().await?;
        Ok(Self { server, fenced, entry, prefix })
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// A Job of this bed; answers its UID.
    async fn job(&self, world: &World, name: &str, text: &str, extra: Value) -> Result<String> {
        Ok(uid(&world.script(&self.name(name), text, extra).await?))
    }

    /// Waits for the end of a Job: one of these, and so many starts.
    async fn ended(&self, world: &World, name: &str, allowed: &[End<'_>], begun: usize) -> Result<()> {
        let name = self.name(name);
        let job = world.until(&name, "over", LONG, |job| condition(job, "Succeeded").0 != "Unknown").await?;
        let (status, reason) = condition(&job, "Succeeded");
        println!("{name}: {status} {reason} {:?}, begun {}", exit_code(&job), world.begun(&name));
        ensure!(allowed.contains(&(status.as_str(), reason.as_str(), exit_code(&job))), "{name}: {:?}", job.status);
        ensure!(world.begun(&name) == begun, "{name} began {} times", world.begun(&name));
        Ok(())
    }

    /// No sandbox on the server, no container on the engine.
    async fn nothing_left(&self) -> Result<()> {
        let client = self.server.client()?;
        until("no sandbox to be left", LONG, || async { Ok(client.list(&Metadata::new()).await?.is_empty().then_some(())) }).await?;
        let containers = self.server.engine.run(&["ps", "--all", "--quiet"])?;
        ensure!(containers.trim().is_empty(), "{containers}");
        Ok(())
    }
}

/// dockerd is ended by `signal` while Jobs of both modes run, are created and are cancelled, and then it is begun again.
async fn down_and_up(prefix: &'static str, signal: &str) -> Result<()> {
    let registry = Registry::start().await?;
    let bed = Bed::new(prefix).await?;
    let (fenced, entry) = (&bed.fenced, &bed.entry);
    let pulled = |repository: &str| {
        registry.serve(repository, "1", &Image::shell(&format!("{prefix}-{repository}"))?, Terms { slow: PULL, ..Terms::default() });
        anyhow::Ok(json!({"task": {"image": format!("{}/{repository}:1", registry.host())}}))
    };
    let slow_to_stop = "trap 'sleep 3; exit 4' TERM; while :; do sleep 1 & wait $!; done";
    for (world, name, text) in [
        (fenced, "running", "sleep 600"),
        (fenced, "cancelled", slow_to_stop),
        (entry, "entry-running", "sleep 600"),
        (entry, "entry-cancelled", "sleep 600"),
        // Ends by itself, after a KILL while nobody can tell of it.
        (entry, "entry-ends", "sleep 20; exit 6"),
    ] {
        bed.job(world, name, text, json!({})).await?;
        world.running(&bed.name(name)).await?;
    }
    bed.job(fenced, "created", "exit 5", pulled("fenced")?).await?;
    bed.job(entry, "entry-created", "exit 5", pulled("entry")?).await?;
    until("both pulls to be under way", PATIENCE, || async { Ok((registry.layers() >= 2).then_some(())) }).await?;
    fenced.cancel(&bed.name("cancelled")).await?;
    fenced.until(&bed.name("cancelled"), "stopping", PATIENCE, |job| condition(job, "StopRequested").0 == "True").await?;
    entry.cancel(&bed.name("entry-cancelled")).await?;

    bed.server.engine.stop(signal).await?;
    if signal == "KILL" {
        // Its sandboxes live on, and nobody can ask them: nothing is decided.
        let unknown = fenced.succeeded(&bed.name("running"), "Unknown", "ResultUnknown").await?;
        assert_eq!(condition(&unknown, "BackendObserved"), ("False".into(), "BackendUnreachable".into()));
    } else {
        tokio::time::sleep(PULL).await;
    }
    bed.server.engine.restart().await?;

    // With a code that it has given itself, and never a success that it has not made.
    let by_itself: End = ("False", "ProcessFailed", Some(6));
    let created: End = ("False", "ProcessFailed", Some(5));
    let entry_ends = if signal == "KILL" { [by_itself, by_itself] } else { [by_itself, AS_IF_ENDED] };
    let ends: [(&World, &str, &[End]); 6] = [
        (fenced, "running", &[LOST]),
        (fenced, "cancelled", &[CANCELLED, ("False", "Cancelled", Some(4))]),
        (fenced, "created", &[created]),
        (entry, "entry-running", &[AS_IF_ENDED]),
        (entry, "entry-cancelled", &[CANCELLED, AS_IF_ENDED]),
        (entry, "entry-ends", &entry_ends),
    ];
    for (world, name, allowed) in ends {
        bed.ended(world, name, allowed, 1).await?;
    }
    // The create that is the start had a plain 500 for an answer: it is looked for, and not sent again. Whoever knows better may say so.
    let name = bed.name("entry-created");
    let unconfirmed = ("False".to_owned(), "StartUnconfirmed".to_owned());
    let is_told = |job: &Job| condition(job, "Succeeded").0 != "Unknown" || condition(job, "BackendObserved") == unconfirmed;
    let job = entry.until(&name, "over, or unconfirmed", LONG, is_told).await?;
    if condition(&job, "Succeeded").0 == "Unknown" {
        entry.confirm_loss(&name).await?;
        bed.ended(entry, "entry-created", &[LOST], 0).await?;
    } else {
        bed.ended(entry, "entry-created", &[created], 1).await?;
    }
    bed.nothing_left().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_goes_down_and_comes_up_begins_nothing_twice_and_makes_no_success() -> Result<()> {
    berth().await?;
    let history = History::of(Api::namespaced(shared().await?.plane.admin()?, NAMESPACE));
    tokio::try_join!(down_and_up("sigterm", "TERM"), down_and_up("sigkill", "KILL"))?;
    history.end()?;
    Ok(())
}
