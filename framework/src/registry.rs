//! The plugins a binary knows, and how a configuration becomes profiles of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use berth_api::constants::LABEL_RUNTIME;
use berth_api::names::is_dns_subdomain;
use berth_api::selector::is_label_value;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};

use crate::config::{
    BerthConfiguration, CONFIG_API_VERSION, CONFIG_KIND, ConfigError, DEFAULT_BIND_WORKERS, DEFAULT_INITIAL_BACKOFF_S, DEFAULT_MAX_BACKOFF_S, DEFAULT_PROFILE,
    DisabledPlugin, EnabledPlugin, MAX_BACKOFF_S, MAX_BIND_WORKERS, MAX_WEIGHT, PluginConfig, PluginSet, PluginsConfiguration, ProfileConfiguration,
};
use crate::observe::Point;
use crate::plugin::Plugin;
use crate::profile::{Points, Profile, Profiles, Shadow};

/// How alike two names must be for one to be suggested for the other.
const SUGGEST_ABOVE: f64 = 0.82;

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
    complete: fn(&serde_json::Value) -> Result<serde_json::Value, String>,
    by_default: bool,
    order: usize,
}

/// Every plugin this binary knows, by name. Those added by [`Registry::with`] run unless a profile disables them.
#[derive(Clone, Default)]
pub struct Registry {
    plugins: BTreeMap<&'static str, Registered>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.plugins.keys()).finish()
    }
}

fn implements(plugin: &dyn Plugin, point: Point) -> bool {
    match point {
        Point::PreFilter => plugin.as_pre_filter().is_some(),
        Point::Filter => plugin.as_filter().is_some(),
        Point::Score => plugin.as_score().is_some(),
        Point::Reserve => plugin.as_reserve().is_some(),
        Point::Bind => plugin.as_bind().is_some(),
    }
}

/// A profile's plugins, and those of each point with their weights.
struct Parts {
    plugins: Vec<(&'static str, Box<dyn Plugin>)>,
    lists: BTreeMap<Point, Vec<(&'static str, i64)>>,
}

/// Collects everything that is wrong.
#[derive(Default)]
struct Errors(Vec<ConfigError>);

impl Errors {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(ConfigError { path: path.into(), message: message.into() });
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
        let schema = || SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true).into_generator().into_root_schema_for::<P::Args>();
        let complete = |args: &serde_json::Value| {
            let args: P::Args = if args.is_null() { P::Args::default() } else { P::Args::deserialize(args).map_err(|e| e.to_string())? };
            serde_json::to_value(args).map_err(|e| e.to_string())
        };
        self.plugins.insert(P::NAME, Registered { build, schema, complete, by_default, order });
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

    fn known(&self, name: &str) -> Result<&'static str, String> {
        if let Some((&known, _)) = self.plugins.get_key_value(name) {
            return Ok(known);
        }
        let hint = nearest(name, self.names())
            .map_or_else(|| format!("known are {}", self.names().collect::<Vec<_>>().join(", ")), |near| format!("did you mean {near}?"));
        Err(format!("unknown plugin {name:?}; {hint}"))
    }

    /// The profile of the defaults.
    ///
    /// # Errors
    /// A plugin whose default args it refuses itself.
    pub fn default_profile(&self) -> Result<Profile, Vec<ConfigError>> {
        let mut errors = Errors::default();
        let parts = self.parts(&mut errors, "profiles[0]", &ProfileConfiguration::default());
        parts.map(|parts| assemble(DEFAULT_PROFILE, parts)).filter(|_| errors.0.is_empty()).ok_or(errors.0)
    }

    /// The default profile of a configuration: the one without `runtimes`.
    ///
    /// # Errors
    /// As [`Registry::profiles`].
    pub fn profile(&self, configuration: &BerthConfiguration) -> Result<Arc<Profile>, Vec<ConfigError>> {
        self.profiles(configuration).map(|profiles| profiles.of("").clone())
    }

