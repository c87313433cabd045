//! The scheduler's picture of the cluster: Pods, Runs, workspaces, what is assumed, and what changed.
//!
//! Every mutation costs O(change). Pods live in slots by namespace and *name* (accounting goes by name,
//! reference kruntimes §0.5), whether the Pod object exists or not; a *domain* is a (namespace, runtime) pair
//! and owns the log of its Pods' changes, which is what lets verdict tables catch up instead of being rebuilt.
//!
//! ```text
//!              assume()                   confirm()  (informer shows the assignment)
//!   waiting ─────────────► Assumed ─────────────────────────────► Active ──► ended
//!      ▲                      │                                      │
//!      └───── release() ◄─────┘  (failed write, Run ended, gone,     └──► waiting (lost Pod, retry)
//!                                 or seen elsewhere)
//! ```
//! An assumption is never dropped by time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use berth_api::constants::RESOURCE_RUNS;
use berth_api::runtime_ready::{Heartbeat, PodFacts};
use rustc_hash::FxHashMap;

use crate::affinity_index::{AffinityIndex, CellChanges, LabelSetId, TermId};
use crate::model::{Now, ObjectKey, Phase, PodObject, Readiness, Requests, RunObject, WorkspaceObject};
use crate::plugin::WakeCause;
use crate::views::{PodId, PodView};

/// A (namespace, runtime) pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DomainId(pub u32);

/// An interned [`Requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestsId(pub u32);

/// A Run's place in the cache; reused after the Run is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub(crate) u32);

/// The Pods of one runtime in one namespace, and the log of their changes.
#[derive(Debug)]
pub(crate) struct Domain {
    pub pods: Vec<PodId>,
    /// Slots that changed, oldest first; entry `i` has position `log_base + i`.
    log: VecDeque<PodId>,
    log_base: u64,
}

impl Domain {
    /// The position after the newest change.
    pub fn log_end(&self) -> u64 {
        self.log_base + self.log.len() as u64
    }
    /// Changes since `position`, or `None` if the log no longer reaches back so far.
    pub fn changes_since(&self, position: u64) -> Option<impl Iterator<Item = (u64, PodId)> + '_> {
        let skip = usize::try_from(position.checked_sub(self.log_base)?).ok()?;
        Some(self.log.iter().copied().enumerate().skip(skip).map(|(i, pod)| (self.log_base + i as u64, pod)))
    }
    fn record(&mut self, pod: PodId) -> u64 {
        let bound = 1024.max(2 * self.pods.len());
        if self.log.len() >= bound {
            let drop = self.log.len() / 2;
            self.log.drain(..drop);
            self.log_base += drop as u64;
        }
        self.log.push_back(pod);
        self.log_end() - 1
    }
}

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
struct Rooms {
    runs: Room,
    others: Vec<(Arc<str>, Room)>,
}

