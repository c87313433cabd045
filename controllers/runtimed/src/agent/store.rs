//! What the agent keeps on the volume of its Pod, so that a restart forgets nothing.
//!
//! ```text
//! <root>/                       owned by the agent, nobody else may write
//!   <run uid>/                  the Run's own directory: script, outputs, repo
//!   persistent/<name>/          a workspace;  persistent/.uid/<name>: the UID of the workspace whose data that is
//!   .runtimed/                  0700
//!     lock                      held by the one agent
//!     runs/<run uid>/           record.json, and the files of the shim
//!     trash/                    what is being removed
//! ```
//! What is removed is first renamed into the trash: that is done or not done, whatever happens in between.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

/// Folder of the data of workspaces, by name.
pub const PERSISTENT: &str = "persistent";

/// One attempt of one Run as it was claimed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `metadata.namespace` of the Run.
    pub namespace: String,
    /// `metadata.name` of the Run.
    pub name: String,
    /// `metadata.uid` of the Run.
    pub uid: String,
    /// UID of the Pod that claimed it.
    pub pod_uid: String,
    /// The attempt, 1-based.
    pub attempt: i32,
    /// What it holds of the Pod.
    pub requests: BTreeMap<String, i64>,
    /// The workspace it uses.
    pub workspace: Option<WorkspaceUse>,
    /// When the attempt was claimed, in milliseconds since the epoch: finer than `startTime`.
    pub claimed_ms: i64,
    /// Whether anything was started, or may have been.
    pub started: bool,
}

/// A workspace by name and UID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceUse {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another agent works on this directory.
    #[error("{0}: another agent is running on this directory")]
    Taken(PathBuf),
    /// The directory can't be used.
    #[error("{path}: {error}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The files. One per directory and process; the lock goes with it.
pub struct Store {
    root: PathBuf,
    workspaces: Mutex<()>,
    trashed: AtomicU64,
    _lock: File,
}

impl Store {
    /// Opens the directory, creating what is missing, and takes its lock.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| StoreError::Io { path, error }
        };
        std::fs::create_dir_all(root).map_err(at(root))?;
        let root = root.canonicalize().map_err(at(root))?;
        // The kubelet makes volumes that everybody may write. A root that isn't ours to change stays as it is (no --run-as then).
        if std::fs::set_permissions(&root, Permissions::from_mode(0o755)).is_err() {
            tracing::info!(root = %root.display(), "the mode of the volume can't be changed: Runs can write there too");
        }
        let state = root.join(".runtimed");
        for (path, mode) in [(state.clone(), 0o700), (state.join("runs"), 0o700), (state.join("trash"), 0o700), (root.join(PERSISTENT), 0o755)] {
            match DirBuilder::new().mode(mode).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&path)(error)),
                _ => {}
            }
        }
        let path = state.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(at(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Taken(root)),
            Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        Ok(Self { root, workspaces: Mutex::default(), trashed: AtomicU64::new(0), _lock: lock })
    }

    /// The directory, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whoever changes a workspace's directory or marker holds this: several Runs may come to one at once.
    pub fn workspaces(&self) -> MutexGuard<'_, ()> {
        berth_runtime::lock(&self.workspaces)
    }

    /// Where the data of a workspace is. Its name has been checked.
    pub fn workspace_dir(&self, name: &str) -> PathBuf {
        self.root.join(PERSISTENT).join(name)
    }

    /// The state directory of a Run.
    pub fn state_dir(&self, uid: &str) -> PathBuf {
        self.root.join(".runtimed/runs").join(uid)
    }

    /// The Run's own directory.
    pub fn run_dir(&self, uid: &str) -> PathBuf {
        self.root.join(uid)
    }

    /// Every record of this Pod. What another Pod left on the volume, and what can't be read, goes to the trash.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn recover(&self, pod_uid: &str) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in std::fs::read_dir(self.root.join(".runtimed/runs"))? {
            let entry = entry?;
            let uid = entry.file_name().to_string_lossy().into_owned();
            let read = std::fs::read(entry.path().join("record.json")).ok().and_then(|text| serde_json::from_slice::<Record>(&text).ok());
            match read {
                Some(record) if record.uid == uid && record.pod_uid == pod_uid => records.push(record),
                _ => self.discard(&uid)?,
            }
        }
        Ok(records)
    }

    /// Makes a durable record of an attempt about to be claimed, in place of anything of an earlier one, and a fresh run directory.
    ///
    /// # Errors
    /// The disk is full or broken, or the UID is no file name: nothing is recorded.
    pub fn begin(&self, record: &Record) -> io::Result<()> {
        if record.uid.is_empty() || !record.uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(io::Error::other(format!("UID {:?} is no file name", record.uid)));
        }
        self.discard(&record.uid)?;
        DirBuilder::new().mode(0o700).create(self.state_dir(&record.uid))?;
        self.write(record)
    }

    /// Makes it durable that the attempt may have been started.
    ///
    /// # Errors
    /// The disk is full or broken: the record says what it said before.
    pub fn started(&self, record: &Record) -> io::Result<()> {
        self.write(&Record { started: true, ..record.clone() })
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let state = self.state_dir(&record.uid);
        let (new, path) = (state.join("record.json.new"), state.join("record.json"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        sync_dir(&state)?;
        sync_dir(&self.root.join(".runtimed/runs"))
    }

    /// Tries whether the volume takes what a claim needs.
    ///
    /// # Errors
    /// It does not.
    pub fn probe(&self) -> io::Result<()> {
        let path = self.root.join(".runtimed/probe");
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&[0; 32 << 10])?;
            file.sync_all()
        });
        std::fs::remove_file(&path)?;
        written
    }

    /// Puts state and directory of a Run into the trash. Nothing there is fine.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn discard(&self, uid: &str) -> io::Result<()> {
        // The record last: while it is there, a restart tries again.
        self.trash(&self.run_dir(uid))?;
        self.trash(&self.state_dir(uid))
    }

    /// Renames something into the trash. Nothing there is fine.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn trash(&self, path: &Path) -> io::Result<()> {
        let name = format!("{}-{}", std::process::id(), self.trashed.fetch_add(1, Ordering::Relaxed));
        let mut to = self.root.join(".runtimed/trash").join(name);
        while to.symlink_metadata().is_ok() {
            to.as_mut_os_string().push("x");
        }
        match std::fs::rename(path, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes what is in the trash; how many things could not be removed, which a later call tries again.
    pub fn empty_trash(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.root.join(".runtimed/trash")) else { return 0 };
        let remove = |path: PathBuf| match path.symlink_metadata() {
            // Follows no link below it.
            Ok(about) if about.is_dir() => std::fs::remove_dir_all(path),
            Ok(_) => std::fs::remove_file(path),
            Err(error) => Err(error),
        };
        entries.flatten().filter(|entry| remove(entry.path()).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)).count()
    }
}

