//! Child processes and scratch folders that do not outlive the test process, however it ends.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// A binary of this workspace under test: what the environment variable `named` says, else the one beside the running test binary's folder.
pub fn built(binary: &str, package: &str, named: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(named) {
        return Ok(PathBuf::from(path));
    }
    let test = std::env::current_exe()?;
    let path = test.parent().and_then(Path::parent).context("the test binary is in no folder")?.join(binary);
    ensure!(path.exists(), "{} is missing: build it with `cargo build -p {package} --bin {binary}` (`make test` does), or set {named}", path.display());
    Ok(path)
}

/// A child process that is killed when this value is dropped, and also when the test process dies without dropping it.
///
/// The second half is a shell that blocks on a pipe whose other end only this process holds: the pipe closes with the
/// process, whatever killed it, and the shell then kills the child.
pub struct Guarded {
    name: String,
    child: Child,
    watchdog: Child,
    log: PathBuf,
}

impl Guarded {
    /// Starts `command` with both outputs appended to `log` and no input.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log).with_context(|| format!("cannot open {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name} ({:?})", command.get_program()))?;
        let watchdog = watchdog("kill -9 \"$1\"", &child.id().to_string())?;
        Ok(Self { name: name.to_owned(), child, watchdog, log: log.to_owned() })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything the child has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The file that [`log`](Self::log) is read from.
    #[must_use]
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// The exit status if the child has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Fails, with the end of the log, if the child has ended.
    pub fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.exited()? {
            bail!("{} ended with {status}; the end of its log:\n{}", self.name, tail(&self.log(), 30));
        }
        Ok(())
    }

    /// Sends SIGTERM. The child may already be gone; that is no error.
    pub fn terminate(&self) -> Result<()> {
        self.signal("TERM")
    }

    /// Sends the named signal (`STOP`, `CONT`, `TERM`, …). The child may already be gone; that is no error.
    pub fn signal(&self, signal: &str) -> Result<()> {
        Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal, &self.id().to_string()])
            .stderr(Stdio::null())
            .status()
            .context("cannot run sh")?;
        Ok(())
    }

    /// Waits for the end of the child, at most `limit`; blocks the thread.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("{} still runs after {limit:?}; the end of its log:\n{}", self.name, tail(&self.log(), 30));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the child with SIGKILL and reaps it.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // The watchdog goes first: once the child is reaped its id may belong to somebody else.
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scratch folder that is removed when dropped, and also when the test process dies without dropping it.
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
    cleaner: Child,
}

impl Scratch {
    /// Makes the folder in the machine's folder for temporary files. `BERTH_KEEP=1` keeps it, for a look at the logs.
    pub fn new(name: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(&format!("berth-{name}-")).tempdir()?;
        // The processes that write here die in the same moment; a second attempt takes what they were still writing.
        let script = "sleep 0.5; rm -rf -- \"$1\" || { sleep 1; rm -rf -- \"$1\"; }";
        let keep = std::env::var_os("BERTH_KEEP").is_some();
        let cleaner = watchdog(if keep { ":" } else { script }, &dir.path().to_string_lossy())?;
        Ok(Self { dir: Some(dir), cleaner })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new("/nonexistent"), tempfile::TempDir::path)
    }

    /// Writes a file into it and returns where.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path().join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.cleaner.kill();
        let _ = self.cleaner.wait();
        if let Some(dir) = self.dir.take() {
            if std::env::var_os("BERTH_KEEP").is_some() {
                eprintln!("kept: {}", dir.keep().display());
            } else {
                drop(dir);
            }
        }
    }
}

/// A shell that runs `script` (with `$1`) as soon as this process has died. Signals of the terminal do not reach it.
pub(crate) fn watchdog(script: &str, arg: &str) -> Result<Child> {
    let script = format!("trap '' INT TERM HUP; read -r _; {script}");
    Command::new("sh").args(["-c", &script, "sh", arg]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot run sh")
}

/// A loopback port that is free now, below the ports the kernel hands out by itself: a client that retries towards a
/// server which is down can then never be given the server's own port.
pub fn free_port() -> Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 1_000) as u16 * 12;
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no loopback port between {FIRST} and {} is free", FIRST + COUNT)
}

/// The last `lines` lines of a log.
#[must_use]
pub fn tail(log: &str, lines: usize) -> String {
    let all: Vec<&str> = log.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_child_is_gone_and_its_log_remains() {
        let scratch = Scratch::new("process").unwrap();
        let log = scratch.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; exec sleep 1000"]);
        let mut child = Guarded::spawn("sleeper", command, &log).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while !child.log().contains("hello") {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        child.must_run().unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(proc.exists());
        drop(child);
        assert!(!proc.exists());
    }

    #[test]
    fn the_watchdog_acts_when_the_pipe_closes() {
        let scratch = Scratch::new("watchdog").unwrap();
        let marker = scratch.path().join("marker");
        let mut dog = watchdog("echo barked > \"$1\"", &marker.to_string_lossy()).unwrap();
        assert!(!marker.exists());
        drop(dog.stdin.take()); // what the kernel does when this process dies
        dog.wait().unwrap();
        assert!(marker.exists());
    }

    #[test]
    fn ports_differ() {
        let (a, b) = (free_port().unwrap(), free_port().unwrap());
        assert_ne!(a, b);
    }
}
