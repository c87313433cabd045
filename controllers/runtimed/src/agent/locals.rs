//! The attempts that stand on this machine, and what they hold of the Pod.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use berth_runtime::ObjectKey;

use super::plan::{Local, Standing};
use super::store::Record;
use crate::shim::spec::ProcessId;
use crate::shim::tree;

/// One attempt.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What was recorded of it.
    pub record: Record,
    /// Where it stands.
    pub standing: Standing,
    /// The version of the Run that our last write was based on: as long as the cache shows it, the cache is behind us.
    pub written_on: Option<String>,
}

impl Entry {
    /// What a plan needs to know.
    pub fn local(&self) -> Local<'_> {
        Local { uid: &self.record.uid, attempt: self.record.attempt, standing: &self.standing }
    }
}

/// All of them, bounded by the room of the Pod: nothing gets in that does not fit.
#[derive(Default)]
pub struct Locals {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    capacity: BTreeMap<String, i64>,
    /// Runs that wait for room.
    waiting: HashSet<ObjectKey>,
    /// Processes that KILL did not end, with what their Runs held.
    survivors: Vec<(Vec<ProcessId>, BTreeMap<String, i64>)>,
}

/// Whether there was room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in.
    Admitted,
    /// Not now; its key is handed out when room comes.
    Full,
}

