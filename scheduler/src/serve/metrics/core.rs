//! What the core counts by itself: queue, cache, wake-ups, rejections. Taken over after each turn of its owner's loop.

use std::collections::HashMap;
use std::sync::Mutex;

use berth_framework::Counts;
use berth_framework::core::{Core, QueueLengths, Stats};
use berth_framework::plugin::WakeCause;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::define::{Define, Made};
use super::{lock, set};

const CAUSES: usize = WakeCause::ALL.len();
/// The neighbour's two sources (reference kruntimes §8).
const SOURCES: [&str; 2] = ["runtime_pod", "capacity_released"];

/// The metrics of queue and cache.
pub struct CoreMetrics {
    pending: [IntGauge; 3],
    cache: [IntGauge; 3],
    writes: [IntGauge; 2],
    unschedulable: IntGaugeVec,
    queued: IntCounter,
    woken: [IntCounter; CAUSES],
    failed: IntCounter,
    backed_off: IntCounter,
    wakeups: [IntCounter; CAUSES],
    sources: [IntCounter; SOURCES.len()],
    after_flush: IntCounter,
    went_stale: IntCounter,
    rejections: IntCounterVec,
    conflicts: [IntCounter; 2],
    told: Mutex<Told>,
}

/// What was taken over last.
#[derive(Default)]
struct Told {
    stats: Stats,
    waiting: usize,
    because: HashMap<(String, &'static str), IntGauge>,
}

impl CoreMetrics {
    pub(super) fn new(d: &mut Define) -> Made<Self> {
        let pending = d.gauges(
            "scheduler_pending_pods",
            "Runs that are not placed. queue: active are tried next, backoff wait after an error, unschedulable wait for an event.",
            &["queue"],
        )?;
        let incoming = d.counters(
            "scheduler_queue_incoming_pods_total",
            "Runs that entered a queue. event: UnscheduledPodAdd, ScheduleAttemptFailure, or the cause of a wake-up.",
            &["queue", "event"],
        )?;
        let cache = d.gauges("scheduler_cache_size", "What the cache holds. type: nodes are Runtime Pods, pods active Runs, assumed_pods.", &["type"])?;
        let writes = d.gauges(
            "berth_status_writes_pending",
            "Status writes of Runs that wait or are under way. kind: urgent (placements, ends), waiting (messages).",
            &["kind"],
        )?;
        let wakeups = d.counters("berth_wakeups_total", "Waiting Runs that were tried again, by cause.", &["cause"])?;
        let sources = d.counters(
            "kruntimes_scheduler_pending_run_wakeups_total",
            "Waiting Runs that were tried again, by kruntimes' two sources: runtime_pod, capacity_released. Other causes are left out.",
            &["source"],
        )?;
        let conflicts = d.counters(
            "kruntimes_scheduler_reservation_conflicts_total",
            "Placements refused after the decision. stage: reserve (by a plugin), bind (by the API server).",
            &["stage"],
        )?;
        Ok(Self {
            pending: ["active", "backoff", "unschedulable"].map(|queue| pending.with_label_values(&[queue])),
            cache: ["nodes", "pods", "assumed_pods"].map(|kind| cache.with_label_values(&[kind])),
            writes: ["urgent", "waiting"].map(|kind| writes.with_label_values(&[kind])),
            unschedulable: d.gauges(
                "scheduler_unschedulable_pods",
                "Waiting Runs by the plugins that rejected a Pod. A Run counts once for each of them.",
                &["plugin", "profile"],
            )?,
            queued: incoming.with_label_values(&["active", "UnscheduledPodAdd"]),
            woken: WakeCause::ALL.map(|cause| incoming.with_label_values(&["active", cause.as_str()])),
            failed: incoming.with_label_values(&["unschedulable", "ScheduleAttemptFailure"]),
            backed_off: incoming.with_label_values(&["backoff", "ScheduleAttemptFailure"]),
            wakeups: WakeCause::ALL.map(|cause| wakeups.with_label_values(&[cause.as_str()])),
            sources: SOURCES.map(|source| sources.with_label_values(&[source])),
            after_flush: d
                .counter("scheduler_pod_scheduled_after_flush_total", "Runs that only the 5-minute flush placed: wake-ups that were lost. Must stay 0.")?,
            went_stale: d.counter("berth_pods_went_stale_total", "Runtime Pods whose heartbeat grew too old.")?,
            rejections: d.counters(
                "kruntimes_scheduler_filter_rejections_total",
                "Pods that a plugin rejected, as told in the messages of waiting Runs.",
                &["plugin", "reason"],
            )?,
            conflicts: ["reserve", "bind"].map(|stage| conflicts.with_label_values(&[stage])),
            told: Mutex::default(),
        })
    }

