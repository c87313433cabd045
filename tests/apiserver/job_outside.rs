//! What others do to a Job's objects, and to the nodes under them, on a real API server: none of it makes a Job end falsely, hang, or take what isn't its.

use anyhow::{Context as _, Result};
use berth_controllers::job::api::{Job, JobClass};
use berth_tests::kubelet::{now, terminated};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::release::apply;
use k8s_openapi::api::batch::v1::Job as NativeJob;
use k8s_openapi::api::core::v1::{Event, LimitRange, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::job_world::{A_WHILE, World, condition, succeeded, uid};

const CLEANUP: &str = "execution.ayatori.ddupan.top/job-cleanup";

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_another_controller_is_left_alone_and_let_go() -> Result<()> {
    let world = World::new("job-foreign").await?;
    let name = format!("{}-foreign", world.class);
    let class: JobClass = read(json!({"metadata": {"name": name}, "spec": {"controllerName": "example.com/other"}}))?;
    world.classes().create(&PostParams::default(), &class).await?;
    world.job("probe", &["held"], json!({"jobClassName": name})).await?;
    assert_eq!(world.jobs.get("probe").await?.finalizers(), [""; 0], "the policy leaves it to its controller");
    // One that has our finalizer nevertheless.
    let job = json!({"metadata": {"name": "held", "finalizers": [CLEANUP]}, "spec": {"jobClassName": name, "task": {"image": "i"}}});
    world.jobs.create(&PostParams::default(), &read::<Job>(job)?).await?;
    stays("the Job", A_WHILE, || async { Ok(world.jobs.get("held").await?.status.is_none()) }).await?;
    for name in ["probe", "held"] {
        world.delete(name, &DeleteParams::default()).await?;
        world.gone(name).await?;
    }
    world.classes().delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_its_pod_is_not_the_jobs() -> Result<()> {
    let world = World::new("job-copy").await?;
    let job = world.job("original", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await?;
    // As `kubectl debug --copy-to --keep-labels` makes it.
    let copy: Pod =
        read(json!({"metadata": {"name": "copy", "labels": pod.labels()}, "spec": {"containers": [{"name": "main", "image": "i", "command": ["held"]}]}}))?;
    world.pods.create(&PostParams::default(), &copy).await?;
    world.succeeded("original", "Unknown", "Running").await?;
    world.kubelet.report(&pod.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.succeeded("original", "True", "Completed").await?;
    // It neither goes with the Job nor keeps it.
    world.delete("original", &DeleteParams::default()).await?;
    world.gone("original").await?;
    stays("the copy", A_WHILE, || async { Ok(world.pods.get("copy").await?.metadata.deletion_timestamp.is_none()) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_that_a_limit_range_changes_are_told() -> Result<()> {
    let world = World::new("job-range").await?;
    let range: LimitRange = read(json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]}}))?;
    Api::<LimitRange>::namespaced(world.client.clone(), &world.namespace).create(&PostParams::default(), &range).await?;
    let events: Api<Event> = Api::namespaced(world.client.clone(), &world.namespace);
    let named = |name: &str| ListParams::default().fields(&format!("reason=ResourcesAdjusted,involvedObject.name={name}"));
    let told = until("an Event", PATIENCE, || async {
        let name = format!("adjusted-{}", world.jobs.list(&ListParams::default()).await?.items.len());
        world.job(&name, &["exit", "0"], json!({"resources": {"limits": {"cpu": "1"}}})).await?;
        world.succeeded(&name, "True", "Completed").await?;
        // Events are written behind.
        tokio::time::sleep(A_WHILE).await;
        Ok(events.list(&named(&name)).await?.items.pop())
    })
    .await?;
    let note = told.message.context("a message")?;
    assert!(note.contains("limits.memory 64Mi instead of none") && !note.contains("limits.cpu"), "{note}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_beside_the_process_is_stopped_once_it_has_ended() -> Result<()> {
    let world = World::new("job-beside").await?;
    for deleted in [false, true] {
        let name = format!("beside-{deleted}");
        let job = world.job(&name, &["held"], json!({})).await?;
        let pod = world.bound(&uid(&job)).await?.name_any();
        let status = |name: &str, state: Value| json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let runs = || json!({"running": {"startedAt": now()}});
        let both = |main: Value| json!({"phase": "Running", "containerStatuses": [status("main", main), status("proxy", runs())]});
        world.kubelet.patch(&pod, &both(runs())).await?;
        world.succeeded(&name, "Unknown", "Running").await?;
        world.kubelet.patch(&pod, &both(terminated(3, "Error", &now()))).await?;
        let end = world.succeeded(&name, "False", "ProcessFailed").await?;
        if deleted {
            world.delete(&name, &DeleteParams::default()).await?;
        }
        world.pod(&uid(&job), "to be told to stop", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
        world.kubelet.patch(&pod, &json!({"phase": "Failed", "containerStatuses": [status("main", terminated(3, "Error", &now()))]})).await?;
        if deleted {
            world.gone(&name).await?;
            world.nothing_left(&uid(&job)).await?;
        } else {
            assert_eq!(world.jobs.get(&name).await?.status, end.status);
        }
    }
    Ok(())
}

/// Whoever guards the cluster says that this native Job is none: no repetition makes it one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_job_that_is_refused_for_good_ends_the_job() -> Result<()> {
    let world = World::new("job-invalid").await?;
    let rules = json!([{"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}]);
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": world.namespace}});
    let validation = json!({"expression": "false", "message": "no native Jobs here", "reason": "Invalid"});
    let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules, "namespaceSelector": here}, "validations": [validation]});
    let object =
        |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": world.namespace}, "spec": spec});
    apply(&world.client, &object("ValidatingAdmissionPolicy", spec)).await?;
    let binding = json!({"policyName": world.namespace, "validationActions": ["Deny"]});
    apply(&world.client, &object("ValidatingAdmissionPolicyBinding", binding)).await?;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}});
    let probe: NativeJob = read(json!({"metadata": {"name": "probe"}, "spec": {"template": template}}))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    until("the policy to be in force", PATIENCE, || async {
        Ok(matches!(world.natives.create(&dry, &probe).await, Err(kube::Error::Api(status)) if status.code == 422).then_some(()))
    })
    .await?;
    let job = world.job("refused", &["exit", "0"], json!({})).await?;
    let ended = world.succeeded("refused", "False", "BackendRejected").await?;
    let status = ended.status.context("a status")?;
    assert!(status.execution.is_none() && status.start_time.is_none(), "there is no execution");
    assert!(status.conditions.iter().any(|condition| condition.message.contains("no native Jobs here")), "{:?}", status.conditions);
    world.delete("refused", &DeleteParams::default()).await?;
    world.gone("refused").await?;
    world.nothing_left(&uid(&job)).await
}

/// A node of one's own, that nobody reports for.
async fn node(world: &World<'_>, name: &str) -> Result<Api<Node>> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    nodes.create(&PostParams::default(), &read::<Node>(json!({"metadata": {"name": name}}))?).await?;
    Ok(nodes)
}

/// A Job whose Pod was given up by the control plane while its process ran, or before it was seen; answers the Pod.
async fn given_up(world: &World<'_>, name: &str, state: Option<Value>) -> Result<String> {
    let job = world.job(name, &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?.name_any();
    if let Some(state) = state {
        world.kubelet.report(&pod, "Running", state).await?;
        world.succeeded(name, "Unknown", "Running").await?;
    }
    let disruption = json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]});
    world.kubelet.patch(&pod, &disruption).await?;
    let lost = world.succeeded(name, "Unknown", "ResultUnknown").await?;
    assert_eq!(condition(&lost, "BackendObserved"), ("False".to_owned(), "NodeLost".to_owned()));
    Ok(pod)
}

