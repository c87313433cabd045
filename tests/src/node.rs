//! One real node: kubelet, containerd and kube-scheduler beside a control plane, in a PID and mount namespace of their own, with a bridge
//! of their own; no registry. Needs root and Debian's containerd, runc, containernetworking-plugins.
//!
//! Pods reach the API server as they do everywhere, at the service's ClusterIP: that address is the bridge's, and a forwarder listens there.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use kube::api::PostParams;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::controlplane::{ControlPlane, NODE, Options, SCHEDULER, binaries, checkout};
use crate::kubelet;
use crate::poll::until;
use crate::process::{Guarded, Scratch, free_port, tail};

/// The bridge's network, and the services' beside it.
const PODS: &str = "10.88.7";
/// Service addresses; the API server's is the first.
pub const SERVICES: &str = "10.88.8.0/24";
/// What every Pod of the node begins with.
pub const PAUSE: &str = "localhost/pause:1";
/// The ClusterIP of service `kubernetes`.
pub const API_SERVER: Ipv4Addr = Ipv4Addr::new(10, 88, 8, 1);
/// Cgroup hierarchies of version 1, where the machine has them.
const HIERARCHIES: [&str; 9] = ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"];
/// What the kubelet would set for the whole machine.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// How long the node may take to be Ready.
const PATIENCE: Duration = Duration::from_secs(180);

/// How the control plane of a node is started.
#[must_use]
pub fn options() -> Options {
    Options { controller_manager: true, node: true, ..Options::default() }
}

/// A service of the node that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The kubelet.
    Kubelet,
    /// The container runtime.
    Containerd,
}

impl Service {
    /// Its program and its configuration.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Kubelet => ("kubelet", "kubelet.yaml"),
            Self::Containerd => ("containerd", "containerd.toml"),
        }
    }
}

