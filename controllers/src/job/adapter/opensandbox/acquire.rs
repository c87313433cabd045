//! Ensure: an idle sandbox with a nonce planted in it, and then the one start.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_opensandbox::fence::{State as Lock, make_folder};
use berth_opensandbox::{Certainty, Command, CreateSandbox, Error, Failure as CallFailure, Outcome, Sandbox, State};
use secrecy::SecretString;
use tokio::time::Instant;

use super::build::{self, Parts};
use super::names::{ENV_EXECD_TOKEN, metadata};
use super::own_secrets;
use super::page::{Facts, retry};
use super::secrets::{self, Unresolved};
use super::task::{SHORT, Task, Trouble};
use super::verdict::{Planted, is_start_refused, is_told, planted, refused};
use crate::job::adapter::missing_again;
use crate::job::machine::{Attempt, Execution, GiveUp, Wait, after};
use crate::job::reason::{Failure, NotScheduled, Unfinished};

/// How long the execd of a new sandbox may take.
const READY: Duration = Duration::from_secs(30);
/// An idle sandbox that nobody has recorded for that long is looked at again.
const UNRECORDED: Duration = Duration::from_secs(30);

impl Task {
    /// An idle sandbox, found or made, in which the nonce is planted; what is to go on record is in the facts then.
    pub(super) async fn acquire(&self, facts: &mut Facts) -> Result<(), Trouble> {
        if self.endpoint.is_entrypoint() {
            return self.reserve(facts);
        }
        let now = self.now();
        let key = self.endpoint.key_generation();
        let mut found = None;
        if self.inherited || facts.creates > 0 || facts.known.sandbox.is_some() {
            let all = self.list().await?;
            facts.look_for_strays |= all.len() > 1;
            facts.sandbox = None;
            // Whoever looks takes the same one, so that of two leaders both record it.
            found = all.into_iter().find(Self::is_alive);
        }
        let sandbox = match found {
            Some(sandbox) => sandbox,
            None if facts.may_appear(now) => {
                facts.attempt = Some(unanswered(facts));
                facts.due = Some(after(now, Duration::from_secs(retry(facts.creates.max(1)))));
                return Ok(());
            }
            None => match self.create(facts).await? {
                Some(sandbox) => sandbox,
                None => return Ok(()),
            },
        };
        facts.ambiguous_until = None;
        facts.is_shown(&sandbox, key);
        self.plant(&sandbox, facts).await
    }

    /// Makes a sandbox; None if there is none, and the facts tell why.
    async fn create(&self, facts: &mut Facts) -> Result<Option<Sandbox>, Trouble> {
        let most = u32::try_from(self.endpoint.spec.max_create_attempts).unwrap_or(1);
        if facts.creates >= most {
            let message = format!("{most} creates came to nothing: {}", last_words(facts));
            facts.attempt = Some(Attempt::Refused { failure: Failure::BackendUnavailable, message });
            return Ok(None);
        }
        let token = self.shared.installation().await?.token(&self.uid);
        let env = BTreeMap::from([(ENV_EXECD_TOKEN.to_owned(), token)]);
        let Some(parts) = self.parts(facts, env, None, self.endpoint.spans.orphan).await? else { return Ok(None) };
        let sent = self.post(&build::idle(parts), facts).await?;
        match sent {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(error) => {
                self.create_failed(&error, facts);
                Ok(None)
            }
        }
    }

