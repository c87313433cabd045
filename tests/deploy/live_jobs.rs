//! `berth serve` with Jobs as the chart runs it, with its flags and rights: Jobs of every fate on a control plane and the stand-in of a node, scraped by
//! a real Prometheus. Every panel and rule about Jobs has data, only the alert that should fires, nothing is refused and no right is unused.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::helm::{Helm, RELEASE, object};
use berth_tests::kubelet::{now, terminated};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::apply;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::job_world::{World, condition, install_policies, uid};
use crate::live::{JOBS_DASHBOARD, Release, Replica, every_panel_has_data, one_scheduler, selectors};
use crate::privilege;
use crate::prometheus::{Prometheus, rules};

/// How long Jobs come and go at least, so that every rate has points.
const LOAD: Duration = Duration::from_secs(8);
/// The right that no request shows: a policy asks for it when the finalizer is taken off.
const BY_POLICY: &[(&str, &str, &str)] = &[("clean-up", "jobs.execution.ayatori.ddupan.top", "asked by policy job-force-cleanup")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_fill_every_panel_and_use_every_right_that_they_are_given() -> Result<()> {
    // On a control plane of its own, but two loads at once are too much for a small machine.
    let _alone = one_scheduler().await;
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    let values = json!({"jobs": {"enabled": true}, "replicas": 1, "leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"}});
    let release = Release::install(&Helm::new()?, &plane, &values).await?;
    // Those that mutate too, which helm leaves out while it does not know the cluster.
    install_policies(&plane.admin()?).await?;
    let berth = Replica::start(&release, &plane, "berth-jobs", &plane.kubeconfig(&release.account.token)?).await?;
    let prometheus = Prometheus::start(plane.scratch(), &[("berth-jobs", berth.port)], &release.prometheus).await?;
    let world = World::on(&plane, "live-jobs", json!({"minLossConfirmationAge": "0s"}), json!({"createErrorGracePeriod": "3s"})).await?;

    twice(&world, &prometheus).await?;
    lost(&world).await?;
    unusable_class(&world).await?;
    let start = Instant::now();
    for round in 0.. {
        if start.elapsed() > LOAD {
            break;
        }
        fates(&world, round).await?;
    }
    quota(&world).await?;
    every_panel_has_data(&prometheus, |file| file == JOBS_DASHBOARD).await?;
    every_alert_finds_its_series(&prometheus).await?;
    until("the alert on a second start", PATIENCE, || async { Ok((!prometheus.firing().await?.is_empty()).then_some(())) }).await?;
    assert_eq!(prometheus.firing().await?, ["BerthJobStartedTwice"]);

    // A class that nobody needs any more goes.
    let twice = world.pods_of(&uid(&world.jobs.get("twice").await?)).await?.pop().context("its Pod")?;
    world.kubelet.report(&twice.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.succeeded("twice", "True", "Completed").await?;
    world.classes().delete(&world.class, &DeleteParams::default()).await?;
    until("the class to go", PATIENCE, || async { Ok(world.classes().get_opt(&world.class).await?.is_none().then_some(())) }).await?;
    berth.stop().await?;
    privilege::nothing_was_refused(&plane, &release.account.user)?;
    let role = object(&release.objects, "ClusterRole", &format!("{RELEASE}-jobs")).context("no role of Jobs")?;
    privilege::everything_was_used(&plane, &release.account.user, &privilege::granted(std::slice::from_ref(role))?, BY_POLICY)
}

/// The node begins a process a second time.
async fn twice(world: &World<'_>, prometheus: &Prometheus) -> Result<()> {
    let job = world.job("twice", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await?;
    world.succeeded("twice", "Unknown", "Running").await?;
    let none_yet = format!("berth_job_duplicate_execution_total{{class=\"{}\"}} == 0", world.class);
    until("the count of second starts to be scraped at 0", PATIENCE, || async { Ok((!prometheus.query(&none_yet).await?.is_empty()).then_some(())) }).await?;
    let again = json!({"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 1, "containerID": "containerd://c-2", "state": {"running": {"startedAt": now()}}});
    world.kubelet.patch(&pod.name_any(), &json!({"containerStatuses": [again]})).await
}

/// The control plane gives up a Pod whose node is gone; its loss is confirmed, and what is left of it swept once its clean-up is forced.
async fn lost(world: &World<'_>) -> Result<()> {
    let job = world.job("lost", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    let running = json!({"running": {"startedAt": now()}});
    world.kubelet.report(&pod.name_any(), "Running", running.clone()).await?;
    world.succeeded("lost", "Unknown", "Running").await?;
    world.kubelet.report(&pod.name_any(), "Failed", running).await?;
    world.succeeded("lost", "Unknown", "ResultUnknown").await?;
    let annotate = |key: &str, value: &str| json!({"metadata": {"annotations": {format!("execution.ayatori.ddupan.top/{key}"): value}}});
    let patch = async |patch: Value| anyhow::Ok(world.jobs.patch("lost", &PatchParams::default(), &Patch::Merge(patch)).await?);
    patch(annotate("confirm-backend-lost", &uid(&job))).await?;
    world.succeeded("lost", "False", "BackendLost").await?;
    world.delete("lost", &DeleteParams::default()).await?;
    let mut forced = annotate("force-cleanup-reason", "rack 4 burnt down");
    forced["metadata"]["finalizers"] = Value::Null;
    patch(forced).await?;
    world.gone("lost").await
}

/// A class whose parameters are missing.
async fn unusable_class(world: &World<'_>) -> Result<()> {
    let group = "execution.ayatori.ddupan.top";
    let spec =
        json!({"controllerName": format!("{group}/kubernetes"), "parametersRef": {"group": group, "kind": "KubernetesExecutionParameters", "name": "none"}});
    apply(&world.client, &json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "JobClass", "metadata": {"name": "unusable"}, "spec": spec})).await
}

/// One Job of each: succeeds and expires, fails and is deleted, is cancelled, misses its deadline.
async fn fates(world: &World<'_>, round: usize) -> Result<()> {
    let name = |fate: &str| format!("{fate}-{round}");
    let (ok, bad, stopped, late) = (name("ok"), name("bad"), name("stopped"), name("late"));
    world.job(&ok, &["exit", "0"], json!({"ttlSecondsAfterFinished": 0})).await?;
    world.job(&bad, &["exit", "3"], json!({})).await?;
    world.job(&stopped, &["sleep"], json!({})).await?;
    world.job(&late, &["sleep"], json!({"activeDeadlineSeconds": 1})).await?;
    world.gone(&ok).await?;
    world.succeeded(&bad, "False", "ProcessFailed").await?;
    world.delete(&bad, &DeleteParams::default()).await?;
    world.gone(&bad).await?;
    world.succeeded(&stopped, "Unknown", "Running").await?;
    world.cancel(&stopped).await?;
    world.succeeded(&stopped, "False", "Cancelled").await?;
    world.succeeded(&late, "False", "DeadlineExceeded").await.map(drop)
}

/// A native Job that can't make its Pod: only Events tell why.
async fn quota(world: &World<'_>) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), &world.namespace);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"count/pods": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    until("the quota to be in force", PATIENCE, || async { Ok(quotas.get("none").await?.status.and_then(|status| status.hard)) }).await?;
    world.job("quota", &["exit", "0"], json!({})).await?;
    world.until("quota", "to tell of the quota", |job| condition(job, "Scheduled").1 == "BackendRefuses").await?;
    world.succeeded("quota", "False", "PodRejected").await.map(drop)
}

/// What an alert on Jobs selects is there, with the labels that it asks for.
async fn every_alert_finds_its_series(prometheus: &Prometheus) -> Result<()> {
    let mut questions = BTreeSet::new();
    for alert in rules("alerts")? {
        questions.extend(selectors(alert["expr"].as_str().context("no expr")?).into_iter().filter(|question| question.starts_with("berth_job_")));
    }
    ensure!(!questions.is_empty(), "no alert asks about Jobs");
    for question in questions {
        ensure!(!prometheus.query(&question).await?.is_empty(), "{question} finds nothing");
    }
    Ok(())
}
