//! `berth explain run`: why a Run waits (or is where it is), judged by the same framework on the live cluster.
//!
//! ```text
//! API server ─► live (lists) ─► the core, nothing placed ─► verdict per Pod × plugin, scores, smallest change ─► table | JSON
//! ```
//! It reads with the caller's own rights and writes nothing. The condition on the Run is of its last attempt; this is of now.

mod change;
mod live;
mod print;
mod server;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use berth_api::conditions;
use berth_api::constants::run_condition;
use berth_api::run::Run;
use berth_api::runtime_ready::Now;
use berth_framework::core::{Core, Explanation, Input, Judgement};
use berth_framework::from_api;
use berth_framework::model::{Delta, Phase, RunObject};
use berth_framework::profile::{Profiles, Registry};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::{EXIT_OK, causes};
use crate::config;
use crate::printable::one_line;
use crate::simulate::{ExplainedPod, Output, RejectionReport, ScoreReport, VerdictReport};
use live::Live;
use server::{Server, ServerArgs};

/// Flags of `berth explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Why a Run waits, or why it is where it is
    Run(RunArgs),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  # Why does it wait?
  berth explain run build-42 -n ci

  # Would another profile place it? Would it still fit without Pod bash-0?
  berth explain run build-42 -n ci --with-config packing.yaml
  berth explain run build-42 -n ci --without-pod bash-0

  # By the configuration in force, and with its place in the scheduler's queue
  kubectl -n berth port-forward deploy/berth 8443 &
  berth explain run build-42 -n ci --server https://127.0.0.1:8443 --server-insecure-skip-tls-verify")]
struct RunArgs {
    /// Name of the Run, or NAMESPACE/NAME
    #[arg(value_name = "NAME")]
    name: String,
    /// Its namespace; else the one of the kubeconfig's context
    #[arg(long, short)]
    namespace: Option<String>,
    /// Kubeconfig of the cluster; else KUBECONFIG, ~/.kube/config or the Pod's own account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Judges by this BerthConfiguration, instead of the one of --server or the defaults
    #[arg(long, value_name = "FILE")]
    with_config: Option<PathBuf>,
    /// Judges as if this Pod were not there, as after a drain; repeatable
    #[arg(long, value_name = "POD")]
    without_pod: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// The answer; its JSON is stable.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The Run's namespace.
    pub namespace: Arc<str>,
    /// The Run's name.
    pub name: Arc<str>,
    /// Its runtime.
    pub runtime: Arc<str>,
    /// Its phase as stored.
    pub phase: String,
    /// Its Pod, if it is placed.
    pub assigned_pod: Option<Arc<str>>,
    /// The configuration this was judged by: a file, the one in force at a server, or the defaults.
    pub judged_by: String,
    /// The profile that places Runs of its runtime.
    pub profile: String,
    /// When this was judged.
    pub judged_at: Timestamp,
    /// One sentence.
    pub verdict: String,
    /// Condition reason and message it would show now, if it waits.
    pub waiting: Option<Shown>,
    /// Condition reason and message it shows, of its last attempt.
    pub shown: Option<Shown>,
    /// Pods by plugin and reason, if none fits.
    pub rejections: Vec<RejectionReport>,
    /// Any one of these would place it.
    pub smallest_changes: Vec<String>,
    /// Every Pod of its runtime, with verdicts and scores.
    pub pods: Vec<ExplainedPod>,
    /// Its standing in the scheduler's queue, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<serde_json::Value>,
}

/// A condition's words.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when, for a stored condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// Explains and prints; answers the exit code.
///
/// # Errors
/// The cluster can't be read, the configuration is wrong, the Run isn't there.
pub fn run(args: &ExplainArgs, registry: &Registry, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    let What::Run(args) = &args.what;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = runtime.block_on(Server::of(&args.server, args.kubeconfig.as_deref()))?;
    let (judged_by, profiles) = runtime.block_on(rules(args, registry, server.as_ref(), err))?;
    let (namespace, name) = match (args.name.split_once('/'), args.namespace.as_deref()) {
        (None, namespace) => (namespace, &*args.name),
        (Some((namespace, name)), None) => (Some(namespace), name),
        (Some((namespace, name)), Some(flag)) if namespace == flag => (Some(namespace), name),
        (Some(_), Some(flag)) => bail!("{} is in another namespace than --namespace {flag}", args.name),
    };
    let mut live = runtime.block_on(live::read(args.kubeconfig.as_deref(), namespace, name))?;
    for warning in &live.warnings {
        writeln!(err, "warning: {}", one_line(warning))?;
    }
    for pod in &args.without_pod {
        let before = live.pods.len();
        live.pods.retain(|known| &*known.key.name != pod.as_str());
        if live.pods.len() == before {
            writeln!(err, "warning: --without-pod {pod}: no Pod of runtime {} has this name", live.run.spec.runtime)?;
        }
    }
    let now = Timestamp::now();
    let weights: BTreeMap<&'static str, i64> = profiles.of(&live.run.spec.runtime).score_weights().collect();
    let mut answer = judge(profiles, judged_by, live, now)?;
    if let Some(server) = &server {
        match runtime.block_on(server.standing(&answer.namespace, &answer.name)) {
            Ok(found) => answer.queue = Some(found),
            Err(error) => writeln!(err, "warning: --server: {}", causes(error.as_ref()))?,
        }
    }
    match args.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &answer)?;
            writeln!(out)?;
        }
        Output::Table => print::print(&answer, &weights, out)?,
    }
    Ok(EXIT_OK)
}

