//! The rows of the validation suite as the scheduler sees them: what the API accepts is placed, or ends as its row says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use berth_api::{decode, rules};
use berth_framework::from_api::run_object;
use rows::{Act, Expect, RUN, Row, merge};
use serde_json::{Value, json};

#[path = "../api/tests/rows/row.rs"]
mod row;
#[path = "../api/tests/rows/mod.rs"]
mod rows;

/// What is stored after the row.
fn stored(row: &Row) -> Value {
    match &row.act {
        Act::Create(object) => rules::RUN.stored(object),
        Act::Update(old, patch) | Act::Status(old, patch) => rules::RUN.stored(&merge(&rules::RUN.stored(old), patch)),
    }
}

fn reason(object: Value) -> Option<&'static str> {
    run_object(&decode::run(object).expect("decodable")).invalid.map(|invalid| invalid.reason.as_str())
}

#[test]
fn every_accepted_run_ends_as_its_row_says_or_is_placed() {
    let accepted = |row: &Row| row.kind == RUN && matches!(row.expect, Expect::Accepted(_)) && row.undecodable.is_none();
    let mut ended = 0;
    for row in rows::all().into_iter().filter(accepted) {
        let object = stored(&row);
        // Left alone by every reader (reference kruntimes §1).
        if object.get("spec").is_none_or(Value::is_null) {
            continue;
        }
        assert_eq!(reason(object), row.ends, "{}", row.name);
        ended += usize::from(row.ends.is_some());
    }
    assert!(ended > 3, "only {ended} rows end");
}

/// The neighbour's CRD has no patterns: it stores what ours refuses.
#[test]
fn what_only_a_looser_crd_lets_pass_names_its_field() {
    let rows = [
        (json!({"timeout": "abc"}), "spec.timeout: not a Go duration: \"abc\""),
        (json!({"timeout": ""}), "spec.timeout: not a Go duration: \"\""),
        (json!({"timeout": "5"}), "spec.timeout: missing unit in duration: \"5\""),
        (json!({"timeout": "9999999h"}), "spec.timeout: duration out of range: \"9999999h\""),
        (json!({"retryPolicy": {"backoff": "5 minutes"}}), "spec.retryPolicy.backoff: unknown unit in duration: \"5 minutes\""),
        (json!({"retryPolicy": {"backoff": "1x"}}), "spec.retryPolicy.backoff: unknown unit in duration: \"1x\""),
        (json!({"timeout": "0s", "retryPolicy": {"backoff": "-1s"}}), ""),
    ];
    for (spec, expected) in rows {
        let mut object = json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": {"runtime": "bash", "mode": {"task": {}}}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let invalid = run_object(&decode::run(object).unwrap()).invalid;
        let told = invalid.map(|invalid| (invalid.reason.as_str(), invalid.message));
        let expected = (!expected.is_empty()).then(|| ("InvalidSpec", expected.to_owned()));
        assert_eq!(told, expected, "{spec}");
    }
}
