//! Histograms for the core's own thread: two relaxed additions per observation, and one observation may fill two metrics.
//!
//! kube-scheduler's buckets begin where an attempt of ours has long ended, so each of its metrics has a twin with finer ones. The crate's
//! own histogram takes four locked operations and a loop for one metric; of some fifty observations an attempt, that alone is above 1 µs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::define::Made;
use berth_runtime::lock;

/// A metric that is filled.
pub struct Export {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Those of the series' labels that it has; over the others it sums.
    pub labels: &'static [&'static str],
    /// Upper bounds of its buckets, seconds, growing.
    pub buckets: Vec<f64>,
}

/// See the module. Clones share the series.
#[derive(Clone)]
pub struct Histograms {
    shared: Arc<Shared>,
}

struct Shared {
    exports: Vec<Exported>,
    /// The bounds of all exports, nanoseconds.
    bounds_ns: Arc<[u64]>,
    series: Mutex<BTreeMap<Vec<String>, Arc<Series>>>,
}

struct Exported {
    desc: Desc,
    /// Which of the series' labels it has.
    kept: Vec<usize>,
    buckets: Vec<f64>,
}

/// One combination of label values.
#[derive(Debug)]
pub struct Series {
    bounds_ns: Arc<[u64]>,
    /// One more than there are bounds; not cumulative.
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Series {
    /// Counts a duration.
    pub fn observe(&self, took: Duration) {
        self.observe_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a duration in nanoseconds.
    pub fn observe_ns(&self, ns: u64) {
        // From the front: nearly everything is short.
        let at = self.bounds_ns.iter().position(|bound| ns <= *bound).unwrap_or(self.bounds_ns.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// The longest whole nanoseconds that a bound in seconds lets through.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounds are some seconds at most")]
fn ns_of(bound_s: f64) -> u64 {
    // A bound such as 1e-5 is not exact in binary: a picosecond more makes up for it.
    (bound_s * 1e9 + 1e-3).floor() as u64
}

impl Histograms {
    /// Histograms with these labels and no series yet.
    ///
    /// # Errors
    /// A name that Prometheus refuses.
    pub fn new(labels: &[&'static str], exports: Vec<Export>) -> Made<Self> {
        let mut bounds: Vec<u64> = exports.iter().flat_map(|export| export.buckets.iter().copied().map(ns_of)).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let exported = |export: Export| {
            let names = export.labels.iter().map(|name| (*name).to_owned()).collect();
            let desc = Desc::new(export.name.to_owned(), export.help.to_owned(), names, std::collections::HashMap::new())?;
            let place = |name: &&str| labels.iter().position(|label| label == name);
            Ok(Exported { desc, kept: export.labels.iter().filter_map(place).collect(), buckets: export.buckets })
        };
        let exports = exports.into_iter().map(exported).collect::<Made<Vec<_>>>()?;
        Ok(Self { shared: Arc::new(Shared { exports, bounds_ns: bounds.into(), series: Mutex::default() }) })
    }

    /// The series of these label values; it exists from now on.
    pub fn of(&self, values: &[&str]) -> Arc<Series> {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let bounds_ns = &self.shared.bounds_ns;
        let new = || Series { bounds_ns: bounds_ns.clone(), counts: (0..=bounds_ns.len()).map(|_| AtomicU64::new(0)).collect(), sum_ns: AtomicU64::new(0) };
        lock(&self.shared.series).entry(values).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Forgets series by their label values.
    pub fn retain(&self, keep: impl Fn(&[String]) -> bool) {
        lock(&self.shared.series).retain(|values, _| keep(values));
    }

    /// Upper bounds of a metric's buckets.
    pub fn buckets(&self, name: &str) -> &[f64] {
        self.shared.exports.iter().find(|export| export.desc.fq_name == name).map_or(&[], |export| &export.buckets)
    }

    fn family(&self, export: &Exported) -> MetricFamily {
        // By the labels that the metric has: counts by bound, and the sum.
        let mut rows: BTreeMap<Vec<String>, (Vec<u64>, u64)> = BTreeMap::new();
        for (values, series) in lock(&self.shared.series).iter() {
            let kept = export.kept.iter().map(|at| values[*at].clone()).collect();
            let (counts, sum_ns) = rows.entry(kept).or_insert_with(|| (vec![0; series.counts.len()], 0));
            for (count, more) in counts.iter_mut().zip(&series.counts) {
                *count += more.load(Ordering::Relaxed);
            }
            *sum_ns += series.sum_ns.load(Ordering::Relaxed);
        }
        let mut family = MetricFamily::default();
        family.set_name(export.desc.fq_name.clone());
        family.set_help(export.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(rows.into_iter().map(|(values, (counts, sum_ns))| self.metric(export, values, &counts, sum_ns)).collect());
        family
    }

    fn metric(&self, export: &Exported, values: Vec<String>, counts: &[u64], sum_ns: u64) -> Metric {
        let bucket = |bound: &f64| {
            let reached = self.shared.bounds_ns.partition_point(|ns| *ns <= ns_of(*bound));
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(counts[..reached].iter().sum());
            bucket
        };
        let pair = |(name, value): (&String, String)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value);
            pair
        };
        let mut histogram = Histogram::default();
        histogram.set_bucket(export.buckets.iter().map(bucket).collect());
        histogram.set_sample_count(counts.iter().sum());
        histogram.set_sample_sum(Duration::from_nanos(sum_ns).as_secs_f64());
        let mut metric = Metric::from_label(export.desc.variable_labels.iter().zip(values).map(pair).collect());
        metric.set_histogram(histogram);
        metric
    }
}

impl Collector for Histograms {
    fn desc(&self) -> Vec<&Desc> {
        self.shared.exports.iter().map(|export| &export.desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.shared.exports.iter().map(|export| self.family(export)).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use prometheus::{Encoder as _, HistogramOpts, HistogramVec, Registry, TextEncoder, exponential_buckets};

    fn text(collector: Box<dyn Collector>) -> String {
        let registry = Registry::new();
        registry.register(collector).unwrap();
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn it_says_what_the_crate_s_own_would_say() {
        let buckets = exponential_buckets(0.00001, 1.5, 20).unwrap();
        let export = Export { name: "x_seconds", help: "X.", labels: &["plugin", "status"], buckets: buckets.clone() };
        let ours = Histograms::new(&["plugin", "status"], vec![export]).unwrap();
        let theirs = HistogramVec::new(HistogramOpts::new("x_seconds", "X.").buckets(buckets.clone()), &["plugin", "status"]).unwrap();
        // Whole microseconds up to beyond the last bound, and every bound itself.
        let edges = buckets.iter().map(|bound| ns_of(*bound));
        for ns in (0..30_000_u64).map(|us| us * 1_000).chain(edges) {
            let took = Duration::from_nanos(ns);
            ours.of(&["P", "Success"]).observe(took);
            theirs.with_label_values(&["P", "Success"]).observe(took.as_secs_f64());
        }
        let rows = |text: String| text.lines().filter(|line| !line.contains("_sum")).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(rows(text(Box::new(ours))), rows(text(Box::new(theirs))));
    }

    #[test]
    fn one_observation_fills_both_metrics_and_the_second_sums_over_what_it_leaves_out() {
        let exports = vec![
            Export { name: "coarse_seconds", help: "C.", labels: &["a", "b"], buckets: vec![0.001, 0.01] },
            Export { name: "fine_seconds", help: "F.", labels: &["a"], buckets: vec![0.000_001, 0.000_01] },
        ];
        let histograms = Histograms::new(&["a", "b"], exports).unwrap();
        histograms.of(&["1", "x"]).observe(Duration::from_nanos(1_000));
        histograms.of(&["1", "y"]).observe(Duration::from_micros(5));
        histograms.of(&["1", "y"]).observe(Duration::from_secs(1));
        histograms.of(&["gone", "y"]).observe(Duration::from_secs(1));
        histograms.retain(|values| values[0] != "gone");
        let text = text(Box::new(histograms));
        for line in [
            r#"coarse_seconds_bucket{a="1",b="x",le="0.001"} 1"#,
            r#"coarse_seconds_bucket{a="1",b="y",le="0.01"} 1"#,
            r#"coarse_seconds_count{a="1",b="y"} 2"#,
            r#"fine_seconds_bucket{a="1",le="0.000001"} 1"#,
            r#"fine_seconds_bucket{a="1",le="0.00001"} 2"#,
            r#"fine_seconds_bucket{a="1",le="+Inf"} 3"#,
            r#"fine_seconds_sum{a="1"} 1.000006"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains("gone"), "{text}");
    }
}
