//! How many series `/metrics` has at most: a core, its recorder and its counters through 50,000 Runs with hostile names, and every label
//! value that there is.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use berth_controllers::job::controller::Tally;
use berth_controllers::job::machine::State;
use berth_controllers::job::measure::{self, Group, JobObserver as _, Operation, Request, Step};
use berth_controllers::job::reason::{COMPLETED, Failure};
use berth_controllers::job::resolve::KIND_KUBERNETES;
use berth_framework::core::{AttemptResult, Core, Effect, Input, WriteOutcome};
use berth_framework::model::{Delta, Now, ObjectKey, Phase, PodObject, RunObject};
use berth_framework::observe::{Event, Lap, Observer as _, Point, Status};
use berth_framework::plugin::WakeCause;
use berth_framework::profile::{PluginSet, PluginType, Profiles, Registry};
use berth_plugins::{Builtin as _, Capacity, RunAffinity, RuntimeReady, WorkspaceFencing};
use berth_runtime::apiclient::{Call, CallObserver as _, Outcome, Verb};
use berth_runtime::informer::InformerStats;
use berth_runtime::workqueue::{QueueObserver as _, QueueStats};
use berth_runtime::{ServerTime, SystemClock};
use berth_scheduler::config::Loaded;
use berth_scheduler::serve::metrics::Metrics;
use berth_scheduler::serve::metrics::cycle::Recorder;
use berth_scheduler::serve::metrics::jobs::JobsCollector;

use crate::random::Random;
use crate::stage::{RunExt as _, pod, run};
use crate::world::WALL_START_MS;

/// The issue's limit.
const SERIES_MAX: usize = 2_000;
const RUNS: usize = 50_000;
const PODS: usize = 60;
/// What docs/metrics.md says of Jobs: series of a JobClass, of an adapter, and of Jobs as such.
const PER_CLASS: usize = 160;
const PER_ADAPTER: usize = 140;
const OF_JOBS: usize = 150;
/// How far Runs are apart.
const STEP_MS: u64 = 20;
/// Pods beat each so many Runs.
const BEAT_EVERY: usize = 200;

/// Names and label values as an attacker would choose them.
const HOSTILE: [&str; 6] = ["x\",le=\"7", "a\nb{c=\"d\"} 1", "\\\"}", "x\0y", "\u{202e}evil", "0123456789012345678901234567890123456789"];

fn hostile(random: &mut Random, number: usize) -> Arc<str> {
    format!("{}-{number}", random.pick(&HOSTILE)).into()
}

fn profiles(text: &str) -> Profiles {
    let text = format!("apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\n{text}");
    berth_scheduler::config::parse(&text, "-", &Registry::builtin()).expect("a configuration").profiles
}

/// What `berth serve` does around its core, without an API server.
struct Served {
    core: Core,
    metrics: Metrics,
    now: Now,
    version: u64,
}

impl Served {
    fn new(profiles: Profiles) -> Self {
        let metrics = Metrics::new().expect("metrics");
        let mut served = Self { core: Core::new(profiles), metrics, now: Now { wall_ms: WALL_START_MS, mono_ms: 0 }, version: 0 };
        served.profiles_are();
        served.core.start_placing();
        served
    }

    fn profiles_are(&mut self) {
        self.metrics.profiles_are(self.core.profiles());
        let recorder = Recorder::new(self.metrics.cycles.clone(), self.core.profiles(), Arc::new(AtomicU64::new(0)));
        self.core.observe(Box::new(recorder));
    }

    fn input(&mut self, input: Input) {
        if let Some(event) = self.core.handle(input, self.now) {
            self.metrics.cycles.handled(event, Duration::from_nanos(700));
        }
    }

    fn run(&mut self, run: RunObject) {
        self.version += 1;
        self.input(Input::Run(Delta::Applied(Arc::new(RunObject { resource_version: self.version.to_string().into(), ..run }))));
    }

    /// Tries until nothing is to be tried. Answers who was placed where.
    fn work(&mut self, random: &mut Random) -> Vec<(ObjectKey, Arc<str>)> {
        let mut placed = Vec::new();
        while let Some(attempt) = self.core.step(self.now) {
            let profile = self.core.profiles().of("").name.clone();
            self.metrics.attempts.attempted(&attempt, &profile, Duration::from_micros(3));
            for effect in self.core.drain_effects() {
                let (write, kind) = match &effect {
                    Effect::Bind(bind) => (bind.write, "bind"),
                    Effect::SetWaiting { write, .. } => (*write, "waiting"),
                    Effect::Terminate { write, .. } => (*write, "terminate"),
                };
                let outcome = match random.below(20) {
                    0 => WriteOutcome::Conflict,
                    1 => WriteOutcome::Failed,
                    _ => {
                        self.version += 1;
                        WriteOutcome::Applied(self.version.to_string().into())
                    }
                };
                let took = Duration::from_micros(1 + random.below(3_000_000) as u64);
                if let Effect::Bind(bind) = &effect {
                    match &outcome {
                        WriteOutcome::Applied(_) => {
                            self.metrics.attempts.bound(&profile, took, took, attempt.attempts);
                            placed.push((bind.run.key.clone(), bind.pod.clone()));
                        }
                        failed => self.metrics.attempts.bind_failed(&profile, failed, took),
                    }
                }
                self.metrics.client.written(kind, if matches!(outcome, WriteOutcome::Applied(_)) { "applied" } else { "failed" });
                self.input(Input::Answer(write, outcome));
            }
            assert!(!matches!(attempt.result, AttemptResult::Held), "nobody is held here");
        }
        self.metrics.core.core(&self.core, self.core.queue(), (0, 0));
        placed
    }

