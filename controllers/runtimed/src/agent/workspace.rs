//! The directory of a PersistentWorkspace: made before the first Run, kept afterwards, removed with the object.
//!
//! `persistent/.uid/<name>` names the workspace whose data `persistent/<name>` is. A directory of another UID, or of none, is removed
//! before use. Every step goes from an open directory to a name in it, and follows no symbolic link: what a Run may have put there leads nowhere.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use berth_api::names::is_dns_subdomain;
use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirBuilder, DirBuilderExt, OpenOptions};
use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};

use super::store::{PERSISTENT, Store, WorkspaceUse};

/// Folder of the markers in `persistent`; no workspace's name begins with a dot.
const MARKERS: &str = ".uid";

/// Why there is no directory.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The name is none that Kubernetes admits.
    #[error("workspace {0:?}: not a name of a workspace")]
    Name(String),
    /// Something else is in its place.
    #[error("workspace {name}: {path} is {what}, not a directory; it is left alone")]
    NotADirectory {
        /// The workspace.
        name: String,
        /// Where.
        path: PathBuf,
        /// A symbolic link, a file.
        what: &'static str,
    },
    /// The file system refuses.
    #[error("workspace {name}: {error}")]
    Io {
        /// The workspace.
        name: String,
        /// Why.
        error: io::Error,
    },
}

