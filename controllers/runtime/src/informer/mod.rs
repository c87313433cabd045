//! One watch per kind: a shared store, and ordered deltas to everybody who listens.
//!
//! ```text
//! kube watcher ─► one object's JSON ─► read as T ─► Store ─► handlers (synchronous: indexes, workqueues), then
//!                                                     └───► subscribers (bounded channels; a full one holds the watch back)
//! ```
//! * T is lean: what the process needs of an object, made once in the watch task. The rest is dropped at once.
//! * A relist becomes deltas: what the new list lacks is [`Delta::Deleted`]; a namesake with another UID is Deleted, then
//!   Applied; what did not change makes no delta. After each list comes one [`Delta::Synced`].
//! * An object that doesn't decode is [`Delta::Invalid`], alone; it replaces what the store held under its name.
//! * Nothing is dropped. Handlers and subscribers may come at any time: they get the store as it is, then what follows.
//!
//! The store is written by the one watch task, before the handlers run: who is woken by a delta reads at least its state.

mod drive;
mod index;
mod raw;
mod retry;
mod store;

pub use drive::{Watch, WatchConfig};
pub use index::Index;
pub use store::{Change, Delta, Invalid, Stored};

use crate::key::ObjectKey;
use crate::lock;
use crate::workqueue::WorkQueue;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use store::{Entry, Store};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

/// The reading side of a watch. Clones share one store. Made with its [`Watch`] by [`informer`].
pub struct Informer<T> {
    shared: Arc<Shared<T>>,
}

/// A store without a watch yet, and the watch to run on it. `name` is a label in logs and metrics, as `runs`.
pub fn informer<T: Send + Sync + 'static>(name: &'static str) -> (Informer<T>, Watch<T>) {
    let (synced, _) = watch::channel(false);
    let shared = Arc::new(Shared {
        name,
        store: Store::default(),
        joining: Mutex::new(Vec::new()),
        joined: Notify::new(),
        relisting: Mutex::new(Vec::new()),
        relist: Notify::new(),
        synced,
        health: Mutex::new(Health::default()),
    });
    (Informer { shared: shared.clone() }, Watch::new(shared))
}

/// What an informer tells about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InformerStats {
    /// Objects in the store, undecodable ones included.
    pub objects: usize,
    /// Undecodable ones.
    pub invalid: usize,
    /// Whether the first list is complete.
    pub synced: bool,
    /// Complete lists so far.
    pub lists: u64,
    /// Failed lists and broken watches so far.
    pub errors: u64,
    /// Deltas so far, without Synced.
    pub deltas: u64,
    /// How long list and watch have been failing without a break; None while all is well. This is the store's staleness:
    /// an unbroken watch lags by no more than its connection.
    pub failing_for: Option<Duration>,
    /// Since the last object or list from the server; None before the first.
    pub last_event: Option<Duration>,
}

struct Shared<T> {
    name: &'static str,
    store: Store<T>,
    joining: Mutex<Vec<Sink<T>>>,
    joined: Notify,
    relisting: Mutex<Vec<oneshot::Sender<u64>>>,
    relist: Notify,
    synced: watch::Sender<bool>,
    health: Mutex<Health>,
}

#[derive(Default)]
struct Health {
    lists: u64,
    errors: u64,
    deltas: u64,
    invalid: usize,
    last_event: Option<Instant>,
    /// First error of the current streak, and when it is over unless another error comes.
    failing: Option<(Instant, Instant)>,
}

type Handler<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

