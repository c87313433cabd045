//! Every stage and plugin of the default profile on a real API server: what keeps a Pod out, what makes it the best, what is written.

use anyhow::{Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::serve_world::{World, run};

#[tokio::test]
async fn runtime_ready_charges_each_pod_with_its_own_reason() -> Result<()> {
    let world = World::new("plugin-ready").await?;
    let berth = world.berth().await?;
    world.create_pod("not-running", "bash", &[]).await?;
    world.create_pod("not-ready", "bash", &[]).await?;
    world.pod_status("not-ready", false, Timestamp::now()).await?;
    world.create_pod("stale", "bash", &[]).await?;
    world.pod_status("stale", true, Timestamp::now() - SignedDuration::from_hours(1)).await?;
    world.create_pod("skewed", "bash", &[("runs", "0")]).await?;
    // A clock ahead is fresh for 15 s after first sight: charged to Capacity, not to RuntimeReady.
    world.pod_status("skewed", true, Timestamp::now() + SignedDuration::from_hours(1)).await?;
    world.run(run("r")).await?;
    world.waits("r", &["0/4 fit", "1 not running", "1 not ready", "1 heartbeat stale", "1 insufficient runs"]).await?;
    for (plugin, reason) in [("RuntimeReady", "PodNotRunning"), ("RuntimeReady", "HeartbeatStale"), ("Capacity", "InsufficientCapacity")] {
        berth.metric_at_least("kruntimes_scheduler_filter_rejections_total", &[("plugin", plugin), ("reason", reason)], 1.0).await?;
    }
    world.pod("ok", "bash", &[]).await?;
    world.placed_on("r", "ok").await
}

#[tokio::test]
async fn capacity_counts_every_resource_and_never_overcommits() -> Result<()> {
    let world = World::new("plugin-capacity").await?;
    let _berth = world.berth().await?;
    world.pod("gpu", "bash", &[("runs", "4"), ("gpu", "2")]).await?;
    world.pod("plain", "bash", &[]).await?;
    // `runs` is 2 where nothing is said; gpu is nowhere but on one Pod.
    world.run(run("two-gpus").request("gpu", 2)).await?;
    world.placed_on("two-gpus", "gpu").await?;
    world.run(run("one-more").request("gpu", 1)).await?;
    world.waits("one-more", &["0/2 fit: 2 insufficient gpu"]).await?;
    world.run(run("big").request("runs", 3)).await?;
    world.placed_on("big", "gpu").await?;
    for name in ["a", "b"] {
        world.run(run(name)).await?;
        world.placed_on(name, "plain").await?;
    }
    world.run(run("c")).await?;
    world.waits("c", &["0/2 fit: 2 insufficient runs"]).await?;
    world.succeed("two-gpus").await?;
    for name in ["one-more", "c"] {
        // Freed: 1 of `runs`, 2 of `gpu`. The older waiter that fits goes first.
        if name == "one-more" { world.placed_on(name, "gpu").await? } else { world.waits(name, &["2 insufficient runs"]).await.map(|_| ())? }
    }
    Ok(())
}

#[tokio::test]
async fn ignored_capacity_annotations_are_told_by_an_event() -> Result<()> {
    let world = World::new("plugin-badcap").await?;
    let berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "-1"), ("gpu", "many")]).await?;
    let event = world.event("p", "InvalidCapacity").await?;
    ensure!(event.0 == "Warning" && event.1.contains("runs=\"-1\"") && event.1.contains("gpu=\"many\""), "{event:?}");
    ensure!(berth.log().contains("capacity is no quantity from 0 to 9223372036854775807 and is ignored"), "{}", berth.log());
    world.run(run("r")).await?;
    world.placed_on("r", "p").await
}

#[tokio::test]
async fn the_emptiest_pod_is_best_and_a_profile_can_turn_that_round() -> Result<()> {
    for (strategy, first, second) in [("LeastAllocated", "big", "big"), ("MostAllocated", "small", "small")] {
        let world = World::new("plugin-score").await?;
        let args = json!({"profiles": [{"schedulerName": "scored", "pluginConfig": [{"name": "Capacity", "args": {"strategy": strategy}}]}]});
        world.pod("big", "bash", &[("runs", "10")]).await?;
        world.pod("small", "bash", &[("runs", "2")]).await?;
        let berth = world.berth_with(args).await?;
        // Idle, a small Pod would be half full (50), the big one a tenth (90).
        world.run(run("one")).await?;
        world.placed_on("one", first).await?;
        world.run(run("two")).await?;
        world.placed_on("two", second).await?;
        berth.metric_at_least("scheduler_schedule_attempts_total", &[("result", "scheduled"), ("profile", "scored")], 2.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn affinity_attracts_and_anti_affinity_spreads() -> Result<()> {
    let world = World::new("plugin-affinity").await?;
    let _berth = world.berth().await?;
    for name in ["p1", "p2", "p3"] {
        world.pod(name, "bash", &[("runs", "10")]).await?;
    }
    // Spread: each on a Pod of its own, the fourth nowhere.
    let spread = |name: &str| run(name).label("set", "spread").requires("runAntiAffinity", "set", "spread");
    let mut pods = std::collections::BTreeSet::new();
    for name in ["s1", "s2", "s3"] {
        world.run(spread(name)).await?;
        pods.insert(world.placed(name).await?);
    }
    ensure!(pods.len() == 3, "{pods:?}");
    world.run(spread("s4")).await?;
    world.waits("s4", &["0/3 fit: 3 with a Run matching required anti-affinity"]).await?;

    // Cohort: the first seeds, the others follow, assumed or stored.
    let cohort = |name: &str| run(name).label("cohort", "c").requires("runAffinity", "cohort", "c");
    for name in ["c1", "c2", "c3", "c4"] {
        world.run(cohort(name)).await?;
    }
    let home = world.placed("c1").await?;
    for name in ["c2", "c3", "c4"] {
        world.placed_on(name, &home).await?;
    }

    // A preference outweighs load, and never filters.
    world.run(run("near").prefers("runAffinity", 100, "cohort", "c")).await?;
    world.placed_on("near", &home).await?;
    world.run(run("far").prefers("runAntiAffinity", 100, "cohort", "c")).await?;
    ensure!(world.placed("far").await? != home);
    world.run(run("unmet").prefers("runAffinity", 100, "nobody", "has-this")).await?;
    world.placed("unmet").await?;

    // Two that wait for each other are told so.
    world.run(run("egg").label("is", "egg").requires("runAffinity", "is", "hen")).await?;
    world.run(run("hen").label("is", "hen").requires("runAffinity", "is", "egg")).await?;
    let namespace = &world.namespace;
    world.waits("hen", &[&format!("waits for {namespace}/egg, which waits for it")]).await?;
    Ok(())
}
