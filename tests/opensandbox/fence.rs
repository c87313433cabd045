//! The fence in real sandboxes: one run however often it is sent, and none where the disk is another.

use anyhow::{Context as _, Result};
use berth_opensandbox::Execd;
use berth_opensandbox::fence::{Fence, State};
use berth_tests::poll::{PATIENCE, until};

use crate::world::{World, command, run};

async fn state(execd: &Execd, fence: &Fence) -> Result<State> {
    let told = run(execd, &fence.query()?).await?;
    State::parse(&told).with_context(|| format!("no state: {told}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_start_and_a_strange_disk_run_nothing() -> Result<()> {
    let world = World::new().await?;
    let (_, execd) = world.sandbox().await?;
    let fence = Fence::new("/tmp", "6f1c-uid", "nonce-1")?;
    assert_eq!(state(&execd, &fence).await?, State::OtherInstance);
    for _ in 0..2 {
        assert_eq!(run(&execd, &fence.plant()?).await?, "nonce-1\n");
    }
    let argv = ["sh", "-c", "echo ran >> /tmp/runs; sleep 0.5; exit 42"].map(str::to_owned);
    let start = command(&fence.start(&argv)?);
    let started = futures::future::join_all((0..8).map(|_| execd.start(&start))).await;
    assert!(started.iter().all(Result::is_ok), "each start is taken, one wins");
    until("the end", PATIENCE, || async { Ok((matches!(state(&execd, &fence).await?, State::Exited { code: 42, stopped: false, .. })).then_some(())) }).await?;
    execd.start(&start).await?;
    assert_eq!(run(&execd, "sleep 0.3; cat /tmp/runs").await?, "ran\n");

    let (_, other) = world.sandbox().await?;
    other.start(&start).await?;
    assert_eq!(run(&other, "sleep 0.3; ls -A /tmp/runs 2>/dev/null | wc -l").await?, "0\n", "nothing was planted there");
    assert_eq!(State::parse(&run(&other, &fence.seal()?).await?), Some(State::OtherInstance));
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sealed_before_a_late_start_comes_never_runs() -> Result<()> {
    let world = World::new().await?;
    let (_, execd) = world.sandbox().await?;
    let fence = Fence::new("/tmp", "late", "n")?;
    run(&execd, &fence.plant()?).await?;
    assert_eq!(State::parse(&run(&execd, &fence.seal()?).await?), Some(State::Sealed));
    execd.start(&command(&fence.start(&["touch", "/tmp/ran"].map(str::to_owned))?)).await?;
    assert_eq!(run(&execd, "sleep 0.3; ls -A /tmp/ran 2>/dev/null | wc -l").await?, "0\n");
    assert_eq!(state(&execd, &fence).await?, State::Sealed);
    world.end().await
}
