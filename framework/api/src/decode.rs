//! From stored JSON to types, one object at a time: whatever the bytes say, the answer is a value or a named refusal.
//!
//! A typed LIST fails as a whole if one object can't be read; so readers list values and decode each here.

use std::fmt;

use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::constants::{KIND_PERSISTENT_WORKSPACE, KIND_RUN};
use crate::message::bounded;
use crate::persistent_workspace::PersistentWorkspace;
use crate::rules::{self, Definition};
use crate::run::{Run, RunPhase};

/// An object that can't be read, and all that is needed to say so or to end it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind} {namespace}/{name}: {path}: {reason}")]
pub struct InvalidObject {
    /// As `Run` or `PersistentWorkspace`.
    pub kind: &'static str,
    /// Namespace, empty if it can't be read.
    pub namespace: String,
    /// Name, empty if it can't be read.
    pub name: String,
    /// UID, if it can be read.
    pub uid: Option<String>,
    /// Resource version, if it can be read.
    pub resource_version: Option<String>,
    /// `status.phase` as far as it can be read; Pending otherwise.
    pub phase: RunPhase,
    /// The field, such as `spec.affinity.runAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey`;
    /// for a missing field the object that lacks it; `.` is the whole.
    pub path: String,
    /// What is wrong with it, under 1,024 bytes.
    pub reason: String,
    /// The object has no `spec` at all: the schema admits it, and readers leave it alone (reference §1).
    pub without_spec: bool,
    /// The object, for whoever can do with a part of it.
    pub rest: Undecoded,
}

/// An object that was not decoded, tidied; `Debug` does not show it, for its texts may be nobody's business.
#[derive(Clone, Default, PartialEq)]
pub struct Undecoded(pub Value);

impl fmt::Debug for Undecoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undecoded(..)")
    }
}

/// Decodes a Run.
///
/// Nulls are dropped first and `1.0` is read as `1`, as the API server does. Unknown fields are ignored;
/// phases of a later version are kept.
///
/// # Errors
/// [`InvalidObject`]; never panics.
#[expect(clippy::result_large_err, reason = "the value itself is larger still")]
pub fn run(value: Value) -> Result<Run, InvalidObject> {
    decode(KIND_RUN, &rules::RUN, value)
}

/// Decodes a PersistentWorkspace; as [`run`].
///
/// # Errors
/// [`InvalidObject`]; never panics.
#[expect(clippy::result_large_err, reason = "the value itself is larger still")]
pub fn persistent_workspace(value: Value) -> Result<PersistentWorkspace, InvalidObject> {
    decode(KIND_PERSISTENT_WORKSPACE, &rules::WORKSPACE, value)
}

/// Decodes an object of any kind, by its own definition; as [`run`].
///
/// # Errors
/// [`InvalidObject`]; never panics.
#[expect(clippy::result_large_err, reason = "the value itself is larger still")]
pub fn decode<T: DeserializeOwned>(kind: &'static str, definition: &Definition, mut value: Value) -> Result<T, InvalidObject> {
    tidy(&mut value);
    let text = |path: &[&str]| path.iter().try_fold(&value, |at, key| at.get(key)).and_then(Value::as_str).map(str::to_owned);
    let mut invalid = InvalidObject {
        kind,
        namespace: text(&["metadata", "namespace"]).unwrap_or_default(),
        name: text(&["metadata", "name"]).unwrap_or_default(),
        uid: text(&["metadata", "uid"]),
        resource_version: text(&["metadata", "resourceVersion"]),
        phase: RunPhase::parse(&text(&["status", "phase"]).unwrap_or_default()),
        path: ".".to_owned(),
        reason: String::new(),
        without_spec: false,
        rest: Undecoded::default(),
    };
    let Some(object) = value.as_object_mut() else {
        invalid.reason = "not an object".to_owned();
        return Err(invalid);
    };
    // ObjectMeta alone is required by the type; nothing stored lacks it, a manifest may.
    object.entry("metadata").or_insert_with(|| serde_json::to_value(ObjectMeta::default()).unwrap_or_default());
    if !object.contains_key("spec") {
        invalid.path = "spec".to_owned();
        invalid.reason = "missing".to_owned();
        invalid.without_spec = true;
        invalid.rest = Undecoded(value);
        return Err(invalid);
    }
    if let Some(path) = definition.list_in_place_of_object(&value) {
        invalid.path = path;
        invalid.reason = "invalid type: sequence, expected an object".to_owned();
        invalid.rest = Undecoded(value);
        return Err(invalid);
    }
    serde_path_to_error::deserialize(&value).map_err(|error| {
        invalid.path = error.path().to_string();
        invalid.reason = bounded(error.inner().to_string());
        invalid.rest = Undecoded(value);
        invalid
    })
}

