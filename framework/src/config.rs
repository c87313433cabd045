//! What an operator writes: BerthConfiguration, in the manner of KubeSchedulerConfiguration.
//!
//! Source: reference kube-scheduler §3. Unlike there, everything is typed and everything wrong is an error; see
//! [`crate::registry::Registry::profiles`] for the rules that types alone can't say.

use std::time::Duration;

use berth_api::duration::parse_go;
use berth_api::names::{is_dns_label, is_dns_subdomain};
use berth_api::persistent_workspace::WorkspaceBinding;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::Point;

/// `apiVersion` of [`BerthConfiguration`].
pub const CONFIG_API_VERSION: &str = "berth.kruntimes.io/v1alpha1";
/// `kind` of [`BerthConfiguration`].
pub const CONFIG_KIND: &str = "BerthConfiguration";
/// The largest weight a plugin may carry.
pub const MAX_WEIGHT: i64 = 1_000_000;
/// First back-off after an error or conflict, seconds, unless configured.
pub const DEFAULT_INITIAL_BACKOFF_S: u32 = 1;
/// Longest back-off after errors or conflicts, seconds, unless configured.
pub const DEFAULT_MAX_BACKOFF_S: u32 = 10;
/// Status writes under way at once, unless configured.
pub const DEFAULT_BIND_WORKERS: u32 = 32;
/// Longest back-off that may be configured, seconds: a day.
pub const MAX_BACKOFF_S: u32 = 86_400;
/// Most status writes that may be under way at once.
pub const MAX_BIND_WORKERS: u32 = 1_024;
/// How long a lease is good, unless configured.
pub const DEFAULT_LEASE_DURATION: &str = "15s";
/// How long a leader tries to renew, unless configured.
pub const DEFAULT_RENEW_DEADLINE: &str = "10s";
/// Time between tries, unless configured.
pub const DEFAULT_RETRY_PERIOD: &str = "2s";
/// Name of the Lease, unless configured.
pub const DEFAULT_LEASE_NAME: &str = "berth";
/// Shortest time between tries: below it they would only heat the API server.
const MIN_RETRY: Duration = Duration::from_millis(10);
/// client-go's JitterFactor: tries come up to that many times the retry period apart.
const RETRY_JITTER: f64 = 1.2;
/// Name of the profile that stands when none is written.
pub const DEFAULT_PROFILE: &str = "default";

/// The configuration of `berth serve`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BerthConfiguration {
    /// `berth.kruntimes.io/v1alpha1`.
    pub api_version: String,
    /// `BerthConfiguration`.
    pub kind: String,
    /// Which of several processes places. Read at start; a live edit is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElectionConfiguration>,
    /// First back-off after an error or conflict, seconds; 1 to 86,400, default 1.
    #[schemars(range(min = 1, max = 86_400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_initial_backoff_seconds: Option<u32>,
    /// Longest such back-off, seconds; not below the first, at most 86,400, default 10.
    #[schemars(range(min = 1, max = 86_400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_max_backoff_seconds: Option<u32>,
    /// Status writes under way at once, 1 to 1024; default 32. Read at start; a live edit is refused.
    #[schemars(range(min = 1, max = 1_024))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_workers: Option<u32>,
    /// Profiles; none means the defaults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileConfiguration>,
}

impl Default for BerthConfiguration {
    fn default() -> Self {
        Self {
            api_version: CONFIG_API_VERSION.into(),
            kind: CONFIG_KIND.into(),
            leader_election: None,
            run_initial_backoff_seconds: None,
            run_max_backoff_seconds: None,
            bind_workers: None,
            profiles: Vec::new(),
        }
    }
}

/// Leader election, as in kube-scheduler. Durations are Go strings (`15s`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaderElectionConfiguration {
    /// Off by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_elect: Option<bool>,
    /// How long a lease is good, whole seconds, longer than the renew deadline; default `15s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration: Option<String>,
    /// How long the leader tries to renew before it gives up, longer than 1.2 times the retry period; default `10s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_deadline: Option<String>,
    /// Time between tries, at least `10ms`; default `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<String>,
    /// Name of the Lease, default `berth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
    /// Namespace of the Lease; default the process's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_namespace: Option<String>,
}

