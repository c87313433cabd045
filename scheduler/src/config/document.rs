//! One YAML or JSON document as a value, as Kubernetes reads such files.

use serde_json::{Map, Number, Value};
use serde_saphyr::DuplicateKeyPolicy;

use super::Problem;
use crate::simulate::lines::{Place, options};

/// Longest text that is taken for a configuration, bytes: a ConfigMap can't hold more either.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Largest whole number that a float holds exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Reads the one document of `text`, a mapping. Of keys that stand twice the first counts.
///
/// # Errors
/// It is too long, no YAML, more than one document, or no mapping.
pub fn read(text: &str) -> Result<Value, Problem> {
    let problem = |place, message: String| Problem { place, path: String::new(), message };
    if text.len() > TEXT_BYTES_MAX {
        return Err(problem(None, format!("is longer than {TEXT_BYTES_MAX} bytes")));
    }
    let mut options = options();
    options.duplicate_keys = DuplicateKeyPolicy::FirstWins;
    // A runtime may be called y, and yes is a text in YAML 1.2.
    options.strict_booleans = true;
    let mut value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default();
        let message = message.split(" at line ").next().unwrap_or(message).trim_start_matches("error: ");
        let message = if message.starts_with("multiple YAML documents") { "a second document begins here; a configuration is one" } else { message };
        let place = error.location().map(|at| Place { line: at.line(), column: at.column() });
        problem(place, message.to_owned())
    })?;
    let what = match &value {
        Value::Object(_) => {
            whole_numbers(&mut value);
            return Ok(value);
        }
        Value::Null => "nothing",
        Value::Array(_) => "a list",
        _ => "a single value",
    };
    Err(problem(Some(Place { line: 1, column: 1 }), format!("must be a mapping that begins with apiVersion and kind, not {what}")))
}

/// `2.0` is `2`, as it is for a JSON schema and for Kubernetes.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() <= WHOLE_MAX)
                && let Ok(whole) = format!("{float:.0}").parse::<i64>()
            {
                *number = Number::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(members) => members.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// Takes away members that are null: a field without a value is one that isn't set, as Kubernetes has it.
pub fn without_nulls(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(without_nulls);
        }
        _ => {}
    }
}

/// `a.b[0]` of a JSON pointer into `root`: what is an index is told by the value there.
pub fn path_of(pointer: &str, root: &Value) -> String {
    let mut path = String::new();
    let mut here = Some(root);
    for part in pointer.split('/').skip(1) {
        let key = part.replace("~1", "/").replace("~0", "~");
        match here {
            Some(Value::Array(items)) => {
                path.push_str(&format!("[{key}]"));
                here = key.parse::<usize>().ok().and_then(|i| items.get(i));
            }
            _ => {
                path = join(&path, &key);
                here = here.and_then(|value| value.get(&key));
            }
        }
    }
    path
}

/// `path.key`.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A value in a few words, for messages.
pub fn describe(value: &Value) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
        Value::String(text) if text.chars().count() > SHOWN_CHARS_MAX => {
            let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            format!("the text {shown:?}…")
        }
        Value::String(text) => format!("the text {text:?}"),
        plain => plain.to_string(),
    }
}

/// An empty mapping.
pub fn nothing() -> Value {
    Value::Object(Map::new())
}
