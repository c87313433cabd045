//! Who leads: a pure state machine over what is known of one Lease. No I/O, no clock of its own.
//!
//! ```text
//!              nobody holds it, or it was not seen to change for its duration: write ──► confirmed before sent + RenewDeadline
//!            ┌───────────────────────────────────────────────────────────────────────────────────┐
//!            │                                                                                   ▼
//!  Standby ──┴─ somebody holds it: until it changes, ends, or the next poll             Leader ──┐ renews every RetryPeriod:
//!     ▲                                                                                   │  ▲   │ confirmed ► deadline moves on
//!     └── deadline passed · held by another · released or deleted by somebody · resigned ─┘  └───┘
//! ```
//! An answer that was lost is never taken for a success: a read follows, and what it shows of ours is written once more.

use super::config::{ElectionConfig, JITTER_FACTOR};
use super::record;
use crate::apiclient::CallError;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// The present on both clocks. The wall clock only goes into the Lease, for people.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub mono: Instant,
    pub wall: Timestamp,
}

/// What to do now.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing before that time, unless the watch tells something.
    Wait(Instant),
    /// GET the Lease, then [`Machine::read`].
    Read,
    /// Write it, then [`Machine::wrote`].
    Write(Write),
}

/// A write to be: POST if the Lease does not exist, else PUT with the version it is based on.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub lease: Box<Lease>,
    pub create: bool,
    pub purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Begins this term.
    Acquire { epoch: u64 },
    /// Goes on with this term.
    Renew { epoch: u64 },
    /// Ends whatever is ours.
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Standby,
    Leader {
        epoch: u64,
        /// When the last confirmed write was sent.
        sent: Instant,
        renew_at: Instant,
    },
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    Deadline,
    HeldByAnother,
    Emptied,
    Resigned,
}

#[derive(Debug)]
enum Known {
    Nothing,
    /// There is no Lease.
    Missing,
    Present {
        lease: Box<Lease>,
        /// When the record was first seen as it is.
        since: Instant,
    },
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub acquired: u64,
    pub lost: u64,
    pub renew_failures: u64,
    /// Terms of ours into which a term of another reached.
    pub overlaps: u64,
}

pub(super) struct Machine {
    config: ElectionConfig,
    random: fn() -> u64,
    role: Role,
    known: Known,
    last_epoch: u64,
    last_transitions: Option<i32>,
    /// A read is due, whatever is known.
    look: bool,
    /// No request before that time.
    not_before: Option<Instant>,
    next_poll: Option<Instant>,
    /// Attempts without success since the last one with.
    failures: u32,
    /// The end of this term was noticed when others might long have led; what is seen next tells whether somebody did.
    noticed_late: Option<u64>,
    counts: Counts,
    lost: Option<Lost>,
}

impl Machine {
    pub fn new(config: ElectionConfig, random: fn() -> u64) -> Self {
        Self {
            config,
            random,
            role: Role::Standby,
            known: Known::Nothing,
            last_epoch: 0,
            last_transitions: None,
            look: true,
            not_before: None,
            next_poll: None,
            failures: 0,
            noticed_late: None,
            counts: Counts::default(),
            lost: None,
        }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// `leaseTransitions` as last seen.
    pub fn transitions(&self) -> i32 {
        self.last_transitions.unwrap_or(0)
    }

    /// Until when we lead unless a renewal is confirmed.
    pub fn deadline(&self) -> Option<Instant> {
        match self.role {
            Role::Leader { sent, .. } => Some(sent + self.config.renew),
            Role::Standby => None,
        }
    }

    /// Who holds the Lease, as far as is known.
    pub fn holder(&self) -> Option<&str> {
        record::holder(self.lease()?)
    }

    /// Why the last term ended, once.
    pub fn take_lost(&mut self) -> Option<Lost> {
        self.lost.take()
    }

    fn lease(&self) -> Option<&Lease> {
        match &self.known {
            Known::Present { lease, .. } => Some(lease),
            Known::Nothing | Known::Missing => None,
        }
    }

    // ---- time ------------------------------------------------------------------------------------

    /// Steps down if the deadline has passed. To be called whenever anything happens, before anything else.
    pub fn tick(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.lose(Lost::Deadline, now);
        }
    }

