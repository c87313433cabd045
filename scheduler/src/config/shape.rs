//! Fields and types of a configuration, by its JSON Schema: every error in words, and what must be cut out to look further.

use berth_framework::profile::{ConfigError, Registry};
use berth_framework::registry::nearest;
use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use serde_json::Value;

use super::document::{describe, join, nothing, path_of};
use super::schema::schema;

/// How an error about a number's type begins.
const MISTYPED: &str = "must be a whole number";

/// One thing wrong with the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub path: String,
    pub message: String,
    /// It is about the key, not about the value.
    pub at_key: bool,
    /// The value can be read all the same; the rules may have more to say.
    pub weak: bool,
    /// JSON pointer to what is wrong.
    pointer: String,
}

/// Everything wrong with the shape of `value`.
pub(super) fn check(value: &Value, registry: &Registry) -> Vec<Finding> {
    let schema = schema(registry);
    let validator = match jsonschema::validator_for(&schema) {
        Ok(validator) => validator,
        // Only a plugin's own schema can be wrong.
        Err(error) => {
            let message = format!("the args of a plugin of this binary have a schema that is none: {error}");
            return vec![Finding { path: "profiles".to_owned(), message, at_key: true, weak: false, pointer: "/profiles".to_owned() }];
        }
    };
    let mut checker = Checker { value, schema: &schema, findings: Vec::new() };
    validator.iter_errors(value).for_each(|error| checker.tell(&error));
    let mut findings = checker.findings;
    findings.dedup();
    // Half a worker is no whole number, and that says it.
    let mistyped: Vec<String> = findings.iter().filter(|finding| finding.message.starts_with(MISTYPED)).map(|finding| finding.pointer.clone()).collect();
    findings.retain(|finding| finding.message.starts_with(MISTYPED) || !mistyped.contains(&finding.pointer));
    findings
}

struct Checker<'v> {
    value: &'v Value,
    schema: &'v Value,
    findings: Vec<Finding>,
}

