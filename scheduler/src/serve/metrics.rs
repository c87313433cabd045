//! The metrics of `berth serve`, all in one registry; kube-scheduler's and client-go's names where the meaning is the same
//! (reference kube-scheduler §2). Every label value comes from a closed set: plugins, reasons, causes, profiles, verbs, HTTP codes.

use std::sync::Mutex;
use std::time::Duration;

use berth_framework::Counts;
use berth_framework::core::{Attempt, AttemptResult, QueueLengths, Stats, WriteOutcome};
use berth_framework::plugin::WakeCause;
use berth_framework::profile::Profiles;
use berth_runtime::apiclient::{Call, CallObserver, Outcome, Verb};
use berth_runtime::informer::InformerStats;
use berth_runtime::lock;
use berth_runtime::workqueue::{QueueObserver, QueueStats};
use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    exponential_buckets,
};

/// Everything that is measured. Registered once, at the start.
pub struct Metrics {
    registry: Registry,
    schedule_attempts: IntCounterVec,
    attempt_duration: HistogramVec,
    algorithm_duration: Histogram,
    sli_duration: HistogramVec,
    attempts_per_run: Histogram,
    pending: IntGaugeVec,
    incoming: IntCounterVec,
    cache_size: IntGaugeVec,
    after_flush: IntCounter,
    wakeups: IntCounterVec,
    shadows: IntCounterVec,
    config_valid: IntGauge,
    config_generation: IntGauge,
    cycle_duration: Histogram,
    bind_duration: Histogram,
    writes: IntCounterVec,
    writes_pending: IntGaugeVec,
    went_stale: IntCounter,
    filter_rejections: IntCounterVec,
    reservation_conflicts: IntCounterVec,
    pending_run_wakeups: IntCounterVec,
    rest_requests: IntCounterVec,
    rest_duration: HistogramVec,
    informer_objects: IntGaugeVec,
    informer_synced: IntGaugeVec,
    informer_errors: IntCounterVec,
    informer_lists: IntCounterVec,
    informer_failing: GaugeVec,
    events: IntCounterVec,
    queues: Queues,
    told: Mutex<Stats>,
}

/// client-go's workqueue metrics.
struct Queues {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    waited: HistogramVec,
    worked: HistogramVec,
}

/// Defines metrics in a registry.
struct Define<'r> {
    registry: &'r Registry,
}

type Made<T> = Result<T, prometheus::Error>;

