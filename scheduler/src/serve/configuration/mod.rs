//! The configuration of a running process: where it comes from, how an edit comes into force, what is in force.
//!
//! ```text
//! file (polled, SIGHUP) ─┐                        ┌─ valid ──► owner: between two cycles ──► in force: /configz, metrics, log
//! ConfigMap (watched) ───┴─► Keeper: parse, check ┴─ refused ► last good stays: log, Event, berth_config_valid 0
//! ```
//! What can't change while the process runs (leader election, bind workers) makes an edit invalid as a whole.

mod first;
mod follow;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use berth_controllers::policy::Policies;
use berth_framework::profile::{BerthConfiguration, Profiles, Registry};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::first::{First, first, from_config_map};
pub use self::follow::{SeenConfigMap, follow_config_map, follow_file, follow_nothing, read_config_map};
use super::leading::ElectionArgs;
use super::metrics::Metrics;
use crate::config::{self, Loaded, Refused};

/// The key of a ConfigMap that holds the configuration, unless it has only one.
pub const CONFIG_KEY: &str = "config.yaml";

/// Label of the ConfigMap of a release, by which `berth explain` finds it.
pub const CONFIG_LABEL: &str = "berth.kruntimes.io/configuration";
/// Label of such a ConfigMap whose release serves one namespace alone: that namespace.
pub const CONFIG_SERVES_LABEL: &str = "berth.kruntimes.io/watch-namespace";

/// `NAMESPACE/NAME` of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMapName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl FromStr for ConfigMapName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("must be NAMESPACE/NAME".to_owned()),
        }
    }
}

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: the defaults.
    Defaults,
    /// A file.
    File(PathBuf),
    /// A ConfigMap.
    ConfigMap(ConfigMapName),
}

/// The text of a configuration that may come into force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What it is called in messages.
    pub source: String,
    /// The text, or why there is none.
    pub text: Result<String, String>,
    /// What identifies this state of it, for `berth_config_applied_generation`; the next number if there is nothing.
    pub generation: Option<i64>,
}

impl Candidate {
    /// The candidate in a ConfigMap.
    pub fn of(map: &ConfigMap, name: &ConfigMapName) -> Self {
        let data = map.data.iter().flatten().collect::<Vec<_>>();
        let found = data.iter().find(|(key, _)| *key == CONFIG_KEY).or(if let [only] = data.as_slice() { Some(only) } else { None });
        let (key, text) = match found {
            Some((key, text)) => (Some(key), Ok((*text).clone())),
            None if data.is_empty() => (None, Err("holds no data".to_owned())),
            None => (
                None,
                Err(format!("has no key {CONFIG_KEY} and more than one other: {}", data.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", "))),
            ),
        };
        let source = key.map_or_else(|| format!("{}/{}", name.namespace, name.name), |key| format!("{}/{}[{key}]", name.namespace, name.name));
        // ConfigMaps have no generation; resource versions are numbers that grow (Kubernetes 1.35 and later promise it).
        let version = || map.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        Self { source, text, generation: map.metadata.generation.or_else(version) }
    }

    /// Reads and checks it.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn load(&self, registry: &Registry) -> Result<Loaded, Refused> {
        match &self.text {
            Ok(text) => config::parse(text, &self.source, registry),
            Err(why) => Err(Refused::whole(&self.source, why.clone())),
        }
    }
}

/// Other profiles, on their way to the owner.
#[derive(Debug)]
pub struct Reconfigure {
    /// To be in force from now on.
    pub profiles: Arc<Profiles>,
    /// Told when they are.
    pub done: oneshot::Sender<()>,
}

/// What came of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is in force.
    Applied,
    /// It says what is in force already, or what was refused already.
    Unchanged,
    /// Refused as a whole.
    Refused(Refused),
    /// Nobody places any more.
    Ended,
}

/// Flags that win over the configuration.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--bind-workers`.
    pub bind_workers: Option<u32>,
    /// `--leader-elect` and those beside it.
    pub election: ElectionArgs,
}

impl Overrides {
    /// What is in force if `configured` is what the configuration says.
    pub fn over(&self, configured: BerthConfiguration) -> BerthConfiguration {
        BerthConfiguration {
            bind_workers: self.bind_workers.or(configured.bind_workers),
            leader_election: Some(self.election.over(configured.leader_election)),
            ..configured
        }
    }
}

/// Takes candidates and brings those that are valid into force, one after the other.
pub struct Keeper {
    registry: Registry,
    /// What the process was started with: what can't change is held against it.
    start: BerthConfiguration,
    overrides: Overrides,
    in_force: watch::Sender<Arc<BerthConfiguration>>,
    policies: watch::Sender<Policies>,
    last: Candidate,
    last_valid: bool,
    generation: i64,
    to_owner: mpsc::Sender<Reconfigure>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// A keeper of what the process starts with.
    pub fn new(first: &First, overrides: Overrides, registry: Registry, to_owner: mpsc::Sender<Reconfigure>, metrics: Arc<Metrics>) -> Self {
        let start = first.loaded.effective.clone();
        let generation = first.candidate.generation.unwrap_or(1);
        metrics.config_applied(generation);
        let in_force = watch::Sender::new(Arc::new(overrides.over(start.clone())));
        let policies = watch::Sender::new(config::policies(&start));
        Self { registry, start, overrides, in_force, policies, last: first.candidate.clone(), last_valid: true, generation, to_owner, metrics }
    }

