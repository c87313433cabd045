//! `berth logs`: what a Run or a Job has written, out of the log of the Pod that carried it out.

mod job;
mod run;

use std::io::Write;
use std::time::Duration;

use berth_runtime::apiclient::Limits;
use clap::{Args, Subcommand};

/// Flags of `berth logs`.
#[derive(Clone, Debug, Args)]
pub struct LogsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// The output of one Run: both its streams in order, as `kubectl logs` prints those of a container
    Run(run::RunArgs),
    /// What a Job's process has written
    Job(job::JobArgs),
}

/// Of a log that is followed: its writer may be silent for as long as it likes.
fn patient() -> Limits {
    const LONG: Duration = Duration::from_secs(365 * 86_400);
    Limits { get: LONG, silence: LONG, ..Limits::default() }
}

/// Prints it; answers the exit code.
///
/// # Errors
/// The Run or Job, or the log, can't be read.
pub fn run(args: &LogsArgs, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    match &args.what {
        What::Run(args) => run::run(args, out, err),
        What::Job(args) => job::run(args, out, err),
    }
}
