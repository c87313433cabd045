//! `berth simulate`: the same core, plugins and binder rule on manifests, with a virtual clock.
//!
//! ```text
//! files ─► read ─► world (checked, decoded, completed) ─► binder ─► drive (the core) ─► report ─► table | JSON
//!                                                    twice with --compare ─► compare
//!                                                    with --html ─► history ─► page
//! ```

mod args;
mod assemble;
mod binder;
mod compare;
mod drive;
mod history;
mod jobs;
pub(crate) mod lines;
mod page;
mod read;
mod report;
mod table;
mod times;
mod world;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use berth_api::constants::{KIND_RUN, run_condition};
use berth_api::runtime_ready::Verdict;
use berth_api::{PersistentWorkspace, Run, conditions};
use berth_controllers::policy::Policies;
use berth_framework::from_api;
use berth_framework::model::{Now, ObjectKey};
use berth_framework::profile::{Profiles, Registry};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

pub use args::{Output, RunName, SimulateArgs};
use compare::{Comparison, Configuration, Side};
use drive::{Outcome, Outcomes, Settings, SimulatedRun, Simulation, first_moment};
pub use jobs::JobReport;
use read::{Content, Source};
pub use report::{Decision, ExplainReport, ExplainedPod, RejectionReport, Report, RunReport, ScoreReport, Summary, VerdictReport, WorkspaceReport};
pub(crate) use table::print_explanation as print_pods;
use world::{Placed, World};

use crate::cli::{EXIT_FAILED, EXIT_OK};
use crate::printable::one_line;

/// From so many objects on, stderr tells how far it is.
const BIG: usize = 2_000;
/// A text that takes a moment to read.
const BIG_BYTES: usize = 16 << 20;
/// How often it tells.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Simulates and prints; answers the exit code.
///
/// # Errors
/// Input or configuration that can't be read, or `--explain` of a Run that isn't there.
pub fn run(args: &SimulateArgs, registry: &Registry, stdin: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    let configurations = compare::configurations(args, registry)?;
    let mut world = World::new(Timestamp::now());
    read_all(&args.filenames, &mut world, stdin, err)?;
    let (start, why) = world.start(args.now);
    world.complete(start);
    if args.place_again {
        world.place_again();
    }
    let explain = args.explain.as_ref().map(|run| ObjectKey::new(run.namespace.as_str(), run.name.as_str()));
    if let Some(key) = &explain {
        explainable(key, &world)?;
    }
    for warning in &world.warnings {
        writeln!(err, "warning: {}", one_line(warning))?;
    }
    if world.more_warnings > 0 {
        writeln!(err, "warning: and {} more", world.more_warnings)?;
    }
    let settings = Settings { run_duration_ms: args.run_duration.map(millis), until_ms: args.until.map(millis) };
    let now = first_moment(start.as_millisecond());
    tell_oddities(&world, now, err)?;
    let version = version_above(&world);
    let simulation = |profiles: &Profiles, workspaces: &[(usize, PersistentWorkspace)]| {
        let mut simulation = Simulation::new(profiles.clone(), settings, start.as_millisecond(), version);
        if args.compare.is_some() || args.html.is_some() {
            simulation.record();
        }
        fill(&mut simulation, &world, workspaces);
        simulation
    };
    let mut sides = Vec::new();
    let mut explained = None;
    for Configuration { label, profiles, policies } in configurations {
        let workspaces = bound_workspaces(&world, &policies, now);
        let mut progress = Progress::new(world.len(), world.runs.len(), err);
        let outcomes;
        (outcomes, explained) = simulation(&profiles, &workspaces).run(explain.as_ref(), &mut |placed| progress.tell(placed));
        progress.end();
        if outcomes.placed_after_flush > 0 {
            writeln!(err, "warning: {} Runs were placed by the alarm only, so a wake-up was lost; please report this", outcomes.placed_after_flush)?;
        }
        sides.push(Side::new(label, profiles, workspaces, settings.run_duration_ms.is_some(), outcomes));
    }
    if let Some(path) = &args.html {
        page::write(path, &page::Input { sides: &sides, world: &world, settings, start, why: &why }, err)?;
    }
    match sides.as_mut_slice() {
        [a, b] => print_comparison(args, a, b, &world, now, out),
        [side, ..] => {
            if let Some(key) = &explain
                && let Some(cycle) = side.outcomes.runs.iter().find(|run| run.object.key == *key).and_then(|run| run.placed_after)
            {
                explained = simulation(&side.profiles, &side.workspaces).explain_before(cycle, key);
            }
            let refused = std::mem::take(&mut world.refused);
            let mut report = assemble::assemble(&side.outcomes, std::mem::take(&mut side.workspaces), refused, explain.as_ref().zip(explained));
            report.jobs = world.jobs.judge();
            let weights = side.profiles.of("").score_weights().collect();
            match args.output {
                Output::Json => print_json(&report, out)?,
                Output::Table => {
                    let Outcomes { elapsed_ms, cut_short, .. } = side.outcomes;
                    table::print(&report, &table::Notes { weights, left_alone: &world.left_alone, start, why: &why, elapsed_ms, cut_short }, out)?;
                }
            }
            let Summary { pending, failed, .. } = report.summary;
            let refused = report.jobs.iter().any(|job| job.accepted == Some(false));
            Ok(if args.require_placed && pending + failed > 0 || args.require_accepted && refused { EXIT_FAILED } else { EXIT_OK })
        }
        [] => Ok(EXIT_OK),
    }
}

