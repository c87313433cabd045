//! Kubernetes Events of the scheduler: what happened to a Run, for `kubectl describe`; bounded and off the critical path.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use berth_api::Run;
use berth_api::constants::reason;
use berth_framework::core::RunRef;
use berth_framework::model::{PodObject, Shown};
use berth_runtime::apiclient::CallError;
use berth_runtime::events::{EventType, Occurrence, Recorder, Regarding};
use berth_runtime::informer::{Change, Informer};
use berth_runtime::lock;
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::FxHashMap;

use super::dispatch::intent::{What, assigned_message};
use super::objects::store_key;

/// Runs of which it is remembered what their last FailedScheduling Event told.
const TOLD_MAX: usize = 8_192;

/// Publishes the scheduler's Events; clones share what was told.
#[derive(Clone)]
pub struct Announcer {
    recorder: Recorder,
    scheduled_events: bool,
    told: Arc<Mutex<Told>>,
}

/// Codes of the reasons that were told last, by UID.
#[derive(Default)]
struct Told {
    last: FxHashMap<Arc<str>, Arc<[&'static str]>>,
    order: VecDeque<Arc<str>>,
}

impl Told {
    /// `true` if a Run was not told this last (as far as remembered).
    fn is_news(&mut self, uid: &Arc<str>, codes: &Arc<[&'static str]>) -> bool {
        match self.last.entry(uid.clone()) {
            Entry::Occupied(mut last) => return last.insert(codes.clone()) != *codes,
            Entry::Vacant(first) => first.insert(codes.clone()),
        };
        self.order.push_back(uid.clone());
        if self.order.len() > TOLD_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.last.remove(&oldest);
        }
        true
    }
}

impl Announcer {
    /// `scheduled_events`: whether a placement is an Event (it costs a write each, beside the one that matters).
    pub fn new(recorder: Recorder, scheduled_events: bool) -> Self {
        Self { recorder, scheduled_events, told: Arc::default() }
    }

    /// A Run was placed.
    pub fn scheduled(&self, run: &RunRef, pod: &str, remarks: &[String]) {
        if !self.scheduled_events {
            return;
        }
        let mut note = assigned_message(pod);
        for remark in remarks {
            note.push_str("; ");
            note.push_str(remark);
        }
        self.publish(run, EventType::Normal, "Scheduled", note);
    }

    /// A Run shows that it waits; told whenever the reasons are others than those told last, not when only their numbers are.
    pub fn failed_scheduling(&self, run: &RunRef, shown: &Shown, codes: &Arc<[&'static str]>) {
        let news = lock(&self.told).is_news(&run.uid, codes);
        if news {
            self.publish(run, EventType::Warning, "FailedScheduling", format!("{}: {}", shown.reason, shown.message));
        }
    }

    /// A Run was ended without being placed.
    pub fn ended(&self, run: &RunRef, reason: &'static str, message: &str) {
        let type_ = if reason == reason::CANCELLED { EventType::Normal } else { EventType::Warning };
        self.publish(run, type_, reason, message.to_owned());
    }

    /// The API server refuses what should be written to a Run: then this Event is all that its owner sees.
    pub fn not_written(&self, run: &RunRef, what: &What, error: &CallError) {
        let (reason, intended) = match what {
            What::Bind { pod, .. } => ("FailedBinding", assigned_message(pod)),
            What::Waiting { shown, .. } => ("FailedScheduling", shown.message.to_string()),
            What::Terminate { message, reason, .. } => (*reason, message.to_string()),
        };
        self.publish(run, EventType::Warning, reason, format!("{intended}; the API server does not store it: {error}"));
    }

    /// Warns of every Pod whose capacity annotations are ignored, when they appear and whenever they change.
    pub fn watch_capacity(&self, pods: &Informer<PodObject>) {
        let recorder = self.recorder.clone();
        pods.on_change(move |change: &Change<'_, PodObject>| {
            let Some(pod) = change.new.filter(|new| !new.object.bad_capacity.is_empty()) else { return };
            if change.old.is_some_and(|old| old.uid == pod.uid && old.object.bad_capacity == pod.object.bad_capacity) {
                return;
            }
            let note = capacity_note(&pod.object.bad_capacity);
            tracing::warn!(pod = %pod.key, "{note}");
            recorder.publish(Occurrence {
                regarding: Regarding::of::<Pod>(pod.key.clone(), pod.uid.clone()),
                type_: EventType::Warning,
                reason: "InvalidCapacity",
                action: "Ignored",
                note,
            });
        });
    }

    fn publish(&self, run: &RunRef, type_: EventType, reason: &'static str, note: String) {
        self.recorder.publish(Occurrence { regarding: Regarding::of::<Run>(store_key(&run.key), run.uid.clone()), type_, reason, action: "Scheduling", note });
    }
}

fn capacity_note(bad: &[(String, String)]) -> String {
    let each: Vec<_> = bad.iter().map(|(resource, value)| format!("{resource}={value:?}")).collect();
    format!("capacity is no quantity from 0 to 9223372036854775807 and is ignored: {}", each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_reasons_are_told_the_same_are_not_and_only_so_many_are_remembered() {
        let mut told = Told::default();
        let mut is_news = |uid: &str, codes: &[&'static str]| told.is_news(&uid.into(), &codes.into());
        let (full, stale): (&[&'static str], &[&'static str]) = (&["InsufficientCapacity"], &["HeartbeatStale", "InsufficientCapacity"]);
        let rows = [(&[][..], true), (&[], false), (full, true), (full, false), (stale, true), (full, true), (full, false)];
        for (at, (codes, expected)) in rows.into_iter().enumerate() {
            assert_eq!(is_news("u", codes), expected, "row {at}");
        }
        for n in 0..TOLD_MAX {
            assert!(is_news(&n.to_string(), full));
        }
        assert!(is_news("u", full), "forgotten");
        assert_eq!((told.last.len(), told.order.len()), (TOLD_MAX, TOLD_MAX));
    }

    #[test]
    fn the_note_names_resource_and_value() {
        let bad = [("gpu".to_owned(), "-1".to_owned())];
        assert_eq!(capacity_note(&bad), "capacity is no quantity from 0 to 9223372036854775807 and is ignored: gpu=\"-1\"");
    }
}