    /// What to do when no request is under way.
    pub fn next(&mut self, now: Moment) -> Step {
        self.tick(now.mono);
        if let Some(at) = self.not_before.filter(|at| now.mono < *at) {
            return Step::Wait(self.deadline().map_or(at, |deadline| at.min(deadline)));
        }
        if self.look || matches!(self.known, Known::Nothing) {
            return Step::Read;
        }
        if let Role::Leader { epoch, renew_at, .. } = self.role {
            let deadline = self.deadline().unwrap_or(renew_at);
            return if now.mono >= renew_at { self.write(Purpose::Renew { epoch }, now) } else { Step::Wait(renew_at.min(deadline)) };
        }
        let free_at = self.free_at();
        if free_at.is_none_or(|at| now.mono >= at) {
            let epoch = epoch_of(self.next_transitions()).max(self.last_epoch.saturating_add(1));
            return self.write(Purpose::Acquire { epoch }, now);
        }
        match (self.next_poll, free_at) {
            (Some(poll), Some(free)) if now.mono < poll => Step::Wait(poll.min(free)),
            _ => Step::Read,
        }
    }

    /// When the Lease may be taken; None is now.
    fn free_at(&self) -> Option<Instant> {
        let Known::Present { lease, since } = &self.known else { return None };
        let holder = record::holder(lease)?;
        (holder != self.config.identity).then(|| *since + record::duration(lease, self.config.lease))
    }

    fn next_transitions(&self) -> i32 {
        self.last_transitions.map_or(0, |last| last.saturating_add(1))
    }

    fn write(&self, purpose: Purpose, now: Moment) -> Step {
        let base = self.lease();
        let (acquired, transitions) = match purpose {
            Purpose::Renew { .. } => (base.and_then(record::acquired).unwrap_or(now.wall), self.transitions()),
            _ => (now.wall, self.next_transitions()),
        };
        let names = (self.config.namespace.as_str(), self.config.name.as_str());
        let lease = record::held(base, names, &self.config.identity, self.config.lease_s(), acquired, now.wall, transitions);
        Step::Write(Write { lease: Box::new(lease), create: base.is_none(), purpose })
    }

    // ---- what comes in ---------------------------------------------------------------------------

    /// A GET was answered; None: there is no Lease.
    pub fn read(&mut self, answer: Result<Option<Lease>, &CallError>, now: Instant) {
        match answer {
            Ok(found) => {
                self.look = false;
                self.next_poll = Some(now + self.jittered());
                match found {
                    Some(lease) => self.see(lease, now),
                    None => self.see_nothing(now),
                }
                self.noticed_late = None;
            }
            Err(error) => self.failed(error, now, now),
        }
    }

    /// A write was answered that was sent at `sent`.
    pub fn wrote(&mut self, purpose: Purpose, sent: Instant, answer: Result<Lease, &CallError>, now: Instant) {
        let lease = match answer {
            Ok(lease) => lease,
            Err(error) => return self.not_written(purpose, sent, error, now),
        };
        self.failures = 0;
        self.not_before = None;
        self.look = false;
        let in_time = now < sent + self.config.renew;
        match purpose {
            Purpose::Acquire { epoch } if in_time => {
                self.role = Role::Leader { epoch, sent, renew_at: now + self.config.retry };
                self.last_epoch = epoch;
                self.counts.acquired += 1;
                // Nobody was in between, or the write would have been refused.
                self.noticed_late = None;
            }
            Purpose::Renew { epoch } if matches!(self.role, Role::Leader { epoch: current, .. } if current == epoch) => {
                self.role = Role::Leader { epoch, sent, renew_at: now + self.config.retry };
            }
            // Confirmed too late to lead by it: it is ours, though, and the next write may follow at once.
            Purpose::Acquire { .. } | Purpose::Renew { .. } | Purpose::Release => {}
        }
        self.see(lease, now);
        // The watch may have overtaken the answer, and shown that the Lease was deleted and taken by another since.
        if matches!(self.role, Role::Leader { .. }) && self.holder() != Some(&self.config.identity) {
            self.counts.overlaps += 1;
            self.lose(Lost::HeldByAnother, now);
        }
    }

