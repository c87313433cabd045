//! Where the code comes from: a script that is written, a repository that is cloned.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use rustix::fs::{Gid, Uid};

use super::spec::{Limits, Outcome, Source, Spec};
use super::supervise::{Ended, Step, Supervisor};

/// Folder of a cloned repository below the run directory.
pub const REPOSITORY: &str = "repo";

/// Prepares the source; the folder of the code.
///
/// # Errors
/// How the attempt ends without having begun: not prepared, stopped, timed out.
pub fn prepare(spec: &Spec, supervisor: &mut Supervisor) -> Result<PathBuf, Outcome> {
    match &spec.source {
        Source::None => Ok(spec.workspace_dir.clone().unwrap_or_else(|| spec.run_dir.clone())),
        Source::Inline { path, text } => {
            write_script(spec, path, text).map_err(|error| Outcome::NotPrepared(format!("write inline: {path}: {error}")))?;
            Ok(spec.run_dir.clone())
        }
        Source::Git { url, revision } => clone(spec, supervisor, url, revision.as_deref()),
    }
}

/// Follows no link, and leads nowhere out of the run directory: this process may write where the Run may not.
fn write_script(spec: &Spec, path: &str, text: &str) -> io::Result<()> {
    let (Some(parent), Some(name)) = (spec.run_dir.parent(), spec.run_dir.file_name()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let folder = Dir::open_ambient_dir(parent, ambient_authority())?.open_dir_nofollow(name)?;
    if let Some(above) = Path::new(path).parent().filter(|above| !above.as_os_str().is_empty()) {
        folder.create_dir_all(above)?;
    }
    let mut file = folder.open_with(path, OpenOptions::new().write(true).create_new(true).mode(0o755))?;
    file.write_all(text.as_bytes())?;
    if let Some((user, group)) = spec.run_as {
        rustix::fs::fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(())
}

fn clone(spec: &Spec, supervisor: &mut Supervisor, url: &str, revision: Option<&str>) -> Result<PathBuf, Outcome> {
    let Limits { git_clone_ms, git_checkout_ms, git_bytes_max, .. } = spec.limits;
    let folder = spec.run_dir.join(REPOSITORY);
    let size = SizeWatch { folder: folder.clone(), bytes_max: git_bytes_max };
    let mut arguments = vec!["clone", "--quiet", "--no-recurse-submodules"];
    if revision.is_none() {
        arguments.push("--depth=1");
    } else {
        arguments.push("--no-checkout");
    }
    arguments.extend(["--", url, REPOSITORY]);
    git(spec, supervisor, "git clone", &spec.run_dir, &arguments, git_clone_ms, &size)?;
    if let Some(revision) = revision {
        git(spec, supervisor, "git checkout", &folder, &["checkout", "--quiet", "--detach", revision], git_checkout_ms, &size)?;
    }
    match size.exceeded() {
        Some(text) => Err(Outcome::NotPrepared(format!("git clone: {text}"))),
        None => Ok(folder),
    }
}

/// One git command, as the Run's user, without a terminal, with no other protocol and none of the repository's hooks.
fn git(spec: &Spec, supervisor: &mut Supervisor, what: &str, folder: &Path, arguments: &[&str], limit_ms: u64, size: &SizeWatch) -> Result<(), Outcome> {
    let mut command = Command::new("git");
    command.args(["-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "advice.detachedHead=false"]).args(arguments);
    command.current_dir(folder).env("GIT_ALLOW_PROTOCOL", "https:ssh").env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    if std::env::var_os("GIT_SSH_COMMAND").is_none() && std::env::var_os("GIT_SSH").is_none() {
        command.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes");
    }
    for name in &spec.env_removed {
        command.env_remove(name);
    }
    if let Some((user, group)) = spec.run_as {
        command.uid(user).gid(group);
    }
    let step = Step { within: Some(Duration::from_millis(limit_ms)), watch: Some(&mut || size.exceeded()) };
    let failed = |text: &str| Outcome::NotPrepared(format!("{what}: {text}"));
    let ended = supervisor.run(command, step).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed("there is no git in this image"),
        _ => failed(&error.to_string()),
    })?;
    let said = supervisor.lines.stderr_tail();
    supervisor.lines.forget_tail();
    match ended {
        Ended::Exited(0) => Ok(()),
        Ended::Exited(code) if said.is_empty() => Err(failed(&format!("exit code {code}"))),
        Ended::Exited(_) => Err(failed(&said)),
        Ended::Signalled(signal) => Err(failed(&format!("killed by signal {signal}"))),
        Ended::Refused(text) => Err(failed(&text)),
        Ended::Stopped => Err(Outcome::Stopped),
        Ended::TimedOut => Err(Outcome::TimedOut),
    }
}

/// Measures a growing folder.
struct SizeWatch {
    folder: PathBuf,
    bytes_max: u64,
}

impl SizeWatch {
    fn exceeded(&self) -> Option<String> {
        (folder_bytes(&self.folder, self.bytes_max) > self.bytes_max).then(|| format!("the repository is larger than {} MiB", self.bytes_max >> 20))
    }
}

/// What a folder takes on disk, up to a little more than `enough`; links are not followed.
fn folder_bytes(folder: &Path, enough: u64) -> u64 {
    let (mut total, mut todo) = (0u64, vec![folder.to_owned()]);
    while let Some(folder) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let Ok(about) = entry.metadata() else { continue };
            total = total.saturating_add(about.blocks().saturating_mul(512));
            if about.is_dir() {
                todo.push(entry.path());
            }
            if total > enough {
                return total;
            }
        }
    }
    total
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::spec::Identity;
    use super::*;

    #[test]
    fn a_script_is_written_below_its_run_directory_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let text = String::new;
        let mut spec = Spec {
            identity: Identity { run_uid: text(), run_name: text(), namespace: text(), runtime: text(), pod: text(), attempt: 1 },
            run_dir: folder.path().join("run"),
            workspace_dir: None,
            source: Source::None,
            command: None,
            env: Vec::new(),
            env_removed: Vec::new(),
            timeout_ms: None,
            limits: Limits::default(),
            run_as: None,
        };
        std::fs::create_dir(&spec.run_dir).unwrap();
        std::os::unix::fs::symlink(outside.path(), spec.run_dir.join("link")).unwrap();
        for path in ["script", "a/b/script"] {
            write_script(&spec, path, "text").unwrap();
            assert_eq!(std::fs::read_to_string(spec.run_dir.join(path)).unwrap(), "text");
        }
        let absolute = outside.path().join("x");
        for path in ["../x", "a/../../x", "link/x", &absolute.to_string_lossy(), "script", "", "."] {
            assert!(write_script(&spec, path, "text").is_err(), "{path}");
        }
        // The directory itself replaced by a link, as a Run in the same workspace could.
        std::os::unix::fs::symlink(outside.path(), folder.path().join("swapped")).unwrap();
        spec.run_dir = folder.path().join("swapped");
        assert!(write_script(&spec, "x", "text").is_err());
        assert_eq!((std::fs::read_dir(outside.path()).unwrap().count(), folder.path().join("x").exists()), (0, false));
    }
}
