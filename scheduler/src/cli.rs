//! The command line: subcommands, exit codes, and the one place where errors of commands are printed.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::process::ExitCode;

use berth_framework::profile::Registry;
use clap::{Parser, Subcommand};

use crate::printable::Printable;
use crate::{config, crds, explain, logs, serve, simulate};

/// Everything went well.
pub const EXIT_OK: u8 = 0;
/// `berth simulate --require-placed` did not place every Run; `berth serve` failed while running; a result can't be written.
pub const EXIT_FAILED: u8 = 1;
/// The command line, a configuration or an input can't be read; `berth explain` can't ask the cluster, or a server that was named.
pub const EXIT_USAGE: u8 = 2;

#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    about = "Places Runs onto warm Runtime Pods",
    long_about = "Places Runs onto warm Runtime Pods: a scheduler in the manner of kube-scheduler for kruntimes.io.\n\n\
        `berth serve` does so on a cluster; `berth explain` tells why a Run waits there; `berth simulate` shows on manifests what would be \
        done, and why."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Places Runs on a cluster
    Serve(Box<serve::ServeArgs>),
    /// Places the Runs of manifests, without a cluster, and tells why
    Simulate(simulate::SimulateArgs),
    /// Tells why a Run of a live cluster waits, or where a Job stands
    Explain(explain::ExplainArgs),
    /// Prints the output of a Run, or what a Job's process has written
    Logs(logs::LogsArgs),
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
    ExitCode::from(run(std::env::args_os(), registry, &mut Streams { input: &mut input, out: &mut out, err: &mut err }))
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

/// Runs one command line, first element the program's name, and flushes its result; answers the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, registry: Registry, streams: &mut Streams<'_>) -> u8 {
    let mut out = Checked { inner: &mut *streams.out, failed: None };
    let mut err = Printable(&mut *streams.err);
    let answer = command(args, registry, &mut Streams { input: &mut *streams.input, out: &mut out, err: &mut err });
    let _ = out.flush();
    let written = out.failed.take();
    let (code, error) = match (answer, written) {
        // Whoever reads our output went away, as `head` does.
        (Ok(code), Some(error)) if error.kind() == ErrorKind::BrokenPipe => return code,
        (Err(_), Some(error)) if error.kind() == ErrorKind::BrokenPipe => return EXIT_OK,
        (_, Some(error)) => (EXIT_FAILED, anyhow::Error::new(error).context("cannot write the result")),
        (Ok(code), None) => return code,
        (Err(failure), None) => failure,
    };
    let _ = writeln!(err, "error: {}", causes(error.as_ref()));
    code
}

/// Runs one command line; answers its exit code, or with which one it failed and why.
fn command(args: impl IntoIterator<Item = OsString>, registry: Registry, streams: &mut Streams<'_>) -> Result<u8, (u8, anyhow::Error)> {
    let Streams { input, out, err } = streams;
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let to_stderr = error.use_stderr();
            let text = error.render();
            let _ = if to_stderr { write!(err, "{text}") } else { write!(out, "{text}") };
            return Ok(if to_stderr { EXIT_USAGE } else { EXIT_OK });
        }
    };
    match cli.command {
        Command::Serve(args) => serve_until_stopped(*args, registry)
            .map(|()| EXIT_OK)
            .map_err(|error| (if error.is::<serve::Misconfigured>() { EXIT_USAGE } else { EXIT_FAILED }, error)),
        Command::Simulate(args) => simulate::run(&args, &registry, *input, *out, *err).map_err(|error| (EXIT_USAGE, error)),
        Command::Explain(args) => explain::run(&args, &registry, *out, *err).map_err(|error| (EXIT_USAGE, error)),
        Command::Logs(args) => logs::run(&args, *out, *err).map_err(|error| (EXIT_FAILED, error)),
        Command::Config(args) => config::run(&args, &registry, *input, *out).map(|()| EXIT_OK).map_err(|error| (EXIT_USAGE, error)),
        Command::Metrics => print_metrics(*out).map(|()| EXIT_OK).map_err(|error| (EXIT_FAILED, error)),
        Command::Crds(args) => crds::run(&args, *out).map(|()| EXIT_OK).map_err(|error| (EXIT_FAILED, error)),
    }
}

fn print_metrics(out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "{}", serve::metrics::reference::reference()?)?;
    Ok(())
}

/// A writer that remembers its first error, whoever else ignores it.
struct Checked<'w> {
    inner: &'w mut dyn Write,
    failed: Option<std::io::Error>,
}

impl Checked<'_> {
    fn remember<T>(&mut self, result: std::io::Result<T>) -> std::io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            if kind != ErrorKind::Interrupted {
                self.failed.get_or_insert(error);
            }
            kind.into()
        })
    }
}

impl Write for Checked<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let result = self.inner.write(bytes);
        self.remember(result)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let result = self.inner.flush();
        self.remember(result)
    }
}

/// An error and its causes in one line; a cause that the text before it has told already is left out.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn serve_until_stopped(args: serve::ServeArgs, registry: Registry) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(serve::run(args, registry));
    // Everything has been stopped in order. What still hangs, as a read of a mount that does not answer, must not keep the process.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use berth_plugins::Builtin as _;

    use super::*;

    /// Fails at the first write with this kind.
    struct Full(ErrorKind);

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_result_that_cannot_be_written_is_an_error_unless_nobody_reads_it() {
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"runtime":"bash"}}}"#;
        let commands: [&[&str]; 7] = [
            &["simulate", "-f", "-"],
            &["simulate", "-f", "-", "-o", "json"],
            &["config", "show"],
            &["config", "schema"],
            &["crds"],
            &["--help"],
            &["--version"],
        ];
        for args in commands {
            for (kind, code, text) in
                [(ErrorKind::StorageFull, EXIT_FAILED, "error: cannot write the result: no storage space\n"), (ErrorKind::BrokenPipe, EXIT_OK, "")]
            {
                // Small results sit in a buffer until the end.
                let mut out = std::io::BufWriter::with_capacity(1 << 20, Full(kind));
                let mut err = Vec::new();
                let mut streams = Streams { input: &mut pod.as_bytes(), out: &mut out, err: &mut err };
                let got = run(["berth"].iter().chain(args).map(Into::into), Registry::builtin(), &mut streams);
                drop(out.into_parts());
                assert_eq!((got, String::from_utf8_lossy(&err).as_ref()), (code, text), "{args:?}");
            }
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow!("No such file").context("cannot read a: No such file").context("configuration");
        assert_eq!(causes(error.as_ref()), "configuration: cannot read a: No such file");
    }
}
