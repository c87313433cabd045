//! The binder on informers and a small API server in memory, on tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use crate::policy::Policy;
use crate::testing::{Api, PODS, RUNS, State, TestClock, WORKSPACES, informers, path, pod, read_pod, read_run, read_workspace, run, time, workspace};
use berth_api::persistent_workspace::PersistentWorkspaceStatus;
use berth_runtime::apiclient::merge_difference;
use serde_json::{Value, json};

struct World {
    api: Api,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    async fn with(objects: &[(&str, Value)]) -> Self {
        Self::start(Api::with(objects)).await
    }

    /// A binder on `api`, and the time it needs to come to rest.
    async fn start(api: Api) -> Self {
        Self::start_with(api, watch::channel(Policies::default()).1).await
    }

    async fn start_with(api: Api, policies: watch::Receiver<Policies>) -> Self {
        let (client, stop, clock) = (api.client(), CancellationToken::new(), TestClock::new());
        let (pods, workspaces, runs) = informers(&client, &stop);
        let context = Context {
            client,
            pods,
            read_pod,
            workspaces,
            read_workspace,
            runs: RunIndex::new(&runs, read_run, clock.clone()),
            policies,
            recorder: Recorder::off(),
            fence: Fence::unguarded(),
            clock,
            workers: 2,
            observer: Arc::new(()),
        };
        tokio::spawn(Binder::new(context).run(stop.clone()));
        let world = Self { api, stop };
        world.rest().await;
        world
    }

    async fn rest(&self) {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    /// Changes the objects and lets the binder come to rest; the writes it made.
    async fn after(&self, change: impl FnOnce(&mut State)) -> Vec<String> {
        let before = {
            let mut state = self.api.state();
            change(&mut state);
            state.writes.len()
        };
        self.rest().await;
        self.wrote(before)
    }

    fn wrote(&self, from: usize) -> Vec<String> {
        self.api.state().wrote(from).into_iter().map(str::to_owned).collect()
    }

    /// Seconds go by while Pod p goes on beating.
    async fn pass(&self, seconds: i64, from_s: i64) {
        for at in (from_s..from_s + seconds).step_by(5) {
            self.api.state().put(PODS, pod("p", "u1", true, at));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }

    /// `phase pod uid available` of a workspace.
    fn told(&self, name: &str) -> String {
        let Some(workspace) = self.api.state().workspace(name) else { return "gone".to_owned() };
        let status = workspace.status.unwrap_or_default();
        let reason = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind).map_or("-", |c| c.reason.as_str());
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let cleaned = reason("Cleaned");
        let told = format!("{} {} {} {}", status.phase, text(&status.bound_pod), text(&status.bound_pod_uid), reason("Available"));
        if cleaned == "-" { told } else { format!("{told} {cleaned}") }
    }

    fn status(&self, name: &str) -> PersistentWorkspaceStatus {
        self.api.state().workspace(name).unwrap().status.unwrap_or_default()
    }
}

const BOUND: [&str; 2] = ["PATCH w", "PATCH w/status"];

fn with_ttl(name: &str, ttl_s: i64) -> Value {
    let mut workspace = workspace(name);
    workspace["spec"]["ttlSecondsAfterUnused"] = json!(ttl_s);
    workspace
}

/// A Run that names workspace w.
fn user(name: &str, status: Value) -> Value {
    run(name, json!({"workspace": {"name": "w"}}), status)
}

fn running(start_s: i64) -> Value {
    json!({"phase": "Running", "assignedPod": "p", "assignedPodUID": "u1", "startTime": time(start_s)})
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_bound_in_two_writes_and_then_nothing_is_written() {
    let world = World::with(&[(PODS, pod("q", "u2", true, 0)), (PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))]).await;
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
    assert_eq!(world.wrote(0), BOUND);
    assert_eq!(world.api.state().objects[&path(WORKSPACES, "w")]["metadata"]["finalizers"], json!(["kruntimes.io/workspace-cleanup"]));
    assert!(world.after(|api| api.put(PODS, pod("p", "u1", true, 5))).await.is_empty(), "a heartbeat");
    assert!(world.after(|api| api.put(PODS, pod("a", "u3", true, 5))).await.is_empty(), "a better pod");
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_lags_behind_our_own_two_writes_causes_no_third() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0))]).await;
    /// A change that is told, while nothing that follows is.
    fn only(world: &World, change: impl FnOnce(&mut State)) {
        let mut state = world.api.state();
        state.watches_held = false;
        change(&mut state);
        state.watches_held = true;
    }
    only(&world, |api| api.put(WORKSPACES, workspace("w")));
    world.rest().await;
    assert_eq!(world.wrote(0), BOUND);
    // Woken while the cache shows the version before both writes.
    only(&world, |api| api.put(PODS, pod("a", "u2", true, 6)));
    world.rest().await;
    assert_eq!(world.wrote(0), BOUND);
    world.api.state().release_watches();
    assert!(world.after(|_| {}).await.is_empty(), "both versions come, and are ours");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", false, 12))).await, ["PATCH w/status"], "then it follows");
}

