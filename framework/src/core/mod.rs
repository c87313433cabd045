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

mod io;
mod look;
mod messages;

pub use io::*;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use priority_queue::PriorityQueue;
use rustc_hash::FxHashMap;

use crate::cache::{Cache, CacheEvent, Place, Reservation, RunId};
use crate::cycle::{Choice, Cycle, Diagnosis, Outcome, Wait, prepare};
use crate::diagnosis::Stuck;
use crate::model::{Delta, Now, ObjectKey, Phase, RunObject, Shown};
use crate::plugin::{BindNote, Rejection, WakeCause};
use crate::profile::{Profiles, Shadow};
use crate::views::RunView;
use crate::waiting::{Age, OpenId, Waiting, What, age};

/// A Run waits this long before its first waiting message, milliseconds.
pub const FIRST_MESSAGE_AFTER_MS: u64 = 1_000;
/// Every class is tried once in this time whatever happened; whoever is placed by it shows a lost wake-up.
pub const FLUSH_EVERY_MS: u64 = 300_000;
/// A Run's messages are this far apart, counted from the answer to the last one, milliseconds.
pub const MESSAGE_EVERY_MS: u64 = 1_000;
/// At most once in this time per namespace is it searched for Runs that wait for each other, milliseconds.
pub const STUCK_EVERY_MS: u64 = 1_000;
/// How many remarks of Bind plugins are kept.
const REMARKS_MAX: usize = 8;

#[derive(Debug)]
struct Record {
    standing: Standing,
    /// Grows whenever the record starts anew, so that old timers miss.
    stamp: u64,
    attempts: u32,
    errors: u32,
    queued_ms: u64,
    waiting_since_ms: Option<u64>,
    cause: Option<WakeCause>,
    flush: bool,
    open: Option<OpenId>,
    diagnosis: Option<Arc<Diagnosis>>,
    shown: Option<Shown>,
    /// An attempt changed the diagnosis since the text was last looked at.
    message_due: bool,
    message_not_before_ms: u64,
    message_in_flight: bool,
    message_timer: bool,
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
            errors: 0,
            queued_ms: now.mono_ms,
            waiting_since_ms: None,
            cause: None,
            flush: false,
            open: None,
            diagnosis: None,
            shown: None,
            message_due: false,
            message_not_before_ms: 0,
            message_in_flight: false,
            message_timer: false,
            write: None,
            written_version: None,
        }
    }
}

#[derive(Debug)]
enum Kind {
    Bind(Reservation),
    Waiting(Shown),
    Terminate,
}

#[derive(Debug)]
struct InFlight {
    run: RunId,
    uid: Arc<str>,
    kind: Kind,
}

