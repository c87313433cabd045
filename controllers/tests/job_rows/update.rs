//! Rows about changing a Job: two fields may change, one of them one way (specification, "Immutability").

use super::*;

pub fn rows() -> Vec<Row> {
    [immutable_rows(), mutable_rows()].concat()
}

fn immutable_rows() -> Vec<Row> {
    let env = json!({"env": [{"name": "A", "value": "1"}]});
    let resources = json!({"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}});
    let changes = [
        ("image changed", job(json!({})), json!({"task": {"image": "other"}}), "task"),
        ("command added", job(json!({})), json!({"task": {"command": ["x"]}}), "task"),
        ("command added empty", job(json!({})), json!({"task": {"command": []}}), "task"),
        ("args changed", task(json!({"args": ["a"]})), json!({"task": {"args": ["b"]}}), "task"),
        ("args removed", task(json!({"args": ["a"]})), json!({"task": {"args": null}}), "task"),
        ("workingDir added", job(json!({})), json!({"task": {"workingDir": "/"}}), "task"),
        ("workingDir removed", task(json!({"workingDir": "/"})), json!({"task": {"workingDir": null}}), "task"),
        ("env added", job(json!({})), json!({"task": env}), "task"),
        ("env changed", task(env.clone()), json!({"task": {"env": [{"name": "A", "value": "2"}]}}), "task"),
        (
            "env reordered",
            task(json!({"env": [{"name": "A", "value": ""}, {"name": "B", "value": ""}]})),
            json!({"task": {"env": [{"name": "B", "value": ""}, {"name": "A", "value": ""}]}}),
            "task",
        ),
        (
            "env made optional",
            task(json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}}]})),
            json!({"task": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k", "optional": true}}}]}}),
            "task",
        ),
        ("pull secret added", job(json!({})), json!({"task": {"imagePullSecrets": [{"name": "s"}]}}), "task"),
        ("pull secret removed", task(json!({"imagePullSecrets": [{"name": "s"}]})), json!({"task": {"imagePullSecrets": null}}), "task"),
        ("class added", job(json!({})), json!({"jobClassName": "a"}), "jobClassName"),
        ("class changed", job(json!({"jobClassName": "a"})), json!({"jobClassName": "b"}), "jobClassName"),
        ("class removed", job(json!({"jobClassName": "a"})), json!({"jobClassName": null}), "jobClassName"),
        ("resources added", job(json!({})), resources.clone(), "resources"),
        ("resources added empty", job(json!({})), json!({"resources": {}}), "resources"),
        ("resources changed", job(resources.clone()), json!({"resources": {"requests": {"cpu": "2"}}}), "resources"),
        ("resources spelt otherwise", job(resources.clone()), json!({"resources": {"requests": {"cpu": "1000m"}}}), "resources"),
        ("resources one removed", job(resources.clone()), json!({"resources": {"requests": {"memory": null}}}), "resources"),
        ("resources limit added", job(resources.clone()), json!({"resources": {"limits": {"cpu": "2"}}}), "resources"),
        ("resources removed", job(resources), json!({"resources": null}), "resources"),
        ("deadline added", job(json!({})), json!({"activeDeadlineSeconds": 5}), "activeDeadlineSeconds"),
        ("deadline changed", job(json!({"activeDeadlineSeconds": 5})), json!({"activeDeadlineSeconds": 6}), "activeDeadlineSeconds"),
        ("deadline removed", job(json!({"activeDeadlineSeconds": 5})), json!({"activeDeadlineSeconds": null}), "activeDeadlineSeconds"),
        ("cancel taken back", job(json!({"desiredState": "Cancelled"})), json!({"desiredState": "Running"}), "desiredState"),
        ("cancel taken away", job(json!({"desiredState": "Cancelled"})), json!({"desiredState": null}), "desiredState"),
    ];
    let message = |field: &str| match field {
        "task" => "task is immutable",
        "jobClassName" => "jobClassName is immutable",
        "resources" => "resources is immutable",
        "activeDeadlineSeconds" => "activeDeadlineSeconds is immutable",
        _ => "desiredState cannot leave Cancelled",
    };
    changes
        .into_iter()
        .map(|(name, old, spec, field)| JOB.update_refused(name, old, json!({ "spec": spec }), format!("spec.{field}"), message(field)))
        .collect()
}

fn mutable_rows() -> Vec<Row> {
    let update = |name: &str, object: Value, spec: Value| JOB.update(name, object, json!({ "spec": spec }));
    let big = || {
        task(json!({
            "command": many(64, |_| json!("c".repeat(2_000))),
            "args": many(512, |_| json!("a".repeat(1_000))),
            "env": many(128, |i| json!({"name": format!("E{i}"), "value": "v".repeat(2_000)})),
            "imagePullSecrets": many(8, |i| json!({"name": format!("s{i}")})),
        }))
    };
    vec![
        update("cancel", job(json!({})), json!({"desiredState": "Cancelled"})),
        update("cancel again", job(json!({"desiredState": "Cancelled"})), json!({"desiredState": "Cancelled"})),
        update("Running taken away comes back", job(json!({"desiredState": "Running"})), json!({"desiredState": null})),
        update("ttl added later", job(json!({})), json!({"ttlSecondsAfterFinished": 5})),
        update("ttl changed", job(json!({"ttlSecondsAfterFinished": 5})), json!({"ttlSecondsAfterFinished": 0})),
        update("ttl removed", job(json!({"ttlSecondsAfterFinished": 5})), json!({"ttlSecondsAfterFinished": null})),
        update("ttl changed after cancel", job(json!({"desiredState": "Cancelled"})), json!({"ttlSecondsAfterFinished": 7})),
        update("the same task again", job(json!({})), json!({"task": {"image": "registry.example/app:1"}})),
        update("a large Job is cancelled within CEL's budget", big(), json!({"desiredState": "Cancelled"})),
        JOB.update("labels", job(json!({})), json!({"metadata": {"labels": {"a": "b"}}})),
        JOB.update("a status in an update of the object is dropped", job(json!({})), json!({"metadata": {"labels": {"a": "b"}}, "status": {"startTime": "x"}}))
            .differs_offline("only the API server knows which subresource is written"),
        JOB.update_refused("ttl -1 on update", job(json!({})), json!({"spec": {"ttlSecondsAfterFinished": -1}}), "spec.ttlSecondsAfterFinished", ""),
        JOB.update_refused("desiredState of another word on update", job(json!({})), json!({"spec": {"desiredState": "Stopped"}}), "spec.desiredState", ""),
        JOB.update_refused("spec removed", job(json!({})), json!({"spec": null}), "spec", ""),
        JOB.update_refused("task removed", job(json!({})), json!({"spec": {"task": null}}), "spec.task", ""),
    ]
}
