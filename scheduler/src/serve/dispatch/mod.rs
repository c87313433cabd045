//! Carries out the core's status writes: bounded concurrency, one write in flight per Run, every answer certain.
//!
//! ```text
//! submit ─► Queue (newest intent per Run, binds first) ─► N workers ─► one merge patch, compare-and-swap ─► answer to the core
//!                                                              └─ answer lost: read until it is known what happened
//! ```

pub mod intent;
mod own;
mod queue;
mod refused;
mod send;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use berth_framework::core::{WriteId, WriteOutcome};
use berth_runtime::informer::Informer;
use berth_runtime::lease::Fence;
use berth_runtime::{Clock, lock};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::intent::{Intent, What};
use self::own::OwnWrites;
use self::queue::Queue;
use self::refused::Refused;
use super::announce::Announcer;
use super::metrics::Metrics;
use super::objects::SeenRun;
use super::traces::Traces;

/// How a write ended, for the core.
#[derive(Debug)]
pub struct Settled {
    /// The write.
    pub write: WriteId,
    /// How it ended, for certain.
    pub outcome: WriteOutcome,
}

/// What the dispatcher works with.
pub struct Tools {
    /// The API server.
    pub client: Client,
    /// The Runs as last seen.
    pub runs: Informer<SeenRun>,
    /// Where answers go.
    pub answers: mpsc::Sender<Settled>,
    /// Asked before every send.
    pub fence: Fence,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Events.
    pub announcer: Announcer,
    /// A span per write, if asked for.
    pub traces: Option<Traces>,
}

/// See the module. Clones share the queue.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Notify,
    own: Mutex<OwnWrites>,
    refused: Mutex<Refused>,
    workers: usize,
    tools: Tools,
}

impl Dispatcher {
    /// A dispatcher for `workers` (at least 1) writes at once; [`Dispatcher::run`] works.
    pub fn new(workers: usize, tools: Tools) -> Self {
        let workers = workers.max(1);
        let queue = Mutex::new(Queue::new(workers));
        Self { shared: Arc::new(Shared { queue, changed: Notify::new(), own: Mutex::default(), refused: Mutex::default(), workers, tools }) }
    }

    /// Takes an intent. Never waits. The answer to an older one that it replaces comes back at once: it was never sent.
    pub fn submit(&self, intent: Intent) -> Option<Settled> {
        let uid = intent.run.uid.clone();
        let old = lock(&self.shared.queue).push(intent);
        self.shared.changed.notify_one();
        let old = old?;
        let outcome = if old.run.uid == uid { WriteOutcome::Failed } else { WriteOutcome::Gone };
        Some(Settled { write: old.write, outcome })
    }

    /// How many more binds should be decided before some are written: decisions far ahead of their writes grow stale.
    pub fn room(&self) -> usize {
        (4 * self.shared.workers).saturating_sub(lock(&self.shared.queue).urgent())
    }

    /// Writes under way or waiting: binds and terminal writes, messages.
    pub fn pending(&self) -> (usize, usize) {
        let queue = lock(&self.shared.queue);
        (queue.urgent(), queue.messages())
    }

    /// Works until `stop`; then what is in flight is brought to its end and the rest is left: nothing of it was sent.
    pub async fn run(self, stop: CancellationToken) -> Result<(), String> {
        futures::future::join_all((0..self.shared.workers).map(|_| self.shared.work(&stop))).await;
        Ok(())
    }
}

impl Shared {
    async fn work(&self, stop: &CancellationToken) {
        loop {
            let intent = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                intent = self.next() => intent,
            };
            let span = tracing::info_span!("dispatch", run = %intent.run.key, write = intent.kind());
            let start = self.tools.traces.is_some().then(SystemTime::now);
            let outcome = self.carry_out(&intent, stop).instrument(span).await;
            if let Some((traces, start)) = self.tools.traces.as_ref().zip(start) {
                traces.dispatch(&intent, word(&outcome), matches!(outcome, WriteOutcome::Applied(_)), start);
            }
            self.told(&intent, &outcome);
            lock(&self.queue).done(&intent.run.key);
            self.changed.notify_one();
            // The owner outlives the workers; if it is gone all the same, nobody needs the answer.
            let _ = self.tools.answers.send(Settled { write: intent.write, outcome }).await;
        }
    }

    async fn next(&self) -> Intent {
        loop {
            let changed = self.changed.notified();
            {
                let mut queue = lock(&self.queue);
                if let Some(intent) = queue.pop() {
                    if queue.has_ready() {
                        self.changed.notify_one();
                    }
                    return intent;
                }
            }
            changed.await;
        }
    }

    /// Log, metrics and Events of a settled write.
    fn told(&self, intent: &Intent, outcome: &WriteOutcome) {
        let (run, origin) = (&intent.run, &intent.origin);
        let waited = origin.decided.elapsed();
        let metrics = &self.tools.metrics;
        match (&intent.what, outcome) {
            (What::Bind { pod, remarks, .. }, WriteOutcome::Applied(_)) => {
                let latency = Duration::from_millis(origin.queued_for_ms) + waited;
                let remarked = (!remarks.is_empty()).then(|| remarks.join("; "));
                tracing::info!(run = %run.key, %pod, attempt = origin.attempts, latency_ms = latency.as_millis(), remarks = remarked, "run placed");
                metrics.attempts.bound(&origin.profile, waited, latency, origin.attempts);
                self.tools.announcer.scheduled(run, pod, remarks);
            }
            (What::Bind { pod, .. }, failed) => {
                tracing::debug!(run = %run.key, %pod, outcome = word(failed), "bind without effect");
                metrics.attempts.bind_failed(&origin.profile, failed, waited);
            }
            (What::Terminate { phase, reason, message }, WriteOutcome::Applied(_)) => {
                tracing::info!(run = %run.key, phase, reason, %message, "run ended");
                self.tools.announcer.ended(run, reason, message);
            }
            (What::Waiting { shown, codes }, WriteOutcome::Applied(_)) => {
                tracing::debug!(run = %run.key, reason = %shown.reason, message = %shown.message, "run waits");
                self.tools.announcer.failed_scheduling(run, shown, codes);
            }
            (_, failed) => tracing::debug!(run = %run.key, write = intent.kind(), outcome = word(failed), "write without effect"),
        }
        metrics.client.written(intent.kind(), word(outcome));
    }

    fn now(&self) -> Time {
        Time(Timestamp::from_second(self.tools.clock.now().wall_ms.div_euclid(1_000)).unwrap_or_default())
    }
}

/// The outcome as a metric label value.
fn word(outcome: &WriteOutcome) -> &'static str {
    match outcome {
        WriteOutcome::Applied(_) => "applied",
        WriteOutcome::Conflict => "conflict",
        WriteOutcome::Gone => "gone",
        WriteOutcome::Failed => "failed",
    }
}
