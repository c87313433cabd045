//! Under faults by a seed, what an error says is certain is so: for creates by the server's own list, for starts by what ran in the sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_opensandbox::fence::{Fence, State};
use berth_opensandbox::{Access, Breaker, Certainty, Client, ServerUrl, Settings};
use berth_tests::opensandbox::API_KEY;
use berth_tests::poll::{PATIENCE, until};
use secrecy::SecretString;

use crate::faulty::{FaultyProxy, seed};
use crate::world::{TOKEN, World, command, run};

fn through(proxy: &FaultyProxy) -> Result<Client> {
    // The breaker would spare the server most of the faults.
    let settings = Settings { breaker: Breaker { failures: u32::MAX, ..Breaker::default() }, ..Settings::default() };
    Ok(Client::new(ServerUrl::parse(&proxy.url())?, Arc::new(SecretString::from(API_KEY)), &settings)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_certainly_failed_made_nothing_and_one_that_was_answered_made_one() -> Result<()> {
    let world = World::new().await?;
    let seed = seed();
    let proxy = FaultyProxy::start(&world.server.domain(), seed, 60).await?;
    let client = through(&proxy)?;
    let mut told = BTreeMap::new();
    for number in 0..12 {
        let mut request = world.idle();
        request.metadata.insert("number".into(), number.to_string());
        let answer = client.create(&request).await;
        told.insert(number, answer.map_err(|error| error.certainty()));
    }
    ensure!(proxy.struck() >= 3, "seed {seed}: {} faults", proxy.struck());
    let mut counts = BTreeMap::new();
    for (number, answer) in &told {
        let mut metadata = world.metadata();
        metadata.insert("number".into(), number.to_string());
        let made = world.client.list(&metadata).await?;
        let allowed = match answer {
            Ok(sandbox) => made.len() == 1 && made[0].id == sandbox.id,
            Err(Certainty::Definite | Certainty::Retryable) => made.is_empty(),
            Err(Certainty::Ambiguous) => made.len() <= 1,
        };
        ensure!(allowed, "seed {seed}, create {number}: {answer:?}, and {made:?}");
        *counts.entry((format!("{:?}", answer.as_ref().err()), made.len())).or_insert(0) += 1;
    }
    println!("seed {seed}: {counts:?}");
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_command_runs_once_whatever_becomes_of_the_answers() -> Result<()> {
    for access in [Access::ServerProxy, Access::Direct] {
        runs_once(access).await.with_context(|| format!("{access:?}"))?;
    }
    Ok(())
}

async fn runs_once(access: Access) -> Result<()> {
    let seed = seed();
    let world = World::new().await?;
    let (sandbox, direct) = world.sandbox().await?;
    let proxy = FaultyProxy::start(&world.server.domain(), seed, 50).await?;
    let client = through(&proxy)?;
    let find = || async { Ok(Some(client.execd(&sandbox.id, access, Some(TOKEN.into())).await?)) };
    let faulty = until("the address of execd", PATIENCE, find).await?;
    for number in 0..6 {
        let fence = Fence::new("/tmp", &format!("job-{number}"), "nonce")?;
        let argv = ["sh", "-c", "echo $0 >> /tmp/runs; exit 5", &number.to_string()].map(str::to_owned);
        // As a caller does that knows nothing: again until an answer tells the state, however often that needs a start.
        let ended = until("the command's end by its state", PATIENCE, || async {
            let state = async |text: String| -> Result<State> { State::parse(&run(&faulty, &text).await?).context("no state") };
            match state(fence.query()?).await? {
                State::OtherInstance => run(&faulty, &fence.plant()?).await.map(|_| None),
                State::NotStarted => Ok(faulty.start(&command(&fence.start(&argv)?)).await.map(|_| None)?),
                State::Exited { code, .. } => Ok(Some(code)),
                _ => Ok(None),
            }
        });
        assert_eq!(ended.await?, 5);
    }
    ensure!(proxy.struck() >= 5, "seed {seed}: {} faults", proxy.struck());
    ensure!((proxy.direct() > 5) == (access == Access::Direct), "{} requests went directly", proxy.direct());
    tokio::time::sleep(Duration::from_millis(300)).await; // for a late start that would be wrong
    assert_eq!(run(&direct, "cat /tmp/runs").await?, "0\n1\n2\n3\n4\n5\n", "seed {seed}, {} faults", proxy.struck());
    println!("seed {seed}, {access:?}: 6 commands, {} faults, 6 runs", proxy.struck());
    world.end().await
}
