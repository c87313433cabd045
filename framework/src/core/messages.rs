//! Waiting messages: first after a second, later only when an attempt of that Run changed the text.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{Core, Effect, FIRST_MESSAGE_AFTER_MS, Kind, STUCK_EVERY_MS, Standing, reference};
use crate::cache::RunId;
use crate::diagnosis;
use crate::model::{Now, Shown};

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
        let write = self.write(id, &object.uid, Kind::Waiting(desired.clone()));
        self.effects.push(Effect::SetWaiting { write, run: reference(&object), shown: desired });
        self.stats.messages += 1;
    }

    pub(super) fn waiting_text(&mut self, id: RunId, now: Now) -> Option<Shown> {
        let object = self.cache.run(id)?.object.clone();
        let diagnosis = self.records.get(&id)?.diagnosis.clone()?;
        let stuck = if object.affinity.required.is_empty() { None } else { self.stuck_text(id, &object.key.namespace, now) };
        let reason = diagnosis.refused.as_ref().and_then(|(plugin, _)| self.profiles.of(&object.runtime).refusal_reason(plugin)).unwrap_or("Unschedulable");
        let message = diagnosis::message(&diagnosis, &object.runtime, stuck.as_deref());
        Some(Shown { reason: Arc::from(reason), message: Arc::from(message.as_str()) })
    }

    fn stuck_text(&mut self, id: RunId, namespace: &Arc<str>, now: Now) -> Option<Arc<str>> {
        let fresh = self.stuck.get(namespace).is_some_and(|(at, _)| now.mono_ms < at.saturating_add(STUCK_EVERY_MS));
        if !fresh {
            let in_namespace = |run: &RunId| self.cache.run(*run).is_some_and(|e| e.object.key.namespace == *namespace);
            let runs: Vec<RunId> = self
                .records
                .iter()
                .filter(|(_, r)| matches!(r.standing, Standing::Waiting | Standing::Active | Standing::Backoff))
                .map(|(id, _)| *id)
                .filter(in_namespace)
                .take(diagnosis::STUCK_NODES_MAX + 1)
                .collect();
            let found = diagnosis::find_stuck(&self.cache, &runs);
            self.stuck.insert(namespace.clone(), (now.mono_ms, found));
        }
        self.stuck.get(namespace).and_then(|(_, stuck)| stuck.get(&id).cloned())
    }
}
