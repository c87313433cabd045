//! What goes on beside Jobs: whether each server answers, and whether it has sandboxes of ours that no Job claims.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_opensandbox::Sandbox;
use berth_runtime::lock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use super::endpoint::Endpoint;
use super::names::{job_of, of_installation};
use super::page::{Page, Recorded};
use crate::job::reason::Readiness;

/// How often it is seen whether something is due.
const TICK: Duration = Duration::from_secs(1);
/// Between two questions whether a server answers.
const PROBE: Duration = Duration::from_secs(30);
/// The same while it does not.
const PROBE_AGAIN: Duration = Duration::from_secs(5);
/// No server has it.
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// What is due when, of one server in one term.
struct Round {
    term: u64,
    endpoint: Arc<Endpoint>,
    probe_at: Instant,
    sweep_at: Instant,
    /// Sandboxes without a Job at the last sweep.
    unclaimed: Vec<String>,
}

/// Until `stop`; rests while this process does not lead. A server that hangs keeps no other waiting: each has a task of its own.
pub async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut rounds: HashMap<String, AbortOnDropHandle<Round>> = HashMap::new();
    while stop.run_until_cancelled(tokio::time::sleep(TICK)).await.is_some() {
        let Ok(term) = shared.tools.fence.admitted() else { continue };
        shared.begin_term(term);
        let mut current = HashMap::new();
        let all = shared.tools.parameters.list();
        let listed: HashSet<String> = all.iter().map(|parameters| parameters.uid.to_string()).collect();
        for parameters in all {
            let Ok(endpoint) = shared.endpoint(&parameters.uid, &parameters.key.name, &parameters.object.spec) else { continue };
            let before = match rounds.remove(&*parameters.uid) {
                Some(round) if !round.is_finished() => {
                    current.insert(parameters.uid.to_string(), round);
                    continue;
                }
                Some(round) => round.await.ok(),
                None => None,
            };
            let now = Instant::now();
            let round = before.filter(|round| round.term == term && Arc::ptr_eq(&round.endpoint, &endpoint));
            let mut round = round.unwrap_or(Round { term, endpoint, probe_at: now, sweep_at: now, unclaimed: Vec::new() });
            let shared = shared.clone();
            let turn = tokio::spawn(async move {
                round.turn(&shared).await;
                round
            });
            current.insert(parameters.uid.to_string(), AbortOnDropHandle::new(turn));
        }
        rounds = current;
        // What is gone keeps no key. Jobs that are on it still have theirs.
        lock(&shared.endpoints).retain(|uid, _| listed.contains(uid));
    }
}

impl Round {
    async fn turn(&mut self, shared: &Arc<Shared>) {
        let now = Instant::now();
        if now >= self.probe_at {
            let ready = probe(shared, &self.endpoint).await;
            self.probe_at = Instant::now() + if ready { PROBE } else { PROBE_AGAIN };
            if !ready {
                return;
            }
        }
        if now >= self.sweep_at && self.sweep(shared).await {
            self.sweep_at = Instant::now() + self.endpoint.spans.create_window;
        }
    }

    /// Looks at every sandbox of ours. One that no Job claims at two sweeps is older than a create may take to be told of.
    async fn sweep(&mut self, shared: &Arc<Shared>) -> bool {
        let Ok(installation) = shared.installation().await else { return false };
        let Ok(all) = self.endpoint.note(self.endpoint.client.list(&of_installation(&installation.id)).await) else { return false };
        let before = std::mem::take(&mut self.unclaimed);
        for sandbox in &all {
            let Some((key, uid)) = job_of(sandbox) else { continue };
            let job = shared.tools.jobs.get(&key).filter(|job| &*job.uid == uid);
            let is_wrong = match &job {
                None => {
                    self.unclaimed.push(sandbox.id.clone());
                    before.contains(&sandbox.id)
                }
                Some(job) => {
                    let status = job.object.status();
                    let references = status.and_then(|status| status.execution.as_ref()).map(|execution| Recorded::of(&execution.references));
                    let recorded = references.and_then(|references| references.sandbox);
                    let ended = status.is_some_and(|status| status.completion_time.is_some());
                    ended || recorded.is_some_and(|id| id != sandbox.id)
                }
            };
            if is_wrong {
                self.tell(shared, sandbox, &key, uid, job.is_some()).await;
            }
        }
        true
    }

    /// Sees to it that the Job's next look, or the look for what is left of Jobs that are gone, finds the sandbox.
    async fn tell(&self, shared: &Arc<Shared>, sandbox: &Sandbox, key: &berth_runtime::ObjectKey, uid: &str, lives: bool) {
        let page = shared.book.page(key, uid, self.term, || Page::new(Arc::from(uid), self.term, self.endpoint.clone()));
        // Whoever is at work on it finds out for himself.
        let Ok(mut facts) = page.facts.try_lock() else { return };
        if facts.known.sandbox.as_ref().is_none_or(|known| *known == sandbox.id) {
            facts.sandbox.get_or_insert_with(|| sandbox.clone());
        } else {
            facts.strays = true;
        }
        let shown = facts.seen(lives, shared.tools.time.now());
        drop(facts);
        shared.book.change(key, uid, self.term, |page| {
            if page.busy.is_none() {
                page.shown.backend.leftovers |= shown.backend.leftovers;
                page.shown.backend.strays |= shown.backend.strays;
                page.shown.backend.held |= shown.backend.held;
            }
        });
        (shared.wake.job)(key.clone());
    }
}

/// Asks a server for what it can't have: the answer shows that it answers, and takes the key. True if so.
async fn probe(shared: &Arc<Shared>, endpoint: &Arc<Endpoint>) -> bool {
    endpoint.refresh_key(&shared.tools).await;
    let asked = endpoint.note(endpoint.client.get(NOBODY).await);
    let (readiness, message) = match (shared.installation().await, asked) {
        (Err(error), _) => (Readiness::InstallationUnavailable, error.to_string()),
        (_, Ok(_)) => (Readiness::Reachable, "the server answers".to_owned()),
        (_, Err(error)) if error.is_sandbox_not_found() => (Readiness::Reachable, "the server answers".to_owned()),
        (_, Err(error)) if error.is_unauthorized() => endpoint.unauthorized(),
        (_, Err(error)) => (Readiness::Unreachable, format!("{}: {}", endpoint.spec.endpoint, endpoint.words(&error))),
    };
    if endpoint.set_readiness(readiness, &message) {
        (shared.wake.parameters)(endpoint.name.clone());
    }
    readiness == Readiness::Reachable
}
