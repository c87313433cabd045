//! `berth explain run` on a real API server: a waiting Run, the smallest change, what-ifs, a placed Run, errors.

use anyhow::{Context as _, Result, ensure};
use berth_plugins::Builtin as _;
use berth_scheduler::cli::{self, Streams};
use berth_scheduler::prelude::Registry;
use berth_tests::controlplane::ADMIN;
use serde_json::{Value, json};

use crate::serve_world::{World, run};

/// Exit code, standard output, standard error of one command line.
pub async fn berth(args: Vec<String>) -> Result<(u8, String, String)> {
    // The command makes a runtime of its own, as it does in a process.
    tokio::task::spawn_blocking(move || {
        let (mut input, mut out, mut err) = (std::io::empty(), Vec::new(), Vec::new());
        let args = std::iter::once("berth".to_owned()).chain(args).map(Into::into);
        let code = cli::run(args, Registry::builtin(), &mut Streams { input: &mut input, out: &mut out, err: &mut err });
        Ok((code, String::from_utf8(out)?, String::from_utf8(err)?))
    })
    .await?
}

async fn explain(world: &World<'_>, name: &str, more: &[&str]) -> Result<(u8, String, String)> {
    let kubeconfig = world.plane.kubeconfig(ADMIN)?;
    let mut args: Vec<String> = ["explain", "run", name, "-n", &world.namespace, "--kubeconfig"].map(ToOwned::to_owned).to_vec();
    args.push(kubeconfig.display().to_string());
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    berth(args).await
}

async fn explain_json(world: &World<'_>, name: &str, more: &[&str]) -> Result<Value> {
    let (code, out, err) = explain(world, name, &[&["-o", "json"], more].concat()).await?;
    ensure!(code == 0, "exit {code}: {err}");
    serde_json::from_str(&out).context(out)
}

#[tokio::test]
async fn a_waiting_run_is_told_the_smallest_change_and_a_slot_is_enough() {
    let world = World::new("explain-full").await.unwrap();
    for pod in ["full-0", "full-1", "full-2"] {
        world.pod(pod, "bash", &[("runs", "0")]).await.unwrap();
    }
    world.run(run("waits")).await.unwrap();
    let told = explain_json(&world, "waits", &[]).await.unwrap();
    assert_eq!(told["smallestChanges"], json!(["one more slot on any of 3 Pods"]), "{told:#}");
    assert_eq!(told["waiting"]["message"], "waiting for available runtime pods: 0/3 fit: 3 insufficient runs");
    assert_eq!(told["rejections"], json!([{"plugin": "Capacity", "reason": "InsufficientCapacity", "pods": 3}]));
    assert_eq!(told["pods"].as_array().unwrap().len(), 3);
    // What it asked for is what it takes.
    world.annotate_pod("full-1", "runs", "1").await.unwrap();
    let told = explain_json(&world, "waits", &[]).await.unwrap();
    assert!(told["verdict"].as_str().unwrap().contains("would be placed on full-1 now"), "{told:#}");
    assert_eq!(told["smallestChanges"], json!([]));
    let told = explain_json(&world, "waits", &["--without-pod", "full-1"]).await.unwrap();
    assert_eq!(told["smallestChanges"], json!(["one more slot on any of 2 Pods"]), "as after a drain: {told:#}");
    let (code, out, _) = explain(&world, "waits", &["--without-pod", "nobody"]).await.unwrap();
    assert_eq!(code, 0);
    assert!(out.contains("It waits, and would be placed on full-1 now."), "{out}");
}

#[tokio::test]
async fn another_profile_and_a_missing_workspace_or_target_are_told() {
    let world = World::new("explain-why").await.unwrap();
    world.pod("pod-0", "bash", &[("runs", "0")]).await.unwrap();
    world.run(run("plain")).await.unwrap();
    world.run(run("homeless").workspace("w")).await.unwrap();
    world.run(run("lonely").requires("runAffinity", "app", "x")).await.unwrap();
    world.run(run("nowhere").runtime("none")).await.unwrap();
    let lenient = json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "Capacity"}]}}}]});
    let file = world.plane.scratch().write(&format!("{}-lenient.yaml", world.namespace), lenient.to_string()).unwrap();
    let told = explain_json(&world, "plain", &["--with-config", &file.display().to_string()]).await.unwrap();
    assert!(told["verdict"].as_str().unwrap().contains("would be placed on pod-0"), "{told:#}");
    for (name, change) in [
        ("homeless", "workspace w must be created and become Bound"),
        ("lonely", "label app=x on an active Run of this runtime"),
        ("nowhere", "a Pod with label runtime=none that is ready and has room"),
    ] {
        let told = explain_json(&world, name, &[]).await.unwrap();
        assert_eq!(told["smallestChanges"], json!([change]), "{name}: {told:#}");
    }
    let (code, _, err) = explain(&world, "plain", &["--with-config", "/nonexistent.yaml"]).await.unwrap();
    assert_eq!(code, 2);
    assert!(err.contains("/nonexistent.yaml"), "{err}");
    let (code, _, err) = explain(&world, "absent", &[]).await.unwrap();
    assert_eq!(code, 2);
    assert!(err.contains(&format!("Run {}/absent not found", world.namespace)), "{err}");
    // Of a stranger, once and without what kube makes of the answer.
    let stranger = world.plane.kubeconfig("token-of-a-stranger").unwrap().display().to_string();
    let (code, _, err) = berth(["explain", "run", "plain", "-n", &world.namespace, "--kubeconfig", &stranger].map(ToOwned::to_owned).to_vec()).await.unwrap();
    assert_eq!((code, err), (2, format!("error: cannot get Run {}/plain: refused with 401 Unauthorized: Unauthorized\n", world.namespace)));
    for (flag, code) in [(&*world.namespace, 0), ("other", 2)] {
        let args = [
            "explain",
            "run",
            &format!("{}/plain", world.namespace),
            "-n",
            flag,
            "--kubeconfig",
            &world.plane.kubeconfig(ADMIN).unwrap().display().to_string(),
        ];
        assert_eq!(berth(args.map(ToOwned::to_owned).to_vec()).await.unwrap().0, code, "namespace and name in one, and --namespace {flag}");
    }
}

