//! The informer on a real API server: what a watch tells, what a broken watch misses and a relist makes good.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use berth_runtime::ObjectKey;
use berth_runtime::apiclient::{Limits, client};
use berth_runtime::informer::{Delta, Informer, WatchConfig, informer};
use berth_tests::controlplane::{BERTH, ControlPlane, Options};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::Proxy;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A watch of the ConfigMaps of one namespace that reads each as the integer in its field `n`.
struct Watched {
    informer: Informer<i64>,
    deltas: mpsc::Receiver<Delta<i64>>,
    _stop: DropGuard,
}

fn read(object: Value) -> Result<i64, String> {
    let text = object["data"]["n"].as_str().ok_or("data.n: missing")?;
    text.parse().map_err(|error| format!("data.n: {error}"))
}

impl Watched {
    fn start(client: Client, namespace: &str) -> Self {
        Self::start_with(client, WatchConfig { namespace: Some(namespace.to_owned()), ..WatchConfig::default() })
    }

    fn start_with(client: Client, config: WatchConfig) -> Self {
        let (informer, watch) = informer::<i64>("configmaps");
        let deltas = informer.subscribe(64);
        let stop = CancellationToken::new();
        let config = WatchConfig { labels: Some("mine".to_owned()), page_size: 2, ..config };
        tokio::spawn(watch.run_with::<ConfigMap>(client, config, read, stop.clone()));
        Self { informer, deltas, _stop: stop.drop_guard() }
    }

    /// The next delta: `+name n`, `-name`, `!name`, `synced`.
    async fn next(&mut self) -> Result<String> {
        Ok(match tokio::time::timeout(PATIENCE, self.deltas.recv()).await? {
            Some(Delta::Applied(stored)) => format!("+{} {}", stored.key.name, stored.object),
            Some(Delta::Deleted { key, .. }) => format!("-{}", key.name),
            Some(Delta::Invalid(invalid)) => format!("!{}", invalid.key.name),
            Some(Delta::Synced) => "synced".to_owned(),
            None => bail!("the informer ended"),
        })
    }

    /// Every delta up to and with the next `synced`, sorted.
    async fn list(&mut self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        loop {
            match self.next().await? {
                end if end == "synced" => break,
                delta => all.push(delta),
            }
        }
        all.sort();
        Ok(all)
    }
}

struct Maps(Api<ConfigMap>);

impl Maps {
    async fn put(&self, name: &str, n: &str) -> Result<()> {
        let map = json!({"metadata": {"name": name, "labels": {"mine": ""}}, "data": {"n": n}});
        self.0.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
        Ok(())
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.0.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.0.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_paged_list_then_changes_and_what_does_not_decode_is_told_alone() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("informer").await?;
    let maps = Maps(Api::namespaced(plane.admin()?, &namespace));
    for (name, n) in [("a", "1"), ("b", "2"), ("c", "three"), ("d", "4"), ("e", "5")] {
        maps.put(name, n).await?;
    }
    let observer = Arc::new(());
    let mut watched = Watched::start(client(plane.config(BERTH)?, Limits::default(), observer)?, &namespace);
    assert_eq!(watched.list().await?, ["!c", "+a 1", "+b 2", "+d 4", "+e 5"]);
    watched.informer.synced().await;

    maps.patch("c", json!({"data": {"n": "3"}})).await?;
    assert_eq!(watched.next().await?, "+c 3");
    maps.patch("a", json!({"data": {"n": null}})).await?;
    assert_eq!(watched.next().await?, "!a");
    assert!(watched.informer.get(&ObjectKey::new(namespace.as_str(), "a")).is_none());
    maps.delete("a").await?;
    assert_eq!(watched.next().await?, "-a");
    // Who loses the label leaves the selection; who gets it enters.
    maps.patch("b", json!({"metadata": {"labels": {"mine": null}}})).await?;
    assert_eq!(watched.next().await?, "-b");
    maps.patch("b", json!({"metadata": {"labels": {"mine": ""}}})).await?;
    assert_eq!(watched.next().await?, "+b 2");
    // A namesake is told as the end of one and the beginning of another.
    let uid = |informer: &Informer<i64>| informer.get(&ObjectKey::new(namespace.as_str(), "b")).map(|stored| stored.uid);
    let before = uid(&watched.informer);
    maps.delete("b").await?;
    maps.put("b", "22").await?;
    assert_eq!((watched.next().await?, watched.next().await?), ("-b".to_owned(), "+b 22".to_owned()));
    assert_ne!(uid(&watched.informer), before);
    Ok(())
}

#[tokio::test]
async fn a_broken_watch_goes_on_where_it_was() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("informer-cut").await?;
    let proxy = Proxy::start(plane).await?;
    let maps = Maps(Api::namespaced(plane.admin()?, &namespace));
    maps.put("a", "1").await?;
    let mut watched = Watched::start(proxy.client(BERTH)?, &namespace);
    assert_eq!(watched.list().await?, ["+a 1"]);
    let watching = async || Ok((proxy.count(|seen| seen.is("watch", "configmaps")) > 0).then_some(()));
    until("the watch", PATIENCE, watching).await?;

