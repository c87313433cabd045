//! Worlds to measure in: a core with so many Pods and active Runs, and Runs of one of three shapes to place.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use berth_api::selector::{CompiledSelector, Operator, Requirement};
use berth_framework::core::{AttemptResult, Core, Effect, Input, WriteOutcome};
use berth_framework::model::{Affinity, Delta, Now, ObjectKey, Phase, PodObject, Requests, RunObject};
use berth_framework::profile::Registry;
use berth_plugins::Builtin as _;

/// How many cohorts world (b) has.
pub const COHORTS: usize = 1_000;
/// How many targets a cohort of world (b) has at most.
pub const TARGETS: usize = 10;
/// The moment everything in a world happens.
pub const NOW: Now = Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 };

/// What the Runs to place ask for (issue "Speed, first measure").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// (a) all alike, no affinity.
    One,
    /// (b) required affinity to one of [`COHORTS`] cohorts, each with a selector of its own and up to [`TARGETS`] targets.
    Cohorts,
    /// (c) a preferred term that matches on every Pod.
    Preferred,
}

impl Shape {
    /// All three.
    pub const ALL: [Self; 3] = [Self::One, Self::Cohorts, Self::Preferred];
    /// A short name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "a: one shape",
            Self::Cohorts => "b: 1,000 cohorts",
            Self::Preferred => "c: preferred everywhere",
        }
    }
}

/// A core and the objects that were put into it.
pub struct World {
    /// The core, ready to place.
    pub core: Core,
    /// Its Pods.
    pub pods: Vec<Arc<PodObject>>,
    shape: Shape,
    next: usize,
    affinities: Vec<Arc<Affinity>>,
    requests: Arc<Requests>,
}

fn labels(pairs: &[(&str, String)]) -> Arc<BTreeMap<String, String>> {
    Arc::new(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())
}

fn selector(key: &str, value: &str) -> CompiledSelector {
    CompiledSelector { requirements: vec![Requirement { key: key.into(), op: Operator::In, values: vec![value.into()] }] }
}

/// A Pod that is available and has room for `capacity` Runs.
pub fn pod(index: usize, capacity: i64) -> PodObject {
    PodObject {
        key: ObjectKey::new("bench", format!("pod-{index:05}")),
        uid: format!("pod-uid-{index}").into(),
        runtime: "bash".into(),
        labels: labels(&[("runtime", "bash".into())]),
        annotations: Arc::default(),
        running: true,
        ready: true,
        terminating: false,
        heartbeat_true: true,
        probe_ms: Some(NOW.wall_ms),
        capacity: Arc::new([(Arc::from("runs"), capacity)].into_iter().collect()),
        bad_capacity: Vec::new(),
        cordoned: false,
        workspace_agent: false,
    }
}

impl World {
    /// A world with `pods` Pods and `active` Runs already placed on them, evenly.
    ///
    /// # Errors
    /// The built-in plugins refuse their defaults (never).
    pub fn new(shape: Shape, pods: usize, active: usize) -> anyhow::Result<Self> {
        let profile = Registry::builtin().default_profile().map_err(|errors| anyhow!("{errors:?}"))?;
        let mut core = Core::new(Arc::new(profile));
        let capacity = i64::try_from(active / pods * 2 + 100)?;
        let pods: Vec<_> = (0..pods).map(|i| Arc::new(pod(i, capacity))).collect();
        for pod in &pods {
            core.handle(Input::Pod(Delta::Applied(pod.clone())), NOW);
        }
        let affinities = match shape {
            Shape::One => vec![Arc::new(Affinity::default())],
            Shape::Cohorts => {
                (0..COHORTS).map(|c| Arc::new(Affinity { required: vec![selector("cohort", &format!("c{c}"))], ..Affinity::default() })).collect()
            }
            Shape::Preferred => vec![Arc::new(Affinity { preferred: vec![(50, selector("tier", "gold"))], ..Affinity::default() })],
        };
        let mut world = Self { core, pods, shape, next: 0, affinities, requests: Arc::new(Requests::default()) };
        let (plain, gold) = (labels(&[("app", "other".into())]), labels(&[("app", "other".into()), ("tier", "gold".into())]));
        for i in 0..active {
            // The first Run of each Pod is the target of world (c); the first Runs are the targets of world (b).
            let labels = match shape {
                Shape::Cohorts if i < COHORTS * TARGETS && i < active / 2 => world.cohort_labels(i),
                Shape::Preferred if i < world.pods.len() => gold.clone(),
                _ => plain.clone(),
            };
            let on = world.pods[i % world.pods.len()].clone();
            let run = RunObject { phase: Phase::Active, assigned_pod: Some(on.key.name.clone()), ..world.run(i, labels) };
            world.core.handle(Input::Run(Delta::Applied(Arc::new(run))), NOW);
        }
        world.next = active;
        world.core.start_placing();
        Ok(world)
    }

    fn cohort_labels(&self, i: usize) -> Arc<BTreeMap<String, String>> {
        labels(&[("cohort", format!("c{}", i % COHORTS))])
    }

    fn run(&self, index: usize, labels: Arc<BTreeMap<String, String>>) -> RunObject {
        RunObject {
            key: ObjectKey::new("bench", format!("run-{index:07}")),
            uid: format!("run-uid-{index:07}").into(),
            resource_version: "1".into(),
            created_s: 1_700_000_000,
            labels,
            deleting: false,
            cancel_requested: false,
            runtime: "bash".into(),
            workspace: None,
            requests: Some(self.requests.clone()),
            affinity: self.affinities[index % self.affinities.len()].clone(),
            invalid: None,
            phase: Phase::Pending,
            assigned_pod: None,
            retry_not_before_wall_ms: None,
            shown: None,
        }
    }

    /// The next Run to place, not yet told to the core.
    pub fn next_run(&mut self) -> Arc<RunObject> {
        let index = self.next;
        self.next += 1;
        let labels = match self.shape {
            Shape::Cohorts => self.cohort_labels(index),
            Shape::One | Shape::Preferred => labels(&[("app", "new".into())]),
        };
        Arc::new(self.run(index, labels))
    }

    /// Tells the core of a Run and lets it place it. This is the measured step.
    ///
    /// # Errors
    /// The Run was not placed.
    pub fn place(&mut self, run: Arc<RunObject>) -> anyhow::Result<()> {
        self.core.handle(Input::Run(Delta::Applied(run)), NOW);
        let attempt = self.core.step(NOW).context("nothing was tried")?;
        anyhow::ensure!(matches!(attempt.result, AttemptResult::Placed { .. }), "not placed: {attempt:?}");
        Ok(())
    }

    /// Answers every bind and ends the Runs, so that the world is as before.
    pub fn restore(&mut self) {
        for effect in self.core.drain_effects() {
            if let Effect::Bind(bind) = effect {
                self.core.handle(Input::Answer(bind.write, WriteOutcome::Applied("2".into())), NOW);
                self.core.handle(Input::Run(Delta::Deleted { key: bind.run.key, uid: bind.run.uid }), NOW);
            }
        }
        while self.core.step(NOW).is_some() {}
    }
}
