//! Where the time of attempts goes: by stage, by plugin, by hint. One look at the clock per lap that the core tells of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_framework::observe::{Event, Lap, Observer, Point, Status};
use berth_framework::plugin::WakeCause;
use berth_framework::profile::Profiles;
use prometheus::{IntCounter, IntCounterVec};
use quanta::Clock;

use super::define::{Define, Made, exp};
use super::histogram::{Export, Histograms, Series};
use berth_runtime::lock;

/// Bounds of the twins, seconds: where our attempts and their parts lie.
const FINE: [f64; 8] = [0.000_000_25, 0.000_000_5, 0.000_001, 0.000_002_5, 0.000_005, 0.000_01, 0.000_1, 0.001];

/// The points that kube-scheduler counts evaluations at.
const COUNTED: [Point; 3] = [Point::PreFilter, Point::Filter, Point::Score];

/// The metrics of cycles.
pub struct Cycles {
    algorithm: Histograms,
    attempt: Histograms,
    points: Histograms,
    plugins: Histograms,
    evaluations: IntCounterVec,
    hints: Histograms,
    events: [Arc<Series>; Event::ALL.len()],
    /// The profiles in force and their plugins.
    in_force: Mutex<Vec<(String, Vec<&'static str>)>>,
}

impl Cycles {
    pub(super) fn new(d: &mut Define) -> Made<Self> {
        let fine = |name, help, labels| Export { name, help, labels, buckets: FINE.to_vec() };
        let algorithm = vec![
            Export {
                name: "scheduler_scheduling_algorithm_duration_seconds",
                help: "The decision alone: PreFilter, Filter, Score.",
                labels: &[],
                buckets: exp(0.001, 2.0, 15)?,
            },
            fine("berth_scheduling_algorithm_duration_seconds", "scheduler_scheduling_algorithm_duration_seconds in finer buckets.", &[]),
        ];
        let attempt = vec![Export {
            name: "berth_attempt_duration_seconds",
            help: "One attempt of the core, without the write.",
            labels: &[],
            buckets: exp(0.000_001, 2.0, 14)?,
        }];
        let points = vec![
            Export {
                name: "scheduler_framework_extension_point_duration_seconds",
                help: "All plugins of one point in one attempt, and the host's own work there; at Bind the write. The status is the worst.",
                labels: &["extension_point", "status", "profile"],
                buckets: exp(0.0001, 2.0, 12)?,
            },
            fine(
                "berth_framework_extension_point_duration_seconds",
                "scheduler_framework_extension_point_duration_seconds in finer buckets.",
                &["extension_point"],
            ),
        ];
        let plugins = vec![
            Export {
                name: "scheduler_plugin_execution_duration_seconds",
                help: "One plugin at one point in one attempt, over all Pods that it was asked about; every attempt counts.",
                labels: &["plugin", "extension_point", "status"],
                buckets: exp(0.00001, 1.5, 20)?,
            },
            fine("berth_plugin_execution_duration_seconds", "scheduler_plugin_execution_duration_seconds in finer buckets.", &["plugin", "extension_point"]),
        ];
        let hints = vec![
            Export {
                name: "scheduler_queueing_hint_execution_duration_seconds",
                help: "One look whether an event helps a waiting Run, for the plugin that had rejected it and asked for the event. hint: Queue, QueueSkip.",
                labels: &["plugin", "event", "hint"],
                buckets: exp(0.00001, 1.5, 20)?,
            },
            fine("berth_queueing_hint_execution_duration_seconds", "scheduler_queueing_hint_execution_duration_seconds in finer buckets.", &[]),
        ];
        let events = vec![
            Export {
                name: "scheduler_event_handling_duration_seconds",
                help: "One change of an object, until every Run that it may help is known. A Node is a Runtime Pod, a Pod a Run.",
                labels: &["event"],
                buckets: exp(0.0001, 2.0, 12)?,
            },
            fine("berth_event_handling_duration_seconds", "scheduler_event_handling_duration_seconds in finer buckets.", &[]),
        ];
        let events = d.quick(&["event"], events)?;
        Ok(Self {
            algorithm: d.quick(&[], algorithm)?,
            attempt: d.quick(&[], attempt)?,
            points: d.quick(&["extension_point", "status", "profile"], points)?,
            plugins: d.quick(&["plugin", "extension_point", "status"], plugins)?,
            evaluations: d.counters(
                "scheduler_plugin_evaluation_total",
                "Times a plugin was asked: once per attempt at PreFilter, once per Pod at Filter and Score.",
                &["plugin", "extension_point", "profile"],
            )?,
            hints: d.quick(&["plugin", "event", "hint"], hints)?,
            events: Event::ALL.map(|event| events.of(&[event.as_str()])),
            in_force: Mutex::default(),
        })
    }

    /// A change of an object was taken in.
    pub fn handled(&self, event: Event, took: Duration) {
        self.events[event as usize].observe(took);
    }

