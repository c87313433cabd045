//! /debug/queue: what this process does about placing, and where Pending Runs stand in its queue; also read by `berth explain`.
//!
//! ```json
//! {"state": "placing", "leader": null, "namespace": null, "pending": 1, "writes": {"placements": 0, "messages": 0}, "truncated": false,
//!  "runs": [{"namespace", "name", "standing", "position": {"before", "of"}, "cause", "attempts", "lastAttempt", "waitingSince",
//!            "backoffUntil", "reason", "message", "pod"}]}
//! ```
//! What does not apply to a Run is left out. `?run=NAMESPACE/NAME` asks about one Run, whether it is among the oldest or not.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use berth_framework::core::{self, Queued, Standing};
use berth_framework::model::{Now, ObjectKey, Phase};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::health::Views;
use super::objects::{model_key, store_key};
use super::owner::{Question, Told};

/// Runs told at most.
const RUNS_MAX: usize = 500;
/// How long the owner gets to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What a process does about placing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Doing {
    /// It places.
    Placing,
    /// Another process leads.
    Standby,
    /// It will place once its lists are complete.
    Starting,
    /// It was asked to end.
    Stopping,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueView {
    /// What this process does about placing.
    pub state: Doing,
    /// Identity of the leader, as in the Lease; null without election, or while nobody leads.
    pub leader: Option<String>,
    /// The one namespace that is served; null: all.
    pub namespace: Option<String>,
    /// Runs that are not placed and have not ended.
    pub pending: usize,
    /// Writes under way or waiting.
    pub writes: Writes,
    /// Pending Runs, oldest first; or the Run that was asked about, if it is known here.
    pub runs: Vec<RunView>,
    /// There are more than are told.
    pub truncated: bool,
}

/// Writes under way or waiting.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Writes {
    /// Placements, and ends of Runs that can't be placed.
    pub placements: usize,
    /// Waiting messages.
    pub messages: usize,
}

/// One Run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// `active` (to be tried next), `backoff`, `waiting` (for an event), `assumed` (its placement is being written), `terminating` (its end
    /// is), `idle` (not to be placed, or not taken in yet), `standby` (to be tried, but not by this process as it is).
    pub standing: String,
    /// How many go first; told if one Run was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// What it was last queued for: a wake-up cause, or `alarm`. Left out for a Run that was new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Attempts so far, by this process.
    pub attempts: u32,
    /// When it was last tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<Timestamp>,
    /// Since when it waits, as this process knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Timestamp>,
    /// When its back-off is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_until: Option<Timestamp>,
    /// Condition reason of its last attempt, written or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// Message of its last attempt, written or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
    /// The Pod it is counted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
}

/// A Run's place among Runs to be tried, or among waiting Runs that ask for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// So many go first.
    pub before: usize,
    /// Of so many, itself included.
    pub of: usize,
}

impl From<core::Position> for Position {
    fn from(core::Position { before, of }: core::Position) -> Self {
        Self { before, of }
    }
}

/// What may be asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// `NAMESPACE/NAME`.
    run: Option<String>,
}

/// The Pending Runs, oldest first, or one Run; and what the core knows of each.
pub(super) async fn debug_queue(State(views): State<Arc<Views>>, Query(asked): Query<Asked>) -> Response {
    let one = match asked.run.as_deref().map(|run| run.split_once('/').ok_or(run)).transpose() {
        Ok(one) => one.map(|(namespace, name)| ObjectKey::new(namespace, name)),
        Err(run) => return (StatusCode::BAD_REQUEST, format!("run={run}: must be NAMESPACE/NAME")).into_response(),
    };
    let mut pending: Vec<_> = views.runs.list().into_iter().filter(|run| run.object.model.phase == Phase::Pending).collect();
    let positions = one.is_some();
    let keys: Vec<ObjectKey> = match one {
        Some(key) => Vec::from_iter(views.runs.get(&store_key(&key)).map(|_| key)),
        None => {
            pending.sort_by(|a, b| (a.object.model.created_s, &a.uid).cmp(&(b.object.model.created_s, &b.uid)));
            pending.iter().take(RUNS_MAX).map(|run| model_key(&run.key)).collect()
        }
    };
    let truncated = !positions && pending.len() > RUNS_MAX;
    let (answer, told) = oneshot::channel();
    let told = match views.questions.try_send(Question { keys, positions, answer }) {
        Ok(()) => tokio::time::timeout(ANSWER_WITHIN, told).await.ok().and_then(Result::ok),
        Err(_) => None,
    };
    let Some((now, told)) = told else { return (StatusCode::SERVICE_UNAVAILABLE, "the owner does not answer").into_response() };
    let state = views.doing();
    let (placements, messages) = views.dispatcher.pending();
    Json(QueueView {
        state,
        leader: views.election.as_ref().and_then(super::leading::View::leader),
        namespace: views.namespace.clone(),
        pending: pending.len(),
        writes: Writes { placements, messages },
        runs: told.into_iter().map(|run| view(run, state, now)).collect(),
        truncated,
    })
    .into_response()
}

