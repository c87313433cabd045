//! What may be given: files, folders, standard input; YAML, JSON, lists, dumps.

use super::{Answer, a_run, beat, lines, pod, result, simulate};

const PODS: &str = "\
# two documents and a comment
apiVersion: v1
kind: Pod
metadata: {namespace: ns, name: p, labels: {runtime: bash}}
---
---
apiVersion: v1
kind: Service
metadata: {name: s}
";

#[test]
fn yaml_json_lists_and_streams_mean_the_same() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {namespace: ns, name: p, labels: {runtime: bash}}\n- kind: List\n  items:\n  - {apiVersion: kruntimes.io/v1alpha1, kind: Run, metadata: {namespace: ns, name: a}, spec: {runtime: bash, mode: {task: {}}}}\n";
    let typed = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"namespace":"ns","name":"p","labels":{"runtime":"bash"}}}]}
{"apiVersion":"kruntimes.io/v1alpha1","kind":"RunList","metadata":{},"items":[{"metadata":{"namespace":"ns","name":"a"},"spec":{"runtime":"bash","mode":{"task":{}}}}]}"#;
    let with_json = format!("{PODS}---\n{}", a_run("a", "", ""));
    let stream = pod("p", 2, "") + &a_run("a", "", "");
    let array_like = format!("{{\"kind\":\"List\",\"items\":[{},{}]}}", pod("p", 2, ""), a_run("a", "", ""));
    let with_directive = format!("%YAML 1.2\n---\n{PODS}--- # next\n{}...\n", a_run("a", "", ""));
    let marked = format!("\u{feff}{stream}");
    for input in [list, typed, &with_json, &stream, &array_like, &with_directive, &marked] {
        assert_eq!(lines(&result(&[], input)), ["a p"], "{input}");
    }
}

#[test]
fn anchors_and_merges_are_yaml() {
    let input = format!("{PODS}---\nkind: List\nitems:\n- &run\n  {}- <<: *run\n  metadata: {{namespace: ns, name: b}}\n", a_run("a", "", ""));
    assert_eq!(lines(&result(&[], &input)), ["a p", "b p"]);
}

#[test]
fn folders_are_read_sorted_and_deep_and_files_in_the_order_given() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    write("m/b.yml", &a_run("b", "", ""));
    write("m/a.yaml", &a_run("a", "", ""));
    write("m/deeper/c.json", &a_run("c", "", ""));
    write("m/.hidden/d.yaml", &a_run("d", "", ""));
    write("m/notes.txt", "kind: [");
    let (pods, last) = (write("pods.yaml", &pod("p", 9, "")), write("z.conf", &a_run("z", "", "")));
    let m = folder.path().join("m");
    let Answer { code, out, err } = simulate(&["-f", &last, "-f", m.to_str().unwrap(), "-f", &pods, "-f", "-", "-o", "json"], &a_run("stdin", "", ""));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(lines(&serde_json::from_str(&out).unwrap()), ["z p", "a p", "b p", "c p", "stdin p"]);
}

#[test]
fn other_kinds_and_unlabelled_pods_are_counted_and_left_alone() {
    let other = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"}}{"apiVersion":"example.com/v1","kind":"Run","metadata":{"name":"r"}}
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"q"}}{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"e"}}"#;
    let answer = simulate(&["-f", "-"], other);
    assert_eq!(answer.code, 0);
    assert!(answer.out.contains("No Run in the input."), "{}", answer.out);
    assert!(answer.out.contains("Left alone: 2 Deployment.apps, 1 Pod without label runtime, 1 Run.example.com\n"), "{}", answer.out);
}