#[tokio::test(start_paused = true)]
async fn a_bound_workspace_without_the_finalizer_gets_it_and_keeps_others() {
    let mut bound = workspace("w");
    bound["metadata"]["finalizers"] = json!(["example.com/hold"]);
    bound["status"] = json!({"phase": "Bound", "runtime": "bash", "boundPod": "p", "boundPodUID": "u1"});
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, bound)]).await;
    assert_eq!(world.wrote(0), BOUND, "its conditions were missing, too");
    let finalizers = world.api.state().objects[&path(WORKSPACES, "w")]["metadata"]["finalizers"].clone();
    assert_eq!(finalizers, json!(["example.com/hold", "kruntimes.io/workspace-cleanup"]));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_workspace_is_woken_by_a_pod_that_becomes_ready() {
    let world = World::with(&[(WORKSPACES, workspace("w"))]).await;
    assert_eq!(world.told("w"), "Pending - - NotBound");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", false, 3))).await, ["PATCH w/status"], "RuntimeReady");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 6))).await, BOUND);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
}

#[tokio::test(start_paused = true)]
async fn available_follows_the_pod_and_its_silence_by_timer() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))]).await;
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", false, 3))).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Bound p u1 PodNotReady");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 6))).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.told("w"), "Bound p u1 HeartbeatStale");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 40))).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
}

#[tokio::test(start_paused = true)]
async fn where_no_heartbeat_is_required_a_ready_pod_is_enough_and_an_edit_of_that_is_followed() {
    let mut silent = pod("p", "u1", true, 0);
    silent["status"]["conditions"].as_array_mut().unwrap().truncate(1);
    let (policy, policies) = watch::channel(Policies::default());
    let world = World::start_with(Api::with(&[(PODS, silent), (WORKSPACES, workspace("w"))]), policies).await;
    assert_eq!(world.told("w"), "Pending - - NotBound");
    policy.send_replace(Policies::new(Policy::default(), [("bash".to_owned(), Policy { heartbeat: false, ..Policy::default() })].into()));
    assert_eq!(world.after(|_| {}).await, BOUND);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
    policy.send_replace(Policies::default());
    assert_eq!(world.after(|_| {}).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Bound p u1 HeartbeatMissing");
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_lost_when_its_pod_is_deleted_or_replaced_and_stays_lost() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))]).await;
    assert_eq!(world.after(|api| api.delete(PODS, "p")).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Lost p u1 PodDeleted");
    assert!(world.after(|api| api.put(PODS, pod("p", "u1", true, 6))).await.is_empty());
    assert_eq!(world.told("w"), "Lost p u1 PodDeleted");
    assert_eq!(world.after(|api| api.delete(WORKSPACES, "w")).await, ["PATCH w"], "there is nothing to clean");
    assert_eq!(world.told("w"), "gone");

    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))]).await;
    let replace = |api: &mut State| {
        api.delete(PODS, "p");
        api.put(PODS, pod("p", "u9", true, 3));
    };
    assert_eq!(world.after(replace).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Lost p u1 PodReplaced");
}

/// Takes the label off Pod p: the watch says gone, the object is there.
fn unlabel(api: &mut State) {
    let mut object = api.objects[&path(PODS, "p")].clone();
    api.delete(PODS, "p");
    object["metadata"]["labels"] = json!({});
    api.objects.insert(path(PODS, "p"), object);
}

