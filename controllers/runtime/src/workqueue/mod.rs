//! A keyed work queue: a key waits at most once, and is never worked on twice at the same time.
//!
//! ```text
//!            add                       next                  done, not re-added
//!  (absent) ─────► ready, in order ──────────► processing ─────────────────────► (absent)
//!     │               ▲     ▲                   │     ▲ add: marked to run again
//!     │ add_after     │     └───────────────────┘─────┘
//!     └────► delayed ─┘ when due              done, re-added
//! ```
//! A delayed key that is added is worked on at once, and again when its delay is over. Failures are counted by key:
//! [`WorkQueue::retry`] delays by [`Backoff`], [`WorkQueue::forget`] resets. The queue holds at most one entry per live key
//! in each of its parts, so it is bounded by the objects it is fed from.

mod state;
mod workers;

pub use workers::{Next, run_workers};

use crate::backoff::Backoff;
use crate::lock;
use state::State;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a queue counts, under the names of client-go's `workqueue_*` metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// `workqueue_depth`: keys that are ready and not being worked on.
    pub depth: usize,
    /// `workqueue_adds_total`: keys that became ready; an add that changes nothing is not counted.
    pub adds: u64,
    /// `workqueue_retries_total`.
    pub retries: u64,
    /// Keys whose time has not come.
    pub delayed: usize,
    /// Keys being worked on.
    pub processing: usize,
    /// `workqueue_unfinished_work_seconds`: summed over the keys being worked on.
    pub unfinished: Duration,
    /// `workqueue_longest_running_processor_seconds`.
    pub longest_running: Duration,
}

/// Told of durations; feeds `workqueue_queue_duration_seconds` and `workqueue_work_duration_seconds`. Must not block.
pub trait QueueObserver: Send + Sync + 'static {
    /// A key was taken after having been ready for `waited`.
    fn taken(&self, queue: &'static str, waited: Duration);
    /// A key was finished after `worked`.
    fn finished(&self, queue: &'static str, worked: Duration);
}

/// Observes nothing.
impl QueueObserver for () {
    fn taken(&self, _: &'static str, _: Duration) {}
    fn finished(&self, _: &'static str, _: Duration) {}
}

/// See the module. Clones share the queue.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    name: &'static str,
    backoff: Backoff,
    observer: Arc<dyn QueueObserver>,
    state: Mutex<State<K>>,
    changed: Notify,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// A queue whose failing keys wait 1 s … 10 s. `name` is the metrics' label `name`.
    pub fn new(name: &'static str) -> Self {
        Self::with(name, Backoff::KEYS, Arc::new(()))
    }

    /// A queue with a backoff and an observer of its own.
    pub fn with(name: &'static str, backoff: Backoff, observer: Arc<dyn QueueObserver>) -> Self {
        Self { shared: Arc::new(Shared { name, backoff, observer, state: Mutex::new(State::new()), changed: Notify::new() }) }
    }

    /// The queue's name.
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// Makes `key` ready, or, if it is being worked on, ready again afterwards. Nothing if it is ready already or the queue is shut.
    pub fn add(&self, key: K) {
        if lock(&self.shared.state).add(key, Instant::now()) {
            self.shared.changed.notify_one();
        }
    }

    /// [`add`](Self::add) after `delay`. Of several pending delays of one key the shortest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        lock(&self.shared.state).add_at(key, Instant::now() + delay);
        self.shared.changed.notify_one();
    }

    /// [`add_after`](Self::add_after) the key's backoff, which grows with each call until [`forget`](Self::forget).
    pub fn retry(&self, key: K) {
        let now = Instant::now();
        let mut state = lock(&self.shared.state);
        let delay = self.shared.backoff.delay(state.fail(&key));
        state.add_at(key, now + delay);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Forgets the failures of `key`.
    pub fn forget(&self, key: &K) {
        lock(&self.shared.state).forget(key);
    }

    /// Waits for a key and takes it. None once the queue is [shut down](Self::shut_down).
    pub async fn next(&self) -> Option<Taken<K>> {
        loop {
            let changed = self.shared.changed.notified();
            let due = {
                let now = Instant::now();
                let mut state = lock(&self.shared.state);
                if state.is_shut() {
                    self.shared.changed.notify_one();
                    return None;
                }
                state.release_due(now);
                if let Some((key, waited)) = state.take(now) {
                    if state.has_ready() {
                        self.shared.changed.notify_one();
                    }
                    drop(state);
                    self.shared.observer.taken(self.shared.name, waited);
                    return Some(Taken { key, queue: self.clone() });
                }
                state.next_due()
            };
            match due {
                None => changed.await,
                Some(due) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(due) => {}
                    }
                }
            }
        }
    }

    /// Refuses further adds and ends every [`next`](Self::next). Keys being worked on may finish; what waits is left.
    pub fn shut_down(&self) {
        lock(&self.shared.state).shut();
        self.shared.changed.notify_waiters();
        self.shared.changed.notify_one();
    }

    /// The numbers of this moment.
    pub fn stats(&self) -> QueueStats {
        lock(&self.shared.state).stats(Instant::now())
    }

    fn done(&self, key: &K) {
        let (worked, again) = lock(&self.shared.state).done(key, Instant::now());
        if again {
            self.shared.changed.notify_one();
        }
        self.shared.observer.finished(self.shared.name, worked);
    }
}

/// A key that is being worked on; dropping it ends that, whatever happened.
pub struct Taken<K: Clone + Eq + Hash> {
    key: K,
    queue: WorkQueue<K>,
}

impl<K: Clone + Eq + Hash> std::ops::Deref for Taken<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.key
    }
}

impl<K: Clone + Eq + Hash> Drop for Taken<K> {
    fn drop(&mut self) {
        self.queue.done(&self.key);
    }
}

#[cfg(test)]
mod tests;
