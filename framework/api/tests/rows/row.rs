//! The vocabulary of rows: an object, what is done with it, and what the API server must answer; and what the offline check answers.
#![allow(dead_code, reason = "each of the tests uses a part")]

use std::fmt;

use berth_api::rules::{Definition, FieldError};
use serde_json::{Map, Value, json};

/// The kind that a row is about.
#[derive(Clone, Copy)]
pub struct Kind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
    pub definition: fn() -> &'static Definition,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        (self.api_version, self.kind) == (other.api_version, other.kind)
    }
}

/// What is done.
#[derive(Clone, Debug)]
pub enum Act {
    /// The object is created.
    Create(Value),
    /// The first is created, with its status if it has one, and the second applied to it as a JSON merge patch.
    Update(Value, Value),
    /// The same, but the patch is applied to the status subresource.
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

impl Kind {
    pub fn row(self, name: impl Into<String>, act: Act, expect: Expect) -> Row {
        Row { name: name.into(), kind: self, act, strict: false, expect, ends: None, differs_offline: None, undecodable: None }
    }

    pub fn accept(self, name: impl Into<String>, object: Value) -> Row {
        self.row(name, Act::Create(object), Expect::Accepted(None))
    }

    pub fn store(self, name: impl Into<String>, object: Value, at: &'static str, stored: Value) -> Row {
        self.row(name, Act::Create(object), Expect::Accepted(Some((at, stored))))
    }

    pub fn refuse(self, name: impl Into<String>, object: Value, path: impl Into<String>, message: &'static str) -> Row {
        self.row(name, Act::Create(object), Expect::Refused { path: path.into(), message })
    }

    pub fn update(self, name: impl Into<String>, object: Value, patch: Value) -> Row {
        self.row(name, Act::Update(object, patch), Expect::Accepted(None))
    }

    pub fn update_refused(self, name: impl Into<String>, object: Value, patch: Value, path: impl Into<String>, message: &'static str) -> Row {
        self.row(name, Act::Update(object, patch), Expect::Refused { path: path.into(), message })
    }

    pub fn status(self, name: impl Into<String>, object: Value, patch: Value) -> Row {
        self.row(name, Act::Status(object, json!({ "status": patch })), Expect::Accepted(None))
    }

    pub fn status_refused(self, name: impl Into<String>, object: Value, patch: Value, path: impl Into<String>, message: &'static str) -> Row {
        self.row(name, Act::Status(object, json!({ "status": patch })), Expect::Refused { path: path.into(), message })
    }
}

impl Row {
    pub fn of(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    pub fn ends(self, reason: &'static str) -> Self {
        Self { ends: Some(reason), ..self }
    }

    pub fn strictly(self) -> Self {
        Self { strict: true, ..self }
    }

    pub fn differs_offline(self, reason: &'static str) -> Self {
        Self { differs_offline: Some(reason), ..self }
    }

    pub fn undecodable(self, reason: &'static str) -> Self {
        Self { undecodable: Some(reason), ..self }
    }

    /// What the offline check and the API's defaults make of the row: what would be stored, and what is wrong.
    pub fn judge(&self) -> (Value, Vec<FieldError>) {
        let definition = (self.kind.definition)();
        let (new, mut errors) = match &self.act {
            Act::Create(object) => (object.clone(), definition.validate(object)),
            Act::Update(old, patch) | Act::Status(old, patch) => {
                assert_eq!(definition.validate(old), [], "{}: the object before the update is valid", self.name);
                let old = definition.stored(old);
                let new = merge(&old, patch);
                (new.clone(), definition.validate_update(&new, &old))
            }
        };
        if self.strict {
            errors.extend(definition.unknown_fields(&new));
        }
        (definition.stored(&new), errors)
    }

    /// How the offline check differs from the row's expectation, if it does and the row doesn't say why.
    pub fn difference_offline(&self) -> Option<String> {
        if self.differs_offline.is_some() {
            return None;
        }
        let (stored, errors) = self.judge();
        let right = match &self.expect {
            Expect::Accepted(None) => errors.is_empty(),
            Expect::Accepted(Some((at, value))) => errors.is_empty() && stored.pointer(at) == Some(value),
            Expect::Refused { path, message } => errors.iter().any(|error| error.path == *path && error.message.contains(message)),
        };
        (!right).then(|| format!("{}: {:?}\n    found {errors:?}\n    stored {:.200}", self.name, self.expect, stored.to_string()))
    }
}

/// An object with that spec and `extra` in it; a null there takes a field away.
pub fn object(mut spec: Value, extra: Value) -> Value {
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
pub fn many(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

/// A map of `count` entries, `k0` to the value, and so on.
pub fn map_of(count: usize, value: Value) -> Value {
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
