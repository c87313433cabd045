//! Rows about updates of a Run: what may change and what may not (spec, "Transition Rules"; reference §1.1).

use serde_json::json;

use super::*;

const EXECUTION: &str = "runtime, source, mode, env, timeout, retryPolicy, and resources are immutable after Run creation";
const PLACEMENT: &str = "workspace and affinity are immutable after Run creation";
const CANCEL: &str = "cancelRequested may not transition from true to false";

pub fn rows() -> Vec<Row> {
    [placement_rows(), execution_rows(), mutable_rows()].concat()
}

fn affinity(weight: u32) -> Value {
    json!({"runAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "runAffinityTerm": {
        "labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kruntimes.io/runtime-pod"}}]}})
}

fn placement_rows() -> Vec<Row> {
    let with_workspace = || run(json!({"workspace": {"name": "ci"}}));
    let with_affinity = || run(json!({"affinity": affinity(5)}));
    let rows = [
        ("workspace added", run(json!({})), json!({"workspace": {"name": "ci"}})),
        ("workspace changed", with_workspace(), json!({"workspace": {"name": "other"}})),
        ("workspace removed", with_workspace(), json!({"workspace": null})),
        ("affinity added", run(json!({})), json!({"affinity": affinity(5)})),
        ("affinity added empty", run(json!({})), json!({"affinity": {}})),
        ("affinity changed", with_affinity(), json!({"affinity": affinity(6)})),
        ("affinity extended", with_affinity(), json!({"affinity": {"runAntiAffinity": {}}})),
        ("affinity removed", with_affinity(), json!({"affinity": null})),
        ("affinity emptied", with_affinity(), json!({"affinity": {"runAffinity": null}})),
        ("workspace and affinity swapped", with_workspace(), json!({"workspace": null, "affinity": affinity(1)})),
    ];
    let mut rows: Vec<Row> = rows.into_iter().map(|(name, old, spec)| update_refused(name, old, json!({ "spec": spec }), "spec", PLACEMENT)).collect();
    rows.extend([
        update(
            "workspace written in full",
            with_workspace(),
            json!({"spec": {"workspace":
            {"name": "ci", "kind": "PersistentWorkspace", "apiGroup": "kruntimes.io/v1alpha1"}}}),
        ),
        update("workspace defaults taken away come back", with_workspace(), json!({"spec": {"workspace": {"kind": null, "apiGroup": null}}})),
        update("affinity written again", with_affinity(), json!({"spec": {"affinity": affinity(5)}})),
    ]);
    rows
}

fn execution_rows() -> Vec<Row> {
    let rows = [
        ("runtime changed", json!({}), json!({"runtime": "python"})),
        ("mode changed", json!({}), json!({"mode": {"task": null, "function": {}}})),
        ("args added", json!({}), json!({"mode": {"task": {"args": ["a"]}}})),
        ("source added", json!({}), json!({"source": {"inline": "x"}})),
        ("source changed", json!({"source": {"inline": "x"}}), json!({"source": {"inline": "y"}})),
        ("source removed", json!({"source": {"inline": "x"}}), json!({"source": null})),
        ("env added", json!({}), json!({"env": [{"name": "A"}]})),
        ("env added empty", json!({}), json!({"env": []})),
        ("env changed", json!({"env": [{"name": "A"}]}), json!({"env": [{"name": "B"}]})),
        ("env removed", json!({"env": [{"name": "A"}]}), json!({"env": null})),
        ("timeout added", json!({}), json!({"timeout": "5s"})),
        ("timeout changed", json!({"timeout": "5s"}), json!({"timeout": "6s"})),
        ("timeout spelt otherwise", json!({"timeout": "60s"}), json!({"timeout": "1m"})),
        ("timeout removed", json!({"timeout": "5s"}), json!({"timeout": null})),
        ("retryPolicy added", json!({}), json!({"retryPolicy": {"maxAttempts": 2}})),
        ("retryPolicy changed", json!({"retryPolicy": {"maxAttempts": 2}}), json!({"retryPolicy": {"maxAttempts": 3}})),
        ("retryPolicy removed", json!({"retryPolicy": {"maxAttempts": 2}}), json!({"retryPolicy": null})),
        ("resources added", json!({}), json!({"resources": {"requests": {"gpu": 1}}})),
        ("resources changed", json!({"resources": {"requests": {"gpu": 1}}}), json!({"resources": {"requests": {"gpu": 2}}})),
        ("resources spelt otherwise", json!({"resources": {"requests": {"gpu": 1}}}), json!({"resources": {"requests": {"gpu": "1"}}})),
        ("resources removed", json!({"resources": {"requests": {"gpu": 1}}}), json!({"resources": null})),
    ];
    rows.into_iter().map(|(name, old, spec)| update_refused(name, run(old), json!({ "spec": spec }), "spec", EXECUTION)).collect()
}

