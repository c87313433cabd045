//! `berth logs run`: the output of one Run, out of the log of the Pod that carried it out.
//!
//! An agent prints the output of its Runs on its container's stdout, one JSON object a line, each with the Run's UID and attempt. So a
//! Pod's log is read and filtered; the output lives as long as the Pod and as the kubelet keeps its log.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, anyhow};
use berth_api::constants::LABEL_RUNTIME;
use berth_api::run::Run;
use berth_runtime::apiclient::{CallError, Limits};
use clap::Args;
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt};
use serde::Deserialize;
use tokio::time::Instant;

use crate::cli::EXIT_OK;
use crate::explain::place::PlaceArgs;
use crate::printable::one_line;

use super::patient;

/// The container that the agent runs in; a Pod without one of that name has its agent in the first.
const CONTAINER: &str = "runtimed";
/// How often the Run is looked at while its output is followed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After the end of the Run: how long the log may be silent before it counts as complete.
const SILENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  berth logs run build-42 -n ci
  berth logs run build-42 -n ci -f      # until it has ended, also over retries on other Pods")]
pub struct RunArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Goes on until the Run has ended
    #[arg(long, short)]
    follow: bool,
}

/// One line of an agent's stdout. Everything else in the log is the agent's own.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Line {
    run_uid: String,
    stream: String,
    message: String,
    #[serde(default)]
    attempt: i32,
    #[serde(default)]
    partial: bool,
}

impl Line {
    fn of(text: &str, uid: &str) -> Option<Self> {
        // Most lines are other Runs': a look for the UID spares reading them.
        text.contains(uid).then(|| serde_json::from_str::<Self>(text).ok())?.filter(|line| line.run_uid == uid)
    }

    fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let end = if self.partial { "" } else { "\n" };
        let from = if self.stream == "runtimed" { "runtimed: " } else { "" };
        write!(out, "{from}{}{end}", self.message)?;
        out.flush()
    }
}

/// Runs the command.
///
/// # Errors
/// The Run or the log can't be read.
pub fn run(args: &RunArgs, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (client, namespace, name) = args.place.find("Run", patient()).await?;
        let logs = Logs::new(&client, &namespace, &name);
        if args.follow { logs.follow(out, err).await } else { logs.print(out, err).await }
    })?;
    Ok(EXIT_OK)
}

struct Logs<'a> {
    runs: Api<Run>,
    pods: Api<Pod>,
    namespace: &'a str,
    name: &'a str,
}

/// Lines of each attempt. An attempt is executed once, in one container of one Pod: so many of it were printed already when a log is
/// read again, whatever Pod or container has it now.
type Printed = BTreeMap<i32, usize>;

impl<'a> Logs<'a> {
    fn new(client: &Client, namespace: &'a str, name: &'a str) -> Self {
        Self { runs: Api::namespaced(client.clone(), namespace), pods: Api::namespaced(client.clone(), namespace), namespace, name }
    }

    async fn run(&self) -> anyhow::Result<Run> {
        let run = tokio::time::timeout(Limits::default().get, self.runs.get_opt(self.name)).await.context("no answer from the API server")?;
        let (name, namespace) = (self.name, self.namespace);
        let run = run.map_err(CallError::from).with_context(|| format!("cannot get Run {namespace}/{name}"))?;
        run.with_context(|| format!("Run {namespace}/{name} not found"))
    }

    /// There is no output, and why.
    fn on_no_pod(&self, run: &Run) -> anyhow::Error {
        anyhow!("Run {}/{} is {} and was on no Pod{}", self.namespace, self.name, run.phase(), why(run))
    }

    /// Everything there is: of the Pod it is on, and after a retry of every Pod of its Runtime that may have had it.
    async fn print(&self, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
        let run = self.run().await?;
        let status = run.status.clone().unwrap_or_default();
        let mut names: BTreeSet<String> = status.assigned_pod.clone().into_iter().collect();
        if run.attempt() > 1 {
            let of_runtime = ListParams::default().labels(&format!("{LABEL_RUNTIME}={}", run.spec.runtime));
            names.extend(self.pods.list(&of_runtime).await.map_err(CallError::from).context("cannot list Pods")?.iter().map(ResourceExt::name_any));
        }
        if names.is_empty() {
            return Err(self.on_no_pod(&run));
        }
        let uid = run.uid().unwrap_or_default();
        let mut lines = Vec::new();
        for name in names {
            let Some(pod) = self.pods.get_opt(&name).await.map_err(CallError::from).with_context(|| format!("cannot get Pod {name}"))? else {
                writeln!(err, "warning: Pod {name} is gone, and its log with it")?;
                continue;
            };
            for previous in [true, false] {
                let params = LogParams { container: Some(container(&pod)), previous, ..LogParams::default() };
                let stream = match self.pods.log_stream(&name, &params).await {
                    Ok(stream) => stream,
                    // There was no earlier container.
                    Err(_) if previous => continue,
                    // As of one that is starting.
                    Err(error) if status.assigned_pod.as_deref() != Some(&name) => {
                        let error = CallError::from(error);
                        writeln!(err, "warning: cannot read the log of Pod {name}, which may have had an earlier attempt: {error}")?;
                        continue;
                    }
                    Err(error) => return Err(CallError::from(error)).with_context(|| format!("cannot read the log of Pod {name}")),
                };
                let mut texts = stream.lines();
                while let Some(text) = texts.try_next().await? {
                    lines.extend(Line::of(&text, &uid));
                }
            }
        }
        lines.sort_by_key(|line| line.attempt);
        for line in lines {
            line.print(out)?;
        }
        Ok(())
    }

