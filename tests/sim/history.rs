//! Random histories: a small cluster and what happens to it, as data, so that a failing one can be shrunk.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::selector::{CompiledSelector, Operator, Requirement};
use berth_framework::model::{Affinity, InvalidReason, WorkspacePhase};
use berth_tests::oracle::Rules;

use crate::random::Random;

/// What a Run is made with.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub runtime: usize,
    pub labels: BTreeMap<String, String>,
    /// `None` = unparsable.
    pub requests: Option<Vec<(&'static str, i64)>>,
    pub affinity: Arc<Affinity>,
    pub workspace: Option<usize>,
    pub created_s: i64,
    pub invalid: Option<InvalidReason>,
    pub state: State,
}

/// Where a Run stands on the server.
#[derive(Clone, Copy, Debug)]
pub enum State {
    Pending,
    /// Pending again after a failed attempt, not to be tried for so many milliseconds.
    Held(i64),
    /// Active on the Pod of this index, which may not exist.
    Active(usize),
    /// Active, but on no Pod.
    Adrift,
    Terminal,
}

/// What somebody changes of a Run.
#[derive(Clone, Debug)]
pub enum RunChange {
    Labels(BTreeMap<String, String>),
    Requests(Option<Vec<(&'static str, i64)>>),
    Affinity(Arc<Affinity>),
    Runtime(usize),
    Cancel,
    Deleting,
    State(State),
}

/// What a Pod is made with.
#[derive(Clone, Debug)]
pub struct PodSpec {
    pub runtime: usize,
    pub running: bool,
    pub ready: bool,
    pub heartbeat: bool,
    /// Age of the heartbeat; below 0 it lies in the future.
    pub probe_age_ms: Option<i64>,
    pub capacity: Vec<(&'static str, i64)>,
    pub agent: bool,
}

/// What changes of a Pod.
#[derive(Clone, Debug)]
pub enum PodChange {
    Running(bool),
    Ready(bool),
    Terminating,
    Heartbeat(bool),
    Beat(i64),
    Capacity(Vec<(&'static str, i64)>),
    CapacityAndAgent(Vec<(&'static str, i64)>, bool),
    Agent(bool),
    Label(usize),
    Runtime(usize),
}

/// What a workspace looks like from now on.
#[derive(Clone, Debug)]
pub struct WorkspaceSpec {
    pub runtime: usize,
    pub phase: WorkspacePhase,
    pub bound: Option<usize>,
    /// The UID of that Pod: the real one, another, or none.
    pub uid: BoundUid,
    pub deleting: bool,
    pub recreate: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum BoundUid {
    Real,
    Other,
    Absent,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A Run is made; one of the same name goes first, and the informer tells so or shows only the new one.
    CreateRun(usize, RunSpec, bool),
    ChangeRun(usize, RunChange),
    DeleteRun(usize),
    /// A Pod is made; one of the same name goes first.
    CreatePod(usize, PodSpec, bool),
    ChangePod(usize, PodChange),
    DeletePod(usize),
    Workspace(usize, WorkspaceSpec),
    DeleteWorkspace(usize),
    /// The server takes the n-th write that it has not taken yet.
    Execute(usize),
    /// That write fails without effect.
    Fail(usize),
    /// The core hears how the n-th taken write ended.
    Answer(usize),
    /// The informer hands over up to n changes of Runs (0), Pods (1) or workspaces (2).
    Deliver(usize, usize),
    /// The informer lost its watch: of all changes it has not handed over it knows only how they end.
    Relist(usize),
    Advance(u64),
    /// Every Pod beats.
    BeatAll,
    Profile(Rules),
}

/// An event, and whether the core may step after it.
#[derive(Clone, Debug)]
pub struct Timed {
    pub event: Event,
    pub quiet: bool,
}

/// A history.
#[derive(Clone, Debug)]
pub struct History {
    pub namespaces: usize,
    pub rules: Rules,
    /// The informer is behind until an event makes it deliver.
    pub lag: bool,
    /// Writes are taken and answered as soon as the core has nothing to do.
    pub prompt: bool,
    pub events: Vec<Timed>,
}

/// How rich the objects of a history are.
struct Taste {
    runtimes: usize,
    pods: usize,
    runs: usize,
    affinity: usize,
    workspaces: usize,
    rich_requests: bool,
    /// Little room and few label keys, so that everything is in everybody's way.
    tight: bool,
    quiet: usize,
    templates: Vec<RunSpec>,
}

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["x", "y", "z"];

fn keys(tight: bool) -> &'static [&'static str] {
    if tight { &KEYS[..1] } else { &KEYS }
}

fn labels(random: &mut Random, tight: bool) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for key in keys(tight) {
        if random.chance(45) {
            labels.insert((*key).to_owned(), (*random.pick(&VALUES[..2])).to_owned());
        }
    }
    labels
}

fn selector(random: &mut Random, tight: bool) -> CompiledSelector {
    let mut requirements = Vec::new();
    for _ in 0..=random.weighted(&[75, 25]) {
        let op = *random.pick(&[Operator::In, Operator::In, Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist]);
        let mut values: Vec<String> = Vec::new();
        if matches!(op, Operator::In | Operator::NotIn) {
            for value in VALUES {
                if random.chance(40) {
                    values.push(value.to_owned());
                }
            }
            if values.is_empty() {
                values.push("x".to_owned());
            }
        }
        requirements.push(Requirement { key: (*random.pick(keys(tight))).to_owned(), op, values });
    }
    requirements.sort();
    requirements.dedup();
    CompiledSelector { requirements }
}

fn affinity(random: &mut Random, percent: usize, tight: bool) -> Arc<Affinity> {
    let mut affinity = Affinity::default();
    let many = |random: &mut Random| if random.chance(percent) { 1 + random.weighted(&[70, 25, 5]) } else { 0 };
    for _ in 0..many(random) {
        affinity.required.push(selector(random, tight));
    }
    for _ in 0..many(random) {
        affinity.required_anti.push(selector(random, tight));
    }
    let weight = |random: &mut Random| *random.pick(&[1, 7, 50, 100]);
    for _ in 0..many(random) {
        affinity.preferred.push((weight(random), selector(random, tight)));
    }
    for _ in 0..many(random) {
        affinity.preferred_anti.push((weight(random), selector(random, tight)));
    }
    Arc::new(affinity)
}

fn requests(random: &mut Random, rich: bool) -> Vec<(&'static str, i64)> {
    if !rich {
        return if random.chance(70) { Vec::new() } else { vec![("runs", 2)] };
    }
    let mut requests = Vec::new();
    if random.chance(30) {
        requests.push(("runs", *random.pick(&[0, 1, 2, 3])));
    }
    if random.chance(50) {
        requests.push(("gpu", *random.pick(&[1, 1, 2])));
    }
    if random.chance(40) {
        requests.push(("mem", *random.pick(&[1, 3, 5, 7, i64::MAX / 2])));
    }
    requests
}

fn capacity(random: &mut Random, rich: bool, tight: bool) -> Vec<(&'static str, i64)> {
    let mut capacity = Vec::new();
    if !random.chance(3) {
        capacity.push(("runs", *random.pick(if tight { &[0, 1, 2] } else { &[0, 1, 1, 2, 2, 3, 4, 10] })));
    }
    if rich {
        if random.chance(70) {
            capacity.push(("gpu", *random.pick(&[0, 1, 2, 3])));
        }
        if random.chance(70) {
            capacity.push(("mem", *random.pick(&[3, 7, 10, 21, i64::MAX])));
        }
    }
    capacity
}

fn run_spec(random: &mut Random, taste: &Taste) -> RunSpec {
    let mut spec = if random.chance(80) && !taste.templates.is_empty() {
        random.pick(&taste.templates).clone()
    } else {
        RunSpec {
            runtime: random.below(taste.runtimes),
            labels: labels(random, taste.tight),
            requests: Some(requests(random, taste.rich_requests)),
            affinity: affinity(random, taste.affinity, taste.tight),
            workspace: random.chance(taste.workspaces).then(|| random.below(3)),
            created_s: 0,
            invalid: None,
            state: State::Pending,
        }
    };
    spec.created_s = i64::try_from(random.below(6)).expect("small");
    if random.chance(3) {
        spec.invalid = Some(InvalidReason::InvalidSpec);
    } else if random.chance(2) {
        spec.invalid = Some(InvalidReason::InvalidResources);
        spec.requests = None;
    }
    spec.state = match random.weighted(&[82, 4, 10, 2, 2]) {
        0 => State::Pending,
        1 => State::Held(*random.pick(&[500, 5_000, 60_000])),
        2 => State::Active(random.below(taste.pods + 1)),
        3 => State::Adrift,
        _ => State::Terminal,
    };
    spec
}

fn pod_spec(random: &mut Random, taste: &Taste) -> PodSpec {
    PodSpec {
        runtime: random.below(taste.runtimes),
        running: random.chance(93),
        ready: random.chance(90),
        heartbeat: random.chance(95),
        probe_age_ms: if random.chance(97) { Some(*random.pick(&[0, 0, 0, 0, 100, 5_000, 14_900, 15_001, 60_000, -1_000, -3_600_000])) } else { None },
        capacity: capacity(random, taste.rich_requests, taste.tight),
        agent: random.chance(50),
    }
}

fn pod_change(random: &mut Random, taste: &Taste) -> PodChange {
    match random.weighted(&[5, 10, 4, 4, 20, 25, 5, 10, 6, 3]) {
        0 => PodChange::Running(random.chance(70)),
        1 => PodChange::Ready(random.chance(65)),
        2 => PodChange::Terminating,
        3 => PodChange::Heartbeat(random.chance(60)),
        4 => PodChange::Beat(*random.pick(&[0, 0, 5_000, 20_000, -20_000])),
        5 => PodChange::Capacity(capacity(random, taste.rich_requests, taste.tight)),
        6 => PodChange::CapacityAndAgent(capacity(random, taste.rich_requests, taste.tight), random.chance(70)),
        7 => PodChange::Agent(random.chance(60)),
        8 => PodChange::Label(random.below(3)),
        _ => PodChange::Runtime(random.below(taste.runtimes)),
    }
}

fn run_change(random: &mut Random, taste: &Taste) -> RunChange {
    match random.weighted(&[30, 6, 6, 2, 8, 6, 42]) {
        0 => RunChange::Labels(labels(random, taste.tight)),
        1 => RunChange::Requests(if random.chance(85) { Some(requests(random, taste.rich_requests)) } else { None }),
        2 => RunChange::Affinity(affinity(random, taste.affinity, taste.tight)),
        3 => RunChange::Runtime(random.below(taste.runtimes)),
        4 => RunChange::Cancel,
        5 => RunChange::Deleting,
        _ => RunChange::State(match random.weighted(&[25, 10, 25, 3, 37]) {
            0 => State::Pending,
            1 => State::Held(*random.pick(&[500, 5_000, 60_000])),
            2 => State::Active(random.below(taste.pods + 1)),
            3 => State::Adrift,
            _ => State::Terminal,
        }),
    }
}

fn workspace_spec(random: &mut Random, taste: &Taste) -> WorkspaceSpec {
    WorkspaceSpec {
        runtime: random.below(taste.runtimes),
        phase: *random.pick(&[
            WorkspacePhase::Bound,
            WorkspacePhase::Bound,
            WorkspacePhase::Bound,
            WorkspacePhase::Bound,
            WorkspacePhase::Pending,
            WorkspacePhase::Lost,
            WorkspacePhase::Released,
        ]),
        bound: random.chance(95).then(|| random.below(taste.pods + 1)),
        uid: *random.pick(&[BoundUid::Real, BoundUid::Real, BoundUid::Real, BoundUid::Real, BoundUid::Real, BoundUid::Other, BoundUid::Absent]),
        deleting: random.chance(5),
        recreate: random.chance(15),
    }
}

fn rules(random: &mut Random) -> Rules {
    let weight = |random: &mut Random| *random.pick(&[1, 1, 1, 1, 3, 1000]);
    let mut rules = Rules::default();
    if random.chance(45) {
        rules.runtime_ready = Some(random.chance(50));
        rules.workspace_fencing = Some(random.chance(50));
        rules.run_affinity = Some((random.chance(50), weight(random)));
        rules.capacity = Some((random.chance(50), weight(random)));
    }
    if random.chance(12) {
        match random.below(4) {
            0 => rules.runtime_ready = None,
            1 => rules.workspace_fencing = None,
            2 => rules.run_affinity = None,
            _ => rules.capacity = None,
        }
    }
    rules
}

/// The history of a seed.
pub fn history(seed: u64) -> History {
    let random = &mut Random::new(seed);
    let mut taste = Taste {
        runtimes: 1 + random.weighted(&[65, 25, 10]),
        pods: 1 + random.below(6),
        runs: 4 + random.below(10),
        affinity: *random.pick(&[0, 10, 30, 60]),
        workspaces: *random.pick(&[0, 0, 15, 50]),
        rich_requests: random.chance(50),
        tight: random.chance(40),
        quiet: *random.pick(&[0, 0, 30, 70]),
        templates: Vec::new(),
    };
    for _ in 0..1 + random.below(5) {
        let template = RunSpec { invalid: None, ..run_spec(random, &taste) };
        taste.templates.push(template);
    }
    for template in &mut taste.templates {
        template.requests.get_or_insert_default();
    }
    let taste = taste;
    let mut history =
        History { namespaces: 1 + random.weighted(&[70, 20, 10]), rules: rules(random), lag: random.chance(50), prompt: random.chance(45), events: Vec::new() };
    for pod in 0..taste.pods {
        if random.chance(80) {
            let event = Event::CreatePod(pod, pod_spec(random, &taste), false);
            history.events.push(Timed { event, quiet: true });
        }
    }
    let (slow, late) = (usize::from(!history.prompt), usize::from(history.lag));
    let length = 30 + random.below(70);
    for _ in 0..length {
        let event = match random.weighted(&[28, 22, 5, 4, 16, 3, 6, 1, 10 * slow, 2 * slow, 10 * slow, 18 * late, 9, 7, 1, 4 * late]) {
            0 => Event::CreateRun(random.below(taste.runs), run_spec(random, &taste), random.chance(50)),
            1 => Event::ChangeRun(random.below(taste.runs), run_change(random, &taste)),
            2 => Event::DeleteRun(random.below(taste.runs)),
            3 => Event::CreatePod(random.below(taste.pods), pod_spec(random, &taste), random.chance(50)),
            4 => Event::ChangePod(random.below(taste.pods), pod_change(random, &taste)),
            5 => Event::DeletePod(random.below(taste.pods)),
            6 if taste.workspaces == 0 => continue,
            6 => Event::Workspace(random.below(3), workspace_spec(random, &taste)),
            7 => Event::DeleteWorkspace(random.below(3)),
            8 => Event::Execute(random.below(4)),
            9 => Event::Fail(random.below(4)),
            10 => Event::Answer(random.below(4)),
            11 => Event::Deliver(random.below(3), 1 + random.below(4)),
            12 => Event::Advance(*random.pick(&[100, 999, 1_000, 3_000, 10_000, 16_000, 61_000, 301_000])),
            13 => Event::BeatAll,
            14 => Event::Profile(rules(random)),
            _ => Event::Relist(random.below(3)),
        };
        history.events.push(Timed { event, quiet: random.chance(taste.quiet) });
    }
    history
}
