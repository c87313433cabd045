//! Profiles: which plugins run, in which order, with which weights and args; and the registry they come from.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::plugin::{Normalize, Plugin};

/// `apiVersion` of [`BerthConfiguration`].
pub const CONFIG_API_VERSION: &str = "berth.kruntimes.io/v1alpha1";
/// `kind` of [`BerthConfiguration`].
pub const CONFIG_KIND: &str = "BerthConfiguration";
/// The largest weight a plugin may carry.
pub const MAX_WEIGHT: i64 = 1_000_000;

/// What an operator configures, in the manner of KubeSchedulerConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BerthConfiguration {
    /// `berth.kruntimes.io/v1alpha1`.
    pub api_version: String,
    /// `BerthConfiguration`.
    pub kind: String,
    /// At most one profile for now; none means the defaults.
    #[serde(default)]
    pub profiles: Vec<ProfileConfiguration>,
}

/// One profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileConfiguration {
    /// The profile's name in metrics; `default` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
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
}

/// What to enable and what to disable; enabled wins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSet {
    /// Added, or re-weighted in place if already there.
    #[serde(default)]
    pub enabled: Vec<EnabledPlugin>,
    /// Removed; `*` removes every default.
    #[serde(default)]
    pub disabled: Vec<DisabledPlugin>,
}

/// A plugin to enable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnabledPlugin {
    /// Registered name.
    pub name: String,
    /// 1..=1,000,000; 1 if absent. Only for plugins that score.
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

/// A plugin type that can be registered: a name, typed args with defaults and a schema, and a constructor.
pub trait PluginType: Plugin + Sized + 'static {
    /// Unique name, as in the profile; must equal [`Plugin::name`].
    const NAME: &'static str;
    /// Typed args; unknown fields should be refused (`deny_unknown_fields`).
    type Args: Default + DeserializeOwned + Serialize + JsonSchema;
    /// Makes the plugin.
    ///
    /// # Errors
    /// What is wrong with the args, beginning with the field's name.
    fn new(args: Self::Args) -> Result<Self, String>;
}

type Build = fn(&serde_json::Value) -> Result<Box<dyn Plugin>, String>;

#[derive(Clone)]
struct Registered {
    build: Build,
    schema: fn() -> schemars::Schema,
    by_default: bool,
    order: usize,
}

/// Every plugin this binary knows, by name. In-tree plugins are enabled by default; others by the profile
/// or by [`Registry::with`], which enables them by default too (registering is explicit enough).
#[derive(Clone, Default)]
pub struct Registry {
    plugins: BTreeMap<&'static str, Registered>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.plugins.keys()).finish()
    }
}

impl Registry {
    /// A registry without plugins.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds a plugin, enabled by default after those already there. A name registered twice keeps the newest.
    #[must_use]
    pub fn with<P: PluginType>(self) -> Self {
        self.add::<P>(true)
    }

    /// Adds a plugin that runs only where a profile enables it.
    #[must_use]
    pub fn with_optional<P: PluginType>(self) -> Self {
        self.add::<P>(false)
    }

    fn add<P: PluginType>(mut self, by_default: bool) -> Self {
        let order = self.plugins.get(P::NAME).map_or(self.plugins.len(), |known| known.order);
        let build: Build = |args| {
            let args: P::Args = if args.is_null() { P::Args::default() } else { P::Args::deserialize(args).map_err(|e| e.to_string())? };
            Ok(Box::new(P::new(args)?))
        };
        self.plugins.insert(P::NAME, Registered { build, schema: || schemars::schema_for!(P::Args), by_default, order });
        self
    }

