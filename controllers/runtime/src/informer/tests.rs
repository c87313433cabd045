//! Properties of the informer, against an API server that is a script.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use crate::apiclient::Limits;
use crate::apiclient::testing::{Answer, client};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::{Value, json};
use std::collections::VecDeque;
use tokio_util::sync::CancellationToken;

/// What is kept of a Pod in these tests: its node.
type Node = String;

fn node(pod: Pod) -> Node {
    pod.spec.and_then(|spec| spec.node_name).unwrap_or_default()
}

fn pod(name: &str, uid: &str, version: u32, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "a", "name": name, "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"nodeName": node, "containers": []},
    })
}

fn bad(name: &str, uid: &str, version: u32) -> Value {
    let mut pod = pod(name, uid, version, "n");
    pod["spec"]["containers"] = json!("not a list");
    pod
}

fn list(items: &[Value]) -> Answer {
    Answer::Json(200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "100"}, "items": items}))
}

fn gone() -> Value {
    json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "status": "Failure"}})
}

fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

/// Answers lists and watches from two scripts; when one is over, never.
fn server(lists: Vec<Answer>, watches: Vec<Answer>) -> Client {
    let scripts = Mutex::new((VecDeque::from(lists), VecDeque::from(watches)));
    client(Limits::default(), Arc::new(()), move |request| {
        let mut scripts = scripts.lock().unwrap();
        let script = if request.uri.contains("watch=true") { &mut scripts.1 } else { &mut scripts.0 };
        script.pop_front().unwrap_or(Answer::Never)
    })
}

