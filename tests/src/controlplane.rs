//! A real etcd and kube-apiserver (and kube-controller-manager if asked for) on loopback, ready in seconds, killable.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::audit::{self, Audit};
use crate::crds;
use crate::pki::Pki;
use crate::poll::{PATIENCE, until};
use crate::process::{Guarded, Scratch, free_port};

/// Token of `admin`, whom everything is allowed.
pub const ADMIN: &str = "token-of-admin";
/// Token of `berth`, whom everything is allowed; the binary under test uses it, so that the audit log tells it apart.
pub const BERTH: &str = "token-of-berth";
/// Token of `nobody`, whom nothing is allowed until a binding says so.
pub const NOBODY: &str = "token-of-nobody";
/// Token of the kubelet of node `n1`.
pub const NODE: &str = "token-of-node";
/// Token of kube-scheduler.
pub const SCHEDULER: &str = "token-of-scheduler";
const CONTROLLER_MANAGER: &str = "token-of-controller-manager";

/// How a control plane is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether kube-controller-manager runs: Jobs, owner references, namespace deletion, default ServiceAccounts. Only
    /// then is the ServiceAccount admission plugin on, which would refuse every Pod otherwise.
    pub controller_manager: bool,
    /// Whether a real [node](crate::node) will join: it is authorized as a node, and services have the addresses that lead to it.
    pub node: bool,
    /// Further flags of kube-apiserver.
    pub api_server_args: Vec<String>,
    /// Further flags of kube-controller-manager.
    pub controller_manager_args: Vec<String>,
}

/// A running control plane. Dropping it, or the end of the test process, kills it.
pub struct ControlPlane {
    options: Options,
    binaries: PathBuf,
    port: u16,
    etcd_port: u16,
    pki: Pki,
    processes: Mutex<Processes>,
    scratch: Scratch, // last: removed when nothing writes to it any more
}

#[derive(Default)]
struct Processes {
    api_server: Option<Guarded>,
    controller_manager: Option<Guarded>,
    etcd: Option<Guarded>,
}

