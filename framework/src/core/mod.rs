//! The scheduler core: inputs in, effects out. One owner, no await, no lock, no clock, no I/O.
//!
//! ```text
//!  input ─► cache ─► events ─► offers and kicks ─► active queue ─► cycle ─► effects
//!           (O(change))         (who can be helped)                 │
//!                     waiting ◄──────────────── rejected ───────────┘
//!                     back-off ◄─── error, conflict, retry hold
//! ```
//! [`Core::handle`] takes one input, [`Core::step`] makes at most one attempt. The same core runs in
//! `berth serve`, in `berth simulate` and in the seeded worlds of the tests.

mod attempt;
mod io;
mod look;
mod messages;
mod unschedulable;

pub use io::*;
use messages::Namespace;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use priority_queue::PriorityQueue;
use rustc_hash::FxHashMap;

use crate::cache::{Cache, CacheEvent, Place, RunId};
use crate::cycle::{Cycle, Diagnosis};
use crate::model::{Delta, Now, ObjectKey, Phase, RunObject, Shown};
use crate::observe::{Event, Observer, RunIs};
use crate::plugin::WakeCause;
use crate::profile::{Profiles, Shadow};
use crate::waiting::{Age, OpenId, Waiting, What, age};

use self::unschedulable::Unschedulable;

/// A Run waits this long before its first waiting message, milliseconds.
pub const FIRST_MESSAGE_AFTER_MS: u64 = 1_000;
/// Every class is tried once in this time whatever happened; whoever is placed by it shows a lost wake-up.
pub const FLUSH_EVERY_MS: u64 = 300_000;
/// A Run's messages are this far apart, counted from the answer to the last one, milliseconds.
pub const MESSAGE_EVERY_MS: u64 = 1_000;
/// At most once in this time per namespace is it searched for Runs that wait for each other, milliseconds.
pub const STUCK_EVERY_MS: u64 = 1_000;

#[derive(Debug)]
struct Record {
    standing: Standing,
    /// Grows whenever the record starts anew, so that old timers miss.
    stamp: u64,
    attempts: u32,
    attempted_ms: Option<u64>,
    errors: u32,
    queued_ms: u64,
    waiting_since_ms: Option<u64>,
    /// Why it was last queued, by an event or by the alarm flush.
    cause: Option<WakeCause>,
    flush: bool,
    open: Option<OpenId>,
    diagnosis: Option<Arc<Diagnosis>>,
    /// While it waits: the profile under which [`Unschedulable`] counts it.
    counted_under: Option<u16>,
    shown: Option<Shown>,
    /// An attempt ended in waiting, or a message failed, since the text was last looked at: it may have changed.
    message_due: bool,
    message_not_before_ms: u64,
    message_in_flight: bool,
    message_timer: bool,
    /// How many messages in a row could not be written.
    message_errors: u32,
    /// The bind or end under way: an answer to any other write of this Run comes too late to mean anything.
    write: Option<WriteId>,
    /// The version that write was stored with.
    written_version: Option<Arc<str>>,
}

impl Record {
    fn new(stamp: u64, now: Now) -> Self {
        Self {
            standing: Standing::Idle,
            stamp,
            attempts: 0,
            attempted_ms: None,
            errors: 0,
            queued_ms: now.mono_ms,
            waiting_since_ms: None,
            cause: None,
            flush: false,
            open: None,
            diagnosis: None,
            counted_under: None,
            shown: None,
            message_due: false,
            message_not_before_ms: 0,
            message_in_flight: false,
            message_timer: false,
            message_errors: 0,
            write: None,
            written_version: None,
        }
    }
}

#[derive(Debug)]
enum Kind {
    Bind,
    Waiting(Shown),
    Terminate,
}

#[derive(Debug)]
struct InFlight {
    run: RunId,
    uid: Arc<str>,
    kind: Kind,
}

/// See the module documentation.
pub struct Core {
    cache: Cache,
    cycle: Cycle,
    profiles: Arc<Profiles>,
    /// Shadow profiles, each with verdict tables of its own.
    shadows: Vec<(Shadow, Cycle)>,
    waiting: Waiting,
    active: PriorityQueue<RunId, Reverse<Age>>,
    backoff: FxHashMap<RunId, u64>,
    backoff_timers: BinaryHeap<Reverse<(u64, RunId, u64)>>,
    message_timers: BinaryHeap<Reverse<(u64, RunId, u64)>>,
    records: FxHashMap<RunId, Record>,
    /// Who of the records is in each namespace.
    namespaces: FxHashMap<Arc<str>, Namespace>,
    writes: FxHashMap<WriteId, InFlight>,
    next_write: u64,
    next_stamp: u64,
    next_flush_ms: Option<u64>,
    /// How often the cache noticed something, and how often it had when the last flush began.
    noticed: u64,
    noticed_at_flush: u64,
    /// Runs looked at by the search for Runs that wait for each other, ever.
    searched: u64,
    last_diagnosis: Option<Arc<Diagnosis>>,
    effects: Vec<Effect>,
    placing: bool,
    keep: usize,
    stats: Stats,
    unschedulable: Unschedulable,
    observer: Box<dyn Observer>,
}

