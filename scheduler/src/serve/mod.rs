//! `berth serve`: places Runs on a cluster.

mod args;

pub use args::ServeArgs;
use berth_framework::profile::Registry;

/// Serves until SIGTERM.
///
/// # Errors
/// What keeps it from starting or from going on.
pub async fn run(_args: ServeArgs, _registry: Registry) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
