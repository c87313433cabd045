//! A configuration that changes while Runs are being placed: in force between two cycles or refused whole, no Run lost or placed twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::{Berth, Serve};
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::serve_world::{World, run};

const HEADER: &str = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\n";
/// From the watch event to the moment the owner has it.
const IN_FORCE_WITHIN_MS: f64 = 1_000.0;

fn text(body: &str) -> String {
    format!("{HEADER}{body}")
}

/// Prefers the emptiest Pod, or the fullest.
fn strategy(name: &str) -> String {
    text(&format!("profiles:\n- pluginConfig:\n  - {{name: Capacity, args: {{strategy: {name}}}}}\n"))
}

/// The ConfigMap of a test.
struct Map {
    api: Api<ConfigMap>,
}

impl Map {
    const NAME: &str = "berth";

    fn of(world: &World<'_>) -> Self {
        Self { api: Api::namespaced(world.client.clone(), &world.namespace) }
    }

    async fn create(&self, text: &str) -> Result<i64> {
        let map = json!({"metadata": {"name": Self::NAME}, "data": {"config.yaml": text}});
        version(&self.api.create(&PostParams::default(), &serde_json::from_value(map)?).await?)
    }

    /// Answers the resource version of the edit.
    async fn edit(&self, text: &str) -> Result<i64> {
        let patch = json!({"data": {"config.yaml": text}});
        version(&self.api.patch(Self::NAME, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    async fn delete(&self) -> Result<()> {
        self.api.delete(Self::NAME, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn version(map: &ConfigMap) -> Result<i64> {
    Ok(map.metadata.resource_version.as_deref().context("a resource version")?.parse()?)
}

fn serve(world: &World<'_>) -> Result<Serve> {
    Ok(world.serve()?.arg("--log-format=json").arg(format!("--config-map={}/{}", world.namespace, Map::NAME)))
}

async fn applied(berth: &Berth, generation: i64) -> Result<()> {
    until(&format!("configuration {generation} in force"), PATIENCE, || async {
        let metrics = berth.metrics().await?;
        let is = metrics.sum("berth_config_applied_generation", &[]) as i64;
        Ok((is == generation && metrics.sum("berth_config_valid", &[]) == 1.0).then_some(()))
    })
    .await
}

async fn refused(berth: &Berth) -> Result<i64> {
    until("the configuration to be refused", PATIENCE, || async {
        let metrics = berth.metrics().await?;
        Ok((metrics.sum("berth_config_valid", &[]) == 0.0).then_some(metrics.sum("berth_config_applied_generation", &[]) as i64))
    })
    .await
}

async fn configz(berth: &Berth) -> Result<Value> {
    let (code, body) = berth.get("/configz").await?;
    ensure!(code == 200, "/configz answered {code}: {body}");
    Ok(serde_json::from_str(&body)?)
}

/// The lines of the log with that message.
fn logged(berth: &Berth, message: &str) -> Vec<Value> {
    berth.log().lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|line| line["message"] == message).collect()
}

/// What the panels *Weights in force* and *Score of the chosen Pods* of the overview dashboard ask for.
#[tokio::test]
async fn a_weight_that_changes_is_seen_in_the_scores_of_the_pods_that_are_chosen() -> Result<()> {
    const BATCH: usize = 8;
    let weights = |affinity: i64, capacity: i64| {
        let enabled = format!("[{{name: RunAffinity, weight: {affinity}}}, {{name: Capacity, weight: {capacity}}}]");
        text(&format!("profiles: [{{schedulerName: ci, plugins: {{multiPoint: {{enabled: {enabled}}}}}}}]\n"))
    };
    let world = World::new("config-weights").await?;
    let map = Map::of(&world);
    map.create(&weights(1, 100)).await?;
    for n in 0..4 {
        world.pod(&format!("p{n}"), "bash", &[("runs", "30")]).await?;
    }
    let berth = serve(&world)?.start_ready(world.plane.scratch()).await?;
    world.run(run("leader").label("app", "x")).await?;
    world.placed("leader").await?;
    // Weights in force, and the mean of RunAffinity's and Capacity's scores over the placements of one batch.
    let batch = async |name: &str| {
        let told = async |metric: &str, plugin: &str| anyhow::Ok(berth.metrics().await?.sum(metric, &[("profile", "ci"), ("plugin", plugin)]));
        let before = [told("berth_chosen_score_total", "RunAffinity").await?, told("berth_chosen_score_total", "Capacity").await?];
        for n in 0..BATCH {
            // One after the other: each sees where the last one went.
            world.run(run(&format!("{name}-{n}")).prefers("runAffinity", 5, "app", "x")).await?;
            world.placed(&format!("{name}-{n}")).await?;
        }
        let mut means = [0.0; 2];
        for (at, plugin) in ["RunAffinity", "Capacity"].into_iter().enumerate() {
            means[at] = (told("berth_chosen_score_total", plugin).await? - before[at]) / BATCH as f64;
        }
        anyhow::Ok(([told("berth_plugin_weight", "RunAffinity").await?, told("berth_plugin_weight", "Capacity").await?], means))
    };
    let (in_force, [affinity, capacity]) = batch("spread").await?;
    ensure!(in_force == [1.0, 100.0], "{in_force:?}");
    ensure!(affinity < 40.0, "load decides: the leader's Pod is one of four, but the mean is {affinity}");
    applied(&berth, map.edit(&weights(100, 1)).await?).await?;
    let (in_force, [with_weight, at_the_cost]) = batch("together").await?;
    ensure!(in_force == [100.0, 1.0], "{in_force:?}");
    ensure!((with_weight - 100.0).abs() < 0.01, "every Run is with its leader, but the mean is {with_weight}");
    ensure!(at_the_cost < capacity, "which costs balance: {at_the_cost} after {capacity}");
    // A profile that is no more takes its series with it.
    applied(&berth, map.edit(&text("profiles: [{schedulerName: other}]\n")).await?).await?;
    let (_, text) = berth.get("/metrics").await?;
    let left: Vec<&str> = text.lines().filter(|line| line.contains("profile=\"ci\"")).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn edits_under_load_come_into_force_within_a_second_and_no_run_is_lost_or_placed_twice() -> Result<()> {
    const RUNS: usize = 240;
    const EDITS: usize = 12;
    let world = World::new("config-load").await?;
    let map = Map::of(&world);
    map.create(&strategy("LeastAllocated")).await?;
    for n in 0..12 {
        world.pod(&format!("p{n:02}"), "bash", &[("runs", "30")]).await?;
    }
    let berth = serve(&world)?.start_ready(world.plane.scratch()).await?;
    let load = async {
        for batch in 0..RUNS / 8 {
            let batch = (0..8).map(|n| format!("r{:03}", batch * 8 + n)).collect::<Vec<_>>();
            futures::future::try_join_all(batch.iter().map(|name| world.run(run(name)))).await?;
        }
        anyhow::Ok(())
    };
    let edits = async {
        let mut last = 0;
        for n in 0..EDITS {
            if n % 3 == 2 {
                map.edit(&text("profiles: [{plugins: {score: {enabled: [{name: Capacity, weight: 0}]}}}]\n")).await?;
                ensure!(refused(&berth).await? == last, "the last good one is in force");
            }
            last = map.edit(&strategy(if n % 2 == 0 { "MostAllocated" } else { "LeastAllocated" })).await?;
            let start = Instant::now();
            applied(&berth, last).await?;
            ensure!(start.elapsed() < Duration::from_secs(5), "in force after {:?}", start.elapsed());
        }
        Ok(())
    };
    tokio::try_join!(load, edits)?;
    let mut per_pod: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..RUNS {
        *per_pod.entry(world.placed(&format!("r{n:03}")).await?).or_default() += 1;
    }
    ensure!(per_pod.values().sum::<usize>() == RUNS && per_pod.values().all(|runs| *runs <= 30), "{per_pod:?}");
    // There was always room: one write each, the placement.
    let writes = world.writes_by_run()?;
    ensure!(writes.len() == RUNS && writes.values().all(|n| *n == 1), "{writes:?}");
    let lines = logged(&berth, "configuration in force");
    ensure!(lines.len() == EDITS, "{} of {EDITS} edits in force", lines.len());
    for line in lines {
        let took = line["took_ms"].as_f64().context("took_ms")?;
        ensure!(took < IN_FORCE_WITHIN_MS, "{took} ms from the watch event to in force");
    }
    ensure!(logged(&berth, "configuration refused as a whole; the last good one stays in force").len() == EDITS / 3);
    let metrics = berth.metrics().await?;
    ensure!(metrics.sum("scheduler_pod_scheduled_after_flush_total", &[]) == 0.0, "a wake-up was lost");
    Ok(())
}

#[tokio::test]
async fn a_valid_edit_changes_placements_and_an_invalid_one_is_told_where_operators_look() -> Result<()> {
    let world = World::new("config-edit").await?;
    let map = Map::of(&world);
    map.create(&strategy("LeastAllocated")).await?;
    world.pod("big", "bash", &[("runs", "10")]).await?;
    world.pod("small", "bash", &[("runs", "2")]).await?;
    let berth = serve(&world)?.start_ready(world.plane.scratch()).await?;
    world.run(run("one")).await?;
    world.placed_on("one", "big").await?;

    let good = map.edit(&strategy("MostAllocated")).await?;
    applied(&berth, good).await?;
    world.run(run("two")).await?;
    world.placed_on("two", "small").await?;

    // Everything that is wrong, not only the first.
    map.edit(&text("bindWorkers: 0\nprofiles:\n- pluginConfig:\n  - {name: Capasity, args: {}}\n")).await?;
    ensure!(refused(&berth).await? == good, "the last good one is in force");
    let event = world.event(Map::NAME, "InvalidConfiguration").await?;
    let source = format!("{}/berth[config.yaml]", world.namespace);
    for wanted in [
        format!("{source}:3:14: bindWorkers: must be 1 to 1024, not 0"),
        format!("{source}:6:12: profiles[0].pluginConfig[0].name: unknown plugin \"Capasity\"; did you mean Capacity?"),
    ] {
        ensure!(event.0 == "Warning" && event.1.contains(&wanted) && !event.1.contains('\n'), "{event:?} lacks {wanted}");
        ensure!(berth.log().contains(&wanted.replace('"', "\\\"")), "the log lacks {wanted}");
    }
    let strategy_of = |configuration: &Value| configuration["profiles"][0]["pluginConfig"][3]["args"]["strategy"].clone();
    ensure!(strategy_of(&configz(&berth).await?) == "MostAllocated", "{:?}", configz(&berth).await?);
    world.run(run("three")).await?;
    world.placed_on("three", "small").await?;

    // What can't change while it runs makes the whole edit invalid.
    map.edit(&format!("{}bindWorkers: 5\n", strategy("LeastAllocated"))).await?;
    until("the log to name bindWorkers", PATIENCE, || async { Ok(berth.log().contains("can't change while berth runs: is 32, would be 5").then_some(())) })
        .await?;
    ensure!(refused(&berth).await? == good, "the last good one is in force");

    // Deleted: the last good one stays. Made again: it is taken.
    map.delete().await?;
    until("the log to tell the deletion", PATIENCE, || async { Ok(berth.log().contains("the configuration was deleted").then_some(())) }).await?;
    ensure!(refused(&berth).await? == good, "a restart would have none: that is told");
    ensure!(strategy_of(&configz(&berth).await?) == "MostAllocated");
    let again = map.create(&strategy("LeastAllocated")).await?;
    applied(&berth, again).await?;
    world.run(run("four")).await?;
    world.placed_on("four", "big").await
}

#[tokio::test]
async fn at_the_start_a_missing_config_map_is_waited_for_and_an_invalid_one_ends_the_process() -> Result<()> {
    let world = World::new("config-start").await?;
    let map = Map::of(&world);
    world.pod("p", "bash", &[]).await?;
    world.run(run("r")).await?;
    let mut berth = serve(&world)?.start(world.plane.scratch())?;
    until("alive, not ready", PATIENCE, || async {
        let Ok((code, body)) = berth.get("/readyz").await else { return Ok(None) };
        ensure!(code == 503, "/readyz answered {code}: {body}");
        Ok((body.contains("[-]configuration failed") && berth.get("/livez").await?.0 == 200).then_some(()))
    })
    .await?;
    ensure!(berth.metrics().await?.sum("berth_config_valid", &[]) == 0.0);
    ensure!(logged(&berth, "waiting for the configuration; nothing is placed until it is there").len() == 1, "{}", berth.log());
    let generation = map.create(&strategy("LeastAllocated")).await?;
    berth.ready().await?;
    applied(&berth, generation).await?;
    world.placed_on("r", "p").await?;
    let (status, log) = berth.terminate().await?;
    ensure!(status.success(), "{status}: {log}");

    map.edit(&text("profiles: [{runtimes: [x]}]\nbindWorkers: -1\n")).await?;
    let mut berth = serve(&world)?.start(world.plane.scratch())?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = berth.process().exited()? {
            break status;
        }
        ensure!(start.elapsed() < PATIENCE, "it goes on: {}", berth.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let log = berth.log();
    ensure!(status.code() == Some(2) && log.contains("bindWorkers: must be 1 to 1024, not -1") && log.contains("must be without runtimes"), "{status}: {log}");
    Ok(())
}

#[tokio::test]
async fn a_file_is_followed_and_flags_win_over_it() -> Result<()> {
    let world = World::new("config-file").await?;
    world.pod("big", "bash", &[("runs", "10")]).await?;
    world.pod("small", "bash", &[("runs", "2")]).await?;
    let name = format!("{}-live.yaml", world.namespace);
    let write = |text: &str| world.plane.scratch().write(&name, text);
    let file = write(&strategy("LeastAllocated"))?;
    let berth = world.serve()?.config(&file).arg("--bind-workers=3").start_ready(world.plane.scratch()).await?;
    ensure!(configz(&berth).await?["bindWorkers"] == 3);
    applied(&berth, 1).await?;
    write(&strategy("MostAllocated"))?;
    applied(&berth, 2).await?;
    world.run(run("one")).await?;
    world.placed_on("one", "small").await?;
    write("profiles: [")?;
    ensure!(refused(&berth).await? == 2, "the last good one is in force");
    std::fs::remove_file(&file)?;
    until("the log to tell the loss", PATIENCE, || async { Ok(berth.log().contains("the configuration can't be read").then_some(())) }).await?;
    world.run(run("two")).await?;
    world.placed_on("two", "small").await?;
    // A pipe, from which a reader would wait for ever.
    ensure!(std::process::Command::new("mkfifo").arg(&file).status()?.success());
    until("the log to tell the pipe", PATIENCE, || async { Ok(berth.log().contains("is not a regular file").then_some(())) }).await?;
    std::fs::remove_file(&file)?;
    write(&strategy("LeastAllocated"))?;
    applied(&berth, 3).await?;
    world.run(run("three")).await?;
    world.placed_on("three", "big").await
}

#[tokio::test]
async fn a_shadow_is_compared_with_the_active_profile_and_changes_nothing() -> Result<()> {
    let world = World::new("config-shadow").await?;
    Map::of(&world)
        .create(&text(
            "profiles:\n- schedulerName: active\n- {schedulerName: same, shadow: true}\n\
             - {schedulerName: pack, shadow: true, pluginConfig: [{name: Capacity, args: {strategy: MostAllocated}}]}\n\
             - {schedulerName: elsewhere, shadow: true, runtimes: [other]}\n",
        ))
        .await?;
    world.pod("big", "bash", &[("runs", "10")]).await?;
    world.pod("small", "bash", &[("runs", "2")]).await?;
    let berth = serve(&world)?.start_ready(world.plane.scratch()).await?;
    for name in ["a", "b"] {
        world.run(run(name)).await?;
        world.placed_on(name, "big").await?;
    }
    berth.metric_at_least("berth_shadow_agreement_total", &[("profile", "pack"), ("result", "disagree")], 2.0).await?;
    let metrics = berth.metrics().await?;
    let sum = |profile, result| metrics.sum("berth_shadow_agreement_total", &[("profile", profile), ("result", result)]);
    ensure!(sum("same", "agree") >= 2.0 && sum("same", "disagree") == 0.0 && sum("pack", "agree") == 0.0 && sum("elsewhere", "agree") == 0.0);
    let lines = logged(&berth, "shadow profile disagrees");
    ensure!(lines.len() == 1, "bounded: {lines:?}");
    ensure!(lines[0]["shadow"] == "pack" && lines[0]["pod"] == "big" && lines[0]["shadow_pod"] == "small", "{lines:?}");
    ensure!(metrics.sum("scheduler_schedule_attempts_total", &[("profile", "pack")]) == 0.0, "a shadow makes no attempts");
    Ok(())
}