struct NoObserver;
impl Observer for NoObserver {}

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
    writes: FxHashMap<WriteId, InFlight>,
    next_write: u64,
    next_stamp: u64,
    next_flush_ms: Option<u64>,
    /// How often the cache noticed something, and how often it had when the last flush began.
    noticed: u64,
    noticed_at_flush: u64,
    stuck: FxHashMap<Arc<str>, (u64, Stuck)>,
    last_diagnosis: Option<Arc<Diagnosis>>,
    effects: Vec<Effect>,
    placing: bool,
    keep: usize,
    stats: Stats,
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
            writes: FxHashMap::default(),
            next_write: 0,
            next_stamp: 0,
            next_flush_ms: None,
            noticed: 0,
            noticed_at_flush: 0,
            stuck: FxHashMap::default(),
            last_diagnosis: None,
            effects: Vec::new(),
            placing: false,
            keep: 1,
            stats: Stats::default(),
            observer: Box::new(NoObserver),
        }
    }

    /// Every cache is synced: attempts may begin.
    pub fn start_placing(&mut self) {
        self.placing = true;
    }

    /// Attempts stop (lost leadership, shutdown); inputs still count.
    pub fn stop_placing(&mut self) {
        self.placing = false;
    }

    /// How many ranked Pods an [`Attempt`] tells (1 = only the chosen one, without scores by plugin).
    pub fn keep_ranked(&mut self, keep: usize) {
        self.keep = keep.max(1);
    }

    /// Who is told of stage boundaries.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observer = observer;
    }

    /// Takes what is to be done since the last call.
    pub fn drain_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    // ---- inputs ----------------------------------------------------------------------------------

    /// Takes one input. Costs what changed, not what is there.
    pub fn handle(&mut self, input: Input, now: Now) {
        match input {
            Input::Run(Delta::Applied(run)) => self.apply_run(run, now),
            Input::Run(Delta::Deleted { key, uid }) => self.delete_run(&key, &uid),
            Input::Pod(Delta::Applied(pod)) => self.cache.apply_pod(pod, now),
            Input::Pod(Delta::Deleted { key, uid }) => self.cache.delete_pod(&key, &uid),
            Input::Workspace(Delta::Applied(workspace)) => self.cache.apply_workspace(workspace),
            Input::Workspace(Delta::Deleted { key, uid }) => self.cache.delete_workspace(&key, &uid),
            Input::Answer(write, outcome) => self.answer(write, outcome, now),
            Input::Profiles(profiles) => self.change_profiles(profiles, now),
            Input::Timer => {}
        }
        self.digest();
    }

    fn apply_run(&mut self, run: Arc<RunObject>, now: Now) {
        let known = self.cache.run_id(&run.key);
        let before = known.and_then(|id| self.cache.run(id)).map(|entry| (entry.object.clone(), entry.place));
        if let (Some(id), Some((old, _))) = (known, &before) {
            if old.uid != run.uid {
                self.forget(id);
            } else if old.labels != run.labels
                || old.runtime != run.runtime
                || old.requests != run.requests
                || old.affinity != run.affinity
                || old.workspace != run.workspace
            {
                // Its class is about to change: take it out while the cache still knows it as it was.
                if let Some(entry) = self.cache.run(id) {
                    self.waiting.remove(id, entry);
                }
            }
        }
        let (id, _) = self.cache.apply_run(run.clone());
        if let Some(record) = self.records.get_mut(&id) {
            record.shown.clone_from(&run.shown);
        }
        self.restand(id, before.as_ref().filter(|(old, _)| old.uid == run.uid).map(|(old, _)| &**old), now);
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
                let _ = self.undo(id, now);
            }
            Standing::Idle => self.enqueue(id, None, now),
            Standing::Waiting => {
                let urgent = object.cancel_requested || object.invalid.is_some();
                let changed = old.is_some_and(|old| {
                    old.labels != object.labels
                        || old.affinity != object.affinity
                        || old.requests != object.requests
                        || old.workspace != object.workspace
                        || old.runtime != object.runtime
                });
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
    fn undo(&mut self, id: RunId, now: Now) -> bool {
        let written = self.records.get(&id).and_then(|record| record.written_version.as_ref());
        let undone = |object: &RunObject| object.phase == Phase::Pending && written.is_some_and(|written| newer(&object.resource_version, written));
        let Some(entry) = self.cache.run(id).filter(|entry| undone(&entry.object)) else { return false };
        let deleting = entry.object.deleting;
        self.cache.release(Reservation { run: id });
        self.stand(id, Standing::Idle);
        if !deleting {
            self.enqueue(id, None, now);
        }
        true
    }

    fn delete_run(&mut self, key: &ObjectKey, uid: &str) {
        let Some(id) = self.cache.run_id(key).filter(|id| self.cache.run(*id).is_some_and(|entry| &*entry.object.uid == uid)) else { return };
        self.forget(id);
        self.cache.delete_run(key, uid);
    }

    fn forget(&mut self, id: RunId) {
        self.leave_queue(id);
        self.records.remove(&id);
        if let Some((_, stuck)) = self.cache.run(id).and_then(|entry| self.stuck.get_mut(&entry.object.key.namespace)) {
            stuck.remove(&id);
        }
    }

    /// Takes a Run out of every queue it is in.
    fn leave_queue(&mut self, id: RunId) {
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
            self.records.remove(&id);
        } else if let Some(record) = self.records.get_mut(&id) {
            record.standing = standing;
            record.waiting_since_ms = None;
            record.diagnosis = None;
        }
    }

    fn enqueue(&mut self, id: RunId, cause: Option<WakeCause>, now: Now) {
        let Some(entry) = self.cache.run(id) else { return };
        let order = Reverse(age(entry));
        let stamp = &mut self.next_stamp;
        let record = self.records.entry(id).or_insert_with(|| {
            *stamp += 1;
            Record { shown: entry.object.shown.clone(), ..Record::new(*stamp, now) }
        });
        record.standing = Standing::Active;
        record.cause = cause;
        record.flush = false;
        self.active.push(id, order);
        if let Some(cause) = cause {
            self.stats.wakeups[cause as usize] += 1;
        }
    }

    fn back_off(&mut self, id: RunId, until_ms: u64) {
        self.leave_queue(id);
        if let Some(record) = self.records.get_mut(&id) {
            record.standing = Standing::Backoff;
            self.backoff.insert(id, until_ms);
            self.backoff_timers.push(Reverse((until_ms, id, record.stamp)));
        }
    }

    fn back_off_after_error(&mut self, id: RunId, now: Now) {
        self.stats.errors += 1;
        let Some(record) = self.records.get_mut(&id) else { return };
        let wait = self.profiles.backoff_initial_ms.saturating_mul(1 << record.errors.min(16)).min(self.profiles.backoff_max_ms);
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
            record.message_not_before_ms = now.mono_ms.saturating_add(MESSAGE_EVERY_MS);
            match outcome {
                WriteOutcome::Applied(_) => record.shown = Some(shown),
                WriteOutcome::Gone => {}
                WriteOutcome::Conflict | WriteOutcome::Failed => record.message_due = true,
            }
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
            if let (false, Kind::Bind(reservation)) = (self.undo(run, now), kind) {
                self.cache.confirm(reservation);
            }
            return;
        }
        if let Kind::Bind(reservation) = kind {
            self.stats.bind_conflicts += u64::from(outcome == WriteOutcome::Conflict);
            self.cache.release(reservation);
        }
        if self.cache.run(run).is_some_and(|entry| entry.object.deleting) {
            self.stand(run, Standing::Idle);
        } else {
            self.back_off_after_error(run, now);
        }
    }

    fn change_profiles(&mut self, profiles: Arc<Profiles>, now: Now) {
        self.shadows = shadows_of(&profiles);
        self.profiles = profiles;
        self.cycle.clear();
        let runs: Vec<RunId> = self.waiting.runs().collect();
        for run in runs {
            self.leave_queue(run);
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
        while let Some(nominee) = self.waiting.next_nominee(&self.cache, &mut self.cycle, &self.profiles) {
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
        while let Some(&Reverse((at, id, stamp))) = self.message_timers.peek() {
            if at > now.mono_ms {
                break;
            }
            self.message_timers.pop();
            if let Some(record) = self.records.get_mut(&id).filter(|r| r.stamp == stamp) {
                record.message_timer = false;
                self.write_message(id, now);
            }
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
        if self.placing && (!self.active.is_empty() || self.waiting.has_open()) {
            return Some(0);
        }
        let backoff = self.backoff_timers.peek().map(|Reverse((at, ..))| *at);
        let message = self.message_timers.peek().map(|Reverse((at, ..))| *at);
        [self.cache.next_stale_ms(), backoff, message, self.next_flush_ms].into_iter().flatten().min()
    }

    /// As [`Core::next_wake_ms`], without the alarm flush: `None` = nothing will happen by itself.
    pub fn next_event_ms(&self) -> Option<u64> {
        if self.placing && (!self.active.is_empty() || self.waiting.has_open()) {
            return Some(0);
        }
        let backoff = self.backoff_timers.peek().map(|Reverse((at, ..))| *at);
        let message = self.message_timers.peek().map(|Reverse((at, ..))| *at);
        [backoff, message].into_iter().flatten().min()
    }

    fn attempt(&mut self, id: RunId, now: Now) -> Option<Attempt> {
        let entry = self.cache.run(id)?;
        let object = entry.object.clone();
        let record = self.records.get_mut(&id)?;
        record.attempts = record.attempts.saturating_add(1);
        let (cause, flush, attempts, queued_ms) = (record.cause.take(), record.flush, record.attempts, record.queued_ms);
        let done = |result| Some(Attempt { key: object.key.clone(), uid: object.uid.clone(), result, cause, attempts, queued_ms, shadows: Vec::new() });
        if object.cancel_requested {
            self.terminate(id, &object, "Cancelled", "Cancelled", "cancelled by user".into());
            return done(AttemptResult::Terminates { phase: "Cancelled", reason: "Cancelled" });
        }
        if let Some(invalid) = &object.invalid {
            let reason = invalid.reason.as_str();
            self.terminate(id, &object, "Failed", reason, invalid.message.as_str().into());
            return done(AttemptResult::Terminates { phase: "Failed", reason });
        }
        if let Some(not_before) = object.retry_not_before_wall_ms.filter(|t| *t > now.wall_ms) {
            let wait = u64::try_from(not_before - now.wall_ms).unwrap_or(0);
            self.back_off(id, now.mono_ms.saturating_add(wait));
            return done(AttemptResult::Held);
        }
        self.observer.stage(Stage::AttemptStart);
        let outcome = self.cycle.attempt(&self.cache, self.profiles.of(&object.runtime), entry, self.keep);
        self.observer.stage(Stage::Decided);
        let shadows = self.ask_shadows(id, &object.runtime, &outcome);
        let result = match outcome {
            Outcome::Fits(choice) => self.place(id, &object, choice, flush, now),
            Outcome::Waits(wait) => self.wait(id, wait, now),
        };
        self.observer.stage(Stage::AttemptEnd);
        done(result).map(|attempt| Attempt { shadows, ..attempt })
    }

    fn ask_shadows(&mut self, id: RunId, runtime: &Arc<str>, outcome: &Outcome) -> Vec<ShadowChoice> {
        if self.shadows.is_empty() {
            return Vec::new();
        }
        let Some(entry) = self.cache.run(id) else { return Vec::new() };
        let chosen = outcome.pod();
        let mut answers = Vec::new();
        for (shadow, cycle) in &mut self.shadows {
            if !shadow.runtimes.is_empty() && !shadow.runtimes.contains(runtime) {
                continue;
            }
            let would = cycle.attempt(&self.cache, &shadow.profile, entry, 1).pod();
            let pod = would.and_then(|pod| self.cache.pod_key(pod)).map(|key| key.name.clone());
            answers.push(ShadowChoice { profile: shadow.profile.name.clone(), pod, agrees: would == chosen });
        }
        answers
    }

    fn place(&mut self, id: RunId, object: &RunObject, choice: Choice, flush: bool, now: Now) -> AttemptResult {
        let refused = self.reserve(id, &choice);
        if let Some(by) = refused {
            self.stats.reserve_conflicts += 1;
            self.back_off_after_error(id, now);
            return AttemptResult::Refused { by };
        }
        let Some((pod, pod_uid)) = self.cache.pod_view(choice.pod).map(|view| (view.name().clone(), view.uid().clone())) else {
            self.back_off_after_error(id, now);
            return AttemptResult::Held;
        };
        let note = self.note(id, &choice);
        let reservation = self.cache.assume(id, choice.pod);
        let write = self.write(id, &object.uid, Kind::Bind(reservation));
        self.effects.push(Effect::Bind(BindIntent { write, run: reference(object), pod, pod_uid: pod_uid.clone(), note }));
        self.stand(id, Standing::Assumed);
        self.under_way(id, write);
        self.stats.scheduled += 1;
        self.stats.placed_after_flush += u64::from(flush && self.noticed == self.noticed_at_flush);
        AttemptResult::Placed { pod_uid, ranked: choice.ranked }
    }

    fn reserve(&self, id: RunId, choice: &Choice) -> Option<(&'static str, Rejection)> {
        let entry = self.cache.run(id)?;
        let profile = self.profiles.of(&entry.object.runtime);
        if profile.reserves.is_empty() {
            return None;
        }
        let view = self.cache.pod_view(choice.pod)?;
        let prepares = prepare(&self.cache, profile, entry);
        profile.reserves.iter().find_map(|&index| {
            let plugin = &profile.plugins[index].plugin;
            let verdict = plugin.as_reserve()?.reserve(prepares.state(index, true), RunView { cache: &self.cache, entry }, view);
            verdict.err().map(|rejection| (plugin.name(), rejection))
        })
    }

    fn note(&self, id: RunId, choice: &Choice) -> BindNote {
        let mut note = BindNote::default();
        if let (Some(entry), Some(pod)) = (self.cache.run(id), self.cache.pod_view(choice.pod)) {
            let profile = self.profiles.of(&entry.object.runtime);
            for bind in profile.binds.iter().filter_map(|&index| profile.plugins[index].plugin.as_bind()) {
                bind.bind(RunView { cache: &self.cache, entry }, pod, &mut note);
            }
        }
        note.remarks.truncate(REMARKS_MAX);
        note
    }

    fn wait(&mut self, id: RunId, wait: Wait, now: Now) -> AttemptResult {
        self.stats.unschedulable += 1;
        for charge in &wait.diagnosis.rejections {
            *self.stats.rejections.entry((charge.plugin, charge.rejection.reason.code)).or_default() += u64::from(charge.pods);
        }
        if let Some(entry) = self.cache.run(id) {
            self.waiting.insert(&self.cache, self.profiles.of(&entry.object.runtime), id, entry, wait.scope, wait.wanted);
        }
        // Runs of one class are told the same, so they share it.
        let diagnosis = match &self.last_diagnosis {
            Some(last) if **last == wait.diagnosis => last.clone(),
            _ => Arc::new(wait.diagnosis),
        };
        self.last_diagnosis = Some(diagnosis.clone());
        if let Some(record) = self.records.get_mut(&id) {
            record.standing = Standing::Waiting;
            record.waiting_since_ms.get_or_insert(now.mono_ms);
            record.message_due = true;
            record.diagnosis = Some(diagnosis.clone());
        }
        self.arm_message(id, now);
        AttemptResult::Waits { diagnosis }
    }

    fn terminate(&mut self, id: RunId, object: &RunObject, phase: &'static str, reason: &'static str, message: Arc<str>) {
        let write = self.write(id, &object.uid, Kind::Terminate);
        self.effects.push(Effect::Terminate { write, run: reference(object), phase, reason, message });
        self.stand(id, Standing::Terminating);
        self.under_way(id, write);
    }

    fn under_way(&mut self, id: RunId, write: WriteId) {
        if let Some(record) = self.records.get_mut(&id) {
            record.write = Some(write);
            record.written_version = None;
        }
    }

    fn write(&mut self, run: RunId, uid: &Arc<str>, kind: Kind) -> WriteId {
        let write = WriteId(self.next_write);
        self.next_write += 1;
        self.writes.insert(write, InFlight { run, uid: uid.clone(), kind });
        write
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