/// What the Run is judged by: `--with-config`, else what is in force at the server, else the defaults; and what that is called.
async fn rules(args: &RunArgs, registry: &Registry, server: Option<&Server>, err: &mut dyn Write) -> anyhow::Result<(String, Profiles)> {
    if let Some(file) = &args.with_config {
        return Ok((file.display().to_string(), config::load(Some(file), registry)?));
    }
    if let Some(server) = server {
        let url = args.server.server.as_deref().unwrap_or_default();
        let in_force = server.configuration().await.and_then(|text| Ok(config::parse(&text, "/configz", registry)?));
        match in_force {
            Ok(loaded) => return Ok((format!("what is in force at {url}"), loaded.profiles)),
            Err(error) => writeln!(err, "warning: --server: {}; judged by the defaults instead", causes(error.as_ref()))?,
        }
    }
    Ok(("defaults".to_owned(), config::load(None, registry)?))
}

/// Judges the Run as if it were to be placed now, all others being where they are.
fn judge(profiles: Profiles, judged_by: String, live: Live, at: Timestamp) -> anyhow::Result<Answer> {
    let profile = profiles.of(&live.run.spec.runtime).name.clone();
    let now = Now { wall_ms: at.as_millisecond(), mono_ms: 0 };
    let stored = from_api::run_object(&live.run);
    let mut core = Core::new(profiles);
    for pod in live.pods {
        core.handle(Input::Pod(Delta::Applied(Arc::new(pod))), now);
    }
    for other in live.others {
        core.handle(Input::Run(Delta::Applied(Arc::new(other))), now);
    }
    if let Some(workspace) = live.workspace {
        core.handle(Input::Workspace(Delta::Applied(Arc::new(workspace))), now);
    }
    let asked = RunObject { phase: Phase::Pending, assigned_pod: None, ..stored.clone() };
    core.handle(Input::Run(Delta::Applied(Arc::new(asked))), now);
    let key = stored.key.clone();
    let judged = core.judge(&key).zip(core.explain(&key));
    let (judgement, explanation) = judged.ok_or_else(|| anyhow::anyhow!("Run {key} cannot be judged"))?;
    Ok(Answer { judged_by, profile, ..answer(&live.run, &stored, at, judgement, explanation) })
}

fn answer(run: &Run, stored: &RunObject, at: Timestamp, judgement: Judgement, explanation: Explanation) -> Answer {
    let changes = judgement.diagnosis.as_ref().map(|d| change::smallest(&explanation, d)).unwrap_or_default();
    let rejections = judgement.diagnosis.iter().flat_map(|d| &d.rejections);
    let best = judgement.ranked.first().map(|ranked| ranked.pod.clone());
    let pods = explanation.pods.into_iter().map(|pod| ExplainedPod {
        fits: pod.fits,
        chosen: if stored.phase == Phase::Active { stored.assigned_pod.as_ref() == Some(&pod.pod) } else { best.as_ref() == Some(&pod.pod) },
        verdicts: pod.verdicts.into_iter().map(VerdictReport::from).collect(),
        score: judgement.ranked.iter().find(|ranked| ranked.pod == pod.pod).map(ScoreReport::from),
        pod: pod.pod,
    });
    Answer {
        namespace: stored.key.namespace.clone(),
        name: stored.key.name.clone(),
        runtime: stored.runtime.clone(),
        phase: run.phase().as_str().to_owned(),
        assigned_pod: stored.assigned_pod.clone(),
        judged_by: String::new(),
        profile: String::new(),
        judged_at: at,
        verdict: verdict(stored, best.as_deref()),
        waiting: judgement.shown.map(|s| Shown { reason: s.reason.to_string(), message: s.message.to_string(), since: None }),
        shown: shown(run),
        rejections: rejections.map(|row| RejectionReport { plugin: row.plugin, reason: row.rejection.reason.code, pods: row.pods }).collect(),
        smallest_changes: changes,
        pods: pods.collect(),
        queue: None,
    }
}

/// One sentence on where the Run stands and what would become of it now.
fn verdict(run: &RunObject, best: Option<&str>) -> String {
    if let Some(invalid) = &run.invalid {
        return format!("It can't be placed: {}", invalid.message);
    }
    let now = match best {
        Some(pod) => format!("would be placed on {pod} now"),
        None => "would fit on no Pod now".to_owned(),
    };
    match (run.phase, &run.assigned_pod) {
        (Phase::Active, Some(pod)) => match best {
            Some(best) if *best == **pod => format!("It is on {pod}, and {now} again"),
            _ => format!("It is on {pod}; placed anew it {now}"),
        },
        (Phase::Terminal, _) => format!("It has ended; a Run like it {now}"),
        _ if run.deleting => "It is being deleted and is not placed any more".to_owned(),
        _ if run.cancel_requested => "It is to be cancelled and is not placed any more".to_owned(),
        _ => format!("It waits, and {now}"),
    }
}

fn shown(run: &Run) -> Option<Shown> {
    let condition = conditions::find(&run.status.as_ref()?.conditions, run_condition::SCHEDULED)?;
    Some(Shown { reason: condition.reason.clone(), message: condition.message.clone(), since: Some(condition.last_transition_time.0) })
}