/// Makes sure that the directory is there, belongs to `run_as`, and holds no other workspace's data; its path.
///
/// # Errors
/// See [`WorkspaceError`].
pub fn prepare(store: &Store, workspace: &WorkspaceUse, run_as: Option<(u32, u32)>) -> Result<PathBuf, WorkspaceError> {
    let WorkspaceUse { name, uid } = workspace;
    let io = |error| WorkspaceError::Io { name: name.clone(), error };
    check_name(name)?;
    // Marker and directory change together, of one workspace at a time.
    let _alone = store.workspaces();
    let persistent = persistent(store).map_err(io)?;
    let path = store.workspace_dir(name);
    let there = kind(&persistent, name).map_err(io)?;
    if let Some(what @ ("a symbolic link" | "no directory")) = there {
        return Err(WorkspaceError::NotADirectory { name: name.clone(), path, what });
    }
    let markers = markers(&persistent).map_err(io)?;
    if marker(&markers, name).map_err(io)?.as_deref() != Some(uid) {
        if there.is_some() {
            store.trash(&path).map_err(io)?;
        }
        write_marker(&markers, name, uid).map_err(io)?;
    }
    match persistent.create_dir_with(name, DirBuilder::new().mode(0o700)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    let directory = persistent.open_dir_nofollow(name).map_err(io)?;
    own(&directory, run_as).map_err(io)?;
    Ok(path)
}

/// Gives a directory to whom Runs run as, and to nobody else.
pub fn own(directory: &Dir, run_as: Option<(u32, u32)>) -> io::Result<()> {
    // A `Dir` may be open as a place alone (O_PATH), which takes neither.
    let directory = directory.open(".")?;
    if let Some((user, group)) = run_as {
        fchown(&directory, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(fchmod(&directory, Mode::from_raw_mode(0o770))?)
}

/// Makes the Run's own directory, fresh.
///
/// # Errors
/// The file system refuses.
pub fn make_run_dir(store: &Store, uid: &str, run_as: Option<(u32, u32)>) -> io::Result<()> {
    store.trash(&store.run_dir(uid))?;
    let root = Dir::open_ambient_dir(store.root(), ambient_authority())?;
    root.create_dir_with(uid, DirBuilder::new().mode(0o700))?;
    own(&root.open_dir_nofollow(uid)?, run_as)
}

/// Makes a folder of that name in a workspace, fresh.
///
/// # Errors
/// The file system refuses, or something of that name is there that is no folder.
pub fn make_folder(workspace: &Path, name: &str, run_as: Option<(u32, u32)>) -> io::Result<()> {
    let parent = Dir::open_ambient_dir(workspace, ambient_authority())?;
    match parent.remove_dir_all(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    parent.create_dir_with(name, DirBuilder::new().mode(0o700))?;
    own(&parent.open_dir_nofollow(name)?, run_as)
}

/// Removes the directory and the marker of the workspace with that UID; another's data stays. Whether nothing of it is left.
///
/// # Errors
/// The file system refuses.
pub fn remove(store: &Store, workspace: &WorkspaceUse) -> Result<(), WorkspaceError> {
    let WorkspaceUse { name, uid } = workspace;
    check_name(name)?;
    let io = |error| WorkspaceError::Io { name: name.clone(), error };
    let _alone = store.workspaces();
    let persistent = persistent(store).map_err(io)?;
    let markers = markers(&persistent).map_err(io)?;
    if marker(&markers, name).map_err(io)?.as_deref() != Some(uid) {
        return Ok(());
    }
    store.trash(&store.workspace_dir(name)).map_err(io)?;
    markers.remove_file(name).map_err(io)
}

/// Every workspace whose data is here.
///
/// # Errors
/// The file system refuses.
pub fn all(store: &Store) -> io::Result<Vec<WorkspaceUse>> {
    let markers = markers(&persistent(store)?)?;
    let mut found = Vec::new();
    for entry in markers.entries()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(uid) = marker(&markers, &name)? {
            found.push(WorkspaceUse { name, uid });
        }
    }
    Ok(found)
}

fn persistent(store: &Store) -> io::Result<Dir> {
    Dir::open_ambient_dir(store.root(), ambient_authority())?.open_dir_nofollow(PERSISTENT)
}

fn markers(persistent: &Dir) -> io::Result<Dir> {
    match persistent.create_dir_with(MARKERS, DirBuilder::new().mode(0o700)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    persistent.open_dir_nofollow(MARKERS)
}

fn marker(markers: &Dir, name: &str) -> io::Result<Option<String>> {
    match markers.read_to_string(name) {
        Ok(uid) => Ok(Some(uid)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_marker(markers: &Dir, name: &str, uid: &str) -> io::Result<()> {
    const NEW: &str = ".new";
    let mut file = markers.open_with(NEW, OpenOptions::new().write(true).create(true).truncate(true))?;
    file.write_all(uid.as_bytes())?;
    file.sync_all()?;
    markers.rename(NEW, markers, name)?;
    Ok(rustix::fs::fsync(markers.try_clone()?.open(".")?)?)
}

/// What has that name: None, or "a directory", "a symbolic link", "no directory".
fn kind(persistent: &Dir, name: &str) -> io::Result<Option<&'static str>> {
    match persistent.symlink_metadata(name) {
        Ok(about) if about.is_dir() => Ok(Some("a directory")),
        Ok(about) if about.is_symlink() => Ok(Some("a symbolic link")),
        Ok(_) => Ok(Some("no directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The API server checks it too, and a path is made of it.
fn check_name(name: &str) -> Result<(), WorkspaceError> {
    if is_dns_subdomain(name) { Ok(()) } else { Err(WorkspaceError::Name(name.to_owned())) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn of(name: &str, uid: &str) -> WorkspaceUse {
        WorkspaceUse { name: name.to_owned(), uid: uid.to_owned() }
    }

    #[test]
    fn data_stays_for_its_workspace_and_never_reaches_a_namesake() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let path = prepare(&store, &of("ci", "u1"), None).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o770);
        std::fs::write(path.join("data"), "old").unwrap();
        assert_eq!(prepare(&store, &of("ci", "u1"), None).unwrap(), path);
        assert_eq!(std::fs::read_to_string(path.join("data")).unwrap(), "old");
        assert_eq!(all(&store).unwrap(), [of("ci", "u1")]);
        // A workspace that is gone is not removed in the name of another.
        remove(&store, &of("ci", "u0")).unwrap();
        assert!(path.join("data").exists());
        prepare(&store, &of("ci", "u2"), None).unwrap();
        assert!(!path.join("data").exists());
        remove(&store, &of("ci", "u2")).unwrap();
        assert!(!path.exists() && all(&store).unwrap().is_empty());
        // A directory that nobody marked is nobody's.
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("data"), "whose?").unwrap();
        prepare(&store, &of("ci", "u3"), None).unwrap();
        assert!(!path.join("data").exists());
    }

    #[test]
    fn many_runs_at_once_share_what_the_first_has_made() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        for round in 0..50 {
            // Of namesakes that are gone.
            for name in ["a", "b"] {
                let path = prepare(&store, &of(name, &format!("old-{round}")), None).unwrap();
                std::fs::write(path.join("old"), "").unwrap();
            }
            let barrier = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for n in 0..8 {
                    let (store, barrier) = (&store, &barrier);
                    scope.spawn(move || {
                        let name = ["a", "b"][n % 2];
                        barrier.wait();
                        let path = prepare(store, &of(name, &format!("{name}-{round}")), None).unwrap();
                        assert!(!path.join("old").exists());
                        std::fs::write(path.join(n.to_string()), "").unwrap();
                    });
                }
            });
            for n in 0..8 {
                let path = folder.path().join("persistent").join(["a", "b"][n % 2]).join(n.to_string());
                assert!(path.exists(), "round {round}: what thread {n} wrote was thrown away");
            }
            assert_eq!(all(&store).unwrap().len(), 2);
            store.empty_trash();
        }
    }

    #[test]
    fn links_files_and_names_that_lead_out_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("precious"), "x").unwrap();
        let store = Store::open(folder.path()).unwrap();
        for name in ["", ".", "..", "../x", "a/b", ".uid", "A", "-a", "a-", "a..b", "a\0", &"a".repeat(254)] {
            assert!(matches!(prepare(&store, &of(name, "u"), None), Err(WorkspaceError::Name(_))), "{name}");
        }
        symlink(outside.path(), folder.path().join("persistent/link")).unwrap();
        std::fs::write(folder.path().join("persistent/file"), "").unwrap();
        for name in ["link", "file"] {
            assert!(matches!(prepare(&store, &of(name, "u"), None), Err(WorkspaceError::NotADirectory { .. })), "{name}");
        }
        // A link in the workspace is removed with it, not what it names.
        let path = prepare(&store, &of("ok", "u"), None).unwrap();
        symlink(outside.path(), path.join("out")).unwrap();
        remove(&store, &of("ok", "u")).unwrap();
        assert_eq!(store.empty_trash(), 0);
        // The folder itself replaced by a link.
        std::fs::remove_dir_all(folder.path().join("persistent")).unwrap();
        symlink(outside.path(), folder.path().join("persistent")).unwrap();
        assert!(prepare(&store, &of("ok", "u"), None).is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}
