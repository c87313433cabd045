//! The lifecycle on informers and a small API server in memory, on tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use crate::policy::Policy;
use crate::testing::{Api as Server, PODS, RUNS, State, TestClock, WORKSPACES, informers, path, pod, read_pod, read_run, read_workspace, run, time, workspace};
use serde_json::{Value, json};

struct World {
    api: Server,
    acted: Arc<Mutex<Vec<&'static str>>>,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    async fn with(objects: &[(&str, Value)]) -> Self {
        Self::start(Server::with(objects), Policy::default()).await
    }

    /// A lifecycle on `api`, and the time it needs to come to rest.
    async fn start(api: Server, policy: Policy) -> Self {
        let (client, stop, clock) = (api.client(), CancellationToken::new(), TestClock::new());
        let (pods, workspaces, runs) = informers(&client, &stop);
        let acted = Arc::<Mutex<Vec<&'static str>>>::default();
        let told = acted.clone();
        let context = Context {
            client,
            index: RunIndex::new(&runs, read_run, clock.clone()),
            runs,
            read_run,
            pods,
            read_pod,
            workspaces,
            read_workspace,
            policies: watch::channel(Policies::new(policy, [].into())).1,
            recorder: Recorder::off(),
            fence: Fence::unguarded(),
            clock,
            workers: 2,
            observer: Arc::new(()),
            acted: Arc::new(move |action| told.lock().unwrap().push(action.as_str())),
        };
        tokio::spawn(Lifecycle::new(context).run(stop.clone()));
        let world = Self { api, acted, stop };
        world.rest().await;
        world
    }

    async fn rest(&self) {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    /// Changes the objects and lets the lifecycle come to rest; what it did.
    async fn after(&self, change: impl FnOnce(&mut State)) -> Vec<&'static str> {
        change(&mut self.api.state());
        self.rest().await;
        self.acted()
    }

    fn acted(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.acted.lock().unwrap())
    }

    fn reads(&self) -> usize {
        self.api.state().reads.len()
    }

    /// Seconds go by while Pod p goes on beating.
    async fn pass(&self, seconds: i64, from_s: i64) {
        for at in (from_s..from_s + seconds).step_by(5) {
            self.api.state().put(PODS, pod("p", "u1", true, at));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }

    /// `phase pod attempt message` of a Run.
    fn told(&self, name: &str) -> String {
        let Some(run) = self.api.state().run(name) else { return "gone".to_owned() };
        let status = run.status.unwrap_or_default();
        let text = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        format!("{} {} {} {}", status.phase, text(status.assigned_pod), text(status.attempt.map(|n| n.to_string())), text(status.message))
    }
}

fn on_p(phase: &str) -> Value {
    json!({"phase": phase, "assignedPod": "p", "assignedPodUID": "u1"})
}

fn running() -> Value {
    let mut status = on_p("Running");
    status["startTime"] = time(0);
    status
}

fn retries() -> Value {
    json!({"retryPolicy": {"maxAttempts": 2}})
}

