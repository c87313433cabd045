//! A world for one history: a server with resource versions, an informer that may lag, the core, and the oracle beside it.
//!
//! After every attempt of the core the oracle must agree; when the core has nothing left to do, nothing may be forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use berth_api::constants::ANNOTATION_CAPACITY_PREFIX;
use berth_framework::core::{Core, Effect, FLUSH_EVERY_MS, Input, WriteOutcome};
use berth_framework::model::{Delta, InvalidRun, Now, ObjectKey, Phase, PodObject, Requests, RunObject, WorkspaceObject};
use berth_framework::profile::{BerthConfiguration, Profile, Registry};
use berth_plugins::Builtin as _;
use berth_tests::oracle::{Oracle, Rules};
use serde_json::json;

use crate::check::{Stories, Tally};
use crate::history::{BoundUid, Event, History, PodChange, PodSpec, RunChange, RunSpec, State, Timed, WorkspaceSpec};

/// Wall clock at monotonic 0.
pub const WALL_START_MS: i64 = 1_700_000_000_000;
const RUNTIMES: [&str; 3] = ["bash", "python", "node"];

/// Something the informer has yet to tell.
#[derive(Clone, Debug)]
pub enum Change {
    Run(Delta<RunObject>),
    Pod(Delta<PodObject>),
    Workspace(Delta<WorkspaceObject>),
}

impl Change {
    fn key(&self) -> &ObjectKey {
        match self {
            Self::Run(Delta::Applied(run)) => &run.key,
            Self::Pod(Delta::Applied(pod)) => &pod.key,
            Self::Workspace(Delta::Applied(workspace)) => &workspace.key,
            Self::Run(Delta::Deleted { key, .. }) | Self::Pod(Delta::Deleted { key, .. }) | Self::Workspace(Delta::Deleted { key, .. }) => key,
        }
    }
}

/// A write the core asked for.
pub struct Write {
    effect: Effect,
    /// How it ended on the server, once it got there.
    outcome: Option<WriteOutcome>,
}

#[derive(Default)]
struct Server {
    runs: BTreeMap<usize, RunObject>,
    pods: BTreeMap<usize, PodObject>,
    workspaces: BTreeMap<usize, WorkspaceObject>,
    uids: u64,
    version: u64,
}

impl Server {
    fn uid(&mut self) -> Arc<str> {
        self.uids += 1;
        // Scattered, so that the order of UIDs is not the order of creation.
        format!("{:08x}", self.uids.wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF).into()
    }
    fn version(&mut self) -> Arc<str> {
        self.version += 1;
        self.version.to_string().into()
    }
}

pub struct World {
    pub core: Core,
    pub oracle: Oracle,
    /// What the core's profile says.
    pub rules: Rules,
    pub now: Now,
    pub tally: Tally,
    pub stories: Stories,
    pub namespaces: usize,
    /// The core does not hear what it is told.
    pub deaf: bool,
    lag: bool,
    prompt: bool,
    server: Server,
    changes: [VecDeque<Change>; 3],
    writes: Vec<Write>,
}

/// The profile that says the same as `rules`.
pub fn profile(rules: &Rules) -> Arc<Profile> {
    let mut disabled = Vec::new();
    let mut enabled = Vec::new();
    let mut config = Vec::new();
    let mut slot = |name: &str, args: Option<serde_json::Value>, weight: Option<i64>| match args {
        None => disabled.push(json!({ "name": name })),
        Some(args) => {
            if let Some(weight) = weight {
                enabled.push(json!({ "name": name, "weight": weight }));
            }
            config.push(json!({ "name": name, "args": args }));
        }
    };
    slot("RuntimeReady", rules.runtime_ready.map(|require| json!({ "requireHeartbeat": require })), None);
    slot("WorkspaceFencing", rules.workspace_fencing.map(|require| json!({ "requireWorkspaceAgent": require })), None);
    slot("RunAffinity", rules.run_affinity.map(|(symmetric, _)| json!({ "symmetricAntiAffinity": symmetric })), rules.run_affinity.map(|(_, w)| w));
    let strategy = |most| if most { "MostAllocated" } else { "LeastAllocated" };
    slot("Capacity", rules.capacity.map(|(most, _)| json!({ "strategy": strategy(most) })), rules.capacity.map(|(_, w)| w));
    let configuration = json!({
        "apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration",
        "profiles": [{ "plugins": { "multiPoint": { "disabled": disabled, "enabled": enabled } }, "pluginConfig": config }],
    });
    let configuration: BerthConfiguration = serde_json::from_value(configuration).expect("a configuration");
    Registry::builtin().profile(&configuration).expect("a profile")
}

