//! Several `berth serve` with leader election: planned handover, a killed leader, a frozen one that wakes up, three of them.
//! In every case: who stands by writes nothing, the next leader lists before it places, no Run is placed twice, no Pod holds more than it can.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Berth;
use berth_tests::controlplane::ControlPlane;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::{Fault, Proxy};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::serve_world::{World, phase, run};

/// As short as a laden machine bears.
const LEASE: Duration = Duration::from_secs(3);
const NAME: &str = "berth";
const PODS: usize = 4;
const CAPACITY: usize = 80;
/// More than fit, so that overcommitment would show.
const RUNS: usize = PODS * CAPACITY + 20;
/// A new Run that often, while leaders come and go.
const RUN_EVERY: Duration = Duration::from_millis(25);

/// A process behind a proxy of its own, which sees what it sends and when.
pub struct Candidate {
    pub berth: Berth,
    proxy: Proxy,
}

impl Candidate {
    pub async fn start(world: &World<'_>) -> Result<Self> {
        Self::start_with(world, &[]).await
    }

    async fn start_with(world: &World<'_>, args: &[&str]) -> Result<Self> {
        let proxy = Proxy::start(world.plane).await?;
        let serve = world.serve_through(&proxy)?.arg("--leader-elect").arg(format!("--leader-elect-namespace={}", world.namespace));
        let serve = serve.arg("--leader-elect-lease-duration=3s").arg("--leader-elect-renew-deadline=2s").arg("--leader-elect-retry-period=400ms");
        let berth = args.iter().fold(serve, |serve, arg| serve.arg(*arg)).start_ready(world.plane.scratch()).await?;
        Ok(Self { berth, proxy })
    }

    pub async fn leads(&self) -> Result<()> {
        self.berth.metric_at_least("leader_election_master_status", &[("name", NAME)], 1.0).await.map(|_| ())
    }

    async fn overlaps(&self) -> Result<f64> {
        Ok(self.berth.metrics().await?.sum("berth_leader_overlaps_total", &[]))
    }

    /// Status writes that it has sent: of Runs and workspaces.
    pub fn writes(&self) -> usize {
        self.proxy.count(|seen| seen.is("patch", "runs/status") || seen.is("patch", "persistentworkspaces/status"))
    }

    /// Placements that it has decided and not seen confirmed yet.
    async fn decided(&self) -> Result<u64> {
        let (_, queue) = self.berth.get("/debug/queue").await?;
        serde_json::from_str::<Value>(&queue)?["writes"]["placements"].as_u64().with_context(|| queue)
    }

    /// When it first places something.
    async fn first_placement(&self) -> Result<Instant> {
        let start = Instant::now();
        while self.proxy.count(|seen| seen.is("patch", "runs/status")) == 0 {
            ensure!(start.elapsed() < PATIENCE, "no placement; its log:\n{}", self.berth.log());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Instant::now())
    }

    /// Between taking the Lease and its first write it has listed every kind.
    fn listed_before_it_placed(&self) -> Result<()> {
        let seen = self.proxy.requests();
        let took = seen.iter().position(|seen| seen.is("update", "leases") && seen.code == Some(200)).context("it never took the Lease")?;
        let write = seen.iter().position(|seen| seen.is("patch", "runs/status")).context("it never placed")?;
        for kind in ["runs", "pods", "persistentworkspaces"] {
            let list = seen.get(took..write).unwrap_or_default().iter().any(|seen| seen.is("list", kind) && seen.code == Some(200));
            ensure!(list, "no list of {kind} between request {took}, which took the Lease, and {write}, which placed");
        }
        Ok(())
    }
}

async fn world<'p>(plane: &'p ControlPlane, prefix: &str) -> Result<World<'p>> {
    let world = World::on(plane, prefix).await?;
    for n in 0..PODS {
        world.pod(&format!("p{n}"), "bash", &[("runs", &CAPACITY.to_string())]).await?;
    }
    Ok(world)
}

/// Runs `scenario` while Runs keep coming, then creates the rest, and looks at what became of all.
async fn under_load(world: &World<'_>, scenario: impl Future<Output = Result<()>>) -> Result<()> {
    let over = CancellationToken::new();
    let load = async {
        for n in 0..RUNS {
            world.run(run(&format!("r{n}"))).await?;
            // Most of the room is for the scenario; when that is over, what is left comes at once.
            let room_left = n < PODS * CAPACITY - 20;
            let pause = if room_left { RUN_EVERY } else { Duration::from_secs(60) };
            let _ = tokio::time::timeout(pause, over.cancelled()).await;
        }
        anyhow::Ok(())
    };
    let scenario = async {
        let result = scenario.await;
        over.cancel();
        result
    };
    let (load, scenario) = futures::join!(load, scenario);
    scenario?;
    load?;
    nothing_is_lost_doubled_or_overcommitted(world).await
}

