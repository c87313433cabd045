//! JobClasses and parameters on a real API server: a Job waits for them, and what it rests on does not vanish.

use anyhow::Result;
use berth_controllers::job::api::{JobClass, KubernetesExecutionParameters};
use berth_tests::kubelet::{now, terminated};
use berth_tests::poll::{PATIENCE, stays, until};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::job_world::{A_WHILE, World, condition, uid};

fn refused(reason: &str) -> (String, String) {
    ("False".to_owned(), reason.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_and_parameters_that_come_later_are_waited_for() -> Result<()> {
    const GROUP: &str = "execution.ayatori.ddupan.top";
    let world = World::new("job-later").await?;
    let name = format!("{}-x", world.class);
    let job = world.job("waits", &["exit", "0"], json!({"jobClassName": name})).await?;
    world.until("waits", "to be told", |job| condition(job, "Accepted") == refused("JobClassNotFound")).await?;
    let spec =
        json!({"controllerName": format!("{GROUP}/kubernetes"), "parametersRef": {"group": GROUP, "kind": "KubernetesExecutionParameters", "name": name}});
    let class: JobClass = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    world.classes().create(&PostParams::default(), &class).await?;
    world.until("waits", "to name what is missing", |job| condition(job, "Accepted") == refused("ParametersNotFound")).await?;
    // Nothing is made before all of it is there.
    assert!(world.pods_of(&uid(&job)).await?.is_empty() && world.natives.list(&Default::default()).await?.items.is_empty());
    let parameters: KubernetesExecutionParameters = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}}))?;
    Api::<KubernetesExecutionParameters>::all(world.client.clone()).create(&PostParams::default(), &parameters).await?;
    world.succeeded("waits", "True", "Completed").await?;
    assert_eq!(world.kubelet.begun_of(&uid(&job)), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_in_use_do_not_vanish() -> Result<()> {
    let world = World::new("job-parameters").await?;
    let parameters = Api::<KubernetesExecutionParameters>::all(world.client.clone());
    world.job("user", &["held"], json!({})).await?;
    let job = world.until("user", "an execution", |job| condition(job, "Scheduled").0 == "True").await?;
    parameters.delete(&world.class, &DeleteParams::default()).await?;
    stays("the parameters", A_WHILE, || async { Ok(parameters.get_opt(&world.class).await?.is_some()) }).await?;
    // Nobody new is accepted with them; who was goes on.
    world.job("late", &["exit", "0"], json!({})).await?;
    world.until("late", "to be told", |job| condition(job, "Accepted") == refused("ParametersNotFound")).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.succeeded("user", "True", "Completed").await?;
    until("the parameters to go", PATIENCE, || async { Ok(parameters.get_opt(&world.class).await?.is_none().then_some(())) }).await
}
