//! Plugins of somebody else: in a filter's place, volatile, normalising beside RunAffinity, and refused when mute.

use std::sync::atomic::{AtomicU64, Ordering};

use berth_framework::core::Standing;
use berth_framework::model::PodObject;
use berth_framework::plugin::{Filter, MAX_SCORE, Normalize, Plugin, PreFilter, Prepared, Reason, Rejection, Score, State, WakeCause};
use berth_framework::profile::{PluginType, Registry};
use berth_framework::views::{PodView, RunView, Snapshot};
use berth_plugins::Builtin as _;

use crate::random::Random;
use crate::stage::{RunExt as _, Stage, active, key, pod, run};

static REASONS: [Reason; 1] = [Reason { code: "Elsewhere", text: "in another zone than {}" }];

/// A Pod in a zone (label), for stages.
fn zoned(name: &str, runs: i64, zone: &str) -> PodObject {
    PodObject { labels: std::sync::Arc::new([("zone".to_owned(), zone.to_owned())].into()), ..pod(name, runs) }
}

/// A Run with label `zone` goes to Pods of that zone.
struct Zone;

impl PluginType for Zone {
    const NAME: &'static str = "Zone";
    type Args = ();
    fn new((): ()) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Plugin for Zone {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::PodDeletedOrRelabelled, WakeCause::PodReady]
    }
    fn as_pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl PreFilter for Zone {
    fn pre_filter(&self, run: RunView<'_>, _: Snapshot<'_>) -> Prepared {
        let zone = run.labels().get("zone").cloned().unwrap_or_default();
        Prepared { key: zone.bytes().map(u64::from).collect(), base: State::new(zone.clone()), exact: State::new(zone), ..Prepared::default() }
    }
}

impl Filter for Zone {
    fn filter(&self, state: &State, _: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        let Some(zone) = state.get::<String>().filter(|zone| !zone.is_empty()) else { return Ok(()) };
        if pod.labels().get("zone") == Some(zone) { Ok(()) } else { Err(Rejection::about(&REASONS[0], zone.as_str())) }
    }
}

#[test]
fn a_filter_of_somebody_else_decides_explains_and_is_woken_by_its_events() {
    let mut stage = Stage::of(Registry::builtin().with::<Zone>().default_profile().expect("a profile").into());
    stage.pod(zoned("p", 5, "north"));
    stage.run(run("a").labels(&[("zone", "north")]));
    stage.run(run("b").labels(&[("zone", "south")]));
    stage.run(run("c"));
    assert_eq!(stage.placed(), ["a@p", "c@p"]);
    assert_eq!(stage.text("b"), "waiting for available runtime pods: 0/1 fit: 1 in another zone than south");
    stage.pod(zoned("p", 5, "south"));
    assert_eq!(stage.placed(), ["b@p"]);
    assert_eq!(stage.wakeups(), [(WakeCause::PodDeletedOrRelabelled, 1)]);
}

/// Its verdict may change without any event: which Pods are open is a bit mask that the test moves.
struct Tide;

static OPEN: AtomicU64 = AtomicU64::new(0);