    fn not_written(&mut self, purpose: Purpose, sent: Instant, error: &CallError, now: Instant) {
        self.counts.renew_failures += u64::from(matches!(purpose, Purpose::Renew { .. }));
        self.look = true;
        let moved_on = error.is_conflict() || error.is_already_exists() || error.is_not_found();
        if moved_on && self.failures == 0 {
            // A read tells at once by whom; only the second time in a row is it worth a pause.
            self.failures = 1;
        } else {
            self.failed(error, sent, now);
        }
    }

    /// A pause after a request that failed: RetryPeriod from its start, with jitter unless we lead.
    fn failed(&mut self, error: &CallError, sent: Instant, now: Instant) {
        self.look = true;
        self.failures = self.failures.saturating_add(1);
        let leads = matches!(self.role, Role::Leader { .. });
        let pause = if leads { self.config.retry } else { self.jittered() };
        // A server that asks for more is heard, as long as there is a chance left.
        let asked = error.retry_after().unwrap_or_default().min(self.config.renew / 2);
        self.not_before = Some((sent + pause).max(now + asked));
    }

    /// The watch shows the Lease.
    pub fn watched(&mut self, lease: Lease, now: Instant) {
        self.see(lease, now);
    }

    /// The watch shows that it is gone, or can't tell: a read must.
    pub fn must_look(&mut self) {
        self.look = true;
        if matches!(self.role, Role::Standby) && self.failures == 0 {
            self.not_before = None;
        }
    }

    fn see(&mut self, lease: Lease, now: Instant) {
        let mut since = now;
        if let Known::Present { lease: old, since: seen } = &self.known {
            if !record::is_news(old, &lease) {
                return;
            }
            if record::same_record(old, &lease) {
                since = *seen;
            }
        }
        let transitions = record::transitions(&lease);
        let by_another = record::holder(&lease).is_some_and(|holder| holder != self.config.identity);
        let emptied = record::holder(&lease).is_none();
        self.known = Known::Present { lease: Box::new(lease), since };
        self.last_transitions = Some(transitions);
        if let Role::Leader { .. } = self.role {
            if by_another {
                self.counts.overlaps += 1;
                self.lose(Lost::HeldByAnother, now);
                self.noticed_late = None;
            } else if emptied {
                self.lose(Lost::Emptied, now);
            }
        } else if let Some(epoch) = self.noticed_late
            && (by_another || epoch_of(transitions) > epoch)
        {
            self.counts.overlaps += 1;
            self.noticed_late = None;
        }
    }

    fn see_nothing(&mut self, now: Instant) {
        self.known = Known::Missing;
        if let Role::Leader { .. } = self.role {
            self.lose(Lost::Emptied, now);
        }
        self.look = false;
    }

    fn lose(&mut self, why: Lost, now: Instant) {
        if let Role::Leader { epoch, sent, .. } = self.role {
            self.role = Role::Standby;
            self.counts.lost += u64::from(why != Lost::Resigned);
            self.lost = Some(why);
            self.look |= why != Lost::Resigned;
            self.not_before = None;
            self.noticed_late = (now >= sent + self.config.lease).then_some(epoch);
        }
    }

    // ---- the end ---------------------------------------------------------------------------------

    /// Leads no more, by its own will.
    pub fn resign(&mut self, now: Instant) {
        self.lose(Lost::Resigned, now);
    }

    /// The write that gives up what is ours, if something is.
    pub fn release(&self, wall: Timestamp) -> Option<Write> {
        let lease = self.lease().filter(|lease| record::holder(lease) == Some(&self.config.identity))?;
        let names = (self.config.namespace.as_str(), self.config.name.as_str());
        Some(Write { lease: Box::new(record::released(lease, names, wall)), create: false, purpose: Purpose::Release })
    }

    /// Whether only a read tells whether something is ours.
    pub fn is_unsure(&self) -> bool {
        self.look
    }

    /// RetryPeriod, and up to 1.2 times that on top, at random (client-go's JitterUntil).
    fn jittered(&self) -> Duration {
        let fraction = f64::from(u32::try_from((self.random)() % 1_001).unwrap_or(0)) / 1_000.0;
        self.config.retry.mul_f64(1.0 + JITTER_FACTOR * fraction)
    }
}

/// The term that begins with this number of transitions: the first is 1.
fn epoch_of(transitions: i32) -> u64 {
    u64::from(transitions.max(0).unsigned_abs()) + 1
}
