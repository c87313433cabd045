//! A small API server in memory for the reconcilers' tests, on tokio's paused clock: lists, watches, compare-and-swap, finalizers.

use crate::pods::RuntimePod;
use crate::runs::{RunView, Stage};
use berth_api::constants::ANNOTATION_WORKSPACE_AGENT;
use berth_api::runtime_ready::{Now, PodSigns, runtime_of};
use berth_api::{PersistentWorkspace, Run};
use berth_runtime::Clock;
use berth_runtime::informer::{Informer, WatchConfig, informer};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub const PODS: &str = "/api/v1/pods";
pub const WORKSPACES: &str = "/apis/kruntimes.io/v1alpha1/persistentworkspaces";
pub const RUNS: &str = "/apis/kruntimes.io/v1alpha1/runs";

/// When every test begins, seconds since the epoch.
pub const START_S: i64 = 1_700_000_000;

/// Both clocks on tokio's, so that a paused runtime holds both.
pub struct TestClock(Instant);

impl TestClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Now {
        let elapsed_ms = u64::try_from(self.0.elapsed().as_millis()).unwrap();
        Now { wall_ms: START_S * 1_000 + i64::try_from(elapsed_ms).unwrap(), mono_ms: elapsed_ms }
    }
}

/// A time on the wire, so many seconds after the start.
pub fn time(after_s: i64) -> Value {
    json!(Timestamp::from_second(START_S + after_s).unwrap().to_string())
}

/// Objects by URL path, watchers by URL path of the collection.
#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<String, Value>,
    watchers: Vec<(String, mpsc::UnboundedSender<Value>)>,
    version: u64,
    /// Verb, path and body of every write, in order.
    pub writes: Vec<(String, Value)>,
    /// Paths of every read of one object.
    pub reads: Vec<String>,
    /// The next write takes effect and its answer is lost.
    pub lose_answer: bool,
    /// Lists of Pods don't answer.
    pub pods_mute: bool,
    /// The next write is refused with 409.
    pub conflict: bool,
    /// Watches tell nothing; what they missed comes when this is over.
    pub watches_held: bool,
    held: Vec<(String, Value)>,
}

/// The server; clones are one.
#[derive(Clone, Default)]
pub struct Api(Arc<Mutex<State>>);

pub fn path(collection: &str, name: &str) -> String {
    let (prefix, plural) = collection.rsplit_once('/').unwrap();
    format!("{prefix}/namespaces/a/{plural}/{name}")
}