    /// Its output as it comes, until the Run has ended.
    async fn follow(&self, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
        let mut printed = Printed::default();
        let mut told = String::new();
        loop {
            let run = self.run().await?;
            let pod = run.status.as_ref().and_then(|status| status.assigned_pod.clone());
            let is_all = match pod {
                Some(pod) => self.follow_on(&run, &pod, &mut printed, out, err).await?,
                None if run.phase().is_terminal() => return Err(self.on_no_pod(&run)),
                None => {
                    let waits = self.on_no_pod(&run).to_string();
                    if waits != told {
                        writeln!(err, "{waits}")?;
                        told = waits;
                    }
                    false
                }
            };
            if is_all {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Follows the log of one Pod; true if the Run has ended and all of it is printed, false if there is reason to look again.
    async fn follow_on(&self, run: &Run, name: &str, printed: &mut Printed, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<bool> {
        let uid = run.uid().unwrap_or_default();
        let Some(pod) = self.pods.get_opt(name).await.map_err(CallError::from).with_context(|| format!("cannot get Pod {name}"))? else {
            if run.phase().is_terminal() {
                writeln!(err, "warning: Pod {name} is gone, and its log with it")?;
            }
            return Ok(run.phase().is_terminal());
        };
        let params = LogParams { container: Some(container(&pod)), follow: true, ..LogParams::default() };
        // The container may not have started yet.
        let Ok(stream) = self.pods.log_stream(name, &params).await else { return Ok(run.phase().is_terminal()) };
        let mut texts = stream.lines();
        let mut seen = Printed::new();
        // Why nothing more will come, once that is known: true if the Run has ended, false if it has moved on.
        let mut over = run.phase().is_terminal().then_some(true);
        // Then the rest is printed. Other Runs' lines in the same log are no sign of more.
        let mut quiet_at = Instant::now() + SILENCE;
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                text = texts.try_next() => match text {
                    Ok(Some(text)) => {
                        if let Some(line) = Line::of(&text, &uid) {
                            let (seen, printed) = (seen.entry(line.attempt).or_default(), printed.entry(line.attempt).or_default());
                            *seen += 1;
                            if *seen > *printed {
                                line.print(out)?;
                                *printed = *seen;
                                quiet_at = Instant::now() + SILENCE;
                            }
                        }
                    }
                    // The container has ended, or the connection broke.
                    Ok(None) | Err(_) => return Ok(over == Some(true)),
                },
                () = tokio::time::sleep_until(quiet_at), if over.is_some() => return Ok(over == Some(true)),
                _ = look.tick(), if over.is_none() => {
                    let now = self.run().await?;
                    let moved = now.status.as_ref().and_then(|status| status.assigned_pod.as_deref()) != Some(name);
                    over = if now.phase().is_terminal() { Some(true) } else { moved.then_some(false) };
                    quiet_at = Instant::now() + SILENCE;
                }
            }
        }
    }
}

/// What its status says, for the end of a sentence.
fn why(run: &Run) -> String {
    let message = run.status.as_ref().and_then(|status| status.message.as_deref()).filter(|message| !message.is_empty());
    message.map_or_else(String::new, |message| format!(": {}", one_line(message)))
}

fn container(pod: &Pod) -> String {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let found = containers.iter().find(|container| container.name == CONTAINER).or(containers.first());
    found.map(|container| container.name.clone()).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_of_that_run_are_printed() {
        let log = [
            r#"{"run_uid":"u1","run_name":"a","stream":"stdout","message":"one","attempt":1}"#,
            r#"{"run_uid":"u1","stream":"stderr","message":"two","attempt":1}"#,
            r#"{"run_uid":"u2","stream":"stdout","message":"about u1","attempt":1}"#,
            r#"{"run_uid":"u1","stream":"stdout","message":"long ","partial":true}"#,
            r#"{"run_uid":"u1","stream":"stdout","message":"line"}"#,
            r#"{"run_uid":"u1","stream":"runtimed","message":"not logged"}"#,
            r#"2026-01-01T00:00:00Z INFO started uid="u1""#,
            r#"{"run_uid":"u1","stream":"#,
        ];
        let mut out = Vec::new();
        for line in log.iter().filter_map(|text| Line::of(text, "u1")) {
            line.print(&mut out).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), "one\ntwo\nlong line\nruntimed: not logged\n");
    }
}
