//! What an operator writes: BerthConfiguration, in the manner of KubeSchedulerConfiguration.
//!
//! Source: reference kube-scheduler §3. Unlike there, everything is typed and everything wrong is an error; see
//! [`crate::registry::Registry::profiles`] for the rules that types alone can't say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// First back-off after an error or conflict, seconds; at least 1, default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_initial_backoff_seconds: Option<u32>,
    /// Longest such back-off, seconds; not below the first, default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_max_backoff_seconds: Option<u32>,
    /// Status writes under way at once, 1 to 1024; default 32. Read at start; a live edit is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_workers: Option<u32>,
    /// Profiles; none means the defaults.
    #[serde(default)]
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
    /// How long a lease is good, default `15s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration: Option<String>,
    /// How long the leader tries to renew before it gives up, default `10s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_deadline: Option<String>,
    /// Time between tries, default `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<String>,
    /// Name of the Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
    /// Namespace of the Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_namespace: Option<String>,
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
    /// Plugins to add to or take from the default set.
    #[serde(default)]
    pub plugins: PluginsConfiguration,
    /// Args by plugin name.
    #[serde(default)]
    pub plugin_config: Vec<PluginConfig>,
}

/// Plugins by extension point; `multiPoint` means every point a plugin implements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginsConfiguration {
    /// Every point the plugin implements.
    #[serde(default)]
    pub multi_point: PluginSet,
    /// Narrows candidates before Pods are looked at.
    #[serde(default)]
    pub pre_filter: PluginSet,
    /// Says which Pods are feasible.
    #[serde(default)]
    pub filter: PluginSet,
    /// Ranks feasible Pods.
    #[serde(default)]
    pub score: PluginSet,
    /// Last look before a placement counts.
    #[serde(default)]
    pub reserve: PluginSet,
    /// Remarks on a placement.
    #[serde(default)]
    pub bind: PluginSet,
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

/// A plugin to enable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnabledPlugin {
    /// Registered name.
    pub name: String,
    /// 1 to 1,000,000; 1 if absent. Only for plugins that score, at `multiPoint` or `score`.
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
    #[serde(default)]
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
