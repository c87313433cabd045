//! The state of a workqueue: a plain value, told the time.

use super::QueueStats;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// See the diagram of [`super`].
pub(super) struct State<K> {
    /// Ready keys in order.
    ready: VecDeque<K>,
    /// Ready or to be run again: since when.
    dirty: FxHashMap<K, Instant>,
    /// Being worked on: since when.
    processing: FxHashMap<K, Instant>,
    /// By due time and order of arrival; `due` is its inverse.
    delayed: BTreeMap<(Instant, u64), K>,
    due: FxHashMap<K, (Instant, u64)>,
    /// Failures since the last success.
    failures: FxHashMap<K, u32>,
    arrivals: u64,
    adds: u64,
    retries: u64,
    shut: bool,
}

impl<K: Clone + Eq + Hash> State<K> {
    pub fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            dirty: FxHashMap::default(),
            processing: FxHashMap::default(),
            delayed: BTreeMap::new(),
            due: FxHashMap::default(),
            failures: FxHashMap::default(),
            arrivals: 0,
            adds: 0,
            retries: 0,
            shut: false,
        }
    }

    /// True if `key` became ready to be taken.
    pub fn add(&mut self, key: K, now: Instant) -> bool {
        if self.shut || self.dirty.contains_key(&key) {
            return false;
        }
        self.dirty.insert(key.clone(), now);
        self.adds += 1;
        if self.processing.contains_key(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    pub fn add_at(&mut self, key: K, at: Instant) {
        if self.shut {
            return;
        }
        if let Some(earlier) = self.due.get(&key) {
            if earlier.0 <= at {
                return;
            }
            self.delayed.remove(earlier);
        }
        self.arrivals += 1;
        self.due.insert(key.clone(), (at, self.arrivals));
        self.delayed.insert((at, self.arrivals), key);
    }

    /// Adds the delayed keys whose time has come.
    pub fn release_due(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key, now);
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn take(&mut self, now: Instant) -> Option<(K, Duration)> {
        let key = self.ready.pop_front()?;
        let since = self.dirty.remove(&key).unwrap_or(now);
        self.processing.insert(key.clone(), now);
        Some((key, now.saturating_duration_since(since)))
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// How long `key` was worked on, and whether it is ready again.
    pub fn done(&mut self, key: &K, now: Instant) -> (Duration, bool) {
        let worked = self.processing.remove(key).map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let again = self.dirty.contains_key(key);
        if again {
            self.ready.push_back(key.clone());
        }
        (worked, again)
    }

    /// Counts a failure; the number of failures before it.
    pub fn fail(&mut self, key: &K) -> u32 {
        self.retries += 1;
        let count = self.failures.entry(key.clone()).or_insert(0);
        let before = *count;
        *count = count.saturating_add(1);
        before
    }

    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub fn shut(&mut self) {
        self.shut = true;
    }

    pub fn is_shut(&self) -> bool {
        self.shut
    }

    pub fn stats(&self, now: Instant) -> QueueStats {
        let running = || self.processing.values().map(|since| now.saturating_duration_since(*since));
        QueueStats {
            depth: self.ready.len(),
            adds: self.adds,
            retries: self.retries,
            delayed: self.delayed.len(),
            processing: self.processing.len(),
            unfinished: running().sum(),
            longest_running: running().max().unwrap_or_default(),
        }
    }
}
