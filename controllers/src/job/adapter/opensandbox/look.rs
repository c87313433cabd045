//! Observe: what the recorded sandbox shows now.

use std::time::Duration;

use berth_opensandbox::fence::State as Lock;
use berth_opensandbox::{Code, CommandStatus, Execd};
use k8s_openapi::jiff::Timestamp;

use super::page::{Facts, shifted};
use super::task::{Task, Trouble};
use super::verdict::{Shown, of_lock, of_sandbox, with_code};
use crate::job::api::spec::DesiredState;
use crate::job::machine::{Execution, Started, after};
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
        if facts.sandbox.is_none() || facts.missing_since.is_some() || !facts.has_shown(&id, self.endpoint.key_generation()) {
            // For its expiry, and for whether this key is shown it at all.
            match self.get(&id, facts).await? {
                None => {
                    self.missing(&id, facts);
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
                    self.missing(&id, facts);
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
            let now = self.now();
            self.began(shifted(begun, -self.endpoint.ahead(now)).min(now), facts);
        }
        if status.as_ref().is_some_and(|status| status.running) {
            facts.unlocked_since = None;
            self.renew(id, facts).await?;
            let running = facts.started.map_or(Execution::Starting(None), Execution::Running);
            return self.look_beside(running, facts).await;
        }
        let mut lock = with_code(self.lock(&execd, self.fence(instance)?.query()?).await?, status.as_ref());
        let is_begun = matches!(lock, Lock::NotStarted | Lock::Starting) && (facts.known.command.is_some() || lock == Lock::Starting);
        if !is_begun {
            facts.unlocked_since = None;
        } else {
            // A start was taken, and the lock does not show it: that may be a matter of moments, or there was no room for it in /tmp.
            let now = self.now();
            let since = *facts.unlocked_since.get_or_insert(now);
            let has_ended = status.is_some();
            if now < after(since, UNLOCKED) && !(has_ended && lock == Lock::NotStarted) {
                return self.show(Execution::Starting(None), facts);
            }
            let _sending = self.sending()?;
            lock = self.lock(&execd, self.fence(instance)?.seal()?).await?;
            if lock == Lock::Sealed || has_ended && matches!(lock, Lock::NotStarted | Lock::Starting) {
                facts.refused = Some((Failure::StartFailed, "the start was taken, and could not make its lock in /tmp".to_owned()));
            }
            if matches!(lock, Lock::NotStarted | Lock::Starting) {
                // There is no room to keep it from starting either.
                return self.show_remains("the start came to nothing", facts);
            }
        }
        match lock {
            Lock::NotStarted if matches!(facts.execution, Execution::Starting(Some(_))) => {
                self.renew(id, facts).await?;
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
            Lock::Sealed => {
                // By a stop that was decided; else since the start was refused, to us or to whoever led before.
                if self.spec.desired_state != DesiredState::Cancelled {
                    facts.refused.get_or_insert_with(|| (Failure::StartFailed, "the sandbox refused the start".to_owned()));
                }
                self.end_gone(facts, "it was kept from starting");
                return Ok(());
            }
            Lock::Exited { code, stopped: true, oom } => facts.stopped = Some((code, oom)),
            _ => {}
        }
        match of_lock(lock, facts.started) {
            Shown::As(execution) => self.look_beside(execution, facts).await,
            Shown::Remains(why) => self.show_remains(why, facts),
        }
    }

    /// It is over, but for what may be left of it: that must go before the end is certain.
    pub(super) fn show_remains(&self, why: &'static str, facts: &mut Facts) -> Result<(), Trouble> {
        facts.remains = Some(why);
        facts.strays = true;
        self.show(Execution::Starting(None), facts)
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
    pub(super) async fn look_beside(&self, execution: Execution, facts: &mut Facts) -> Result<(), Trouble> {
        if facts.look_for_strays {
            let all = self.list().await?;
            facts.strays = all.iter().any(|sandbox| Some(&sandbox.id) != facts.known.sandbox.as_ref());
            facts.look_for_strays = false;
        }
        self.show(execution, facts)
    }

    pub(super) fn show(&self, execution: Execution, facts: &mut Facts) -> Result<(), Trouble> {
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
    pub(super) async fn see_gone(&self, id: &str, facts: &mut Facts) -> Result<(), Trouble> {
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
}
