//! Every metric as Markdown, from the definitions themselves; docs/metrics.md holds this text.

use std::fmt::Write as _;
use std::sync::Arc;

use berth_framework::profile::LeaderElectionConfiguration;
use berth_runtime::{ServerTime, SystemClock};

use super::super::endpoint::EndpointMetrics;
use super::super::leading::Election;
use super::super::traces;
use super::Metrics;
use super::define::Described;
use super::jobs::JobsCollector;

/// How a name begins, and whose name it is. The first that fits counts.
const GROUPS: [(&[&str], &str); 5] = [
    (&["scheduler_"], "As in kube-scheduler, with Run for Pod and Runtime Pod for Node"),
    (&["rest_client_", "workqueue_", "leader_election_", "authentication_", "authorization_"], "As in every Kubernetes component"),
    (&["kruntimes_"], "As in kruntimes' own scheduler"),
    (&["berth_"], "Berth's own"),
    (&["process_"], "Of the process"),
];

/// A table per group of names.
///
/// # Errors
/// A definition is wrong: a mistake in the code.
pub fn reference() -> anyhow::Result<String> {
    let described = everything()?.described();
    let group_of = |metric: &Described| GROUPS.iter().position(|(starts, _)| starts.iter().any(|start| metric.name.starts_with(start)));
    let mut text = String::new();
    for (at, (_, title)) in GROUPS.iter().enumerate() {
        let _ = writeln!(text, "{}### {title}\n\n| metric | type | labels | what it says |\n|---|---|---|---|", if at > 0 { "\n" } else { "" });
        for metric in described.iter().filter(|metric| group_of(metric) == Some(at)) {
            let _ = writeln!(text, "{}", row(metric));
        }
    }
    match described.iter().find(|metric| group_of(metric).is_none()) {
        Some(metric) => anyhow::bail!("{} belongs to no group of the documentation", metric.name),
        None => Ok(text),
    }
}

/// With all that is registered on demand.
fn everything() -> anyhow::Result<Metrics> {
    let metrics = Metrics::new()?;
    let on = LeaderElectionConfiguration { leader_elect: Some(true), ..LeaderElectionConfiguration::default() };
    if let Some(election) = Election::new(&on, "default", "berth")? {
        metrics.register(election.collector()?)?;
    }
    let time = Arc::new(ServerTime::new(Arc::new(SystemClock::new()), Arc::new(())));
    metrics.register(JobsCollector::new(Arc::default(), time, || [0, 0])?)?;
    EndpointMetrics::new(&metrics)?;
    traces::outcomes(&metrics)?;
    Ok(metrics)
}

fn row(metric: &Described) -> String {
    let Described { name, kind, labels, help, buckets } = metric;
    let buckets = match (buckets.first(), buckets.last()) {
        (Some(first), Some(last)) => format!(" {} buckets, {} to {}.", buckets.len(), short(*first), short(*last)),
        _ => String::new(),
    };
    format!("| `{name}` | {kind} | {} | {}{buckets} |", labels.join(", "), help.replace('|', "\\|"))
}

/// With four digits at most: bounds such as 10 µs × 1.5¹⁹ have many.
fn short(bound: f64) -> String {
    let exact = bound.to_string();
    if exact.len() <= 10 { exact } else { format!("{bound:.4}") }
}