    /// The series of the write of a placement.
    pub(super) fn bind(&self, status: &str, profile: &str) -> Arc<Series> {
        self.points.of(&[Point::Bind.as_str(), status, profile])
    }

    /// These profiles are in force: what was told of others is forgotten.
    pub(super) fn profiles_are(&self, profiles: &Profiles) {
        let now: Vec<(String, Vec<&'static str>)> = profiles.iter().map(|profile| (profile.name.clone(), profile.plugin_names().collect())).collect();
        self.points.retain(|values| now.iter().any(|(name, _)| *name == values[2]));
        for (name, plugins) in std::mem::replace(&mut *lock(&self.in_force), now.clone()) {
            let still = |plugin: &str| now.iter().any(|(other, plugins)| *other == name && plugins.contains(&plugin));
            for plugin in plugins.iter().filter(|plugin| !still(plugin)) {
                for point in COUNTED {
                    // One that was never made need not go.
                    let _ = self.evaluations.remove_label_values(&[plugin, point.as_str(), &name]);
                }
            }
        }
    }
}

/// What one attempt has spent at one place so far.
#[derive(Clone, Copy, Default)]
struct Spent {
    ns: u64,
    asked: u64,
    /// `None`: nothing.
    status: Option<Status>,
}

/// A plugin at a point.
struct PluginAt {
    spent: Spent,
    evaluations: Option<IntCounter>,
    by_status: [Option<Arc<Series>>; Status::ALL.len()],
}

struct Plugin {
    name: &'static str,
    at: [PluginAt; Point::ALL.len()],
    /// By [`hint_event`], then by whether it helps.
    hints: [[Option<Arc<Series>>; 2]; HINT_EVENTS.len()],
}

struct OfProfile {
    name: String,
    plugins: Vec<Plugin>,
    by_status: [[Option<Arc<Series>>; Status::ALL.len()]; Point::ALL.len()],
}

/// Records what an observed core tells.
pub struct Recorder {
    cycles: Arc<Cycles>,
    algorithm: Arc<Series>,
    attempt: Arc<Series>,
    /// How long the last attempt took, for who hears of its result.
    last_ns: Arc<AtomicU64>,
    profiles: Vec<OfProfile>,
    /// The profile of the attempt under way.
    profile: usize,
    points: [Spent; Point::ALL.len()],
    /// Plugins and points that were asked in this attempt.
    touched: Vec<(usize, Point)>,
    clock: Clock,
    /// Readings of the clock: of the last lap, and when the attempt began.
    lap: u64,
    start: u64,
    decided_ns: u64,
    /// What shadows took of the attempt's time.
    shadows_ns: u64,
}

impl Recorder {
    /// A recorder of a core with these profiles. The time of each attempt goes to `last_ns` as well.
    pub fn new(cycles: Arc<Cycles>, profiles: &Profiles, last_ns: Arc<AtomicU64>) -> Self {
        let of_plugin = |profile: &str, name: &'static str| Plugin {
            name,
            at: Point::ALL.map(|point| PluginAt {
                spent: Spent::default(),
                evaluations: COUNTED.contains(&point).then(|| cycles.evaluations.with_label_values(&[name, point.as_str(), profile])),
                by_status: [const { None }; Status::ALL.len()],
            }),
            hints: [const { [None, None] }; HINT_EVENTS.len()],
        };
        let of = |name: &String, plugins: Vec<&'static str>| OfProfile {
            name: name.clone(),
            plugins: plugins.into_iter().map(|plugin| of_plugin(name, plugin)).collect(),
            by_status: [const { [const { None }; Status::ALL.len()] }; Point::ALL.len()],
        };
        let profiles = profiles.iter().map(|profile| of(&profile.name, profile.plugin_names().collect())).collect();
        let clock = Clock::new();
        let now = clock.raw();
        Self {
            algorithm: cycles.algorithm.of(&[]),
            attempt: cycles.attempt.of(&[]),
            cycles,
            last_ns,
            profiles,
            profile: 0,
            points: [Spent::default(); Point::ALL.len()],
            touched: Vec::new(),
            clock,
            lap: now,
            start: now,
            decided_ns: 0,
            shadows_ns: 0,
        }
    }

    fn at(&mut self, point: Point, ns: u64, status: Status) {
        let spent = &mut self.points[point as usize];
        spent.ns += ns;
        spent.status = spent.status.max(Some(status));
    }

    fn plugin(&mut self, plugin: usize, point: Point, ns: u64, status: Status, asked: usize) {
        self.at(point, ns, status);
        let Some(of) = self.profiles.get_mut(self.profile).and_then(|profile| profile.plugins.get_mut(plugin)) else { return };
        let spent = &mut of.at[point as usize].spent;
        spent.ns += ns;
        spent.asked += asked as u64;
        spent.status = spent.status.max(Some(status));
        if !self.touched.contains(&(plugin, point)) {
            self.touched.push((plugin, point));
        }
    }

