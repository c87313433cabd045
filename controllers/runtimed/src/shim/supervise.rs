//! One process after another, each with all it starts, from spawn to the last of its descendants: output, stop, time, KILL.
//!
//! ```text
//!   running ──main process ends──────────────────────────────► ending: KILL what is left, until no child is left
//!      │ asked to stop, time is over, watch objects                ▲            │ kill_wait is over
//!      ▼                                                           │            ▼
//!   stopping: TERM to the process group ──main process ends────────┤         ended, with survivors
//!      │ stop_grace is over                                        │
//!      └──► KILL to every descendant, again and again ─────────────┘
//! ```
//! This process is a subreaper: whatever a Run starts, however it detaches, becomes a child of this process when its parent
//! dies. So "no child is left" means that nothing of the Run lives.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, wait};

use super::lines::{Lines, Stream};
use super::spec::{Limits, ProcessId};
use super::tree;

/// How often a watch is asked, and KILL repeated.
const TICK: Duration = Duration::from_millis(200);
/// How long the last output may take once every process is gone: somebody outside may hold the pipe.
const DRAIN_WITHIN: Duration = Duration::from_millis(500);

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal that did not come from here.
    Signalled(i32),
    /// The agent asked for it.
    Stopped,
    /// The Run's time is over.
    TimedOut,
    /// It was ended for this reason: it took too long for a step, or its watch objected.
    Refused(String),
}

/// Bounds of one step beside those of the Run.
pub struct Step<'a> {
    /// It may take that long.
    pub within: Option<Duration>,
    /// Asked now and then; a text ends the step.
    pub watch: Option<&'a mut dyn FnMut() -> Option<String>>,
}

/// The one that waits. It lives as long as the attempt.
pub struct Supervisor {
    signals: UnixStream,
    term: Arc<AtomicBool>,
    stdout: File,
    /// The output.
    pub lines: Lines,
    deadline: Option<Instant>,
    stop_grace: Duration,
    kill_wait: Duration,
    /// Processes that outlived KILL.
    pub survivors: Vec<ProcessId>,
}

/// A step under way.
struct Running {
    main: Pid,
    status: Option<WaitStatus>,
    pipes: [Option<File>; 2],
    stopping: Option<Stopping>,
}

struct Stopping {
    why: Ended,
    kill_at: Instant,
    killed_at: Option<Instant>,
}

