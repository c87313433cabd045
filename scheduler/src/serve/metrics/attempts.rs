//! Attempts and their results, by profile; placements, from the decision to the stored write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use berth_framework::Ranked;
use berth_framework::core::{Attempt, AttemptResult, WriteOutcome};
use berth_framework::profile::{Profile, Profiles};
use prometheus::{Counter, CounterVec, Histogram, IntCounter, IntCounterVec, IntGaugeVec};

use super::cycle::Cycles;
use super::define::{Define, Made, exp};
use super::histogram::{Export, Histograms, Series};
use berth_runtime::lock;

/// How an attempt ends: kube-scheduler's values.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Ended {
    Scheduled,
    Unschedulable,
    Error,
}

const ENDED: [&str; 3] = ["scheduled", "unschedulable", "error"];
const AGREEMENT: [&str; 2] = ["agree", "disagree"];

/// Placements after that many attempts share a series.
const ATTEMPTS_MAX: usize = 15;

/// The metrics of attempts.
pub struct Attempts {
    cycles: Arc<Cycles>,
    total: IntCounterVec,
    duration: Histograms,
    sli: Histograms,
    sli_by_attempts: [OnceLock<Arc<Series>>; ATTEMPTS_MAX],
    per_run: Histogram,
    bind: Arc<Series>,
    shadows: IntCounterVec,
    shadow_names: Mutex<Vec<String>>,
    weights: IntGaugeVec,
    chosen_scores: CounterVec,
    by_profile: Mutex<HashMap<Arc<str>, Arc<OfProfile>>>,
}

/// The series of a profile, so that an attempt need not look for them.
struct OfProfile {
    total: [IntCounter; ENDED.len()],
    duration: [Arc<Series>; ENDED.len()],
    bound: Arc<Series>,
    not_bound: Arc<Series>,
    /// By plugin that scores.
    chosen_scores: Vec<(&'static str, Counter)>,
}

impl Attempts {
    pub(super) fn new(d: &mut Define, cycles: Arc<Cycles>) -> Made<Self> {
        let duration = Export {
            name: "scheduler_scheduling_attempt_duration_seconds",
            help: "An attempt: the decision, and for a placement its write.",
            labels: &["result", "profile"],
            buckets: exp(0.001, 2.0, 15)?,
        };
        let sli = vec![
            Export {
                name: "scheduler_pod_scheduling_sli_duration_seconds",
                help: "From a Run's first time in the queue to its stored placement, by the number of attempts: 1 to 14, 15+.",
                labels: &["attempts"],
                buckets: exp(0.01, 2.0, 20)?,
            },
            Export {
                name: "berth_scheduling_sli_duration_seconds",
                help: "scheduler_pod_scheduling_sli_duration_seconds in finer buckets, whatever the attempts.",
                labels: &[],
                buckets: exp(0.0005, 2.0, 14)?,
            },
        ];
        let bind =
            Export { name: "berth_bind_duration_seconds", help: "From a placement's decision to its certain end.", labels: &[], buckets: exp(0.001, 2.0, 15)? };
        Ok(Self {
            cycles,
            total: d.counters(
                "scheduler_schedule_attempts_total",
                "Attempts to place a Run. result: scheduled (once stored), unschedulable, error (refused at Reserve, or not stored).",
                &["result", "profile"],
            )?,
            duration: d.quick(&["result", "profile"], vec![duration])?,
            sli: d.quick(&["attempts"], sli)?,
            sli_by_attempts: [const { OnceLock::new() }; ATTEMPTS_MAX],
            per_run: d.histogram("scheduler_pod_scheduling_attempts", "Attempts until a Run was placed.", exp(1.0, 2.0, 5)?)?,
            bind: d.quick(&[], vec![bind])?.of(&[]),
            shadows: d.counters(
                "berth_shadow_agreement_total",
                "Attempts that a shadow profile would have ended like the active one (agree) or not (disagree).",
                &["profile", "result"],
            )?,
            shadow_names: Mutex::default(),
            weights: d.gauges("berth_plugin_weight", "Weights in force, of plugins that score.", &["profile", "plugin"])?,
            chosen_scores: d.sums(
                "berth_chosen_score_total",
                "Sum of the scores (0 to 100, before the weight) that a plugin gave the chosen Pods. Over placements: how well each plugin gets its way.",
                &["profile", "plugin"],
            )?,
            by_profile: Mutex::default(),
        })
    }

