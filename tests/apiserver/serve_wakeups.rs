//! Every cause that can help a waiting Run wakes it, at once: seen in the wake-up counters, without back-off and without the flush.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::berth::Berth;
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::serve_world::{World, run, time};

async fn wakeups(berth: &Berth, cause: &str) -> Result<f64> {
    Ok(berth.metrics().await?.sum("berth_wakeups_total", &[("cause", cause)]))
}

/// Waits for one more wake-up by `cause` than `before`.
async fn woken(berth: &Berth, cause: &str, before: f64) -> Result<()> {
    berth.metric_at_least("berth_wakeups_total", &[("cause", cause)], before + 1.0).await.map(|_| ())
}

/// Nothing was helped by time: no back-off, no flush.
async fn by_events_alone(berth: &Berth) -> Result<()> {
    let metrics = berth.metrics().await?;
    let backoff = metrics.sum("scheduler_queue_incoming_pods_total", &[("queue", "backoff")]);
    let flushed = metrics.sum("scheduler_pod_scheduled_after_flush_total", &[]);
    ensure!(backoff == 0.0 && flushed == 0.0, "back-off {backoff}, flush {flushed}");
    Ok(())
}

#[tokio::test]
async fn pods_wake_those_they_can_take() -> Result<()> {
    let world = World::new("wake-pods").await?;
    let berth = world.berth().await?;

    // Pod ready: it appears, and later comes back.
    world.run(run("ready").runtime("a")).await?;
    world.is_waiting(&berth, "ready").await?;
    world.pod("a", "a", &[("runs", "1")]).await?;
    world.placed_on("ready", "a").await?;
    woken(&berth, "pod_ready", 0.0).await?;

    // Capacity raised: from drained.
    world.pod("b", "b", &[("runs", "0")]).await?;
    world.run(run("raised").runtime("b")).await?;
    world.waits("raised", &["1 insufficient runs"]).await?;
    world.annotate_pod("b", "runs", "1").await?;
    world.placed_on("raised", "b").await?;
    woken(&berth, "capacity_raised", 0.0).await?;

    // Heartbeat returned: a stale one moves, by whatever clock.
    world.create_pod("c", "c", &[]).await?;
    let hour = SignedDuration::from_hours(1);
    world.pod_status("c", true, Timestamp::now() - hour).await?;
    world.run(run("returned").runtime("c")).await?;
    world.waits("returned", &["1 heartbeat stale"]).await?;
    world.pod_status("c", true, Timestamp::now() - hour + SignedDuration::from_secs(5)).await?;
    world.placed_on("returned", "c").await?;
    woken(&berth, "heartbeat_returned", 0.0).await?;

    // Pod deleted: the last target of a term the Run can seed itself went with it.
    world.pod("d1", "d", &[("runs", "1")]).await?;
    world.run(run("target").runtime("d").label("set", "d")).await?;
    world.placed_on("target", "d1").await?;
    world.pod("d2", "d", &[("runs", "1")]).await?;
    world.run(run("orphan").runtime("d").label("set", "d").requires("runAffinity", "set", "d")).await?;
    world.waits("orphan", &["1 without a Run matching required affinity", "1 insufficient runs"]).await?;
    world.delete_pod("d1").await?;
    world.placed_on("orphan", "d2").await?;
    woken(&berth, "pod_deleted_or_relabelled", 0.0).await?;
    by_events_alone(&berth).await
}

