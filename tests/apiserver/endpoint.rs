//! The endpoints behind TokenReview and SubjectAccessReview over TLS: who gets what, a certificate that changes on disk, an API server
//! that is away; and no secret in any log.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{ADMIN, ControlPlane, Options};
use berth_tests::https::{Trust, get};
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;

use super::serve_world::World;

/// Cached answers hold for one second, so that a test sees rights change.
fn secure(serve: Serve) -> Serve {
    serve
        .secure(ADMIN)
        .arg("--authentication-token-webhook-cache-ttl=1s")
        .arg("--authorization-webhook-cache-authorized-ttl=1s")
        .arg("--authorization-webhook-cache-unauthorized-ttl=1s")
        // Everything that any crate has to say: a secret must not be in it.
        .env("RUST_LOG", "trace")
}

/// Code of a GET without trust in the certificate.
async fn code(berth: &Berth, path: &str, token: Option<&str>) -> Result<u16> {
    Ok(get(&berth.url(), path, token, Trust::Anybody).await?.0)
}

/// Waits until a GET is answered with `wanted`.
async fn becomes(berth: &Berth, path: &str, token: &str, wanted: u16) -> Result<()> {
    until(&format!("{path} to answer {wanted}"), PATIENCE, || async { Ok((code(berth, path, Some(token)).await? == wanted).then_some(())) }).await
}

/// Lets `account` get `/metrics`, as ClusterRole berth-metrics-reader of the chart does.
async fn may_read_metrics(world: &World<'_>, account: &str) -> Result<String> {
    let name = format!("metrics-reader-{}", world.namespace);
    let role = json!({"metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    Api::<ClusterRole>::all(world.client.clone()).create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    let binding = json!({
        "metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": world.namespace}],
    });
    Api::<ClusterRoleBinding>::all(world.client.clone()).create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    Ok(name)
}

