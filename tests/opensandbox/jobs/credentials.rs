//! Keys of servers and passwords of registries: right, wrong, absent, and changed while Jobs wait.

use anyhow::Result;
use berth_tests::image::Image;
use berth_tests::opensandbox::API_KEY;
use berth_tests::poll::PATIENCE;
use berth_tests::registry::{PASSWORD, Registry, Terms, USER};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::world::{NAMESPACE, OTHER_SECRET, World, berth, set_key, shows};
use crate::job_world::{History, condition};
use crate::world::server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_is_told_and_the_right_one_counts_at_once() -> Result<()> {
    berth().await?;
    let plane = super::world::shared().await?.plane;
    set_key(&plane.admin()?, OTHER_SECRET, "canary-wrong-key").await?;
    let parameters = json!({"apiKeySecretRef": {"name": OTHER_SECRET}});
    let world = World::of(plane, server().await?, "keys", json!({}), parameters).await?;
    let history = History::of(world.jobs.clone());
    world.class_is("BackendReady", "False", "Unauthorized").await?;
    world.script("keyed", "true", json!({})).await?;
    let wanted = ("False".to_owned(), "BackendUnavailable".to_owned());
    world.until("keyed", "waiting", PATIENCE, |job| condition(job, "Scheduled") == wanted).await?;
    set_key(&world.client, OTHER_SECRET, &format!("{API_KEY}\n")).await?;
    world.succeeded("keyed", "True", "Completed").await?;
    world.ready().await?;
    assert_eq!(world.begun("keyed"), 1);
    // And while one runs: nothing is decided on what a wrong key is told.
    world.script("keyed-running", "sleep 45; exit 3", json!({})).await?;
    world.running("keyed-running").await?;
    set_key(&world.client, OTHER_SECRET, "canary-wrong-key").await?;
    world.class_is("BackendReady", "False", "Unauthorized").await?;
    set_key(&world.client, OTHER_SECRET, API_KEY).await?;
    world.succeeded("keyed-running", "False", "ProcessFailed").await?;
    assert_eq!(world.begun("keyed-running"), 1);
    world.tells_no_secret(server().await?, berth().await?).await?;
    shows(history, &[&world], "credentials::a_wrong_key_is_told_and_the_right_one_counts_at_once")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_image_is_pulled_with_the_secret_s_password_and_never_without() -> Result<()> {
    let world = World::with("pulls", json!({}), json!({"createTimeout": "6s", "createWindow": "8s"})).await?;
    let registry = Registry::start().await?;
    registry.serve("team/private", "1", &Image::shell("private")?, Terms { private: true, ..Terms::default() });
    let image = format!("{}/team/private:1", registry.host());
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(world.client.clone(), NAMESPACE);
    let config = |host: &str, password: &str| json!({"auths": {host: {"username": USER, "password": password}}}).to_string();
    for (name, text) in [
        ("pull-right", config(&registry.host(), PASSWORD)),
        ("pull-wrong", config(&registry.host(), "canary-wrong-password")),
        ("pull-other", config("registry.example.com", PASSWORD)),
        ("pull-broken", "canary-no-json".to_owned()),
    ] {
        let secret = json!({"metadata": {"name": name}, "type": "Opaque", "stringData": {".dockerconfigjson": text}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    }
    let task = |secrets: &[&str]| -> Value {
        let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
        json!({"task": {"image": image, "imagePullSecrets": secrets}})
    };
    let rows: [(&str, &[&str], (&str, &str)); 6] = [
        ("pull-none", &[], ("False", "ImagePullFailed")),
        ("pull-by-wrong", &["pull-wrong"], ("False", "ImagePullFailed")),
        ("pull-by-other", &["pull-other"], ("False", "ImagePullSecretUnavailable")),
        ("pull-by-broken", &["pull-broken"], ("False", "ImagePullSecretUnavailable")),
        ("pull-by-absent", &["pull-absent"], ("False", "ImagePullSecretUnavailable")),
        ("pull-by-right", &["pull-other", "pull-right"], ("True", "Completed")),
    ];
    for (name, secrets, (status, reason)) in rows {
        world.job(name, &["true"], task(secrets)).await?;
        world.succeeded(name, status, reason).await?;
    }
    // Docker has it now, and looks at no password any more; what Berth looks for in the Secrets must be there all the same.
    let refused = registry.refused();
    for (name, secret, (status, reason)) in
        [("pull-cached-by-wrong", "pull-wrong", ("True", "Completed")), ("pull-cached-by-other", "pull-other", ("False", "ImagePullSecretUnavailable"))]
    {
        world.job(name, &["true"], task(&[secret])).await?;
        world.succeeded(name, status, reason).await?;
    }
    assert_eq!(registry.refused(), refused, "nothing is pulled");
    world.tells_no_secret(server().await?, berth().await?).await?;
    server().await?.engine.run(&["image", "rm", "--force", &image]).map(drop)
}