struct World {
    pods: Informer<Node>,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn start(watch: Watch<Node>, pods: Informer<Node>, client: Client) -> World {
    let stop = CancellationToken::new();
    tokio::spawn(watch.run(client, WatchConfig::default(), node, stop.clone()));
    World { pods, stop }
}

fn tell(delta: &Delta<Node>) -> String {
    match delta {
        Delta::Applied(stored) => format!("+{} {} {}", stored.key, stored.uid, stored.object),
        Delta::Deleted { key, uid, last } => format!("-{key} {uid} {}", last.as_deref().map_or("?", String::as_str)),
        Delta::Invalid(invalid) => format!("!{} {}", invalid.key, invalid.uid),
        Delta::Synced => "synced".to_owned(),
    }
}

/// What arrives until it has been quiet for an hour.
async fn told(receiver: &mut mpsc::Receiver<Delta<Node>>) -> Vec<String> {
    let mut all = Vec::new();
    while let Ok(Some(delta)) = tokio::time::timeout(Duration::from_secs(3_600), receiver.recv()).await {
        all.push(tell(&delta));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_list_becomes_applied_then_synced_then_changes_follow() {
    let (pods, watch) = informer("pods");
    let mut deltas = pods.subscribe(64);
    let changes = vec![event("ADDED", pod("q", "u2", 101, "n2")), event("MODIFIED", pod("p", "u1", 102, "n3")), event("DELETED", pod("q", "u2", 103, "n2"))];
    let world = start(watch, pods, server(vec![list(&[pod("p", "u1", 7, "n1")])], vec![Answer::Watch(changes)]));
    assert!(!world.pods.is_synced());
    assert_eq!(told(&mut deltas).await, ["+a/p u1 n1", "synced", "+a/q u2 n2", "+a/p u1 n3", "-a/q u2 n2"]);
    let stored = world.pods.get(&ObjectKey::new("a", "p")).unwrap();
    assert_eq!((&*stored.uid, &*stored.resource_version, stored.object.as_str()), ("u1", "102", "n3"));
    assert_eq!(world.pods.len(), 1);
    world.pods.synced().await;
}

#[tokio::test(start_paused = true)]
async fn a_relist_tells_what_is_gone_replaced_and_changed_and_nothing_else() {
    let (pods, watch) = informer("pods");
    let mut deltas = pods.subscribe(64);
    let before = [pod("gone", "u1", 1, "n"), pod("kept", "u2", 2, "n"), pod("replaced", "u3", 3, "n"), pod("changed", "u4", 4, "n")];
    let after = [pod("kept", "u2", 2, "n"), pod("replaced", "u9", 9, "m"), pod("changed", "u4", 8, "m"), pod("new", "u7", 7, "n")];
    let _world = start(watch, pods, server(vec![list(&before), list(&after)], vec![Answer::Watch(vec![gone()])]));
    assert_eq!(
        told(&mut deltas).await,
        [
            "+a/gone u1 n",
            "+a/kept u2 n",
            "+a/replaced u3 n",
            "+a/changed u4 n",
            "synced",
            "-a/replaced u3 n",
            "+a/replaced u9 m",
            "+a/changed u4 m",
            "+a/new u7 n",
            "-a/gone u1 n",
            "synced",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_answered_with_410_is_followed_by_a_relist() {
    let (pods, watch) = informer("pods");
    let mut deltas = pods.subscribe(64);
    let refused = Answer::Json(410, json!({"kind": "Status", "code": 410, "reason": "Expired", "status": "Failure", "message": "too old"}));
    let lists = vec![list(&[pod("p", "u1", 1, "n")]), list(&[pod("q", "u2", 2, "n")])];
    let _world = start(watch, pods, server(lists, vec![refused]));
    assert_eq!(told(&mut deltas).await, ["+a/p u1 n", "synced", "+a/q u2 n", "-a/p u1 n", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_relist_that_breaks_off_deletes_nothing() {
    let (pods, watch) = informer("pods");
    let mut deltas = pods.subscribe(64);
    let first_page = Answer::Json(
        200,
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "100", "continue": "c"}, "items": [pod("p", "u1", 1, "n")]}),
    );
    let both = [pod("p", "u1", 1, "n"), pod("q", "u2", 2, "n")];
    let broken = Answer::Broken(std::io::ErrorKind::ConnectionReset);
    let _world = start(watch, pods, server(vec![list(&both), first_page, broken, list(&both)], vec![Answer::Watch(vec![gone()])]));
    assert_eq!(told(&mut deltas).await, ["+a/p u1 n", "+a/q u2 n", "synced", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_is_told_alone_and_its_repair_and_end_too() {
    let (pods, watch) = informer("pods");
    let mut deltas = pods.subscribe(64);
    let changes = vec![
        event("MODIFIED", bad("p", "u1", 101)),
        event("MODIFIED", pod("b", "u2", 102, "n")),
        event("DELETED", bad("p", "u1", 103)),
        event("ADDED", bad("c", "u3", 104)),
    ];
    let lists = vec![list(&[pod("p", "u1", 1, "n"), bad("b", "u2", 2), pod("z", "u5", 5, "n")])];
    let world = start(watch, pods, server(lists, vec![Answer::Watch(changes)]));
    assert_eq!(told(&mut deltas).await, ["+a/p u1 n", "!a/b u2", "+a/z u5 n", "synced", "!a/p u1", "+a/b u2 n", "-a/p u1 ?", "!a/c u3"]);
    assert_eq!((world.pods.stats().objects, world.pods.stats().invalid), (3, 1));
    assert!(world.pods.get(&ObjectKey::new("a", "c")).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_gets_everything_and_a_gone_one_holds_nobody_up() {
    let (pods, watch) = informer("pods");
    let mut slow = pods.subscribe(1);
    let gone = pods.subscribe(1);
    let items: Vec<Value> = (0..50).map(|n| pod(&format!("p{n:02}"), &format!("u{n}"), n + 1, "n")).collect();
    let _world = start(watch, pods, server(vec![list(&items)], vec![]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(gone);
    assert_eq!(told(&mut slow).await.len(), 51);
}

#[tokio::test(start_paused = true)]
async fn a_late_subscriber_gets_the_store_as_it_is_and_then_what_follows() {
    let (pods, watch) = informer("pods");
    let items = [pod("p", "u1", 1, "n"), bad("q", "u2", 2)];
    let world = start(watch, pods, server(vec![list(&items), list(&[])], vec![Answer::Watch(vec![])]));
    world.pods.synced().await;
    let mut late = world.pods.subscribe(64);
    let mut deltas = told(&mut late).await;
    deltas[..2].sort();
    assert_eq!(deltas, ["!a/q u2", "+a/p u1 n", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn errors_back_off_are_counted_and_pass() {
    let (pods, watch) = informer("pods");
    let mut deltas = pods.subscribe(64);
    let broken = || Answer::Broken(std::io::ErrorKind::ConnectionRefused);
    let world = start(watch, pods, server(vec![broken(), broken(), broken(), list(&[])], vec![]));
    tokio::time::sleep(Duration::from_millis(250)).await;
    let failing = world.pods.stats();
    assert!(failing.errors >= 1 && failing.failing_for.is_some() && !failing.synced, "{failing:?}");
    assert_eq!(told(&mut deltas).await, ["synced"]);
    let stats = world.pods.stats();
    assert_eq!((stats.synced, stats.lists), (true, 1));
}

/// An API server that answers every list by `answer` of its number; and when the lists came, since the start.
fn lists(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> (Client, Arc<Mutex<Vec<Duration>>>) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let (seen, start) = (times.clone(), tokio::time::Instant::now());
    let client = client(Limits::default(), Arc::new(()), move |request| {
        if request.uri.contains("watch=true") {
            return Answer::Never;
        }
        let mut times = times.lock().unwrap();
        times.push(start.elapsed());
        answer(times.len() - 1)
    });
    (client, seen)
}

#[tokio::test(start_paused = true)]
async fn lists_that_fail_from_the_first_on_are_ever_rarer_up_to_10_seconds() {
    let forbidden = || Answer::Json(403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "status": "Failure", "message": "no"}));
    let page = || json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": "c"}, "items": [pod("p", "u", 1, "n")]});
    type Server = Box<dyn Fn(usize) -> Answer + Send + Sync>;
    let rows: [(&str, Server, usize); 3] = [
        ("nobody listens", Box::new(|_| Answer::Broken(std::io::ErrorKind::ConnectionRefused)), 1),
        ("forbidden", Box::new(move |_| forbidden()), 1),
        ("the second page never comes", Box::new(move |n| if n % 2 == 0 { Answer::Json(200, page()) } else { forbidden() }), 2),
    ];
    for (name, answer, requests) in rows {
        let (pods, watch) = informer("pods");
        let (client, times) = lists(answer);
        let _world = start(watch, pods, client);
        tokio::time::sleep(Duration::from_secs(120)).await;
        let times: Vec<Duration> = times.lock().unwrap().iter().step_by(requests).copied().collect();
        let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses[0] <= Duration::from_millis(200) && pauses.iter().max().unwrap() <= &Duration::from_secs(10), "{name}: {pauses:?}");
        // 0.2 s doubled to 10 s, at most half of each taken off: 30 at the very most.
        assert!((12..=30).contains(&times.len()), "{name}: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_not_made_to_wait_for_as_long_as_it_was_away() {
    let (pods, watch) = informer("pods");
    let status = |code: u16, details: Value| json!({"kind": "Status", "code": code, "reason": "R", "status": "Failure", "message": "m", "details": details});
    let (client, times) = lists(move |n| match n {
        0..7 => Answer::Broken(std::io::ErrorKind::ConnectionRefused),
        7 => Answer::Json(410, status(410, json!({}))),
        8 => Answer::Json(429, status(429, json!({"retryAfterSeconds": 3}))),
        _ => list(&[]),
    });
    let world = start(watch, pods, client);
    world.pods.synced().await;
    let times = times.lock().unwrap();
    let after = |n: usize| times[n + 1] - times[n];
    assert!(after(6) >= Duration::from_secs(5), "{times:?}");
    assert!(after(7) <= Duration::from_millis(200), "{times:?}");
    assert_eq!(after(8).as_secs(), 3, "as long as the server asks for: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn an_index_follows_its_objects_and_a_queue_sees_it_updated() {
    let (pods, watch) = informer::<Node>("pods");
    let by_node = pods.index(|_, node: &Node| Some(node.clone()));
    let queue: WorkQueue<ObjectKey> = WorkQueue::new("t");
    pods.feed(&queue, |change| [change.key.clone()]);
    let changes = vec![event("MODIFIED", pod("p", "u1", 101, "n2")), event("DELETED", pod("q", "u2", 102, "n1")), event("MODIFIED", bad("r", "u3", 103))];
    let items = [pod("p", "u1", 1, "n1"), pod("q", "u2", 2, "n1"), pod("r", "u3", 3, "n2")];
    let _world = start(watch, pods, server(vec![list(&items)], vec![Answer::Watch(changes)]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(by_node.keys(&"n1".to_owned()), []);
    assert_eq!(by_node.keys(&"n2".to_owned()), [ObjectKey::new("a", "p")]);
    assert_eq!(queue.stats().depth, 3);
}
