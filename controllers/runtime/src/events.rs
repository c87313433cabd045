//! Kubernetes Events (events.k8s.io/v1), off the critical path: bounded, aggregated, rate-limited, and never worth waiting for.
//!
//! ```text
//! publish ─► bounded channel ─► series by (object, type, reason, note) ─► Warnings, then the rest ─► token bucket ─► POST once, then PATCH series
//!      full: counted, dropped      bounded, oldest forgotten                                            no answer: all wait, with backoff; refused: counted
//! ```
//! A first occurrence is sent at once, if the bucket has a token. Repetitions are counted in its `series` and written at
//! most every [`RecorderConfig::series_every`].

mod writer;

pub use writer::Writer;

use crate::clock::Clock;
use crate::key::ObjectKey;
use kube::{Client, Resource};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

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
    /// Distinct (object, type, reason, note) that are remembered or wait to be written.
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
    /// Occurrences dropped because too many waited, or at the end of the flush.
    pub dropped: AtomicU64,
    /// Writes that were refused, or given up.
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
        let writer = Writer::new(client, clock, config, receiver, stats.clone());
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

#[cfg(test)]
mod tests;