impl State {
    pub fn put(&mut self, collection: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["namespace"] = json!("a");
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let kind = if self.objects.insert(path(collection, &name), object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(collection, kind, object);
    }

    /// As a DELETE: finalizers hold it.
    pub fn delete(&mut self, collection: &str, name: &str) {
        let held = self.objects[&path(collection, name)]["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        let mut object = self.objects[&path(collection, name)].clone();
        if held {
            if object["metadata"]["deletionTimestamp"].is_null() {
                object["metadata"]["deletionTimestamp"] = time(0);
                object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
                self.put(collection, object);
            }
            return;
        }
        self.version += 1;
        self.objects.remove(&path(collection, name));
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.tell(collection, "DELETED", object);
    }

    /// Changes an object as another client would.
    pub fn change(&mut self, collection: &str, name: &str, patch: &Value) {
        let mut object = self.objects[&path(collection, name)].clone();
        merge(&mut object, patch);
        self.put(collection, object);
    }

    /// Lets the watches tell what was held back.
    pub fn release_watches(&mut self) {
        self.watches_held = false;
        for (collection, line) in std::mem::take(&mut self.held) {
            self.send(&collection, &line);
        }
    }

    fn tell(&mut self, collection: &str, kind: &str, object: Value) {
        let line = json!({"type": kind, "object": object});
        match self.watches_held {
            true => self.held.push((collection.to_owned(), line)),
            false => self.send(collection, &line),
        }
    }

    fn send(&mut self, collection: &str, line: &Value) {
        self.watchers.retain(|(watched, sender)| watched != collection || sender.send(line.clone()).is_ok());
    }

    pub fn workspace(&self, name: &str) -> Option<PersistentWorkspace> {
        Some(serde_json::from_value(self.objects.get(&path(WORKSPACES, name))?.clone()).unwrap())
    }

    pub fn run(&self, name: &str) -> Option<Run> {
        Some(serde_json::from_value(self.objects.get(&path(RUNS, name))?.clone()).unwrap())
    }

    /// `METHOD last-two-parts-of-the-path` of the writes since `from`.
    pub fn wrote(&self, from: usize) -> Vec<&str> {
        self.writes[from..].iter().map(|(what, _)| what.as_str()).collect()
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

impl Api {
    /// A server that holds these objects.
    pub fn with(objects: &[(&str, Value)]) -> Self {
        let api = Self::default();
        objects.iter().for_each(|(collection, object)| api.state().put(collection, object.clone()));
        api
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn client(&self) -> Client {
        let server = self.clone();
        Client::new(
            tower::service_fn(move |request| {
                let server = server.clone();
                async move { server.serve(request).await }
            }),
            "default",
        )
    }

    async fn serve(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
        let url = parts.uri.path().to_owned();
        let mute = url == PODS && self.state().pods_mute;
        if mute {
            return futures::future::pending().await;
        }
        let mut state = self.state();
        if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
            let (sender, receiver) = mpsc::unbounded_channel();
            state.watchers.push((url, sender));
            let lines = futures::stream::unfold(receiver, |mut receiver| async move {
                let line: Value = receiver.recv().await?;
                Some((Ok(http_body::Frame::data(bytes::Bytes::from(format!("{line}\n")))), receiver))
            });
            return Ok(Response::new(BodyExt::boxed(StreamBody::new(lines))));
        }
        if let Some(collection) = [PODS, WORKSPACES, RUNS].into_iter().find(|collection| *collection == url) {
            let plural = collection.rsplit('/').next().unwrap();
            let items: Vec<Value> = state.objects.iter().filter(|(path, _)| path.contains(&format!("/{plural}/"))).map(|(_, object)| object.clone()).collect();
            return answer(200, &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()}, "items": items}));
        }
        let object = url.strip_suffix("/status").unwrap_or(&url).to_owned();
        if parts.method == "GET" {
            state.reads.push(object.clone());
            return match state.objects.get(&object) {
                Some(object) => answer(200, object),
                None => refusal(404, "NotFound"),
            };
        }
        state.write(parts.method.as_str(), &url, &object, body)
    }
}

impl State {
    fn write(&mut self, method: &str, url: &str, object: &str, body: Value) -> Answer {
        let Some(stored) = self.objects.get(object).cloned() else { return refusal(404, "NotFound") };
        let observed = if method == "DELETE" { &body["preconditions"] } else { &body["metadata"] };
        let differs = ["uid", "resourceVersion"].into_iter().any(|field| stored["metadata"][field] != observed[field]);
        if differs || std::mem::take(&mut self.conflict) {
            return refusal(409, "Conflict");
        }
        let name = object.rsplit('/').next().unwrap().to_owned();
        let collection = [WORKSPACES, RUNS].into_iter().find(|collection| path(collection, &name) == object).unwrap();
        let subresource = if url == object { "" } else { "/status" };
        self.writes.push((format!("{method} {name}{subresource}"), body.clone()));
        if method == "DELETE" {
            self.delete(collection, &name);
        } else {
            let mut wanted = stored;
            match subresource {
                "" => merge(&mut wanted, &json!({"metadata": {"finalizers": body["metadata"]["finalizers"]}})),
                _ => merge(&mut wanted, &json!({"status": body["status"]})),
            }
            let deleted = wanted["metadata"]["deletionTimestamp"].is_string() && wanted["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
            self.put(collection, wanted);
            if deleted {
                self.delete(collection, &name);
            }
        }
        if std::mem::take(&mut self.lose_answer) {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        }
        answer(200, &self.objects.get(object).cloned().unwrap_or_else(|| json!({"kind": "Status", "status": "Success", "metadata": {"resourceVersion": "0"}})))
    }
}

// ---- what the reconcilers keep in these tests: the objects themselves -----------------------------

/// Informers of Pods, workspaces and Runs that watch until `stop`.
pub fn informers(client: &Client, stop: &CancellationToken) -> (Informer<Pod>, Informer<PersistentWorkspace>, Informer<KeptRun>) {
    let (pods, watch_pods) = informer::<Pod>("pods");
    let (workspaces, watch_workspaces) = informer::<PersistentWorkspace>("persistentworkspaces");
    let (runs, watch_runs) = informer::<KeptRun>("runs");
    tokio::spawn(watch_pods.run(client.clone(), WatchConfig::default(), |pod: Pod| pod, stop.clone()));
    tokio::spawn(watch_workspaces.run(client.clone(), WatchConfig::default(), |workspace: PersistentWorkspace| workspace, stop.clone()));
    tokio::spawn(watch_runs.run(client.clone(), WatchConfig::default(), |run: Run| KeptRun::new(run), stop.clone()));
    (pods, workspaces, runs)
}

pub fn read_pod(pod: &Pod) -> Option<RuntimePod<'_>> {
    let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(name));
    Some(RuntimePod {
        runtime: runtime_of(pod)?,
        signs: PodSigns::of(pod),
        agent: annotation(ANNOTATION_WORKSPACE_AGENT).is_some(),
        runs: annotation("kruntimes.io/capacity.runs").map_or(2, |runs| runs.parse().unwrap()),
    })
}

