//! The flags of `berth simulate`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

/// Flags of `berth simulate`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  # What would happen to these manifests, and why
  berth simulate -f pods.yaml -f runs/

  # A cluster as it is, plus a Run that is not there yet
  kubectl get pods,runs,persistentworkspaces -A -o yaml | berth simulate -f - -f new-run.yaml --explain ci/build

  # A queue of work: every Run lasts half a minute, look at the first hour
  berth simulate -f examples/cohort --run-duration 30s --until 1h

  # What other weights would change, to read and to look at; on a dump of a cluster, add --place-again
  berth simulate -f examples/weights --compare default examples/weights/together.config --html compare.html

  # In a pipeline: fail unless everything fits
  berth simulate -f manifests/ --require-placed -o json > placement.json

  # Which Jobs would their classes take, and why not the others?
  kubectl get jobclasses,kep,oep,namespaces -o yaml | berth simulate -f - -f jobs/ --require-accepted

Exit code: 0; 1 if --require-placed and a Run is left Pending or fails, if --require-accepted and a Job would not be accepted, or if the result can't be written; 2 if the input can't be read.")]
pub struct SimulateArgs {
    /// Manifests: a file, a folder (its .yaml, .yml and .json files, recursively) or - for standard input; repeatable
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub filenames: Vec<PathBuf>,
    /// BerthConfiguration: profile, plugins, args
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Simulates the same input under two BerthConfigurations (`default` = the built-in one) and shows where the placements differ
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["config", "explain", "require_placed", "require_accepted"])]
    pub compare: Option<Vec<PathBuf>>,
    /// Writes a page to look at: Runs over Pods in time, loads, waiting causes; with --compare both sides
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Shows what every plugin says of every Pod for this Run
    #[arg(long, value_name = "NAMESPACE/RUN")]
    pub explain: Option<RunName>,
    /// When the clock starts; else at the newest time in the input that is not a future heartbeat
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<Timestamp>,
    /// A placed Run succeeds this long after it was placed and frees its Pod, as 30s or 1h30m; without it Runs never end
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub run_duration: Option<Duration>,
    /// Places Runs that are on a Pod anew, as if they had just been created: what would other rules have done with this cluster's work?
    #[arg(long)]
    pub place_again: bool,
    /// Stops the clock this long after its start; else it stops when nothing moves any more
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub until: Option<Duration>,
    /// Exits 1 if a Run is left Pending, or fails because it is invalid
    #[arg(long)]
    pub require_placed: bool,
    /// Exits 1 if a Job would not be accepted
    #[arg(long)]
    pub require_accepted: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    match berth_api::duration::parse_go(text) {
        Ok(duration) if duration < Duration::from_millis(1) => Err("must be at least 1ms".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write it as 30s or 1h30m")),
    }
}

/// Formats of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// Stable, for programs.
    Json,
}

/// `namespace/name` of a Run; `default` without a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl FromStr for RunName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err("must be NAMESPACE/RUN".into());
        }
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }
}
