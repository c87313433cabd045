//! Observe: what the recorded sandbox shows now.

use std::time::Duration;

use berth_opensandbox::fence::State as Lock;
use berth_opensandbox::{Code, CommandStatus, Execd};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::page::Facts;
use super::task::{Task, Trouble};
use super::verdict::{Shown, of_entrypoint, of_lock, of_sandbox};
use crate::job::machine::{Ending, Execution, Started, after};
use crate::job::reason::{Failure, Unobserved};

/// A start that was taken, and that neither execd nor the lock knows of after that long, came to nothing.
const UNLOCKED: Duration = Duration::from_secs(30);
/// Between two looks at a process: a tenth of how long it has run, within these bounds.
const LOOKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

impl Task {
    /// Asks the sandbox on record.
    pub(super) async fn look(&self, facts: &mut Facts) -> Result<(), Trouble> {
        if self.endpoint.is_entrypoint() {
            return self.look_at_entrypoint(facts).await;
        }
        let (Some(id), Some(instance)) = (self.recorded.sandbox.clone(), self.recorded.instance.clone()) else { return Ok(()) };
        if facts.removed {
            return self.see_gone(&id, facts).await;
        }
        if facts.sandbox.is_none() || facts.missing_since.is_some() {
            // For its expiry, and for whether this key is shown it at all.
            match self.get(&id, facts).await? {
                None => {
                    self.missing(facts);
                    return Ok(());
                }
                Some(sandbox) => {
                    if let Some(execution) = of_sandbox(&sandbox, facts.started) {
                        return self.show(execution, facts);
                    }
                }
            }
        }
        match self.look_inside(&id, &instance, facts).await {
            Err(Trouble::Server(error)) => {
                // Whether that is execd's trouble or the sandbox's, the server tells.
                facts.execd = None;
                let Some(sandbox) = self.get(&id, facts).await? else {
                    self.missing(facts);
                    return Ok(());
                };
                if let Some(execution) = of_sandbox(&sandbox, facts.started) {
                    return self.show(execution, facts);
                }
                if error.code() == Some(Code::ExecdUnauthorized) {
                    let message = "the sandbox does not take our token: the Secret of the installation is another than when it was made".to_owned();
                    return self.show(Execution::Unknown { reason: Unobserved::BackendUnreachable, message }, facts);
                }
                Err(error.into())
            }
            done => done,
        }
    }

    async fn look_inside(&self, id: &str, instance: &str, facts: &mut Facts) -> Result<(), Trouble> {
        let execd = self.execd(id, facts).await?;
        let status = self.command(&execd, facts).await?;
        if let Some(begun) = status.as_ref().and_then(|status| status.started_at) {
            self.began(begun, facts);
        }
        if status.as_ref().is_some_and(|status| status.running) {
            facts.unlocked_since = None;
            self.renew(id, facts).await?;
            let running = facts.started.map_or(Execution::Starting(None), Execution::Running);
            return self.look_beside(running, facts).await;
        }
        let lock = self.lock(&execd, self.fence(instance)?.query()?).await?;
        match lock {
            Lock::NotStarted if facts.known.command.is_some() => {
                // A start was taken. Either it has ended without the lock, or nobody knows of it, which may be a matter of moments.
                let now = self.now();
                let since = *facts.unlocked_since.get_or_insert(now);
                if status.is_none() && now < after(since, UNLOCKED) {
                    return self.show(Execution::Starting(None), facts);
                }
                facts.refused = Some((Failure::StartFailed, "the start was taken, and could not make its lock in /tmp".to_owned()));
                facts.remains = Some("the start came to nothing");
                facts.strays = true;
                return self.show(Execution::Starting(None), facts);
            }
            Lock::NotStarted if matches!(facts.execution, Execution::Starting(Some(_))) => {
                // What it waited for may be there now; the start is the state machine's to decide.
                if self.environment(facts).await?.is_none() {
                    return Ok(());
                }
                facts.waited_until = Some(self.now());
            }
            Lock::NotStarted => facts.waited_until = Some(self.now()),
            Lock::Running => {
                let now = self.now();
                self.began(now, facts);
                self.renew(id, facts).await?;
            }
            Lock::Sealed if facts.refused.is_some() => {
                self.end_gone(facts, "");
                return Ok(());
            }
            Lock::Exited { code, stopped: true, oom } => facts.stopped = Some((code, oom)),
            _ => {}
        }
        match of_lock(lock, facts.started) {
            Shown::As(execution) => self.look_beside(execution, facts).await,
            Shown::Remains(why) => {
                facts.remains = Some(why);
                facts.strays = true;
                self.show(Execution::Starting(None), facts)
            }
        }
    }