/// [`LeaderElectionConfiguration`] with its defaults, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Whether one is held.
    pub leader_elect: bool,
    /// How long a lease is good.
    pub lease_duration: Duration,
    /// How long the leader tries to renew.
    pub renew_deadline: Duration,
    /// Time between tries.
    pub retry_period: Duration,
    /// Name of the Lease.
    pub resource_name: String,
    /// Namespace of the Lease; the process's own if absent.
    pub resource_namespace: Option<String>,
}

impl LeaderElectionConfiguration {
    /// Every field set, defaults filled in (the namespace has none).
    #[must_use]
    pub fn complete(&self) -> Self {
        let or = |text: &Option<String>, default: &str| Some(text.clone().unwrap_or_else(|| default.to_owned()));
        Self {
            leader_elect: Some(self.leader_elect.unwrap_or(false)),
            lease_duration: or(&self.lease_duration, DEFAULT_LEASE_DURATION),
            renew_deadline: or(&self.renew_deadline, DEFAULT_RENEW_DEADLINE),
            retry_period: or(&self.retry_period, DEFAULT_RETRY_PERIOD),
            resource_name: or(&self.resource_name, DEFAULT_LEASE_NAME),
            resource_namespace: self.resource_namespace.clone(),
        }
    }

    /// Reads the durations, by client-go's rules.
    ///
    /// # Errors
    /// Everything that is wrong, with paths below `leaderElection`.
    pub fn read(&self) -> Result<LeaderElection, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut wrong = |field: &str, message: String| errors.push(ConfigError { path: format!("leaderElection.{field}"), message });
        let mut duration = |field: &str, text: &Option<String>, default: &str| match parse_go(text.as_deref().unwrap_or(default)) {
            Ok(duration) => Some(duration),
            Err(error) => {
                wrong(field, format!("{error}: {:?}; write it as 15s or 1m30s", text.as_deref().unwrap_or_default()));
                None
            }
        };
        let lease = duration("leaseDuration", &self.lease_duration, DEFAULT_LEASE_DURATION);
        let renew = duration("renewDeadline", &self.renew_deadline, DEFAULT_RENEW_DEADLINE);
        let retry = duration("retryPeriod", &self.retry_period, DEFAULT_RETRY_PERIOD);
        if let Some(lease) = lease
            && (lease.subsec_nanos() != 0 || lease.is_zero() || i32::try_from(lease.as_secs()).is_err())
        {
            wrong("leaseDuration", format!("must be whole seconds, at least 1s, since a Lease holds such, not {lease:?}"));
        }
        if let Some(retry) = retry.filter(|retry| *retry < MIN_RETRY) {
            wrong("retryPeriod", format!("must be at least {MIN_RETRY:?}, not {retry:?}"));
        }
        if let (Some(lease), Some(renew)) = (lease, renew)
            && lease <= renew
        {
            wrong("leaseDuration", format!("must be longer than renewDeadline ({renew:?}), not {lease:?}: a leader must give up before others may take over"));
        }
        if let (Some(renew), Some(retry)) = (renew, retry)
            && renew.as_secs_f64() <= retry.as_secs_f64() * RETRY_JITTER
        {
            wrong(
                "renewDeadline",
                format!("must be longer than {RETRY_JITTER} times retryPeriod ({retry:?}), not {renew:?}: there must be time for a renewal"),
            );
        }
        if let Some(name) = self.resource_name.as_deref().filter(|name| !is_dns_subdomain(name)) {
            wrong("resourceName", format!("{name:?} is no name of a Lease: lower-case letters, digits, '-' and '.'"));
        }
        if let Some(name) = self.resource_namespace.as_deref().filter(|name| !is_dns_label(name)) {
            wrong("resourceNamespace", format!("{name:?} is no name of a namespace: lower-case letters, digits and '-'"));
        }
        match (lease, renew, retry) {
            (Some(lease_duration), Some(renew_deadline), Some(retry_period)) if errors.is_empty() => Ok(LeaderElection {
                leader_elect: self.leader_elect.unwrap_or(false),
                lease_duration,
                renew_deadline,
                retry_period,
                resource_name: self.resource_name.clone().unwrap_or_else(|| DEFAULT_LEASE_NAME.to_owned()),
                resource_namespace: self.resource_namespace.clone(),
            }),
            _ => Err(errors),
        }
    }
}

