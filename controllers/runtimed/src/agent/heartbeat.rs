//! The heartbeat: one strategic merge patch of the Pod's status every 5 s, which is also how the agent learns of its Pod.

use std::sync::Arc;
use std::time::Duration;

use berth_api::capacity::Capacity;
use berth_api::constants::{ANNOTATION_WORKSPACE_AGENT, POD_CONDITION_RUNTIMED_READY, reason};
use berth_api::message::{bounded, one_line};
use berth_runtime::apiclient::{CallError, get_uncached};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Agent;

/// How often (reference kruntimes §2).
pub const EVERY: Duration = Duration::from_secs(5);
/// A watch that has failed for that long makes the agent blind: it says so.
pub const BLIND_AFTER: Duration = Duration::from_secs(15);
/// One that is blind for that long no longer speaks for the Runs it has.
const BLIND_MAX: Duration = Duration::from_secs(300);
/// Value of the annotation that says that this agent honours workspaces.
const WORKSPACE_AGENT: &str = "v1";

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Place Runs here.
    pub ready: bool,
    /// One word.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

impl Beat {
    /// Whoever the message comes from, it is one bounded line.
    fn not(reason: &'static str, message: String) -> Self {
        Self { ready: false, reason, message: bounded(one_line(&message).into_owned()) }
    }
}

/// Beats until `stop`, then once more to say that it is over.
///
/// # Errors
/// The Pod is gone or another has its name: this process is nobody any more.
pub async fn run(agent: Arc<Agent>, stop: CancellationToken) -> Result<(), String> {
    let mut said = None;
    let mut pace = tokio::time::interval(EVERY);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            () = agent.beat_now.notified() => {}
            () = stop.cancelled() => {
                let last = Beat::not("Stopped", "runtimed has stopped".to_owned());
                if let Err(error) = send(&agent, &last, &mut said).await {
                    tracing::warn!(%error, "the last heartbeat was not sent");
                }
                return Ok(());
            }
        }
        if !agent.is_synced() {
            continue;
        }
        let store = agent.store.clone();
        if let Ok(result) = tokio::task::spawn_blocking(move || store.probe()).await {
            agent.storage_is(&result);
        }
        match send(&agent, &verdict(&agent), &mut said).await {
            Ok(pod) => agent.learn_of(&pod),
            Err(error) if error.is_definite() && is_gone(&agent).await => return Err(format!("Pod {} is gone or replaced: {error}", agent.me.name)),
            Err(error) => {
                agent.metrics.heartbeat_failed();
                tracing::warn!(%error, "heartbeat failed");
            }
        }
    }
}

/// Whether the API server says that there is no Pod of this name and UID.
async fn is_gone(agent: &Agent) -> bool {
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), &agent.me.namespace);
    match get_uncached(&api, &agent.me.name).await {
        Ok(pod) => pod.is_none_or(|pod| pod.metadata.uid.as_deref() != Some(&agent.me.uid)),
        Err(_) => false,
    }
}

/// What there is to say now. With something wrong nothing is placed here any more; while Runs go on the reason is `Cordoned`, or they
/// would be taken for lost (ADR 0044).
fn verdict(agent: &Agent) -> Beat {
    let wrong = wrong(agent);
    agent.set_cordoned(wrong.is_some());
    match (wrong, agent.locals.executing()) {
        (None, _) => Beat { ready: true, reason: reason::HEARTBEAT, message: "runtimed heartbeat is fresh".to_owned() },
        (Some(beat), 0) => beat,
        // Whoever is blind for long hears of no cancel either.
        (Some(beat), _) if agent.blind_for() > BLIND_MAX => beat,
        (Some(Beat { reason: why, message, .. }), executing) => Beat::not(reason::CORDONED, format!("{why}: {message}; Runs that go on: {executing}")),
    }
}

/// Why no further Run is to be placed here, if so.
pub fn wrong(agent: &Agent) -> Option<Beat> {
    let survivors = agent.locals.survivors();
    let storage = || agent.storage_problem().map(|problem| Beat::not("StorageBroken", problem));
    let server = || agent.server.as_ref()?.problem().map(|problem| Beat::not("RuntimeServerUnavailable", problem));
    match () {
        () if agent.is_draining() => Some(Beat::not("Draining", "runtimed is stopping".to_owned())),
        () if agent.blind_for() > BLIND_AFTER => Some(Beat::not("WatchFailing", "runtimed can't see its Runs, or their workspaces".to_owned())),
        () if survivors > 0 => Some(Beat::not("ProcessesUnkillable", format!("{survivors} processes of ended Runs can't be killed"))),
        () => storage().or_else(server),
    }
}

/// `said` is the status last written, and since when: `lastTransitionTime` moves only when the status does.
async fn send(agent: &Agent, beat: &Beat, said: &mut Option<(bool, String)>) -> Result<Pod, CallError> {
    let now = super::status::seconds(agent.clock.now().wall_ms);
    let now = serde_json::to_value(&now).unwrap_or_default();
    let since = match said {
        Some((ready, since)) if *ready == beat.ready => json!(since),
        _ => now.clone(),
    };
    let condition = json!({
        "type": POD_CONDITION_RUNTIMED_READY,
        "status": if beat.ready { "True" } else { "False" },
        "reason": beat.reason,
        "message": beat.message,
        "lastProbeTime": now,
        "lastTransitionTime": since,
    });
    let patch = json!({
        // The UID makes this fail on a namesake.
        "metadata": {"uid": agent.me.uid, "annotations": {ANNOTATION_WORKSPACE_AGENT: WORKSPACE_AGENT}},
        "status": {"conditions": [condition]},
    });
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), &agent.me.namespace);
    let pod = api.patch_status(&agent.me.name, &PatchParams::default(), &Patch::Strategic(patch)).await.map_err(CallError::from)?;
    *said = Some((beat.ready, since.as_str().unwrap_or_default().to_owned()));
    Ok(pod)
}

/// What the annotations of the Pod say it offers.
pub fn capacity_of(pod: &Pod) -> Capacity {
    Capacity::of(pod.metadata.annotations.iter().flatten())
}
