//! `/metrics`: every metric that a dashboard relies on has kube-scheduler's name, type, labels and buckets, and moves when it should. What those
//! are, a real kube-scheduler says.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::{Berth, Metrics};
use berth_tests::controlplane::{ADMIN, ControlPlane};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::{Guarded, free_port};
use berth_tests::proxy::Proxy;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::metric_rows::{KRUNTIMES, KUBE, check};
use super::serve_world::{World, run};

/// A series, and by how much it grows.
type Moves<'m> = (&'m str, &'m [(&'m str, &'m str)], f64);

/// What an action moves, exactly.
async fn moves(berth: &Berth, what: &str, action: impl Future<Output = Result<()>>, expected: &[Moves<'_>]) -> Result<()> {
    let before = berth.metrics().await?;
    action.await.with_context(|| what.to_owned())?;
    let last = std::sync::Mutex::new(Vec::new());
    let all = until(what, PATIENCE, || async {
        let now = berth.metrics().await?;
        let moved = |(name, labels, by): &Moves<'_>| {
            let grown = now.sum(name, labels) - before.sum(name, labels);
            // Sums of durations only have to grow.
            if by.is_nan() { grown > 0.0 } else { (grown - by).abs() < 1e-9 }
        };
        let wrong: Vec<String> = expected.iter().filter(|row| !moved(row)).map(|row| format!("{row:?}: {}", now.sum(row.0, row.1))).collect();
        let done = wrong.is_empty().then_some(());
        *last.lock().unwrap() = wrong;
        Ok(done)
    });
    all.await.with_context(|| format!("not moved so: {:#?}", last.lock().unwrap()))
}

