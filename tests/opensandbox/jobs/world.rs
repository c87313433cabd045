//! Jobs on OpenSandbox: a real API server, `berth serve` with the chart's own rights, and the suite's server, whose sandboxes tell the test that they begin.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::adapter::opensandbox::names::META_JOB_UID;
use berth_controllers::job::api::{Job, JobClass, OpenSandboxExecutionParameters};
use berth_opensandbox::{Client as Sandboxes, Metadata, Sandbox};
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{ADMIN, ControlPlane};
use berth_tests::helm::Helm;
use berth_tests::job_conformance::merge;
use berth_tests::job_matrix;
use berth_tests::opensandbox::{API_KEY, BUSYBOX, Server};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::{Account, apply};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::canaries;
use crate::job_world::{self, History, succeeded};
use crate::world::server;

pub const GROUP: &str = "execution.ayatori.ddupan.top";
/// Where the Jobs of all tests are: the one namespace whose Secrets and ConfigMaps the process may read.
pub const NAMESPACE: &str = "sandboxed";
/// Where the process's own objects are.
pub const RELEASE: &str = "sandbox-release";
const KEY_SECRET: &str = "opensandbox-key";
/// Those that a test may fill with what it likes, one test each.
pub const OTHER_SECRET: &str = "other-key";
/// The same for tests with tenants.
pub const TENANT_SECRET: &str = "tenant-key";
pub const TENANT_OTHER_SECRET: &str = "other-tenant-key";
/// Of sandboxes that another key does not see.
pub const VANISHED_SECRET: &str = "vanished-key";
const KEY_SECRETS: [&str; 5] = [KEY_SECRET, OTHER_SECRET, TENANT_SECRET, TENANT_OTHER_SECRET, VANISHED_SECRET];
/// The Secret with the installation's identity, as the chart names it.
pub const INSTALLATION: &str = "sandbox-release/berth-installation";

/// Counts who tells that it begins: `GET /NAME`; and keeps who asks at a gate, `GET /gate/NAME`, until the test opens it. On a thread of its own: the tests
/// that share it have a runtime each.
pub struct Counter {
    port: u16,
    told: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    begun: BTreeMap<String, usize>,
    open: BTreeSet<String>,
}

fn told(of: &Mutex<Told>) -> MutexGuard<'_, Told> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counter {
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", 0))?;
        let counter = Self { port: listener.local_addr()?.port(), told: Arc::default() };
        let all = Arc::clone(&counter.told);
        std::thread::spawn(move || {
            // Each on a thread of its own: on a busy machine one takes its time, and the others do not wait for it.
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                // Whoever leaves early is not counted.
                std::thread::spawn(move || count(stream, &all));
            }
        });
        Ok(counter)
    }

    /// How often `name` has begun.
    pub fn begun(&self, name: &str) -> usize {
        told(&self.told).begun.get(name).copied().unwrap_or_default()
    }

    /// Lets those go on who wait at a gate.
    pub fn open(&self, gate: &str) {
        told(&self.told).open.insert(gate.to_owned());
    }
}

