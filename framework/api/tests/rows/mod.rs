//! The validation suite's rows: objects, what is done with them, and what the API server must answer. Two tests read
//! them: `api_rows` of the suite on a real API server, and `rows_offline` of this crate, which needs none.
#![allow(dead_code, reason = "each of the two tests uses a part")]

use serde_json::{Map, Value, json};

mod affinity;
mod execution;
mod metadata;
mod status;
mod transitions;
mod workspace;

/// Which kind a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Run,
    PersistentWorkspace,
}

/// What is done.
#[derive(Clone, Debug)]
pub enum Act {
    /// The object is created.
    Create(Value),
    /// The first is created, and the second applied to it as a JSON merge patch.
    Update(Value, Value),
    /// The first is created, and the second applied to its status subresource as a JSON merge patch.
    Status(Value, Value),
}

/// What must happen.
#[derive(Clone, Debug)]
pub enum Expect {
    /// Accepted; with a JSON pointer, this is stored there.
    Accepted(Option<(&'static str, Value)>),
    /// Refused at this field; the answer contains the text.
    Refused { path: String, message: &'static str },
}

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub kind: Kind,
    pub act: Act,
    /// Ask for strict field validation.
    pub strict: bool,
    pub expect: Expect,
    /// For an accepted Run: the reason with which the scheduler must end it, because the schema lets pass what no
    /// reader can use (reference §1.1).
    pub ends: Option<&'static str>,
    /// Why the offline check may answer otherwise.
    pub differs_offline: Option<&'static str>,
    /// Why the decoder can't read what the API server accepts.
    pub undecodable: Option<&'static str>,
}

impl Row {
    fn new(name: impl Into<String>, act: Act, expect: Expect) -> Self {
        Self { name: name.into(), kind: Kind::Run, act, strict: false, expect, ends: None, differs_offline: None, undecodable: None }
    }

    fn of_workspace(self) -> Self {
        Self { kind: Kind::PersistentWorkspace, ..self }
    }

    fn ends(self, reason: &'static str) -> Self {
        Self { ends: Some(reason), ..self }
    }

    fn strictly(self) -> Self {
        Self { strict: true, ..self }
    }

    fn differs_offline(self, reason: &'static str) -> Self {
        Self { differs_offline: Some(reason), ..self }
    }

    fn undecodable(self, reason: &'static str) -> Self {
        Self { undecodable: Some(reason), ..self }
    }
}

/// Every row.
pub fn all() -> Vec<Row> {
    [workspace::rows(), affinity::rows(), execution::rows(), metadata::rows(), transitions::rows(), status::rows()].concat()
}

fn accept(name: impl Into<String>, object: Value) -> Row {
    Row::new(name, Act::Create(object), Expect::Accepted(None))
}

fn store(name: impl Into<String>, object: Value, at: &'static str, stored: Value) -> Row {
    Row::new(name, Act::Create(object), Expect::Accepted(Some((at, stored))))
}

fn refuse(name: impl Into<String>, object: Value, path: impl Into<String>, message: &'static str) -> Row {
    Row::new(name, Act::Create(object), Expect::Refused { path: path.into(), message })
}

fn update(name: impl Into<String>, object: Value, patch: Value) -> Row {
    Row::new(name, Act::Update(object, patch), Expect::Accepted(None))
}

fn update_refused(name: impl Into<String>, object: Value, patch: Value, path: impl Into<String>, message: &'static str) -> Row {
    Row::new(name, Act::Update(object, patch), Expect::Refused { path: path.into(), message })
}

fn status(name: impl Into<String>, object: Value, patch: Value) -> Row {
    Row::new(name, Act::Status(object, json!({ "status": patch })), Expect::Accepted(None))
}

fn status_refused(name: impl Into<String>, object: Value, patch: Value, path: impl Into<String>, message: &'static str) -> Row {
    let expect = Expect::Refused { path: path.into(), message };
    Row::new(name, Act::Status(object, json!({ "status": patch })), expect)
}

/// A minimal Run with `extra` in its spec; a null there takes a field away.
fn run(extra: Value) -> Value {
    object(json!({"runtime": "bash", "mode": {"task": {}}}), extra)
}

/// A minimal PersistentWorkspace with `extra` in its spec.
fn persistent_workspace(extra: Value) -> Value {
    object(json!({"runtime": "bash"}), extra)
}

fn object(mut spec: Value, extra: Value) -> Value {
    let members = spec.as_object_mut().expect("an object");
    for (name, value) in extra.as_object().expect("an object") {
        if value.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
    json!({ "spec": spec })
}

/// `count` items, each made from its number.
fn many(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

/// A map of `count` entries, `k0` to the value, and so on.
fn map_of(count: usize, value: Value) -> Value {
    (0..count).map(|index| (format!("k{index}"), value.clone())).collect::<Map<_, _>>().into()
}

/// A JSON merge patch (RFC 7396).
pub fn merge(target: &Value, patch: &Value) -> Value {
    let Some(members) = patch.as_object() else { return patch.clone() };
    let mut merged = target.as_object().cloned().unwrap_or_default();
    for (name, value) in members {
        if value.is_null() {
            merged.remove(name);
        } else {
            let old = merged.get(name).unwrap_or(&Value::Null);
            merged.insert(name.clone(), merge(old, value));
        }
    }
    merged.into()
}

/// Both objects' members, deeply; unlike in a patch, a null is a value.
pub fn merge_keeping_nulls(target: &Value, with: &Value) -> Value {
    let (Some(members), Some(target)) = (with.as_object(), target.as_object()) else { return with.clone() };
    let mut merged = target.clone();
    for (name, value) in members {
        let old = merged.get(name).unwrap_or(&Value::Null);
        merged.insert(name.clone(), merge_keeping_nulls(old, value));
    }
    merged.into()
}
