//! What waits to be written, in order: one write in flight per object, the newest intent per object, binds before messages.

use std::collections::VecDeque;

use berth_framework::model::ObjectKey;
use rustc_hash::FxHashMap;

use super::intent::Intent;

/// While binds are pending, at most one write in this many is a waiting message (decisions: 5 %).
const WRITES_PER_MESSAGE: u64 = 20;
/// Void entries a lane may hold beyond one for each real one.
const VOID_MAX: usize = 64;

/// See the module. Holds at most one intent per live Run, and one in flight.
#[derive(Debug)]
pub struct Queue {
    slots: FxHashMap<ObjectKey, Slot>,
    urgent: Lane,
    messages: Lane,
    /// Messages that may be in flight at once, so that a bind always finds a free worker soon.
    messages_at_once: usize,
    next_ticket: u64,
    /// Writes, and messages among them, since binds have been pending without a break.
    busy_writes: u64,
    busy_messages: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// The kind of the write that a worker has.
    in_flight: Option<Kind>,
    queued: Option<Queued>,
}

#[derive(Debug)]
struct Queued {
    intent: Intent,
    /// The lane entry with this ticket is the one that counts; none while another write is in flight.
    ticket: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Urgent,
    Message,
}

impl Kind {
    fn of(intent: &Intent) -> Self {
        if intent.is_message() { Self::Message } else { Self::Urgent }
    }
}

/// Keys in order of arrival. An entry whose intent went elsewhere stays behind, void, until its turn comes.
#[derive(Debug, Default)]
struct Lane {
    order: VecDeque<(ObjectKey, u64)>,
    len: usize,
    in_flight: usize,
}

