//! Capacity: requests fit into what the Pod advertises; the score prefers the emptiest (or the fullest) Pod.
//!
//! Rules: reference kruntimes §4; decisions "Capacity". Accounting is by Pod name and includes assumed Runs.

use berth_framework::plugin::{Filter, Fraction, MAX_SCORE, Plugin, PreFilter, Prepared, Reason, Rejection, Reserve, Score, State, TieKey, WakeCause};
use berth_framework::profile::PluginType;
use berth_framework::views::{PodView, RunView, Snapshot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

static INSUFFICIENT: &Reason = &REASONS[0];
static REASONS: [Reason; 1] = [Reason { code: "InsufficientCapacity", text: "insufficient {}" }];

/// Shares are summed in units of 10⁻⁹ for ties.
const SHARE_UNIT: i128 = 1_000_000_000;

/// Which Pods score higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// 100 × (1 − dominant share after placement): spread.
    #[default]
    LeastAllocated,
    /// 100 × dominant share after placement: pack.
    MostAllocated,
}

/// Args of [`Capacity`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CapacityArgs {
    /// `LeastAllocated` (default) or `MostAllocated`.
    pub strategy: Strategy,
}

/// Fits requests into capacity. See the module documentation.
#[derive(Debug)]
pub struct Capacity {
    args: CapacityArgs,
}

impl PluginType for Capacity {
    const NAME: &'static str = "Capacity";
    type Args = CapacityArgs;
    fn new(args: CapacityArgs) -> Result<Self, String> {
        Ok(Self { args })
    }
}

impl Plugin for Capacity {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::CapacityRaised, WakeCause::RunEnded, WakeCause::RunDeleted, WakeCause::AssumptionReleased, WakeCause::PodReady]
    }
    fn offers_tie(&self) -> bool {
        true
    }
    fn as_pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn as_score(&self) -> Option<&dyn Score> {
        Some(self)
    }
    fn as_reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
}

impl PreFilter for Capacity {
    /// Requests, workspace, terms and labels are what the host tells Runs apart by itself.
    fn class_key(&self, _run: RunView<'_>) -> Option<Vec<u64>> {
        Some(Vec::new())
    }
    fn pre_filter(&self, run: RunView<'_>, _snapshot: Snapshot<'_>) -> Prepared {
        Prepared { key: vec![run.requests_key()], ..Prepared::default() }
    }
}

/// `runs` is looked at first, then the others by name (decisions "Waiting message").
fn fits(run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
    for (resource, request) in run.requests() {
        let room = pod.room(resource);
        if room.used + i128::from(request) > i128::from(room.capacity) {
            return Err(Rejection::about(INSUFFICIENT, resource));
        }
    }
    Ok(())
}

impl Filter for Capacity {
    fn same_for_equal_requests(&self) -> bool {
        true
    }
    fn filter(&self, _state: &State, run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        fits(run, pod)
    }
}

impl Reserve for Capacity {
    fn reserve(&self, _state: &State, run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        fits(run, pod)
    }
}

/// After placement: the largest share as (used, capacity), and the sum of shares in [`SHARE_UNIT`]s.
fn shares(run: RunView<'_>, pod: PodView<'_>) -> ((i128, i64), i128) {
    let mut dominant: (i128, i64) = (0, 1);
    let mut sum: i128 = 0;
    for (resource, room) in pod.rooms().filter(|(_, room)| room.capacity > 0) {
        let capacity = room.capacity;
        let request = run.requests().find(|(name, _)| *name == resource).map_or(0, |(_, amount)| amount);
        let used = room.used + i128::from(request);
        if Fraction::new(used, capacity) > Fraction::new(dominant.0, dominant.1) {
            dominant = (used, capacity);
        }
        sum = used.saturating_mul(SHARE_UNIT).saturating_div(i128::from(capacity)).saturating_add(sum);
    }
    (dominant, sum)
}

impl Score for Capacity {
    fn score(&self, _state: &State, run: RunView<'_>, pod: PodView<'_>) -> i64 {
        let ((used, capacity), _) = shares(run, pod);
        let capacity = i128::from(capacity);
        let part = match self.args.strategy {
            Strategy::LeastAllocated => (capacity - used).max(0),
            Strategy::MostAllocated => used.min(capacity),
        };
        i64::try_from(part * i128::from(MAX_SCORE) / capacity).unwrap_or(0)
    }

    fn tie(&self, run: RunView<'_>, pod: PodView<'_>) -> Option<TieKey> {
        let ((used, capacity), sum) = shares(run, pod);
        Some(match self.args.strategy {
            Strategy::LeastAllocated => TieKey { first: Fraction::new(used, capacity), second: sum },
            Strategy::MostAllocated => TieKey { first: Fraction::new(-used, capacity), second: -sum },
        })
    }
}
