//! The state matrix, row beside row: where a Job may go from each state, and what is told of it there.

use anyhow::{Context as _, Result};
use berth_opensandbox::Sandbox;
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::world::{LONG, NAMESPACE, VANISHED_SECRET, World, set_key, shared, shows};
use crate::faulty::{Fate, FaultyProxy};
use crate::job_world::{History, condition, exit_code, succeeded, uid};
use crate::world::server;

const POLITE: &str = "trap 'exit 4' TERM; while :; do sleep 1 & wait $!; done";

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

impl World {
    pub(super) async fn unknown(&self, name: &str, reason: &str) -> Result<()> {
        let what = format!("unknown, {reason}");
        self.until(name, &what, LONG, |job| condition(job, "BackendObserved") == is("False", reason)).await.map(drop)
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.jobs.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// An administrator confirms that it is lost.
    pub(super) async fn confirm_loss(&self, name: &str) -> Result<()> {
        let own = uid(&self.jobs.get(name).await?);
        self.patch(name, json!({"metadata": {"annotations": {"execution.ayatori.ddupan.top/confirm-backend-lost": own}}})).await?;
        self.succeeded(name, "False", "BackendLost").await.map(drop)
    }

    /// An administrator lets go of a deleted Job of which nothing is proven.
    async fn force(&self, name: &str) -> Result<()> {
        let reason = json!({"execution.ayatori.ddupan.top/force-cleanup-reason": "the test removed its sandbox"});
        self.patch(name, json!({"metadata": {"finalizers": null, "annotations": reason}})).await?;
        self.gone(name).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_sandbox_is_being_made_or_waits_goes_wherever_it_may() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let world = World::with("made", json!({}), json!({"endpoint": proxy.url(), "createTimeout": "60s", "createWindow": "61s"})).await?;
    let history = History::of(world.jobs.clone());
    world.secret("made", json!({"k": "canary-made"})).await?;
    let waits = json!({"task": {"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "made", "key": "k"}}}]}});
    proxy.strike_all("POST", "/sandboxes", Fate::Held);
    let mut sandboxes = Vec::new();
    for name in ["made-cancelled", "made-deleted", "waits-goes", "waits-cancelled", "waits-deleted", "waits-paused"] {
        sandboxes.push((name, uid(&world.script(name, &format!("{}; [ \"$V\" = canary-made ]", world.wait_at("made")), waits.clone()).await?)));
    }
    until("six creates", PATIENCE, || async { Ok((proxy.struck() == 6).then_some(())) }).await?;
    for (name, _) in &sandboxes {
        world.until(name, "being made", PATIENCE, |job| condition(job, "Scheduled") == is("False", "Pending")).await?;
    }
    world.cancel("made-cancelled").await?;
    world.delete("made-deleted").await?;
    world.succeeded("made-cancelled", "False", "Cancelled").await?;
    // What they were accepted with is gone when the start needs it.
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), NAMESPACE);
    secrets.delete("made", &DeleteParams::default()).await?;
    proxy.forget();
    proxy.release(6);
    world.gone("made-deleted").await?;
    for name in ["waits-goes", "waits-cancelled", "waits-deleted", "waits-paused"] {
        world.succeeded(name, "Unknown", "WaitingForReference").await?;
    }
    let paused = world.sandbox(&uid(&world.jobs.get("waits-paused").await?)).await?.id;
    world.sandboxes.pause(&paused).await?;
    world.cancel("waits-cancelled").await?;
    world.delete("waits-deleted").await?;
    world.unknown("waits-paused", "BackendPaused").await?;
    world.sandboxes.resume(&paused).await?;
    world.succeeded("waits-paused", "Unknown", "WaitingForReference").await?;
    world.secret("made", json!({"k": "canary-made"})).await?;
    for name in ["waits-goes", "waits-paused"] {
        world.running(name).await?;
    }
    world.counter.open("made");
    for name in ["waits-goes", "waits-paused"] {
        world.succeeded(name, "True", "Completed").await?;
        assert_eq!(world.begun(name), 1, "{name}");
    }
    world.succeeded("waits-cancelled", "False", "Cancelled").await?;
    world.gone("waits-deleted").await?;
    for (name, uid) in sandboxes {
        world.nothing_left(&uid).await.context(name)?;
    }
    for name in ["made-cancelled", "made-deleted", "waits-cancelled", "waits-deleted"] {
        assert_eq!(world.begun(name), 0, "{name}");
    }
    shows(history, &[&world], "states::a_job_whose_sandbox_is_being_made_or_waits_goes_wherever_it_may")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_while_nobody_could_ask_is_told_afterwards() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let world = World::with("unasked", json!({}), json!({"endpoint": proxy.url()})).await?;
    let history = History::of(world.jobs.clone());
    let codes = [("unasked-0", 0), ("unasked-5", 5), ("late-0", 0), ("late-5", 5)];
    for (name, code) in codes {
        let text = format!("{}\n{}\nexit {code}", world.wait_at("unasked"), world.tell(&format!("{name}-ends")));
        world.script(name, &text, json!({})).await?;
    }
    let stopped = ["cut-cancelled", "cut-deleted", "early-deleted", "twice"];
    let mut uids = Vec::new();
    for name in stopped {
        uids.push(uid(&world.script(name, POLITE, json!({})).await?));
    }
    for name in codes.map(|(name, _)| name).into_iter().chain(stopped) {
        world.running(name).await?;
    }
    proxy.set_down(true);
    world.delete("early-deleted").await?;
    world.cancel("twice").await?;
    world.until("twice", "stopping", PATIENCE, |job| condition(job, "StopRequested") == is("True", "Cancelled")).await?;
    world.delete("twice").await?;
    world.counter.open("unasked");
    for (name, _) in codes {
        world.told(&format!("{name}-ends")).await?;
    }
    // Until its code is written.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    world.cancel("late-0").await?;
    world.cancel("late-5").await?;
    for name in ["unasked-0", "unasked-5", "cut-cancelled", "cut-deleted"] {
        world.unknown(name, "BackendUnreachable").await?;
    }
    world.cancel("cut-cancelled").await?;
    world.delete("cut-deleted").await?;
    proxy.set_down(false);
    for (name, code) in codes {
        let (status, reason) = if code == 0 { ("True", "Completed") } else { ("False", "ProcessFailed") };
        let job = world.succeeded(name, status, reason).await?;
        assert_eq!((exit_code(&job), world.begun(name)), (Some(code), 1), "{name}");
    }
    let cut = world.succeeded("cut-cancelled", "False", "Cancelled").await?;
    assert_eq!(exit_code(&cut), Some(4));
    for name in ["cut-deleted", "early-deleted", "twice"] {
        world.gone(name).await?;
    }
    for uid in uids {
        world.nothing_left(&uid).await?;
    }
    shows(history, &[&world], "states::what_happened_while_nobody_could_ask_is_told_afterwards")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_another_key_does_not_see_is_unknown_until_somebody_confirms_its_loss() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let plane = shared().await?.plane;
    set_key(&plane.admin()?, VANISHED_SECRET, "canary-tenant-a").await?;
    proxy.tenants().admit("canary-tenant-a", "a");
    let parameters = json!({"endpoint": proxy.url(), "apiKeySecretRef": {"name": VANISHED_SECRET}});
    let world = World::with("vanished", json!({"minLossConfirmationAge": "1s"}), parameters).await?;
    let history = History::of(world.jobs.clone());
    let names = ["vanished-cancelled", "vanished-deleted", "vanished-confirmed"];
    let mut ids = Vec::new();
    for name in names {
        world.script(name, "sleep 600", json!({})).await?;
    }
    for name in names {
        ids.push(world.sandbox(&uid(&world.running(name).await?)).await?.id);
    }
    // Another tenant's key, to which these were never shown; and they are not there.
    proxy.tenants().admit("canary-tenant-b", "b");
    for id in &ids {
        world.sandboxes.delete(id).await?;
    }
    set_key(&world.client, VANISHED_SECRET, "canary-tenant-b").await?;
    for name in names {
        world.unknown(name, "SandboxVanished").await?;
    }
    world.cancel("vanished-cancelled").await?;
    world.delete("vanished-deleted").await?;
    for name in names {
        world.confirm_loss(name).await?;
        assert_eq!(world.begun(name), 1, "{name}");
    }
    world.delete("vanished-cancelled").await?;
    world.delete("vanished-confirmed").await?;
    for name in names {
        world.force(name).await?;
    }
    world.tells_no_secret(server().await?, super::world::berth().await?).await?;
    shows(history, &[&world], "states::a_sandbox_that_another_key_does_not_see_is_unknown_until_somebody_confirms_its_loss")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_entrypoint_a_start_waits_for_its_server_or_is_unconfirmed() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let parameters = |endpoint: &str| json!({"endpoint": endpoint, "executionMode": "Entrypoint", "createTimeout": "5s", "createWindow": "8s"});
    let world = World::with("unsure", json!({"minLossConfirmationAge": "1s"}), parameters(&proxy.url())).await?;
    let nowhere = World::of(shared().await?.plane, server().await?, "unsure-nowhere", json!({}), parameters("http://127.0.0.1:9/v1")).await?;
    let history = History::of(world.jobs.clone());
    nowhere.script("nowhere", "true", json!({})).await?;
    // One is made late, two never.
    for (name, fate) in [("unsure-late", Fate::Held), ("unsure-cancelled", Fate::Refused), ("unsure-deleted", Fate::Refused)] {
        proxy.strike("POST", "/sandboxes", 0, fate);
        world.script(name, &format!("{}; exit 6", world.wait_at("unsure")), json!({})).await?;
        world.unknown(name, "StartUnconfirmed").await?;
    }
    proxy.release(1);
    world.cancel("unsure-cancelled").await?;
    world.delete("unsure-deleted").await?;
    world.running("unsure-late").await?;
    world.counter.open("unsure");
    let late = world.succeeded("unsure-late", "False", "ProcessFailed").await?;
    assert_eq!((exit_code(&late), world.begun("unsure-late")), (Some(6), 1));
    world.confirm_loss("unsure-cancelled").await?;
    world.confirm_loss("unsure-deleted").await?;
    world.delete("unsure-cancelled").await?;
    world.force("unsure-cancelled").await?;
    world.force("unsure-deleted").await?;
    nowhere.succeeded("nowhere", "Unknown", "WaitingForContainer").await?;
    nowhere.cancel("nowhere").await?;
    nowhere.succeeded("nowhere", "False", "Cancelled").await?;
    for name in ["unsure-cancelled", "unsure-deleted", "nowhere"] {
        assert_eq!(world.begun(name), 0, "{name}");
    }
    shows(history, &[&world], "states::in_mode_entrypoint_a_start_waits_for_its_server_or_is_unconfirmed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_ends_the_job_with_the_reason() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let world = World::with("refusals", json!({}), json!({"endpoint": proxy.url(), "createTimeout": "4s", "createWindow": "5s"})).await?;
    // Longer than the server lets a sandbox live.
    let long = World::with("refusals-long", json!({}), json!({"executionMode": "Entrypoint", "leaseTTL": "72h"})).await?;
    let history = History::of(world.jobs.clone());
    // Of others, who know how the lock tells a stop.
    let disrupted = world.script("refused-disrupted", POLITE, json!({})).await?;
    world.running("refused-disrupted").await?;
    let Sandbox { id, .. } = world.sandbox(&uid(&disrupted)).await?;
    let text = "l=/tmp/.berth-$1; read p rest < $l; : > $l.stop; kill -TERM -$p";
    server().await?.engine.run(&["exec", &format!("sandbox-{id}"), "sh", "-c", text, "sh", &uid(&disrupted)])?;

    proxy.strike_all("POST", "/sandboxes", Fate::TurnedAway);
    world.script("refused-busy", "true", json!({})).await?;
    world.secret("refusals", json!({".dockerconfigjson": "{\"auths\": {}}"})).await?;
    world.script("refused-name", "true", json!({"task": {"image": "team//Busybox", "imagePullSecrets": [{"name": "refusals"}]}})).await?;
    long.script("refused-long", "true", json!({})).await?;
    for (name, reason, code) in [
        ("refused-disrupted", "Disrupted", Some(4)),
        ("refused-busy", "BackendUnavailable", None),
        ("refused-name", "InvalidImageName", None),
        ("refused-long", "BackendRejected", None),
    ] {
        let job = world.succeeded(name, "False", reason).await?;
        assert_eq!((exit_code(&job), world.begun(name)), (code, usize::from(code.is_some())), "{name}: {:?}", succeeded(&job));
        world.delete(name).await?;
    }
    for name in ["refused-disrupted", "refused-busy", "refused-name", "refused-long"] {
        world.gone(name).await?;
    }
    world.nothing_left(&uid(&disrupted)).await?;
    shows(history, &[&world], "states::what_the_server_refuses_ends_the_job_with_the_reason")
}
