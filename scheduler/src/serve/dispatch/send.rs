//! One write from intent to certainty.
//!
//! ```text
//!            ┌────────────── not sent, 429: the same again, with backoff ─────────────┐
//!            ▼                                                                        │
//!  base ─► PATCH ── 200 ─► Applied      409 ─► Conflict*   404 ─► Gone    other 4xx ─► Failed
//!            ▲  └── answer lost, 5xx ─► GET ── shows our write ─► Applied
//!            │                           ├─ another version ─► Conflict
//!            │                           ├─ gone or another UID ─► Gone
//!            └─── the same version ──────┘   (* after a lost answer a 409 is read again: it may be our own write)
//! ```
//! Sending the same patch again is safe: it is a compare-and-swap on one version, so at most one of them takes effect; and it
//! is needed: what was sent and not answered may still arrive, until another write has changed the version. Before each send the
//! [fence](berth_runtime::lease::Fence) is asked; who does not lead any more in the term of the decision sends nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::Run;
use berth_framework::core::{RunRef, WriteOutcome};
use berth_runtime::apiclient::{CallError, Precondition, get_json, status_merge_patch};
use berth_runtime::backoff::Backoff;
use berth_runtime::lease::NotLeader;
use berth_runtime::lock;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::super::objects::store_key;
use super::intent::{Intent, What};
use super::{Shared, refused};

/// Between repetitions.
const AGAIN: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(2), jitter_percent: 50 };
/// How often a write is sent again that the server keeps answering with 5xx while the object stays as it was. By then
/// half a minute has passed, and the first of them can't be under way any more.
const REPEATS_MAX: u32 = 20;
/// Failed reads after which the log says so, some 10 s.
const WARN_AFTER: u32 = 3;

/// The version a write is based on, and what it must preserve.
struct Base {
    version: Arc<str>,
    conditions: Arc<[Condition]>,
}

/// What a read says about a write whose answer was lost.
enum Found {
    Applied(Arc<str>),
    Changed,
    Gone,
    Unchanged,
}

impl Shared {
    /// Writes, and if need be reads, until it is certain what happened. Once `stop` is cancelled nothing is sent anew.
    pub(super) async fn carry_out(&self, intent: &Intent, stop: &CancellationToken) -> WriteOutcome {
        let run = &intent.run;
        let base = match self.base(run) {
            Ok(base) => base,
            Err(outcome) => return outcome,
        };
        if lock(&self.refused).is_pointless(&run.key, &base.version, Instant::now()) {
            return WriteOutcome::Failed;
        }
        let new = intent.what.status(&base.conditions, &self.now());
        let api: Api<Run> = Api::namespaced(self.tools.client.clone(), &run.key.namespace);
        let observed = Precondition { uid: &run.uid, resource_version: &base.version };
        let mut lost = false;
        let mut failures = 0;
        loop {
            let sent = match self.tools.fence.begin(intent.origin.epoch) {
                // Kept until the answer is there: a send that outlives its term is counted.
                Ok(_sending) => status_merge_patch(&api, &run.key.name, observed, &new.patch).await,
                // What was sent before and not answered is the next leader's to see: it lists before it places, and so do we.
                Err(NotLeader) => return WriteOutcome::Failed,
            };
            let error = match sent {
                Ok(written) => {
                    let version = Arc::<str>::from(written.resource_version);
                    lock(&self.own).wrote(&run.key, &run.uid, &base.version, version.clone(), new.conditions);
                    return WriteOutcome::Applied(version);
                }
                Err(error) => error,
            };
            match verdict(&error, lost) {
                Verdict::Settled(outcome) => {
                    if outcome == WriteOutcome::Failed {
                        self.refused(intent, &base, &error);
                    }
                    return outcome;
                }
                Verdict::Again => {}
                Verdict::Read => {
                    lost = true;
                    tracing::debug!(%error, "answer lost, reading");
                    match self.find(&api, run, &base, &intent.what).await {
                        // Not noted as our own: others may have written between our write and this version.
                        Found::Applied(version) => return WriteOutcome::Applied(version),
                        Found::Changed => return WriteOutcome::Conflict,
                        Found::Gone => return WriteOutcome::Gone,
                        Found::Unchanged if failures >= REPEATS_MAX => {
                            tracing::warn!(%error, "write given up");
                            return WriteOutcome::Failed;
                        }
                        Found::Unchanged => {}
                    }
                }
            }
            let delay = error.retry_after().unwrap_or_default().min(AGAIN.max).max(AGAIN.delay(failures));
            failures = failures.saturating_add(1);
            let stopping = tokio::time::timeout(delay, stop.cancelled()).await.is_ok();
            if !lost {
                if stopping {
                    return WriteOutcome::Failed;
                }
                // Nothing is under way: if the object has moved on, this write is pointless.
                if let Err(outcome) = self.still(run, &base) {
                    return outcome;
                }
            } else if stopping {
                tokio::time::sleep(AGAIN.min).await;
            }
        }
    }

    /// What this write is based on: the version the core saw, or what our own writes have made of it since.
    fn base(&self, run: &RunRef) -> Result<Base, WriteOutcome> {
        if let Some(own) = lock(&self.own).since(&run.key, &run.uid, &run.resource_version) {
            return Ok(Base { version: own.version.clone(), conditions: own.conditions.clone() });
        }
        let stored = self.tools.runs.get(&store_key(&run.key)).ok_or(WriteOutcome::Gone)?;
        if stored.uid != run.uid {
            return Err(WriteOutcome::Gone);
        }
        // The store is never behind the core: another version is a newer one, and the write would be refused.
        if stored.resource_version != run.resource_version {
            return Err(WriteOutcome::Conflict);
        }
        Ok(Base { version: run.resource_version.clone(), conditions: stored.object.conditions.to_vec().into() })
    }

