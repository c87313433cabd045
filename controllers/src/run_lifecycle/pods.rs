//! What the lifecycle knows of Runtime Pods from its cache: which give cause to look at the Runs on them, and when one will.
//!
//! A heartbeat wakes nobody. Silence is no event of the API server: each Pod has one timer, which is armed again when it fires.

use super::plan::PodState;
use crate::pods::RuntimePod;
use berth_api::liveness::{Life, Liveness};
use berth_api::runtime_ready::{Now, PodSigns};
use berth_runtime::ObjectKey;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Pods {
    by_key: HashMap<ObjectKey, Tracked>,
    by_uid: HashMap<Arc<str>, ObjectKey>,
}

struct Tracked {
    uid: Arc<str>,
    terminating: bool,
    ready: bool,
    liveness: Liveness,
    /// What its Runs were last woken for.
    told: Life,
    /// A timer is running.
    armed: bool,
}

/// What follows from what was seen of a Pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// The Runs on it are to be looked at.
    pub wake: bool,
    /// Its timer is to fire then.
    pub look_again: Option<Duration>,
}

impl Pods {
    /// A Pod exists in this state.
    pub fn applied(&mut self, key: &ObjectKey, uid: &Arc<str>, read: RuntimePod<'_>, now: Now) -> Effect {
        let old = self.remove(key);
        let same = old.as_ref().filter(|old| old.uid == *uid);
        let liveness = Liveness::observe(same.map(|old| old.liveness), read.signs, now);
        let replaced = old.is_some() && same.is_none();
        let mut effect = Effect { wake: replaced || (read.signs.terminating && same.is_none_or(|old| !old.terminating)), look_again: None };
        let mut armed = same.is_some_and(|old| old.armed);
        if !armed {
            effect.look_again = until_worse(liveness, now);
            armed = effect.look_again.is_some();
        }
        self.by_uid.insert(uid.clone(), key.clone());
        let told = same.map_or(Life::Well, |old| old.told);
        self.by_key.insert(key.clone(), Tracked { uid: uid.clone(), terminating: read.signs.terminating, ready: read.signs.ready, liveness, told, armed });
        effect
    }

    /// A Pod is gone, or no longer a Runtime Pod.
    pub fn deleted(&mut self, key: &ObjectKey) -> Effect {
        Effect { wake: self.remove(key).is_some(), look_again: None }
    }

    /// The timer of a Pod fired.
    pub fn fired(&mut self, key: &ObjectKey, now: Now) -> Effect {
        let Some(pod) = self.by_key.get_mut(key) else { return Effect::default() };
        let (life, look_again) = (pod.liveness.life(now), until_worse(pod.liveness, now));
        pod.armed = look_again.is_some();
        Effect { wake: std::mem::replace(&mut pod.told, life) != life && life != Life::Well, look_again }
    }

    /// What the cache says of the Pod of that name for a Run that is assigned to it.
    pub fn state(&self, key: &ObjectKey, assigned_uid: Option<&str>, now: Now) -> PodState {
        let Some(pod) = self.by_key.get(key) else { return PodState::Gone };
        match assigned_uid.filter(|uid| *uid != &*pod.uid) {
            Some(uid) if self.lives_elsewhere(key, uid) => PodState::Inconsistent,
            Some(_) => PodState::Replaced,
            None if pod.terminating => PodState::Terminating,
            None => PodState::of(pod.liveness.life(now), pod.ready),
        }
    }

    /// Whether that UID is one of another Runtime Pod of the namespace.
    pub fn lives_elsewhere(&self, key: &ObjectKey, uid: &str) -> bool {
        self.by_uid.get(uid).is_some_and(|other| other.namespace == key.namespace && other.name != key.name)
    }

