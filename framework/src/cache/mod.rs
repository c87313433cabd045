//! The scheduler's picture of the cluster: Pods, Runs, workspaces, what is assumed, and what changed.
//!
//! Every mutation costs O(change). Pods live in slots by namespace and *name* (accounting goes by name,
//! reference kruntimes §0.5), whether the Pod object exists or not; a *domain* is a (namespace, runtime) pair
//! and owns the log of its Pods' changes, which is what lets verdict tables catch up instead of being rebuilt.
//!
//! ```text
//!              assume()             informer shows the assignment
//!   waiting ─────────────► Assumed ─────────────────────────────► Active ──► ended
//!      ▲                      │                                      │
//!      └───── release() ◄─────┘  (failed write, Run ended, gone,     └──► waiting (lost Pod, retry)
//!                                 or seen elsewhere)
//! ```
//! An assumption is never dropped by time.

mod domains;
mod pods;
mod room;
mod runs;

pub(crate) use domains::{Domain, DomainId};
pub use room::Room;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use berth_api::runtime_ready::PodFacts;
use rustc_hash::FxHashMap;

use crate::affinity_index::{AffinityIndex, LabelSetId, TermId};
use domains::Domains;
use room::Rooms;

use crate::model::{ObjectKey, PodObject, Readiness, Requests, RunObject, WorkspaceObject};
use crate::plugin::WakeCause;
use crate::views::{PodId, PodView};

/// An interned [`Requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestsId(pub u32);

#[derive(Debug)]
struct InternedRequests {
    requests: Arc<Requests>,
    refs: u32,
    /// Never reused, unlike the id: verdict tables outlive the Runs they were made for.
    serial: u64,
}

/// A Run's place in the cache; reused after the Run is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub(crate) u32);

#[derive(Debug)]
struct PodSlot {
    key: ObjectKey,
    object: Option<Arc<PodObject>>,
    domain: Option<DomainId>,
    /// Index in `Domain::pods`.
    at: usize,
    readiness: Readiness,
    facts: PodFacts,
    timer_armed: bool,
    generation: u32,
    /// `runs` of [`Rooms`] is looked at for every Run, so it is kept in place.
    rooms: Rooms,
    sets: FxHashMap<LabelSetId, u32>,
    /// Position of the newest log entry about this slot.
    logged_at: u64,
}

/// Affinity terms of a Run, interned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunTerms {
    pub required: Box<[TermId]>,
    pub preferred: Box<[(i32, TermId)]>,
    pub required_anti: Box<[TermId]>,
    pub preferred_anti: Box<[(i32, TermId)]>,
}

/// Where a Run is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Nowhere,
    Assumed(PodId),
    Active(PodId),
}

/// A Run and what the cache derived from it.
#[derive(Debug)]
pub struct RunEntry {
    pub(crate) object: Arc<RunObject>,
    pub(crate) labels: LabelSetId,
    pub(crate) terms: RunTerms,
    pub(crate) requests: RequestsId,
    pub(crate) domain: DomainId,
    pub(crate) place: Place,
}

/// What a mutation means for waiting Runs.
#[derive(Clone, Debug)]
pub(crate) enum CacheEvent {
    /// Something about this Pod may have made it feasible.
    Offer {
        pod: PodId,
        cause: WakeCause,
        /// Also offered to Runs whose rejecting plugins did not ask for the cause.
        force: bool,
        /// Required anti-affinity terms whose owner left the Pod.
        anti_ended: Vec<TermId>,
    },
    /// The term got its first target on this Pod.
    TargetAppeared { term: TermId, pod: PodId },
    /// The term has no target left in the domain.
    TargetsEnded { term: TermId, domain: DomainId, cause: WakeCause },
    /// A workspace appeared, changed or went away.
    Workspace(ObjectKey),
    /// A term became somebody's anti-affinity: Runs that it matches form classes of their own.
    AntiTerm(TermId),
}

