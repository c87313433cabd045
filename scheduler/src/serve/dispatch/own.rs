//! What we wrote ourselves and the informer has not shown yet: so that a decision made on the version before our own write is
//! not taken for a conflict.

use std::collections::VecDeque;
use std::sync::Arc;

use berth_framework::model::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rustc_hash::FxHashMap;

/// Objects remembered; the oldest goes first. Forgetting one costs a conflict and a second attempt, no more.
const OBJECTS_MAX: usize = 8_192;
/// Versions remembered per object.
const VERSIONS_MAX: usize = 8;

/// The newest version of an object that is ours, with nobody else's write since `superseded[0]`.
#[derive(Clone, Debug)]
pub struct OwnWrite {
    uid: Arc<str>,
    superseded: Vec<Arc<str>>,
    /// The version our last write returned.
    pub version: Arc<str>,
    /// The conditions it left.
    pub conditions: Arc<[Condition]>,
}

/// Our own last writes by object.
#[derive(Debug, Default)]
pub struct OwnWrites {
    by_key: FxHashMap<ObjectKey, OwnWrite>,
    order: VecDeque<ObjectKey>,
}

impl OwnWrites {
    /// Notes that our write turned version `from` of an object into `to`.
    pub fn wrote(&mut self, key: &ObjectKey, uid: &Arc<str>, from: &Arc<str>, to: Arc<str>, conditions: Vec<Condition>) {
        if from == &to {
            return; // nothing changed
        }
        let mut superseded = match self.by_key.get(key) {
            Some(own) if own.uid == *uid && own.version == *from => own.superseded.clone(),
            Some(_) => Vec::new(),
            None => {
                if self.order.len() >= OBJECTS_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.by_key.remove(&oldest);
                }
                self.order.push_back(key.clone());
                Vec::new()
            }
        };
        superseded.push(from.clone());
        if superseded.len() > VERSIONS_MAX {
            superseded.remove(0);
        }
        self.by_key.insert(key.clone(), OwnWrite { uid: uid.clone(), superseded, version: to, conditions: conditions.into() });
    }

    /// What our writes have made of version `version` of this object, if they are all that happened to it.
    pub fn since(&self, key: &ObjectKey, uid: &str, version: &Arc<str>) -> Option<&OwnWrite> {
        self.by_key.get(key).filter(|own| *own.uid == *uid && own.superseded.contains(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn a_chain_of_our_writes_leads_to_the_newest_version() {
        let (mut own, key) = (OwnWrites::default(), ObjectKey::new("ns", "a"));
        own.wrote(&key, &v("u"), &v("1"), v("2"), Vec::new());
        own.wrote(&key, &v("u"), &v("2"), v("3"), Vec::new());
        let newest = |from: &str, uid: &str| own.since(&key, uid, &v(from)).map(|own| own.version.to_string());
        assert_eq!(newest("1", "u").as_deref(), Some("3"));
        assert_eq!(newest("2", "u").as_deref(), Some("3"));
        assert_eq!(newest("3", "u"), None, "that is the newest itself");
        assert_eq!(newest("1", "other"), None);
    }

    #[test]
    fn somebody_elses_write_in_between_breaks_the_chain() {
        let (mut own, key) = (OwnWrites::default(), ObjectKey::new("ns", "a"));
        own.wrote(&key, &v("u"), &v("1"), v("2"), Vec::new());
        own.wrote(&key, &v("u"), &v("5"), v("6"), Vec::new());
        assert!(own.since(&key, "u", &v("1")).is_none());
        assert!(own.since(&key, "u", &v("5")).is_some());
    }

    #[test]
    fn only_so_many_objects_are_remembered() {
        let mut own = OwnWrites::default();
        for n in 0..OBJECTS_MAX + 10 {
            own.wrote(&ObjectKey::new("ns", n.to_string()), &v("u"), &v("1"), v("2"), Vec::new());
        }
        assert_eq!(own.by_key.len(), OBJECTS_MAX);
        assert!(own.since(&ObjectKey::new("ns", "0"), "u", &v("1")).is_none());
    }
}