#[tokio::test]
async fn a_placed_run_and_the_queue_of_a_running_scheduler_are_told() {
    let world = World::new("explain-placed").await.unwrap();
    world.pod("pod-0", "bash", &[("runs", "1")]).await.unwrap();
    let berth = world.berth().await.unwrap();
    world.run(run("first")).await.unwrap();
    world.placed("first").await.unwrap();
    world.run(run("second")).await.unwrap();
    world.waits("second", &["waiting for available runtime pods: 0/1 fit: 1 insufficient runs"]).await.unwrap();
    let told = explain_json(&world, "first", &[]).await.unwrap();
    assert_eq!(told["verdict"], "It is on pod-0, and would be placed on pod-0 now again", "{told:#}");
    let told = explain_json(&world, "second", &["--server", &berth.url()]).await.unwrap();
    assert_eq!(told["queue"]["run"]["standing"], "waiting", "{told:#}");
    assert_eq!(told["shown"]["message"], told["waiting"]["message"], "one source: the condition and explain agree");
    assert_eq!(told["shown"]["reason"], told["waiting"]["reason"]);
    let (_, out, _) = explain(&world, "first", &["--server", &berth.url()]).await.unwrap();
    assert!(out.contains("In the queue: no longer, it is Scheduled; 1 Runs are pending"), "{out}");
    berth.terminate().await.unwrap();
}

#[tokio::test]
async fn a_server_behind_tokens_tells_its_configuration_and_the_run_is_judged_by_it() {
    let world = World::new("explain-live").await.unwrap();
    world.pod("pod-0", "bash", &[("runs", "0")]).await.unwrap();
    let lenient = json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration",
        "profiles": [{"schedulerName": "lenient", "plugins": {"multiPoint": {"disabled": [{"name": "Capacity"}]}}}]});
    let file = world.plane.scratch().write(&format!("{}-lenient.yaml", world.namespace), lenient.to_string()).unwrap();
    let berth = world.serve().unwrap().config(&file).secure(ADMIN).start_ready(world.plane.scratch()).await.unwrap();
    world.run(run("first")).await.unwrap();
    world.placed("first").await.unwrap();
    let url = berth.url();

    // The caller's own credential; the certificate is self-signed.
    let told = explain_json(&world, "first", &["--server", &url, "--server-insecure-skip-tls-verify"]).await.unwrap();
    assert_eq!((&told["judgedBy"], &told["profile"]), (&json!(format!("what is in force at {url}")), &json!("lenient")), "{told:#}");
    assert_eq!(told["verdict"], "It is on pod-0, and would be placed on pod-0 now again", "{told:#}");
    assert!(told["queue"]["pending"].is_number(), "{told:#}");
    let (_, out, _) = explain(&world, "first", &["--server", &url, "--server-insecure-skip-tls-verify"]).await.unwrap();
    assert!(out.contains(&format!("Judged by profile lenient (what is in force at {url}).")), "{out}");
    // A file wins; without either it is the defaults, by which it would not fit.
    let (told, of_file) = (explain_json(&world, "first", &[]).await.unwrap(), file.display().to_string());
    assert_eq!((&told["judgedBy"], &told["profile"]), (&json!("defaults"), &json!("default")), "{told:#}");
    assert_eq!(told["verdict"], "It is on pod-0; placed anew it would fit on no Pod now");
    let told = explain_json(&world, "first", &["--with-config", &of_file, "--server", &url, "--server-insecure-skip-tls-verify"]).await.unwrap();
    assert_eq!(told["judgedBy"], json!(of_file));

    // Whom the server refuses, or who does not trust it, is told so and judged by the defaults.
    let stranger = world.plane.service_account(&world.namespace, "stranger").await.unwrap();
    let token = world.plane.scratch().write(&format!("{}-token", world.namespace), format!("{stranger}\n")).unwrap().display().to_string();
    let wrong = world.plane.scratch().write(&format!("{}-wrong", world.namespace), "wrong").unwrap().display().to_string();
    let authority = world.plane.ca_file().display().to_string();
    for (more, told) in [
        (["--server-token-file", &token, "--server-insecure-skip-tls-verify"].as_slice(), "may not get path \"/configz\""),
        (&["--server-token-file", &wrong, "--server-insecure-skip-tls-verify"], "401 Unauthorized"),
        (&["--server-ca-file", &authority], "certificate"),
        (&[], "certificate"),
    ] {
        let (code, out, err) = explain(&world, "first", &[&["--server", url.as_str()], more].concat()).await.unwrap();
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("judged by the defaults instead") && err.contains(told), "{told}: {err}");
        assert!(out.contains("Judged by profile default (defaults).") && !err.contains(&stranger), "{out}");
    }
    let plain = url.replace("https", "http");
    for (more, told) in [
        (["--server", plain.as_str(), "--server-token-file", &token].as_slice(), "a token is only sent over https"),
        (&["--server", &url, "--server-ca-file", &token], "holds no certificate in PEM"),
        (&["--server", "here:1"], "must begin with https:// or http://"),
        (&["--server-token-file", &token], "--server <URL>"),
    ] {
        let (code, _, err) = explain(&world, "first", more).await.unwrap();
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(told), "{told}: {err}");
    }
}
