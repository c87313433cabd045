//! Runs come, change, are counted on Pods and go; their terms are taken and given back.

use std::sync::Arc;

use berth_api::selector::CompiledSelector;
use rustc_hash::FxHashMap;

use super::{Cache, CacheEvent, DomainId, Place, RunEntry, RunId, RunTerms};
use crate::affinity_index::{CellChanges, TermId};
use crate::model::{ObjectKey, Phase, Requests, RunObject};
use crate::plugin::WakeCause;
use crate::views::PodId;

impl Cache {
    /// A Run was seen. One of another UID that had its name is gone.
    pub(crate) fn apply_run(&mut self, run: Arc<RunObject>) -> RunId {
        if let Some(&id) = self.run_ids.get(&run.key) {
            if self.run(id).is_some_and(|entry| entry.object.uid == run.uid) {
                self.update_run(id, run);
                return id;
            }
            self.remove_run(id);
        }
        let domain = self.domains.acquire(&run.key.namespace, &run.runtime);
        let labels = self.affinity.acquire_set(&run.key.namespace, &run.labels);
        let requests = self.intern_requests(&held_requests(&run));
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
        id
    }

    fn update_run(&mut self, id: RunId, run: Arc<RunObject>) {
        let Some(entry) = self.run_mut(id) else { return };
        let old = std::mem::replace(&mut entry.object, run.clone());
        if !old.asks_the_same(&run) {
            // Rare (labels, or a neighbour's looser CRD): count it anew.
            let assumed_on = if let Place::Assumed(pod) = entry.place { Some(pod) } else { None };
            // By name: the slot goes when its last Run leaves and there is no Pod.
            let assumed_on = assumed_on.map(|pod| self.slots[pod.0 as usize].key.clone());
            let cause = if old.labels == run.labels { WakeCause::RunEnded } else { WakeCause::LastTargetEnded };
            self.leave_pod(id, cause, true);
            let Some(entry) = self.run(id) else { return };
            let (old_labels, old_requests, old_domain) = (entry.labels, entry.requests, entry.domain);
            let labels = self.affinity.acquire_set(&run.key.namespace, &run.labels);
            let requests = self.intern_requests(&held_requests(&run));
            let domain = self.domains.acquire(&run.key.namespace, &run.runtime);
            self.drop_terms(id);
            self.affinity.release_set(old_labels);
            self.release_requests(old_requests);
            self.domains.release(old_domain);
            if let Some(entry) = self.run_mut(id) {
                entry.labels = labels;
                entry.requests = requests;
                entry.domain = domain;
            }
            self.take_terms(id);
            if let Some(key) = assumed_on {
                let pod = self.slot_for(&key);
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
            Some(name) if counts_on_a_pod(&object) => Some(ObjectKey::new(object.key.namespace.clone(), name.clone())),
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

    /// The Run is gone; its id is free for reuse.
    pub(crate) fn remove_run(&mut self, id: RunId) {
        self.leave_pod(id, WakeCause::RunDeleted, false);
        self.drop_terms(id);
        let Some(entry) = self.runs[id.0 as usize].take() else { return };
        self.affinity.release_set(entry.labels);
        self.release_requests(entry.requests);
        self.domains.release(entry.domain);
        self.run_ids.remove(&entry.object.key);
        self.free_runs.push(id.0);
    }

    /// Takes the terms a Run must hold: all while it may be placed, its anti-affinity while it is active.
    fn take_terms(&mut self, id: RunId) {
        let Some(entry) = self.run(id) else { return };
        let object = entry.object.clone();
        let (ns, affinity) = (&object.key.namespace, &object.affinity);
        let pending = may_be_placed(&object);
        // Also of a Run that became invalid: it may be assumed on a Pod.
        if entry.terms.required_anti.is_empty() && (object.phase == Phase::Pending || counts_on_a_pod(&object)) {
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

    fn acquire_term(&mut self, namespace: &Arc<str>, selector: &CompiledSelector, anti: bool) -> TermId {
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

    pub(super) fn enter_pod(&mut self, id: RunId, pod: PodId, assumed: bool) {
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
        let requests = self.requests[requests.0 as usize].requests.clone();
        let slot = &mut self.slots[pod.0 as usize];
        for (resource, amount) in requests.iter() {
            slot.rooms.hold(resource, i128::from(amount));
        }
        *slot.sets.entry(labels).or_default() += 1;
        let changes = self.affinity.add_active(labels, &anti, pod);
        self.after_cells(pod, changes, WakeCause::LastTargetEnded);
        self.log(pod);
    }

    pub(super) fn leave_pod(&mut self, id: RunId, cause: WakeCause, force: bool) {
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
        let requests = self.requests[requests.0 as usize].requests.clone();
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
            self.events.push(CacheEvent::Offer { pod, cause, force, anti_ended: anti.into_vec() });
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
}

/// A Pending Run with a valid spec: it needs all its terms.
fn may_be_placed(run: &RunObject) -> bool {
    run.phase == Phase::Pending && run.invalid.is_none()
}

/// Active on some Pod name: an affinity target there, and a holder of what it asks for (reference kruntimes §3.3, §4).
fn counts_on_a_pod(run: &RunObject) -> bool {
    run.phase == Phase::Active && run.assigned_pod.is_some()
}

fn held_requests(run: &RunObject) -> Arc<Requests> {
    run.requests.clone().unwrap_or_else(|| Arc::new(Requests::nothing()))
}
