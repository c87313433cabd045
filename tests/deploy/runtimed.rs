//! The image of the agent and its rights: built by a real engine, started as the chart's Pod has it, it carries out Runs that share a
//! workspace; nothing that it asks for is refused, and no right is unused.

use std::os::unix::fs::chown;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use berth_tests::controlplane::checkout;
use berth_tests::engine::Engine;
use berth_tests::helm::{Helm, RELEASE, object};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::free_port;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::agents::{Agents, outputs, script};
use crate::image::as_in_a_pod;
use crate::live::one_scheduler;
use crate::privilege;
use crate::world::{message, phase};

const IMAGE: &str = "runtimed:test";
/// The agent, and a busybox of 2 MB.
const BYTES_MAX: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_image_carries_out_runs_with_the_rights_of_the_chart_and_none_is_unused() -> Result<()> {
    let engine = Engine::start().await?;
    let output = Command::new(checkout().join("deploy/image/build.sh"))
        .arg(IMAGE)
        .envs([("PROGRAM", "runtimed"), ("PROFILE", "dev"), ("DOCKER_BUILDKIT", "0")])
        .env("DOCKER_HOST", engine.host())
        .output()?;
    ensure!(output.status.success(), "build.sh: {}", String::from_utf8_lossy(&output.stderr));
    let inspected: Value = serde_json::from_str(&engine.run(&["image", "inspect", IMAGE])?)?;
    let image = &inspected[0];
    assert_eq!((&image["Config"]["User"], &image["Config"]["Entrypoint"]), (&json!("65532:65532"), &json!(["/runtimed"])));
    ensure!(image["Size"].as_u64().is_some_and(|bytes| bytes < BYTES_MAX), "{} bytes", image["Size"]);
    ensure!(engine.run(&["run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", IMAGE, "--version"])?.contains(env!("CARGO_PKG_VERSION")));

    let _alone = one_scheduler().await;
    let agents = Agents::new("image-runtimed").await?;
    let objects = Helm::new()?.rendered(
        "runtimed",
        &agents.namespace,
        &json!({"runtimes": [
            {"name": "bash", "capacity": {"runs": 4}},
            {"name": "together", "privilegeSeparation": false},
        ]}),
    )?;
    for (number, runtime) in ["bash", "together"].into_iter().enumerate() {
        let deployment = object(&objects, "Deployment", &format!("{RELEASE}-{runtime}")).context("no Deployment")?;
        let pod = agents.agent_pod(&format!("bash-{number}"), &[("runs", "4")]).await?;
        let name = start(&engine, &agents, deployment, &pod)?;
        let lived = it_does_its_work(&agents, &engine, &name, number).await;
        lived.with_context(|| engine.run(&["logs", &name]).unwrap_or_else(|error| error.to_string()))?;
        engine.run(&["stop", "--time=60", &name])?;
        assert_eq!(engine.run(&["inspect", "--format={{.State.ExitCode}}", &name])?.trim(), "0", "stopped as asked");
        agents.delete_pod(&pod.name_any()).await?;
    }
    let account = format!("{RELEASE}-runtimed");
    let roles: Vec<Value> = objects.into_iter().filter(|object| object["kind"] == "Role" && object["metadata"]["name"] == account.as_str()).collect();
    privilege::nothing_was_refused(agents.plane, &agents.agents.user)?;
    privilege::everything_was_used(agents.plane, &agents.agents.user, &privilege::granted(&roles)?, &[])
}

/// What a kubelet would make of the chart's Pod, on a read-only root, and on the host's network to reach the API server; the container's name.
fn start(engine: &Engine, agents: &Agents<'_>, deployment: &Value, pod: &Pod) -> Result<String> {
    let spec = &deployment["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let name = pod.name_any();
    let workspace = engine.folder(&format!("workspace-{name}"), &[])?;
    if let Some(group) = spec["securityContext"]["fsGroup"].as_u64() {
        chown(&workspace, Some(u32::try_from(group)?), Some(u32::try_from(group)?))?;
    }
    let mut all: Vec<String> =
        ["run", "--detach", "--read-only", "--tmpfs=/tmp", "--security-opt=no-new-privileges", "--cap-drop=ALL"].map(str::to_owned).into();
    all.extend(as_in_a_pod(engine, agents.plane, &format!("account-{name}"), &agents.namespace, &agents.agents.token)?);
    ensure!(container["securityContext"]["allowPrivilegeEscalation"] == false && container["securityContext"]["capabilities"]["drop"] == json!(["ALL"]));
    ensure!(container["securityContext"]["readOnlyRootFilesystem"] == true && container["volumeMounts"].to_string().contains("/tmp"));
    for capability in container["securityContext"]["capabilities"]["add"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        all.push(format!("--cap-add={capability}"));
    }
    all.extend([format!("--name={name}"), format!("--user={}:{}", spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"])]);
    all.push(format!("--volume={}:/workspace", workspace.display()));
    for (variable, value) in [("POD_NAME", name.clone()), ("POD_NAMESPACE", agents.namespace.clone()), ("POD_UID", pod.uid().unwrap_or_default())] {
        all.push(format!("--env={variable}={value}"));
    }
    all.push(IMAGE.to_owned());
    all.extend(container["args"].as_array().context("no args")?.iter().filter_map(|arg| arg.as_str().map(str::to_owned)));
    all.push(format!("--health-addr=127.0.0.1:{}", free_port()?));
    engine.run(&all.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(name)
}

async fn it_does_its_work(agents: &Agents<'_>, engine: &Engine, container: &str, number: usize) -> Result<()> {
    let named = |what: &str| format!("{what}-{number}");
    let files = named("files");
    agents.workspace(&files, "bash").await?;
    agents.workspace_when(&files, "Bound").await?;
    agents.run(script(&named("write"), "id -u; echo data > file; echo user=$(id -u) >> $KRUNTIME_OUTPUTS").workspace(&files)).await?;
    let run = agents.ended(&named("write")).await?;
    ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"user": "65532"}), "{}", message(&run));
    agents.run(script(&named("read"), "echo read=$(cat file) >> $KRUNTIME_OUTPUTS").workspace(&files)).await?;
    let run = agents.ended(&named("read")).await?;
    ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"read": "data"}), "{}", message(&run));
    // An Event, and one that is stopped.
    let again = "[ -e again ] && exit 0; touch again; exit 1";
    agents.run(script(&named("again"), again).workspace(&files).spec("retryPolicy", json!({"maxAttempts": 2, "backoff": "100ms"}))).await?;
    ensure!(phase(&agents.ended(&named("again")).await?) == "Succeeded");
    agents.run(script(&named("cancelled"), "trap '' TERM; echo up; sleep 600")).await?;
    until("it to be up", PATIENCE, || async { Ok(engine.run(&["logs", container])?.contains("\"message\":\"up\"").then_some(())) }).await?;
    agents.cancel(&named("cancelled")).await?;
    ensure!(phase(&agents.ended(&named("cancelled")).await?) == "Cancelled");
    until("the Event", PATIENCE, || async { Ok((!agents.events(&named("again"), "RunRetrying").await?.is_empty()).then_some(())) }).await?;
    agents.workspaces.delete(&files, &DeleteParams::default()).await?;
    until("the workspace to be cleaned and gone", PATIENCE, || async { Ok(agents.workspaces.get_opt(&files).await?.is_none().then_some(())) }).await
}
