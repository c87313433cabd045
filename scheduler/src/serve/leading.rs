//! Leader election of `berth serve`: flags over configuration, the thread it runs on, what it tells probes and Prometheus.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_framework::profile::{ConfigError, LeaderElectionConfiguration};
use berth_runtime::apiclient::connect;
use berth_runtime::informer::Informer;
use berth_runtime::lease::{ElectionConfig, Elector, Fence, Leadership, Stats, identity};
use clap::Args;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGaugeVec, Opts};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Misconfigured;
use super::metrics::{Metrics, catch_up};
use super::turn::{Relist, Turn};

/// A leader whose deadline is that long past is stuck: kube-scheduler's watchdog allows as much.
const OVERDUE_AFTER: Duration = Duration::from_secs(20);

/// Flags of leader election, kube-scheduler's by name; each wins over the configuration's field.
#[derive(Clone, Debug, Default, Args)]
pub struct ElectionArgs {
    /// Of several processes only the holder of a Lease places; the others stand by with warm caches [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// How long a standby waits after the leader's last sign of life, whole seconds [default: 15s]
    #[arg(long, value_name = "DURATION")]
    pub leader_elect_lease_duration: Option<String>,
    /// A leader that could not renew for that long stops; less than the lease duration [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub leader_elect_renew_deadline: Option<String>,
    /// Between renewals, and between attempts [default: 2s]
    #[arg(long, value_name = "DURATION")]
    pub leader_elect_retry_period: Option<String>,
    /// Name of the Lease [default: berth]
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the Lease [default: the Pod's own, or the kubeconfig context's]
    #[arg(long, value_name = "NAME", visible_alias = "leader-elect-resource-namespace")]
    pub leader_elect_namespace: Option<String>,
}

impl ElectionArgs {
    /// The configuration with these flags on top.
    pub fn over(&self, configured: Option<LeaderElectionConfiguration>) -> LeaderElectionConfiguration {
        let configured = configured.unwrap_or_default();
        let or = |flag: &Option<String>, field: Option<String>| flag.clone().or(field);
        LeaderElectionConfiguration {
            leader_elect: self.leader_elect.or(configured.leader_elect),
            lease_duration: or(&self.leader_elect_lease_duration, configured.lease_duration),
            renew_deadline: or(&self.leader_elect_renew_deadline, configured.renew_deadline),
            retry_period: or(&self.leader_elect_retry_period, configured.retry_period),
            resource_name: or(&self.leader_elect_resource_name, configured.resource_name),
            resource_namespace: or(&self.leader_elect_namespace, configured.resource_namespace),
        }
    }
}

/// An election to be, and what can be seen of it from the start.
pub struct Election {
    elector: Elector,
    config: ElectionConfig,
    /// Asked before every send.
    pub fence: Fence,
    /// For probes and metrics.
    pub view: View,
}

/// What others see of an election.
#[derive(Clone)]
pub struct View {
    identity: String,
    leadership: watch::Receiver<Leadership>,
    stats: Stats,
}

impl View {
    /// Who leads, as told last and from now on.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Whether somebody else may lead.
    pub fn stands_by(&self) -> bool {
        self.leadership.borrow().epoch().is_none()
    }

    /// Identity of the leader, as in the Lease; `None`: nobody leads, or nothing is known yet.
    pub fn leader(&self) -> Option<String> {
        match &*self.leadership.borrow() {
            Leadership::Leader { .. } => Some(self.identity.clone()),
            Leadership::Standby { holder } => holder.clone(),
        }
    }

    /// Whether the election is alive: one that believes to lead long after its deadline is not.
    pub fn is_alive(&self) -> bool {
        match &*self.leadership.borrow() {
            Leadership::Leader { deadline, .. } => deadline.elapsed() < OVERDUE_AFTER,
            Leadership::Standby { .. } => true,
        }
    }
}

