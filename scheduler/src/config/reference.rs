//! Every field of a configuration as Markdown, from its JSON Schema; docs/config.md holds this text.

use std::fmt::Write as _;

use berth_framework::profile::Registry;
use serde_json::Value;

use super::schema::{SETS, schema};

/// One table of the configuration's own fields, one per plugin of its args.
pub fn reference(registry: &Registry) -> String {
    let schema = schema(registry);
    let mut text = String::from("| field | type | what it says |\n|---|---|---|\n");
    rows(&mut text, "", &schema);
    for name in registry.names() {
        let _ = write!(text, "\nArgs of `{name}`:\n\n");
        let args = registry.args_schema(name).map(schemars::Schema::to_value).unwrap_or_default();
        if args.get("properties").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty) {
            text.push_str("none.\n");
            continue;
        }
        text.push_str("| arg | type | default | what it says |\n|---|---|---|---|\n");
        arg_rows(&mut text, "", &args);
    }
    text
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn rows(text: &mut String, at: &str, schema: &Value) {
    for (key, field) in properties(schema) {
        // The points are all alike: their fields are told once.
        if SETS[1..].contains(&key.as_str()) && at.ends_with("plugins.") {
            let _ = writeln!(text, "| `{at}{key}` | like `multiPoint` | {} |", said(field));
            continue;
        }
        let path = format!("{at}{key}");
        let _ = writeln!(text, "| `{path}` | {} | {} |", kind(field), said(field));
        match field.get("items") {
            Some(items) => rows(text, &format!("{path}[]."), items),
            None => rows(text, &format!("{path}."), field),
        }
    }
}

fn arg_rows(text: &mut String, at: &str, schema: &Value) {
    for (key, field) in properties(schema) {
        let default = field.get("default").map_or_else(String::new, |default| format!("`{default}`"));
        let _ = writeln!(text, "| `{at}{key}` | {} | {default} | {} |", kind(field), said(field));
        match field.get("items") {
            Some(items) => arg_rows(text, &format!("{at}{key}[]."), items),
            None => arg_rows(text, &format!("{at}{key}."), field),
        }
    }
}

fn said(field: &Value) -> String {
    let said = field.get("description").and_then(Value::as_str).unwrap_or_default();
    said.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A field's type in a word or two.
fn kind(field: &Value) -> String {
    if let Some(constant) = field.get("const") {
        return format!("`{}`", constant.as_str().map_or_else(|| constant.to_string(), str::to_owned));
    }
    let listed = |values: Vec<&Value>| values.iter().filter_map(|v| v.as_str()).map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", ");
    if let Some(values) = field.get("enum").and_then(Value::as_array) {
        return listed(values.iter().collect());
    }
    if let Some(branches) = field.get("oneOf").or_else(|| field.get("anyOf")).and_then(Value::as_array) {
        let constants: Vec<&Value> = branches.iter().filter_map(|branch| branch.get("const")).collect();
        if !constants.is_empty() {
            return listed(constants);
        }
        return branches.iter().filter(|branch| branch.get("type").and_then(Value::as_str) != Some("null")).map(kind).collect::<Vec<_>>().join(" or ");
    }
    let types: Vec<&str> = match field.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
        _ => return "any".to_owned(),
    };
    let word = |kind: &&str| match *kind {
        "array" => "list".to_owned(),
        "object" => "mapping".to_owned(),
        "string" => "text".to_owned(),
        "boolean" => "true or false".to_owned(),
        other => match (field.get("minimum").and_then(Value::as_f64), field.get("maximum").and_then(Value::as_f64)) {
            (Some(least), Some(most)) => format!("{other} {least} to {most}"),
            (Some(least), None) => format!("{other} from {least}"),
            _ => other.to_owned(),
        },
    };
    types.iter().map(word).collect::<Vec<_>>().join(" or ")
}
