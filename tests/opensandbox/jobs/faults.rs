//! Jobs on OpenSandbox under faults: answers that are lost, servers that go away, controllers that die at each step, and two that lead. Each process
//! tells when it begins, and none begins twice.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Berth;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::opensandbox::Server;
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use berth_tests::release::Account;
use serde_json::json;

use super::world::{World, prepare, serve};
use crate::faulty::{Fate, FaultyProxy, seed};
use crate::job_world::{History, condition, exit_code, uid};
use crate::world::server;

/// A control plane of the test's own, on which it may kill whoever carries Jobs.
pub async fn plane() -> Result<(ControlPlane, Account)> {
    let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
    crate::job_world::install_policies(&plane.admin()?).await?;
    let account = prepare(&plane).await?;
    Ok((plane, account))
}

pub async fn carried(plane: &ControlPlane, account: &Account) -> Result<Berth> {
    serve(&plane.kubeconfig(&account.token)?).start_ready(plane.scratch()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_without_an_answer_is_looked_for_and_made_again_only_when_nothing_can_come_of_it() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
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
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
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

    // Mode Entrypoint: what ends once a removal was sent has not ended by itself, as when a server has killed its container and not removed it.
    let entry = World::with("removals-entry", json!({}), json!({"endpoint": proxy.url(), "executionMode": "Entrypoint"})).await?;
    entry.script("removed-killed", "sleep 600", json!({})).await?;
    let id = entry.sandbox(&uid(&entry.running("removed-killed").await?)).await?.id;
    for _ in 0..3 {
        proxy.strike("DELETE", "", 0, Fate::TurnedAway);
    }
    entry.cancel("removed-killed").await?;
    until("the first removal to be sent", PATIENCE, || async { Ok((proxy.struck() > 2).then_some(())) }).await?;
    server().await?.engine.run(&["kill", &format!("sandbox-{id}")])?;
    let job = entry.succeeded("removed-killed", "False", "Cancelled").await?;
    assert_eq!((exit_code(&job), entry.begun("removed-killed")), (None, 1));
    entry.nothing_left(&uid(&job)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_entrypoint_a_create_without_an_answer_is_found_and_never_sent_again() -> Result<()> {
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
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
    let seed = seed();
    let proxy = FaultyProxy::start(&server().await?.domain(), seed, 12).await?;
    super::world::berth().await?;
    let plane = super::world::shared().await?.plane;
    let parameters =
        |access: &str| json!({"endpoint": proxy.url(), "execdAccess": access, "createTimeout": "9s", "createWindow": "10s", "maxCreateAttempts": 10});
    let by_server = World::of(plane, server().await?, "answers", json!({}), parameters("ServerProxy")).await?;
    let direct = World::of(plane, server().await?, "answers-direct", json!({}), parameters("Direct")).await?;
    let history = History::of(by_server.jobs.clone());
    let all: Vec<_> = (0..8).map(|number| (format!("answers-{number}"), if number < 6 { &by_server } else { &direct })).collect();
    for (name, world) in &all {
        world.script(name, "sleep 1; exit 5", json!({})).await?;
    }
    for (name, world) in &all {
        let job = world.succeeded(name, "False", "ProcessFailed").await.with_context(|| format!("seed {seed}, {} faults", proxy.struck()))?;
        assert_eq!(world.begun(name), 1, "{name}: seed {seed}");
        world.nothing_left(&uid(&job)).await?;
    }
    println!("seed {seed}: {} faults, {} requests to an execd at its own address", proxy.struck(), proxy.direct());
    assert!(proxy.direct() > 2, "seed {seed}");
    history.end()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_dies_at_any_step_begins_nothing_twice() -> Result<()> {
    let (plane, account) = plane().await?;
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
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
            super::canaries::in_new_log(&berth)?;
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

/// One of several processes of which one leads, that leave little time to each other.
async fn elected(kubeconfig: &Path, plane: &ControlPlane) -> Result<Berth> {
    let quick = ["--leader-elect", "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"];
    let namespace = format!("--leader-elect-namespace={}", super::world::RELEASE);
    quick.iter().fold(serve(kubeconfig), |serve, arg| serve.arg(*arg)).arg(namespace).start_ready(plane.scratch()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_lead_in_turn_begin_each_job_once() -> Result<()> {
    let (plane, account) = plane().await?;
    let world = World::of(&plane, server().await?, "leaders", json!({}), json!({})).await?;
    let history = History::of(world.jobs.clone());
    let mut both = Vec::new();
    for _ in 0..2 {
        both.push(elected(&plane.kubeconfig(&account.token)?, &plane).await?);
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

/// What a leader has in hand when another takes its place: not answered yet, and let go only when that one is as far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InHand {
    Create,
    Record,
    Start,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_are_at_the_same_step_at_the_same_moment_begin_the_job_once() -> Result<()> {
    /// Later than the next leader is as far.
    const LATE: Duration = Duration::from_secs(8);
    let (plane, account) = plane().await?;
    let proxy = FaultyProxy::quiet(&server().await?.domain()).await?;
    let world = World::of(&plane, server().await?, "moment", json!({}), json!({"endpoint": proxy.url()})).await?;
    let history = History::of(world.jobs.clone());
    let api = [Proxy::start(&plane).await?, Proxy::start(&plane).await?];
    let mut both = Vec::new();
    for api in &api {
        both.push(elected(&api.kubeconfig(&plane, &account.token)?, &plane).await?);
    }
    world.ready().await?;
    let struck = |count: usize| {
        let proxy = &proxy;
        async move { until(&format!("{count} requests in hand"), PATIENCE, || async { Ok((proxy.struck() == count).then_some(())) }).await }
    };
    for in_hand in [InHand::Create, InHand::Record, InHand::Start] {
        let name = format!("moment-{in_hand:?}").to_lowercase();
        let leader = until("one that leads", PATIENCE, || async {
            for (index, berth) in both.iter().enumerate() {
                if berth.metrics().await?.sum("leader_election_master_status", &[]) > 0.0 {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        })
        .await?;
        let before = proxy.struck();
        // The nonce is planted by the first command, the second is the start.
        let (path, after) = match in_hand {
            InHand::Create => ("/sandboxes", 0),
            InHand::Record => ("/command", 0),
            InHand::Start => ("/command", 1),
        };
        proxy.strike("POST", path, after, Fate::Held);
        let job = world.script(&name, "sleep 3; exit 6", json!({})).await?;
        struck(before + 1).await?;
        if in_hand == InHand::Record {
            let late = api[leader].inject(Fault::Delay(LATE), 1, |seen| seen.is("patch", "jobs/status"));
            proxy.release(1);
            until("the late record", PATIENCE, || async { Ok((late.hits() == 1).then_some(())) }).await?;
            both[leader].process().signal("STOP")?;
        } else {
            both[leader].process().signal("STOP")?;
            // The other's request of that kind is in hand as well; then both go at once.
            proxy.strike("POST", path, 0, Fate::Held);
            struck(before + 2).await?;
            proxy.release(2);
            both[leader].process().signal("CONT")?;
        }
        if in_hand == InHand::Create {
            until("two sandboxes", PATIENCE, || async { Ok((world.of_job(&uid(&job)).await?.len() == 2).then_some(())) }).await?;
        }
        let job = world.succeeded(&name, "False", "ProcessFailed").await.with_context(|| both.iter().map(Berth::log).collect::<String>())?;
        both[leader].process().signal("CONT")?;
        assert_eq!((exit_code(&job), world.begun(&name)), (Some(6), 1), "{name}");
        // Also what the one that woke up may have sent.
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.nothing_left(&uid(&job)).await?;
        assert_eq!(world.begun(&name), 1, "{name}");
    }
    let removed = [both[0].metrics().await?, both[1].metrics().await?].map(|metrics| metrics.sum("berth_job_doubles_removed_total", &[]));
    println!("doubles removed by each: {removed:?}");
    history.end()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_and_an_engine_that_hangs_are_waited_for() -> Result<()> {
    let mut server = Server::start().await?;
    super::world::berth().await?;
    let world = World::of(super::world::shared().await?.plane, &server, "outages", json!({}), json!({})).await?;
    world.ready().await?;
    world.script("out-running", "sleep 45; exit 8", json!({})).await?;
    world.running("out-running").await?;
    server.kill();
    world.class_is("BackendReady", "False", "Unreachable").await?;
    world.script("out-waiting", "exit 0", json!({})).await?;
    let wanted = ("False".to_owned(), "BackendUnavailable".to_owned());
    world.until("out-waiting", "waiting", PATIENCE, |job| condition(job, "Scheduled") == wanted).await?;
    let unknown = world.succeeded("out-running", "Unknown", "ResultUnknown").await?;
    assert_eq!(condition(&unknown, "BackendObserved"), ("False".into(), "BackendUnreachable".into()));
    server.restart().await?;
    world.succeeded("out-waiting", "True", "Completed").await?;
    world.succeeded("out-running", "False", "ProcessFailed").await?;

    world.script("out-frozen", "sleep 5; exit 8", json!({})).await?;
    world.running("out-frozen").await?;
    server.engine.signal("STOP")?;
    world.script("out-late", "exit 0", json!({})).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    server.engine.signal("CONT")?;
    world.succeeded("out-frozen", "False", "ProcessFailed").await?;
    world.succeeded("out-late", "True", "Completed").await?;
    for name in ["out-running", "out-waiting", "out-frozen", "out-late"] {
        assert_eq!(world.begun(name), 1, "{name}");
    }
    super::world::nothing_is_left(&server).await
}
