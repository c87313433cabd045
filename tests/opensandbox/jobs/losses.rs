//! What becomes of Jobs whose sandbox is not as it was left: paused, removed, without its execd, doubled; and of sandboxes whose Job is not there.

use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_controllers::job::adapter::opensandbox::names::{ENV_EXECD_TOKEN, META_INSTALLATION, META_JOB_NAME, META_JOB_NAMESPACE, META_JOB_UID};
use berth_opensandbox::{CreateSandbox, Metadata};
use berth_tests::poll::{PATIENCE, stays, until};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::world::{LONG, NAMESPACE, World, shows};
use crate::job_world::{History, condition, exit_code, uid};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_is_unknown_and_goes_on_or_is_cancelled() -> Result<()> {
    let world = World::new("pauses").await?;
    let history = History::of(world.jobs.clone());
    let names = ["pause-resumed", "pause-cancelled", "pause-deleted"];
    world.script("pause-resumed", &world.wait_at("pause"), json!({})).await?;
    world.script("pause-cancelled", "sleep 600", json!({})).await?;
    let deleted = uid(&world.script("pause-deleted", "sleep 600", json!({})).await?);
    let mut ids = Vec::new();
    for name in names {
        let id = world.sandbox(&uid(&world.running(name).await?)).await?.id;
        world.sandboxes.pause(&id).await?;
        ids.push(id);
    }
    for name in names {
        let job = world.succeeded(name, "Unknown", "ResultUnknown").await?;
        assert_eq!(condition(&job, "BackendObserved"), ("False".into(), "BackendPaused".into()), "{name}");
    }
    world.cancel("pause-cancelled").await?;
    world.delete("pause-deleted").await?;
    world.sandboxes.resume(&ids[0]).await?;
    world.succeeded("pause-resumed", "Unknown", "Running").await?;
    world.counter.open("pause");
    let resumed = world.succeeded("pause-resumed", "True", "Completed").await?;
    assert_eq!((exit_code(&resumed), world.begun("pause-resumed")), (Some(0), 1));
    world.succeeded("pause-cancelled", "False", "Cancelled").await?;
    world.gone("pause-deleted").await?;
    world.nothing_left(&deleted).await?;
    shows(history, &[&world], "losses::a_paused_sandbox_is_unknown_and_goes_on_or_is_cancelled")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_away_is_lost_once_that_is_certain() -> Result<()> {
    let world = World::new("losses").await?;
    world.script("lost-removed", "sleep 600", json!({})).await?;
    world.script("lost-expired", "sleep 600", json!({})).await?;
    world.script("lost-killed", "kill -9 0", json!({})).await?;
    world.script("lost-execd", "kill -9 $(pidof execd); sleep 600", json!({})).await?;
    let removed = world.sandbox(&uid(&world.running("lost-removed").await?)).await?.id;
    world.sandboxes.delete(&removed).await?;
    let expired = world.sandbox(&uid(&world.running("lost-expired").await?)).await?.id;
    world.sandboxes.renew(&expired, Timestamp::now() + SignedDuration::from_secs(2)).await?;
    for name in ["lost-killed", "lost-removed", "lost-expired"] {
        let job = world.succeeded(name, "False", "BackendLost").await?;
        assert_eq!((exit_code(&job), world.begun(name)), (None, 1), "{name}");
        world.nothing_left(&uid(&job)).await?;
    }
    // It may run on, and nobody can ask.
    let job = world.succeeded("lost-execd", "Unknown", "ResultUnknown").await?;
    assert_eq!(condition(&job, "BackendObserved"), ("False".into(), "BackendUnreachable".into()));
    world.cancel("lost-execd").await?;
    world.succeeded("lost-execd", "False", "Cancelled").await?;
    world.nothing_left(&uid(&job)).await
}

/// A request for a sandbox that looks like one of Berth's.
pub fn twin(of: &Metadata) -> CreateSandbox {
    CreateSandbox {
        image: berth_opensandbox::Image { uri: berth_tests::opensandbox::BUSYBOX.to_owned(), auth: None },
        entrypoint: ["tail", "-f", "/dev/null"].map(str::to_owned).to_vec(),
        env: std::collections::BTreeMap::from([(ENV_EXECD_TOKEN.to_owned(), "canary-token-of-what-a-test-has-made".into())]),
        resource_limits: std::collections::BTreeMap::new(),
        resource_requests: std::collections::BTreeMap::new(),
        timeout: Some(600),
        metadata: of.clone(),
        platform: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweep_takes_what_no_job_claims_and_nothing_else() -> Result<()> {
    let world = World::with("sweeps", json!({}), json!({"createTimeout": "4s", "createWindow": "5s"})).await?;
    let job = world.script("swept", "sleep 600", json!({})).await?;
    world.running("swept").await?;
    let own = world.sandbox(&uid(&job)).await?;
    let mut like: Metadata = own.metadata.iter().filter(|(key, _)| key.starts_with("execution.")).map(|(key, value)| (key.clone(), value.clone())).collect();
    let double = world.sandboxes.create(&twin(&like)).await?;
    let mut orphan_of = like.clone();
    orphan_of.insert(META_JOB_UID.to_owned(), "00000000-1111-4000-8000-000000000000".to_owned());
    let orphan = world.sandboxes.create(&twin(&orphan_of)).await?;
    orphan_of.insert(META_JOB_NAME.to_owned(), "nobody".to_owned());
    orphan_of.insert(META_JOB_NAMESPACE.to_owned(), NAMESPACE.to_owned());
    let other_orphan = world.sandboxes.create(&twin(&orphan_of)).await?;
    like.insert(META_INSTALLATION.to_owned(), "somebody-else".to_owned());
    let strange = world.sandboxes.create(&twin(&like)).await?;
    for (what, id) in [("a double", &double.id), ("an orphan of that name", &orphan.id), ("an orphan", &other_orphan.id)] {
        until(&format!("{what} to be swept"), LONG, || async {
            let gone = world.sandboxes.get(id).await.err().is_some_and(|error| error.is_sandbox_not_found());
            Ok(gone.then_some(()))
        })
        .await?;
    }
    stays("what is not ours, and what is", Duration::from_secs(6), || async {
        Ok(world.sandboxes.get(&strange.id).await.is_ok() && world.sandboxes.get(&own.id).await.is_ok())
    })
    .await?;
    world.sandboxes.delete(&strange.id).await?;
    world.cancel("swept").await?;
    world.succeeded("swept", "False", "Cancelled").await?;
    assert_eq!(world.begun("swept"), 1);
    until("no sandbox", PATIENCE, || async { Ok(world.of_job(&uid(&job)).await?.is_empty().then_some(())) }).await.context("of it")
}