fn requests(entries: Option<&Vec<(&'static str, i64)>>) -> Option<Arc<Requests>> {
    entries.map(|entries| Arc::new(Requests::new(entries.iter().map(|(name, amount)| (Arc::from(*name), *amount)))))
}

fn capacity(pod: &mut PodObject, entries: &[(&'static str, i64)]) {
    pod.capacity = Arc::new(entries.iter().map(|(name, amount)| (Arc::from(*name), *amount)).collect());
    let mut annotations = (*pod.annotations).clone();
    annotations.retain(|key, _| !key.starts_with(ANNOTATION_CAPACITY_PREFIX));
    annotations.extend(entries.iter().map(|(name, amount)| (format!("{ANNOTATION_CAPACITY_PREFIX}{name}"), amount.to_string())));
    pod.annotations = Arc::new(annotations);
}

fn agent(pod: &mut PodObject, agent: bool) {
    pod.workspace_agent = agent;
    let mut annotations = (*pod.annotations).clone();
    annotations.remove("kruntimes.io/workspace-agent");
    if agent {
        annotations.insert("kruntimes.io/workspace-agent".into(), "v1".into());
    }
    pod.annotations = Arc::new(annotations);
}

impl World {
    pub fn new(history: &History) -> Self {
        let mut core = Core::new(profile(&history.rules));
        core.keep_ranked(3);
        core.start_placing();
        Self {
            core,
            oracle: Oracle::new(history.rules.clone()),
            rules: history.rules.clone(),
            now: Now { wall_ms: WALL_START_MS, mono_ms: 0 },
            tally: Tally::default(),
            stories: Stories::new(),
            namespaces: history.namespaces,
            deaf: false,
            lag: history.lag,
            prompt: history.prompt,
            server: Server::default(),
            changes: Default::default(),
            writes: Vec::new(),
        }
    }

    fn key(&self, kind: char, index: usize) -> ObjectKey {
        ObjectKey::new(format!("ns{}", index % self.namespaces), format!("{kind}{index}"))
    }

    fn pod_name(index: usize) -> Arc<str> {
        format!("p{index}").into()
    }

    // ---- events ----------------------------------------------------------------------------------

    /// Lets one thing happen, then lets the core work, checking everything it does.
    pub fn happen(&mut self, timed: &Timed) -> Result<(), String> {
        match &timed.event {
            Event::CreateRun(run, spec, told) => self.create_run(*run, spec, *told),
            Event::ChangeRun(run, change) => self.change_run(*run, change),
            Event::DeleteRun(run) => self.delete_run(*run),
            Event::CreatePod(pod, spec, told) => self.create_pod(*pod, spec, *told),
            Event::ChangePod(pod, change) => self.change_pod(*pod, change),
            Event::DeletePod(pod) => self.delete_pod(*pod),
            Event::Workspace(workspace, spec) => self.workspace(*workspace, spec),
            Event::DeleteWorkspace(workspace) => {
                if let Some(object) = self.server.workspaces.remove(workspace) {
                    self.emit(Change::Workspace(Delta::Deleted { key: object.key, uid: object.uid }));
                }
            }
            Event::Execute(n) => self.execute(*n),
            Event::Fail(n) => {
                if let Some(write) = nth(&mut self.writes, *n, |w| w.outcome.is_none()) {
                    self.writes[write].outcome = Some(WriteOutcome::Failed);
                }
            }
            Event::Answer(n) => self.answer(*n),
            Event::Deliver(kind, n) => self.deliver(*kind, *n),
            Event::Relist(kind) => self.relist(*kind),
            Event::Advance(ms) => self.advance(*ms),
            Event::BeatAll => self.beat_all(),
            Event::Profile(rules) => {
                self.core.handle(Input::Profiles(Arc::new(profile(rules).into())), self.now);
                self.oracle.rules = rules.clone();
                self.rules = rules.clone();
            }
        }
        if timed.quiet { Ok(()) } else { self.work() }
    }

    fn create_run(&mut self, index: usize, spec: &RunSpec, told: bool) {
        if let Some(old) = self.server.runs.remove(&index)
            && told
        {
            self.emit(Change::Run(Delta::Deleted { key: old.key, uid: old.uid }));
        }
        let invalid = spec.invalid.map(|reason| InvalidRun { reason, message: "bad".into() });
        let mut run = RunObject {
            key: self.key('r', index),
            uid: self.server.uid(),
            resource_version: "0".into(),
            created_s: spec.created_s,
            labels: Arc::new(spec.labels.clone()),
            deleting: false,
            cancel_requested: false,
            runtime: RUNTIMES[spec.runtime].into(),
            workspace: spec.workspace.map(|w| self.key('w', w * self.namespaces + index % self.namespaces).name),
            requests: requests(spec.requests.as_ref()),
            affinity: spec.affinity.clone(),
            invalid,
            phase: Phase::Pending,
            assigned_pod: None,
            retry_not_before_wall_ms: None,
            shown: None,
        };
        self.bring(&mut run, spec.state);
        self.store_run(index, run);
    }

    fn bring(&self, run: &mut RunObject, state: State) {
        run.assigned_pod = None;
        run.retry_not_before_wall_ms = None;
        run.shown = None;
        run.phase = match state {
            State::Pending | State::Held(_) => Phase::Pending,
            State::Active(_) | State::Adrift => Phase::Active,
            State::Terminal => Phase::Terminal,
        };
        match state {
            State::Held(ms) => run.retry_not_before_wall_ms = Some(self.now.wall_ms + ms),
            State::Active(pod) => {
                run.assigned_pod = Some(Self::pod_name(pod));
            }
            _ => {}
        }
    }

    fn store_run(&mut self, index: usize, mut run: RunObject) {
        run.resource_version = self.server.version();
        self.server.runs.insert(index, run.clone());
        self.emit(Change::Run(Delta::Applied(Arc::new(run))));
    }

    fn change_run(&mut self, index: usize, change: &RunChange) {
        let Some(mut run) = self.server.runs.get(&index).cloned() else { return };
        match change {
            RunChange::Labels(labels) => run.labels = Arc::new(labels.clone()),
            RunChange::Requests(entries) => {
                run.requests = requests(entries.as_ref());
                let reason = berth_framework::model::InvalidReason::InvalidResources;
                run.invalid = entries.is_none().then(|| InvalidRun { reason, message: "bad".into() });
            }
            RunChange::Affinity(affinity) => run.affinity = affinity.clone(),
            RunChange::Runtime(runtime) => run.runtime = RUNTIMES[*runtime].into(),
            RunChange::Cancel => run.cancel_requested = true,
            RunChange::Deleting => run.deleting = true,
            RunChange::State(state) => {
                // A hand-assigned Run of one that waits, or the end of one that runs; what makes no sense is allowed too.
                self.bring(&mut run, *state);
            }
        }
        self.store_run(index, run);
    }

    fn delete_run(&mut self, index: usize) {
        if let Some(run) = self.server.runs.remove(&index) {
            self.emit(Change::Run(Delta::Deleted { key: run.key, uid: run.uid }));
        }
    }

    fn create_pod(&mut self, index: usize, spec: &PodSpec, told: bool) {
        if let Some(old) = self.server.pods.remove(&index)
            && told
        {
            self.emit(Change::Pod(Delta::Deleted { key: old.key, uid: old.uid }));
        }
        let mut pod = PodObject {
            key: self.key('p', index),
            uid: self.server.uid(),
            runtime: RUNTIMES[spec.runtime].into(),
            labels: Arc::default(),
            annotations: Arc::default(),
            running: spec.running,
            ready: spec.ready,
            terminating: false,
            heartbeat_true: spec.heartbeat,
            probe_ms: spec.probe_age_ms.map(|age| self.now.wall_ms - age),
            capacity: Arc::default(),
            bad_capacity: Vec::new(),
            cordoned: false,
            workspace_agent: false,
        };
        capacity(&mut pod, &spec.capacity);
        agent(&mut pod, spec.agent);
        self.store_pod(index, pod);
    }

    fn store_pod(&mut self, index: usize, pod: PodObject) {
        self.server.pods.insert(index, pod.clone());
        self.emit(Change::Pod(Delta::Applied(Arc::new(pod))));
    }

    fn change_pod(&mut self, index: usize, change: &PodChange) {
        let Some(mut pod) = self.server.pods.get(&index).cloned() else { return };
        match change {
            PodChange::Running(running) => pod.running = *running,
            PodChange::Ready(ready) => pod.ready = *ready,
            PodChange::Terminating => pod.terminating = true,
            PodChange::Heartbeat(beats) => pod.heartbeat_true = *beats,
            PodChange::Beat(age) => pod.probe_ms = Some(self.now.wall_ms - age),
            PodChange::Capacity(entries) => capacity(&mut pod, entries),
            PodChange::CapacityAndAgent(entries, honours) => {
                capacity(&mut pod, entries);
                agent(&mut pod, *honours);
            }
            PodChange::Agent(honours) => agent(&mut pod, *honours),
            PodChange::Label(n) => pod.labels = Arc::new([("zone".to_owned(), n.to_string())].into()),
            PodChange::Runtime(runtime) => pod.runtime = RUNTIMES[*runtime].into(),
        }
        self.store_pod(index, pod);
    }

    fn delete_pod(&mut self, index: usize) {
        if let Some(pod) = self.server.pods.remove(&index) {
            self.emit(Change::Pod(Delta::Deleted { key: pod.key, uid: pod.uid }));
        }
    }

    fn beat_all(&mut self) {
        for (index, mut pod) in self.server.pods.clone() {
            pod.probe_ms = Some(self.now.wall_ms);
            self.store_pod(index, pod);
        }
    }

    fn workspace(&mut self, number: usize, spec: &WorkspaceSpec) {
        for ns in 0..self.namespaces {
            let index = number * self.namespaces + ns;
            let known = self.server.workspaces.get(&index).cloned();
            let uid = match &known {
                Some(known) if !spec.recreate => known.uid.clone(),
                _ => self.server.uid(),
            };
            let pod = spec.bound.and_then(|pod| self.server.pods.get(&pod));
            let bound_pod_uid = match spec.uid {
                BoundUid::Real => pod.map(|pod| pod.uid.clone()),
                BoundUid::Other => Some("other".into()),
                BoundUid::Absent => None,
            };
            let workspace = WorkspaceObject {
                key: self.key('w', index),
                uid,
                runtime: RUNTIMES[spec.runtime].into(),
                phase: spec.phase,
                bound_pod: spec.bound.map(Self::pod_name),
                bound_pod_uid,
                deleting: spec.deleting,
            };
            self.server.workspaces.insert(index, workspace.clone());
            self.emit(Change::Workspace(Delta::Applied(Arc::new(workspace))));
        }
    }

    pub fn advance(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).expect("small");
    }

    // ---- informer --------------------------------------------------------------------------------

    fn emit(&mut self, change: Change) {
        let kind = match &change {
            Change::Run(_) => 0,
            Change::Pod(_) => 1,
            Change::Workspace(_) => 2,
        };
        self.changes[kind].push_back(change);
        if !self.lag {
            self.deliver(kind, usize::MAX);
        }
    }

    fn deliver(&mut self, kind: usize, n: usize) {
        for _ in 0..n {
            let Some(change) = self.changes[kind].pop_front() else { return };
            self.tell(change);
        }
    }

    fn relist(&mut self, kind: usize) {
        let changes = std::mem::take(&mut self.changes[kind]);
        let last = |at: usize, change: &Change| !changes.iter().skip(at + 1).any(|later| later.key() == change.key());
        for (at, change) in changes.iter().enumerate() {
            if last(at, change) {
                let uid = self.oracle.uid(kind, change.key());
                match change {
                    Change::Run(Delta::Deleted { key, .. }) => uid.into_iter().for_each(|uid| self.tell(Change::Run(Delta::Deleted { key: key.clone(), uid }))),
                    Change::Pod(Delta::Deleted { key, .. }) => uid.into_iter().for_each(|uid| self.tell(Change::Pod(Delta::Deleted { key: key.clone(), uid }))),
                    Change::Workspace(Delta::Deleted { key, .. }) => {
                        uid.into_iter().for_each(|uid| self.tell(Change::Workspace(Delta::Deleted { key: key.clone(), uid })));
                    }
                    applied => self.tell(applied.clone()),
                }
            }
        }
    }

    /// Tells core and oracle the same.
    pub fn tell(&mut self, change: Change) {
        let now = self.now;
        match &change {
            Change::Run(Delta::Applied(run)) => self.oracle.see_run(run),
            Change::Run(Delta::Deleted { key, uid }) => self.oracle.lose_run(key, uid),
            Change::Pod(Delta::Applied(pod)) => self.oracle.see_pod(pod, now),
            Change::Pod(Delta::Deleted { key, uid }) => self.oracle.lose_pod(key, uid),
            Change::Workspace(Delta::Applied(workspace)) => self.oracle.see_workspace(workspace),
            Change::Workspace(Delta::Deleted { key, uid }) => self.oracle.lose_workspace(key, uid),
        }
        let input = match change {
            Change::Run(delta) => Input::Run(delta),
            Change::Pod(delta) => Input::Pod(delta),
            Change::Workspace(delta) => Input::Workspace(delta),
        };
        if !self.deaf {
            self.core.handle(input, now);
        }
    }

    // ---- writes ----------------------------------------------------------------------------------

    pub fn ask(&mut self, effect: Effect) {
        self.writes.push(Write { effect, outcome: None });
    }

    fn execute(&mut self, n: usize) {
        let Some(at) = nth(&mut self.writes, n, |w| w.outcome.is_none()) else { return };
        let effect = self.writes[at].effect.clone();
        let reference = match &effect {
            Effect::Bind(intent) => &intent.run,
            Effect::SetWaiting { run, .. } | Effect::Terminate { run, .. } => run,
        };
        let stored = self.server.runs.iter().find(|(_, run)| run.key == reference.key).map(|(index, run)| (*index, run.clone()));
        let outcome = match stored {
            Some((_, run)) if run.uid != reference.uid => WriteOutcome::Gone,
            None => WriteOutcome::Gone,
            Some((_, run)) if run.resource_version != reference.resource_version => WriteOutcome::Conflict,
            Some((index, mut run)) => {
                match &effect {
                    Effect::Bind(intent) => {
                        run.phase = Phase::Active;
                        run.assigned_pod = Some(intent.pod.clone());
                        run.shown = None;
                    }
                    Effect::SetWaiting { shown, .. } => run.shown = Some(shown.clone()),
                    Effect::Terminate { .. } => run.phase = Phase::Terminal,
                }
                self.store_run(index, run);
                WriteOutcome::Applied(self.server.version.to_string().into())
            }
        };
        self.writes[at].outcome = Some(outcome);
    }

    fn answer(&mut self, n: usize) {
        let Some(at) = nth(&mut self.writes, n, |w| w.outcome.is_some()) else { return };
        let Write { effect, outcome } = self.writes.remove(at);
        let Some(outcome) = outcome else { return };
        let id = match &effect {
            Effect::Bind(intent) => {
                let version = if let WriteOutcome::Applied(version) = &outcome { Some(&**version) } else { None };
                self.oracle.bind_answered(intent.write.0, version);
                intent.write
            }
            Effect::SetWaiting { write, run, .. } => {
                if let (false, Some(story)) = (matches!(outcome, WriteOutcome::Applied(_)), self.stories.get_mut(&run.uid)) {
                    story.last = None;
                }
                *write
            }
            Effect::Terminate { write, .. } => *write,
        };
        self.core.handle(Input::Answer(id, outcome), self.now);
    }

    // ---- working ---------------------------------------------------------------------------------

    /// Steps until there is nothing to try, then checks that nothing was forgotten.
    pub fn work(&mut self) -> Result<(), String> {
        for _ in 0..1_000 {
            self.step_until_none()?;
            if !self.prompt || self.writes.is_empty() {
                return self.check_quiet();
            }
            while !self.writes.is_empty() {
                self.execute(0);
                self.answer(0);
            }
        }
        Err("writes never end".into())
    }

    /// Lets everything that is under way arrive, then passes time until nothing happens any more, alarm flush included.
    pub fn settle(&mut self) -> Result<(), String> {
        self.lag = false;
        self.prompt = true;
        for kind in 0..3 {
            self.deliver(kind, usize::MAX);
        }
        self.work()?;
        for _ in 0..40 {
            self.beat_all();
            self.work()?;
            let Some(at) = self.core.next_event_ms() else { break };
            self.advance(at.saturating_sub(self.now.mono_ms).max(1));
        }
        // The flush finds every Pod fresh and places nobody.
        self.advance(FLUSH_EVERY_MS - 1_000);
        self.beat_all();
        self.work()?;
        self.advance(2_000);
        self.work()?;
        self.advance(FLUSH_EVERY_MS - 3_000);
        self.beat_all();
        self.work()?;
        self.advance(3_000);
        self.work()
    }
}

fn nth(writes: &mut [Write], n: usize, which: impl Fn(&Write) -> bool) -> Option<usize> {
    let fitting: Vec<usize> = writes.iter().enumerate().filter(|(_, w)| which(w)).map(|(i, _)| i).collect();
    if fitting.is_empty() { None } else { Some(fitting[n % fitting.len()]) }
}