    /// What becomes of the Pod, now that it was read past the cache: what the cache hasn't shown yet is a sign of life, too. A Pod
    /// that isn't watched (it lost its label) is never lost.
    pub fn life(&self, key: &ObjectKey, uid: &str, signs: PodSigns, now: Now) -> Life {
        let known = self.by_key.get(key).filter(|pod| &*pod.uid == uid);
        known.map_or(Life::Well, |pod| Liveness::observe(Some(pod.liveness), signs, now).life(now))
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Tracked> {
        let old = self.by_key.remove(key)?;
        self.by_uid.remove(&old.uid);
        Some(old)
    }
}

fn until_worse(liveness: Liveness, now: Now) -> Option<Duration> {
    liveness.worse_at_mono_ms(now).map(|at| Duration::from_millis(at.saturating_sub(now.mono_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: PodSigns = PodSigns { running: true, ready: true, terminating: false, heartbeat_true: true, cordoned: false, probe_time_ms: Some(0) };

    fn of(signs: PodSigns) -> RuntimePod<'static> {
        RuntimePod { runtime: "bash", signs, agent: true, runs: 2 }
    }

    fn now(mono_ms: u64) -> Now {
        Now { wall_ms: 0, mono_ms }
    }

    fn beat(at: i64) -> RuntimePod<'static> {
        of(PodSigns { probe_time_ms: Some(at), ..WELL })
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("a", name)
    }

    fn after(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    #[test]
    fn heartbeats_wake_nobody_and_one_timer_finds_the_silence() {
        let (mut pods, p, u) = (Pods::default(), key("p"), Arc::from("u"));
        assert_eq!(pods.applied(&p, &u, beat(0), now(0)), Effect { wake: false, look_again: after(30_001) });
        for n in 1..5 {
            assert_eq!(pods.applied(&p, &u, beat(5_000 * n), now(5_000 * n.unsigned_abs())), Effect::default());
        }
        assert_eq!(pods.fired(&p, now(30_001)), Effect { wake: false, look_again: after(20_000) });
        assert_eq!(pods.state(&p, Some("u"), now(50_000)), PodState::Well);
        assert_eq!(pods.fired(&p, now(50_001)), Effect { wake: true, look_again: None });
        assert_eq!(pods.state(&p, Some("u"), now(50_001)), PodState::Silent);
        assert_eq!(
            pods.applied(&p, &u, of(PodSigns { ready: false, ..beat(20_000).signs }), now(50_002)),
            Effect { wake: false, look_again: after(30_001) },
            "it just ceased"
        );
        assert_eq!(pods.state(&p, Some("u"), now(80_003)), PodState::NotReady);
        assert_eq!(pods.applied(&p, &u, beat(90_000), now(90_000)).look_again, None, "its timer still runs");
        assert_eq!(pods.state(&p, Some("u"), now(90_000)), PodState::Well);
    }

    #[test]
    fn a_pod_that_goes_ends_or_is_replaced_wakes_its_runs_once() {
        let (mut pods, p, u) = (Pods::default(), key("p"), Arc::from("u"));
        pods.applied(&p, &u, beat(0), now(0));
        let ending = of(PodSigns { terminating: true, ..WELL });
        assert!(pods.applied(&p, &u, ending, now(1)).wake);
        assert!(!pods.applied(&p, &u, ending, now(2)).wake);
        assert_eq!(pods.state(&p, None, now(2)), PodState::Terminating);
        assert!(pods.applied(&p, &Arc::from("v"), beat(0), now(3)).wake);
        assert_eq!((pods.state(&p, Some("u"), now(3)), pods.state(&p, Some("v"), now(3))), (PodState::Replaced, PodState::Well));
        assert!(pods.deleted(&p).wake);
        assert!(!pods.deleted(&p).wake);
        assert_eq!(pods.state(&p, Some("v"), now(4)), PodState::Gone);
        assert_eq!(pods.fired(&p, now(99_999)), Effect::default());
    }

    #[test]
    fn a_uid_of_another_pod_that_lives_is_inconsistent() {
        let mut pods = Pods::default();
        pods.applied(&key("p"), &Arc::from("u"), beat(0), now(0));
        pods.applied(&key("q"), &Arc::from("w"), beat(0), now(0));
        pods.applied(&ObjectKey::new("b", "q"), &Arc::from("x"), beat(0), now(0));
        let state = |uid| pods.state(&key("p"), Some(uid), now(0));
        assert_eq!(["u", "w", "x", "y"].map(state), [PodState::Well, PodState::Inconsistent, PodState::Replaced, PodState::Replaced]);
    }

    #[test]
    fn who_is_cordoned_is_looked_at_as_long_as_it_is() {
        let (mut pods, p, u) = (Pods::default(), key("p"), Arc::from("u"));
        let cordoned = |at| of(PodSigns { heartbeat_true: false, cordoned: true, ..beat(at).signs });
        assert_eq!(pods.applied(&p, &u, cordoned(0), now(0)), Effect { wake: false, look_again: after(30_001) });
        assert_eq!(pods.applied(&p, &u, cordoned(25_000), now(25_000)), Effect::default());
        assert_eq!(pods.fired(&p, now(30_001)), Effect { wake: true, look_again: after(25_000) });
        assert_eq!(pods.state(&p, Some("u"), now(30_001)), PodState::Cordoned);
        pods.applied(&p, &u, cordoned(40_000), now(40_000));
        assert_eq!(pods.fired(&p, now(55_001)), Effect { wake: false, look_again: after(15_000) }, "they know");
        pods.applied(&p, &u, beat(60_000), now(60_000));
        assert_eq!(pods.state(&p, Some("u"), now(60_000)), PodState::Well);
        assert_eq!(pods.fired(&p, now(70_001)), Effect { wake: false, look_again: after(20_000) });
    }

    #[test]
    fn a_read_that_shows_more_than_the_cache_is_a_sign_of_life() {
        let (mut pods, p) = (Pods::default(), key("p"));
        pods.applied(&p, &Arc::from("u"), beat(0), now(0));
        let late = now(40_000);
        let lost =
            |uid, ready, heartbeat_true, probe_time_ms| pods.life(&p, uid, PodSigns { ready, heartbeat_true, probe_time_ms, ..WELL }, late) == Life::Lost;
        assert!(lost("u", true, true, Some(0)), "as in the cache");
        assert!(!lost("u", true, true, Some(35_000)), "it has beaten meanwhile");
        assert!(!lost("u", false, true, Some(0)), "until now it was well, as far as the cache knows");
        assert!(!lost("v", true, true, Some(0)) && pods.life(&key("q"), "u", PodSigns { probe_time_ms: None, ..WELL }, late) == Life::Well, "not watched");
    }
}
