//! From a Run's spec to what a shim is told.

use std::path::{Path, PathBuf};

use berth_api::Run;

use super::Agent;
use super::plan::deadline_ms;
use super::server::Order;
use super::store::{Record, Store};
use super::workspace;
use crate::args::AgentArgs;
use crate::shim::REPOSITORY;
use crate::shim::spec::{Command, Identity, Limits, Source, Spec};

/// The file a Run writes its outputs to, below its run directory.
pub const OUTPUTS_FILE: &str = "outputs";
/// The variable that names that file (reference kruntimes §7.3).
const OUTPUTS_VARIABLE: &str = "KRUNTIME_OUTPUTS";
/// The file an inline script is written to.
const SCRIPT_FILE: &str = "script";

fn outputs_file(store: &Store, uid: &str) -> String {
    store.run_dir(uid).join(OUTPUTS_FILE).to_string_lossy().into_owned()
}

/// `NAME=value` of a variable that every process of the Run is started with, and no process of another Run.
pub fn outputs_variable(store: &Store, uid: &str) -> String {
    format!("{OUTPUTS_VARIABLE}={}", outputs_file(store, uid))
}

/// What a shim is told.
pub fn spec(agent: &Agent, run: &Run, record: &Record, workspace_dir: Option<PathBuf>) -> Spec {
    // A Runtime Server carries out a function as a task with a handler (reference §1.3).
    let task = run.spec.mode.task.clone().unwrap_or_default();
    let run_dir = agent.store.run_dir(&record.uid);
    let variables = run.spec.env.iter().map(|variable| (variable.name.clone(), variable.value.clone().unwrap_or_default()));
    let home = ("HOME".to_owned(), run_dir.to_string_lossy().into_owned());
    Spec {
        identity: Identity {
            run_uid: record.uid.clone(),
            run_name: record.name.clone(),
            namespace: record.namespace.clone(),
            runtime: agent.me.runtime.clone(),
            pod: agent.me.name.clone(),
            attempt: record.attempt,
        },
        source: source(run),
        command: Some(Command { entrypoint: task.entrypoint, args: task.args }),
        // The Run's own variables win over HOME, and nothing wins over where its outputs go.
        env: std::iter::once(home).chain(variables).chain([(OUTPUTS_VARIABLE.to_owned(), outputs_file(&agent.store, &record.uid))]).collect(),
        env_removed: AgentArgs::OWN_VARIABLES.map(str::to_owned).to_vec(),
        timeout_ms: time_left_ms(agent, run, record),
        limits: Limits {
            stop_grace_ms: u64::try_from(agent.args.stop_grace.as_millis()).unwrap_or(u64::MAX),
            log_bytes_max: agent.args.run_log_bytes_max,
            pids_max: agent.args.run_pids_max,
            cgroup: agent.cgroup.clone(),
            ..Limits::default()
        },
        run_as: agent.args.run_as,
        run_dir,
        workspace_dir,
    }
}

fn source(run: &Run) -> Source {
    match &run.spec.source {
        Some(source) if source.inline.is_some() => {
            Source::Inline { path: source.inline_path.clone().unwrap_or_else(|| SCRIPT_FILE.to_owned()), text: source.inline.clone().unwrap_or_default() }
        }
        Some(source) if source.repo_url.is_some() => {
            Source::Git { url: source.repo_url.clone().unwrap_or_default(), revision: source.commit_sha.clone().filter(|revision| !revision.is_empty()) }
        }
        _ => Source::None,
    }
}

/// The folder of a Run's code in a workspace, for a Runtime Server.
pub fn own_folder(uid: &str) -> String {
    format!(".run-{uid}")
}

/// What a Runtime Server is told; the shim then only prepares.
///
/// Working directory and entrypoint are a path and one below it, without `..`. So with a workspace the code goes into a folder of
/// the Run's own in it, which goes with the Run.
///
/// # Errors
/// That folder can't be made.
pub fn order(agent: &Agent, run: &Run, spec: &mut Spec) -> std::io::Result<Order> {
    let command = spec.command.take().unwrap_or(Command { entrypoint: None, args: Vec::new() });
    let code = match spec.source {
        Source::Git { .. } => REPOSITORY,
        _ => "",
    };
    let own = own_folder(&spec.identity.run_uid);
    let working_dir = match &spec.workspace_dir {
        None => spec.run_dir.join(code),
        Some(workspace) => {
            if spec.source != Source::None {
                workspace::make_folder(workspace, &own, agent.args.run_as)?;
                spec.run_dir = workspace.join(&own);
            }
            workspace.clone()
        }
    };
    let name = match (&spec.source, &command.entrypoint) {
        (Source::Inline { path, .. }, _) => path.clone(),
        (_, entrypoint) => entrypoint.clone().unwrap_or_else(|| SCRIPT_FILE.to_owned()),
    };
    let entrypoint = match spec.workspace_dir.is_some() && spec.source != Source::None {
        true => Path::new(&own).join(code).join(name).to_string_lossy().into_owned(),
        false => name,
    };
    let with_script = matches!(spec.source, Source::Inline { .. });
    Ok(Order {
        identity: spec.identity.clone(),
        args: if with_script { Vec::new() } else { command.args },
        env: spec.env.iter().filter(|(name, _)| name != "HOME").cloned().collect(),
        working_dir: working_dir.to_string_lossy().into_owned(),
        entrypoint,
        handler: run.spec.mode.function.as_ref().and_then(|function| function.handler.clone()).unwrap_or_default(),
        log_bytes_max: spec.limits.log_bytes_max,
        deadline_ms: spec.timeout_ms.map(|left| agent.clock.now().wall_ms.saturating_add(i64::try_from(left).unwrap_or(i64::MAX))),
    })
}

/// The first attempt counts from the claim itself, which is finer than the whole seconds of `startTime`; a later one from there.
fn time_left_ms(agent: &Agent, run: &Run, record: &Record) -> Option<u64> {
    let by_status = deadline_ms(run)?;
    let by_claim = match (record.attempt, run.spec.timeout()) {
        (1, Ok(Some(timeout))) => record.claimed_ms.saturating_add(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)),
        _ => by_status,
    };
    Some(u64::try_from(by_claim.max(by_status).saturating_sub(agent.clock.now().wall_ms)).unwrap_or(0))
}