impl Supervisor {
    /// Takes over SIGTERM and SIGCHLD. The Run's time starts now.
    pub fn new(lines: Lines, timeout_ms: Option<u64>, limits: &Limits) -> io::Result<Self> {
        let (signals, sender) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let term = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, term.clone())?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGCHLD] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self {
            signals,
            term,
            stdout: File::from(io::stdout().as_fd().try_clone_to_owned()?),
            lines,
            deadline: timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms))),
            stop_grace: Duration::from_millis(limits.stop_grace_ms),
            kill_wait: Duration::from_millis(limits.kill_wait_ms),
            survivors: Vec::new(),
        })
    }

    /// Runs `command` in a process group of its own to the end of its last descendant.
    ///
    /// # Errors
    /// It can't be started.
    pub fn run(&mut self, mut command: Command, step: Step<'_>) -> io::Result<Ended> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = Instant::now();
        if self.term.load(Ordering::SeqCst) {
            return Ok(Ended::Stopped);
        }
        if self.deadline.is_some_and(|at| started >= at) {
            return Ok(Ended::TimedOut);
        }
        let child = spawn(&mut command)?;
        let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        let pipes = [child.stdout.map(OwnedFd::from), child.stderr.map(OwnedFd::from)].map(|pipe| pipe.map(File::from));
        for pipe in pipes.iter().flatten() {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        let mut running = Running { main, status: None, pipes, stopping: None };
        let step_deadline = step.within.and_then(|within| started.checked_add(within));
        let Step { within, mut watch } = step;
        let mut watch_at = watch.as_ref().map(|_| started + TICK);
        loop {
            running.reap();
            let now = Instant::now();
            if running.status.is_some() || running.is_beyond(now, self.kill_wait) {
                break;
            }
            if running.stopping.is_none() {
                let objection = match watch.as_mut().filter(|_| watch_at.is_some_and(|at| now >= at)) {
                    Some(watch) => {
                        watch_at = Some(now + TICK);
                        watch()
                    }
                    None => None,
                };
                let why = match objection {
                    _ if self.term.load(Ordering::SeqCst) => Some(Ended::Stopped),
                    _ if self.deadline.is_some_and(|at| now >= at) => Some(Ended::TimedOut),
                    _ if step_deadline.is_some_and(|at| now >= at) => Some(Ended::Refused(too_long(within))),
                    objection => objection.map(Ended::Refused),
                };
                if let Some(why) = why {
                    running.stop(why, now + self.stop_grace);
                }
            }
            let due = running.kill_if_due(now);
            let next = [self.deadline, step_deadline, watch_at].into_iter().flatten().filter(|_| running.stopping.is_none()).chain(due).min();
            self.pump(&mut running, next.map(|at| at.saturating_duration_since(now)));
        }
        self.end(&mut running);
        Ok(running.outcome())
    }

    /// Kills what is left, until there is no child or `kill_wait` is over; then takes the last output.
    fn end(&mut self, running: &mut Running) {
        let since = Instant::now();
        // A main process that outlived its KILL has had its time.
        let patience = if running.status.is_some() { self.kill_wait } else { Duration::ZERO };
        let mut drained_since = None;
        loop {
            let now = Instant::now();
            if running.reap() {
                let since = *drained_since.get_or_insert(now);
                if running.pipes.iter().all(Option::is_none) && self.lines.queue.is_empty() || now - since > DRAIN_WITHIN {
                    break;
                }
            } else if now - since >= patience {
                self.survivors = tree::descendants(getpid().as_raw_nonzero().get());
                break;
            } else {
                running.kill();
            }
            self.pump(running, Some(Duration::from_millis(20)));
        }
        self.lines.flush();
        // What the pipe takes at once; a reader that stands still is not waited for.
        self.write_out();
    }

    /// Waits at most `timeout` (None: for ever) for a signal, output, or room for output, and moves output on: nothing is read while something read is not yet written.
    fn pump(&mut self, running: &mut Running, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec { tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX), tv_nsec: timeout.subsec_nanos().into() });
        {
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            match self.lines.queue.is_empty() {
                true => fds.extend(running.pipes.iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN))),
                false => fds.push(PollFd::new(&self.stdout, PollFlags::OUT)),
            }
            // Interrupted or out of memory: the next turn asks again.
            let _ = poll(&mut fds, timeout.as_ref());
        }
        let mut drop = [0; 64];
        while self.signals.read(&mut drop).is_ok_and(|n| n > 0) {}
        self.write_out();
        if self.lines.queue.is_empty() {
            self.read_in(running);
            self.write_out();
        }
    }

    fn read_in(&mut self, running: &mut Running) {
        let mut buffer = [0; 8_192];
        for (pipe, stream) in running.pipes.iter_mut().zip([Stream::Stdout, Stream::Stderr]) {
            let Some(file) = pipe else { continue };
            match file.read(&mut buffer) {
                Ok(0) => *pipe = None,
                Ok(n) => self.lines.push(stream, &buffer[..n]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => *pipe = None,
            }
        }
    }

    /// Writes lines as long as a write does not wait. A stdout that nobody reads any more takes everything.
    fn write_out(&mut self) {
        while let Some(line) = self.lines.queue.front() {
            let mut ready = [PollFd::new(&self.stdout, PollFlags::OUT)];
            match poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Ok(0) | Err(Errno::INTR) => return,
                _ => {}
            }
            if self.stdout.write_all(line).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
            self.lines.queue.pop_front();
        }
    }
}

impl Running {
    /// Takes in every child that has ended; true if there is none left.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn stop(&mut self, why: Ended, kill_at: Instant) {
        let _ = kill_process_group(self.main, Signal::TERM);
        // A stopped process takes no TERM before it goes on.
        let _ = kill_process_group(self.main, Signal::CONT);
        self.stopping = Some(Stopping { why, kill_at, killed_at: None });
    }

    /// Kills if it is time; when it will be time (again).
    fn kill_if_due(&mut self, now: Instant) -> Option<Instant> {
        let stopping = self.stopping.as_mut()?;
        if now >= stopping.kill_at {
            stopping.kill_at = now + TICK;
            stopping.killed_at.get_or_insert(now);
            self.kill();
        }
        self.stopping.as_ref().map(|stopping| stopping.kill_at)
    }

    fn kill(&self) {
        tree::kill_descendants(getpid().as_raw_nonzero().get());
    }

    fn is_beyond(&self, now: Instant, kill_wait: Duration) -> bool {
        self.stopping.as_ref().and_then(|stopping| stopping.killed_at).is_some_and(|killed| now - killed > kill_wait)
    }

    fn outcome(self) -> Ended {
        if let Some(stopping) = self.stopping {
            return stopping.why;
        }
        let Some(status) = self.status else { return Ended::Signalled(0) };
        match status.terminating_signal() {
            Some(signal) => Ended::Signalled(signal),
            None => Ended::Exited(status.exit_status().unwrap_or(0)),
        }
    }
}

/// Somebody else's fork may hold our script open for writing for a moment ("text file busy"): tried again.
fn spawn(command: &mut Command) -> io::Result<std::process::Child> {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < 50 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn too_long(within: Option<Duration>) -> String {
    format!("took longer than {} s", within.unwrap_or_default().as_secs())
}