#[test]
fn a_pod_without_status_is_ready_and_one_with_status_is_what_it_says() {
    let rows = [
        ("", "a p"),
        (r#""status":{}"#, "a p"),
        (r#""status":null"#, "a p"),
        (r#""status":{"phase":"Pending"}"#, "a Pending/Unschedulable 0/1 fit: 1 not running"),
        (r#""status":{"phase":"Running"}"#, "a Pending/Unschedulable 0/1 fit: 1 not ready"),
        (r#""status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}"#, "a Pending/Unschedulable 0/1 fit: 1 without heartbeat"),
    ];
    for (status, expected) in rows {
        assert_eq!(lines(&result(&[], &(pod("p", 2, status) + &a_run("a", "", "")))), [expected], "{status}");
    }
    let terminating = pod("p", 2, "").replace(r#""name":"p""#, r#""name":"p","deletionTimestamp":"2026-01-01T00:00:30Z""#);
    assert_eq!(lines(&result(&[], &(terminating + &a_run("a", "", "")))), ["a Pending/Unschedulable 0/1 fit: 1 terminating"]);
}

#[test]
fn assignments_of_a_dump_count() {
    let held = a_run("held", "", r#""status":{"phase":"Running","assignedPod":"p"}"#);
    let ended = a_run("ended", "", r#""status":{"phase":"Succeeded","assignedPod":"p"}"#);
    let input = pod("p", 2, "") + &held + &ended + &a_run("a", "", "") + &a_run("b", "", "");
    let result = result(&[], &input);
    let expected = ["held p/Running", "ended p/Succeeded", "a p", "b Pending/Unschedulable 0/1 fit: 1 insufficient runs"];
    assert_eq!(lines(&result), expected);
    let summary = &result["summary"];
    assert_eq!((summary["placed"].as_u64(), summary["pending"].as_u64(), summary["failed"].as_u64()), (Some(1), Some(1), Some(0)));
}

#[test]
fn an_active_run_that_cannot_be_decoded_goes_on_holding_its_pod() {
    let odd = |phase: &str| {
        let status = format!(r#""status":{{"phase":"{phase}","assignedPod":"p"}}"#);
        a_run("odd", "", &status).replace(r#""mode":{"task":{}}"#, r#""mode":5,"resources":{"requests":{"runs":2}}"#)
    };
    let answer = simulate(&["-f", "-", "-o", "json"], &(pod("p", 2, "") + &odd("Running") + &a_run("a", "", "")));
    assert_eq!(lines(&serde_json::from_str(&answer.out).unwrap()), ["odd p/Running", "a Pending/Unschedulable 0/1 fit: 1 insufficient runs"], "{}", answer.err);
    assert!(answer.err.contains("spec.mode: ") && answer.err.contains("Run ns/odd is Running and stays so"), "{}", answer.err);
    // It would be refused; and one that has ended, or that has no spec at all, holds nothing.
    assert!(lines(&result(&[], &(pod("p", 2, "") + &odd("Pending"))))[0].starts_with("odd Failed/InvalidSpec <stdin>:2: spec.mode: "));
    assert_eq!(lines(&result(&[], &(pod("p", 2, "") + &odd("Failed") + &a_run("a", "", ""))))[1], "a p");
    let without = r#"{"apiVersion":"kruntimes.io/v1alpha1","kind":"Run","metadata":{"name":"r"},"status":{"phase":"Running","assignedPod":"p"}}"#;
    assert!(simulate(&["-f", "-"], without).out.contains("Left alone: 1 Run without spec\n"));
}

#[test]
fn runs_with_one_uid_are_two_runs() {
    let copy = |name| a_run(name, r#""uid":"u","creationTimestamp":"2026-01-01T00:00:00Z""#, "");
    let input = pod("p", 1, "") + &a_run("first", "", "") + &copy("a") + &copy("b") + &copy("c");
    let answer = simulate(&["-f", "-", "-o", "json", "--run-duration", "1m"], &input);
    let runs = lines(&serde_json::from_str(&answer.out).unwrap());
    assert!(runs.iter().all(|line| line.ends_with("p/Succeeded")), "{runs:?}");
    let told = "Run ns/b has the UID of another Run; it gets one of its own\nwarning: <stdin>:5: Run ns/c has the UID";
    assert!(answer.err.contains(told), "{}", answer.err);
}

/// Accounting goes by name: an assignedPodUID that belongs to another live Pod is not ours to mend.
#[test]
fn an_assignment_whose_uid_is_another_pods_counts_by_name() {
    let named = |name: &str| pod(name, 1, "").replace(&format!(r#""name":"{name}""#), &format!(r#""name":"{name}","uid":"uid-{name}""#));
    let held = a_run("held", "", r#""status":{"phase":"Running","assignedPod":"p","assignedPodUID":"uid-q"}"#);
    let result = result(&[], &(named("p") + &named("q") + &held + &a_run("a", "", "") + &a_run("b", "", "")));
    assert_eq!(lines(&result), ["held p/Running", "a q", "b Pending/Unschedulable 0/2 fit: 2 insufficient runs"]);
}

#[test]
fn a_dump_of_a_bound_workspace_binds_by_name_and_uid() {
    let workspace = |uid: &str| {
        format!(
            r#"{{"apiVersion":"kruntimes.io/v1alpha1","kind":"PersistentWorkspace","metadata":{{"namespace":"ns","name":"w"}},"spec":{{"runtime":"bash"}},"status":{{"phase":"Bound","boundPod":"p1"{uid}}}}}"#
        )
    };
    let run = a_run("a", "", "").replace(r#""mode""#, r#""workspace":{"name":"w"},"mode""#);
    let pods = pod("p0", 9, "") + &pod("p1", 1, "").replace(r#""name":"p1""#, r#""name":"p1","uid":"u1""#);
    for (uid, expected) in [(r#","boundPodUID":"u1""#, "a p1"), (r#","boundPodUID":"u0""#, "a Pending/WorkspaceNotReady 0/2 fit: 2 workspace w lost")] {
        assert_eq!(lines(&result(&[], &(pods.clone() + &workspace(uid) + &run))), [expected], "{uid}");
    }
}

/// As in `serve` (apiserver/binder.rs): the data is there, but no Run can get to it.
#[test]
fn a_workspace_is_not_lost_whose_pod_only_lost_its_label() {
    let workspace = r#"{"apiVersion":"kruntimes.io/v1alpha1","kind":"PersistentWorkspace","metadata":{"namespace":"ns","name":"w"},"spec":{"runtime":"bash"},
"status":{"phase":"Bound","runtime":"bash","boundPod":"p","boundPodUID":"u1"}}"#;
    let unlabelled = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"p","uid":"u1"}}"#;
    let result = result(&[], &(unlabelled.to_owned() + workspace));
    let bound = &result["workspaces"][0];
    assert_eq!((bound["phase"].as_str(), bound["message"].as_str()), (Some("Bound"), Some("the pod no longer has the Runtime's label")), "{bound}");
}

#[test]
fn a_name_is_made_from_generate_name_and_a_namespace_is_default() {
    let run = r#"{"apiVersion":"kruntimes.io/v1alpha1","kind":"Run","metadata":{"generateName":"job-"},"spec":{"runtime":"bash","mode":{"task":{}}}}"#;
    let result = result(&[], &format!("{}{run}{run}", pod("p", 9, "").replace(r#""namespace":"ns","#, "")));
    assert_eq!(lines(&result), ["job-00001 p", "job-00002 p"]);
    assert_eq!(result["runs"][0]["namespace"], "default");
}

#[test]
fn a_manifest_after_a_dump_of_the_same_object_keeps_what_it_is() {
    let held = a_run("a", r#""uid":"u","creationTimestamp":"2026-01-01T00:00:00Z""#, r#""status":{"phase":"Running","assignedPod":"p"}"#);
    let answer = simulate(&["-f", "-"], &(pod("p", 2, &beat("2026-01-01T00:00:00Z")) + &held + &a_run("a", "", "")));
    assert_eq!(answer.err, "warning: <stdin>:3: Run ns/a is applied over the one of <stdin>:2\n");
    assert!(answer.out.contains(" ns/a  Running  p\n"), "{}", answer.out);
}
