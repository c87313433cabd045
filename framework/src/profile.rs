//! A profile, built: which plugins run at which point, in which order, with which weights.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub use crate::config::*;
pub use crate::registry::{PluginType, Registry};

use crate::plugin::{Normalize, Plugin, WakeCause};

/// A plugin that a profile uses at one point or more.
pub(crate) struct PluginSlot {
    pub plugin: Box<dyn Plugin>,
    /// It runs at PreFilter.
    pub pre_filters: bool,
    /// It runs at Filter.
    pub filters: bool,
}

/// Plugins in order, ready to run. A plugin's index is its place in the order in which Pods are charged.
pub struct Profile {
    /// The profile's name in metrics.
    pub name: String,
    pub(crate) plugins: Vec<PluginSlot>,
    pub(crate) filters: Vec<usize>,
    /// Plugin and weight.
    pub(crate) scores: Vec<(usize, i64)>,
    pub(crate) reserves: Vec<usize>,
    pub(crate) binds: Vec<usize>,
    pub(crate) tie: Option<usize>,
    /// How many scoring plugins normalise.
    pub(crate) normalized: usize,
    pub(crate) volatile: bool,
}

/// Which plugins run at each point, as indices into the plugins; filters must be ascending.
#[derive(Debug, Default)]
pub(crate) struct Points {
    pub pre_filters: Vec<usize>,
    pub filters: Vec<usize>,
    pub scores: Vec<(usize, i64)>,
    pub reserves: Vec<usize>,
    pub binds: Vec<usize>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile({}: {})", self.name, self.plugin_names().collect::<Vec<_>>().join(", "))
    }
}

impl Profile {
    pub(crate) fn new(name: String, plugins: Vec<Box<dyn Plugin>>, points: Points) -> Self {
        let Points { pre_filters, filters, scores, reserves, binds } = points;
        let slot = |(index, plugin)| PluginSlot { plugin, pre_filters: pre_filters.contains(&index), filters: filters.contains(&index) };
        let plugins: Vec<PluginSlot> = plugins.into_iter().enumerate().map(slot).collect();
        let normalizes = |i: usize| plugins[i].plugin.as_score().is_some_and(|s| s.normalize() == Normalize::MinMax);
        let normalized = scores.iter().filter(|(i, _)| normalizes(*i)).count();
        let tie = scores.iter().map(|(i, _)| *i).find(|i| plugins[*i].plugin.offers_tie());
        let volatile = plugins.iter().any(|slot| slot.plugin.volatile());
        Self { name, plugins, filters, scores, reserves, binds, tie, normalized, volatile }
    }

    /// Names, in the order in which Pods are charged.
    pub fn plugin_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.plugins.iter().map(|slot| slot.plugin.name())
    }

    /// Name and weight of every scoring plugin.
    pub fn score_weights(&self) -> impl Iterator<Item = (&'static str, i64)> + '_ {
        self.scores.iter().map(|&(i, weight)| (self.plugins[i].plugin.name(), weight))
    }

    pub(crate) fn is_normalizing(&self, plugin: usize) -> bool {
        self.plugins[plugin].plugin.as_score().is_some_and(|score| score.normalize() == Normalize::MinMax)
    }

    pub(crate) fn normalizing_weights(&self) -> Vec<i64> {
        self.scores.iter().filter(|(i, _)| self.is_normalizing(*i)).map(|&(_, weight)| weight).collect()
    }

    pub(crate) fn same_for_equal_requests(&self, plugin: usize) -> bool {
        self.plugins[plugin].plugin.as_filter().is_some_and(|filter| filter.same_for_equal_requests())
    }

    pub(crate) fn refusal_reason(&self, plugin: &str) -> Option<&'static str> {
        self.plugins.iter().find(|slot| slot.plugin.name() == plugin).and_then(|slot| slot.plugin.refusal_reason())
    }

    pub(crate) fn events_of(&self, plugin: usize) -> u32 {
        self.plugins.get(plugin).map_or(0, |slot| slot.plugin.events().iter().fold(0, |mask, cause: &WakeCause| mask | cause.bit()))
    }
}

/// Every profile of a configuration, and what else it says to the core.
#[derive(Clone, Debug)]
pub struct Profiles {
    list: Vec<Arc<Profile>>,
    by_runtime: FxHashMap<Arc<str>, usize>,
    default: usize,
    shadows: Vec<Shadow>,
    /// First back-off after an error or conflict, milliseconds.
    pub backoff_initial_ms: u64,
    /// Longest such back-off, milliseconds.
    pub backoff_max_ms: u64,
}

/// A profile that is evaluated without effect.
#[derive(Clone, Debug)]
pub struct Shadow {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The runtimes it looks at; empty = all.
    pub runtimes: Vec<Arc<str>>,
}

impl Profiles {
    pub(crate) fn new(list: Vec<(Arc<Profile>, Vec<Arc<str>>)>, shadows: Vec<Shadow>, backoff_s: (u32, u32)) -> Self {
        let mut by_runtime = FxHashMap::default();
        let mut default = 0;
        for (index, (_, runtimes)) in list.iter().enumerate() {
            if runtimes.is_empty() {
                default = index;
            }
            by_runtime.extend(runtimes.iter().map(|runtime| (runtime.clone(), index)));
        }
        Self {
            list: list.into_iter().map(|(profile, _)| profile).collect(),
            by_runtime,
            default,
            shadows,
            backoff_initial_ms: u64::from(backoff_s.0) * 1_000,
            backoff_max_ms: u64::from(backoff_s.1) * 1_000,
        }
    }

    /// The profile that places Runs of this runtime.
    pub fn of(&self, runtime: &str) -> &Arc<Profile> {
        self.at(self.place_of(runtime))
    }

    /// Its place in [`Profiles::iter`].
    pub(crate) fn place_of(&self, runtime: &str) -> usize {
        if self.by_runtime.is_empty() {
            return self.default;
        }
        self.by_runtime.get(runtime).copied().unwrap_or(self.default)
    }

    pub(crate) fn at(&self, place: usize) -> &Arc<Profile> {
        &self.list[place]
    }

    /// How long to wait after `errors` + 1 errors or conflicts in a row, milliseconds.
    pub(crate) fn backoff_ms(&self, errors: u32) -> u64 {
        self.backoff_initial_ms.saturating_mul(1 << errors.min(16)).min(self.backoff_max_ms)
    }

    /// Every active profile.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.list.iter()
    }

    /// Profiles evaluated without effect.
    pub fn shadows(&self) -> &[Shadow] {
        &self.shadows
    }
}

impl From<Arc<Profile>> for Profiles {
    fn from(profile: Arc<Profile>) -> Self {
        Self::new(vec![(profile, Vec::new())], Vec::new(), (DEFAULT_INITIAL_BACKOFF_S, DEFAULT_MAX_BACKOFF_S))
    }
}

impl From<Profile> for Profiles {
    fn from(profile: Profile) -> Self {
        Arc::new(profile).into()
    }
}
