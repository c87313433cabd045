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
use crate::job::adapter::{Adapter as _, Extent, Freshness, NOTE_DUPLICATE, OperationError, Target};
use crate::job::api::class::MIN_LOSS_CONFIRMATION_AGE;
use crate::job::api::names::condition::BACKEND_OBSERVED;
use crate::job::api::names::{CONTROLLER_KUBERNETES, POLICY_BACKEND_LOST};
use crate::job::api::spec::JobSpec;
use crate::job::api::status::{JobStatus, Reference};
use crate::job::machine::{Action, Attempt, Decision, Observation, State, decide};
use crate::job::measure::{Group, Step};
use crate::job::resolve::{Admission, Catalog as _, Resolution, recall};
use berth_runtime::lock;

/// The controllerNames that this process answers to.
pub(super) const OURS: &[&str] = &[CONTROLLER_KUBERNETES];

/// What was seen, and when to look again by itself.
struct Look {
    observation: Observation,
    look_again: Option<Timestamp>,
}

impl Look {
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

    fn decide(&self, stored: &Stored<SeenJob>, look: &Look) -> Decision {
        decide(stored.object.facts(), &look.observation, self.context.time.now())
    }

    /// What the class says, and what the backend shows.
    async fn look(&self, stored: &Stored<SeenJob>, freshness: Freshness, term: u64) -> Result<Look, OperationError> {
        let job = &stored.object;
        let resolution = self.resolution(stored);
        let admission = match &resolution {
            Resolution::Admitted(admission) => Some(&**admission),
            _ => None,
        };
        let recorded = recorded(job);
        let seen = match resolution {
            Resolution::Foreign => crate::job::adapter::Seen::default(),
            _ => self.adapter.observe(target(stored, recorded, term), admission, freshness).await?,
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
        Ok(Look { observation, look_again: seen.look_again })
    }

    fn resolution(&self, stored: &Stored<SeenJob>) -> Resolution {
        let job = &stored.object;
        let Some(class) = job.status().and_then(|status| status.resolved_job_class.as_ref()) else {
            return self.known.resolve(&job.job.spec, &stored.key.namespace, OURS);
        };
        if !OURS.contains(&class.controller_name.as_str()) {
            return Resolution::Foreign;
        }
        let recalled: Result<Option<Admission>, String> = job.status().map_or(Ok(None), |status| recall(status, &self.known));
        match recalled {
            Ok(Some(admission)) => Resolution::Admitted(Box::new(admission)),
            Ok(None) => Resolution::Foreign,
            Err(message) => Resolution::Gone { adapter: self.adapter.name(), message },
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
        for uid in self.adapter.orphans(key, live) {
            // A cache proves no absence.
            let now = get_uncached(&self.jobs_in(&key.namespace), &key.name).await?;
            if now.is_some_and(|job| job.metadata.uid.as_deref() == Some(&uid)) {
                continue;
            }
            tracing::info!(uid, "removing what is left of a Job that is gone");
            let gone = Target { key, uid: &uid, spec: &JobSpec::default(), recorded: &[], ended: false, term };
            self.adapter.delete(gone, Extent::Orphaned).await?;
            self.context.steps.stepped(&Group::default(), &Step::Swept);
        }
        Ok(())
    }

    async fn carry_out(&self, stored: &Stored<SeenJob>, look: &Look, decision: &Decision, term: u64) -> Result<Next, OperationError> {
        let version = match &decision.status {
            Some(status) => self.write_status(stored, status, term).await?,
            None => stored.resource_version.clone(),
        };
        let wake = self.wake(decision.wake, look.look_again);
        let written = decision.status.as_ref().and_then(|status| status.execution.as_ref());
        let references = written.map_or_else(|| recorded(&stored.object), |execution| &execution.references);
        let target = target(stored, references, term);
        match decision.action {
            Action::Nothing | Action::Confirm => {}
            Action::AddFinalizer => self.set_finalizer(stored, &version, true, term).await?,
            Action::DropConfirmation => self.drop_confirmation(stored, &version, term).await?,
            Action::RemoveFinalizer => self.set_finalizer(stored, &version, false, term).await?,
            Action::Acquire | Action::Start => return self.ensure(stored, target, look, wake).await,
            Action::Stop => self.adapter.cancel(target).await?,
            Action::Sweep => self.adapter.delete(target, Extent::Strays).await?,
            Action::Settle => self.adapter.delete(target, Extent::Held).await?,
            Action::Delete => self.adapter.delete(target, Extent::Everything).await?,
            Action::Expire => self.expire(stored, &version, term).await?,
        }
        Ok(wake)
    }

    async fn ensure(&self, stored: &Stored<SeenJob>, target: Target<'_>, look: &Look, wake: Next) -> Result<Next, OperationError> {
        let made = self.adapter.ensure(target, look.admission()).await?;
        let mut attempts = lock(&self.attempts);
        Ok(match made {
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
        })
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
    Target { key: &stored.key, uid: &stored.uid, spec: &stored.object.job.spec, recorded, ended, term }
}