impl PluginType for Tide {
    const NAME: &'static str = "Tide";
    type Args = ();
    fn new((): ()) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Plugin for Tide {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::CapacityRaised]
    }
    fn volatile(&self) -> bool {
        true
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for Tide {
    fn filter(&self, _: &State, _: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        let bit: u64 = pod.name().trim_start_matches('p').parse().unwrap_or(0);
        if OPEN.load(Ordering::Relaxed) >> bit & 1 == 1 { Ok(()) } else { Err(Rejection::about(&REASONS[0], "tide")) }
    }
}

#[test]
fn a_volatile_plugin_is_asked_about_every_pod_in_every_cycle() {
    let mut stage = Stage::of(Registry::builtin().with::<Tide>().default_profile().expect("a profile").into());
    (0..10).for_each(|i| stage.pod(pod(&format!("p{i}"), 9)));
    for open in [3, 7, 0, 3] {
        OPEN.store(1 << open, Ordering::Relaxed);
        let before = stage.core.work().pods;
        stage.run(run(&format!("r{open}-{before}")));
        assert!(stage.placed()[0].ends_with(&format!("@p{open}")));
        assert_eq!(stage.core.work().pods - before, 10);
    }
    OPEN.store(0, Ordering::Relaxed);
    // Narrowed Runs are charged exactly too.
    stage.run(active("t", "p4").labels(&[("app", "x")]));
    stage.run(run("w").requires("app=x"));
    assert_eq!(stage.placed(), [""; 0]);
    let text = stage.text("w");
    assert_eq!(text, "waiting for available runtime pods: 0/10 fit: 9 without a Run matching required affinity, 1 in another zone than tide");
}

/// Prefers Pods with a high label `rank`, normalised.
struct Rank;

impl PluginType for Rank {
    const NAME: &'static str = "Rank";
    type Args = ();
    fn new((): ()) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Plugin for Rank {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn as_score(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

fn rank_of(labels: &std::collections::BTreeMap<String, String>) -> i64 {
    labels.get("rank").and_then(|rank| rank.parse().ok()).unwrap_or(0)
}

impl Score for Rank {
    fn score(&self, _: &State, _: RunView<'_>, pod: PodView<'_>) -> i64 {
        rank_of(pod.labels())
    }
    fn normalize(&self) -> Normalize {
        Normalize::MinMax
    }
}

/// Two plugins that normalise: the best of all Pods is not the best of any one bucket.
#[test]
fn two_normalising_plugins_are_summed_exactly() {
    for seed in 0..200 {
        let random = &mut Random::new(seed);
        let mut stage = Stage::of(Registry::builtin().with::<Rank>().default_profile().expect("a profile").into());
        // Name, rank, preference, used of 4.
        let mut pods: Vec<(String, i64, i64, i64)> = Vec::new();
        for i in 0..2 + random.below(7) {
            let (rank, preference, used) = (random.below(5), random.below(4), random.below(4));
            let labels = std::sync::Arc::new([("rank".to_owned(), rank.to_string())].into());
            stage.pod(PodObject { labels, ..pod(&format!("p{i}"), 4) });
            for n in 0..used {
                // The first Run on the Pod carries as many of the preferred labels as the Pod's preference says.
                let wanted: Vec<(&str, &str)> = ["x", "y", "z"].into_iter().take(if n == 0 { preference } else { 0 }).map(|k| (k, "1")).collect();
                stage.run(active(&format!("a{i}-{n}"), &format!("p{i}")).labels(&wanted));
            }
            let as_i64 = |n: usize| i64::try_from(n).expect("small");
            pods.push((format!("p{i}"), as_i64(rank), if used > 0 { as_i64(preference) * 10 } else { 0 }, as_i64(used)));
        }
        let normalise = |value: i64, all: &[i64]| {
            let (min, max) = (*all.iter().min().expect("Pods"), *all.iter().max().expect("Pods"));
            if max > min { (value - min) * MAX_SCORE / (max - min) } else { 0 }
        };
        let ranks: Vec<i64> = pods.iter().map(|p| p.1).collect();
        let preferences: Vec<i64> = pods.iter().map(|p| p.2).collect();
        let total = |p: &(String, i64, i64, i64)| normalise(p.1, &ranks) + normalise(p.2, &preferences) + (4 - p.3 - 1) * MAX_SCORE / 4;
        let best = pods.iter().min_by_key(|p| (-total(p), p.3, p.0.clone())).expect("Pods").clone();
        stage.run(run("w").prefers(10, "x=1").prefers(10, "y=1").prefers(10, "z=1"));
        assert_eq!(stage.placed(), [format!("w@{}", best.0)], "seed {seed}: {pods:?}");
        // Once more, now that the table is warm and one Pod has changed.
        pods.iter_mut().filter(|p| p.0 == best.0.clone()).for_each(|p| p.3 += 1);
        let fits: Vec<&(String, i64, i64, i64)> = pods.iter().filter(|p| p.3 < 4).collect();
        let ranks: Vec<i64> = fits.iter().map(|p| p.1).collect();
        let preferences: Vec<i64> = fits.iter().map(|p| p.2).collect();
        let total = |p: &(String, i64, i64, i64)| normalise(p.1, &ranks) + normalise(p.2, &preferences) + (4 - p.3 - 1) * MAX_SCORE / 4;
        let best = fits.iter().min_by_key(|p| (-total(p), p.3, p.0.clone())).expect("Pods");
        stage.run(run("v").prefers(10, "x=1").prefers(10, "y=1").prefers(10, "z=1"));
        assert_eq!(stage.placed(), [format!("v@{}", best.0)], "seed {seed}: {pods:?}");
    }
}

/// Rejects, but names no event that could end it.
struct Mute;

impl PluginType for Mute {
    const NAME: &'static str = "Mute";
    type Args = ();
    fn new((): ()) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Plugin for Mute {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
}

#[test]
fn a_plugin_that_can_reject_but_names_no_event_is_refused() {
    let errors = Registry::builtin().with::<Mute>().default_profile().expect_err("refused");
    assert!(errors.len() == 1 && errors[0].to_string().contains("Plugin::events must not be empty"), "{errors:?}");
}

#[test]
fn without_any_plugin_the_smallest_name_wins() {
    let mut stage = Stage::of(Registry::empty().default_profile().expect("a profile").into());
    stage.pod(PodObject { ready: false, ..pod("b", 0) });
    stage.pod(PodObject { ready: false, ..pod("a", 0) });
    stage.run(run("w"));
    assert_eq!(stage.placed(), ["w@a"]);
    assert_eq!(stage.core.standing(&key("w")), Some(Standing::Assumed));
}
