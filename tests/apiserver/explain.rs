//! `berth explain run` on a real API server: verdicts and scores, the smallest change, what-ifs, errors. See also `explain_rules`, `explain_queue`.

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

pub async fn explain(world: &World<'_>, name: &str, more: &[&str]) -> Result<(u8, String, String)> {
    let kubeconfig = world.plane.kubeconfig(ADMIN)?;
    let mut args: Vec<String> = ["explain", "run", name, "-n", &world.namespace, "--kubeconfig"].map(ToOwned::to_owned).to_vec();
    args.push(kubeconfig.display().to_string());
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    berth(args).await
}

pub async fn explain_json(world: &World<'_>, name: &str, more: &[&str]) -> Result<Value> {
    let (code, out, err) = explain(world, name, &[&["-o", "json"], more].concat()).await?;
    ensure!(code == 0, "exit {code}: {err}");
    serde_json::from_str(&out).context(out)
}

#[tokio::test]
async fn a_waiting_run_is_told_the_smallest_change_and_a_slot_is_enough() {
    let world = World::new("explain-full").await.unwrap();
    for pod in ["full-0", "full-1", "full-2"] {
        world.pod(pod, "bash", &[("runs", "2")]).await.unwrap();
    }
    world.pod("drained", "bash", &[("runs", "0")]).await.unwrap();
    world.run(run("waits").request("runs", 3)).await.unwrap();
    let told = explain_json(&world, "waits", &[]).await.unwrap();
    assert_eq!(told["smallestChanges"], json!(["one more slot on any of 3 Pods"]), "{told:#}");
    assert_eq!(told["waiting"]["message"], "waiting for available runtime pods: 0/4 fit: 4 insufficient runs");
    assert_eq!(told["rejections"], json!([{"plugin": "Capacity", "reason": "InsufficientCapacity", "pods": 4}]));
    let verdict = |plugin: &str, reason: Value, message: &str| json!({"plugin": plugin, "reason": reason, "message": message});
    let verdicts = |last: Value, message: &str| {
        let passes = ["RuntimeReady", "WorkspaceFencing", "RunAffinity"].map(|plugin| verdict(plugin, Value::Null, ""));
        Value::from([passes.as_slice(), &[verdict("Capacity", last, message)]].concat())
    };
    let full = verdicts(json!("InsufficientCapacity"), "insufficient runs");
    let pods = ["drained", "full-0", "full-1", "full-2"].map(|pod| json!({"pod": pod, "fits": false, "chosen": false, "verdicts": full, "score": null}));
    assert_eq!(told["pods"], json!(pods));
    // What it asked for is what it takes.
    world.annotate_pod("full-1", "runs", "4").await.unwrap();
    let told = explain_json(&world, "waits", &[]).await.unwrap();
    let score = json!({"pod": "full-1", "total": 25.0, "byPlugin": {"Capacity": 25.0, "RunAffinity": 0.0}});
    assert_eq!(told["pods"][2], json!({"pod": "full-1", "fits": true, "chosen": true, "verdicts": verdicts(Value::Null, ""), "score": score}));
    assert_eq!((&told["wouldTake"], &told["waiting"]), (&json!("full-1"), &Value::Null));
    assert!(told["verdict"].as_str().unwrap().contains("would be placed on full-1 now"), "{told:#}");
    assert_eq!(told["smallestChanges"], json!([]));
    let told = explain_json(&world, "waits", &["--without-pod", "full-1"]).await.unwrap();
    assert_eq!(told["smallestChanges"], json!(["one more slot on any of 2 Pods"]), "as after a drain: {told:#}");
    let (code, out, _) = explain(&world, "waits", &["--without-pod", "nobody"]).await.unwrap();
    assert_eq!(code, 0);
    assert!(out.contains("It waits, and would be placed on full-1 now."), "{out}");
    assert!(out.lines().any(|line| line.trim_start().starts_with("full-1") && line.contains("would take")), "{out}");
}

#[tokio::test]
async fn another_profile_and_a_missing_workspace_or_target_are_told() {
    let world = World::new("explain-why").await.unwrap();
    world.pod("pod-0", "bash", &[("runs", "0")]).await.unwrap();
    world.run(run("plain")).await.unwrap();
    world.run(run("homeless").workspace("w")).await.unwrap();
    world.run(run("lonely").requires("runAffinity", "app", "x")).await.unwrap();
    world.run(run("nowhere").runtime("none")).await.unwrap();
    for (workspace, runtime) in [("of-bash", "bash"), ("of-none", "none")] {
        world.workspace(workspace, runtime).await.unwrap();
    }
    world.run(run("unbound").workspace("of-bash")).await.unwrap();
    world.run(run("podless").runtime("none").workspace("of-none")).await.unwrap();
    let lenient = json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "Capacity"}]}}}]});
    let file = world.plane.scratch().write(&format!("{}-lenient.yaml", world.namespace), lenient.to_string()).unwrap();
    let told = explain_json(&world, "plain", &["--with-config", &file.display().to_string()]).await.unwrap();
    assert!(told["verdict"].as_str().unwrap().contains("would be placed on pod-0"), "{told:#}");
    for (name, change) in [
        ("homeless", "workspace w must be created and become Bound"),
        ("lonely", "label app=x on an active Run of this runtime"),
        ("nowhere", "a Pod with label runtime=none that is ready and has room"),
        ("unbound", "workspace of-bash must be Bound"),
        ("podless", "workspace of-none must be Bound, which needs a Pod with label runtime=none that is ready"),
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
    for name in ["", "/plain", "ns/", "a b", "a?b"] {
        let (code, _, err) = berth(["explain", "run", name].map(ToOwned::to_owned).to_vec()).await.unwrap();
        assert_eq!((code, err), (2, format!("error: {name:?} is not the name of a Run; it must be NAME or NAMESPACE/NAME\n")));
    }
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
