//! The plugin changes where Runs go, and its reason is in the message of those that wait.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use berth_scheduler::cli::{Streams, run};
use berth_scheduler::prelude::*;
use custom_plugin::GpuModel;

/// Every Run of gpu.yaml: its Pod, or why it has none.
fn placements(registry: Registry, config: Option<&str>) -> Vec<String> {
    let folder = env!("CARGO_MANIFEST_DIR");
    let mut args = vec!["berth".to_owned(), "simulate".into(), format!("-f={folder}/gpu.yaml"), "-o=json".into()];
    args.extend(config.map(|file| format!("--config={folder}/{file}")));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(args.into_iter().map(Into::into), registry, &mut Streams { input: &mut std::io::empty(), out: &mut out, err: &mut err });
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
    let result: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let line = |run: &serde_json::Value| run["assignedPod"].as_str().or(run["message"].as_str()).unwrap_or_default().to_owned();
    result["runs"].as_array().unwrap().iter().map(line).collect()
}

#[test]
fn without_the_plugin_the_load_decides() {
    assert_eq!(placements(Registry::builtin(), None), ["with-h100", "plain", "with-h100"]);
}

#[test]
fn with_the_plugin_labels_decide_and_its_reason_is_told() {
    let waits = "waiting for available runtime pods: 0/2 fit: 2 without GPU a40";
    assert_eq!(placements(Registry::builtin().with::<GpuModel>(), None), ["plain", "with-h100", waits]);
}

#[test]
fn args_and_weights_come_from_the_profile() {
    assert_eq!(placements(Registry::builtin().with::<GpuModel>(), Some("other-label.config")), placements(Registry::builtin(), None));
    assert_eq!(placements(Registry::builtin().with_optional::<GpuModel>(), None), placements(Registry::builtin(), None));
}

/// An older Run that this plugin never lets anywhere must not keep younger ones, which it would let, from being tried.
#[test]
fn a_run_that_fits_nowhere_does_not_starve_the_ones_behind_it() {
    let run_of = |name: &str, created: &str, gpu: &str| {
        format!(
            "{{apiVersion: kruntimes.io/v1alpha1, kind: Run, metadata: {{namespace: demo, name: {name}, creationTimestamp: '{created}', labels: {{example.com/gpu: {gpu}}}}}, spec: {{runtime: python, mode: {{task: {{}}}}}}}}"
        )
    };
    let manifest = [
        "{apiVersion: v1, kind: Pod, metadata: {namespace: demo, name: h, labels: {runtime: python, example.com/gpu: h100}, annotations: {kruntimes.io/capacity.runs: '1'}}}".to_owned(),
        run_of("older", "2026-01-01T00:00:00Z", "a40"),
        run_of("second", "2026-01-01T00:00:01Z", "h100"),
        run_of("third", "2026-01-01T00:00:02Z", "h100"),
    ]
    .join("\n---\n");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = ["berth", "simulate", "-f", "-", "-o", "json", "--run-duration", "30s"].map(Into::into);
    let streams = &mut Streams { input: &mut manifest.as_bytes(), out: &mut out, err: &mut err };
    assert_eq!(run(args, Registry::builtin().with::<GpuModel>(), streams), 0, "{}", String::from_utf8_lossy(&err));
    let result: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let phases: Vec<_> = result["runs"].as_array().unwrap().iter().map(|run| (run["name"].as_str().unwrap(), run["assignedPod"].as_str())).collect();
    assert_eq!(phases, [("older", None), ("second", Some("h")), ("third", Some("h"))]);
    assert!(!String::from_utf8_lossy(&err).contains("alarm"), "no wake-up was lost: {}", String::from_utf8_lossy(&err));
}