/// Reads everything, telling how far it is if that takes long.
fn read_all(arguments: &[PathBuf], world: &mut World, stdin: &mut dyn Read, err: &mut dyn Write) -> anyhow::Result<()> {
    let mut told = Instant::now();
    for Source { path, named } in read::files(arguments)? {
        let (file, text) = read::text(&path, stdin)?;
        if text.len() >= BIG_BYTES {
            writeln!(err, "reading {file}, {} MiB", text.len() >> 20)?;
        }
        let content = read::objects(&file, &text, &mut |found| {
            world.take_or_leave(found);
            if told.elapsed() >= PROGRESS_EVERY {
                told = Instant::now();
                let _ = writeln!(err, "read {} objects so far", world.len());
            }
        })?;
        // In a folder there may be other files than manifests; who names one means it.
        if let Content { objects: 0, stray: Some(stray) } = content
            && named
        {
            return Err(stray.into());
        }
    }
    Ok(())
}

fn print_comparison(args: &SimulateArgs, a: &Side, b: &Side, world: &World, now: Now, out: &mut dyn Write) -> anyhow::Result<u8> {
    let refused = world.refused.iter().filter(|refused| refused.kind == KIND_RUN).count();
    let comparison = Comparison::of(a, b, &compare::pods(world, now), refused);
    match args.output {
        Output::Json => print_json(&comparison, out)?,
        Output::Table => compare::print(&comparison, &a.profiles, &b.profiles, out)?,
    }
    Ok(EXIT_OK)
}

fn print_json(report: &impl Serialize, out: &mut dyn Write) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report).map_err(std::io::Error::from)?;
    writeln!(out)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether `--explain` names a Run of the input that the core will see.
fn explainable(key: &ObjectKey, world: &World) -> anyhow::Result<()> {
    let keys = || world.runs.iter().map(|run| from_meta(&run.object.metadata));
    if keys().any(|known| known == *key) {
        return Ok(());
    }
    if let Some(refused) = world.refused.iter().find(|refused| refused.kind == KIND_RUN && refused.key == *key) {
        bail!("--explain {key}: the API would refuse this Run: {}", refused.message);
    }
    if world.jobs.has(key) {
        bail!("--explain {key}: this is a Job; its row tells why it would be accepted or not");
    }
    let nearest = keys().map(|known| (strsim::levenshtein(&known.to_string(), &key.to_string()), known)).min_by_key(|(distance, _)| *distance);
    match nearest {
        Some((distance, known)) if distance <= 3 => bail!("--explain {key}: no such Run in the input; did you mean {known}?"),
        _ => bail!("--explain {key}: no such Run in the input"),
    }
}

