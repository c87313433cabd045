//! Waiting messages: first after a second, later only when an attempt of that Run changed the text.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_api::constants::reason;
use rustc_hash::FxHashSet;

use super::{Core, Effect, FIRST_MESSAGE_AFTER_MS, Kind, STUCK_EVERY_MS, Standing, reference};
use crate::cache::RunId;
use crate::cycle::Diagnosis;
use crate::diagnosis::{self, Stuck};
use crate::model::{Now, Shown};
use crate::profile::Profile;

/// The Runs of a namespace that have a record, and what was found out about them together.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    pub runs: FxHashSet<RunId>,
    /// Who of them waits in vain, as of the last search.
    pub stuck: Stuck,
    searched_ms: Option<u64>,
}

/// What a Run that waits for this is told.
fn shown(profile: &Profile, diagnosis: &Diagnosis, runtime: &str, stuck: Option<&str>) -> Shown {
    let reason = diagnosis.refused.as_ref().and_then(|(plugin, _)| profile.refusal_reason(plugin)).unwrap_or(reason::UNSCHEDULABLE);
    Shown { reason: Arc::from(reason), message: Arc::from(diagnosis::message(diagnosis, runtime, stuck)) }
}

impl Core {
    /// Sets the timer of the Run's message, if an attempt changed what there is to say.
    pub(super) fn arm_message(&mut self, id: RunId, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let Some(since) = record.waiting_since_ms else { return };
        if record.message_timer || record.message_in_flight || !record.message_due {
            return;
        }
        let due = since.saturating_add(FIRST_MESSAGE_AFTER_MS).max(record.message_not_before_ms).max(now.mono_ms);
        record.message_timer = true;
        self.message_timers.push(Reverse((due, id, record.stamp)));
    }

    pub(super) fn write_message(&mut self, id: RunId, now: Now) {
        let Some(record) = self.records.get(&id) else { return };
        if record.standing != Standing::Waiting || record.message_in_flight {
            // Its next attempt, or the answer, sets the timer again.
            return;
        }
        if record.waiting_since_ms.is_none_or(|since| now.mono_ms < since.saturating_add(FIRST_MESSAGE_AFTER_MS)) {
            // It was placed in the meantime, in vain: its wait began anew.
            self.arm_message(id, now);
            return;
        }
        let Some(desired) = self.waiting_text(id, now) else { return };
        let Some(object) = self.cache.run(id).map(|entry| entry.object.clone()) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        record.message_due = false;
        if record.shown.as_ref() == Some(&desired) {
            return;
        }
        record.message_in_flight = true;
        let codes = record.diagnosis.as_ref().map(|diagnosis| diagnosis.codes()).unwrap_or_default().into();
        let write = self.write(id, &object.uid, Kind::Waiting(desired.clone()));
        self.effects.push(Effect::SetWaiting { write, run: reference(&object), shown: desired, codes });
        self.stats.messages += 1;
    }

    pub(super) fn waiting_text(&mut self, id: RunId, now: Now) -> Option<Shown> {
        let diagnosis = self.records.get(&id)?.diagnosis.clone()?;
        self.text_of(id, &diagnosis, now)
    }

    /// What the Run shows if it waits for this.
    pub(super) fn text_of(&mut self, id: RunId, diagnosis: &Diagnosis, now: Now) -> Option<Shown> {
        let object = self.cache.run(id)?.object.clone();
        let stuck = if object.affinity.required.is_empty() { None } else { self.stuck_text(id, &object.key.namespace, now) };
        Some(shown(self.profiles.of(&object.runtime), diagnosis, &object.runtime, stuck.as_deref()))
    }

    fn stuck_text(&mut self, id: RunId, namespace: &Arc<str>, now: Now) -> Option<Arc<str>> {
        let own = self.namespaces.get_mut(namespace)?;
        if own.searched_ms.is_none_or(|at| now.mono_ms >= at.saturating_add(STUCK_EVERY_MS)) {
            let to_be_placed = |run: &RunId| {
                let standing = self.records.get(run).map(|record| record.standing);
                matches!(standing, Some(Standing::Waiting | Standing::Active | Standing::Backoff))
            };
            let runs: Vec<RunId> = own.runs.iter().copied().filter(to_be_placed).take(diagnosis::STUCK_NODES_MAX + 1).collect();
            self.searched += runs.len() as u64;
            own.stuck = diagnosis::find_stuck(&self.cache, &runs);
            own.searched_ms = Some(now.mono_ms);
        }
        own.stuck.get(&id).cloned()
    }
}
