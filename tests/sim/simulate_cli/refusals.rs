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
    let rows: [(&str, &str); 6] = [
        ("  workspace:\n    name: Bad_Name\n", "13: spec.workspace.name: "),
        ("  workspace:\n    name: w\n    kind: ConfigMap\n", "14: spec.workspace.kind: unsupported value \"ConfigMap\""),
        (
            "  affinity:\n    runAffinity:\n      requiredDuringSchedulingIgnoredDuringExecution:\n      - labelSelector: {matchLabels: {a: b}}\n        topologyKey: zone\n",
            "16: spec.affinity.runAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: ",
        ),
        ("  ttlSecondsAfterFinished: soon\n", "12: spec.ttlSecondsAfterFinished: "),
        ("  timeout: 5\n", "12: spec.timeout: "),
        ("  env:\n  - value: x\n", "13: spec.env[0].name: "),
    ];
    for (more, expected) in rows {
        let text = format!("{}---\n{head}{more}---\n{}", pod("p", 2, ""), a_run("good", "", ""));
        let path = file(&folder, "runs.yaml", text);
        let Answer { code, out, .. } = simulate(&["-f", &path, "-o", "json", "--require-placed"], "");
        let result: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, result["runs"][0]["phase"].as_str(), result["runs"][0]["reason"].as_str()), (0, Some("Failed"), Some("InvalidSpec")), "{more}");
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
fn what_no_schema_can_check_fails_in_the_core() {
    let run = a_run("a", "", "").replace(r#""mode""#, r#""resources":{"requests":{"example.com/gpu":"1500m"}},"mode""#);
    let lines = lines(&result(&[], &(pod("p", 1, "") + &run)));
    assert!(lines[0].starts_with("a Failed/Invalid"), "{lines:?}");
}

#[test]
fn a_bad_capacity_is_ignored_with_a_warning() {
    let answer = simulate(&["-f", "-"], &pod("p", 1, "").replace(r#""1""#, r#""many""#));
    assert_eq!(answer.err, "warning: Pod ns/p: its capacity of runs is ignored: \"many\" is not a non-negative quantity\n");
}

#[test]
fn unreadable_input_exits_2_and_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let rows: [(&str, &[u8], &str); 9] = [
        ("a.yaml", b"kind: Run\nspec: [\n", ":2: unclosed bracket '['"),
        ("b.yaml", b"kind: Run\n---\nkind: Run\n  x: 1\n", ":4: "),
        ("c.json", b"{\"kind\": \"Run\",\n\n \"spec\": {,}}", ":3: not JSON: key must be a string"),
        ("d.json", b"{\"kind\": \"Run\"}\n{\"kind\":", ":2: not JSON: EOF while parsing a value"),
        ("e.yaml", b"a: 1\n---\n\nb: 1\n", ":1: not a Kubernetes object: kind is missing"),
        ("f.yaml", b"# only\n---\n- 1\n", ":3: not a Kubernetes object: it is a bare list; use kind: List"),
        ("g.yaml", b"text\n", ":1: not a Kubernetes object: it is a single value"),
        ("h.yaml", b"kind: Run\nx: \xff\n", ":2: not UTF-8"),
        ("i.yaml", b"kind: List\nitems:\n- kind: Pod\n- {}\n", ":4: not a Kubernetes object: kind is missing"),
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