impl Define<'_> {
    fn register<C: Collector + Clone + 'static>(&self, made: Made<C>) -> Made<C> {
        let collector = made?;
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }
    fn counter(&self, name: &str, help: &str) -> Made<IntCounter> {
        self.register(IntCounter::new(name, help))
    }
    fn int_gauge(&self, name: &str, help: &str) -> Made<IntGauge> {
        self.register(IntGauge::new(name, help))
    }
    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Made<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels))
    }
    fn int_gauges(&self, name: &str, help: &str, labels: &[&str]) -> Made<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels))
    }
    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Made<GaugeVec> {
        self.register(GaugeVec::new(Opts::new(name, help), labels))
    }
    fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Made<Histogram> {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)))
    }
    fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> Made<HistogramVec> {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels))
    }
}

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// A name or label that Prometheus refuses, or two of one name: a mistake in this file.
    pub fn new() -> Made<Self> {
        let registry = Registry::new();
        let d = Define { registry: &registry };
        let seconds = |from: f64, factor: f64, n: usize| exponential_buckets(from, factor, n);
        let queues = Queues {
            depth: d.int_gauges("workqueue_depth", "Keys that are ready and not being worked on.", &["name"])?,
            adds: d.counters("workqueue_adds_total", "Keys that became ready.", &["name"])?,
            retries: d.counters("workqueue_retries_total", "Keys that failed and wait their backoff.", &["name"])?,
            unfinished: d.gauges("workqueue_unfinished_work_seconds", "Summed over the keys being worked on.", &["name"])?,
            longest: d.gauges("workqueue_longest_running_processor_seconds", "Of the keys being worked on.", &["name"])?,
            waited: d.histograms("workqueue_queue_duration_seconds", "From ready to taken.", &["name"], seconds(1e-6, 10.0, 9)?)?,
            worked: d.histograms("workqueue_work_duration_seconds", "From taken to finished.", &["name"], seconds(1e-6, 10.0, 9)?)?,
        };
        let metrics = Self {
            schedule_attempts: d.counters("scheduler_schedule_attempts_total", "Attempts to place a Run, by result.", &["result", "profile"])?,
            attempt_duration: d.histograms(
                "scheduler_scheduling_attempt_duration_seconds",
                "An attempt: the decision, and for a placement the write.",
                &["result", "profile"],
                seconds(0.001, 2.0, 15)?,
            )?,
            algorithm_duration: d.histogram("scheduler_scheduling_algorithm_duration_seconds", "The decision alone.", seconds(0.001, 2.0, 15)?)?,
            sli_duration: d.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "From a Run's first time in the queue to its stored placement.",
                &["attempts"],
                seconds(0.01, 2.0, 20)?,
            )?,
            attempts_per_run: d.histogram("scheduler_pod_scheduling_attempts", "Attempts until a Run was placed.", seconds(1.0, 2.0, 5)?)?,
            pending: d.int_gauges("scheduler_pending_pods", "Runs that are not placed, by queue.", &["queue"])?,
            incoming: d.counters("scheduler_queue_incoming_pods_total", "Runs that entered a queue, by what moved them.", &["queue", "event"])?,
            cache_size: d.int_gauges("scheduler_cache_size", "What the cache counts: Pods (as nodes), active and assumed Runs.", &["type"])?,
            after_flush: d.counter("scheduler_pod_scheduled_after_flush_total", "Runs that only the alarm flush placed: lost wake-ups. Must stay 0.")?,
            wakeups: d.counters("berth_wakeups_total", "Waiting Runs tried again, by cause.", &["cause"])?,
            shadows: d.counters(
                "berth_shadow_agreement_total",
                "Attempts that a shadow profile would have ended like the active one, or not.",
                &["profile", "result"],
            )?,
            config_valid: d.int_gauge("berth_config_valid", "Whether the configuration as it is now can be used; if 0, the last good one is in force.")?,
            config_generation: d.int_gauge(
                "berth_config_applied_generation",
                "Which configuration is in force: the ConfigMap's resource version, or how many texts of the file have been.",
            )?,
            cycle_duration: d.histogram("berth_attempt_duration_seconds", "One attempt of the core, without the write.", seconds(1e-6, 2.0, 22)?)?,
            bind_duration: d.histogram("berth_bind_duration_seconds", "From a placement's decision to its certain end.", seconds(0.001, 2.0, 15)?)?,
            writes: d.counters("berth_status_writes_total", "Status writes of Runs that came to their end.", &["kind", "outcome"])?,
            writes_pending: d.int_gauges("berth_status_writes_pending", "Status writes that wait or are under way.", &["kind"])?,
            went_stale: d.counter("berth_pods_went_stale_total", "Pods whose heartbeat grew too old.")?,
            filter_rejections: d.counters(
                "kruntimes_scheduler_filter_rejections_total",
                "Pods that rejected a Run, as told in its waiting message.",
                &["plugin", "reason"],
            )?,
            reservation_conflicts: d.counters("kruntimes_scheduler_reservation_conflicts_total", "Placements refused late.", &["stage"])?,
            pending_run_wakeups: d.counters("kruntimes_scheduler_pending_run_wakeups_total", "Waiting Runs tried again, by source.", &["source"])?,
            rest_requests: d.counters("rest_client_requests_total", "Requests to the API server.", &["code", "method"])?,
            rest_duration: d.histograms(
                "rest_client_request_duration_seconds",
                "From request to the headers of the answer.",
                &["verb"],
                vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0],
            )?,
            informer_objects: d.int_gauges("berth_informer_objects", "Objects in the informer's store.", &["informer"])?,
            informer_synced: d.int_gauges("berth_informer_synced", "1 once the first list is complete.", &["informer"])?,
            informer_errors: d.counters("berth_informer_errors_total", "Failed lists and broken watches.", &["informer"])?,
            informer_lists: d.counters("berth_informer_lists_total", "Complete lists.", &["informer"])?,
            informer_failing: d.gauges("berth_informer_failing_seconds", "How long list and watch have been failing.", &["informer"])?,
            events: d.counters("berth_events_total", "Kubernetes Events by what became of them.", &["outcome"])?,
            queues,
            told: Mutex::default(),
            registry: registry.clone(),
        };
        process(&registry)?;
        metrics.closed_sets();
        Ok(metrics)
    }

    /// Every series of a closed set exists from the start, so that a rate never begins with a jump.
    fn closed_sets(&self) {
        for cause in WakeCause::ALL {
            self.wakeups.with_label_values(&[cause.as_str()]);
        }
        for stage in ["reserve", "bind"] {
            self.reservation_conflicts.with_label_values(&[stage]);
        }
        for source in ["runtime_pod", "capacity_released"] {
            self.pending_run_wakeups.with_label_values(&[source]);
        }
        for queue in ["active", "backoff", "unschedulable"] {
            self.pending.with_label_values(&[queue]);
        }
    }

    /// Where parts with metrics of their own define them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The text format.
    ///
    /// # Errors
    /// What the encoder says.
    pub fn encode(&self) -> Made<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// The profiles in force from now on: their series exist before anything happens.
    pub fn profiles_are(&self, profiles: &Profiles) {
        for profile in profiles.iter() {
            for result in ["scheduled", "unschedulable", "error"] {
                self.schedule_attempts.with_label_values(&[result, &profile.name]);
            }
        }
        for shadow in profiles.shadows() {
            for result in ["agree", "disagree"] {
                self.shadows.with_label_values(&[shadow.profile.name.as_str(), result]);
            }
        }
    }

    /// A configuration is in force.
    pub fn config_applied(&self, generation: i64) {
        self.config_valid.set(1);
        self.config_generation.set(generation);
    }

    /// A configuration was refused.
    pub fn config_refused(&self) {
        self.config_valid.set(0);
    }

    /// Takes in numbers that are counted elsewhere.
    ///
    /// # Errors
    /// One of that name is there already.
    pub fn register(&self, collector: impl Collector + 'static) -> Made<()> {
        self.registry.register(Box::new(collector))
    }

    // ---- the owner -------------------------------------------------------------------------------

    /// Takes over what the core counted since the last call, and its gauges.
    pub fn core(&self, stats: &Stats, queue: QueueLengths, counts: Counts, writes: (usize, usize)) {
        let mut told = lock(&self.told);
        for (index, cause) in WakeCause::ALL.into_iter().enumerate() {
            let new = stats.wakeups[index] - told.wakeups[index];
            if new == 0 {
                continue;
            }
            told.wakeups[index] = stats.wakeups[index];
            self.wakeups.with_label_values(&[cause.as_str()]).inc_by(new);
            self.incoming.with_label_values(&["active", cause.as_str()]).inc_by(new);
            if let Some(source) = source_of(cause) {
                self.pending_run_wakeups.with_label_values(&[source]).inc_by(new);
            }
        }
        for (&(plugin, reason), &pods) in &stats.rejections {
            let before = told.rejections.insert((plugin, reason), pods).unwrap_or(0);
            if pods > before {
                self.filter_rejections.with_label_values(&[plugin, reason]).inc_by(pods - before);
            }
        }
        let mut since = |of: fn(&mut Stats) -> &mut u64, now: u64| {
            let before = std::mem::replace(of(&mut told), now);
            now - before
        };
        self.reservation_conflicts.with_label_values(&["reserve"]).inc_by(since(|s| &mut s.reserve_conflicts, stats.reserve_conflicts));
        self.reservation_conflicts.with_label_values(&["bind"]).inc_by(since(|s| &mut s.bind_conflicts, stats.bind_conflicts));
        self.after_flush.inc_by(since(|s| &mut s.placed_after_flush, stats.placed_after_flush));
        self.went_stale.inc_by(since(|s| &mut s.went_stale, stats.went_stale));
        for (name, value) in [("active", queue.active), ("backoff", queue.backoff), ("unschedulable", queue.waiting)] {
            set(&self.pending.with_label_values(&[name]), value);
        }
        for (name, value) in [("nodes", counts.pods), ("pods", counts.active), ("assumed_pods", counts.assumed)] {
            set(&self.cache_size.with_label_values(&[name]), value);
        }
        for (name, value) in [("urgent", writes.0), ("waiting", writes.1)] {
            set(&self.writes_pending.with_label_values(&[name]), value);
        }
    }

    /// An attempt of the core. A placement counts when its write has ended ([`Metrics::bound`], [`Metrics::bind_failed`]).
    pub fn attempted(&self, attempt: &Attempt, profile: &str, took: Duration) {
        for shadow in &attempt.shadows {
            self.shadows.with_label_values(&[shadow.profile.as_str(), if shadow.agrees { "agree" } else { "disagree" }]).inc();
        }
        if attempt.attempts == 1 {
            self.incoming.with_label_values(&["active", "UnscheduledPodAdd"]).inc();
        }
        let (result, queue) = match &attempt.result {
            AttemptResult::Placed { .. } | AttemptResult::Terminates { .. } => return,
            AttemptResult::Waits { .. } => ("unschedulable", "unschedulable"),
            AttemptResult::Refused { .. } => ("error", "backoff"),
            AttemptResult::Held => return self.incoming.with_label_values(&["backoff", "ScheduleAttemptFailure"]).inc(),
        };
        self.incoming.with_label_values(&[queue, "ScheduleAttemptFailure"]).inc();
        self.attempt(result, profile, took);
    }

    fn attempt(&self, result: &str, profile: &str, took: Duration) {
        self.schedule_attempts.with_label_values(&[result, profile]).inc();
        self.attempt_duration.with_label_values(&[result, profile]).observe(took.as_secs_f64());
    }

    /// The stages of one attempt: until the decision, and in all.
    pub fn cycle(&self, decided: Duration, all: Duration) {
        self.algorithm_duration.observe(decided.as_secs_f64());
        self.cycle_duration.observe(all.as_secs_f64());
    }

    // ---- the dispatcher --------------------------------------------------------------------------

    /// A placement is stored, `waited` after its decision and `latency` after the Run was first queued.
    pub fn bound(&self, profile: &str, waited: Duration, latency: Duration, attempts: u32) {
        self.attempt("scheduled", profile, waited);
        self.bind_duration.observe(waited.as_secs_f64());
        self.attempts_per_run.observe(f64::from(attempts));
        let attempts = if attempts > 14 { "15+".to_owned() } else { attempts.to_string() };
        self.sli_duration.with_label_values(&[&attempts]).observe(latency.as_secs_f64());
    }

    /// A placement was not stored.
    pub fn bind_failed(&self, profile: &str, outcome: &WriteOutcome, waited: Duration) {
        if *outcome != WriteOutcome::Gone {
            self.attempt("error", profile, waited);
        }
        self.bind_duration.observe(waited.as_secs_f64());
        self.incoming.with_label_values(&["backoff", "ScheduleAttemptFailure"]).inc();
    }

    /// A status write has ended.
    pub fn written(&self, kind: &str, outcome: &str) {
        self.writes.with_label_values(&[kind, outcome]).inc();
    }

    // ---- at a scrape -----------------------------------------------------------------------------

    /// The numbers of an informer.
    pub fn informer(&self, name: &str, stats: &InformerStats) {
        let labels = &[name];
        set(&self.informer_objects.with_label_values(labels), stats.objects);
        set(&self.informer_synced.with_label_values(labels), usize::from(stats.synced));
        catch_up(&self.informer_errors.with_label_values(labels), stats.errors);
        catch_up(&self.informer_lists.with_label_values(labels), stats.lists);
        self.informer_failing.with_label_values(labels).set(stats.failing_for.unwrap_or_default().as_secs_f64());
    }

    /// The numbers of a reconciler's queue.
    pub fn workqueue(&self, name: &str, stats: &QueueStats) {
        let labels = &[name];
        set(&self.queues.depth.with_label_values(labels), stats.depth);
        catch_up(&self.queues.adds.with_label_values(labels), stats.adds);
        catch_up(&self.queues.retries.with_label_values(labels), stats.retries);
        self.queues.unfinished.with_label_values(labels).set(stats.unfinished.as_secs_f64());
        self.queues.longest.with_label_values(labels).set(stats.longest_running.as_secs_f64());
    }

    /// What became of Kubernetes Events, so far.
    pub fn events(&self, written: u64, dropped: u64, failed: u64) {
        for (outcome, total) in [("written", written), ("dropped", dropped), ("failed", failed)] {
            catch_up(&self.events.with_label_values(&[outcome]), total);
        }
    }
}