/// None of `secrets`, nor the last part of one (a token's signature), is anywhere in the log.
fn log_keeps(berth: &Berth, secrets: &[&str]) -> Result<()> {
    let log = berth.log();
    ensure!(log.len() > 10_000, "the log tells everything, not only {} bytes", log.len());
    for secret in secrets {
        let end = secret.rsplit('.').next().unwrap_or(secret);
        ensure!(!log.contains(secret) && !log.contains(end), "a secret is in the log");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_with_the_right_reads_what_it_may_and_health_is_open() -> Result<()> {
    let world = World::new("endpoint-rights").await?;
    let reader = world.plane.service_account(&world.namespace, "reader").await?;
    let stranger = world.plane.service_account(&world.namespace, "stranger").await?;
    let binding = may_read_metrics(&world, "reader").await?;
    let berth = secure(world.serve()?).start_ready(world.plane.scratch()).await?;

    for path in ["/healthz", "/livez", "/readyz"] {
        ensure!(code(&berth, path, None).await? == 200, "{path} is open");
    }
    let wrong = "not-a-token-of-anybody";
    let forged = format!("{}AAAAAAAAAAAA", &reader[..reader.len() - 12]);
    for path in ["/metrics", "/configz", "/debug/queue", "/debug/nothing", "/"] {
        for (token, wanted) in [(None, 401), (Some(wrong), 401), (Some(forged.as_str()), 401), (Some(stranger.as_str()), 403)] {
            let answered = code(&berth, path, token).await?;
            ensure!(answered == wanted, "{path} answered {answered}, not {wanted}");
        }
    }
    for (path, wanted) in [("/metrics", 200), ("/configz", 403), ("/debug/queue", 403)] {
        let (answered, body) = get(&berth.url(), path, Some(&reader), Trust::Anybody).await?;
        ensure!(answered == wanted, "{path} answered {answered}, not {wanted}: {body}");
    }
    let (_, told) = get(&berth.url(), "/configz", Some(&reader), Trust::Anybody).await?;
    ensure!(told == format!("Forbidden: user \"system:serviceaccount:{}:reader\" may not get path \"/configz\"\n", world.namespace), "{told}");
    for path in ["/metrics", "/configz", "/debug/queue"] {
        ensure!(code(&berth, path, Some(ADMIN)).await? == 200, "{path} for who may all");
    }
    let plain = get(&berth.url().replace("https", "http"), "/livez", None, Trust::Anybody).await?;
    ensure!(plain.0 == 400 && plain.1.contains("HTTP request to an HTTPS server"), "{plain:?}");

    // What is taken away is gone once the answers of before no longer hold.
    Api::<ClusterRoleBinding>::all(world.client.clone()).delete(&binding, &DeleteParams::default()).await?;
    becomes(&berth, "/metrics", &reader, 403).await?;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(world.client.clone(), &world.namespace);
    accounts.delete("reader", &DeleteParams::default()).await?;
    becomes(&berth, "/metrics", &reader, 401).await?;

    let metrics = berth.metrics().await?;
    for (name, result) in [
        ("authentication_attempts", "success"),
        ("authentication_attempts", "failure"),
        ("authorization_attempts_total", "allowed"),
        ("authorization_attempts_total", "denied"),
    ] {
        ensure!(metrics.sum(name, &[("result", result)]) > 0.0, "{name} {result}");
    }
    ensure!(metrics.sum("berth_endpoint_refused_connections_total", &[("reason", "plaintext")]) == 1.0);
    log_keeps(&berth, &[&reader, &stranger, wrong, &forged, ADMIN, &world.account.token])
}

#[tokio::test]
async fn without_the_flag_nothing_is_asked_and_paths_can_be_opened() -> Result<()> {
    let world = World::new("endpoint-open").await?;
    let berth = world.berth().await?;
    for path in ["/livez", "/metrics", "/configz", "/debug/queue"] {
        ensure!(berth.get(path).await?.0 == 200, "{path}");
    }
    let berth = secure(world.serve()?).arg("--authorization-always-allow-paths=/metrics,/debug/*").start_ready(world.plane.scratch()).await?;
    for (path, wanted) in [("/metrics", 200), ("/debug/queue", 200), ("/configz", 401)] {
        ensure!(code(&berth, path, None).await? == wanted, "{path}");
    }
    Ok(())
}

/// An authority of the test's own.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Certificate and key, PEM.
    fn sign(&self) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        Ok((CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }

    fn trust(&self) -> Trust<'_> {
        Trust::Authority(self.0.der())
    }
}

/// A folder that changes as the kubelet changes a mounted Secret: `tls.crt -> ..data/tls.crt`, `..data -> ..N`.
struct Mounted {
    folder: PathBuf,
    generation: u32,
}

impl Mounted {
    fn new(folder: &Path, certificate: &str, key: &str) -> Result<Self> {
        std::fs::create_dir(folder)?;
        let mut mounted = Self { folder: folder.to_owned(), generation: 0 };
        mounted.change(certificate, key)?;
        for name in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), folder.join(name))?;
        }
        Ok(mounted)
    }

    fn change(&mut self, certificate: &str, key: &str) -> Result<()> {
        self.generation += 1;
        let data = format!("..{}", self.generation);
        std::fs::create_dir(self.folder.join(&data))?;
        std::fs::write(self.folder.join(&data).join("tls.crt"), certificate)?;
        std::fs::write(self.folder.join(&data).join("tls.key"), key)?;
        std::os::unix::fs::symlink(&data, self.folder.join("..new"))?;
        Ok(std::fs::rename(self.folder.join("..new"), self.folder.join("..data"))?)
    }

    fn flags(&self, serve: Serve) -> Serve {
        let flag = |flag: &str, name: &str| format!("{flag}={}", self.folder.join(name).display());
        serve.arg(flag("--tls-cert-file", "tls.crt")).arg(flag("--tls-private-key-file", "tls.key"))
    }
}

