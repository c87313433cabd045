//! RuntimeReady: the Pod is available (Running, Ready, not terminating, its agent beats).
//!
//! Rule: decisions "RuntimeReady"; the predicate itself lives in `berth_api::runtime_ready`.

use berth_framework::model::Readiness;
use berth_framework::plugin::{Filter, Plugin, Reason, Rejection, State, WakeCause};
use berth_framework::profile::PluginType;
use berth_framework::views::{PodView, RunView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

static REASONS: [Reason; 5] = [
    Reason { code: "PodNotRunning", text: "not running" },
    Reason { code: "PodNotReady", text: "not ready" },
    Reason { code: "PodTerminating", text: "terminating" },
    Reason { code: "HeartbeatMissing", text: "without heartbeat" },
    Reason { code: "HeartbeatStale", text: "heartbeat stale" },
];

/// Args of [`RuntimeReady`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RuntimeReadyArgs {
    /// `false`: a Pod that is Ready is enough, its agent need not beat. For clusters without an agent. Default `true`.
    pub require_heartbeat: bool,
}

impl Default for RuntimeReadyArgs {
    fn default() -> Self {
        Self { require_heartbeat: true }
    }
}

/// Keeps Runs off Pods that are not available. See the module documentation.
#[derive(Debug)]
pub struct RuntimeReady {
    args: RuntimeReadyArgs,
}

impl PluginType for RuntimeReady {
    const NAME: &'static str = "RuntimeReady";
    type Args = RuntimeReadyArgs;
    fn new(args: RuntimeReadyArgs) -> Result<Self, String> {
        Ok(Self { args })
    }
}

impl Plugin for RuntimeReady {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::PodReady, WakeCause::HeartbeatReturned]
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for RuntimeReady {
    fn same_for_equal_requests(&self) -> bool {
        true
    }
    fn filter(&self, _state: &State, _run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        let reason = match pod.readiness() {
            Readiness::Ready => return Ok(()),
            Readiness::NotRunning => 0,
            Readiness::NotReady => 1,
            Readiness::Terminating => 2,
            Readiness::HeartbeatMissing | Readiness::HeartbeatStale if !self.args.require_heartbeat => return Ok(()),
            Readiness::HeartbeatMissing => 3,
            Readiness::HeartbeatStale => 4,
        };
        Err(Rejection::new(&REASONS[reason]))
    }
}