#[tokio::test(start_paused = true)]
async fn runs_on_a_pod_that_goes_are_sent_back_retried_failed_or_cancelled_once() {
    let world = World::with(&[
        (PODS, pod("p", "u1", true, 0)),
        (PODS, pod("q", "u2", true, 0)),
        (RUNS, run("scheduled", json!({}), on_p("Scheduled"))),
        (RUNS, run("running", json!({}), running())),
        (RUNS, run("retried", retries(), running())),
        (RUNS, run("cancelled", json!({"cancelRequested": true}), running())),
        (RUNS, run("done", json!({}), on_p("Succeeded"))),
        (RUNS, run("elsewhere", json!({}), json!({"phase": "Running", "assignedPod": "q", "assignedPodUID": "u2"}))),
    ])
    .await;
    assert_eq!((world.acted().len(), world.reads()), (0, 0), "nothing is held against a Pod that beats, and nothing is read");
    let mut acted = world.after(|api| api.delete(PODS, "p")).await;
    acted.sort_unstable();
    assert_eq!(acted, ["cancelled", "failed", "retried", "unassigned"]);
    assert_eq!(world.told("scheduled"), "Pending - - assigned pod was deleted; the Run had not begun");
    assert_eq!(world.told("running"), "Failed p 1 assigned pod was deleted");
    assert_eq!(world.told("retried"), "Pending - 2 assigned pod was deleted");
    assert_eq!(world.told("cancelled"), "Cancelled p 1 cancelled by user");
    assert!(world.told("done").starts_with("Succeeded") && world.told("elsewhere").starts_with("Running q"));
    let started = world.api.state().run("retried").unwrap().status.unwrap().start_time;
    assert_eq!(started, None);
    assert_eq!(world.api.state().writes.len(), 4);
    assert!(world.after(|api| api.put(PODS, pod("p", "u9", true, 3))).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn replaced_and_terminating_pods_lose_their_runs_at_once() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (RUNS, run("r", retries(), running()))]).await;
    let mut ending = pod("p", "u1", true, 3);
    ending["metadata"]["deletionTimestamp"] = time(3);
    assert_eq!(world.after(|api| api.put(PODS, ending)).await, ["retried"]);
    assert_eq!(world.told("r"), "Pending - 2 assigned pod is terminating");

    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (RUNS, run("r", json!({}), running()))]).await;
    let replace = |api: &mut State| {
        api.watches_held = true;
        api.delete(PODS, "p");
        api.put(PODS, pod("p", "u9", true, 3));
        api.release_watches();
    };
    assert_eq!(world.after(replace).await, ["failed"]);
    assert_eq!(world.told("r"), "Failed p 1 assigned pod was replaced");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_silent_or_not_ready_for_30_s_of_our_watching_loses_its_runs() {
    // Its clock is an hour behind; what counts is what was seen.
    let world = World::with(&[(PODS, pod("p", "u1", true, -3_600)), (RUNS, run("r", retries(), running()))]).await;
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert!(world.acted().is_empty());
    world.api.state().put(PODS, pod("p", "u1", true, -3_595));
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(world.acted().is_empty());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(world.acted(), ["retried"]);
    assert_eq!(world.told("r"), "Pending - 2 assigned pod runtimed heartbeat is stale");

    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (RUNS, run("r", json!({}), running()))]).await;
    for at in [3, 8, 13, 18, 23, 28] {
        world.api.state().put(PODS, pod("p", "u1", false, at));
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(world.acted().is_empty());
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", false, 33))).await, ["failed"]);
    assert_eq!(world.told("r"), "Failed p 1 assigned pod is not ready");
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_lags_kills_nothing() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (RUNS, run("r", json!({}), running()))]).await;
    world.api.state().watches_held = true;
    world.pass(60, 3).await;
    assert!(world.acted().is_empty());
    assert!(world.reads() > 0, "it looked");
    world.api.state().release_watches();
    world.rest().await;
    // A Pod that lost its label is out of our sight, and there.
    let unlabel = |api: &mut State| {
        let mut object = api.objects[&path(PODS, "p")].clone();
        api.delete(PODS, "p");
        object["metadata"]["labels"] = json!({});
        api.objects.insert(path(PODS, "p"), object);
    };
    assert!(world.after(unlabel).await.is_empty());
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(world.acted().is_empty());
    world.api.state().objects.remove(&path(PODS, "p"));
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(world.acted(), ["failed"], "nobody tells that it is gone: the lifecycle looks");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_faster_wins() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (RUNS, run("r", json!({}), running()))]).await;
    let end = |api: &mut State| {
        api.conflict = true;
        api.delete(PODS, "p");
    };
    change_after_conflict(&world, end).await;
    assert_eq!(world.told("r"), "Succeeded p - -");
    assert!(world.acted().is_empty());
}

/// The next write is refused; by the time of the next try the agent has ended the Run.
async fn change_after_conflict(world: &World, change: impl FnOnce(&mut State)) {
    change(&mut world.api.state());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!world.api.state().conflict, "it was refused");
    let mut ended = running();
    ended["phase"] = json!("Succeeded");
    world.api.state().put(RUNS, run("r", json!({}), ended));
    tokio::time::sleep(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_not_repeated() {
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (RUNS, run("r", json!({"retryPolicy": {"maxAttempts": 9}}), running()))]).await;
    world.api.state().lose_answer = true;
    assert_eq!(world.after(|api| api.delete(PODS, "p")).await, ["retried"]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((world.told("r"), world.api.state().writes.len()), ("Pending - 2 assigned pod was deleted".to_owned(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_run_whose_workspace_does_not_admit_it_is_sent_back() {
    let mut bound = workspace("w");
    bound["status"] = json!({"phase": "Bound", "runtime": "bash", "boundPod": "p", "boundPodUID": "u1"});
    let named = |name: &str, status: Value| run(name, json!({"workspace": {"name": "w"}}), status);
    let world =
        World::with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, bound.clone()), (RUNS, named("r", on_p("Scheduled"))), (RUNS, named("s", running()))])
            .await;
    assert!(world.acted().is_empty());
    for (beat_s, (row, change)) in (5..).step_by(9).zip([
        ("released", json!({"status": {"phase": "Released"}})),
        ("lost", json!({"status": {"phase": "Lost"}})),
        ("being deleted", json!({"metadata": {"deletionTimestamp": time(0)}})),
        ("on another Pod", json!({"status": {"boundPod": "q", "boundPodUID": "u2"}})),
        ("on a namesake", json!({"status": {"boundPodUID": "u2"}})),
        ("without UID", json!({"status": {"boundPodUID": null}})),
    ]) {
        assert_eq!(world.after(|api| api.change(WORKSPACES, "w", &change)).await, ["unassigned"], "{row}");
        assert_eq!(world.told("r"), "Pending - - workspace w does not admit the Run on its assigned pod; the Run had not begun", "{row}");
        assert_eq!(world.after(|api| api.put(WORKSPACES, bound.clone())).await.len(), 0, "{row}");
        assert_eq!(world.after(|api| api.put(RUNS, named("r", on_p("Scheduled")))).await.len(), 0, "{row}");
        world.api.state().put(PODS, pod("p", "u1", true, beat_s));
    }
    assert_eq!(world.after(|api| api.delete(WORKSPACES, "w")).await, ["unassigned"], "missing");
    assert!(world.told("s").starts_with("Running p"), "who has begun is not touched");
}

#[tokio::test(start_paused = true)]
async fn where_placement_asks_for_no_heartbeat_a_silent_pod_keeps_what_was_placed_on_it() {
    let mut silent = pod("p", "u1", true, 0);
    silent["status"]["conditions"].as_array_mut().unwrap().truncate(1);
    let objects = [(PODS, silent), (RUNS, run("r", json!({}), on_p("Scheduled"))), (RUNS, run("c", json!({"cancelRequested": true}), on_p("Scheduled")))];
    let world = World::start(Server::with(&objects), Policy { heartbeat: false, ..Policy::default() }).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.acted(), ["cancelled"], "nobody else would");
    assert!(world.told("r").starts_with("Scheduled p"));
    let reads = world.reads();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.reads(), reads, "and nothing is asked again and again");
}

