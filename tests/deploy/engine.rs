//! A Docker engine of the suite's own: on a private socket, without network, and gone with everything in it when it is dropped.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::{Guarded, Scratch};

/// A running engine.
pub struct Engine {
    _process: Guarded,
    scratch: Scratch,
}

impl Engine {
    /// Starts dockerd, which must be root, and waits until it answers.
    ///
    /// It gets a process and a mount namespace of its own: whatever kills it, the kernel then ends its containers and takes its
    /// mounts away.
    pub async fn start() -> Result<Self> {
        let scratch = Scratch::new("engine")?;
        let at = |name: &str| scratch.path().join(name).display().to_string();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "dockerd"])
            .args(["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false", "--bridge=none"])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--host", &format!("unix://{}", at("docker.sock"))]);
        let process = Guarded::spawn("dockerd", command, &scratch.path().join("dockerd.log")).context("apt-get install docker.io util-linux")?;
        let mut engine = Self { _process: process, scratch };
        until("dockerd to answer; it needs root and the package docker.io", PATIENCE, || async {
            let output = engine.docker(&["version"]).output().context("no docker")?;
            Ok(output.status.success().then_some(()))
        })
        .await
        .with_context(|| format!("the end of its log:\n{}", berth_tests::process::tail(&engine._process.log(), 20)))?;
        engine._process.must_run()?;
        Ok(engine)
    }

    /// The engine's address, for DOCKER_HOST.
    pub fn host(&self) -> String {
        format!("unix://{}", self.scratch.path().join("docker.sock").display())
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
