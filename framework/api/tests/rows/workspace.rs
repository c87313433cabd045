//! Rows about `Run.spec.workspace` (spec, "Run Workspace Reference") and about PersistentWorkspace (reference §1.5).

use serde_json::json;

use super::*;

pub fn rows() -> Vec<Row> {
    [reference_rows(), object_rows()].concat()
}

fn reference(fields: Value) -> Value {
    run(json!({ "workspace": fields }))
}

fn reference_rows() -> Vec<Row> {
    let full = json!({"name": "ci", "kind": "PersistentWorkspace", "apiGroup": "kruntimes.io/v1alpha1"});
    let at = "/spec/workspace";
    let mut rows = vec![
        accept("workspace absent", run(json!({}))),
        store(
            "workspace null is absent",
            json!({"spec": {"runtime": "bash", "mode": {"task": {}}, "workspace": null}}),
            "/spec",
            json!({"runtime": "bash", "mode": {"task": {}}}),
        ),
        store("workspace by name only", reference(json!({"name": "ci"})), at, full.clone()),
        store("workspace in full", reference(full.clone()), at, full.clone()),
        store("workspace with kind only", reference(json!({"name": "ci", "kind": "PersistentWorkspace"})), at, full.clone()),
        store("workspace with apiGroup only", reference(json!({"name": "ci", "apiGroup": "kruntimes.io/v1alpha1"})), at, full.clone()),
        store("workspace kind null is the default", reference(json!({"name": "ci", "kind": null, "apiGroup": null})), at, full.clone()),
        refuse("workspace as a text", run(json!({"workspace": "ci"})), "spec.workspace", ""),
        refuse("workspace without name", reference(json!({})), "spec.workspace.name", ""),
        refuse("workspace name null", reference(json!({"name": null})), "spec.workspace.name", ""),
        refuse("workspace name a number", reference(json!({"name": 5})), "spec.workspace.name", ""),
        store("workspace.namespace has no effect", reference(json!({"name": "ci", "namespace": "other"})), at, full),
        refuse("workspace.namespace, strictly", reference(json!({"name": "ci", "namespace": "other"})), "spec.workspace.namespace", "unknown field").strictly(),
        refuse("workspace.uid, strictly", reference(json!({"name": "ci", "uid": "x"})), "spec.workspace.uid", "unknown field").strictly(),
    ];
    for kind in ["PersistentVolumeClaim", "persistentworkspace", "Run", ""] {
        rows.push(refuse(format!("workspace kind {kind:?}"), reference(json!({"name": "ci", "kind": kind})), "spec.workspace.kind", ""));
    }
    for group in ["kruntimes.io", "kruntimes.io/v1", "kruntimes.io/v1beta1", "v1", ""] {
        rows.push(refuse(format!("workspace apiGroup {group:?}"), reference(json!({"name": "ci", "apiGroup": group})), "spec.workspace.apiGroup", ""));
    }
    for name in ["a", "1", "a-b", "a.b-c.d1", &"a".repeat(253)] {
        rows.push(accept(format!("workspace name {name:.20}, {}", name.len()), reference(json!({"name": name}))));
    }
    for name in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a/b", "a b", "a\n", "ä", "a.-b", &"a".repeat(254)] {
        rows.push(refuse(format!("workspace name {name:.20?}, {}", name.len()), reference(json!({"name": name})), "spec.workspace.name", ""));
    }
    rows
}

fn object_rows() -> Vec<Row> {
    let spec = persistent_workspace;
    let defaults = json!({"runtime": "bash", "mode": "RuntimePodLocal", "cleanupPolicy": "DeleteAfterTTL"});
    let bound = json!({"phase": "Bound", "runtime": "bash", "boundPod": "p", "boundPodUID": "u", "path": "/workspace/x",
        "lastUsedTime": "2026-01-02T03:04:05Z"});
    let condition = |index: usize| {
        json!({"type": format!("T{index}"), "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z"})
    };
    let mut rows = vec![
        store("defaults", spec(json!({})), "/spec", defaults.clone()),
        store("nulls are defaults", spec(json!({})), "/spec", defaults),
        accept("every field", spec(json!({"mode": "RuntimePodLocal", "ttlSecondsAfterUnused": 60, "cleanupPolicy": "Retain"}))),
        accept("without spec", json!({})),
        refuse("empty spec", json!({"spec": {}}), "spec.runtime", ""),
        refuse("runtime empty", spec(json!({"runtime": ""})), "spec.runtime", ""),
        refuse("runtime of 64 characters", spec(json!({"runtime": "a".repeat(64)})), "spec.runtime", ""),
        accept("runtime of 63 characters", spec(json!({"runtime": "a".repeat(63)}))),
        refuse("runtime with a space", spec(json!({"runtime": "a b"})), "spec.runtime", ""),
        refuse("another mode", spec(json!({"mode": "Shared"})), "spec.mode", ""),
        refuse("another cleanupPolicy", spec(json!({"cleanupPolicy": "Delete"})), "spec.cleanupPolicy", ""),
        refuse("ttl below zero", spec(json!({"ttlSecondsAfterUnused": -1})), "spec.ttlSecondsAfterUnused", ""),
        accept("ttl zero", spec(json!({"ttlSecondsAfterUnused": 0}))),
        refuse("ttl beyond 32 bits", spec(json!({"ttlSecondsAfterUnused": 2_147_483_648_u32})), "spec.ttlSecondsAfterUnused", ""),
        refuse("an unknown field, strictly", spec(json!({"podName": "p"})), "spec.podName", "unknown field").strictly(),
        store("an unknown field has no effect", spec(json!({"podName": "p"})), "/spec/runtime", json!("bash")),
        update_refused(
            "runtime changed",
            spec(json!({})),
            json!({"spec": {"runtime": "python"}}),
            "spec.runtime",
            "runtime is immutable after PersistentWorkspace creation",
        ),
        update_refused("runtime removed", spec(json!({})), json!({"spec": {"runtime": null}}), "spec.runtime", ""),
        update_refused("spec removed", spec(json!({})), json!({"spec": null}), "", "spec may not be removed after PersistentWorkspace creation"),
        update("ttl and policy changed", spec(json!({})), json!({"spec": {"ttlSecondsAfterUnused": 5, "cleanupPolicy": "Retain"}})),
        RUN.row("status bound, with the Pod's UID", Act::Status(spec(json!({})), json!({"status": bound.clone()})), Expect::Accepted(Some(("/status", bound)))),
        RUN.row(
            "status without phase is Pending",
            Act::Status(spec(json!({})), json!({"status": {"path": "x"}})),
            Expect::Accepted(Some(("/status", json!({"phase": "Pending", "path": "x"})))),
        ),
        status_refused("status of another phase", spec(json!({})), json!({"phase": "Ready"}), "status.phase", ""),
        status("16 conditions", spec(json!({})), json!({"conditions": many(16, condition)})),
        status_refused("17 conditions", spec(json!({})), json!({"conditions": many(17, condition)}), "status.conditions", ""),
        status_refused("lastUsedTime nonsense", spec(json!({})), json!({"lastUsedTime": "yesterday"}), "status.lastUsedTime", ""),
    ];
    for phase in ["Pending", "Bound", "Lost", "Released"] {
        rows.push(status(format!("phase {phase}"), spec(json!({})), json!({"phase": phase})));
    }
    rows.into_iter().map(|row| Row { name: format!("PersistentWorkspace {}", row.name), ..row }.of(WORKSPACE)).collect()
}
