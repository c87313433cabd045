//! What people see of Jobs on a real API server: `berth explain job`, `berth logs job`, Events, metrics.

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::{JobClass, KubernetesExecutionParameters};
use berth_tests::controlplane::{ADMIN, ControlPlane, Options, checkout};
use berth_tests::helm::documents;
use berth_tests::kubelet::{NODE, now, terminated};
use berth_tests::kubelet_logs::Logs;
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::explain::berth;
use crate::job_world::{self, World, condition, uid};

async fn command(plane: &ControlPlane, args: &[&str]) -> Result<(u8, String, String)> {
    let kubeconfig = plane.kubeconfig(ADMIN)?.display().to_string();
    berth(args.iter().copied().chain(["--kubeconfig", &kubeconfig]).map(str::to_owned).collect()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_explained_from_its_object_alone() -> Result<()> {
    let world = World::new("job-explain").await?;
    let explain = async |name: &str, more: &[&str]| command(world.plane, &[&["explain", "job", name, "-n", &world.namespace], more].concat()).await;
    world.job("waits", &["exit", "0"], json!({"jobClassName": "nowhere"})).await?;
    world.until("waits", "to be told", |job| condition(job, "Accepted") == ("False".to_owned(), "JobClassNotFound".to_owned())).await?;
    let (code, out, _) = explain("waits", &[]).await?;
    ensure!(code == 0 && out.contains("(Resolving, class nowhere)\nPending: ") && out.contains("What to do: create that JobClass"), "{out}");

    let job = world.job("ends", &["exit", "3"], json!({"ttlSecondsAfterFinished": 3600})).await?;
    world.succeeded("ends", "False", "ProcessFailed").await?;
    let (code, out, err) = explain("ends", &["-o", "json"]).await?;
    ensure!(code == 0, "{err}");
    let told: Value = serde_json::from_str(&out)?;
    assert_eq!((&told["state"], &told["result"], &told["uid"]), (&json!("Failed"), &json!({"exitCode": 3, "reason": "Error"}), &json!(uid(&job))));
    let lines: Vec<&str> = told["timeline"].as_array().context("a timeline")?.iter().filter_map(|moment| moment["what"].as_str()).collect();
    let starts = [
        "created",
        "Accepted=True Valid",
        "Scheduled=True BackendCreated",
        "the process started",
        "Succeeded=False ProcessFailed: exit code 3",
        "ttlSecondsAfterFinished 3600 is over",
    ];
    ensure!(lines.len() == starts.len() && lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:?}");
    assert_eq!(told["timeline"][5]["ahead"], json!(true));

    let (code, _, err) = explain("absent", &[]).await?;
    ensure!(code == 2 && err.contains(&format!("Job {}/absent of execution.ayatori.ddupan.top not found", world.namespace)), "{code} {err}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_logs_of_a_job_are_those_of_its_recorded_pod() -> Result<()> {
    // A node of its own, which serves logs.
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    let world = World::on(&plane, "job-logs", json!({}), json!({})).await?;
    let serve = berth_tests::berth::Serve::new(&plane.kubeconfig(berth_tests::controlplane::BERTH)?).arg("--jobs");
    let served = serve.start_ready(plane.scratch()).await?;
    let logs = Logs::start(["first line\n", "last line\n"]).await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let address =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": logs.port}}}});
    nodes.patch_status(NODE, &PatchParams::default(), &Patch::Merge(address)).await?;
    let read = async |name: &str, more: &[&str]| command(&plane, &[&["logs", "job", name, "-n", &world.namespace], more].concat()).await;

    world.job("cancelled", &["exit", "0"], json!({"desiredState": "Cancelled"})).await?;
    world.succeeded("cancelled", "False", "Cancelled").await?;
    let (code, _, err) = read("cancelled", &["--follow"]).await?;
    ensure!(code == 1 && err.contains("has no logs: it has not been started (Cancelled: "), "{code} {err}");

    let job = world.job("hello", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Pending", json!({"waiting": {"reason": "ContainerCreating"}})).await?;
    world.until("hello", "its execution", |job| condition(job, "Scheduled").0 == "True").await?;
    let (code, _, err) = read("hello", &[]).await?;
    ensure!(code == 1 && err.contains("waiting to start"), "{code} {err}");
    // Asked for before it starts, followed to its end.
    let (followed, began) = tokio::join!(read("hello", &["--follow", "--tail", "10"]), async {
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        let missing = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"example-token\" not found"}});
        world.kubelet.report(&pod.name_any(), "Pending", missing).await?;
        world.succeeded("hello", "Unknown", "WaitingForReference").await?;
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        logs.begin();
        world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await
    });
    began?;
    let (code, out, err) = followed?;
    assert_eq!((code, out.as_str()), (0, "first line\nlast line\n"));
    // Why it waits, each once.
    let told: Vec<&str> = err.lines().map(|line| line.strip_prefix(&format!("Job {}/hello has no logs yet: ", world.namespace)).unwrap_or(line)).collect();
    ensure!(
        matches!(told.as_slice(), [first, second] if first.starts_with("Starting: ") && second.starts_with("WaitingForReference: ") && second.contains("example-token")),
        "{err}"
    );
    world.kubelet.report(&pod.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.succeeded("hello", "True", "Completed").await?;
    // Its Pod gone, the Job tells so.
    until("the Pod to be let go", PATIENCE, || async { Ok(world.pods.get(&pod.name_any()).await?.finalizers().is_empty().then_some(())) }).await?;
    world.pods.delete(&pod.name_any(), &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    let (code, _, err) = read("hello", &[]).await?;
    ensure!(code == 1 && err.contains("has no logs: its Pod is gone (Completed: exit code 0)"), "{code} {err}");
    served.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transitions_are_told_in_events_and_metrics() -> Result<()> {
    let world = World::new("job-told").await?;
    let class = world.class.as_str();
    let job = world.job("told", &["exit", "3"], json!({})).await?;
    world.succeeded("told", "False", "ProcessFailed").await?;
    world.job("stopped", &["sleep"], json!({})).await?;
    world.succeeded("stopped", "Unknown", "Running").await?;
    world.cancel("stopped").await?;
    world.succeeded("stopped", "False", "Cancelled").await?;

    let events: Api<Event> = Api::namespaced(world.client.clone(), &world.namespace);
    let reasons = until("the Events", PATIENCE, || async {
        let list = events.list(&ListParams::default().fields(&format!("regarding.uid={}", uid(&job)))).await?;
        let mut reasons: Vec<String> = list.items.iter().filter_map(|event| event.reason.clone()).collect();
        reasons.sort();
        Ok((reasons.len() >= 4).then_some(reasons))
    })
    .await?;
    assert_eq!(reasons, ["Accepted", "ProcessFailed", "Scheduled", "Started"]);

    let berth = job_world::berth().await?;
    let of = [("class", class), ("adapter", "kubernetes")];
    for (name, labels, least) in [
        ("berth_job_finished_total", vec![of[0], of[1], ("reason", "ProcessFailed")], 1.0),
        ("berth_job_finished_total", vec![of[0], of[1], ("reason", "Cancelled")], 1.0),
        ("berth_job_started_total", of.to_vec(), 2.0),
        ("berth_job_startup_duration_seconds_count", of.to_vec(), 2.0),
        ("berth_job_execution_duration_seconds_count", of.to_vec(), 2.0),
        ("berth_job_stop_confirm_duration_seconds_count", of.to_vec(), 1.0),
        ("berth_job_states", vec![("state", "Failed"), of[0]], 1.0),
        ("berth_job_states", vec![("state", "Cancelled"), of[0]], 1.0),
        ("berth_job_classes", vec![("accepted", "true")], 1.0),
        ("workqueue_adds_total", vec![("name", "job")], 1.0),
    ] {
        berth.metric_at_least(name, &labels, least).await?;
    }
    // What is gone leaves no series.
    world.delete("told", &DeleteParams::default()).await?;
    world.gone("told").await?;
    until("its series to go", PATIENCE, || async { Ok((berth.metrics().await?.sum("berth_job_states", &[("state", "Failed"), of[0]]) == 0.0).then_some(())) })
        .await?;
    let metrics = berth.metrics().await?;
    ensure!(
        metrics.sum("berth_job_delete_duration_seconds_count", &of) >= 1.0
            && metrics.has("berth_job_oldest_seconds")
            && metrics.has("berth_job_clock_skew_seconds")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_specification_s_example_runs_as_the_guide_says() -> Result<()> {
    let world = World::new("job-example").await?;
    let read = |file: &str| -> Result<Vec<Value>> { documents(&std::fs::read_to_string(checkout().join("examples/jobs").join(file))?) };
    let mut classes = read("class.yaml")?;
    let class: JobClass = serde_json::from_value(classes.pop().context("a class")?)?;
    let parameters: KubernetesExecutionParameters = serde_json::from_value(classes.pop().context("parameters")?)?;
    Api::all(world.client.clone()).create(&PostParams::default(), &parameters).await?;
    Api::all(world.client.clone()).create(&PostParams::default(), &class).await?;
    let mut hello = read("hello.yaml")?.pop().context("a Job")?;
    hello["metadata"]["namespace"] = json!(world.namespace);
    let job = world.jobs.create(&PostParams::default(), &serde_json::from_value(hello)?).await?;
    let name = job.name_any();
    ensure!(name.starts_with("hello-"), "{name}");
    let ended = world.succeeded(&name, "True", "Completed").await?.status.context("a status")?;
    assert_eq!(ended.resolved_job_class.map(|class| class.name).as_deref(), Some("default"));
    // Argv and references as they were given: the node expands nothing and resolves the rest.
    let pod = world.pods_of(&uid(&job)).await?.pop().and_then(|pod| pod.spec).context("a Pod")?;
    let main = serde_json::to_value(pod.containers.iter().find(|container| container.name == "main"))?;
    assert_eq!(
        (&main["command"], &main["args"], &main["workingDir"]),
        (&json!(["/bin/sh", "-c"]), &json!(["echo \"hello $${TARGET}\""]), &json!("/workspace"))
    );
    assert_eq!(main["env"][1], json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "example-token", "key": "token"}}}));
    assert_eq!(main["resources"], json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}));
    world.nothing_was_refused().await
}
