//! What the adapter remembers of Pods that it has seen: until when a process was seen not to have begun and when it had, in which container, whether it had
//! ended before the Pod's deletion was asked for, and when that was, whether the node had decided to end it, and which version a patch of ours
//! replaced. A restart forgets it; then a start is bounded by the time at which the Pod got its node, a second start may go unnoticed, an end beside a
//! deletion counts as a stop, and a patch may be sent once more, which fails its own test.

use std::collections::HashMap;
use std::sync::Mutex;

use berth_runtime::informer::Stored;
use k8s_openapi::jiff::Timestamp;

use super::seen::{Main, SeenPod};
use super::verdict::Earlier;
use berth_runtime::lock;

#[derive(Default)]
struct OfPod {
    earlier: Earlier,
    container: Option<String>,
    /// A second container that has not been told of.
    duplicate: Option<String>,
    restarts: i32,
    /// The version of the Pod that a patch of ours replaced, until the cache has caught up.
    replaced: Option<String>,
}

/// By UID of the Pod; only Pods that exist.
#[derive(Default)]
pub(super) struct Memory {
    pods: Mutex<HashMap<String, OfPod>>,
}

impl Memory {
    /// A Pod came, changed or went.
    pub fn changed(&self, old: Option<&Stored<SeenPod>>, new: Option<&Stored<SeenPod>>, now: Timestamp) {
        let mut pods = lock(&self.pods);
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            pods.remove(&*old.uid);
        }
        let Some(new) = new else { return };
        let known = pods.entry(new.uid.to_string()).or_default();
        let Earlier { waited_until, ended_undeleted, deletion_requested, running_by, was_being_ended } = &mut known.earlier;
        *was_being_ended |= new.object.is_being_ended;
        match new.object.deletion {
            None => *ended_undeleted |= new.object.main.as_ref().is_some_and(Main::has_ended),
            Some(deletion) => *deletion_requested = deletion_requested.or(deletion.requested),
        }
        match &new.object.main {
            None => *waited_until = Some(now),
            Some(main) if main.is_waiting() => *waited_until = Some(now),
            Some(main) => {
                if !main.has_ended() {
                    *running_by = running_by.or(waited_until.and(Some(now)));
                }
                known.began(main);
            }
        }
    }

    /// What the versions of the Pod that were seen told.
    pub fn earlier(&self, uid: &str) -> Earlier {
        lock(&self.pods).get(uid).map(|pod| pod.earlier).unwrap_or_default()
    }

    /// A patch of ours replaced this version of the Pod.
    pub fn replaced(&self, uid: &str, version: &str) {
        if let Some(pod) = lock(&self.pods).get_mut(uid) {
            pod.replaced = Some(version.to_owned());
        }
    }

    /// Whether that version of the Pod is one that a patch of ours replaced.
    pub fn is_replaced(&self, uid: &str, version: &str) -> bool {
        lock(&self.pods).get(uid).is_some_and(|pod| pod.replaced.as_deref() == Some(version))
    }

    /// That the process was begun a second time, once.
    pub fn take_duplicate(&self, uid: &str) -> Option<String> {
        lock(&self.pods).get_mut(uid)?.duplicate.take()
    }
}

