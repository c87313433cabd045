//! A namespace of the real API server with Runtime Pods that beat, and what the suites of `berth serve` ask of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_api::{PersistentWorkspace, Run};
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{ADMIN, ControlPlane};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::Proxy;
use berth_tests::release::Account;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// How often Pods beat; the agent of the neighbour does so every 5 s.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// One namespace.
pub struct World<'p> {
    pub plane: &'p ControlPlane,
    pub namespace: String,
    pub runs: Api<Run>,
    pub pods: Api<Pod>,
    pub workspaces: Api<PersistentWorkspace>,
    pub client: Client,
    /// Who `berth serve` is: the chart's ServiceAccount, with its rights in this namespace.
    pub account: Account,
    beating: Arc<Mutex<BTreeSet<String>>>,
    beater: JoinHandle<()>,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        self.beater.abort();
    }
}

impl World<'static> {
    /// A fresh namespace on the shared control plane.
    pub async fn new(prefix: &str) -> Result<Self> {
        Self::on(ControlPlane::shared().await?, prefix).await
    }
}

impl<'p> World<'p> {
    /// A fresh namespace on `plane`.
    pub async fn on(plane: &'p ControlPlane, prefix: &str) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        let client = plane.client(ADMIN)?;
        let account = Account::of(plane, &namespace).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let beating = Arc::<Mutex<BTreeSet<String>>>::default();
        let (beat, of) = (beating.clone(), pods.clone());
        let beater = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT_EVERY).await;
                let names: Vec<String> = beat.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
                for name in names {
                    let _ = beat_once(&of, &name).await; // the API server may be down: that is the test
                }
            }
        });
        Ok(Self {
            plane,
            runs: Api::namespaced(client.clone(), &namespace),
            workspaces: Api::namespaced(client.clone(), &namespace),
            namespace,
            pods,
            client,
            account,
            beating,
            beater,
        })
    }

    /// `berth serve` of this namespace, as the chart's ServiceAccount.
    pub fn serve(&self) -> Result<Serve> {
        Ok(Serve::new(&self.plane.kubeconfig(&self.account.token)?).namespace(&self.namespace))
    }

    /// The same through a proxy.
    pub fn serve_through(&self, proxy: &Proxy) -> Result<Serve> {
        Ok(Serve::new(&proxy.kubeconfig(self.plane, &self.account.token)?).namespace(&self.namespace))
    }

    /// A running, ready `berth serve` of this namespace.
    pub async fn berth(&self) -> Result<Berth> {
        self.serve()?.start_ready(self.plane.scratch()).await
    }

    /// The same with a BerthConfiguration.
    pub async fn berth_with(&self, config: Value) -> Result<Berth> {
        let mut config = config;
        config["apiVersion"] = json!("berth.kruntimes.io/v1alpha1");
        config["kind"] = json!("BerthConfiguration");
        let file = self.plane.scratch().write(&format!("{}.yaml", self.namespace), config.to_string())?;
        self.serve()?.config(&file).start_ready(self.plane.scratch()).await
    }

    // ---- Pods ------------------------------------------------------------------------------------

    /// An available Pod of `runtime` that advertises `capacity` and goes on beating.
    pub async fn pod(&self, name: &str, runtime: &str, capacity: &[(&str, &str)]) -> Result<Pod> {
        self.create_pod(name, runtime, capacity).await?;
        self.beating.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        self.pod_status(name, true, Timestamp::now()).await
    }

    /// A Pod without any status.
    pub async fn create_pod(&self, name: &str, runtime: &str, capacity: &[(&str, &str)]) -> Result<Pod> {
        let annotations: BTreeMap<_, _> = capacity.iter().map(|(resource, amount)| (format!("kruntimes.io/capacity.{resource}"), *amount)).collect();
        let pod = json!({
            "metadata": {"name": name, "labels": {"runtime": runtime}, "annotations": annotations},
            "spec": {"containers": [{"name": "runtime", "image": "none"}]},
        });
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    /// Running, Ready or not, with a heartbeat of that time.
    pub async fn pod_status(&self, name: &str, ready: bool, beat: Timestamp) -> Result<Pod> {
        let status = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }},
            {"type": "kruntimes.io/RuntimedReady", "status": "True", "reason": "Heartbeat", "lastProbeTime": time(beat)},
        ]}});
        Ok(self.pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?)
    }

    /// The Pod's agent falls silent.
    pub fn silence(&self, name: &str) {
        self.beating.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub async fn annotate_pod(&self, name: &str, resource: &str, amount: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {format!("kruntimes.io/capacity.{resource}"): amount}}});
        self.pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        self.silence(name);
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    // ---- Runs ------------------------------------------------------------------------------------

    pub async fn run(&self, run: Draft) -> Result<Run> {
        Ok(self.runs.create(&PostParams::default(), &run.build()?).await?)
    }

    /// What an agent or a test says about a Run.
    pub async fn run_status(&self, name: &str, status: Value) -> Result<Run> {
        Ok(self.runs.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?)
    }

    /// The Run ends well.
    pub async fn succeed(&self, name: &str) -> Result<Run> {
        self.run_status(name, json!({"phase": "Succeeded"})).await
    }

    pub async fn patch_run(&self, name: &str, patch: Value) -> Result<Run> {
        Ok(self.runs.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub async fn delete_run(&self, name: &str) -> Result<()> {
        self.runs.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the Run is as asked.
    pub async fn run_when(&self, name: &str, what: &str, wanted: impl Fn(&Run) -> bool) -> Result<Run> {
        let last = Mutex::new(None);
        let what = format!("Run {name}: {what}");
        let found = until(&what, PATIENCE, || async {
            let run = self.runs.get(name).await?;
            let found = wanted(&run);
            *last.lock().unwrap_or_else(PoisonError::into_inner) = run.status.clone();
            Ok(found.then_some(run))
        });
        found.await.with_context(|| format!("last status of {name}: {:?}", last.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits until the Run is Scheduled; answers its Pod.
    pub async fn placed(&self, name: &str) -> Result<String> {
        let run = self.run_when(name, "Scheduled", |run| phase(run) == "Scheduled").await?;
        run.status.and_then(|status| status.assigned_pod).context("a Scheduled Run without assignedPod")
    }

    /// Waits until the Run is Scheduled on `pod`.
    pub async fn placed_on(&self, name: &str, pod: &str) -> Result<()> {
        let on = self.placed(name).await?;
        ensure!(on == pod, "{name} is on {on}, not {pod}");
        Ok(())
    }

    /// Waits until the Run says that it waits, with all of `texts` in its message; answers the message.
    pub async fn waits(&self, name: &str, texts: &[&str]) -> Result<String> {
        let what = format!("waiting with {texts:?}");
        let run = self.run_when(name, &what, |run| phase(run) == "Pending" && texts.iter().all(|text| message(run).contains(text))).await?;
        let condition = condition(&run, "Scheduled").context("no condition Scheduled")?;
        ensure!(condition.0 == "False" && condition.2 == message(&run), "condition and message differ: {condition:?}");
        ensure!(message(&run).starts_with("waiting for available runtime pods"), "{}", message(&run));
        Ok(message(&run).to_owned())
    }

    /// Where the Run stands in the scheduler, by /debug/queue.
    pub async fn standing(&self, berth: &Berth, name: &str) -> Result<Option<String>> {
        let (code, text) = berth.get("/debug/queue").await?;
        ensure!(code == 200, "/debug/queue answered {code}: {text}");
        let view: Value = serde_json::from_str(&text)?;
        let runs = view["runs"].as_array().cloned().unwrap_or_default();
        Ok(runs.iter().find(|run| run["name"] == name).and_then(|run| run["standing"].as_str().map(str::to_owned)))
    }

    /// Waits until the scheduler has tried the Run and filed it as waiting.
    pub async fn is_waiting(&self, berth: &Berth, name: &str) -> Result<()> {
        until(&format!("{name} to wait"), PATIENCE, || async { Ok((self.standing(berth, name).await?.as_deref() == Some("waiting")).then_some(())) }).await
    }

    // ---- workspaces ------------------------------------------------------------------------------

    pub async fn workspace(&self, name: &str, runtime: &str) -> Result<PersistentWorkspace> {
        let workspace = json!({"metadata": {"name": name}, "spec": {"runtime": runtime}});
        Ok(self.workspaces.create(&PostParams::default(), &serde_json::from_value(workspace)?).await?)
    }

    pub async fn workspace_when(&self, name: &str, wanted_phase: &str) -> Result<PersistentWorkspace> {
        until(&format!("workspace {name} {wanted_phase}"), PATIENCE, || async {
            let workspace = self.workspaces.get(name).await?;
            let phase = serde_json::to_value(workspace.phase())?;
            Ok((phase == wanted_phase).then_some(workspace))
        })
        .await
    }

    // ---- what the cluster says -------------------------------------------------------------------

    /// The first Event about the object of that name with that reason, once it is there: type and note.
    pub async fn event(&self, name: &str, reason: &str) -> Result<(String, String)> {
        until(&format!("Event {reason} of {name}"), PATIENCE, || async { Ok(self.events(name, reason).await?.into_iter().next()) }).await
    }

    /// Events about the object of that name with that reason: type and note.
    pub async fn events(&self, name: &str, reason: &str) -> Result<Vec<(String, String)>> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let events = api.list(&ListParams::default()).await?;
        let about = |event: &Event| event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(name) && event.reason.as_deref() == Some(reason);
        Ok(events.into_iter().filter(about).map(|event| (event.type_.unwrap_or_default(), event.note.unwrap_or_default())).collect())
    }

    /// Status writes of Run `name` by berth that the API server carried out.
    pub fn status_writes(&self, name: &str) -> Result<usize> {
        Ok(self.writes_by_run()?.remove(name).unwrap_or_default())
    }

    /// The same of every Run that has any.
    pub fn writes_by_run(&self) -> Result<BTreeMap<String, usize>> {
        let mut writes = BTreeMap::new();
        for r in self.plane.audit().requests()? {
            if r.is_write() && r.succeeded() && r.resource == "runs" && r.subresource == "status" && r.user == self.account.user {
                *writes.entry(r.name).or_default() += 1;
            }
        }
        Ok(writes)
    }

    /// Every Run by name.
    pub async fn all_runs(&self) -> Result<BTreeMap<String, Run>> {
        Ok(self.runs.list(&ListParams::default()).await?.into_iter().map(|run| (run.name_any(), run)).collect())
    }
}

/// A Run to be.
pub struct Draft {
    name: String,
    labels: BTreeMap<String, String>,
    spec: Value,
}

/// A Run of runtime `bash`.
pub fn run(name: &str) -> Draft {
    Draft { name: name.to_owned(), labels: BTreeMap::new(), spec: json!({"runtime": "bash", "mode": {"task": {}}}) }
}

impl Draft {
    pub fn runtime(mut self, runtime: &str) -> Self {
        self.spec["runtime"] = json!(runtime);
        self
    }
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }
    pub fn workspace(mut self, name: &str) -> Self {
        self.spec["workspace"] = json!({ "name": name });
        self
    }
    pub fn request(mut self, resource: &str, amount: i64) -> Self {
        self.spec["resources"]["requests"][resource] = json!(amount.to_string());
        self
    }
    /// `kind`: runAffinity or runAntiAffinity.
    pub fn requires(mut self, kind: &str, key: &str, value: &str) -> Self {
        let term = term(key, value);
        push(&mut self.spec["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"], term);
        self
    }
    pub fn prefers(mut self, kind: &str, weight: i32, key: &str, value: &str) -> Self {
        let weighted = json!({"weight": weight, "runAffinityTerm": term(key, value)});
        push(&mut self.spec["affinity"][kind]["preferredDuringSchedulingIgnoredDuringExecution"], weighted);
        self
    }
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }
    pub fn build(self) -> Result<Run> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "kruntimes.io/v1alpha1", "kind": "Run",
            "metadata": {"name": self.name, "labels": self.labels}, "spec": self.spec,
        }))?)
    }
}

fn term(key: &str, value: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {key: value}}, "topologyKey": "kruntimes.io/runtime-pod"})
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

async fn beat_once(pods: &Api<Pod>, name: &str) -> Result<()> {
    let status = json!({"status": {"conditions": [{"type": "kruntimes.io/RuntimedReady", "status": "True", "lastProbeTime": time(Timestamp::now())}]}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

/// As on the wire: whole seconds.
pub fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

pub fn phase(run: &Run) -> &str {
    run.status.as_ref().map_or("Pending", |_| run.phase().as_str())
}

pub fn message(run: &Run) -> &str {
    run.status.as_ref().and_then(|status| status.message.as_deref()).unwrap_or_default()
}

/// Status, reason and message of a condition.
pub fn condition(run: &Run, kind: &str) -> Option<(String, String, String)> {
    let conditions = &run.status.as_ref()?.conditions;
    conditions.iter().find(|c| c.type_ == kind).map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
}

/// Since when a condition has its status.
pub fn condition_since(run: &Run, kind: &str) -> Option<Timestamp> {
    run.status.as_ref()?.conditions.iter().find(|c| c.type_ == kind).map(|c| c.last_transition_time.0)
}