/// The Pod changes, as it does when the control plane goes on with it.
async fn touch(world: &World<'_>, pod: &str) -> Result<()> {
    world.pods.patch(pod, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"annotations": {"example.com/touched": now()}}}))).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_taken_out_of_service_proves_the_end() -> Result<()> {
    let on = "out-of-service";
    let world = World::with("job-service", json!({}), json!({"nodeSelector": {"kubernetes.io/hostname": on}})).await?;
    let nodes = node(&world, on).await?;
    let pod = given_up(&world, "ran", Some(json!({"running": {"startedAt": now()}}))).await?;
    let unseen = given_up(&world, "unseen", None).await?;
    let taint = json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoSchedule"}]}});
    nodes.patch(on, &PatchParams::default(), &Patch::Merge(taint)).await?;
    touch(&world, &pod).await?;
    touch(&world, &unseen).await?;
    let ended = world.succeeded("ran", "False", "BackendLost").await?;
    assert_eq!(ended.status.context("a status")?.result, None, "nobody knows its code");
    world.succeeded("unseen", "False", "BackendLost").await?;
    nodes.delete(on, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_deleted_proves_the_end_only_where_the_class_trusts_that() -> Result<()> {
    for (on, policy, trusts) in [("gone-trusted", "TrustNodeDeletion", true), ("gone-doubted", "WaitForConfirmation", false)] {
        let world = World::with(&format!("job-{on}"), json!({}), json!({"nodeSelector": {"kubernetes.io/hostname": on}, "nodeLostPolicy": policy})).await?;
        let nodes = node(&world, on).await?;
        let pod = given_up(&world, "ran", Some(json!({"running": {"startedAt": now()}}))).await?;
        nodes.delete(on, &DeleteParams::default()).await?;
        touch(&world, &pod).await?;
        if trusts {
            world.succeeded("ran", "False", "BackendLost").await?;
        } else {
            stays("the doubt", A_WHILE, || async { Ok(world.jobs.get("ran").await?.status.context("a status")?.completion_time.is_none()) }).await?;
        }
    }
    Ok(())
}

/// The node's clock is an hour behind: what it was told to stop says that it had ended long before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_is_behind_makes_no_success_of_a_cancel() -> Result<()> {
    let world = World::new("job-behind").await?;
    let hour = jiff::SignedDuration::from_hours(1);
    let behind = || jiff::Timestamp::from_second((jiff::Timestamp::now() - hour).as_second()).unwrap_or_default().to_string();
    let job = world.job("behind", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?.name_any();
    world.kubelet.report(&pod, "Pending", json!({"waiting": {"reason": "ContainerCreating"}})).await?;
    let began = behind();
    world.kubelet.report(&pod, "Running", json!({"running": {"startedAt": began}})).await?;
    world.succeeded("behind", "Unknown", "Running").await?;
    world.cancel("behind").await?;
    world.pod(&uid(&job), "told to stop", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
    world.kubelet.report(&pod, "Succeeded", json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": behind()}})).await?;
    let ended = world.succeeded("behind", "False", "Cancelled").await?;
    let status = ended.status.context("a status")?;
    assert!(status.start_time.context("a start")?.0 >= job.metadata.creation_timestamp.context("a creation")?.0, "not before it was made");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmation_that_a_recovery_has_overtaken_is_taken_off() -> Result<()> {
    const CONFIRM: &str = "execution.ayatori.ddupan.top/confirm-backend-lost";
    let world = World::with("job-overtaken", json!({"minLossConfirmationAge": "1h"}), json!({})).await?;
    let job = world.job("back", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?.name_any();
    let ready = |ready: &str| json!({"conditions": [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": "True"}]});
    world.kubelet.report(&pod, "Running", json!({"running": {"startedAt": now()}})).await?;
    world.kubelet.patch(&pod, &ready("False")).await?;
    world.succeeded("back", "Unknown", "ResultUnknown").await?;
    let confirm = json!({"metadata": {"annotations": {CONFIRM: uid(&job)}}});
    world.jobs.patch("back", &PatchParams::default(), &Patch::Merge(confirm)).await?;
    world.kubelet.patch(&pod, &ready("True")).await?;
    world
        .until("back", "to run, unconfirmed", |job| succeeded(job).1 == "Running" && job.annotations().keys().all(|key| !key.contains("backend-lost")))
        .await?;
    world.nothing_was_refused().await
}
