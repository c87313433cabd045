//! What a configuration means: precedence, what is in force, how it changes placements; the command and the guide tell the same.

use berth_framework::observe::Point;
use berth_framework::profile::Registry;
use berth_plugins::Builtin as _;
use berth_scheduler::config::{self, Loaded};

use crate::config_rows::{ROWS, load, registry, text_of};

#[test]
fn what_is_in_force_is_a_configuration_that_means_the_same() {
    let bodies =
        ROWS.iter().filter(|(_, _, errors)| errors.is_empty()).map(|(_, body, _)| *body).chain(PRECEDENCE.iter().map(|(_, body, _)| *body).map(wrapped));
    for body in bodies {
        let loaded = load(body).unwrap_or_else(|errors| panic!("{body}: {errors:#?}"));
        let yaml = serde_saphyr::to_string(&loaded.effective).expect("YAML");
        let again = config::parse(&yaml, "shown", &registry()).unwrap_or_else(|refused| panic!("{yaml}{refused}"));
        assert_eq!(again.effective, loaded.effective, "{body}");
        let meaning = |loaded: &Loaded| {
            let of = |profile: &berth_framework::profile::Profile| format!("{profile:?} {:?}", profile.score_weights().collect::<Vec<_>>());
            let active: Vec<_> = loaded.profiles.iter().map(|profile| of(profile)).collect();
            let shadows: Vec<_> = loaded.profiles.shadows().iter().map(|shadow| (of(&shadow.profile), shadow.runtimes.clone())).collect();
            format!("{active:?} {shadows:?} {:?}", (loaded.profiles.backoff_initial_ms, loaded.profiles.backoff_max_ms))
        };
        assert_eq!(meaning(&again), meaning(&loaded), "{body}");
    }
}

// ---- precedence ----------------------------------------------------------------------------------

fn wrapped(plugins: &str) -> &'static str {
    Box::leak(format!("profiles:\n- plugins: {plugins}\n").into_boxed_str())
}

const P: &str = "WorkspaceFencing RunAffinity Capacity";
const F: &str = "RuntimeReady WorkspaceFencing RunAffinity Capacity";
const S: &str = "RunAffinity=1 Capacity=1";
const R: &str = "RunAffinity Capacity";

