//! The world of these tests. Its API server applies the offline rules to every status write, and compare-and-set by resourceVersion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, from_value, json, to_value};

use super::super::*;
use crate::job::api::names::{CONTROLLER_KUBERNETES, condition, reference};
use crate::job::api::resources::ResourceRequirements;
use crate::job::api::spec::JobSpec;
use crate::job::api::status::{JobStatus, Reference, ResolvedJobClass};
use crate::job::api::{JOB, spec::DesiredState};
use crate::job::reason::{Failure, NotAccepted, NotScheduled, Unfinished, Unobserved};
use crate::job::resolve::{Admission, Parameters, Resolution};

/// Where the process of a Pod is.
#[derive(Clone, Debug, PartialEq)]
pub enum Process {
    NotBegun(Option<Wait>),
    Runs { since: Timestamp },
    Done(Ending),
}

#[derive(Clone, Debug)]
pub struct SimPod {
    pub id: u32,
    pub gated: bool,
    pub stopping: bool,
    pub process: Process,
    pub lost: bool,
    pub held: bool,
    pub made: Timestamp,
}

/// What goes wrong in a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The process dies before it writes anything.
    BeforeWrite,
    /// It dies after the status was written, before the action.
    BeforeAction,
    /// It dies after the action took effect: nobody hears the answer.
    AfterAction,
}

/// A decision that its maker was slow to carry out.
#[derive(Clone, Debug, PartialEq)]
pub struct Late {
    version: u64,
    pub decision: Decision,
    /// What it was made of.
    pub seen: Observation,
    /// When it was made; clocks may go back since.
    at: Timestamp,
}

pub struct World {
    pub now: Timestamp,
    pub spec: JobSpec,
    pub generation: i64,
    pub created: Timestamp,
    pub deleting: bool,
    pub finalizer: bool,
    pub loss_confirmed: bool,
    pub loss_guarded: bool,
    pub gone: bool,
    pub status: Option<JobStatus>,
    pub version: u64,
    pub resolution: Resolution,
    pub attempt: Option<Attempt>,
    pub unreachable: Option<(u32, Timestamp)>,
    /// The Job controller of the backend can't make a Pod.
    pub pods_refused: bool,
    pub native: bool,
    pub pods: Vec<SimPod>,
    /// A process whose Pod object was removed by force, and which goes on.
    pub ghost: bool,
    next_id: u32,
    /// How often a process was begun.
    pub begun: u32,
    pub actions: BTreeMap<Action, u32>,
    pub writes: u32,
    /// Every state that was seen, changes alone.
    pub states: Vec<State>,
    /// Nothing was proven when it ended: an administrator said so.
    pub ended_by_word: bool,
}

pub fn admission() -> Admission {
    Admission {
        class: ResolvedJobClass { name: "c".into(), uid: "c-uid".into(), controller_name: CONTROLLER_KUBERNETES.into(), parameters_ref: None },
        resources: ResourceRequirements::default(),
        parameters: Parameters::Kubernetes(Arc::default()),
    }
}

pub fn admitted() -> Resolution {
    Resolution::Admitted(Box::new(admission()))
}

pub fn refused(reason: NotAccepted) -> Resolution {
    Resolution::Refused { reason, message: format!("{} it is", reason.as_str()) }
}

