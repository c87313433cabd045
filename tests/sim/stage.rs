//! A small stage for tests that tell one story: objects by name, one core, a clock that only moves when told.

use std::sync::Arc;

use berth_api::selector::{CompiledSelector, Operator, Requirement};
use berth_framework::core::{Attempt, AttemptResult, BindIntent, Core, Effect, Input, WriteId, WriteOutcome};
use berth_framework::model::{Affinity, Delta, Now, ObjectKey, Phase, PodObject, Requests, RunObject, Shown, WorkspaceObject, WorkspacePhase};
use berth_framework::plugin::WakeCause;
use berth_framework::profile::{Profile, Profiles};
use berth_tests::oracle::Rules;

use crate::world::{WALL_START_MS, profile};

pub const NS: &str = "ns";

pub fn key(name: &str) -> ObjectKey {
    ObjectKey::new(NS, name)
}

/// `a=x`, `a!=x`, `a`, `!a`, joined by commas.
pub fn selector(text: &str) -> CompiledSelector {
    let requirement = |part: &str| {
        let of = |key: &str, op, value: Option<&str>| Requirement { key: key.to_owned(), op, values: value.map(str::to_owned).into_iter().collect() };
        if let Some((key, value)) = part.split_once("!=") {
            of(key, Operator::NotIn, Some(value))
        } else if let Some((key, value)) = part.split_once('=') {
            of(key, Operator::In, Some(value))
        } else if let Some(key) = part.strip_prefix('!') {
            of(key, Operator::DoesNotExist, None)
        } else {
            of(part, Operator::Exists, None)
        }
    };
    let mut requirements: Vec<Requirement> = text.split(',').map(requirement).collect();
    requirements.sort();
    CompiledSelector { requirements }
}

/// A Pending Run of runtime `bash` that asks for nothing special.
pub fn run(name: &str) -> RunObject {
    RunObject {
        key: key(name),
        uid: format!("uid-{name}").into(),
        resource_version: "0".into(),
        created_s: 0,
        labels: Arc::default(),
        deleting: false,
        cancel_requested: false,
        runtime: "bash".into(),
        workspace: None,
        requests: Some(Arc::default()),
        affinity: Arc::default(),
        invalid: None,
        phase: Phase::Pending,
        assigned_pod: None,
        retry_not_before_wall_ms: None,
        shown: None,
    }
}

/// A Run that is active on a Pod.
pub fn active(name: &str, pod: &str) -> RunObject {
    RunObject { phase: Phase::Active, assigned_pod: Some(pod.into()), ..run(name) }
}

pub trait RunExt: Sized {
    fn labels(self, labels: &[(&str, &str)]) -> Self;
    fn requests(self, requests: &[(&str, i64)]) -> Self;
    fn affinity(self, change: impl FnOnce(&mut Affinity)) -> Self;
    fn created(self, seconds: i64) -> Self;
    fn requires(self, term: &str) -> Self;
    fn excludes(self, term: &str) -> Self;
    fn prefers(self, weight: i32, term: &str) -> Self;
    fn workspace(self, name: &str) -> Self;
}

impl RunExt for RunObject {
    fn labels(mut self, labels: &[(&str, &str)]) -> Self {
        self.labels = Arc::new(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        self
    }
    fn requests(mut self, requests: &[(&str, i64)]) -> Self {
        self.requests = Some(Arc::new(Requests::new(requests.iter().map(|(name, amount)| (Arc::from(*name), *amount)))));
        self
    }
    fn affinity(mut self, change: impl FnOnce(&mut Affinity)) -> Self {
        change(Arc::make_mut(&mut self.affinity));
        self
    }
    fn created(self, created_s: i64) -> Self {
        Self { created_s, ..self }
    }
    fn requires(self, term: &str) -> Self {
        self.affinity(|a| a.required.push(selector(term)))
    }
    fn excludes(self, term: &str) -> Self {
        self.affinity(|a| a.required_anti.push(selector(term)))
    }
    fn prefers(self, weight: i32, term: &str) -> Self {
        self.affinity(|a| a.preferred.push((weight, selector(term))))
    }
    fn workspace(self, name: &str) -> Self {
        Self { workspace: Some(name.into()), ..self }
    }
}

/// A Pod of runtime `bash` that is ready and beats now, with room for `runs`.
pub fn pod(name: &str, runs: i64) -> PodObject {
    PodObject {
        key: key(name),
        uid: format!("uid-{name}").into(),
        runtime: "bash".into(),
        labels: Arc::default(),
        annotations: Arc::default(),
        running: true,
        ready: true,
        terminating: false,
        heartbeat_true: true,
        probe_ms: Some(WALL_START_MS),
        capacity: Arc::new([(Arc::from("runs"), runs)].into()),
        bad_capacity: Vec::new(),
        cordoned: false,
        workspace_agent: false,
    }
}

/// A workspace of runtime `bash` bound to a Pod made by [`pod`].
pub fn workspace(name: &str, bound_pod: &str) -> WorkspaceObject {
    WorkspaceObject {
        key: key(name),
        uid: format!("uid-{name}").into(),
        runtime: "bash".into(),
        phase: WorkspacePhase::Bound,
        bound_pod: Some(bound_pod.into()),
        bound_pod_uid: Some(format!("uid-{bound_pod}").into()),
        deleting: false,
    }
}

pub struct Stage {
    pub core: Core,
    pub now: Now,
    version: u64,
    pub effects: Vec<Effect>,
}

impl Stage {
    pub fn new() -> Self {
        Self::with(&Rules::default())
    }