#[tokio::test(start_paused = true)]
async fn an_inconsistent_uid_is_left_alone_until_that_pod_is_gone() {
    let mut odd = running();
    odd["assignedPodUID"] = json!("u2");
    let world = World::with(&[(PODS, pod("p", "u1", true, 0)), (PODS, pod("q", "u2", true, 0)), (RUNS, run("r", json!({}), odd))]).await;
    world.pass(100, 3).await;
    assert!(world.acted().is_empty());
    world.api.state().delete(PODS, "q");
    world.pass(40, 103).await;
    assert_eq!(world.acted(), ["failed"]);
    assert_eq!(world.told("r"), "Failed p 1 assigned pod was replaced");
}

#[tokio::test(start_paused = true)]
async fn finished_runs_are_deleted_in_time_and_a_time_raised_at_the_last_moment_wins() {
    let ended = |name: &str, ttl: i64| run(name, json!({"ttlSecondsAfterFinished": ttl}), json!({"phase": "Succeeded", "completionTime": time(0)}));
    let world = World::with(&[(RUNS, ended("r", 60)), (RUNS, ended("kept", 0)), (RUNS, ended("raised", 60)), (RUNS, ended("lowered", 600))]).await;
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!((world.acted().len(), world.reads()), (0, 0));
    {
        let mut state = world.api.state();
        state.change(RUNS, "lowered", &json!({"spec": {"ttlSecondsAfterFinished": 1}}));
        state.watches_held = true;
        state.change(RUNS, "raised", &json!({"spec": {"ttlSecondsAfterFinished": 120}}));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.acted(), ["deleted"; 2].as_slice()[..].to_vec());
    assert_eq!([world.told("r"), world.told("lowered")], ["gone", "gone"]);
    world.api.state().release_watches();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((world.acted(), world.told("raised")), (vec!["deleted"], "gone".to_owned()));
    assert!(world.told("kept").starts_with("Succeeded"));
}

#[tokio::test(start_paused = true)]
async fn a_start_finds_what_happened_while_nobody_watched() {
    let objects = [
        (PODS, pod("p", "u9", true, -3_600)),
        (RUNS, run("replaced", json!({}), running())),
        (RUNS, run("gone", retries(), json!({"phase": "Ready", "assignedPod": "x", "assignedPodUID": "ux", "startTime": time(-99)}))),
        (RUNS, run("here", json!({}), json!({"phase": "Running", "assignedPod": "p", "assignedPodUID": "u9", "startTime": time(-99)}))),
        (RUNS, run("over", json!({"ttlSecondsAfterFinished": 1}), json!({"phase": "Failed", "completionTime": time(-99)}))),
        (RUNS, run("nowhere", json!({}), json!({"phase": "Running"}))),
    ];
    let api = Server::with(&objects);
    api.state().pods_mute = true;
    let world = World::start(api, Policy::default()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.acted().is_empty() && world.reads() == 0, "an empty cache is no empty cluster");
    drop(world);

    let world = World::with(&objects).await;
    let mut acted = world.acted();
    acted.sort_unstable();
    assert_eq!(acted, ["deleted", "failed", "retried"]);
    assert!(world.told("here").starts_with("Running p"), "its clock is off, and it gets its 30 s");
    assert!(world.told("nowhere").starts_with("Running -"));
}
