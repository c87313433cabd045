//! Of which Runtimes a Pod must have an agent that beats. What RuntimeReady's arg `requireHeartbeat` is to the scheduler, this is to
//! the binder, so that both call the same Pods available.

use std::collections::BTreeMap;

use berth_api::runtime_ready::Availability;

/// Whether a heartbeat is required, by Runtime. The default requires it everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatPolicy {
    required: bool,
    by_runtime: BTreeMap<String, bool>,
}

impl Default for HeartbeatPolicy {
    fn default() -> Self {
        Self::new(true, BTreeMap::new())
    }
}

impl HeartbeatPolicy {
    /// `required` for every Runtime that `by_runtime` does not name.
    pub fn new(required: bool, by_runtime: BTreeMap<String, bool>) -> Self {
        Self { required, by_runtime }
    }

    /// What `availability`, of a Pod of this Runtime, comes to.
    pub fn judge(&self, runtime: &str, availability: Availability) -> Availability {
        let required = self.by_runtime.get(runtime).copied().unwrap_or(self.required);
        if required { availability } else { availability.without_heartbeat() }
    }
}