/// Removes the members of objects that are null (elements of lists stay), and writes `1.0` as `1`: the API server takes
/// it for an integer and stores it as one.
fn tidy(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(integer) = integral(number) {
                *value = Value::from(integer);
            }
        }
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The integer that a floating-point number is, within the range in which that is exact.
pub(crate) fn integral(number: &serde_json::Number) -> Option<i64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let float = number.as_f64().filter(|_| number.is_f64())?;
    #[expect(clippy::cast_possible_truncation, reason = "integral and within 2^53")]
    let integer = float as i64;
    (float.fract() == 0.0 && float.abs() <= EXACT_MAX).then_some(integer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::json;

    use super::*;
    use crate::constants::MESSAGE_BYTES_MAX;

    #[test]
    fn a_refusal_names_the_object_and_the_field() {
        let rows = [
            (json!({"spec": {"runtime": 5, "mode": {}}}), "spec.runtime", "invalid type: integer `5`, expected a string"),
            (json!({"spec": {"runtime": "x"}}), "spec", "missing field `mode`"),
            (
                json!({"spec": {"runtime": "x", "mode": {}, "affinity": {"runAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1.5}]}}}}),
                "spec.affinity.runAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
                "invalid type: floating point `1.5`, expected i32",
            ),
        ];
        for (mut value, path, reason) in rows {
            value["metadata"] = json!({"namespace": "ns", "name": "a", "uid": "u"});
            value["status"] = json!({"phase": "Running"});
            let error = run(value).unwrap_err();
            assert_eq!((error.path.as_str(), error.reason.as_str()), (path, reason));
            assert_eq!(error.phase, RunPhase::Running);
            assert_eq!(error.to_string(), format!("Run ns/a: {path}: {reason}"));
            assert_eq!(error.rest.0["metadata"]["name"], "a");
            assert!(format!("{error:?}").contains("rest: Undecoded(..)"), "{error:?}");
        }
    }

    #[test]
    fn a_list_is_no_object() {
        for (path, spec, status) in [
            ("status", json!({"runtime": "x", "mode": {}}), json!(["Scheduled", "bash-0"])),
            ("spec", json!(["x"]), json!({})),
            ("spec.mode", json!({"runtime": "x", "mode": []}), json!({})),
            ("spec.workspace", json!({"runtime": "x", "mode": {}, "workspace": ["w"]}), json!({})),
            ("spec.env[1]", json!({"runtime": "x", "mode": {}, "env": [{"name": "a"}, ["b", "c"]]}), json!({})),
            ("status.conditions[0]", json!({"runtime": "x", "mode": {}}), json!({"conditions": [["Scheduled"]]})),
        ] {
            let error = run(json!({"metadata": {"name": "a"}, "spec": spec, "status": status})).unwrap_err();
            assert_eq!((error.path.as_str(), error.reason.as_str()), (path, "invalid type: sequence, expected an object"));
        }
        let workspace = persistent_workspace(json!({"metadata": {"name": "w"}, "spec": {"runtime": "x"}, "status": ["Bound"]}));
        assert_eq!(workspace.unwrap_err().path, "status");
    }

    #[test]
    fn an_object_without_spec_is_marked_as_such() {
        for value in [json!({}), json!({"spec": null}), json!({"metadata": {"name": "a"}})] {
            assert!(run(value).unwrap_err().without_spec);
        }
        assert!(!run(json!([])).unwrap_err().without_spec);
        assert!(!run(json!({"spec": {}})).unwrap_err().without_spec);
    }

    #[test]
    fn phases_of_a_later_version_are_kept_and_empty_is_pending() {
        let phase_of = |status: Value| {
            let run = run(json!({"spec": {"runtime": "x", "mode": {}}, "status": status})).unwrap();
            run.phase().clone()
        };
        assert_eq!(phase_of(json!({"phase": "Suspended"})), RunPhase::Unknown("Suspended".into()));
        assert_eq!(phase_of(json!({"phase": ""})), RunPhase::Pending);
        assert_eq!(phase_of(json!({})), RunPhase::Pending);
        assert_eq!(phase_of(json!(null)), RunPhase::Pending);
        let back = serde_json::to_value(RunPhase::parse("Suspended")).unwrap();
        assert_eq!(back, json!("Suspended"));
    }

    #[test]
    fn a_long_reason_is_cut_below_the_limit() {
        let error = run(json!({"spec": {"runtime": "x", "mode": {}, "ttlSecondsAfterFinished": "é".repeat(9000)}}));
        let reason = error.unwrap_err().reason;
        assert!(reason.len() < MESSAGE_BYTES_MAX, "{}", reason.len());
    }
}
