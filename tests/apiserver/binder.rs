//! The PersistentWorkspace binder on a real API server: bound in two writes, lost when the Pod is, and only then. What follows binding is in
//! binder_life.rs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_api::persistent_workspace::{PersistentWorkspaceStatus, WorkspaceBinding};
use berth_api::{PersistentWorkspace, Run};
use berth_controllers::persistent_workspace::{Binder, Context};
use berth_controllers::policy::{Policies, Policy};
use berth_controllers::runs::RunIndex;
use berth_framework::model::PodObject;
use berth_runtime::events::{Recorder, RecorderConfig};
use berth_runtime::informer::{Informer, WatchConfig, informer};
use berth_runtime::lease::Fence;
use berth_runtime::{ObjectKey, SystemClock};
use berth_scheduler::serve::objects::{self, SeenRun, SeenWorkspace};
use berth_tests::controlplane::{BERTH, ControlPlane};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than the binder takes for what it does at once.
pub const A_WHILE: Duration = Duration::from_millis(1_500);

/// One namespace, and a proxy that counts.
pub struct World {
    pub namespace: String,
    pub admin: Client,
    pub proxy: Proxy,
}

/// A binder at work, until it is dropped.
pub struct Running {
    pub pods: Informer<PodObject>,
    pub workspaces: Informer<SeenWorkspace>,
    _stop: DropGuard,
}

impl World {
    pub async fn new(name: &str) -> Result<Self> {
        let plane = ControlPlane::shared().await?;
        let namespace = plane.namespace(name).await?;
        Ok(Self { namespace, admin: plane.admin()?, proxy: Proxy::start(plane).await? })
    }

    /// Starts a binder of this namespace.
    pub fn binder(&self) -> Result<Running> {
        self.binder_with(WorkspaceBinding::FirstByName, &self.proxy)
    }