/// Makes the names in a directory durable.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn record(uid: &str, pod_uid: &str) -> Record {
        let text = str::to_owned;
        let requests = BTreeMap::from([(text("runs"), 1)]);
        Record {
            namespace: text("ns"),
            name: text("r"),
            uid: text(uid),
            pod_uid: text(pod_uid),
            attempt: 1,
            requests,
            workspace: None,
            claimed_ms: 5,
            started: false,
        }
    }

    #[test]
    fn records_survive_and_those_of_other_pods_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin(&record("a", "pod")).unwrap();
        store.begin(&record("b", "other")).unwrap();
        store.begin(&record("c", "pod")).unwrap();
        std::fs::write(store.state_dir("c").join("record.json"), "{").unwrap();
        store.started(&record("a", "pod")).unwrap();
        std::fs::create_dir(store.run_dir("b")).unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.recover("pod").unwrap(), [Record { started: true, ..record("a", "pod") }]);
        assert!(!store.state_dir("b").exists() && !store.run_dir("b").exists() && !store.state_dir("c").exists());
        assert_eq!(store.empty_trash(), 0);
        assert_eq!(std::fs::read_dir(folder.path().join(".runtimed/trash")).unwrap().count(), 0);
    }

    #[test]
    fn a_new_attempt_starts_from_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin(&record("a", "pod")).unwrap();
        std::fs::write(store.state_dir("a").join("exit.json"), "old").unwrap();
        store.begin(&Record { attempt: 2, ..record("a", "pod") }).unwrap();
        assert!(!store.state_dir("a").join("exit.json").exists());
        assert_eq!(store.recover("pod").unwrap()[0].attempt, 2);
    }

    #[test]
    fn one_agent_at_a_time_and_no_uid_leads_out() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StoreError::Taken(_))));
        for uid in ["", "..", "a/b", ".runtimed"] {
            assert!(store.begin(&record(uid, "pod")).is_err(), "{uid}");
        }
    }
}
