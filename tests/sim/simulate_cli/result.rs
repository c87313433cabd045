//! What comes out: the JSON shape, the summary, explanations, exit codes.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{a_run, example, lines, pod, result, simulate};

#[test]
fn the_json_shape_is_stable() {
    let workspace = r#"{"apiVersion":"kruntimes.io/v1alpha1","kind":"PersistentWorkspace","metadata":{"namespace":"ns","name":"w"},"spec":{"runtime":"bash"}}
"#;
    let cancelled = a_run("cancelled", "", "").replace(r#""mode""#, r#""cancelRequested":true,"mode""#);
    let refused = a_run("refused", "", "").replace(r#""bash""#, "5");
    let input =
        pod("p", 1, "").replace(r#""name":"p""#, r#""name":"p","uid":"u""#) + workspace + &a_run("a", "", "") + &a_run("b", "", "") + &cancelled + &refused;
    let mut result = result(&[], &input);
    let decision = result["summary"]["decision"].take();
    assert!(decision["p50_us"].is_f64() && decision["p99_us"].is_f64() && decision.as_object().unwrap().len() == 2, "{decision}");
    let message = result["runs"][3]["message"].take();
    assert!(message.as_str().unwrap().starts_with("<stdin>:6: spec.runtime: "), "{message}");
    let run = |name: &str, phase: &str, pod: Value, reason: &str, message: Value, attempts: u32, rejections: Value, scores: Value| {
        json!({"namespace": "ns", "name": name, "phase": phase, "assignedPod": pod, "reason": reason, "message": message, "attempts": attempts,
            "rejections": rejections, "scores": scores})
    };
    let score = json!([{"pod": "p", "total": 0.0, "byPlugin": {"Capacity": 0.0, "RunAffinity": 0.0}}]);
    let waits = json!("waiting for available runtime pods: 0/1 fit: 1 insufficient runs");
    let rejections = json!([{"plugin": "Capacity", "reason": "InsufficientCapacity", "pods": 1}]);
    let expected = json!({
        "runs": [
            run("a", "Scheduled", json!("p"), "Assigned", json!(""), 1, json!([]), score),
            run("b", "Pending", json!(null), "Unschedulable", waits, 1, rejections, json!([])),
            run("cancelled", "Cancelled", json!(null), "Cancelled", json!("cancelled by user"), 1, json!([]), json!([])),
            run("refused", "Failed", json!(null), "InvalidSpec", json!(null), 0, json!([]), json!([])),
        ],
        "workspaces": [{"namespace": "ns", "name": "w", "phase": "Bound", "boundPod": "p", "boundPodUID": "u", "message": ""}],
        "summary": {"placed": 1, "pending": 1, "failed": 1, "cancelled": 1, "cycles": 3, "decision": null},
    });
    assert_eq!(result, expected);
}

#[test]
fn scores_are_of_the_chosen_pod_and_two_runners_up() {
    let input: String = (0..5).map(|i| pod(&format!("p{i}"), 4 + i, "")).collect::<String>() + &a_run("a", "", "");
    let result = result(&[], &input);
    let pods: Vec<&str> = result["runs"][0]["scores"].as_array().unwrap().iter().map(|score| score["pod"].as_str().unwrap()).collect();
    assert_eq!(pods, ["p4", "p3", "p2"]);
    assert_eq!(result["runs"][0]["scores"][0], json!({"pod": "p4", "total": 87.5, "byPlugin": {"Capacity": 87.5, "RunAffinity": 0.0}}));
}

#[test]
fn the_same_input_gives_the_same_result() {
    let input: String =
        (0..9).map(|i| pod(&format!("p{i}"), 1 + i % 3, "")).collect::<String>() + &(0..25).map(|i| a_run(&format!("r{i}"), "", "")).collect::<String>();
    let once = || {
        let mut result = result(&["--run-duration", "10s", "--until", "15s"], &input);
        result["summary"]["decision"].take();
        result
    };
    assert_eq!(once(), once());
}

#[test]
fn runs_that_wait_for_each_other_are_told_so() {
    let term = |app: &str| {
        format!(
            r#""affinity":{{"runAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":[{{"labelSelector":{{"matchLabels":{{"app":"{app}"}}}},"topologyKey":"kruntimes.io/runtime-pod"}}]}}}},"mode""#
        )
    };
    let run = |name: &str, wants: &str| a_run(name, &format!(r#""labels":{{"app":"{name}"}}"#), "").replace(r#""mode""#, &term(wants));
    let lines = lines(&result(&[], &(pod("p", 9, "") + &run("a", "b") + &run("b", "a") + &run("c", "nobody"))));
    assert!(lines[0].ends_with("waits for ns/b, which waits for it"), "{lines:?}");
    assert!(lines[1].ends_with("waits for ns/a, which waits for it"), "{lines:?}");
    assert!(lines[2].ends_with("no Run offers app=nobody"), "{lines:?}");
}

#[test]
fn explain_is_of_the_moment_before_the_placement_and_of_the_end_for_those_that_wait() {
    let input = pod("p", 1, "") + &pod("q", 2, "") + &(0..4).map(|i| a_run(&format!("r{i}"), "", "")).collect::<String>();
    let placed = &result(&["--explain", "ns/r0"], &input)["explain"];
    assert_eq!((placed["when"].as_str(), placed["runtime"].as_str()), (Some("before it was placed"), Some("bash")));
    let pods: Vec<_> =
        placed["pods"].as_array().unwrap().iter().map(|pod| (pod["pod"].as_str().unwrap(), pod["fits"] == true, pod["chosen"] == true)).collect();
    assert_eq!(pods, [("p", true, false), ("q", true, true)]);
    assert_eq!(placed["pods"][1]["score"]["total"], 50.0);
    let waits = &result(&["--explain", "ns/r3"], &input)["explain"];
    assert_eq!(waits["when"], "at the end");
    let plugins: Vec<_> =
        waits["pods"][0]["verdicts"].as_array().unwrap().iter().map(|verdict| (verdict["plugin"].as_str().unwrap(), verdict["reason"].as_str())).collect();
    assert_eq!(plugins, [("RuntimeReady", None), ("WorkspaceFencing", None), ("RunAffinity", None), ("Capacity", Some("InsufficientCapacity"))]);
    let table = simulate(&["-f", "-", "--explain", "ns/r3"], &input).out;
    assert!(table.contains("Every Pod of runtime bash for Run ns/r3, at the end:\n"), "{table}");
    assert!(table.contains(" p    no  ok            ok                ok           insufficient runs\n"), "{table}");
}

#[test]
fn explain_of_a_run_that_is_not_there_helps() {
    let input = pod("p", 1, "") + &a_run("build", "", "") + &a_run("refused", "", "").replace(r#""bash""#, "5");
    for (name, expected) in [
        ("ns/biuld", "error: --explain ns/biuld: no such Run in the input; did you mean ns/build?\n"),
        ("other/x", "error: --explain other/x: no such Run in the input\n"),
        ("ns/refused", "error: --explain ns/refused: the API would refuse this Run: <stdin>:3: spec.runtime: "),
    ] {
        let answer = simulate(&["-f", "-", "--explain", name], &input);
        assert_eq!(answer.code, 2);
        assert!(answer.err.starts_with(expected), "{}", answer.err);
    }
}

#[test]
fn the_table_tells_phase_place_reason_score_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("berth.yaml");
    let text = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles:\n- plugins:\n    multiPoint:\n      enabled:\n      - {name: Capacity, weight: 3}\n";
    std::fs::write(&config, text).unwrap();
    let input = pod("p", 4, "") + &a_run("a", "", "") + &a_run("b", "", "").replace(r#""mode""#, r#""resources":{"requests":{"runs":"9"}},"mode""#);
    let answer = simulate(&["-f", "-", "--config", config.to_str().unwrap()], &input);
    let expected = "\
 RUN   PHASE      POD OR REASON                              SCORE
 ns/a  Scheduled  p                                          225 = Capacity 3×75 + RunAffinity 0
 ns/b  Pending    Unschedulable: 0/1 fit: 1 insufficient runs

Runs: 1 placed, 1 pending
";
    let squeezed = |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n");
    assert!(squeezed(&answer.out).starts_with(&squeezed(expected)), "{}", answer.out);
}

#[test]
fn require_placed_exits_1_only_if_a_run_is_left_pending() {
    let room = pod("p", 1, "") + &a_run("a", "", "");
    let crowd = room.clone() + &a_run("b", "", "");
    for (input, args, code) in [
        (&room, &["--require-placed"][..], 0),
        (&crowd, &[], 0),
        (&crowd, &["--require-placed"], 1),
        (&crowd, &["--require-placed", "--run-duration", "1s"], 0),
    ] {
        assert_eq!(simulate(&[&["-f", "-"], args].concat(), input).code, code, "{args:?}");
    }
}

#[test]
fn wrong_arguments_exit_2_and_help_has_examples() {
    for (args, expected) in [
        (&[][..], "--filename <FILE|DIR|->"),
        (&["-f", "-", "--run-duration", "soon"], "write it as 30s or 1h30m"),
        (&["-f", "-", "--until", "0s"], "must be at least 1ms"),
        (&["-f", "-", "--now", "yesterday"], "--now"),
        (&["-f", "-", "--explain", "a/b/c"], "must be NAMESPACE/RUN"),
        (&["-f", "-", "-o", "xml"], "possible values: table, json"),
    ] {
        let answer = simulate(args, "");
        assert_eq!(answer.code, 2);
        assert!(answer.err.contains(expected), "{}", answer.err);
    }
    let help = simulate(&["--help"], "");
    assert_eq!(help.code, 0);
    assert!(help.out.contains("Examples:") && help.out.contains("berth simulate -f pods.yaml -f runs/"), "{}", help.out);
}

#[test]
fn the_process_exits_as_the_library_says() {
    let berth = berth_tests::berth::binary().unwrap();
    let status = |args: &[&str]| {
        Command::new(&berth).arg("simulate").args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().code()
    };
    let (cohort, sharing) = (example("cohort"), example("data-sharing"));
    assert_eq!(status(&["-f", &sharing, "--require-placed"]), Some(0));
    assert_eq!(status(&["-f", &cohort, "--require-placed"]), Some(1));
    assert_eq!(status(&["-f", "/nonexistent.yaml"]), Some(2));
    assert_eq!(status(&["-f", "-"]), Some(0));
}

#[test]
fn the_binder_asks_of_pods_what_the_profile_asks_each_side_of_a_comparison_by_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain.yaml");
    let config = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles: [{pluginConfig: [{name: RuntimeReady, args: {requireHeartbeat: false}}]}]\n";
    std::fs::write(&plain, config).unwrap();
    let plain = plain.to_str().unwrap();
    let silent =
        pod("p", 1, r#""status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}"#).replace(r#""name":"p""#, r#""name":"p","uid":"u""#);
    let workspace = r#"{"apiVersion":"kruntimes.io/v1alpha1","kind":"PersistentWorkspace","metadata":{"namespace":"ns","name":"w"},"spec":{"runtime":"bash"}}
"#;
    let input = silent + workspace + &a_run("a", "", "").replace(r#""mode""#, r#""workspace":{"name":"w"},"mode""#);
    let bound = |args: &[&str]| result(args, &input)["workspaces"][0]["phase"].clone();
    assert_eq!((bound(&[]), bound(&["--config", plain])), ("Pending".into(), "Bound".into()));
    let compared = result(&["--compare", "default", plain], &input);
    assert_eq!(compared["differences"][0]["change"], "onlyB", "{compared:#}");
}

fn workspace(name: &str, spec: &str, status: &str) -> String {
    format!(
        "{{\"apiVersion\":\"kruntimes.io/v1alpha1\",\"kind\":\"PersistentWorkspace\",\"metadata\":{{\"namespace\":\"ns\",\"name\":\"{name}\"}},\"spec\":{{\"runtime\":\"bash\"{spec}}}{status}}}\n"
    )
}

#[test]
fn workspaces_spread_by_load_where_the_profile_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let spread = folder.path().join("spread.yaml");
    std::fs::write(&spread, "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles: [{binding: LeastLoaded}]\n").unwrap();
    let running = a_run("r", "", r#""status":{"phase":"Running","assignedPod":"p","startTime":"2026-01-01T00:00:00Z"}"#);
    let input = pod("p", 2, "") + &pod("q", 4, "") + &running + &["a", "b", "c"].map(|name| workspace(name, "", "")).concat();
    let pods = |args: &[&str]| {
        let result = result(args, &input);
        result["workspaces"].as_array().unwrap().iter().map(|workspace| workspace["boundPod"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(pods(&[]), ["p", "p", "p"]);
    // p has one of two taken; q gets two of four, then both are half full.
    assert_eq!(pods(&["--config", spread.to_str().unwrap()]), ["q", "q", "p"]);
}

#[test]
fn a_workspace_whose_time_is_over_is_released_unless_a_run_names_it() {
    let status = r#","status":{"phase":"Bound","runtime":"bash","boundPod":"p","boundPodUID":"u","conditions":[{"type":"Bound","status":"True","reason":"Bound","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}"#;
    let ttl = r#","ttlSecondsAfterUnused":60"#;
    let pod = pod("p", 1, "").replace(r#""name":"p""#, r#""name":"p","uid":"u""#);
    let input = pod + &workspace("idle", ttl, status) + &workspace("used", ttl, status);
    let input = input + &a_run("a", "", "").replace(r#""mode""#, r#""workspace":{"name":"used"},"mode""#);
    let told = |now: &str| {
        let result = result(&["--now", now], &input);
        let told = result["workspaces"].as_array().unwrap().iter().map(|workspace| format!("{} {}", workspace["phase"], workspace["message"]));
        told.collect::<Vec<_>>().join("; ").replace('"', "")
    };
    assert_eq!(told("2026-01-01T00:00:59Z"), "Bound ; Bound ");
    assert_eq!(told("2026-01-01T00:01:00Z"), "Released unused for 60 s: no run is admitted any more, and the data is removed; Bound ");
}