impl CallObserver for Metrics {
    fn called(&self, call: &Call<'_>) {
        let method = match call.verb {
            Verb::Get | Verb::List | Verb::Watch => "GET",
            Verb::Create => "POST",
            Verb::Update => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete | Verb::DeleteCollection => "DELETE",
        };
        let code = match call.outcome {
            Outcome::Status(code) => code.to_string(),
            // client-go's word for no answer.
            Outcome::Error | Outcome::Cancelled => "<error>".to_owned(),
        };
        self.rest_requests.with_label_values(&[&code, method]).inc();
        self.rest_duration.with_label_values(&[method]).observe(call.duration.as_secs_f64());
    }
}

impl QueueObserver for Metrics {
    fn taken(&self, queue: &'static str, waited: Duration) {
        self.queues.waited.with_label_values(&[queue]).observe(waited.as_secs_f64());
    }
    fn finished(&self, queue: &'static str, worked: Duration) {
        self.queues.worked.with_label_values(&[queue]).observe(worked.as_secs_f64());
    }
}

/// The neighbour's two sources (reference kruntimes §8); causes it does not know have none.
fn source_of(cause: WakeCause) -> Option<&'static str> {
    match cause {
        WakeCause::PodReady | WakeCause::HeartbeatReturned | WakeCause::CapacityRaised | WakeCause::PodDeletedOrRelabelled => Some("runtime_pod"),
        WakeCause::RunEnded | WakeCause::RunDeleted => Some("capacity_released"),
        _ => None,
    }
}

