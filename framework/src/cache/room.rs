//! What a Pod has and what is held of it, by resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::constants::RESOURCE_RUNS;

/// One resource of one Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What the Pod advertises, whole units; 0 if nothing.
    pub capacity: i64,
    /// What active and assumed Runs hold on the Pod of this name.
    pub used: i128,
}

/// Every resource of one Pod that is advertised or held.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    runs: Room,
    others: Vec<(Arc<str>, Room)>,
}

impl Rooms {
    pub fn get(&self, resource: &str) -> Room {
        if resource == RESOURCE_RUNS {
            return self.runs;
        }
        self.others.iter().find(|(name, _)| &**name == resource).map_or_else(Room::default, |(_, room)| *room)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Room)> {
        std::iter::once((RESOURCE_RUNS, self.runs)).chain(self.others.iter().map(|(name, room)| (&**name, *room)))
    }

    fn at(&mut self, resource: &str) -> &mut Room {
        if resource == RESOURCE_RUNS {
            return &mut self.runs;
        }
        let at = self.others.iter().position(|(name, _)| &**name == resource).unwrap_or_else(|| {
            self.others.push((Arc::from(resource), Room::default()));
            self.others.len() - 1
        });
        &mut self.others[at].1
    }

    pub fn hold(&mut self, resource: &str, amount: i128) {
        self.at(resource).used += amount;
        self.forget_empty();
    }

    pub fn advertise(&mut self, capacity: &BTreeMap<Arc<str>, i64>) {
        self.runs.capacity = 0;
        for (_, room) in &mut self.others {
            room.capacity = 0;
        }
        for (resource, amount) in capacity {
            self.at(resource).capacity = *amount;
        }
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        self.others.retain(|(_, room)| *room != Room::default());
    }
}
