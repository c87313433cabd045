//! Jobs on Kubernetes, with a real API server and controller manager and a kubelet stand-in: from creation to their end, and away.

use anyhow::Result;
use berth_controllers::job::api::JobClass;
use berth_tests::kubelet::{now, terminated};
use berth_tests::poll::{PATIENCE, stays, until};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::job_world::{A_WHILE, World, condition, exit_code, succeeded, uid};

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_once_and_its_end_is_the_container_s() -> Result<()> {
    let world = World::new("job-ends").await?;
    let history = world.history();
    for (name, command, status, reason, code) in [
        ("zero", ["exit", "0"], "True", "Completed", 0),
        ("three", ["exit", "3"], "False", "ProcessFailed", 3),
        ("quick", ["quick", "0"], "True", "Completed", 0),
        ("quick-bad", ["quick", "9"], "False", "ProcessFailed", 9),
    ] {
        let created = world.job(name, &command, json!({})).await?;
        let job = world.succeeded(name, status, reason).await?;
        assert_eq!(exit_code(&job), Some(code), "{name}");
        let told = job.status.clone().unwrap();
        assert!(told.start_time.unwrap().0 <= told.completion_time.unwrap().0, "{name}");
        assert_eq!((condition(&job, "Accepted"), condition(&job, "Scheduled")), (pair("True", "Valid"), pair("True", "BackendCreated")));
        let class = told.resolved_job_class.unwrap();
        assert_eq!((class.name.as_str(), class.parameters_ref.is_some()), (world.class.as_str(), true));
        let pods = world.pods_of(&uid(&created)).await?;
        let ids: Vec<String> = pods.iter().map(|pod| pod.uid().unwrap_or_default()).collect();
        assert_eq!(told.execution.unwrap().id("Pod").map(str::to_owned).into_iter().collect::<Vec<_>>(), ids, "{name}: one Pod, the recorded one");
    }
    assert_eq!(world.kubelet.begun(), 4);
    // The Pod is let go once its end is stored and counted; then there is nothing more to do.
    for pod in world.pods.list(&Default::default()).await?.items {
        until(&format!("{} to be let go", pod.name_any()), PATIENCE, || async {
            Ok(world.pods.get(&pod.name_any()).await?.finalizers().is_empty().then_some(()))
        })
        .await?;
    }
    tokio::time::sleep(A_WHILE).await;
    let writes = world.writes().await?;
    println!("own writes of 4 Jobs: {writes:#?}");
    // A POST that the cache was too slow for is refused with 409, and writes nothing.
    let written = writes.iter().filter(|(what, _)| what.ends_with(" 200") || what.ends_with(" 201")).map(|(_, times)| times).sum::<usize>();
    assert!(written <= 4 * 6 && writes.values().sum::<usize>() <= written + 4, "{writes:#?}");
    stays("the writes", A_WHILE, || async { Ok(world.writes().await? == writes) }).await?;
    assert!(history.end()? >= 8);
    world.nothing_was_refused().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_born_gated_and_only_the_recorded_one_is_released() -> Result<()> {
    let world = World::new("job-gate").await?;
    let job = world.job("sleeper", &["sleep"], json!({})).await?;
    world.succeeded("sleeper", "Unknown", "Running").await?;
    let native = world.natives.get(&format!("ayj-{}", uid(&job))).await?;
    let spec = native.spec.clone().unwrap();
    assert_eq!((spec.backoff_limit, spec.active_deadline_seconds, spec.ttl_seconds_after_finished, spec.suspend), (Some(0), None, None, Some(false)));
    let template = spec.template.spec.unwrap();
    assert_eq!(template.scheduling_gates.unwrap()[0].name, "execution.ayatori.ddupan.top/start");
    // Somebody removes the Pod by force, with its finalizers: the native Job makes another, and that one never runs.
    let first = world.bound(&uid(&job)).await?;
    let strip = json!({"metadata": {"finalizers": null}});
    world.pods.patch(&first.name_any(), &PatchParams::default(), &Patch::Merge(&strip)).await?;
    world.pods.delete(&first.name_any(), &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    world.succeeded("sleeper", "Unknown", "ResultUnknown").await?;
    let unknown = world.until("sleeper", "BackendObserved", |job| condition(job, "BackendObserved") == pair("False", "PodVanished")).await?;
    assert_eq!(unknown.status.unwrap().completion_time, None);
    stays("the number of processes", A_WHILE, || async { Ok(world.kubelet.begun() == 1) }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_waited_for() -> Result<()> {
    let world = World::new("job-waits").await?;
    // No class, and no default.
    let unnamed = json!({"jobClassName": null});
    world.job("unnamed", &["exit", "0"], unnamed).await?;
    let job = world.succeeded("unnamed", "Unknown", "Pending").await?;
    assert_eq!(condition(&job, "Accepted"), pair("False", "NoDefaultClass"));
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(world.client.clone());
    let default = json!({"metadata": {"annotations": {"execution.ayatori.ddupan.top/default-job-class": world.class}}});
    namespaces.patch(&world.namespace, &PatchParams::default(), &Patch::Merge(default)).await?;
    world.succeeded("unnamed", "True", "Completed").await?;

    // A Secret that comes later: one Pod, one start, nothing of its value anywhere.
    let env = json!({"image": "i", "command": ["held"], "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}}]});
    let job = world.job("secret", &[], json!({"task": env, "activeDeadlineSeconds": 1})).await?;
    let pod = world.bound(&uid(&job)).await?;
    let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
    world.kubelet.report(&pod.name_any(), "Pending", waiting("CreateContainerConfigError", "secret \"late\" not found")).await?;
    let job = world.succeeded("secret", "Unknown", "WaitingForReference").await?;
    let told = job.status.clone().unwrap();
    let message = &told.conditions.iter().find(|condition| condition.type_ == "Succeeded").unwrap().message;
    assert_eq!((message.as_str(), told.start_time), ("secret \"late\" not found", None));
    world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await?;
    // Its deadline counts from the start of the process.
    world.until("secret", "to be stopped after its deadline", |job| condition(job, "StopRequested") == pair("True", "DeadlineExceeded")).await?;
    let pod = world.pod(&uid(&job), "to be deleted", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
    assert_eq!(succeeded(&world.jobs.get("secret").await?).0, "Unknown", "not before the stop is confirmed");
    world.kubelet.report(&pod.name_any(), "Failed", terminated(137, "Error", &now())).await?;
    world.succeeded("secret", "False", "DeadlineExceeded").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn troubles_that_last_end_the_job_and_the_class_says_when() -> Result<()> {
    let parameters = json!({"imagePull": {"failureGracePeriod": "2s"}, "createErrorGracePeriod": "2s"});
    let world = World::with("job-troubles", json!({}), parameters).await?;
    for (name, reason, message, expected) in [
        ("image", "ErrImagePull", "not found", "ImagePullFailed"),
        ("name", "InvalidImageName", "x", "InvalidImageName"),
        ("container", "CreateContainerError", "no", "ContainerCreateFailed"),
    ] {
        let job = world.job(name, &["held"], json!({})).await?;
        let pod = world.bound(&uid(&job)).await?;
        world.kubelet.report(&pod.name_any(), "Pending", json!({"waiting": {"reason": reason, "message": message}})).await?;
        let pod = world.pod(&uid(&job), "to be deleted", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
        let invented = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
        world.kubelet.report(&pod.name_any(), "Failed", invented).await?;
        let job = world.succeeded(name, "False", expected).await?;
        let told = job.status.clone().unwrap();
        assert_eq!((told.start_time, exit_code(&job)), (None, None), "{name}");
    }
    // What could not start, and what the kubelet refused.
    let job = world.job("start", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    let state = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: \"nope\": not found", "startedAt": "1970-01-01T00:00:00Z", "finishedAt": now()}});
    world.kubelet.report(&pod.name_any(), "Failed", state).await?;
    let job = world.succeeded("start", "False", "StartFailed").await?;
    assert_eq!((job.status.clone().unwrap().start_time, exit_code(&job)), (None, None));
    let job = world.job("refused", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.patch(&pod.name_any(), &json!({"phase": "Failed", "reason": "OutOfcpu", "message": "no room"})).await?;
    world.succeeded("refused", "False", "PodRejected").await?;
    // Quota: the native Job can't make its Pod.
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/pods": "0"}}});
    let quotas: kube::Api<k8s_openapi::api::core::v1::ResourceQuota> = kube::Api::namespaced(world.client.clone(), &world.namespace);
    quotas.create(&Default::default(), &serde_json::from_value(quota)?).await?;
    until("the quota to be in force", PATIENCE, || async { Ok(quotas.get("none").await?.status.and_then(|status| status.hard)) }).await?;
    world.job("quota", &["exit", "0"], json!({})).await?;
    let job = world.until("quota", "to tell of the quota", |job| condition(job, "Scheduled") == pair("False", "BackendRefuses")).await?;
    let told = job.status.unwrap();
    assert!(told.conditions.iter().any(|condition| condition.message.contains("exceeded quota: none")), "{:?}", told.conditions);
    world.succeeded("quota", "False", "PodRejected").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_is_confirmed_before_it_is_told() -> Result<()> {
    let world = World::new("job-cancel").await?;
    let history = world.history();
    let job = world.job("running", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await?;
    world.succeeded("running", "Unknown", "Running").await?;
    world.cancel("running").await?;
    let pod = world.pod(&uid(&job), "to be deleted", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
    stays("the end to wait for the container's", A_WHILE, || async { Ok(succeeded(&world.jobs.get("running").await?).0 == "Unknown") }).await?;
    world.kubelet.report(&pod.name_any(), "Failed", terminated(143, "Error", &now())).await?;
    let job = world.succeeded("running", "False", "Cancelled").await?;
    assert_eq!(exit_code(&job), Some(143));

    // Before it could start, and at birth.
    let job = world.job("born-cancelled", &["exit", "0"], json!({"desiredState": "Cancelled"})).await?;
    let told = world.succeeded("born-cancelled", "False", "Cancelled").await?;
    assert_eq!(told.status.unwrap().execution, None);
    world.nothing_left(&uid(&job)).await?;
    let mut random: Vec<(String, String)> = Vec::new();
    for index in 0..12 {
        let name = format!("moment-{index}");
        let job = world.job(&name, &["sleep"], json!({})).await?;
        tokio::time::sleep(std::time::Duration::from_millis(index * 15)).await;
        world.cancel(&name).await?;
        random.push((name, uid(&job)));
    }
    for (name, uid) in random {
        world.succeeded(&name, "False", "Cancelled").await?;
        // At this moment no process of it runs.
        for pod in world.pods_of(&uid).await? {
            let running = serde_json::to_value(&pod.status)?.pointer("/containerStatuses/0/state/running").is_some();
            assert!(!running && pod.metadata.deletion_timestamp.is_some(), "{name}: {:?}", pod.status);
        }
    }
    // A success that came first stays one.
    let job = world.job("done", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.cancel("done").await?;
    world.succeeded("done", "True", "Completed").await?;
    history.end()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_stops_and_cleans_up_whatever_its_cascade() -> Result<()> {
    let world = World::new("job-delete").await?;
    for (name, params) in [
        ("background", DeleteParams::background()),
        ("foreground", DeleteParams::foreground()),
        ("orphan", DeleteParams::orphan()),
        ("default", DeleteParams::default()),
    ] {
        let job = world.job(name, &["sleep"], json!({})).await?;
        world.succeeded(name, "Unknown", "Running").await?;
        world.delete(name, &params).await?;
        world.gone(name).await?;
        world.nothing_left(&uid(&job)).await?;
    }
    // In every stage: nothing resolved, waiting to start, finished.
    world.job("resolving", &["exit", "0"], json!({"jobClassName": "none-of-that-name"})).await?;
    world.succeeded("resolving", "Unknown", "Pending").await?;
    world.delete("resolving", &DeleteParams::default()).await?;
    world.gone("resolving").await?;
    let job = world.job("starting", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.delete("starting", &DeleteParams::default()).await?;
    world.pod(&uid(&job), "to be deleted", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
    stays("the Job to wait for its Pod's end", A_WHILE, || async { Ok(world.jobs.get_opt("starting").await?.is_some()) }).await?;
    world.kubelet.report(&pod.name_any(), "Failed", json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})).await?;
    world.gone("starting").await?;
    world.nothing_left(&uid(&job)).await?;
    // A namesake is another Job.
    let old = world.job("twin", &["sleep"], json!({})).await?;
    world.succeeded("twin", "Unknown", "Running").await?;
    world.delete("twin", &DeleteParams::default()).await?;
    world.gone("twin").await?;
    let new = world.job("twin", &["exit", "0"], json!({})).await?;
    world.succeeded("twin", "True", "Completed").await?;
    assert_ne!(uid(&old), uid(&new));
    world.nothing_left(&uid(&old)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_job_goes_after_its_time_to_live() -> Result<()> {
    let world = World::new("job-ttl").await?;
    let job = world.job("zero", &["exit", "0"], json!({"ttlSecondsAfterFinished": 0})).await?;
    world.gone("zero").await?;
    world.nothing_left(&uid(&job)).await?;
    world.job("two", &["exit", "1"], json!({"ttlSecondsAfterFinished": 2})).await?;
    let ended = world.succeeded("two", "False", "ProcessFailed").await?.status.unwrap().completion_time.unwrap().0;
    world.gone("two").await?;
    let age = k8s_openapi::jiff::Timestamp::now().duration_since(ended);
    assert!(age.as_secs() >= 2, "{age:?}");
    // Extended before it is over, and told that it was seen.
    world.job("kept", &["exit", "0"], json!({"ttlSecondsAfterFinished": 4})).await?;
    world.succeeded("kept", "True", "Completed").await?;
    let later = json!({"spec": {"ttlSecondsAfterFinished": 3600}});
    world.jobs.patch("kept", &PatchParams::default(), &Patch::Merge(later)).await?;
    world.until("kept", "its generation", |job| job.status.as_ref().and_then(|status| status.observed_generation) == Some(2)).await?;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(world.jobs.get_opt("kept").await?.is_some_and(|job| job.metadata.deletion_timestamp.is_none()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_leaves_the_result_unknown_until_it_is_back() -> Result<()> {
    let world = World::new("job-lost").await?;
    let silent = |on: bool| {
        let ready = if on { json!({"type": "Ready", "status": "False"}) } else { json!({"type": "Ready", "status": "True"}) };
        let scheduled: Value = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now()});
        json!({"conditions": [scheduled, ready, {"type": "ContainersReady", "status": "True"}]})
    };
    let job = world.job("back", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await?;
    world.succeeded("back", "Unknown", "Running").await?;
    world.kubelet.patch(&pod.name_any(), &silent(true)).await?;
    let unknown = world.succeeded("back", "Unknown", "ResultUnknown").await?;
    assert_eq!(condition(&unknown, "BackendObserved"), pair("False", "NodeLost"));
    world.kubelet.patch(&pod.name_any(), &silent(false)).await?;
    world.succeeded("back", "Unknown", "Running").await?;
    world.kubelet.report(&pod.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.succeeded("back", "True", "Completed").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_in_use_does_not_vanish() -> Result<()> {
    let world = World::new("job-class").await?;
    let classes = world.classes();
    let held = until("the class to be held", PATIENCE, || async {
        let class = classes.get(&world.class).await?;
        let ready = class.status.iter().flat_map(|status| &status.conditions).any(|condition| condition.type_ == "Accepted" && condition.status == "True");
        Ok((ready && !class.finalizers().is_empty()).then_some(class))
    })
    .await?;
    assert_eq!(held.finalizers(), ["execution.ayatori.ddupan.top/class-in-use"]);
    world.job("user", &["held"], json!({})).await?;
    let job = world.until("user", "an execution", |job| condition(job, "Scheduled").0 == "True").await?;
    classes.delete(&world.class, &DeleteParams::default()).await?;
    stays("the class", A_WHILE, || async { Ok(classes.get_opt(&world.class).await?.is_some()) }).await?;
    let says = |class: &JobClass| {
        class.status.iter().flat_map(|status| &status.conditions).any(|condition| condition.type_ == "Accepted" && condition.reason == "Deleting")
    };
    until("the class to say so", PATIENCE, || async { Ok(says(&classes.get(&world.class).await?).then_some(())) }).await?;
    // Nobody new is accepted under it; who was goes on.
    world.job("late", &["exit", "0"], json!({})).await?;
    world.until("late", "to be told", |job| condition(job, "Accepted") == pair("False", "JobClassNotReady")).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Succeeded", terminated(0, "Completed", &now())).await?;
    world.succeeded("user", "True", "Completed").await?;
    until("the class to go", PATIENCE, || async { Ok(classes.get_opt(&world.class).await?.is_none().then_some(())) }).await?;
    Ok(())
}