/// Keeps Node `name` Ready, on which nothing is placed, for as long as what is returned lives. With all nodes lost a controller manager may stop
/// evicting; with this one there it goes on.
pub async fn another(plane: &ControlPlane, name: &'static str) -> Result<DropGuard> {
    let nodes: Api<NodeObject> = Api::all(plane.admin()?);
    let node = serde_json::json!({"metadata": {"name": name}, "spec": {"unschedulable": true}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let end = CancellationToken::new();
    tokio::spawn(end.clone().run_until_cancelled_owned(async move {
        loop {
            let _ = kubelet::beat(&nodes, name).await; // the next one is soon enough
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }));
    Ok(end.drop_guard())
}

/// A running node. Dropping it takes everything away that it made.
pub struct Node {
    init: Option<Guarded>,
    scheduler: Option<Guarded>,
    bridge: String,
    cgroup: String,
    run: PathBuf,
    scratch: Scratch,
    end: CancellationToken,
    /// The addresses are fixed: one node at a time on a machine.
    _only: File,
}

impl Node {
    /// Starts it with these images (docker-archive) and waits until it is Ready. One of them must be [`PAUSE`]. What it pulls from
    /// docker.io comes from the registry on that loopback port.
    pub async fn start(plane: &ControlPlane, images: &[PathBuf], docker_io: Option<u16>) -> Result<Self> {
        let id = std::process::id() % 100_000;
        let run = PathBuf::from(format!("/run/berth-{id}"));
        let only = File::create(std::env::temp_dir().join("berth-node.lock"))?;
        only.lock()?;
        let node = Self {
            _only: only,
            init: None,
            scheduler: None,
            bridge: format!("berth{id}"),
            cgroup: format!("berth-{id}"),
            run,
            scratch: Scratch::new("node")?,
            end: CancellationToken::new(),
        };
        node.begin(plane, images, docker_io).await
    }

    async fn begin(mut self, plane: &ControlPlane, images: &[PathBuf], docker_io: Option<u16>) -> Result<Self> {
        std::fs::create_dir_all(&self.run).context("a node needs root")?;
        self.network()?;
        self.cgroups()?;
        self.files(plane, images, docker_io)?;
        let listener = TcpListener::bind((API_SERVER, 443)).await.context("the service address")?;
        tokio::spawn(self.end.clone().run_until_cancelled_owned(forward(listener, plane.port())));

        let kubelet = binaries(&["kubelet"])?.join("kubelet");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "bash"]).arg(checkout().join("tests/node/init.sh"));
        command.arg(self.dir()).arg(kubelet).arg(&self.run);
        self.init = Some(Guarded::spawn("node", command, &self.dir().join("init.log")).context("apt-get install util-linux")?);

        let kubeconfig = plane.kubeconfig(SCHEDULER)?;
        let mut command = Command::new(binaries(&["kube-scheduler"])?.join("kube-scheduler"));
        for flag in ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"] {
            command.arg(flag).arg(&kubeconfig);
        }
        command.arg(format!("--secure-port={}", free_port()?)).args(["--bind-address=127.0.0.1", "--leader-elect=false"]);
        command.arg("--cert-dir").arg(self.dir().join("scheduler"));
        self.scheduler = Some(Guarded::spawn("kube-scheduler", command, &self.dir().join("scheduler.log"))?);

        let nodes: Api<NodeObject> = Api::all(plane.admin()?);
        let ready = until("the node to be Ready", PATIENCE, || async {
            let conditions = nodes.get("n1").await?.status.unwrap_or_default().conditions.unwrap_or_default();
            Ok(conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True").then_some(()))
        })
        .await;
        ready.with_context(|| self.logs())?;
        Ok(self)
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// The ends of its logs, for a failure message.
    #[must_use]
    pub fn logs(&self) -> String {
        let end = |name: &str| format!("{name}:\n{}\n", tail(&std::fs::read_to_string(self.dir().join(name)).unwrap_or_default(), 15));
        ["init.log", "containerd.log", "kubelet.log", "scheduler.log"].map(end).concat()
    }

    /// The directory of a Pod's volume on the node.
    #[must_use]
    pub fn empty_dir(&self, pod_uid: &str, volume: &str) -> PathBuf {
        self.dir().join("kubelet/pods").join(pod_uid).join("volumes/kubernetes.io~empty-dir").join(volume)
    }

    /// Kills it with SIGKILL; it stays down until [`Node::let_back`]. Containers go on.
    pub fn kill(&self, service: Service) -> Result<()> {
        let (program, configuration) = service.words();
        std::fs::write(self.hold(service), "")?;
        let configuration = self.dir().join(configuration).display().to_string();
        for process in std::fs::read_dir("/proc")?.flatten() {
            let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let arguments: Vec<_> = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            if arguments[0].ends_with(program) && arguments.iter().any(|argument| *argument == configuration) {
                let _ = Command::new("kill").arg("-9").arg(process.file_name()).status();
            }
        }
        Ok(())
    }

    /// Lets it come back.
    pub fn let_back(&self, service: Service) -> Result<()> {
        Ok(std::fs::remove_file(self.hold(service))?)
    }

    fn hold(&self, service: Service) -> PathBuf {
        self.dir().join(format!("hold-{}", service.words().0))
    }

    fn network(&self) -> Result<()> {
        let bridge = self.bridge.as_str();
        sh(&["ip", "link", "add", bridge, "type", "bridge"])?;
        sh(&["ip", "addr", "add", &format!("{PODS}.1/24"), "dev", bridge])?;
        sh(&["ip", "addr", "add", &format!("{API_SERVER}/32"), "dev", bridge])?;
        sh(&["ip", "link", "set", bridge, "up"])
    }

    fn cgroups(&self) -> Result<()> {
        for hierarchy in HIERARCHIES.map(|name| Path::new("/sys/fs/cgroup").join(name)).iter().filter(|path| path.is_dir()) {
            let own = hierarchy.join(&self.cgroup);
            std::fs::create_dir_all(&own)?;
            if hierarchy.ends_with("cpuset") {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    std::fs::write(own.join(file), std::fs::read(hierarchy.join(file))?)?;
                }
            }
        }
        Ok(())
    }

    fn files(&self, plane: &ControlPlane, images: &[PathBuf], docker_io: Option<u16>) -> Result<()> {
        let (dir, run) = (self.dir().display().to_string(), self.run.display().to_string());
        let write = |name: &str, text: String| self.scratch.write(name, text).map(|_| ());
        for folder in ["fake", "images", "cni", "registries/docker.io"] {
            std::fs::create_dir_all(self.dir().join(folder))?;
        }
        let mut list = String::new();
        for (number, (sysctl, value)) in SYSCTLS.iter().enumerate() {
            write(&format!("fake/{number}"), format!("{value}\n"))?;
            list += &format!("{dir}/fake/{number} /proc/sys/{sysctl}\n");
        }
        write("fake/list", list)?;
        for (number, image) in images.iter().enumerate() {
            std::fs::copy(image, self.dir().join(format!("images/{number}.tar")))?;
        }
        write("address", format!("{PODS}.1"))?;
        if let Some(port) = docker_io {
            let host = format!("http://127.0.0.1:{port}");
            write("registries/docker.io/hosts.toml", format!("server = \"{host}\"\n[host.\"{host}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"))?;
        }
        std::fs::copy(plane.kubeconfig(NODE)?, self.dir().join("node.kubeconfig"))?;
        write(
            "containerd.toml",
            format!(
                "version = 2\nroot = \"{dir}/containerd\"\nstate = \"{run}/state\"\n[grpc]\n  address = \"{run}/c.sock\"\n\
                 [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"{PAUSE}\"\n  restrict_oom_score_adj = true\n\
                 [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/usr/lib/cni\"\n  conf_dir = \"{dir}/cni\"\n\
                 [plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"{dir}/registries\"\n\
                 [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{run}/opt\"\n"
            ),
        )?;
        let range = serde_json::json!([[{"subnet": format!("{PODS}.0/24"), "rangeStart": format!("{PODS}.10"), "rangeEnd": format!("{PODS}.250"), "gateway": format!("{PODS}.1")}]]);
        let ipam = serde_json::json!({"type": "host-local", "dataDir": format!("{run}/ipam"), "ranges": range, "routes": [{"dst": "0.0.0.0/0"}]});
        let plugin = serde_json::json!({"type": "bridge", "bridge": self.bridge, "isGateway": false, "ipMasq": false, "ipam": ipam});
        write("cni/10-berth.conflist", serde_json::json!({"cniVersion": "0.4.0", "name": "berth", "plugins": [plugin]}).to_string())?;
        let kubelet = serde_json::json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{}", self.cgroup),
            "enforceNodeAllocatable": ["none"], "containerRuntimeEndpoint": format!("unix://{run}/c.sock"), "address": format!("{PODS}.1"), "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
            "makeIPTablesUtilChains": false, "resolvConf": "", "imageGCHighThresholdPercent": 100, "podLogsDir": format!("{dir}/podlogs"), "maxPods": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
            // Soon told of what changes, soon missed when it is gone; one slow pull, or many at once, hold up nobody else.
            "nodeStatusUpdateFrequency": "1s", "nodeLeaseDurationSeconds": 4, "syncFrequency": "10s", "serializeImagePulls": false, "registryPullQPS": 0,
        });
        write("kubelet.yaml", kubelet.to_string())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end.cancel();
        self.scheduler = None;
        // The namespace's first process goes, and with it every other, and every mount.
        self.init = None;
        for _ in 0..20 {
            let folders = HIERARCHIES.iter().chain(&["unified"]).map(|name| Path::new("/sys/fs/cgroup").join(name).join(&self.cgroup));
            let left: Vec<_> = folders.filter(|folder| folder.is_dir()).collect();
            for folder in &left {
                let _ = Command::new("find").arg(folder).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]).stderr(Stdio::null()).status();
            }
            if left.iter().all(|folder| !folder.is_dir()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let _ = sh(&["ip", "link", "del", &self.bridge]);
        let _ = std::fs::remove_dir_all(&self.run);
    }
}

async fn forward(listener: TcpListener, port: u16) {
    while let Ok((mut from, _)) = listener.accept().await {
        tokio::spawn(async move {
            if let Ok(mut to) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await; // either side may break it off
            }
        });
    }
}

fn sh(words: &[&str]) -> Result<()> {
    let output = Command::new(words[0]).args(&words[1..]).output().with_context(|| format!("cannot run {} (apt-get install iproute2)", words[0]))?;
    ensure!(output.status.success(), "{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