fn mutable_rows() -> Vec<Row> {
    let cancelled = || run(json!({"cancelRequested": true}));
    let big = json!({
        "mode": {"task": {"args": many(256, |_| json!("a".repeat(1000)))}},
        "source": {"inline": "x".repeat(262_144)},
        "env": many(256, |i| json!({"name": format!("E{i}"), "value": "v".repeat(1000)})),
        "resources": {"requests": map_of(64, json!("1"))},
        "retryPolicy": {"retryableReasons": many(32, |_| json!("r".repeat(128)))},
        "workspace": {"name": "ci"},
        "affinity": affinity(5),
    });
    vec![
        update("labels changed", run(json!({})), json!({"metadata": {"labels": {"a": "b"}}})),
        update("ttl added", run(json!({})), json!({"spec": {"ttlSecondsAfterFinished": 5}})),
        update("ttl removed", run(json!({"ttlSecondsAfterFinished": 5})), json!({"spec": {"ttlSecondsAfterFinished": null}})),
        update("cancel requested", run(json!({})), json!({"spec": {"cancelRequested": true}})),
        update("cancel from false to true", run(json!({"cancelRequested": false})), json!({"spec": {"cancelRequested": true}})),
        update("cancel false taken away", run(json!({"cancelRequested": false})), json!({"spec": {"cancelRequested": null}})),
        update_refused("cancel taken back", cancelled(), json!({"spec": {"cancelRequested": false}}), "spec", CANCEL),
        update_refused("cancel taken away", cancelled(), json!({"spec": {"cancelRequested": null}}), "spec", CANCEL),
        update_refused("spec removed", run(json!({})), json!({"spec": null}), "", "spec may not be removed after Run creation"),
        update("spec added where there was none", json!({}), json!({"spec": {"runtime": "bash", "mode": {"task": {}}}})),
        update("nothing at all", run(json!({})), json!({})),
        update("a large Run is cancelled within CEL's budget", run(big), json!({"spec": {"cancelRequested": true}})),
        update_refused("an invalid value on update", run(json!({})), json!({"spec": {"ttlSecondsAfterFinished": -1}}), "spec.ttlSecondsAfterFinished", ""),
        update_refused("an unknown field on update, strictly", run(json!({})), json!({"spec": {"podName": "p"}}), "spec.podName", "unknown field").strictly(),
        RUN.row(
            "a status in an update of the object is dropped",
            Act::Update(run(json!({})), json!({"spec": {"ttlSecondsAfterFinished": 5}, "status": {"phase": "Failed"}})),
            Expect::Accepted(None),
        ),
        RUN.row(
            "a spec in an update of the status is dropped",
            Act::Status(run(json!({})), json!({"spec": {"runtime": "python"}, "status": {"phase": "Running"}})),
            Expect::Accepted(Some(("/spec/runtime", json!("bash")))),
        )
        .differs_offline("only the API server knows which subresource is written"),
    ]
}
