//! Defines metrics in a registry, and remembers what each is, for its documentation.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::proto::MetricType;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, exponential_buckets,
};

use super::histogram::{Export, Histograms};

/// What can be wrong with a definition: a mistake in the code that makes it.
pub type Made<T> = Result<T, prometheus::Error>;

/// One metric, as it is documented.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// Its name, without the suffixes of a histogram's series.
    pub name: String,
    /// counter, gauge or histogram.
    pub kind: &'static str,
    /// Names of its labels.
    pub labels: Vec<String>,
    /// What it says.
    pub help: String,
    /// Upper bounds of a histogram's buckets.
    pub buckets: Vec<f64>,
}

/// See the module.
#[derive(Default)]
pub struct Define {
    /// Where everything is registered.
    pub registry: Registry,
    /// Everything, in order of definition.
    pub described: Vec<Described>,
}

/// `count` bounds in seconds from `start`, each `factor` times the one before: kube-scheduler's way to write buckets.
///
/// # Errors
/// Bounds that do not grow.
pub fn exp(start: f64, factor: f64, count: usize) -> Made<Vec<f64>> {
    exponential_buckets(start, factor, count)
}

impl Define {
    /// Takes in what is defined elsewhere.
    ///
    /// # Errors
    /// One of that name is there already.
    pub fn register(&mut self, collector: Box<dyn Collector>) -> Made<()> {
        self.describe(&*collector, |_| &[]);
        self.registry.register(collector)
    }

    fn describe<'b>(&mut self, collector: &dyn Collector, buckets: impl Fn(&str) -> &'b [f64]) {
        let kinds: BTreeMap<String, &'static str> =
            collector.collect().iter().map(|family| (family.name().to_owned(), kind(family.get_field_type()))).collect();
        for desc in collector.desc() {
            let mut labels = desc.variable_labels.clone();
            labels.extend(desc.const_label_pairs.iter().map(|pair| pair.name().to_owned()));
            self.described.push(Described {
                name: desc.fq_name.clone(),
                kind: kinds.get(&desc.fq_name).copied().unwrap_or_default(),
                labels,
                help: desc.help.clone(),
                buckets: buckets(&desc.fq_name).to_vec(),
            });
        }
    }

    fn add<C: Collector + Clone + 'static>(&mut self, made: Made<C>, buckets: &[f64]) -> Made<C> {
        let collector = made?;
        self.describe(&collector, |_| buckets);
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub fn counter(&mut self, name: &str, help: &str) -> Made<IntCounter> {
        self.add(IntCounter::new(name, help), &[])
    }
    pub fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> Made<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels), &[])
    }
    /// Counters of what need not be whole.
    pub fn sums(&mut self, name: &str, help: &str, labels: &[&str]) -> Made<CounterVec> {
        self.add(CounterVec::new(Opts::new(name, help), labels), &[])
    }
    pub fn gauge(&mut self, name: &str, help: &str) -> Made<IntGauge> {
        self.add(IntGauge::new(name, help), &[])
    }
    pub fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> Made<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels), &[])
    }
    /// Gauges of seconds.
    pub fn seconds(&mut self, name: &str, help: &str, labels: &[&str]) -> Made<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), labels), &[])
    }
    pub fn histogram(&mut self, name: &str, help: &str, buckets: Vec<f64>) -> Made<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.clone())), &buckets)
    }
    pub fn histograms(&mut self, name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> Made<HistogramVec> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.clone()), labels), &buckets)
    }

    /// Histograms for the core's own thread; see [`Histograms`].
    pub fn quick(&mut self, labels: &[&'static str], exports: Vec<Export>) -> Made<Histograms> {
        let histograms = Histograms::new(labels, exports)?;
        self.describe(&histograms, |name| histograms.buckets(name));
        self.registry.register(Box::new(histograms.clone()))?;
        Ok(histograms)
    }

    /// process_* and the build.
    pub fn process(&mut self) -> Made<()> {
        #[cfg(target_os = "linux")]
        self.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let info = Gauge::with_opts(Opts::new("berth_build_info", "Always 1; the version is a label.").const_label("version", env!("CARGO_PKG_VERSION")))?;
        info.set(1.0);
        self.register(Box::new(info))
    }
}

fn kind(kind: MetricType) -> &'static str {
    match kind {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    }
}