async fn nothing_is_lost_doubled_or_overcommitted(world: &World<'_>) -> Result<()> {
    let scheduled = async || anyhow::Ok(world.all_runs().await?.values().filter(|run| phase(run) == "Scheduled").count());
    until("every slot to be taken", PATIENCE, async || Ok((scheduled().await? >= PODS * CAPACITY).then_some(()))).await?;
    let runs = world.all_runs().await?;
    ensure!(runs.len() == RUNS, "{} Runs", runs.len());
    let mut by_pod: BTreeMap<String, usize> = BTreeMap::new();
    for run in runs.values().filter(|run| phase(run) == "Scheduled") {
        *by_pod.entry(run.status.clone().unwrap_or_default().assigned_pod.unwrap_or_default()).or_default() += 1;
    }
    ensure!(by_pod.len() == PODS && by_pod.values().all(|n| *n == CAPACITY), "{by_pod:?}");
    // One write that placed it, and none after; before it perhaps one that told why it waits.
    let writes = world.writes_by_run()?;
    for (name, run) in runs.iter().filter(|(_, run)| phase(run) == "Scheduled") {
        let waited = run.status.as_ref().is_some_and(|status| status.conditions.iter().any(|c| c.type_ == "Scheduled" && c.status == "False"));
        ensure!(!waited && writes.get(name) == Some(&1), "{name} was written {:?} times", writes.get(name));
    }
    Ok(())
}

#[tokio::test]
async fn a_planned_handover_drains_releases_and_the_next_places_within_a_second() -> Result<()> {
    let world = world(ControlPlane::shared().await?, "handover").await?;
    let first = Candidate::start(&world).await?;
    first.leads().await?;
    let (_, in_force) = first.berth.get("/configz").await?;
    ensure!(serde_json::from_str::<Value>(&in_force)?["leaderElection"]["leaseDuration"] == "3s", "flags are in force: {in_force}");
    let second = Candidate::start(&world).await?;
    under_load(&world, async {
        world.workspace("by-the-first", "bash").await?;
        world.workspace_when("by-the-first", "Bound").await?;
        until("a burst under way", PATIENCE, async || Ok((first.writes() > 20).then_some(()))).await?;
        ensure!(second.writes() == 0, "a standby writes nothing");
        let Candidate { berth, proxy } = first;
        let start = Instant::now();
        let (ended, placed) = futures::join!(berth.terminate(), second.first_placement());
        let (status, log) = ended?;
        ensure!(status.code() == Some(0), "{status}:\n{log}");
        ensure!(log.contains("lease released"), "{log}");
        // Nothing of the first one was sent after it gave up the Lease.
        let seen = proxy.requests();
        let release = seen.iter().rposition(|seen| seen.is("update", "leases")).context("no release")?;
        ensure!(!seen[release..].iter().any(|seen| seen.is("patch", "runs/status")), "it placed after the release");
        let took = placed?.duration_since(start);
        println!("planned handover: first placement by the next leader {took:?} after SIGTERM");
        ensure!(took < 3 * Duration::from_secs(1), "{took:?}");
        second.listed_before_it_placed()?;
        world.workspace("by-the-second", "bash").await?;
        world.workspace_when("by-the-second", "Bound").await?;
        ensure!(second.overlaps().await? == 0.0);
        Ok(())
    })
    .await?;
    let (status, log) = second.berth.terminate().await?;
    ensure!(status.code() == Some(0), "{status}:\n{log}");
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), &world.namespace);
    let spec = leases.get(NAME).await?.spec.unwrap_or_default();
    ensure!(spec.holder_identity.as_deref() == Some("") && spec.lease_transitions == Some(1), "{spec:?}");
    Ok(())
}

