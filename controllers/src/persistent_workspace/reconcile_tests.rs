//! The binder on informers and a small API server in memory, on tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use berth_runtime::SystemClock;
use berth_runtime::informer::{WatchConfig, informer};
use berth_runtime::lease::Fence;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use kube::client::Body;
use serde_json::json;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// What the binder keeps of a Pod in these tests: the Pod.
fn read_pod(pod: &Pod) -> Option<RuntimePod<'_>> {
    let facts = PodFacts::observe(None, pod, Now { wall_ms: 0, mono_ms: 0 });
    Some(RuntimePod {
        runtime: runtime_of(pod)?,
        running: facts.running,
        ready: facts.ready,
        terminating: facts.terminating,
        heartbeat_true: facts.heartbeat_true,
        probe_time_ms: facts.heartbeat.map(|heartbeat| heartbeat.probe_time_ms),
    })
}

fn read_workspace(workspace: &PersistentWorkspace) -> Option<&PersistentWorkspace> {
    Some(workspace)
}

/// Objects by URL path, watchers by URL path of the collection.
#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    watchers: Vec<(String, mpsc::UnboundedSender<Value>)>,
    version: u64,
    writes: Vec<Value>,
    /// Pods that a GET sees and the watch doesn't tell of.
    reads: Vec<String>,
    /// The next write takes effect and its answer is lost.
    lose_answer: bool,
    /// Lists of Pods don't answer.
    pods_mute: bool,
}

type Shared = Arc<Mutex<Api>>;

const PODS: &str = "/api/v1/pods";
const WORKSPACES: &str = "/apis/kruntimes.io/v1alpha1/persistentworkspaces";

fn path(collection: &str, name: &str) -> String {
    let (prefix, plural) = collection.rsplit_once('/').unwrap();
    format!("{prefix}/namespaces/a/{plural}/{name}")
}

impl Api {
    fn put(&mut self, collection: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["namespace"] = json!("a");
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let kind = if self.objects.insert(path(collection, &name), object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(collection, kind, object);
    }

    fn delete(&mut self, collection: &str, name: &str) {
        self.version += 1;
        let mut object = self.objects.remove(&path(collection, name)).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.tell(collection, "DELETED", object);
    }

    fn tell(&mut self, collection: &str, kind: &str, object: Value) {
        let line = json!({"type": kind, "object": object});
        self.watchers.retain(|(watched, sender)| watched != collection || sender.send(line.clone()).is_ok());
    }

    fn workspace(&self, name: &str) -> PersistentWorkspace {
        serde_json::from_value(self.objects[&path(WORKSPACES, name)].clone()).unwrap()
    }
}

fn merge(into: &mut Value, patch: &Value) {
    for (field, value) in patch.as_object().unwrap() {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(field)),
            Value::Object(_) => {
                if !into[field].is_object() {
                    into[field] = json!({});
                }
                merge(&mut into[field], value);
            }
            other => into[field] = other.clone(),
        }
    }
}

type Answer = Result<Response<BoxBody<bytes::Bytes, std::io::Error>>, tower::BoxError>;

fn answer(code: u16, json: &Value) -> Answer {
    let full = http_body_util::Full::new(bytes::Bytes::from(json.to_string())).map_err(|never| match never {});
    Ok(Response::builder().status(code).body(BodyExt::boxed(full)).unwrap())
}

fn refusal(code: u16, reason: &str) -> Answer {
    answer(code, &json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
}

async fn serve(api: Shared, request: Request<Body>) -> Answer {
    let (parts, body) = request.into_parts();
    let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
    let url = parts.uri.path().to_owned();
    let mute = url == PODS && api.lock().unwrap().pods_mute;
    if mute {
        return futures::future::pending().await;
    }
    let mut api = api.lock().unwrap();
    if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
        let (sender, receiver) = mpsc::unbounded_channel();
        api.watchers.push((url, sender));
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line: Value = receiver.recv().await?;
            Some((Ok(http_body::Frame::data(bytes::Bytes::from(format!("{line}\n")))), receiver))
        });
        return Ok(Response::new(BodyExt::boxed(StreamBody::new(lines))));
    }
    if url == PODS || url == WORKSPACES {
        let plural = url.rsplit('/').next().unwrap();
        let items: Vec<Value> = api.objects.iter().filter(|(path, _)| path.contains(&format!("/{plural}/"))).map(|(_, object)| object.clone()).collect();
        return answer(200, &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": api.version.to_string()}, "items": items}));
    }
    if parts.method == "PATCH" {
        let url = url.strip_suffix("/status").unwrap();
        let Some(mut object) = api.objects.get(url).cloned() else { return refusal(404, "NotFound") };
        if object["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return refusal(409, "Conflict");
        }
        api.writes.push(body["status"].clone());
        merge(&mut object, &body);
        api.put(WORKSPACES, object);
        if std::mem::take(&mut api.lose_answer) {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        }
        return answer(200, &api.objects[url].clone());
    }
    api.reads.push(url.clone());
    match api.objects.get(&url) {
        Some(object) => answer(200, object),
        None => refusal(404, "NotFound"),
    }
}