impl Checker<'_> {
    fn tell(&mut self, error: &ValidationError<'_>) {
        let pointer = error.instance_path().as_str().to_owned();
        let is = describe(error.instance());
        let in_args = pointer.contains("/args");
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                for field in unexpected {
                    let message = self.unknown_field(error, field);
                    self.add(format!("{pointer}/{}", escaped(field)), message, true, false);
                }
            }
            ValidationErrorKind::Required { property } => {
                let field = property.as_str().unwrap_or_default();
                self.add(format!("{pointer}/{}", escaped(field)), "is required".to_owned(), true, false);
            }
            ValidationErrorKind::Type { kind } => self.add(pointer, format!("must be {}, not {is}", wanted(kind)), false, false),
            ValidationErrorKind::Constant { expected_value } => self.add(pointer, format!("must be {}, not {is}", plain(expected_value)), false, !in_args),
            ValidationErrorKind::Enum { options } => {
                let options = options.as_array().cloned().unwrap_or_default();
                self.choice(pointer, error.instance(), &options, !in_args);
            }
            ValidationErrorKind::Minimum { .. } | ValidationErrorKind::Maximum { .. } => {
                let message = format!("must be {}, not {is}", self.bounds(error));
                self.add(pointer, message, false, false);
            }
            ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => self.branches(error, context),
            _ => {
                let message = error.to_string();
                self.add(pointer, message, false, false);
            }
        }
    }

    fn add(&mut self, pointer: String, message: String, at_key: bool, weak: bool) {
        self.findings.push(Finding { path: path_of(&pointer, self.value), message, at_key, weak, pointer });
    }

    /// What stands beside the keyword that was violated.
    fn beside(&self, error: &ValidationError<'_>, keyword: &str) -> Option<&Value> {
        let (parent, _) = error.schema_path().as_str().rsplit_once('/')?;
        self.schema.pointer(parent)?.get(keyword)
    }

    fn unknown_field(&self, error: &ValidationError<'_>, field: &str) -> String {
        let known: Vec<&str> = match self.beside(error, "properties") {
            Some(Value::Object(known)) => known.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        // A field that belongs further up or down is more often misplaced than misspelt.
        if let Some(place) = where_else(self.schema, field).filter(|_| !known.contains(&field)) {
            return format!("unknown field; {field} belongs to {place}");
        }
        match nearest(field, known.iter().copied()) {
            Some(near) => format!("unknown field; did you mean {near}?"),
            None if known.is_empty() => "unknown field; there are none here".to_owned(),
            None => format!("unknown field; known are {}", known.join(", ")),
        }
    }

    fn bounds(&self, error: &ValidationError<'_>) -> String {
        let limit = |keyword: &str| {
            self.beside(error, keyword).filter(|limit| limit.is_number()).map(|limit| limit.as_f64().map_or(limit.to_string(), |n| n.to_string()))
        };
        match (limit("minimum"), limit("maximum")) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => "within its bounds".to_owned(),
        }
    }

    fn choice(&mut self, pointer: String, instance: &Value, options: &[Value], weak: bool) {
        let words: Vec<&str> = options.iter().filter_map(Value::as_str).collect();
        let hint = instance.as_str().and_then(|text| nearest(text, words.iter().copied())).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let list = match words.as_slice() {
            [] => options.iter().map(plain).collect::<Vec<_>>().join(", "),
            [one] => (*one).to_owned(),
            [first @ .., last] => format!("{} or {last}", first.join(", ")),
        };
        self.add(pointer, format!("must be {list}, not {}{hint}", describe(instance)), false, weak);
    }

    /// None of several schemas fits: tells the choices if each is a constant, else what is wrong with the one that comes closest.
    fn branches(&mut self, error: &ValidationError<'_>, context: &[Vec<ValidationError<'static>>]) {
        let pointer = error.instance_path().as_str();
        let mut options = Vec::new();
        for branch in context {
            match branch.first().map(ValidationError::kind) {
                Some(ValidationErrorKind::Constant { expected_value }) if branch.len() == 1 => options.push((**expected_value).clone()),
                Some(ValidationErrorKind::Enum { options: more }) => options.extend(more.as_array().cloned().unwrap_or_default()),
                _ => {}
            }
        }
        // Constants of another type fail by type as well, which says less.
        if options.is_empty()
            && let Some(Value::Array(branches)) = self.schema.pointer(error.schema_path().as_str())
        {
            options.extend(branches.iter().filter_map(|branch| branch.get("const")).cloned());
        }
        if !options.is_empty() {
            return self.choice(pointer.to_owned(), error.instance(), &options, false);
        }
        let is_null = |branch: &Vec<ValidationError<'static>>| matches!(branch.first().map(ValidationError::kind), Some(ValidationErrorKind::Type { kind: TypeKind::Single(t) }) if t.to_string() == "null");
        let depth = |branch: &Vec<ValidationError<'static>>| branch.iter().map(|e| e.instance_path().as_str().len()).max().unwrap_or(0);
        match context.iter().filter(|branch| !is_null(branch)).max_by_key(|branch| (depth(branch), std::cmp::Reverse(branch.len()))) {
            Some(branch) => branch.iter().for_each(|error| self.tell(error)),
            None => self.add(pointer.to_owned(), error.to_string(), false, false),
        }
    }
}

/// `profiles[]`, if that is the one place of the schema that knows `field`.
fn where_else(schema: &Value, field: &str) -> Option<String> {
    fn collect(schema: &Value, path: &str, field: &str, found: &mut Vec<String>) {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            if properties.contains_key(field) {
                found.push(if path.is_empty() { "the top level".to_owned() } else { path.to_owned() });
            }
            for (key, below) in properties {
                collect(below, &join(path, key), field, found);
            }
        }
        if let Some(items) = schema.get("items") {
            collect(items, &format!("{path}[]"), field, found);
        }
        for then in schema.get("allOf").and_then(Value::as_array).into_iter().flatten().filter_map(|part| part.get("then")) {
            collect(then, path, field, found);
        }
    }
    let mut found = Vec::new();
    collect(schema, "", field, &mut found);
    found.retain(|path| !path.is_empty());
    found.dedup();
    if found.len() == 1 { found.pop() } else { None }
}

