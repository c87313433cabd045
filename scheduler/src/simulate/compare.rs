//! `berth simulate --compare A B`: the same input under two configurations, and where their placements differ.
//!
//! Its JSON is stable: see [`Comparison`]. Every key is always there; times are virtual milliseconds since the clock's start.

mod measure;
mod print;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests;

use std::path::Path;
use std::sync::Arc;

use berth_api::PersistentWorkspace;
use berth_controllers::policy::Policies;
use berth_framework::profile::{Profiles, Registry};
use serde::Serialize;

use super::args::SimulateArgs;
use super::assemble::{run_report, summary_of};
use super::drive::{Outcome, Outcomes};
use super::history::{History, Span};
use super::report::{RunReport, Summary};
use crate::config;

pub use measure::{LoadReport, PodFacts, PodLoad, WaitReport, loads, pods, waits};
pub use print::print;

/// The word for the built-in configuration.
const DEFAULT: &str = "default";

/// A configuration and what it is called.
#[derive(Debug)]
pub struct Configuration {
    /// The file, or `default`.
    pub label: String,
    /// What it says to the scheduler.
    pub profiles: Profiles,
    /// And to the binder.
    pub policies: Policies,
}

/// The configurations to simulate: both of `--compare`, or the one.
///
/// # Errors
/// Everything that is wrong with the first that can't be used.
pub fn configurations(args: &SimulateArgs, registry: &Registry) -> anyhow::Result<Vec<Configuration>> {
    let load = |path: Option<&Path>| {
        let loaded = config::load_whole(path, registry)?;
        let label = path.map_or_else(|| DEFAULT.to_owned(), |path| path.display().to_string());
        Ok(Configuration { label, policies: loaded.policies(), profiles: loaded.profiles })
    };
    match &args.compare {
        None => Ok(vec![load(args.config.as_deref())?]),
        Some(files) => files.iter().map(|file| load(Some(file.as_path()).filter(|file| *file != Path::new(DEFAULT)))).collect(),
    }
}

/// What came out under one configuration.
#[derive(Debug)]
pub struct Side {
    /// What its configuration is called.
    pub label: String,
    /// Its profiles.
    pub profiles: Profiles,
    /// The workspaces as the binder leaves them, each with its place in the input.
    pub workspaces: Vec<(usize, PersistentWorkspace)>,
    /// Whether placed Runs end.
    pub runs_end: bool,
    /// What came out.
    pub outcomes: Outcomes,
    /// What happened when.
    pub history: History,
}

impl Side {
    /// Takes the history out of the outcomes of a simulation that recorded it.
    pub fn new(label: String, profiles: Profiles, workspaces: Vec<(usize, PersistentWorkspace)>, runs_end: bool, mut outcomes: Outcomes) -> Self {
        let history = outcomes.history.take().unwrap_or_default();
        Self { label, profiles, workspaces, runs_end, outcomes, history }
    }
}

/// Where two simulations of one input differ.
///
/// ```json
/// {"a": {"config", "summary": {"placed", "pending", "failed", "cancelled", "cycles", "decision"}, "waitedMs": {"p50", "p99", "max"},
///        "load": {"of", "pods", "mean", "imbalance", "busiest": {"pod", "load"}, "idlest"}, "elapsedMs"},
///  "b": {…},
///  "summary": {"same", "different", "onlyA", "onlyB", "neither", "notTried"},
///  "differences": [{"namespace", "name", "change", "a": {a Run as without --compare, and "placedAtMs", "endedAtMs"}, "b": {…}}]}
/// ```
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Under the first configuration.
    pub a: SideReport,
    /// Under the second.
    pub b: SideReport,
    /// How many Runs.
    pub summary: Counts,
    /// The Runs whose placement differs, in input order.
    pub differences: Vec<Difference>,
}

/// One side in numbers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SideReport {
    /// The file, or `default`.
    pub config: String,
    /// As without `--compare`, without the Runs that the API refuses.
    pub summary: Summary,
    /// How long placed Runs had waited.
    pub waited_ms: WaitReport,
    /// How evenly the Pods were loaded.
    pub load: LoadReport,
    /// How far the clock went.
    pub elapsed_ms: u64,
}