impl World {
    /// A new Job with `extra` in its spec, a class that takes it, and an empty backend.
    pub fn new(extra: &Value) -> Self {
        let mut spec = json!({"task": {"image": "i"}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let now: Timestamp = "2026-11-29T10:00:00Z".parse().unwrap();
        Self {
            now,
            spec: from_value(spec).unwrap(),
            generation: 1,
            created: now,
            deleting: false,
            finalizer: true,
            loss_confirmed: false,
            loss_guarded: true,
            gone: false,
            status: None,
            version: 1,
            resolution: admitted(),
            attempt: None,
            unreachable: None,
            pods_refused: false,
            native: false,
            pods: Vec::new(),
            ghost: false,
            next_id: 1,
            begun: 0,
            actions: BTreeMap::new(),
            writes: 0,
            states: vec![State::Resolving],
            ended_by_word: false,
        }
    }

    pub fn state(&self) -> State {
        State::of(self.deleting, &self.spec, self.status.as_ref())
    }

    /// Status and reason of a condition.
    pub fn condition(&self, kind: &str) -> Option<(String, String)> {
        let status = self.status.as_ref()?;
        berth_api::conditions::find(&status.conditions, kind).map(|condition| (condition.status.clone(), condition.reason.clone()))
    }

    pub fn succeeded(&self) -> (String, String) {
        self.condition(condition::SUCCEEDED).unwrap_or_default()
    }

    pub fn count(&self, action: Action) -> u32 {
        self.actions.get(&action).copied().unwrap_or_default()
    }

    pub fn exit_code(&self) -> Option<i32> {
        self.status.as_ref()?.result.as_ref()?.exit_code
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now = Timestamp::from_second(self.now.as_second() + seconds).unwrap();
    }

    fn recorded(&self) -> Option<u32> {
        self.status.as_ref()?.execution.as_ref()?.id(reference::POD)?.parse().ok()
    }

    pub fn own(&mut self) -> Option<&mut SimPod> {
        match self.recorded() {
            Some(id) => self.pods.iter_mut().find(|pod| pod.id == id),
            None => self.pods.iter_mut().find(|pod| !pod.stopping),
        }
    }

    /// What the adapter would see.
    pub fn backend(&mut self) -> Backend {
        let recorded = self.recorded();
        let unreachable = self.unreachable.filter(|_| recorded.is_some());
        let leftovers = self.native || !self.pods.is_empty();
        let strays = recorded.is_some_and(|id| self.pods.iter().any(|pod| pod.id != id));
        let (mut execution, references, stopping, held) = match self.own() {
            None => (Execution::Absent, Vec::new(), false, false),
            Some(pod) => {
                let execution = match &pod.process {
                    Process::Done(ending) if !pod.lost => Execution::Ended(ending.clone()),
                    _ if pod.gated && pod.stopping => {
                        Execution::Ended(Ending::Stopped { code: None, started: None, message: "deleted before it was started".into() })
                    }
                    _ if pod.gated => Execution::Idle,
                    _ if pod.lost => Execution::Unknown { reason: Unobserved::NodeLost, message: "the node is lost".into() },
                    Process::NotBegun(wait) => Execution::Starting(wait.clone()),
                    Process::Runs { since } => Execution::Running(Started { at: *since, earliest: pod.made }),
                    Process::Done(_) => unreachable!(),
                };
                let references =
                    vec![Reference { type_: reference::JOB.into(), id: "j".into() }, Reference { type_: reference::POD.into(), id: pod.id.to_string() }];
                (execution, references, pod.stopping, pod.held)
            }
        };
        if let Some((failures, since)) = unreachable {
            execution = Execution::Unreachable { failures, since, message: "no answer".into() };
        }
        Backend { execution, references, stopping, strays, leftovers, held }
    }

    pub fn look(&mut self, confirmed: bool) -> (Observation, u64) {
        // An accepted Job's resolution is recalled: what the class says now does not matter.
        let accepted = self.status.as_ref().is_some_and(|status| status.resolved_job_class.is_some());
        let resolution = match &self.resolution {
            Resolution::Refused { .. } if accepted => admitted(),
            other => other.clone(),
        };
        let attempt = match &self.attempt {
            None if self.pods_refused && self.native && self.pods.is_empty() && self.recorded().is_none() => Some(later(600)),
            // Nobody sends a request that starts a process for a Job that its class does not take.
            Some(Attempt::Ambiguous { .. }) if !accepted && !matches!(resolution, Resolution::Admitted(_)) => None,
            other => other.clone().filter(|_| self.recorded().is_none()),
        };
        let backend = self.backend();
        let observation = Observation { resolution, backend, attempt, confirmed, loss_guarded: self.loss_guarded, loss_min_age: Duration::from_secs(900) };
        (observation, self.version)
    }

    pub fn facts(&self) -> JobFacts<'_> {
        JobFacts {
            generation: self.generation,
            created: self.created,
            deleting: self.deleting,
            finalizer: self.finalizer,
            loss_confirmed: self.loss_confirmed,
            loss_confirmed_by: None,
            spec: &self.spec,
            status: self.status.as_ref(),
        }
    }

    /// Observes and decides; an action Confirm is carried out at once, by observing again.
    pub fn decide(&mut self) -> Late {
        let (seen, version) = self.look(false);
        let decision = decide(self.facts(), &seen, self.now);
        if decision.action != Action::Confirm {
            return Late { version, decision, seen, at: self.now };
        }
        assert_eq!(decision.status, None, "nothing irreversible rests on a cache");
        let (seen, version) = self.look(true);
        Late { version, decision: decide(self.facts(), &seen, self.now), seen, at: self.now }
    }

    /// One reconcile; true if it changed something.
    pub fn reconcile(&mut self, fault: Fault) -> bool {
        if self.gone {
            return false;
        }
        let late = self.decide();
        self.carry_out(&late, fault)
    }

    /// Carries out a decision, now or long after it was made.
    pub fn carry_out(&mut self, late: &Late, fault: Fault) -> bool {
        if fault == Fault::BeforeWrite || self.gone {
            return false;
        }
        let Late { version, decision, at, .. } = late;
        if let Some(wanted) = &decision.status {
            if *version != self.version {
                return false; // 409
            }
            self.store(wanted);
        }
        if fault == Fault::BeforeAction {
            return decision.status.is_some();
        }
        let version = if decision.status.is_some() { self.version } else { *version };
        let acted = self.act(decision.action, version, *at);
        acted || decision.status.is_some()
    }

    /// The API server's part: the rules, then the store.
    fn store(&mut self, wanted: &JobStatus) {
        let whole = |status: Option<&JobStatus>, world: &Self| {
            let mut whole = json!({"metadata": {"name": "j"}, "spec": to_value(&world.spec).unwrap()});
            if let Some(status) = status {
                whole["status"] = to_value(status).unwrap();
            }
            whole
        };
        let (old, new) = (whole(self.status.as_ref(), self), whole(Some(wanted), self));
        assert_eq!(JOB.validate_update(&new, &old), [], "{old}\n{new}");
        let was = self.state();
        self.status = Some(wanted.clone());
        self.version += 1;
        self.writes += 1;
        let is = self.state();
        assert!(allowed(was, is), "{was:?} to {is:?}");
        if was.is_terminal() || is.is_terminal() {
            assert!(was == is || !was.is_terminal(), "{was:?} to {is:?}");
        }
        if wanted.completion_time.is_some() && !new_end_is_old(&old) {
            self.ended_by_word = self.may_run();
            let lost = self.succeeded().1 == Failure::BackendLost.as_str() && self.loss_confirmed;
            assert!(!self.ended_by_word || lost, "an end is told while the process may run: {:?}", self.pods);
        }
        self.seen();
    }

    pub fn seen(&mut self) {
        if self.states.last() != Some(&self.state()) {
            self.states.push(self.state());
        }
    }

    /// Whether the process of this Job runs, or may come to run.
    pub fn may_run(&self) -> bool {
        let begun = |pod: &SimPod| !pod.gated && !matches!(pod.process, Process::Done(_));
        self.ghost || self.pods.iter().any(begun)
    }

    /// True if it had an effect.
    fn act(&mut self, action: Action, version: u64, decided: Timestamp) -> bool {
        *self.actions.entry(action).or_default() += 1;
        if matches!(action, Action::Acquire | Action::Start) && version == self.version {
            assert!(self.spec.desired_state != DesiredState::Cancelled && !self.deleting, "{action:?} after a cancel or a deletion was seen");
        }
        match action {
            Action::Nothing | Action::Confirm => false,
            Action::AddFinalizer => version == self.version && !std::mem::replace(&mut self.finalizer, true),
            Action::DropConfirmation => version == self.version && std::mem::replace(&mut self.loss_confirmed, false),
            Action::RemoveFinalizer => {
                if version != self.version {
                    return false;
                }
                assert!(!self.may_run(), "the finalizer goes while the process may run");
                assert!(!self.native && self.pods.is_empty(), "the finalizer goes before everything is removed");
                self.finalizer = false;
                self.gone = self.deleting;
                true
            }
            Action::Acquire => self.acquire(),
            Action::Start => {
                let now = self.now;
                let recorded = self.recorded();
                match self.pods.iter_mut().find(|pod| Some(pod.id) == recorded && pod.gated && !pod.stopping) {
                    None => false,
                    Some(pod) => {
                        (pod.gated, pod.made) = (false, now);
                        true
                    }
                }
            }
            Action::Stop => self.own().is_some_and(|pod| !std::mem::replace(&mut pod.stopping, true)),
            Action::Sweep => {
                let recorded = self.recorded();
                let before = self.pods.len();
                self.pods.retain(|pod| Some(pod.id) == recorded);
                before != self.pods.len()
            }
            Action::Settle => self.own().is_some_and(|pod| std::mem::replace(&mut pod.held, false)),
            Action::Delete => {
                // An adapter never removes what may run; a decision that comes late finds it running.
                if self.pods.iter().any(|pod| !pod.gated && !matches!(pod.process, Process::Done(_))) {
                    return false;
                }
                let had = self.native || !self.pods.is_empty();
                self.pods.clear();
                self.native = false;
                had
            }
            Action::Expire => {
                if version != self.version {
                    return false;
                }
                let status = self.status.as_ref().unwrap();
                let end = status.completion_time.as_ref().unwrap().0;
                let age = decided.as_second() - end.as_second();
                assert!(age >= i64::from(self.spec.ttl_seconds_after_finished.unwrap()), "deleted too early");
                self.delete();
                true
            }
        }
    }

    fn acquire(&mut self) -> bool {
        if self.attempt.is_some() {
            return false;
        }
        // A Pod that was stopped before it was started is replaced with its Job.
        let dead = self.recorded().is_none() && !self.pods.is_empty() && self.pods.iter().all(|pod| pod.stopping);
        if dead {
            self.pods.clear();
            self.native = false;
            return true;
        }
        let had = self.native;
        self.native = true;
        self.job_controller() || !had
    }

    /// The backend makes a Pod where one is missing; it is gated.
    pub fn job_controller(&mut self) -> bool {
        if !self.native || self.pods_refused || !self.pods.is_empty() {
            return false;
        }
        let pod = SimPod { id: self.next_id, gated: true, stopping: false, process: Process::NotBegun(None), lost: false, held: true, made: self.now };
        self.pods.push(pod);
        self.next_id += 1;
        true
    }

    /// The node goes on: a process begins, or one that was told to stop ends.
    pub fn node(&mut self) {
        let now = self.now;
        let mut begun = 0;
        for pod in self.pods.iter_mut().filter(|pod| !pod.gated) {
            match (&pod.process, pod.stopping) {
                (Process::NotBegun(None), false) => {
                    pod.process = Process::Runs { since: now };
                    begun += 1;
                }
                (Process::NotBegun(_), true) => {
                    pod.process = Process::Done(Ending::Stopped { code: None, started: None, message: "stopped before it began".into() });
                }
                (Process::Runs { since }, true) => {
                    let started = Some(Started { at: *since, earliest: pod.made });
                    pod.process = Process::Done(Ending::Stopped { code: Some(143), started, message: "stopped".into() });
                }
                _ => {}
            }
        }
        self.begun += begun;
    }

    /// The process ends by itself.
    pub fn exit(&mut self, code: i32) {
        for pod in &mut self.pods {
            if let Process::Runs { since } = pod.process {
                let started = Some(Started { at: since, earliest: pod.made });
                pod.process = Process::Done(Ending::Exited { code, oom: false, started, message: format!("exit code {code}") });
            }
        }
        self.ghost = false;
    }

    /// Somebody removes the Pod object by force, with its finalizers.
    pub fn vanish(&mut self) {
        self.ghost |= self.may_run();
        self.pods.clear();
        self.job_controller();
    }

    pub fn cancel(&mut self) {
        if self.spec.desired_state != DesiredState::Cancelled {
            self.spec.desired_state = DesiredState::Cancelled;
            self.generation += 1;
            self.version += 1;
            self.seen();
        }
    }

    pub fn delete(&mut self) {
        self.version += u64::from(!self.deleting);
        self.deleting = true;
        self.gone = !self.finalizer;
        self.seen();
    }

    pub fn set_ttl(&mut self, seconds: Option<i32>) {
        if self.spec.ttl_seconds_after_finished != seconds {
            self.spec.ttl_seconds_after_finished = seconds;
            self.generation += 1;
            self.version += 1;
        }
    }

    /// Reconciles until nothing changes any more.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            if !self.reconcile(Fault::None) {
                return;
            }
        }
        panic!("it does not come to rest: {:?} {:?}", self.status, self.actions);
    }

    /// As [`settle`](Self::settle), with the node at work in between; a process that it begins runs for long enough to be told of.
    pub fn run(&mut self) {
        for _ in 0..50 {
            let changed = self.reconcile(Fault::None);
            let (before, begun) = (self.pods.clone(), self.begun);
            self.node();
            if self.begun > begun {
                self.pass(2);
            }
            let same = before.iter().map(|pod| &pod.process).eq(self.pods.iter().map(|pod| &pod.process));
            if !changed && same {
                return;
            }
        }
        panic!("it does not come to rest: {:?} {:?}", self.status, self.actions);
    }
}

fn new_end_is_old(old: &Value) -> bool {
    old.pointer("/status/completionTime").is_some()
}

/// Not now, and after `seconds` no more.
pub fn later(seconds: u64) -> Attempt {
    let give_up = GiveUp { failure: Failure::PodRejected, after: Duration::from_secs(seconds) };
    Attempt::Later { reason: NotScheduled::BackendRefuses, message: "exceeded quota".into(), give_up: Some(give_up) }
}

/// The image can't be pulled.
pub fn no_image() -> Wait {
    let give_up = GiveUp { failure: Failure::ImagePullFailed, after: Duration::from_secs(300) };
    Wait { reason: Unfinished::WaitingForImage, message: "not found".into(), give_up: Some(give_up) }
}

/// A Secret is missing; it is waited for.
pub fn no_secret() -> Wait {
    Wait { reason: Unfinished::WaitingForReference, message: "secret \"late\" not found".into(), give_up: None }
}