    /// Every profile of a configuration, defaults merged.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn profiles(&self, configuration: &BerthConfiguration) -> Result<Profiles, Vec<ConfigError>> {
        let mut errors = Errors::default();
        if configuration.api_version != CONFIG_API_VERSION {
            errors.add("apiVersion", format!("must be {CONFIG_API_VERSION}, not {:?}", configuration.api_version));
        }
        if configuration.kind != CONFIG_KIND {
            errors.add("kind", format!("must be {CONFIG_KIND}, not {:?}", configuration.kind));
        }
        let backoff = check_numbers(configuration, &mut errors);
        if let Some(Err(wrong)) = configuration.leader_election.as_ref().map(|election| election.read()) {
            errors.0.extend(wrong);
        }
        let default = [ProfileConfiguration::default()];
        let configured: &[ProfileConfiguration] = if configuration.profiles.is_empty() { &default } else { &configuration.profiles };
        check_names(configured, &mut errors);
        let mut active = Vec::new();
        let mut shadows = Vec::new();
        for (i, profile) in configured.iter().enumerate() {
            let name = profile.scheduler_name.as_deref().unwrap_or(DEFAULT_PROFILE);
            let runtimes: Vec<Arc<str>> = profile.runtimes.iter().map(|runtime| Arc::from(runtime.as_str())).collect();
            let Some(parts) = self.parts(&mut errors, &format!("profiles[{i}]"), profile) else { continue };
            let built = Arc::new(assemble(name, parts));
            if profile.shadow {
                shadows.push(Shadow { profile: built, runtimes });
            } else {
                active.push((built, runtimes));
            }
        }
        if errors.0.is_empty() { Ok(Profiles::new(active, shadows, backoff)) } else { Err(errors.0) }
    }

    /// The configuration that stands if this one is in force, defaults merged: every profile by name, with an explicit list of plugins
    /// per point and full args. It is a valid configuration that means the same.
    ///
    /// # Errors
    /// As [`Registry::profiles`].
    pub fn effective(&self, configuration: &BerthConfiguration) -> Result<BerthConfiguration, Vec<ConfigError>> {
        self.profiles(configuration)?;
        let mut errors = Errors::default();
        let default = [ProfileConfiguration::default()];
        let configured: &[ProfileConfiguration] = if configuration.profiles.is_empty() { &default } else { &configuration.profiles };
        let profiles = configured.iter().enumerate().filter_map(|(i, profile)| self.complete(&mut errors, &format!("profiles[{i}]"), profile)).collect();
        let initial = configuration.run_initial_backoff_seconds.unwrap_or(DEFAULT_INITIAL_BACKOFF_S);
        let effective = BerthConfiguration {
            leader_election: Some(configuration.leader_election.clone().unwrap_or_default().complete()),
            run_initial_backoff_seconds: Some(initial),
            run_max_backoff_seconds: Some(configuration.run_max_backoff_seconds.unwrap_or(DEFAULT_MAX_BACKOFF_S)),
            bind_workers: Some(configuration.bind_workers.unwrap_or(DEFAULT_BIND_WORKERS)),
            profiles,
            ..configuration.clone()
        };
        if errors.0.is_empty() { Ok(effective) } else { Err(errors.0) }
    }

    fn complete(&self, errors: &mut Errors, at: &str, profile: &ProfileConfiguration) -> Option<ProfileConfiguration> {
        let Parts { plugins, lists } = self.parts(errors, at, profile)?;
        let set = |point: Point| {
            let enabled = |&(name, weight): &(&str, i64)| EnabledPlugin { name: name.to_owned(), weight: (point == Point::Score).then_some(weight) };
            PluginSet { enabled: lists.get(&point).into_iter().flatten().map(enabled).collect(), disabled: Vec::new() }
        };
        let of_profile = |(name, _): &(&'static str, _)| plugins.iter().any(|(used, _)| used == name);
        let args = |(name, registered): (&'static str, &Registered)| {
            let given = profile.plugin_config.iter().find(|config| config.name == name).map_or(&serde_json::Value::Null, |config| &config.args);
            Some(PluginConfig { name: name.to_owned(), args: (registered.complete)(given).ok()? })
        };
        Some(ProfileConfiguration {
            scheduler_name: Some(profile.scheduler_name.clone().unwrap_or_else(|| DEFAULT_PROFILE.to_owned())),
            runtimes: profile.runtimes.clone(),
            shadow: profile.shadow,
            binding: Some(profile.binding.unwrap_or_default()),
            plugins: PluginsConfiguration {
                multi_point: PluginSet { enabled: Vec::new(), disabled: vec![DisabledPlugin { name: "*".to_owned() }] },
                pre_filter: set(Point::PreFilter),
                filter: set(Point::Filter),
                score: set(Point::Score),
                reserve: set(Point::Reserve),
                bind: set(Point::Bind),
            },
            plugin_config: self.in_order().into_iter().filter(of_profile).filter_map(args).collect(),
        })
    }

    /// What one profile is made of; what is wrong with it goes to `errors`.
    fn parts(&self, errors: &mut Errors, at: &str, profile: &ProfileConfiguration) -> Option<Parts> {
        let before = errors.0.len();
        self.check_sets(errors, at, profile);
        self.check_args(errors, at, profile);
        let mut plugins: Vec<(&'static str, Box<dyn Plugin>)> = Vec::new();
        for (name, registered) in self.in_order() {
            let enabled = profile.plugins.sets().any(|(_, _, set)| set.enabled.iter().any(|e| e.name == name));
            let config = profile.plugin_config.iter().enumerate().find(|(_, c)| c.name == name);
            // Args of a plugin that isn't used must be right all the same.
            if !(registered.by_default || enabled || config.is_some()) {
                continue;
            }
            let built = (registered.build)(config.map_or(&serde_json::Value::Null, |(_, c)| &c.args)).or_else(|message| {
                match config {
                    Some((i, config)) => errors.0.push(refusal(name, &format!("{at}.pluginConfig[{i}].args"), &config.args, &message)),
                    None => errors.add(format!("{at}.pluginConfig"), format!("{name} needs args: {message}")),
                }
                // So that its points and weights are still checked.
                (registered.build)(&serde_json::Value::Null)
            });
            if let Ok(plugin) = built
                && (registered.by_default || enabled)
            {
                plugins.push((name, plugin));
            }
        }
        let is_default = |name: &str| self.plugins.get(name).is_some_and(|r| r.by_default);
        check_points(errors, at, profile, &plugins);
        if errors.0.len() > before {
            return None;
        }
        let lists: BTreeMap<_, _> = Point::ALL.into_iter().map(|point| (point, merge(profile, point, &plugins, &is_default))).collect();
        plugins.retain(|(name, _)| lists.values().flatten().any(|(used, _)| used == name));
        Some(Parts { plugins, lists })
    }

    fn in_order(&self) -> Vec<(&'static str, &Registered)> {
        let mut all: Vec<_> = self.plugins.iter().map(|(name, registered)| (*name, registered)).collect();
        all.sort_by_key(|(_, registered)| registered.order);
        all
    }

    /// Names, duplicates and weights of every set.
    fn check_sets(&self, errors: &mut Errors, at: &str, profile: &ProfileConfiguration) {
        for (name, point, set) in profile.plugins.sets() {
            for (i, plugin) in set.enabled.iter().enumerate() {
                let path = format!("{at}.plugins.{name}.enabled[{i}]");
                match self.known(&plugin.name) {
                    Err(message) => errors.add(format!("{path}.name"), message),
                    Ok(_) if set.enabled[..i].iter().any(|other| other.name == plugin.name) => {
                        errors.add(format!("{path}.name"), format!("{} is listed twice", plugin.name))
                    }
                    Ok(_) => {}
                }
                if let Some(weight) = plugin.weight {
                    if point.is_some_and(|point| point != Point::Score) {
                        errors.add(format!("{path}.weight"), format!("a weight belongs to score or multiPoint, not to {name}"));
                    } else if !(1..=MAX_WEIGHT).contains(&weight) {
                        errors.add(format!("{path}.weight"), format!("must be 1 to {MAX_WEIGHT}, not {weight}"));
                    }
                }
            }
            for (i, plugin) in set.disabled.iter().enumerate() {
                let path = format!("{at}.plugins.{name}.disabled[{i}].name");
                if set.disabled[..i].iter().any(|other| other.name == plugin.name) {
                    errors.add(path, format!("{} is listed twice", plugin.name));
                } else if plugin.name != "*"
                    && let Err(message) = self.known(&plugin.name)
                {
                    errors.add(path, message);
                }
            }
        }
    }

    fn check_args(&self, errors: &mut Errors, at: &str, profile: &ProfileConfiguration) {
        for (i, config) in profile.plugin_config.iter().enumerate() {
            let path = format!("{at}.pluginConfig[{i}].name");
            if let Err(message) = self.known(&config.name) {
                errors.add(path, message);
            } else if profile.plugin_config[..i].iter().any(|other| other.name == config.name) {
                errors.add(path, format!("{} is listed twice", config.name));
            }
        }
    }
}

/// The most similar of `known`, if any is similar enough.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let lower = name.to_lowercase();
    let scored = known.map(|k| (strsim::jaro_winkler(&lower, &k.to_lowercase()), k)).filter(|(score, _)| *score > SUGGEST_ABOVE);
    scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, k)| k)
}

