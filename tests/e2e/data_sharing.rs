//! `examples/ci-data-sharing` from `helm install` to its outputs, byte for byte, on a real node; then what happens to the Pods.

use anyhow::{Context as _, Result, ensure};
use berth_api::{PersistentWorkspace, Run};
use berth_tests::node::Service;
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, LogParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::cluster::{Cluster, OTHER_IMAGE, berth};
use crate::serve_world::{message, phase, run};

const NAMESPACE: &str = "ci";
/// Who Runs run as.
const USER: &str = "65532";
/// Processes of that user, on the whole node, where the agent may make no cgroup.
const PIDS_MAX: usize = 200;

struct Ci {
    cluster: Cluster,
    runs: Api<Run>,
    workspaces: Api<PersistentWorkspace>,
}

impl Ci {
    async fn when(&self, name: &str, wanted: impl Fn(&Run) -> bool) -> Result<Run> {
        let found = until(&format!("Run {name}"), PATIENCE * 2, || async {
            let run = self.runs.get(name).await?;
            Ok(wanted(&run).then_some(run))
        })
        .await;
        match found {
            Ok(run) => Ok(run),
            Err(error) => {
                let status = self.runs.get(name).await.map(|run| run.status);
                Err(error.context(format!("{status:?}\n{}", self.cluster.describe(NAMESPACE).await)))
            }
        }
    }

    async fn ended(&self, name: &str) -> Result<Run> {
        self.when(name, |run| ["Succeeded", "Failed", "Timeout", "Cancelled"].contains(&phase(run))).await
    }

    async fn script(&self, name: &str, text: &str, spec: Value) -> Result<()> {
        let mut draft = run(name).spec("source", json!({ "inline": text }));
        for (field, value) in spec.as_object().context("an object")? {
            draft = draft.spec(field, value.clone());
        }
        self.runs.create(&PostParams::default(), &draft.build()?).await?;
        Ok(())
    }

