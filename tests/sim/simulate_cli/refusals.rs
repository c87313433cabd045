//! What is wrong is told with file, line and field: objects go on without each other, unreadable input ends with 2.

use super::{Answer, a_run, lines, pod, result, simulate};

/// A file of this text in a folder of its own.
fn file(folder: &tempfile::TempDir, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_object_the_api_refuses_is_failed_with_its_place_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let head = "apiVersion: kruntimes.io/v1alpha1\nkind: Run\nmetadata:\n  namespace: ns\n  name: bad\nspec:\n  runtime: bash\n  mode:\n    task: {}\n";
    let rows: [(&str, &str); 7] = [
        ("  workspace:\n    name: Bad_Name\n", "13: spec.workspace.name: "),
        ("  workspace:\n    name: w\n    kind: ConfigMap\n", "14: spec.workspace.kind: unsupported value \"ConfigMap\""),
        (
            "  affinity:\n    runAffinity:\n      requiredDuringSchedulingIgnoredDuringExecution:\n      - labelSelector: {matchLabels: {a: b}}\n        topologyKey: zone\n",
            "16: spec.affinity.runAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: ",
        ),
        ("  ttlSecondsAfterFinished: soon\n", "12: spec.ttlSecondsAfterFinished: "),
        ("  timeout: 5\n", "12: spec.timeout: "),
        ("  env:\n  - value: x\n", "13: spec.env[0].name: "),
        ("  timeout: 5s\n  timeout: 6s\n", "12: spec.timeout: stands twice"),
    ];
    for (more, expected) in rows {
        let text = format!("{}---\n{head}{more}---\n{}", pod("p", 2, ""), a_run("good", "", ""));
        let path = file(&folder, "runs.yaml", text);
        let Answer { code, out, .. } = simulate(&["-f", &path, "-o", "json", "--require-placed"], "");
        let result: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, result["runs"][0]["phase"].as_str(), result["runs"][0]["reason"].as_str()), (1, Some("Failed"), Some("InvalidSpec")), "{more}");
        let message = result["runs"][0]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{path}:{expected}")), "{message}\n{expected}");
        assert_eq!(lines(&result)[1], "good p");
        assert_eq!(result["summary"]["failed"], 1);
    }
}

#[test]
fn lines_are_right_inside_lists_and_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "kind: List\nitems:\n- apiVersion: kruntimes.io/v1alpha1\n  kind: Run\n  metadata: {name: a}\n  spec:\n    mode: {task: {}}\n    runtime: 5\n";
    let json = "{\n\"kind\": \"List\", \"items\": [\n{\"apiVersion\": \"kruntimes.io/v1alpha1\", \"kind\": \"Run\",\n\"metadata\": {\"name\": \"a\"},\n\"spec\": {\"mode\": {\"task\": {}},\n\n\n\t\"runtime\": 5}}]}\n";
    for (name, text) in [("a.yaml", yaml), ("a.json", json)] {
        let path = file(&folder, name, text);
        let answer = simulate(&["-f", &path], "");
        assert!(answer.out.contains(&format!("InvalidSpec: {path}:8: spec.runtime: must be of type string")), "{}", answer.out);
    }
}

#[test]
fn workspaces_are_refused_alike_and_pods_that_cannot_be_read_are_left_out() {
    let input = r#"
{"apiVersion":"kruntimes.io/v1alpha1","kind":"PersistentWorkspace","metadata":{"name":"w"},"spec":{"runtime":"bash","mode":"Shared"}}
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"odd","labels":{"runtime":7}}}
{"apiVersion":"kruntimes.io/v2","kind":"Run","metadata":{"name":"newer"},"spec":{"runtime":"bash","mode":{"task":{}}}}
"#;
    let answer = simulate(&["-f", "-"], input);
    assert!(answer.out.contains("default/w  Failed  -    InvalidSpec: <stdin>:2: spec.mode: "), "{}", answer.out);
    assert!(answer.out.contains("InvalidSpec: <stdin>:4: apiVersion: must be kruntimes.io/v1alpha1, not \"kruntimes.io/v2\""), "{}", answer.out);
    assert_eq!(
        answer.err,
        "warning: <stdin>:3: Pod default/odd can't be read and is left out: metadata.labels.runtime: invalid type: integer `7`, expected a string\n"
    );
}

