//! The metrics of `berth serve`, all in one registry; kube-scheduler's and client-go's names, labels and buckets where the meaning is the same
//! (reference kube-scheduler §2). Every label value comes from a closed set or from the configuration: plugins, reasons, causes, profiles.
//!
//! ```text
//! core ── laps ─► cycle::Recorder ─► Cycles      owner ── attempts, turns ─► Attempts, CoreMetrics      dispatcher, client ─► Attempts, Client
//! ```

pub mod attempts;
pub mod client;
pub mod core;
pub mod cycle;
mod define;
mod histogram;
pub mod jobs;
pub mod reference;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_framework::profile::Profiles;
use berth_runtime::apiclient::{Call, CallObserver};
use berth_runtime::lock;
use berth_runtime::workqueue::QueueObserver;
use prometheus::core::Collector;
use prometheus::{Encoder as _, IntCounter, IntGauge, TextEncoder};

use self::attempts::Attempts;
use self::client::Client;
use self::core::CoreMetrics;
use self::cycle::Cycles;
use self::define::{Define, Described, Made};

/// Everything that is measured. Registered once, at the start.
pub struct Metrics {
    define: Mutex<Define>,
    /// Stages and plugins.
    pub cycles: Arc<Cycles>,
    /// Attempts and placements.
    pub attempts: Attempts,
    /// Queue and cache.
    pub core: CoreMetrics,
    /// The API server.
    pub client: Client,
    /// Jobs.
    pub jobs: Arc<jobs::Jobs>,
    config_valid: IntGauge,
    config_generation: IntGauge,
}

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// A name or label that Prometheus refuses, or two of one name: a mistake in the code.
    pub fn new() -> Made<Self> {
        let mut d = Define::default();
        let cycles = Arc::new(Cycles::new(&mut d)?);
        let metrics = Self {
            attempts: Attempts::new(&mut d, cycles.clone())?,
            cycles,
            core: CoreMetrics::new(&mut d)?,
            client: Client::new(&mut d)?,
            jobs: Arc::new(jobs::Jobs::new(&mut d)?),
            config_valid: d.gauge(
                "berth_config_valid",
                "1 if the configuration as it is now can be used; 0: it was refused, deleted or can't be read, and the last good one is in force.",
            )?,
            config_generation: d.gauge(
                "berth_config_applied_generation",
                "Which configuration is in force: the ConfigMap's resource version, or how many texts of the file have been.",
            )?,
            define: Mutex::default(),
        };
        d.process()?;
        *lock(&metrics.define) = d;
        Ok(metrics)
    }

    /// Takes in numbers that are counted elsewhere.
    ///
    /// # Errors
    /// One of that name is there already.
    pub fn register(&self, collector: impl Collector + 'static) -> Made<()> {
        lock(&self.define).register(Box::new(collector))
    }

    /// The text format.
    ///
    /// # Errors
    /// What the encoder says.
    pub fn encode(&self) -> Made<Vec<u8>> {
        let registry = lock(&self.define).registry.clone();
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text)?;
        Ok(text)
    }

    /// What each metric is, by name.
    pub fn described(&self) -> Vec<Described> {
        let mut described = lock(&self.define).described.clone();
        described.sort_by(|a, b| a.name.cmp(&b.name));
        described
    }

    /// The profiles in force from now on: their series exist before anything happens, those of others are forgotten.
    pub fn profiles_are(&self, profiles: &Profiles) {
        self.cycles.profiles_are(profiles);
        self.attempts.profiles_are(profiles);
        self.core.profiles_changed();
    }

    /// A configuration is in force.
    pub fn config_applied(&self, generation: i64) {
        self.config_valid.set(1);
        self.config_generation.set(generation);
    }

    /// The configuration as it is now can't be used.
    pub fn config_refused(&self) {
        self.config_valid.set(0);
    }
}

impl CallObserver for Metrics {
    fn called(&self, call: &Call<'_>) {
        self.client.called(call);
    }
}

impl QueueObserver for Metrics {
    fn taken(&self, queue: &'static str, waited: Duration) {
        self.client.taken(queue, waited);
    }
    fn finished(&self, queue: &'static str, worked: Duration) {
        self.client.finished(queue, worked);
    }
}

/// Raises a counter to a total that is counted elsewhere. One scrape at a time: two that overlap must not both add what is missing.
pub fn catch_up(counter: &IntCounter, total: u64) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = lock(&ONE_AT_A_TIME);
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn set(gauge: &IntGauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