/// Runs by how the two sides agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// On the same Pod.
    pub same: usize,
    /// On different Pods.
    pub different: usize,
    /// Placed by the first only.
    pub only_a: usize,
    /// Placed by the second only.
    pub only_b: usize,
    /// Placed by neither: they wait, or ended without a Pod.
    pub neither: usize,
    /// On a Pod or ended in the input already, or refused by the API.
    pub not_tried: usize,
}

impl Counts {
    /// Counts.
    pub fn of(changes: &[Change]) -> Self {
        let mut counts = Self::default();
        for change in changes {
            *match change {
                Change::Same => &mut counts.same,
                Change::Different => &mut counts.different,
                Change::OnlyA => &mut counts.only_a,
                Change::OnlyB => &mut counts.only_b,
                Change::Neither => &mut counts.neither,
                Change::NotTried => &mut counts.not_tried,
            } += 1;
        }
        counts
    }
}

/// How the placements of a Run compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// On the same Pod.
    Same,
    /// On different Pods.
    Different,
    /// Placed by the first only.
    OnlyA,
    /// Placed by the second only.
    OnlyB,
    /// Placed by neither.
    Neither,
    /// Nothing was to be done.
    NotTried,
}

/// One Run whose placement differs.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// How.
    pub change: Change,
    /// Under the first configuration.
    pub a: RunUnder,
    /// Under the second.
    pub b: RunUnder,
}

/// A Run under one configuration.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunUnder {
    /// As without `--compare`.
    #[serde(flatten)]
    pub run: RunReport,
    /// When it was placed.
    pub placed_at_ms: Option<u64>,
    /// When it ended.
    pub ended_at_ms: Option<u64>,
    /// Its runtime, which tells the profile.
    #[serde(skip)]
    pub runtime: Arc<str>,
}

/// How the placements of every Run compare, in the order of the input.
pub fn changes(a: &Side, b: &Side) -> Vec<Change> {
    let placed = |outcome| outcome == Outcome::Placed;
    let pairs = a.outcomes.runs.iter().zip(&b.outcomes.runs).zip(a.history.spans.iter().zip(&b.history.spans));
    pairs
        .map(|((in_a, in_b), (span_a, span_b))| match (placed(in_a.outcome), placed(in_b.outcome)) {
            (true, true) if in_a.object.assigned_pod == in_b.object.assigned_pod => Change::Same,
            (true, true) => Change::Different,
            (true, false) => Change::OnlyA,
            (false, true) => Change::OnlyB,
            (false, false) if span_a.was_pending() || span_b.was_pending() => Change::Neither,
            (false, false) => Change::NotTried,
        })
        .collect()
}

impl Comparison {
    /// Compares. `refused` is how many Runs the API refuses.
    pub fn of(a: &Side, b: &Side, pods: &[PodFacts], refused: usize) -> Self {
        let changes = changes(a, b);
        let mut summary = Counts::of(&changes);
        summary.not_tried += refused;
        let differs = |change: &Change| matches!(change, Change::Different | Change::OnlyA | Change::OnlyB);
        let differences = changes.into_iter().enumerate().filter(|(_, change)| differs(change)).filter_map(|(index, change)| {
            let (a, b) = (run_under(a, index)?, run_under(b, index)?);
            Some(Difference { namespace: a.run.namespace.clone(), name: a.run.name.clone(), change, a, b })
        });
        let differences = differences.collect();
        Self { a: side_report(a, pods), b: side_report(b, pods), summary, differences }
    }
}

fn run_under(side: &Side, index: usize) -> Option<RunUnder> {
    let (run, span): (_, &Span) = (side.outcomes.runs.get(index)?, side.history.spans.get(index)?);
    Some(RunUnder {
        run: run_report(run),
        placed_at_ms: span.placed.map(|at| at.ms),
        ended_at_ms: span.ended.map(|at| at.ms),
        runtime: run.object.runtime.clone(),
    })
}

fn side_report(side: &Side, pods: &[PodFacts]) -> SideReport {
    SideReport {
        config: side.label.clone(),
        summary: summary_of(&side.outcomes),
        waited_ms: waits(side),
        load: loads(side, pods),
        elapsed_ms: side.outcomes.elapsed_ms,
    }
}
