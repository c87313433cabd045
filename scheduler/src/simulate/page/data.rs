//! What a page knows: the Pods and Runs of the input, and for each configuration what became of them, in columns.
//!
//! Texts that occur often are in `strings` and referred to by index; -1 is none. `model.js` reads it.

use std::collections::BTreeMap;

use berth_api::constants::KIND_RUN;
use berth_api::runtime_ready::Verdict;
use berth_framework::Ranked;
use berth_framework::model::{ObjectKey, Requests};
use jiff::Timestamp;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::simulate::compare::{self, Change, Counts, LoadReport, PodFacts, Side, WaitReport};
use crate::simulate::drive::{Outcome, Settings, first_moment};
use crate::simulate::history::{Moment, Samples};
use crate::simulate::report::Summary;
use crate::simulate::{assemble, world::World};

/// From so many Runs on, the runners-up are left out, so that the page stays small.
const RUNS_WITH_RUNNERS_UP_MAX: usize = 20_000;

/// What a page is made of.
pub struct Input<'a> {
    /// One simulation, or two to compare.
    pub sides: &'a [Side],
    /// The input.
    pub world: &'a World,
    /// How it was simulated.
    pub settings: Settings,
    /// When the clock started.
    pub start: Timestamp,
    /// Why then.
    pub why: &'a str,
}

/// What a page knows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    version: u32,
    start: String,
    start_ms: i64,
    why: String,
    run_duration_ms: Option<u64>,
    until_ms: Option<u64>,
    workspaces: usize,
    left_alone: BTreeMap<String, usize>,
    strings: Vec<String>,
    pods: Vec<PodData>,
    /// Resource and amount.
    requests: Vec<Vec<(String, i64)>>,
    runs: RunColumns,
    sides: Vec<SideData>,
    /// With two sides: how they compare.
    counts: Option<Counts>,
    /// With two sides: of each Run.
    changes: Vec<Change>,
}

#[derive(Debug, Serialize)]
struct PodData {
    namespace: String,
    name: String,
    runtime: String,
    capacity: BTreeMap<String, i64>,
    /// Why it was not available at the start; empty if it was.
    note: &'static str,
}

/// One entry per Run, those that the API refuses last.
#[derive(Debug, Default, Serialize)]
struct RunColumns {
    namespace: Vec<i64>,
    name: Vec<String>,
    runtime: Vec<i64>,
    requests: Vec<i64>,
}

/// One simulation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SideData {
    label: String,
    elapsed_ms: u64,
    steps: usize,
    summary: Summary,
    waited: WaitReport,
    load: LoadReport,
    /// Weight by plugin, by runtime.
    weights: BTreeMap<String, BTreeMap<&'static str, i64>>,
    plugins: Vec<&'static str>,
    causes: Vec<CauseData>,
    waiting_by_time: SampleData,
    waiting_by_step: SampleData,
    runs: OutcomeColumns,
}

#[derive(Debug, Serialize)]
struct CauseData {
    plugin: &'static str,
    code: &'static str,
}

/// `counts[i]` is of causes, from `at[i]` to `at[i + 1]`.
#[derive(Debug, Serialize)]
struct SampleData {
    at: Vec<u64>,
    counts: Vec<Box<[u32]>>,
}

/// One entry per Run, in the order of [`RunColumns`].
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct OutcomeColumns {
    /// `placed`, `waiting`, `failed`, `cancelled`, `untouched`.
    state: Vec<&'static str>,
    phase: Vec<i64>,
    reason: Vec<i64>,
    message: Vec<i64>,
    pod: Vec<i64>,
    /// The input has it on its Pod.
    held: Vec<u8>,
    attempts: Vec<u32>,
    /// -1 = never; so are the next three.
    placed_ms: Vec<i64>,
    placed_step: Vec<i64>,
    ended_ms: Vec<i64>,
    ended_step: Vec<i64>,
    cause: Vec<i64>,
    /// Pod, total and plugin, value, plugin, value, …; scores in thousandths.
    scores: Vec<Vec<Vec<i64>>>,
    /// Plugin, reason, Pods.
    rejections: Vec<Vec<(i64, i64, u32)>>,
}

