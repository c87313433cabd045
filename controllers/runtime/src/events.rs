//! Kubernetes Events (events.k8s.io/v1), off the critical path: bounded, aggregated, rate-limited, and never worth waiting for.
//!
//! ```text
//! publish ─► bounded channel ─► series by (object, type, reason, note) ─► token bucket ─► POST once, then PATCH series
//!      full: counted, dropped      at most SERIES_MAX, oldest forgotten      a failed write is counted, not repeated
//! ```
//! A first occurrence is sent at once, if the bucket has a token. Repetitions are counted in its `series` and written at
//! most every [`RecorderConfig::series_every`].

use crate::apiclient::CallError;
use crate::backoff::random;
use crate::clock::Clock;
use crate::key::ObjectKey;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest note, bytes (events.k8s.io/v1: 1 kB).
const NOTE_BYTES_MAX: usize = 1_024;
/// Longest part of an object's name in an Event's name, so that the whole stays within 253.
const NAME_BYTES_MAX: usize = 220;

/// Normal or Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something happened.
    Normal,
    /// Somebody should look.
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// As `kruntimes.io/v1alpha1`.
    pub api_version: Cow<'static, str>,
    /// As `Run`.
    pub kind: Cow<'static, str>,
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
}

impl Regarding {
    /// The object of kind K with that name and UID.
    pub fn of<K: Resource<DynamicType = ()>>(key: ObjectKey, uid: Arc<str>) -> Self {
        Self { api_version: K::api_version(&()), kind: K::kind(&()), key, uid }
    }
}

/// One occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Occurrence {
    /// About what.
    pub regarding: Regarding,
    /// Normal or Warning.
    pub type_: EventType,
    /// One CamelCase word: why.
    pub reason: &'static str,
    /// One CamelCase word: what was done.
    pub action: &'static str,
    /// One sentence for people; cut at 1,024 bytes.
    pub note: String,
}

/// Limits of a recorder.
#[derive(Clone, Debug)]
pub struct RecorderConfig {
    /// `reportingController`, as `kruntimes.io/berth`.
    pub controller: String,
    /// `reportingInstance`, as the Pod's name.
    pub instance: String,
    /// Occurrences that may wait; more are dropped and counted.
    pub queue_max: usize,
    /// Distinct (object, type, reason, note) that are remembered.
    pub series_max: usize,
    /// How often a growing series is written.
    pub series_every: Duration,
    /// Writes per second in the long run.
    pub writes_per_s: u32,
    /// Writes that may come at once.
    pub burst: u32,
    /// How long the last writes may take when stopping.
    pub flush_within: Duration,
}

impl RecorderConfig {
    /// The limits in use: 4,096 waiting, 4,096 series, a series every minute, 25 writes a second after a burst of 100, 2 s to flush.
    pub fn new(controller: impl Into<String>, instance: impl Into<String>) -> Self {
        Self {
            controller: controller.into(),
            instance: instance.into(),
            queue_max: 4_096,
            series_max: 4_096,
            series_every: Duration::from_secs(60),
            writes_per_s: 25,
            burst: 100,
            flush_within: Duration::from_secs(2),
        }
    }
}

/// What a recorder counts.
#[derive(Debug, Default)]
pub struct RecorderStats {
    /// Events created or updated.
    pub written: AtomicU64,
    /// Occurrences dropped because the queue was full, or at the end of the flush.
    pub dropped: AtomicU64,
    /// Writes that failed.
    pub failed: AtomicU64,
}

/// Takes occurrences; clones share the queue. [`Recorder::off`] takes them and does nothing.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    queue: Option<mpsc::Sender<Occurrence>>,
    stats: Arc<RecorderStats>,
}

impl Recorder {
    /// A recorder and the task that writes; without the task nothing is written.
    pub fn new(client: Client, clock: Arc<dyn Clock>, config: RecorderConfig) -> (Self, Writer) {
        let (sender, receiver) = mpsc::channel(config.queue_max.max(1));
        let stats = Arc::<RecorderStats>::default();
        let tokens = config.burst;
        let writer = Writer {
            client,
            clock,
            config,
            receiver,
            stats: stats.clone(),
            series: FxHashMap::default(),
            order: VecDeque::new(),
            tokens,
            refilled: Instant::now(),
        };
        (Self { queue: Some(sender), stats }, writer)
    }

    /// A recorder that is switched off.
    pub fn off() -> Self {
        Self::default()
    }