impl Core {
    /// A core with an empty cache; places nothing before [`Core::start_placing`].
    pub fn new(profiles: impl Into<Profiles>) -> Self {
        let profiles = Arc::new(profiles.into());
        Self {
            cache: Cache::default(),
            cycle: Cycle::default(),
            shadows: shadows_of(&profiles),
            profiles,
            waiting: Waiting::default(),
            active: PriorityQueue::new(),
            backoff: FxHashMap::default(),
            backoff_timers: BinaryHeap::new(),
            message_timers: BinaryHeap::new(),
            records: FxHashMap::default(),
            namespaces: FxHashMap::default(),
            writes: FxHashMap::default(),
            next_write: 0,
            next_stamp: 0,
            next_flush_ms: None,
            noticed: 0,
            noticed_at_flush: 0,
            searched: 0,
            last_diagnosis: None,
            effects: Vec::new(),
            placing: false,
            keep: 1,
            stats: Stats::default(),
            unschedulable: Unschedulable::default(),
            observer: Box::new(()),
        }
    }

    /// Every cache is synced: attempts may begin.
    pub fn start_placing(&mut self) {
        self.placing = true;
    }

    /// Attempts and messages stop (lost leadership, shutdown); inputs still count.
    pub fn stop_placing(&mut self) {
        self.placing = false;
        self.next_flush_ms = None;
    }

    /// How many ranked Pods an [`Attempt`] tells (1 = only the chosen one, without scores by plugin).
    pub fn keep_ranked(&mut self, keep: usize) {
        self.keep = keep.max(1);
    }