/// What a JSON type is called in messages.
fn wanted(kind: &TypeKind) -> String {
    let types: Vec<String> = match kind {
        TypeKind::Single(kind) => vec![kind.to_string()],
        TypeKind::Multiple(kinds) => kinds.iter().map(|kind| kind.to_string()).collect(),
    };
    let word = |kind: &String| match kind.as_str() {
        "array" => "a list",
        "object" => "a mapping",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "a text",
        "boolean" => "true or false",
        _ => "nothing",
    };
    types.iter().filter(|kind| types.len() == 1 || *kind != "null").map(word).collect::<Vec<_>>().join(" or ")
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

// ---- cutting -------------------------------------------------------------------------------------

/// What was cut out of a configuration, so that the rest can be read.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    paths: Vec<String>,
}

impl Cuts {
    /// Whether an error of the rules only comes from what was cut out.
    pub(super) fn explain(&self, error: &ConfigError) -> bool {
        let below = |path: &str, cut: &str| path.strip_prefix(cut).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        if self.paths.iter().any(|cut| below(&error.path, cut)) {
            return true;
        }
        // Who is the default depends on all profiles.
        let names_default = error.path == "profiles" || (error.path.starts_with("profiles[") && error.path.ends_with("].runtimes"));
        let decides_default = |cut: &String| match cut.strip_prefix("profiles[").and_then(|rest| rest.split_once(']')) {
            Some((_, field)) => field.is_empty() || field == ".shadow" || field.starts_with(".runtimes"),
            None => false,
        };
        if names_default && self.paths.iter().any(decides_default) {
            return true;
        }
        // A plugin saw its args without what was cut out of them.
        let Some((at, _)) = error.path.split_once(".args") else { return false };
        let args = format!("{at}.args");
        let speaks_of = |cut: &String| error.path == args || error.message.contains(cut.rsplit('.').next().unwrap_or_default());
        self.paths.iter().any(|cut| below(cut, &args) && speaks_of(cut))
    }
}

/// Takes what is wrong out of `value`. Items of lists are replaced instead, so that the others keep their places.
pub(super) fn cut(value: &mut Value, findings: &[Finding]) -> Cuts {
    let mut cuts = Cuts::default();
    for finding in findings.iter().filter(|finding| !finding.weak) {
        cuts.paths.push(finding.path.clone());
        // Args go field by field; their lists belong to the plugin.
        let pointer = match finding.pointer.split_once("/args/") {
            Some((before, below)) => format!("{before}/args/{}", below.split('/').next().unwrap_or_default()),
            None => finding.pointer.clone(),
        };
        let Some((parent, key)) = pointer.rsplit_once('/') else { continue };
        let list = parent.rsplit('/').next().unwrap_or_default();
        match value.pointer_mut(parent) {
            Some(Value::Array(items)) => {
                if let Some(item) = key.parse::<usize>().ok().and_then(|i| items.get_mut(i)) {
                    *item = match list {
                        "profiles" => nothing(),
                        "runtimes" => Value::from(""),
                        _ => serde_json::json!({"name": ""}),
                    };
                }
            }
            Some(Value::Object(members)) => {
                let key = key.replace("~1", "/").replace("~0", "~");
                members.remove(&key);
                if !parent.contains("/args") && matches!(key.as_str(), "apiVersion" | "kind" | "name") {
                    members.insert(key, Value::from(""));
                }
            }
            _ => {}
        }
    }
    cuts
}
