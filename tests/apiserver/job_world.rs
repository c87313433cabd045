//! A namespace with Jobs: a real API server and controller manager, the kubelet stand-in, and one `berth serve --jobs` for all that do not kill it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use berth_controllers::job::api::{Job, JobClass};
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{ADMIN, ControlPlane, Options, checkout};
use berth_tests::helm::{Helm, documents};
use berth_tests::job_oracle::broken;
use berth_tests::kubelet::Kubelet;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::{Account, apply};
use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job as NativeJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The control plane that tests of Jobs share.
pub async fn plane() -> Result<&'static ControlPlane> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE
        .get_or_try_init(|| async {
            let plane = ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await?;
            install_policies(&plane.admin()?).await?;
            Ok(plane)
        })
        .await
}

/// Applies the admission policies of deploy/jobs, as the chart does, and waits until they let Jobs pass.
pub async fn install_policies(client: &Client) -> Result<()> {
    for file in ["validating-policies.yaml", "mutating-policies.yaml"] {
        let text = std::fs::read_to_string(checkout().join("deploy/jobs").join(file))?;
        for object in documents(&text)? {
            apply(client, &object).await?;
        }
    }
    // The mutating ones need the Job's schema, which the API server publishes a little after the CRD: first it heeds none of them, then it
    // refuses Jobs, and then they work, which the finalizer shows.
    let jobs: Api<Job> = Api::namespaced(client.clone(), "default");
    let job = serde_json::from_value(json!({"metadata": {"name": "first"}, "spec": {"jobClassName": "first", "task": {"image": "i"}}}))?;
    let classes = Api::<JobClass>::all(client.clone());
    let class = json!({"metadata": {"name": "first"}, "spec": {"controllerName": "execution.ayatori.ddupan.top/kubernetes"}});
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    until("Jobs to be taken", PATIENCE, || async { Ok(jobs.create(&dry, &job).await.ok().filter(|job| !job.finalizers().is_empty())) }).await?;
    classes.delete("first", &DeleteParams::default()).await?;
    Ok(())
}

/// The account of a release of the chart with Jobs on: every right that it grants, and no other.
async fn account() -> Result<&'static Account> {
    static ACCOUNT: OnceCell<Account> = OnceCell::const_new();
    ACCOUNT
        .get_or_try_init(|| async {
            let plane = plane().await?;
            account_of(plane, &plane.namespace("job-release").await?).await
        })
        .await
}

/// The account of such a release in `namespace`.
pub async fn account_of(plane: &ControlPlane, namespace: &str) -> Result<Account> {
    let mut objects = Helm::new()?.rendered("jobs", namespace, &json!({"jobs": {"enabled": true}, "crds": {"install": false}}))?;
    let is_right = |kind: &str| matches!(kind, "ServiceAccount" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding");
    objects.retain(|object| object["kind"].as_str().is_some_and(is_right));
    Account::install(plane, namespace, &objects).await
}

/// The process that carries all Jobs of [`plane`], with the rights of that account.
pub async fn berth() -> Result<&'static Berth> {
    static SERVES: OnceCell<Berth> = OnceCell::const_new();
    SERVES
        .get_or_try_init(|| async {
            let plane = plane().await?;
            Serve::new(&plane.kubeconfig(&account().await?.token)?).arg("--jobs").start_ready(plane.scratch()).await
        })
        .await
}

/// One namespace, with a class of its own.
pub struct World<'p> {
    pub plane: &'p ControlPlane,
    pub client: Client,
    pub namespace: String,
    /// Name of the class; also of its parameters.
    pub class: String,
    pub jobs: Api<Job>,
    pub natives: Api<NativeJob>,
    pub pods: Api<Pod>,
    pub kubelet: Kubelet,
}

impl World<'static> {
    /// On the shared control plane, with the shared process.
    pub async fn new(prefix: &str) -> Result<Self> {
        Self::with(prefix, json!({}), json!({})).await
    }

    /// The same with more in its class and in its parameters.
    pub async fn with(prefix: &str, class: Value, parameters: Value) -> Result<Self> {
        berth().await?;
        let world = Self::on(plane().await?, prefix, class, parameters).await?;
        until("the class to be accepted", PATIENCE, || async {
            let class = world.classes().get(&world.class).await?;
            let conditions = class.status.iter().flat_map(|status| &status.conditions);
            Ok(conditions.into_iter().any(|condition| condition.type_ == "Accepted" && condition.status == "True").then_some(()))
        })
        .await?;
        Ok(world)
    }
}