    proxy.partition(true);
    maps.delete("a").await?;
    maps.put("b", "2").await?;
    let failing = async || Ok(watched.informer.stats().failing_for);
    until("the informer to notice", PATIENCE, failing).await?;
    proxy.partition(false);
    assert_eq!((watched.next().await?, watched.next().await?), ("-a".to_owned(), "+b 2".to_owned()));
    assert_eq!(watched.informer.stats().lists, 1, "resumed, not listed anew");
    assert_eq!(watched.informer.stats().failing_for, None);
    Ok(())
}

/// A watch that goes on says nothing until something changes; who must not count as blind for longer than it is lists anew.
#[tokio::test]
async fn a_watch_that_failed_for_long_lists_anew_if_it_is_to_so_that_its_recovery_shows() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("informer-list").await?;
    let proxy = Proxy::start(plane).await?;
    let maps = Maps(Api::namespaced(plane.admin()?, &namespace));
    maps.put("a", "1").await?;
    let config = WatchConfig { namespace: Some(namespace), list_after: Some(Duration::from_secs(1)), ..WatchConfig::default() };
    let mut watched = Watched::start_with(proxy.client(BERTH)?, config);
    assert_eq!(watched.list().await?, ["+a 1"]);
    proxy.partition(true);
    let failing = async || Ok(watched.informer.stats().failing_for.filter(|long| *long > Duration::from_secs(3)));
    until("the informer to have failed for a while", PATIENCE, failing).await?;
    proxy.partition(false);
    assert_eq!(watched.list().await?, Vec::<String>::new(), "nothing has changed");
    let stats = watched.informer.stats();
    assert_eq!((stats.lists, stats.failing_for), (2, None));
    Ok(())
}

/// While the informer is cut off, objects end, change and are replaced, and the API server forgets its history.
#[tokio::test]
async fn after_a_gap_the_relist_tells_what_is_gone_replaced_and_changed() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let proxy = Proxy::start(&plane).await?;
    let maps = Maps(Api::namespaced(plane.admin()?, "default"));
    for (name, n) in [("gone", "1"), ("kept", "2"), ("changed", "3"), ("replaced", "4")] {
        maps.put(name, n).await?;
    }
    let mut watched = Watched::start(proxy.client(BERTH)?, "default");
    assert_eq!(watched.list().await?.len(), 4);

    proxy.partition(true);
    maps.delete("gone").await?;
    maps.patch("changed", json!({"data": {"n": "33"}})).await?;
    maps.delete("replaced").await?;
    maps.put("replaced", "44").await?;
    // A restarted API server serves no change from before its start.
    plane.kill_api_server();
    plane.start_api_server().await?;
    proxy.partition(false);
    assert_eq!(watched.list().await?, ["+changed 33", "+replaced 44", "-gone", "-replaced"]);
    assert_eq!(watched.informer.len(), 3);
    assert_eq!(watched.informer.stats().lists, 2);

    maps.put("new", "5").await?;
    assert_eq!(watched.next().await?, "+new 5");
    let quiet = tokio::time::timeout(Duration::from_millis(300), watched.deltas.recv()).await;
    assert!(quiet.is_err(), "nothing is told twice: {quiet:?}");
    Ok(())
}