    pub fn binder_with(&self, binding: WorkspaceBinding, proxy: &Proxy) -> Result<Running> {
        let client = proxy.client(BERTH)?;
        let stop = CancellationToken::new();
        let (pods, watch_pods) = informer::<PodObject>("pods");
        let (runs, watch_runs) = informer::<SeenRun>("runs");
        let (workspaces, watch_workspaces) = informer::<SeenWorkspace>("persistentworkspaces");
        let here = WatchConfig { namespace: Some(self.namespace.clone()), ..WatchConfig::default() };
        let labelled = WatchConfig { labels: Some("runtime".to_owned()), ..here.clone() };
        tokio::spawn(watch_pods.run_with::<Pod>(client.clone(), labelled, objects::read_pod, stop.clone()));
        tokio::spawn(watch_runs.run_with::<Run>(client.clone(), here.clone(), objects::read_run, stop.clone()));
        tokio::spawn(watch_workspaces.run_with::<PersistentWorkspace>(client.clone(), here, objects::read_workspace, stop.clone()));
        let clock = Arc::new(SystemClock::new());
        let (recorder, writer) = Recorder::new(client.clone(), clock.clone(), RecorderConfig::new("kruntimes.io/berth", "test"));
        tokio::spawn(writer.run(stop.clone()));
        let policies = Policies::new(Policy { binding, ..Policy::default() }, BTreeMap::new());
        let context = Context {
            client,
            pods: pods.clone(),
            read_pod: objects::pod_view,
            workspaces: workspaces.clone(),
            read_workspace: objects::workspace_view,
            runs: RunIndex::new(&runs, objects::run_view, clock.clone()),
            policies: watch::channel(policies).1,
            recorder,
            fence: Fence::unguarded(),
            clock,
            workers: 4,
            observer: Arc::new(()),
        };
        tokio::spawn(Binder::new(context).run(stop.clone()));
        Ok(Running { pods, workspaces, _stop: stop.drop_guard() })
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn workspaces(&self) -> Api<PersistentWorkspace> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn runs(&self) -> Api<Run> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// Creates a Runtime Pod whose agent honours workspaces; it is available once it beats.
    pub async fn pod(&self, name: &str) -> Result<String> {
        self.pod_with(name, json!({"kruntimes.io/workspace-agent": "v1"})).await
    }

    pub async fn pod_with(&self, name: &str, annotations: Value) -> Result<String> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"runtime": "bash"}, "annotations": annotations},
            "spec": {"containers": [{"name": "runtime", "image": "none"}], "terminationGracePeriodSeconds": 0},
        });
        let pod = self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        pod.metadata.uid.context("a UID")
    }

    /// Lets a Pod be ready, or not, and its agent report now.
    pub async fn pod_is(&self, name: &str, ready: bool) -> Result<()> {
        let status = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }},
            {"type": "kruntimes.io/RuntimedReady", "status": "True", "lastProbeTime": Timestamp::now().to_string()},
        ]}});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
        Ok(())
    }

    pub async fn beat(&self, name: &str) -> Result<()> {
        self.pod_is(name, true).await
    }

    pub async fn available_pod(&self, name: &str) -> Result<String> {
        let uid = self.pod(name).await?;
        self.beat(name).await?;
        Ok(uid)
    }

    /// Waits until a binder's cache holds the Pod as it is.
    pub async fn cached(&self, running: &Running, name: &str) -> Result<()> {
        let version = self.pods().get(name).await?.metadata.resource_version;
        let key = ObjectKey::new(self.namespace.as_str(), name);
        let caught_up = async || Ok(running.pods.get(&key).filter(|pod| Some(&*pod.resource_version) == version.as_deref()));
        until("the cache", PATIENCE, caught_up).await.map(drop)
    }

    pub async fn workspace(&self, name: &str) -> Result<String> {
        self.workspace_with(name, json!({})).await
    }

    /// Creates a workspace of Runtime bash with these further fields of the spec.
    pub async fn workspace_with(&self, name: &str, spec: Value) -> Result<String> {
        let mut workspace = json!({"metadata": {"name": name}, "spec": {"runtime": "bash"}});
        if let (Some(fields), Value::Object(more)) = (workspace["spec"].as_object_mut(), spec) {
            fields.extend(more);
        }
        let created = self.workspaces().create(&PostParams::default(), &serde_json::from_value(workspace)?).await?;
        created.metadata.uid.context("a UID")
    }

    pub async fn patch(&self, name: &str, patch: Value) -> Result<PersistentWorkspace> {
        Ok(self.workspaces().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub async fn status(&self, name: &str) -> Result<PersistentWorkspaceStatus> {
        Ok(self.workspaces().get(name).await?.status.unwrap_or_default())
    }

    /// `phase pod available-reason` of a workspace, and the reason of condition Cleaned, if there is one; `gone`.
    pub async fn told(&self, name: &str) -> Result<String> {
        let Some(workspace) = self.workspaces().get_opt(name).await? else { return Ok("gone".to_owned()) };
        let status = workspace.status.unwrap_or_default();
        let reason = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.reason.clone());
        let cleaned = reason("Cleaned").map_or_else(String::new, |reason| format!(" {reason}"));
        let available = reason("Available").unwrap_or_else(|| "-".to_owned());
        Ok(format!("{} {} {available}{cleaned}", status.phase, status.bound_pod.as_deref().unwrap_or("-")))
    }

    pub async fn becomes(&self, name: &str, expected: &str) -> Result<()> {
        let seen = RefCell::new(String::new());
        let probe = async || {
            *seen.borrow_mut() = self.told(name).await?;
            Ok((*seen.borrow() == expected).then_some(()))
        };
        let result = until(expected, PATIENCE, probe).await;
        result.with_context(|| format!("workspace {name} is {:?}", seen.borrow()))
    }

    pub async fn remains(&self, name: &str, expected: &str) -> Result<()> {
        stays(expected, A_WHILE, async || Ok(self.told(name).await? == expected)).await
    }

    /// Writes of a workspace that reached the API server, as verb and subresource, in order.
    pub fn writes(&self, name: &str) -> Vec<String> {
        let of_it = self.proxy.requests().into_iter().filter(|seen| seen.resource == "persistentworkspaces" && seen.name == name && seen.is_write());
        of_it.map(|seen| format!("{} {}", seen.verb, seen.subresource).trim_end().to_owned()).collect()
    }

    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Types and notes of the Events about an object with that reason.
    pub async fn events(&self, name: &str, reason: &str) -> Result<Vec<(String, String)>> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), &self.namespace);
        let about = |event: &Event| event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(name) && event.reason.as_deref() == Some(reason);
        let events = events.list(&ListParams::default()).await?.items.into_iter().filter(about);
        Ok(events.map(|event| (event.type_.unwrap_or_default(), event.note.unwrap_or_default())).collect())
    }

    /// Waits for an Event of that type and reason about an object.
    pub async fn event(&self, name: &str, type_: &str, reason: &str) -> Result<()> {
        let told = async || Ok(self.events(name, reason).await?.into_iter().find(|(is, _)| is == type_));
        until(&format!("Event {reason} of {name}"), PATIENCE, told).await.map(drop)
    }
}

