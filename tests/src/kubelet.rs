//! A small, honest stand-in for scheduler and kubelet: it binds the Pods of one namespace to a node and walks them through the states that a real
//! kubelet was seen to report, whole seconds, missing `Running` and all. What a container does is said by its command:
//!
//! | command | what happens |
//! |---|---|
//! | `exit N` | runs, ends with N |
//! | `/bin/sh …` | runs, ends with 0 |
//! | `quick N` | ends with N and was never seen running |
//! | `sleep` | runs until it is told to stop, then 143 |
//! | `stubborn` | runs, takes no notice of SIGTERM: 137 when the grace is over |
//! | `graceful` | runs until it is told to stop, then 0 |
//! | `held` | is only bound; the test says what is reported |

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The node that every Pod is bound to that selects no other by its hostname.
pub const NODE: &str = "stand-in";
/// How often the node says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// The stand-in for one namespace; dropping it ends it.
pub struct Kubelet {
    pods: Api<Pod>,
    seen: Arc<Counters>,
    _end: DropGuard,
}

#[derive(Default)]
struct Counters {
    /// UIDs of the Pods whose process was begun, each with its Job's UID. A kubelet begins a container once, however often it hears of its Pod.
    begun: Mutex<BTreeMap<String, String>>,
    /// A node that is cut off reports nothing and learns nothing.
    cut_off: AtomicBool,
}

impl Counters {
    fn begun(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kubelet {
    /// Starts it, and the node if there is none yet.
    pub async fn start(client: Client, namespace: &str) -> Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}, "spec": {}}))?;
        match nodes.create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other.context("the node")?),
        }
        beat(&nodes, NODE).await?;
        let end = CancellationToken::new();
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let seen = Arc::<Counters>::default();
        tokio::spawn(heartbeats(nodes, end.clone()));
        tokio::spawn(walk(pods.clone(), seen.clone(), end.clone()));
        Ok(Self { pods, seen, _end: end.drop_guard() })
    }

    /// How many processes it has begun.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.seen.begun().len()
    }

    /// How many processes it has begun of the Job of that UID.
    #[must_use]
    pub fn begun_of(&self, job: &str) -> usize {
        self.seen.begun().values().filter(|uid| *uid == job).count()
    }

    /// Cuts the node off, or brings it back.
    pub fn cut_off(&self, on: bool) {
        self.seen.cut_off.store(on, Ordering::SeqCst);
    }

    /// Reports this state of container `main`, and this phase, of a Pod.
    pub async fn report(&self, name: &str, phase: &str, state: Value) -> Result<()> {
        let patch = status(phase, &state);
        self.patch(name, &patch).await
    }

    /// Changes a Pod's status as the test says.
    pub async fn patch(&self, name: &str, status: &Value) -> Result<()> {
        self.pods.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
        Ok(())
    }
}

/// A state of a container that has ended now.
#[must_use]
pub fn terminated(code: i32, reason: &str, began: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now()}})
}

/// The time as a kubelet writes it: whole seconds.
#[must_use]
pub fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

fn status(phase: &str, state: &Value) -> Value {
    let began = state.get("waiting").is_none();
    let container = json!({"name": "main", "image": "i", "imageID": "", "ready": state.get("running").is_some(), "restartCount": 0,
        "containerID": if began { json!("containerd://c-1") } else { json!("") }, "state": state});
    json!({"phase": phase, "containerStatuses": [container]})
}

/// Tells that a node is Ready now.
pub(crate) async fn beat(nodes: &Api<Node>, name: &str) -> Result<()> {
    let condition =
        json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(json!({"status": {"conditions": [condition]}}))).await?;
    Ok(())
}

async fn heartbeats(nodes: Api<Node>, end: CancellationToken) {
    while end.run_until_cancelled(tokio::time::sleep(HEARTBEAT)).await.is_some() {
        // The next one is soon enough.
        let _ = beat(&nodes, NODE).await;
    }
}

