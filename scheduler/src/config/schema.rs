//! The JSON Schema of BerthConfiguration as this binary has it: with the names of its plugins and the args of each.

use berth_framework::profile::{BerthConfiguration, CONFIG_API_VERSION, CONFIG_KIND, Registry};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The points of a profile, by the names they have in a configuration.
pub const SETS: [&str; 6] = ["multiPoint", "preFilter", "filter", "score", "reserve", "bind"];

/// The schema: JSON Schema 2020-12, everything in place of use, so that editors complete with it.
pub fn schema(registry: &Registry) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<BerthConfiguration>().to_value();
    let names: Vec<&str> = registry.names().collect();
    let or_all: Vec<&str> = names.iter().copied().chain(["*"]).collect();
    let mut set = |pointer: String, key: &str, value: Value| {
        if let Some(Value::Object(at)) = schema.pointer_mut(&pointer) {
            at.insert(key.to_owned(), value);
        }
    };
    set(String::new(), "title", json!("BerthConfiguration"));
    set("/properties/apiVersion".to_owned(), "const", json!(CONFIG_API_VERSION));
    set("/properties/kind".to_owned(), "const", json!(CONFIG_KIND));
    let profile = "/properties/profiles/items";
    for point in SETS {
        let plugins = format!("{profile}/properties/plugins/properties/{point}/properties");
        set(format!("{plugins}/enabled/items/properties/name"), "enum", json!(names));
        set(format!("{plugins}/disabled/items/properties/name"), "enum", json!(or_all));
    }
    let config = format!("{profile}/properties/pluginConfig/items");
    set(format!("{config}/properties/name"), "enum", json!(names));
    let of =
        |name: &&str| json!({"if": {"required": ["name"], "properties": {"name": {"const": name}}}, "then": {"properties": {"args": args(registry, name)}}});
    let by_name: Vec<Value> = names.iter().map(of).collect();
    // An empty allOf is no valid schema.
    if !by_name.is_empty() {
        set(config, "allOf", json!(by_name));
    }
    strip(&mut schema);
    schema
}

/// The args of one plugin, to stand inside another schema.
fn args(registry: &Registry, name: &str) -> Value {
    let mut schema = registry.args_schema(name).map(schemars::Schema::to_value).unwrap_or_default();
    if let Value::Object(members) = &mut schema {
        members.remove("$schema");
        // A recursive type has definitions, and its references are about its own root.
        if members.contains_key("$defs") {
            members.insert("$id".to_owned(), json!(format!("urn:berth:args:{name}")));
        }
    }
    schema
}

/// Formats of numbers say nothing that the bounds don't, and some editors warn of them.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|format| format.starts_with(['u', 'i']) && format.ends_with(|c: char| c.is_ascii_digit()))
            {
                members.remove("format");
            }
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}