fn count(mut stream: TcpStream, all: &Mutex<Told>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {}
    let path = first.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let mut told = told(all);
    let is_open = match path.strip_prefix("gate/") {
        Some(gate) => told.open.contains(gate),
        None => {
            *told.begun.entry(path.to_owned()).or_default() += 1;
            true
        }
    };
    drop(told);
    let code = if is_open { "200 OK" } else { "503 Closed" };
    write!(stream, "HTTP/1.1 {code}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
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
    COUNTER.get_or_try_init(|| async { Counter::start() }).await
}

/// Makes the namespaces, the Secrets with the key, and the account of a release of the chart that has the rights which OpenSandbox needs.
pub async fn prepare(plane: &ControlPlane) -> Result<Account> {
    let client = plane.admin()?;
    for name in [RELEASE, NAMESPACE] {
        apply(&client, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
    }
    set_key(&client, KEY_SECRET, API_KEY).await?;
    let secrets = KEY_SECRETS.map(|name| json!({"namespace": RELEASE, "name": name}));
    let values = json!({"crds": {"install": false},
        "jobs": {"enabled": true, "openSandbox": {"enabled": true, "apiKeySecrets": secrets, "referenceNamespaces": [NAMESPACE]}}});
    let mut objects = Helm::new()?.rendered("sandboxed", RELEASE, &values)?;
    let is_right = |kind: &str| matches!(kind, "ServiceAccount" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" | "Secret");
    objects.retain(|object| object["kind"].as_str().is_some_and(is_right));
    Account::install(plane, RELEASE, &objects).await
}

/// Makes or replaces the Secret with a server's API key.
pub async fn set_key(client: &Client, name: &str, key: &str) -> Result<()> {
    apply(client, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": RELEASE}, "stringData": {"key": key}})).await
}

/// The process that carries Jobs on `kubeconfig`'s server. It says everything that it can say.
pub fn serve(kubeconfig: &Path) -> Serve {
    let keys = KEY_SECRETS.map(|name| format!("--jobs-opensandbox-api-key={RELEASE}/{name}"));
    let serve = Serve::new(kubeconfig).arg("--jobs").arg(format!("--jobs-opensandbox={INSTALLATION}")).env("RUST_LOG", "trace");
    keys.into_iter().fold(serve, Serve::arg)
}

static SERVES: OnceCell<Berth> = OnceCell::const_new();

/// The process of all tests that do not kill it.
pub async fn berth() -> Result<&'static Berth> {
    SERVES
        .get_or_try_init(|| async {
            let shared = shared().await?;
            serve(&shared.plane.kubeconfig(&shared.account.token)?).start_ready(shared.plane.scratch()).await
        })
        .await
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": {"name": name}, "spec": spec})
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
    /// An administrator's.
    pub kubeconfig: PathBuf,
    /// By which its sandboxes reach this machine.
    address: String,
}

/// What the shared process has said by the end of a test has no Secret in it; so the last test sees to the whole run's log.
impl Drop for World {
    fn drop(&mut self) {
        let said = SERVES.get().map(canaries::in_new_log);
        if let Some(Err(error)) = said
            && !std::thread::panicking()
        {
            panic!("{error:#}");
        }
    }
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
        apply(&client, &object("OpenSandboxExecutionParameters", class, &parameters)).await?;
        let world = Self {
            counter: counter().await?,
            jobs: Api::namespaced(client.clone(), NAMESPACE),
            client,
            class: class.to_owned(),
            sandboxes: server.client()?,
            kubeconfig: plane.kubeconfig(ADMIN)?,
            address: server.engine.gateway().context("an engine without a network")?,
        };
        world.add_class(class, in_class).await?;
        Ok(world)
    }

    /// Another class of the same parameters.
    pub async fn add_class(&self, name: &str, more: Value) -> Result<()> {
        let mut spec = json!({"controllerName": format!("{GROUP}/opensandbox"), "secretDelivery": "ControllerResolved",
            "parametersRef": {"group": GROUP, "kind": "OpenSandboxExecutionParameters", "name": self.class}});
        merge(&mut spec, more);
        // Its plural is none that can be guessed.
        let api: Api<JobClass> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(object("JobClass", name, &spec))?).await?;
        Ok(())
    }

    /// Waits until the class says that its server answers.
    pub async fn ready(&self) -> Result<()> {
        self.class_is("BackendReady", "True", "Reachable").await.map(drop)
    }

    /// Waits until the class has that condition; answers its message.
    pub async fn class_is(&self, kind: &str, status: &str, reason: &str) -> Result<String> {
        let api: Api<JobClass> = Api::all(self.client.clone());
        until(&format!("class {} with {kind}={status} {reason}", self.class), PATIENCE, || async {
            let conditions = api.get(&self.class).await?.status.unwrap_or_default().conditions;
            let is = |found: &Condition| found.type_ == kind && found.status == status && found.reason == reason;
            Ok(conditions.into_iter().find(is).map(|found| found.message))
        })
        .await
    }

    /// Changes the class's parameters.
    pub async fn patch_parameters(&self, spec: Value) -> Result<()> {
        let api: Api<OpenSandboxExecutionParameters> = Api::all(self.client.clone());
        api.patch(&self.class, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
        Ok(())
    }

    /// A Job that runs `argv`, with `extra` in its spec.
    pub async fn job(&self, name: &str, argv: &[&str], extra: Value) -> Result<Job> {
        let mut spec = json!({"jobClassName": self.class, "task": {"image": BUSYBOX, "command": argv},
            "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}});
        merge(&mut spec, extra);
        if spec["jobClassName"].is_null() {
            spec.as_object_mut().context("an object")?.remove("jobClassName");
        }
        Ok(self.jobs.create(&PostParams::default(), &serde_json::from_value(object("Job", name, &spec))?).await?)
    }

    /// A Job that tells the test that it begins, and then runs shell text.
    pub async fn script(&self, name: &str, text: &str, extra: Value) -> Result<Job> {
        self.job(name, &["sh", "-c", &format!("{}\n{text}", self.tell(name))], extra).await
    }

    /// Shell text that tells the test that `name` begins.
    pub fn tell(&self, name: &str) -> String {
        format!("wget -q -O /dev/null http://{}:{}/{name}", self.address, self.counter.port)
    }

    /// Shell text that waits until the test opens a gate.
    pub fn wait_at(&self, gate: &str) -> String {
        format!("until wget -q -O /dev/null http://{}:{}/gate/{gate}; do sleep 0.2; done", self.address, self.counter.port)
    }

    /// Waits until the test was told `name`.
    pub async fn told(&self, name: &str) -> Result<()> {
        until(&format!("to be told {name}"), PATIENCE, || async { Ok((self.begun(name) > 0).then_some(())) }).await
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
        self.told(name).await?;
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
}

/// Ends a history; fails if it broke an invariant, or if the Jobs of those worlds' classes have not shown what the matrix says of that test.
pub fn shows(history: History, worlds: &[&World], test: &str) -> Result<()> {
    let mut seen = BTreeSet::new();
    for change in history.changes()? {
        let Some(job) = change.new.as_ref().or(change.old.as_ref()) else { continue };
        let class = job["spec"]["jobClassName"].as_str().unwrap_or_default();
        if worlds.iter().any(|world| class == world.class || class.starts_with(&format!("{}-", world.class))) || class.is_empty() {
            seen.extend(job_matrix::shown(change.old.as_ref(), change.new.as_ref())?);
        }
    }
    let missing: Vec<_> = job_matrix::missing(test, &seen).collect();
    ensure!(missing.is_empty(), "{test} has not shown {missing:?}, but {seen:?}");
    Ok(())
}

/// Waits until a server that no other test has, and its engine, have nothing at all: no sandbox, and no container of any kind.
pub async fn nothing_is_left(server: &Server) -> Result<()> {
    let (client, left) = (server.client()?, Mutex::new(String::new()));
    let gone = until("nothing to be left of a server and its engine", PATIENCE, || async {
        let sandboxes = client.list(&Metadata::new()).await?;
        let containers = server.engine.run(&["ps", "--all", "--format", "{{.Names}} {{.Status}}"])?;
        let is_empty = sandboxes.is_empty() && containers.is_empty();
        *left.lock().unwrap_or_else(PoisonError::into_inner) = format!("{sandboxes:?} {containers}");
        Ok(is_empty.then_some(()))
    });
    gone.await.with_context(|| left.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// What a busy machine takes for a sandbox, a process and its end.
pub const LONG: Duration = Duration::from_secs(120);