/// How much was touched, ever: tests hold performance claims against these, not against time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounters {
    /// Pods evaluated by Filter.
    pub pods: u64,
    /// Terms and label sets looked at.
    pub terms: u64,
    /// Runs looked at by a wake-up.
    pub runs: u64,
    /// Runs looked at by the search for Runs that wait for each other.
    pub searched: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Cache {
    slots: Vec<PodSlot>,
    free_slots: Vec<u32>,
    pod_ids: FxHashMap<ObjectKey, PodId>,
    domains: Domains,
    runs: Vec<Option<RunEntry>>,
    free_runs: Vec<u32>,
    run_ids: FxHashMap<ObjectKey, RunId>,
    workspaces: FxHashMap<ObjectKey, Arc<WorkspaceObject>>,
    pub(crate) affinity: AffinityIndex,
    requests: Vec<InternedRequests>,
    next_requests: u64,
    request_ids: FxHashMap<Arc<Requests>, RequestsId>,
    free_requests: Vec<u32>,
    totals: FxHashMap<TermId, FxHashMap<DomainId, u32>>,
    stale_timers: BinaryHeap<Reverse<(u64, PodId, u32)>>,
    events: Vec<CacheEvent>,
    counts: Counts,
}

/// How many objects the cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pod objects.
    pub pods: usize,
    /// Active Runs on a Pod name.
    pub active: usize,
    /// Assumed Runs.
    pub assumed: usize,
}

impl Cache {
    // ---- reading ---------------------------------------------------------------------------------

