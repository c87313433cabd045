//! `berth serve` as a user meets it: the specification's example end to end, readiness, endpoints, flags, the end.

use std::process::Command;

use anyhow::{Result, ensure};
use berth_tests::berth::binary;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::Proxy;
use serde_json::json;

use super::serve_world::{World, condition, message, run};

const WORKFLOW: &str = "workflows.kruntimes.io/workflow";
const JOB: &str = "workflows.kruntimes.io/job";

/// Specification, "示例": a later step runs on the Pod that the earlier one was given, sharing its workspace.
#[tokio::test]
async fn the_specifications_example_places_end_to_end() -> Result<()> {
    let world = World::new("example").await?;
    let mut berth = world.berth().await?;
    for name in ["bash-2", "bash-1", "bash-3"] {
        world.pod(name, "bash", &[("runs", "2")]).await?;
    }
    world.workspace("ci-build-workspace", "bash").await?;
    let bound = world.workspace_when("ci-build-workspace", "Bound").await?.status.unwrap_or_default();
    ensure!(bound.bound_pod.as_deref() == Some("bash-1"), "the first by name, not {:?}", bound.bound_pod);
    ensure!(bound.path.as_deref() == Some("/workspace/persistent/ci-build-workspace"));

    let step = |name: &str| {
        let step = run(name).workspace("ci-build-workspace").label(WORKFLOW, "ci-data-sharing-demo").label(JOB, "build");
        step.requires("runAffinity", WORKFLOW, "ci-data-sharing-demo").requires("runAffinity", JOB, "build")
    };
    world.run(step("ci-build-checkout")).await?;
    world.placed_on("ci-build-checkout", "bash-1").await?;
    world.run(step("ci-build-test")).await?;
    world.placed_on("ci-build-test", "bash-1").await?;

    let placed = world.runs.get("ci-build-test").await?;
    let status = placed.status.clone().unwrap_or_default();
    let pod = world.pods.get("bash-1").await?;
    ensure!(status.assigned_pod_uid == pod.metadata.uid, "assignedPodUID is the Pod's UID");
    ensure!(message(&placed).is_empty(), "no message is left: {}", message(&placed));
    ensure!(condition(&placed, "Scheduled") == Some(("True".into(), "Assigned".into(), "assigned to runtime pod bash-1".into())));

    // The Pod is full; the third step waits for it although two others are empty, and follows when there is room.
    world.run(step("ci-build-publish")).await?;
    world.waits("ci-build-publish", &["0/3 fit", "2 not bound to workspace ci-build-workspace", "1 insufficient runs"]).await?;
    world.succeed("ci-build-checkout").await?;
    world.placed_on("ci-build-publish", "bash-1").await?;

    for (name, reason, type_) in [("ci-build-test", "Scheduled", "Normal"), ("ci-build-publish", "FailedScheduling", "Warning")] {
        let event = world.event(name, reason).await?;
        ensure!(event.0 == type_, "{event:?}");
    }
    ensure!(world.status_writes("ci-build-test")? == 1, "one status write per placement");
    berth.process().must_run()?;
    let (status, log) = berth.terminate().await?;
    ensure!(status.code() == Some(0), "{status}\n{log}");
    ensure!(log.contains("run placed") && !log.contains("ERROR") && !log.contains("panicked"), "{log}");
    Ok(())
}

#[tokio::test]
async fn it_is_ready_only_when_every_cache_is_synced() -> Result<()> {
    let world = World::new("ready").await?;
    world.pod("p", "bash", &[]).await?;
    world.run(run("early")).await?;
    for resource in ["runs", "pods", "persistentworkspaces"] {
        let proxy = Proxy::start(world.plane).await?;
        let list = proxy.inject(berth_tests::proxy::Fault::Hang, usize::MAX, move |seen| seen.is("list", resource));
        let mut berth = world.serve_through(&proxy)?.start(world.plane.scratch())?;
        let not_ready = until("readyz to answer", PATIENCE, || async { Ok(Some(berth.get("/readyz").await?)) }).await?;
        until("the list to hang", PATIENCE, || async { Ok((list.hits() > 0).then_some(())) }).await?;
        let others = |text: &str| ["runs", "pods", "persistentworkspaces"].iter().filter(|name| text.contains(&format!("[+]{name} ok"))).count() == 2;
        until("the other caches to sync", PATIENCE, || async { Ok(others(&berth.get("/readyz").await?.1).then_some(())) }).await?;
        let (code, text) = berth.get("/readyz").await?;
        ensure!(not_ready.0 == 503 && code == 503 && text.contains(&format!("[-]{resource} failed")), "{code} {text}");
        ensure!(berth.get("/livez").await?.0 == 200 && berth.get("/healthz").await?.0 == 200, "alive all the while");
        ensure!(world.status_writes("early")? == 0, "nothing is placed on a half-known cluster");
        // The request that hangs is given up after its time-out; a proxy that lets go is quicker.
        list.remove();
        proxy.partition(true);
        proxy.partition(false);
        if resource == "persistentworkspaces" {
            berth.ready().await?;
            world.placed_on("early", "p").await?;
        }
        let (status, log) = berth.terminate().await?;
        ensure!(status.code() == Some(0), "{status}: {log}");
    }
    Ok(())
}