/// The two writes that bind.
pub const BINDING: [&str; 2] = ["patch", "patch status"];

#[tokio::test]
async fn a_workspace_is_bound_once_in_two_writes_with_its_event() -> Result<()> {
    let world = World::new("binder").await?;
    let binder = world.binder()?;
    world.pod("a").await?; // first by name, and never ready
    let uid = world.available_pod("b").await?;
    world.available_pod("c").await?;
    world.cached(&binder, "b").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound b PodReady").await?;
    let workspace = world.workspaces().get("w").await?;
    assert_eq!(workspace.metadata.finalizers.unwrap_or_default(), ["kruntimes.io/workspace-cleanup"]);
    let status = workspace.status.context("a status")?;
    assert_eq!(status.bound_pod_uid, Some(uid));
    assert_eq!((status.runtime.as_deref(), status.path.as_deref()), (Some("bash"), Some("/workspace/persistent/w")));
    let mut conditions: Vec<String> = status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason)).collect();
    conditions.sort();
    assert_eq!(conditions, ["Accepted=True/Accepted", "Available=True/PodReady", "Bound=True/Bound", "RuntimeReady=True/RuntimeFound"]);
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(1)));
    world.event("w", "Normal", "Bound").await?;

    world.beat("a").await?;
    world.beat("b").await?;
    world.remains("w", "Bound b PodReady").await?;
    assert_eq!(world.writes("w"), BINDING, "a heartbeat or a better Pod writes nothing");
    // An edit of the spec is followed by the conditions.
    world.patch("w", json!({"spec": {"ttlSecondsAfterUnused": 3_600}})).await?;
    until("observedGeneration 2", PATIENCE, async || {
        Ok(world.status("w").await?.conditions.iter().all(|condition| condition.observed_generation == Some(2)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_waiting_workspace_is_bound_when_a_pod_becomes_ready_and_stays_through_its_troubles() -> Result<()> {
    let world = World::new("binder-wait").await?;
    let _binder = world.binder()?;
    world.workspace("w").await?;
    world.becomes("w", "Pending - NotBound").await?;
    world.pod("p").await?;
    world.remains("w", "Pending - NotBound").await?;
    world.beat("p").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.pod_is("p", false).await?;
    world.becomes("w", "Bound p PodNotReady").await?;
    world.beat("p").await?;
    world.becomes("w", "Bound p PodReady").await?;
    // Its agent falls silent: no event of the API server says so.
    world.becomes("w", "Bound p HeartbeatStale").await?;
    world.beat("p").await?;
    world.becomes("w", "Bound p PodReady").await
}

#[tokio::test]
async fn a_terminating_pod_keeps_its_workspace_until_it_is_gone_and_then_it_is_lost_for_ever() -> Result<()> {
    let world = World::new("binder-lost").await?;
    let _binder = world.binder()?;
    world.available_pod("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    let finalizers = |list: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    world.pods().patch("p", &PatchParams::default(), &finalizers(&["example.com/hold"])).await?;
    world.delete_pod("p").await?;
    world.becomes("w", "Bound p PodTerminating").await?;
    world.pods().patch("p", &PatchParams::default(), &finalizers(&[])).await?;
    world.becomes("w", "Lost p PodDeleted").await?;
    world.event("w", "Warning", "Lost").await?;
    world.available_pod("p").await?;
    world.remains("w", "Lost p PodDeleted").await
}

#[tokio::test]
async fn a_replaced_pod_loses_its_workspace() -> Result<()> {
    let world = World::new("binder-replaced").await?;
    let _binder = world.binder()?;
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
    let world = World::new("binder-label").await?;
    let _binder = world.binder()?;
    world.available_pod("p").await?;
    world.workspace("w").await?;
    world.becomes("w", "Bound p PodReady").await?;
    world.pods().patch("p", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"runtime": null}}}))).await?;
    world.becomes("w", "Bound p PodOfAnotherRuntime").await?;
    world.delete_pod("p").await?;
    world.becomes("w", "Lost p PodDeleted").await
}