    /// Who is told where time goes.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observer = observer;
    }

    /// Takes what is to be done since the last call.
    pub fn drain_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    // ---- inputs ----------------------------------------------------------------------------------

    /// Takes one input. Costs what changed, not what is there. Answers which event it was, if it came from the cluster.
    pub fn handle(&mut self, input: Input, now: Now) -> Option<Event> {
        let event = match input {
            Input::Run(Delta::Applied(run)) => Some(self.apply_run(run, now)),
            Input::Run(Delta::Deleted { key, uid }) => Some(self.delete_run(&key, &uid)),
            Input::Pod(Delta::Applied(pod)) => {
                let known = self.cache.pod_id(&pod.key.namespace, &pod.key.name).is_some_and(|id| self.cache.pod_view(id).is_some());
                self.cache.apply_pod(pod, now);
                Some(Event::of_pod(known))
            }
            Input::Pod(Delta::Deleted { key, uid }) => {
                self.cache.delete_pod(&key, &uid);
                Some(Event::NodeDelete)
            }
            Input::Workspace(Delta::Applied(workspace)) => {
                let known = self.cache.workspace(&workspace.key.namespace, &workspace.key.name).is_some();
                self.cache.apply_workspace(workspace);
                Some(Event::of_workspace(known))
            }
            Input::Workspace(Delta::Deleted { key, uid }) => {
                self.cache.delete_workspace(&key, &uid);
                Some(Event::PersistentWorkspaceDelete)
            }
            Input::Answer(write, outcome) => {
                self.answer(write, outcome, now);
                None
            }
            Input::Profiles(profiles) => {
                self.change_profiles(profiles, now);
                None
            }
            Input::Timer => None,
        };
        self.digest();
        event
    }

    fn apply_run(&mut self, run: Arc<RunObject>, now: Now) -> Event {
        let known = self.cache.run_id(&run.key);
        let before = known.and_then(|id| self.cache.run(id)).map(|entry| (entry.object.clone(), entry.place));
        if let (Some(id), Some((old, _))) = (known, &before) {
            if old.uid != run.uid {
                self.forget(id);
            } else if !old.asks_the_same(&run) {
                // Its class is about to change: take it out while the cache still knows it as it was.
                if let Some(entry) = self.cache.run(id) {
                    self.waiting.remove(id, entry);
                }
            }
        }
        let id = self.cache.apply_run(run.clone());
        if let Some(record) = self.records.get_mut(&id) {
            record.shown.clone_from(&run.shown);
        }
        let before = before.as_ref().map(|(old, _)| &**old).filter(|old| old.uid == run.uid);
        self.restand(id, before, now);
        Event::of_run(before.map_or(RunIs::Nothing, RunIs::of), RunIs::of(&run))
    }

    /// Puts a Run where it belongs after its object changed.
    fn restand(&mut self, id: RunId, old: Option<&RunObject>, now: Now) {
        let Some(entry) = self.cache.run(id) else { return };
        let object = entry.object.clone();
        let place = entry.place;
        let record = self.records.get(&id);
        let standing = record.map_or(Standing::Idle, |record| record.standing);
        if object.phase != Phase::Pending || object.deleting {
            self.leave_queue(id);
            if matches!(place, Place::Nowhere) || object.phase != Phase::Pending {
                self.stand(id, Standing::Idle);
            }
            return;
        }
        match standing {
            Standing::Assumed | Standing::Terminating => {
                self.undo(id, now);
            }
            Standing::Idle => self.enqueue(id, None, now),
            Standing::Waiting => {
                let urgent = object.cancel_requested || object.invalid.is_some();
                let changed = old.is_some_and(|old| !old.asks_the_same(&object));
                if urgent || changed {
                    self.leave_queue(id);
                    self.enqueue(id, changed.then_some(WakeCause::OwnLabelsChanged), now);
                }
            }
            Standing::Backoff => {
                let other_hold = old.is_some_and(|old| old.retry_not_before_wall_ms != object.retry_not_before_wall_ms);
                if object.cancel_requested || other_hold {
                    self.leave_queue(id);
                    self.enqueue(id, None, now);
                }
            }
            Standing::Active => {}
        }
    }

    /// Somebody made the Run Pending again after what we wrote: it starts anew, and what was assumed is free.
    fn undo(&mut self, id: RunId, now: Now) {
        let written = self.records.get(&id).and_then(|record| record.written_version.as_ref());
        let undone = |object: &RunObject| object.phase == Phase::Pending && written.is_some_and(|written| newer(&object.resource_version, written));
        let Some(entry) = self.cache.run(id).filter(|entry| undone(&entry.object)) else { return };
        let deleting = entry.object.deleting;
        self.cache.release(id);
        self.stand(id, Standing::Idle);
        if !deleting {
            self.enqueue(id, None, now);
        }
    }

    fn delete_run(&mut self, key: &ObjectKey, uid: &str) -> Event {
        let known = self.cache.run_id(key).and_then(|id| Some((id, RunIs::of(&self.cache.run(id).filter(|entry| &*entry.object.uid == uid)?.object))));
        if let Some((id, _)) = known {
            self.forget(id);
            self.cache.remove_run(id);
        }
        Event::of_run(known.map_or(RunIs::Nothing, |(_, before)| before), RunIs::Nothing)
    }

    fn forget(&mut self, id: RunId) {
        self.leave_queue(id);
        self.drop_record(id);
    }

    fn drop_record(&mut self, id: RunId) {
        self.records.remove(&id);
        let Some(entry) = self.cache.run(id) else { return };
        let name = &entry.object.key.namespace;
        if let Some(namespace) = self.namespaces.get_mut(name) {
            namespace.runs.remove(&id);
            namespace.stuck.remove(&id);
            if namespace.runs.is_empty() {
                self.namespaces.remove(name);
            }
        }
    }

    /// It does not wait, or not as before.
    fn uncount(&mut self, id: RunId) {
        if let Some(record) = self.records.get_mut(&id)
            && let (Some(profile), Some(diagnosis)) = (record.counted_under.take(), &record.diagnosis)
        {
            self.unschedulable.remove(profile, diagnosis);
        }
    }

    /// Takes a Run out of every queue it is in.
    fn leave_queue(&mut self, id: RunId) {
        self.uncount(id);
        self.active.remove(&id);
        self.backoff.remove(&id);
        if let Some(entry) = self.cache.run(id) {
            self.waiting.remove(id, entry);
        }
        if let Some(open) = self.records.get_mut(&id).and_then(|record| record.open.take()) {
            self.waiting.attempted(open, id);
        }
    }

    /// Runs that are not ours to place have no record: a million active ones cost nothing here.
    fn stand(&mut self, id: RunId, standing: Standing) {
        if standing == Standing::Idle {
            self.drop_record(id);
        } else if let Some(record) = self.records.get_mut(&id) {
            record.standing = standing;
            record.waiting_since_ms = None;
            record.diagnosis = None;
        }
    }

    fn enqueue(&mut self, id: RunId, cause: Option<WakeCause>, now: Now) {
        self.uncount(id);
        let Some(entry) = self.cache.run(id) else { return };
        let order = Reverse(age(entry));
        let (stamp, namespaces) = (&mut self.next_stamp, &mut self.namespaces);
        let record = self.records.entry(id).or_insert_with(|| {
            *stamp += 1;
            namespaces.entry(entry.object.key.namespace.clone()).or_default().runs.insert(id);
            Record { shown: entry.object.shown.clone(), ..Record::new(*stamp, now) }
        });
        record.standing = Standing::Active;
        record.cause = cause;
        record.flush = false;
        self.active.push(id, order);
        match cause {
            Some(cause) => self.stats.wakeups[cause as usize] += 1,
            None => self.stats.queued += 1,
        }
    }

    fn back_off(&mut self, id: RunId, until_ms: u64) {
        self.leave_queue(id);
        if let Some(record) = self.records.get_mut(&id) {
            record.standing = Standing::Backoff;
            self.stats.backed_off += 1;
            self.backoff.insert(id, until_ms);
            self.backoff_timers.push(Reverse((until_ms, id, record.stamp)));
        }
    }

    fn back_off_after_error(&mut self, id: RunId, now: Now) {
        self.stats.errors += 1;
        let Some(record) = self.records.get_mut(&id) else { return };
        let wait = self.profiles.backoff_ms(record.errors);
        record.errors = record.errors.saturating_add(1);
        self.back_off(id, now.mono_ms.saturating_add(wait));
    }

    fn answer(&mut self, write: WriteId, outcome: WriteOutcome, now: Now) {
        let Some(InFlight { run, uid, kind }) = self.writes.remove(&write) else { return };
        let same = self.cache.run(run).is_some_and(|entry| entry.object.uid == uid);
        if !same {
            // The Run is gone (or its slot is another's): what it held went with it.
            return;
        }
        let Some(record) = self.records.get_mut(&run) else { return };
        if let Kind::Waiting(shown) = kind {
            record.message_in_flight = false;
            let mut wait = MESSAGE_EVERY_MS;
            match outcome {
                WriteOutcome::Applied(_) => {
                    record.shown = Some(shown);
                    record.message_errors = 0;
                }
                WriteOutcome::Gone => {}
                WriteOutcome::Conflict | WriteOutcome::Failed => {
                    record.message_due = true;
                    wait = wait.max(self.profiles.backoff_ms(record.message_errors));
                    record.message_errors = record.message_errors.saturating_add(1);
                }
            }
            record.message_not_before_ms = now.mono_ms.saturating_add(wait);
            self.arm_message(run, now);
            return;
        }
        if record.write != Some(write) {
            // The Run has moved on since; the informer told, and what was assumed then is settled.
            return;
        }
        record.write = None;
        if let WriteOutcome::Applied(version) = outcome {
            record.errors = 0;
            record.written_version = Some(version);
            // What is assumed stands until the informer shows it, unless that has shown that it was undone.
            self.undo(run, now);
            return;
        }
        if let Kind::Bind = kind {
            self.stats.bind_conflicts += u64::from(outcome == WriteOutcome::Conflict);
            self.cache.release(run);
        }
        if self.cache.run(run).is_some_and(|entry| entry.object.deleting) {
            self.stand(run, Standing::Idle);
        } else {
            self.back_off_after_error(run, now);
        }
    }

    fn change_profiles(&mut self, profiles: Arc<Profiles>, now: Now) {
        let runs: Vec<RunId> = self.waiting.runs().collect();
        for run in &runs {
            self.leave_queue(*run);
        }
        self.unschedulable = Unschedulable::default();
        self.shadows = shadows_of(&profiles);
        self.profiles = profiles;
        self.cycle.clear();
        for run in runs {
            self.enqueue(run, Some(WakeCause::ProfileChanged), now);
        }
    }

    /// Turns what the cache noticed into offers and kicks.
    fn digest(&mut self) {
        while self.cache.has_events() {
            self.noticed += 1;
            for event in self.cache.take_events() {
                match event {
                    CacheEvent::Offer { pod, cause, force, anti_ended } => self.waiting.open(What::Pod { pod, cause, force, anti_ended, term: None }),
                    CacheEvent::TargetAppeared { term, pod } => {
                        if self.waiting.wants_term(term) {
                            self.waiting.open(What::Pod { pod, cause: WakeCause::TargetAppeared, force: true, anti_ended: Vec::new(), term: Some(term) });
                        }
                    }
                    CacheEvent::TargetsEnded { term, domain, cause } => self.waiting.kick_seeders(term, domain, cause),
                    CacheEvent::Workspace(key) => self.waiting.kick_workspace(&key),
                    CacheEvent::AntiTerm(term) => self.waiting.reclassify(&self.cache, &self.profiles, term),
                }
            }
        }
    }

    // ---- stepping --------------------------------------------------------------------------------

    /// Fires due timers, then makes at most one attempt. `None` if there is nothing to try now.
    pub fn step(&mut self, now: Now) -> Option<Attempt> {
        self.fire_timers(now);
        if !self.placing {
            return None;
        }
        while let Some(nominee) = self.waiting.next_nominee(&self.cache, &mut self.cycle, &self.profiles, &mut *self.observer) {
            self.enqueue(nominee.run, (!nominee.flush).then_some(nominee.cause), now);
            if let Some(record) = self.records.get_mut(&nominee.run) {
                record.open = Some(nominee.open);
                record.flush = nominee.flush;
            }
        }
        let (id, _) = self.active.pop()?;
        let attempt = self.attempt(id, now);
        if let Some(open) = self.records.get_mut(&id).and_then(|record| record.open.take()) {
            self.waiting.attempted(open, id);
        }
        self.digest();
        attempt
    }

    /// Fires every due timer without trying anything.
    pub fn fire_timers(&mut self, now: Now) {
        self.stats.went_stale += self.cache.expire_heartbeats(now) as u64;
        while let Some(&Reverse((at, id, stamp))) = self.backoff_timers.peek() {
            if at > now.mono_ms {
                break;
            }
            self.backoff_timers.pop();
            let due = self.records.get(&id).is_some_and(|r| r.stamp == stamp) && self.backoff.get(&id).is_some_and(|until| *until <= now.mono_ms);
            if due {
                self.backoff.remove(&id);
                self.enqueue(id, Some(WakeCause::RetryDue), now);
            }
        }
        // Who does not place has nothing to say about why a Run waits; what is due then is said later.
        while self.placing
            && let Some(&Reverse((at, id, stamp))) = self.message_timers.peek()
        {
            if at > now.mono_ms {
                break;
            }
            self.message_timers.pop();
            if let Some(record) = self.records.get_mut(&id).filter(|r| r.stamp == stamp) {
                record.message_timer = false;
                self.write_message(id, now);
            }
        }
        if !self.placing {
            return;
        }
        let flush = *self.next_flush_ms.get_or_insert(now.mono_ms.saturating_add(FLUSH_EVERY_MS));
        // Whoever is about to be tried for an event is no lost wake-up.
        if flush <= now.mono_ms && self.active.is_empty() && !self.waiting.has_open() {
            self.noticed_at_flush = self.noticed;
            self.next_flush_ms = Some(now.mono_ms.saturating_add(FLUSH_EVERY_MS));
            self.waiting.kick_all();
        }
    }

    /// When [`Core::step`] should be called at the latest, monotonic milliseconds; `Some(0)` means at once.
    pub fn next_wake_ms(&self) -> Option<u64> {
        [self.next_event_ms(), self.cache.next_stale_ms(), self.next_flush_ms].into_iter().flatten().min()
    }

    /// As [`Core::next_wake_ms`], without stale heartbeats and the alarm flush: `None` = nothing will happen by itself.
    pub fn next_event_ms(&self) -> Option<u64> {
        if self.placing && (!self.active.is_empty() || self.waiting.has_open()) {
            return Some(0);
        }
        let backoff = self.backoff_timers.peek().map(|Reverse((at, ..))| *at);
        let message = self.message_timers.peek().filter(|_| self.placing).map(|Reverse((at, ..))| *at);
        [backoff, message].into_iter().flatten().min()
    }
}

fn shadows_of(profiles: &Profiles) -> Vec<(Shadow, Cycle)> {
    profiles.shadows().iter().map(|shadow| (shadow.clone(), Cycle::default())).collect()
}

fn reference(object: &RunObject) -> RunRef {
    RunRef { key: object.key.clone(), uid: object.uid.clone(), resource_version: object.resource_version.clone() }
}

/// `true` if both are numbers and `a` is the greater: resource versions of one resource compare as integers.
fn newer(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a > b)
}