struct World {
    api: Shared,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    /// A binder on `api`, and the time it needs to come to rest.
    async fn start(api: Api) -> Self {
        Self::start_with(api, watch::channel(HeartbeatPolicy::default()).1).await
    }

    async fn start_with(api: Api, policies: watch::Receiver<HeartbeatPolicy>) -> Self {
        let api = Arc::new(Mutex::new(api));
        let server = api.clone();
        let client = Client::new(tower::service_fn(move |request| serve(server.clone(), request)), "default");
        let stop = CancellationToken::new();
        let (pods, watch_pods) = informer::<Pod>("pods");
        let (workspaces, watch_workspaces) = informer::<PersistentWorkspace>("persistentworkspaces");
        tokio::spawn(watch_pods.run(client.clone(), WatchConfig::default(), |pod: Pod| pod, stop.clone()));
        tokio::spawn(watch_workspaces.run(client.clone(), WatchConfig::default(), |workspace: PersistentWorkspace| workspace, stop.clone()));
        let context = Context {
            client,
            pods,
            read_pod,
            workspaces,
            read_workspace,
            recorder: Recorder::off(),
            fence: Fence::unguarded(),
            clock: Arc::new(SystemClock::new()),
            workers: 2,
            observer: Arc::new(()),
        };
        tokio::spawn(Binder::new(context).obeying(policies).run(stop.clone()));
        let world = Self { api, stop };
        world.rest().await;
        world
    }

    async fn rest(&self) {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    /// Changes the objects and lets the binder come to rest; how many writes it made.
    async fn after(&self, change: impl FnOnce(&mut Api)) -> usize {
        let before = {
            let mut api = self.api.lock().unwrap();
            change(&mut api);
            api.writes.len()
        };
        self.rest().await;
        self.api.lock().unwrap().writes.len() - before
    }

    /// `phase pod uid available` of a workspace.
    fn told(&self, name: &str) -> String {
        let status = self.api.lock().unwrap().workspace(name).status.unwrap_or_default();
        let available = status.conditions.iter().find(|c| c.type_ == "Available").map_or("-", |c| c.reason.as_str());
        format!("{} {} {} {available}", status.phase, status.bound_pod.as_deref().unwrap_or("-"), status.bound_pod_uid.as_deref().unwrap_or("-"))
    }
}

/// A Pod of Runtime bash whose agent's clock is `ahead_s` seconds ahead of now.
fn pod(name: &str, uid: &str, ready: bool, ahead_s: i64) -> Value {
    let wall_ms = SystemClock::new().now().wall_ms;
    let time = k8s_openapi::jiff::Timestamp::from_second(wall_ms / 1_000 + ahead_s).unwrap().to_string();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "labels": {"runtime": "bash"}},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }},
            {"type": "kruntimes.io/RuntimedReady", "status": "True", "lastProbeTime": time},
        ]},
    })
}

fn workspace(name: &str) -> Value {
    json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "PersistentWorkspace", "metadata": {"name": name, "uid": "w1", "generation": 1}, "spec": {"runtime": "bash"}})
}

fn with(objects: &[(&str, Value)]) -> Api {
    let mut api = Api::default();
    objects.iter().for_each(|(collection, object)| api.put(collection, object.clone()));
    api
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_bound_in_one_write_and_then_nothing_is_written() {
    let world = World::start(with(&[(PODS, pod("q", "u2", true, 0)), (PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))])).await;
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
    assert_eq!(world.api.lock().unwrap().writes.len(), 1);
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 5))).await, 0, "a heartbeat");
    assert_eq!(world.after(|api| api.put(PODS, pod("a", "u3", true, 0))).await, 0, "a better pod");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_workspace_is_woken_by_a_pod_that_becomes_ready() {
    let world = World::start(with(&[(WORKSPACES, workspace("w"))])).await;
    assert_eq!(world.told("w"), "Pending - - NotBound");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", false, 0))).await, 1, "RuntimeReady");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 0))).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
}

