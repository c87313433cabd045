//! Rows about creating a Job (specification, "Spec").

use super::*;

pub fn rows() -> Vec<Row> {
    [object_rows(), task_rows(), env_rows(), resource_rows(), limit_rows()].concat()
}

fn accept(name: impl Into<String>, object: Value) -> Row {
    JOB.accept(name, object)
}

fn refuse(name: impl Into<String>, object: Value, path: impl Into<String>, message: &'static str) -> Row {
    JOB.refuse(name, object, path, message)
}

fn named(name: &str) -> Value {
    merge(&job(json!({})), &json!({"metadata": {"name": name}}))
}

fn object_rows() -> Vec<Row> {
    vec![
        JOB.store("the example of the specification", example(), "/spec", example()["spec"].clone()),
        JOB.store("the least Job runs", job(json!({})), "/spec/desiredState", json!("Running")),
        accept("a Job cancelled at birth", job(json!({"desiredState": "Cancelled"}))),
        accept("a name of 63", named(&"a".repeat(63))),
        refuse("a name of 64", named(&"a".repeat(64)), "", "name must be at most 63 characters"),
        refuse("without spec", json!({}), "spec", ""),
        refuse("spec null", json!({"spec": null}), "spec", ""),
        refuse("without task", json!({"spec": {}}), "spec.task", ""),
        refuse("desiredState of another word", job(json!({"desiredState": "Paused"})), "spec.desiredState", ""),
        refuse("desiredState empty", job(json!({"desiredState": ""})), "spec.desiredState", ""),
        refuse("a field of a Pod, strictly", job(json!({"nodeName": "n"})), "spec.nodeName", "unknown field").strictly(),
        refuse("suspend, strictly", job(json!({"suspend": true})), "spec.suspend", "unknown field").strictly(),
        accept("a status at creation is dropped", merge(&job(json!({})), &json!({"status": {"startTime": "nonsense"}})))
            .differs_offline("the API server drops a status at creation"),
    ]
}

fn task_rows() -> Vec<Row> {
    let mut rows = vec![
        refuse("task without image", task(json!({"image": null})), "spec.task.image", ""),
        accept("an image with a digest", task(json!({"image": format!("r.example:5000/a/b@sha256:{}", "0".repeat(64))}))),
        accept("an image of 1024", task(json!({"image": "i".repeat(1024)}))),
        accept("8 pull secrets", task(json!({"imagePullSecrets": many(8, |i| json!({"name": format!("s{i}")}))}))),
        refuse("9 pull secrets", task(json!({"imagePullSecrets": many(9, |i| json!({"name": format!("s{i}")}))})), "spec.task.imagePullSecrets", ""),
        refuse("a pull secret twice", task(json!({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]})), "spec.task.imagePullSecrets[1]", ""),
        refuse("a pull secret without name", task(json!({"imagePullSecrets": [{}]})), "spec.task.imagePullSecrets[0].name", ""),
        refuse("a pull secret of no name", task(json!({"imagePullSecrets": [{"name": "A b"}]})), "spec.task.imagePullSecrets[0].name", ""),
        accept("64 words of command and 512 of args", task(json!({"command": many(64, |_| json!("c")), "args": many(512, |_| json!("a"))}))),
        refuse("65 words of command", task(json!({"command": many(65, |_| json!("c"))})), "spec.task.command", ""),
        refuse("513 args", task(json!({"args": many(513, |_| json!("a"))})), "spec.task.args", ""),
        accept("an arg of 131072", task(json!({"args": ["é".repeat(131_072)]}))),
        refuse("an arg of 131073", task(json!({"args": ["a".repeat(131_073)]})), "spec.task.args[0]", ""),
        accept("argv exactly as given", task(json!({"command": [""], "args": ["$HOME", "$(A)", "$$", "a\nb\t\"'\\", "é\u{202e}"]}))),
        refuse("an arg with NUL", task(json!({"args": ["a\u{0}b"]})), "spec.task.args[0]", ""),
        refuse("a command with NUL", task(json!({"command": ["\u{0}"]})), "spec.task.command[0]", ""),
        accept("workingDir", task(json!({"workingDir": "/a b"}))),
        refuse("workingDir relative", task(json!({"workingDir": "a"})), "spec.task.workingDir", ""),
        refuse("workingDir empty", task(json!({"workingDir": ""})), "spec.task.workingDir", ""),
        refuse("workingDir of 4097", task(json!({"workingDir": format!("/{}", "d".repeat(4096))})), "spec.task.workingDir", ""),
        refuse("workingDir with NUL", task(json!({"workingDir": "/\u{0}"})), "spec.task.workingDir", ""),
    ];
    for image in ["", " ", "a b", "a\n", &"i".repeat(1025)] {
        rows.push(refuse(format!("image {image:.10?}, {}", image.len()), task(json!({"image": image})), "spec.task.image", ""));
    }
    rows
}