    async fn logs(&self, name: &str, more: &[&str]) -> Result<(i32, String, String)> {
        berth(&self.cluster.plane, &[&["logs", "run", name, "-n", NAMESPACE], more].concat()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_helm_install_to_shared_files_and_through_the_loss_of_pods() -> Result<()> {
    let start = std::time::Instant::now();
    let cluster = Cluster::start().await?;
    eprintln!("images and node after {:?}", start.elapsed());
    // An image of the user's own, into which the agent is put; without privilege separation.
    let own = json!({"name": "own", "image": OTHER_IMAGE, "imagePullPolicy": "Never", "privilegeSeparation": false});
    cluster
        .install(
            NAMESPACE,
            &json!({"runtimes": [{"name": "bash", "capacity": {"runs": 6}, "args": [format!("--run-pids-max={PIDS_MAX}")]}, own], "logging": {"verbosity": 1}}),
        )
        .await?;
    eprintln!("chart installed after {:?}", start.elapsed());
    let client = cluster.plane.admin()?;
    let ci = Ci { runs: Api::namespaced(client.clone(), NAMESPACE), workspaces: Api::namespaced(client, NAMESPACE), cluster };
    the_example_does_what_its_readme_says(&ci).await?;
    eprintln!("example done after {:?}", start.elapsed());
    an_image_of_one_s_own_gets_the_agent(&ci).await?;
    output_can_be_read_and_followed(&ci).await?;
    a_run_reads_neither_the_token_nor_the_agent(&ci).await?;
    a_fork_bomb_is_bounded_as_the_log_says(&ci).await?;
    a_crash_of_the_agent_hurts_nobody(&ci).await?;
    runs_go_on_without_the_kubelet(&ci).await?;
    a_deleted_pod_takes_its_workspace_and_a_new_one_serves(&ci).await?;
    a_namesake_is_another_pod(&ci).await?;
    eprintln!("all done after {:?}", start.elapsed());
    Ok(())
}

async fn the_example_does_what_its_readme_says(ci: &Ci) -> Result<()> {
    for file in ["workspace.yaml", "runs.yaml"] {
        ci.cluster.apply(&format!("examples/ci-data-sharing/{file}")).await?;
    }
    let readme = std::fs::read_to_string(berth_tests::controlplane::checkout().join("examples/ci-data-sharing/README.md"))?;
    let mut pods = std::collections::BTreeSet::new();
    for step in ["ci-build-checkout", "ci-build-test", "ci-build-package"] {
        let run = ci.ended(step).await?;
        ensure!(phase(&run) == "Succeeded", "{step}: {}", message(&run));
        let status = run.status.clone().unwrap_or_default();
        let line = format!("{step} {}", serde_json::to_string(&status.outputs)?);
        ensure!(readme.lines().any(|promised| promised.trim() == line), "the README does not promise: {line}");
        pods.insert(status.assigned_pod);
    }
    ensure!(pods.len() == 1, "all on the Pod of the workspace: {pods:?}");
    // The files themselves, where the Pod's volume is on the node.
    let workspace = ci.workspaces.get("ci-build").await?.status.unwrap_or_default();
    let volume = ci.cluster.node.empty_dir(workspace.bound_pod_uid.as_deref().unwrap_or_default(), "workspace");
    let file = |name: &str| std::fs::read(volume.join("persistent/ci-build").join(name)).with_context(|| format!("{name} in {}", volume.display()));
    let greet = b"#!/bin/sh\necho \"hello, ${1:-world}\"\n";
    let expected = b"hello, world\nhello, berth\n";
    ensure!(file("src/greet.sh")? == greet && file("src/expected")? == expected && file("result")? == expected);
    ensure!(file("package")? == [&greet[..], expected, expected].concat());
    Ok(())
}

async fn an_image_of_one_s_own_gets_the_agent(ci: &Ci) -> Result<()> {
    ci.script("own", "id -u; cat /own", json!({"runtime": "own"})).await?;
    let run = ci.ended("own").await?;
    let (_, out, _) = ci.logs("own", &[]).await?;
    ensure!(phase(&run) == "Succeeded" && out == "65532\nof the user\n", "{}: {out}", message(&run));
    Ok(())
}

async fn output_can_be_read_and_followed(ci: &Ci) -> Result<()> {
    let (code, out, err) = ci.logs("ci-build-test", &[]).await?;
    ensure!(code == 0 && out == "hello, world\nhello, berth\n" && err.is_empty(), "{code}: {out}{err}");
    let (_, out, _) = ci.logs("ci-build-package", &["-f"]).await?;
    ensure!(out.starts_with("#!/bin/sh\necho \"hello,"), "{out}");
    // Followed from before the start, over a second attempt.
    let text = "echo begin; echo to-stderr >&2; [ -e /workspace/persistent/ci-build/second ] && { echo second; exit 0; }; touch /workspace/persistent/ci-build/second; exit 1";
    let follow = async {
        until("the Run", PATIENCE, || async { Ok(ci.runs.get_opt("talks").await?) }).await?;
        ci.logs("talks", &["-f"]).await
    };
    let spec = json!({"workspace": {"name": "ci-build"}, "retryPolicy": {"maxAttempts": 2, "backoff": "100ms"}});
    let (created, followed) = tokio::join!(ci.script("talks", text, spec), follow);
    created?;
    let (code, out, err) = followed?;
    let mut lines: Vec<&str> = out.lines().collect();
    ensure!(code == 0 && err.is_empty(), "{code}: {out}{err}");
    // The two streams of an attempt are two pipes: which line of them is printed first is nobody's promise.
    lines.sort_unstable();
    ensure!(lines == ["begin", "begin", "second", "to-stderr", "to-stderr"], "{out}");
    let (code, _, err) = ci.logs("no-such", &[]).await?;
    ensure!(code == 1 && err.contains("Run ci/no-such not found"), "{code}: {err}");
    Ok(())
}

async fn a_run_reads_neither_the_token_nor_the_agent(ci: &Ci) -> Result<()> {
    let text = "cat /var/run/secrets/kubernetes.io/serviceaccount/token 2>/dev/null && exit 1\nls /workspace/.runtimed 2>/dev/null && exit 1\nid -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; exit 0";
    ci.script("curious", text, json!({})).await?;
    let run = ci.ended("curious").await?;
    let (_, out, _) = ci.logs("curious", &[]).await?;
    ensure!(phase(&run) == "Succeeded", "{}: {out}", message(&run));
    ensure!(out == "65532\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n", "{out}");
    Ok(())
}

/// Processes of [`USER`] on this machine.
fn processes_of_user() -> usize {
    let is_theirs = |entry: &std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("Uid:").is_some_and(|users| users.split_whitespace().next() == Some(USER)))
    };
    std::fs::read_dir("/proc").map_or(0, |entries| entries.flatten().filter(is_theirs).count())
}

/// A container of the chart may make no cgroup: the limit is that of the user, and the agent says so.
async fn a_fork_bomb_is_bounded_as_the_log_says(ci: &Ci) -> Result<()> {
    let pod = ci.cluster.runtime_pods(NAMESPACE, "bash", 1).await?.remove(0);
    let pods: Api<Pod> = Api::namespaced(ci.cluster.plane.admin()?, NAMESPACE);
    ensure!(pods.logs(&pod.name_any(), &LogParams::default()).await?.contains("no cgroup can be made: --run-pids-max bounds all processes of this user"));
    // Each process that it makes stays, and the last exec needs none: whoever looks, however late, sees it at its limit. One whose processes end when
    // they can fork no more comes and goes between two looks.
    ci.script("bomb", "( while :; do sleep 600 & done ) 2>/dev/null; exec sleep 600", json!({"timeout": "15s"})).await?;
    until("the bomb to go off", PATIENCE, || async { Ok((processes_of_user() > PIDS_MAX / 2).then_some(())) }).await?;
    for _ in 0..10 {
        let now = processes_of_user();
        ensure!(now <= PIDS_MAX, "{now} processes");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let run = ci.ended("bomb").await?;
    ensure!(phase(&run) == "Timeout", "{}", message(&run));
    until("nothing of it to be left", PATIENCE, || async { Ok((processes_of_user() < PIDS_MAX / 4).then_some(())) }).await?;
    ci.script("after-the-bomb", "true", json!({})).await?;
    ensure!(phase(&ci.ended("after-the-bomb").await?) == "Succeeded");
    Ok(())
}

/// The agent's own process in a Pod, by what the node's processes say.
fn agents(pod_uid: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")?.flatten() {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let is_here = environment.contains("RUNTIMED_UNDER_INIT=1") && environment.contains(&format!("POD_UID={pod_uid}"));
        let is_agent = is_here && String::from_utf8_lossy(&arguments).contains("--run-as=");
        if is_agent && let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push(pid);
        }
    }
    Ok(found)
}