#[tokio::test]
async fn runs_wake_those_that_waited_for_them() -> Result<()> {
    let world = World::new("wake-runs").await?;
    let berth = world.berth().await?;

    // Run ended, Run deleted: room for the oldest that fits.
    world.pod("a", "a", &[("runs", "1")]).await?;
    world.run(run("first").runtime("a")).await?;
    world.placed_on("first", "a").await?;
    world.run(run("second").runtime("a")).await?;
    world.is_waiting(&berth, "second").await?;
    world.succeed("first").await?;
    world.placed_on("second", "a").await?;
    woken(&berth, "run_ended", 0.0).await?;
    world.run(run("third").runtime("a")).await?;
    world.is_waiting(&berth, "third").await?;
    world.delete_run("second").await?;
    world.placed_on("third", "a").await?;
    woken(&berth, "run_deleted", 0.0).await?;

    // Last target ended: the term can be seeded again. Its Pod is away, so its room is no help.
    world.pod("b1", "b", &[]).await?;
    world.run(run("anchor").runtime("b").label("set", "b")).await?;
    world.placed_on("anchor", "b1").await?;
    world.silence("b1");
    world.pod_status("b1", false, Timestamp::now()).await?;
    world.pod("b2", "b", &[]).await?;
    world.run(run("follower").runtime("b").label("set", "b").requires("runAffinity", "set", "b")).await?;
    world.waits("follower", &["1 not ready", "1 without a Run matching"]).await?;
    world.succeed("anchor").await?;
    world.placed_on("follower", "b2").await?;
    woken(&berth, "last_target_ended", 0.0).await?;

    // Target appeared.
    world.pod("c1", "c", &[]).await?;
    world.pod("c2", "c", &[]).await?;
    world.run(run("later").runtime("c").requires("runAffinity", "app", "db")).await?;
    world.waits("later", &["no active Run matches required affinity app=db", "no Run offers app=db"]).await?;
    world.run(run("db").runtime("c").label("app", "db")).await?;
    let pod = world.placed("db").await?;
    world.placed_on("later", &pod).await?;
    woken(&berth, "target_appeared", 0.0).await?;

    // Anti-affinity owner ended; and own labels changed, so that it no longer matters.
    world.pod("d", "d", &[("runs", "9")]).await?;
    world.run(run("hermit").runtime("d").requires("runAntiAffinity", "kind", "noisy")).await?;
    world.placed_on("hermit", "d").await?;
    world.run(run("noisy").runtime("d").label("kind", "noisy")).await?;
    world.run(run("quieter").runtime("d").label("kind", "noisy")).await?;
    for name in ["noisy", "quieter"] {
        world.waits(name, &["1 with a Run whose anti-affinity matches"]).await?;
    }
    world.patch_run("quieter", json!({"metadata": {"labels": {"kind": "quiet"}}})).await?;
    world.placed_on("quieter", "d").await?;
    woken(&berth, "own_labels_changed", 0.0).await?;
    world.succeed("hermit").await?;
    world.placed_on("noisy", "d").await?;
    woken(&berth, "anti_affinity_owner_ended", 0.0).await?;

    // Workspace changed.
    world.run(run("shared").runtime("d").workspace("w")).await?;
    world.waits("shared", &["workspace w not found"]).await?;
    world.workspace("w", "d").await?;
    world.placed_on("shared", "d").await?;
    woken(&berth, "workspace_changed", 0.0).await?;
    by_events_alone(&berth).await
}

/// Also: a conflict at bind. What the Run had been counted on goes to the next, and the Run itself is tried again.
#[tokio::test]
async fn a_conflict_at_bind_releases_the_assumption_and_wakes_the_next() -> Result<()> {
    let world = World::new("wake-conflict").await?;
    let proxy = Proxy::start(world.plane).await?;
    let berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    world.pod("p", "bash", &[("runs", "1")]).await?;
    let slow = proxy.inject(Fault::Delay(Duration::from_secs(2)), 1, |seen| seen.is("patch", "runs/status") && seen.name == "one");
    world.run(run("one")).await?;
    until("the bind to be under way", PATIENCE, || async { Ok((slow.hits() > 0).then_some(())) }).await?;
    world.run(run("two")).await?;
    world.is_waiting(&berth, "two").await?;
    world.patch_run("one", json!({"metadata": {"annotations": {"changed": "meanwhile"}}})).await?;
    world.placed_on("two", "p").await?;
    woken(&berth, "assumption_released", 0.0).await?;
    let metrics = berth.metrics().await?;
    ensure!(metrics.sum("kruntimes_scheduler_reservation_conflicts_total", &[("stage", "bind")]) == 1.0);
    ensure!(metrics.sum("scheduler_schedule_attempts_total", &[("result", "error")]) == 1.0);
    world.waits("one", &["1 insufficient runs"]).await?;
    world.succeed("two").await?;
    world.placed_on("one", "p").await?;
    for name in ["one", "two"] {
        // Each was also told that it waits.
        ensure!(world.status_writes(name)? == 2, "{name}: {}", world.status_writes(name)?);
    }
    Ok(())
}