#[tokio::test(start_paused = true)]
async fn a_stale_cache_loses_nothing_because_the_pod_is_read_first() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w")), (WORKSPACES, workspace("x"))]).await;
    assert_eq!(world.after(unlabel).await.len(), 2);
    assert_eq!(world.told("w"), "Bound p u1 PodOfAnotherRuntime");
    assert!(world.api.state().reads.contains(&path(PODS, "p")));
    world.after(|api| api.delete(WORKSPACES, "x")).await;
    assert_eq!(world.told("x"), "Bound p u1 Deleting WaitingForAgent");
    // Nobody tells that it is gone: the binder looks.
    world.api.state().objects.remove(&path(PODS, "p"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!([world.told("w"), world.told("x")], ["Lost p u1 PodDeleted", "gone"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_or_written_before_the_caches_are_synced() {
    let mut bound = with_ttl("w", 1);
    bound["status"] = json!({"phase": "Bound", "runtime": "bash", "boundPod": "p", "boundPodUID": "u1"});
    let api = Api::with(&[(WORKSPACES, bound), (WORKSPACES, workspace("new"))]);
    api.state().pods_mute = true;
    let world = World::start(api).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.wrote(0).is_empty());
    assert_eq!(world.told("w"), "Bound p u1 -");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_not_repeated() {
    let mut held = workspace("w");
    held["metadata"]["finalizers"] = json!(["kruntimes.io/workspace-cleanup"]);
    for (stored, expected) in [(held, vec!["PATCH w/status"]), (workspace("w"), BOUND.to_vec())] {
        let api = Api::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, stored)]);
        api.state().lose_answer = true;
        let world = World::start(api).await;
        world.pass(10, 3).await;
        assert_eq!(world.wrote(0), expected);
        assert_eq!(world.told("w"), "Bound p u1 PodReady");
    }
}

#[tokio::test(start_paused = true)]
async fn who_uses_it_is_written_down_at_most_once_a_minute() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))]).await;
    assert_eq!(world.after(|api| api.put(RUNS, user("r", json!({"phase": "Pending"})))).await.len(), 0);
    assert_eq!(world.after(|api| api.put(RUNS, user("r", running(6)))).await, ["PATCH w/status"]);
    assert_eq!(json!(world.status("w").last_used_time), time(6));
    let mut ended = running(6);
    ended["phase"] = json!("Succeeded");
    ended["completionTime"] = time(9);
    assert!(world.after(|api| api.put(RUNS, user("r", ended))).await.is_empty(), "too soon");
    assert!(world.after(|api| api.put(RUNS, user("s", running(11)))).await.is_empty(), "too soon");
    let before = world.api.state().writes.len();
    world.pass(60, 15).await;
    assert_eq!(world.wrote(before), ["PATCH w/status"]);
    assert_eq!(json!(world.status("w").last_used_time), time(11), "of both the later");
    // A claimed Run that is deleted was a use until then.
    let before = world.api.state().writes.len();
    world.api.state().delete(RUNS, "s");
    world.pass(60, 75).await;
    assert_eq!(world.wrote(before), ["PATCH w/status"]);
    assert_eq!(json!(world.status("w").last_used_time), time(75));
}

#[tokio::test(start_paused = true)]
async fn an_unused_workspace_is_released_deleted_cleaned_and_gone() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, with_ttl("w", 30)), (RUNS, user("r", running(0)))]).await;
    world.pass(60, 3).await;
    assert_eq!(world.told("w"), "Bound p u1 PodReady", "in use");
    let mut ended = running(0);
    ended["phase"] = json!("Failed");
    ended["completionTime"] = time(63);
    world.api.state().put(RUNS, user("r", ended));
    world.pass(30, 63).await;
    let before = world.api.state().writes.len();
    world.pass(10, 93).await;
    assert_eq!(world.wrote(before), ["PATCH w/status", "DELETE w", "PATCH w/status"]);
    assert_eq!(world.told("w"), "Released p u1 Deleting WaitingForAgent");
    let cleaned =
        json!({"status": {"conditions": [{"type": "Cleaned", "status": "True", "reason": "Removed", "message": "", "lastTransitionTime": time(100)}]}});
    assert_eq!(world.after(|api| api.change(WORKSPACES, "w", &cleaned)).await, ["PATCH w"]);
    assert_eq!(world.told("w"), "gone");
}

