//! The image: built by a real engine, small, and started with as little as the chart gives it; there it serves a real API server.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use berth_tests::controlplane::{ControlPlane, checkout};
use berth_tests::engine::Engine;
use berth_tests::helm::Helm;
use berth_tests::process::free_port;
use serde_json::{Value, json};

use crate::live::{Release, endpoint, one_scheduler};
use crate::privilege;
use crate::world::{World, run};

const IMAGE: &str = "berth:test";
/// As the chart's securityContext has it.
const LEAST: &[&str] = &["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=65532:65532"];
/// More would mean that something else came in, or that the debug information stayed.
const BYTES_MAX: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_image_is_built_and_does_its_work_with_the_rights_of_the_chart() -> Result<()> {
    let engine = Engine::start().await?;
    build(&engine)?;
    it_is_one_file_and_nobody_s(&engine)?;
    it_runs_without_anything(&engine)?;
    it_serves_in_a_cluster(&engine).await
}

fn build(engine: &Engine) -> Result<()> {
    let start = Instant::now();
    let output = Command::new(checkout().join("deploy/image/build.sh"))
        .arg(IMAGE)
        .env("PROFILE", "dev")
        .env("DOCKER_HOST", engine.host())
        .env("DOCKER_BUILDKIT", "0")
        .output()?;
    ensure!(output.status.success(), "build.sh: {}", String::from_utf8_lossy(&output.stderr));
    println!("image built in {:?}", start.elapsed());
    Ok(())
}

fn it_is_one_file_and_nobody_s(engine: &Engine) -> Result<()> {
    let inspected: Value = serde_json::from_str(&engine.run(&["image", "inspect", IMAGE])?)?;
    let image = &inspected[0];
    assert_eq!(image["Config"]["User"], "65532:65532");
    assert_eq!(image["Config"]["Entrypoint"], json!(["/berth"]));
    assert_eq!(image["RootFS"]["Layers"].as_array().map(Vec::len), Some(1));
    ensure!(image["Size"].as_u64().is_some_and(|bytes| bytes < BYTES_MAX), "{} bytes", image["Size"]);
    Ok(())
}

fn it_runs_without_anything(engine: &Engine) -> Result<()> {
    let alone = |args: &[&str]| engine.run(&[&["run", "--rm", "--network=none"], LEAST, args].concat());
    ensure!(alone(&[IMAGE, "--version"])?.contains(env!("CARGO_PKG_VERSION")));
    ensure!(alone(&[IMAGE, "serve", "--help"])?.contains("--metrics-addr"));
    let example = checkout().join("examples/data-sharing");
    let mount = volume(&example, "/world");
    // Any other user may run it as well: OpenShift gives each namespace its own.
    let told = alone(&["--user=12345", "--volume", &mount, IMAGE, "simulate", "-f", "/world"])?;
    ensure!(told.contains("ci-build-test") || told.lines().count() > 3, "{told}");
    Ok(())
}

fn volume(from: &Path, to: &str) -> String {
    format!("{}:{to}:ro", from.display())
}

/// Where a container on the host's network finds the API server and its ServiceAccount, as every Pod does; `folder` is for its files.
pub fn as_in_a_pod(engine: &Engine, plane: &ControlPlane, folder: &str, namespace: &str, token: &str) -> Result<Vec<String>> {
    let authority = std::fs::read_to_string(plane.ca_file())?;
    let account = engine.folder(folder, &[("token", token), ("namespace", namespace), ("ca.crt", &authority)])?;
    let api_server: hyper::Uri = plane.url().parse()?;
    let (address, port) = (api_server.host().context("no host")?, api_server.port_u16().context("no port")?);
    // By a name, to see that a static binary with no file beside it resolves names.
    let name = "kubernetes.default.svc";
    Ok(vec![
        "--network=host".to_owned(),
        format!("--add-host={name}:{address}"),
        format!("--env=KUBERNETES_SERVICE_HOST={name}"),
        format!("--env=KUBERNETES_SERVICE_PORT={port}"),
        format!("--volume={}", volume(&account, "/var/run/secrets/kubernetes.io/serviceaccount")),
    ])
}

/// The container is what a kubelet would make of the chart's Pod, except that it shares the host's network to reach the API
/// server: the ServiceAccount's token and the API server's address are where every Pod finds them.
async fn it_serves_in_a_cluster(engine: &Engine) -> Result<()> {
    let _alone = one_scheduler().await;
    let plane = ControlPlane::shared().await?;
    let world = World::new("image").await?;
    let helm = Helm::new()?;
    let release = Release::install(&helm, plane, &json!({"watchNamespace": world.namespace})).await?;

    let found = as_in_a_pod(engine, plane, "account", &release.namespace, &release.account.token)?;
    let port = free_port()?;
    let args = release.args_with(&[("--metrics-addr", format!("127.0.0.1:{port}"))]);
    let mut all = vec!["run", "--detach", "--name=berth"];
    all.extend(found.iter().map(String::as_str));
    all.extend(LEAST);
    all.push(IMAGE);
    all.extend(args.iter().map(String::as_str));
    engine.run(&all)?;

    let placed = async {
        world.pod("p", "bash", &[]).await?;
        world.run(run("a")).await?;
        world.placed_on("a", "p").await
    };
    placed.await.with_context(|| engine.run(&["logs", "berth"]).unwrap_or_default())?;
    assert_eq!(endpoint(port, "/readyz", None).await?.0, 200);

    engine.run(&["stop", "--time=30", "berth"])?;
    let state = engine.run(&["inspect", "--format={{.State.ExitCode}} {{.State.OOMKilled}}", "berth"])?;
    assert_eq!(state.trim(), "0 false", "stopped as asked");
    privilege::nothing_was_refused(plane, &release.account.user)
}
