//! `berth simulate` as its users see it: arguments and manifests in, tables, JSON, messages and exit codes out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod clock;
mod examples;
mod input;
mod jobs;
mod refusals;
mod result;

use std::path::PathBuf;

use berth_framework::profile::Registry;
use berth_plugins::Builtin as _;
use berth_scheduler::cli::{Streams, run};
use serde_json::Value;

/// What a command answered.
#[derive(Debug)]
struct Answer {
    code: u8,
    out: String,
    err: String,
}

/// Runs `berth simulate ARGS` through the library's entry, with `stdin`.
fn simulate(args: &[&str], stdin: &str) -> Answer {
    let args = ["berth", "simulate"].iter().chain(args).map(Into::into).collect::<Vec<_>>();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(args, Registry::builtin(), &mut Streams { input: &mut stdin.as_bytes(), out: &mut out, err: &mut err });
    Answer { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// The JSON result of manifests given on standard input, and of more arguments.
fn result(args: &[&str], stdin: &str) -> Value {
    let args = [&["-f", "-", "-o", "json"], args].concat();
    let answer = simulate(&args, stdin);
    assert_eq!(answer.code, 0, "{}", answer.err);
    serde_json::from_str(&answer.out).unwrap()
}

/// Every Run in one line: `name Pod` where it is placed, else `name Phase/Reason message`.
fn lines(result: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |run: &Value| match &run["phase"] {
        phase if phase == "Scheduled" => format!("{} {}", text(&run["name"]), text(&run["assignedPod"])),
        phase if run["assignedPod"].is_string() => format!("{} {}/{}", text(&run["name"]), text(&run["assignedPod"]), text(phase)),
        phase => {
            let message = text(&run["message"]).replace("waiting for available runtime pods: ", "");
            format!("{} {}/{} {message}", text(&run["name"]), text(phase), text(&run["reason"])).trim_end().to_owned()
        }
    };
    result["runs"].as_array().unwrap().iter().map(line).collect()
}

/// A file of the examples.
fn example(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples").join(name);
    root.to_str().unwrap().to_owned()
}

/// A Pod of runtime bash in namespace ns, one JSON document; `more` are further members, as `"status":{…}`.
fn pod(name: &str, runs: u32, more: &str) -> String {
    let more = if more.is_empty() { String::new() } else { format!(",{more}") };
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns","name":"{name}","labels":{{"runtime":"bash"}},"annotations":{{"kruntimes.io/capacity.runs":"{runs}"}}}}{more}}}
"#
    )
}

/// The status of a Pod that beat at `time`.
fn beat(time: &str) -> String {
    format!(
        r#""status":{{"phase":"Running","conditions":[{{"type":"Ready","status":"True"}},{{"type":"kruntimes.io/RuntimedReady","status":"True","lastProbeTime":"{time}"}}]}}"#
    )
}

/// A Run of runtime bash in namespace ns; `meta` and `more` are further members of its metadata and of itself.
fn a_run(name: &str, meta: &str, more: &str) -> String {
    let comma = |text: &str| if text.is_empty() { String::new() } else { format!(",{text}") };
    format!(
        r#"{{"apiVersion":"kruntimes.io/v1alpha1","kind":"Run","metadata":{{"namespace":"ns","name":"{name}"{}}},"spec":{{"runtime":"bash","mode":{{"task":{{}}}}}}{}}}
"#,
        comma(meta),
        comma(more)
    )
}
