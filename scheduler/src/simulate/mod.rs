//! `berth simulate`: the same core, plugins and binder rule on manifests, with a virtual clock.

mod args;

use std::io::Write;

pub use args::SimulateArgs;
use berth_framework::profile::Registry;

/// Simulates and prints; answers the exit code.
///
/// # Errors
/// Input or configuration that can't be read.
pub fn run(_args: &SimulateArgs, _registry: &Registry, _out: &mut dyn Write, _err: &mut dyn Write) -> anyhow::Result<u8> {
    anyhow::bail!("not built yet")
}
