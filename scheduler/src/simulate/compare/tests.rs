//! Comparisons through the command line: what differs, what is told, what is refused.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::cli::{EXIT_OK, EXIT_USAGE, Streams, run};
use crate::prelude::{Builtin as _, Registry};

const PACK: &str = "apiVersion: berth.kruntimes.io/v1alpha1
kind: BerthConfiguration
profiles:
  - pluginConfig:
      - name: Capacity
        args: {strategy: MostAllocated}
";

/// A file that is gone with the value.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("berth-{}-{name}", std::process::id()));
        std::fs::File::create(&path).and_then(|mut file| file.write_all(text.as_bytes())).expect("a temporary file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Exit code, stdout and stderr of `berth simulate -f - ARGS` with `input`.
fn simulate(input: &str, args: &[&str]) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = ["berth", "simulate", "-f", "-"].iter().chain(args).map(Into::into);
    let code = run(args, Registry::builtin(), &mut Streams { input: &mut input.as_bytes(), out: &mut out, err: &mut err });
    (code, String::from_utf8(out).expect("UTF-8"), String::from_utf8(err).expect("UTF-8"))
}

fn pod(name: &str, runs: u32) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{namespace: team, name: {name}, labels: {{runtime: bash}}, annotations: {{kruntimes.io/capacity.runs: \"{runs}\"}}}}\n"
    )
}

fn runs(count: u32, spec: &str) -> String {
    let one = |i| {
        format!(
            "---\napiVersion: kruntimes.io/v1alpha1\nkind: Run\nmetadata: {{namespace: team, name: r{i}}}\nspec: {{runtime: bash, mode: {{task: {{}}}}{spec}}}\n"
        )
    };
    (0..count).map(one).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn the_same_configuration_twice_differs_in_nothing() {
    let input = pod("a", 4) + &pod("b", 2) + &runs(5, "");
    let (code, out, err) = simulate(&input, &["--compare", "default", "default"]);
    assert_eq!((code, err.as_str()), (EXIT_OK, ""));
    assert!(out.contains("A = default, B = default\n\nNo placement differs.\n"), "{out}");
    assert!(out.contains("Runs: 5 on the same Pod, 0 on another Pod, 0 placed only under A, 0 placed only under B\n"), "{out}");
}

#[test]
fn runs_on_other_pods_are_listed_with_what_both_sides_scored_and_loads_are_compared() {
    let pack = TempFile::new("pack.yaml", PACK);
    let input = pod("a", 2) + &pod("b", 2) + &runs(2, "");
    let (code, out, _) = simulate(&input, &["--compare", "default", pack.path(), "-o", "json"]);
    let report = json(&out);
    assert_eq!(code, EXIT_OK);
    assert_eq!(report["summary"], serde_json::json!({"same": 1, "different": 1, "onlyA": 0, "onlyB": 0, "neither": 0, "notTried": 0}));
    let [difference] = report["differences"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    assert_eq!((&difference["name"], &difference["change"]), (&"r1".into(), &"different".into()));
    assert_eq!((&difference["a"]["assignedPod"], &difference["b"]["assignedPod"]), (&"b".into(), &"a".into()));
    assert_eq!(difference["b"]["scores"][0]["byPlugin"]["Capacity"], 100.0);
    assert_eq!(difference["a"]["placedAtMs"], 0);
    // Spread over both, or both on one.
    for (side, imbalance) in [("a", 0.0), ("b", 50.0)] {
        assert_eq!((&report[side]["load"]["imbalance"], &report[side]["load"]["mean"]), (&imbalance.into(), &50.0.into()), "{side}");
    }
    let (_, table, _) = simulate(&input, &["--compare", "default", pack.path()]);
    let row = table.lines().find(|line| line.contains("team/r1")).expect("a row");
    for text in [" b ", " a ", "100 = Capacity 100", "; a ", "; b 50"] {
        assert!(row.contains(text), "{text:?} in {row:?}");
    }
}

#[test]
fn a_run_that_only_one_side_places_tells_why_the_other_does_not() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/anti-affinity-spread");
    let world = std::fs::read_to_string(format!("{folder}/spread.yaml")).expect("the example");
    let one_sided = format!("{folder}/one-sided.config");
    let (code, out, _) = simulate(&world, &["--compare", "default", &one_sided, "-o", "json"]);
    let report = json(&out);
    assert_eq!(code, EXIT_OK, "Runs left Pending are no failure here");
    assert_eq!(report["summary"], serde_json::json!({"same": 3, "different": 0, "onlyA": 0, "onlyB": 1, "neither": 1, "notTried": 0}));
    let difference = &report["differences"][0];
    assert_eq!(
        (&difference["change"], &difference["a"]["reason"], &difference["b"]["assignedPod"]),
        (&"onlyB".into(), &"Unschedulable".into(), &"bash-a".into())
    );
    assert_eq!(difference["a"]["placedAtMs"], Value::Null);
    let (_, out, _) = simulate(&world, &["--compare", &one_sided, "default", "-o", "json"]);
    assert_eq!((&json(&out)["summary"]["onlyA"], &json(&out)["differences"][0]["change"]), (&1.into(), &"onlyA".into()), "the other way round");
}

#[test]
fn waits_are_in_virtual_time_and_loads_over_time_where_runs_end() {
    let (code, out, _) = simulate(&(pod("a", 1) + &runs(3, "")), &["--compare", "default", "default", "--run-duration", "30s", "-o", "json"]);
    let report = json(&out);
    assert_eq!(code, EXIT_OK);
    assert_eq!(report["a"]["waitedMs"], serde_json::json!({"p50": 30_000, "p99": 60_000, "max": 60_000}));
    assert_eq!(report["a"]["load"]["of"], "overTime");
    assert_eq!((&report["a"]["load"]["mean"], &report["a"]["elapsedMs"]), (&100.0.into(), &90_000.into()));
}

#[test]
fn what_was_not_to_be_placed_is_counted_apart() {
    let active = "---\napiVersion: kruntimes.io/v1alpha1\nkind: Run\nmetadata: {namespace: team, name: old}\nspec: {runtime: bash, mode: {task: {}}}\nstatus: {phase: Running, assignedPod: a}\n";
    let refused = "---\napiVersion: kruntimes.io/v1alpha1\nkind: Run\nmetadata: {namespace: team, name: bad}\nspec: {runtime: 5}\n";
    let (_, out, _) = simulate(&(pod("a", 2) + active + refused + &runs(1, "")), &["--compare", "default", "default", "-o", "json"]);
    let report = json(&out);
    assert_eq!(report["summary"], serde_json::json!({"same": 1, "different": 0, "onlyA": 0, "onlyB": 0, "neither": 0, "notTried": 2}));
    assert_eq!(report["a"]["load"]["mean"], 100.0, "what the input has on a Pod counts");
}

#[test]
fn a_configuration_that_cannot_be_used_is_named_and_flags_that_make_no_sense_are_refused() {
    let (code, _, err) = simulate("", &["--compare", "default", "missing.yaml"]);
    assert!(code == EXIT_USAGE && err.contains("missing.yaml"), "{err}");
    for args in [&["--compare", "default"][..], &["--compare", "a", "b", "--config", "c"], &["--compare", "a", "b", "--require-placed"]] {
        assert_eq!(simulate("", args).0, EXIT_USAGE, "{args:?}");
    }
}

#[test]
fn a_page_is_written_beside_the_output_and_holds_both_sides() {
    let page = TempFile::new("page.html", "");
    let (code, out, err) = simulate(&(pod("a", 1) + &runs(2, "")), &["--compare", "default", "default", "--html", page.path()]);
    assert_eq!((code, err), (EXIT_OK, format!("wrote {}\n", page.path())));
    assert!(out.contains("No placement differs."), "{out}");
    let text = std::fs::read_to_string(page.path()).expect("the page");
    let data = text.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next()).expect("data");
    let data = json(data);
    assert_eq!(
        (data["sides"].as_array().map(Vec::len), &data["runs"]["name"], &data["pods"][0]["name"]),
        (Some(2), &serde_json::json!(["r0", "r1"]), &"a".into())
    );
    let runs = &data["sides"][1]["runs"];
    assert_eq!((&runs["state"], &runs["placedStep"]), (&serde_json::json!(["placed", "waiting"]), &serde_json::json!([1, -1])));
    assert_eq!(data["sides"][0]["causes"][1], serde_json::json!({"plugin": "Capacity", "code": "InsufficientCapacity"}));
    assert_eq!(data["sides"][0]["waitingByStep"], serde_json::json!({"at": [0, 1, 2], "counts": [[2], [1], [0, 1]]}));
    let (code, _, err) = simulate("", &["--html", "/nonexistent/folder/page.html"]);
    assert!(code == EXIT_USAGE && err.contains("--html /nonexistent/folder/page.html"), "{err}");
}