const GROWS: f64 = f64::NAN;
const DEFAULT: (&str, &str) = ("profile", "default");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_has_kube_s_name_labels_and_buckets_and_moves_when_it_should() -> Result<()> {
    let world = World::new("metrics").await?;
    let proxy = Proxy::start(world.plane).await?;
    let config = json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration", "profiles": [{"schedulerName": "default"}]});
    let file = world.plane.scratch().write("metrics.yaml", config.to_string())?;
    let serve = world.serve_through(&proxy)?.config(&file).arg("--leader-elect").arg(format!("--leader-elect-namespace={}", world.namespace));
    let berth = serve.start_ready(world.plane.scratch()).await?;
    berth.metric_at_least("leader_election_master_status", &[("name", "berth")], 1.0).await?;

    let events = "scheduler_event_handling_duration_seconds_count";
    let points = "scheduler_framework_extension_point_duration_seconds_count";
    let plugins = "scheduler_plugin_execution_duration_seconds_count";
    let asked = "scheduler_plugin_evaluation_total";
    let incoming = "scheduler_queue_incoming_pods_total";
    let hints = "scheduler_queueing_hint_execution_duration_seconds_count";

    let action = async { world.pod("p", "bash", &[("runs", "1")]).await.map(|_| ()) };
    let expected = [(events, &[("event", "NodeAdd")][..], 1.0), (events, &[("event", "NodeUpdate")], 1.0), ("scheduler_cache_size", &[("type", "nodes")], 1.0)];
    moves(&berth, "a Pod that becomes ready", action, &expected).await?;

    let action = async {
        world.run(run("a")).await?;
        world.placed_on("a", "p").await
    };
    let expected = [
        ("scheduler_schedule_attempts_total", &[("result", "scheduled"), DEFAULT][..], 1.0),
        ("scheduler_scheduling_attempt_duration_seconds_count", &[("result", "scheduled"), DEFAULT], 1.0),
        ("scheduler_scheduling_algorithm_duration_seconds_count", &[], 1.0),
        ("scheduler_scheduling_algorithm_duration_seconds_sum", &[], GROWS),
        ("berth_scheduling_algorithm_duration_seconds_count", &[], 1.0),
        ("berth_attempt_duration_seconds_count", &[], 1.0),
        ("scheduler_pod_scheduling_sli_duration_seconds_count", &[("attempts", "1")], 1.0),
        ("berth_scheduling_sli_duration_seconds_count", &[], 1.0),
        ("scheduler_pod_scheduling_attempts_sum", &[], 1.0),
        (points, &[("extension_point", "PreFilter"), ("status", "Success"), DEFAULT], 1.0),
        (points, &[("extension_point", "Filter"), ("status", "Success"), DEFAULT], 1.0),
        (points, &[("extension_point", "Score"), ("status", "Success"), DEFAULT], 1.0),
        (points, &[("extension_point", "Reserve"), ("status", "Success"), DEFAULT], 1.0),
        (points, &[("extension_point", "Bind"), ("status", "Success"), DEFAULT], 1.0),
        ("berth_framework_extension_point_duration_seconds_count", &[("extension_point", "Filter")], 1.0),
        (plugins, &[("plugin", "RunAffinity"), ("extension_point", "PreFilter"), ("status", "Success")], 1.0),
        (plugins, &[("plugin", "RuntimeReady"), ("extension_point", "Filter"), ("status", "Success")], 1.0),
        (plugins, &[("plugin", "Capacity"), ("extension_point", "Score"), ("status", "Success")], 1.0),
        (plugins, &[("plugin", "Capacity"), ("extension_point", "Reserve"), ("status", "Success")], 1.0),
        ("berth_plugin_execution_duration_seconds_count", &[("plugin", "Capacity"), ("extension_point", "Reserve")], 1.0),
        (asked, &[("plugin", "RunAffinity"), ("extension_point", "PreFilter"), DEFAULT], 1.0),
        (asked, &[("plugin", "Capacity"), ("extension_point", "Filter"), DEFAULT], 1.0),
        (asked, &[("plugin", "Capacity"), ("extension_point", "Score"), DEFAULT], 1.0),
        (incoming, &[("queue", "active"), ("event", "UnscheduledPodAdd")], 1.0),
        (events, &[("event", "UnscheduledPodAdd")], 1.0),
        (events, &[("event", "AssignedPodAdd")], 1.0),
        ("scheduler_cache_size", &[("type", "pods")], 1.0),
        ("scheduler_cache_size", &[("type", "assumed_pods")], 0.0),
        ("berth_bind_duration_seconds_count", &[], 1.0),
        ("berth_status_writes_total", &[("kind", "bind"), ("outcome", "applied")], 1.0),
        ("rest_client_requests_total", &[("code", "200"), ("method", "PATCH")], 1.0),
        ("rest_client_request_duration_seconds_count", &[("verb", "PATCH")], 1.0),
        ("scheduler_pod_scheduled_after_flush_total", &[], 0.0),
    ];
    moves(&berth, "a Run that is placed", action, &expected).await?;

    let action = async {
        world.run(run("b")).await?;
        world.waits("b", &["1 insufficient runs"]).await.map(|_| ())
    };
    let expected = [
        ("scheduler_schedule_attempts_total", &[("result", "unschedulable"), DEFAULT][..], 1.0),
        ("scheduler_scheduling_attempt_duration_seconds_count", &[("result", "unschedulable"), DEFAULT], 1.0),
        ("scheduler_pending_pods", &[("queue", "unschedulable")], 1.0),
        ("scheduler_unschedulable_pods", &[("plugin", "Capacity"), DEFAULT], 1.0),
        (incoming, &[("queue", "unschedulable"), ("event", "ScheduleAttemptFailure")], 1.0),
        (plugins, &[("plugin", "Capacity"), ("extension_point", "Filter"), ("status", "Success")], 1.0),
        (points, &[("extension_point", "Reserve"), DEFAULT], 0.0),
        ("kruntimes_scheduler_filter_rejections_total", &[("plugin", "Capacity"), ("reason", "InsufficientCapacity")], 1.0),
    ];
    moves(&berth, "a Run that waits", action, &expected).await?;

    let action = async {
        world.succeed("a").await?;
        world.placed_on("b", "p").await
    };
    let expected = [
        (events, &[("event", "AssignedPodDelete")][..], 1.0),
        (hints, &[("plugin", "Capacity"), ("event", "AssignedPodDelete"), ("hint", "Queue")], 1.0),
        ("berth_queueing_hint_execution_duration_seconds_count", &[], 1.0),
        ("berth_wakeups_total", &[("cause", "run_ended")], 1.0),
        ("kruntimes_scheduler_pending_run_wakeups_total", &[("source", "capacity_released")], 1.0),
        (incoming, &[("queue", "active"), ("event", "run_ended")], 1.0),
        ("scheduler_pod_scheduling_sli_duration_seconds_count", &[("attempts", "2")], 1.0),
        ("scheduler_pod_scheduling_attempts_sum", &[], 2.0),
        ("scheduler_pending_pods", &[("queue", "unschedulable")], -1.0),
        ("scheduler_unschedulable_pods", &[("plugin", "Capacity"), DEFAULT], -1.0),
    ];
    moves(&berth, "a Run that is woken", action, &expected).await?;

    let action = async {
        world.run(run("fenced").workspace("none")).await?;
        world.waits("fenced", &["workspace none not found"]).await?;
        world.run(run("big").request("runs", 3)).await?;
        world.waits("big", &["1 insufficient runs"]).await?;
        // Room, but not enough.
        world.annotate_pod("p", "runs", "2").await
    };
    let refused = ("status", "UnschedulableAndUnresolvable");
    let expected = [
        (points, &[("extension_point", "PreFilter"), refused, DEFAULT][..], 1.0),
        (plugins, &[("plugin", "WorkspaceFencing"), ("extension_point", "PreFilter"), refused], 1.0),
        ("scheduler_unschedulable_pods", &[("plugin", "WorkspaceFencing"), DEFAULT], 1.0),
        (hints, &[("plugin", "Capacity"), ("event", "NodeUpdate"), ("hint", "QueueSkip")], 1.0),
        ("berth_wakeups_total", &[("cause", "capacity_raised")], 0.0),
    ];
    moves(&berth, "Runs that nothing helps", action, &expected).await?;

    let action = async {
        world.run(run("late").runtime("later")).await?;
        world.waits("late", &["waiting for available"]).await?;
        proxy.hold_watches("runs");
        world.patch_run("late", json!({"metadata": {"labels": {"a": "b"}}})).await?;
        world.pod("later", "later", &[]).await?;
        berth.metric_at_least("berth_status_writes_total", &[("kind", "bind"), ("outcome", "conflict")], 1.0).await?;
        proxy.release_watches("runs");
        world.placed("late").await.map(|_| ())
    };
    let expected = [
        ("scheduler_schedule_attempts_total", &[("result", "error"), DEFAULT][..], 1.0),
        (points, &[("extension_point", "Bind"), ("status", "Error"), DEFAULT], 1.0),
        (incoming, &[("queue", "backoff"), ("event", "ScheduleAttemptFailure")], 1.0),
        ("kruntimes_scheduler_reservation_conflicts_total", &[("stage", "bind")], 1.0),
        ("berth_wakeups_total", &[("cause", "pod_ready")], 1.0),
        ("kruntimes_scheduler_pending_run_wakeups_total", &[("source", "runtime_pod")], 1.0),
        ("rest_client_requests_total", &[("code", "409"), ("method", "PATCH")], 1.0),
        (events, &[("event", "UnscheduledPodUpdate")], GROWS),
    ];
    moves(&berth, "a Run that changes unseen", action, &expected).await?;

    let action = async {
        world.workspace("w", "bash").await?;
        world.workspace_when("w", "Bound").await?;
        world.delete_run("big").await?;
        world.delete_pod("later").await
    };
    let binder = ("name", "persistentworkspace");
    let expected = [
        ("workqueue_adds_total", &[binder][..], GROWS),
        ("workqueue_work_duration_seconds_count", &[binder], GROWS),
        ("workqueue_queue_duration_seconds_count", &[binder], GROWS),
        (events, &[("event", "PersistentWorkspaceAdd")], 1.0),
        // The finalizer, then the status that binds.
        (events, &[("event", "PersistentWorkspaceUpdate")], 2.0),
        (events, &[("event", "UnscheduledPodDelete")], 1.0),
        (events, &[("event", "NodeDelete")], 1.0),
        ("scheduler_cache_size", &[("type", "nodes")], -1.0),
        ("berth_informer_objects", &[("informer", "persistentworkspaces")], 1.0),
    ];
    moves(&berth, "objects that come and go", action, &expected).await?;

    let (_, text) = berth.get("/metrics").await?;
    check(KUBE, &text)?;
    check(KRUNTIMES, &text)?;
    ensure!(Metrics::parse(&text)?.sum("scheduler_pod_scheduled_after_flush_total", &[]) == 0.0, "a wake-up was lost");
    Ok(())
}

