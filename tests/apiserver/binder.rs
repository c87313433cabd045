//! The PersistentWorkspace binder on a real API server: bound in one write, lost when the Pod is, and only then.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_api::PersistentWorkspace;
use berth_api::runtime_ready::{Now, PodFacts, runtime_of};
use berth_controllers::persistent_workspace::{Context, RuntimePod, run};
use berth_runtime::events::{Recorder, RecorderConfig};
use berth_runtime::informer::{Informer, WatchConfig, informer};
use berth_runtime::lease::Fence;
use berth_runtime::{ObjectKey, SystemClock};
use berth_tests::controlplane::{BERTH, ControlPlane};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than the binder takes for what it does at once.
const A_WHILE: Duration = Duration::from_millis(1_500);

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

/// A binder on one namespace, through a proxy that counts.
struct World {
    namespace: String,
    admin: Client,
    proxy: Proxy,
    pods: Informer<Pod>,
    _stop: DropGuard,
}

impl World {
    async fn start(name: &str) -> Result<Self> {
        Self::start_with(name, |_| {}).await
    }

    /// `prepare` sets up the proxy before the binder begins.
    async fn start_with(name: &str, prepare: impl FnOnce(&Proxy)) -> Result<Self> {
        let plane = ControlPlane::shared().await?;
        let namespace = plane.namespace(name).await?;
        let proxy = Proxy::start(plane).await?;
        prepare(&proxy);
        let client = proxy.client(BERTH)?;
        let stop = CancellationToken::new();
        let (pods, watch_pods) = informer::<Pod>("pods");
        let (workspaces, watch_workspaces) = informer::<PersistentWorkspace>("persistentworkspaces");
        let here = WatchConfig { namespace: Some(namespace.clone()), ..WatchConfig::default() };
        let labelled = WatchConfig { labels: Some("runtime".to_owned()), ..here.clone() };
        tokio::spawn(watch_pods.run(client.clone(), labelled, |pod: Pod| pod, stop.clone()));
        tokio::spawn(watch_workspaces.run(client.clone(), here, |workspace: PersistentWorkspace| workspace, stop.clone()));
        let clock = Arc::new(SystemClock::new());
        let (recorder, writer) = Recorder::new(client.clone(), clock.clone(), RecorderConfig::new("kruntimes.io/berth", "test"));
        tokio::spawn(writer.run(stop.clone()));
        let context = Context {
            client,
            pods: pods.clone(),
            read_pod,
            workspaces,
            read_workspace,
            recorder,
            fence: Fence::unguarded(),
            clock,
            workers: 2,
            observer: Arc::new(()),
        };
        tokio::spawn(run(context, stop.clone()));
        Ok(Self { namespace, admin: plane.admin()?, proxy, pods, _stop: stop.drop_guard() })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    fn workspaces(&self) -> Api<PersistentWorkspace> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// Creates a Runtime Pod; it is available once it beats.
    async fn pod(&self, name: &str) -> Result<String> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"runtime": "bash"}},
            "spec": {"containers": [{"name": "runtime", "image": "none"}], "terminationGracePeriodSeconds": 0},
        });
        let pod = self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        pod.metadata.uid.context("a UID")
    }

    /// Lets a Pod be ready and its agent report now.
    async fn beat(&self, name: &str) -> Result<()> {
        let status = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "kruntimes.io/RuntimedReady", "status": "True", "lastProbeTime": Timestamp::now().to_string()},
        ]}});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
        Ok(())
    }

    async fn available_pod(&self, name: &str) -> Result<String> {
        let uid = self.pod(name).await?;
        self.beat(name).await?;
        Ok(uid)
    }

    /// Waits until the binder's cache holds the Pod as it is.
    async fn cached(&self, name: &str) -> Result<()> {
        let version = self.pods().get(name).await?.metadata.resource_version;
        let key = ObjectKey::new(self.namespace.as_str(), name);
        let caught_up = async || Ok(self.pods.get(&key).filter(|pod| Some(&*pod.resource_version) == version.as_deref()));
        until("the cache", PATIENCE, caught_up).await.map(drop)
    }

    async fn workspace(&self, name: &str) -> Result<()> {
        let workspace = json!({
            "apiVersion": "kruntimes.io/v1alpha1", "kind": "PersistentWorkspace",
            "metadata": {"name": name}, "spec": {"runtime": "bash"},
        });
        self.workspaces().create(&PostParams::default(), &serde_json::from_value(workspace)?).await?;
        Ok(())
    }

    /// `phase pod available-reason` of a workspace.
    async fn told(&self, name: &str) -> Result<String> {
        let status = self.workspaces().get(name).await?.status.unwrap_or_default();
        let available = status.conditions.iter().find(|condition| condition.type_ == "Available");
        let reason = available.map_or("-", |condition| condition.reason.as_str());
        Ok(format!("{} {} {reason}", status.phase, status.bound_pod.as_deref().unwrap_or("-")))
    }

    async fn becomes(&self, name: &str, expected: &str) -> Result<()> {
        let seen = std::cell::RefCell::new(String::new());
        let probe = async || {
            *seen.borrow_mut() = self.told(name).await?;
            Ok((*seen.borrow() == expected).then_some(()))
        };
        let result = until(expected, PATIENCE, probe).await;
        result.with_context(|| format!("workspace {name} is {:?}", seen.borrow()))
    }

    async fn remains(&self, name: &str, expected: &str) -> Result<()> {
        stays(expected, A_WHILE, async || Ok(self.told(name).await? == expected)).await
    }

    fn writes(&self) -> usize {
        self.proxy.count(|seen| seen.is("patch", "persistentworkspaces/status"))
    }

    async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_workspace_is_bound_once_in_one_write_with_its_event() -> Result<()> {
    let world = World::start("binder").await?;
    world.pod("a").await?; // first by name, and never ready
    let uid = world.available_pod("b").await?;
    world.available_pod("c").await?;
    world.cached("b").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound b PodReady").await?;
    let status = world.workspaces().get("w").await?.status.context("a status")?;
    assert_eq!(status.bound_pod_uid, Some(uid));
    assert_eq!((status.runtime.as_deref(), status.path.as_deref()), (Some("bash"), Some("/workspace/persistent/w")));
    let mut conditions: Vec<String> = status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason)).collect();
    conditions.sort();
    assert_eq!(conditions, ["Accepted=True/Accepted", "Available=True/PodReady", "Bound=True/Bound", "RuntimeReady=True/RuntimeFound"]);
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(1)));

    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    let told = async || Ok(events.list(&ListParams::default()).await?.items.into_iter().find(|event| event.reason.as_deref() == Some("Bound")));
    let event = until("the Event", PATIENCE, told).await?;
    assert_eq!(event.regarding.and_then(|regarding| regarding.kind).as_deref(), Some("PersistentWorkspace"));

    world.beat("a").await?;
    world.beat("b").await?;
    world.remains("w", "Bound b PodReady").await?;
    assert_eq!(world.writes(), 1, "a heartbeat or a better Pod writes nothing");
    Ok(())
}