    pub fn with(rules: &Rules) -> Self {
        Self::of(profile(rules))
    }

    pub fn of(profile: Arc<Profile>) -> Self {
        Self::of_all(profile.into())
    }

    pub fn of_all(profiles: Profiles) -> Self {
        let mut core = Core::new(profiles);
        core.keep_ranked(3);
        core.start_placing();
        Self { core, now: Now { wall_ms: WALL_START_MS, mono_ms: 0 }, version: 0, effects: Vec::new() }
    }

    pub fn pod(&mut self, pod: PodObject) {
        self.core.handle(Input::Pod(Delta::Applied(Arc::new(pod))), self.now);
    }

    pub fn lose_pod(&mut self, name: &str) {
        self.core.handle(Input::Pod(Delta::Deleted { key: key(name), uid: format!("uid-{name}").into() }), self.now);
    }

    /// A Run is seen, with a newer version than anything before.
    pub fn run(&mut self, run: RunObject) {
        self.version += 1;
        let run = RunObject { resource_version: self.version.to_string().into(), ..run };
        self.core.handle(Input::Run(Delta::Applied(Arc::new(run))), self.now);
    }

    pub fn end(&mut self, run: RunObject) {
        self.run(RunObject { phase: Phase::Terminal, ..run });
    }

    pub fn lose_run(&mut self, name: &str) {
        self.core.handle(Input::Run(Delta::Deleted { key: key(name), uid: format!("uid-{name}").into() }), self.now);
    }

    pub fn workspace(&mut self, workspace: WorkspaceObject) {
        self.core.handle(Input::Workspace(Delta::Applied(Arc::new(workspace))), self.now);
    }

    pub fn answer(&mut self, write: WriteId, outcome: WriteOutcome) {
        self.core.handle(Input::Answer(write, outcome), self.now);
    }

    /// The write is stored; the informer has not shown it yet. Returns the version.
    pub fn stored(&mut self, write: WriteId) {
        self.version += 1;
        let version = self.version.to_string().into();
        self.answer(write, WriteOutcome::Applied(version));
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).expect("small");
    }

    /// Steps until there is nothing to try.
    pub fn work(&mut self) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        while let Some(attempt) = self.core.step(self.now) {
            attempts.push(attempt);
            assert!(attempts.len() < 10_000, "the core never stops trying");
        }
        self.effects.extend(self.core.drain_effects());
        attempts
    }

    /// As [`Self::work`]; returns who was placed where, in order.
    pub fn placed(&mut self) -> Vec<String> {
        let where_to = |a: Attempt| match a.result {
            AttemptResult::Placed { ranked, .. } => Some(format!("{}@{}", a.key.name, ranked[0].pod)),
            _ => None,
        };
        self.work().into_iter().filter_map(where_to).collect()
    }

    pub fn binds(&mut self) -> Vec<BindIntent> {
        let bind = |effect| if let Effect::Bind(bind) = effect { Some(bind) } else { None };
        std::mem::take(&mut self.effects).into_iter().filter_map(bind).collect()
    }

    pub fn messages(&mut self) -> Vec<(WriteId, Shown)> {
        let message = |effect| if let Effect::SetWaiting { write, shown, .. } = effect { Some((write, shown)) } else { None };
        std::mem::take(&mut self.effects).into_iter().filter_map(message).collect()
    }

    /// What a waiting Run would show now.
    pub fn text(&mut self, name: &str) -> String {
        let (_, shown) = self.core.waiting_on(&key(name), self.now).expect("the Run waits");
        shown.message.to_string()
    }

    /// Wake-up counters that are not 0.
    pub fn wakeups(&self) -> Vec<(WakeCause, u64)> {
        WakeCause::ALL.into_iter().zip(self.core.stats().wakeups).filter(|(_, n)| *n > 0).collect()
    }
}