#[tokio::test]
async fn a_certificate_that_changes_on_disk_is_served_at_the_next_handshake_and_a_bad_one_never() -> Result<()> {
    let world = World::new("endpoint-tls").await?;
    let (first, second) = (Authority::new()?, Authority::new()?);
    let (certificate, key) = first.sign()?;
    let mut mounted = Mounted::new(&world.plane.scratch().path().join(&world.namespace), &certificate, &key)?;
    let mut berth = mounted.flags(secure(world.serve()?)).start_ready(world.plane.scratch()).await?;
    let url = berth.url();
    let served_by = async |authority: &Authority| get(&url, "/livez", None, authority.trust()).await.is_ok();
    ensure!(served_by(&first).await && !served_by(&second).await, "the certificate that was given");

    let (certificate, second_key) = second.sign()?;
    mounted.change(&certificate, &second_key)?;
    until("the second certificate", PATIENCE, || async { Ok(served_by(&second).await.then_some(())) }).await?;
    ensure!(!served_by(&first).await, "and no longer the first");

    // Garbage, a key of another certificate, no file at all: the last good one stays, and it is said.
    let (_, third_key) = first.sign()?;
    let valid = async |wanted: f64| {
        until(&format!("berth_tls_certificate_valid {wanted}"), PATIENCE, || async {
            Ok((berth.metrics().await?.sum("berth_tls_certificate_valid", &[]) == wanted).then_some(()))
        })
        .await
    };
    for (certificate, key) in [("garbage", second_key.as_str()), (&certificate, &third_key)] {
        mounted.change(certificate, key)?;
        valid(0.0).await?;
        ensure!(served_by(&second).await && !served_by(&first).await, "the last good one");
        let (certificate, key) = second.sign()?;
        mounted.change(&certificate, &key)?;
        valid(1.0).await?;
    }
    std::fs::remove_file(mounted.folder.join("tls.key"))?;
    valid(0.0).await?;
    ensure!(served_by(&second).await, "the last good one");

    let log = berth.log();
    for line in ["the certificate of the endpoints can't be used; the last good one is served", "tls.crt: holds no certificate in PEM", "it is in use"] {
        ensure!(log.contains(line), "{line:?} in the log");
    }
    let inner = |pem: &str| pem.lines().nth(1).unwrap_or_default().to_owned();
    log_keeps(&berth, &[&key, &inner(&key), &second_key, &inner(&second_key), &inner(&third_key)])?;
    berth.process().must_run()
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_at_the_start_ends_it() -> Result<()> {
    let world = World::new("endpoint-bad").await?;
    let file = world.plane.scratch().write(&format!("{}.crt", world.namespace), "garbage")?;
    let flags = |serve: Serve| serve.arg(format!("--tls-cert-file={}", file.display())).arg(format!("--tls-private-key-file={}", file.display()));
    let mut berth = flags(world.serve()?).start(world.plane.scratch())?;
    let status = until("the end", PATIENCE, || std::future::ready(berth.process().exited())).await?;
    ensure!(status.code() == Some(2), "{status}");
    ensure!(berth.log().contains("holds no certificate in PEM"), "{}", berth.log());
    Ok(())
}

#[tokio::test]
async fn while_the_api_server_is_away_nobody_passes_and_health_is_told() -> Result<()> {
    let plane = ControlPlane::start_with_crds(Options::default()).await?;
    let world = World::on(&plane, "endpoint-away").await?;
    let mut berth = secure(world.serve()?).start_ready(plane.scratch()).await?;
    ensure!(code(&berth, "/metrics", Some(ADMIN)).await? == 200);
    plane.kill_api_server();
    becomes(&berth, "/metrics", ADMIN, 503).await?;
    let (_, told) = get(&berth.url(), "/metrics", Some(ADMIN), Trust::Anybody).await?;
    ensure!(told.contains("the API server does not answer a TokenReview"), "{told}");
    ensure!(code(&berth, "/metrics", None).await? == 401 && code(&berth, "/livez", None).await? == 200);
    plane.start_api_server().await?;
    becomes(&berth, "/metrics", ADMIN, 200).await?;
    log_keeps(&berth, &[ADMIN, &world.account.token])?;
    berth.process().must_run()
}

#[tokio::test]
async fn who_may_not_ask_is_told_what_is_missing() -> Result<()> {
    let world = World::new("endpoint-delegate").await?;
    // May do what Berth does, and no review.
    let token = world.plane.service_account(&world.namespace, "plain").await?;
    let role =
        json!({"metadata": {"name": world.namespace}, "rules": [{"apiGroups": ["*"], "resources": ["runs", "pods", "persistentworkspaces"], "verbs": ["*"]}]});
    Api::<ClusterRole>::all(world.client.clone()).create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    let binding = json!({
        "metadata": {"name": world.namespace}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": world.namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "plain", "namespace": world.namespace}],
    });
    Api::<ClusterRoleBinding>::all(world.client.clone()).create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    let serve = Serve::new(&world.plane.kubeconfig(&token)?).namespace(&world.namespace);
    let berth = secure(serve).start_ready(world.plane.scratch()).await?;
    let (code, told) = get(&berth.url(), "/metrics", Some(ADMIN), Trust::Anybody).await?;
    ensure!(code == 500 && told.contains("may not create TokenReviews") && told.contains("system:auth-delegator"), "{code}: {told}");
    Ok(())
}