#[tokio::test]
async fn nothing_is_lost_or_released_while_pods_or_runs_are_not_listed_yet() -> Result<()> {
    let world = World::new("binder-unsynced").await?;
    {
        let _binder = world.binder()?;
        world.available_pod("p").await?;
        // In use, so that it is still there when this binder has ended.
        let run = json!({"metadata": {"name": "r"}, "spec": {"runtime": "bash", "mode": {"task": {}}, "workspace": {"name": "w"}}});
        world.runs().create(&PostParams::default(), &serde_json::from_value(run)?).await?;
        world.workspace_with("w", json!({"ttlSecondsAfterUnused": 1})).await?;
        world.becomes("w", "Bound p PodReady").await?;
    }
    for unlisted in ["pods", "runs"] {
        // A binder that restarts and can't list: the workspace is known, its Pod, or who uses it, is not.
        let proxy = Proxy::start(ControlPlane::shared().await?).await?;
        let mute = proxy.inject(Fault::Hang, usize::MAX, move |seen| seen.is("list", unlisted));
        let binder = world.binder_with(WorkspaceBinding::FirstByName, &proxy)?;
        tokio::time::timeout(PATIENCE, binder.workspaces.synced()).await?;
        until("the list to hang", PATIENCE, async || Ok((mute.hits() > 0).then_some(()))).await?;
        stays("Bound", A_WHILE, async || Ok(world.told("w").await?.starts_with("Bound p "))).await?;
        assert_eq!(proxy.count(|seen| seen.resource == "persistentworkspaces" && seen.is_write()), 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_read_and_not_repeated() -> Result<()> {
    for (name, lost) in [("binder-answer", "persistentworkspaces/status"), ("binder-finalizer", "persistentworkspaces")] {
        let world = World::new(name).await?;
        world.proxy.inject(Fault::DropAnswer, 1, move |seen| seen.is("patch", lost));
        let binder = world.binder()?;
        world.available_pod("p").await?;
        world.cached(&binder, "p").await?;
        world.workspace("w").await?;
        world.becomes("w", "Bound p PodReady").await?;
        world.remains("w", "Bound p PodReady").await?;
        let took_effect = world.proxy.requests().into_iter().filter(|seen| seen.name == "w" && seen.is_write() && seen.code == Some(200)).count();
        assert_eq!(took_effect, 2, "{lost}: {:?}", world.writes("w"));
    }
    Ok(())
}

/// Lets Pods p0, p1, … beat until something fails.
async fn keep_beating(world: &World, pods: usize) -> Result<()> {
    loop {
        for n in 0..pods {
            world.beat(&format!("p{n}")).await?;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

/// Workspaces of one burst.
const BURST: usize = 1_000;

#[tokio::test]
async fn a_thousand_workspaces_at_once_cost_two_writes_each_and_spread_by_load() -> Result<()> {
    let world = World::new("binder-burst").await?;
    let binder = world.binder_with(WorkspaceBinding::LeastLoaded, &world.proxy)?;
    let capacity = [1, 2, 3, 4];
    for (n, runs) in capacity.iter().enumerate() {
        let name = format!("p{n}");
        world.pod_with(&name, json!({"kruntimes.io/capacity.runs": runs.to_string(), "kruntimes.io/workspace-agent": "v1"})).await?;
        world.beat(&name).await?;
        world.cached(&binder, &name).await?;
    }
    let start = std::time::Instant::now();
    let names: Vec<String> = (0..BURST).map(|n| format!("w{n}")).collect();
    let created = futures::stream::iter(&names).map(|name| world.workspace(name)).buffer_unordered(32).collect::<Vec<_>>().await;
    created.into_iter().collect::<Result<Vec<_>>>()?;
    let all_bound = until("all bound", PATIENCE * 2, async || {
        let all = world.workspaces().list(&ListParams::default()).await?.items;
        Ok(all.iter().all(|workspace| workspace.phase().as_str() == "Bound").then_some(all))
    });
    let all = tokio::select! {
        all = all_bound => all?,
        failed = keep_beating(&world, capacity.len()) => return failed,
    };
    println!("{BURST} workspaces created and bound in {:?}", start.elapsed());
    tokio::time::sleep(A_WHILE).await;
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    for workspace in all {
        let name = workspace.metadata.name.unwrap_or_default();
        ensure!(world.writes(&name) == BINDING, "{name}: {:?}", world.writes(&name));
        *on.entry(workspace.status.and_then(|status| status.bound_pod).unwrap_or_default()).or_default() += 1;
    }
    let shares: Vec<usize> = on.values().copied().collect();
    ensure!(shares == [100, 200, 300, 400], "{on:?}");
    Ok(())
}
