//! Runs an election: one request at a time, a watch and a clock around the [machine](super::machine).

use super::config::{ElectionConfig, InvalidElection};
use super::fence::Fence;
use super::machine::{Lost, Machine, Moment, Purpose, Role, Step, Write};
use super::watching::{Told, Watching};
use crate::apiclient::CallError;
use crate::backoff::{Backoff, random};
use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// With no deadline to keep, the loop turns that often anyway.
const TURN_EVERY: Duration = Duration::from_secs(60);
/// Between attempts to release.
const RELEASE_AGAIN: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(1), jitter_percent: 50 };

/// Whether we lead. Told at every change, also when the deadline moves on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// We lead, at least until `deadline` (local monotonic time): a later one is told before that, or the end of the term is.
    /// What must not happen later is checked against the [`Fence`], not against this.
    Leader {
        /// The term: grows with each.
        epoch: u64,
        /// When the last confirmed renewal was sent, plus RenewDeadline.
        deadline: Instant,
    },
    /// We don't.
    Standby {
        /// Who holds the Lease as far as is known; None: nobody, or nothing is known yet. It may be ourselves, for a moment.
        holder: Option<String>,
    },
}

impl Leadership {
    /// The term if we lead.
    pub fn epoch(&self) -> Option<u64> {
        match self {
            Self::Leader { epoch, .. } => Some(*epoch),
            Self::Standby { .. } => None,
        }
    }
}

/// The numbers of an election, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionStats {
    /// `leader_election_master_status{name}`: whether we lead by now.
    pub leads: bool,
    /// Terms of ours so far.
    pub acquired: u64,
    /// Terms of ours that ended other than by releasing the Lease on request.
    pub lost: u64,
    /// Renewals that were not confirmed.
    pub renew_failures: u64,
    /// Times that somebody else may have acted while we did: the Lease was found held by another while we still believed to lead, or
    /// a send was in flight when our term ended. The compare-and-swap of each write decides then; this says how often it had to.
    pub overlaps: u64,
    /// Changes of holder so far, by the Lease itself.
    pub transitions: u64,
}

/// Where the numbers of a running election are read; clones read the same.
#[derive(Clone, Debug)]
pub struct Stats {
    numbers: Arc<Numbers>,
    fence: Fence,
}

#[derive(Debug, Default)]
struct Numbers {
    leads: AtomicBool,
    acquired: AtomicU64,
    lost: AtomicU64,
    renew_failures: AtomicU64,
    found_held: AtomicU64,
    transitions: AtomicU64,
}

impl Stats {
    /// The numbers of this moment.
    pub fn now(&self) -> ElectionStats {
        let numbers = &self.numbers;
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        ElectionStats {
            leads: numbers.leads.load(Ordering::Relaxed) && self.fence.check().is_ok(),
            acquired: load(&numbers.acquired),
            lost: load(&numbers.lost),
            renew_failures: load(&numbers.renew_failures),
            overlaps: load(&numbers.found_held) + self.fence.crossed(),
            transitions: load(&numbers.transitions),
        }
    }
}

/// One candidate. See the module for the rules.
///
/// ```no_run
/// # async fn example(client: kube::Client, stop: tokio_util::sync::CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
/// use berth_runtime::lease::{ElectionConfig, Elector, identity};
/// let elector = Elector::new(ElectionConfig::new("berth-system", "berth-scheduler", identity("berth-0")))?;
/// let (fence, mut leadership) = (elector.fence(), elector.leadership());
/// tokio::spawn(elector.run(client, stop)); // with a client of its own: `ElectionConfig::limits`
/// leadership.wait_for(|now| now.epoch().is_some()).await?; // then list, then decide; before each send: fence.begin(epoch)
/// # Ok(()) }
/// ```
pub struct Elector {
    config: ElectionConfig,
    machine: Machine,
    fence: Fence,
    leadership: watch::Sender<Leadership>,
    numbers: Arc<Numbers>,
}

enum Answer {
    Read(Box<Result<Option<Lease>, CallError>>),
    Wrote(Purpose, Instant, Box<Result<Lease, CallError>>),
}

enum Happened {
    Stop,
    Answer(Answer),
    Told(Told),
    Time,
}

