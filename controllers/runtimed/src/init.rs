//! Process 1 of a container: starts the agent, again if it crashes, passes on SIGTERM, and reaps whoever is left behind.
//!
//! Were the agent itself process 1, its crash would take every Run with it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

/// Set for the agent that this process starts.
const UNDER_INIT: &str = "RUNTIMED_UNDER_INIT";
/// Pauses between a crash and the next start double from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// An agent that ran that long starts again after the first pause.
const STEADY: Duration = Duration::from_secs(60);

/// Whether this process is the first of its container.
pub fn is_needed() -> bool {
    std::process::id() == 1 || std::env::var_os("RUNTIMED_INIT").is_some_and(|value| value == "1") && std::env::var_os(UNDER_INIT).is_none()
}

/// Runs the agent with the same arguments until it ends by itself or was asked to; answers its exit code.
///
/// # Errors
/// It can't be started.
pub fn run() -> anyhow::Result<u8> {
    let (mut signals, sender) = UnixStream::pair()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, sender)?;
    let mut pause = PAUSE.0;
    loop {
        let started = Instant::now();
        let agent = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).env(UNDER_INIT, "1").spawn()?;
        let agent = i32::try_from(agent.id()).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow::anyhow!("no process id"))?;
        let mut told = false;
        let status = loop {
            if stop.load(Ordering::SeqCst) && !std::mem::replace(&mut told, true) {
                // It may have ended in this moment.
                let _ = kill_process(agent, Signal::TERM);
            }
            if let Some(status) = reap(agent) {
                break status;
            }
            let mut drop = [0; 64];
            let _ = signals.read(&mut drop);
        };
        let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
        match code {
            // It was asked to end, or says that a new start would not help.
            Some(code) if stop.load(Ordering::SeqCst) || code == 0 || code == crate::EXIT_USAGE => return Ok(code),
            None if stop.load(Ordering::SeqCst) => return Ok(crate::EXIT_FAILED),
            _ => {}
        }
        if started.elapsed() > STEADY {
            pause = PAUSE.0;
        }
        eprintln!("runtimed: the agent ended with {status:?}; the next one starts in {pause:?}, its Runs go on");
        let until = Instant::now() + pause;
        pause = (pause * 2).min(PAUSE.1);
        signals.set_read_timeout(Some(Duration::from_millis(50)))?;
        while Instant::now() < until && !stop.load(Ordering::SeqCst) {
            let mut drop = [0; 64];
            let _ = signals.read(&mut drop);
            reap(agent);
        }
        signals.set_read_timeout(None)?;
        if stop.load(Ordering::SeqCst) {
            return Ok(crate::EXIT_FAILED);
        }
    }
}

/// Takes in every child that has ended; the agent's status if it is among them.
fn reap(agent: Pid) -> Option<WaitStatus> {
    let mut ended = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == agent => ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return ended,
        }
    }
}
