//! What a Run can't get out of or take too much of: its subreaper, no new privileges, no core files, so many processes.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, geteuid, getpid, set_child_subreaper, setrlimit};
use rustix::thread::set_no_new_privs;

use super::spec::Spec;

/// The cgroup of an attempt; removed by [`Confined::leave`].
pub struct Confined {
    cgroup: Option<(PathBuf, PathBuf)>,
}

/// Confines this process and what it starts.
///
/// # Errors
/// The kernel refuses what was asked for: a Run is not started with less than that.
pub fn confine(spec: &Spec) -> io::Result<Confined> {
    set_child_subreaper(Some(getpid()))?;
    set_no_new_privs(true)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let Some(pids_max) = spec.limits.pids_max else { return Ok(Confined { cgroup: None }) };
    if let Some(parent) = &spec.limits.cgroup {
        let own = parent.join(format!("run-{}-{}", spec.identity.run_uid, spec.identity.attempt));
        enter(&own, pids_max).map_err(|error| io::Error::new(error.kind(), format!("cgroup {}: {error}", own.display())))?;
        return Ok(Confined { cgroup: Some((own, parent.clone())) });
    }
    // The kernel does not bound root by it. It counts every process of that user on the node.
    if spec.run_as.map_or(geteuid().as_raw(), |(user, _)| user) != 0 {
        setrlimit(Resource::Nproc, Rlimit { current: Some(pids_max), maximum: Some(pids_max) })?;
    }
    Ok(Confined { cgroup: None })
}

fn enter(own: &Path, pids_max: u64) -> io::Result<()> {
    match std::fs::create_dir(own) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // This process is one of them.
    std::fs::write(own.join("pids.max"), pids_max.saturating_add(1).to_string())?;
    std::fs::write(own.join("cgroup.procs"), getpid().as_raw_nonzero().to_string())
}

impl Confined {
    /// Leaves the cgroup and removes it; one that still has a process stays.
    pub fn leave(self) {
        if let Some((own, parent)) = self.cgroup {
            let _ = std::fs::write(parent.join("cgroup.procs"), getpid().as_raw_nonzero().to_string());
            let _ = std::fs::remove_dir(own);
        }
    }
}