fn from_meta(meta: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// A resource version that no object of the input has reached.
fn version_above(world: &World) -> u64 {
    let of = |meta: &ObjectMeta| meta.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
    world.runs.iter().filter_map(|run| of(&run.object.metadata)).max().unwrap_or(0)
}

/// The workspaces when the binder has done its work, each with its place in the input.
fn bound_workspaces(world: &World, policies: &Policies, now: Now) -> Vec<(usize, PersistentWorkspace)> {
    let mut binder = binder::Binder::new(world, policies, now);
    let bound = |workspace: &Placed<PersistentWorkspace>| {
        let mut object = workspace.object.clone();
        binder.bind(&mut object);
        (workspace.order, object)
    };
    world.workspaces.iter().map(bound).collect()
}

/// Tells what the user may not have meant.
fn tell_oddities(world: &World, now: Now, err: &mut dyn Write) -> std::io::Result<()> {
    let mut stale = 0;
    for pod in &world.pods {
        stale += usize::from(binder::availability(&pod.object, now).verdict == Verdict::HeartbeatStale);
        for (resource, value) in from_api::pod_object(&pod.object).into_iter().flat_map(|object| object.bad_capacity) {
            let key = from_meta(&pod.object.metadata);
            let (key, resource) = (key.to_string(), resource.as_str());
            writeln!(
                err,
                "warning: Pod {}: its capacity of {} is ignored: {value:?} is no quantity from 0 to 9223372036854775807",
                one_line(&key),
                one_line(resource)
            )?;
        }
    }
    if stale > 0 {
        writeln!(err, "note: {stale} of {} Pods have a stale heartbeat when the clock starts; --now sets another time", world.pods.len())?;
    }
    Ok(())
}

/// Gives the simulation its objects.
fn fill(simulation: &mut Simulation, world: &World, workspaces: &[(usize, PersistentWorkspace)]) {
    workspaces.iter().for_each(|(_, workspace)| simulation.add_workspace(from_api::workspace_object(workspace)));
    world.pods.iter().filter_map(|pod| from_api::pod_object(&pod.object)).for_each(|pod| simulation.add_pod(pod));
    world.runs.iter().for_each(|run| simulation.add_run(simulated(run)));
}

fn simulated(placed: &Placed<Run>) -> SimulatedRun {
    let Placed { object: run, order, fault, .. } = placed;
    let status = run.status.as_ref();
    let scheduled = status.and_then(|status| conditions::find(&status.conditions, run_condition::SCHEDULED));
    let since = scheduled.filter(|condition| condition.status == "True").map(|condition| &condition.last_transition_time);
    let completed = status.and_then(|status| conditions::find(&status.conditions, run_condition::COMPLETED));
    let reason = completed.filter(|_| run.phase().is_terminal()).or(scheduled).map_or("", |condition| condition.reason.as_str());
    SimulatedRun {
        order: *order,
        object: Arc::new(from_api::run_object(run)),
        fault: fault.as_ref().map(|place| place.to_string().into()),
        phase: run.phase().as_str().into(),
        reason: reason.into(),
        message: status.and_then(|status| status.message.as_deref()).unwrap_or_default().into(),
        attempts: 0,
        ranked: Vec::new(),
        rejections: Vec::new(),
        outcome: Outcome::Untouched,
        placed_after: None,
        placed_wall_ms: since.or(status.and_then(|status| status.start_time.as_ref())).map(|time| time.0.as_millisecond()),
    }
}

/// Tells how far it is, if there is much to do: at most once a second.
struct Progress<'w> {
    err: &'w mut dyn Write,
    runs: usize,
    told: Option<Instant>,
    any: bool,
}

impl<'w> Progress<'w> {
    fn new(objects: usize, runs: usize, err: &'w mut dyn Write) -> Self {
        if objects >= BIG {
            let _ = writeln!(err, "read {objects} objects, {runs} of them Runs");
        }
        Self { err, runs, told: (objects >= BIG).then(Instant::now), any: false }
    }

    fn tell(&mut self, placed: usize) {
        if self.told.is_some_and(|told| told.elapsed() >= PROGRESS_EVERY) {
            self.told = Some(Instant::now());
            self.any = true;
            let _ = writeln!(self.err, "placed {placed} of {} Runs", self.runs);
        }
    }

    fn end(self) {
        if self.any {
            let _ = writeln!(self.err, "done");
        }
    }
}