async fn a_crash_of_the_agent_hurts_nobody(ci: &Ci) -> Result<()> {
    ci.script(
        "survivor",
        "echo once >> survivor; while [ ! -e go ]; do sleep 0.1; done; echo n=$(wc -l < survivor | tr -d ' ') >> $KRUNTIME_OUTPUTS",
        json!({"workspace": {"name": "ci-build"}}),
    )
    .await?;
    let running = ci.when("survivor", |run| phase(run) == "Running").await?;
    let uid = running.status.clone().unwrap_or_default().assigned_pod_uid.unwrap_or_default();
    let workspace = ci.cluster.node.empty_dir(&uid, "workspace").join("persistent/ci-build");
    until("it to be up", PATIENCE, || async { Ok(workspace.join("survivor").exists().then_some(())) }).await?;
    let before = agents(&uid)?;
    ensure!(!before.is_empty(), "no agent is to be seen");
    for pid in &before {
        std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()?;
    }
    until("another agent", PATIENCE, || async { Ok(agents(&uid)?.iter().any(|pid| !before.contains(pid)).then_some(())) }).await?;
    std::fs::write(workspace.join("go"), "")?;
    let run = ci.ended("survivor").await?;
    ensure!(phase(&run) == "Succeeded" && json!(run.status.clone().unwrap_or_default().outputs) == json!({"n": "1"}), "{}", message(&run));
    let pods = ci.cluster.runtime_pods(NAMESPACE, "bash", 1).await?;
    let restarts = pods[0].status.clone().unwrap_or_default().container_statuses.unwrap_or_default().iter().map(|c| c.restart_count).sum::<i32>();
    ensure!(restarts == 0, "the container itself went on");
    Ok(())
}

