//! The one task that runs a watch, writes the store and tells everybody.

use super::raw::Raw;
use super::retry::{Failures, call_error};
use super::store::{Change, Delta, Entry, Invalid, Stored};
use super::{Shared, Sink};
use crate::apiclient::CallError;
use crate::backoff::Backoff;
use crate::key::ObjectKey;
use crate::lock;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest decoder message that is kept, bytes (a Run's message holds 1,024 with our text around it).
const ERROR_BYTES_MAX: usize = 512;
/// After an error and its backoff, that long without another one counts as well again. kube's watcher doesn't tell that
/// a watch was resumed; a request that can't start one fails within `Limits::watch_start`.
const HEALTHY_AFTER: Duration = Duration::from_secs(31);

/// What to watch and how.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// Only this namespace; None is the whole cluster.
    pub namespace: Option<String>,
    /// Label selector, as `runtime` for objects that have that label.
    pub labels: Option<String>,
    /// Field selector.
    pub fields: Option<String>,
    /// Objects per page of a list.
    pub page_size: u32,
    /// The server ends each watch after that many seconds; a dead connection is noticed 5 s later.
    pub timeout_s: u32,
    /// Between failing attempts.
    pub backoff: Backoff,
    /// After failing for that long it lists anew instead of watching on, so that it is known at once when it works again: a watch
    /// says nothing until something changes. For narrow watches: a list costs what it holds.
    pub list_after: Option<Duration>,
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self { namespace: None, labels: None, fields: None, page_size: 500, timeout_s: 120, backoff: Backoff::WATCHES, list_after: None }
    }
}

impl WatchConfig {
    /// The watcher's options. The list is paged and consistent: a streaming list of kube 5 starts at resource version 0,
    /// which another API server may answer from a cache that is older than what we saw.
    fn watcher(&self) -> watcher::Config {
        let mut config = watcher::Config::default().timeout(self.timeout_s).page_size(self.page_size);
        config.label_selector.clone_from(&self.labels);
        config.field_selector.clone_from(&self.fields);
        config
    }
}

/// The writing side; [`Watch::run`] is its task.
pub struct Watch<T> {
    shared: Arc<Shared<T>>,
    sinks: Vec<Sink<T>>,
    /// Number of the current list.
    list: u64,
    /// The last namespace seen, so that objects share its name.
    namespace: Arc<str>,
    /// Who waits for the current list, which began after they asked.
    waiting: Vec<oneshot::Sender<u64>>,
}

