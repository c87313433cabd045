//! Rows about what a Run executes: mode, source, resources, env, durations, retries (reference §1.1).

use serde_json::json;

use super::*;

pub fn rows() -> Vec<Row> {
    [spec_rows(), mode_rows(), source_rows(), resource_rows(), env_rows(), duration_rows(), retry_rows()].concat()
}

fn spec_rows() -> Vec<Row> {
    let mut rows = vec![
        accept("without spec", json!({})),
        accept("spec null", json!({"spec": null})),
        refuse("spec {}", json!({"spec": {}}), "spec.runtime", ""),
        refuse("spec {} also lacks mode", json!({"spec": {}}), "spec.mode", ""),
        refuse("spec a text", json!({"spec": "x"}), "spec", ""),
        refuse("runtime missing", run(json!({"runtime": null})), "spec.runtime", ""),
        refuse("runtime a number", run(json!({"runtime": 5})), "spec.runtime", ""),
        accept("cancelled at birth", run(json!({"cancelRequested": true}))),
        refuse("cancelRequested a text", run(json!({"cancelRequested": "true"})), "spec.cancelRequested", ""),
        accept("ttl 0", run(json!({"ttlSecondsAfterFinished": 0}))),
        accept("ttl at its limit", run(json!({"ttlSecondsAfterFinished": 2_147_483_647}))),
        refuse("ttl -1", run(json!({"ttlSecondsAfterFinished": -1})), "spec.ttlSecondsAfterFinished", ""),
        refuse("ttl beyond 32 bits", run(json!({"ttlSecondsAfterFinished": 2_147_483_648_u32})), "spec.ttlSecondsAfterFinished", ""),
        refuse("ttl beyond 64 bits", run(json!({"ttlSecondsAfterFinished": u64::MAX})), "spec.ttlSecondsAfterFinished", ""),
        refuse("an unknown field, strictly", run(json!({"timeOut": "5s"})), "spec.timeOut", "unknown field").strictly(),
        accept(
            "a status at creation is dropped",
            json!({"spec": {"runtime": "bash", "mode": {"task": {}}},
            "status": {"phase": "Nonsense"}}),
        )
        .differs_offline("the API server drops status on create; simulate reads dumps, where status counts"),
    ];
    for runtime in ["a", "bash", "A_b.c-D9", &"a".repeat(63)] {
        rows.push(accept(format!("runtime {runtime:.20}, {}", runtime.len()), run(json!({"runtime": runtime}))));
    }
    for runtime in ["", "-a", "a-", "a b", "a/b", "ä", &"a".repeat(64)] {
        rows.push(refuse(format!("runtime {runtime:.20?}, {}", runtime.len()), run(json!({"runtime": runtime})), "spec.runtime", ""));
    }
    rows
}