impl<'p> World<'p> {
    /// A fresh namespace on `plane`. Nobody carries its Jobs yet.
    pub async fn on(plane: &'p ControlPlane, prefix: &str, class: Value, parameters: Value) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        let client = plane.client(ADMIN)?;
        let world = Self {
            jobs: Api::namespaced(client.clone(), &namespace),
            natives: Api::namespaced(client.clone(), &namespace),
            pods: Api::namespaced(client.clone(), &namespace),
            kubelet: Kubelet::start(client.clone(), &namespace).await?,
            class: namespace.clone(),
            plane,
            client,
            namespace,
        };
        let group = "execution.ayatori.ddupan.top";
        world.create("kubernetesexecutionparameters", &world.class, &json!({ "spec": parameters })).await?;
        let mut spec = json!({"controllerName": format!("{group}/kubernetes"),
            "parametersRef": {"group": group, "kind": "KubernetesExecutionParameters", "name": world.class}});
        spec.as_object_mut().context("an object")?.extend(class.as_object().context("an object")?.clone());
        world.create("jobclasses", &world.class, &json!({ "spec": spec })).await?;
        Ok(world)
    }

    async fn create(&self, plural: &str, name: &str, object: &Value) -> Result<()> {
        let kind = if plural == "jobclasses" { "JobClass" } else { "KubernetesExecutionParameters" };
        let mut body = json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": kind, "metadata": {"name": name}});
        body["spec"] = object["spec"].clone();
        let request = hyper::Request::post(format!("/apis/execution.ayatori.ddupan.top/v1alpha1/{plural}")).header("content-type", "application/json");
        self.client.request::<Value>(request.body(serde_json::to_vec(&body)?)?).await?;
        Ok(())
    }

    /// The class.
    pub fn classes(&self) -> Api<JobClass> {
        Api::all(self.client.clone())
    }

    /// Creates a Job that runs `command`, with `extra` in its spec.
    pub async fn job(&self, name: &str, command: &[&str], extra: Value) -> Result<Job> {
        let mut spec = json!({"jobClassName": self.class, "task": {"image": "registry.example/app:1", "command": command}});
        for (field, value) in extra.as_object().context("an object")? {
            match value {
                Value::Null => drop(spec.as_object_mut().context("an object")?.remove(field)),
                value => spec[field] = value.clone(),
            }
        }
        let job = json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
        Ok(self.jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?)
    }

    /// Waits until the Job is as `wanted` says; answers it.
    pub async fn until(&self, name: &str, what: &str, wanted: impl Fn(&Job) -> bool) -> Result<Job> {
        let last = std::sync::Mutex::new(String::new());
        let what = format!("Job {name}: {what}");
        let found = until(&what, PATIENCE, || async {
            let job = self.jobs.get(name).await?;
            if wanted(&job) {
                return Ok(Some(job));
            }
            *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = serde_json::to_string(&job.status)?;
            Ok(None)
        });
        found.await.with_context(|| format!("status {}", last.lock().unwrap_or_else(std::sync::PoisonError::into_inner)))
    }

    /// Waits until Succeeded has this status and reason; answers the Job.
    pub async fn succeeded(&self, name: &str, status: &str, reason: &str) -> Result<Job> {
        self.until(name, &format!("Succeeded {status}/{reason}"), |job| succeeded(job) == (status.to_owned(), reason.to_owned())).await
    }

    /// Waits until the Job is gone.
    pub async fn gone(&self, name: &str) -> Result<()> {
        until(&format!("Job {name} to be gone"), PATIENCE, || async { Ok(self.jobs.get_opt(name).await?.is_none().then_some(())) }).await
    }

    /// Waits until nothing of a Job's backend is left.
    pub async fn nothing_left(&self, uid: &str) -> Result<()> {
        let labelled = ListParams::default().labels(&format!("execution.ayatori.ddupan.top/job-uid={uid}"));
        until(&format!("nothing of {uid} to be left"), PATIENCE, || async {
            let (natives, pods) = futures::try_join!(self.natives.list(&labelled), self.pods.list(&labelled))?;
            Ok((natives.items.is_empty() && pods.items.is_empty()).then_some(()))
        })
        .await
    }

    /// The Pods of a Job, by its UID.
    pub async fn pods_of(&self, uid: &str) -> Result<Vec<Pod>> {
        Ok(self.pods.list(&ListParams::default().labels(&format!("execution.ayatori.ddupan.top/job-uid={uid}"))).await?.items)
    }

