//! The result of a simulation; its JSON is stable and documented here.
//!
//! ```json
//! {"runs": [{"namespace", "name", "phase", "assignedPod", "reason", "message", "attempts",
//!            "rejections": [{"plugin", "reason", "pods"}],
//!            "scores": [{"pod", "total", "byPlugin": {…}}]}],
//!  "workspaces": [{"namespace", "name", "phase", "boundPod", "boundPodUID", "message"}],
//!  "summary": {"placed", "pending", "failed", "cancelled", "cycles", "decision": {"p50_us", "p99_us"}}}
//! ```
//! Every key is always there; `assignedPod`, `boundPod` and `boundPodUID` may be null, texts may be empty. Runs and
//! workspaces are in input order. With Jobs in the input a key `jobs` follows, with `--explain` a key `explain`:
//!
//! ```json
//! {"jobs": [{"namespace", "name", "accepted", "reason", "message", "jobClass", "effectiveResources"}]}
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_framework::Ranked;
use berth_framework::plugin::Rejection;
use serde::Serialize;

use super::jobs::JobReport;

/// Everything that is told.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Every Run of the input, refused ones included.
    pub runs: Vec<RunReport>,
    /// Every PersistentWorkspace of the input, refused ones included.
    pub workspaces: Vec<WorkspaceReport>,
    /// Numbers.
    pub summary: Summary,
    /// Every Job of the input, whether its class would take it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobReport>,
    /// What `--explain` asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<ExplainReport>,
}

/// One Run at the end.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its phase; `Failed` if the API refuses it.
    pub phase: Arc<str>,
    /// Its Pod.
    pub assigned_pod: Option<Arc<str>>,
    /// Reason of its condition, as `Assigned`, `Unschedulable`, `WorkspaceNotReady`, `InvalidSpec`.
    pub reason: Arc<str>,
    /// Why it is not placed.
    pub message: Arc<str>,
    /// How often it was tried.
    pub attempts: u32,
    /// Why no Pod fits, if it waits: Pods by plugin and reason.
    pub rejections: Vec<RejectionReport>,
    /// The chosen Pod and two runners-up, if it was placed.
    pub scores: Vec<ScoreReport>,
}

/// How many Pods a plugin rejected for a reason.
#[derive(Clone, Debug, Serialize)]
pub struct RejectionReport {
    /// The plugin.
    pub plugin: &'static str,
    /// Code of its reason, as `HeartbeatStale`.
    pub reason: &'static str,
    /// How many Pods.
    pub pods: u32,
}

/// What a Pod scored, 0 to 100 by plugin.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreReport {
    /// The Pod.
    pub pod: Arc<str>,
    /// Sum over the plugins, each times its weight.
    pub total: f64,
    /// Before weighting.
    pub by_plugin: BTreeMap<&'static str, f64>,
}

impl From<&Ranked> for ScoreReport {
    fn from(ranked: &Ranked) -> Self {
        let by_plugin = ranked.by_plugin.iter().map(|(plugin, score)| (*plugin, from_thousandths(*score))).collect();
        Self { pod: ranked.pod.clone(), total: from_thousandths(ranked.total), by_plugin }
    }
}

#[expect(clippy::cast_precision_loss, reason = "scores are far below 2^52")]
fn from_thousandths(score: i64) -> f64 {
    score as f64 / 1_000.0
}

/// One PersistentWorkspace at the end.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceReport {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its phase; `Failed` if the API refuses it.
    pub phase: Arc<str>,
    /// The Pod it is bound to.
    pub bound_pod: Option<Arc<str>>,
    /// UID of that Pod.
    #[serde(rename = "boundPodUID")]
    pub bound_pod_uid: Option<Arc<str>>,
    /// Why it is of no use, if it is not.
    pub message: Arc<str>,
}

/// Numbers of the whole simulation. `placed`, `failed` and `cancelled` count what it did, not what the input had done already.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Runs it placed.
    pub placed: usize,
    /// Runs that are Pending at the end.
    pub pending: usize,
    /// Runs it ended Failed, and those that the API refuses.
    pub failed: usize,
    /// Runs it cancelled, as they asked.
    pub cancelled: usize,
    /// Attempts.
    pub cycles: usize,
    /// Real time of one attempt.
    pub decision: Decision,
}

/// Percentiles of the real time of one attempt, microseconds; 0 without attempts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Decision {
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
}

impl Decision {
    /// Of these times.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
            times.get(rank).map_or(0.0, |time| (time.as_secs_f64() * 1e7).round() / 10.0)
        };
        Self { p50_us: at(50), p99_us: at(99) }
    }
}

/// What every plugin says of every Pod for one Run.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainReport {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The moment the verdicts are of: `before it was placed`, `at the end`.
    pub when: &'static str,
    /// Its runtime.
    pub runtime: Arc<str>,
    /// The Pods of its runtime in its namespace, by name.
    pub pods: Vec<ExplainedPod>,
}

/// One Pod of an [`ExplainReport`].
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedPod {
    /// Its name.
    pub pod: Arc<str>,
    /// No plugin rejects it.
    pub fits: bool,
    /// It was chosen.
    pub chosen: bool,
    /// Every filtering plugin, in order.
    pub verdicts: Vec<VerdictReport>,
    /// What it scored, if it fits and the Run was placed.
    pub score: Option<ScoreReport>,
}

/// What one plugin says of one Pod.
#[derive(Clone, Debug, Serialize)]
pub struct VerdictReport {
    /// The plugin.
    pub plugin: &'static str,
    /// Code of its reason; null if it lets the Pod pass.
    pub reason: Option<&'static str>,
    /// The reason in words.
    pub message: Arc<str>,
}

impl From<(&'static str, Option<Rejection>)> for VerdictReport {
    fn from((plugin, rejection): (&'static str, Option<Rejection>)) -> Self {
        Self { plugin, reason: rejection.as_ref().map(|r| r.reason.code), message: rejection.map_or_else(|| "".into(), |r| r.to_string().into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times = |n: u64| (1..=n).map(Duration::from_micros).collect::<Vec<_>>();
        for (n, p50, p99) in [(0, 0.0, 0.0), (1, 1.0, 1.0), (2, 1.0, 2.0), (100, 50.0, 99.0), (1000, 500.0, 990.0)] {
            let decision = Decision::of(times(n));
            assert_eq!((decision.p50_us, decision.p99_us), (p50, p99), "{n}");
        }
    }
}
