//! The writing side of a recorder: what waits, in which order, and what becomes of a write that failed.

use super::{EventType, Occurrence, RecorderConfig, RecorderStats};
use crate::apiclient::CallError;
use crate::backoff::{Backoff, random};
use crate::clock::Clock;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest note, bytes (events.k8s.io/v1: 1 kB).
const NOTE_BYTES_MAX: usize = 1_024;
/// Longest part of an object's name in an Event's name, so that the whole stays within 253.
const NAME_BYTES_MAX: usize = 220;
/// How often a write is tried that the server gets and does not take. What never reaches a server waits for it.
const TRIES_MAX: u32 = 5;

/// The writing task of a [`Recorder`](super::Recorder).
pub struct Writer {
    client: Client,
    clock: Arc<dyn Clock>,
    config: RecorderConfig,
    receiver: mpsc::Receiver<Occurrence>,
    stats: Arc<RecorderStats>,
    series: FxHashMap<Occurrence, Series>,
    /// Keys of `series` by first occurrence, those that wait put off.
    order: VecDeque<Occurrence>,
    /// Keys of `series` that wait to be written: Warnings, and the rest.
    waiting: [VecDeque<Occurrence>; 2],
    bucket: Bucket,
    /// Failed writes since the last that was answered, and when the next may be tried.
    failures: u32,
    paused_until: Instant,
}

struct Series {
    event_name: String,
    count: i32,
    /// Occurrences that the API server knows of; 0 until the first write.
    written: i32,
    last: Timestamp,
    next_write: Instant,
    waits: bool,
    tries: u32,
}

