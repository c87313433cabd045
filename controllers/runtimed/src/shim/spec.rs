//! What the agent tells a shim, and what the shim leaves behind: two files of one attempt's state directory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// File of a state directory: what to do ([`Spec`], JSON, mode 0600).
pub const SPEC_FILE: &str = "shim.json";
/// File of a state directory: held locked from before the shim is started until it has ended; its text is the shim's [`Holder`].
pub const LOCK_FILE: &str = "shim.lock";
/// File of a state directory: how it ended ([`Exit`], JSON). Its absence after the lock is free means that nobody knows.
pub const EXIT_FILE: &str = "exit.json";

/// One attempt of one Run, as a shim carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Who it is, for the lines of its output.
    pub identity: Identity,
    /// The Run's own directory; exists, and belongs to whom the Run runs as.
    pub run_dir: PathBuf,
    /// The workspace, if the Run names one: then the working directory.
    pub workspace_dir: Option<PathBuf>,
    /// Where the code comes from.
    pub source: Source,
    /// What to start once the source is there; None prepares only.
    pub command: Option<Command>,
    /// Environment beside the shim's own.
    pub env: Vec<(String, String)>,
    /// Variables of the shim's own environment that are not passed on.
    pub env_removed: Vec<String>,
    /// Milliseconds until the Run's time is over; None is no limit.
    pub timeout_ms: Option<u64>,
    /// Limits that do not depend on the Run.
    pub limits: Limits,
    /// User and group the Run runs as; None is the agent's own.
    pub run_as: Option<(u32, u32)>,
}

/// Who an attempt is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `metadata.uid` of the Run.
    pub run_uid: String,
    /// `metadata.name` of the Run.
    pub run_name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its Runtime.
    pub runtime: String,
    /// The Pod.
    pub pod: String,
    /// The attempt, 1-based.
    pub attempt: i32,
}

/// Where the code comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// There is none.
    None,
    /// A text, written to this file below the run directory.
    Inline {
        /// Relative path without `..`.
        path: String,
        /// The text.
        text: String,
    },
    /// A Git repository, cloned to `repo` below the run directory.
    Git {
        /// https or ssh.
        url: String,
        /// Commit or ref; None is the default branch, of which only the newest commit is fetched.
        revision: Option<String>,
    },
}

/// What to start (reference kruntimes §7.4, the Bash server).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// File below the directory of the code; None is `script`, if there is one.
    pub entrypoint: Option<String>,
    /// Arguments, or without a file the command itself.
    pub args: Vec<String>,
}

/// Limits that do not depend on the Run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Between TERM and KILL when a Run is stopped.
    pub stop_grace_ms: u64,
    /// How long processes may take to vanish after KILL before they count as unkillable.
    pub kill_wait_ms: u64,
    /// Bytes of output that are logged, both streams together; the rest is read and dropped.
    pub log_bytes_max: u64,
    /// Processes and threads of a Run at once.
    pub pids_max: Option<u64>,
    /// Cgroup below which a Run gets its own; None bounds `pids_max` by RLIMIT_NPROC.
    pub cgroup: Option<PathBuf>,
    /// `git clone` may take that long.
    pub git_clone_ms: u64,
    /// `git checkout` may take that long.
    pub git_checkout_ms: u64,
    /// A repository may take that many bytes on disk.
    pub git_bytes_max: u64,
}

impl Default for Limits {
    /// 10 s grace, 10 s for KILL, 16 MiB of log; Git as in reference §7.3: 30 s, 15 s, 100 MiB.
    fn default() -> Self {
        Self {
            stop_grace_ms: 10_000,
            kill_wait_ms: 10_000,
            log_bytes_max: 16 << 20,
            pids_max: None,
            cgroup: None,
            git_clone_ms: 30_000,
            git_checkout_ms: 15_000,
            git_bytes_max: 100 << 20,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// What happened.
    pub outcome: Outcome,
    /// The end of its stderr, at most [`STDERR_TAIL_BYTES`] bytes.
    pub stderr_tail: String,
    /// Processes that KILL did not end.
    pub survivors: Vec<ProcessId>,
}

/// Bytes of stderr that are kept for `status.message`.
pub const STDERR_TAIL_BYTES: usize = 700;

/// What happened to an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Its process ended by itself with this code; for an attempt without a command: it is prepared, 0.
    Exited(i32),
    /// A Runtime Server says why it failed.
    Failed(String),
    /// Its process ended by this signal, which the shim did not send.
    Signalled(i32),
    /// The source could not be prepared.
    NotPrepared(String),
    /// The process could not be started.
    NotStarted(String),
    /// Its time was over.
    TimedOut,
    /// The agent asked for its end.
    Stopped,
    /// It was started and is gone, and nothing says how it ended. Only the agent says this.
    Lost,
}

/// A process, told from a later one of the same id by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: i32,
    /// Field 22 of /proc/PID/stat: clock ticks since boot.
    pub start_ticks: u64,
}

/// Who holds the lock: the shim, which is also the leader of the Run's session.
pub type Holder = ProcessId;
