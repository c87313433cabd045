//! The control plane of the tests, to be used by hand: `make cluster`. No kubelet: Pods don't run, and their status is what you write.

use anyhow::Result;
use berth_tests::controlplane::{ADMIN, ControlPlane, Options};

#[tokio::main]
async fn main() -> Result<()> {
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    println!("export KUBECONFIG={}\nIt ends with Ctrl-C.", plane.kubeconfig(ADMIN)?.display());
    tokio::signal::ctrl_c().await?;
    Ok(())
}
