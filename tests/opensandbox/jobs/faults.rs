//! Jobs on OpenSandbox under faults: answers that are lost, servers that go away, controllers that die at each step, and two that lead. Each process
//! tells when it begins, and none begins twice.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Berth;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::opensandbox::Server;
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::release::Account;
use serde_json::json;

use super::world::{World, prepare, serve};
use crate::faulty::{Fate, FaultyProxy};
use crate::job_world::{History, condition, exit_code, uid};
use crate::world::server;

const SEED: u64 = 7;

/// A control plane of the test's own, on which it may kill whoever carries Jobs.
async fn plane() -> Result<(ControlPlane, Account)> {
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    crate::job_world::install_policies(&plane.admin()?).await?;
    let account = prepare(&plane).await?;
    Ok((plane, account))
}

async fn carried(plane: &ControlPlane, account: &Account) -> Result<Berth> {
    serve(&plane.kubeconfig(&account.token)?).start_ready(plane.scratch()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_without_an_answer_is_looked_for_and_made_again_only_when_nothing_can_come_of_it() -> Result<()> {
    let proxy = FaultyProxy::start(&server().await?.domain(), SEED, 0).await?;
    let world = World::with("creates", json!({}), json!({"endpoint": proxy.url(), "createTimeout": "9s", "createWindow": "10s"})).await?;
    // It was made, and nobody was told.
    proxy.strike("POST", "/sandboxes", 0, Fate::AnswerLost);
    let found = world.script("create-found", "true", json!({})).await?;
    world.succeeded("create-found", "True", "Completed").await?;
    assert_eq!(proxy.struck(), 1);
    world.nothing_left(&uid(&found)).await?;
    // It was never made, which nobody can know before its window is over.
    proxy.strike("POST", "/sandboxes", 0, Fate::Refused);
    let again = world.script("create-again", "true", json!({})).await?;
    let wanted = ("False".to_owned(), "BackendUnavailable".to_owned());
    world.until("create-again", "waiting", PATIENCE, |job| condition(job, "Scheduled") == wanted).await?;
    stays("no other create", Duration::from_secs(4), || async { Ok(world.of_job(&uid(&again)).await?.is_empty()) }).await?;
    world.succeeded("create-again", "True", "Completed").await?;
    // A cancel while that is so: nothing was started, and what may appear is removed before the finalizer goes.
    proxy.strike("POST", "/sandboxes", 0, Fate::AnswerHangs);
    let cancelled = world.script("create-cancelled", "true", json!({})).await?;
    until("the create to be sent", PATIENCE, || async { Ok((proxy.struck() == 3).then_some(())) }).await?;
    world.cancel("create-cancelled").await?;
    world.succeeded("create-cancelled", "False", "Cancelled").await?;
    world.nothing_left(&uid(&cancelled)).await?;
    world.delete("create-cancelled").await?;
    world.gone("create-cancelled").await?;
    assert_eq!((world.begun("create-found"), world.begun("create-again"), world.begun("create-cancelled")), (1, 1, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_the_server_turns_away_is_not_told_before_the_sandbox_is_gone() -> Result<()> {
    let proxy = FaultyProxy::start(&server().await?.domain(), SEED, 0).await?;
    let world = World::with("removals", json!({}), json!({"endpoint": proxy.url()})).await?;
    // The process ends politely; what it began is deaf.
    let text = "sh -c \"trap '' TERM; sleep 600\" & trap 'exit 4' TERM; while :; do sleep 1 & wait $!; done";
    world.script("removed-late", text, json!({})).await?;
    world.running("removed-late").await?;
    for _ in 0..2 {
        proxy.strike("DELETE", "", 0, Fate::TurnedAway);
    }
    world.cancel("removed-late").await?;
    let job = world.succeeded("removed-late", "False", "Cancelled").await?;
    assert!(world.of_job(&uid(&job)).await?.is_empty(), "the end is written once the sandbox is gone");
    assert_eq!((proxy.struck(), exit_code(&job)), (2, Some(4)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_entrypoint_a_create_without_an_answer_is_found_and_never_sent_again() -> Result<()> {
    let proxy = FaultyProxy::start(&server().await?.domain(), SEED, 0).await?;
    let parameters = json!({"endpoint": proxy.url(), "createTimeout": "9s", "createWindow": "10s", "executionMode": "Entrypoint"});
    let world = World::with("entry-faults", json!({}), parameters).await?;
    for (name, fate) in [("entry-answer", Fate::AnswerLost), ("entry-replaced", Fate::AnswerReplaced), ("entry-hangs", Fate::AnswerHangs)] {
        let struck = proxy.struck();
        proxy.strike("POST", "/sandboxes", 0, fate);
        let job = world.script(name, "sleep 3; exit 6", json!({})).await?;
        world.succeeded(name, "False", "ProcessFailed").await?;
        assert_eq!((proxy.struck(), world.begun(name)), (struck + 1, 1), "{name}");
        world.nothing_left(&uid(&job)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_answers_are_lost_each_job_runs_once() -> Result<()> {
    let proxy = FaultyProxy::start(&server().await?.domain(), SEED, 12).await?;
    let world = World::of(
        super::world::shared().await?.plane,
        server().await?,
        "answers",
        json!({}),
        json!({"endpoint": proxy.url(), "createTimeout": "9s", "createWindow": "10s", "maxCreateAttempts": 10}),
    )
    .await?;
    super::world::berth().await?;
    let history = History::of(world.jobs.clone());
    for number in 0..6 {
        world.script(&format!("answers-{number}"), "sleep 1; exit 5", json!({})).await?;
    }
    for number in 0..6 {
        let name = format!("answers-{number}");
        let job = world.succeeded(&name, "False", "ProcessFailed").await.with_context(|| format!("seed {SEED}, {} faults", proxy.struck()))?;
        assert_eq!(world.begun(&name), 1, "{name}: seed {SEED}");
        world.nothing_left(&uid(&job)).await?;
    }
    println!("seed {SEED}: {} faults", proxy.struck());
    history.end()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_dies_at_any_step_begins_nothing_twice() -> Result<()> {
    let (plane, account) = plane().await?;
    let proxy = FaultyProxy::start(&server().await?.domain(), SEED, 0).await?;
    let parameters = json!({"endpoint": proxy.url(), "createTimeout": "9s", "createWindow": "10s"});
    let world = World::of(&plane, server().await?, "crashes", json!({}), parameters).await?;
    let history = History::of(world.jobs.clone());
    let mut berth = carried(&plane, &account).await?;
    world.ready().await?;
    let mut crashes = 0;
    for (fate, when) in [(Fate::Hangs, "before"), (Fate::AnswerHangs, "after")] {
        // Of what changes something: create, plant, renew, start, the look that tells the end, removal.
        for at in 0..6 {
            let name = format!("crash-{when}-{at}");
            let struck = proxy.struck();
            proxy.strike("", "", at, fate);
            let job = world.script(&name, "exit 3", json!({})).await?;
            until("the request, or the end", PATIENCE, || async {
                let over = world.jobs.get(&name).await?.status.is_some_and(|status| status.completion_time.is_some());
                Ok((proxy.struck() > struck || over && at > 4).then_some(()))
            })
            .await?;
            crashes += proxy.struck() - struck;
            berth.kill()?;
            proxy.forget();
            berth = carried(&plane, &account).await?;
            world.succeeded(&name, "False", "ProcessFailed").await.with_context(|| format!("{name}; its log:\n{}", berth.log()))?;
            ensure!(world.begun(&name) == 1, "{name} began {} times", world.begun(&name));
            world.nothing_left(&uid(&job)).await?;
        }
    }
    println!("{crashes} crashes");
    ensure!(crashes >= 10, "only {crashes} requests were struck");
    // And while a stop is under way.
    world.script("crash-stop", "trap 'sleep 2; exit 4' TERM; while :; do sleep 1 & wait $!; done", json!({})).await?;
    world.running("crash-stop").await?;
    world.cancel("crash-stop").await?;
    world.until("crash-stop", "stopping", PATIENCE, |job| condition(job, "StopRequested").0 == "True").await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    berth.kill()?;
    let next = carried(&plane, &account).await?;
    let job = world.succeeded("crash-stop", "False", "Cancelled").await.with_context(|| next.log())?;
    world.nothing_left(&uid(&job)).await?;
    history.end()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_lead_in_turn_begin_each_job_once() -> Result<()> {
    let (plane, account) = plane().await?;
    let world = World::of(&plane, server().await?, "leaders", json!({}), json!({})).await?;
    let history = History::of(world.jobs.clone());
    let quick = ["--leader-elect", "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"];
    let mut both = Vec::new();
    for _ in 0..2 {
        let namespace = format!("--leader-elect-namespace={}", super::world::RELEASE);
        let berth = quick.iter().fold(serve(&plane.kubeconfig(&account.token)?), |serve, arg| serve.arg(*arg)).arg(namespace);
        both.push(berth.start_ready(plane.scratch()).await?);
    }
    for number in 0..6 {
        world.script(&format!("led-{number}"), "sleep 2; exit 6", json!({})).await?;
        // Frozen in the middle of what it does, for longer than its lease; then it wakes, and another leads.
        let frozen = both[number % 2].process();
        tokio::time::sleep(Duration::from_millis(400)).await;
        frozen.signal("STOP")?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        frozen.signal("CONT")?;
    }
    for number in 0..6 {
        let name = format!("led-{number}");
        let job = world.succeeded(&name, "False", "ProcessFailed").await?;
        assert_eq!(world.begun(&name), 1, "{name}");
        world.nothing_left(&uid(&job)).await?;
    }
    history.end()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_and_an_engine_that_hangs_are_waited_for() -> Result<()> {
    let mut server = Server::start().await?;
    super::world::berth().await?;
    let world = World::of(super::world::shared().await?.plane, &server, "outages", json!({}), json!({})).await?;
    world.ready().await?;
    // Its sandboxes are on another bridge, from which this machine has another address.
    let told = server.engine.gateway().context("a network")?;
    let text = |name: &str, rest: &str| format!("wget -q -O /dev/null {}\n{rest}", world.counter.url_at(&told, name));
    world.job("out-running", &["sh", "-c", &text("out-running", "sleep 45; exit 8")], json!({})).await?;
    world.running("out-running").await?;
    server.kill();
    world.class_is("BackendReady", "False", "Unreachable").await?;
    world.job("out-waiting", &["sh", "-c", &text("out-waiting", "exit 0")], json!({})).await?;
    let wanted = ("False".to_owned(), "BackendUnavailable".to_owned());
    world.until("out-waiting", "waiting", PATIENCE, |job| condition(job, "Scheduled") == wanted).await?;
    let unknown = world.succeeded("out-running", "Unknown", "ResultUnknown").await?;
    assert_eq!(condition(&unknown, "BackendObserved"), ("False".into(), "BackendUnreachable".into()));
    server.restart().await?;
    world.succeeded("out-waiting", "True", "Completed").await?;
    world.succeeded("out-running", "False", "ProcessFailed").await?;

    world.job("out-frozen", &["sh", "-c", &text("out-frozen", "sleep 5; exit 8")], json!({})).await?;
    world.running("out-frozen").await?;
    server.engine.signal("STOP")?;
    world.job("out-late", &["sh", "-c", &text("out-late", "exit 0")], json!({})).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    server.engine.signal("CONT")?;
    world.succeeded("out-frozen", "False", "ProcessFailed").await?;
    world.succeeded("out-late", "True", "Completed").await?;
    for name in ["out-running", "out-waiting", "out-frozen", "out-late"] {
        assert_eq!(world.begun(name), 1, "{name}");
    }
    Ok(())
}
