//! Shims: started, found again, asked to stop, waited for.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};

use super::job;
use super::store::Store;
use crate::shim::spec::{EXIT_FILE, Exit, Holder, LOCK_FILE, Outcome, ProcessId, SPEC_FILE, Spec};
use crate::shim::{reserve_exit, tree};

/// How often something is looked at that nothing announces.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// What is left of a session whose shim was killed gets that long to die of KILL.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// Starts a shim for a Run whose record says that it was started.
///
/// # Errors
/// Nothing was started.
pub fn start(store: &Store, uid: &str, spec: &Spec) -> io::Result<Child> {
    let state = store.state_dir(uid);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(state.join(SPEC_FILE))?;
    file.write_all(&serde_json::to_vec(spec)?)?;
    file.sync_all()?;
    reserve_exit(&state)?;
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(state.join(LOCK_FILE))?;
    lock.lock()?;
    // The shim gets the locked file, so that the lock is never free in between.
    Command::new("/proc/self/exe").arg("shim").arg(&state).current_dir("/").stdin(Stdio::from(lock)).kill_on_drop(false).spawn()
}

/// Waits until nothing of the Run runs any more; how it ended. `child` is the shim if this process started it.
pub async fn ended(store: Arc<Store>, uid: String, child: Option<Child>, run_as: Option<(u32, u32)>) -> Exit {
    let state = store.state_dir(&uid);
    if let Some(mut child) = child {
        // Reaps it. An error leaves the lock to tell.
        let _ = child.wait().await;
    }
    while is_locked(&state) {
        match holder(&state) {
            Some(holder) => wait_for(holder).await,
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
    let exit = loop {
        match std::fs::read(state.join(EXIT_FILE)) {
            Ok(text) => break serde_json::from_slice::<Exit>(&text).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => break None,
            // As without a free file descriptor: it is there, and says how the Run ended.
            Err(error) => tracing::warn!(path = %state.display(), %error, "can't read how a Run ended"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    match exit {
        Some(exit) => exit,
        None => {
            Exit { outcome: Outcome::Lost, stderr_tail: String::new(), survivors: kill_orphans(&state, &job::outputs_variable(&store, &uid), run_as).await }
        }
    }
}

/// Asks a shim to stop its Run. One that is just starting is asked once it can hear.
pub async fn stop(store: &Store, uid: &str) {
    let state = store.state_dir(uid);
    while is_locked(&state) {
        if let Some(holder) = holder(&state)
            && tree::signal(holder, Signal::TERM)
        {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether the agent that recorded a start was killed before there was a shim: then nothing of the Run ever ran.
pub fn never_began(store: &Store, uid: &str) -> bool {
    let state = store.state_dir(uid);
    !is_locked(&state) && holder(&state).is_none() && !state.join(EXIT_FILE).exists()
}

/// Whether a shim lives. Where that can't be told, as without a free file descriptor, it is taken to.
fn is_locked(state: &Path) -> bool {
    match File::open(state.join(LOCK_FILE)).map(|file| file.try_lock_shared()) {
        Ok(Ok(())) => false,
        Ok(Err(TryLockError::WouldBlock)) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Ok(Err(TryLockError::Error(error))) | Err(error) => {
            tracing::warn!(path = %state.display(), %error, "can't tell whether a Run's shim lives");
            true
        }
    }
}

fn holder(state: &Path) -> Option<Holder> {
    serde_json::from_slice(&std::fs::read(state.join(LOCK_FILE)).ok()?).ok()
}

/// Until that process has ended. It may end a moment before its lock is free.
async fn wait_for(process: ProcessId) {
    let handle = Pid::from_raw(process.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    #[expect(deprecated, reason = "an OwnedFd stays open as long as it lives; the successor is unsafe, which is forbidden here")]
    let handle = handle.map(AsyncFd::new);
    if tree::lives(process)
        && let Some(Ok(handle)) = handle
    {
        let _ = handle.readable().await;
    } else {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Who was started with that variable, asked by a process of that user.
async fn marked(mark: &str, run_as: Option<(u32, u32)>) -> Vec<ProcessId> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["marked", mark]).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
    if let Some((user, group)) = run_as {
        command.uid(user).gid(group);
    }
    match command.output().await.map(|output| serde_json::from_slice(&output.stdout)) {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => not_marked(&error),
        Err(error) => not_marked(&error),
    }
}

fn not_marked(error: &dyn std::fmt::Display) -> Vec<ProcessId> {
    tracing::warn!(%error, "can't look for what a killed shim has left outside its session");
    Vec::new()
}

/// Kills what a shim that was itself killed has left, known by its session or by the variable `mark`; who outlives that.
async fn kill_orphans(state: &Path, mark: &str, run_as: Option<(u32, u32)>) -> Vec<ProcessId> {
    let Some(leader) = holder(state) else { return Vec::new() };
    let until = tokio::time::Instant::now() + KILL_WAIT;
    loop {
        let left = tree::orphans(leader, &marked(mark, run_as).await);
        if left.is_empty() || tokio::time::Instant::now() > until {
            return left;
        }
        for process in left {
            tree::signal(process, Signal::KILL);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A folder below which cgroups that bound the number of processes can be made, or why there is none.
pub fn pids_cgroup() -> Result<PathBuf, String> {
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let path_of = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let (folder, unified) = match path_of(&|controllers| controllers.split(',').any(|name| name == "pids")) {
        Some(path) => (Path::new("/sys/fs/cgroup/pids").join(path), false),
        None => (Path::new("/sys/fs/cgroup").join(path_of(&str::is_empty).ok_or("no cgroup")?), true),
    };
    let try_it = || -> io::Result<PathBuf> {
        let below = folder.join("runtimed");
        match std::fs::create_dir(&below) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if unified {
            // A group with groups below it may have no process itself: the agent moves into one of its own.
            let agent = folder.join("runtimed-agent");
            match std::fs::create_dir(&agent) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            for process in std::fs::read_to_string(folder.join("cgroup.procs"))?.lines() {
                std::fs::write(agent.join("cgroup.procs"), process)?;
            }
            std::fs::write(folder.join("cgroup.subtree_control"), "+pids")?;
            std::fs::write(below.join("cgroup.subtree_control"), "+pids")?;
        }
        let probe = below.join("probe");
        std::fs::create_dir(&probe)?;
        let bounded = std::fs::write(probe.join("pids.max"), "1");
        std::fs::remove_dir(&probe)?;
        bounded.map(|()| below)
    };
    try_it().map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn what_no_shim_ever_held_never_began() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let state = store.state_dir("u");
        std::fs::create_dir(&state).unwrap();
        assert!(never_began(&store, "u"), "killed before the lock");
        let lock = File::create(state.join(LOCK_FILE)).unwrap();
        assert!(never_began(&store, "u"), "killed between the lock and the shim");
        lock.lock().unwrap();
        assert!(!never_began(&store, "u"), "a shim may be on its way");
        lock.unlock().unwrap();
        std::fs::write(state.join(LOCK_FILE), r#"{"pid": 1, "start_ticks": 1}"#).unwrap();
        assert!(!never_began(&store, "u"), "there was a shim");
        std::fs::write(state.join(LOCK_FILE), "").unwrap();
        std::fs::write(state.join(EXIT_FILE), "").unwrap();
        assert!(!never_began(&store, "u"), "it even ended");
    }
}