impl ControlPlane {
    /// The control plane that all tests of one binary share, without controller manager, with Berth's CRDs. Each test
    /// takes a namespace of its own. Started by whoever asks first.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start_with_crds(Options::default())).await
    }

    /// A control plane of one's own, for tests that kill, with Berth's CRDs.
    pub async fn start_with_crds(options: Options) -> Result<Self> {
        let plane = Self::start(options).await?;
        crds::install(&plane.admin()?).await?;
        Ok(plane)
    }

    /// A control plane of one's own that has no CRDs yet.
    pub async fn start(options: Options) -> Result<Self> {
        // A port that was free may be taken a moment later by somebody else: that start fails and the next differs.
        let mut last = None;
        for _ in 0..3 {
            match Self::start_once(options.clone()).await {
                Ok(plane) => return Ok(plane),
                Err(error) if format!("{error:#}").contains("address already in use") => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
    }

    async fn start_once(options: Options) -> Result<Self> {
        let mut names = vec!["etcd", "kube-apiserver"];
        if options.controller_manager {
            names.push("kube-controller-manager");
        }
        let binaries = binaries(&names)?;
        let scratch = Scratch::new("controlplane")?;
        let pki = Pki::new(&scratch)?;
        scratch.write("audit.yaml", audit::POLICY)?;
        scratch.write(
            "tokens.csv",
            format!(
                "{ADMIN},admin,admin,system:masters\n{BERTH},berth,berth,system:masters\n{NOBODY},nobody,nobody\n\
                 {CONTROLLER_MANAGER},system:kube-controller-manager,controller-manager\n\
                 {NODE},system:node:n1,node,system:nodes\n{SCHEDULER},system:kube-scheduler,scheduler\n"
            ),
        )?;
        let plane = Self { options, binaries, port: free_port()?, etcd_port: free_port()?, pki, processes: Mutex::default(), scratch };
        plane.spawn_etcd()?;
        plane.start_api_server().await?;
        if plane.options.controller_manager {
            plane.start_controller_manager().await?;
        }
        Ok(plane)
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn spawn_etcd(&self) -> Result<()> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let mut command = Command::new(self.binaries.join("etcd"));
        command
            .args(["--name", "n", "--unsafe-no-fsync", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(self.path("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("n={peer}")]);
        self.processes().etcd = Some(Guarded::spawn("etcd", command, &self.path("etcd.log"))?);
        Ok(())
    }

    /// Starts the API server, on the same port and data as before if it ran before, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<()> {
        let mut command = Command::new(self.binaries.join("kube-apiserver"));
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port))
            .arg(format!("--secure-port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .args(["--endpoint-reconciler-type=none", "--service-account-issuer=https://kubernetes.default.svc"])
            .arg(flag("--cert-dir", &self.path("certs")))
            .arg(flag("--tls-cert-file", &self.pki.server))
            .arg(flag("--tls-private-key-file", &self.pki.server_key))
            .arg(flag("--service-account-key-file", &self.pki.accounts_public))
            .arg(flag("--service-account-signing-key-file", &self.pki.accounts_key))
            .arg(flag("--token-auth-file", &self.path("tokens.csv")))
            .arg(flag("--audit-policy-file", &self.path("audit.yaml")))
            .arg(flag("--audit-log-path", &self.path("audit.log")))
            .args(["--audit-log-mode=blocking", "--audit-log-maxsize=100000"]);
        if self.options.node {
            command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP"]);
            command.arg(format!("--service-cluster-ip-range={}", crate::node::SERVICES));
        } else {
            command.args(["--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24"]);
        }
        if !self.options.controller_manager {
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        command.args(&self.options.api_server_args);
        let process = Guarded::spawn("kube-apiserver", command, &self.path("kube-apiserver.log"))?;
        self.processes().api_server = Some(process);

        let client = self.admin()?;
        let limit = Duration::from_secs(120);
        let start = std::time::Instant::now();
        loop {
            let answer = client.request_text(http_get("/readyz")?).await;
            if answer.is_ok_and(|text| text == "ok") {
                return Ok(());
            }
            {
                let mut processes = self.processes();
                let Processes { api_server, etcd, .. } = &mut *processes;
                for process in [etcd, api_server].into_iter().flatten() {
                    process.must_run()?;
                }
            }
            if start.elapsed() > limit {
                bail!("kube-apiserver is not ready after {limit:?}; its log is in {}", self.scratch.path().display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts the controller manager, again if it ran before, and waits until it does its work. It ends by itself when it
    /// starts while the API server is away; afterwards it survives that.
    pub async fn start_controller_manager(&self) -> Result<()> {
        self.spawn_controller_manager()?;
        self.default_account("default").await
    }

    /// Waits for the `default` ServiceAccount of a namespace, which the controller manager makes and every Pod needs.
    async fn default_account(&self, namespace: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin()?, namespace);
        let what = format!("ServiceAccount {namespace}/default; see kube-controller-manager.log");
        until(&what, PATIENCE, || async { Ok(accounts.get_opt("default").await?.map(|_| ())) }).await
    }

    fn spawn_controller_manager(&self) -> Result<()> {
        let kubeconfig = self.kubeconfig(CONTROLLER_MANAGER)?;
        let mut command = Command::new(self.binaries.join("kube-controller-manager"));
        command
            .arg(flag("--kubeconfig", &kubeconfig))
            .arg(flag("--authentication-kubeconfig", &kubeconfig))
            .arg(flag("--authorization-kubeconfig", &kubeconfig))
            .arg(flag("--service-account-private-key-file", &self.pki.accounts_key))
            .arg(flag("--root-ca-file", &self.pki.ca))
            .arg(flag("--cert-dir", &self.path("certs")))
            .arg(format!("--secure-port={}", free_port()?))
            .args(["--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials"])
            .args(&self.options.controller_manager_args);
        let log = self.path("kube-controller-manager.log");
        self.processes().controller_manager = Some(Guarded::spawn("kube-controller-manager", command, &log)?);
        Ok(())
    }

    /// Kills the API server with SIGKILL; etcd and its data stay. Connections break; new ones are refused.
    pub fn kill_api_server(&self) {
        self.processes().api_server = None;
    }

    /// Stops (SIGSTOP) or continues the API server: connections stay open and nothing answers.
    pub fn freeze_api_server(&self, frozen: bool) -> Result<()> {
        match &self.processes().api_server {
            Some(process) => process.signal(if frozen { "STOP" } else { "CONT" }),
            None => bail!("the API server does not run"),
        }
    }

    /// `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Its loopback port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The authority that signed the API server's certificate, a PEM file.
    #[must_use]
    pub fn ca_file(&self) -> &Path {
        &self.pki.ca
    }

    /// The folder of this control plane, for further files of the test; it goes with the control plane.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// A binary of this Kubernetes.
    pub fn binary(&self, name: &str) -> Result<PathBuf> {
        Ok(binaries(&[name])?.join(name))
    }

    /// Flags of a Kubernetes component that serves with the API server's certificate.
    #[must_use]
    pub fn serving_certificate(&self) -> [String; 2] {
        [flag("--tls-cert-file", &self.pki.server), flag("--tls-private-key-file", &self.pki.server_key)]
    }

    /// What the API server was asked.
    #[must_use]
    pub fn audit(&self) -> Audit {
        Audit::at(self.path("audit.log"))
    }

    /// The end of the API server's log, for a failure message.
    #[must_use]
    pub fn api_server_log(&self) -> String {
        std::fs::read_to_string(self.path("kube-apiserver.log")).unwrap_or_default()
    }

    /// Client settings for whoever owns `token`; nothing is retried.
    pub fn config(&self, token: &str) -> Result<Config> {
        let mut config = Config::new(self.url().parse()?);
        config.root_cert = Some(vec![self.pki.ca_der.clone()]);
        config.auth_info.token = Some(token.to_owned().into());
        config.default_retry = false;
        config.read_timeout = None;
        Ok(config)
    }

    /// A client for whoever owns `token`. It belongs to the runtime it is made on: one per test.
    pub fn client(&self, token: &str) -> Result<Client> {
        Ok(Client::try_from(self.config(token)?)?)
    }

    /// A client whom everything is allowed.
    pub fn admin(&self) -> Result<Client> {
        self.client(ADMIN)
    }

    /// A kubeconfig file for whoever owns `token`.
    pub fn kubeconfig(&self, token: &str) -> Result<PathBuf> {
        let cluster = json!({"server": self.url(), "certificate-authority": self.pki.ca});
        write_kubeconfig(&self.scratch, cluster, token)
    }

    /// Creates a namespace with a name of its own, starting with `prefix`.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::all(self.admin()?).create(&PostParams::default(), &namespace).await?;
        if self.options.controller_manager {
            self.default_account(&name).await?;
        }
        Ok(name)
    }

    /// Creates a ServiceAccount and returns a token of it, as a Pod would hold it. What it may do is what the test binds.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin()?, namespace);
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        accounts.create(&PostParams::default(), &account).await?;
        self.token_of(namespace, name).await
    }

    /// A token of a ServiceAccount that is there.
    pub async fn token_of(&self, namespace: &str, name: &str) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin()?, namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        answer.status.and_then(|status| status.token).context("the API server gave no token")
    }
}

/// Writes a kubeconfig with one cluster, one user and one context; JSON is YAML.
pub(crate) fn write_kubeconfig(scratch: &Scratch, cluster: serde_json::Value, token: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let name = format!("kubeconfig-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    scratch.write(&name, config.to_string())
}

pub(crate) fn http_get(path: &str) -> Result<hyper::Request<Vec<u8>>> {
    Ok(hyper::Request::get(path).body(Vec::new())?)
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// The root of the checkout.
#[must_use]
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The folder that holds the control plane's binaries: `KUBEBUILDER_ASSETS`, or the cache that build.sh fills.
pub(crate) fn binaries(names: &[&str]) -> Result<PathBuf> {
    let output = Command::new(checkout().join("tests/controlplane/build.sh"))
        .args(names)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run tests/controlplane/build.sh (it needs bash)")?;
    if !output.status.success() {
        bail!("the control plane's binaries are missing and could not be built; `make controlplane` says why");
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(PathBuf::from(text.lines().last().context("build.sh named no folder")?))
}