    fn still(&self, run: &RunRef, base: &Base) -> Result<(), WriteOutcome> {
        match self.tools.runs.get(&store_key(&run.key)) {
            Some(stored) if stored.uid == run.uid => {
                let known = stored.resource_version == run.resource_version || stored.resource_version == base.version;
                if known { Ok(()) } else { Err(WriteOutcome::Conflict) }
            }
            _ => Err(WriteOutcome::Gone),
        }
    }

    /// Tells of a refusal: once per version of an object if it would only be repeated, else every time.
    fn refused(&self, intent: &Intent, base: &Base, error: &CallError) {
        if refused::lasts(error) && !lock(&self.refused).note(&intent.run.key, &base.version, Instant::now()) {
            tracing::debug!(%error, "write refused again");
            return;
        }
        tracing::warn!(%error, "write refused");
        self.tools.announcer.not_written(&intent.run, &intent.what, error);
    }

    /// Reads until there is an answer.
    async fn find(&self, api: &Api<Run>, run: &RunRef, base: &Base, what: &What) -> Found {
        let mut failures = 0;
        loop {
            match get_json(api, &run.key.name).await {
                Ok(Some(object)) => return found(&object, run, base, what),
                Ok(None) => return Found::Gone,
                Err(error) => {
                    // Until it is known, the placement counts; if it stays so, somebody should know why.
                    if failures == WARN_AFTER {
                        tracing::warn!(%error, "still can't read what became of a write");
                    }
                    tracing::debug!(%error, failures, "can't read what became of a write");
                    tokio::time::sleep(AGAIN.delay(failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }
}

fn found(object: &Value, run: &RunRef, base: &Base, what: &What) -> Found {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let version = text("/metadata/resourceVersion");
    if text("/metadata/uid") != &*run.uid {
        Found::Gone
    } else if version == &*base.version {
        Found::Unchanged
    } else if object.get("status").is_some_and(|status| what.is_stored_in(status)) {
        Found::Applied(version.into())
    } else {
        Found::Changed
    }
}

enum Verdict {
    Settled(WriteOutcome),
    /// Without effect, and worth another try.
    Again,
    /// Unknown.
    Read,
}

/// `lost`: an earlier answer to the same patch was lost.
fn verdict(error: &CallError, lost: bool) -> Verdict {
    if error.is_ambiguous() {
        Verdict::Read
    } else if error.is_conflict() {
        if lost { Verdict::Read } else { Verdict::Settled(WriteOutcome::Conflict) }
    } else if error.is_not_found() {
        Verdict::Settled(WriteOutcome::Gone)
    } else if error.retryable() {
        Verdict::Again
    } else {
        if lost { Verdict::Read } else { Verdict::Settled(WriteOutcome::Failed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_framework::model::ObjectKey;
    use serde_json::json;

    #[test]
    fn a_read_tells_what_became_of_a_write() {
        let run = RunRef { key: ObjectKey::new("ns", "a"), uid: "u".into(), resource_version: "7".into() };
        let base = Base { version: "7".into(), conditions: Arc::new([]) };
        let what = What::Bind { pod: "p".into(), pod_uid: "pu".into(), remarks: Vec::new() };
        let ours = json!({"phase": "Scheduled", "assignedPod": "p", "assignedPodUID": "pu"});
        let rows = [
            ("u", "7", json!(null), "unchanged"),
            ("u", "8", ours.clone(), "applied 8"),
            ("u", "9", json!({"phase": "Running", "assignedPod": "p", "assignedPodUID": "pu"}), "applied 9"),
            ("u", "8", json!({"phase": "Pending"}), "changed"),
            ("u", "8", json!({"phase": "Scheduled", "assignedPod": "q", "assignedPodUID": "qu"}), "changed"),
            ("other", "8", ours, "gone"),
        ];
        for (uid, version, status, expected) in rows {
            let object = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": status});
            let told = match found(&object, &run, &base, &what) {
                Found::Applied(version) => format!("applied {version}"),
                Found::Changed => "changed".to_owned(),
                Found::Gone => "gone".to_owned(),
                Found::Unchanged => "unchanged".to_owned(),
            };
            assert_eq!(told, expected, "{object}");
        }
    }

    #[test]
    fn after_a_lost_answer_no_refusal_is_believed_unread() {
        let refused = |code, reason: &str| CallError::Refused { code, reason: reason.to_owned(), message: String::new(), retry_after: None };
        let server = CallError::Server { code: 500, reason: String::new(), message: String::new(), retry_after: None };
        let rows = [
            (refused(409, "Conflict"), "Conflict", "read"),
            (refused(404, "NotFound"), "Gone", "Gone"),
            (refused(422, "Invalid"), "Failed", "read"),
            (refused(403, "Forbidden"), "Failed", "read"),
            (refused(429, "TooManyRequests"), "again", "again"),
            (CallError::NotSent(String::new()), "again", "again"),
            (CallError::Lost(String::new()), "read", "read"),
            (CallError::TimedOut(Duration::ZERO), "read", "read"),
            (CallError::Undecodable(String::new()), "read", "read"),
            (server, "read", "read"),
        ];
        for (error, first, after_loss) in rows {
            for (lost, expected) in [(false, first), (true, after_loss)] {
                let told = match verdict(&error, lost) {
                    Verdict::Settled(outcome) => format!("{outcome:?}"),
                    Verdict::Again => "again".to_owned(),
                    Verdict::Read => "read".to_owned(),
                };
                assert_eq!(told, expected, "{error}, lost {lost}");
            }
        }
    }
}
