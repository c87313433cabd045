//! `runtimed shim`: carries out one attempt of one Run, and outlives the agent.
//!
//! ```text
//!  agent ── locks shim.lock, writes shim.json, reserves exit.json ──► shim (session leader, subreaper, one thread)
//!    │         the locked file is the shim's stdin                     ├─ prepares the source
//!    ├─ SIGTERM: stop                                                  ├─ starts the process, moves its output to stdout
//!    ◄── lock free: read exit.json; no exit.json: execution lost ──────┴─ ends with all its descendants, writes exit.json
//! ```
//! The lock is held from before the shim exists until after it is gone, so "lock free" never comes too early. An agent that was
//! killed finds the same three files, and goes on. A lock that is free and never had a holder was never a shim's: nothing was started.

pub mod confine;
pub mod lines;
mod program;
mod source;
pub mod spec;
pub mod supervise;
pub mod tree;

use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::setsid;

pub use self::source::REPOSITORY;

use self::lines::Lines;
use self::spec::{EXIT_FILE, Exit, Holder, LOCK_FILE, Outcome, SPEC_FILE, Spec};
use self::supervise::{Ended, Step, Supervisor};

/// Size of the reserved file: the longest [`Exit`] fits, and on a full disk its place is there already.
const EXIT_BYTES: usize = 16 << 10;
/// The reserved file.
const EXIT_RESERVED: &str = "exit.json.reserved";
/// Longest message of an outcome, bytes.
const MESSAGE_BYTES_MAX: usize = 900;
/// Survivors that are named.
const SURVIVORS_MAX: usize = 64;

/// Reserves the place of the exit file in a state directory.
///
/// # Errors
/// The disk is full or broken.
pub fn reserve_exit(state: &Path) -> io::Result<()> {
    let mut file = std::fs::File::create(state.join(EXIT_RESERVED))?;
    file.write_all(&[b' '; EXIT_BYTES])?;
    file.sync_all()
}

/// Carries out the attempt of a state directory.
///
/// # Errors
/// It can't even say how it ended.
pub fn run(state: &Path) -> anyhow::Result<()> {
    let spec: Spec = serde_json::from_slice(&std::fs::read(state.join(SPEC_FILE))?)?;
    // Fails only for a process group leader, which the agent did not make us.
    setsid()?;
    let pid = i32::try_from(std::process::id())?;
    let holder = Holder { pid, start_ticks: tree::start_ticks(pid).unwrap_or_default() };
    // Before anybody knows whom to ask to stop: from then on it is heard.
    let lines = Lines::new(spec.identity.clone(), spec.limits.log_bytes_max);
    let mut supervisor = Supervisor::new(lines, spec.timeout_ms, &spec.limits)?;
    // From here on the attempt has begun, also in the eyes of an agent after a crash of the node.
    let mut lock = std::fs::OpenOptions::new().write(true).truncate(true).open(state.join(LOCK_FILE))?;
    lock.write_all(&serde_json::to_vec(&holder)?)?;
    lock.sync_all()?;
    let outcome = match confine::confine(&spec) {
        Ok(confined) => {
            let outcome = carry_out(&spec, &mut supervisor);
            confined.leave();
            outcome
        }
        Err(error) => Outcome::NotStarted(error.to_string()),
    };
    let stderr_tail = supervisor.lines.stderr_tail();
    supervisor.survivors.truncate(SURVIVORS_MAX);
    Ok(write_exit(state, &Exit { outcome: shorten(outcome), stderr_tail, survivors: supervisor.survivors })?)
}

fn carry_out(spec: &Spec, supervisor: &mut Supervisor) -> Outcome {
    let code = match source::prepare(spec, supervisor) {
        Ok(code) => code,
        Err(outcome) => return outcome,
    };
    let Some(command) = &spec.command else { return Outcome::Exited(0) };
    let program = match program::choose(spec, command, &code) {
        Ok(program) => program,
        Err(text) => return Outcome::NotPrepared(text),
    };
    let mut process = Command::new(&program.path);
    process.args(&program.args).current_dir(spec.workspace_dir.as_ref().unwrap_or(&code));
    for name in &spec.env_removed {
        process.env_remove(name);
    }
    process.envs(spec.env.iter().map(|(name, value)| (name, value)));
    if let Some((user, group)) = spec.run_as {
        process.uid(user).gid(group);
    }
    match supervisor.run(process, Step { within: None, watch: None }) {
        Ok(Ended::Exited(code)) => Outcome::Exited(code),
        Ok(Ended::Signalled(signal)) => Outcome::Signalled(signal),
        Ok(Ended::Stopped) => Outcome::Stopped,
        Ok(Ended::TimedOut) => Outcome::TimedOut,
        Ok(Ended::Refused(text)) => Outcome::NotStarted(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound && program.path.exists() => {
            Outcome::NotStarted(format!("{}: its interpreter, the program after #!, is not in this image", program.path.display()))
        }
        Err(error) => Outcome::NotStarted(format!("{}: {error}", program.path.display())),
    }
}

fn shorten(outcome: Outcome) -> Outcome {
    let cut = |mut text: String| {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
        text
    };
    match outcome {
        Outcome::NotPrepared(text) => Outcome::NotPrepared(cut(text)),
        Outcome::NotStarted(text) => Outcome::NotStarted(cut(text)),
        other => other,
    }
}

/// Overwrites the reserved place, and renames it only when it is on disk: a reader sees all of it or nothing.
fn write_exit(state: &Path, exit: &Exit) -> io::Result<()> {
    let mut text = serde_json::to_vec(exit)?;
    text.resize(text.len().max(EXIT_BYTES), b' ');
    let path = state.join(EXIT_RESERVED);
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&path, state.join(EXIT_FILE))?;
    std::fs::File::open(state)?.sync_all()
}