fn env_rows() -> Vec<Row> {
    let one = |env: Value| task(json!({"env": [env]}));
    let both = "exactly one of value, valueFrom";
    let source = "exactly one of secretKeyRef, configMapKeyRef";
    let key = json!({"name": "n", "key": "k"});
    let mut rows = vec![
        accept("env empty value", one(json!({"name": "A", "value": ""}))),
        accept("env optional", one(json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k", "optional": true}}}))),
        refuse("env without value", one(json!({"name": "A"})), "spec.task.env[0]", both),
        refuse("env value and valueFrom", one(json!({"name": "A", "value": "", "valueFrom": {"secretKeyRef": key}})), "spec.task.env[0]", both),
        refuse("env from nowhere", one(json!({"name": "A", "valueFrom": {}})), "spec.task.env[0].valueFrom", source),
        refuse("env from both", one(json!({"name": "A", "valueFrom": {"secretKeyRef": key, "configMapKeyRef": key}})), "spec.task.env[0].valueFrom", source),
        refuse(
            "env from a field, strictly",
            one(json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})),
            "spec.task.env[0].valueFrom.fieldRef",
            "unknown field",
        )
        .strictly(),
        refuse("env from a field", one(json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})), "spec.task.env[0].valueFrom", source),
        refuse("env twice", task(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]})), "spec.task.env[1]", ""),
        accept("128 env", task(json!({"env": many(128, |i| json!({"name": format!("E{i}"), "value": "v"}))}))),
        refuse("129 env", task(json!({"env": many(129, |i| json!({"name": format!("E{i}"), "value": "v"}))})), "spec.task.env", ""),
        accept("env value of 32768", one(json!({"name": "A", "value": "v".repeat(32_768)}))),
        refuse("env value of 32769", one(json!({"name": "A", "value": "v".repeat(32_769)})), "spec.task.env[0].value", ""),
        refuse("env value with NUL", one(json!({"name": "A", "value": "\u{0}"})), "spec.task.env[0].value", ""),
        refuse("env value a number", one(json!({"name": "A", "value": 1})), "spec.task.env[0].value", ""),
    ];
    for name in ["A", "a.b-c", "1st", "with space", "!~", &"N".repeat(256)] {
        rows.push(accept(format!("env name {name:.12?}, {}", name.len()), one(json!({"name": name, "value": ""}))));
    }
    for name in ["", "A=B", "A\n", "é", &"N".repeat(257)] {
        rows.push(refuse(format!("env name {name:.12?}, {}", name.len()), one(json!({"name": name, "value": ""})), "spec.task.env[0].name", ""));
    }
    for kind in ["secretKeyRef", "configMapKeyRef"] {
        let of = |fields: Value| one(json!({"name": "A", "valueFrom": {kind: merge(&key, &fields)}}));
        let at = |field: &str| format!("spec.task.env[0].valueFrom.{kind}.{field}");
        rows.extend([
            accept(kind.to_string(), of(json!({}))),
            accept(format!("{kind} with a dotted key"), of(json!({"key": ".docker_config-1.json"}))),
            refuse(format!("{kind} without key"), of(json!({"key": null})), at("key"), ""),
            refuse(format!("{kind} without name"), of(json!({"name": null})), at("name"), ""),
            refuse(format!("{kind} of a name with a slash"), of(json!({"name": "other/secret"})), at("name"), ""),
            refuse(format!("{kind} of a key with a slash"), of(json!({"key": "a/b"})), at("key"), ""),
            refuse(format!("{kind} of key .."), of(json!({"key": ".."})), at("key"), ""),
            refuse(format!("{kind} of key ..a"), of(json!({"key": "..a"})), at("key"), ""),
            refuse(format!("{kind} of key ."), of(json!({"key": "."})), at("key"), ""),
        ]);
    }
    rows
}

