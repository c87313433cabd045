//! Electors on a real API server: they take turns, never two at once, and a standby is there at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_runtime::apiclient;
use berth_runtime::lease::{ElectionConfig, Elector, Fence, Leadership, Stats, identity};
use berth_tests::controlplane::{ADMIN, BERTH, ControlPlane};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::Proxy;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Config};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NAME: &str = "turn";

/// 1 s, 700 ms, 100 ms: as short as a Lease can be.
fn short(namespace: &str, who: &str) -> ElectionConfig {
    let millis = Duration::from_millis;
    ElectionConfig { lease: millis(1_000), renew: millis(700), retry: millis(100), ..ElectionConfig::new(namespace, NAME, identity(who)) }
}

struct Candidate {
    identity: String,
    fence: Fence,
    leadership: watch::Receiver<Leadership>,
    stats: Stats,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Candidate {
    fn start(config: ElectionConfig, connect: Config) -> Result<Self> {
        let client = apiclient::client(connect, config.limits(), Arc::new(()))?;
        let identity = config.identity.clone();
        let elector = Elector::new(config)?;
        let (fence, leadership, stats) = (elector.fence(), elector.leadership(), elector.stats());
        let stop = CancellationToken::new();
        let task = tokio::spawn(elector.run(client, stop.clone()));
        Ok(Self { identity, fence, leadership, stats, stop, task })
    }

    async fn leads(&mut self) -> Result<u64> {
        Ok(tokio::time::timeout(PATIENCE, self.leadership.wait_for(|now| now.epoch().is_some())).await??.epoch().unwrap_or_default())
    }

    /// Waits until it stands by and knows who leads, so that its watch is up.
    async fn knows(&mut self, holder: &str) -> Result<()> {
        let known = |now: &Leadership| matches!(now, Leadership::Standby { holder: Some(known) } if known == holder);
        tokio::time::timeout(PATIENCE, self.leadership.wait_for(known)).await??;
        Ok(())
    }

    async fn stop(self) -> Result<Fence> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await??;
        Ok(self.fence)
    }
}

struct Place {
    plane: &'static ControlPlane,
    namespace: String,
    leases: Api<Lease>,
}

impl Place {
    async fn new(prefix: &str) -> Result<Self> {
        let plane = ControlPlane::shared().await?;
        let namespace = plane.namespace(prefix).await?;
        Ok(Self { plane, leases: Api::namespaced(plane.client(ADMIN)?, &namespace), namespace })
    }

    fn candidate(&self, who: &str) -> Result<Candidate> {
        Candidate::start(short(&self.namespace, who), self.plane.config(BERTH)?)
    }

    /// A standby of the leader `of` whose watch is up.
    async fn standby(&self, who: &str, of: &str) -> Result<Candidate> {
        let watches = || self.plane.audit().count(|r| r.verb == "watch" && r.resource == "leases" && r.namespace == self.namespace && r.succeeded());
        let before = watches()?;
        let mut standby = self.candidate(who)?;
        standby.knows(of).await?;
        until("the watch of the standby", PATIENCE, || async { Ok((watches()? > before).then_some(())) }).await?;
        Ok(standby)
    }
}

/// Every state of the Lease that the API server had: (holder, transitions).
async fn record(leases: Api<Lease>, history: Arc<Mutex<Vec<(String, i32)>>>) {
    use futures::StreamExt as _;
    let mut events = std::pin::pin!(watcher(leases, watcher::Config::default()));
    while let Some(event) = events.next().await {
        if let Ok(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease)) = event {
            let spec = lease.spec.unwrap_or_default();
            let state = (spec.holder_identity.unwrap_or_default(), spec.lease_transitions.unwrap_or_default());
            history.lock().unwrap().push(state);
        }
    }
}

