//! Commands: started in a group of their own, their output in files, their state in memory only.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The body of `POST /command`.
#[derive(Debug, Deserialize)]
pub struct Request {
    /// Shell text.
    #[serde(default)]
    pub command: String,
    /// Folder.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Not waited for.
    #[serde(default)]
    pub background: bool,
    /// Milliseconds until it is killed; 0 is never.
    #[serde(default)]
    pub timeout: i64,
    /// Environment beside that of the process.
    #[serde(default)]
    pub envs: HashMap<String, String>,
}

/// How far a command is.
#[derive(Clone, Debug)]
pub enum State {
    /// It runs.
    Running,
    /// It ended: code, and what Go's `os/exec` calls the end.
    Ended(i32, Option<String>, Timestamp),
}

/// A command.
pub struct Command {
    /// 32 hexadecimal digits.
    pub id: String,
    /// Its text.
    pub content: String,
    /// Whether it has logs.
    pub is_background: bool,
    /// When it began.
    pub started_at: Timestamp,
    /// When it can be asked for.
    pub known_from: tokio::time::Instant,
    /// Files of its output: both in one if in the background.
    pub stdout: PathBuf,
    /// See `stdout`.
    pub stderr: PathBuf,
    /// Its state.
    pub state: watch::Receiver<State>,
    group: Pid,
}

/// `GET /command/status/{id}`. What is not known yet is absent.
#[derive(Debug, Serialize)]
pub struct Status {
    id: String,
    content: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
}

/// All of them.
#[derive(Default)]
pub struct Commands(Mutex<HashMap<String, Arc<Command>>>);

impl Commands {
    /// One that is known already.
    pub fn get(&self, id: &str) -> Option<Arc<Command>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).filter(|command| tokio::time::Instant::now() >= command.known_from).cloned()
    }

    /// Starts one; the error is a message for people.
    pub fn start(&self, request: Request, known_after: Duration) -> Result<Arc<Command>, String> {
        let id = id();
        let folder = std::env::var("TMPDIR").unwrap_or_else(|_| "/tmp".to_owned());
        let file = |name: &str| Path::new(&folder).join(format!("{id}.{name}"));
        let (stdout, stderr) = if request.background { (file("output"), file("output")) } else { (file("stdout"), file("stderr")) };
        let open = |path: &Path| std::fs::File::options().create(true).append(true).open(path).map_err(|error| error.to_string());
        // By its path: the request's own PATH is for what the shell runs.
        let shell = ["/bin/bash", "/bin/sh"].into_iter().find(|path| Path::new(path).exists()).unwrap_or("sh");
        let mut command = tokio::process::Command::new(shell);
        command.arg("-c").arg(&request.command).envs(&request.envs).process_group(0).stdin(Stdio::null());
        command.stdout(open(&stdout)?).stderr(open(&stderr)?);
        if let Some(cwd) = &request.cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw).ok_or("no pid")?;
        let (tell, state) = watch::channel(State::Running);
        let limit = u64::try_from(request.timeout).ok().filter(|millis| *millis > 0).map(Duration::from_millis);
        tokio::spawn(async move {
            let status = match limit {
                None => child.wait().await,
                Some(limit) => match tokio::time::timeout(limit, child.wait()).await {
                    Ok(status) => status,
                    Err(_) => {
                        let _ = kill_process_group(pid, Signal::KILL);
                        child.wait().await
                    }
                },
            };
            let (code, error) = status.map_or_else(|error| (255, Some(error.to_string())), ended);
            let _ = tell.send(State::Ended(code, error, Timestamp::now()));
        });
        let command = Arc::new(Command {
            id: id.clone(),
            content: request.command,
            is_background: request.background,
            started_at: Timestamp::now(),
            known_from: tokio::time::Instant::now() + known_after,
            stdout,
            stderr,
            state,
            group: pid,
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&command));
        Ok(command)
    }
}

impl Command {
    /// As it is now.
    pub fn status(&self) -> Status {
        let (exit_code, error, finished_at) = match self.state.borrow().clone() {
            State::Running => (None, None, None),
            State::Ended(code, error, at) => (Some(code), error, Some(at.to_string())),
        };
        let running = exit_code.is_none();
        Status { id: self.id.clone(), content: self.content.clone(), running, exit_code, error, started_at: self.started_at.to_string(), finished_at }
    }

    /// TERM to the group, KILL after 3 s; false if it has ended.
    pub async fn interrupt(&self) -> bool {
        if !matches!(*self.state.borrow(), State::Running) {
            return false;
        }
        let _ = kill_process_group(self.group, Signal::TERM);
        let mut state = self.state.clone();
        let ended = state.wait_for(|state| !matches!(state, State::Running));
        if tokio::time::timeout(Duration::from_secs(3), ended).await.is_err() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        true
    }
}

/// As Go tells it: a shell that a signal killed has -1.
fn ended(status: ExitStatus) -> (i32, Option<String>) {
    match (status.code(), status.signal()) {
        (Some(0), _) => (0, None),
        (Some(code), _) => (code, Some(format!("exit status {code}"))),
        (None, Some(9)) => (-1, Some("signal: killed".to_owned())),
        (None, Some(15)) => (-1, Some("signal: terminated".to_owned())),
        (None, signal) => (-1, Some(format!("signal: {}", signal.unwrap_or_default()))),
    }
}

fn id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = Timestamp::now().as_nanosecond() as u64;
    format!("{now:016x}{:08x}{:08x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
