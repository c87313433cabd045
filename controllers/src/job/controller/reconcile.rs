//! One Job, one look: observe, decide, write the status, take the step.

use std::time::Duration;

use berth_api::conditions::find;
use berth_api::duration;
use berth_runtime::ObjectKey;
use berth_runtime::apiclient::{CallError, get_uncached};
use berth_runtime::events::EventType;
use berth_runtime::informer::Stored;
use berth_runtime::workqueue::Next;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::jiff::Timestamp;
use kube::Api;

use super::{Controller, SeenJob};
use crate::job::adapter::{Adapter, Extent, Freshness, NOTE_DUPLICATE, OperationError, Seen, Target, missing_again};
use crate::job::api::class::MIN_LOSS_CONFIRMATION_AGE;
use crate::job::api::names::POLICY_BACKEND_LOST;
use crate::job::api::names::condition::BACKEND_OBSERVED;
use crate::job::api::spec::{DesiredState, JobSpec};
use crate::job::api::status::{JobStatus, Reference};
use crate::job::machine::{Action, Attempt, Decision, Observation, State, decide};
use crate::job::measure::{Group, Step};
use crate::job::resolve::{Admission, Catalog as _, Resolution, recall};
use berth_runtime::lock;

/// What was seen, by whom, and when to look again by itself.
struct Look<'a> {
    observation: Observation,
    /// The adapter of the Job's class; of a Job without one the adapter that has something of it. None if there is nothing anywhere.
    adapter: Option<&'a dyn Adapter>,
    look_again: Option<Timestamp>,
}

impl Look<'_> {
    fn admission(&self) -> Option<&Admission> {
        match &self.observation.resolution {
            Resolution::Admitted(admission) => Some(admission),
            _ => None,
        }
    }
}

impl Controller {
    pub(super) async fn reconcile(&self, key: ObjectKey) -> Next {
        let Ok(term) = self.context.fence.admitted() else { return Next::Done };
        match self.step(&key, term).await {
            Ok(next) => next,
            Err(OperationError::NotLeader(_)) => Next::Done,
            Err(OperationError::Call(error)) if error.is_conflict() || error.is_not_found() => {
                self.context.steps.stepped(&Group::default(), &Step::Conflict);
                tracing::debug!(%error, "the Job, or what belongs to it, changed meanwhile");
                Next::Retry
            }
            Err(error) => {
                tracing::warn!(%error, "not reconciled");
                Next::Retry
            }
        }
    }

    async fn step(&self, key: &ObjectKey, term: u64) -> Result<Next, OperationError> {
        let stored = self.context.informers.jobs.get(key);
        self.sweep(key, stored.as_ref().map(|stored| &*stored.uid), term).await?;
        let Some(mut stored) = stored else {
            lock(&self.outdated).remove(key);
            lock(&self.attempts).remove(key);
            return Ok(Next::Done);
        };
        if self.is_outdated(&stored) {
            return Ok(Next::Done);
        }
        let mut look = self.look(&stored, Freshness::Cached, term).await?;
        let mut decision = self.decide(&stored, &look);
        if decision.action == Action::Confirm {
            match self.read_again(&stored).await? {
                Some(fresh) => stored = fresh,
                None => return Ok(Next::Done),
            }
            look = self.look(&stored, Freshness::Quorum, term).await?;
            decision = self.decide(&stored, &look);
        }
        self.carry_out(&stored, &look, &decision, term).await
    }

    fn decide(&self, stored: &Stored<SeenJob>, look: &Look<'_>) -> Decision {
        decide(stored.object.facts(), &look.observation, self.context.time.now())
    }

