//! One errand about one Job: what it is about, and what all errands need.

use std::sync::Arc;
use std::time::Duration;

use berth_opensandbox::fence::{Fence, InvalidWord, State as Lock};
use berth_opensandbox::{Certainty, Command, Error, Execd, Sandbox, State};
use berth_runtime::ObjectKey;
use berth_runtime::apiclient::CallError;
use berth_runtime::lease::{NotLeader, Sending};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Shared;
use super::endpoint::Endpoint;
use super::names::{FENCE_FOLDER, of_job};
use super::own_secrets::NoInstallation;
use super::page::{Errand, Facts, Recorded, shifted};
use super::verdict::{Missing, missing, told};
use crate::job::api::names::ADAPTER_OPENSANDBOX;
use crate::job::api::resources::ResourceRequirements;
use crate::job::api::spec::JobSpec;
use crate::job::machine::{Ending, Execution, after};
use crate::job::measure::{Group, Step};
use crate::job::reason::Unobserved;

/// How much longer than its deadline a sandbox lives.
const MARGIN: Duration = Duration::from_secs(600);
/// A life that is shorter than wanted by that much is renewed.
const SLACK: SignedDuration = SignedDuration::from_secs(60);
/// How long a short command of ours may run.
pub const SHORT: Duration = Duration::from_secs(10);
/// More than any state takes.
const STATE_BYTES_MAX: usize = 4_096;

