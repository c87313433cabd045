//! Tables of the index: where a Run is found as it lives, and who is told.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use crate::testing::{KeptRun, START_S, read_run, run, time};
use serde_json::{Value, json};

/// An index without an informer, fed by hand.
struct Fed {
    index: RunIndex,
    told: Arc<Mutex<Vec<String>>>,
    kept: HashMap<String, Stored<KeptRun>>,
}

impl Fed {
    fn new() -> Self {
        let shared = Shared { state: Mutex::default(), listeners: RwLock::default(), synced: Box::new(|| std::future::ready(()).boxed()) };
        let index = RunIndex { shared: Arc::new(shared) };
        let told = Arc::<Mutex<Vec<String>>>::default();
        let to = told.clone();
        index.on_use(move |workspace| to.lock().unwrap().push(workspace.name.to_string()));
        Self { index, told, kept: HashMap::new() }
    }

    /// Run `name` is in this state, at `now_s` after the start; whom the index told of.
    fn put(&mut self, name: &str, uid: &str, spec: Value, status: Value, now_s: i64) -> Vec<String> {
        let kept = KeptRun::new(serde_json::from_value(run(name, spec, status)).unwrap());
        let key = ObjectKey::new("a", name);
        self.change(name, Some(Stored { key, uid: Arc::from(uid), resource_version: Arc::from("1"), object: Arc::new(kept) }), now_s)
    }

    fn change(&mut self, name: &str, new: Option<Stored<KeptRun>>, now_s: i64) -> Vec<String> {
        let key = ObjectKey::new("a", name);
        let old = self.kept.remove(name);
        self.index.shared.apply(&Change { key: &key, old: old.as_ref(), new: new.as_ref(), invalid: None }, read_run, START_S + now_s);
        if let Some(new) = new {
            self.kept.insert(name.to_owned(), new);
        }
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    fn usage(&self, workspace: &str) -> (usize, usize, Option<i64>) {
        let usage = self.index.usage(&ObjectKey::new("a", workspace));
        (usage.live, usage.active, usage.last_s.map(|at| at - START_S))
    }

    fn on(&self, pod: &str) -> (Vec<String>, u64) {
        let pod = ObjectKey::new("a", pod);
        (self.index.on_pod(&pod).into_iter().map(|run| run.name.to_string()).collect(), self.index.held_runs(&pod))
    }
}

fn on(phase: &str, pod: &str, times: Value) -> Value {
    let mut status = json!({"phase": phase, "assignedPod": pod});
    status.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
    status
}

fn names(workspace: &str) -> Value {
    json!({"workspace": {"name": workspace}})
}

#[test]
fn a_run_is_found_on_its_pod_and_among_the_users_of_its_workspace_as_it_lives() {
    let mut fed = Fed::new();
    type Usage = (usize, usize, Option<i64>);
    let steps: [(Value, &[&str], Usage, bool); 8] = [
        (json!({}), &["w"], (1, 0, None), false),
        (on("Scheduled", "p", json!({})), &["w"], (1, 1, None), true),
        (on("Running", "p", json!({"startTime": time(7)})), &["w"], (1, 1, Some(7)), true),
        (on("Running", "p", json!({"startTime": time(7), "message": "x"})), &[], (1, 1, Some(7)), true),
        (json!({"phase": "Pending", "attempt": 2}), &["w"], (1, 0, Some(7)), false),
        (on("Suspended", "p", json!({})), &["w"], (1, 1, Some(7)), true),
        (on("Ready", "p", json!({"startTime": time(9)})), &["w"], (1, 1, Some(9)), true),
        (on("Succeeded", "p", json!({"startTime": time(9), "completionTime": time(20)})), &["w"], (0, 0, Some(20)), false),
    ];
    for (status, told, usage, on_pod) in steps {
        assert_eq!(fed.put("r", "u", names("w"), status.clone(), 30), *told, "{status}");
        assert_eq!((fed.usage("w"), fed.on("p").1), (usage, u64::from(on_pod)), "{status}");
    }
    assert_eq!(fed.change("r", None, 40), ["w"]);
    assert_eq!(fed.usage("w"), (0, 0, Some(20)), "it had ended before it was deleted");
    fed.index.forget(&ObjectKey::new("a", "w"));
    assert_eq!(fed.usage("w"), (0, 0, None));
    let state = lock(&fed.index.shared.state);
    assert!(state.by_pod.is_empty() && state.by_workspace.is_empty(), "nothing is left behind");
}

#[test]
fn a_claimed_run_that_is_deleted_or_replaced_was_a_use_until_then_and_the_future_is_not_believed() {
    let mut fed = Fed::new();
    fed.put("r", "u", names("w"), on("Running", "p", json!({"startTime": time(5)})), 10);
    assert_eq!(fed.put("r", "another", names("x"), json!({}), 12), ["w", "x"]);
    assert_eq!((fed.usage("w"), fed.usage("x")), ((0, 0, Some(12)), (1, 0, None)));
    fed.put("s", "u", names("w"), on("Scheduled", "p", json!({})), 13);
    fed.change("s", None, 14);
    assert_eq!(fed.usage("w"), (0, 0, Some(12)), "nobody had begun");
    fed.put("t", "u", names("w"), on("Running", "p", json!({"startTime": time(9_999)})), 15);
    assert_eq!(fed.usage("w"), (1, 1, Some(15)));
    // Forgetting leaves alone whom somebody uses.
    fed.index.forget(&ObjectKey::new("a", "w"));
    assert_eq!(fed.usage("w"), (1, 1, Some(15)));
}

#[test]
fn runs_of_a_pod_and_of_a_stage_are_listed_by_name() {
    let mut fed = Fed::new();
    fed.put("b", "u", names("w"), on("Scheduled", "p", json!({})), 0);
    fed.put("a", "u", names("w"), on("Running", "p", json!({})), 0);
    fed.put("c", "u", json!({}), on("Scheduled", "q", json!({})), 0);
    assert_eq!(fed.on("p"), (vec!["a".to_owned(), "b".to_owned()], 2));
    assert_eq!(fed.index.naming(&ObjectKey::new("a", "w"), Stage::Scheduled), [ObjectKey::new("a", "b")]);
    fed.put("b", "u", names("w"), on("Scheduled", "q", json!({})), 0);
    assert_eq!((fed.on("p").1, fed.on("q").1), (1, 2));
}