#[tokio::test(start_paused = true)]
async fn a_time_to_live_raised_at_the_last_moment_wins() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, with_ttl("w", 30))]).await;
    let before = {
        let mut state = world.api.state();
        state.watches_held = true;
        state.change(WORKSPACES, "w", &json!({"spec": {"ttlSecondsAfterUnused": 300}, "metadata": {"generation": 2}}));
        state.writes.len()
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.wrote(before).is_empty(), "refused: the object has changed");
    world.api.state().release_watches();
    world.pass(60, 63).await;
    assert!(world.told("w").starts_with("Bound p u1"));
    world.pass(200, 123).await;
    assert!(world.told("w").starts_with("Released p u1"), "{}", world.told("w"));
}

#[tokio::test(start_paused = true)]
async fn a_workspace_deleted_while_used_stays_until_it_is_not() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w")), (RUNS, user("r", running(0)))]).await;
    assert_eq!(world.after(|api| api.delete(WORKSPACES, "w")).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Bound p u1 Deleting InUse");
    assert_eq!(world.after(|api| api.delete(RUNS, "r")).await, ["PATCH w/status"]);
    assert_eq!(world.told("w"), "Bound p u1 Deleting WaitingForAgent");
    // The agent is taken off the Pod: nobody will clean.
    let mut bare = pod("p", "u1", true, 9);
    bare["metadata"]["annotations"] = json!({});
    assert_eq!(world.after(|api| api.put(PODS, bare)).await, ["PATCH w/status", "PATCH w"]);
    assert_eq!(world.told("w"), "gone");
    // A namesake is another workspace.
    let mut again = workspace("w");
    again["metadata"]["uid"] = json!("another");
    assert_eq!(world.after(|api| api.put(WORKSPACES, again)).await, BOUND);
    assert_eq!(world.status("w").last_used_time, None);
}

#[tokio::test(start_paused = true)]
async fn workspaces_created_at_once_spread_by_load() {
    let policy = Policy { binding: WorkspaceBinding::LeastLoaded, ..Policy::default() };
    let world = World::start_with(Api::default(), watch::channel(Policies::new(policy, [].into())).1).await;
    let burst = |api: &mut State| {
        for (name, runs) in [("a", "1"), ("b", "2"), ("c", "3")] {
            let mut pod = pod(name, name, true, 3);
            pod["metadata"]["annotations"]["kruntimes.io/capacity.runs"] = json!(runs);
            api.put(PODS, pod);
        }
        let on_c = json!({"phase": "Running", "assignedPod": "c", "assignedPodUID": "c", "startTime": time(3)});
        api.put(RUNS, run("r1", json!({}), on_c.clone()));
        api.put(RUNS, run("r2", json!({}), on_c));
    };
    world.after(burst).await;
    world.after(|api| (0..34).for_each(|n| api.put(WORKSPACES, workspace(&format!("w{n}"))))).await;
    let mut on: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for n in 0..34 {
        *on.entry(world.status(&format!("w{n}")).bound_pod.unwrap()).or_default() += 1;
    }
    // 36 with the two Runs, in shares of 1, 2 and 3.
    assert_eq!(on.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 6), ("b".to_owned(), 12), ("c".to_owned(), 16)]);
}

#[test]
fn a_patch_holds_what_differs_and_removes_what_is_gone() {
    let current = PersistentWorkspaceStatus { runtime: Some("a".to_owned()), path: Some("/p".to_owned()), ..Default::default() };
    let wanted = PersistentWorkspaceStatus { phase: WorkspacePhase::Bound, runtime: Some("a".to_owned()), ..Default::default() };
    assert_eq!(merge_difference(Some(&current), &wanted), json!({"phase": "Bound", "path": null}));
    assert_eq!(merge_difference(None, &wanted), json!({"phase": "Bound", "runtime": "a"}));
    assert_eq!(merge_difference(Some(&wanted), &wanted), json!({}));
}