impl Queue {
    /// An empty queue for that many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            slots: FxHashMap::default(),
            urgent: Lane::default(),
            messages: Lane::default(),
            messages_at_once: (workers / 4).max(1),
            next_ticket: 0,
            busy_writes: 0,
            busy_messages: 0,
        }
    }

    /// Adds an intent. Returns the older one that it replaces, which was never sent.
    pub fn push(&mut self, intent: Intent) -> Option<Intent> {
        let (key, kind) = (intent.run.key.clone(), Kind::of(&intent));
        let slot = self.slots.entry(key.clone()).or_default();
        let free = slot.in_flight.is_none();
        let old = slot.queued.take();
        let old_kind = old.as_ref().map(|old| Kind::of(&old.intent));
        // A newer intent of the same kind takes over the place in the lane.
        let ticket = old.as_ref().and_then(|old| old.ticket).filter(|_| old_kind == Some(kind));
        let moves = free && ticket.is_none();
        let ticket = if moves { Some(self.next_ticket) } else { ticket };
        slot.queued = Some(Queued { intent, ticket });
        if moves {
            if let Some(old_kind) = old_kind {
                self.lane(old_kind).len -= 1;
            }
            self.enter(kind, key);
        }
        old.map(|old| old.intent)
    }

    /// The next intent to send; its object is in flight until [`Queue::done`].
    pub fn pop(&mut self) -> Option<Intent> {
        let binds_wait = self.urgent.len > 0;
        if !binds_wait {
            (self.busy_writes, self.busy_messages) = (0, 0);
        }
        let in_budget = (self.busy_messages + 1) * WRITES_PER_MESSAGE <= self.busy_writes + 1;
        let kind = match (self.message_may_go(), binds_wait) {
            (true, false) => Kind::Message,
            (true, true) if in_budget => Kind::Message,
            (_, true) => Kind::Urgent,
            (false, false) => return None,
        };
        if binds_wait {
            self.busy_writes += 1;
            self.busy_messages += u64::from(kind == Kind::Message);
        }
        loop {
            let (key, ticket) = self.lane(kind).order.pop_front()?;
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            let Some(queued) = slot.queued.take_if(|queued| queued.ticket == Some(ticket)) else { continue };
            slot.in_flight = Some(kind);
            let lane = self.lane(kind);
            lane.len -= 1;
            lane.in_flight += 1;
            return Some(queued.intent);
        }
    }

    /// The write to this object has ended; what was queued behind it may go.
    pub fn done(&mut self, key: &ObjectKey) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let ended = slot.in_flight.take();
        let next = slot.queued.as_mut().map(|queued| {
            queued.ticket = Some(self.next_ticket);
            Kind::of(&queued.intent)
        });
        if let Some(ended) = ended {
            self.lane(ended).in_flight -= 1;
        }
        match next {
            Some(kind) => self.enter(kind, key.clone()),
            None => {
                self.slots.remove(key);
            }
        }
    }

    /// Whether [`Queue::pop`] would find something.
    pub fn has_ready(&self) -> bool {
        self.urgent.len > 0 || self.message_may_go()
    }

    /// Binds and terminal writes that wait in a lane or are in flight.
    pub fn urgent(&self) -> usize {
        self.urgent.len + self.urgent.in_flight
    }

    /// Messages that wait in the lane or are in flight.
    pub fn messages(&self) -> usize {
        self.messages.len + self.messages.in_flight
    }

    fn message_may_go(&self) -> bool {
        self.messages.len > 0 && self.messages.in_flight < self.messages_at_once
    }

    fn enter(&mut self, kind: Kind, key: ObjectKey) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (lane, slots) = match kind {
            Kind::Urgent => (&mut self.urgent, &self.slots),
            Kind::Message => (&mut self.messages, &self.slots),
        };
        lane.order.push_back((key, ticket));
        lane.len += 1;
        if lane.order.len() > 2 * lane.len + VOID_MAX {
            let counts = |key: &ObjectKey, ticket: u64| slots.get(key).and_then(|slot| slot.queued.as_ref()).is_some_and(|q| q.ticket == Some(ticket));
            lane.order.retain(|(key, ticket)| counts(key, *ticket));
        }
    }

    fn lane(&mut self, kind: Kind) -> &mut Lane {
        match kind {
            Kind::Urgent => &mut self.urgent,
            Kind::Message => &mut self.messages,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use berth_framework::core::{RunRef, WriteId};
    use berth_framework::model::Shown;

    use super::super::intent::{Origin, What};
    use super::*;

    fn intent(id: u64, name: &str, what: What) -> Intent {
        let run = RunRef { key: ObjectKey::new("ns", name), uid: "u".into(), resource_version: "1".into() };
        let origin = Origin { epoch: 0, profile: "default".into(), attempts: 1, queued_for_ms: 0, decided: Instant::now(), trace: None };
        Intent { write: WriteId(id), run, what, origin }
    }

    fn bind(id: u64, name: &str) -> Intent {
        intent(id, name, What::Bind { pod: "p".into(), pod_uid: "pu".into(), remarks: Vec::new() })
    }

    fn message(id: u64, name: &str) -> Intent {
        let text: Arc<str> = "m".into();
        intent(id, name, What::Waiting { shown: Shown { reason: text.clone(), message: text }, codes: [].into() })
    }

    fn id(intent: Option<Intent>) -> Option<u64> {
        intent.map(|intent| intent.write.0)
    }

    #[test]
    fn binds_go_first_and_each_kind_in_order() {
        let mut queue = Queue::new(8);
        for (n, name) in ["a", "b"].into_iter().enumerate() {
            assert!(queue.push(message(n as u64, name)).is_none());
        }
        for (n, name) in ["c", "d"].into_iter().enumerate() {
            assert!(queue.push(bind(10 + n as u64, name)).is_none());
        }
        let order: Vec<_> = std::iter::from_fn(|| id(queue.pop())).collect();
        assert_eq!(order, [10, 11, 0, 1]);
    }

    #[test]
    fn one_write_per_object_and_only_the_newest_behind_it() {
        let mut queue = Queue::new(8);
        queue.push(message(1, "a"));
        assert_eq!(id(queue.pop()), Some(1));
        assert!(queue.push(message(2, "a")).is_none());
        assert_eq!(id(queue.push(bind(3, "a"))), Some(2));
        assert_eq!(id(queue.pop()), None, "the first is still in flight");
        queue.done(&ObjectKey::new("ns", "a"));
        assert_eq!(id(queue.pop()), Some(3));
        queue.done(&ObjectKey::new("ns", "a"));
        assert_eq!((queue.urgent(), queue.messages(), queue.slots.len()), (0, 0, 0));
    }

    #[test]
    fn a_newer_intent_of_the_same_kind_keeps_the_place_and_another_kind_changes_the_lane() {
        let mut queue = Queue::new(8);
        queue.push(message(1, "a"));
        queue.push(message(2, "b"));
        queue.push(bind(3, "c"));
        assert_eq!(id(queue.push(message(4, "a"))), Some(1));
        assert_eq!(id(queue.push(bind(5, "b"))), Some(2));
        let order: Vec<_> = std::iter::from_fn(|| id(queue.pop())).collect();
        assert_eq!(order, [3, 5, 4]);
    }

    #[test]
    fn messages_are_at_most_a_twentieth_while_binds_wait_and_never_take_all_workers() {
        let mut queue = Queue::new(1_000);
        for n in 0..100 {
            queue.push(message(n, &format!("m{n}")));
        }
        for n in 0..200 {
            queue.push(bind(1_000 + n, &format!("b{n}")));
        }
        let first: Vec<u64> = (0..200).filter_map(|_| id(queue.pop())).collect();
        assert_eq!(first.iter().filter(|n| **n < 1_000).count(), 10);
        assert!(first[..19].iter().all(|n| *n >= 1_000));

        let mut queue = Queue::new(8);
        for n in 0..10 {
            queue.push(message(n, &format!("m{n}")));
        }
        let at_once: Vec<_> = std::iter::from_fn(|| id(queue.pop())).collect();
        assert_eq!(at_once, [0, 1], "a quarter of the workers");
        assert!(!queue.has_ready());
        queue.done(&ObjectKey::new("ns", "m0"));
        assert!(queue.has_ready());
    }

    #[test]
    fn void_entries_do_not_pile_up() {
        let mut queue = Queue::new(8);
        queue.push(message(0, "first"));
        for n in 1..10_000 {
            queue.push(message(n, "a"));
            queue.push(bind(n, "a"));
        }
        assert!(queue.messages.order.len() + queue.urgent.order.len() < 4 * VOID_MAX);
        assert_eq!((queue.urgent(), queue.messages()), (1, 1));
    }
}