async fn runs_go_on_without_the_kubelet(ci: &Ci) -> Result<()> {
    ci.cluster.node.kill(Service::Kubelet)?;
    ci.script("kubeless", "sleep 1; echo fine=1 >> $KRUNTIME_OUTPUTS", json!({})).await?;
    let run = ci.ended("kubeless").await?;
    ensure!(phase(&run) == "Succeeded", "{}", message(&run));
    ci.cluster.node.let_back(Service::Kubelet)
}

/// Deletes a Pod whose log somebody has just begun to follow, when all of it is surely read.
async fn delete_followed(pods: &Api<Pod>, pod: &Pod) -> Result<()> {
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(1)).await?;
    Ok(())
}

async fn a_deleted_pod_takes_its_workspace_and_a_new_one_serves(ci: &Ci) -> Result<()> {
    let old = ci.cluster.runtime_pods(NAMESPACE, "bash", 1).await?.remove(0);
    let pods: Api<Pod> = Api::namespaced(ci.cluster.plane.admin()?, NAMESPACE);
    // One that executes there goes on elsewhere, and its output is followed there.
    let retried = json!({"retryPolicy": {"maxAttempts": 2, "backoff": "100ms"}});
    ci.script("elsewhere", "echo on $HOSTNAME; [ $HOSTNAME != FIRST ] || sleep 600".replace("FIRST", &old.name_any()).as_str(), retried).await?;
    until("it to speak", PATIENCE, || async { Ok((!ci.logs("elsewhere", &[]).await?.1.is_empty()).then_some(())) }).await?;
    let deleting = delete_followed(&pods, &old);
    let (followed, deleted) = tokio::join!(ci.logs("elsewhere", &["-f"]), deleting);
    deleted?;
    let run = ci.ended("elsewhere").await?;
    let status = run.status.clone().unwrap_or_default();
    ensure!(phase(&run) == "Succeeded" && status.attempt == Some(2) && status.assigned_pod_uid != old.metadata.uid, "{}", message(&run));
    let second = format!("on {}\n", status.assigned_pod.unwrap_or_default());
    let (code, out, err) = followed?;
    ensure!(code == 0 && out == format!("on {}\n{second}", old.name_any()), "{code}: {out}{err}");
    let (code, out, err) = ci.logs("elsewhere", &[]).await?;
    ensure!(code == 0 && out == second, "of a Pod that is gone nothing is left: {code}: {out}{err}");

    until("the workspace to be Lost", PATIENCE, || async { Ok((ci.workspaces.get("ci-build").await?.phase().as_str() == "Lost").then_some(())) }).await?;
    // Evicted: what a drain does.
    let pod = ci.cluster.runtime_pods(NAMESPACE, "bash", 1).await?.remove(0);
    pods.evict(&pod.name_any(), &Default::default()).await?;
    let next = until("a Pod in its place", PATIENCE * 2, || async {
        let found = ci.cluster.runtime_pods(NAMESPACE, "bash", 1).await?;
        Ok(found.into_iter().find(|found| found.metadata.uid != pod.metadata.uid))
    })
    .await?;
    ci.script("moved", "true", json!({})).await?;
    let run = ci.ended("moved").await?;
    ensure!(run.status.unwrap_or_default().assigned_pod_uid == next.metadata.uid);
    Ok(())
}

