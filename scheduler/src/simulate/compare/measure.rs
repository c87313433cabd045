//! How a simulation went, in a few numbers: how long Runs waited, how evenly the Pods were loaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::constants::RESOURCE_RUNS;
use berth_api::runtime_ready::Verdict;
use berth_framework::from_api;
use berth_framework::model::{Now, ObjectKey, Phase};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Side;
use crate::simulate::binder;
use crate::simulate::world::World;

/// A Pod of the input.
#[derive(Debug)]
pub struct PodFacts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its runtime.
    pub runtime: Arc<str>,
    /// What it offers.
    pub capacity: Arc<BTreeMap<Arc<str>, i64>>,
    /// Whether it was available when the clock started.
    pub verdict: Verdict,
}

/// The Pods of the input.
pub fn pods(world: &World, now: Now) -> Vec<PodFacts> {
    let facts = world.pods.iter().filter_map(|pod| {
        let object = from_api::pod_object(&pod.object)?;
        Some(PodFacts { key: object.key, runtime: object.runtime, capacity: object.capacity, verdict: binder::availability(&pod.object, now).verdict })
    });
    facts.collect()
}

/// How long the Runs that were placed had waited, virtual milliseconds since the clock's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitReport {
    /// Half of them no longer.
    pub p50: u64,
    /// 99 of 100 no longer.
    pub p99: u64,
    /// None longer.
    pub max: u64,
}

impl WaitReport {
    /// Of these times.
    pub fn of(mut waits: Vec<u64>) -> Self {
        waits.sort_unstable();
        let at = |percent: usize| waits.get((waits.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or_default();
        Self { p50: at(50), p99: at(99), max: at(100) }
    }
}

/// How evenly the Pods were loaded. A Pod's load is the share of its capacity that Runs held, of the resource they held most of.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadReport {
    /// `atEnd`, or `overTime`: the mean over the clock, if Runs end.
    pub of: &'static str,
    /// How many Pods were counted: those that were available at the start, and those that held a Run; none without capacity.
    pub pods: usize,
    /// Mean of their loads, per cent.
    pub mean: f64,
    /// How far they are apart: standard deviation, percentage points. 0 is perfectly even.
    pub imbalance: f64,
    /// The most loaded Pod.
    pub busiest: Option<PodLoad>,
    /// The least loaded Pod.
    pub idlest: Option<PodLoad>,
}

/// The load of one Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PodLoad {
    /// `namespace/name`.
    pub pod: String,
    /// Per cent.
    pub load: f64,
}

/// How long the Runs of a side had waited.
pub fn waits(side: &Side) -> WaitReport {
    WaitReport::of(side.history.spans.iter().filter_map(|span| Some(span.placed?.ms)).collect())
}

/// How evenly the Pods of a side were loaded.
pub fn loads(side: &Side, pods: &[PodFacts]) -> LoadReport {
    let elapsed_ms = side.outcomes.elapsed_ms;
    let over_time = side.runs_end && elapsed_ms > 0;
    // Held amounts: times milliseconds over time, as such at the end.
    let mut held: FxHashMap<(&str, &str), FxHashMap<&str, i128>> = FxHashMap::default();
    for (run, span) in side.outcomes.runs.iter().zip(&side.history.spans) {
        let (Some(pod), Some(requests)) = (&run.object.assigned_pod, &run.object.requests) else { continue };
        let weight = match (span.placed.map(|placed| placed.ms).or(span.held.then_some(0)), span.ended) {
            (None, _) => continue,
            (Some(from), ended) if over_time => ended.map_or(elapsed_ms, |ended| ended.ms).saturating_sub(from),
            _ => u64::from(run.object.phase == Phase::Active),
        };
        let by_resource = held.entry((&run.object.key.namespace, pod)).or_default();
        for (resource, amount) in requests.iter() {
            *by_resource.entry(resource).or_default() += i128::from(amount) * i128::from(weight);
        }
    }
    let window = if over_time { elapsed_ms } else { 1 };
    let mut loads: Vec<(f64, &ObjectKey)> = Vec::new();
    for pod in pods {
        let on_it = held.get(&(&*pod.key.namespace, &*pod.key.name));
        let offers = pod.capacity.get(RESOURCE_RUNS).is_some_and(|runs| *runs > 0);
        if !offers || (pod.verdict != Verdict::Ready && on_it.is_none()) {
            continue;
        }
        let shares = on_it.into_iter().flatten().filter_map(|(resource, held)| Some(share(*held, *pod.capacity.get(*resource)?, window)));
        loads.push((shares.fold(0.0, f64::max), &pod.key));
    }
    report(&loads, if over_time { "overTime" } else { "atEnd" })
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
fn share(held: i128, capacity: i64, window: u64) -> f64 {
    if capacity <= 0 { 0.0 } else { held as f64 / (capacity as f64 * window as f64) }
}

#[expect(clippy::cast_precision_loss, reason = "there are far fewer than 2^52 Pods")]
fn report(loads: &[(f64, &ObjectKey)], of: &'static str) -> LoadReport {
    let count = loads.len().max(1) as f64;
    let mean = loads.iter().map(|(load, _)| load).sum::<f64>() / count;
    let variance = loads.iter().map(|(load, _)| (load - mean).powi(2)).sum::<f64>() / count;
    // The sum of nothing is -0.
    let percent = |share: f64| (share * 1_000.0).round() / 10.0 + 0.0;
    let pod = |found: Option<&(f64, &ObjectKey)>| found.map(|(load, key)| PodLoad { pod: key.to_string(), load: percent(*load) });
    // Of equals the first by name.
    let order = |a: &(f64, &ObjectKey), b: &(f64, &ObjectKey)| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1));
    let reverse = |a: &(f64, &ObjectKey), b: &(f64, &ObjectKey)| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1));
    LoadReport {
        of,
        pods: loads.len(),
        mean: percent(mean),
        imbalance: percent(variance.sqrt()),
        busiest: pod(loads.iter().max_by(|a, b| order(a, b))),
        idlest: pod(loads.iter().min_by(|a, b| reverse(a, b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        for (waits, p50, p99, max) in [(vec![], 0, 0, 0), (vec![7], 7, 7, 7), (vec![30, 0], 0, 30, 30), ((0..=200).rev().collect(), 100, 198, 200)] {
            assert_eq!(WaitReport::of(waits), WaitReport { p50, p99, max });
        }
    }

    #[test]
    fn imbalance_is_the_standard_deviation_and_ties_go_by_name() {
        let (a, b, c) = (ObjectKey::new("n", "a"), ObjectKey::new("n", "b"), ObjectKey::new("n", "c"));
        let even = report(&[(0.5, &b), (0.5, &a)], "atEnd");
        assert_eq!((even.mean, even.imbalance), (50.0, 0.0));
        let names = |report: &LoadReport| (report.busiest.clone().map(|pod| pod.pod), report.idlest.clone().map(|pod| pod.pod));
        assert_eq!(names(&even), (Some("n/a".into()), Some("n/a".into())));
        let uneven = report(&[(1.0, &a), (0.0, &b), (0.5, &c)], "atEnd");
        assert_eq!((uneven.mean, uneven.imbalance), (50.0, 40.8));
        assert_eq!(names(&uneven), (Some("n/a".into()), Some("n/b".into())));
        assert_eq!(report(&[], "atEnd"), LoadReport { of: "atEnd", ..LoadReport::default() });
        assert!(report(&[], "atEnd").mean.is_sign_positive());
    }
}