#[test]
fn a_refused_object_that_holds_a_pod_goes_on_holding_it() {
    let held = a_run("held", "", r#""status":{"phase":"Running","assignedPod":"p"}"#).replace(r#""mode""#, r#""timeout":"never","mode""#);
    let answer = simulate(&["-f", "-", "-o", "json"], &(pod("p", 1, "") + &held + &a_run("a", "", "")));
    assert_eq!(
        lines(&serde_json::from_str(&answer.out).unwrap()),
        ["held p/Running", "a Pending/Unschedulable 0/1 fit: 1 insufficient runs"],
        "{}",
        answer.err
    );
    assert!(answer.err.starts_with("warning: <stdin>:2: spec.timeout: ") && answer.err.ends_with("; Run ns/held is Running and stays so\n"), "{}", answer.err);
}

#[test]
fn an_unknown_field_has_no_effect_and_a_warning() {
    let run = a_run("a", "", "").replace(r#""mode""#, r#""podName":"q","mode""#);
    let answer = simulate(&["-f", "-"], &(pod("p", 1, "") + &run));
    assert_eq!(answer.err, "warning: <stdin>:2: Run ns/a: unknown field spec.podName has no effect\n");
}

#[test]
fn what_no_schema_can_check_fails_in_the_core_and_is_told_with_its_place() {
    let required = "spec.affinity.runAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector";
    let selects = |expression: &str| {
        let term = format!(r#"{{"topologyKey":"kruntimes.io/runtime-pod","labelSelector":{{"matchExpressions":[{{"key":"a",{expression}}}]}}}}"#);
        format!(r#""affinity":{{"runAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":[{term}]}}}}"#)
    };
    let long = r#""resources":{"requests":{"example.com/gpu":"99999999999999999999"}}"#;
    for (spec, expected) in [
        (
            r#""resources":{"requests":{"example.com/gpu":"1500m"}}"#.to_owned(),
            "InvalidResources <stdin>:3: resource request \"example.com/gpu\" must be a non-negative integer".to_owned(),
        ),
        (
            long.to_owned(),
            "InvalidResources <stdin>:3: resource request \"example.com/gpu\" must be a non-negative integer, and is greater than 9223372036854775807"
                .to_owned(),
        ),
        (selects(r#""operator":"In""#), format!("InvalidSpec <stdin>:3: {required}: values: Invalid value: []: for 'in'")),
        (
            selects(r#""operator":"Exists","values":["x"]"#),
            format!("InvalidSpec <stdin>:3: {required}: values: Invalid value: [\"x\"]: values set must be empty"),
        ),
        (selects(r#""operator":"In","values":["日本"]"#), format!("InvalidSpec <stdin>:3: {required}: values[0][a]: Invalid value: \"日本\": a valid label")),
    ] {
        let run = a_run("a", "", "").replace(r#""mode""#, &format!("\n{spec},\"mode\""));
        let lines = lines(&result(&[], &(pod("p", 1, "") + &run)));
        assert!(lines[0].starts_with(&format!("a Failed/{expected}")), "{lines:?}\n{expected}");
    }
}

#[test]
fn metadata_and_numbers_are_judged_as_the_api_server_does() {
    for (meta, expected) in [
        (r#""labels":{"a/b/c":"x"}"#, r#"metadata.labels: "a/b/c": a valid label key must consist"#),
        (r#""labels":{"a":"x y"}"#, r#"metadata.labels: "x y": a valid label must be"#),
        (r#""annotations":{"日本":"x"}"#, r#"metadata.annotations: "日本": name part must consist"#),
        (r#""ownerReferences":[{}]"#, "metadata.ownerReferences[0].apiVersion: must not be empty"),
    ] {
        let lines = lines(&result(&[], &a_run("a", meta, "")));
        assert!(lines[0].starts_with(&format!("a Failed/InvalidSpec <stdin>:1: {expected}")), "{lines:?}");
    }
    let yaml = |runs: &str| {
        format!(
            "---\napiVersion: kruntimes.io/v1alpha1\nkind: Run\nmetadata: {{namespace: ns, name: 'a{runs}'}}\nspec: {{runtime: bash, mode: {{task: {{}}}}, resources: {{requests: {{runs: {runs}}}}}}}\n"
        )
    };
    let input = pod("p", 1_011, "").replace('\n', "\n---\n") + &["1e3", "1.0", "010"].map(yaml).concat();
    let result = result(&[], &input);
    assert_eq!(lines(&result), ["a1e3 p", "a1.0 p", "a010 p"]);
    // 1000 + 1 + 8, as kubectl reads them: there is room for two more and not for three.
    let more = |runs: &str| lines(&self::result(&[], &(input.clone() + &yaml(runs))))[3].clone();
    assert_eq!((more("2").as_str(), more("3").as_str()), ("a2 p", "a3 Pending/Unschedulable 0/1 fit: 1 insufficient runs"));
}

#[test]
fn a_bad_capacity_is_ignored_with_a_warning() {
    let answer = simulate(&["-f", "-"], &pod("p", 1, "").replace(r#""1""#, r#""many""#));
    assert_eq!(answer.err, "warning: Pod ns/p: its capacity of runs is ignored: \"many\" is no quantity from 0 to 9223372036854775807\n");
}

#[test]
fn unreadable_input_exits_2_and_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let rows: [(&str, &[u8], &str); 8] = [
        ("a.yaml", b"kind: Run\nspec: [\n", ":2: unclosed bracket '['"),
        ("b.yaml", b"kind: Run\n---\nkind: Run\n  x: 1\n", ":4: "),
        ("c.json", b"{\"kind\": \"Run\",\n\n \"spec\": {,}}", ":3: not JSON: key must be a string"),
        ("d.json", b"{\"kind\": \"Run\"}\n{\"kind\":", ":2: not JSON: EOF while parsing a value"),
        ("e.yaml", b"a: 1\n---\n\nb: 1\n", ":1: not a Kubernetes object: kind is missing"),
        ("f.yaml", b"# only\n---\n- 1\n", ":3: not a Kubernetes object: it is a bare list; use kind: List"),
        ("g.yaml", b"text\n", ":1: not a Kubernetes object: it is a single value"),
        ("h.yaml", b"kind: Run\nx: \xff\n", ":2: not UTF-8"),
    ];
    for (name, text, expected) in rows {
        let path = file(&folder, name, text);
        let Answer { code, out, err } = simulate(&["-f", &path], "");
        assert_eq!((code, out.as_str()), (2, ""), "{name}");
        assert!(err.starts_with(&format!("error: {path}{expected}")), "{err}");
    }
    let missing = folder.path().join("missing.yaml");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (path, expected) in [(missing, "No such file or directory"), (empty, "no .yaml, .yml or .json file in this folder")] {
        let Answer { code, err, .. } = simulate(&["-f", path.to_str().unwrap()], "");
        assert_eq!(code, 2);
        assert!(err.starts_with(&format!("error: {}: {expected}", path.display())), "{err}");
    }
}

#[test]
fn what_is_no_object_is_left_out_beside_objects() {
    let folder = tempfile::tempdir().unwrap();
    let list = "kind: List\nitems:\n- 42\n- kind: Pod\n  apiVersion: v1\n  metadata: {namespace: ns, name: p, labels: {runtime: bash}}\n-\n- {}\n---\n7\n";
    let twice = "kind: Pod\napiVersion: v1\nmetadata: {namespace: ns, name: q, labels: {runtime: bash, runtime: other}}\n";
    std::fs::create_dir(folder.path().join("d")).unwrap();
    let paths = [file(&folder, "d/a.yaml", list), file(&folder, "d/b.yaml", twice), file(&folder, "d/values.yaml", "replicas: 3\n")];
    std::os::unix::fs::symlink("..", folder.path().join("d/loop")).unwrap();
    std::fs::write(folder.path().join("d/c.json"), a_run("r", "", "")).unwrap();
    let Answer { code, out, err } = simulate(&["-f", folder.path().join("d").to_str().unwrap(), "-o", "json"], "");
    assert_eq!((code, lines(&serde_json::from_str(&out).unwrap())), (0, vec!["r p".to_owned()]), "{err}");
    let [a, b, values] = &paths;
    let expected = [
        format!("warning: {a}:3: not a Kubernetes object: it is a single value; left out"),
        format!("warning: {a}:7: not a Kubernetes object: it is a single value; left out"),
        format!("warning: {a}:8: not a Kubernetes object: kind is missing; left out"),
        format!("warning: {a}:10: not a Kubernetes object: it is a single value; left out"),
        format!("warning: {b}:3: Pod ns/q: metadata.labels.runtime stands twice, the later one counts"),
        format!("warning: {values}:1: not a Kubernetes object: kind is missing; left out"),
    ];
    assert_eq!(err.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_bomb_of_aliases_and_bottomless_nesting_are_refused_in_no_time() {
    let bomb: String = (b'b'..=b'z').map(|c| format!("{0}: &{0} [{1}]\n", char::from(c), vec![format!("*{}", char::from(c - 1)); 9].join(","))).collect();
    for text in [format!("a: &a [x,x,x,x,x,x,x,x,x]\n{bomb}"), "[".repeat(200_000), "{\"a\":".repeat(200_000), "- ".repeat(200_000)] {
        let started = std::time::Instant::now();
        let Answer { code, err, .. } = simulate(&["-f", "-"], &text);
        assert_eq!(code, 2, "{err}");
        assert!(err.starts_with("error: <stdin>:") && err.len() < 500, "{err}");
        assert!(started.elapsed().as_secs() < 20, "{err}");
    }
}

#[test]
fn a_wrong_configuration_tells_everything_at_once_and_exits_2() {
    let folder = tempfile::tempdir().unwrap();
    let text = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles:\n- plugins:\n    multiPoint:\n      enabled:\n      - name: Capacity\n        weight: 0\n      - name: RunAfinity\n";
    let path = file(&folder, "berth.yaml", text);
    let Answer { code, err, .. } = simulate(&["-f", "-", "--config", &path], &pod("p", 1, ""));
    assert_eq!(code, 2);
    for part in [":8:", "weight", ":9:", "RunAffinity"] {
        assert!(err.contains(part), "{part} is missing in {err}");
    }
}

#[test]
fn what_a_terminal_would_obey_is_shown_escaped_for_people_and_exactly_in_json() {
    let escape = "\\u001b[31m";
    let input = [
        pod(&format!("p{escape}"), 1, ""),
        a_run(&format!("esc{escape}red\\nline"), "", ""),
        a_run("told", "", &format!(r#""status":{{"phase":"Failed","message":"x{escape}\ny"}}"#)),
        format!(r#"{{"kind":"Odd{escape}\nKind"}}"#),
        format!(r#"{{"kind":"Pod","metadata":{{"name":"q{escape}\ny","labels":{{"runtime":5}}}}}}"#),
    ]
    .concat();
    let table = simulate(&["-f", "-"], &input);
    assert_eq!(table.code, 0, "{}", table.err);
    let text = table.out + &table.err;
    assert!(!text.contains(|c: char| c != '\n' && c.is_control()), "{text:?}");
    for part in ["ns/esc\\u{1b}[31mred\\nline  Failed", "x\\u{1b}[31m\\ny", "1 Odd\\u{1b}[31m\\nKind", "Pod default/q\\u{1b}[31m\\ny can't be read"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let error = simulate(&["-f", "a\u{1b}[31m"], "");
    assert!(error.err.starts_with("error: a\\u{1b}[31m: "), "{}", error.err);
    let json = simulate(&["-f", "-", "-o", "json"], &input).out;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["runs"][0]["name"], "esc\u{1b}[31mred\nline");
}
