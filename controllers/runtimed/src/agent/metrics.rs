//! The agent's metrics, under the neighbour's names (reference kruntimes §8). No label comes from a user.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_runtime::apiclient::{Call, CallObserver, Outcome};
use prometheus::{Encoder, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

/// All of them.
pub struct Metrics {
    registry: Registry,
    active: IntGauge,
    ended: IntCounterVec,
    retries: IntCounter,
    failures: IntCounterVec,
    duration: HistogramVec,
    requests: IntCounterVec,
    heartbeat_failures: IntCounter,
    last_beat_s: AtomicI64,
}

impl Metrics {
    /// None counted yet.
    ///
    /// # Errors
    /// Two have one name.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let vector = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let ended = vector("kruntimes_runtimed_runs_total", "Runs that ended here, by phase", &["result"])?;
        let failures = vector("kruntimes_runtimed_run_failures_total", "Attempts that failed here, by reason", &["reason"])?;
        let requests = vector("rest_client_requests_total", "Requests to the API server", &["code", "method"])?;
        let retries = IntCounter::new("kruntimes_runtimed_run_retries_total", "Attempts that were repeated in place")?;
        let heartbeat_failures = IntCounter::new("kruntimes_runtimed_heartbeat_failures_total", "Heartbeats that were not written")?;
        let active = IntGauge::new("kruntimes_runtimed_active_runs", "Attempts on this Pod")?;
        let buckets = vec![0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0];
        let options = prometheus::HistogramOpts::new("kruntimes_runtimed_run_duration_seconds", "From claim to end").buckets(buckets);
        let duration = HistogramVec::new(options, &["result"])?;
        registry.register(Box::new(retries.clone()))?;
        registry.register(Box::new(heartbeat_failures.clone()))?;
        registry.register(Box::new(active.clone()))?;
        registry.register(Box::new(duration.clone()))?;
        Ok(Self { registry, active, ended, retries, failures, duration, requests, heartbeat_failures, last_beat_s: AtomicI64::new(0) })
    }

    /// How many attempts are here.
    pub fn set_active(&self, active: usize) {
        self.active.set(i64::try_from(active).unwrap_or(i64::MAX));
    }

    /// A Run has ended; `phase` is one of the terminal phases.
    pub fn run_ended(&self, phase: &str, after: Duration) {
        self.ended.with_label_values(&[phase]).inc();
        self.duration.with_label_values(&[phase]).observe(after.as_secs_f64());
    }

    /// An attempt has failed; `reason` is one of the API's.
    pub fn attempt_failed(&self, reason: &'static str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    /// An attempt is repeated.
    pub fn retried(&self) {
        self.retries.inc();
    }

    /// A heartbeat was not written.
    pub fn heartbeat_failed(&self) {
        self.heartbeat_failures.inc();
    }

    /// A heartbeat was written.
    pub fn heartbeat_sent(&self) {
        self.last_beat_s.store(now_s(), Ordering::Relaxed);
    }

    /// Whether a heartbeat was written within that time.
    pub fn has_beaten_within(&self, limit: Duration) -> bool {
        now_s() - self.last_beat_s.load(Ordering::Relaxed) <= i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
    }

    /// In the text format.
    pub fn text(&self) -> String {
        let mut buffer = Vec::new();
        // Writing to memory fails only for a metric without a series, which Prometheus leaves out.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut buffer);
        String::from_utf8_lossy(&buffer).into_owned()
    }
}

impl CallObserver for Metrics {
    fn called(&self, call: &Call<'_>) {
        let code = match call.outcome {
            Outcome::Status(code) => code.to_string(),
            Outcome::Error => "<error>".to_owned(),
            Outcome::Cancelled => "<cancelled>".to_owned(),
        };
        self.requests.with_label_values(&[code.as_str(), call.verb.as_str()]).inc();
    }
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
