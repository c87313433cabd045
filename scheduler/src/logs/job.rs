//! `berth logs job`: what a Job's process has written, from the one Pod that its status records; followed to its end if asked for.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_controllers::job::adapter::kubernetes::names::{CONTAINER, LABEL_JOB_UID};
use berth_controllers::job::api::Job;
use berth_controllers::job::api::names::{condition, reference};
use berth_runtime::apiclient::{CallError, Limits};
use clap::Args;
use futures::{AsyncRead, AsyncReadExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt};

use crate::cli::EXIT_OK;
use crate::explain::job::{is_sandboxed, read};
use crate::explain::place::PlaceArgs;
use crate::printable::one_line;

use super::patient;

/// How often it is asked whether a process has begun.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  berth logs job hello-x7k2p -n ci
  # From before it starts until it ends
  berth logs job ci/hello-x7k2p --follow")]
pub struct JobArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Waits for the process to start, and goes on until it ends
    #[arg(long, short)]
    follow: bool,
    /// Begins with that many lines of the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Prefixes each line with its time
    #[arg(long)]
    timestamps: bool,
}

/// Prints them; answers the exit code.
///
/// # Errors
/// The cluster can't be read, the Job isn't there, or there is nothing to read and nothing to wait for.
pub fn run(args: &JobArgs, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(print(args, out, err))?;
    Ok(EXIT_OK)
}

async fn print(args: &JobArgs, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
    let limits = if args.follow { patient() } else { Limits { get: Limits::default().list, ..Limits::default() } };
    let (client, namespace, name) = args.place.find("Job", limits).await?;
    let jobs = Api::namespaced(client.clone(), &namespace);
    let mut told = String::new();
    loop {
        let job = read(&jobs, &namespace, &name).await?;
        if is_sandboxed(&job) {
            bail!(
                "Job {namespace}/{name} has no logs: OpenSandbox keeps a process's output in its sandbox, which goes when the process ends ({})",
                state(&job)
            );
        }
        let has_ended = job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
        match pod_of(&client, &namespace, &job).await? {
            Some(pod) => {
                let params = LogParams {
                    container: Some(CONTAINER.to_owned()),
                    follow: args.follow,
                    tail_lines: args.tail.map(i64::from),
                    timestamps: args.timestamps,
                    ..LogParams::default()
                };
                let logs = Api::<Pod>::namespaced(client.clone(), &namespace);
                match logs.log_stream(&pod, &params).await {
                    Ok(stream) => return copy(stream, out).await,
                    // The API server's word for a container that has not begun.
                    Err(kube::Error::Api(status)) if status.code == 400 && args.follow && !has_ended => {}
                    Err(error) => return Err(CallError::from(error)).with_context(|| format!("cannot read the logs of Pod {namespace}/{pod}")),
                }
            }
            None if args.follow && !has_ended => {}
            None => bail!("Job {namespace}/{name} has no logs: {}", why(&job)),
        }
        let waits = state(&job);
        if waits != told {
            writeln!(err, "Job {namespace}/{name} has no logs yet: {}", one_line(&waits))?;
            told = waits;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Name of the Pod on record, if it is still there.
async fn pod_of(client: &Client, namespace: &str, job: &Job) -> anyhow::Result<Option<String>> {
    let Some(uid) = job.status.as_ref().and_then(|status| status.execution.as_ref()?.id(reference::POD)) else { return Ok(None) };
    let labelled = ListParams::default().labels(&format!("{LABEL_JOB_UID}={}", job.uid().unwrap_or_default()));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&labelled).await.map_err(CallError::from).context("cannot list the Job's Pods")?;
    Ok(pods.items.iter().find(|pod| pod.uid().as_deref() == Some(uid)).map(ResourceExt::name_any))
}

/// Where it stands: reason and message of Succeeded.
fn state(job: &Job) -> String {
    let succeeded = job.status.as_ref().and_then(|status| berth_api::conditions::find(&status.conditions, condition::SUCCEEDED));
    succeeded.map_or_else(|| "no controller has looked at it yet".to_owned(), |condition| format!("{}: {}", condition.reason, condition.message))
}

/// Why there are none.
fn why(job: &Job) -> String {
    let was_made = job.status.as_ref().is_some_and(|status| status.execution.is_some());
    format!("{} ({})", if was_made { "its Pod is gone" } else { "it has not been started" }, state(job))
}

/// As it comes: whatever the process wrote is passed on.
async fn copy(stream: impl AsyncRead, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut stream = std::pin::pin!(stream);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = stream.read(&mut buffer).await.context("the logs broke off")?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..count])?;
        out.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_job_without_logs_says_why() {
        let of =
            |status| from_value::<Job>(json!({"metadata": {}, "spec": {"task": {"image": "i"}}, "status": status})).map(|job| why(&job)).unwrap_or_default();
        let pending =
            json!([{"type": "Succeeded", "status": "Unknown", "reason": "Pending", "message": "no class", "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
        assert_eq!(of(json!({ "conditions": pending })), "it has not been started (Pending: no class)");
        let gone = json!({"conditions": pending, "execution": {"adapter": "kubernetes", "references": []}});
        assert_eq!(of(gone), "its Pod is gone (Pending: no class)");
        assert_eq!(of(json!({})), "it has not been started (no controller has looked at it yet)");
    }
}
