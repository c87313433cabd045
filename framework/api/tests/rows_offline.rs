//! The rows of the validation suite without a cluster: the offline check gives the verdict of the API server, and
//! the decoder reads whatever is accepted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;

use berth_api::{Run, decode, rules};
use random::Random;
use row::{Expect, Kind, Row, merge};
use rows::RUN;
use serde_json::{Value, json};

#[path = "rows/random.rs"]
mod random;
#[path = "rows/row.rs"]
mod row;
mod rows;

#[test]
fn the_offline_check_agrees_with_the_expectation_of_every_row() {
    let rows = rows::all();
    let wrong: Vec<String> = rows.iter().filter_map(Row::difference_offline).collect();
    assert!(wrong.is_empty(), "{} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(rows.len() >= 110, "only {} rows", rows.len());
    let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
    assert_eq!(names.len(), rows.len(), "names of rows are unique");
}

#[test]
fn what_is_accepted_is_decoded() {
    for row in rows::all() {
        let (stored, errors) = row.judge();
        match row.kind == RUN {
            true => {
                let decoded = decode::run(stored.clone());
                if !errors.is_empty() || row.undecodable.is_some() {
                    continue; // decoding returned, and that is all that is asked
                }
                match decoded {
                    Ok(_) => {}
                    Err(error) => assert!(error.without_spec, "{}: {error}", row.name),
                }
            }
            false => {
                let decoded = decode::persistent_workspace(stored.clone());
                assert!(!errors.is_empty() || decoded.is_ok_and(|_| true) || stored.get("spec").is_none(), "{}", row.name);
            }
        }
    }
}

/// Reads every text of a spec, whatever comes of it; `framework` tests what must.
fn compile(run: &Run) {
    let _ = (run.spec.requests(), run.spec.timeout(), run.spec.retry_policy.as_ref().map(|policy| policy.pause_before(2)));
    let rules = run.spec.affinity.iter().flat_map(|affinity| [&affinity.run_affinity, &affinity.run_anti_affinity]).flatten();
    let terms = rules.flat_map(|rules| {
        let preferred = rules.preferred_during_scheduling_ignored_during_execution.iter();
        rules.required_during_scheduling_ignored_during_execution.iter().chain(preferred.map(|weighted| &weighted.run_affinity_term))
    });
    terms.for_each(|term| drop(term.compile()));
}

/// What was stored under a looser definition, the neighbour's, doesn't hold up a change of something else.
#[test]
fn a_stored_value_that_breaks_a_rule_may_stay_but_not_change() {
    let stored = json!({"spec": {"runtime": "bash", "mode": {"task": {}}, "timeout": "abc", "ttlSecondsAfterFinished": -1,
        "affinity": {"runAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}]}}}});
    assert!(!rules::RUN.validate(&stored).is_empty());
    assert_eq!(rules::RUN.validate_update(&merge(&stored, &json!({"spec": {"cancelRequested": true}})), &stored), []);
    let changed = rules::RUN.validate_update(&merge(&stored, &json!({"spec": {"ttlSecondsAfterFinished": -2}})), &stored);
    let paths: Vec<&str> = changed.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["spec.ttlSecondsAfterFinished"]);
}

#[test]
fn hostile_values_never_panic_and_never_fail_their_neighbours() {
    let seeds: Vec<(Kind, Value)> = rows::all()
        .into_iter()
        .filter(|row| row.undecodable.is_none())
        .filter_map(|row| match (&row.expect, row.judge()) {
            (Expect::Accepted(_), (stored, _)) if stored.to_string().len() < 4000 => Some((row.kind, stored)),
            _ => None,
        })
        .collect();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let mut admitted = 0;
    for round in 0..40_000 {
        let (kind, good) = &seeds[round % seeds.len()];
        let mut bad = good.clone();
        for _ in 0..=random.below(3) {
            random.mutate(&mut bad);
        }
        match *kind == RUN {
            true => {
                let errors = rules::RUN.validate(&bad);
                rules::RUN.unknown_fields(&bad);
                rules::RUN.validate_update(&bad, good);
                rules::RUN.validate_update(good, &bad);
                let decoded = [decode::run(bad.clone()), decode::run(good.clone())];
                let [bad_decoded, good_decoded] = decoded;
                if let Ok(run) = &bad_decoded {
                    compile(run);
                    let _ = run.phase();
                }
                // What the rules admit, the decoder reads: nothing else could be stored under our CRD. Metadata is
                // the API server's own to check.
                let stored = bad.as_object().is_some_and(|object| object.contains_key("spec"));
                if errors.is_empty() && stored && !bad["spec"].is_null() {
                    admitted += 1;
                    assert!(bad_decoded.is_ok() || bad.get("metadata").is_some(), "round {round}: {bad_decoded:?}\n{bad}");
                }
                assert!(good_decoded.is_ok_and(|_| true) || good.get("spec").is_none(), "round {round}");
            }
            false => {
                rules::WORKSPACE.validate(&bad);
                rules::WORKSPACE.validate_update(&bad, good);
                let _ = decode::persistent_workspace(bad);
            }
        }
    }
    assert!(admitted > 1000, "the generator makes too few admissible objects: {admitted}");
}