/// Back-offs and workers; answers the back-offs, seconds.
fn check_numbers(configuration: &BerthConfiguration, errors: &mut Errors) -> (u32, u32) {
    let mut bounded = |field: &str, value: Option<u32>, most: u32| {
        if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
            errors.add(field, format!("must be 1 to {most}, not {value}"));
        }
    };
    bounded("runInitialBackoffSeconds", configuration.run_initial_backoff_seconds, MAX_BACKOFF_S);
    bounded("runMaxBackoffSeconds", configuration.run_max_backoff_seconds, MAX_BACKOFF_S);
    bounded("bindWorkers", configuration.bind_workers, MAX_BIND_WORKERS);
    let initial = configuration.run_initial_backoff_seconds.unwrap_or(DEFAULT_INITIAL_BACKOFF_S);
    let max = configuration.run_max_backoff_seconds.unwrap_or(DEFAULT_MAX_BACKOFF_S);
    match configuration.run_max_backoff_seconds {
        Some(1..) if max < initial => errors.add("runMaxBackoffSeconds", format!("must not be below runInitialBackoffSeconds ({initial}), is {max}")),
        None if max < initial => {
            errors.add("runInitialBackoffSeconds", format!("must not be above runMaxBackoffSeconds, which is {max} unless it is set; is {initial}"));
        }
        _ => {}
    }
    (initial, max)
}