#[tokio::test]
async fn when_the_leader_is_killed_the_next_places_within_the_lease_and_a_second() -> Result<()> {
    let world = world(ControlPlane::shared().await?, "killed").await?;
    let first = Candidate::start(&world).await?;
    first.leads().await?;
    let second = Candidate::start(&world).await?;
    under_load(&world, async {
        until("a burst under way", PATIENCE, async || Ok((first.writes() > 20).then_some(()))).await?;
        ensure!(second.writes() == 0, "a standby writes nothing");
        first.berth.kill()?;
        let start = Instant::now();
        // Nobody leads now; what comes in this time must not be forgotten.
        world.workspace("meanwhile", "bash").await?;
        let took = second.first_placement().await?.duration_since(start);
        println!("leader killed: first placement by the next one after {took:?}, with a lease of {LEASE:?}");
        ensure!(took < 3 * (LEASE + Duration::from_secs(1)), "{took:?}");
        second.listed_before_it_placed()?;
        world.workspace_when("meanwhile", "Bound").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_leader_frozen_past_its_lease_sends_nothing_when_it_wakes_and_the_overlap_is_counted() -> Result<()> {
    let world = world(ControlPlane::shared().await?, "frozen").await?;
    let mut first = Candidate::start_with(&world, &["--bind-workers=2"]).await?;
    first.leads().await?;
    let second = Candidate::start(&world).await?;
    under_load(&world, async {
        until("a burst under way", PATIENCE, async || Ok((first.writes() > 20).then_some(()))).await?;
        // Two writes that reach the API server when the next one leads already, and decisions that wait behind them.
        let under_way = first.proxy.inject(Fault::Delay(2 * LEASE), 2, |seen| seen.is("patch", "runs/status"));
        until("decisions behind them", PATIENCE, async || Ok((under_way.hits() == 2 && first.decided().await? >= 6).then_some(()))).await?;
        first.berth.process().signal("STOP")?;
        let before = first.writes();
        second.first_placement().await?;
        second.listed_before_it_placed()?;
        first.berth.process().signal("CONT")?;
        // The two that it had begun, and the Lease that another holds.
        let overlaps = first.berth.metric_at_least("berth_leader_overlaps_total", &[], 3.0).await?;
        until("the first to stand by", PATIENCE, async || Ok((first.berth.metrics().await?.sum("leader_election_master_status", &[]) == 0.0).then_some(())))
            .await?;
        let more = second.writes() + 10;
        until("the second to go on", PATIENCE, async || Ok((second.writes() >= more).then_some(()))).await?;
        let late = first.writes() - before;
        let refused = first.proxy.count(|seen| seen.is("patch", "runs/status") && seen.code == Some(409));
        println!("frozen leader: {late} writes begun when it woke; of 2 under way {refused} were refused; {overlaps} overlaps counted");
        ensure!(late == 0, "{late} writes begun after its deadline");
        let (code, text) = first.berth.get("/readyz").await?;
        ensure!(code == 200, "a standby is ready: {text}");
        Ok(())
    })
    .await?;
    // Runs wait. The one that places says so; to the one that stands by nothing is pending.
    second.berth.metric_at_least("scheduler_pending_pods", &[], (RUNS - PODS * CAPACITY) as f64).await?;
    ensure!(first.berth.metrics().await?.sum("scheduler_pending_pods", &[]) == 0.0);
    // It stands by with a warm cache, and is good enough to take over again.
    let before = first.writes();
    second.berth.terminate().await?;
    first.leads().await?;
    for name in ["r0", "r1"] {
        world.succeed(name).await?;
    }
    until("the first to place again", PATIENCE, async || Ok((first.writes() > before).then_some(()))).await
}

#[tokio::test]
async fn of_three_exactly_one_places_whatever_happens_to_the_leader() -> Result<()> {
    let world = world(ControlPlane::shared().await?, "three").await?;
    let mut standing = vec![Candidate::start(&world).await?];
    standing[0].leads().await?;
    standing.push(Candidate::start(&world).await?);
    standing.push(Candidate::start(&world).await?);
    under_load(&world, async {
        for how in ["SIGTERM", "SIGKILL"] {
            let before = standing[0].writes();
            until("a burst under way", PATIENCE, async || Ok((standing[0].writes() > before + 10).then_some(()))).await?;
            ensure!(standing[1..].iter().all(|standby| standby.writes() == 0), "standbys write nothing");
            let leader = standing.remove(0);
            let start = Instant::now();
            match how {
                "SIGTERM" => _ = leader.berth.terminate().await?,
                _ => _ = leader.berth.kill()?,
            }
            let next = until("one of the others to place", PATIENCE, async || Ok(standing.iter().position(|standby| standby.writes() > 0))).await?;
            println!("of three, {how}: {} goes on after {:?}", next + 1, start.elapsed());
            let next = standing.remove(next);
            next.listed_before_it_placed()?;
            standing.insert(0, next);
        }
        Ok(())
    })
    .await?;
    ensure!(standing.len() == 1);
    Ok(())
}

/// Without an election nothing changes: no Lease, no metric of it.
#[tokio::test]
async fn without_the_flag_no_lease_is_touched() -> Result<()> {
    let world = World::new("alone").await?;
    world.pod("p", "bash", &[]).await?;
    let berth = world.berth().await?;
    world.run(run("r")).await?;
    world.placed_on("r", "p").await?;
    ensure!(!berth.metrics().await?.has("leader_election_master_status"));
    ensure!(world.plane.audit().count(|r| r.resource == "leases" && r.namespace == world.namespace)? == 0);
    Ok(())
}