#[tokio::test(start_paused = true)]
async fn available_follows_the_pod_and_its_silence_by_timer() {
    let world = World::start(with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))])).await;
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", false, 0))).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 PodNotReady");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 5))).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.told("w"), "Bound p u1 HeartbeatStale");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 10))).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
}

#[tokio::test(start_paused = true)]
async fn where_no_heartbeat_is_required_a_ready_pod_is_enough_and_an_edit_of_that_is_followed() {
    let mut silent = pod("p", "u1", true, 0);
    silent["status"]["conditions"].as_array_mut().unwrap().truncate(1);
    let (policy, policies) = watch::channel(HeartbeatPolicy::default());
    let world = World::start_with(with(&[(PODS, silent), (WORKSPACES, workspace("w"))]), policies).await;
    assert_eq!(world.told("w"), "Pending - - NotBound");
    policy.send_replace(HeartbeatPolicy::new(true, [("bash".to_owned(), false)].into()));
    assert_eq!(world.after(|_| {}).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 PodReady");
    policy.send_replace(HeartbeatPolicy::default());
    assert_eq!(world.after(|_| {}).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 HeartbeatMissing");
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_lost_when_its_pod_is_deleted_or_replaced_and_stays_lost() {
    let world = World::start(with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))])).await;
    assert_eq!(world.after(|api| api.delete(PODS, "p")).await, 1);
    assert_eq!(world.told("w"), "Lost p u1 PodDeleted");
    assert_eq!(world.after(|api| api.put(PODS, pod("p", "u1", true, 0))).await, 0);
    assert_eq!(world.told("w"), "Lost p u1 PodDeleted");

    let world = World::start(with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))])).await;
    let replace = |api: &mut Api| {
        api.delete(PODS, "p");
        api.put(PODS, pod("p", "u9", true, 0));
    };
    assert_eq!(world.after(replace).await, 1);
    assert_eq!(world.told("w"), "Lost p u1 PodReplaced");
}

#[tokio::test(start_paused = true)]
async fn a_stale_cache_loses_nothing_because_the_pod_is_read_first() {
    let world = World::start(with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))])).await;
    // The watch says gone, as it does for a Pod that lost its label; the object is there.
    let unlabel = |api: &mut Api| {
        let mut object = api.objects[&path(PODS, "p")].clone();
        api.delete(PODS, "p");
        object["metadata"]["labels"] = json!({});
        api.objects.insert(path(PODS, "p"), object);
    };
    assert_eq!(world.after(unlabel).await, 1);
    assert_eq!(world.told("w"), "Bound p u1 PodOfAnotherRuntime");
    assert!(world.api.lock().unwrap().reads.contains(&path(PODS, "p")));
    // Nobody tells that it is gone: the binder looks.
    world.api.lock().unwrap().objects.remove(&path(PODS, "p"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.told("w"), "Lost p u1 PodDeleted");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_or_written_before_the_caches_are_synced() {
    let mut bound = workspace("w");
    bound["status"] = json!({"phase": "Bound", "runtime": "bash", "boundPod": "p", "boundPodUID": "u1"});
    let mut api = with(&[(WORKSPACES, bound), (WORKSPACES, workspace("new"))]);
    api.pods_mute = true;
    let world = World::start(api).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.api.lock().unwrap().writes.len(), 0);
    assert_eq!(world.told("w"), "Bound p u1 -");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_not_repeated() {
    let mut api = with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, workspace("w"))]);
    api.lose_answer = true;
    let world = World::start(api).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.api.lock().unwrap().writes.len(), 1);
    assert!(world.told("w").starts_with("Bound p u1"));
    assert!(world.api.lock().unwrap().reads.contains(&path(WORKSPACES, "w")));
}

#[tokio::test(start_paused = true)]
async fn a_deleting_workspace_is_left_alone() {
    let mut deleting = workspace("w");
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let world = World::start(with(&[(PODS, pod("p", "u1", true, 0)), (WORKSPACES, deleting)])).await;
    assert_eq!(world.api.lock().unwrap().writes.len(), 0);
}

#[test]
fn a_patch_holds_what_differs_and_removes_what_is_gone() {
    let current = PersistentWorkspaceStatus { runtime: Some("a".to_owned()), path: Some("/p".to_owned()), ..Default::default() };
    let wanted = PersistentWorkspaceStatus { phase: WorkspacePhase::Bound, runtime: Some("a".to_owned()), ..Default::default() };
    assert_eq!(difference(Some(&current), &wanted), json!({"phase": "Bound", "path": null}));
    assert_eq!(difference(None, &wanted), json!({"phase": "Bound", "runtime": "a"}));
    assert_eq!(difference(Some(&wanted), &wanted), json!({}));
}