fn resource_rows() -> Vec<Row> {
    let with = |resources: Value| job(json!({ "resources": resources }));
    let mut rows = vec![
        accept("resources empty", with(json!({}))),
        accept("resources of empty requests", with(json!({"requests": {}, "limits": {}}))),
        JOB.store("resources as numbers stay numbers", with(json!({"requests": {"cpu": 1}})), "/spec/resources/requests/cpu", json!(1)),
        accept(
            "requests equal to limits, written otherwise",
            with(json!({"requests": {"cpu": "1000m", "memory": "1Gi"}, "limits": {"cpu": 1, "memory": "1024Mi"}})),
        ),
        refuse(
            "requests.cpu above limits",
            with(json!({"requests": {"cpu": "1001m"}, "limits": {"cpu": 1}})),
            "spec.resources",
            "requests.cpu must not exceed limits.cpu",
        ),
        refuse(
            "requests.memory above limits",
            with(json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}})),
            "spec.resources",
            "requests.memory must not exceed limits.memory",
        ),
        accept("a request alone and a limit alone", with(json!({"requests": {"cpu": 8}, "limits": {"memory": "1Mi"}}))),
        refuse("another resource, strictly", with(json!({"limits": {"nvidia.com/gpu": 1}})), "spec.resources.limits.nvidia.com/gpu", "unknown field")
            .strictly(),
    ];
    for amount in [json!("100m"), json!("0.5"), json!(".5"), json!("1e3"), json!("1E3"), json!("12E"), json!("1Ei"), json!("+1"), json!("1n"), json!(3)] {
        rows.push(accept(format!("cpu {amount}"), with(json!({"limits": {"cpu": amount}}))));
    }
    for amount in ["0", "0m", "-1", "", "1K", "1e1.5", "1e100", "abc", "1 ", "NaN"] {
        rows.push(refuse(format!("cpu {amount:?}"), with(json!({"limits": {"cpu": amount}})), "spec.resources.limits.cpu", ""));
    }
    for amount in [json!(0), json!(-1)] {
        rows.push(refuse(
            format!("memory {amount}"),
            with(json!({"requests": {"memory": amount}})),
            "spec.resources.requests.memory",
            "must be a positive quantity",
        ));
    }
    rows.push(refuse("memory of 33 characters", with(json!({"requests": {"memory": "1".repeat(33)}})), "spec.resources.requests.memory", ""));
    rows.push(refuse("memory a boolean", with(json!({"requests": {"memory": true}})), "spec.resources.requests.memory", ""));
    rows
}

fn limit_rows() -> Vec<Row> {
    let mut rows = vec![
        accept("deadline 1", job(json!({"activeDeadlineSeconds": 1}))),
        accept("deadline at its limit", job(json!({"activeDeadlineSeconds": 2_147_483_647}))),
        refuse("deadline 0", job(json!({"activeDeadlineSeconds": 0})), "spec.activeDeadlineSeconds", ""),
        refuse("deadline beyond its limit", job(json!({"activeDeadlineSeconds": 2_147_483_648_u32})), "spec.activeDeadlineSeconds", ""),
        accept("ttl 0", job(json!({"ttlSecondsAfterFinished": 0}))),
        refuse("ttl -1", job(json!({"ttlSecondsAfterFinished": -1})), "spec.ttlSecondsAfterFinished", ""),
        refuse("ttl beyond 32 bits", job(json!({"ttlSecondsAfterFinished": 2_147_483_648_u32})), "spec.ttlSecondsAfterFinished", ""),
    ];
    for name in ["default", "a", "1-b", &"c".repeat(63)] {
        rows.push(accept(format!("class {name:.10}, {}", name.len()), job(json!({"jobClassName": name}))));
    }
    for name in ["", "A", "a.b", "-a", "a-", "a/b", &"c".repeat(64)] {
        rows.push(refuse(format!("class {name:.10?}, {}", name.len()), job(json!({"jobClassName": name})), "spec.jobClassName", ""));
    }
    rows
}
