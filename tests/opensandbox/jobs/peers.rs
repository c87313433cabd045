//! Whom the adapter speaks with, and as whom: a server behind TLS of a private authority, and keys of two tenants of one server.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::poll::{PATIENCE, stays, until};
use k8s_openapi::ByteString;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::world::{TENANT_OTHER_SECRET, TENANT_SECRET, World, berth, set_key, shared};
use crate::faulty::FaultyProxy;
use crate::job_world::{condition, exit_code, succeeded, uid};
use crate::tls::{Authority, TlsFront};
use crate::world::server;

fn bundle(authority: &Authority) -> Value {
    json!({"tls": {"caBundle": ByteString(authority.pem().into_bytes())}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_a_private_authority_is_trusted_by_the_class_s_bundle_which_counts_as_soon_as_it_is_corrected() -> Result<()> {
    berth().await?;
    let (authority, stranger) = (Authority::new("peer-authority")?, Authority::new("peer-stranger")?);
    let other_name = authority.signed(&["peer-name.example.com"])?;
    let front = TlsFront::start(&server().await?.domain(), authority.signed(&["127.0.0.1", "peer-second.example.com"])?).await?;
    let mut parameters = bundle(&stranger);
    parameters["endpoint"] = front.url().into();
    let world = World::of(shared().await?.plane, server().await?, "tls", json!({}), parameters).await?;
    let mut said = vec![world.class_is("BackendReady", "False", "Unreachable").await?];
    assert!(said[0].contains("the certificate is of no known authority"), "{}", said[0]);
    world.script("tls", "exit 3", json!({})).await?;
    let wanted = ("False".to_owned(), "BackendUnavailable".to_owned());
    let waiting = world.until("tls", "waiting", PATIENCE, |job| condition(job, "Scheduled") == wanted).await?;
    said.push(serde_json::to_string(&waiting.status)?);

    // The right bundle, and a certificate of that authority for somebody else.
    front.show(other_name);
    world.patch_parameters(bundle(&authority)).await?;
    let told = until("the other name to be told", PATIENCE, || async {
        let told = world.class_is("BackendReady", "False", "Unreachable").await?;
        Ok(told.contains("the certificate is of another name").then_some(told))
    });
    said.push(told.await?);
    assert_eq!(world.begun("tls"), 0);

    front.show(authority.signed(&["127.0.0.1", "peer-second.example.com"])?);
    world.ready().await?;
    let job = world.succeeded("tls", "False", "ProcessFailed").await?;
    assert_eq!((exit_code(&job), world.begun("tls")), (Some(3), 1));
    world.nothing_left(&uid(&job)).await?;
    // Berth's own words; at its most verbose a library shows whole certificates.
    said.extend(berth().await?.log().lines().filter(|line| line.contains("berth_")).map(str::to_owned));
    for name in ["peer-authority", "peer-stranger", "peer-name", "peer-second"] {
        assert!(!said.iter().any(|text| text.contains(name)), "{name} was told");
    }
    world.tells_no_secret(server().await?, berth().await?).await
}

/// How long a sandbox must be missing to count as gone, and some looks more.
const BELIEVED: Duration = Duration::from_secs(40);

/// A Job that runs until the gate of its name is opened.
async fn held(world: &World, name: &str) -> Result<()> {
    world.script(name, &world.wait_at(name), json!({})).await?;
    world.running(name).await.map(drop)
}

/// No Job of these has ended.
async fn undecided(world: &World, names: &[&str]) -> Result<bool> {
    let jobs = world.jobs.list(&ListParams::default()).await?;
    let of_these: Vec<_> = jobs.items.iter().filter(|job| job.metadata.name.as_deref().is_some_and(|name| names.contains(&name))).collect();
    ensure!(of_these.len() == names.len(), "some are gone");
    Ok(of_these.iter().all(|job| succeeded(job).0 == "Unknown"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_tenant_decides_nothing_about_what_runs_and_one_of_the_same_goes_on() -> Result<()> {
    berth().await?;
    let plane = shared().await?.plane;
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let tenants = proxy.tenants();
    for (key, tenant) in [("canary-a-1", "a"), ("canary-a-2", "a"), ("canary-a-3", "a"), ("canary-b-1", "b")] {
        tenants.admit(key, tenant);
    }
    // One class whose Secret changes, one that is told of another Secret, after which nobody has the old key any more.
    let client = plane.admin()?;
    set_key(&client, TENANT_SECRET, "canary-a-1").await?;
    set_key(&client, TENANT_OTHER_SECRET, "canary-a-2").await?;
    let parameters = |secret: &str| json!({"endpoint": proxy.url(), "apiKeySecretRef": {"name": secret}});
    let rotated = World::of(plane, server().await?, "tenants", json!({}), parameters(TENANT_SECRET)).await?;
    let moved = World::of(plane, server().await?, "tenants-moved", json!({}), parameters(TENANT_OTHER_SECRET)).await?;
    rotated.ready().await?;
    moved.ready().await?;
    let all = [(&rotated, "tenant-kept"), (&rotated, "tenant-cancelled"), (&moved, "tenant-moved")];
    for (world, name) in all {
        held(world, name).await?;
    }

    set_key(&client, TENANT_SECRET, "canary-b-1").await?;
    moved.patch_parameters(json!({"apiKeySecretRef": {"name": TENANT_SECRET}})).await?;
    tenants.revoke("canary-a-2");
    for (world, name) in all {
        world.unknown(name, "SandboxVanished").await?;
    }
    rotated.cancel("tenant-cancelled").await?;
    // The other tenant has sandboxes of ours as well: that says nothing of those.
    rotated.script("tenant-new", "exit 4", json!({})).await?;
    let new = rotated.succeeded("tenant-new", "False", "ProcessFailed").await?;
    rotated.nothing_left(&uid(&new)).await?;
    let names = all.map(|(_, name)| name);
    stays("nothing is decided", BELIEVED, || undecided(&rotated, &names)).await?;

    // A new key of the old tenant, and the first Secret again with another one.
    set_key(&client, TENANT_SECRET, "canary-a-3").await?;
    set_key(&client, TENANT_OTHER_SECRET, "canary-a-3").await?;
    moved.patch_parameters(json!({"apiKeySecretRef": {"name": TENANT_OTHER_SECRET}})).await?;
    rotated.succeeded("tenant-cancelled", "False", "Cancelled").await?;
    for (world, name) in [(&rotated, "tenant-kept"), (&moved, "tenant-moved")] {
        world.succeeded(name, "Unknown", "Running").await?;
        world.counter.open(name);
        let job = world.succeeded(name, "True", "Completed").await?;
        world.nothing_left(&uid(&job)).await?;
    }
    for name in ["tenant-kept", "tenant-cancelled", "tenant-moved", "tenant-new"] {
        assert_eq!(rotated.begun(name), 1, "{name}");
    }
    rotated.tells_no_secret(server().await?, berth().await?).await
}