fn set(gauge: &IntGauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Raises a counter to a total that is counted elsewhere. Scrapes may overlap; each adds at most what is missing.
fn catch_up(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// process_* and the build.
fn process(registry: &Registry) -> Made<()> {
    #[cfg(target_os = "linux")]
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    let info = Gauge::with_opts(Opts::new("berth_build_info", "1, with the version.").const_label("version", env!("CARGO_PKG_VERSION")))?;
    info.set(1.0);
    registry.register(Box::new(info))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn every_series_of_a_closed_set_is_there_from_the_start() {
        let text = String::from_utf8(Metrics::new().unwrap().encode().unwrap()).unwrap();
        for cause in WakeCause::ALL {
            assert!(text.contains(&format!("berth_wakeups_total{{cause=\"{}\"}} 0", cause.as_str())), "{text}");
        }
        assert!(text.contains("scheduler_pod_scheduled_after_flush_total 0"));
        assert!(text.contains("process_cpu_seconds_total"));
    }

    #[test]
    fn the_core_is_told_once() {
        let metrics = Metrics::new().unwrap();
        let mut stats = Stats { bind_conflicts: 2, ..Stats::default() };
        stats.wakeups[WakeCause::RunEnded as usize] = 3;
        stats.rejections.insert(("Capacity", "InsufficientCapacity"), 5);
        for _ in 0..2 {
            metrics.core(&stats, QueueLengths { active: 1, backoff: 2, waiting: 3 }, Counts::default(), (0, 0));
        }
        let text = String::from_utf8(metrics.encode().unwrap()).unwrap();
        for line in [
            "berth_wakeups_total{cause=\"run_ended\"} 3",
            "kruntimes_scheduler_pending_run_wakeups_total{source=\"capacity_released\"} 3",
            "kruntimes_scheduler_reservation_conflicts_total{stage=\"bind\"} 2",
            "kruntimes_scheduler_filter_rejections_total{plugin=\"Capacity\",reason=\"InsufficientCapacity\"} 5",
            "scheduler_pending_pods{queue=\"unschedulable\"} 3",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
