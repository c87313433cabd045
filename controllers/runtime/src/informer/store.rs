//! What an informer holds of each object, and what it tells of each change.

use crate::key::ObjectKey;
use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use std::sync::Arc;

/// An object of the store.
#[derive(Debug)]
pub struct Stored<T> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`: the precondition of a write based on this state.
    pub resource_version: Arc<str>,
    /// What was kept of the object.
    pub object: Arc<T>,
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), uid: self.uid.clone(), resource_version: self.resource_version.clone(), object: self.object.clone() }
    }
}

/// An object that the server holds and our types can't read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Arc<str>,
    /// What the decoder said.
    pub error: Arc<str>,
}

/// What a subscriber gets. Per key the order is that of the server.
#[derive(Debug)]
pub enum Delta<T> {
    /// The object exists in this state.
    Applied(Stored<T>),
    /// The object of that name and UID is gone, or no longer selected by the watch's label selector.
    Deleted {
        /// Namespace and name.
        key: ObjectKey,
        /// `metadata.uid` of the one that is gone.
        uid: Arc<str>,
        /// Its last state that was told; None if that was [`Delta::Invalid`].
        last: Option<Arc<T>>,
    },
    /// The object exists in a state that doesn't decode. Replaces an earlier Applied of the same name.
    Invalid(Invalid),
    /// A list is complete: everything that existed has been told, everything that doesn't has been deleted.
    Synced,
}

impl<T> Clone for Delta<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Applied(stored) => Self::Applied(stored.clone()),
            Self::Deleted { key, uid, last } => Self::Deleted { key: key.clone(), uid: uid.clone(), last: last.clone() },
            Self::Invalid(invalid) => Self::Invalid(invalid.clone()),
            Self::Synced => Self::Synced,
        }
    }
}

/// What a handler gets: a change with both sides, after the store holds the new one.
#[derive(Debug)]
pub struct Change<'a, T> {
    /// Namespace and name.
    pub key: &'a ObjectKey,
    /// The decodable state before; None if there was none.
    pub old: Option<&'a Stored<T>>,
    /// The decodable state now; None if the object is gone or doesn't decode.
    pub new: Option<&'a Stored<T>>,
    /// The object exists and doesn't decode.
    pub invalid: Option<&'a Invalid>,
}

pub(super) enum Entry<T> {
    Valid(Stored<T>),
    Invalid(Invalid),
}

impl<T> Entry<T> {
    pub fn uid(&self) -> &Arc<str> {
        match self {
            Self::Valid(stored) => &stored.uid,
            Self::Invalid(invalid) => &invalid.uid,
        }
    }

    pub fn resource_version(&self) -> &Arc<str> {
        match self {
            Self::Valid(stored) => &stored.resource_version,
            Self::Invalid(invalid) => &invalid.resource_version,
        }
    }

    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Valid(stored) => &stored.key,
            Self::Invalid(invalid) => &invalid.key,
        }
    }

    pub fn valid(&self) -> Option<&Stored<T>> {
        match self {
            Self::Valid(stored) => Some(stored),
            Self::Invalid(_) => None,
        }
    }

    pub fn invalid(&self) -> Option<&Invalid> {
        match self {
            Self::Valid(_) => None,
            Self::Invalid(invalid) => Some(invalid),
        }
    }

    pub fn delta(&self) -> Delta<T> {
        match self {
            Self::Valid(stored) => Delta::Applied(stored.clone()),
            Self::Invalid(invalid) => Delta::Invalid(invalid.clone()),
        }
    }
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Valid(stored) => Self::Valid(stored.clone()),
            Self::Invalid(invalid) => Self::Invalid(invalid.clone()),
        }
    }
}

/// Entries by key, each with the number of the list that last confirmed it.
pub(super) struct Store<T> {
    entries: DashMap<ObjectKey, (Entry<T>, u64), FxBuildHasher>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { entries: DashMap::with_hasher(FxBuildHasher) }
    }
}

impl<T> Store<T> {
    pub fn get<R>(&self, key: &ObjectKey, read: impl FnOnce(&Entry<T>) -> R) -> Option<R> {
        self.entries.get(key).map(|entry| read(&entry.0))
    }

    pub fn put(&self, entry: Entry<T>, list: u64) -> Option<Entry<T>> {
        self.entries.insert(entry.key().clone(), (entry, list)).map(|(old, _)| old)
    }

    /// Notes that list number `list` has the object unchanged.
    pub fn confirm(&self, key: &ObjectKey, list: u64) {
        if let Some(mut entry) = self.entries.get_mut(key) {
            entry.1 = list;
        }
    }

    pub fn remove(&self, key: &ObjectKey) -> Option<Entry<T>> {
        self.entries.remove(key).map(|(_, (entry, _))| entry)
    }

    /// Keys that list number `list` did not confirm, sorted.
    pub fn unconfirmed(&self, list: u64) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> = self.entries.iter().filter(|entry| entry.1 != list).map(|entry| entry.key().clone()).collect();
        keys.sort_unstable();
        keys
    }

    pub fn all(&self) -> Vec<Entry<T>> {
        self.entries.iter().map(|entry| entry.0.clone()).collect()
    }

    pub fn valid(&self) -> Vec<Stored<T>> {
        self.entries.iter().filter_map(|entry| entry.0.valid().cloned()).collect()
    }

    pub fn for_each_valid(&self, mut look: impl FnMut(&Stored<T>)) {
        for entry in &self.entries {
            entry.0.valid().into_iter().for_each(&mut look);
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