    /// How many objects the cache holds.
    pub fn counts(&self) -> Counts {
        self.counts
    }
    /// Live label sets and affinity terms.
    pub fn affinity_sizes(&self) -> (usize, usize) {
        self.affinity.sizes()
    }
    /// Live (namespace, runtime) pairs.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }
    pub(crate) fn readiness(&self, id: PodId) -> Readiness {
        self.slots.get(id.0 as usize).map_or(Readiness::NotRunning, |slot| slot.readiness)
    }
    pub(crate) fn room(&self, id: PodId, resource: &str) -> Room {
        self.slots.get(id.0 as usize).map_or_else(Room::default, |slot| slot.rooms.get(resource))
    }
    pub(crate) fn rooms(&self, id: PodId) -> impl Iterator<Item = (&str, Room)> {
        let rooms = self.slots.get(id.0 as usize).map(|slot| &slot.rooms);
        rooms.into_iter().flat_map(Rooms::iter)
    }
    pub(crate) fn workspace(&self, namespace: &Arc<str>, name: &str) -> Option<&WorkspaceObject> {
        self.workspaces.get(&ObjectKey::new(namespace.clone(), name)).map(|w| &**w)
    }
    pub(crate) fn pod_id(&self, namespace: &Arc<str>, name: &str) -> Option<PodId> {
        self.pod_ids.get(&ObjectKey::new(namespace.clone(), name)).copied()
    }
    pub(crate) fn pod_key(&self, id: PodId) -> Option<&ObjectKey> {
        self.slots.get(id.0 as usize).map(|slot| &slot.key)
    }
    pub(crate) fn domain_of(&self, id: PodId) -> Option<DomainId> {
        self.slots.get(id.0 as usize).and_then(|slot| slot.domain)
    }
    pub(crate) fn domain(&self, id: DomainId) -> &Domain {
        self.domains.get(id)
    }
    pub(crate) fn pod_view(&self, id: PodId) -> Option<PodView<'_>> {
        let object = self.slots.get(id.0 as usize)?.object.as_deref()?;
        Some(PodView { cache: self, id, object })
    }
    /// `true` if no newer log entry than `position` is about this slot.
    pub(crate) fn is_newest_change(&self, id: PodId, position: u64) -> bool {
        self.slots.get(id.0 as usize).is_none_or(|slot| slot.logged_at <= position)
    }
    pub(crate) fn term_total(&self, term: TermId, domain: DomainId) -> u32 {
        self.totals.get(&term).and_then(|by_domain| by_domain.get(&domain)).copied().unwrap_or(0)
    }
    pub(crate) fn run_id(&self, key: &ObjectKey) -> Option<RunId> {
        self.run_ids.get(key).copied()
    }
    pub(crate) fn run(&self, id: RunId) -> Option<&RunEntry> {
        self.runs.get(id.0 as usize).and_then(Option::as_ref)
    }
    fn run_mut(&mut self, id: RunId) -> Option<&mut RunEntry> {
        self.runs.get_mut(id.0 as usize).and_then(Option::as_mut)
    }
    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    // ---- slots, interning ---------------------------------------------------------------

    fn slot_for(&mut self, key: &ObjectKey) -> PodId {
        if let Some(&id) = self.pod_ids.get(key) {
            return id;
        }
        let slot = PodSlot {
            key: key.clone(),
            object: None,
            domain: None,
            at: 0,
            readiness: Readiness::NotRunning,
            facts: PodFacts::default(),
            timer_armed: false,
            generation: 0,
            rooms: Rooms::default(),
            sets: FxHashMap::default(),
            logged_at: 0,
        };
        let id = if let Some(free) = self.free_slots.pop() {
            let old = &mut self.slots[free as usize];
            let generation = old.generation + 1;
            *old = PodSlot { generation, ..slot };
            PodId(free)
        } else {
            self.slots.push(slot);
            PodId(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
        };
        self.pod_ids.insert(key.clone(), id);
        id
    }

    fn free_slot_if_unused(&mut self, id: PodId) {
        let slot = &self.slots[id.0 as usize];
        if slot.object.is_none() && slot.sets.is_empty() {
            self.pod_ids.remove(&slot.key.clone());
            self.free_slots.push(id.0);
        }
    }

    fn intern_requests(&mut self, requests: &Arc<Requests>) -> RequestsId {
        if let Some(&id) = self.request_ids.get(requests) {
            self.requests[id.0 as usize].refs += 1;
            return id;
        }
        self.next_requests += 1;
        let interned = InternedRequests { requests: requests.clone(), refs: 1, serial: self.next_requests };
        let id = if let Some(free) = self.free_requests.pop() {
            self.requests[free as usize] = interned;
            RequestsId(free)
        } else {
            self.requests.push(interned);
            RequestsId(u32::try_from(self.requests.len() - 1).unwrap_or(u32::MAX))
        };
        self.request_ids.insert(requests.clone(), id);
        id
    }

    /// A number that only equal requests ever had.
    pub(crate) fn requests_serial(&self, id: RequestsId) -> u64 {
        self.requests[id.0 as usize].serial
    }

    fn release_requests(&mut self, id: RequestsId) {
        let interned = &mut self.requests[id.0 as usize];
        interned.refs -= 1;
        if interned.refs == 0 {
            self.request_ids.remove(&interned.requests);
            self.free_requests.push(id.0);
        }
    }

    fn log(&mut self, id: PodId) {
        let slot = &mut self.slots[id.0 as usize];
        if let Some(domain) = slot.domain {
            slot.logged_at = self.domains.get_mut(domain).record(id);
        }
    }

    // ---- assumptions -----------------------------------------------------------------------------

    /// Counts a placement before it is written. It stands until the informer shows it or something else of the Run, or until it is
    /// released.
    pub(crate) fn assume(&mut self, run: RunId, pod: PodId) {
        self.enter_pod(run, pod, true);
    }

    /// The write failed: what was assumed is free, unless the informer has moved the Run meanwhile.
    pub(crate) fn release(&mut self, run: RunId) {
        if self.run(run).is_some_and(|entry| matches!(entry.place, Place::Assumed(_))) {
            self.leave_pod(run, WakeCause::AssumptionReleased, false);
        }
    }

    // ---- workspaces ------------------------------------------------------------------------------

    /// A workspace was seen.
    pub(crate) fn apply_workspace(&mut self, workspace: Arc<WorkspaceObject>) {
        let key = workspace.key.clone();
        let old = self.workspaces.insert(key.clone(), workspace.clone());
        if old.is_none_or(|old| *old != *workspace) {
            self.events.push(CacheEvent::Workspace(key));
        }
    }

    /// The workspace of this key and UID is gone.
    pub(crate) fn delete_workspace(&mut self, key: &ObjectKey, uid: &str) {
        if self.workspaces.get(key).is_some_and(|workspace| &*workspace.uid == uid) {
            self.workspaces.remove(key);
            self.events.push(CacheEvent::Workspace(key.clone()));
        }
    }
}