async fn walk(pods: Api<Pod>, seen: Arc<Counters>, end: CancellationToken) {
    let events = watcher(pods.clone(), watcher::Config::default()).default_backoff();
    let steps = events.for_each_concurrent(None, |event| {
        let (pods, seen) = (pods.clone(), seen.clone());
        async move {
            // A watch that broke goes on by itself; a Pod that changed or went meanwhile comes again.
            if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event {
                let _ = step(&pods, &seen, &pod).await;
            }
        }
    });
    tokio::select! {
        () = end.cancelled() => {}
        () = steps => {}
    }
}

/// One step of one Pod; its own write brings the next.
async fn step(pods: &Api<Pod>, seen: &Counters, pod: &Pod) -> Result<()> {
    while seen.cut_off.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let name = pod.name_any();
    let spec = pod.spec.as_ref().context("a spec")?;
    if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        return Ok(());
    }
    let deletion = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    if spec.node_name.is_none() {
        return match deletion {
            Some(_) => Ok(()),
            None => bind(pods, pod).await,
        };
    }
    let main = spec.containers.iter().find(|container| container.name == "main").context("the container")?;
    let command = main.command.clone().unwrap_or_default();
    let word = command.first().map(String::as_str).unwrap_or_default();
    // Of a shell: 0.
    let code: i32 = command.get(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let state = status.container_statuses.as_ref().and_then(|list| list.iter().find(|status| status.name == "main")).and_then(|status| status.state.clone());
    let report = |phase: &'static str, state: Value| {
        let name = name.clone();
        async move {
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": self::status(phase, &state) }))).await?;
            anyhow::Ok(())
        }
    };
    let phase = status.phase.as_deref().unwrap_or_default();
    if phase == "Succeeded" || phase == "Failed" {
        // The kubelet's last word about a Pod that is being deleted.
        if deletion.is_some() && pod.metadata.deletion_grace_period_seconds != Some(0) {
            let exactly = Preconditions { uid: pod.uid(), resource_version: None };
            pods.delete(&name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }.preconditions(exactly)).await?;
        }
        return Ok(());
    }
    if word == "held" {
        return Ok(());
    }
    let Some(state) = state else { return report("Pending", json!({"waiting": {"reason": "ContainerCreating"}})).await };
    if let Some(ended) = state.terminated {
        return report(if ended.exit_code == 0 { "Succeeded" } else { "Failed" }, json!({ "terminated": ended })).await;
    }
    let end = |code: i32, began: &str| terminated(code, if code == 0 { "Completed" } else { "Error" }, began);
    if let Some(running) = state.running {
        let began = running.started_at.map_or_else(now, |time| time.0.to_string());
        return match (word, deletion) {
            ("exit" | "/bin/sh", None) => report("Running", end(code, &began)).await,
            ("sleep", Some(_)) => report("Running", end(143, &began)).await,
            ("graceful", Some(_)) => report("Running", end(0, &began)).await,
            ("stubborn", Some(due)) => {
                let left = due.duration_since(Timestamp::now());
                tokio::time::sleep(Duration::try_from(left).unwrap_or_default()).await;
                report("Running", end(137, &began)).await
            }
            _ => Ok(()),
        };
    }
    if deletion.is_some() {
        let invented = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container could not be located when the pod was terminated"}});
        return report("Failed", invented).await;
    }
    let job = pod.labels().get("execution.ayatori.ddupan.top/job-uid").cloned().unwrap_or_default();
    if seen.begun().insert(pod.uid().unwrap_or_default(), job).is_some() {
        return Ok(());
    }
    match word {
        "quick" => report("Pending", end(code, &now())).await,
        _ => report("Running", json!({"running": {"startedAt": now()}})).await,
    }
}

async fn bind(pods: &Api<Pod>, pod: &Pod) -> Result<()> {
    let name = pod.name_any();
    let selected = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref()?.get("kubernetes.io/hostname"));
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": selected.map_or(NODE, String::as_str)});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": pod.uid()}, "target": target});
    pods.create_subresource::<Value, Value>("binding", &name, &PostParams::default(), &binding).await?;
    Ok(())
}