fn mode_rows() -> Vec<Row> {
    let one = "exactly one of task or function must be set";
    let escapes = "mode.task.entrypoint must be a relative path that does not contain '..'";
    let task = |fields: Value| run(json!({"mode": {"task": fields}}));
    let function = |fields: Value| run(json!({"mode": {"function": fields}}));
    let mut rows = vec![
        refuse("mode missing", run(json!({"mode": null})), "spec.mode", ""),
        refuse("mode {}", run(json!({"mode": {}})), "spec.mode", one),
        refuse("mode task null", run(json!({"mode": {"task": null}})), "spec.mode", one),
        refuse("mode task and function", run(json!({"mode": {"task": {}, "function": {}}})), "spec.mode", one),
        accept("mode function", function(json!({}))),
        accept("mode function in full", function(json!({"handler": "m.f", "idleTimeoutSeconds": 1}))),
        accept("handler of 512", function(json!({"handler": "h".repeat(512)}))),
        refuse("handler of 513", function(json!({"handler": "h".repeat(513)})), "spec.mode.function.handler", ""),
        refuse("idleTimeoutSeconds 0", function(json!({"idleTimeoutSeconds": 0})), "spec.mode.function.idleTimeoutSeconds", ""),
        accept("256 args", task(json!({"args": many(256, |_| json!("a"))}))),
        refuse("257 args", task(json!({"args": many(257, |_| json!("a"))})), "spec.mode.task.args", ""),
        accept("an arg of 8192 characters of two bytes", task(json!({"args": ["é".repeat(8192)]}))),
        refuse("an arg of 8193", task(json!({"args": ["a".repeat(8193)]})), "spec.mode.task.args[0]", ""),
        refuse("an arg that is a number", task(json!({"args": [1]})), "spec.mode.task.args[0]", ""),
        accept("entrypoint of 4096", task(json!({"entrypoint": "a".repeat(4096)}))),
        refuse("entrypoint of 4097", task(json!({"entrypoint": "a".repeat(4097)})), "spec.mode.task.entrypoint", ""),
        accept("any entrypoint with inline source", run(json!({"mode": {"task": {"entrypoint": "/../x"}}, "source": {"inline": "echo"}}))),
        refuse("entrypoint with a repository", run(json!({"mode": {"task": {"entrypoint": "../x"}}, "source": {"repoURL": "https://x/y"}})), "spec", escapes),
    ];
    for entrypoint in ["", "a", "a/b.sh", "./a", "..a", "a../b", "a/..b/c", "..."] {
        rows.push(accept(format!("entrypoint {entrypoint:?}"), task(json!({"entrypoint": entrypoint}))));
    }
    for entrypoint in ["/", "/a", "..", "../a", "a/..", "a/../b", "a//../b"] {
        rows.push(refuse(format!("entrypoint {entrypoint:?}"), task(json!({"entrypoint": entrypoint})), "spec", escapes));
    }
    rows
}

fn source_rows() -> Vec<Row> {
    let relative = "inlinePath must be a relative file path without empty, '.' or '..' segments";
    let only_function = "source.inlinePath is only valid for function mode with inline source";
    let source = |fields: Value| run(json!({"source": fields}));
    let function = |fields: Value| run(json!({"mode": {"function": {}}, "source": fields}));
    let mut rows = vec![
        accept("source {}", source(json!({}))),
        accept("source inline", source(json!({"inline": "echo"}))),
        accept("source inline empty", source(json!({"inline": ""}))),
        accept("source inline of 262144", source(json!({"inline": "x".repeat(262_144)}))),
        refuse("source inline of 262145", source(json!({"inline": "x".repeat(262_145)})), "spec.source.inline", ""),
        accept("source repository and commit", source(json!({"repoURL": "https://x/y", "commitSHA": "abc"}))),
        refuse("source commit alone", source(json!({"commitSHA": "abc"})), "spec.source", "commitSHA requires repoURL"),
        refuse(
            "source inline and repository",
            source(json!({"inline": "", "repoURL": "https://x/y"})),
            "spec.source",
            "inline and repoURL are mutually exclusive",
        ),
        refuse("source repoURL of 2049", source(json!({"repoURL": "u".repeat(2049)})), "spec.source.repoURL", ""),
        refuse("source commitSHA of 257", source(json!({"repoURL": "u", "commitSHA": "c".repeat(257)})), "spec.source.commitSHA", ""),
        accept("inlinePath of a function", function(json!({"inline": "x", "inlinePath": "a/b.py"}))),
        refuse("inlinePath of a task", source(json!({"inline": "x", "inlinePath": "a"})), "spec", only_function),
        refuse("inlinePath without inline", function(json!({"inlinePath": "a"})), "spec", only_function),
        refuse("function inline without inlinePath", function(json!({"inline": "x"})), "spec", "function mode inline source requires source.inlinePath"),
        accept("function from a repository", function(json!({"repoURL": "https://x/y"}))),
        refuse("inlinePath of 4097", function(json!({"inline": "x", "inlinePath": "a".repeat(4097)})), "spec.source.inlinePath", ""),
    ];
    for path in ["a", "a.py", "a/b/c", "..a", ".a", "a/...", "a b"] {
        rows.push(accept(format!("inlinePath {path:?}"), function(json!({"inline": "x", "inlinePath": path}))));
    }
    for path in ["/a", "a/", "a//b", ".", "./a", "a/./b", "..", "a/..", "../a", "/"] {
        rows.push(refuse(format!("inlinePath {path:?}"), function(json!({"inline": "x", "inlinePath": path})), "spec.source.inlinePath", relative));
    }
    rows.push(refuse("inlinePath empty", function(json!({"inline": "x", "inlinePath": ""})), "spec.source.inlinePath", ""));
    rows
}