impl OfPod {
    /// The kubelet begins a container twice if it dies between the start and its record (design of Jobs, §1.2).
    fn began(&mut self, main: &Main) {
        let again = main.restarts > self.restarts;
        let other = self.container.as_ref().is_some_and(|first| main.id.as_ref().is_some_and(|id| id != first));
        if again || other {
            let first = self.container.clone().unwrap_or_else(|| "another container".to_owned());
            let second = main.id.clone().unwrap_or_else(|| "a container".to_owned());
            self.duplicate = Some(format!("the process was begun again by the node: {first}, then {second}"));
        }
        self.restarts = main.restarts;
        if main.id.is_some() {
            self.container.clone_from(&main.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_runtime::ObjectKey;

    use super::super::seen::{Deletion, MainState};
    use super::*;

    fn pod(uid: &str, main: Option<(MainState, &str, i32)>) -> Stored<SeenPod> {
        let main = main.map(|(state, id, restarts)| Main { id: Some(id.to_owned()), restarts, state });
        let object = Arc::new(SeenPod { uid: uid.to_owned(), main, ..SeenPod::default() });
        Stored { key: ObjectKey::new("ns", "p"), uid: Arc::from(uid), resource_version: Arc::from("1"), object }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or_default()
    }

    #[test]
    fn it_knows_until_when_a_process_had_not_begun_and_forgets_pods_that_are_gone() {
        let memory = Memory::default();
        let waiting = pod("u", Some((MainState::Waiting { reason: String::new(), message: String::new() }, "", 0)));
        let running = pod("u", Some((MainState::Running { started: None }, "c1", 0)));
        memory.changed(None, Some(&pod("u", None)), at(1));
        memory.changed(None, Some(&waiting), at(2));
        memory.changed(Some(&waiting), Some(&running), at(9));
        assert_eq!(memory.earlier("u").waited_until, Some(at(2)));
        memory.changed(Some(&running), Some(&pod("v", None)), at(10));
        assert_eq!((memory.earlier("u").waited_until, memory.earlier("v").waited_until), (None, Some(at(10))), "a namesake is another Pod");
        memory.changed(Some(&pod("v", None)), None, at(11));
        assert!(lock(&memory.pods).is_empty());
    }

    #[test]
    fn it_knows_by_when_a_process_had_begun_if_it_saw_that() {
        let waiting = || pod("u", None);
        let running = || pod("u", Some((MainState::Running { started: None }, "c1", 0)));
        let ended = MainState::Terminated { code: 0, reason: String::new(), message: String::new(), started: None, finished: None };
        let ended = || pod("u", Some((ended.clone(), "c1", 0)));
        let told = |versions: &[Stored<SeenPod>]| {
            let memory = Memory::default();
            versions.iter().zip(1..).for_each(|(version, second)| memory.changed(None, Some(version), at(second)));
            memory.earlier("u").running_by
        };
        assert_eq!(told(&[waiting(), waiting(), running(), running(), ended()]), Some(at(3)));
        assert_eq!(told(&[running(), running()]), None, "after a restart: it may have begun long ago");
        assert_eq!(told(&[waiting(), ended()]), None);
    }

    #[test]
    fn it_knows_what_came_first_the_end_or_the_deletion() {
        let ended = || MainState::Terminated { code: 0, reason: String::new(), message: String::new(), started: None, finished: Some(at(5)) };
        let version = |state: MainState, deletion: Option<Deletion>| {
            let mut pod = pod("u", Some((state, "c1", 0)));
            pod.object = Arc::new(SeenPod { deletion, ..(*pod.object).clone() });
            pod
        };
        let (asked, last_word) = (Deletion { requested: Some(at(4)), due: at(34) }, Deletion { requested: None, due: at(7) });
        let told = |versions: &[Stored<SeenPod>]| {
            let memory = Memory::default();
            versions.iter().for_each(|version| memory.changed(None, Some(version), at(9)));
            let earlier = memory.earlier("u");
            (earlier.ended_undeleted, earlier.deletion_requested)
        };
        let running = || MainState::Running { started: None };
        assert_eq!(told(&[version(running(), None), version(ended(), None), version(ended(), Some(last_word))]), (true, None));
        assert_eq!(told(&[version(running(), Some(asked)), version(ended(), Some(asked)), version(ended(), Some(last_word))]), (false, Some(at(4))));
        assert_eq!(told(&[version(ended(), Some(last_word))]), (false, None), "after a restart");
    }

    #[test]
    fn it_knows_that_the_node_had_decided_to_end_the_pod() {
        let memory = Memory::default();
        let mut ending = pod("u", Some((MainState::Running { started: None }, "c1", 0)));
        ending.object = Arc::new(SeenPod { is_being_ended: true, ..(*ending.object).clone() });
        memory.changed(None, Some(&ending), at(1));
        let ended = MainState::Terminated { code: 0, reason: String::new(), message: String::new(), started: None, finished: Some(at(5)) };
        memory.changed(Some(&ending), Some(&pod("u", Some((ended, "c1", 0)))), at(6));
        assert!(memory.earlier("u").was_being_ended && !memory.earlier("v").was_being_ended);
    }

    #[test]
    fn a_version_that_a_patch_replaced_is_not_patched_again() {
        let memory = Memory::default();
        memory.changed(None, Some(&pod("u", None)), at(1));
        assert!(!memory.is_replaced("u", "1"));
        memory.replaced("u", "1");
        assert!(memory.is_replaced("u", "1") && !memory.is_replaced("u", "2") && !memory.is_replaced("v", "1"));
    }

    #[test]
    fn a_second_start_is_told_once() {
        let memory = Memory::default();
        let running = |id: &str, restarts| pod("u", Some((MainState::Running { started: None }, id, restarts)));
        memory.changed(None, Some(&running("c1", 0)), at(1));
        memory.changed(None, Some(&running("c1", 0)), at(2));
        assert_eq!(memory.take_duplicate("u"), None);
        memory.changed(None, Some(&running("c2", 0)), at(3));
        assert!(memory.take_duplicate("u").is_some_and(|note| note.ends_with("c1, then c2")));
        assert_eq!(memory.take_duplicate("u"), None);
        memory.changed(None, Some(&running("c2", 1)), at(4));
        assert!(memory.take_duplicate("u").is_some());
    }
}