/// One profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileConfiguration {
    /// The profile's name, unique; may be left out where there is one profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Runtimes whose Runs this profile places; none means all that no other profile names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<String>,
    /// Evaluated beside the active profile and compared with it, without effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// How a PersistentWorkspace of these runtimes gets its Pod; default `FirstByName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<WorkspaceBinding>,
    /// Plugins to add to or take from the default set.
    #[serde(default, skip_serializing_if = "PluginsConfiguration::is_empty")]
    pub plugins: PluginsConfiguration,
    /// Args by plugin name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugin_config: Vec<PluginConfig>,
}

/// Plugins by extension point; `multiPoint` means every point a plugin implements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginsConfiguration {
    /// Every point the plugin implements.
    #[serde(default, skip_serializing_if = "PluginSet::is_empty")]
    pub multi_point: PluginSet,
    /// Narrows candidates before Pods are looked at.
    #[serde(default, skip_serializing_if = "PluginSet::is_empty")]
    pub pre_filter: PluginSet,
    /// Says which Pods are feasible.
    #[serde(default, skip_serializing_if = "PluginSet::is_empty")]
    pub filter: PluginSet,
    /// Ranks feasible Pods.
    #[serde(default, skip_serializing_if = "PluginSet::is_empty")]
    pub score: PluginSet,
    /// Last look before a placement counts.
    #[serde(default, skip_serializing_if = "PluginSet::is_empty")]
    pub reserve: PluginSet,
    /// Remarks on a placement.
    #[serde(default, skip_serializing_if = "PluginSet::is_empty")]
    pub bind: PluginSet,
}

impl PluginsConfiguration {
    /// The set of a point.
    pub fn at(&self, point: Point) -> &PluginSet {
        match point {
            Point::PreFilter => &self.pre_filter,
            Point::Filter => &self.filter,
            Point::Score => &self.score,
            Point::Reserve => &self.reserve,
            Point::Bind => &self.bind,
        }
    }

    /// Every set with its name: that of `multiPoint`, which belongs to no one point, and those of the points.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (&'static str, Option<Point>, &PluginSet)> {
        let points = Point::ALL.into_iter().map(|point| (point.field(), Some(point), self.at(point)));
        std::iter::once(("multiPoint", None, &self.multi_point)).chain(points)
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What to enable and what to disable; enabled wins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSet {
    /// Added, or re-weighted in place if already there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enabled: Vec<EnabledPlugin>,
    /// Removed; `*` removes every default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<DisabledPlugin>,
}

impl PluginSet {
    fn is_empty(&self) -> bool {
        self.enabled.is_empty() && self.disabled.is_empty()
    }
}

/// A plugin to enable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnabledPlugin {
    /// Registered name.
    pub name: String,
    /// 1 to 1,000,000; 1 if absent. Only for plugins that score, at `multiPoint` or `score`.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i64>,
}

/// A plugin to disable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DisabledPlugin {
    /// Registered name, or `*`.
    pub name: String,
}

/// Args of one plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginConfig {
    /// Registered name.
    pub name: String,
    /// The plugin's own typed args.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub args: serde_json::Value,
}

/// One thing wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ConfigError {
    /// Field path, as `profiles[0].plugins.multiPoint.enabled[1].weight`.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}