pub fn read_workspace(workspace: &PersistentWorkspace) -> Option<&PersistentWorkspace> {
    Some(workspace)
}

/// A Run and the shared texts of its view.
pub struct KeptRun {
    run: Run,
    pod: Option<Arc<str>>,
    pod_uid: Option<Arc<str>>,
    workspace: Option<Arc<str>>,
}

impl KeptRun {
    pub fn new(run: Run) -> Self {
        let status = run.status.as_ref();
        let text = |text: Option<&String>| text.map(|text| Arc::from(text.as_str()));
        Self {
            pod: text(status.and_then(|status| status.assigned_pod.as_ref())),
            pod_uid: text(status.and_then(|status| status.assigned_pod_uid.as_ref())),
            workspace: text(run.spec.workspace.as_ref().map(|workspace| &workspace.name)),
            run,
        }
    }
}

pub fn read_run(kept: &KeptRun) -> Option<RunView<'_>> {
    let status = kept.run.status.as_ref();
    let start_s = status.and_then(|status| Some(status.start_time.as_ref()?.0.as_second()));
    let end_s = status.and_then(|status| Some(status.completion_time.as_ref()?.0.as_second()));
    Some(RunView {
        stage: Stage::of(kept.run.phase()),
        pod: kept.pod.as_ref(),
        pod_uid: kept.pod_uid.as_ref(),
        runtime: &kept.run.spec.runtime,
        workspace: kept.workspace.as_ref(),
        held_runs: 1,
        cancel_requested: kept.run.spec.cancel_requested,
        last_use_s: start_s.max(end_s),
        delete_at_s: end_s.zip(kept.run.spec.ttl_seconds_after_finished.filter(|ttl_s| *ttl_s > 0)).map(|(end_s, ttl_s)| end_s + i64::from(ttl_s)),
    })
}

/// A Pod of Runtime bash whose agent honours workspaces and reported so many seconds after the start.
pub fn pod(name: &str, uid: &str, ready: bool, beat_s: i64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "labels": {"runtime": "bash"}, "annotations": {"kruntimes.io/workspace-agent": "v1"}},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }},
            {"type": "kruntimes.io/RuntimedReady", "status": "True", "lastProbeTime": time(beat_s)},
        ]},
    })
}

pub fn workspace(name: &str) -> Value {
    json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "PersistentWorkspace", "metadata": {"name": name, "uid": format!("{name}-uid"), "generation": 1}, "spec": {"runtime": "bash"}})
}

/// A Run of Runtime bash.
pub fn run(name: &str, spec: Value, status: Value) -> Value {
    let mut object = json!({
        "apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": name, "uid": format!("{name}-uid"), "generation": 1},
        "spec": {"runtime": "bash", "mode": {"task": {}}}, "status": status,
    });
    merge(&mut object["spec"], &spec);
    object
}
