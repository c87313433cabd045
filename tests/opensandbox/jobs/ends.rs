//! How Jobs end on OpenSandbox: by themselves, stopped, or not at all.

use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_tests::poll::PATIENCE;
use serde_json::json;

use super::world::{World, shows};
use crate::job_world::{History, condition, exit_code, succeeded, uid};

/// Name, argv, status and reason of Succeeded, exit code.
type Row<'a> = (&'a str, &'a [&'a str], (&'a str, &'a str), Option<i32>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_end_by_themselves_with_their_code() -> Result<()> {
    let world = World::new("codes").await?;
    let history = History::of(world.jobs.clone());
    let rows: [Row; 5] = [
        ("code-7", &["sh", "-c", "exit 7"], ("False", "ProcessFailed"), Some(7)),
        ("code-absent", &["/no/such/program"], ("False", "ProcessFailed"), Some(127)),
        ("code-killed", &["sh", "-c", "kill -9 $$"], ("False", "ProcessFailed"), Some(137)),
        ("code-output", &["sh", "-c", "yes 0123456789abcdef | head -c 50000000"], ("True", "Completed"), Some(0)),
        // No shell has a say in the words.
        (
            "code-argv",
            &["sh", "-c", "[ \"$1\" = '$HOME $$ $(x) `y` \"z\"' ] && [ \"$2\" = \"it's\" ] && [ \"$3\" = '' ]", "sh", "$HOME $$ $(x) `y` \"z\"", "it's", ""],
            ("True", "Completed"),
            Some(0),
        ),
    ];
    for (name, argv, ..) in &rows {
        world.job(name, argv, json!({})).await?;
    }
    // No folder can be made there, whoever one is; and most of what Linux takes for one word.
    world.job("code-folder", &["true"], json!({"task": {"workingDir": "/proc/none"}})).await?;
    world.job("code-long", &["sh", "-c", "[ ${#1} = 120000 ]", "sh", &"x".repeat(120_000)], json!({})).await?;
    for (name, _, (status, reason), code) in rows {
        let job = world.succeeded(name, status, reason).await?;
        assert_eq!(exit_code(&job), code, "{name}");
        assert!(job.status.as_ref().is_some_and(|status| status.start_time.is_some()), "{name}");
        world.nothing_left(&uid(&job)).await?;
    }
    world.succeeded("code-long", "True", "Completed").await?;
    let refused = world.succeeded("code-folder", "False", "StartFailed").await?;
    assert_eq!((exit_code(&refused), refused.status.as_ref().and_then(|status| status.start_time.as_ref())), (None, None));
    world.nothing_left(&uid(&refused)).await?;
    shows(history, &[&world], "ends::processes_end_by_themselves_with_their_code")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_whose_process_runs_for_longer_than_its_lease_is_renewed_and_its_execd_may_be_reached_directly() -> Result<()> {
    let renewed = World::with("renewals", json!({}), json!({"orphanTTL": "60s", "leaseTTL": "61s"})).await?;
    let direct = World::with("direct", json!({}), json!({"execdAccess": "Direct"})).await?;
    renewed.script("renewed", "sleep 80", json!({})).await?;
    direct.script("direct", "exit 9", json!({})).await?;
    direct.script("direct-stopped", "trap 'exit 4' TERM; while :; do sleep 1 & wait $!; done", json!({})).await?;
    direct.running("direct-stopped").await?;
    direct.cancel("direct-stopped").await?;
    assert_eq!(exit_code(&direct.succeeded("direct-stopped", "False", "Cancelled").await?), Some(4));
    assert_eq!(exit_code(&direct.succeeded("direct", "False", "ProcessFailed").await?), Some(9));
    renewed.succeeded("renewed", "True", "Completed").await?;
    assert_eq!((renewed.begun("renewed"), direct.begun("direct")), (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_told_once_it_is_certain_with_the_code_if_there_was_one() -> Result<()> {
    let world = World::new("stops").await?;
    let history = History::of(world.jobs.clone());
    let polite = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done";
    world.script("stop-polite", polite, json!({})).await?;
    world.script("stop-stubborn", "trap '' TERM; while :; do sleep 1; done", json!({})).await?;
    world.script("stop-late", polite, json!({"activeDeadlineSeconds": 2})).await?;
    world.script("stop-deleted", polite, json!({})).await?;
    for name in ["stop-polite", "stop-stubborn", "stop-deleted"] {
        world.running(name).await?;
    }
    world.cancel("stop-polite").await?;
    world.cancel("stop-stubborn").await?;
    let deleted = uid(&world.jobs.get("stop-deleted").await?);
    world.delete("stop-deleted").await?;
    for (name, reason, code) in [("stop-polite", "Cancelled", Some(0)), ("stop-late", "DeadlineExceeded", Some(0)), ("stop-stubborn", "Cancelled", None)] {
        let job = world.succeeded(name, "False", reason).await?;
        assert_eq!(exit_code(&job), code, "{name}: {:?}", job.status);
        assert!(world.of_job(&uid(&job)).await?.is_empty(), "{name}: the end is written once the sandbox is gone");
        assert_eq!(world.begun(name), 1, "{name}");
    }
    world.gone("stop-deleted").await?;
    assert!(world.of_job(&deleted).await?.is_empty());

    // What is over before it is asked for.
    world.job("stop-over", &["true"], json!({"ttlSecondsAfterFinished": 5})).await?;
    world.succeeded("stop-over", "True", "Completed").await?;
    world.cancel("stop-over").await?;
    world.gone("stop-over").await?;
    shows(history, &[&world], "ends::a_stop_is_told_once_it_is_certain_with_the_code_if_there_was_one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_cancelled_before_it_starts_runs_nothing() -> Result<()> {
    let world = World::new("early").await?;
    let job = world.script("early", "true", json!({"desiredState": "Cancelled"})).await?;
    world.succeeded("early", "False", "Cancelled").await?;
    for number in 0..4 {
        let name = format!("early-{number}");
        let job = world.script(&name, "sleep 600", json!({})).await?;
        tokio::time::sleep(Duration::from_millis(300 * number)).await;
        world.cancel(&name).await?;
        world.succeeded(&name, "False", "Cancelled").await?;
        world.nothing_left(&uid(&job)).await?;
        assert!(world.begun(&name) <= 1, "{name}");
    }
    assert_eq!((world.begun("early"), world.of_job(&uid(&job)).await?.len()), (0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_waited_for_and_what_is_not_allowed_is_told() -> Result<()> {
    let world = World::new("waits").await?;
    let env = |name: &str, key: &str, optional: bool| json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": optional}}}]);
    world.script("waits-optional", "[ -z \"$V\" ]", json!({"task": {"env": env("never", "k", true)}})).await?;
    world.script("waits-late", "[ \"$V\" = canary-late ]", json!({"task": {"env": env("late", "k", false)}})).await?;
    let missing = world.until("waits-late", "refused", PATIENCE, |job| condition(job, "Accepted") == ("False".into(), "SecretNotFound".into())).await?;
    assert_eq!(succeeded(&missing), ("Unknown".into(), "Pending".into()));
    world.secret("late", json!({"other": "x"})).await?;
    world.until("waits-late", "still refused", PATIENCE, |job| condition(job, "Accepted") == ("False".into(), "SecretKeyNotFound".into())).await?;
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::namespaced(world.client.clone(), super::world::NAMESPACE);
    secrets.patch("late", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(json!({"stringData": {"k": "canary-late"}}))).await?;
    world.succeeded("waits-late", "True", "Completed").await?;
    world.succeeded("waits-optional", "True", "Completed").await?;

    let closed = World::with("waits-closed", json!({"secretDelivery": "NodeResolved"}), json!({})).await?;
    closed.script("waits-closed", "true", json!({"task": {"env": env("late", "k", false)}})).await?;
    closed.until("waits-closed", "refused", PATIENCE, |job| condition(job, "Accepted") == ("False".into(), "SecretDeliveryNotAllowed".into())).await?;
    closed.job("waits-empty", &[], json!({})).await?;
    closed.until("waits-empty", "refused", PATIENCE, |job| condition(job, "Accepted") == ("False".into(), "Unsupported".into())).await?;
    closed.job("waits-odd", &["true"], json!({"task": {"env": [{"name": "A.B", "value": "x"}]}})).await?;
    closed.until("waits-odd", "refused", PATIENCE, |job| condition(job, "Accepted") == ("False".into(), "Unsupported".into())).await?;
    world.tells_no_secret(crate::world::server().await?, super::world::berth().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_beyond_the_limit_ends_the_process_and_not_the_sandbox() -> Result<()> {
    let world = World::new("memory").await?;
    let history = History::of(world.jobs.clone());
    world.job("memory", &["sh", "-c", "tail /dev/zero"], json!({"resources": {"limits": {"memory": "32Mi"}}})).await?;
    let job = world.succeeded("memory", "False", "ProcessFailed").await?;
    assert_eq!(exit_code(&job), Some(137));
    let result = job.status.as_ref().and_then(|status| status.result.as_ref()).context("no result")?;
    assert_eq!(result.reason.as_deref(), Some("OOMKilled"));
    world.nothing_left(&uid(&job)).await?;
    shows(history, &[&world], "ends::memory_beyond_the_limit_ends_the_process_and_not_the_sandbox")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_entrypoint_the_sandbox_is_the_process() -> Result<()> {
    let world = World::with("entrypoint", json!({}), json!({"executionMode": "Entrypoint"})).await?;
    let history = History::of(world.jobs.clone());
    world.script("entry-0", "sleep 4; [ \"$A.\" = 'b c.' ]", json!({"task": {"env": [{"name": "A", "value": "b c"}]}})).await?;
    world.script("entry-7", "sleep 2; exit 7", json!({})).await?;
    world.script("entry-stopped", "sleep 600", json!({})).await?;
    world.script("entry-lost", "sleep 600", json!({})).await?;
    world.running("entry-stopped").await?;
    world.cancel("entry-stopped").await?;
    let lost = uid(&world.running("entry-lost").await?);
    world.sandboxes.delete(&world.sandbox(&lost).await?.id).await?;
    for (name, (status, reason), code) in [
        ("entry-0", ("True", "Completed"), Some(0)),
        ("entry-7", ("False", "ProcessFailed"), Some(7)),
        ("entry-stopped", ("False", "Cancelled"), None),
        ("entry-lost", ("False", "BackendLost"), None),
    ] {
        let job = world.succeeded(name, status, reason).await?;
        let kinds: Vec<_> =
            job.status.iter().flat_map(|status| &status.execution).flat_map(|execution| &execution.references).map(|r| r.type_.as_str()).collect();
        assert_eq!((exit_code(&job), world.begun(name), kinds.as_slice()), (code, 1, ["Instance", "Sandbox"].as_slice()), "{name}");
        world.nothing_left(&uid(&job)).await?;
    }
    shows(history, &[&world], "ends::in_mode_entrypoint_the_sandbox_is_the_process")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_entrypoint_what_certainly_never_ran_is_told_so() -> Result<()> {
    let parameters = json!({"executionMode": "Entrypoint", "createTimeout": "8s", "createWindow": "10s"});
    let world = World::with("entry-never", json!({}), parameters).await?;
    let history = History::of(world.jobs.clone());
    // Nobody listens there.
    let absent = json!({"task": {"image": "127.0.0.1:9/none:1"}});
    world.job("entry-unpulled", &["true"], absent.clone()).await?;
    world.job("entry-cancelled", &["true"], absent).await?;
    world.job("entry-unsecret", &["true"], json!({"task": {"imagePullSecrets": [{"name": "no-such"}]}})).await?;
    world.until("entry-cancelled", "waiting", PATIENCE, |job| succeeded(job) == ("Unknown".into(), "WaitingForImage".into())).await?;
    world.cancel("entry-cancelled").await?;
    for (name, reason) in [("entry-cancelled", "Cancelled"), ("entry-unsecret", "ImagePullSecretUnavailable"), ("entry-unpulled", "ImagePullFailed")] {
        let job = world.succeeded(name, "False", reason).await?;
        assert_eq!(job.status.as_ref().and_then(|status| status.start_time.as_ref()), None, "{name}");
        assert_ne!(condition(&job, "BackendObserved").0, "False", "{name}");
        world.nothing_left(&uid(&job)).await?;
        world.delete(name).await?;
        world.gone(name).await?;
    }
    shows(history, &[&world], "ends::in_mode_entrypoint_what_certainly_never_ran_is_told_so")
}
