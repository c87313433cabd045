//! `berth explain run`: why a Run waits (or is where it is), judged by the same framework on the live cluster; and `berth explain job`.
//!
//! ```text
//! rules (named | --server | the release's ConfigMap | defaults) ─┐
//! API server ─► live (lists) ─────────────────────────────────────┴─► the core, nothing placed ─► verdict per Pod × plugin, scores,
//!                                                                     smallest change ─► table | JSON
//! ```
//! It reads with the caller's own rights and writes nothing. The condition on the Run is of its last attempt; this is of now.

mod answer;
mod change;
pub mod job;
pub mod live;
pub mod place;
mod print;
mod rules;
mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use berth_framework::profile::Registry;
use berth_runtime::apiclient::Limits;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::Client;

use crate::cli::EXIT_OK;
use crate::printable::one_line;
use crate::serve::configuration::ConfigMapName;
use crate::simulate::Output;
use place::PlaceArgs;
use rules::{Rules, unasked};
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
    /// Where a Job stands, its whole timeline, and what to do next
    Job(job::JobArgs),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  # Why does it wait?
  berth explain run build-42 -n ci

  # Would another profile place it? Would it still fit without Pod bash-0?
  berth explain run build-42 -n ci --with-config packing.yaml
  berth explain run build-42 -n ci --without-pod bash-0
  berth explain run build-42 -n ci --profile what-if     # a shadow profile of the configuration in force

  # By the configuration in force, and with its place in the scheduler's queue
  kubectl -n berth port-forward deploy/berth 8443 &
  berth explain run build-42 -n ci --server https://127.0.0.1:8443 --server-insecure-skip-tls-verify")]
struct RunArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Judges by this BerthConfiguration; else by --config-map, by what is in force at --server, by the ConfigMap of the release that serves
    /// the namespace if it can be found and read, or by the defaults
    #[arg(long, value_name = "FILE", conflicts_with = "config_map")]
    with_config: Option<PathBuf>,
    /// Judges by the BerthConfiguration in this ConfigMap, read with your own rights
    #[arg(long, value_name = "NAMESPACE/NAME")]
    config_map: Option<ConfigMapName>,
    /// Judges by the profile of this name, also a shadow one, instead of the one for the Run's runtime
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Judges as if this Pod were not there, as after a drain; repeatable
    #[arg(long, value_name = "POD")]
    without_pod: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Explains and prints; answers the exit code.
///
/// # Errors
/// The cluster or a server that was named can't be asked, the configuration is wrong, the Run isn't there.
pub fn run(args: &ExplainArgs, registry: &Registry, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    let args = match &args.what {
        What::Run(args) => args,
        What::Job(args) => return job::run(args, out),
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(explain(args, registry, out, err))
}

async fn explain(args: &RunArgs, registry: &Registry, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    let (client, namespace, name) = args.place.find("Run", Limits::default()).await?;
    let of_file = args.with_config.as_deref().map(|file| Rules::of_file(file, registry)).transpose()?;
    let server = Server::of(&args.server, args.place.kubeconfig.as_deref()).await?;
    let mut live = live::read(&client, &namespace, &name).await?;
    let mut rules = match of_file {
        Some(rules) => rules,
        None => rules_of(args, registry, server.as_ref(), &client, &namespace, err).await?,
    };
    if let Some(profile) = &args.profile {
        rules.only(profile)?;
    }
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
    let weights: BTreeMap<&'static str, i64> = rules.profiles.of(&live.run.spec.runtime).score_weights().collect();
    let what_if = !args.without_pod.is_empty() || args.profile.is_some();
    let mut answer = answer::judge(rules, live, Timestamp::now(), what_if)?;
    if let Some(server) = &server {
        match server.standing(&answer.namespace, &answer.name).await {
            Ok(queue) => {
                let tried = queue.run.as_ref().filter(|run| run.message.as_deref() == answer.shown.as_ref().map(|shown| shown.message.as_str()));
                if let (Some(shown), Some(tried)) = (&mut answer.shown, tried) {
                    shown.last_attempt = tried.last_attempt;
                }
                answer.queue = Some(queue);
            }
            Err(error) => give_up_unless_optional(args, server, error, err)?,
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

/// The rules, where no file names them.
async fn rules_of(
    args: &RunArgs,
    registry: &Registry,
    server: Option<&Server>,
    client: &Client,
    namespace: &str,
    err: &mut dyn Write,
) -> anyhow::Result<Rules> {
    if let Some(named) = &args.config_map {
        return Rules::of_config_map(client, named, registry).await;
    }
    if let Some(server) = server {
        match Rules::of_server(server, registry).await {
            Ok(rules) => return Ok(rules),
            Err(error) => give_up_unless_optional(args, server, error, err)?,
        }
    }
    Rules::found(client, namespace, registry, err).await
}

/// Whoever names a server wants its answer, and not another that looks like it.
fn give_up_unless_optional(args: &RunArgs, server: &Server, error: anyhow::Error, err: &mut dyn Write) -> anyhow::Result<()> {
    if args.server.server_optional {
        return Ok(unasked(server, &error, err)?);
    }
    Err(error).with_context(|| format!("--server {} can't be asked (--server-optional goes on without it)", server.url))
}
