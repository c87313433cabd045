//! Writes that the API server will go on refusing, for what the object itself holds (a spec stored under a looser CRD) or for want
//! of rights: sending the same again tells nothing new, so it is tried once in a while only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_framework::model::ObjectKey;
use berth_runtime::apiclient::CallError;
use rustc_hash::FxHashMap;

/// Objects remembered; the oldest goes first. Forgetting one costs a request more.
const OBJECTS_MAX: usize = 8_192;
/// After that long the same write is sent again: the CRD or the rights may have changed.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Whether this answer will be the same until the object, its CRD or our rights change.
pub fn lasts(error: &CallError) -> bool {
    matches!(error, CallError::Refused { code: 400 | 401 | 403 | 422, .. })
}

/// The versions of objects to which a write was refused.
#[derive(Debug, Default)]
pub struct Refused {
    by_key: FxHashMap<ObjectKey, (Arc<str>, Instant)>,
    order: VecDeque<ObjectKey>,
}

impl Refused {
    /// Notes a refusal; `true` if it is news about this version of the object.
    pub fn note(&mut self, key: &ObjectKey, version: &Arc<str>, now: Instant) -> bool {
        match self.by_key.insert(key.clone(), (version.clone(), now)) {
            Some((before, _)) => before != *version,
            None => {
                self.order.push_back(key.clone());
                if self.order.len() > OBJECTS_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.by_key.remove(&oldest);
                }
                true
            }
        }
    }

    /// Whether a write to this version would be refused again, as far as one can tell.
    pub fn is_pointless(&self, key: &ObjectKey, version: &Arc<str>, now: Instant) -> bool {
        self.by_key.get(key).is_some_and(|(refused, at)| refused == version && now.saturating_duration_since(*at) < AGAIN_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_version_is_pointless_for_a_while_and_another_is_not() {
        let (mut refused, key, start) = (Refused::default(), ObjectKey::new("ns", "a"), Instant::now());
        let (one, two) = (Arc::from("1"), Arc::from("2"));
        assert!(!refused.is_pointless(&key, &one, start));
        assert!(refused.note(&key, &one, start));
        assert!(refused.is_pointless(&key, &one, start + Duration::from_secs(59)));
        assert!(!refused.is_pointless(&key, &one, start + AGAIN_AFTER));
        assert!(!refused.is_pointless(&key, &two, start));
        assert!(!refused.note(&key, &one, start), "no news");
        assert!(refused.note(&key, &two, start));
    }

    #[test]
    fn want_of_rights_and_bad_objects_last() {
        for (code, expected) in [(400, true), (401, true), (403, true), (422, true), (404, false), (409, false), (413, false), (429, false)] {
            let error = CallError::Refused { code, reason: String::new(), message: String::new(), retry_after: None };
            assert_eq!(lasts(&error), expected, "{code}");
        }
        assert!(!lasts(&CallError::Lost(String::new())));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut refused, version) = (Refused::default(), Arc::from("1"));
        for n in 0..OBJECTS_MAX + 5 {
            refused.note(&ObjectKey::new("ns", n.to_string()), &version, Instant::now());
        }
        assert_eq!((refused.by_key.len(), refused.order.len()), (OBJECTS_MAX, OBJECTS_MAX));
    }
}