/// As a terminal and a wrapper send them: only one that comes later ends it at once.
#[tokio::test]
async fn signals_that_come_together_are_one() -> Result<()> {
    let world = World::new("signals").await?;
    let mut berth = world.berth().await?;
    let id = berth.process().id().to_string();
    std::process::Command::new("sh").args(["-c", "kill -s TERM $1; kill -s INT $1", "sh", &id]).status()?;
    let status = berth.process().wait(PATIENCE)?;
    let log = berth.log();
    ensure!(status.code() == Some(0) && log.contains("draining") && !log.contains("leaving at once"), "{status}\n{log}");
    Ok(())
}

#[tokio::test]
async fn the_endpoints_tell_what_goes_on() -> Result<()> {
    let world = World::new("endpoints").await?;
    let berth = world.berth().await?;
    world.run(run("solitary")).await?;
    world.is_waiting(&berth, "solitary").await?;
    let (_, text) = berth.get("/debug/queue").await?;
    let view: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(view["pending"] == 1 && view["truncated"] == false, "{view}");
    ensure!(view["runs"][0]["message"].as_str().is_some_and(|m| m.contains("no Pod has label runtime=bash")), "{view}");
    world.pod("p", "bash", &[]).await?;
    world.placed_on("solitary", "p").await?;

    let metrics = berth.metrics().await?;
    let expected = [
        ("scheduler_schedule_attempts_total", &[("result", "scheduled")][..], 1.0),
        ("scheduler_schedule_attempts_total", &[("result", "unschedulable")], 1.0),
        ("scheduler_cache_size", &[("type", "nodes")], 1.0),
        ("scheduler_cache_size", &[("type", "pods")], 1.0),
        ("berth_wakeups_total", &[("cause", "pod_ready")], 1.0),
        ("scheduler_pod_scheduled_after_flush_total", &[], 0.0),
        ("berth_informer_synced", &[], 3.0),
    ];
    for (name, labels, value) in expected {
        until(&format!("{name}{labels:?} = {value}"), PATIENCE, || async { Ok((berth.metrics().await?.sum(name, labels) == value).then_some(())) }).await?;
    }
    for name in [
        "scheduler_scheduling_attempt_duration_seconds_count",
        "scheduler_pending_pods",
        "scheduler_queue_incoming_pods_total",
        "berth_bind_duration_seconds_count",
        "berth_attempt_duration_seconds_count",
        "rest_client_requests_total",
        "rest_client_request_duration_seconds_count",
        "workqueue_depth",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ] {
        ensure!(metrics.has(name), "{name} is missing");
    }
    let (_, text) = berth.get("/metrics").await?;
    ensure!(!text.contains("solitary") && !text.contains(&world.namespace), "no label comes from a user");
    Ok(())
}

#[tokio::test]
async fn bad_flags_and_files_end_with_2_and_say_why() -> Result<()> {
    let world = World::new("flags").await?;
    let kubeconfig = world.plane.kubeconfig(&world.account.token)?.to_string_lossy().into_owned();
    let bad = json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Capacitty"}]}}}]});
    let config = world.plane.scratch().write("bad-config.yaml", bad.to_string())?.to_string_lossy().into_owned();
    let cases = [
        (vec!["--kubeconfig", &kubeconfig, "--config", &config], "Capacitty"),
        (vec!["--kubeconfig", "/nonexistent"], "/nonexistent"),
        (vec!["--kubeconfig", &kubeconfig, "--config", "/nonexistent.yaml"], "/nonexistent.yaml"),
        (vec!["--log-format", "xml"], "xml"),
        (vec!["--kubeconfig", &kubeconfig, "--leader-elect", "--leader-elect-lease-duration=5s"], "leaderElection.leaseDuration"),
    ];
    for (args, says) in cases {
        let output = Command::new(binary()?).arg("serve").arg("--metrics-addr=127.0.0.1:0").args(&args).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2) && text.contains(says), "{args:?}: {} {text}", output.status);
    }
    Ok(())
}