impl<T: Send + Sync + 'static> Watch<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared, sinks: Vec::new(), list: 0, namespace: Arc::from(""), waiting: Vec::new() }
    }

    /// [`run_with`](Self::run_with) serde's reading of K, keeping of each object what `map` makes of it.
    pub async fn run<K>(self, client: Client, config: WatchConfig, map: impl Fn(K) -> T + Send + Sync, stop: CancellationToken)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + DeserializeOwned + 'static,
    {
        let read = |value| serde_json::from_value(value).map(&map).map_err(|error| error.to_string());
        self.run_with::<K>(client, config, read, stop).await;
    }

    /// Lists and watches kind K until `stop`, keeping of each object what `read` makes of its JSON; its error makes the object
    /// [`Delta::Invalid`]. `read` runs in this task. Never fails: errors are counted, logged and retried with backoff, the
    /// store keeping its last state meanwhile.
    pub async fn run_with<K>(self, client: Client, config: WatchConfig, read: impl Fn(Value) -> Result<T, String> + Send + Sync, stop: CancellationToken)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + 'static,
    {
        let api: Api<Raw<K>> = match &config.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        self.drive(api, config, read, stop).await;
    }

    /// As [`run_with`](Self::run_with), for a kind that is in no namespace.
    pub async fn run_cluster_with<K>(
        self,
        client: Client,
        config: WatchConfig,
        read: impl Fn(Value) -> Result<T, String> + Send + Sync,
        stop: CancellationToken,
    ) where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope> + 'static,
    {
        self.drive(Api::<Raw<K>>::all(client), config, read, stop).await;
    }

    async fn drive<K>(mut self, api: Api<Raw<K>>, config: WatchConfig, read: impl Fn(Value) -> Result<T, String> + Send + Sync, stop: CancellationToken)
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        let shared = self.shared.clone();
        let mut events = pin!(watcher(api.clone(), config.watcher()));
        let mut failures = Failures::default();
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = shared.joined.notified() => {
                    tokio::select! { () = stop.cancelled() => return, () = self.join() => continue }
                }
                () = shared.relist.notified() => {
                    self.waiting.append(&mut lock(&shared.relisting));
                    events.set(watcher(api.clone(), config.watcher()));
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    tokio::select! { () = stop.cancelled() => return, () = self.event(event, &read) => {} }
                }
                Some(Err(error)) => {
                    let expired = is_expired(&error);
                    let error = call_error(error);
                    if !self.is_failing() {
                        failures = Failures::default();
                    }
                    let delay = failures.delay(&error, config.backoff);
                    let failing_for = self.failed(&error, delay);
                    if expired || config.list_after.is_some_and(|limit| failing_for >= limit) {
                        events.set(watcher(api.clone(), config.watcher()));
                    }
                    tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(delay) => {} }
                }
                // kube's watcher stream never ends.
                None => return,
            }
        }
    }

    /// Whether the watch has not got on since the last error.
    fn is_failing(&self) -> bool {
        lock(&self.shared.health).failing.is_some_and(|(_, until)| Instant::now() < until)
    }

    /// Remembers an error; for how long it has been failing.
    fn failed(&self, error: &CallError, delay: Duration) -> Duration {
        let now = Instant::now();
        let mut health = lock(&self.shared.health);
        health.errors += 1;
        let since = health.failing.filter(|(_, until)| now < *until).map_or(now, |(since, _)| since);
        health.failing = Some((since, now + delay + HEALTHY_AFTER));
        drop(health);
        tracing::warn!(informer = self.shared.name, %error, delay_ms = delay.as_millis(), "list or watch failed");
        now.saturating_duration_since(since)
    }

    async fn event<K>(&mut self, event: Event<Raw<K>>, read: &(impl Fn(Value) -> Result<T, String> + Send + Sync))
    where
        K: Resource<DynamicType = ()>,
    {
        // The beginning of a list, and pages of one that may break off, are not yet a success.
        let got_on = !matches!(event, Event::Init | Event::InitApply(_));
        // Before the first await, so that only T is held across it.
        let step = match event {
            Event::Init => Step::Begin,
            Event::InitApply(object) | Event::Apply(object) => Step::Put(self.entry(object, read)),
            Event::Delete(object) => Step::Delete(self.key(object.meta()), object.uid().unwrap_or_default()),
            Event::InitDone => Step::End,
        };
        {
            let mut health = lock(&self.shared.health);
            health.last_event = Some(Instant::now());
            if got_on {
                health.failing = None;
            }
        }
        match step {
            Step::Begin => self.list += 1,
            Step::Put(entry) => self.put(entry).await,
            Step::Delete(key, uid) => {
                let known = self.shared.store.get(&key, |entry| **entry.uid() == *uid);
                if known == Some(true) {
                    self.delete(&key).await;
                }
            }
            Step::End => {
                for key in self.shared.store.unconfirmed(self.list) {
                    self.delete(&key).await;
                }
                let lists = {
                    let mut health = lock(&self.shared.health);
                    health.lists += 1;
                    health.lists
                };
                for waiting in self.waiting.drain(..) {
                    // Who asked may have gone away.
                    let _ = waiting.send(lists);
                }
                let first = !self.shared.synced.send_replace(true);
                tracing::debug!(informer = self.shared.name, objects = self.shared.store.len(), first, "list complete");
                self.send(Delta::Synced).await;
            }
        }
    }

    fn key(&mut self, meta: &ObjectMeta) -> ObjectKey {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        if *self.namespace != *namespace {
            self.namespace = Arc::from(namespace);
        }
        ObjectKey { namespace: self.namespace.clone(), name: Arc::from(meta.name.as_deref().unwrap_or_default()) }
    }

    fn entry<K: Resource<DynamicType = ()>>(&mut self, object: Raw<K>, read: &impl Fn(Value) -> Result<T, String>) -> Entry<T> {
        let key = self.key(object.meta());
        let uid = Arc::from(object.meta().uid.as_deref().unwrap_or_default());
        let resource_version = Arc::from(object.meta().resource_version.as_deref().unwrap_or_default());
        match read(object.value) {
            Ok(object) => Entry::Valid(Stored { key, uid, resource_version, object: Arc::new(object) }),
            Err(error) => {
                let error = Arc::from(&error[..error.floor_char_boundary(ERROR_BYTES_MAX)]);
                Entry::Invalid(Invalid { key, uid, resource_version, error })
            }
        }
    }

    async fn put(&mut self, entry: Entry<T>) {
        let key = entry.key();
        let known = self.shared.store.get(key, |old| (old.uid() == entry.uid(), old.resource_version() == entry.resource_version()));
        match known {
            Some((true, true)) => return self.shared.store.confirm(key, self.list),
            Some((false, _)) => self.delete(&key.clone()).await,
            _ => {}
        }
        let delta = entry.delta();
        let old = self.shared.store.put(entry.clone(), self.list);
        {
            let mut health = lock(&self.shared.health);
            health.deltas += 1;
            health.invalid += usize::from(entry.invalid().is_some());
            health.invalid -= usize::from(old.as_ref().is_some_and(|old| old.invalid().is_some()));
        }
        let old = old.as_ref().and_then(Entry::valid);
        self.handle(&Change { key: entry.key(), old, new: entry.valid(), invalid: entry.invalid() });
        self.send(delta).await;
    }

    async fn delete(&mut self, key: &ObjectKey) {
        let Some(old) = self.shared.store.remove(key) else { return };
        {
            let mut health = lock(&self.shared.health);
            health.deltas += 1;
            health.invalid -= usize::from(old.invalid().is_some());
        }
        self.handle(&Change { key, old: old.valid(), new: None, invalid: None });
        let last = old.valid().map(|stored| stored.object.clone());
        self.send(Delta::Deleted { key: key.clone(), uid: old.uid().clone(), last }).await;
    }

    fn handle(&self, change: &Change<'_, T>) {
        for sink in &self.sinks {
            if let Sink::Handler(handler) = sink {
                handler(change);
            }
        }
    }

    async fn send(&mut self, delta: Delta<T>) {
        let mut gone = false;
        for sink in &self.sinks {
            if let Sink::Channel(sender) = sink {
                gone |= sender.send(delta.clone()).await.is_err();
            }
        }
        if gone {
            self.sinks.retain(|sink| !matches!(sink, Sink::Channel(sender) if sender.is_closed()));
        }
    }

    /// Takes in new handlers and subscribers: each first gets the store as it is.
    async fn join(&mut self) {
        loop {
            let joining = std::mem::take(&mut *lock(&self.shared.joining));
            if joining.is_empty() {
                return;
            }
            for sink in joining {
                self.replay(&sink).await;
                self.sinks.push(sink);
            }
        }
    }

    async fn replay(&self, sink: &Sink<T>) {
        let entries = self.shared.store.all();
        match sink {
            Sink::Handler(handler) => {
                for entry in &entries {
                    handler(&Change { key: entry.key(), old: None, new: entry.valid(), invalid: entry.invalid() });
                }
            }
            Sink::Channel(sender) => {
                let synced = *self.shared.synced.borrow();
                for delta in entries.iter().map(Entry::delta).chain(synced.then_some(Delta::Synced)) {
                    if sender.send(delta).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// The version to go on from is forgotten, said by the answer itself instead of an event in the stream: kube's watcher
/// would ask for the same version for ever.
fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

enum Step<T> {
    Begin,
    Put(Entry<T>),
    Delete(ObjectKey, String),
    End,
}