impl Writer {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>, config: RecorderConfig, receiver: mpsc::Receiver<Occurrence>, stats: Arc<RecorderStats>) -> Self {
        let bucket = Bucket::new(config.writes_per_s, config.burst);
        let (series, order, waiting) = Default::default();
        Self { client, clock, config, receiver, stats, series, order, waiting, bucket, failures: 0, paused_until: Instant::now() }
    }

    /// Writes until `stop`, then flushes what waits, within [`RecorderConfig::flush_within`].
    pub async fn run(mut self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(self.config.series_every.max(Duration::from_millis(100)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let any = !self.is_idle();
            let write_at = self.bucket.ready_at().max(self.paused_until);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = tick.tick() => self.queue_grown(Instant::now()),
                () = tokio::time::sleep_until(write_at), if any => {
                    self.bucket.take();
                    tokio::select! { biased; () = stop.cancelled() => break, () = self.write_next() => {} }
                }
                occurrence = self.receiver.recv() => match occurrence {
                    None => break,
                    Some(occurrence) => self.take(occurrence),
                },
            }
        }
        let deadline = Instant::now() + self.config.flush_within;
        if tokio::time::timeout_at(deadline, self.flush()).await.is_err() {
            let left = self.receiver.len() + self.waiting.iter().map(VecDeque::len).sum::<usize>();
            self.stats.dropped.fetch_add(left as u64, Ordering::Relaxed);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    async fn flush(&mut self) {
        self.receiver.close();
        while let Some(occurrence) = self.receiver.recv().await {
            self.take(occurrence);
        }
        self.queue_grown(Instant::now() + self.config.series_every);
        while !self.is_idle() {
            tokio::time::sleep_until(self.paused_until).await;
            self.write_next().await;
        }
    }

    /// Counts an occurrence, and queues the first of its kind.
    fn take(&mut self, mut occurrence: Occurrence) {
        occurrence.note.truncate(occurrence.note.floor_char_boundary(NOTE_BYTES_MAX));
        let last = Timestamp::from_millisecond(self.clock.now().wall_ms).unwrap_or_default();
        if let Some(series) = self.series.get_mut(&occurrence) {
            series.count = series.count.saturating_add(1);
            series.last = last;
            return;
        }
        if !self.make_room() {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let name = &occurrence.regarding.key.name;
        let event_name = format!("{}.{:016x}", &name[..name.floor_char_boundary(NAME_BYTES_MAX)], random());
        let next_write = Instant::now() + self.config.series_every;
        self.order.push_back(occurrence.clone());
        self.series.insert(occurrence.clone(), Series { event_name, count: 1, written: 0, last, next_write, waits: true, tries: 0 });
        lane(&mut self.waiting, occurrence.type_).push_back(occurrence);
    }

    /// Forgets the oldest series that does not wait, if there are too many; `false` if all of them wait.
    fn make_room(&mut self) -> bool {
        let room = self.config.series_max.max(1);
        for _ in 0..self.order.len() {
            if self.order.len() < room {
                return true;
            }
            let Some(oldest) = self.order.pop_front() else { return true };
            if self.series.get(&oldest).is_some_and(|series| series.waits) {
                self.order.push_back(oldest);
            } else {
                self.series.remove(&oldest);
            }
        }
        self.order.len() < room
    }

    /// Queues the series that grew and whose time has come by `now`.
    fn queue_grown(&mut self, now: Instant) {
        for key in &self.order {
            if let Some(series) = self.series.get_mut(key)
                && series.count > series.written
                && series.next_write <= now
                && !series.waits
            {
                series.waits = true;
                lane(&mut self.waiting, key.type_).push_back(key.clone());
            }
        }
    }

    /// Writes the first that waits. If the server did not answer, or asks for patience, it goes on waiting.
    async fn write_next(&mut self) {
        let Some(key) = self.waiting.iter().find_map(VecDeque::front).cloned() else { return };
        let result = self.write(&key).await;
        let Some(series) = self.series.get_mut(&key) else { return };
        lane(&mut self.waiting, key.type_).pop_front();
        match result {
            Ok(count) => {
                (series.written, series.waits, series.tries, self.failures) = (count, false, 0, 0);
                self.stats.written.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::debug!(object = %key.regarding.key, reason = key.reason, %error, "event not written");
                series.tries += u32::from(!matches!(error, CallError::NotSent(_)));
                if error.retryable() && series.tries < TRIES_MAX {
                    let delay = Backoff::WATCHES.delay(self.failures).max(error.retry_after().unwrap_or_default().min(Backoff::WATCHES.max));
                    self.failures = self.failures.saturating_add(1);
                    self.paused_until = Instant::now() + delay;
                    lane(&mut self.waiting, key.type_).push_front(key);
                } else {
                    // The next occurrence begins a new one, also of an Event that expired (1 h by default).
                    self.stats.failed.fetch_add(1, Ordering::Relaxed);
                    self.series.remove(&key);
                    self.order.retain(|other| *other != key);
                }
            }
        }
    }

    /// Writes one series; answers how many occurrences the API server knows of now.
    async fn write(&mut self, key: &Occurrence) -> Result<i32, CallError> {
        let Some(series) = self.series.get_mut(key) else { return Ok(0) };
        series.next_write = Instant::now() + self.config.series_every;
        let (count, last) = (series.count, MicroTime(series.last));
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
                series: (count > 1).then_some(EventSeries { count, last_observed_time: last }),
                ..Event::default()
            };
            api.create(&PostParams::default(), &event).await.map(drop)
        } else {
            let patch = json!({ "series": EventSeries { count, last_observed_time: last } });
            api.patch(&series.event_name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
        };
        match result.map_err(CallError::from) {
            Ok(()) => Ok(count),
            // Its name is random: an earlier try of ours took effect, with fewer occurrences perhaps.
            Err(error) if error.is_already_exists() => Ok(1),
            Err(error) => Err(error),
        }
    }
}

fn lane([warnings, rest]: &mut [VecDeque<Occurrence>; 2], type_: EventType) -> &mut VecDeque<Occurrence> {
    if type_ == EventType::Warning { warnings } else { rest }
}

/// A token bucket: so many writes at once, and so many a second in the long run.
struct Bucket {
    burst: u32,
    per_token: Duration,
    tokens: u32,
    refilled: Instant,
}

impl Bucket {
    fn new(per_second: u32, burst: u32) -> Self {
        Self { burst, per_token: Duration::from_secs(1) / per_second.max(1), tokens: burst, refilled: Instant::now() }
    }

    /// When there is a token: in the past if there is one now.
    fn ready_at(&mut self) -> Instant {
        let gained = u32::try_from(self.refilled.elapsed().as_nanos() / self.per_token.as_nanos().max(1)).unwrap_or(u32::MAX);
        if gained > 0 {
            self.refilled = if gained >= self.burst { Instant::now() } else { self.refilled + self.per_token * gained };
            self.tokens = self.tokens.saturating_add(gained).min(self.burst);
        }
        if self.tokens > 0 { self.refilled } else { self.refilled + self.per_token }
    }

    fn take(&mut self) {
        self.ready_at();
        self.tokens = self.tokens.saturating_sub(1);
    }
}