    /// The profiles in force from now on: their series exist before anything happens, those of others are forgotten.
    pub(super) fn profiles_are(&self, profiles: &Profiles) {
        let mut by_profile = lock(&self.by_profile);
        let gone = |name: &str| profiles.iter().all(|profile| profile.name != name);
        let scores =
            |name: &str, plugin: &str| profiles.iter().any(|profile| profile.name == name && profile.score_weights().any(|(other, _)| other == plugin));
        for (name, of) in by_profile.drain() {
            let name = &*name;
            for plugin in of.chosen_scores.iter().map(|(plugin, _)| *plugin).filter(|plugin| !scores(name, plugin)) {
                // One that was never made need not go, here and below.
                let _ = self.weights.remove_label_values(&[name, plugin]);
                let _ = self.chosen_scores.remove_label_values(&[name, plugin]);
            }
            for result in ENDED.iter().filter(|_| gone(name)) {
                let _ = self.total.remove_label_values(&[*result, name]);
            }
        }
        self.duration.retain(|values| !gone(&values[1]));
        by_profile.extend(profiles.iter().map(|profile| (Arc::from(profile.name.as_str()), Arc::new(self.series_of(profile)))));
        drop(by_profile);
        let now: Vec<String> = profiles.shadows().iter().map(|shadow| shadow.profile.name.clone()).collect();
        for name in std::mem::replace(&mut *lock(&self.shadow_names), now.clone()).iter().filter(|name| !now.contains(name)) {
            for result in AGREEMENT {
                let _ = self.shadows.remove_label_values(&[name, result]);
            }
        }
        for name in &now {
            for result in AGREEMENT {
                self.shadows.with_label_values(&[name.as_str(), result]);
            }
        }
    }

    fn series_of(&self, profile: &Profile) -> OfProfile {
        let name = profile.name.as_str();
        let score = |(plugin, weight): (&'static str, i64)| {
            self.weights.with_label_values(&[name, plugin]).set(weight);
            (plugin, self.chosen_scores.with_label_values(&[name, plugin]))
        };
        OfProfile {
            total: ENDED.map(|result| self.total.with_label_values(&[result, name])),
            duration: ENDED.map(|result| self.duration.of(&[result, name])),
            bound: self.cycles.bind("Success", name),
            not_bound: self.cycles.bind("Error", name),
            chosen_scores: profile.score_weights().map(score).collect(),
        }
    }

    /// `None` for a profile that was in force when its write began, and is no more: what is forgotten stays so.
    fn of(&self, profile: &str) -> Option<Arc<OfProfile>> {
        lock(&self.by_profile).get(profile).cloned()
    }

    /// An attempt of the core. A placement counts when its write has ended ([`Attempts::bound`], [`Attempts::bind_failed`]).
    pub fn attempted(&self, attempt: &Attempt, profile: &str, took: Duration) {
        for shadow in &attempt.shadows {
            self.shadows.with_label_values(&[shadow.profile.as_str(), AGREEMENT[usize::from(!shadow.agrees)]]).inc();
        }
        let Some(of) = self.of(profile) else { return };
        match &attempt.result {
            AttemptResult::Waits { .. } => of.ended(Ended::Unschedulable, took),
            AttemptResult::Refused { .. } => of.ended(Ended::Error, took),
            AttemptResult::Placed { ranked, .. } => of.chose(ranked),
            AttemptResult::Terminates { .. } | AttemptResult::Held => {}
        }
    }

    /// A placement is stored, `waited` after its decision and `latency` after the Run was first queued.
    pub fn bound(&self, profile: &str, waited: Duration, latency: Duration, attempts: u32) {
        if let Some(of) = self.of(profile) {
            of.ended(Ended::Scheduled, waited);
            of.bound.observe(waited);
        }
        self.bind.observe(waited);
        self.per_run.observe(f64::from(attempts));
        let at = (attempts.max(1) as usize).min(ATTEMPTS_MAX) - 1;
        let word = || if at + 1 == ATTEMPTS_MAX { format!("{ATTEMPTS_MAX}+") } else { (at + 1).to_string() };
        self.sli_by_attempts[at].get_or_init(|| self.sli.of(&[&word()])).observe(latency);
    }

    /// A placement was not stored.
    pub fn bind_failed(&self, profile: &str, outcome: &WriteOutcome, waited: Duration) {
        if let Some(of) = self.of(profile) {
            if *outcome != WriteOutcome::Gone {
                of.ended(Ended::Error, waited);
            }
            of.not_bound.observe(waited);
        }
        self.bind.observe(waited);
    }
}

impl OfProfile {
    fn ended(&self, how: Ended, took: Duration) {
        self.total[how as usize].inc();
        self.duration[how as usize].observe(took);
    }

    fn chose(&self, ranked: &[Ranked]) {
        for (plugin, score) in ranked.first().into_iter().flat_map(|chosen| &chosen.by_plugin) {
            if let Some((_, sum)) = self.chosen_scores.iter().find(|(name, _)| name == plugin) {
                // Fixed point, thousandths.
                sum.inc_by(f64::from(i32::try_from(*score).unwrap_or(0).max(0)) / 1_000.0);
            }
        }
    }
}
