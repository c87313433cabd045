//! Follows a file or a ConfigMap and offers what it sees to the [`Keeper`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_runtime::ObjectKey as StoreKey;
use berth_runtime::events::{EventType, Occurrence, Recorder, Regarding};
use berth_runtime::informer::{Delta, Stored};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Candidate, ConfigMapName, Keeper, Offered};
use crate::config;

/// Between two looks at a file. Mounted ConfigMaps change by a symbolic link, which no watch of the file would see.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Reading a file may take so long.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// A ConfigMap in the informer's store.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenConfigMap(pub Candidate);

/// Reads the ConfigMap of that name.
///
/// # Errors
/// It is no ConfigMap as core/v1 has it.
pub fn read_config_map(value: Value, name: &ConfigMapName) -> Result<SeenConfigMap, String> {
    let map: ConfigMap = serde_json::from_value(value).map_err(|error| error.to_string())?;
    Ok(SeenConfigMap(Candidate::of(&map, name)))
}

/// Follows a ConfigMap until `stop`. One that is deleted changes nothing.
pub async fn follow_config_map(
    mut deltas: mpsc::Receiver<Delta<SeenConfigMap>>,
    mut keeper: Keeper,
    recorder: Recorder,
    mut hangup: Signal,
    stop: CancellationToken,
) {
    loop {
        let delta = tokio::select! {
            () = stop.cancelled() => return,
            // It is watched: there is nothing to read again.
            Some(()) = hangup.recv() => continue,
            delta = deltas.recv() => delta,
        };
        match delta {
            None => return stop.cancelled().await,
            Some(Delta::Applied(stored)) => {
                let offered = tokio::select! {
                    () = stop.cancelled() => return,
                    offered = keeper.offer(stored.object.0.clone(), false) => offered,
                };
                publish(&recorder, &stored, &offered);
            }
            Some(Delta::Deleted { key, .. }) => {
                keeper.missing("deleted");
                tracing::error!(config_map = %key, "the configuration was deleted; the last good one stays in force until a restart, which would wait for another");
            }
            Some(Delta::Invalid(invalid)) => {
                keeper.missing(&invalid.error);
                tracing::error!(config_map = %invalid.key, error = %invalid.error, "the configuration can't be read; the last good one stays in force")
            }
            Some(Delta::Synced) => {}
        }
    }
}

/// Tells on the ConfigMap what came of its edit.
fn publish(recorder: &Recorder, stored: &Stored<SeenConfigMap>, offered: &Offered) {
    let (type_, reason, action, note) = match offered {
        Offered::Refused(refused) => {
            let problems = refused.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ").replacen(":; ", ": ", 1);
            (EventType::Warning, "InvalidConfiguration", "Refused", format!("the last good configuration stays in force; {problems}"))
        }
        Offered::Applied => (EventType::Normal, "ConfigurationApplied", "Applied", "the configuration is in force".to_owned()),
        Offered::Unchanged | Offered::Ended => return,
    };
    let key = StoreKey { namespace: stored.key.namespace.clone(), name: stored.key.name.clone() };
    recorder.publish(Occurrence { regarding: Regarding::of::<ConfigMap>(key, stored.uid.clone()), type_, reason, action, note });
}

/// Follows a file until `stop`: takes a text that two looks in a row have seen, so that none is read half written, and at once at
/// SIGHUP. One that is gone changes nothing.
pub async fn follow_file(path: PathBuf, mut keeper: Keeper, mut hangup: Signal, stop: CancellationToken) {
    let mut before = None;
    let mut told = None;
    loop {
        let again = tokio::select! {
            () = stop.cancelled() => return,
            Some(()) = hangup.recv() => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let text = match read_regular(&path).await {
            Ok(bytes) => config::text_of(bytes),
            Err(error) => {
                let error = error.to_string();
                keeper.missing(&error);
                before = None;
                if again || told.as_ref() != Some(&error) {
                    tracing::error!(file = %path.display(), error, "the configuration can't be read; the last good one stays in force");
                    told = Some(error);
                }
                continue;
            }
        };
        told = None;
        let settled = before.as_ref() == Some(&text);
        before = Some(text.clone());
        if again || settled {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = keeper.offer(Candidate { source: path.display().to_string(), text, generation: None }, again) => {}
            }
        }
    }
}

/// A pipe, or a file of a mount that hangs, would keep a reader for ever.
async fn read_regular(path: &Path) -> std::io::Result<Vec<u8>> {
    if !tokio::fs::metadata(path).await?.is_file() {
        return Err(std::io::Error::other("is not a regular file"));
    }
    let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "could not be read within 10 s");
    tokio::time::timeout(READ_WITHIN, tokio::fs::read(path)).await.map_err(late)?
}

/// Without a configuration there is nothing to follow; SIGHUP must not end the process all the same.
pub async fn follow_nothing(keeper: Keeper, mut hangup: Signal, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(()) = hangup.recv() => tracing::warn!("asked to read the configuration again, but there is no file to read"),
        }
    }
    drop(keeper);
}