/// A plugin's refusal of its args: about the field that it begins with, or about all of them.
fn refusal(name: &str, at: &str, args: &serde_json::Value, message: &str) -> ConfigError {
    let word = message.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
    if args.get(word).is_none() {
        return ConfigError { path: at.to_owned(), message: format!("{name}: {message}") };
    }
    let message = message.strip_prefix(word).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message);
    ConfigError { path: format!("{at}.{word}"), message: message.to_owned() }
}

/// Unique names, one default, no runtime in two active profiles.
fn check_names(profiles: &[ProfileConfiguration], errors: &mut Errors) {
    let mut default = None;
    for (i, profile) in profiles.iter().enumerate() {
        let path = |field: &str| format!("profiles[{i}].{field}");
        match profile.scheduler_name.as_deref() {
            None if profiles.len() > 1 => errors.add(path("schedulerName"), "must be set where there is more than one profile"),
            Some("") => errors.add(path("schedulerName"), "must not be empty"),
            Some(name) if !is_dns_subdomain(name) => {
                errors.add(path("schedulerName"), format!("must be a DNS subdomain (lower-case letters, digits, '-' and '.'), not {name:?}"));
            }
            Some(name) if profiles[..i].iter().any(|other| other.scheduler_name.as_deref() == Some(name)) => {
                errors.add(path("schedulerName"), format!("{name} is the name of another profile"));
            }
            _ => {}
        }
        for (r, runtime) in profile.runtimes.iter().enumerate() {
            let path = format!("profiles[{i}].runtimes[{r}]");
            if runtime.is_empty() {
                errors.add(path, "must not be empty");
            } else if !is_label_value(runtime) {
                errors.add(path, format!("no Pod can have label {LABEL_RUNTIME}={runtime:?}: it is no label value"));
            } else if profile.runtimes[..r].contains(runtime) {
                errors.add(path, format!("{runtime} is listed twice"));
            } else if !profile.shadow && profiles[..i].iter().any(|other| !other.shadow && other.runtimes.contains(runtime)) {
                errors.add(path, format!("{runtime} is served by another profile"));
            }
        }
        if profile.runtimes.is_empty() && !profile.shadow {
            match default {
                None => default = Some(i),
                Some(first) => {
                    errors.add(path("runtimes"), format!("profiles[{first}] already serves every runtime that no profile names; name this one's runtimes"))
                }
            }
        }
    }
    if default.is_none() {
        errors.add("profiles", "one profile that is not a shadow must be without runtimes: the default");
    }
}

