//! The specification's example, from its creation to its removal.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::world::{NAMESPACE, World, berth};
use crate::job_world::{History, condition, exit_code, uid};
use crate::world::server;

/// What no output may have.
const CANARY: &str = "canary-of-the-example";
const ALPINE: &str = "docker.io/library/alpine:3.22";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_runs_once_and_tells_the_truth() -> Result<()> {
    let world = World::new("example").await?;
    let history = History::of(world.jobs.clone());
    let engine = &server().await?.engine;
    engine.run(&["tag", berth_tests::opensandbox::BUSYBOX, "alpine:3.22"])?;
    world.secret("example-token", json!({"token": CANARY})).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "example-config"}, "data": {"value": "of the map"}}))?).await?;
    let check = format!(
        "{}\n[ \"$TOKEN\" = {CANARY} ] && [ \"$CONFIG_VALUE\" = 'of the map' ] && [ \"$PWD\" = /workspace ] || exit 3; sleep 4; echo \"hello ${{TARGET}}\"",
        world.tell("hello")
    );
    let task = json!({
        "image": ALPINE, "imagePullSecrets": [], "command": ["/bin/sh", "-c"], "args": [check], "workingDir": "/workspace",
        "env": [
            {"name": "TARGET", "value": "world"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "example-token", "key": "token"}}},
            {"name": "CONFIG_VALUE", "valueFrom": {"configMapKeyRef": {"name": "example-config", "key": "value"}}},
        ],
    });
    let resources = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}});
    let extra = json!({"task": task, "resources": resources, "activeDeadlineSeconds": 600, "ttlSecondsAfterFinished": 3600, "desiredState": "Running"});
    let job = world.job("hello", &[], extra).await?;
    let running = world.running("hello").await?;
    let sandbox = world.sandbox(&uid(&job)).await?;
    // As the server calls it.
    let container = format!("sandbox-{}", sandbox.id);
    let limits = engine.run(&["inspect", "--format={{.HostConfig.NanoCpus}} {{.HostConfig.Memory}}", &container])?;
    assert_eq!(limits.trim(), format!("{} {}", 1_000_000_000, 512 << 20), "limits are enforced");
    let inspected = engine.run(&["inspect", &container])?;
    assert!(inspected.contains("EXECD_ACCESS_TOKEN") && inspected.contains(&uid(&job)), "that is its environment, and its metadata");
    // Where a value must be it is found; what looks for it elsewhere looks while it is there.
    let environs = engine.run(&["exec", &container, "sh", "-c", "cat /proc/[0-9]*/environ"])?;
    assert!(environs.contains(&format!("TOKEN={CANARY}")), "the process has it");
    world.tells_no_secret(server().await?, berth().await?).await?;
    let execution = running.status.as_ref().and_then(|status| status.execution.as_ref()).context("no execution")?;
    assert_eq!((execution.adapter.as_str(), execution.id("Sandbox")), ("opensandbox", Some(sandbox.id.as_str())));

    let ended = world.succeeded("hello", "True", "Completed").await?;
    let status = ended.status.as_ref().context("no status")?;
    assert_eq!(exit_code(&ended), Some(0));
    assert_eq!((condition(&ended, "Accepted"), condition(&ended, "Scheduled")), (("True".into(), "Valid".into()), ("True".into(), "BackendCreated".into())));
    let kinds: Vec<_> = status.execution.iter().flat_map(|execution| &execution.references).map(|reference| reference.type_.as_str()).collect();
    assert_eq!(kinds, ["Sandbox", "Instance", "Command"]);
    let (start, end) = (status.start_time.as_ref().context("no start")?.0, status.completion_time.as_ref().context("no end")?.0);
    assert!(end.duration_since(start).as_secs() >= 3, "{start} to {end}");
    assert_eq!(status.effective_resources.as_ref().map(serde_json::to_value).transpose()?, Some(resources_of()));
    world.nothing_left(&uid(&job)).await?;
    assert_eq!(world.begun("hello"), 1);
    world.tells_no_secret(server().await?, berth().await?).await?;

    world.delete("hello").await?;
    world.gone("hello").await?;
    history.end()?;
    Ok(())
}

fn resources_of() -> serde_json::Value {
    json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}})
}
