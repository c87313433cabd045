//! The end of an installation that carried Jobs, step by step as docs/install.md and docs/runbook.md say: nothing hangs, nothing is left.

use anyhow::{Context as _, Result, ensure};
use berth_api::PersistentWorkspace;
use berth_controllers::job::api::{Job, JobClass, KubernetesExecutionParameters};
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::crds;
use berth_tests::kubelet::now;
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::job_world::{World, account_of, condition, install_policies, uid};

const JOB_UID: &str = "execution.ayatori.ddupan.top/job-uid";

/// An installation with Jobs of every kind: `runs`, `waits` to be accepted, `ended`, and `born`, whose process has not begun; and a workspace.
async fn installed<'p>(plane: &'p ControlPlane, prefix: &str) -> Result<(World<'p>, Berth)> {
    install_policies(&plane.admin()?).await?;
    let world = World::on(plane, prefix, json!({}), json!({})).await?;
    let account = account_of(plane, &plane.namespace("release").await?).await?;
    let berth = Serve::new(&plane.kubeconfig(&account.token)?).arg("--jobs").start_ready(plane.scratch()).await?;
    world.job("waits", &["sleep"], json!({"jobClassName": "none"})).await?;
    world.job("ended", &["exit", "0"], json!({})).await?;
    world.job("runs", &["sleep"], json!({})).await?;
    let born = world.job("born", &["held"], json!({})).await?;
    // As Berth leaves one that had data.
    let workspace = json!({"metadata": {"name": "w", "finalizers": ["kruntimes.io/workspace-cleanup"]}, "spec": {"runtime": "bash"}});
    Api::namespaced(world.client.clone(), &world.namespace).create(&PostParams::default(), &serde_json::from_value::<PersistentWorkspace>(workspace)?).await?;
    world.until("waits", "to be told", |job| condition(job, "Accepted").0 == "False").await?;
    world.succeeded("ended", "True", "Completed").await?;
    world.succeeded("runs", "Unknown", "Running").await?;
    let pod = world.bound(&uid(&born)).await?;
    world.kubelet.report(&pod.name_any(), "Pending", json!({"waiting": {"reason": "ContainerCreating"}})).await?;
    Ok((world, berth))
}

/// `kubectl delete KIND --all --wait=false`.
async fn delete_all<K>(api: &Api<K>) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    for object in api.list_metadata(&ListParams::default()).await?.items {
        api.delete(&object.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}

/// `kubectl delete` waits for the end.
async fn all_gone<K>(api: &Api<K>, labels: &str) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let what = format!("every {} to be gone", K::kind(&()));
    until(&what, PATIENCE, || async { Ok(api.list_metadata(&ListParams::default().labels(labels)).await?.items.is_empty().then_some(())) }).await
}

/// What the release leaves behind last.
async fn nothing_hangs(world: &World<'_>) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    for crd in crds::read()? {
        crds.delete(&crd.name_any(), &DeleteParams::default()).await?;
    }
    all_gone(&crds, "").await?;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(&world.namespace, &DeleteParams::default()).await?;
    until("the namespace to be gone", PATIENCE, || async { Ok(namespaces.get_opt(&world.namespace).await?.is_none().then_some(())) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_right_order_everything_goes() -> Result<()> {
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    let (world, berth) = installed(&plane, "uninstalled").await?;
    delete_all(&world.jobs).await?;
    // Its process has not begun, and now it can't.
    let born = world.pod(&uid(&world.jobs.get("born").await?), "to be stopped", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
    world.kubelet.report(&born.name_any(), "Failed", berth_tests::kubelet::terminated(143, "Error", &now())).await?;
    all_gone(&world.jobs, "").await?;
    all_gone(&world.pods, JOB_UID).await?;
    let (classes, parameters) = (world.classes(), Api::<KubernetesExecutionParameters>::all(world.client.clone()));
    let workspaces = Api::<PersistentWorkspace>::namespaced(world.client.clone(), &world.namespace);
    delete_all(&classes).await?;
    delete_all(&parameters).await?;
    delete_all(&workspaces).await?;
    all_gone(&classes, "").await?;
    all_gone(&parameters, "").await?;
    all_gone(&workspaces, "").await?;
    berth.terminate().await?;
    nothing_hangs(&world).await
}

/// `kubectl patch --type merge`, of every object of a namespace or of the cluster.
async fn release_all<K>(api: &Api<K>, labels: &str, more: serde_json::Value) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut patch = json!({"metadata": {"finalizers": null}});
    patch["metadata"].as_object_mut().context("an object")?.extend(more.as_object().context("an object")?.clone());
    for object in api.list_metadata(&ListParams::default().labels(labels)).await?.items {
        match api.patch_metadata(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => drop(answer.with_context(|| format!("{} {}", K::kind(&()), object.name_any()))?),
        }
    }
    Ok(())
}

fn of<K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>>(world: &World<'_>) -> Api<K> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_berth_is_gone_first_the_runbook_helps() -> Result<()> {
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    let (world, berth) = installed(&plane, "orphaned").await?;
    berth.kill()?;
    delete_all(&world.jobs).await?;
    let held: Vec<Job> = world.jobs.list(&ListParams::default()).await?.items;
    // The one whose class never came has none, and goes.
    ensure!(held.len() == 3 && held.iter().all(|job| job.metadata.deletion_timestamp.is_some()), "nobody takes the finalizer off: {held:?}");

    // The policies are still there: the administrator must say why.
    let refused = release_all(&world.jobs, "", json!({})).await;
    ensure!(refused.as_ref().is_err_and(|error| format!("{error:#}").contains("state the reason in annotation")), "{refused:?}");
    release_all(&world.jobs, "", json!({"annotations": {"execution.ayatori.ddupan.top/force-cleanup-reason": "Berth is gone for good"}})).await?;
    all_gone(&world.jobs, "").await?;
    all_gone(&world.natives, JOB_UID).await?;
    let pods = of::<Pod>(&world);
    ensure!(!pods.list_metadata(&ListParams::default().labels(JOB_UID)).await?.items.is_empty(), "the result finalizer holds them");
    release_all(&pods, JOB_UID, json!({})).await?;
    // The node's part: what was to stop has stopped.
    for pod in pods.list(&ListParams::default().labels(JOB_UID)).await?.items {
        let _ = world.kubelet.report(&pod.name_any(), "Failed", berth_tests::kubelet::terminated(143, "Error", &now())).await;
    }
    all_gone(&pods, JOB_UID).await?;
    let (classes, parameters) = (Api::<JobClass>::all(world.client.clone()), Api::<KubernetesExecutionParameters>::all(world.client.clone()));
    let workspaces = of::<PersistentWorkspace>(&world);
    delete_all(&classes).await?;
    release_all(&classes, "", json!({})).await?;
    delete_all(&parameters).await?;
    release_all(&parameters, "", json!({})).await?;
    delete_all(&workspaces).await?;
    release_all(&workspaces, "", json!({})).await?;
    nothing_hangs(&world).await
}
