//! How many Runs wait because of which plugin.

use rustc_hash::FxHashMap;

use crate::cycle::Diagnosis;

/// Waiting Runs by the place of their profile and by plugin; a Run counts once for each plugin that rejected a Pod.
#[derive(Debug, Default)]
pub(super) struct Unschedulable {
    counts: FxHashMap<(u16, &'static str), usize>,
}

impl Unschedulable {
    /// One more waits. Answers under which profile it was counted.
    pub fn add(&mut self, profile: usize, diagnosis: &Diagnosis) -> u16 {
        let profile = u16::try_from(profile).unwrap_or(u16::MAX);
        for plugin in diagnosis.plugins() {
            *self.counts.entry((profile, plugin)).or_default() += 1;
        }
        profile
    }

    /// One that was added no longer waits.
    pub fn remove(&mut self, profile: u16, diagnosis: &Diagnosis) {
        for plugin in diagnosis.plugins() {
            if let Some(count) = self.counts.get_mut(&(profile, plugin)) {
                *count -= 1;
            }
        }
    }

    /// Place of the profile, plugin, Runs; once there, a row stays.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &'static str, usize)> + '_ {
        self.counts.iter().map(|(&(profile, plugin), &runs)| (usize::from(profile), plugin, runs))
    }
}
