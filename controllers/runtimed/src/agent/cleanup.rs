//! The end of a workspace on this machine: its directory is removed, and condition Cleaned says so (decisions, "PersistentWorkspace").

use std::sync::Arc;
use std::time::Duration;

use berth_api::PersistentWorkspace;
use berth_api::conditions::{ConditionChange, ConditionStatus, set_condition};
use berth_api::constants::{FINALIZER_WORKSPACE_CLEANUP, reason, workspace_condition};
use berth_runtime::ObjectKey;
use berth_runtime::apiclient::{CallError, Precondition, get_uncached, status_merge_patch};
use berth_runtime::workqueue::Next;
use kube::Api;
use serde_json::json;

use super::plan::is_mine;
use super::store::WorkspaceUse;
use super::{Agent, status, workspace};

/// While a Run that has nothing here yet, or between two attempts, names it.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Looks at one workspace: to be cleaned for its deletion, or gone while its data is still here.
pub async fn reconcile(agent: Arc<Agent>, key: ObjectKey) -> Next {
    let result = match agent.workspaces.get(&key).and_then(|stored| stored.object.as_ref().clone()) {
        Some(found) => clean(&agent, &found).await,
        None => forget(&agent, &key).await,
    };
    match result {
        Ok(next) => next,
        Err(error) => {
            match error.is_conflict() {
                true => tracing::debug!(workspace = %key, %error, "the workspace changed meanwhile"),
                false => tracing::warn!(workspace = %key, %error, "cleaning will be tried again"),
            }
            Next::Retry
        }
    }
}

/// Whether the object waits for this Pod's agent.
fn is_ours_to_clean(agent: &Agent, workspace: &PersistentWorkspace) -> bool {
    let status = workspace.status.as_ref();
    let finalizers = workspace.metadata.finalizers.as_deref().unwrap_or_default();
    let cleaned =
        |condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| condition.type_ == workspace_condition::CLEANED && condition.status == "True";
    workspace.metadata.deletion_timestamp.is_some()
        && finalizers.iter().any(|finalizer| finalizer == FINALIZER_WORKSPACE_CLEANUP)
        && status.and_then(|status| status.bound_pod_uid.as_deref()) == Some(&agent.me.uid)
        && !status.is_some_and(|status| status.conditions.iter().any(cleaned))
}

/// Whether a Run that is assigned to this Pod and has not ended names the workspace.
fn is_named(agent: &Agent, workspace: &str) -> bool {
    let mut named = false;
    agent.runs.for_each(|stored| {
        let Some(run) = stored.object.as_ref() else { return };
        named |= run.phase().is_active() && is_mine(run, &agent.me) && run.spec.workspace.as_ref().is_some_and(|used| used.name == workspace);
    });
    named
}

async fn clean(agent: &Arc<Agent>, workspace: &PersistentWorkspace) -> Result<Next, CallError> {
    let (Some(name), Some(uid)) = (workspace.metadata.name.clone(), workspace.metadata.uid.clone()) else { return Ok(Next::Done) };
    // Who uses it adds the key again when it is done.
    if !is_ours_to_clean(agent, workspace) || agent.locals.uses_workspace(&uid) {
        return Ok(Next::Done);
    }
    // Nothing of it stands here between two attempts, or while it is being claimed.
    if is_named(agent, &name) {
        return Ok(Next::After(LOOK_AGAIN));
    }
    let removed = remove(agent, WorkspaceUse { name: name.clone(), uid: uid.clone() }).await;
    let (said, reason, message) = match &removed {
        Ok(()) => (ConditionStatus::True, reason::REMOVED, "the directory is removed".to_owned()),
        Err(error) => (ConditionStatus::False, reason::REMOVE_FAILED, error.clone()),
    };
    let mut conditions = workspace.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let change = set_condition(&mut conditions, workspace_condition::CLEANED, said, reason, &message, &status::seconds(agent.clock.now().wall_ms));
    if change == ConditionChange::Full {
        // The one condition that something waits for: another's makes room.
        conditions.pop();
        set_condition(&mut conditions, workspace_condition::CLEANED, said, reason, &message, &status::seconds(agent.clock.now().wall_ms));
    }
    if let Some(condition) = conditions.iter_mut().find(|condition| condition.type_ == workspace_condition::CLEANED) {
        condition.observed_generation = workspace.metadata.generation;
    }
    if change != ConditionChange::Unchanged {
        let observed = Precondition { uid: &uid, resource_version: workspace.metadata.resource_version.as_deref().unwrap_or_default() };
        match status_merge_patch(&api(agent), &name, observed, &json!({ "conditions": conditions })).await {
            Ok(_) => tracing::info!(workspace = name, reason, "told whether it is cleaned"),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(if removed.is_ok() { Next::Done } else { Next::Retry })
}

/// No object of that name is bound here. What its directory holds is nobody's if the object is truly gone.
async fn forget(agent: &Arc<Agent>, key: &ObjectKey) -> Result<Next, CallError> {
    let all = workspace::all(&agent.store).unwrap_or_default();
    let Some(here) = all.into_iter().find(|here| *here.name == *key.name) else { return Ok(Next::Done) };
    if agent.locals.uses_workspace(&here.uid) {
        return Ok(Next::Done);
    }
    let found = get_uncached(&api(agent), &key.name).await?;
    if found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&here.uid)) {
        return Ok(Next::Done);
    }
    match remove(agent, here).await {
        Ok(()) => Ok(Next::Done),
        Err(error) => {
            tracing::warn!(workspace = %key, %error, "data of a workspace that is gone can't be removed");
            Ok(Next::Retry)
        }
    }
}

async fn remove(agent: &Arc<Agent>, which: WorkspaceUse) -> Result<(), String> {
    let store = agent.store.clone();
    let done = tokio::task::spawn_blocking(move || workspace::remove(&store, &which)).await;
    agent.trash_now.notify_one();
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn api(agent: &Agent) -> Api<PersistentWorkspace> {
    Api::namespaced(agent.client.clone(), &agent.me.namespace)
}