/// A Pod of a fixed name, as a StatefulSet makes them, replaced while a Run executes: its namesake has neither the workspace nor the attempt.
async fn a_namesake_is_another_pod(ci: &Ci) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(ci.cluster.plane.admin()?, NAMESPACE);
    let like = ci.cluster.runtime_pods(NAMESPACE, "bash", 1).await?.remove(0);
    let mut spec = like.spec.context("no spec")?;
    // What the API server gives each Pod itself.
    spec.node_name = None;
    let volumes = spec.volumes.take().unwrap_or_default();
    let is_given = |name: &str| name.starts_with("kube-api-access-");
    spec.volumes = Some(volumes.into_iter().filter(|volume| !is_given(&volume.name)).collect());
    for container in &mut spec.containers {
        container.volume_mounts.get_or_insert_default().retain(|mount| !is_given(&mount.name));
    }
    let annotations = json!({"kruntimes.io/capacity.runs": "2"});
    let solo: Pod = serde_json::from_value(json!({"metadata": {"name": "solo-0", "labels": {"runtime": "solo"}, "annotations": annotations}, "spec": spec}))?;
    let create = || async { pods.create(&PostParams::default(), &solo).await.map(|pod| pod.uid().unwrap_or_default()) };
    let first = create().await?;
    let workspace = json!({"metadata": {"name": "solo"}, "spec": {"runtime": "solo"}});
    ci.workspaces.create(&PostParams::default(), &serde_json::from_value(workspace)?).await?;
    let of_solo = |more: Value| {
        let mut spec = json!({"runtime": "solo", "retryPolicy": {"maxAttempts": 2, "backoff": "100ms"}});
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        spec
    };
    ci.script("solo-files", "echo data > file", of_solo(json!({"workspace": {"name": "solo"}}))).await?;
    ensure!(phase(&ci.ended("solo-files").await?) == "Succeeded");
    ci.script("solo-moves", "echo once; until [ -e /workspace/go ]; do sleep 0.1; done", of_solo(json!({}))).await?;
    until("it to speak", PATIENCE, || async { Ok((ci.logs("solo-moves", &[]).await?.1 == "once\n").then_some(())) }).await?;
    let replaced = async {
        delete_followed(&pods, &pods.get("solo-0").await?).await?;
        until("the name to be free", PATIENCE, || async { Ok(pods.get_opt("solo-0").await?.is_none().then_some(())) }).await?;
        let second = create().await?;
        ensure!(first != second);
        let there = |run: &Run| {
            let status = run.status.clone().unwrap_or_default();
            phase(run) == "Running" && status.attempt == Some(2) && status.assigned_pod_uid.as_deref() == Some(&second)
        };
        ci.when("solo-moves", there).await?;
        std::fs::write(ci.cluster.node.empty_dir(&second, "workspace").join("go"), "")?;
        ci.ended("solo-moves").await
    };
    let (followed, run) = tokio::join!(ci.logs("solo-moves", &["-f"]), replaced);
    let run = run?;
    ensure!(phase(&run) == "Succeeded", "{}", message(&run));
    let (code, out, err) = followed?;
    ensure!(code == 0 && out == "once\nonce\n", "each attempt once: {code}: {out}{err}");
    until("the workspace to be Lost", PATIENCE, || async { Ok((ci.workspaces.get("solo").await?.phase().as_str() == "Lost").then_some(())) }).await?;
    ci.script("solo-lost", "true", of_solo(json!({"workspace": {"name": "solo"}}))).await?;
    ci.when("solo-lost", |run| phase(run) == "Pending" && message(run).contains("workspace solo")).await?;
    Ok(())
}