impl Locals {
    fn lock(&self) -> MutexGuard<'_, State> {
        berth_runtime::lock(&self.state)
    }

    /// What the Pod offers. The keys of Runs that wait, if it offers more than before.
    pub fn set_capacity(&self, capacity: BTreeMap<String, i64>) -> Vec<ObjectKey> {
        let mut state = self.lock();
        if state.capacity == capacity {
            return Vec::new();
        }
        state.capacity = capacity;
        state.waiting.drain().collect()
    }

    /// Lets an attempt in, as Claimed, if everything it requests fits beside what is here. One that is here already stays as it is.
    pub fn admit(&self, record: &Record) -> Admission {
        let mut state = self.lock();
        if state.entries.contains_key(&record.uid) {
            return Admission::Admitted;
        }
        state.forget_the_dead();
        let fits = record.requests.iter().all(|(resource, amount)| {
            let offered = state.capacity.get(resource).copied().unwrap_or(0);
            state.held(resource).saturating_add(*amount) <= offered
        });
        if !fits {
            state.waiting.insert(ObjectKey::new(record.namespace.as_str(), record.name.as_str()));
            return Admission::Full;
        }
        state.insert(record.clone());
        Admission::Admitted
    }

    /// Puts an attempt in that has its room already.
    pub fn insert(&self, record: Record) {
        self.lock().insert(record);
    }

    /// Takes an attempt out; the keys of Runs that wait for room.
    pub fn remove(&self, uid: &str) -> Vec<ObjectKey> {
        let mut state = self.lock();
        if let Some(Entry { record, standing: Standing::Ended(exit), .. }) = state.entries.remove(uid)
            && !exit.survivors.is_empty()
        {
            state.survivors.push((exit.survivors, record.requests));
        }
        state.waiting.drain().collect()
    }

    /// The attempt of that Run.
    pub fn get(&self, uid: &str) -> Option<Entry> {
        self.lock().entries.get(uid).cloned()
    }

    /// Every attempt of Runs of that name, whatever their UID.
    pub fn named(&self, key: &ObjectKey) -> Vec<Entry> {
        let is = |entry: &&Entry| *entry.record.namespace == *key.namespace && *entry.record.name == *key.name;
        self.lock().entries.values().filter(is).cloned().collect()
    }

    /// Changes the attempt of that Run, if it is here.
    pub fn update(&self, uid: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().entries.get_mut(uid) {
            change(entry);
        }
    }

    /// Whether anything of that Run was started here.
    pub fn has_started(&self, uid: &str) -> bool {
        self.lock().entries.get(uid).is_some_and(|entry| entry.standing != Standing::Claimed)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Entry> {
        self.lock().entries.values().cloned().collect()
    }

    /// How many execute.
    pub fn executing(&self) -> usize {
        self.lock().entries.values().filter(|entry| matches!(entry.standing, Standing::Executing { .. })).count()
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether none is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a workspace of that UID is in use.
    pub fn uses_workspace(&self, uid: &str) -> bool {
        self.lock().entries.values().any(|entry| entry.record.workspace.as_ref().is_some_and(|workspace| workspace.uid == uid))
    }

    /// How many processes still live that could not be killed.
    pub fn survivors(&self) -> usize {
        let mut state = self.lock();
        state.forget_the_dead();
        state.survivors.iter().map(|(processes, _)| processes.len()).sum()
    }
}

impl State {
    fn insert(&mut self, record: Record) {
        self.entries.insert(record.uid.clone(), Entry { record, standing: Standing::Claimed, written_on: None });
    }

    fn held(&self, resource: &str) -> i64 {
        let entries = self.entries.values().map(|entry| &entry.record.requests);
        let requests = entries.chain(self.survivors.iter().map(|(_, requests)| requests));
        requests.filter_map(|requests| requests.get(resource)).fold(0, |sum, amount| sum.saturating_add(*amount))
    }

    fn forget_the_dead(&mut self) {
        for (processes, _) in &mut self.survivors {
            processes.retain(|process| tree::lives(*process));
        }
        self.survivors.retain(|(processes, _)| !processes.is_empty());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn record(uid: &str, requests: &[(&str, i64)]) -> Record {
        Record {
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            pod_uid: String::new(),
            attempt: 1,
            requests: requests.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect(),
            workspace: None,
            claimed_ms: 0,
            started: false,
        }
    }

    #[test]
    fn every_requested_resource_must_fit_and_room_wakes_who_waits() {
        let locals = Locals::default();
        locals.set_capacity(BTreeMap::from([("runs".to_owned(), 3), ("gpu".to_owned(), 1)]));
        assert_eq!(locals.admit(&record("a", &[("runs", 1), ("gpu", 1)])), Admission::Admitted);
        assert_eq!(locals.admit(&record("a", &[("runs", 1), ("gpu", 1)])), Admission::Admitted, "it is here already");
        assert_eq!(locals.admit(&record("b", &[("runs", 1), ("gpu", 1)])), Admission::Full);
        assert_eq!(locals.admit(&record("c", &[("runs", 3)])), Admission::Full);
        assert_eq!(locals.admit(&record("d", &[("runs", 1), ("fpga", 1)])), Admission::Full, "not offered");
        assert_eq!(locals.admit(&record("e", &[("runs", i64::MAX)])), Admission::Full);
        assert_eq!(locals.admit(&record("f", &[("runs", 2)])), Admission::Admitted);
        let mut woken: Vec<String> = locals.remove("a").iter().map(|key| key.name.to_string()).collect();
        woken.sort();
        assert_eq!(woken, ["b", "c", "d", "e"]);
        assert_eq!(locals.admit(&record("b", &[("runs", 1), ("gpu", 1)])), Admission::Admitted);
        assert_eq!(locals.len(), 2);
    }

    #[test]
    fn what_cant_be_killed_keeps_its_room_while_it_lives() {
        use crate::shim::spec::{Exit, Outcome};
        let locals = Locals::default();
        locals.set_capacity(BTreeMap::from([("runs".to_owned(), 1)]));
        let pid = i32::try_from(std::process::id()).unwrap();
        let alive = ProcessId { pid, start_ticks: tree::start_ticks(pid).unwrap() };
        for (process, expected) in [(alive, Admission::Full), (ProcessId { pid, start_ticks: 0 }, Admission::Admitted)] {
            locals.lock().survivors.clear();
            locals.insert(record("a", &[("runs", 1)]));
            let exit = Exit { outcome: Outcome::Stopped, stderr_tail: String::new(), survivors: vec![process] };
            locals.update("a", |entry| entry.standing = Standing::Ended(exit));
            locals.remove("a");
            assert_eq!(locals.admit(&record("b", &[("runs", 1)])), expected);
        }
    }
}
