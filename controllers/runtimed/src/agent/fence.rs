//! Whether a workspace may be used here (specification; decisions, "WorkspaceFencing"; the scheduler has the same rule for placing).

use berth_api::persistent_workspace::WorkspacePhase;
use berth_api::{PersistentWorkspace, Run};

use super::plan::Me;
use super::store::WorkspaceUse;

/// The workspace that a Run names, if it is this Pod's to use.
///
/// `again` is the attempt in place of a Run that uses the workspace already: its deletion waits for the Run.
///
/// # Errors
/// Why not, for people.
pub fn usable(run: &Run, found: Option<&PersistentWorkspace>, me: &Me, again: bool) -> Result<Option<WorkspaceUse>, String> {
    let Some(named) = &run.spec.workspace else { return Ok(None) };
    let name = &named.name;
    let Some(workspace) = found else { return Err(format!("workspace {name} not found")) };
    let status = workspace.status.clone().unwrap_or_default();
    let (bound_pod, bound_uid) = (status.bound_pod.unwrap_or_default(), status.bound_pod_uid.unwrap_or_default());
    if workspace.spec.runtime != run.spec.runtime {
        return Err(format!("workspace {name} is of runtime {:?}", workspace.spec.runtime));
    }
    match workspace.phase() {
        WorkspacePhase::Bound => {}
        WorkspacePhase::Released if again => {}
        phase => return Err(format!("workspace {name} is {phase}")),
    }
    if bound_pod != me.name || bound_uid != me.uid {
        return Err(format!("workspace {name} is bound to pod {bound_pod} with UID {bound_uid:?}"));
    }
    if workspace.metadata.deletion_timestamp.is_some() && !again {
        return Err(format!("workspace {name} is being deleted"));
    }
    match &workspace.metadata.uid {
        Some(uid) => Ok(Some(WorkspaceUse { name: name.clone(), uid: uid.clone() })),
        None => Err(format!("workspace {name} has no UID")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_workspace_bound_to_this_very_pod_is_used() {
        let me = Me { namespace: "ns".into(), name: "p".into(), uid: "pu".into(), runtime: "bash".into(), functions: false };
        let run: Run = serde_json::from_value(json!({"metadata": {}, "spec": {"runtime": "bash", "mode": {"task": {}}, "workspace": {"name": "w"}}})).unwrap();
        let good = || {
            json!({"metadata": {"name": "w", "uid": "wu"}, "spec": {"runtime": "bash"},
            "status": {"phase": "Bound", "boundPod": "p", "boundPodUID": "pu"}})
        };
        let with = |pointer: &str, value: Value| {
            let mut changed = good();
            *changed.pointer_mut(pointer).unwrap() = value;
            changed
        };
        let mut deleting = good();
        deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let rows = [
            (good(), true, true),
            (with("/spec/runtime", json!("python")), false, false),
            (with("/status/phase", json!("Pending")), false, false),
            (with("/status/phase", json!("Lost")), false, false),
            (with("/status/phase", json!("Released")), false, true),
            (with("/status/boundPod", json!("q")), false, false),
            (with("/status/boundPodUID", json!("other")), false, false),
            (with("/status/boundPodUID", json!(null)), false, false),
            (with("/metadata/uid", json!(null)), false, false),
            (deleting, false, true),
        ];
        for (workspace, first, again) in rows {
            let parsed: PersistentWorkspace = serde_json::from_value(workspace.clone()).unwrap();
            assert_eq!(usable(&run, Some(&parsed), &me, false).is_ok(), first, "{workspace}");
            assert_eq!(usable(&run, Some(&parsed), &me, true).is_ok(), again, "{workspace}");
        }
        assert!(usable(&run, None, &me, false).is_err());
    }
}