/// Gives every different text a number.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    known: FxHashMap<String, i64>,
}

impl Strings {
    fn of(&mut self, text: &str) -> i64 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let index = int(self.list.len());
        self.list.push(text.to_owned());
        self.known.insert(text.to_owned(), index);
        index
    }
}

fn int(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

impl Data {
    /// Collects it.
    pub fn of(input: &Input<'_>) -> Self {
        let Input { sides, world, settings, start, why } = input;
        let facts = compare::pods(world, first_moment(start.as_millisecond()));
        let mut strings = Strings::default();
        let mut pods = Pods::of(&facts);
        let (runs, requests) = runs(sides.first(), world, &mut strings);
        let side_data: Vec<SideData> = sides.iter().map(|side| side_data(side, world, &facts, &mut pods, &mut strings)).collect();
        let (counts, changes) = match sides {
            [a, b] => {
                let mut changes = compare::changes(a, b);
                changes.resize(runs.name.len(), Change::NotTried);
                (Some(Counts::of(&changes)), changes)
            }
            _ => (None, Vec::new()),
        };
        Self {
            version: 1,
            start: start.to_string(),
            start_ms: start.as_millisecond(),
            why: (*why).to_owned(),
            run_duration_ms: settings.run_duration_ms,
            until_ms: settings.until_ms,
            workspaces: world.workspaces.len(),
            left_alone: world.left_alone.clone(),
            strings: strings.list,
            pods: pods.list,
            requests,
            runs,
            sides: side_data,
            counts,
            changes,
        }
    }
}

/// The Pods by number: those of the input, then those that only Runs name.
struct Pods {
    list: Vec<PodData>,
    known: FxHashMap<ObjectKey, i64>,
}

impl Pods {
    fn of(facts: &[PodFacts]) -> Self {
        let list = facts.iter().map(|pod| PodData {
            namespace: pod.key.namespace.to_string(),
            name: pod.key.name.to_string(),
            runtime: pod.runtime.to_string(),
            capacity: pod.capacity.iter().map(|(resource, amount)| (resource.to_string(), *amount)).collect(),
            note: note(pod.verdict),
        });
        Self { list: list.collect(), known: facts.iter().enumerate().map(|(index, pod)| (pod.key.clone(), int(index))).collect() }
    }

    fn number(&mut self, key: ObjectKey, runtime: &str) -> i64 {
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
        self.list.push(PodData { namespace, name, runtime: runtime.to_owned(), capacity: BTreeMap::new(), note: "not in the input" });
        let index = int(self.list.len() - 1);
        self.known.insert(key, index);
        index
    }
}

fn note(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ready => "",
        Verdict::NotRunning => "not running",
        Verdict::NotReady => "not ready",
        Verdict::Terminating => "terminating",
        Verdict::HeartbeatMissing => "no heartbeat",
        Verdict::HeartbeatStale => "heartbeat stale",
    }
}

fn runs(side: Option<&Side>, world: &World, strings: &mut Strings) -> (RunColumns, Vec<Vec<(String, i64)>>) {
    let mut columns = RunColumns::default();
    let mut requests: Vec<Vec<(String, i64)>> = Vec::new();
    let mut known: FxHashMap<&Requests, i64> = FxHashMap::default();
    for run in side.iter().flat_map(|side| &side.outcomes.runs) {
        columns.namespace.push(strings.of(&run.object.key.namespace));
        columns.name.push(run.object.key.name.to_string());
        columns.runtime.push(strings.of(&run.object.runtime));
        columns.requests.push(match run.object.requests.as_deref() {
            None => -1,
            Some(wanted) => *known.entry(wanted).or_insert_with(|| {
                requests.push(wanted.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect());
                int(requests.len() - 1)
            }),
        });
    }
    for refused in world.refused.iter().filter(|refused| refused.kind == KIND_RUN) {
        columns.namespace.push(strings.of(&refused.key.namespace));
        columns.name.push(refused.key.name.to_string());
        columns.runtime.push(-1);
        columns.requests.push(-1);
    }
    (columns, requests)
}