    /// What a scrape adds.
    fn scrape(&self) -> String {
        for informer in ["runs", "pods", "persistentworkspaces", "configmaps"] {
            self.metrics.client.informer(informer, &InformerStats::default());
        }
        self.metrics.client.workqueue("persistentworkspaces", &QueueStats::default());
        self.metrics.client.events(1, 1, 1);
        String::from_utf8(self.metrics.encode().expect("text")).expect("UTF-8")
    }
}

fn series(text: &str) -> usize {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}

#[test]
fn fifty_thousand_runs_with_hostile_names_leave_few_series() {
    let random = &mut Random::new(7);
    let mut served = Served::new(profiles("profiles: [{schedulerName: default}, {schedulerName: packed, shadow: true}]\n"));
    let namespaces: Vec<Arc<str>> = (0..20).map(|n| hostile(random, n)).collect();
    let runtimes: Vec<Arc<str>> = (0..5).map(|n| hostile(random, n)).collect();
    let mut pods: Vec<PodObject> = Vec::new();
    for n in 0..PODS {
        let (namespace, runtime) = (namespaces[n % 20].clone(), runtimes[n % 5].clone());
        pods.push(PodObject { key: ObjectKey::new(namespace, hostile(random, n)), uid: hostile(random, n), runtime, ..pod("p", 3) });
    }
    let mut active: Vec<RunObject> = Vec::new();
    let mut seen: std::collections::BTreeMap<ObjectKey, RunObject> = std::collections::BTreeMap::new();
    for n in 0..RUNS {
        if n % BEAT_EVERY == 0 {
            // Most beat; some have lost their readiness, or their agent.
            for object in &mut pods {
                let silent = random.chance(5);
                (object.ready, object.probe_ms) = (random.chance(95), if silent { object.probe_ms } else { Some(served.now.wall_ms) });
                served.input(Input::Pod(Delta::Applied(Arc::new(object.clone()))));
            }
        }
        let key = ObjectKey::new(namespaces[n % 20].clone(), hostile(random, n));
        let (label, value) = (hostile(random, n % 40), hostile(random, n % 7));
        let mut object = RunObject { key: key.clone(), uid: hostile(random, n), runtime: runtimes[n % 5].clone(), created_s: n as i64, ..run("r") };
        object = object.labels(&[(&label, &value)]).requests(&[(&hostile(random, n % 30), i64::from(n % 50 == 0))]);
        object = match random.below(6) {
            0 => object.requires("app=x"),
            1 => object.excludes("app"),
            2 => object.prefers(7, "app=y"),
            3 => object.workspace(&hostile(random, n)),
            _ => object,
        };
        if n % 97 == 0 {
            object.cancel_requested = true;
        }
        seen.insert(key, object.clone());
        served.run(object);
        for (key, pod) in served.work(random) {
            let placed = RunObject { phase: Phase::Active, assigned_pod: Some(pod), ..seen[&key].clone() };
            served.run(placed.clone());
            active.push(placed);
        }
        // One ends, so that those who wait are woken; some are deleted in the middle of it all.
        if active.len() > PODS {
            let ended = active.swap_remove(random.below(active.len()));
            served.run(RunObject { phase: Phase::Terminal, ..ended.clone() });
            served.input(Input::Run(Delta::Deleted { key: ended.key.clone(), uid: ended.uid.clone() }));
            seen.remove(&ended.key);
        }
        if seen.len() > 500 {
            let (key, gone) = seen.iter().nth(random.below(seen.len())).map(|(key, run)| (key.clone(), run.uid.clone())).expect("one");
            active.retain(|run| run.key != key);
            served.input(Input::Run(Delta::Deleted { key: key.clone(), uid: gone }));
            seen.remove(&key);
        }
        served.now.mono_ms += STEP_MS;
        served.now.wall_ms += STEP_MS.cast_signed();
    }
    let text = served.scrape();
    let placed = text.lines().find(|line| line.starts_with("scheduler_schedule_attempts_total") && line.contains("\"scheduled\"")).expect("a series");
    println!("{placed}; {} series", series(&text));
    assert!(served.core.stats().scheduled > 5_000 && served.core.stats().unschedulable > 5_000, "{:?}", served.core.stats());
    assert!(series(&text) < SERIES_MAX, "{} series", series(&text));
    for name in HOSTILE {
        assert!(!text.contains(name), "{name:?} is in a label");
    }
    assert!(!text.contains("evil") && !text.contains("0123456789"), "a name is in a label");
}