    /// Waits for a Pod of the Job that satisfies `wanted`.
    pub async fn pod(&self, uid: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Result<Pod> {
        until(&format!("a Pod of {uid}: {what}"), PATIENCE, || async { Ok(self.pods_of(uid).await?.into_iter().find(|pod| wanted(pod))) }).await
    }

    /// Waits for the Job's Pod on its node.
    pub async fn bound(&self, uid: &str) -> Result<Pod> {
        self.pod(uid, "on its node", |pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).await
    }

    /// Asks for a cancel.
    pub async fn cancel(&self, name: &str) -> Result<()> {
        self.jobs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"desiredState": "Cancelled"}}))).await?;
        Ok(())
    }

    /// Deletes a Job with that cascade.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<()> {
        self.jobs.delete(name, params).await?;
        Ok(())
    }

    /// Every state of every Job of the namespace from now on; [`History::end`] holds each change against the invariants.
    pub fn history(&self) -> History {
        History::of(self.jobs.clone())
    }

    /// Nothing that the process asked for was refused for want of a right.
    pub async fn nothing_was_refused(&self) -> Result<()> {
        nothing_was_refused(self.plane, &account().await?.user)
    }

    /// Own writes of the process about this namespace, by verb, resource and code, Events apart.
    pub async fn writes(&self) -> Result<BTreeMap<String, usize>> {
        let user = &account().await?.user;
        let mut writes = BTreeMap::new();
        for request in self.plane.audit().requests()? {
            let own = request.user == *user && request.namespace == self.namespace && request.is_write() && request.resource != "events";
            if own {
                let resource = if request.subresource.is_empty() { request.resource } else { format!("{}/{}", request.resource, request.subresource) };
                *writes.entry(format!("{} {resource} {}", request.verb, request.code)).or_default() += 1;
            }
        }
        Ok(writes)
    }
}

/// Nothing that `user` asked for was refused for want of a right.
pub fn nothing_was_refused(plane: &ControlPlane, user: &str) -> Result<()> {
    let requests = plane.audit().requests()?;
    // A policy may refuse what it is there to refuse; the process asks for none of that.
    let refused: Vec<_> = requests.iter().filter(|request| request.user == user && request.code == 403).collect();
    ensure!(refused.is_empty() && requests.iter().any(|request| request.user == user), "{refused:?}");
    Ok(())
}

/// What was seen of Jobs.
pub struct History {
    states: tokio::sync::mpsc::UnboundedReceiver<Glimpse>,
    task: tokio::task::JoinHandle<()>,
}

/// One Job, as it was seen once.
struct Glimpse {
    job: Value,
    is_gone: bool,
}

/// A change of one Job.
pub struct JobChange {
    /// None: it was not seen before.
    pub old: Option<Value>,
    /// None: it is gone.
    pub new: Option<Value>,
}

impl History {
    /// Every state of these Jobs from now on.
    pub fn of(jobs: Api<Job>) -> Self {
        let (sender, states) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut events = watcher(jobs, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let (job, is_gone) = match event {
                    Ok(Event::Apply(job) | Event::InitApply(job)) => (job, false),
                    Ok(Event::Delete(job)) => (job, true),
                    _ => continue,
                };
                if let Ok(job) = serde_json::to_value(&job)
                    && sender.send(Glimpse { job, is_gone }).is_err()
                {
                    return;
                }
            }
        });
        Self { states, task }
    }

    /// Ends it; fails if a change broke an invariant. Answers how many changes there were.
    pub fn end(self) -> Result<usize> {
        Ok(self.changes()?.iter().filter(|change| change.old.is_some() && change.new.is_some()).count())
    }

    /// The same; answers the changes.
    pub fn changes(mut self) -> Result<Vec<JobChange>> {
        self.task.abort();
        let mut last: BTreeMap<String, Value> = BTreeMap::new();
        let mut changes = Vec::new();
        while let Ok(Glimpse { job, is_gone }) = self.states.try_recv() {
            let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            if is_gone {
                changes.push(JobChange { old: last.remove(&uid), new: None });
                continue;
            }
            let old = last.insert(uid, job.clone());
            if let Some(old) = &old {
                let wrong = broken(old, &job);
                if !wrong.is_empty() {
                    bail!("{wrong:?}: {old} became {job}");
                }
            }
            changes.push(JobChange { old, new: Some(job) });
        }
        Ok(changes)
    }
}

/// Status and reason of Succeeded.
pub fn succeeded(job: &Job) -> (String, String) {
    condition(job, "Succeeded")
}

/// Status and reason of a condition; empty if it is absent.
pub fn condition(job: &Job, kind: &str) -> (String, String) {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|condition| condition.type_ == kind).map(|condition| (condition.status.clone(), condition.reason.clone())).unwrap_or_default()
}

/// The exit code that the Job tells.
pub fn exit_code(job: &Job) -> Option<i32> {
    job.status.as_ref()?.result.as_ref()?.exit_code
}

/// `metadata.uid`.
pub fn uid(job: &Job) -> String {
    job.uid().unwrap_or_default()
}

/// How long what must not happen is watched for.
pub const A_WHILE: Duration = Duration::from_millis(1_500);