    /// What the sandbox is made of; None if that can't be had, and the facts tell why.
    pub(super) async fn parts(
        &self,
        facts: &mut Facts,
        env: BTreeMap<String, SecretString>,
        instance: Option<&str>,
        life: Duration,
    ) -> Result<Option<Parts<'_>>, Trouble> {
        let installation = self.shared.installation().await?;
        let auth = match secrets::image_auth(&self.shared.tools.client, &self.key.namespace, &self.spec.task).await? {
            Ok(auth) => auth,
            Err(attempt) => {
                facts.attempt = Some(attempt);
                return Ok(None);
            }
        };
        Ok(Some(Parts {
            image: &self.spec.task.image,
            auth,
            metadata: metadata(&installation.id, &self.key, &self.uid, facts.creates + 1, instance),
            parameters: &self.endpoint.spec,
            resources: &self.resources,
            env,
            life,
        }))
    }

    /// Sends a create, when one of the places for creates is free. One that was not sent does not count.
    pub(super) async fn post(&self, request: &CreateSandbox, facts: &mut Facts) -> Result<Result<Sandbox, Error>, Trouble> {
        let _place = self.endpoint.creates.acquire().await.map_err(|_| Trouble::Other("this process stops"))?;
        let _sending = self.sending()?;
        facts.creates += 1;
        let sent = self.endpoint.note(self.endpoint.client.create(request).await);
        if matches!(&sent, Err(Error { failure: CallFailure::NotSent(_), .. })) {
            facts.creates -= 1;
        }
        Ok(sent.map(|sandbox| self.endpoint.by_our_clock(sandbox, self.now())))
    }

    fn create_failed(&self, error: &Error, facts: &mut Facts) {
        let now = self.now();
        let window = self.endpoint.spans.create_window;
        let is_told = is_told(error);
        if error.certainty() == Certainty::Ambiguous && !is_told {
            self.tell_lost(error);
            facts.ambiguous_until = Some(after(now, window));
            facts.attempt = Some(unanswered(facts));
            facts.due = Some(after(now, Duration::from_secs(1)));
            return;
        }
        facts.refusals += 1;
        facts.attempt = Some(refused(error, self.endpoint.words(error), &self.spec.task.image, window));
        // What the server refuses for now is asked again until the class's patience is over, however often that is.
        // What was not sent has not been counted.
        let was_sent = !matches!(error.failure, CallFailure::NotSent(_));
        if matches!(facts.attempt, Some(Attempt::Later { .. })) && !is_told && was_sent {
            facts.creates = facts.creates.saturating_sub(1);
        }
        let asked = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
        facts.due = Some(after(now, asked.max(Duration::from_secs(retry(facts.refusals)))));
    }

    /// Waits for the sandbox's execd and leaves a nonce, unless another is there.
    async fn plant(&self, sandbox: &Sandbox, facts: &mut Facts) -> Result<(), Trouble> {
        facts.execd = None;
        let execd = self.execd(&sandbox.id, facts).await?;
        let limit = Instant::now() + READY;
        while let Err(error) = execd.ping().await {
            if Instant::now() >= limit {
                return self.never_ready(sandbox, facts, error).await;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let nonce = own_secrets::nonce().ok_or(Trouble::Other("no randomness"))?;
        let text = self.fence(&nonce)?.plant()?;
        let sent = {
            let _sending = self.sending()?;
            execd.run(&Command { text, kill_after: Some(SHORT), ..Command::default() }, 1_024).await
        };
        let became = match sent {
            Ok(output) if output.outcome == Outcome::Exited(0) && !output.stdout.trim().is_empty() => {
                facts.known.sandbox = Some(sandbox.id.clone());
                facts.known.instance = Some(output.stdout.trim().to_owned());
                facts.known.command = None;
                facts.execution = Execution::Idle;
                facts.attempt = None;
                facts.refusals = 0;
                facts.waited_until = Some(self.now());
                facts.due = Some(after(self.now(), UNRECORDED));
                return Ok(());
            }
            Ok(output) => Ok(output.outcome),
            Err(error) => Err(error),
        };
        // What went wrong is told by how the sandbox is now.
        let state = self.get(&sandbox.id, facts).await?.map(|sandbox| sandbox.status.state);
        let grace = self.endpoint.spans.create_window;
        facts.attempt = Some(match planted(&became, state) {
            Planted::Never(failure, message) => Attempt::Refused { failure, message: message.to_owned() },
            Planted::NotYet(message) => {
                let give_up = Some(GiveUp { failure: Failure::StartFailed, after: grace });
                facts.refusals += 1;
                facts.due = Some(after(self.now(), Duration::from_secs(retry(facts.refusals))));
                Attempt::Later { reason: NotScheduled::BackendUnavailable, message: message.to_owned(), give_up }
            }
            Planted::Unknown => return became.map(drop).map_err(Trouble::from),
        });
        Ok(())
    }

    /// Its execd does not come: it is removed, and that was an attempt.
    async fn never_ready(&self, sandbox: &Sandbox, facts: &mut Facts, error: Error) -> Result<(), Trouble> {
        let state = self.get(&sandbox.id, facts).await?.map(|sandbox| sandbox.status.state);
        if matches!(state, Some(State::Paused | State::Pausing | State::Resuming)) {
            return Err(error.into());
        }
        {
            let _sending = self.sending()?;
            self.endpoint.note(self.endpoint.client.delete(&sandbox.id).await)?;
        }
        facts.sandbox = None;
        facts.known = super::page::Recorded::default();
        let message = if matches!(state, Some(State::Terminated | State::Failed)) {
            "a sandbox was made, and it ended before its execd answered, as one does whose image has no shell".to_owned()
        } else {
            format!("a sandbox was made, and its execd does not answer: {error}")
        };
        let give_up = Some(GiveUp { failure: Failure::StartFailed, after: self.endpoint.spans.create_window });
        facts.attempt = Some(Attempt::Later { reason: NotScheduled::BackendUnavailable, message, give_up });
        facts.due = Some(after(self.now(), Duration::from_secs(retry(facts.creates))));
        Ok(())
    }

    /// The one start of a recorded sandbox.
    pub(super) async fn start(&self, facts: &mut Facts) -> Result<(), Trouble> {
        if self.endpoint.is_entrypoint() {
            return self.post_entrypoint(facts).await;
        }
        let (Some(id), Some(instance)) = (self.recorded.sandbox.clone(), self.recorded.instance.clone()) else { return Ok(()) };
        if self.recorded.command.is_some() {
            return Ok(()); // it was started
        }
        if let Err(Trouble::Server(error)) = self.renew(&id, facts).await {
            if error.is_sandbox_not_found() {
                if self.get(&id, facts).await?.is_none() {
                    self.missing(&id, facts);
                }
                return Ok(());
            }
            return Err(error.into());
        }
        let Some(envs) = self.environment(facts).await? else { return Ok(()) };
        let argv: Vec<String> = self.spec.task.command.iter().chain(&self.spec.task.args).cloned().collect();
        let fence = self.fence(&instance)?;
        let command = Command { text: fence.start(&argv)?, cwd: self.spec.task.working_dir.clone(), envs, kill_after: None };
        let execd = self.execd(&id, facts).await?;
        if let Some(folder) = &self.spec.task.working_dir {
            // If it can't be made, the start is refused, and says so.
            let text = make_folder(folder)?;
            execd.run(&Command { text, kill_after: Some(SHORT), ..Command::default() }, 1_024).await?;
        }
        let started = {
            let _sending = self.sending()?;
            execd.start(&command).await
        };
        match started {
            Ok(id) => facts.known.command = Some(id),
            Err(error) if is_start_refused(&error) => {
                // An earlier one may have won: the lock tells, and none wins any more.
                let why = match &self.spec.task.working_dir {
                    Some(_) => "the sandbox refused the start: workingDir is not in the image and can't be made, or command and environment are too long",
                    None => "the sandbox refused the start: it can't run its shell, or command and environment are too long",
                };
                let _sending = self.sending()?;
                if self.lock(&execd, fence.seal()?).await? == Lock::Sealed {
                    facts.refused = Some((Failure::StartFailed, why.to_owned()));
                }
            }
            Err(error) => {
                facts.execd = None;
                return Err(error.into());
            }
        }
        self.look(facts).await
    }

    /// The task's environment; None while something is missing of it, and the facts tell what.
    pub(super) async fn environment(&self, facts: &mut Facts) -> Result<Option<BTreeMap<String, SecretString>>, Trouble> {
        match secrets::environment(&self.shared.tools.client, &self.key.namespace, &self.spec.task.env).await {
            Ok(env) => Ok(Some(env)),
            Err(Unresolved::Call(error)) => Err(error.into()),
            Err(Unresolved::Missing((_, message))) => {
                facts.execution = Execution::Starting(Some(Wait { reason: Unfinished::WaitingForReference, message, give_up: None }));
                // A sandbox that waits with it is renewed at each look.
                let now = self.now();
                facts.due = Some(missing_again(self.created, now).min(after(now, self.endpoint.spans.lease / 4)));
                Ok(None)
            }
        }
    }
}

fn unanswered(facts: &Facts) -> Attempt {
    let until = facts.ambiguous_until.map(|until| until.to_string()).unwrap_or_default();
    let message = format!("a create had no answer; until {until} its sandbox is looked for, and none is made");
    Attempt::Later { reason: NotScheduled::BackendUnavailable, message, give_up: None }
}

fn last_words(facts: &Facts) -> &str {
    match &facts.attempt {
        Some(Attempt::Later { message, .. } | Attempt::Refused { message, .. } | Attempt::Ambiguous { message }) => message,
        None => "",
    }
}
