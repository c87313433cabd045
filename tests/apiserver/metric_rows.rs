//! The metrics that an operator's dashboards rely on: name, type, labels, buckets. Berth and a real kube-scheduler are held to the same rows.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};

/// One metric.
pub struct Row {
    pub name: &'static str,
    pub kind: &'static str,
    /// Sorted.
    pub labels: &'static [&'static str],
    /// First bound, factor, number; or the bounds.
    pub buckets: Buckets,
}

#[derive(Clone, Copy)]
pub enum Buckets {
    None,
    Exponential(f64, f64, usize),
    These(&'static [f64]),
}

use Buckets::{Exponential, None as No, These};

const REST: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

const fn row(name: &'static str, kind: &'static str, labels: &'static [&'static str], buckets: Buckets) -> Row {
    Row { name, kind, labels, buckets }
}

/// Those of kube-scheduler (reference kube-scheduler §2) and of every Kubernetes component.
pub const KUBE: &[Row] = &[
    row("scheduler_schedule_attempts_total", "counter", &["profile", "result"], No),
    row("scheduler_scheduling_attempt_duration_seconds", "histogram", &["profile", "result"], Exponential(0.001, 2.0, 15)),
    row("scheduler_scheduling_algorithm_duration_seconds", "histogram", &[], Exponential(0.001, 2.0, 15)),
    row("scheduler_pod_scheduling_sli_duration_seconds", "histogram", &["attempts"], Exponential(0.01, 2.0, 20)),
    row("scheduler_pod_scheduling_attempts", "histogram", &[], Exponential(1.0, 2.0, 5)),
    row("scheduler_framework_extension_point_duration_seconds", "histogram", &["extension_point", "profile", "status"], Exponential(0.0001, 2.0, 12)),
    row("scheduler_plugin_execution_duration_seconds", "histogram", &["extension_point", "plugin", "status"], Exponential(0.000_01, 1.5, 20)),
    row("scheduler_plugin_evaluation_total", "counter", &["extension_point", "plugin", "profile"], No),
    row("scheduler_pending_pods", "gauge", &["queue"], No),
    row("scheduler_queue_incoming_pods_total", "counter", &["event", "queue"], No),
    row("scheduler_unschedulable_pods", "gauge", &["plugin", "profile"], No),
    row("scheduler_cache_size", "gauge", &["type"], No),
    row("scheduler_event_handling_duration_seconds", "histogram", &["event"], Exponential(0.0001, 2.0, 12)),
    row("scheduler_queueing_hint_execution_duration_seconds", "histogram", &["event", "hint", "plugin"], Exponential(0.000_01, 1.5, 20)),
    row("scheduler_pod_scheduled_after_flush_total", "counter", &[], No),
    row("rest_client_requests_total", "counter", &["code", "host", "method"], No),
    row("rest_client_request_duration_seconds", "histogram", &["host", "verb"], These(REST)),
    row("workqueue_depth", "gauge", &["name"], No),
    row("workqueue_adds_total", "counter", &["name"], No),
    row("workqueue_retries_total", "counter", &["name"], No),
    row("workqueue_unfinished_work_seconds", "gauge", &["name"], No),
    row("workqueue_longest_running_processor_seconds", "gauge", &["name"], No),
    row("workqueue_queue_duration_seconds", "histogram", &["name"], Exponential(10e-9, 10.0, 10)),
    row("workqueue_work_duration_seconds", "histogram", &["name"], Exponential(10e-9, 10.0, 10)),
    row("leader_election_master_status", "gauge", &["name"], No),
    row("process_cpu_seconds_total", "counter", &[], No),
    row("process_resident_memory_bytes", "gauge", &[], No),
    row("process_virtual_memory_bytes", "gauge", &[], No),
    row("process_start_time_seconds", "gauge", &[], No),
    row("process_open_fds", "gauge", &[], No),
    row("process_max_fds", "gauge", &[], No),
];

/// Those of the neighbour's scheduler (reference kruntimes §8).
pub const KRUNTIMES: &[Row] = &[
    row("kruntimes_scheduler_filter_rejections_total", "counter", &["plugin", "reason"], No),
    row("kruntimes_scheduler_reservation_conflicts_total", "counter", &["stage"], No),
    row("kruntimes_scheduler_pending_run_wakeups_total", "counter", &["source"], No),
];

/// A metric as a scrape tells it.
#[derive(Debug, Default)]
struct Told {
    kind: String,
    labels: BTreeSet<String>,
    buckets: BTreeSet<String>,
}

/// Families of the text format, by name.
fn families(text: &str) -> Result<BTreeMap<String, Told>> {
    let mut families: BTreeMap<String, Told> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').context("a TYPE without a type")?;
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') && !line.is_empty() {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let family = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end)).find(|base| families.contains_key(*base));
            let told = families.get_mut(family.unwrap_or(name)).with_context(|| format!("a series of no family: {line}"))?;
            // Label values of both schedulers hold neither quotes nor commas.
            let labels = line.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').map_or("", |(labels, _)| labels));
            for (label, value) in labels.split(',').filter_map(|pair| pair.split_once('=')) {
                if label == "le" {
                    told.buckets.insert(value.trim_matches('"').to_owned());
                } else {
                    told.labels.insert(label.to_owned());
                }
            }
        }
    }
    Ok(families)
}

/// Every row is in the scrape, and is there as the row says.
pub fn check(rows: &[Row], text: &str) -> Result<()> {
    let families = families(text)?;
    let mut wrong = Vec::new();
    for row in rows {
        let Some(told) = families.get(row.name) else {
            wrong.push(format!("{} is missing", row.name));
            continue;
        };
        let labels: Vec<&str> = told.labels.iter().map(String::as_str).collect();
        if told.kind != row.kind || labels != row.labels {
            wrong.push(format!("{}: {} {labels:?}, not {} {:?}", row.name, told.kind, row.kind, row.labels));
        }
        let mut bounds: Vec<f64> = told.buckets.iter().filter(|bound| *bound != "+Inf").map(|bound| bound.parse()).collect::<Result<_, _>>()?;
        bounds.sort_by(f64::total_cmp);
        let expected = match row.buckets {
            No => Vec::new(),
            These(bounds) => bounds.to_vec(),
            Exponential(first, factor, count) => std::iter::successors(Some(first), |bound| Some(bound * factor)).take(count).collect(),
        };
        if bounds != expected {
            wrong.push(format!("{}: buckets {bounds:?}, not {expected:?}", row.name));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn a_row_that_differs_is_told() {
    let text = "# TYPE x counter\nx{a=\"1\"} 2\n# TYPE y_seconds histogram\ny_seconds_bucket{le=\"1\"} 1\ny_seconds_bucket{le=\"2\"} 1\ny_seconds_bucket{le=\"+Inf\"} 1\ny_seconds_sum 1\ny_seconds_count 1\n";
    let good = [row("x", "counter", &["a"], No), row("y_seconds", "histogram", &[], Exponential(1.0, 2.0, 2))];
    assert!(check(&good, text).is_ok());
    let bad = [
        row("x", "gauge", &["a"], No),
        row("x", "counter", &["a", "b"], No),
        row("y_seconds", "histogram", &[], Exponential(1.0, 2.0, 3)),
        row("z", "counter", &[], No),
    ];
    for (at, row) in bad.into_iter().enumerate() {
        assert!(check(&[row], text).is_err(), "{at}");
    }
}