/// A kube-scheduler of the tested Kubernetes that places only Pods that ask for it.
struct KubeScheduler {
    process: Guarded,
    client: Client,
}

const MEASURED: &str = "measured";

impl KubeScheduler {
    async fn start(plane: &ControlPlane, namespace: &str) -> Result<Self> {
        let kubeconfig = plane.kubeconfig(ADMIN)?;
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig},
            "leaderElection": {"leaderElect": true, "resourceName": MEASURED, "resourceNamespace": namespace},
            "profiles": [{"schedulerName": MEASURED}],
        });
        let file = plane.scratch().write("kube-scheduler.yaml", config.to_string())?;
        let port = free_port()?;
        let mut command = Command::new(plane.binary("kube-scheduler")?);
        command
            .args([format!("--config={}", file.display()), format!("--secure-port={port}"), "--bind-address=127.0.0.1".to_owned()])
            .args(["--authentication-kubeconfig", "--authorization-kubeconfig"].map(|flag| format!("{flag}={}", kubeconfig.display())))
            .args(plane.serving_certificate());
        let process = Guarded::spawn("kube-scheduler", command, &plane.scratch().path().join("kube-scheduler.log"))?;
        let mut connection = plane.config(ADMIN)?;
        connection.cluster_url = format!("https://127.0.0.1:{port}").parse()?;
        Ok(Self { process, client: Client::try_from(connection)? })
    }

    async fn metrics(&self) -> Result<String> {
        Ok(self.client.request_text(hyper::Request::get("/metrics").body(Vec::new())?).await?)
    }
}

