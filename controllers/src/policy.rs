//! What the scheduler's profiles mean to the reconcilers, by Runtime, so that both call the same Pods good enough.

use std::collections::BTreeMap;

use berth_api::persistent_workspace::WorkspaceBinding;
use berth_api::runtime_ready::Availability;

/// What the profile of a Runtime says. The default is the default profile's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Runs are only placed on Pods that are Ready and not terminating.
    pub readiness: bool,
    /// A Pod is only available while its agent beats (RuntimeReady's arg `requireHeartbeat`).
    pub heartbeat: bool,
    /// Runs are only placed on the Pod that holds their workspace.
    pub workspace: bool,
    /// How a workspace gets its Pod.
    pub binding: WorkspaceBinding,
}

impl Default for Policy {
    fn default() -> Self {
        Self { readiness: true, heartbeat: true, workspace: true, binding: WorkspaceBinding::default() }
    }
}

impl Policy {
    /// What `availability` of a Pod comes to.
    pub fn judge(&self, availability: Availability) -> Availability {
        if self.heartbeat { availability } else { availability.without_heartbeat() }
    }
}

/// The policies of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    rest: Policy,
    by_runtime: BTreeMap<String, Policy>,
}

impl Policies {
    /// `rest` for every Runtime that `by_runtime` does not name.
    pub fn new(rest: Policy, by_runtime: BTreeMap<String, Policy>) -> Self {
        Self { rest, by_runtime }
    }

    /// The policy of a Runtime.
    pub fn of(&self, runtime: &str) -> Policy {
        self.by_runtime.get(runtime).copied().unwrap_or(self.rest)
    }
}