enum Sink<T> {
    Handler(Handler<T>),
    Channel(mpsc::Sender<Delta<T>>),
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T> fmt::Debug for Informer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Informer<T> {
    /// The label it was made with.
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// The object of that name, if there is one and it decodes.
    pub fn get(&self, key: &ObjectKey) -> Option<Stored<T>> {
        self.shared.store.get(key, |entry| match entry {
            Entry::Valid(stored) => Some(stored.clone()),
            Entry::Invalid(_) => None,
        })?
    }

    /// Every decodable object, in no order. A copy, made shard by shard: not one moment's picture while the watch runs.
    pub fn list(&self) -> Vec<Stored<T>> {
        self.shared.store.valid()
    }

    /// Shows `look` every decodable object, in no order, without copying. It must not block, nor touch this informer.
    pub fn for_each(&self, look: impl FnMut(&Stored<T>)) {
        self.shared.store.for_each_valid(look);
    }

    /// Objects in the store, undecodable ones included.
    pub fn len(&self) -> usize {
        self.shared.store.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a first list is complete. Before, an absent object says nothing.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until [`is_synced`](Self::is_synced).
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        if synced.wait_for(|synced| *synced).await.is_err() {
            // The sender lives in `shared`, which we hold.
            futures::future::pending::<()>().await;
        }
    }

    /// Ordered deltas from now on, after the store as it is (Applied and Invalid of every object, then Synced if it is).
    ///
    /// At most `capacity` (at least 1) wait in the channel; then the watch itself waits. A dropped receiver is forgotten.
    pub fn subscribe(&self, capacity: usize) -> mpsc::Receiver<Delta<T>> {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        self.join(Sink::Channel(sender));
        receiver
    }

    /// Calls `handler` in the watch task, on every change in order, after the store holds it. It must not block.
    /// Handlers run in the order they were added, before any subscriber gets the delta.
    pub fn on_change(&self, handler: impl Fn(&Change<'_, T>) + Send + Sync + 'static) {
        self.join(Sink::Handler(Box::new(handler)));
    }

    /// Adds to `queue` the keys that `keys_of` names for each change.
    pub fn feed<K, I>(&self, queue: &WorkQueue<K>, keys_of: impl Fn(&Change<'_, T>) -> I + Send + Sync + 'static)
    where
        K: Clone + Eq + Hash + Send + Sync + 'static,
        I: IntoIterator<Item = K>,
    {
        let queue = queue.clone();
        self.on_change(move |change| keys_of(change).into_iter().for_each(|key| queue.add(key)));
    }

    /// An index of the objects by what `key_of` says of each; kept in the watch task, before handlers added later run.
    pub fn index<I>(&self, key_of: impl Fn(&ObjectKey, &T) -> Option<I> + Send + Sync + 'static) -> Index<I, T>
    where
        I: Clone + Eq + Hash + Send + Sync + 'static,
    {
        let index = Index::default();
        let kept = index.clone();
        self.on_change(move |change| kept.apply(change, &key_of));
        index
    }

    /// The numbers of this moment.
    pub fn stats(&self) -> InformerStats {
        let now = Instant::now();
        let health = lock(&self.shared.health);
        InformerStats {
            objects: self.len(),
            invalid: health.invalid,
            synced: self.is_synced(),
            lists: health.lists,
            errors: health.errors,
            deltas: health.deltas,
            failing_for: health.failing.filter(|(_, until)| now < *until).map(|(since, _)| now.saturating_duration_since(since)),
            last_event: health.last_event.map(|at| now.saturating_duration_since(at)),
        }
    }

    /// Lists anew, from the server's newest state, whatever the watch has shown: what was written before this call is in the store
    /// when the answer comes. Deltas tell what differed, and a Synced follows as after every list.
    ///
    /// Answers how many lists have then been complete: a subscriber that was there from the start has taken in this one with the
    /// Synced of that number. Never answers once the watch has ended; failing lists are retried.
    pub fn relist(&self) -> impl Future<Output = u64> + Send + use<T> {
        let (sender, listed) = oneshot::channel();
        lock(&self.shared.relisting).push(sender);
        self.shared.relist.notify_one();
        async move {
            match listed.await {
                Ok(lists) => lists,
                Err(_) => futures::future::pending().await,
            }
        }
    }

    fn join(&self, sink: Sink<T>) {
        lock(&self.shared.joining).push(sink);
        self.shared.joined.notify_one();
    }
}

#[cfg(test)]
mod tests;