#[tokio::test]
async fn a_waiting_workspace_is_bound_when_a_pod_becomes_ready() -> Result<()> {
    let world = World::start("binder-wait").await?;
    world.workspace("w").await?;
    world.becomes("w", "Pending - NotBound").await?;
    world.pod("p").await?;
    world.remains("w", "Pending - NotBound").await?;
    world.beat("p").await?;
    world.becomes("w", "Bound p PodReady").await?;
    // Its agent falls silent: no event of the API server says so.
    world.becomes("w", "Bound p HeartbeatStale").await?;
    world.beat("p").await?;
    world.becomes("w", "Bound p PodReady").await
}

#[tokio::test]
async fn a_deleted_pod_loses_its_workspace_for_ever() -> Result<()> {
    let world = World::start("binder-lost").await?;
    world.available_pod("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.delete_pod("p").await?;
    world.becomes("w", "Lost p PodDeleted").await?;
    world.available_pod("p").await?;
    world.remains("w", "Lost p PodDeleted").await
}

#[tokio::test]
async fn a_replaced_pod_loses_its_workspace() -> Result<()> {
    let world = World::start("binder-replaced").await?;
    world.available_pod("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.proxy.hold_watches("pods");
    world.delete_pod("p").await?;
    world.available_pod("p").await?;
    world.proxy.release_watches("pods");
    world.becomes("w", "Lost p PodReplaced").await
}

#[tokio::test]
async fn a_pod_that_loses_its_label_keeps_its_workspace_until_it_is_gone() -> Result<()> {
    let world = World::start("binder-label").await?;
    world.available_pod("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.pods().patch("p", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"runtime": null}}}))).await?;
    world.becomes("w", "Bound p PodOfAnotherRuntime").await?;
    world.delete_pod("p").await?;
    world.becomes("w", "Lost p PodDeleted").await
}

#[tokio::test]
async fn nothing_is_lost_while_the_pods_are_not_listed_yet() -> Result<()> {
    let first = World::start("binder-unsynced").await?;
    first.available_pod("p").await?;
    first.workspace("w").await?;
    first.becomes("w", "Bound p PodReady").await?;
    // A binder that restarts and can't list Pods: the workspace is known, its Pod is not.
    let plane = ControlPlane::shared().await?;
    let proxy = Proxy::start(plane).await?;
    let mute = proxy.inject(Fault::Hang, usize::MAX, |seen| seen.is("list", "pods"));
    let client = proxy.client(BERTH)?;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let here = WatchConfig { namespace: Some(first.namespace.clone()), ..WatchConfig::default() };
    let (pods, watch_pods) = informer::<Pod>("pods");
    let (workspaces, watch_workspaces) = informer::<PersistentWorkspace>("persistentworkspaces");
    tokio::spawn(watch_pods.run(client.clone(), here.clone(), |pod: Pod| pod, stop.clone()));
    tokio::spawn(watch_workspaces.run(client.clone(), here, |workspace: PersistentWorkspace| workspace, stop.clone()));
    let synced = workspaces.clone();
    let context = Context {
        client,
        pods,
        read_pod,
        workspaces,
        read_workspace,
        recorder: Recorder::off(),
        fence: Fence::unguarded(),
        clock: Arc::new(SystemClock::new()),
        workers: 1,
        observer: Arc::new(()),
    };
    tokio::spawn(run(context, stop));
    tokio::time::timeout(PATIENCE, synced.synced()).await?;
    until("the list of Pods to hang", PATIENCE, async || Ok((mute.hits() > 0).then_some(()))).await?;
    stays("Bound", A_WHILE, async || Ok(first.told("w").await?.starts_with("Bound p "))).await?;
    assert_eq!(proxy.count(|seen| seen.is("patch", "persistentworkspaces/status")), 0);
    Ok(())
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_read_and_not_repeated() -> Result<()> {
    let world = World::start_with("binder-answer", |proxy| {
        proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("patch", "persistentworkspaces/status"));
    })
    .await?;
    world.available_pod("p").await?;
    world.cached("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.remains("w", "Bound p PodReady").await?;
    assert_eq!(world.writes(), 1);
    Ok(())
}

#[tokio::test]
async fn a_workspace_that_is_being_deleted_is_left_alone() -> Result<()> {
    let world = World::start("binder-deleting").await?;
    world.workspace("w").await?;
    world.becomes("w", "Pending - NotBound").await?;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    world.workspaces().patch("w", &PatchParams::default(), &Patch::Merge(finalizer)).await?;
    world.workspaces().delete("w", &DeleteParams::default()).await?;
    world.available_pod("p").await?;
    world.remains("w", "Pending - NotBound").await
}
