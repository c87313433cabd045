//! runtimed: the agent inside a Runtime Pod.
//!
//! ```text
//!  API server ◄── heartbeat, status (compare-and-swap) ── agent ── shim.lock, SIGTERM ──► shim ──► the Run's processes
//!       └── watch: Runs assigned to this Pod, workspaces bound to it ──►┘ ▲                  │
//!                                                                         └── exit.json ─────┘── output as JSON lines ──► stdout
//! ```
//! | module | what it does |
//! |---|---|
//! | [`agent`] | heartbeats, watches, fences, admits, claims, reports |
//! | [`shim`] | carries out one attempt, outlives the agent |
//! | [`init`] | process 1 of the container: keeps the agent running, reaps |

pub mod agent;
pub mod args;
pub mod executor;
pub mod init;
pub mod shim;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Other};

/// The command line is wrong, or the process is in the wrong place.
pub const EXIT_USAGE: u8 = 2;
/// It failed while running.
pub const EXIT_FAILED: u8 = 1;

/// The whole of `main`.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Other::Marked { variable }) => marked(&variable).map(|()| 0),
        Some(Other::Shim { state }) => shim::run(&state).map(|()| 0),
        Some(Other::Install { path }) => install(&path).map(|()| 0),
        None if init::is_needed() => init::run(),
        None => agent::main(cli.agent),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<agent::Misconfigured>() { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

fn marked(variable: &str) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&shim::tree::marked(variable))?);
    Ok(())
}

fn install(path: &std::path::Path) -> anyhow::Result<()> {
    std::fs::copy("/proc/self/exe", path)?;
    Ok(())
}