/// Where a plugin runs, by the effective configuration.
fn points_of(plugin: &str) -> Vec<Point> {
    let effective = Loaded::defaults(&Registry::builtin()).expect("the defaults").effective;
    let plugins = &effective.profiles[0].plugins;
    let sets = [&plugins.pre_filter, &plugins.filter, &plugins.score, &plugins.reserve, &plugins.bind];
    let runs = |set: &PluginSet| set.enabled.iter().any(|enabled| enabled.name == plugin);
    Point::ALL.into_iter().zip(sets).filter(|(_, set)| runs(set)).map(|(point, _)| point).collect()
}

/// The events a plugin asks for.
fn events_of(plugin: &str) -> &'static [WakeCause] {
    fn of<P: PluginType>() -> (&'static str, &'static [WakeCause])
    where
        P::Args: Default,
    {
        let plugin = P::new(P::Args::default()).expect("default args");
        (plugin.name(), plugin.events())
    }
    let all = [of::<RuntimeReady>(), of::<WorkspaceFencing>(), of::<RunAffinity>(), of::<Capacity>()];
    all.into_iter().find(|(name, _)| *name == plugin).expect("a plugin").1
}

/// One profile, and every label value that there is.
fn all_values() -> Served {
    let served = Served::new(profiles("profiles: [{schedulerName: default}]\n"));
    let metrics = &served.metrics;
    let mut recorder = Recorder::new(metrics.cycles.clone(), served.core.profiles(), Arc::new(AtomicU64::new(0)));
    let plugins = served.core.profiles().of("").plugin_names().collect::<Vec<_>>();
    for (plugin, name) in plugins.into_iter().enumerate() {
        for point in points_of(name) {
            let statuses: &[Status] = match point {
                Point::PreFilter => &[Status::Success, Status::UnschedulableAndUnresolvable],
                Point::Filter | Point::Score | Point::Bind => &[Status::Success],
                Point::Reserve => &[Status::Success, Status::Unschedulable],
            };
            for &status in statuses {
                recorder.lap(Lap::AttemptStart { profile: 0 });
                recorder.lap(Lap::Plugin { point, plugin, status, asked: 1 });
                recorder.lap(Lap::Decided(Point::Score));
                recorder.lap(Lap::AttemptEnd);
            }
        }
        for &cause in events_of(name) {
            for helps in [true, false] {
                recorder.lap(Lap::Hint { profile: 0, plugin, cause, helps });
            }
        }
    }
    for attempts in 1..30 {
        metrics.attempts.bound("default", Duration::ZERO, Duration::ZERO, attempts);
    }
    metrics.attempts.bind_failed("default", &WriteOutcome::Failed, Duration::ZERO);
    for event in Event::ALL {
        metrics.cycles.handled(event, Duration::ZERO);
    }
    let codes = [200, 201, 400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504];
    for verb in [Verb::Get, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete] {
        for outcome in codes.into_iter().map(Outcome::Status).chain([Outcome::Error]) {
            metrics.called(&Call { verb, resource: "runs", host: "10.0.0.1:443", outcome, duration: Duration::ZERO });
        }
    }
    metrics.taken("persistentworkspaces", Duration::ZERO);
    metrics.finished("persistentworkspaces", Duration::ZERO);
    served
}

#[test]
fn every_label_value_that_there_is_makes_fewer_series_than_the_limit() {
    let text = all_values().scrape();
    println!("{} series", series(&text));
    assert!(series(&text) < SERIES_MAX, "{} series", series(&text));
    assert_eq!(WakeCause::ALL.len(), text.lines().filter(|line| line.starts_with("berth_wakeups_total")).count());
}

/// Every step of a Job of that class, with every reason.
fn steps(served: &Served, class: &str, adapter: &'static str) {
    let (group, time) = (Group { class: class.to_owned(), adapter }, Duration::from_secs(1));
    let reasons = Failure::ALL.iter().map(|failure| failure.as_str()).chain([COMPLETED]);
    let ends = reasons.map(|reason| Step::Finished { reason, ran: Some(time), stopped: Some(time), overshot: Some(time) });
    let others = [
        Step::Accepted(time),
        Step::Scheduled(time),
        Step::Started(time),
        Step::CleanedUp(time),
        Step::Expired(time),
        Step::StartedTwice,
        Step::Reattached,
        Step::Swept,
        Step::DoubleRemoved,
        Step::AnswerLost,
        Step::Conflict,
    ];
    ends.chain(others).for_each(|step| served.metrics.jobs.stepped(&group, &step));
}

