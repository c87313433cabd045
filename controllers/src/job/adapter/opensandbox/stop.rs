//! Cancel and Delete: the process is kept from starting or asked to end, and then the sandbox goes, which is the only proof.

use std::time::Duration;

use berth_opensandbox::fence::{Signal, State as Lock};
use berth_opensandbox::{Error, State};
use tokio::time::Instant;

use super::page::Facts;
use super::task::{Task, Trouble};
use super::verdict::{Shown, of_entrypoint, of_lock};
use crate::job::api::names::ADAPTER_OPENSANDBOX;
use crate::job::machine::{Ending, Execution};
use crate::job::measure::{Group, Step};

/// How long a process may take to end by itself once it is asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How long a removed sandbox may still be shown.
const REMOVAL: Duration = Duration::from_secs(10);

impl Task {
    /// Stops the execution. Its code is read where it has one, before the sandbox goes.
    pub(super) async fn stop(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let known = facts.known.sandbox.clone().or_else(|| self.recorded.sandbox.clone());
        let Some(id) = known else {
            if self.endpoint.is_entrypoint() && self.recorded.instance.is_some() {
                if facts.may_post(&self.recorded) {
                    self.never_posted(facts, "it was not started");
                    return Ok(());
                }
                return self.look(facts).await;
            }
            return self.remove_all(facts).await;
        };
        let Some(sandbox) = self.get(&id, facts).await? else {
            return self.is_missing(&id, facts);
        };
        let paused = matches!(sandbox.status.state, State::Paused | State::Pausing | State::Resuming);
        if self.endpoint.is_entrypoint() {
            let execution = of_entrypoint(&sandbox, self.now());
            if matches!(execution, Execution::Ended(Ending::Exited { .. })) && !facts.removing {
                facts.execution = execution; // it had ended before
                return Ok(());
            }
        } else if !paused && Self::is_alive(&sandbox) && self.recorded.instance.is_some() {
            match self.stop_inside(&id, facts).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Trouble::NotLeader(error)) => return Err(error.into()),
                // Its execd does not answer; the server does.
                Err(error) => tracing::debug!(%error, "the process can't be asked to end; its sandbox is removed"),
            }
        }
        self.remove(&id, facts).await?;
        self.is_missing(&id, facts)
    }

    fn is_missing(&self, id: &str, facts: &mut Facts) -> Result<(), Trouble> {
        if facts.removed {
            self.end_gone(facts, "the sandbox was removed");
        } else {
            self.missing(id, facts);
        }
        Ok(())
    }

    /// True if the process had ended by itself before.
    async fn stop_inside(&self, id: &str, facts: &mut Facts) -> Result<bool, Trouble> {
        let Some(instance) = self.recorded.instance.as_deref() else { return Ok(false) };
        let fence = self.fence(instance)?;
        let execd = self.execd(id, facts).await?;
        let mut lock = {
            let _sending = self.sending()?;
            self.lock(&execd, fence.stop(Signal::Term)?).await?
        };
        let limit = Instant::now() + GRACE;
        while matches!(lock, Lock::Running | Lock::Starting) && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(250)).await;
            lock = self.lock(&execd, fence.query()?).await?;
        }
        match lock {
            Lock::Running | Lock::Starting => {
                let _sending = self.sending()?;
                self.lock(&execd, fence.stop(Signal::Kill)?).await?;
            }
            Lock::Exited { code, stopped: true, oom } => facts.stopped = Some((code, oom)),
            Lock::Exited { stopped: false, .. } => {
                if let Shown::As(execution) = of_lock(lock, facts.started) {
                    facts.execution = execution;
                    return Ok(true);
                }
            }
            _ => {}
        }
        Ok(false)
    }

    /// Removes a sandbox, and sees that it is gone. Of the one on record that is proof only if the server has taken the DELETE: another tenant's key
    /// finds nothing to remove.
    async fn remove(&self, id: &str, facts: &mut Facts) -> Result<(), Trouble> {
        let key = self.endpoint.key_generation();
        let was_taken = {
            let _sending = self.sending()?;
            let sent = self.endpoint.note(self.endpoint.client.delete(id).await);
            let may_stop = sent.as_ref().map_or_else(Error::may_have_had_effect, |was_taken| *was_taken);
            facts.removing |= may_stop && facts.known.sandbox.as_deref() == Some(id);
            sent?
        };
        let limit = Instant::now() + REMOVAL;
        loop {
            match self.endpoint.note(self.endpoint.client.get(id).await) {
                Err(error) if error.is_sandbox_not_found() => break,
                Err(error) => return Err(error.into()),
                Ok(_) if Instant::now() >= limit => return Err(Trouble::Other("the sandbox is being removed")),
                Ok(_) => tokio::time::sleep(Duration::from_millis(250)).await,
            }
        }
        if facts.known.sandbox.as_deref() == Some(id) {
            facts.is_missed(key);
            facts.removed = self.ended || was_taken && key == self.endpoint.key_generation();
            facts.execd = None;
        }
        if facts.sandbox.as_ref().is_some_and(|sandbox| sandbox.id == id) {
            facts.sandbox = None;
        }
        Ok(())
    }

    /// Removes what must go: all that is not on record; what is, if it is spent, or if the end is on record.
    pub(super) async fn remove_all(&self, facts: &mut Facts) -> Result<(), Trouble> {
        let kept = self.recorded.sandbox.as_ref().filter(|_| !self.ended && facts.remains.is_none());
        // The one on record may not be listed any more under what it was made with.
        let on_record = self.recorded.sandbox.clone().filter(|_| kept.is_none() && !facts.removed);
        let listed = self.list().await?.into_iter().map(|sandbox| sandbox.id);
        let mut all: Vec<String> = listed.chain(on_record).filter(|id| Some(id) != kept).collect();
        all.sort_unstable();
        all.dedup();
        for id in all {
            self.remove(&id, facts).await?;
            if self.recorded.sandbox.as_ref().is_some_and(|own| *own != id) {
                self.shared.tools.steps.stepped(&Group::of_adapter(ADAPTER_OPENSANDBOX), &Step::DoubleRemoved);
            }
        }
        if let (Some(why), Some(id)) = (facts.remains, &self.recorded.sandbox) {
            if !facts.removed {
                self.missing(id, facts);
                return Ok(());
            }
            facts.remains = None;
            self.end_gone(facts, why);
        }
        facts.strays = false;
        if self.recorded.sandbox.is_none() {
            facts.sandbox = None;
            facts.known.sandbox = None;
        }
        if facts.may_appear(self.now()) {
            facts.due = facts.ambiguous_until;
        }
        Ok(())
    }
}
