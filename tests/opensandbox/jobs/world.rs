//! Jobs on OpenSandbox: a real API server, `berth serve` with the chart's own rights, and the suite's server, whose sandboxes tell the test that they begin.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::adapter::opensandbox::names::META_JOB_UID;
use berth_controllers::job::api::{Job, JobClass};
use berth_opensandbox::{Client as Sandboxes, Metadata, Sandbox};
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::ControlPlane;
use berth_tests::helm::Helm;
use berth_tests::job_conformance::merge;
use berth_tests::opensandbox::{API_KEY, BUSYBOX, Server};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::{Account, apply};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::job_world::{self, succeeded};
use crate::world::server;

pub const GROUP: &str = "execution.ayatori.ddupan.top";
/// Where the Jobs of all tests are: the one namespace whose Secrets and ConfigMaps the process may read.
pub const NAMESPACE: &str = "sandboxed";
/// Where the process's own objects are.
pub const RELEASE: &str = "sandbox-release";
const KEY_SECRET: &str = "opensandbox-key";
/// One that a test may fill with what it likes.
pub const OTHER_SECRET: &str = "other-key";
/// The Secret with the installation's identity, as the chart names it.
pub const INSTALLATION: &str = "sandbox-release/berth-installation";

/// Counts who tells that it begins: `GET /NAME`. On a thread of its own: the tests that share it have a runtime each.
pub struct Counter {
    url: String,
    begun: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Counter {
    /// At an address that sandboxes reach by another name.
    pub fn start(address: &str, reached: &str) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        let url = format!("http://{reached}:{}", listener.local_addr()?.port());
        let begun = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let counts = Arc::clone(&begun);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // Whoever leaves early is not counted.
                let _ = stream.and_then(|stream| count(stream, &counts));
            }
        });
        Ok(Self { url, begun })
    }

    /// How often `name` has begun.
    pub fn begun(&self, name: &str) -> usize {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or_default()
    }

    /// Where to tell it, for whom this machine has that address.
    pub fn url_at(&self, address: &str, name: &str) -> String {
        format!("http://{address}:{}/{name}", self.url.rsplit(':').next().unwrap_or_default())
    }

    /// Shell text that tells it.
    pub fn tell(&self, name: &str) -> String {
        format!("wget -q -O /dev/null {}/{name}", self.url)
    }
}

fn count(mut stream: TcpStream, counts: &Mutex<BTreeMap<String, usize>>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {}
    let name = first.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
}

/// What the tests share that have no control plane of their own.
pub struct Shared {
    pub plane: &'static ControlPlane,
    pub account: Account,
}

/// Starts it once.
pub async fn shared() -> Result<&'static Shared> {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            let plane = job_world::plane().await?;
            Ok(Shared { plane, account: prepare(plane).await? })
        })
        .await
}

/// Counts for all tests.
async fn counter() -> Result<&'static Counter> {
    static COUNTER: OnceCell<Counter> = OnceCell::const_new();
    COUNTER.get_or_try_init(|| async { Counter::start("0.0.0.0", &server().await?.engine.gateway().context("an engine without a network")?) }).await
}

