//! Mode Entrypoint: the sandbox is the process, so its create is the start. It is posted once, by the process whose reservation is on record (ADR 0064).

use std::time::Duration;

use berth_opensandbox::Sandbox;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::build;
use super::names::{ENV_EXECD_TOKEN, META_INSTANCE};
use super::own_secrets;
use super::page::{Facts, retry};
use super::task::{Task, Trouble};
use super::verdict::{Posted, of_entrypoint, posted};
use crate::job::machine::{Attempt, Ending, Execution, after};
use crate::job::reason::Unobserved;

/// An instance that nobody has recorded for that long is looked at again.
const UNRECORDED: Duration = Duration::from_secs(30);
/// How soon it is seen whether a server that is not ready has come to be.
const READY_AGAIN: Duration = Duration::from_secs(5);

impl Task {
    /// Nothing is made before it is on record that it will be.
    pub(super) fn reserve(&self, facts: &mut Facts) -> Result<(), Trouble> {
        if facts.reserved.is_none() {
            facts.reserved = Some(own_secrets::nonce().ok_or(Trouble::Other("no randomness"))?);
        }
        facts.known.instance = facts.reserved.clone();
        facts.execution = Execution::Idle;
        facts.attempt = None;
        facts.due = Some(after(self.now(), UNRECORDED));
        Ok(())
    }

    /// The sandbox that is the process.
    pub(super) async fn look_at_entrypoint(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let Some(instance) = self.recorded.instance.clone() else { return Ok(()) };
        let now = self.now();
        let Some(id) = facts.known.sandbox.clone() else {
            if facts.removed {
                return Ok(()); // nothing was made of it, nor will be: how that came about is known
            }
            return match facts.may_post(&self.recorded) {
                true => self.look_before_post(facts).await,
                false => self.look_for_instance(&instance, facts).await,
            };
        };
        match self.get(&id, facts).await? {
            Some(sandbox) => {
                let execution = of_entrypoint(&sandbox, now);
                if facts.removing && matches!(execution, Execution::Ended(Ending::Exited { .. })) {
                    return self.show_remains("the process was stopped, and its sandbox is still there", facts);
                }
                if let Execution::Running(started) = execution {
                    facts.started.get_or_insert(started);
                    self.renew(&id, facts).await?;
                }
                self.look_beside(execution, facts).await
            }
            None if facts.removed => self.see_gone(&id, facts).await,
            None => {
                self.missing(&id, facts);
                Ok(())
            }
        }
    }

    /// Ours to post: when what it waits for may be there, the state machine decides.
    async fn look_before_post(&self, facts: &mut Facts) -> Result<(), Trouble> {
        if matches!(facts.execution, Execution::Starting(Some(_))) {
            if !self.endpoint.is_ready() {
                facts.due = Some(after(self.now(), READY_AGAIN));
                return Ok(());
            }
            if self.environment(facts).await?.is_none() {
                return Ok(());
            }
        }
        self.show(Execution::Idle, facts)
    }

    /// It may have been posted, by us or by a leader before.
    async fn look_for_instance(&self, instance: &str, facts: &mut Facts) -> Result<(), Trouble> {
        let now = self.now();
        let key = self.endpoint.key_generation();
        if let Some(sandbox) = self.list().await?.into_iter().find(|sandbox| is_of(sandbox, instance)) {
            facts.known.sandbox = Some(sandbox.id.clone());
            facts.refused = None;
            facts.is_shown(&sandbox, key);
            return self.show(of_entrypoint(&sandbox, now), facts);
        }
        if facts.refused.is_some() {
            // The server has said that it did not start, and has nothing of it.
            facts.removed = true;
            self.end_gone(facts, "");
            return Ok(());
        }
        let longest = self.life_at_most(now);
        let window = SignedDuration::try_from(self.endpoint.spans.create_window).unwrap_or(SignedDuration::MAX);
        let latest = facts.lives_until.get_or_insert(longest).checked_add(window).unwrap_or(Timestamp::MAX);
        if now > latest {
            // Whatever was posted has had its time, and the server, which would remove it when it starts, does not have it.
            facts.removed = true;
            let ending = Ending::Stopped { code: None, started: None, message: "no sandbox of it appeared while one could have lived".to_owned() };
            facts.execution = Execution::Ended(ending);
            return Ok(());
        }
        let message = "the create that starts the process had no answer; its sandbox is looked for".to_owned();
        facts.execution = Execution::Unknown { reason: Unobserved::StartUnconfirmed, message };
        facts.due = Some(after(now, Duration::from_secs(5)));
        Ok(())
    }

    /// Posts the sandbox that is the execution.
    pub(super) async fn post_entrypoint(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let Some(instance) = self.recorded.instance.clone() else { return Ok(()) };
        if !facts.may_post(&self.recorded) {
            facts.reserved = None; // another's is on record: this one never counts
            return self.look(facts).await;
        }
        let Some(mut env) = self.environment(facts).await? else { return Ok(()) };
        env.insert(ENV_EXECD_TOKEN.to_owned(), self.shared.installation().await?.token(&self.uid));
        let Some(parts) = self.parts(facts, env, Some(&instance), self.life()).await? else {
            // Nothing was sent, and nothing will be.
            if let Some(Attempt::Refused { failure, message }) = facts.attempt.take() {
                facts.refused = Some((failure, message));
                self.never_posted(facts, "");
            }
            return Ok(());
        };
        let argv = self.spec.task.command.iter().chain(&self.spec.task.args).cloned().collect();
        let request = build::sandbox(parts, argv);
        facts.reserved = None;
        let key = self.endpoint.key_generation();
        let error = match self.post(&request, facts).await? {
            Ok(sandbox) => {
                facts.known.sandbox = Some(sandbox.id.clone());
                facts.execution = of_entrypoint(&sandbox, self.now());
                facts.is_shown(&sandbox, key);
                return Ok(());
            }
            Err(error) => error,
        };
        match posted(&error, self.endpoint.words(&error), &self.spec.task.image, self.endpoint.spans.create_window) {
            Posted::Never(failure, message) => {
                facts.refused = Some((failure, message));
                self.never_posted(facts, "");
                Ok(())
            }
            Posted::NotYet(wait) => {
                facts.reserved = Some(instance);
                facts.refusals += 1;
                facts.execution = Execution::Starting(Some(wait));
                let asked = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
                facts.due = Some(after(self.now(), asked.max(Duration::from_secs(retry(facts.refusals)))));
                Ok(())
            }
            Posted::Broken(failure, message) => {
                facts.refused = Some((failure, message));
                self.look_for_instance(&instance, facts).await
            }
            Posted::Lost => {
                self.tell_lost(&error);
                let window = self.endpoint.spans.create_window;
                facts.ambiguous_until = Some(after(self.now(), window));
                facts.lives_until = Some(after(self.life_at_most(self.now()), window));
                self.look_for_instance(&instance, facts).await
            }
        }
    }

    /// What is on record is ours, was not posted, and never will be.
    pub(super) fn never_posted(&self, facts: &mut Facts, why: &str) {
        facts.reserved = None;
        facts.removed = true;
        self.end_gone(facts, why);
    }
}

/// The sandbox of that reservation.
fn is_of(sandbox: &Sandbox, instance: &str) -> bool {
    sandbox.metadata.get(META_INSTANCE).is_some_and(|of| of == instance)
}
