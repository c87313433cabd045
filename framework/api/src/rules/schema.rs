//! From the Rust types and the table of rules to the CRDs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value, json};

use super::table::{Constraint, Rule};

/// The table and the types disagree; found by a test, not by users.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CrdError {
    /// A rule names nothing.
    #[error("no field of {crd} matches rule path {path:?}")]
    NoSuchPath {
        /// Name of the CRD.
        crd: String,
        /// Path of the rule.
        path: &'static str,
    },
    /// The generated definition has no schema, or is none.
    #[error("the definition generated for {crd} is none: {cause}")]
    Malformed {
        /// Name of the CRD.
        crd: String,
        /// Why.
        cause: String,
    },
}

/// The definition that the Rust type gives, with the rules written onto its schema.
pub(super) fn with_rules(mut crd: CustomResourceDefinition, rules: &[&'static [Rule]]) -> Result<CustomResourceDefinition, CrdError> {
    let name = crd.metadata.name.clone().unwrap_or_default();
    let malformed = |cause: String| CrdError::Malformed { crd: name.clone(), cause };
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    for version in &mut crd.spec.versions {
        let props = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let props = props.ok_or_else(|| malformed("no schema".to_owned()))?;
        let mut schema = serde_json::to_value(&*props).map_err(|error| malformed(error.to_string()))?;
        clean(&mut schema);
        // An object without spec is admitted, and then ignored (reference §1), unless the table requires it.
        if let Some(root) = schema.as_object_mut() {
            root.remove("required");
        }
        for rule in rules.iter().copied().flatten() {
            let path: Vec<&str> = segments(rule.path);
            if for_each(&mut schema, &path, &mut |node| rule.constraints.iter().for_each(|c| constrain(node, c))) == 0 {
                return Err(CrdError::NoSuchPath { crd: name.clone(), path: rule.path });
            }
        }
        *props = serde_json::from_value(schema).map_err(|error| malformed(error.to_string()))?;
    }
    Ok(crd)
}

/// Removes what schemars says about Rust but the neighbours' schemas don't say: null is no value of any field, and the
/// only defaults are those of the table.
fn clean(node: &mut Value) {
    let Some(node) = node.as_object_mut() else {
        return;
    };
    node.remove("nullable");
    node.remove("default");
    for member in ["items", "additionalProperties"] {
        if let Some(child) = node.get_mut(member) {
            clean(child);
        }
    }
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        properties.values_mut().for_each(clean);
    }
}

/// `a.b[].c{}` as `a`, `b`, `[]`, `c`, `{}`.
fn segments(path: &str) -> Vec<&str> {
    let mut segments = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let name = part.trim_end_matches("[]").trim_end_matches("{}");
        segments.push(name);
        match &part[name.len()..] {
            "" => {}
            rest => segments.push(rest),
        }
    }
    segments
}

/// Applies `action` to every node at `path`; answers how many there are.
fn for_each(node: &mut Value, path: &[&str], action: &mut dyn FnMut(&mut Map<String, Value>)) -> usize {
    let Some(object) = node.as_object_mut() else {
        return 0;
    };
    let Some((first, rest)) = path.split_first() else {
        action(object);
        return 1;
    };
    let mut child = |child: Option<&mut Value>| child.map_or(0, |child| for_each(child, rest, action));
    match *first {
        "[]" => child(object.get_mut("items")),
        "{}" => child(object.get_mut("additionalProperties")),
        name => match object.get_mut("properties").and_then(Value::as_object_mut) {
            Some(properties) if name == "*" => properties.values_mut().map(|value| child(Some(value))).sum(),
            Some(properties) => child(properties.get_mut(name)),
            None => 0,
        },
    }
}

fn constrain(node: &mut Map<String, Value>, constraint: &Constraint) {
    let mut set = |key: &str, value: Value| {
        node.insert(key.to_owned(), value);
    };
    match *constraint {
        Constraint::Required(member) => push(node, "required", json!(member)),
        Constraint::Optional(member) => {
            if let Some(Value::Array(required)) = node.get_mut("required") {
                required.retain(|name| name != member);
            }
        }
        Constraint::Default(text) => set("default", serde_json::from_str(text).unwrap_or(Value::Null)),
        Constraint::MinLength(count) => set("minLength", json!(count)),
        Constraint::MaxLength(count) => set("maxLength", json!(count)),
        Constraint::Pattern(pattern) => set("pattern", json!(pattern)),
        Constraint::Enum(texts) => set("enum", json!(texts)),
        Constraint::Minimum(least) => set("minimum", json!(least)),
        Constraint::Maximum(greatest) => set("maximum", json!(greatest)),
        Constraint::MinItems(count) => set("minItems", json!(count)),
        Constraint::MaxItems(count) => set("maxItems", json!(count)),
        Constraint::MaxProperties(count) => set("maxProperties", json!(count)),
        Constraint::Format(format) => set("format", json!(format)),
        Constraint::ListMap(key) => {
            set("x-kubernetes-list-type", json!("map"));
            set("x-kubernetes-list-map-keys", json!([key]));
        }
        Constraint::AtomicList => set("x-kubernetes-list-type", json!("atomic")),
        Constraint::AtomicMap => set("x-kubernetes-map-type", json!("atomic")),
        Constraint::Cel(rule) => push(node, "x-kubernetes-validations", json!({"rule": rule.rule, "message": rule.message})),
        Constraint::CelOf(member, rule) => {
            push(node, "x-kubernetes-validations", json!({"rule": rule.rule, "message": rule.message, "fieldPath": format!(".{member}")}));
        }
    }
}

fn push(node: &mut Map<String, Value>, key: &str, value: Value) {
    if let Value::Array(list) = node.entry(key.to_owned()).or_insert_with(|| json!([]))
        && !list.contains(&value)
    {
        list.push(value);
    }
}