fn pod(name: &str, cpu: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": MEASURED, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
        },
    }))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_kube_scheduler_says_the_same_of_its_metrics() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("kube-scheduler").await?;
    let (client, post) = (plane.admin()?, PostParams::default());
    let (nodes, pods): (Api<Node>, Api<Pod>) = (Api::all(client.clone()), Api::namespaced(client, &namespace));
    let room =
        |cpu: &str| json!({"status": {"capacity": {"cpu": cpu, "memory": "1Gi", "pods": "500"}, "allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "500"}}});
    nodes.create(&post, &serde_json::from_value(json!({"metadata": {"name": MEASURED}}))?).await?;
    nodes.patch_status(MEASURED, &PatchParams::default(), &Patch::Merge(room("4"))).await?;
    let mut scheduler = KubeScheduler::start(plane, &namespace).await?;

    // One that is placed, one that waits and is hinted at; and, since it samples its plugins, as many as it takes.
    pods.create(&post, &pod("big", "100")?).await?;
    let mut number = 0;
    let checked = until("every metric of kube-scheduler", PATIENCE, || {
        number += 1;
        let small = pod(&format!("small-{number}"), "1m");
        let more = room(&format!("{}", 4 + number % 2));
        let (nodes, pods, scheduler) = (&nodes, &pods, &scheduler);
        async move {
            pods.create(&PostParams::default(), &small?).await?;
            nodes.patch_status(MEASURED, &PatchParams::default(), &Patch::Merge(more)).await?;
            check(KUBE, &scheduler.metrics().await?).map(Some)
        }
    });
    let checked = checked.await;
    nodes.delete(MEASURED, &kube::api::DeleteParams::default()).await?;
    scheduler.process.must_run()?;
    checked
}
