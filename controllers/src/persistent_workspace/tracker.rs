//! What the binder knows of Runtime Pods: readiness by the one predicate, and when it ends unless the agent is heard of.
//!
//! A heartbeat that changes no verdict wakes nobody. Going stale is no event of the API server: each ready Pod has one timer,
//! which is re-armed when it fires, not with each heartbeat.

use super::choose::{Candidate, Load};
use super::plan::Found;
use crate::pods::RuntimePod;
use crate::policy::Policies;
use berth_api::runtime_ready::{Availability, Now, PodFacts, Verdict};
use berth_runtime::ObjectKey;
use berth_runtime::informer::Stored;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Whom a change of a Pod concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    /// Workspaces of that namespace that wait for a Pod of that Runtime.
    Waiting { namespace: Arc<str>, runtime: Arc<str> },
    /// Workspaces bound to the Pod of that name.
    On(ObjectKey),
}

/// What follows from a change: whom to wake, and when to look at the Pod again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub wake: Vec<Slot>,
    pub look_again: Option<Duration>,
}

/// Names of Pods, in order.
type Names = BTreeSet<Arc<str>>;

#[derive(Default)]
pub(super) struct Tracker {
    pods: HashMap<ObjectKey, Tracked>,
    /// Names by namespace and Runtime.
    by_runtime: HashMap<(Arc<str>, Arc<str>), Names>,
    policies: Policies,
}

struct Tracked {
    uid: Arc<str>,
    runtime: Arc<str>,
    facts: PodFacts,
    verdict: Verdict,
    agent: bool,
    runs: u64,
    /// A timer is running.
    armed: bool,
}

impl Tracked {
    fn availability(&self, policies: &Policies, now: Now) -> Availability {
        policies.of(&self.runtime).judge(self.facts.availability(now))
    }
}

impl Tracker {
    /// Judges by `policies` from now on: what follows, by Pod.
    pub fn obey(&mut self, policies: Policies, now: Now) -> Vec<(ObjectKey, Effect)> {
        self.policies = policies;
        let mut effects = Vec::new();
        for (key, pod) in &mut self.pods {
            let availability = pod.availability(&self.policies, now);
            let mut effect = Effect::default();
            if availability.verdict != std::mem::replace(&mut pod.verdict, availability.verdict) {
                effect.wake.push(Slot::On(key.clone()));
                if availability.is_ready() {
                    effect.wake.push(Slot::Waiting { namespace: key.namespace.clone(), runtime: pod.runtime.clone() });
                }
            }
            effect.look_again = arm(&mut pod.armed, availability, now);
            effects.push((key.clone(), effect));
        }
        effects
    }

    /// What the profile of each Runtime says.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// A Pod exists in this state.
    pub fn applied<P>(&mut self, pod: &Stored<P>, read: RuntimePod<'_>, now: Now) -> Effect {
        let old = self.remove(&pod.key);
        let same = old.as_ref().filter(|old| old.uid == pod.uid);
        let facts = PodFacts::fold(same.map(|old| &old.facts), read.signs, now);
        let runtime = same.map(|old| &old.runtime).filter(|runtime| &***runtime == read.runtime).cloned().unwrap_or_else(|| Arc::from(read.runtime));
        let availability = self.policies.of(&runtime).judge(facts.availability(now));
        let mut effect = Effect::default();
        let unchanged = same.is_some_and(|old| old.verdict == availability.verdict && old.runtime == runtime && old.agent == read.agent);
        let waiting = |runtime: &Arc<str>| Slot::Waiting { namespace: pod.key.namespace.clone(), runtime: runtime.clone() };
        if !unchanged {
            effect.wake.push(Slot::On(pod.key.clone()));
            let joined = old.as_ref().is_none_or(|old| old.runtime != runtime);
            if joined || availability.verdict == Verdict::Ready {
                effect.wake.push(waiting(&runtime));
            }
            if let Some(old) = old.as_ref().filter(|old| old.runtime != runtime) {
                effect.wake.push(waiting(&old.runtime));
            }
        }
        let mut armed = old.as_ref().is_some_and(|old| old.armed);
        effect.look_again = arm(&mut armed, availability, now);
        self.by_runtime.entry((pod.key.namespace.clone(), runtime.clone())).or_default().insert(pod.key.name.clone());
        self.pods.insert(
            pod.key.clone(),
            Tracked { uid: pod.uid.clone(), runtime, facts, verdict: availability.verdict, agent: read.agent, runs: read.runs, armed },
        );
        effect
    }

    /// A Pod is gone, or no longer a Runtime Pod.
    pub fn deleted(&mut self, key: &ObjectKey) -> Effect {
        let mut effect = Effect::default();
        if let Some(old) = self.remove(key) {
            effect.wake.push(Slot::On(key.clone()));
            let set = (key.namespace.clone(), old.runtime);
            if !self.by_runtime.contains_key(&set) {
                effect.wake.push(Slot::Waiting { namespace: set.0, runtime: set.1 });
            }
        }
        effect
    }

    /// The timer of a Pod fired.
    pub fn fired(&mut self, key: &ObjectKey, now: Now) -> Effect {
        let mut effect = Effect::default();
        let Some(pod) = self.pods.get_mut(key) else { return effect };
        let availability = pod.availability(&self.policies, now);
        if availability.verdict != pod.verdict {
            pod.verdict = availability.verdict;
            effect.wake.push(Slot::On(key.clone()));
        }
        pod.armed = false;
        effect.look_again = arm(&mut pod.armed, availability, now);
        effect
    }

    /// The Pods of a namespace and Runtime by name, as of `now`; `held` tells what counts towards the load of each.
    pub fn candidates<'t>(
        &'t self,
        namespace: &'t Arc<str>,
        runtime: &str,
        now: Now,
        held: impl Fn(&ObjectKey) -> u64 + 't,
    ) -> impl Iterator<Item = Candidate<'t>> {
        let names = self.by_runtime.get(&(namespace.clone(), Arc::from(runtime)));
        names.into_iter().flatten().filter_map(move |name| {
            let key = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            let pod = self.pods.get(&key)?;
            let load = Load { held: held(&key), capacity: pod.runs };
            Some(Candidate { name, uid: &pod.uid, verdict: pod.availability(&self.policies, now).verdict, load })
        })
    }

    /// What is known of a Pod by name.
    pub fn find<R>(&self, key: &ObjectKey, now: Now, read: impl FnOnce(Option<Found<'_>>) -> R) -> R {
        let pod = self.pods.get(key);
        read(pod.map(|pod| Found { uid: &pod.uid, runtime: Some(&pod.runtime), verdict: pod.availability(&self.policies, now).verdict, agent: pod.agent }))
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Tracked> {
        let old = self.pods.remove(key)?;
        let set = (key.namespace.clone(), old.runtime.clone());
        if let Some(names) = self.by_runtime.get_mut(&set) {
            names.remove(&key.name);
            if names.is_empty() {
                self.by_runtime.remove(&set);
            }
        }
        Some(old)
    }
}

/// Arms the one timer of a Pod, for when it would go stale, unless it runs.
fn arm(armed: &mut bool, availability: Availability, now: Now) -> Option<Duration> {
    let stale_at = availability.stale_at_mono_ms.filter(|_| !*armed)?;
    *armed = true;
    Some(Duration::from_millis(stale_at.saturating_sub(now.mono_ms)))
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