    /// The attempt is over: each plugin and point is told once.
    fn tell(&mut self, now: u64) {
        let all_ns = self.clock.delta_as_nanos(self.start, now).saturating_sub(std::mem::take(&mut self.shadows_ns));
        self.last_ns.store(all_ns, Ordering::Relaxed);
        self.attempt.observe_ns(all_ns);
        self.algorithm.observe_ns(self.decided_ns);
        let Some(profile) = self.profiles.get_mut(self.profile) else { return };
        for (plugin, point) in self.touched.drain(..) {
            let of = &mut profile.plugins[plugin];
            let at = &mut of.at[point as usize];
            let spent = std::mem::take(&mut at.spent);
            let status = spent.status.unwrap_or_default();
            let series = || self.cycles.plugins.of(&[of.name, point.as_str(), status.as_str()]);
            at.by_status[status as usize].get_or_insert_with(series).observe_ns(spent.ns);
            if let Some(evaluations) = &at.evaluations {
                evaluations.inc_by(spent.asked);
            }
        }
        for (point, spent) in Point::ALL.into_iter().zip(&mut self.points) {
            let Spent { ns, status: Some(status), .. } = std::mem::take(spent) else { continue };
            // At Bind it is the write that counts; see [`Cycles::bind`].
            if point != Point::Bind {
                let series = || self.cycles.points.of(&[point.as_str(), status.as_str(), &profile.name]);
                profile.by_status[point as usize][status as usize].get_or_insert_with(series).observe_ns(ns);
            }
        }
    }

    fn hint(&mut self, profile: usize, plugin: usize, cause: WakeCause, helps: bool, ns: u64) {
        let Some(of) = self.profiles.get_mut(profile).and_then(|profile| profile.plugins.get_mut(plugin)) else { return };
        let event = hint_event(cause);
        let series = || self.cycles.hints.of(&[of.name, HINT_EVENTS[event], if helps { "Queue" } else { "QueueSkip" }]);
        of.hints[event][usize::from(helps)].get_or_insert_with(series).observe_ns(ns);
    }
}

impl Observer for Recorder {
    fn lap(&mut self, lap: Lap) {
        let now = self.clock.raw();
        let ns = self.clock.delta_as_nanos(std::mem::replace(&mut self.lap, now), now);
        match lap {
            Lap::Other => {}
            Lap::AttemptStart { profile } => {
                self.profile = profile;
                self.start = now;
            }
            Lap::Plugin { point, plugin, status, asked } => self.plugin(plugin, point, ns, status, asked),
            Lap::Host(point) => self.at(point, ns, Status::Success),
            Lap::Decided(point) => {
                self.at(point, ns, Status::Success);
                self.decided_ns = self.clock.delta_as_nanos(self.start, now);
            }
            Lap::Shadows => self.shadows_ns += ns,
            Lap::AttemptEnd => self.tell(now),
            Lap::Hint { profile, plugin, cause, helps } => self.hint(profile, plugin, cause, helps, ns),
        }
    }
}

/// What kube-scheduler calls the events that Runs are looked at for.
const HINT_EVENTS: [&str; 3] = ["NodeUpdate", "AssignedPodAdd", "AssignedPodDelete"];

fn hint_event(cause: WakeCause) -> usize {
    match cause {
        WakeCause::PodReady | WakeCause::HeartbeatReturned | WakeCause::CapacityRaised | WakeCause::PodDeletedOrRelabelled => 0,
        WakeCause::TargetAppeared => 1,
        WakeCause::RunEnded | WakeCause::RunDeleted | WakeCause::AssumptionReleased | WakeCause::AntiAffinityOwnerEnded | WakeCause::LastTargetEnded => 2,
        // These wake their Runs without a look.
        WakeCause::OwnLabelsChanged | WakeCause::WorkspaceChanged | WakeCause::RetryDue | WakeCause::ProfileChanged => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use berth_framework::profile::{BerthConfiguration, Registry};
    use berth_plugins::Builtin as _;

    #[test]
    fn what_shadows_take_is_not_the_attempts_time() {
        let cycles = Arc::new(Cycles::new(&mut Define::default()).unwrap());
        let profiles = Registry::builtin().profiles(&BerthConfiguration::default()).unwrap();
        let last_ns = Arc::<AtomicU64>::default();
        let mut recorder = Recorder::new(cycles, &profiles, last_ns.clone());
        let slow = Duration::from_millis(200);
        for (lap, shadows) in [(Lap::Shadows, true), (Lap::Other, false)] {
            recorder.lap(Lap::AttemptStart { profile: 0 });
            recorder.lap(Lap::Decided(Point::Filter));
            std::thread::sleep(slow);
            recorder.lap(lap);
            recorder.lap(Lap::AttemptEnd);
            let took = Duration::from_nanos(last_ns.load(Ordering::Relaxed));
            assert_eq!(took < slow, shadows, "{took:?}");
        }
    }
}