fn resource_rows() -> Vec<Row> {
    let requests = |map: Value| run(json!({"resources": {"requests": map}}));
    let gpu = |quantity: Value| requests(json!({ "gpu": quantity }));
    let mut rows = vec![
        accept("resources {}", run(json!({"resources": {}}))),
        accept("requests {}", requests(json!({}))),
        accept("requests null", run(json!({"resources": {"requests": null}}))),
        accept("64 requests", requests(map_of(64, json!(1)))),
        refuse("65 requests", requests(map_of(65, json!(1))), "spec.resources.requests", ""),
        accept("a qualified resource name", requests(json!({"example.com/gpu": 1}))),
        refuse("limits, strictly", run(json!({"resources": {"limits": {"gpu": 1}}})), "spec.resources.limits", "unknown field").strictly(),
        refuse("requests a list", requests(json!([])), "spec.resources.requests", ""),
    ];
    for quantity in ["0", "1", "007", "+1", "1k", "1Ki", "1Ei", "1e3", "1E3", "1E", "1e+3", "2000m", "1.0", "9223372036854775807"] {
        rows.push(accept(format!("request {quantity:?}"), gpu(json!(quantity))));
    }
    for number in [0, 1, i64::MAX] {
        rows.push(accept(format!("request {number}"), gpu(json!(number))));
    }
    rows.push(store("request 1.0 as a number", gpu(json!(1.0)), "/spec/resources/requests/gpu", json!(1)));
    rows.push(store("request 1e3 as a number", gpu(json!(1e3)), "/spec/resources/requests/gpu", json!(1_000)));
    for quantity in ["500m", "1.5", ".5", "-1", "1n", "0.1Ki", "1e-1", "9223372036854775808", "8Ei", "1e30", "1e999999999"] {
        rows.push(accept(format!("request {quantity:?}"), gpu(json!(quantity))).ends("InvalidResources"));
    }
    rows.push(accept("request -1 as a number", gpu(json!(-1))).ends("InvalidResources"));
    for quantity in ["", " 1", "1 ", "abc", "1K", "1ki", "1e", "1e1.5", "1e1e1", "1e9999999999", "--1", ".", "+", "1.2.3", "1,5", "１", "1\n"] {
        rows.push(refuse(format!("request {quantity:?}"), gpu(json!(quantity)), "spec.resources.requests.gpu", ""));
    }
    for value in [json!(1.5), json!(true), json!({}), json!([])] {
        rows.push(refuse(format!("request {value}"), gpu(value), "spec.resources.requests.gpu", ""));
    }
    rows
}