    /// What the class says, and what the backend shows.
    async fn look(&self, stored: &Stored<SeenJob>, freshness: Freshness, term: u64) -> Result<Look<'_>, OperationError> {
        let job = &stored.object;
        let mut resolution = self.resolution(stored);
        let mut ask_again = None;
        if let (Some(adapter), Some(target)) = (self.adapter_of(stored, &resolution), unaccepted(stored, &resolution, term))
            && let Some((reason, message)) = adapter.check(target).await?
        {
            resolution = Resolution::Refused { reason, message };
            ask_again = Some(missing_again(target.created, self.context.time.now()));
        }
        let admission = match &resolution {
            Resolution::Admitted(admission) => Some(&**admission),
            _ => None,
        };
        let recorded = recorded(job);
        let target = target(stored, recorded, term);
        let (adapter, seen) = match self.adapter_of(stored, &resolution) {
            Some(adapter) => (Some(adapter), adapter.observe(target, admission, freshness).await?),
            None if resolution == Resolution::Foreign => (None, Seen::default()),
            None => self.search(target, freshness).await?,
        };
        for (reason, note) in seen.notes {
            if reason == NOTE_DUPLICATE {
                self.stepped(stored, &Step::StartedTwice);
            }
            self.publish(stored, EventType::Warning, reason, note);
        }
        let tried = lock(&self.attempts).get(&stored.key).filter(|(uid, _)| *uid == stored.uid).map(|(_, attempt)| attempt.clone());
        let (loss_guarded, loss_min_age) = self.loss(stored).await?;
        let observation = Observation {
            attempt: seen.attempt.or(tried.filter(|_| recorded.is_empty())),
            backend: seen.backend,
            confirmed: freshness == Freshness::Quorum,
            loss_guarded,
            loss_min_age,
            resolution,
        };
        Ok(Look { observation, adapter, look_again: seen.look_again.into_iter().chain(ask_again).min() })
    }

    /// The adapter of the class that the Job was accepted under, or would be.
    fn adapter_of(&self, stored: &Stored<SeenJob>, resolution: &Resolution) -> Option<&dyn Adapter> {
        let resolved = stored.object.status().and_then(|status| status.resolved_job_class.as_ref());
        match (resolved, resolution) {
            (Some(class), _) => self.adapters.of(&class.controller_name),
            (None, Resolution::Admitted(admission)) => self.adapters.of(&admission.class.controller_name),
            (None, _) => None,
        }
    }

    /// A Job that no class allows may still have something that was made while one did: asks every adapter.
    async fn search<'a>(&'a self, job: Target<'_>, freshness: Freshness) -> Result<(Option<&'a dyn Adapter>, Seen), OperationError> {
        for adapter in self.adapters.all() {
            let seen = adapter.observe(job, None, freshness).await?;
            if seen != Seen::default() {
                return Ok((Some(adapter), seen));
            }
        }
        Ok((None, Seen::default()))
    }

    fn resolution(&self, stored: &Stored<SeenJob>) -> Resolution {
        let job = &stored.object;
        let Some(class) = job.status().and_then(|status| status.resolved_job_class.as_ref()) else {
            return self.known.resolve(&job.job.spec, &stored.key.namespace, &self.adapters.controllers());
        };
        let Some(adapter) = self.adapters.of(&class.controller_name) else { return Resolution::Foreign };
        let recalled: Result<Option<Admission>, String> = job.status().map_or(Ok(None), |status| recall(status, &self.known));
        match recalled {
            Ok(Some(admission)) => Resolution::Admitted(Box::new(admission)),
            Ok(None) => Resolution::Foreign,
            Err(message) => Resolution::Gone { adapter: adapter.name(), message },
        }
    }

    /// Whether a confirmation of this Job's loss would be guarded, and how old the uncertainty must be. Asked only where there is one.
    async fn loss(&self, stored: &Stored<SeenJob>) -> Result<(bool, Duration), CallError> {
        let job = &stored.object;
        let facts = job.facts();
        let read = |text: &str| duration::parse_go(text).unwrap_or(Duration::from_secs(900));
        if !facts.loss_confirmed || State::of(false, facts.spec, facts.status).is_terminal() {
            return Ok((false, read(MIN_LOSS_CONFIRMATION_AGE)));
        }
        let resolved = job.status().and_then(|status| status.resolved_job_class.as_ref());
        let class = resolved.and_then(|resolved| self.known.class(&resolved.name).filter(|class| class.metadata.uid.as_ref() == Some(&resolved.uid)));
        let age = class.map_or_else(|| read(MIN_LOSS_CONFIRMATION_AGE), |class| read(&class.spec.min_loss_confirmation_age));
        let guarded = self.is_loss_guarded().await?;
        if !guarded {
            let note = format!("the confirmation of a loss is not heeded: ValidatingAdmissionPolicy {POLICY_BACKEND_LOST} is not in force");
            self.publish(stored, EventType::Warning, "BackendLossPolicyMissing", note);
        }
        Ok((guarded, age))
    }

    async fn is_loss_guarded(&self) -> Result<bool, CallError> {
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.context.client.clone());
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(self.context.client.clone());
        let (policy, binding) = futures::try_join!(get_uncached(&policies, POLICY_BACKEND_LOST), get_uncached(&bindings, POLICY_BACKEND_LOST))?;
        let denies = binding.is_some_and(|binding| {
            let spec = binding.spec;
            spec.policy_name == POLICY_BACKEND_LOST && spec.validation_actions.iter().any(|action| action == "Deny")
        });
        Ok(policy.is_some() && denies)
    }

    /// Removes what is left of Jobs of that name that are gone.
    async fn sweep(&self, key: &ObjectKey, live: Option<&str>, term: u64) -> Result<(), OperationError> {
        let orphans = self.adapters.all().flat_map(|adapter| adapter.orphans(key, live).into_iter().map(move |uid| (adapter, uid)));
        for (adapter, uid) in orphans.collect::<Vec<_>>() {
            // A cache proves no absence.
            let now = get_uncached(&self.jobs_in(&key.namespace), &key.name).await?;
            if now.is_some_and(|job| job.metadata.uid.as_deref() == Some(&uid)) {
                continue;
            }
            tracing::info!(uid, "removing what is left of a Job that is gone");
            let gone = Target { key, uid: &uid, created: Timestamp::UNIX_EPOCH, spec: &JobSpec::default(), recorded: &[], ended: true, term };
            adapter.delete(gone, Extent::Orphaned).await?;
            self.context.steps.stepped(&Group::of_adapter(adapter.name()), &Step::Swept);
        }
        Ok(())
    }

    async fn carry_out(&self, stored: &Stored<SeenJob>, look: &Look<'_>, decision: &Decision, term: u64) -> Result<Next, OperationError> {
        let version = match &decision.status {
            Some(status) => self.write_status(stored, status, term).await?,
            None => stored.resource_version.clone(),
        };
        let wake = self.wake(decision.wake, look.look_again);
        let written = decision.status.as_ref().and_then(|status| status.execution.as_ref());
        let references = written.map_or_else(|| recorded(&stored.object), |execution| &execution.references);
        let target = target(stored, references, term);
        match (decision.action, look.adapter) {
            (Action::Nothing | Action::Confirm, _) => {}
            (Action::AddFinalizer, _) => self.set_finalizer(stored, &version, true, term).await?,
            (Action::DropConfirmation, _) => self.drop_confirmation(stored, &version, term).await?,
            (Action::RemoveFinalizer, _) => self.set_finalizer(stored, &version, false, term).await?,
            (Action::Expire, _) => self.expire(stored, &version, term).await?,
            (_, None) => {} // nothing of it was seen anywhere
            (Action::Acquire | Action::Start, Some(adapter)) => {
                let made = adapter.ensure(target, look.admission()).await?;
                return Ok(self.attempted(stored, made, wake));
            }
            (Action::Stop, Some(adapter)) => adapter.cancel(target).await?,
            (Action::Sweep, Some(adapter)) => adapter.delete(target, Extent::Strays).await?,
            (Action::Settle, Some(adapter)) => adapter.delete(target, Extent::Held).await?,
            (Action::Delete, Some(adapter)) => adapter.delete(target, Extent::Everything).await?,
        }
        Ok(wake)
    }

    /// Remembers what came of an attempt to make an execution; when to look again.
    fn attempted(&self, stored: &Stored<SeenJob>, made: Option<Attempt>, wake: Next) -> Next {
        let mut attempts = lock(&self.attempts);
        match made {
            None => {
                attempts.remove(&stored.key);
                wake
            }
            Some(attempt) => {
                // Told at once if it is the end; else tried again with a backoff.
                let next = if matches!(attempt, Attempt::Refused { .. }) { Next::After(Duration::ZERO) } else { Next::Retry };
                attempts.insert(stored.key.clone(), (stored.uid.clone(), attempt));
                next
            }
        }
    }

    /// When to look again, though nothing changes.
    fn wake(&self, first: Option<Timestamp>, second: Option<Timestamp>) -> Next {
        /// Times are whole seconds: a moment early is no use.
        const LEAST: Duration = Duration::from_millis(20);
        /// A look too many, once a month.
        const MOST: Duration = Duration::from_secs(30 * 86_400);
        let Some(wake) = first.into_iter().chain(second).min() else { return Next::Done };
        let left = wake.duration_since(self.context.time.now());
        Next::After(Duration::try_from(left).unwrap_or_default().clamp(LEAST, MOST))
    }
}

/// The references on record.
fn recorded(job: &SeenJob) -> &[Reference] {
    job.status().and_then(|status| status.execution.as_ref()).map_or(&[], |execution| &execution.references)
}

fn target<'a>(stored: &'a Stored<SeenJob>, recorded: &'a [Reference], term: u64) -> Target<'a> {
    let status = stored.object.status();
    let unproven = |status: &JobStatus| find(&status.conditions, BACKEND_OBSERVED).is_some_and(|condition| condition.status == "False");
    let ended = status.is_some_and(|status| status.completion_time.is_some() && !unproven(status));
    let job = &stored.object.job;
    let created = stored.object.facts().created;
    Target { key: &stored.key, uid: &stored.uid, created, spec: &job.spec, recorded, ended, term }
}

/// The Job, if it is about to be accepted.
fn unaccepted<'a>(stored: &'a Stored<SeenJob>, resolution: &Resolution, term: u64) -> Option<Target<'a>> {
    let job = &stored.object.job;
    let is_new = job.metadata.deletion_timestamp.is_none() && job.spec.desired_state == DesiredState::Running && stored.object.waits();
    (is_new && matches!(resolution, Resolution::Admitted(_))).then(|| target(stored, &[], term))
}