    /// Takes over what the core has counted since the last call, and its gauges.
    pub fn core(&self, core: &Core, queue: QueueLengths, writes: (usize, usize)) {
        self.gauges(queue, core.counts(), writes);
        let stats = core.stats();
        let told = &mut *lock(&self.told);
        // Whoever begins to wait is an attempt that failed, whoever ends is one less.
        if told.stats.unschedulable != stats.unschedulable || told.waiting != queue.waiting {
            told.waiting = queue.waiting;
            for (profile, plugin, runs) in core.unschedulable() {
                let gauge = told.because.entry((profile.to_owned(), plugin)).or_insert_with(|| self.unschedulable.with_label_values(&[plugin, profile]));
                set(gauge, runs);
            }
        }
        self.count(stats, told);
    }

    /// Other profiles are in force.
    pub(super) fn profiles_changed(&self) {
        self.unschedulable.reset();
        let told = &mut *lock(&self.told);
        told.because.clear();
        // So that the next call looks again.
        told.waiting = usize::MAX;
    }

    fn gauges(&self, queue: QueueLengths, counts: Counts, writes: (usize, usize)) {
        let pairs = self.pending.iter().zip([queue.active, queue.backoff, queue.waiting]);
        let pairs = pairs.chain(self.cache.iter().zip([counts.pods, counts.active, counts.assumed]));
        for (gauge, value) in pairs.chain(self.writes.iter().zip([writes.0, writes.1])) {
            set(gauge, value);
        }
    }

    fn count(&self, stats: &Stats, told: &mut Told) {
        let told = &mut told.stats;
        for (at, cause) in WakeCause::ALL.into_iter().enumerate() {
            let new = stats.wakeups[at] - std::mem::replace(&mut told.wakeups[at], stats.wakeups[at]);
            if new > 0 {
                self.wakeups[at].inc_by(new);
                self.woken[at].inc_by(new);
                if let Some(source) = source_of(cause) {
                    self.sources[source].inc_by(new);
                }
            }
        }
        if told.unschedulable != stats.unschedulable {
            for (&(plugin, reason), &pods) in &stats.rejections {
                let new = pods - told.rejections.insert((plugin, reason), pods).unwrap_or(0);
                if new > 0 {
                    self.rejections.with_label_values(&[plugin, reason]).inc_by(new);
                }
            }
        }
        let mut since = |counter: &IntCounter, of: fn(&mut Stats) -> &mut u64, now: u64| {
            let before = std::mem::replace(of(told), now);
            if now > before {
                counter.inc_by(now - before);
            }
        };
        since(&self.queued, |s| &mut s.queued, stats.queued);
        since(&self.failed, |s| &mut s.unschedulable, stats.unschedulable);
        since(&self.backed_off, |s| &mut s.backed_off, stats.backed_off);
        since(&self.conflicts[0], |s| &mut s.reserve_conflicts, stats.reserve_conflicts);
        since(&self.conflicts[1], |s| &mut s.bind_conflicts, stats.bind_conflicts);
        since(&self.after_flush, |s| &mut s.placed_after_flush, stats.placed_after_flush);
        since(&self.went_stale, |s| &mut s.went_stale, stats.went_stale);
    }
}

/// Which of [`SOURCES`] the neighbour would say; causes it does not know have none.
fn source_of(cause: WakeCause) -> Option<usize> {
    match cause {
        WakeCause::PodReady | WakeCause::HeartbeatReturned | WakeCause::CapacityRaised | WakeCause::PodDeletedOrRelabelled => Some(0),
        WakeCause::RunEnded | WakeCause::RunDeleted => Some(1),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn what_the_core_counts_is_taken_over_once() {
        let mut d = Define::default();
        let metrics = CoreMetrics::new(&mut d).unwrap();
        let mut stats = Stats { bind_conflicts: 2, unschedulable: 4, ..Stats::default() };
        stats.wakeups[WakeCause::RunEnded as usize] = 3;
        stats.rejections.insert(("Capacity", "InsufficientCapacity"), 5);
        for _ in 0..2 {
            metrics.gauges(QueueLengths { active: 1, backoff: 2, waiting: 3 }, Counts::default(), (0, 0));
            metrics.count(&stats, &mut lock(&metrics.told));
        }
        let text = prometheus::TextEncoder::new().encode_to_string(&d.registry.gather()).unwrap();
        for line in [
            "berth_wakeups_total{cause=\"run_ended\"} 3",
            "kruntimes_scheduler_pending_run_wakeups_total{source=\"capacity_released\"} 3",
            "kruntimes_scheduler_reservation_conflicts_total{stage=\"bind\"} 2",
            "kruntimes_scheduler_filter_rejections_total{plugin=\"Capacity\",reason=\"InsufficientCapacity\"} 5",
            "scheduler_queue_incoming_pods_total{event=\"ScheduleAttemptFailure\",queue=\"unschedulable\"} 4",
            "scheduler_queue_incoming_pods_total{event=\"run_ended\",queue=\"active\"} 3",
            "scheduler_pending_pods{queue=\"unschedulable\"} 3",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
