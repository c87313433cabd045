//! The rows of the validation suite without a cluster: the offline check gives the verdict of the API server, and
//! the decoder reads whatever is accepted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;

use berth_api::rules::{self, FieldError};
use berth_api::{Run, decode};
use rows::{Act, Expect, Kind, Row, merge};
use serde_json::{Value, json};

mod rows;

/// What the offline check and the API's defaults make of a row: what would be stored, and what is wrong.
fn judge(row: &Row) -> (Value, Vec<FieldError>) {
    type Stored = fn(&Value) -> Value;
    type Create = fn(&Value) -> Vec<FieldError>;
    type Update = fn(&Value, &Value) -> Vec<FieldError>;
    let (stored, create, update, unknown): (Stored, Create, Update, Create) = match row.kind {
        Kind::Run => (rules::stored_run, rules::validate_run, rules::validate_run_update, rules::unknown_run_fields),
        Kind::PersistentWorkspace => (rules::stored_workspace, rules::validate_workspace, rules::validate_workspace_update, rules::unknown_workspace_fields),
    };
    let (new, mut errors) = match &row.act {
        Act::Create(object) => (object.clone(), create(object)),
        Act::Update(old, patch) | Act::Status(old, patch) => {
            assert_eq!(create(old), [], "{}: the object before the update is valid", row.name);
            let old = stored(old);
            let new = merge(&old, patch);
            (new.clone(), update(&new, &old))
        }
    };
    if row.strict {
        errors.extend(unknown(&new));
    }
    (stored(&new), errors)
}

#[test]
fn the_offline_check_agrees_with_the_expectation_of_every_row() {
    let mut wrong = Vec::new();
    let rows = rows::all();
    for row in rows.iter().filter(|row| row.differs_offline.is_none()) {
        let (stored, errors) = judge(row);
        let right = match &row.expect {
            Expect::Accepted(None) => errors.is_empty(),
            Expect::Accepted(Some((at, value))) => errors.is_empty() && stored.pointer(at) == Some(value),
            Expect::Refused { path, message } => errors.iter().any(|error| error.path == *path && error.message.contains(message)),
        };
        if !right {
            wrong.push(format!("{}: {:?}\n    found {errors:?}\n    stored {:.200}", row.name, row.expect, stored.to_string()));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(rows.len() >= 110, "only {} rows", rows.len());
    let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
    assert_eq!(names.len(), rows.len(), "names of rows are unique");
}

#[test]
fn what_is_accepted_is_decoded() {
    for row in rows::all() {
        let (stored, errors) = judge(&row);
        match row.kind {
            Kind::Run => {
                let decoded = decode::run(stored.clone());
                if !errors.is_empty() || row.undecodable.is_some() {
                    continue; // decoding returned, and that is all that is asked
                }
                match decoded {
                    Ok(_) => {}
                    Err(error) => assert!(error.without_spec, "{}: {error}", row.name),
                }
            }
            Kind::PersistentWorkspace => {
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
    assert!(!rules::validate_run(&stored).is_empty());
    assert_eq!(rules::validate_run_update(&merge(&stored, &json!({"spec": {"cancelRequested": true}})), &stored), []);
    let changed = rules::validate_run_update(&merge(&stored, &json!({"spec": {"ttlSecondsAfterFinished": -2}})), &stored);
    let paths: Vec<&str> = changed.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["spec.ttlSecondsAfterFinished"]);
}

/// A small generator, seeded, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit.max(1)
    }

    fn hostile(&mut self) -> Value {
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(1e300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(""),
            json!("x"),
            json!("-"),
            json!("1e1.5"),
            json!("1e999999999"),
            json!("\u{0}\u{202e}é"),
            json!("9".repeat(3000)),
            json!([]),
            json!({}),
            json!([null]),
            json!({"": null}),
            json!([[[]]]),
            json!("2026-13-45T99:99:99Z"),
            json!({"spec": {}}),
        ];
        values[self.below(values.len())].clone()
    }

    /// Replaces, removes, adds or doubles something somewhere.
    fn mutate(&mut self, value: &mut Value) {
        let deeper = self.below(5) > 0;
        match value {
            Value::Object(members) if deeper && !members.is_empty() => {
                let index = self.below(members.len());
                let name = members.keys().nth(index).cloned().unwrap();
                match self.below(12) {
                    0 => {
                        members.remove(&name);
                    }
                    1 => {
                        let hostile = self.hostile();
                        members.insert("podName".to_owned(), hostile);
                    }
                    _ => self.mutate(members.get_mut(&name).unwrap()),
                }
            }
            Value::Array(items) if deeper && !items.is_empty() => {
                let index = self.below(items.len());
                match self.below(6) {
                    0 => {
                        items.remove(index);
                    }
                    1 => items.push(items[index].clone()),
                    _ => self.mutate(&mut items[index]),
                }
            }
            _ => *value = self.hostile(),
        }
    }
}

#[test]
fn hostile_values_never_panic_and_never_fail_their_neighbours() {
    let seeds: Vec<(Kind, Value)> = rows::all()
        .into_iter()
        .filter(|row| row.undecodable.is_none())
        .filter_map(|row| match (&row.expect, judge(&row)) {
            (Expect::Accepted(_), (stored, _)) if stored.to_string().len() < 4000 => Some((row.kind, stored)),
            _ => None,
        })
        .collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut admitted = 0;
    for round in 0..40_000 {
        let (kind, good) = &seeds[round % seeds.len()];
        let mut bad = good.clone();
        for _ in 0..=random.below(3) {
            random.mutate(&mut bad);
        }
        match kind {
            Kind::Run => {
                let errors = rules::validate_run(&bad);
                rules::unknown_run_fields(&bad);
                rules::validate_run_update(&bad, good);
                rules::validate_run_update(good, &bad);
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
            Kind::PersistentWorkspace => {
                rules::validate_workspace(&bad);
                rules::validate_workspace_update(&bad, good);
                let _ = decode::persistent_workspace(bad);
            }
        }
    }
    assert!(admitted > 1000, "the generator makes too few admissible objects: {admitted}");
}
