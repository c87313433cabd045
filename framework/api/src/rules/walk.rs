//! Applies a schema to a value, as the API server does.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::cel::Check;
use super::node::{Kind, Node};
use super::{FieldError, FieldErrorKind, format, metadata};
use crate::decode::integral;

/// What is wrong with `new`; with `old`, as an update of it.
pub(super) fn validate(root: &Node, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !new.is_object() {
        errors.push(type_error("", Kind::Object, new));
        return errors;
    }
    let new = normalise(root, new);
    let old = old.map(|old| normalise(root, old));
    check(root, "", &new, old.as_ref(), &mut errors);
    if !errors.iter().any(|error| error.kind.blocks_cel()) {
        check_cel(root, "", &new, old.as_ref(), &mut errors);
    }
    errors.extend(new.get("metadata").map(metadata::validate).unwrap_or_default());
    errors
}

/// Members of the root that every object has, and that the schema doesn't list.
fn is_envelope(path: &str, name: &str) -> bool {
    path.is_empty() && matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Drops nulls and unknown members, adds defaults, and turns `1.0` into `1` where an integer is expected.
pub(super) fn normalise(node: &Node, value: &Value) -> Value {
    normalise_at(node, "", value)
}

fn normalise_at(node: &Node, path: &str, value: &Value) -> Value {
    match value {
        Value::Object(members) if node.kind == Kind::Object => {
            let mut kept = Map::new();
            for (name, member) in members.iter().filter(|(_, member)| !member.is_null()) {
                if is_envelope(path, name) {
                    kept.insert(name.clone(), member.clone());
                } else if let Some(child) = node.properties.get(name).or(node.additional.as_deref()) {
                    kept.insert(name.clone(), normalise_at(child, "_", member));
                }
            }
            for (name, child) in &node.properties {
                if let Some(default) = &child.default
                    && !kept.contains_key(name)
                {
                    kept.insert(name.clone(), default.clone());
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => match &node.items {
            Some(child) => items.iter().map(|item| normalise_at(child, "_", item)).collect(),
            None => value.clone(),
        },
        Value::Number(number) if matches!(node.kind, Kind::Integer | Kind::IntOrString) => integral(number).map_or_else(|| value.clone(), Value::from),
        _ => value.clone(),
    }
}

/// The fields of `value` that the schema doesn't have.
pub(super) fn unknown_fields(root: &Node, value: &Value) -> Vec<FieldError> {
    fn visit(node: &Node, path: &str, value: &Value, errors: &mut Vec<FieldError>) {
        match value {
            Value::Object(members) if node.kind == Kind::Object => {
                for (name, member) in members {
                    let at = join(path, name);
                    if is_envelope(path, name) {
                        unknown_metadata(name, member, errors);
                    } else if let Some(child) = node.properties.get(name).or(node.additional.as_deref()) {
                        visit(child, &at, member, errors);
                    } else {
                        errors.push(unknown(at));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(child) = &node.items {
                    for (index, item) in items.iter().enumerate() {
                        visit(child, &format!("{path}[{index}]"), item, errors);
                    }
                }
            }
            _ => {}
        }
    }
    let mut errors = Vec::new();
    visit(root, "", value, &mut errors);
    errors
}

/// The path of the first list that stands where the schema has an object.
pub(super) fn list_in_place_of_object(root: &Node, value: &Value) -> Option<String> {
    fn visit(node: &Node, path: &str, value: &Value) -> Option<String> {
        match value {
            Value::Array(_) if node.kind == Kind::Object => Some(path.to_owned()),
            Value::Array(items) => {
                let child = node.items.as_deref()?;
                items.iter().enumerate().find_map(|(index, item)| visit(child, &format!("{path}[{index}]"), item))
            }
            Value::Object(members) => members.iter().find_map(|(name, member)| {
                let child = node.properties.get(name).or(node.additional.as_deref())?;
                (member.is_object() || member.is_array()).then(|| visit(child, &join(path, name), member)).flatten()
            }),
            _ => None,
        }
    }
    visit(root, "", value)
}

/// Fields of ObjectMeta.
const METADATA_FIELDS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

fn unknown_metadata(name: &str, value: &Value, errors: &mut Vec<FieldError>) {
    if name == "metadata" {
        let members = value.as_object().into_iter().flat_map(Map::keys);
        errors.extend(members.filter(|name| !METADATA_FIELDS.contains(&name.as_str())).map(|name| unknown(join("metadata", name))));
    }
}

fn unknown(path: String) -> FieldError {
    FieldError { path, message: "unknown field".to_owned(), kind: FieldErrorKind::Unknown }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn type_error(path: &str, kind: Kind, value: &Value) -> FieldError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    FieldError { path: path.to_owned(), message: format!("must be of type {}, not {found}", kind.name()), kind: FieldErrorKind::Type }
}

/// Checks everything but CEL. A value that an update leaves alone is not checked again ("ratcheting"), if the
/// API server can tell that it is the same value: within a list only in one that is a map.
fn check(node: &Node, path: &str, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if old == Some(value) {
        return;
    }
    let before = errors.len();
    match (node.kind, value) {
        (Kind::Object, Value::Object(members)) => check_object(node, path, members, old, errors),
        (Kind::Array, Value::Array(items)) => check_array(node, path, items, old, errors),
        (Kind::String | Kind::IntOrString, Value::String(text)) => check_text(node, path, text, errors),
        (Kind::Integer | Kind::IntOrString, Value::Number(number)) => check_number(node, path, number, errors),
        (Kind::Boolean, Value::Bool(_)) => {}
        _ => errors.push(type_error(path, node.kind, value)),
    }
    if errors.len() == before && !node.allowed.is_empty() && !node.allowed.contains(value) {
        let allowed: Vec<String> = node.allowed.iter().map(Value::to_string).collect();
        errors.push(FieldError {
            path: path.to_owned(),
            message: format!("unsupported value {value}, supported: {}", allowed.join(", ")),
            kind: FieldErrorKind::NotSupported,
        });
    }
}

fn check_object(node: &Node, path: &str, members: &Map<String, Value>, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    for name in node.required.iter().filter(|name| !members.contains_key(*name)) {
        errors.push(FieldError { path: join(path, name), message: "required value".to_owned(), kind: FieldErrorKind::Required });
    }
    limit(path, members.len(), node.max_properties, "entries", FieldErrorKind::TooMany, errors);
    for (name, member) in members {
        if let Some(child) = node.properties.get(name).or(node.additional.as_deref()) {
            check(child, &join(path, name), member, old.and_then(|old| old.get(name)), errors);
        }
    }
}

fn check_array(node: &Node, path: &str, items: &[Value], old: Option<&Value>, errors: &mut Vec<FieldError>) {
    limit(path, items.len(), node.max_items, "items", FieldErrorKind::TooMany, errors);
    if let Some(least) = node.min_items.filter(|least| i64::try_from(items.len()).is_ok_and(|count| count < *least)) {
        errors.push(FieldError { path: path.to_owned(), message: format!("must have at least {least} items"), kind: FieldErrorKind::Invalid });
    }
    let Some(child) = &node.items else { return };
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let at = format!("{path}[{index}]");
        check(child, &at, item, same_item(node, item, old), errors);
        if !node.list_keys.is_empty() && !seen.insert(keys_of(node, item)) {
            errors.push(FieldError { path: at, message: "duplicate value".to_owned(), kind: FieldErrorKind::Duplicate });
        }
    }
}

fn keys_of(node: &Node, item: &Value) -> Vec<String> {
    node.list_keys.iter().map(|key| item.get(key).unwrap_or(&Value::Null).to_string()).collect()
}

/// The item of the old list with the same keys, if the list is a map.
fn same_item<'a>(node: &Node, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    if node.list_keys.is_empty() {
        return None;
    }
    let keys = keys_of(node, item);
    old?.as_array()?.iter().find(|candidate| keys_of(node, candidate) == keys)
}

fn check_text(node: &Node, path: &str, text: &str, errors: &mut Vec<FieldError>) {
    let invalid = |message: String| FieldError { path: path.to_owned(), message, kind: FieldErrorKind::Invalid };
    let length = text.chars().count();
    limit(path, length, node.max_length, "characters", FieldErrorKind::TooLong, errors);
    if let Some(least) = node.min_length
        && i64::try_from(length).is_ok_and(|length| length < least)
    {
        errors.push(invalid(format!("must have at least {least} characters")));
    }
    if let Some(pattern) = &node.pattern
        && !pattern.is_match(text)
    {
        errors.push(invalid(format!("{} does not match '{pattern}'", quote(text))));
    }
    let well_formed = match node.format.as_deref() {
        Some("date-time") => format::is_date_time(text),
        Some("byte") => format::is_base64(text),
        _ => true,
    };
    if !well_formed {
        errors.push(invalid(format!("{} is no {}", quote(text), node.format.as_deref().unwrap_or_default())));
    }
}

/// The text for a message, cut to a readable length.
fn quote(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn limit(path: &str, count: usize, most: Option<i64>, what: &str, kind: FieldErrorKind, errors: &mut Vec<FieldError>) {
    if let Some(most) = most
        && i64::try_from(count).is_ok_and(|count| count > most)
    {
        errors.push(FieldError { path: path.to_owned(), message: format!("must have at most {most} {what}"), kind });
    }
}

fn check_number(node: &Node, path: &str, number: &serde_json::Number, errors: &mut Vec<FieldError>) {
    let mut invalid = |message: String| {
        errors.push(FieldError { path: path.to_owned(), message, kind: FieldErrorKind::Invalid });
    };
    let Some(integer) = number.as_i64() else {
        // Beyond 64 bits, or a fraction.
        if number.is_f64() {
            errors.push(type_error(path, node.kind, &Value::Number(number.clone())));
        } else {
            invalid(format!("{number} is out of range"));
        }
        return;
    };
    if node.format.as_deref() == Some("int32") && i32::try_from(integer).is_err() {
        invalid(format!("{number} is out of range"));
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "bounds are small; the schema holds them as f64")]
    let float = integer as f64;
    if let Some(least) = node.minimum.filter(|least| float < *least) {
        invalid(format!("must be at least {least}"));
    }
    if let Some(most) = node.maximum.filter(|most| float > *most) {
        invalid(format!("must be at most {most}"));
    }
}

fn check_cel(node: &Node, path: &str, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if old == Some(value) {
        return; // states are not asked again, and every transition allows no change
    }
    for (member, rule) in &node.cel {
        let holds = match (rule.check, old) {
            (Check::State(check), _) => check(value),
            (Check::Transition(check), Some(old)) => check(value, old),
            (Check::Transition(_), None) => true,
        };
        if !holds {
            let at = if member.is_empty() { path.to_owned() } else { join(path, member) };
            errors.push(FieldError { path: at, message: rule.message.to_owned(), kind: FieldErrorKind::Invalid });
        }
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(child) = node.properties.get(name).or(node.additional.as_deref()) {
                    check_cel(child, &join(path, name), member, old.and_then(|old| old.get(name)), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = &node.items {
                for (index, item) in items.iter().enumerate() {
                    check_cel(child, &format!("{path}[{index}]"), item, same_item(node, item, old), errors);
                }
            }
        }
        _ => {}
    }
}