    /// Registered names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.plugins.keys().copied()
    }

    /// JSON schema of a plugin's args.
    pub fn args_schema(&self, name: &str) -> Option<schemars::Schema> {
        self.plugins.get(name).map(|registered| (registered.schema)())
    }

    fn nearest(&self, name: &str) -> String {
        let lower = name.to_lowercase();
        let known = || self.names().collect::<Vec<_>>().join(", ");
        self.names()
            .find(|k| k.to_lowercase() == lower || k.to_lowercase().contains(&lower) || lower.contains(&k.to_lowercase()))
            .map_or_else(|| format!("known plugins are {}", known()), |k| format!("did you mean {k}?"))
    }

    /// Builds the profile of a configuration, defaults merged.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn profile(&self, configuration: &BerthConfiguration) -> Result<Profile, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut error = |path: String, message: String| errors.push(ConfigError { path, message });
        if configuration.api_version != CONFIG_API_VERSION {
            error("apiVersion".into(), format!("must be {CONFIG_API_VERSION}, not {:?}", configuration.api_version));
        }
        if configuration.kind != CONFIG_KIND {
            error("kind".into(), format!("must be {CONFIG_KIND}, not {:?}", configuration.kind));
        }
        if configuration.profiles.len() > 1 {
            error("profiles".into(), "this version serves one profile".into());
        }
        let default = ProfileConfiguration::default();
        let profile = configuration.profiles.first().unwrap_or(&default);
        let set = &profile.plugins.multi_point;
        let at = "profiles[0].plugins.multiPoint";
        let mut off = Vec::new();
        let mut all_off = false;
        for (i, plugin) in set.disabled.iter().enumerate() {
            if plugin.name == "*" {
                all_off = true;
            } else if self.plugins.contains_key(plugin.name.as_str()) {
                if off.contains(&plugin.name.as_str()) {
                    error(format!("{at}.disabled[{i}].name"), format!("{} is listed twice", plugin.name));
                }
                off.push(plugin.name.as_str());
            } else {
                error(format!("{at}.disabled[{i}].name"), format!("unknown plugin {:?}; {}", plugin.name, self.nearest(&plugin.name)));
            }
        }
        let mut chosen: Vec<(&'static str, Option<i64>, Option<usize>)> =
            self.plugins.iter().filter(|(name, r)| r.by_default && !all_off && !off.contains(*name)).map(|(name, _)| (*name, None, None)).collect();
        chosen.sort_by_key(|(name, ..)| self.plugins.get(name).map(|r| r.order));
        for (i, enabled) in set.enabled.iter().enumerate() {
            let Some((&name, _)) = self.plugins.get_key_value(enabled.name.as_str()) else {
                error(format!("{at}.enabled[{i}].name"), format!("unknown plugin {:?}; {}", enabled.name, self.nearest(&enabled.name)));
                continue;
            };
            if set.enabled[..i].iter().any(|other| other.name == enabled.name) {
                error(format!("{at}.enabled[{i}].name"), format!("{name} is listed twice"));
                continue;
            }
            if let Some(weight) = enabled.weight
                && !(1..=MAX_WEIGHT).contains(&weight)
            {
                error(format!("{at}.enabled[{i}].weight"), format!("must be 1..={MAX_WEIGHT}, not {weight}"));
            }
            match chosen.iter_mut().find(|(known, ..)| *known == name) {
                Some(known) => *known = (name, enabled.weight, Some(i)),
                None => chosen.push((name, enabled.weight, Some(i))),
            }
        }
        for (i, config) in profile.plugin_config.iter().enumerate() {
            let path = format!("profiles[0].pluginConfig[{i}].name");
            if !self.plugins.contains_key(config.name.as_str()) {
                error(path, format!("unknown plugin {:?}; {}", config.name, self.nearest(&config.name)));
            } else if profile.plugin_config[..i].iter().any(|other| other.name == config.name) {
                error(path, format!("{} is listed twice", config.name));
            }
        }
        let mut slots = Vec::new();
        for (name, weight, enabled_at) in chosen {
            let Some(registered) = self.plugins.get(name) else { continue };
            let config = profile.plugin_config.iter().enumerate().find(|(_, c)| c.name == name);
            let args = config.map_or(&serde_json::Value::Null, |(_, c)| &c.args);
            match (registered.build)(args) {
                Ok(plugin) => {
                    if plugin.as_score().is_none() && weight.is_some() {
                        let i = enabled_at.unwrap_or_default();
                        error(format!("{at}.enabled[{i}].weight"), format!("{name} does not score, so it takes no weight"));
                    }
                    if !plugin.reasons().is_empty() && plugin.events().is_empty() {
                        error(
                            format!("plugin {name}"),
                            "can reject but declares no event that could end the rejection; Plugin::events must not be empty".into(),
                        );
                    }
                    slots.push(PluginSlot { plugin, weight: weight.unwrap_or(1) });
                }
                Err(message) => error(format!("profiles[0].pluginConfig[{}].args", config.map_or(0, |(i, _)| i)), format!("{name}: {message}")),
            }
        }
        if errors.is_empty() { Ok(Profile::new(profile.scheduler_name.clone().unwrap_or_else(|| "default".into()), slots)) } else { Err(errors) }
    }

    /// The profile of the defaults.
    ///
    /// # Errors
    /// A plugin whose default args it refuses itself.
    pub fn default_profile(&self) -> Result<Profile, Vec<ConfigError>> {
        self.profile(&BerthConfiguration { api_version: CONFIG_API_VERSION.into(), kind: CONFIG_KIND.into(), profiles: Vec::new() })
    }
}