    /// Hands over an occurrence. Never waits.
    pub fn publish(&self, occurrence: Occurrence) {
        if let Some(queue) = &self.queue
            && queue.try_send(occurrence).is_err()
        {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counters.
    pub fn stats(&self) -> &RecorderStats {
        &self.stats
    }
}

/// The writing task of a [`Recorder`].
pub struct Writer {
    client: Client,
    clock: Arc<dyn Clock>,
    config: RecorderConfig,
    receiver: mpsc::Receiver<Occurrence>,
    stats: Arc<RecorderStats>,
    series: FxHashMap<Occurrence, Series>,
    /// Keys of `series` by first occurrence.
    order: VecDeque<Occurrence>,
    tokens: u32,
    refilled: Instant,
}

struct Series {
    event_name: String,
    count: i32,
    /// Occurrences that the API server knows of; 0 until the first write.
    written: i32,
    last: Timestamp,
    next_write: Instant,
}

impl Writer {
    /// Writes until `stop`, then flushes what waits, within [`RecorderConfig::flush_within`].
    pub async fn run(mut self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(self.config.series_every.max(Duration::from_millis(100)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = tick.tick() => {
                    tokio::select! { () = stop.cancelled() => break, () = self.write_due(Instant::now()) => {} }
                }
                occurrence = self.receiver.recv() => match occurrence {
                    None => break,
                    Some(occurrence) => {
                        tokio::select! { () = stop.cancelled() => break, () = self.take(occurrence, true) => {} }
                    }
                },
            }
        }
        let deadline = Instant::now() + self.config.flush_within;
        if tokio::time::timeout_at(deadline, self.flush()).await.is_err() {
            self.stats.dropped.fetch_add(self.receiver.len() as u64, Ordering::Relaxed);
        }
    }

    async fn flush(&mut self) {
        self.receiver.close();
        self.tokens = u32::MAX;
        while let Some(occurrence) = self.receiver.recv().await {
            self.take(occurrence, false).await;
        }
        self.write_due(Instant::now() + self.config.series_every).await;
    }

    async fn take(&mut self, mut occurrence: Occurrence, limited: bool) {
        occurrence.note.truncate(occurrence.note.floor_char_boundary(NOTE_BYTES_MAX));
        let last = self.now();
        if let Some(series) = self.series.get_mut(&occurrence) {
            series.count = series.count.saturating_add(1);
            series.last = last;
            return;
        }
        if self.order.len() >= self.config.series_max.max(1)
            && let Some(oldest) = self.order.pop_front()
        {
            self.series.remove(&oldest);
        }
        let name = &occurrence.regarding.key.name;
        let event_name = format!("{}.{:016x}", &name[..name.floor_char_boundary(NAME_BYTES_MAX)], random());
        self.order.push_back(occurrence.clone());
        let next_write = Instant::now() + self.config.series_every;
        self.series.insert(occurrence.clone(), Series { event_name, count: 1, written: 0, last, next_write });
        if limited {
            self.token().await;
        }
        self.write(&occurrence).await;
    }

    /// Writes the series that grew and whose time has come by `now`.
    async fn write_due(&mut self, now: Instant) {
        let due: Vec<Occurrence> = self
            .order
            .iter()
            .filter(|key| self.series.get(key).is_some_and(|series| series.count > series.written && series.next_write <= now))
            .cloned()
            .collect();
        for key in due {
            self.token().await;
            self.write(&key).await;
        }
    }

    async fn write(&mut self, key: &Occurrence) {
        let Some(series) = self.series.get_mut(key) else { return };
        series.next_write = Instant::now() + self.config.series_every;
        let (count, grown, last) = (series.count, series.count > 1, MicroTime(series.last));
        let api: Api<Event> = match &*key.regarding.key.namespace {
            "" => Api::default_namespaced(self.client.clone()),
            namespace => Api::namespaced(self.client.clone(), namespace),
        };
        let result = if series.written == 0 {
            let event = Event {
                metadata: ObjectMeta { name: Some(series.event_name.clone()), namespace: api.namespace().map(str::to_owned), ..ObjectMeta::default() },
                action: Some(key.action.to_owned()),
                event_time: Some(last.clone()),
                note: Some(key.note.clone()),
                reason: Some(key.reason.to_owned()),
                regarding: Some(ObjectReference {
                    api_version: Some(key.regarding.api_version.to_string()),
                    kind: Some(key.regarding.kind.to_string()),
                    namespace: Some(key.regarding.key.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
                    name: Some(key.regarding.key.name.to_string()),
                    uid: Some(key.regarding.uid.to_string()),
                    ..ObjectReference::default()
                }),
                reporting_controller: Some(self.config.controller.clone()),
                reporting_instance: Some(self.config.instance.clone()),
                type_: Some(key.type_.as_str().to_owned()),
                series: grown.then_some(EventSeries { count, last_observed_time: last }),
                ..Event::default()
            };
            api.create(&PostParams::default(), &event).await.map(drop)
        } else {
            let patch = json!({ "series": EventSeries { count, last_observed_time: last } });
            api.patch(&series.event_name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
        };
        match result.map_err(CallError::from) {
            Ok(()) => {
                series.written = count;
                self.stats.written.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                // An Event that expired (1 h by default) can't be patched: the next occurrence begins a new one.
                if error.is_not_found() {
                    self.series.remove(key);
                    self.order.retain(|other| other != key);
                }
                self.stats.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(object = %key.regarding.key, reason = key.reason, %error, "event not written");
            }
        }
    }

    /// Waits for a token of the bucket.
    async fn token(&mut self) {
        let per_token = Duration::from_secs(1) / self.config.writes_per_s.max(1);
        loop {
            let gained = u32::try_from(self.refilled.elapsed().as_nanos() / per_token.as_nanos().max(1)).unwrap_or(u32::MAX);
            if gained > 0 {
                self.refilled = if gained >= self.config.burst { Instant::now() } else { self.refilled + per_token * gained };
                self.tokens = self.tokens.saturating_add(gained).min(self.config.burst.max(self.tokens));
            }
            if self.tokens > 0 {
                self.tokens -= 1;
                return;
            }
            tokio::time::sleep_until(self.refilled + per_token).await;
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.clock.now().wall_ms).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