impl Elector {
    /// A candidate that does nothing before [`Elector::run`].
    ///
    /// # Errors
    /// The configuration makes no sense.
    pub fn new(config: ElectionConfig) -> Result<Self, InvalidElection> {
        config.validate()?;
        let machine = Machine::new(config.clone(), random);
        let leadership = watch::Sender::new(Leadership::Standby { holder: None });
        Ok(Self { config, machine, fence: Fence::closed(), leadership, numbers: Arc::default() })
    }

    /// What must be asked before each send.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Whether we lead, now and from now on.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Where the numbers are read.
    pub fn stats(&self) -> Stats {
        Stats { numbers: self.numbers.clone(), fence: self.fence.clone() }
    }

    /// Stands for election until `stop`, then releases the Lease if it is ours; that takes RenewDeadline at most. Whoever stops it
    /// has brought to an end by then what it did as leader: the fence closes first, and the next leader begins at once.
    ///
    /// `client` should be the election's own, made with [`ElectionConfig::limits`]. Never fails: errors are counted, logged, retried.
    pub async fn run(mut self, client: Client, stop: CancellationToken) {
        let api: Api<Lease> = Api::namespaced(client, &self.config.namespace);
        let mut watching = Watching::new(api.clone(), &self.config.name);
        let mut busy: Option<BoxFuture<'static, Answer>> = None;
        tracing::info!(lease = %self.lease_name(), identity = self.config.identity, "standing for election");
        loop {
            let until = match &busy {
                Some(_) => self.machine.deadline(),
                None => match self.machine.next(moment()) {
                    Step::Wait(until) => Some(until),
                    step => {
                        busy = Some(self.send(&api, step));
                        self.machine.deadline()
                    }
                },
            };
            self.publish();
            let happened = tokio::select! {
                biased;
                () = stop.cancelled() => Happened::Stop,
                answer = answered(&mut busy) => Happened::Answer(answer),
                told = watching.next() => Happened::Told(told),
                () = tokio::time::sleep_until(until.unwrap_or_else(|| Instant::now() + TURN_EVERY)) => Happened::Time,
            };
            let now = Instant::now();
            // First: has our time run out while nothing of ours could run?
            self.machine.tick(now);
            match happened {
                Happened::Stop => break,
                Happened::Time => {}
                Happened::Answer(answer) => self.take(answer, now),
                Happened::Told(Told::Is(lease)) => self.machine.watched(*lease, now),
                Happened::Told(Told::Gone) => self.machine.must_look(),
            }
        }
        self.machine.resign(Instant::now());
        self.publish();
        if tokio::time::timeout(self.config.renew, self.release(&api, busy)).await.is_err() {
            tracing::warn!(lease = %self.lease_name(), "the lease could not be released in time; it ends by itself");
        }
    }