/// Four that want the Lease all the time, hold it for moments, give it back, or die with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_hammering_one_lease_never_two_hold_it() -> Result<()> {
    const TERMS: usize = 120;
    let place = Place::new("hammer").await?;
    let (inside, terms, deaths) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let history = Arc::<Mutex<Vec<(String, i32)>>>::default();
    let recorder = tokio::spawn(record(place.leases.clone(), history.clone()));
    let start = Instant::now();
    let contender = async |n: usize| -> Result<()> {
        while terms.load(Ordering::SeqCst) < TERMS {
            let mut candidate = place.candidate(&format!("c{n}"))?;
            let led = tokio::time::timeout(Duration::from_secs(5), candidate.leads()).await;
            let Ok(epoch) = led else {
                candidate.stop().await?;
                continue;
            };
            let epoch = epoch?;
            let dies = terms.fetch_add(1, Ordering::SeqCst) % 20 == 19;
            // A crash is an elector that does nothing more; its fence must close by itself in time.
            if dies {
                deaths.fetch_add(1, Ordering::SeqCst);
                candidate.task.abort();
            }
            let held = Instant::now();
            let hold = Duration::from_millis(if dies { 1_500 } else { 5 + 7 * (epoch % 5) });
            while held.elapsed() < hold {
                if let Ok(_sending) = candidate.fence.begin(epoch) {
                    ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two lead at once, one of them {}", candidate.identity);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
            if !dies {
                candidate.stop().await?;
            }
        }
        Ok(())
    };
    let ended = futures::join!(contender(0), contender(1), contender(2), contender(3));
    for ended in [ended.0, ended.1, ended.2, ended.3] {
        ended?;
    }
    recorder.abort();
    let history = history.lock().unwrap().clone();
    // Nobody takes it from a holder that is alive: in between it was released, or (a death) its time was over.
    let taken = history.windows(2).filter(|pair| pair[0].0 != pair[1].0 && !pair[0].0.is_empty() && !pair[1].0.is_empty()).count();
    let deaths = deaths.load(Ordering::SeqCst);
    ensure!(taken <= deaths, "taken {taken} times without release, for {deaths} deaths: {history:?}");
    ensure!(history.windows(2).all(|pair| (0..=1).contains(&(pair[1].1 - pair[0].1))), "transitions: {history:?}");
    println!("{} terms of four contenders in {:?}, {} states of the lease", terms.load(Ordering::SeqCst), start.elapsed(), history.len());
    Ok(())
}

#[tokio::test]
async fn a_standby_takes_over_at_once_when_the_lease_is_released_or_deleted_and_else_when_it_ends() -> Result<()> {
    let place = Place::new("handover").await?;
    let mut took = Vec::new();
    for how in ["released", "deleted", "expired"] {
        let mut leader = place.candidate("leader")?;
        leader.leads().await?;
        let mut standby = place.standby("standby", &leader.identity).await?;
        let start;
        match how {
            "released" => {
                start = Instant::now();
                leader.stop().await?;
            }
            "deleted" => {
                leader.task.abort();
                start = Instant::now();
                place.leases.delete(NAME, &DeleteParams::default()).await?;
            }
            _ => {
                leader.task.abort();
                start = Instant::now();
            }
        }
        standby.leads().await?;
        took.push((how, start.elapsed()));
        standby.stop().await?;
    }
    println!("taken over: {took:?}");
    let limits = [("released", 1_000), ("deleted", 1_000), ("expired", 3 * 2_000)];
    for ((how, took), (_, limit_ms)) in took.iter().zip(limits) {
        ensure!(took.as_millis() < limit_ms, "{how}: {took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_leader_that_is_alive_when_its_lease_is_deleted_notices_at_once() -> Result<()> {
    let place = Place::new("deleted").await?;
    let mut leader = place.candidate("leader")?;
    let epoch = leader.leads().await?;
    until("the watch", PATIENCE, || async {
        Ok((place.plane.audit().count(|r| r.verb == "watch" && r.resource == "leases" && r.namespace == place.namespace)? > 0).then_some(()))
    })
    .await?;
    place.leases.delete(NAME, &DeleteParams::default()).await?;
    tokio::time::timeout(PATIENCE, leader.leadership.wait_for(|now| now.epoch().is_some_and(|next| next > epoch))).await??;
    ensure!(leader.fence.begin(epoch).is_err(), "what was decided before is void");
    ensure!(leader.stats.now().lost == 1);
    leader.stop().await?;
    let spec = place.leases.get(NAME).await?.spec.unwrap_or_default();
    ensure!(spec.holder_identity.as_deref() == Some("") && spec.lease_duration_seconds == Some(1), "{spec:?}");
    Ok(())
}

#[tokio::test]
async fn a_leader_cut_off_stands_down_before_the_next_one_leads() -> Result<()> {
    let place = Place::new("cut").await?;
    let proxy = Proxy::start(place.plane).await?;
    let mut through = Config::new(proxy.url().parse()?);
    through.auth_info.token = Some(BERTH.to_owned().into());
    let mut leader = Candidate::start(short(&place.namespace, "leader"), through)?;
    leader.leads().await?;
    let mut standby = place.standby("standby", &leader.identity).await?;
    proxy.partition(true);
    let start = Instant::now();
    let fence = leader.fence.clone();
    let closed = async {
        while fence.check().is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        start.elapsed()
    };
    let (closed, led) = futures::join!(closed, async { standby.leads().await.map(|_| start.elapsed()) });
    let led = led?;
    println!("cut off: the leader's fence closed after {closed:?}, the next led after {led:?}");
    ensure!(closed < led);
    proxy.partition(false);
    leader.knows(&standby.identity).await?;
    ensure!(leader.stats.now().overlaps == 0, "it stood down in time");
    leader.stop().await?;
    standby.stop().await?;
    Ok(())
}

/// Kubernetes' usual Role for a Lease allows no watch: then polling must do.
#[tokio::test]
async fn without_the_right_to_watch_a_standby_polls() -> Result<()> {
    let place = Place::new("poll").await?;
    let token = place.plane.service_account(&place.namespace, "candidate").await?;
    let role = json!({"metadata": {"name": "lease"}, "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]});
    let binding = json!({
        "metadata": {"name": "lease"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lease"},
        "subjects": [{"kind": "ServiceAccount", "name": "candidate", "namespace": place.namespace}],
    });
    let (roles, bindings): (Api<Role>, Api<RoleBinding>) =
        (Api::namespaced(place.plane.admin()?, &place.namespace), Api::namespaced(place.plane.admin()?, &place.namespace));
    roles.create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    let candidate = |who: &str| Candidate::start(short(&place.namespace, who), place.plane.config(&token)?);
    let mut leader = candidate("leader")?;
    leader.leads().await?;
    let mut standby = candidate("standby")?;
    standby.knows(&leader.identity).await?;
    let start = Instant::now();
    leader.stop().await?;
    standby.leads().await?;
    println!("taken over by polling after {:?}", start.elapsed());
    ensure!(start.elapsed() < 3 * Duration::from_millis(220));
    standby.stop().await?;
    Ok(())
}