/// Why an errand came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// It is another's now.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The API server.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The installation has no identity.
    #[error(transparent)]
    Installation(#[from] NoInstallation),
    /// The OpenSandbox server, or a sandbox.
    #[error(transparent)]
    Server(#[from] Error),
    /// Something else, in words.
    #[error("{0}")]
    Other(&'static str),
}

impl From<InvalidWord> for Trouble {
    fn from(_: InvalidWord) -> Self {
        Self::Other("the command can't be passed on") // acceptance refuses all that
    }
}

/// In fixed words: what the API server says may be of a Secret.
fn said_by_api_server(error: &CallError) -> &'static str {
    match error {
        CallError::Refused { .. } => "the API server refuses what the controller needs",
        _ => "the API server gave no answer",
    }
}

/// See the module.
#[derive(Clone)]
pub struct Task {
    pub(super) shared: Arc<Shared>,
    pub key: ObjectKey,
    pub uid: Arc<str>,
    pub created: Timestamp,
    pub spec: Arc<JobSpec>,
    /// What was on record when this was begun.
    pub recorded: Recorded,
    /// The end is on record, and proven.
    pub ended: bool,
    /// The Job is older than our term.
    pub inherited: bool,
    pub term: u64,
    pub endpoint: Arc<Endpoint>,
    pub resources: ResourceRequirements,
}

impl Task {
    pub fn now(&self) -> Timestamp {
        self.shared.tools.time.now()
    }

    /// Before each send that changes something.
    pub fn sending(&self) -> Result<Sending, NotLeader> {
        self.shared.tools.fence.begin(self.term)
    }

    /// An answer was lost that may have had its effect.
    pub fn tell_lost(&self, error: &Error) {
        if error.certainty() == Certainty::Ambiguous {
            self.shared.tools.steps.stepped(&Group::of_adapter(ADAPTER_OPENSANDBOX), &Step::AnswerLost);
        }
    }

    /// Does it, and writes down what came of it.
    pub async fn carry_out(&self, errand: Errand, facts: &mut Facts) {
        self.endpoint.refresh_key(&self.shared.tools).await;
        facts.due = None;
        // What the status has meanwhile counts.
        if self.recorded.is_some() {
            let command = self.recorded.command.clone().or(facts.known.command.take());
            facts.known = Recorded { command, sandbox: self.recorded.sandbox.clone().or(facts.known.sandbox.take()), ..self.recorded.clone() };
        }
        let done = match errand {
            Errand::Look => self.look(facts).await,
            Errand::Acquire => self.acquire(facts).await,
            Errand::Start => self.start(facts).await,
            Errand::Stop => self.stop(facts).await,
            Errand::Remove => self.remove_all(facts).await,
        };
        self.conclude(done, facts);
    }

    /// Reads what decides an end, past everything that is remembered.
    pub async fn confirm(&self, facts: &mut Facts) {
        self.endpoint.refresh_key(&self.shared.tools).await;
        facts.due = None;
        let done = match (self.recorded.is_some(), self.ended) {
            (true, false) => self.look(facts).await,
            (true, true) => self.look_for_remains(facts).await,
            (false, _) if self.inherited || facts.creates > 0 => self.look_for_any(facts).await,
            (false, _) => Ok(()),
        };
        self.conclude(done, facts);
    }

    fn conclude(&self, done: Result<(), Trouble>, facts: &mut Facts) {
        let why = match done {
            Ok(()) => return facts.answered(),
            Err(Trouble::NotLeader(_)) => return,
            Err(Trouble::Server(error)) => {
                self.tell_lost(&error);
                self.endpoint.words(&error)
            }
            Err(Trouble::Call(error)) => said_by_api_server(&error).to_owned(),
            Err(Trouble::Installation(error)) => error.to_string(),
            Err(Trouble::Other(why)) => why.to_owned(),
        };
        tracing::debug!(why, "an errand came to nothing");
        facts.failed(why, self.now());
    }

    // The sandbox.

    /// The sandbox of that id as it is; None if the server says that there is none.
    pub async fn get(&self, id: &str, facts: &mut Facts) -> Result<Option<Sandbox>, Error> {
        let key = self.endpoint.key_generation();
        match self.endpoint.note(self.endpoint.client.get(id).await) {
            Ok(sandbox) => {
                let sandbox = self.endpoint.by_our_clock(sandbox, self.now());
                facts.is_shown(&sandbox, key);
                Ok(Some(sandbox))
            }
            Err(error) if error.is_sandbox_not_found() => {
                facts.is_missed(key);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The sandboxes of this Job, the oldest first, by their ids where times are the same.
    pub async fn list(&self) -> Result<Vec<Sandbox>, Trouble> {
        let installation = self.shared.installation().await?;
        let told = self.endpoint.note(self.endpoint.client.list(&of_job(&installation.id, &self.uid)).await)?;
        let mut found: Vec<Sandbox> = told.into_iter().map(|sandbox| self.endpoint.by_our_clock(sandbox, self.now())).collect();
        found.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(found)
    }

    /// The execd of the sandbox of that id. One that is known by another key would be spoken to with that one: it is asked for anew.
    pub async fn execd(&self, id: &str, facts: &mut Facts) -> Result<Execd, Trouble> {
        let key = self.endpoint.key_generation();
        if let Some((execd, _)) = facts.execd.as_ref().filter(|(_, by)| *by == key) {
            return Ok(execd.clone());
        }
        let token = self.shared.installation().await?.token(&self.uid);
        let execd = self.endpoint.note(self.endpoint.client.execd(id, self.endpoint.access(), Some(token)).await)?;
        facts.execd = Some((execd.clone(), key));
        Ok(execd)
    }

    /// The lock of this Job in the recorded instance.
    pub fn fence(&self, instance: &str) -> Result<Fence, InvalidWord> {
        Fence::new(FENCE_FOLDER, &self.uid, instance)
    }

    /// Runs one of the lock's texts and reads the state that it prints.
    pub async fn lock(&self, execd: &Execd, text: String) -> Result<Lock, Trouble> {
        let command = Command { text, kill_after: Some(SHORT), ..Command::default() };
        let output = execd.run(&command, STATE_BYTES_MAX).await?;
        Lock::parse(&output.stdout).ok_or(Trouble::Other("the sandbox does not tell the state of its process"))
    }

    /// There is no sandbox of that id, [`get`](Self::get) has found. Whether that is to be believed, and what it means.
    pub fn missing(&self, id: &str, facts: &mut Facts) {
        let now = self.now();
        let first = *facts.missing_since.get_or_insert(now);
        let is_over = facts.lives_until.is_some_and(|until| now > until);
        let current = self.endpoint.key_generation();
        let is_ours = facts.missed_by == Some(current) && facts.has_shown(id, current);
        match missing(is_ours, is_over, first, now) {
            Missing::Doubted => {
                let message = "the server says that there is no such sandbox, and has not shown it to us by the key that it has from us now".to_owned();
                facts.execution = Execution::Unknown { reason: Unobserved::SandboxVanished, message };
                facts.due = Some(after(now, Duration::from_secs(15)));
            }
            Missing::Until(gone) => {
                facts.execution = Execution::Unreachable { failures: 0, since: first, message: "the server says that there is no such sandbox".to_owned() };
                facts.due = Some(gone);
            }
            Missing::Gone => {
                facts.removed = true;
                let what = if is_over { "its time to live is over" } else { "somebody removed it" };
                self.end_gone(facts, &format!("the sandbox is gone ({what}), and the exit code of the process is not known"));
            }
        }
    }

    /// The sandbox is not there any more, for certain: nothing of it runs.
    pub fn end_gone(&self, facts: &mut Facts, why: &str) {
        if matches!(facts.execution, Execution::Ended(_)) {
            return; // how it ended was known before
        }
        let ending = match (facts.refused.clone(), facts.stopped) {
            (Some((failure, message)), _) => Ending::NeverStarted { failure, message },
            (None, Some((code, oom))) => Ending::Stopped { code: Some(code), started: facts.started, message: told(code, oom) },
            (None, None) => Ending::Stopped { code: None, started: facts.started, message: why.to_owned() },
        };
        facts.execution = Execution::Ended(ending);
    }

    // Its life.

    /// Until when the sandbox must live.
    fn life_wanted(&self, facts: &Facts, now: Timestamp) -> Timestamp {
        match self.spec.active_deadline_seconds {
            Some(seconds) => {
                let from = facts.started.map_or(now, |started| started.at);
                after(from, Duration::from_secs(seconds.unsigned_abs()) + MARGIN)
            }
            None => after(now, self.endpoint.spans.lease),
        }
    }

    /// The longest life that it can have been given by now.
    pub fn life_at_most(&self, now: Timestamp) -> Timestamp {
        shifted(after(now, self.life().max(self.endpoint.spans.orphan)), SLACK)
    }

    /// How long it is to live from its birth, if nothing renews it.
    pub fn life(&self) -> Duration {
        self.spec.active_deadline_seconds.map_or(self.endpoint.spans.lease, |seconds| Duration::from_secs(seconds.unsigned_abs()) + MARGIN)
    }

    /// Renews it where that is due; a third of a lease before it ends, or what a deadline asks.
    pub async fn renew(&self, id: &str, facts: &mut Facts) -> Result<(), Trouble> {
        let now = self.now();
        let wanted = self.life_wanted(facts, now);
        let enough = match self.spec.active_deadline_seconds {
            Some(_) => shifted(wanted, -SLACK),
            None => after(now, self.endpoint.spans.lease * 2 / 3),
        };
        // Of a sandbox that we have not been told of nobody knows how long it lives.
        let known = facts.sandbox.as_ref().and(facts.lives_until);
        if known.is_some_and(|until| until >= enough) {
            return Ok(());
        }
        let ahead = self.endpoint.ahead(now);
        let _sending = self.sending()?;
        match self.endpoint.note(self.endpoint.client.renew(id, shifted(wanted, ahead)).await) {
            Ok(until) => {
                facts.lives_until = Some(shifted(until, -ahead));
                Ok(())
            }
            Err(error) => {
                if error.may_have_had_effect() {
                    // It may live as long as it was to, and how long it does is to be asked.
                    facts.lives_until = facts.lives_until.max(Some(wanted));
                    facts.sandbox = None;
                }
                Err(error.into())
            }
        }
    }

    /// Whether the sandbox is one that still may run something.
    pub fn is_alive(sandbox: &Sandbox) -> bool {
        !matches!(sandbox.status.state, State::Terminated | State::Failed | State::Stopping)
    }
}
