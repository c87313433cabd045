//! What `/metrics` tells of a known number of Jobs, requests, refusals, doubles and orphans.

use anyhow::{Result, ensure};
use berth_controllers::job::adapter::opensandbox::names::META_JOB_UID;
use berth_opensandbox::Metadata;
use serde_json::json;

use super::faults::{carried, plane};
use super::losses::twin;
use super::world::World;
use crate::faulty::{Fate, FaultyProxy};
use crate::job_world::uid;
use crate::world::server;

const ADAPTER: (&str, &str) = ("adapter", "opensandbox");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_ends_doubles_and_orphans_are_counted() -> Result<()> {
    let (plane, account) = plane().await?;
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let world = World::of(&plane, server().await?, "counted", json!({}), json!({"endpoint": proxy.url()})).await?;
    // Its window is also how often somebody sweeps.
    let long = json!({"endpoint": proxy.url(), "executionMode": "Entrypoint", "leaseTTL": "72h", "createTimeout": "4s", "createWindow": "5s"});
    let long = World::of(&plane, server().await?, "counted-long", json!({}), long).await?;
    let berth = carried(&plane, &account).await?;
    world.ready().await?;
    long.ready().await?;

    // Each is a create, a renewal and a start; of one the create is turned away first, of one it has no answer and is found.
    world.script("counted-first", "true", json!({})).await?;
    world.script("counted-second", "exit 3", json!({})).await?;
    let mut uids = Vec::new();
    for (name, status, reason) in [("counted-first", "True", "Completed"), ("counted-second", "False", "ProcessFailed")] {
        uids.push(uid(&world.succeeded(name, status, reason).await?));
    }
    for (name, fate) in [("counted-busy", Fate::TurnedAway), ("counted-lost", Fate::AnswerLost)] {
        proxy.strike("POST", "/sandboxes", 0, fate);
        world.script(name, "true", json!({})).await?;
        uids.push(uid(&world.succeeded(name, "True", "Completed").await?));
    }
    // One create, refused for good: longer than the server lets a sandbox live.
    long.script("counted-refused", "true", json!({})).await?;
    long.succeeded("counted-refused", "False", "BackendRejected").await?;
    for uid in &uids {
        world.nothing_left(uid).await?;
    }
    let metrics = berth.metrics().await?;
    let requests = |op: &str, outcome: &str| metrics.sum("berth_job_adapter_request_duration_seconds_count", &[ADAPTER, ("op", op), ("outcome", outcome)]);
    let counted = ["definite", "retry", "ambiguous"].map(|outcome| requests("ensure", outcome));
    assert_eq!(counted, [3.0 * 3.0 + 2.0 + 1.0, 1.0, 1.0], "creates, renewals and starts");
    assert_eq!(["definite", "retry", "ambiguous"].map(|outcome| requests("delete", outcome)), [4.0, 0.0, 0.0], "removals");
    ensure!(requests("observe", "definite") >= 4.0 * 3.0, "{} looks", requests("observe", "definite"));
    let ended = |class: &str, reason: &str| metrics.sum("berth_job_finished_total", &[ADAPTER, ("class", class), ("reason", reason)]);
    assert_eq!([ended("counted", "Completed"), ended("counted", "ProcessFailed"), ended("counted-long", "BackendRejected")], [3.0, 1.0, 1.0]);
    assert_eq!([("counted", 4.0), ("counted-long", 0.0)].map(|(class, _)| metrics.sum("berth_job_started_total", &[ADAPTER, ("class", class)])), [4.0, 0.0]);
    assert_eq!(metrics.sum("berth_job_ambiguous_total", &[]), 1.0);
    for name in ["berth_job_orphans_swept_total", "berth_job_doubles_removed_total", "berth_job_duplicate_execution_total"] {
        assert_eq!(metrics.sum(name, &[ADAPTER]), 0.0, "{name}");
    }

    // A double of a Job's sandbox, and one of a Job that never was.
    let job = world.script("counted-doubled", "sleep 600", json!({})).await?;
    world.running("counted-doubled").await?;
    let own = world.sandbox(&uid(&job)).await?;
    let like: Metadata = own.metadata.iter().filter(|(key, _)| key.starts_with("execution.")).map(|(key, value)| (key.clone(), value.clone())).collect();
    world.sandboxes.create(&twin(&like)).await?;
    let mut orphan = like;
    orphan.insert(META_JOB_UID.to_owned(), "00000000-2222-4000-8000-000000000000".to_owned());
    world.sandboxes.create(&twin(&orphan)).await?;
    for name in ["berth_job_orphans_swept_total", "berth_job_doubles_removed_total"] {
        assert_eq!(berth.metric_at_least(name, &[ADAPTER], 1.0).await?, 1.0, "{name}");
    }
    world.cancel("counted-doubled").await?;
    world.succeeded("counted-doubled", "False", "Cancelled").await?;
    world.tells_no_secret(server().await?, &berth).await
}
