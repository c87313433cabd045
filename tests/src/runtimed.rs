//! The real `runtimed` binary as a child process: one per Pod object, each with a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use berth_runtimed::shim::spec::{Holder, LOCK_FILE};
use berth_runtimed::shim::tree;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rustix::process::Signal;
use serde_json::Value;

use crate::poll::PATIENCE;
use crate::process::{self, Guarded, Scratch, free_port};

/// The binary under test: `RUNTIMED_BIN` if set, else the one beside the running test binary's folder.
pub fn binary() -> Result<PathBuf> {
    process::built("runtimed", "berth-runtimed", "RUNTIMED_BIN")
}

/// How an agent is started: the same Pod and directory each time, so that a restart finds what it left.
#[derive(Clone, Debug)]
pub struct Setup {
    kubeconfig: PathBuf,
    namespace: String,
    name: String,
    uid: String,
    /// Its directory.
    pub root: PathBuf,
    log: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Size of the file system that its directory is, in a mount namespace of its own; as mount(8) has it.
    disk: Option<&'static str>,
}

impl Setup {
    /// The agent of `pod`, with a fresh directory in `scratch`.
    pub fn new(kubeconfig: &Path, pod: &Pod, scratch: &Scratch) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = scratch.path().join(format!("pod-{}-{}", pod.name_any(), NEXT.fetch_add(1, Ordering::Relaxed)));
        Self {
            kubeconfig: kubeconfig.to_owned(),
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            root: folder.clone(),
            log: folder.with_extension("log"),
            args: ["--stop-grace=2s", "--drain-within=2s", "-v"].map(str::to_owned).to_vec(),
            env: Vec::new(),
            disk: None,
        }
    }

    /// Uses this directory.
    #[must_use]
    pub fn root(mut self, root: &Path) -> Self {
        self.root = root.to_owned();
        self
    }

    /// One further argument, `--flag=value`; it takes the place of an earlier one of that flag.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        let arg = arg.into();
        let flag = |arg: &str| arg.split('=').next().unwrap_or_default().to_owned();
        self.args.retain(|earlier| flag(earlier) != flag(&arg));
        self.args.push(arg);
        self
    }

    /// One environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Its directory becomes a file system of that size, as `2m`, which lasts as long as the agent. Needs root.
    #[must_use]
    pub fn disk(mut self, size: &'static str) -> Self {
        self.disk = Some(size);
        self
    }

    /// Starts it.
    pub fn start(&self) -> Result<Runtimed> {
        let port = free_port()?;
        let mut command = match self.disk {
            None => Command::new(binary()?),
            Some(size) => {
                std::fs::create_dir_all(&self.root)?;
                let mut command = Command::new("unshare");
                let script = format!("mount -t tmpfs -o size={size},mode=755 runtimed {} && exec \"$0\" \"$@\"", self.root.display());
                command.args(["--mount", "--propagation=private", "sh", "-c", &script]).arg(binary()?);
                command
            }
        };
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--root").arg(&self.root).arg(format!("--health-addr=127.0.0.1:{port}"));
        command.args(&self.args).env("POD_NAME", &self.name).env("POD_NAMESPACE", &self.namespace).env("POD_UID", &self.uid);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(Runtimed { process: Guarded::spawn("runtimed", command, &self.log)?, setup: self.clone(), is_dead: false })
    }

    /// The shims of this directory that live.
    pub fn shims(&self) -> Vec<Holder> {
        let Ok(entries) = std::fs::read_dir(self.root.join(".runtimed/runs")) else { return Vec::new() };
        let holder = |folder: PathBuf| serde_json::from_slice::<Holder>(&std::fs::read(folder.join(LOCK_FILE)).ok()?).ok();
        entries.flatten().filter_map(|entry| holder(entry.path())).filter(|holder| tree::lives(*holder)).collect()
    }

    /// Kills every shim of this directory and all below it.
    pub fn kill_shims(&self) {
        for holder in self.shims() {
            for process in tree::descendants(holder.pid).into_iter().chain([holder]) {
                tree::signal(process, Signal::KILL);
            }
        }
    }
}

/// A running agent. Dropping it kills it with SIGKILL, and the Runs that it has left.
pub struct Runtimed {
    process: Guarded,
    setup: Setup,
    /// Killed on purpose: what it has left goes on.
    is_dead: bool,
}

impl Runtimed {
    /// Everything it has logged, and the output of its Runs.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The lines of the output of one Run, `stream: message`, in order.
    #[must_use]
    pub fn output_of(&self, run: &str) -> Vec<String> {
        let lines = self.log();
        let read = |line: &str| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["run_name"] == run).then(|| format!("{}: {}", value["stream"].as_str().unwrap_or_default(), value["message"].as_str().unwrap_or_default()))
        };
        lines.lines().filter_map(read).collect()
    }

    /// Its directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.setup.root
    }

    /// Its directory as it sees it, when that is a mount of its own.
    #[must_use]
    pub fn root_inside(&self) -> PathBuf {
        let inside = self.setup.root.strip_prefix("/").unwrap_or(&self.setup.root);
        PathBuf::from(format!("/proc/{}/root", self.process.id())).join(inside)
    }

    /// The shims it has started that live.
    #[must_use]
    pub fn shims(&self) -> Vec<Holder> {
        self.setup.shims()
    }

    /// The process itself.
    pub fn process(&mut self) -> &mut Guarded {
        &mut self.process
    }

    /// SIGKILL to the agent alone: its Runs go on.
    pub fn kill(mut self) -> Result<Setup> {
        self.process.kill()?;
        self.is_dead = true;
        Ok(self.setup.clone())
    }

    /// SIGTERM, then waits for the end.
    pub async fn terminate(self) -> Result<(ExitStatus, String)> {
        self.process.terminate()?;
        let wait = move || {
            let mut agent = self;
            Ok((agent.process.wait(PATIENCE)?, agent.process.log()))
        };
        tokio::task::spawn_blocking(wait).await?
    }
}

impl Drop for Runtimed {
    fn drop(&mut self) {
        if !self.is_dead {
            let _ = self.process.kill();
            self.setup.kill_shims();
        }
    }
}