/// What plugins are set to, and what then runs at preFilter, filter, score and reserve.
type Precedence = (&'static str, &'static str, [&'static str; 4]);

const PRECEDENCE: &[Precedence] = &[
    ("the defaults", "{}", [P, F, S, R]),
    ("multiPoint over the defaults, in place", "{multiPoint: {enabled: [{name: RunAffinity, weight: 3}]}}", [P, F, "RunAffinity=3 Capacity=1", R]),
    (
        "the point over multiPoint",
        "{multiPoint: {enabled: [{name: Capacity, weight: 3}]}, score: {enabled: [{name: Capacity, weight: 5}]}}",
        [P, F, "RunAffinity=1 Capacity=5", R],
    ),
    (
        "the point without a weight over multiPoint with one",
        "{multiPoint: {enabled: [{name: Capacity, weight: 3}]}, score: {enabled: [{name: Capacity}]}}",
        [P, F, S, R],
    ),
    ("the point disables", "{score: {disabled: [{name: RunAffinity}]}}", [P, F, "Capacity=1", R]),
    (
        "multiPoint disables everywhere",
        "{multiPoint: {disabled: [{name: RunAffinity}]}}",
        ["WorkspaceFencing Capacity", "RuntimeReady WorkspaceFencing Capacity", "Capacity=1", "Capacity"],
    ),
    (
        "the point enables what multiPoint disables",
        "{multiPoint: {disabled: [{name: RunAffinity}]}, reserve: {enabled: [{name: RunAffinity}]}}",
        ["WorkspaceFencing Capacity", "RuntimeReady WorkspaceFencing Capacity", "Capacity=1", "Capacity RunAffinity"],
    ),
    (
        "the point disables what multiPoint enables",
        "{multiPoint: {enabled: [{name: Capacity, weight: 9}]}, score: {disabled: [{name: Capacity}]}}",
        [P, F, "RunAffinity=1", R],
    ),
    (
        "enabled over disabled in one set, at the end",
        "{filter: {enabled: [{name: RuntimeReady}], disabled: [{name: RuntimeReady}]}}",
        [P, "WorkspaceFencing RunAffinity Capacity RuntimeReady", S, R],
    ),
    (
        "enabled over disabled in multiPoint, at the end",
        "{multiPoint: {enabled: [{name: RunAffinity, weight: 2}], disabled: [{name: RunAffinity}]}}",
        ["WorkspaceFencing Capacity RunAffinity", "RuntimeReady WorkspaceFencing Capacity RunAffinity", "Capacity=1 RunAffinity=2", "Capacity RunAffinity"],
    ),
    (
        "configured again they keep their places, in whatever order",
        "{multiPoint: {enabled: [{name: Capacity}, {name: RuntimeReady}, {name: RunAffinity}]}}",
        [P, F, S, R],
    ),
    (
        "all disabled, some enabled in an order of one's own",
        "{multiPoint: {enabled: [{name: Capacity}, {name: RuntimeReady}], disabled: [{name: \"*\"}]}}",
        ["Capacity", "Capacity RuntimeReady", "Capacity=1", "Capacity"],
    ),
    ("all disabled at one point", "{filter: {enabled: [{name: Capacity}, {name: RunAffinity}], disabled: [{name: \"*\"}]}}", [P, "Capacity RunAffinity", S, R]),
    ("all disabled at one point stays the point's own affair", "{score: {disabled: [{name: \"*\"}]}}", [P, F, "", R]),
    ("all disabled everywhere", "{multiPoint: {disabled: [{name: \"*\"}]}}", ["", "", "", ""]),
    (
        "disabled both by name and by *",
        "{multiPoint: {enabled: [{name: RuntimeReady}], disabled: [{name: \"*\"}, {name: Capacity}]}}",
        ["", "RuntimeReady", "", ""],
    ),
];

#[test]
fn the_point_wins_over_multi_point_over_the_defaults_and_enabled_over_disabled() {
    for (name, plugins, expected) in PRECEDENCE {
        let loaded = load(wrapped(plugins)).unwrap_or_else(|errors| panic!("{name}: {errors:#?}"));
        let plugins = &loaded.effective.profiles[0].plugins;
        let list = |point: Point| {
            let word = |plugin: &berth_framework::profile::EnabledPlugin| {
                plugin.weight.map_or_else(|| plugin.name.clone(), |weight| format!("{}={weight}", plugin.name))
            };
            plugins.at(point).enabled.iter().map(word).collect::<Vec<_>>().join(" ")
        };
        assert_eq!([Point::PreFilter, Point::Filter, Point::Score, Point::Reserve].map(list), expected.map(str::to_owned), "{name}");
    }
}

#[test]
fn a_plugin_of_a_third_party_comes_after_the_defaults_in_the_order_in_which_it_is_enabled() {
    let body = "profiles:\n- plugins: {multiPoint: {enabled: [{name: Zone}, {name: Capacity}]}}\n  pluginConfig: [{name: Zone, args: {zone: a}}]\n";
    let loaded = load(body).expect("valid");
    assert_eq!(loaded.profiles.of("").plugin_names().collect::<Vec<_>>(), ["RuntimeReady", "WorkspaceFencing", "RunAffinity", "Capacity", "Zone"]);
    let args = &loaded.effective.profiles[0].plugin_config;
    assert_eq!(args.last().map(|config| config.args.to_string()).as_deref(), Some(r#"{"high":10,"low":0,"only":[],"zone":"a"}"#), "defaults merged");
}

// ---- what profiles change ------------------------------------------------------------------------

/// Three Pods of six for each runtime; six Runs that would rather be together.
fn workload(runtime: &str) -> String {
    let pods = ["a", "b", "c"].map(|pod| {
        format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{namespace: ns, name: {runtime}-{pod}, labels: {{runtime: {runtime}}}, annotations: {{kruntimes.io/capacity.runs: \"6\"}}}}}}\n")
    });
    let runs = (0..6).map(|n| {
        format!(
            "---\n{{apiVersion: kruntimes.io/v1alpha1, kind: Run, metadata: {{namespace: ns, name: {runtime}-{n}, labels: {{team: {runtime}}}}}, spec: {{runtime: {runtime}, mode: {{task: {{}}}}, \
             affinity: {{runAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 100, runAffinityTerm: {{labelSelector: {{matchLabels: {{team: {runtime}}}}}, \
             topologyKey: kruntimes.io/runtime-pod}}}}]}}}}}}}}\n"
        )
    });
    pods.into_iter().chain(runs).collect()
}

/// How many Runs each Pod got, by `berth simulate`.
fn placements(configuration: &str) -> Vec<(String, usize)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, text_of(configuration)).expect("a file");
    let args = ["berth", "simulate", "-f", "-", "-o", "json", "--config"].iter().map(std::ffi::OsString::from).chain([file.into_os_string()]);
    let input = workload("bash") + &workload("python");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut streams = berth_scheduler::cli::Streams { input: &mut input.as_bytes(), out: &mut out, err: &mut err };
    assert_eq!(berth_scheduler::cli::run(args, registry(), &mut streams), 0, "{}", String::from_utf8_lossy(&err));
    let report: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    let mut pods = std::collections::BTreeMap::new();
    for run in report["runs"].as_array().expect("runs") {
        *pods.entry(run["assignedPod"].as_str().expect("placed").to_owned()).or_insert(0) += 1;
    }
    pods.into_iter().collect()
}

#[test]
fn weights_decide_where_the_same_runs_go_and_each_profile_has_its_own() {
    let together = "{plugins: {score: {enabled: [{name: RunAffinity, weight: 100}]}}}";
    let apart = "{plugins: {score: {enabled: [{name: Capacity, weight: 100}]}}}";
    let of = |runtime: &str, spread: bool| -> Vec<(String, usize)> {
        if spread { ["a", "b", "c"].map(|pod| (format!("{runtime}-{pod}"), 2)).to_vec() } else { vec![(format!("{runtime}-a"), 6)] }
    };
    for (bash, python, spread) in
        [(together, together, [false, false]), (apart, apart, [true, true]), (together, apart, [false, true]), (apart, together, [true, false])]
    {
        let named = |profile: &str, name: &str| profile.replacen('{', &format!("{{{name}, "), 1);
        let configuration = format!("profiles: [{}, {}]\n", named(bash, "schedulerName: default"), named(python, "schedulerName: p, runtimes: [python]"));
        assert_eq!(placements(&configuration), [of("bash", spread[0]), of("python", spread[1])].concat(), "{configuration}");
    }
}

// ---- the command and the documentation -----------------------------------------------------------

fn berth(args: &[&str], input: &str) -> (u8, String, String) {
    let args = ["berth", "config"].iter().chain(args).map(std::ffi::OsString::from).collect::<Vec<_>>();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = berth_scheduler::cli::run(args, registry(), &mut berth_scheduler::cli::Streams { input: &mut input.as_bytes(), out: &mut out, err: &mut err });
    (code, String::from_utf8(out).expect("UTF-8"), String::from_utf8(err).expect("UTF-8"))
}

#[test]
fn the_command_checks_shows_and_prints_the_schema() {
    let (code, out, err) = berth(&["check", "-"], &text_of("profiles: [{schedulerName: a}, {schedulerName: b, runtimes: [x, y], shadow: true}]\n"));
    let scores = "(scores: RunAffinity 1, Capacity 1)";
    let wanted = format!(
        "-: valid: profile a for every other runtime {scores}; shadow profile b for x, y {scores}; back-off 1 s to 10 s; 32 bind workers; leader election off\n"
    );
    assert_eq!((code, out, err), (0, wanted, String::new()));

    let (code, out, err) = berth(&["check", "-"], &text_of("bindWorkers: 0\nfoo: 1\n"));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("error: 2 problems:\n  -:3:14: bindWorkers: must be 1 to 1024, not 0\n  -:4:1: foo: unknown field"), "{err}");

    let (code, _, err) = berth(&["check", "/nowhere/config.yaml"], "");
    assert!(code == 2 && err.starts_with("error: /nowhere/config.yaml: No such file"), "{err}");

    let (_, yaml, _) = berth(&["show"], "");
    let (_, json, _) = berth(&["show", "-", "-o", "json"], &yaml);
    let (code, again, err) = berth(&["show", "-"], &json);
    assert_eq!((code, again, err.as_str()), (0, yaml, ""));

    let (code, schema, _) = berth(&["schema"], "");
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("JSON");
    assert_eq!(code, 0);
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let config = &schema["properties"]["profiles"]["items"]["properties"]["pluginConfig"]["items"];
    assert_eq!(config["properties"]["name"]["enum"], serde_json::json!(["Capacity", "RunAffinity", "RuntimeReady", "WorkspaceFencing", "Zone"]));
    let zone = config["allOf"].as_array().expect("allOf").iter().find(|part| part["if"]["properties"]["name"]["const"] == "Zone").expect("Zone");
    assert_eq!(zone["then"]["properties"]["args"]["required"], serde_json::json!(["zone"]));
    assert!(!schema.to_string().contains("$ref"), "everything stands where it is used");
}

#[test]
fn the_guide_tells_every_field() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder");
    let guide = std::fs::read_to_string(root.join("docs/config.md")).expect("docs/config.md");
    let (_, told) = guide.split_once("<!-- fields -->\n").expect("<!-- fields -->");
    let (told, _) = told.split_once("<!-- end of fields -->").expect("<!-- end of fields -->");
    let generated = config::reference(&Registry::builtin());
    assert_eq!(told.trim(), generated.trim(), "replace that part of docs/config.md by what `berth config schema -o markdown` prints");
    for (number, block) in guide.split("```yaml\n").skip(1).enumerate() {
        let yaml = block.split("```").next().expect("an end");
        if yaml.contains("kind: BerthConfiguration") && !yaml.contains("kind: ConfigMap") {
            config::parse(yaml, &format!("example {number}"), &Registry::builtin()).unwrap_or_else(|refused| panic!("{refused}\n{yaml}"));
        }
    }
}