fn env_rows() -> Vec<Row> {
    let env = |list: Value| run(json!({ "env": list }));
    let from = |source: Value| env(json!([{"name": "A", "valueFrom": source}]));
    vec![
        accept("env", env(json!([{"name": "A", "value": "b"}, {"name": "A"}, {"name": ""}]))),
        accept("256 env", env(many(256, |i| json!({"name": format!("E{i}")})))),
        refuse("257 env", env(many(257, |i| json!({"name": format!("E{i}")}))), "spec.env", ""),
        refuse("env without name", env(json!([{"value": "b"}])), "spec.env[0].name", ""),
        refuse("env value a number", env(json!([{"name": "A", "value": 1}])), "spec.env[0].value", ""),
        accept("env from a field", from(json!({"fieldRef": {"fieldPath": "metadata.name"}}))),
        refuse("env from no field", from(json!({"fieldRef": {}})), "spec.env[0].valueFrom.fieldRef.fieldPath", ""),
        store(
            "env from a secret without name",
            from(json!({"secretKeyRef": {"key": "k"}})),
            "/spec/env/0/valueFrom/secretKeyRef",
            json!({"key": "k", "name": ""}),
        ),
        store(
            "env from a config map without name",
            from(json!({"configMapKeyRef": {"key": "k", "optional": true}})),
            "/spec/env/0/valueFrom/configMapKeyRef",
            json!({"key": "k", "name": "", "optional": true}),
        ),
        store(
            "env from a file",
            from(json!({"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}})),
            "/spec/env/0/valueFrom/fileKeyRef/optional",
            json!(false),
        ),
        accept("env divisor 1", from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}}))),
        refuse(
            "env divisor 1e1.5",
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1e1.5"}})),
            "spec.env[0].valueFrom.resourceFieldRef.divisor",
            "",
        ),
    ]
}

fn duration_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let range = "must be a Go duration of at most 2562047h47m16.854775807s";
    type InSpec = fn(Value) -> Value;
    let fields: [(&str, InSpec); 2] =
        [("spec.timeout", |value| run(json!({ "timeout": value }))), ("spec.retryPolicy.backoff", |value| run(json!({"retryPolicy": {"backoff": value}})))];
    for (path, object) in fields {
        for text in [
            "0",
            "0s",
            "5s",
            "+5s",
            "-5s",
            "1h30m",
            "300ms",
            "1.5h",
            ".5s",
            "5.s",
            "1us",
            "1µs",
            "1μs",
            "1ns",
            "2562047h47m16.854775807s",
            "-2562047h47m16.854775808s",
        ] {
            rows.push(accept(format!("{path} {text:?}"), object(json!(text))));
        }
        for text in ["", "abc", "5", "00", "5d", "5 s", "s", ".s", "1h 30m", "+-5s", "5S", "1,5s", "5s\n"] {
            rows.push(refuse(format!("{path} {text:?}"), object(json!(text)), path, ""));
        }
        for text in ["99999999h", "2562047h47m16.854775808s", "9223372036854775808ns", "2562047h2562047h"] {
            rows.push(refuse(format!("{path} {text:?}"), object(json!(text)), path, range));
        }
        for value in [json!(5), json!(5.5), json!({})] {
            rows.push(refuse(format!("{path} {value}"), object(value), path, ""));
        }
    }
    rows
}

fn retry_rows() -> Vec<Row> {
    let policy = |fields: Value| run(json!({ "retryPolicy": fields }));
    let mut rows = vec![
        accept("retryPolicy {}", policy(json!({}))),
        accept("32 reasons", policy(json!({"retryableReasons": many(32, |_| json!("PodGone"))}))),
        refuse("33 reasons", policy(json!({"retryableReasons": many(33, |_| json!("PodGone"))})), "spec.retryPolicy.retryableReasons", ""),
        accept("a reason of 128", policy(json!({"retryableReasons": ["r".repeat(128)]}))),
        refuse("a reason of 129", policy(json!({"retryableReasons": ["r".repeat(129)]})), "spec.retryPolicy.retryableReasons[0]", ""),
    ];
    for (attempts, fits) in [(0, false), (1, true), (100, true), (101, false)] {
        let (name, object) = (format!("maxAttempts {attempts}"), policy(json!({"maxAttempts": attempts})));
        rows.push(if fits { accept(name, object) } else { refuse(name, object, "spec.retryPolicy.maxAttempts", "") });
    }
    rows
}
