//! A cluster that isn't prepared: what is missing is told, asked for ever more rarely, and taken up when it comes.

use std::time::Instant;

use anyhow::{Result, ensure};
use berth_tests::berth::Serve;
use berth_tests::controlplane::{BERTH, ControlPlane, Options};
use berth_tests::crds;
use berth_tests::poll::{PATIENCE, until};

use crate::explain::berth;

#[tokio::test]
async fn missing_crds_are_named_and_taken_up_when_they_come() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let kubeconfig = plane.kubeconfig(BERTH)?;
    let started = Instant::now();
    let mut serve = Serve::new(&kubeconfig).start(plane.scratch())?;
    let told = "refused with 404 NotFound: the API server does not know this kind; are the CRDs installed? `berth crds | kubectl apply --server-side -f -`";
    until("three tries", PATIENCE, || async { Ok((serve.log().matches(told).count() >= 6).then_some(())) }).await?;
    let args = ["explain", "run", "default/r", "--kubeconfig", &kubeconfig.display().to_string()];
    let (code, _, err) = berth(args.map(ToOwned::to_owned).to_vec()).await?;
    ensure!(code == 2 && err == format!("error: cannot get Run default/r: {told}\n"), "{err}");

    crds::install(&plane.admin()?).await?;
    serve.ready().await?;
    let log = serve.log();
    // Of two informers: 0.2 s, doubling to 10 s, at most half of each taken off.
    let most = 2 * (7 + started.elapsed().as_secs() / 5);
    ensure!(log.matches("list or watch failed").count() as u64 <= most, "more than {most}:\n{log}");
    ensure!(!log.contains("kube_client") && !log.contains("Status {"), "{log}");
    Ok(())
}
