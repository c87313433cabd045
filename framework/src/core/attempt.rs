//! One attempt: the decision, what shadow profiles would have done, Reserve and Bind, or why the Run waits.

use std::sync::Arc;

use berth_api::constants::reason;

use super::{Attempt, AttemptResult, BindIntent, Core, Effect, InFlight, Kind, ShadowChoice, Standing, WriteId, reference};
use crate::cache::RunId;
use crate::cycle::{Choice, Outcome, Wait};
use crate::evaluate::Prepares;
use crate::model::{Now, RunObject};
use crate::observe::{Lap, Point, Status};
use crate::plugin::{BindNote, Rejection};
use crate::profile::Profile;
use crate::views::{PodId, RunView};

/// How many remarks of Bind plugins are kept, and how long each may be, bytes.
const REMARKS_MAX: usize = 8;
const REMARK_BYTES_MAX: usize = 128;

impl Core {
    pub(super) fn attempt(&mut self, id: RunId, now: Now) -> Option<Attempt> {
        let entry = self.cache.run(id)?;
        let object = entry.object.clone();
        let record = self.records.get_mut(&id)?;
        record.attempts = record.attempts.saturating_add(1);
        record.attempted_ms = Some(now.mono_ms);
        let (cause, flush, attempts, queued_ms) = (record.cause, record.flush, record.attempts, record.queued_ms);
        let done = |result| Some(Attempt { key: object.key.clone(), uid: object.uid.clone(), result, cause, attempts, queued_ms, shadows: Vec::new() });
        if object.cancel_requested {
            self.terminate(id, &object, "Cancelled", reason::CANCELLED, "cancelled by user".into());
            return done(AttemptResult::Terminates { phase: "Cancelled", reason: reason::CANCELLED });
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
        let at = self.profiles.place_of(&object.runtime);
        let profile = self.profiles.at(at).clone();
        self.observer.lap(Lap::AttemptStart { profile: at });
        let (outcome, prepares) = self.cycle.attempt(&self.cache, &profile, entry, self.keep, &mut *self.observer);
        self.observer.lap(Lap::Decided(if outcome.pod().is_some() { Point::Score } else { Point::Filter }));
        let shadows = self.ask_shadows(id, &object.runtime, &outcome);
        let result = match outcome {
            Outcome::Waits(wait) => self.wait(id, at, wait, now),
            Outcome::Fits(choice) => match self.reserve(id, &profile, &prepares, choice.pod) {
                None => self.place(id, &object, &profile, choice, flush, now),
                Some(by) => {
                    self.stats.reserve_conflicts += 1;
                    self.back_off_after_error(id, now);
                    AttemptResult::Refused { by }
                }
            },
        };
        self.observer.lap(Lap::AttemptEnd);
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
            let (outcome, _) = cycle.attempt(&self.cache, &shadow.profile, entry, 1, &mut ());
            let would = outcome.pod();
            let pod = would.and_then(|pod| self.cache.pod_key(pod)).map(|key| key.name.clone());
            answers.push(ShadowChoice { profile: shadow.profile.name.clone(), pod, agrees: would == chosen });
        }
        self.observer.lap(Lap::Shadows);
        answers
    }

    fn place(&mut self, id: RunId, object: &RunObject, profile: &Profile, choice: Choice, flush: bool, now: Now) -> AttemptResult {
        let Some((pod, pod_uid)) = self.cache.pod_view(choice.pod).map(|view| (view.name().clone(), view.uid().clone())) else {
            self.back_off_after_error(id, now);
            return AttemptResult::Held;
        };
        let note = self.note(id, profile, choice.pod);
        self.cache.assume(id, choice.pod);
        let write = self.write(id, &object.uid, Kind::Bind);
        self.effects.push(Effect::Bind(BindIntent { write, run: reference(object), pod, pod_uid: pod_uid.clone(), note }));
        self.stand(id, Standing::Assumed);
        self.under_way(id, write);
        self.stats.scheduled += 1;
        self.stats.placed_after_flush += u64::from(flush && self.noticed == self.noticed_at_flush);
        AttemptResult::Placed { pod_uid, ranked: choice.ranked }
    }

    /// Who of the Reserve plugins says no, and why.
    fn reserve(&mut self, id: RunId, profile: &Profile, prepares: &Prepares, pod: PodId) -> Option<(&'static str, Rejection)> {
        let run = RunView { cache: &self.cache, entry: self.cache.run(id)? };
        let view = self.cache.pod_view(pod)?;
        for &plugin in &profile.reserves {
            let asked = &profile.plugins[plugin].plugin;
            let Some(reserve) = asked.as_reserve() else { continue };
            let verdict = reserve.reserve(prepares.state(plugin, true), run, view);
            let status = if verdict.is_ok() { Status::Success } else { Status::Unschedulable };
            self.observer.lap(Lap::Plugin { point: Point::Reserve, plugin, status, asked: 1 });
            if let Err(rejection) = verdict {
                return Some((asked.name(), rejection));
            }
        }
        None
    }

    fn note(&mut self, id: RunId, profile: &Profile, pod: PodId) -> BindNote {
        let mut note = BindNote::default();
        if let (Some(entry), Some(pod)) = (self.cache.run(id), self.cache.pod_view(pod)) {
            for &plugin in &profile.binds {
                let Some(bind) = profile.plugins[plugin].plugin.as_bind() else { continue };
                bind.bind(RunView { cache: &self.cache, entry }, pod, &mut note);
                self.observer.lap(Lap::Plugin { point: Point::Bind, plugin, status: Status::Success, asked: 1 });
            }
        }
        note.remarks.truncate(REMARKS_MAX);
        for remark in &mut note.remarks {
            remark.truncate(remark.floor_char_boundary(REMARK_BYTES_MAX));
        }
        note
    }

    fn wait(&mut self, id: RunId, profile: usize, wait: Wait, now: Now) -> AttemptResult {
        self.stats.unschedulable += 1;
        for charge in &wait.diagnosis.rejections {
            *self.stats.rejections.entry((charge.plugin, charge.rejection.reason.code)).or_default() += u64::from(charge.pods);
        }
        if let Some(entry) = self.cache.run(id) {
            self.waiting.insert(&self.cache, self.profiles.at(profile), id, entry, wait.scope, wait.wants);
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
            record.counted_under = Some(self.unschedulable.add(profile, &diagnosis));
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

    pub(super) fn write(&mut self, run: RunId, uid: &Arc<str>, kind: Kind) -> WriteId {
        let write = WriteId(self.next_write);
        self.next_write += 1;
        self.writes.insert(write, InFlight { run, uid: uid.clone(), kind });
        write
    }
}