/// Every request to a backend, with every outcome.
fn requests(served: &Served, adapter: &'static str) {
    for operation in [Operation::Ensure, Operation::Observe, Operation::Cancel, Operation::Delete] {
        for outcome in [measure::Outcome::Definite, measure::Outcome::Retry, measure::Outcome::Ambiguous] {
            served.metrics.jobs.requested(&Request { adapter, operation, outcome, took: Duration::ZERO });
        }
    }
    for step in [Step::Reattached, Step::Swept, Step::DoubleRemoved] {
        served.metrics.jobs.stepped(&Group { class: String::new(), adapter }, &step);
    }
}

/// With `--jobs` there is more, by a budget that the docs promise.
#[test]
fn jobs_stay_within_the_budget_of_their_classes_and_adapters() {
    let served = all_values();
    let without = series(&served.scrape());
    let time = Arc::new(ServerTime::new(Arc::new(SystemClock::new()), Arc::new(())));
    served.metrics.register(JobsCollector::new(Arc::<Tally>::default(), time, || [1, 1]).expect("a collector")).expect("registered once");
    let informers = ["jobs", "jobs.batch", "pods-of-jobs", "jobclasses", "kubernetesexecutionparameters", "opensandboxexecutionparameters", "namespaces"];
    for informer in informers {
        served.metrics.client.informer(informer, &InformerStats::default());
    }
    for queue in ["job", "jobclass"] {
        served.metrics.client.workqueue(queue, &QueueStats::default());
        served.metrics.taken(queue, Duration::ZERO);
        served.metrics.finished(queue, Duration::ZERO);
    }
    for (kind, verbs) in [
        ("Job", &["patch", "delete"][..]),
        ("batch/Job", &["create", "delete"]),
        ("Pod", &["patch", "delete"]),
        ("JobClass", &["patch"]),
        (KIND_KUBERNETES, &["patch"]),
    ] {
        verbs.iter().for_each(|verb| served.metrics.jobs.wrote(kind, verb));
    }
    let fixed = series(&served.scrape()) - without;
    let per_adapter = ["kubernetes", "opensandbox"].map(|adapter| {
        let before = series(&served.scrape());
        requests(&served, adapter);
        series(&served.scrape()) - before
    });
    let mut counts = vec![series(&served.scrape())];
    for class in 0..3 {
        steps(&served, &format!("class-{class}"), if class == 0 { "opensandbox" } else { "kubernetes" });
        counts.push(series(&served.scrape()));
    }
    // berth_job_states is read from the Jobs that there are: a series for each state at most.
    let per_class: Vec<usize> = counts.windows(2).map(|pair| pair[1] - pair[0] + State::ALL.len()).collect();
    println!("{without} series without Jobs, {fixed} of Jobs as such, {per_adapter:?} per adapter, {per_class:?} per class");
    assert!(per_adapter.iter().all(|count| *count <= PER_ADAPTER), "{per_adapter:?}");
    assert!(fixed <= OF_JOBS && per_class.iter().all(|count| *count <= PER_CLASS), "{fixed}, {per_class:?}");
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).expect("the docs");
    let promise = format!("With Jobs at most {OF_JOBS} more, {PER_ADAPTER} per adapter and {PER_CLASS} per JobClass");
    assert!(docs.contains(&promise), "docs/metrics.md does not say: {promise}");
}

#[test]
fn profiles_that_are_gone_take_their_series_with_them() {
    let random = &mut Random::new(3);
    let mut served = Served::new(profiles("profiles: [{schedulerName: default}]\n"));
    served.input(Input::Pod(Delta::Applied(Arc::new(pod("p", 1_000)))));
    let mut counts = Vec::new();
    for n in 0..200 {
        let named = format!("profiles: [{{schedulerName: profile-{n}}}, {{schedulerName: shadow-{n}, shadow: true}}]\n");
        served.input(Input::Profiles(Arc::new(profiles(&named))));
        served.profiles_are();
        for part in ["a", "b"] {
            served.run(run(&format!("{part}{n}")).requests(&[("gpu", i64::from(part == "b"))]));
        }
        served.work(random);
        counts.push(series(&served.scrape()));
    }
    let text = served.scrape();
    assert!(text.contains("profile-199") && text.contains("shadow-199"), "{text}");
    assert!(!text.contains("profile-198") && !text.contains("shadow-198"), "{text}");
    assert!(counts[150] >= *counts.last().expect("one"), "the number of series does not grow: {counts:?}");
}