impl Rooms {
    fn get(&self, resource: &str) -> Room {
        if resource == RESOURCE_RUNS {
            return self.runs;
        }
        self.others.iter().find(|(name, _)| &**name == resource).map_or_else(Room::default, |(_, room)| *room)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, Room)> {
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

    fn hold(&mut self, resource: &str, amount: i128) {
        self.at(resource).used += amount;
        self.forget_empty();
    }

    fn advertise(&mut self, capacity: &BTreeMap<Arc<str>, i64>) {
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
    pub required: Vec<TermId>,
    pub preferred: Vec<(i32, TermId)>,
    pub required_anti: Vec<TermId>,
    pub preferred_anti: Vec<(i32, TermId)>,
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

/// A placement counted before the API server confirmed it; must be handed back to the cache.
#[derive(Debug)]
#[must_use = "an assumption ends in confirm or release"]
pub(crate) struct Reservation {
    pub run: RunId,
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
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Cache {
    slots: Vec<PodSlot>,
    free_slots: Vec<u32>,
    pod_ids: FxHashMap<ObjectKey, PodId>,
    pub(crate) domains: Vec<Domain>,
    domain_ids: FxHashMap<(Arc<str>, Arc<str>), DomainId>,
    runs: Vec<Option<RunEntry>>,
    free_runs: Vec<u32>,
    run_ids: FxHashMap<ObjectKey, RunId>,
    workspaces: FxHashMap<ObjectKey, Arc<WorkspaceObject>>,
    pub(crate) affinity: AffinityIndex,
    requests: Vec<(Arc<Requests>, u32)>,
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
        &self.domains[id.0 as usize]
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

    // ---- domains, slots, interning ---------------------------------------------------------------

    fn domain_for(&mut self, namespace: &Arc<str>, runtime: &Arc<str>) -> DomainId {
        let key = (namespace.clone(), runtime.clone());
        if let Some(&id) = self.domain_ids.get(&key) {
            return id;
        }
        let id = DomainId(u32::try_from(self.domains.len()).unwrap_or(u32::MAX));
        self.domains.push(Domain { pods: Vec::new(), log: VecDeque::new(), log_base: 0 });
        self.domain_ids.insert(key, id);
        id
    }

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
            self.requests[id.0 as usize].1 += 1;
            return id;
        }
        let id = if let Some(free) = self.free_requests.pop() {
            self.requests[free as usize] = (requests.clone(), 1);
            RequestsId(free)
        } else {
            self.requests.push((requests.clone(), 1));
            RequestsId(u32::try_from(self.requests.len() - 1).unwrap_or(u32::MAX))
        };
        self.request_ids.insert(requests.clone(), id);
        id
    }

    fn release_requests(&mut self, id: RequestsId) {
        let (requests, refs) = &mut self.requests[id.0 as usize];
        *refs -= 1;
        if *refs == 0 {
            self.request_ids.remove(requests);
            self.free_requests.push(id.0);
        }
    }

    fn log(&mut self, id: PodId) {
        let slot = &mut self.slots[id.0 as usize];
        if let Some(domain) = slot.domain {
            slot.logged_at = self.domains[domain.0 as usize].record(id);
        }
    }

    // ---- Pods ------------------------------------------------------------------------------------

    /// A Pod was seen. Pods without a `runtime` label never come here.
    pub(crate) fn apply_pod(&mut self, pod: Arc<PodObject>, now: Now) {
        let id = self.slot_for(&pod.key);
        if self.slots[id.0 as usize].object.as_ref().is_some_and(|old| old.uid != pod.uid) {
            self.remove_pod_object(id);
        }
        let domain = self.domain_for(&pod.key.namespace, &pod.runtime);
        let old = self.slots[id.0 as usize].object.clone();
        let moved = self.slots[id.0 as usize].domain != Some(domain);
        if moved && old.is_some() {
            self.leave_domain(id, WakeCause::PodDeletedOrRelabelled);
        }
        let slot = &mut self.slots[id.0 as usize];
        let remembered = slot.facts.heartbeat;
        slot.facts = PodFacts {
            running: pod.running,
            ready: pod.ready,
            terminating: pod.terminating,
            heartbeat_true: pod.heartbeat_true,
            heartbeat: pod.probe_ms.map_or(remembered, |probe| Some(Heartbeat::observe(remembered, probe, now))),
        };
        slot.rooms.advertise(&pod.capacity);
        slot.object = Some(pod.clone());
        if old.is_none() {
            self.counts.pods += 1;
        }
        if moved {
            self.join_domain(id, domain);
        }
        let before = self.slots[id.0 as usize].readiness;
        let after = self.judge_pod(id, now);
        let changed = moved || old.as_ref().is_none_or(|old| !same_but_heartbeat(old, &pod)) || before != after;
        if changed {
            self.log(id);
        }
        if after != Readiness::Ready {
            return;
        }
        let (cause, force) = if old.is_none() || moved {
            (WakeCause::PodReady, true)
        } else if before != Readiness::Ready {
            let stale = matches!(before, Readiness::HeartbeatStale | Readiness::HeartbeatMissing);
            (if stale { WakeCause::HeartbeatReturned } else { WakeCause::PodReady }, true)
        } else if let Some(old) = &old {
            if pod.capacity.iter().any(|(r, c)| old.capacity.get(r).is_none_or(|was| c > was)) {
                (WakeCause::CapacityRaised, false)
            } else if old.labels != pod.labels || old.annotations != pod.annotations {
                (WakeCause::PodDeletedOrRelabelled, true)
            } else {
                return;
            }
        } else {
            return;
        };
        self.events.push(CacheEvent::Offer { pod: id, cause, force, anti_ended: Vec::new() });
    }

    /// The Pod object of this key and UID is gone (or lost its `runtime` label).
    pub(crate) fn delete_pod(&mut self, key: &ObjectKey, uid: &str) {
        let Some(&id) = self.pod_ids.get(key) else { return };
        if self.slots[id.0 as usize].object.as_ref().is_some_and(|pod| &*pod.uid == uid) {
            self.remove_pod_object(id);
            self.free_slot_if_unused(id);
        }
    }

    fn remove_pod_object(&mut self, id: PodId) {
        self.leave_domain(id, WakeCause::PodDeletedOrRelabelled);
        let slot = &mut self.slots[id.0 as usize];
        slot.object = None;
        slot.rooms.advertise(&BTreeMap::new());
        slot.facts = PodFacts::default();
        slot.readiness = Readiness::NotRunning;
        self.counts.pods -= 1;
    }

    fn leave_domain(&mut self, id: PodId, cause: WakeCause) {
        let Some(domain) = self.slots[id.0 as usize].domain else { return };
        self.log(id);
        let at = self.slots[id.0 as usize].at;
        let pods = &mut self.domains[domain.0 as usize].pods;
        pods.swap_remove(at);
        if let Some(&swapped) = pods.get(at) {
            self.slots[swapped.0 as usize].at = at;
        }
        for term in self.terms_on(id) {
            if self.decrement_total(term, domain) {
                self.events.push(CacheEvent::TargetsEnded { term, domain, cause });
            }
        }
        self.slots[id.0 as usize].domain = None;
    }

    fn join_domain(&mut self, id: PodId, domain: DomainId) {
        let pods = &mut self.domains[domain.0 as usize].pods;
        pods.push(id);
        let at = pods.len() - 1;
        let slot = &mut self.slots[id.0 as usize];
        slot.at = at;
        slot.domain = Some(domain);
        for term in self.terms_on(id) {
            *self.totals.entry(term).or_default().entry(domain).or_default() += 1;
            self.events.push(CacheEvent::TargetAppeared { term, pod: id });
        }
        self.log(id);
    }

    fn terms_on(&self, id: PodId) -> Vec<TermId> {
        let mut terms: Vec<TermId> = self.slots[id.0 as usize].sets.keys().flat_map(|set| self.affinity.terms_of(*set)).copied().collect();
        terms.sort_unstable();
        terms.dedup();
        terms
    }

    fn decrement_total(&mut self, term: TermId, domain: DomainId) -> bool {
        let Some(by_domain) = self.totals.get_mut(&term) else { return false };
        let Some(total) = by_domain.get_mut(&domain) else { return false };
        *total -= 1;
        if *total > 0 {
            return false;
        }
        by_domain.remove(&domain);
        if by_domain.is_empty() {
            self.totals.remove(&term);
        }
        true
    }

    fn judge_pod(&mut self, id: PodId, now: Now) -> Readiness {
        let slot = &mut self.slots[id.0 as usize];
        if slot.object.is_none() {
            return Readiness::NotRunning;
        }
        let availability = slot.facts.availability(now);
        let readiness = availability.verdict;
        slot.readiness = readiness;
        if let Some(at) = availability.stale_at_mono_ms
            && !slot.timer_armed
        {
            slot.timer_armed = true;
            self.stale_timers.push(Reverse((at, id, slot.generation)));
        }
        readiness
    }

    /// When the next heartbeat may go stale, monotonic milliseconds.
    pub(crate) fn next_stale_ms(&self) -> Option<u64> {
        self.stale_timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Fires due staleness timers: verdicts change, nobody wakes. Returns how many Pods went stale.
    pub(crate) fn expire_heartbeats(&mut self, now: Now) -> usize {
        let mut stale = 0;
        while let Some(&Reverse((at, id, generation))) = self.stale_timers.peek() {
            if at > now.mono_ms {
                break;
            }
            self.stale_timers.pop();
            if self.slots[id.0 as usize].generation != generation {
                continue;
            }
            self.slots[id.0 as usize].timer_armed = false;
            let before = self.slots[id.0 as usize].readiness;
            let after = self.judge_pod(id, now);
            if before != after {
                self.log(id);
                stale += 1;
            }
        }
        stale
    }

    // ---- Runs ------------------------------------------------------------------------------------

    /// A Run was seen. Returns its id and the id of another Run that had its name, now removed.
    pub(crate) fn apply_run(&mut self, run: Arc<RunObject>) -> (RunId, Option<RunId>) {
        let mut replaced = None;
        if let Some(&id) = self.run_ids.get(&run.key) {
            if self.run(id).is_some_and(|entry| entry.object.uid == run.uid) {
                self.update_run(id, run);
                return (id, None);
            }
            self.remove_run(id);
            replaced = Some(id);
        }
        let domain = self.domain_for(&run.key.namespace, &run.runtime);
        let labels = self.affinity.acquire_set(&run.key.namespace, &run.labels);
        let requests = self.intern_requests(&run.requests.clone().unwrap_or_default());
        let key = run.key.clone();
        let entry = RunEntry { object: run, labels, terms: RunTerms::default(), requests, domain, place: Place::Nowhere };
        let id = if let Some(free) = self.free_runs.pop() {
            self.runs[free as usize] = Some(entry);
            RunId(free)
        } else {
            self.runs.push(Some(entry));
            RunId(u32::try_from(self.runs.len() - 1).unwrap_or(u32::MAX))
        };
        self.run_ids.insert(key, id);
        self.take_terms(id);
        self.settle(id, WakeCause::RunEnded);
        (id, replaced)
    }

    fn update_run(&mut self, id: RunId, run: Arc<RunObject>) {
        let Some(entry) = self.run_mut(id) else { return };
        let old = std::mem::replace(&mut entry.object, run.clone());
        let same_shape = old.labels == run.labels && old.requests == run.requests && old.runtime == run.runtime && old.affinity == run.affinity;
        if !same_shape {
            // Rare (labels, or a neighbour's looser CRD): count it anew.
            let place = entry.place;
            let cause = if old.labels == run.labels { WakeCause::RunEnded } else { WakeCause::LastTargetEnded };
            self.leave_pod(id, cause, true);
            let Some(entry) = self.run(id) else { return };
            let (old_labels, old_requests) = (entry.labels, entry.requests);
            let labels = self.affinity.acquire_set(&run.key.namespace, &run.labels);
            let requests = self.intern_requests(&run.requests.clone().unwrap_or_default());
            let domain = self.domain_for(&run.key.namespace, &run.runtime);
            self.drop_terms(id);
            self.affinity.release_set(old_labels);
            self.release_requests(old_requests);
            if let Some(entry) = self.run_mut(id) {
                entry.labels = labels;
                entry.requests = requests;
                entry.domain = domain;
            }
            self.take_terms(id);
            if let Place::Assumed(pod) = place {
                self.enter_pod(id, pod, true);
            }
        }
        self.take_terms(id);
        self.settle(id, WakeCause::RunEnded);
        self.give_back_terms(id);
    }

    /// Moves the Run to where its object says it is; an assumption stands while the object is Pending.
    fn settle(&mut self, id: RunId, cause: WakeCause) {
        let Some(entry) = self.run(id) else { return };
        let object = entry.object.clone();
        let wanted = match &object.assigned_pod {
            Some(name) if holds_capacity(&object) => Some(ObjectKey::new(object.key.namespace.clone(), name.clone())),
            _ => None,
        };
        let place = entry.place;
        match (place, wanted) {
            (Place::Assumed(pod) | Place::Active(pod), Some(key)) if self.slots[pod.0 as usize].key == key => {
                if matches!(place, Place::Assumed(_)) {
                    self.counts.assumed -= 1;
                    self.counts.active += 1;
                    if let Some(entry) = self.run_mut(id) {
                        entry.place = Place::Active(pod);
                    }
                }
            }
            (_, Some(key)) => {
                self.leave_pod(id, cause, false);
                let pod = self.slot_for(&key);
                self.enter_pod(id, pod, false);
            }
            (Place::Assumed(_), None) if object.phase == Phase::Pending => {}
            (Place::Assumed(_) | Place::Active(_), None) => self.leave_pod(id, cause, false),
            (Place::Nowhere, None) => {}
        }
    }

    /// The Run of this key and UID is gone. Returns its id, free for reuse after this call.
    pub(crate) fn delete_run(&mut self, key: &ObjectKey, uid: &str) -> Option<RunId> {
        let id = self.run_id(key)?;
        if self.run(id).is_none_or(|entry| &*entry.object.uid != uid) {
            return None;
        }
        self.remove_run(id);
        Some(id)
    }

    fn remove_run(&mut self, id: RunId) {
        self.leave_pod(id, WakeCause::RunDeleted, false);
        self.drop_terms(id);
        let Some(entry) = self.runs[id.0 as usize].take() else { return };
        self.affinity.release_set(entry.labels);
        self.release_requests(entry.requests);
        self.run_ids.remove(&entry.object.key);
        self.free_runs.push(id.0);
    }

    /// Takes the terms a Run must hold: all while it may be placed, its anti-affinity while it is active.
    fn take_terms(&mut self, id: RunId) {
        let Some(entry) = self.run(id) else { return };
        let object = entry.object.clone();
        let (ns, affinity) = (&object.key.namespace, &object.affinity);
        let pending = may_be_placed(&object);
        if entry.terms.required_anti.is_empty() && (pending || holds_capacity(&object)) {
            let terms = affinity.required_anti.iter().map(|s| self.acquire_term(ns, s, true)).collect();
            if let Some(entry) = self.run_mut(id) {
                entry.terms.required_anti = terms;
            }
        }
        let none_held = self.run(id).is_some_and(|e| e.terms.required.is_empty() && e.terms.preferred.is_empty() && e.terms.preferred_anti.is_empty());
        if pending && none_held {
            let required = affinity.required.iter().map(|s| self.acquire_term(ns, s, false)).collect();
            let preferred = affinity.preferred.iter().map(|(w, s)| (*w, self.acquire_term(ns, s, false))).collect();
            let preferred_anti = affinity.preferred_anti.iter().map(|(w, s)| (*w, self.acquire_term(ns, s, false))).collect();
            if let Some(entry) = self.run_mut(id) {
                entry.terms.required = required;
                entry.terms.preferred = preferred;
                entry.terms.preferred_anti = preferred_anti;
            }
        }
    }

    /// Gives back the terms a Run no longer needs. Runs after its place is settled.
    fn give_back_terms(&mut self, id: RunId) {
        let Some(entry) = self.run(id) else { return };
        if may_be_placed(&entry.object) {
            return;
        }
        if entry.place == Place::Nowhere {
            self.drop_terms(id);
        } else {
            self.drop_placing_terms(id);
        }
    }

    fn drop_placing_terms(&mut self, id: RunId) {
        let Some(entry) = self.run_mut(id) else { return };
        let required = std::mem::take(&mut entry.terms.required);
        let preferred = std::mem::take(&mut entry.terms.preferred);
        let preferred_anti = std::mem::take(&mut entry.terms.preferred_anti);
        for term in required.into_iter().chain(preferred.into_iter().map(|(_, t)| t)).chain(preferred_anti.into_iter().map(|(_, t)| t)) {
            self.release_term(term, false);
        }
    }

    fn drop_terms(&mut self, id: RunId) {
        self.drop_placing_terms(id);
        let anti = self.run_mut(id).map(|e| std::mem::take(&mut e.terms.required_anti)).unwrap_or_default();
        for term in anti {
            self.release_term(term, true);
        }
    }

    fn acquire_term(&mut self, namespace: &Arc<str>, selector: &berth_api::selector::CompiledSelector, anti: bool) -> TermId {
        let (id, first_anti) = self.affinity.acquire_term(namespace, selector, anti);
        if first_anti {
            self.events.push(CacheEvent::AntiTerm(id));
        }
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.totals.entry(id) {
            let mut by_domain: FxHashMap<DomainId, u32> = FxHashMap::default();
            for pod in self.affinity.cells(id).into_iter().flat_map(|cells| cells.keys()) {
                if let Some(domain) = self.slots[pod.0 as usize].domain {
                    *by_domain.entry(domain).or_default() += 1;
                }
            }
            if !by_domain.is_empty() {
                vacant.insert(by_domain);
            }
        }
        id
    }

    fn release_term(&mut self, id: TermId, anti: bool) {
        if let Some(dropped) = self.affinity.release_term(id, anti) {
            self.totals.remove(&dropped);
        }
    }

    fn enter_pod(&mut self, id: RunId, pod: PodId, assumed: bool) {
        let Some(entry) = self.run_mut(id) else { return };
        entry.place = if assumed { Place::Assumed(pod) } else { Place::Active(pod) };
        let labels = entry.labels;
        let requests = entry.requests;
        let anti = entry.terms.required_anti.clone();
        if assumed {
            self.counts.assumed += 1;
        } else {
            self.counts.active += 1;
        }
        let requests = self.requests[requests.0 as usize].0.clone();
        let slot = &mut self.slots[pod.0 as usize];
        for (resource, amount) in requests.iter() {
            slot.rooms.hold(resource, i128::from(amount));
        }
        *slot.sets.entry(labels).or_default() += 1;
        let changes = self.affinity.add_active(labels, &anti, pod);
        self.after_cells(pod, changes, WakeCause::LastTargetEnded);
        self.log(pod);
    }

    fn leave_pod(&mut self, id: RunId, cause: WakeCause, force: bool) {
        let Some(entry) = self.run_mut(id) else { return };
        let (pod, assumed) = match entry.place {
            Place::Nowhere => return,
            Place::Assumed(pod) => (pod, true),
            Place::Active(pod) => (pod, false),
        };
        entry.place = Place::Nowhere;
        let labels = entry.labels;
        let requests = entry.requests;
        let anti = entry.terms.required_anti.clone();
        if assumed {
            self.counts.assumed -= 1;
        } else {
            self.counts.active -= 1;
        }
        let requests = self.requests[requests.0 as usize].0.clone();
        let slot = &mut self.slots[pod.0 as usize];
        for (resource, amount) in requests.iter() {
            slot.rooms.hold(resource, -i128::from(amount));
        }
        if let Some(count) = slot.sets.get_mut(&labels) {
            *count -= 1;
            if *count == 0 {
                slot.sets.remove(&labels);
            }
        }
        let changes = self.affinity.remove_active(labels, &anti, pod);
        self.after_cells(pod, changes, WakeCause::LastTargetEnded);
        self.log(pod);
        if self.slots[pod.0 as usize].object.is_some() {
            self.events.push(CacheEvent::Offer { pod, cause, force, anti_ended: anti });
        } else {
            self.free_slot_if_unused(pod);
        }
    }

    fn after_cells(&mut self, pod: PodId, changes: CellChanges, cause: WakeCause) {
        let Some(domain) = self.slots[pod.0 as usize].domain else { return };
        for term in changes.appeared {
            *self.totals.entry(term).or_default().entry(domain).or_default() += 1;
            self.events.push(CacheEvent::TargetAppeared { term, pod });
        }
        for term in changes.ended {
            if self.decrement_total(term, domain) {
                self.events.push(CacheEvent::TargetsEnded { term, domain, cause });
            }
        }
    }

    // ---- assumptions -----------------------------------------------------------------------------

    /// Counts a placement before it is written.
    pub(crate) fn assume(&mut self, run: RunId, pod: PodId) -> Reservation {
        self.enter_pod(run, pod, true);
        Reservation { run }
    }

    /// The API server accepted the write: the assumption stands until the informer shows it.
    pub(crate) fn confirm(&mut self, reservation: Reservation) {
        let Reservation { run: _ } = reservation;
    }

    /// The write failed: what was assumed is free, unless the informer has moved the Run meanwhile.
    pub(crate) fn release(&mut self, reservation: Reservation) {
        let Reservation { run } = reservation;
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

/// A Pending Run with a valid spec: it needs all its terms.
fn may_be_placed(run: &RunObject) -> bool {
    run.phase == Phase::Pending && run.invalid.is_none()
}

/// Active, on some Pod name, with requests that can be read (reference kruntimes §4 "Holders").
fn holds_capacity(run: &RunObject) -> bool {
    run.phase == Phase::Active && run.assigned_pod.is_some() && run.requests.is_some()
}

fn same_but_heartbeat(a: &PodObject, b: &PodObject) -> bool {
    a.capacity == b.capacity && a.labels == b.labels && a.annotations == b.annotations && a.workspace_agent == b.workspace_agent
}