#[tokio::test]
async fn a_retried_run_waits_its_back_off_and_then_goes() -> Result<()> {
    let world = World::new("wake-retry").await?;
    world.pod("p", "bash", &[]).await?;
    world.run(run("again").spec("retryPolicy", json!({"maxAttempts": 3, "backoff": "3s"}))).await?;
    let failed = Timestamp::now();
    let failed_at = time(failed);
    let running = json!({"type": "Running", "status": "False", "reason": "PodGone", "message": "assigned pod was deleted", "lastTransitionTime": failed_at});
    world.run_status("again", json!({"phase": "Pending", "attempt": 2, "conditions": [running]})).await?;
    let berth = world.berth().await?;
    until("the Run to be held", PATIENCE, || async { Ok((world.standing(&berth, "again").await?.as_deref() == Some("backoff")).then_some(())) }).await?;
    world.placed_on("again", "p").await?;
    ensure!(Timestamp::now().as_second() - failed.as_second() >= 3, "not before its time");
    woken(&berth, "retry_due", 0.0).await?;
    let placed = world.runs.get("again").await?.status.unwrap_or_default();
    ensure!(placed.attempt == Some(2), "the attempt stays as it was");
    ensure!(placed.conditions.iter().any(|c| c.type_ == "Running" && c.reason == "PodGone"), "conditions of others are kept: {:?}", placed.conditions);
    Ok(())
}

/// SIGHUP reads `--config` again.
#[tokio::test]
async fn another_profile_wakes_everybody_and_a_bad_one_changes_nothing() -> Result<()> {
    let world = World::new("wake-profile").await?;
    let mut berth = world.berth_with(json!({"profiles": []})).await?;
    world.create_pod("p", "bash", &[]).await?;
    world.pod_status("p", true, Timestamp::now() - SignedDuration::from_hours(1)).await?;
    world.run(run("silent")).await?;
    world.waits("silent", &["1 heartbeat stale"]).await?;
    let file = format!("{}.yaml", world.namespace);
    let config = |args: serde_json::Value| {
        json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration",
            "profiles": [{"pluginConfig": [{"name": "RuntimeReady", "args": args}]}]})
        .to_string()
    };
    world.plane.scratch().write(&file, config(json!({"requireHeartbeat": "perhaps"})))?;
    berth.process().signal("HUP")?;
    until("the log to tell", PATIENCE, || async { Ok(berth.log().contains("the last good one stays in force").then_some(())) }).await?;
    ensure!(wakeups(&berth, "profile_changed").await? == 0.0);
    world.plane.scratch().write(&file, config(json!({"requireHeartbeat": false})))?;
    berth.process().signal("HUP")?;
    world.placed_on("silent", "p").await?;
    woken(&berth, "profile_changed", 0.0).await
}

#[tokio::test]
async fn a_heartbeat_that_expires_changes_the_verdict_and_wakes_nobody() -> Result<()> {
    let world = World::new("wake-stale").await?;
    let berth = world.berth().await?;
    world.pod("full", "bash", &[("runs", "1")]).await?;
    world.run(run("holder")).await?;
    world.placed_on("holder", "full").await?;
    world.run(run("waiter")).await?;
    world.waits("waiter", &["1 insufficient runs"]).await?;
    let total = |metrics: &berth_tests::berth::Metrics| metrics.sum("berth_wakeups_total", &[]);
    let before = total(&berth.metrics().await?);
    let attempts = |metrics: &berth_tests::berth::Metrics| metrics.sum("scheduler_schedule_attempts_total", &[]);
    let attempts_before = attempts(&berth.metrics().await?);
    world.silence("full");
    berth.metric_at_least("berth_pods_went_stale_total", &[], 1.0).await?;
    stays("the number of wake-ups", Duration::from_millis(500), || async { Ok(total(&berth.metrics().await?) == before) }).await?;
    ensure!(attempts(&berth.metrics().await?) == attempts_before, "nobody was tried");
    // The verdict has changed: whoever comes now is told so, and a Run that ends there helps nobody.
    world.run(run("newcomer")).await?;
    world.waits("newcomer", &["0/1 fit: 1 heartbeat stale"]).await?;
    world.succeed("holder").await?;
    stays("the waiter", Duration::from_millis(500), || async { Ok(world.standing(&berth, "waiter").await?.as_deref() == Some("waiting")) }).await?;
    world.pod_status("full", true, Timestamp::now()).await?;
    world.placed_on("waiter", "full").await?;
    woken(&berth, "heartbeat_returned", 0.0).await
}