/// Makes the namespaces, the Secrets with the key, and the account of a release of the chart that has the rights which OpenSandbox needs.
pub async fn prepare(plane: &ControlPlane) -> Result<Account> {
    let client = plane.admin()?;
    for name in [RELEASE, NAMESPACE] {
        apply(&client, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
    }
    set_key(&client, KEY_SECRET, API_KEY).await?;
    let secrets = [KEY_SECRET, OTHER_SECRET].map(|name| json!({"namespace": RELEASE, "name": name}));
    let values = json!({"crds": {"install": false},
        "jobs": {"enabled": true, "openSandbox": {"enabled": true, "apiKeySecrets": secrets, "referenceNamespaces": [NAMESPACE]}}});
    let mut objects = Helm::new()?.rendered("sandboxed", RELEASE, &values)?;
    let is_right = |kind: &str| matches!(kind, "ServiceAccount" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding");
    objects.retain(|object| object["kind"].as_str().is_some_and(is_right));
    Account::install(plane, RELEASE, &objects).await
}

/// Makes or replaces the Secret with a server's API key.
pub async fn set_key(client: &Client, name: &str, key: &str) -> Result<()> {
    apply(client, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": RELEASE}, "stringData": {"key": key}})).await
}

/// The process that carries Jobs on `kubeconfig`'s server.
pub fn serve(kubeconfig: &std::path::Path) -> Serve {
    Serve::new(kubeconfig).arg("--jobs").arg(format!("--jobs-opensandbox={INSTALLATION}"))
}

/// The process of all tests that do not kill it.
pub async fn berth() -> Result<&'static Berth> {
    static SERVES: OnceCell<Berth> = OnceCell::const_new();
    SERVES
        .get_or_try_init(|| async {
            let shared = shared().await?;
            serve(&shared.plane.kubeconfig(&shared.account.token)?).start_ready(shared.plane.scratch()).await
        })
        .await
}

/// One test's part: a class of its own.
pub struct World {
    pub counter: &'static Counter,
    pub client: Client,
    pub jobs: Api<Job>,
    /// Name of the class and of its parameters.
    pub class: String,
    /// The server's client.
    pub sandboxes: Sandboxes,
}

impl World {
    /// A class of the suite's server, carried by the shared process.
    pub async fn new(class: &str) -> Result<Self> {
        Self::with(class, json!({}), json!({})).await
    }

    /// The same with more in class and parameters.
    pub async fn with(class: &str, in_class: Value, in_parameters: Value) -> Result<Self> {
        berth().await?;
        let world = Self::of(shared().await?.plane, server().await?, class, in_class, in_parameters).await?;
        world.ready().await?;
        Ok(world)
    }

    /// A class of some server. Whether somebody carries its Jobs is the caller's matter.
    pub async fn of(plane: &ControlPlane, server: &Server, class: &str, in_class: Value, in_parameters: Value) -> Result<Self> {
        let client = plane.admin()?;
        // Short, so that what comes after them is seen.
        let mut parameters = json!({"endpoint": server.url(), "apiKeySecretRef": {"namespace": RELEASE, "name": KEY_SECRET, "key": "key"},
            "createTimeout": "20s", "createWindow": "25s", "orphanTTL": "2m", "leaseTTL": "1h"});
        merge(&mut parameters, in_parameters);
        let mut spec = json!({"controllerName": format!("{GROUP}/opensandbox"), "secretDelivery": "ControllerResolved",
            "parametersRef": {"group": GROUP, "kind": "OpenSandboxExecutionParameters", "name": class}});
        merge(&mut spec, in_class);
        let object = |kind: &str, spec: Value| json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": {"name": class}, "spec": spec});
        apply(&client, &object("OpenSandboxExecutionParameters", parameters)).await?;
        // Its plural is none that can be guessed.
        let api: Api<JobClass> = Api::all(client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(object("JobClass", spec))?).await?;
        let jobs = Api::namespaced(client.clone(), NAMESPACE);
        Ok(Self { counter: counter().await?, client, jobs, class: class.to_owned(), sandboxes: server.client()? })
    }

    /// Waits until the class says that its server answers.
    pub async fn ready(&self) -> Result<()> {
        self.class_is("BackendReady", "True", "Reachable").await
    }

    /// Waits until the class has that condition.
    pub async fn class_is(&self, kind: &str, status: &str, reason: &str) -> Result<()> {
        let api: Api<JobClass> = Api::all(self.client.clone());
        until(&format!("class {} with {kind}={status} {reason}", self.class), PATIENCE, || async {
            let class = api.get(&self.class).await?;
            let conditions = class.status.iter().flat_map(|status| &status.conditions);
            let is = conditions.into_iter().any(|found| found.type_ == kind && found.status == status && found.reason == reason);
            Ok(is.then_some(()))
        })
        .await
    }

    /// A Job that runs `argv`, with `extra` in its spec.
    pub async fn job(&self, name: &str, argv: &[&str], extra: Value) -> Result<Job> {
        let mut spec = json!({"jobClassName": self.class, "task": {"image": BUSYBOX, "command": argv},
            "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}});
        merge(&mut spec, extra);
        let job = json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "Job", "metadata": {"name": name}, "spec": spec});
        Ok(self.jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?)
    }

    /// A Job that tells the test that it begins, and then runs shell text.
    pub async fn script(&self, name: &str, text: &str, extra: Value) -> Result<Job> {
        self.job(name, &["sh", "-c", &format!("{}\n{text}", self.counter.tell(name))], extra).await
    }

    pub fn begun(&self, name: &str) -> usize {
        self.counter.begun(name)
    }

    /// Waits until the Job is as `wanted` says.
    pub async fn until(&self, name: &str, what: &str, limit: Duration, wanted: impl Fn(&Job) -> bool) -> Result<Job> {
        let last = Mutex::new(String::new());
        let found = until(&format!("Job {name}: {what}"), limit, || async {
            let job = self.jobs.get(name).await?;
            if wanted(&job) {
                return Ok(Some(job));
            }
            *last.lock().unwrap_or_else(PoisonError::into_inner) = serde_json::to_string(&job.status)?;
            Ok(None)
        })
        .await;
        found.with_context(|| format!("status {}", last.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits until Succeeded has this status and reason.
    pub async fn succeeded(&self, name: &str, status: &str, reason: &str) -> Result<Job> {
        self.until(name, &format!("Succeeded {status}/{reason}"), LONG, |job| succeeded(job) == (status.to_owned(), reason.to_owned())).await
    }

    /// Waits until it runs, for which it must have begun.
    pub async fn running(&self, name: &str) -> Result<Job> {
        until(&format!("{name} to begin"), PATIENCE, || async { Ok((self.begun(name) > 0).then_some(())) }).await?;
        self.succeeded(name, "Unknown", "Running").await
    }

    pub async fn cancel(&self, name: &str) -> Result<()> {
        self.jobs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"desiredState": "Cancelled"}}))).await?;
        Ok(())
    }

    pub async fn delete(&self, name: &str) -> Result<()> {
        self.jobs.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the Job is gone.
    pub async fn gone(&self, name: &str) -> Result<()> {
        until(&format!("Job {name} to be gone"), LONG, || async { Ok(self.jobs.get_opt(name).await?.is_none().then_some(())) }).await
    }

    /// The sandboxes of a Job.
    pub async fn of_job(&self, uid: &str) -> Result<Vec<Sandbox>> {
        Ok(self.sandboxes.list(&Metadata::from([(META_JOB_UID.to_owned(), uid.to_owned())])).await?)
    }

    /// Waits for the Job's one sandbox.
    pub async fn sandbox(&self, uid: &str) -> Result<Sandbox> {
        until("its sandbox", PATIENCE, || async { Ok(self.of_job(uid).await?.pop()) }).await
    }

    /// Waits until no sandbox of a Job is left.
    pub async fn nothing_left(&self, uid: &str) -> Result<()> {
        until(&format!("no sandbox of {uid} to be left"), LONG, || async { Ok(self.of_job(uid).await?.is_empty().then_some(())) }).await
    }

    /// Makes an object of the Jobs' namespace.
    pub async fn secret(&self, name: &str, data: Value) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        secrets.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": name}, "stringData": data}))?).await?;
        Ok(())
    }

    /// Everything that is written about Jobs: statuses, Events, the process's log.
    pub async fn all_said(&self, log: &str) -> Result<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let jobs = self.jobs.list(&ListParams::default()).await?;
        let statuses: Vec<_> = jobs.items.iter().map(|job| &job.status).collect();
        let events = events.list(&ListParams::default()).await?;
        ensure!(!statuses.is_empty());
        Ok(format!("{}\n{}\n{log}", serde_json::to_string(&statuses)?, serde_json::to_string(&events.items)?))
    }
}

/// What a busy machine takes for a sandbox, a process and its end.
pub const LONG: Duration = Duration::from_secs(120);
