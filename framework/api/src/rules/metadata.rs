//! What the API server checks of the metadata of every object (apimachinery, `ValidateObjectMeta`); no schema says it.

use serde_json::{Map, Value};

use super::{FieldError, FieldErrorKind};
use crate::names::{is_dns_label, is_dns_subdomain};
use crate::selector::{label_key_problems, label_value_problems};

/// Keys and values of all annotations together, bytes.
const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;

/// What is wrong with `metadata`. Values of a wrong type are left to the decoder; a name or namespace need not be there yet.
pub(super) fn validate(metadata: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut invalid = |field: &str, message: String| {
        errors.push(FieldError { path: format!("metadata.{field}"), message, kind: FieldErrorKind::Invalid });
    };
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    if let Some(name) = text("name").filter(|name| !is_dns_subdomain(name)) {
        invalid("name", format!("{name:?} is not a DNS-1123 subdomain"));
    }
    if let Some(namespace) = text("namespace").filter(|namespace| !is_dns_label(namespace)) {
        invalid("namespace", format!("{namespace:?} is not a DNS-1123 label"));
    }
    let members = |field: &str| metadata.get(field).and_then(Value::as_object).into_iter().flat_map(Map::iter);
    for (key, value) in members("labels") {
        label_key_problems(key).into_iter().for_each(|problem| invalid("labels", format!("{key:?}: {problem}")));
        let value = value.as_str().unwrap_or_default();
        label_value_problems(value).into_iter().for_each(|problem| invalid("labels", format!("{value:?}: {problem}")));
    }
    let mut bytes = 0;
    for (key, value) in members("annotations") {
        bytes += key.len() + value.as_str().unwrap_or_default().len();
        // As a label's key, but that case doesn't matter.
        label_key_problems(&key.to_lowercase()).into_iter().for_each(|problem| invalid("annotations", format!("{key:?}: {problem}")));
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        invalid("annotations", format!("may not be more than {ANNOTATIONS_BYTES_MAX} bytes"));
    }
    let items = |field: &str| metadata.get(field).and_then(Value::as_array).into_iter().flatten();
    for (index, owner) in items("ownerReferences").enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
                invalid(&format!("ownerReferences[{index}].{field}"), "must not be empty".to_owned());
            }
        }
        let version = owner.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if version.ends_with('/') || version.split('/').count() > 2 {
            invalid(&format!("ownerReferences[{index}].apiVersion"), "must be <group>/<version> or <version>".to_owned());
        }
    }
    if items("ownerReferences").filter(|owner| owner.get("controller") == Some(&Value::Bool(true))).count() > 1 {
        invalid("ownerReferences", "Only one reference can have Controller set to true".to_owned());
    }
    for finalizer in items("finalizers").filter_map(Value::as_str) {
        label_key_problems(finalizer).into_iter().for_each(|problem| invalid("finalizers", format!("{finalizer:?}: {problem}")));
    }
    errors
}
