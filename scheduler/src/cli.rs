//! The command line: subcommands, exit codes, and the one place where errors of commands are printed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

use berth_framework::profile::Registry;
use clap::{Parser, Subcommand};

use crate::{config, crds, explain, serve, simulate};

/// Everything went well.
pub const EXIT_OK: u8 = 0;
/// `berth simulate --require-placed` left a Run Pending; `berth serve` failed while running.
pub const EXIT_FAILED: u8 = 1;
/// The command line, a configuration or an input can't be read.
pub const EXIT_USAGE: u8 = 2;

#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    about = "Places Runs onto warm Runtime Pods",
    long_about = "Places Runs onto warm Runtime Pods: a scheduler in the manner of kube-scheduler for kruntimes.io.\n\n\
        `berth serve` does so on a cluster; `berth simulate` shows on manifests what it would do, and why."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Places Runs on a cluster
    Serve(serve::ServeArgs),
    /// Places the Runs of manifests, without a cluster, and tells why
    Simulate(simulate::SimulateArgs),
    /// Tells why a Run of a live cluster waits, or why it is where it is
    Explain(explain::ExplainArgs),
    /// Checks and shows configurations, prints their schema
    Config(config::ConfigArgs),
    /// Prints the CustomResourceDefinitions of Run and PersistentWorkspace
    Crds(crds::CrdsArgs),
    /// Prints every metric of `serve` as Markdown
    #[command(hide = true)]
    Metrics,
}

/// The whole of a `main`: reads the command line of the process and runs it with the plugins of `registry`.
pub fn main_with(registry: Registry) -> ExitCode {
    let (mut input, mut out, mut err) = (std::io::stdin(), std::io::BufWriter::new(std::io::stdout().lock()), std::io::stderr());
    let code = run(std::env::args_os(), registry, &mut Streams { input: &mut input, out: &mut out, err: &mut err });
    let _ = out.flush();
    ExitCode::from(code)
}

/// Where commands read and print. `serve` logs to the process's own streams.
pub struct Streams<'s> {
    /// Standard input.
    pub input: &'s mut dyn Read,
    /// Results.
    pub out: &'s mut dyn Write,
    /// Errors, warnings, progress.
    pub err: &'s mut dyn Write,
}

/// Runs one command line, first element the program's name; answers the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, registry: Registry, streams: &mut Streams<'_>) -> u8 {
    let Streams { input, out, err } = streams;
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let to_stderr = error.use_stderr();
            let text = error.render();
            let _ = if to_stderr { write!(err, "{text}") } else { write!(out, "{text}") };
            return if to_stderr { EXIT_USAGE } else { EXIT_OK };
        }
    };
    let result = match cli.command {
        Command::Serve(args) => serve_until_stopped(args, registry)
            .map(|()| EXIT_OK)
            .map_err(|error| (if error.is::<serve::Misconfigured>() { EXIT_USAGE } else { EXIT_FAILED }, error)),
        Command::Simulate(args) => simulate::run(&args, &registry, *input, *out, *err).map_err(|error| (EXIT_USAGE, error)),
        Command::Explain(args) => explain::run(&args, &registry, *out, *err).map_err(|error| (EXIT_USAGE, error)),
        Command::Config(args) => config::run(&args, &registry, *input, *out).map(|()| EXIT_OK).map_err(|error| (EXIT_USAGE, error)),
        Command::Metrics => print_metrics(*out).map(|()| EXIT_OK).map_err(|error| (EXIT_FAILED, error)),
        Command::Crds(args) => crds::run(&args, *out).map(|()| EXIT_OK).map_err(|error| (EXIT_FAILED, error)),
    };
    match result {
        Ok(code) => code,
        // Whoever reads our output went away, as `head` does.
        Err((_, error)) if is_broken_pipe(&error) => EXIT_OK,
        Err((code, error)) => {
            let _ = writeln!(err, "error: {error:#}");
            code
        }
    }
}

fn print_metrics(out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "{}", serve::metrics::reference::reference()?)?;
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn serve_until_stopped(args: serve::ServeArgs, registry: Registry) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve::run(args, registry))
}