/// What only the built plugins can tell: points they lack, weights they don't use, rejections nothing could end.
fn check_points(errors: &mut Errors, at: &str, profile: &ProfileConfiguration, plugins: &[(&'static str, Box<dyn Plugin>)]) {
    for (name, plugin) in plugins {
        if !plugin.reasons().is_empty() && plugin.events().is_empty() {
            errors.add(format!("{at}: plugin {name}"), "can reject but declares no event that could end a rejection; Plugin::events must not be empty");
        }
        for (set_name, point, set) in profile.plugins.sets() {
            for (i, enabled) in set.enabled.iter().enumerate().filter(|(_, e)| e.name == *name) {
                let path = format!("{at}.plugins.{set_name}.enabled[{i}]");
                if point.is_some_and(|point| !implements(&**plugin, point)) {
                    errors.add(format!("{path}.name"), format!("{name} has nothing to do at {set_name}"));
                } else if enabled.weight.is_some() && plugin.as_score().is_none() && point.is_none() {
                    errors.add(format!("{path}.weight"), format!("{name} does not score, so it takes no weight"));
                }
            }
        }
    }
}

/// The plugins of one point with their weights: the point's own set over multiPoint over the defaults; enabled over
/// disabled; a default that is configured again keeps its place unless it is disabled too, all others follow in order.
fn merge(
    profile: &ProfileConfiguration,
    point: Point,
    plugins: &[(&'static str, Box<dyn Plugin>)],
    is_default: &dyn Fn(&str) -> bool,
) -> Vec<(&'static str, i64)> {
    let here: Vec<&'static str> = plugins.iter().filter(|(_, plugin)| implements(&**plugin, point)).map(|(name, _)| *name).collect();
    let over = |base: Vec<(&'static str, i64)>, set: &PluginSet| {
        let disables = |name: &str| set.disabled.iter().any(|d| d.name == name || d.name == "*");
        let own = |name: &str| set.enabled.iter().find(|e| e.name == name).map(|e| e.weight.unwrap_or(1));
        let kept = base.into_iter().filter(|(name, _)| !disables(name)).map(|(name, weight)| (name, own(name).unwrap_or(weight)));
        let mut list: Vec<(&'static str, i64)> = kept.collect();
        for enabled in &set.enabled {
            if let Some(name) = here.iter().copied().find(|name| *name == enabled.name)
                && list.iter().all(|(known, _)| *known != name)
            {
                list.push((name, enabled.weight.unwrap_or(1)));
            }
        }
        list
    };
    let defaults = here.iter().copied().filter(|name| is_default(name)).map(|name| (name, 1)).collect();
    over(over(defaults, &profile.plugins.multi_point), profile.plugins.at(point))
}

/// Puts the plugins into the order of the filter point (the order in which Pods are charged) and indexes the points.
fn assemble(name: &str, parts: Parts) -> Profile {
    let Parts { plugins, lists } = parts;
    let empty = Vec::new();
    let list = |point: Point| lists.get(&point).unwrap_or(&empty);
    let mut order: Vec<&'static str> = list(Point::Filter).iter().map(|(name, _)| *name).collect();
    for (name, _) in Point::ALL.into_iter().flat_map(list) {
        if !order.contains(name) {
            order.push(name);
        }
    }
    let index = |name: &str| order.iter().position(|known| *known == name);
    let indices = |point: Point| list(point).iter().filter_map(|(name, _)| index(name)).collect::<Vec<_>>();
    let points = Points {
        pre_filters: indices(Point::PreFilter),
        filters: indices(Point::Filter),
        scores: list(Point::Score).iter().filter_map(|(name, weight)| Some((index(name)?, *weight))).collect(),
        reserves: indices(Point::Reserve),
        binds: indices(Point::Bind),
    };
    let mut ordered: Vec<(usize, Box<dyn Plugin>)> = plugins.into_iter().filter_map(|(name, plugin)| Some((index(name)?, plugin))).collect();
    ordered.sort_by_key(|(index, _)| *index);
    Profile::new(name.to_owned(), ordered.into_iter().map(|(_, plugin)| plugin).collect(), points)
}
