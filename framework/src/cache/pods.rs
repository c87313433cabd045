//! Pods come, change, go stale and go; what that means for waiting Runs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::constants::ANNOTATION_CAPACITY_PREFIX;
use berth_api::runtime_ready::PodFacts;

use super::{Cache, CacheEvent, DomainId};
use crate::affinity_index::TermId;
use crate::model::{Now, ObjectKey, PodObject, Readiness};
use crate::plugin::WakeCause;
use crate::views::PodId;

impl Cache {
    /// A Pod was seen. Pods without a `runtime` label never come here.
    pub(crate) fn apply_pod(&mut self, pod: Arc<PodObject>, now: Now) {
        let id = self.slot_for(&pod.key);
        if self.slots[id.0 as usize].object.as_ref().is_some_and(|old| old.uid != pod.uid) {
            self.remove_pod_object(id);
        }
        let old = self.slots[id.0 as usize].object.clone();
        let moved = self.slots[id.0 as usize].domain.is_none_or(|domain| !self.domains.is_of(domain, &pod.runtime));
        if moved && old.is_some() {
            self.leave_domain(id, WakeCause::PodDeletedOrRelabelled);
        }
        let slot = &mut self.slots[id.0 as usize];
        slot.facts = PodFacts::fold(Some(&slot.facts), pod.signs(), now);
        slot.rooms.advertise(&pod.capacity);
        slot.object = Some(pod.clone());
        if old.is_none() {
            self.counts.pods += 1;
        }
        if moved {
            let domain = self.domains.acquire(&pod.key.namespace, &pod.runtime);
            self.join_domain(id, domain);
        }
        let before = self.slots[id.0 as usize].readiness;
        let after = self.judge_pod(id, now);
        let changed = moved || old.as_ref().is_none_or(|old| !same_but_heartbeat(old, &pod)) || before != after;
        if changed {
            self.log(id);
        }
        if let Some((cause, force)) = helps(old.as_deref().filter(|_| !moved), &pod, before, after) {
            self.events.push(CacheEvent::Offer { pod: id, cause, force, anti_ended: Vec::new() });
        }
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
        // The timer of the Pod that is gone says nothing about another of its name.
        slot.generation += 1;
        slot.timer_armed = false;
        self.counts.pods -= 1;
    }

    fn leave_domain(&mut self, id: PodId, cause: WakeCause) {
        let Some(domain) = self.slots[id.0 as usize].domain else { return };
        self.log(id);
        let at = self.slots[id.0 as usize].at;
        let pods = &mut self.domains.get_mut(domain).pods;
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
        self.domains.release(domain);
    }

    fn join_domain(&mut self, id: PodId, domain: DomainId) {
        let pods = &mut self.domains.get_mut(domain).pods;
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

    pub(super) fn decrement_total(&mut self, term: TermId, domain: DomainId) -> bool {
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
}

/// What this change of a Pod may end for waiting Runs, and whether for all of them. Whether a Pod that is silent or not
/// even Ready can take a Run is for the plugins to say.
fn helps(old: Option<&PodObject>, pod: &PodObject, before: Readiness, after: Readiness) -> Option<(WakeCause, bool)> {
    let Some(old) = old else { return Some((WakeCause::PodReady, true)) };
    let silent = |readiness| matches!(readiness, Readiness::HeartbeatStale | Readiness::HeartbeatMissing);
    if after == Readiness::Ready && silent(before) {
        return Some((WakeCause::HeartbeatReturned, true));
    }
    if (after == Readiness::Ready || silent(after)) && before != Readiness::Ready && !silent(before) {
        return Some((WakeCause::PodReady, true));
    }
    let foreign = |pod: &PodObject| -> Vec<(String, String)> {
        let annotations = pod.annotations.iter().filter(|(key, _)| !key.starts_with(ANNOTATION_CAPACITY_PREFIX));
        annotations.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let relabelled =
        old.labels != pod.labels || old.workspace_agent != pod.workspace_agent || (old.annotations != pod.annotations && foreign(old) != foreign(pod));
    if pod.capacity.iter().any(|(resource, amount)| old.capacity.get(resource).is_none_or(|was| amount > was)) {
        return Some((WakeCause::CapacityRaised, relabelled));
    }
    relabelled.then_some((WakeCause::PodDeletedOrRelabelled, true))
}

fn same_but_heartbeat(a: &PodObject, b: &PodObject) -> bool {
    a.capacity == b.capacity && a.labels == b.labels && a.annotations == b.annotations && a.workspace_agent == b.workspace_agent
}
