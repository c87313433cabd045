//! The harness itself: the control plane lives, dies and comes back; the proxy loses an answer and the count shows it.

use std::time::{Duration, Instant};

use anyhow::Result;
use berth_tests::controlplane::{ADMIN, BERTH, ControlPlane, NOBODY, Options};
use berth_tests::poll::PATIENCE;
use berth_tests::proxy::{Fault, Proxy};
use futures::{StreamExt as _, TryStreamExt as _};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;

fn config_map(name: &str) -> Result<ConfigMap> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}}))?)
}

async fn create(client: &Client, namespace: &str, name: &str) -> Result<ConfigMap, kube::Error> {
    let map = config_map(name).expect("a ConfigMap");
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &map).await
}

#[tokio::test]
async fn users_have_the_rights_they_should_and_the_audit_log_tells_them_apart() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("smoke-users").await?;
    create(&plane.client(BERTH)?, &namespace, "by-berth").await?;
    for token in [NOBODY.to_owned(), plane.service_account(&namespace, "robot").await?] {
        let refused = create(&plane.client(&token)?, &namespace, "by-nobody").await;
        assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    }
    let creates = |user: &str| plane.audit().count(|r| r.is_write() && r.resource == "configmaps" && r.namespace == namespace && r.user == user);
    assert_eq!(creates("berth")?, 1);
    assert_eq!(creates("nobody")?, 1);
    assert_eq!(creates(&format!("system:serviceaccount:{namespace}:robot"))?, 1);
    assert_eq!(creates("admin")?, 0);
    Ok(())
}

#[tokio::test]
async fn a_dropped_answer_took_effect_and_is_counted_once() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("smoke-drop").await?;
    let proxy = Proxy::start(plane).await?;
    let client = proxy.client(BERTH)?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    create(&client, &namespace, "m").await?;

    let fault = proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("patch", "configmaps"));
    let patch = Patch::Merge(json!({"data": {"a": "2"}}));
    let lost = maps.patch("m", &PatchParams::default(), &patch).await;
    assert!(lost.is_err(), "the answer should have been lost");
    assert_eq!(fault.hits(), 1);
    let data = maps.get("m").await?.data.unwrap_or_default();
    assert_eq!(data["a"], "2", "the write took effect all the same");
    maps.patch("m", &PatchParams::default(), &patch).await?;

    assert_eq!(proxy.count(|seen| seen.is("patch", "configmaps") && seen.code == Some(200)), 2);
    let at_server = plane.audit().count(|r| r.verb == "patch" && r.namespace == namespace && r.user == "berth")?;
    assert_eq!(at_server, 2, "no client or proxy repeats a write by itself");
    Ok(())
}

#[tokio::test]
async fn the_other_faults_do_what_they_say() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("smoke-faults").await?;
    let proxy = Proxy::start(plane).await?;
    let client = proxy.client(ADMIN)?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let is_create = |seen: &berth_tests::proxy::Seen| seen.is("create", "configmaps");

    proxy.inject(Fault::Answer(StatusCode::CONFLICT), 1, is_create);
    let conflict = create(&client, &namespace, "a").await;
    assert!(matches!(conflict, Err(kube::Error::Api(status)) if status.is_conflict()));
    proxy.inject(Fault::Refuse, 1, is_create);
    assert!(create(&client, &namespace, "a").await.is_err());
    let hang = proxy.inject(Fault::Hang, 1, is_create);
    let slow = tokio::time::timeout(Duration::from_millis(300), create(&client, &namespace, "a")).await;
    assert!(slow.is_err() && hang.hits() == 1);
    proxy.partition(true);
    assert!(create(&client, &namespace, "a").await.is_err());
    proxy.partition(false);
    assert!(maps.get_opt("a").await?.is_none(), "none of these took effect");

    let delay = Duration::from_millis(200);
    proxy.inject(Fault::DelayAnswer(delay), 1, is_create);
    let start = Instant::now();
    create(&client, &namespace, "a").await?;
    assert!(start.elapsed() >= delay);
    Ok(())
}

#[tokio::test]
async fn a_watch_is_streamed_held_and_cut() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("smoke-watch").await?;
    let proxy = Proxy::start(plane).await?;
    let maps: Api<ConfigMap> = Api::namespaced(proxy.client(ADMIN)?, &namespace);
    let version = maps.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    let mut events = maps.watch(&WatchParams::default(), &version).await?.boxed();

    create(&plane.admin()?, &namespace, "first").await?;
    assert!(matches!(events.try_next().await?, Some(WatchEvent::Added(_))));

    proxy.hold_watches("configmaps");
    create(&plane.admin()?, &namespace, "second").await?;
    let early = tokio::time::timeout(Duration::from_millis(300), events.try_next()).await;
    assert!(early.is_err(), "held back");
    proxy.release_watches("configmaps");
    assert!(matches!(events.try_next().await?, Some(WatchEvent::Added(_))));

    assert_eq!(proxy.cut_watches(|seen| seen.namespace == namespace), 1);
    let end = tokio::time::timeout(PATIENCE, events.next()).await?;
    assert!(matches!(end, None | Some(Err(_))), "the watch is over: {end:?}");
    Ok(())
}

#[tokio::test]
async fn the_api_server_is_killed_and_comes_back_with_its_data() -> Result<()> {
    let start = Instant::now();
    let plane = ControlPlane::start(Options { controller_manager: true, ..Options::default() }).await?;
    eprintln!("control plane ready after {:?}", start.elapsed());
    let client = plane.admin()?;
    create(&client, "default", "kept").await?;

    plane.kill_api_server();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    assert!(maps.get("kept").await.is_err(), "nobody answers");
    let start = Instant::now();
    plane.start_api_server().await?;
    eprintln!("API server back after {:?}", start.elapsed());
    maps.get("kept").await?;

    plane.freeze_api_server(true)?;
    let frozen = tokio::time::timeout(Duration::from_millis(300), maps.get("kept")).await;
    plane.freeze_api_server(false)?;
    assert!(frozen.is_err(), "a frozen API server does not answer");
    assert!(plane.audit().count(|r| r.name == "kept" && r.verb == "create")? == 1);

    // The controller manager outlives the API server and does its work: every new namespace gets its ServiceAccount.
    plane.namespace("after").await?;
    Ok(())
}