fn view(run: Told, state: Doing, now: Now) -> RunView {
    let Told { key, queued, position, waits, pod } = run;
    let standing = queued.as_ref().map_or(Standing::Idle, |queued| queued.standing);
    // Whoever does not place tries nobody.
    let held = standing == Standing::Active && state != Doing::Placing;
    let at = |pick: fn(&Queued) -> Option<u64>| queued.as_ref().and_then(pick).and_then(|mono_ms| wall(mono_ms, now));
    let (reason, message) = waits.map(|shown| (shown.reason, shown.message)).unzip();
    RunView {
        namespace: key.namespace,
        name: key.name,
        standing: if held { "standby" } else { word(standing) }.to_owned(),
        position: position.filter(|_| !held).map(Position::from),
        cause: queued.as_ref().and_then(|queued| if queued.alarm { Some("alarm") } else { queued.cause.map(|cause| cause.as_str()) }).map(str::to_owned),
        attempts: queued.as_ref().map_or(0, |queued| queued.attempts),
        last_attempt: at(|queued| queued.attempted_ms),
        waiting_since: at(|queued| queued.waiting_since_ms),
        backoff_until: at(|queued| queued.until_ms),
        reason,
        message,
        pod,
    }
}

/// A moment of the core's clock as a time.
fn wall(mono_ms: u64, now: Now) -> Option<Timestamp> {
    let away_ms = i128::from(mono_ms) - i128::from(now.mono_ms);
    Timestamp::from_millisecond(i64::try_from(i128::from(now.wall_ms) + away_ms).ok()?).ok()
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Active => "active",
        Standing::Backoff => "backoff",
        Standing::Waiting => "waiting",
        Standing::Assumed => "assumed",
        Standing::Terminating => "terminating",
        Standing::Idle => "idle",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use berth_framework::plugin::WakeCause;
    use serde_json::json;

    use super::*;

    #[test]
    fn moments_become_times_and_who_does_not_place_tries_nobody() {
        let now = Now { wall_ms: 60_000, mono_ms: 5_000 };
        let queued = |standing, until_ms| {
            let (waiting_since_ms, cause) = (Some(2_000), Some(WakeCause::RunEnded));
            Some(Queued { standing, attempts: 3, attempted_ms: Some(4_000), waiting_since_ms, cause, alarm: false, until_ms })
        };
        let told = |queued| Told { key: ObjectKey::new("ns", "a"), queued, position: Some(core::Position { before: 1, of: 2 }), waits: None, pod: None };
        let seen = |queued, state| serde_json::to_value(view(told(queued), state, now)).unwrap();
        assert_eq!(
            seen(queued(Standing::Backoff, Some(7_000)), Doing::Placing),
            json!({"namespace": "ns", "name": "a", "standing": "backoff", "position": {"before": 1, "of": 2}, "cause": "run_ended", "attempts": 3,
                   "lastAttempt": "1970-01-01T00:00:59Z", "waitingSince": "1970-01-01T00:00:57Z", "backoffUntil": "1970-01-01T00:01:02Z"})
        );
        for (state, standing) in [(Doing::Placing, "active"), (Doing::Standby, "standby"), (Doing::Starting, "standby"), (Doing::Stopping, "standby")] {
            let seen = seen(queued(Standing::Active, None), state);
            assert_eq!((&seen["standing"], seen["position"].is_null()), (&json!(standing), standing == "standby"), "{state:?}");
        }
        assert_eq!(seen(None, Doing::Placing)["standing"], "idle");
    }
}