fn side_data(side: &Side, world: &World, facts: &[PodFacts], pods: &mut Pods, strings: &mut Strings) -> SideData {
    let history = &side.history;
    let mut plugins: Vec<&'static str> = Vec::new();
    let mut columns = OutcomeColumns::default();
    let mut weights: BTreeMap<String, BTreeMap<&'static str, i64>> = BTreeMap::new();
    let keep = if side.outcomes.runs.len() > RUNS_WITH_RUNNERS_UP_MAX { 1 } else { usize::MAX };
    for (run, span) in side.outcomes.runs.iter().zip(&history.spans) {
        let namespace = &run.object.key.namespace;
        let runtime = &run.object.runtime;
        let mut pod = |name: &std::sync::Arc<str>| pods.number(ObjectKey { namespace: namespace.clone(), name: name.clone() }, runtime);
        if !weights.contains_key(&**runtime) {
            weights.insert(runtime.to_string(), side.profiles.of(runtime).score_weights().collect());
        }
        columns.state.push(match run.outcome {
            Outcome::Placed => "placed",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Untouched if span.was_pending() => "waiting",
            Outcome::Untouched => "untouched",
        });
        columns.phase.push(strings.of(&run.phase));
        columns.reason.push(strings.of(&run.reason));
        columns.message.push(strings.of(&run.message));
        columns.pod.push(run.object.assigned_pod.as_ref().filter(|_| span.held || span.placed.is_some()).map_or(-1, &mut pod));
        columns.held.push(u8::from(span.held));
        columns.attempts.push(run.attempts);
        let ms = |at: Option<Moment>| at.map_or(-1, |at| int(at.ms));
        let step = |at: Option<Moment>| at.map_or(-1, |at| int(at.step));
        columns.placed_ms.push(ms(span.placed));
        columns.placed_step.push(step(span.placed));
        columns.ended_ms.push(ms(span.ended));
        columns.ended_step.push(step(span.ended));
        columns.cause.push(span.cause.map_or(-1, int));
        columns.scores.push(run.ranked.iter().take(keep).map(|ranked| score(ranked, pod(&ranked.pod), &mut plugins)).collect());
        let rejections = run.rejections.iter().map(|row| (strings.of(row.plugin), strings.of(row.rejection.reason.code), row.pods));
        columns.rejections.push(rejections.collect());
    }
    for refused in world.refused.iter().filter(|refused| refused.kind == KIND_RUN) {
        columns.refuse(strings.of("Failed"), strings.of("InvalidSpec"), strings.of(&refused.message));
    }
    SideData {
        label: side.label.clone(),
        elapsed_ms: side.outcomes.elapsed_ms,
        steps: side.outcomes.times.len(),
        summary: assemble::summary_of(&side.outcomes),
        waited: compare::waits(side),
        load: compare::loads(side, facts),
        weights,
        plugins,
        causes: history.causes.iter().map(|cause| CauseData { plugin: cause.plugin, code: cause.code }).collect(),
        waiting_by_time: samples(&history.by_time),
        waiting_by_step: samples(&history.by_step),
        runs: columns,
    }
}

impl OutcomeColumns {
    /// A Run that the API refuses.
    fn refuse(&mut self, phase: i64, reason: i64, message: i64) {
        self.state.push("failed");
        self.phase.push(phase);
        self.reason.push(reason);
        self.message.push(message);
        self.held.push(0);
        self.attempts.push(0);
        for column in [&mut self.pod, &mut self.placed_ms, &mut self.placed_step, &mut self.ended_ms, &mut self.ended_step, &mut self.cause] {
            column.push(-1);
        }
        self.scores.push(Vec::new());
        self.rejections.push(Vec::new());
    }
}

fn score(ranked: &Ranked, pod: i64, plugins: &mut Vec<&'static str>) -> Vec<i64> {
    let mut row = vec![pod, ranked.total];
    for (plugin, value) in &ranked.by_plugin {
        let known = plugins.iter().position(|known| known == plugin);
        row.push(int(known.unwrap_or_else(|| {
            plugins.push(plugin);
            plugins.len() - 1
        })));
        row.push(*value);
    }
    row
}

fn samples(samples: &Samples) -> SampleData {
    SampleData { at: samples.at.clone(), counts: samples.counts.clone() }
}