/// A plugin in a profile.
pub(crate) struct PluginSlot {
    pub plugin: Box<dyn Plugin>,
    pub weight: i64,
}

/// Plugins in order, ready to run.
pub struct Profile {
    /// The profile's name in metrics.
    pub name: String,
    pub(crate) plugins: Vec<PluginSlot>,
    pub(crate) filters: Vec<usize>,
    pub(crate) scores: Vec<usize>,
    pub(crate) tie: Option<usize>,
    /// How many plugins normalise.
    pub(crate) normalized: usize,
    pub(crate) volatile: bool,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile({}: {})", self.name, self.plugin_names().collect::<Vec<_>>().join(", "))
    }
}

impl Profile {
    fn new(name: String, plugins: Vec<PluginSlot>) -> Self {
        let with = |f: fn(&dyn Plugin) -> bool| plugins.iter().enumerate().filter(|(_, s)| f(&*s.plugin)).map(|(i, _)| i).collect::<Vec<_>>();
        let filters = with(|p| p.as_filter().is_some());
        let scores = with(|p| p.as_score().is_some());
        let normalized = scores.iter().filter(|i| plugins[**i].plugin.as_score().is_some_and(|s| s.normalize() == Normalize::MinMax)).count();
        let tie = scores.iter().copied().find(|i| plugins[*i].plugin.offers_tie());
        let volatile = plugins.iter().any(|s| s.plugin.volatile());
        Self { name, filters, scores, tie, normalized, volatile, plugins }
    }

    /// Names in filter order.
    pub fn plugin_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.plugins.iter().map(|slot| slot.plugin.name())
    }

    /// Name and weight of every scoring plugin.
    pub fn score_weights(&self) -> impl Iterator<Item = (&'static str, i64)> + '_ {
        self.scores.iter().map(|&i| (self.plugins[i].plugin.name(), self.plugins[i].weight))
    }

    pub(crate) fn is_normalizing(&self, plugin: usize) -> bool {
        self.plugins[plugin].plugin.as_score().is_some_and(|score| score.normalize() == Normalize::MinMax)
    }

    pub(crate) fn normalizing_weights(&self) -> Vec<i64> {
        self.scores.iter().filter(|i| self.is_normalizing(**i)).map(|&i| self.plugins[i].weight).collect()
    }

    pub(crate) fn same_for_equal_requests(&self, plugin: usize) -> bool {
        self.plugins[plugin].plugin.as_filter().is_some_and(|filter| filter.same_for_equal_requests())
    }

    pub(crate) fn refusal_reason(&self, plugin: &str) -> Option<&'static str> {
        self.plugins.iter().find(|slot| slot.plugin.name() == plugin).and_then(|slot| slot.plugin.refusal_reason())
    }

    pub(crate) fn events_of(&self, plugin: usize) -> u32 {
        self.plugins.get(plugin).map_or(0, |slot| slot.plugin.events().iter().fold(0, |mask, cause| mask | cause.bit()))
    }
}