    /// Where what is in force can be read.
    pub fn in_force(&self) -> watch::Receiver<Arc<BerthConfiguration>> {
        self.in_force.subscribe()
    }

    /// Where what it says to the reconcilers can be read.
    pub fn policies(&self) -> watch::Receiver<Policies> {
        self.policies.subscribe()
    }

    /// Takes a candidate. `again`: also one that has been told before.
    pub async fn offer(&mut self, candidate: Candidate, again: bool) -> Offered {
        let start = Instant::now();
        let told_before = candidate.text == self.last.text;
        if told_before && !again {
            // Its labels changed, or a relist told it again.
            if self.last_valid && candidate.generation.is_some() {
                self.applied(&candidate);
            }
            return Offered::Unchanged;
        }
        self.last = candidate.clone();
        let loaded = candidate.load(&self.registry).and_then(|loaded| match &candidate.text {
            Ok(text) => loaded.refuse_changes(&self.start, |it| self.overrides.over(it.clone()), text, &candidate.source).map(|()| loaded),
            Err(_) => Ok(loaded),
        });
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(refused) => {
                self.last_valid = false;
                self.metrics.config_refused();
                tracing::error!(source = %candidate.source, error = %refused, "configuration refused as a whole; the last good one stays in force");
                return Offered::Refused(refused);
            }
        };
        self.last_valid = true;
        let effective = self.overrides.over(loaded.effective);
        if effective == **self.in_force.borrow() {
            self.applied(&candidate);
            tracing::info!(source = %candidate.source, "configuration read again; it says what is in force");
            return Offered::Unchanged;
        }
        let (done, in_force) = oneshot::channel();
        let sent = self.to_owner.send(Reconfigure { profiles: Arc::new(loaded.profiles), done }).await;
        if sent.is_err() || in_force.await.is_err() {
            return Offered::Ended;
        }
        self.applied(&candidate);
        let summary = config::summary(&effective);
        let policies = config::policies(&effective);
        self.policies.send_if_modified(|known| {
            *known != policies && {
                *known = policies;
                true
            }
        });
        self.in_force.send_replace(Arc::new(effective));
        let took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(source = %candidate.source, generation = self.generation, took_ms, in_force = %summary, "configuration in force");
        Offered::Applied
    }

    /// The configuration is gone or can't be read: the last good one stays in force, and a restart would have none.
    pub fn missing(&mut self, why: &str) {
        // Whatever comes is told of, also what was there before.
        self.last.text = Err(why.to_owned());
        self.last_valid = false;
        self.metrics.config_refused();
    }

    fn applied(&mut self, candidate: &Candidate) {
        self.generation = candidate.generation.unwrap_or(self.generation + 1);
        self.metrics.config_applied(self.generation);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
    use super::*;
    use berth_plugins::Builtin as _;
    use serde_json::json;

    const HEADER: &str = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\n";

    fn candidate(body: &str, generation: Option<i64>) -> Candidate {
        Candidate { source: "test".to_owned(), text: Ok(format!("{HEADER}{body}")), generation }
    }

    fn keeper(body: &str) -> (Keeper, mpsc::Receiver<Reconfigure>) {
        keeper_with(body, Overrides::default())
    }

    fn keeper_with(body: &str, overrides: Overrides) -> (Keeper, mpsc::Receiver<Reconfigure>) {
        let (to_owner, owner) = mpsc::channel(1);
        let candidate = candidate(body, None);
        let first = First { loaded: candidate.load(&Registry::builtin()).unwrap(), candidate };
        (Keeper::new(&first, overrides, Registry::builtin(), to_owner, Arc::new(Metrics::new().unwrap())), owner)
    }

    fn owns(mut owner: mpsc::Receiver<Reconfigure>) -> tokio::task::JoinHandle<usize> {
        tokio::spawn(async move {
            let mut taken = 0;
            while let Some(other) = owner.recv().await {
                taken += 1;
                other.done.send(()).unwrap();
            }
            taken
        })
    }

    fn metric(keeper: &Keeper, name: &str) -> i64 {
        let text = String::from_utf8(keeper.metrics.encode().unwrap()).unwrap();
        text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_valid_edit_comes_into_force_and_an_invalid_one_changes_nothing() {
        let (mut keeper, owner) = keeper("");
        let owner = owns(owner);
        let weights = |keeper: &Keeper| keeper.in_force.borrow().profiles[0].plugins.score.enabled.iter().map(|p| p.weight).collect::<Vec<_>>();
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (1, 1));

        let heavier = "profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: 7}]}}}]";
        assert_eq!(keeper.offer(candidate(heavier, Some(40)), false).await, Offered::Applied);
        assert_eq!(weights(&keeper), [Some(1), Some(7)]);
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (1, 40));

        let refused = keeper.offer(candidate("profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: 0}]}}}]", Some(41)), false).await;
        assert!(matches!(refused, Offered::Refused(_)));
        assert_eq!(weights(&keeper), [Some(1), Some(7)]);
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (0, 40));

        // The same text under another version of the object is neither told again nor taken for valid.
        let again = candidate("profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: 0}]}}}]", Some(42));
        assert_eq!(keeper.offer(again, false).await, Offered::Unchanged);
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (0, 40));

        // Back to what is in force: nothing to do for the owner, but valid again.
        assert_eq!(keeper.offer(candidate(heavier, Some(43)), false).await, Offered::Unchanged);
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (1, 43));
        drop(keeper);
        assert_eq!(owner.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn what_cannot_change_live_refuses_the_whole_edit() {
        let (mut keeper, owner) = keeper("bindWorkers: 8\n");
        let owner = owns(owner);
        let edit = "bindWorkers: 16\nleaderElection:\n  leaderElect: true\nprofiles: [{schedulerName: other}]\n";
        let Offered::Refused(refused) = keeper.offer(candidate(edit, None), false).await else { panic!("taken") };
        let lines: Vec<_> = refused.problems.iter().map(|p| (p.place.map(|at| (at.line, at.column)), p.path.as_str(), p.message.as_str())).collect();
        assert_eq!(
            lines,
            [
                (Some((3, 14)), "bindWorkers", "can't change while berth runs: is 8, would be 16; restart it"),
                (Some((5, 16)), "leaderElection.leaderElect", "can't change while berth runs: is false, would be true; restart it"),
            ]
        );
        assert_eq!(keeper.in_force.borrow().profiles[0].scheduler_name.as_deref(), Some("default"));
        drop(keeper);
        assert_eq!(owner.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_flags_set_is_not_held_against_an_edit() {
        let overrides = Overrides { bind_workers: Some(8), election: ElectionArgs { leader_elect: Some(true), ..Default::default() } };
        let (mut keeper, owner) = keeper_with("", overrides);
        let owner = owns(owner);
        // As /configz shows it.
        let shown = serde_json::to_string(&**keeper.in_force.borrow()).unwrap();
        let shown = Candidate { source: "test".to_owned(), text: Ok(shown), generation: Some(2) };
        assert_eq!(keeper.offer(shown, false).await, Offered::Unchanged);
        assert_eq!(keeper.offer(candidate("bindWorkers: 16\n", Some(3)), false).await, Offered::Unchanged, "the flag wins over both");
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (1, 3));
        drop(keeper);
        assert_eq!(owner.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_that_is_gone_is_not_valid_until_it_is_back() {
        let (mut keeper, owner) = keeper("");
        let owner = owns(owner);
        keeper.missing("deleted");
        assert_eq!(metric(&keeper, "berth_config_valid"), 0);
        assert_eq!(keeper.offer(candidate("", Some(7)), false).await, Offered::Unchanged, "it says what is in force");
        assert_eq!((metric(&keeper, "berth_config_valid"), metric(&keeper, "berth_config_applied_generation")), (1, 7));
        drop(keeper);
        assert_eq!(owner.await.unwrap(), 0);
    }

    #[test]
    fn a_config_map_holds_one_configuration() {
        let name: ConfigMapName = "ns/berth".parse().unwrap();
        let of = |data: serde_json::Value, metadata: serde_json::Value| {
            Candidate::of(&serde_json::from_value(json!({"data": data, "metadata": metadata})).unwrap(), &name)
        };
        let text = |candidate: &Candidate| candidate.text.clone().unwrap_or_else(|why| why);
        let rows = [
            (json!({"config.yaml": "a", "other": "b"}), "a", "ns/berth[config.yaml]"),
            (json!({"only": "b"}), "b", "ns/berth[only]"),
            (json!({}), "holds no data", "ns/berth"),
            (json!({"a": "", "b": ""}), "has no key config.yaml and more than one other: a, b", "ns/berth"),
        ];
        for (data, wanted, source) in rows {
            let candidate = of(data, json!({}));
            assert_eq!((text(&candidate).as_str(), candidate.source.as_str(), candidate.generation), (wanted, source, None));
        }
        assert_eq!(of(json!({}), json!({"resourceVersion": "17"})).generation, Some(17));
        assert_eq!(of(json!({}), json!({"resourceVersion": "17", "generation": 3})).generation, Some(3));
        assert!("ns".parse::<ConfigMapName>().is_err() && "/n".parse::<ConfigMapName>().is_err() && "a/b/c".parse::<ConfigMapName>().is_err());
    }
}