    /// The command on record; None if there is none, or execd has forgotten it.
    async fn command(&self, execd: &Execd, facts: &Facts) -> Result<Option<CommandStatus>, Trouble> {
        let Some(id) = &facts.known.command else { return Ok(None) };
        match execd.status(id).await {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.is_command_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// When the process began, by what was told first.
    fn began(&self, at: Timestamp, facts: &mut Facts) {
        let earliest = facts.waited_until.or(facts.sandbox.as_ref().map(|sandbox| sandbox.created_at)).unwrap_or(at);
        facts.started.get_or_insert(Started { at, earliest });
    }

    /// Whether there are others, where that may be.
    async fn look_beside(&self, execution: Execution, facts: &mut Facts) -> Result<(), Trouble> {
        if facts.look_for_strays {
            let all = self.list().await?;
            facts.strays = all.iter().any(|sandbox| Some(&sandbox.id) != self.recorded.sandbox.as_ref());
            facts.look_for_strays = false;
        }
        self.show(execution, facts)
    }

    fn show(&self, execution: Execution, facts: &mut Facts) -> Result<(), Trouble> {
        let now = self.now();
        let age = facts.started.and_then(|started| Duration::try_from(now.duration_since(started.at)).ok()).unwrap_or_default();
        let (least, most) = LOOKS;
        facts.due = match &execution {
            Execution::Ended(_) => None,
            _ => Some(after(now, (age / 10).clamp(least, most))),
        };
        facts.execution = execution;
        Ok(())
    }

    /// We removed it: whether it is gone.
    async fn see_gone(&self, id: &str, facts: &mut Facts) -> Result<(), Trouble> {
        if self.get(id, facts).await?.is_some() {
            facts.removed = false;
            return self.show(facts.execution.clone(), facts);
        }
        self.end_gone(facts, "the sandbox was removed before the exit code of its process was known");
        Ok(())
    }

    /// The end is on record and proven: whether the sandbox is still there.
    pub(super) async fn look_for_remains(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let Some(id) = self.recorded.sandbox.clone() else { return self.look_for_any(facts).await };
        if self.get(&id, facts).await?.is_none() {
            facts.sandbox = None;
            facts.removed = true;
        }
        Ok(())
    }

    /// Nothing is on record: whether there is something all the same.
    pub(super) async fn look_for_any(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let all = self.list().await?;
        facts.strays = all.len() > 1;
        facts.sandbox = all.into_iter().next();
        Ok(())
    }

    /// Mode Entrypoint: the sandbox is the process.
    async fn look_at_entrypoint(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let Some(instance) = self.recorded.instance.clone() else { return Ok(()) };
        let now = self.now();
        let Some(id) = facts.known.sandbox.clone() else {
            if facts.reserved {
                if matches!(facts.execution, Execution::Starting(Some(_))) && self.environment(facts).await?.is_none() {
                    return Ok(());
                }
                return self.show(Execution::Idle, facts);
            }
            // It may have been posted, by us or by a leader before.
            if let Some(sandbox) = self.list().await?.into_iter().find(|sandbox| Self::is_of(sandbox, &instance)) {
                facts.known.sandbox = Some(sandbox.id.clone());
                self.saw(&sandbox, facts);
                return self.show(of_entrypoint(&sandbox, now), facts);
            }
            let latest = facts.lives_until.unwrap_or(Timestamp::MAX).checked_add(window(self.endpoint.spans.create_window)).unwrap_or(Timestamp::MAX);
            if now > latest {
                // Whatever was posted has had its time, and the server, which would remove it when it starts, does not have it.
                facts.removed = true;
                let ending = Ending::Stopped { code: None, started: None, message: "no sandbox of it appeared while one could have lived".to_owned() };
                facts.execution = Execution::Ended(ending);
                return Ok(());
            }
            self.unconfirmed(facts);
            return Ok(());
        };
        match self.get(&id, facts).await? {
            Some(sandbox) => {
                let execution = of_entrypoint(&sandbox, now);
                if let Execution::Running(started) = execution {
                    facts.started.get_or_insert(started);
                    self.renew(&id, facts).await?;
                }
                self.look_beside(execution, facts).await
            }
            None if facts.removed => self.see_gone(&id, facts).await,
            None => {
                self.missing(facts);
                Ok(())
            }
        }
    }
}

fn window(window: Duration) -> SignedDuration {
    SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX)
}