    fn send(&self, api: &Api<Lease>, step: Step) -> BoxFuture<'static, Answer> {
        let (api, name) = (api.clone(), self.config.name.clone());
        match step {
            Step::Write(write) => Box::pin(put(api, name, write)),
            Step::Read | Step::Wait(_) => Box::pin(async move { Answer::Read(Box::new(api.get_opt(&name).await.map_err(CallError::from))) }),
        }
    }

    fn take(&mut self, answer: Answer, now: Instant) {
        match answer {
            Answer::Read(result) => {
                if let Err(error) = &*result {
                    self.tell(error, "the lease can't be read");
                }
                self.machine.read(result.as_ref().as_ref().cloned(), now);
            }
            Answer::Wrote(purpose, sent, result) => {
                if let Err(error) = &*result {
                    match purpose {
                        Purpose::Renew { .. } => self.tell(error, "the lease was not renewed"),
                        _ if error.is_conflict() || error.is_already_exists() => tracing::debug!(%error, "somebody was quicker"),
                        _ => self.tell(error, "the lease was not taken"),
                    }
                }
                self.machine.wrote(purpose, sent, result.as_ref().as_ref().cloned(), now);
            }
        }
    }

    fn tell(&self, error: &CallError, what: &str) {
        tracing::warn!(lease = %self.lease_name(), %error, "{what}");
    }

    /// Gives up what is ours, as soon as it is certain what that is.
    async fn release(&mut self, api: &Api<Lease>, busy: Option<BoxFuture<'static, Answer>>) {
        if let Some(busy) = busy {
            let answer = busy.await;
            self.take(answer, Instant::now());
            // What was under way may have made us leader a moment ago.
            self.machine.resign(Instant::now());
        }
        for failures in 0.. {
            if self.machine.is_unsure() {
                let answer = self.send(api, Step::Read).await;
                self.take(answer, Instant::now());
            } else {
                let Some(write) = self.machine.release(Timestamp::now()) else { return };
                let answer = self.send(api, Step::Write(write)).await;
                self.take(answer, Instant::now());
                if !self.machine.is_unsure() {
                    tracing::info!(lease = %self.lease_name(), "lease released");
                    return;
                }
            }
            if self.machine.is_unsure() {
                tokio::time::sleep(RELEASE_AGAIN.delay(failures)).await;
            }
        }
    }

    /// Tells everybody, the fence first.
    fn publish(&mut self) {
        let leadership = match (self.machine.role(), self.machine.deadline()) {
            (Role::Leader { epoch, .. }, Some(deadline)) => {
                self.fence.open(epoch, deadline);
                Leadership::Leader { epoch, deadline }
            }
            _ => {
                self.fence.close();
                Leadership::Standby { holder: self.machine.holder().map(str::to_owned) }
            }
        };
        let (counts, numbers) = (self.machine.counts(), &self.numbers);
        numbers.leads.store(leadership.epoch().is_some(), Ordering::Relaxed);
        numbers.acquired.store(counts.acquired, Ordering::Relaxed);
        numbers.lost.store(counts.lost, Ordering::Relaxed);
        numbers.renew_failures.store(counts.renew_failures, Ordering::Relaxed);
        numbers.found_held.store(counts.overlaps, Ordering::Relaxed);
        numbers.transitions.store(self.machine.transitions().unsigned_abs().into(), Ordering::Relaxed);
        let (before, lost) = (self.leadership.borrow().epoch(), self.machine.take_lost());
        if let Some(epoch) = before
            && let Some(why) = lost
        {
            self.log_end(epoch, why);
        }
        if let Some(epoch) = leadership.epoch().filter(|epoch| before != Some(*epoch)) {
            tracing::info!(lease = %self.lease_name(), epoch, "leading");
        }
        let changed = self.leadership.send_if_modified(|current| {
            let changed = *current != leadership;
            *current = leadership;
            changed
        });
        if changed
            && let Leadership::Standby { holder: Some(holder) } = &*self.leadership.borrow()
            && *holder != self.config.identity
        {
            tracing::info!(lease = %self.lease_name(), leader = holder, "standing by");
        }
    }

    fn log_end(&self, epoch: u64, why: Lost) {
        let holder = self.machine.holder().unwrap_or_default();
        match why {
            Lost::Resigned => tracing::info!(lease = %self.lease_name(), epoch, "leading no more: asked to stop"),
            Lost::Deadline => tracing::error!(lease = %self.lease_name(), epoch, "leading no more: no renewal was confirmed in time"),
            Lost::HeldByAnother => tracing::error!(lease = %self.lease_name(), epoch, holder, "leading no more: the lease is held by another"),
            Lost::Emptied => tracing::warn!(lease = %self.lease_name(), epoch, "leading no more: somebody deleted or emptied the lease"),
        }
    }

    fn lease_name(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }
}

async fn put(api: Api<Lease>, name: String, write: Write) -> Answer {
    let sent = Instant::now();
    let params = PostParams::default();
    let result = match write.create {
        true => api.create(&params, &write.lease).await,
        false => api.replace(&name, &params, &write.lease).await,
    };
    Answer::Wrote(write.purpose, sent, Box::new(result.map_err(CallError::from)))
}

/// The answer to the request under way; waits for ever if there is none.
async fn answered(busy: &mut Option<BoxFuture<'static, Answer>>) -> Answer {
    match busy {
        Some(request) => {
            let answer = request.await;
            *busy = None;
            answer
        }
        None => futures::future::pending().await,
    }
}

fn moment() -> Moment {
    Moment { mono: Instant::now(), wall: Timestamp::now() }
}
