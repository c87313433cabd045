//! A Docker engine of the suite's own: on a private socket, and gone with everything in it when it is dropped. Its containers have no network,
//! or a bridge that leads to this machine alone.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::poll::{PATIENCE, until};
use crate::process::{Guarded, Scratch, watchdog};

/// Process 1 of the engine's namespace: it runs dockerd, and once more each time the file is there. So what dockerd leaves behind lives on, as on a machine.
const FIRST: &str = r#"again=$1; shift; while :; do "$@"; until rm "$again" 2>/dev/null; do sleep 0.05; done; done"#;

/// A running engine.
pub struct Engine {
    process: Guarded,
    bridge: Option<Bridge>,
    scratch: Scratch,
}

impl Engine {
    /// Starts dockerd, which must be root, and waits until it answers.
    ///
    /// It gets a process and a mount namespace of its own: when this value is dropped, or this process dies, the kernel ends all of it and takes its
    /// mounts away.
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// The same, whose containers have a network of their own with this machine. Ports that they publish are on 127.0.0.1, by docker's own proxy:
    /// nothing of the machine's packet filter is touched.
    pub async fn start_with_network() -> Result<Self> {
        Self::start_with(Some(Bridge::new()?)).await
    }

    async fn start_with(bridge: Option<Bridge>) -> Result<Self> {
        let scratch = Scratch::new("engine")?;
        let at = |name: &str| scratch.path().join(name).display().to_string();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", FIRST, "sh", &at("again"), "dockerd"])
            .args(["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false", "--ip=127.0.0.1"])
            .arg(format!("--bridge={}", bridge.as_ref().map_or("none", |bridge| bridge.name.as_str())))
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--host", &format!("unix://{}", at("docker.sock"))]);
        let process = Guarded::spawn("dockerd", command, &scratch.path().join("dockerd.log")).context("apt-get install docker.io util-linux")?;
        let mut engine = Self { process, bridge, scratch };
        engine.answers().await?;
        engine.process.must_run()?;
        Ok(engine)
    }

    async fn answers(&self) -> Result<()> {
        until("dockerd to answer; it needs root and the package docker.io", PATIENCE, || async {
            let output = self.docker(&["version"]).output().context("no docker")?;
            Ok(output.status.success().then_some(()))
        })
        .await
        .with_context(|| format!("the end of its log:\n{}", crate::process::tail(&self.process.log(), 20)))
    }

    /// Ends dockerd by that signal, and waits until it is gone: after a TERM it has stopped its containers, after a KILL they go on.
    pub async fn stop(&self, signal: &str) -> Result<()> {
        self.signal(signal)?;
        until("dockerd to be gone", PATIENCE, || async { Ok(self.dockerd()?.is_empty().then_some(())) }).await
    }

    /// Begins a stopped dockerd again, with what the one before left, and waits until it answers.
    pub async fn restart(&self) -> Result<()> {
        std::fs::write(self.scratch.path().join("again"), "")?;
        self.answers().await
    }

    /// The engine's address, for DOCKER_HOST.
    pub fn host(&self) -> String {
        format!("unix://{}", self.scratch.path().join("docker.sock").display())
    }

    /// This machine's address in its containers' network.
    #[must_use]
    pub fn gateway(&self) -> Option<String> {
        self.bridge.as_ref().map(|bridge| bridge.address.clone())
    }

    /// Sends dockerd a signal. Its containers go on.
    pub fn signal(&self, signal: &str) -> Result<()> {
        for id in self.dockerd()? {
            ensure!(Command::new("kill").args(["-s", signal, &id]).status()?.success(), "kill -s {signal} {id}");
        }
        Ok(())
    }

    /// The ids of this engine's dockerd: none if it does not run.
    fn dockerd(&self) -> Result<Vec<String>> {
        let found = Command::new("pgrep").args(["--full", &format!("dockerd.*{}", self.scratch.path().display())]).output()?;
        let is_dockerd = |id: &&str| std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "dockerd");
        Ok(String::from_utf8(found.stdout)?.split_whitespace().filter(is_dockerd).map(str::to_owned).collect())
    }

    /// A folder of files that a container may read, whoever it runs as.
    pub fn folder(&self, name: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
        let folder = self.scratch.path().join(name);
        std::fs::create_dir(&folder)?;
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        for (file, text) in files {
            let file = folder.join(file);
            std::fs::write(&file, text)?;
            std::fs::set_permissions(&file, Permissions::from_mode(0o644))?;
        }
        Ok(folder)
    }

    /// The docker command towards this engine. The classic builder: BuildKit would pull its own image.
    pub fn docker(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.env("DOCKER_HOST", self.host()).env("DOCKER_BUILDKIT", "0").args(args).stdin(Stdio::null());
        command
    }

    /// Runs it; its stdout.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.docker(args).output()?;
        ensure!(status.success(), "docker {}: {status}: {}", args.join(" "), String::from_utf8_lossy(&stderr));
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    }
}

/// A bridge of the engine's own, so that it shares none with an engine of the machine; removed also when the test process dies.
struct Bridge {
    name: String,
    address: String,
    cleaner: Child,
}

impl Bridge {
    fn new() -> Result<Self> {
        let ip = |args: &[&str]| Command::new("ip").args(args).output().context("no ip: apt-get install iproute2");
        for number in 0..200 {
            let name = format!("berth{number}");
            // An address of its own: else it has that of a container, which it loses with that one, and the others then talk into the void for seconds.
            let address = format!("02:42:0a:d5:{number:02x}:01");
            if !ip(&["link", "add", &name, "address", &address, "type", "bridge"])?.status.success() {
                continue; // another suite's
            }
            let cleaner = watchdog("ip link delete \"$1\"", &name)?;
            let bridge = Self { name, address: format!("10.213.{number}.1"), cleaner };
            for args in [["addr", "add", &format!("{}/24", bridge.address), "dev", &bridge.name].as_slice(), &["link", "set", &bridge.name, "up"]] {
                let output = ip(args)?;
                ensure!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
            }
            return Ok(bridge);
        }
        bail!("no bridge can be made; it needs root");
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.cleaner.kill();
        let _ = self.cleaner.wait();
        let _ = Command::new("ip").args(["link", "delete", &self.name]).stderr(Stdio::null()).status();
    }
}
