//! A second way into an informer's store: objects by something they say.

use super::store::{Change, Stored};
use crate::key::ObjectKey;
use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

/// Objects by index key. Clones share. Made by [`super::Informer::index`].
pub struct Index<I, T> {
    sets: Arc<DashMap<I, BTreeMap<ObjectKey, Stored<T>>, FxBuildHasher>>,
}

impl<I, T> Clone for Index<I, T> {
    fn clone(&self) -> Self {
        Self { sets: self.sets.clone() }
    }
}

impl<I: Eq + Hash, T> Default for Index<I, T> {
    fn default() -> Self {
        Self { sets: Arc::new(DashMap::with_hasher(FxBuildHasher)) }
    }
}

impl<I: Clone + Eq + Hash, T> Index<I, T> {
    /// The objects under `key`, by namespace and name.
    pub fn get(&self, key: &I) -> Vec<Stored<T>> {
        self.sets.get(key).map(|set| set.values().cloned().collect()).unwrap_or_default()
    }

    /// Their keys, by namespace and name.
    pub fn keys(&self, key: &I) -> Vec<ObjectKey> {
        self.sets.get(key).map(|set| set.keys().cloned().collect()).unwrap_or_default()
    }

    /// How many there are under `key`.
    pub fn count(&self, key: &I) -> usize {
        self.sets.get(key).map_or(0, |set| set.len())
    }

    /// Whether the object of that name is under `key`.
    pub fn contains(&self, key: &I, object: &ObjectKey) -> bool {
        self.sets.get(key).is_some_and(|set| set.contains_key(object))
    }

    pub(super) fn apply(&self, change: &Change<'_, T>, key_of: &dyn Fn(&ObjectKey, &T) -> Option<I>) {
        let index_key = |side: Option<&Stored<T>>| side.and_then(|stored| key_of(&stored.key, &stored.object));
        let (old, new) = (index_key(change.old), index_key(change.new));
        if let Some(old) = old.filter(|old| new.as_ref() != Some(old))
            && let Some(mut set) = self.sets.get_mut(&old)
        {
            set.remove(change.key);
            let empty = set.is_empty();
            drop(set);
            if empty {
                self.sets.remove_if(&old, |_, set| set.is_empty());
            }
        }
        if let (Some(new), Some(stored)) = (new, change.new) {
            self.sets.entry(new).or_default().insert(change.key.clone(), stored.clone());
        }
    }
}