impl Election {
    /// The election that flags and configuration ask for, if any. `namespace` is the process's own, `host` its name.
    ///
    /// # Errors
    /// Everything that is wrong with durations and names.
    pub fn new(configured: &LeaderElectionConfiguration, namespace: &str, host: &str) -> Result<Option<Self>, Misconfigured> {
        let told = |errors: Vec<ConfigError>| Misconfigured(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
        let read = configured.read().map_err(told)?;
        if !read.leader_elect {
            return Ok(None);
        }
        let config = ElectionConfig {
            namespace: read.resource_namespace.unwrap_or_else(|| namespace.to_owned()),
            name: read.resource_name,
            identity: identity(host),
            lease: read.lease_duration,
            renew: read.renew_deadline,
            retry: read.retry_period,
        };
        let elector = Elector::new(config.clone()).map_err(|error| Misconfigured(error.to_string()))?;
        let view = View { identity: config.identity.clone(), leadership: elector.leadership(), stats: elector.stats() };
        Ok(Some(Self { fence: elector.fence(), elector, config, view }))
    }

    /// Whose turn it is, for the owner of a core that is fed by these informers.
    pub fn turn<R, P, W>(&self, runs: Informer<R>, pods: Informer<P>, workspaces: Informer<W>) -> Turn
    where
        R: Send + Sync + 'static,
        P: Send + Sync + 'static,
        W: Send + Sync + 'static,
    {
        let relist: Relist = Box::new(move || {
            let (runs, pods, workspaces) = (runs.relist(), pods.relist(), workspaces.relist());
            Box::pin(async { futures::join!(runs, pods, workspaces).into() })
        });
        Turn::new(self.view.leadership(), self.fence.clone(), relist)
    }

    /// Its metrics.
    ///
    /// # Errors
    /// A name that Prometheus refuses: a mistake in this file.
    pub fn collector(&self) -> prometheus::Result<ElectionCollector> {
        ElectionCollector::new(&self.config.name, self.view.stats.clone())
    }

    /// Stands until `stop`, on a thread with a runtime and a connection of its own, so that no load of this process holds up a renewal.
    /// Whoever stops it has ended all writes before.
    ///
    /// # Errors
    /// There is no thread, or no client.
    pub fn on_a_thread(
        self,
        kubeconfig: Option<&Path>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> anyhow::Result<impl Future<Output = Result<(), String>> + Send + use<>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let kubeconfig: Option<PathBuf> = kubeconfig.map(Path::to_owned);
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("lease".to_owned()).spawn(move || {
            let result = runtime.block_on(async {
                let client = connect(kubeconfig.as_deref(), self.config.limits(), metrics).await.map_err(|error| error.to_string())?;
                self.elector.run(client, stop).await;
                Ok(())
            });
            // If nobody waits any more, the process is at its end.
            let _ = ended.send(result);
        })?;
        Ok(async move { end.await.unwrap_or_else(|_| Err("panicked".to_owned())) })
    }
}

/// The numbers of an election, read when Prometheus asks.
pub struct ElectionCollector {
    name: String,
    stats: Stats,
    leads: IntGaugeVec,
    acquired: IntCounter,
    lost: IntCounter,
    renew_failures: IntCounter,
    overlaps: IntCounter,
}

impl ElectionCollector {
    fn new(name: &str, stats: Stats) -> prometheus::Result<Self> {
        let help = "Whether this process leads by now: 1 leader, 0 standby.";
        Ok(Self {
            name: name.to_owned(),
            stats,
            leads: IntGaugeVec::new(Opts::new("leader_election_master_status", help), &["name"])?,
            acquired: IntCounter::new("berth_leader_terms_total", "Times this process became leader.")?,
            lost: IntCounter::new("berth_leader_terms_lost_total", "Terms that ended other than by a planned stop.")?,
            renew_failures: IntCounter::new("berth_leader_renew_failures_total", "Renewals of the lease that were not confirmed.")?,
            overlaps: IntCounter::new(
                "berth_leader_overlaps_total",
                "Times that another leader may have acted at the same time: a write in flight when its term ended, or a lease found held by another.",
            )?,
        })
    }
}

impl Collector for ElectionCollector {
    fn desc(&self) -> Vec<&Desc> {
        let counters = [&self.acquired, &self.lost, &self.renew_failures, &self.overlaps];
        self.leads.desc().into_iter().chain(counters.into_iter().flat_map(Collector::desc)).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = self.stats.now();
        self.leads.with_label_values(&[&self.name]).set(i64::from(now.leads));
        let counters = [(&self.acquired, now.acquired), (&self.lost, now.lost), (&self.renew_failures, now.renew_failures), (&self.overlaps, now.overlaps)];
        for (counter, total) in &counters {
            catch_up(counter, *total);
        }
        self.leads.collect().into_iter().chain(counters.into_iter().flat_map(|(counter, _)| counter.collect())).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_configuration_and_both_over_the_default() {
        let configured = LeaderElectionConfiguration { leader_elect: Some(true), retry_period: Some("1s".to_owned()), ..Default::default() };
        let flags =
            ElectionArgs { leader_elect_retry_period: Some("3s".to_owned()), leader_elect_resource_name: Some("mine".to_owned()), ..Default::default() };
        let election = Election::new(&flags.over(Some(configured.clone())), "own", "host").unwrap().unwrap();
        let expected =
            ElectionConfig { identity: election.config.identity.clone(), retry: Duration::from_secs(3), ..ElectionConfig::new("own", "mine", "host") };
        assert_eq!(election.config, expected);
        let off = ElectionArgs { leader_elect: Some(false), ..Default::default() };
        assert!(Election::new(&off.over(Some(configured)), "own", "host").unwrap().is_none());
        assert!(Election::new(&ElectionArgs::default().over(None), "own", "host").unwrap().is_none(), "off by default");
    }

    #[test]
    fn everything_that_is_wrong_is_told() {
        let flags = ElectionArgs {
            leader_elect: Some(true),
            leader_elect_lease_duration: Some("5s".to_owned()),
            leader_elect_resource_name: Some("No".to_owned()),
            ..Default::default()
        };
        let error = Election::new(&flags.over(None), "own", "host").err().unwrap().to_string();
        assert!(error.contains("leaseDuration") && error.contains("resourceName"), "{error}");
    }

    #[test]
    fn every_number_is_there_from_the_start() {
        let flags = ElectionArgs { leader_elect: Some(true), ..Default::default() };
        let election = Election::new(&flags.over(None), "own", "host").unwrap().unwrap();
        let registry = prometheus::Registry::new();
        registry.register(Box::new(election.collector().unwrap())).unwrap();
        let names: Vec<_> = registry.gather().iter().map(|family| family.name().to_owned()).collect();
        assert_eq!(
            names,
            [
                "berth_leader_overlaps_total",
                "berth_leader_renew_failures_total",
                "berth_leader_terms_lost_total",
                "berth_leader_terms_total",
                "leader_election_master_status"
            ]
        );
    }
}
