//! Label selectors, compiled: canonical, comparable, hashable, and refused with the words of Kubernetes.
//!
//! Rules: spec, "Validation" (a selector is not empty); reference §1.1 (operators, keys and values are not checked by
//! the neighbour's CRD, so a stored object may hold any text) and §3.2 (the words).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::names::{LABEL_BYTES_MAX, SUBDOMAIN_BYTES_MAX, is_label_of_any_length};

/// What a [`Requirement`] asks of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label is there and its value is listed.
    In,
    /// The label is absent or its value is not listed.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Operator {
    /// Every operator's text, the enum of the schema.
    pub const KNOWN: [&'static str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => return None,
        })
    }
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// Label key, valid.
    pub key: String,
    /// What is asked.
    pub op: Operator,
    /// Sorted, without repetition; empty exactly for `Exists` and `DoesNotExist`.
    pub values: Vec<String>,
}

impl Requirement {
    /// Whether the labels satisfy this condition.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = |value: &String| self.values.binary_search(value).is_ok();
        match self.op {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// A conjunction of requirements, sorted and without repetition: selectors that are written differently but
/// hold the same requirements are equal and hash alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompiledSelector {
    /// Never empty.
    pub requirements: Vec<Requirement>,
}

/// Why a selector can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Neither labels nor expressions.
    #[error("labelSelector must not be empty")]
    Empty,
    /// An operator Kubernetes doesn't know.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    /// A key or a value that no label can have, or values that don't go with the operator.
    #[error("{path}: Invalid value: {value}: {detail}")]
    Invalid {
        /// `key`, `values`, or `values[<index>][<key>]`.
        path: String,
        /// The offending value, as JSON.
        value: String,
        /// What is wrong with it.
        detail: String,
    },
}

impl CompiledSelector {
    /// Compiles a selector.
    ///
    /// # Errors
    /// The first thing wrong with it, expressions in their order after the labels.
    pub fn compile(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(requirement(key, Operator::In, std::slice::from_ref(value))?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let op = Operator::parse(&expression.operator).ok_or_else(|| SelectorError::Operator(expression.operator.clone()))?;
            let values = expression.values.as_deref().unwrap_or_default();
            requirements.push(requirement(&expression.key, op, values)?);
        }
        if requirements.is_empty() {
            return Err(SelectorError::Empty);
        }
        requirements.sort();
        requirements.dedup();
        Ok(Self { requirements })
    }

    /// Whether the labels satisfy every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

fn requirement(key: &str, op: Operator, values: &[String]) -> Result<Requirement, SelectorError> {
    check_key(key)?;
    let wrong_values = match op {
        Operator::In | Operator::NotIn if values.is_empty() => "for 'in', 'notin' operators, values set can't be empty",
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => "values set must be empty for exists and does not exist",
        _ => "",
    };
    if !wrong_values.is_empty() {
        return Err(SelectorError::Invalid { path: "values".to_owned(), value: serde_json::Value::from(values).to_string(), detail: wrong_values.to_owned() });
    }
    for (index, value) in values.iter().enumerate() {
        let problems = label_value_problems(value);
        if !problems.is_empty() {
            return Err(SelectorError::Invalid { path: format!("values[{index}][{key}]"), value: format!("{value:?}"), detail: problems.join("; ") });
        }
    }
    let mut values = values.to_vec();
    values.sort();
    values.dedup();
    Ok(Requirement { key: key.to_owned(), op, values })
}

fn check_key(key: &str) -> Result<(), SelectorError> {
    let problems = label_key_problems(key);
    if problems.is_empty() {
        return Ok(());
    }
    Err(SelectorError::Invalid { path: "key".to_owned(), value: format!("{key:?}"), detail: problems.join("; ") })
}

const NAME_PROBLEM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_PROBLEM: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
     '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
     for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN_PROBLEM: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
     or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn too_long(bytes_max: usize) -> String {
    format!("must be no more than {bytes_max} bytes")
}

pub(crate) fn label_key_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > SUBDOMAIN_BYTES_MAX {
                    problems.push(format!("prefix part {}", too_long(SUBDOMAIN_BYTES_MAX)));
                }
                // Of any length, for that is told above.
                if !prefix.split('.').all(is_label_of_any_length) {
                    problems.push(format!("prefix part {SUBDOMAIN_PROBLEM}"));
                }
            }
            *name
        }
        _ => {
            return vec![format!(
                "a valid label key {NAME_PROBLEM} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_BYTES_MAX {
        problems.push(format!("name part {}", too_long(LABEL_BYTES_MAX)));
    }
    if !is_label_text(name) {
        problems.push(format!("name part {NAME_PROBLEM}"));
    }
    problems
}

pub(crate) fn label_value_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > LABEL_BYTES_MAX {
        problems.push(too_long(LABEL_BYTES_MAX));
    }
    if !value.is_empty() && !is_label_text(value) {
        problems.push(VALUE_PROBLEM.to_owned());
    }
    problems
}

/// Whether a label may have this value.
pub fn is_label_value(value: &str) -> bool {
    label_value_problems(value).is_empty()
}

/// `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`, of any length.
fn is_label_text(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::json;

    use super::*;

    fn compile(selector: serde_json::Value) -> Result<CompiledSelector, SelectorError> {
        CompiledSelector::compile(&serde_json::from_value(selector).unwrap())
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn selectors_that_say_the_same_are_equal() {
        let one = compile(json!({"matchLabels": {"b": "2", "a": "1"}})).unwrap();
        let two = compile(json!({"matchExpressions": [
            {"key": "a", "operator": "In", "values": ["1", "1"]},
            {"key": "b", "operator": "In", "values": ["2"]},
            {"key": "a", "operator": "In", "values": ["1"]},
        ]}));
        assert_eq!(Ok(one), two);
    }

    #[test]
    fn each_operator_matches_as_in_kubernetes() {
        let rows = [
            (json!({"key": "a", "operator": "In", "values": ["1", "2"]}), [true, false, false]),
            (json!({"key": "a", "operator": "NotIn", "values": ["1", "2"]}), [false, true, true]),
            (json!({"key": "a", "operator": "Exists"}), [true, true, false]),
            (json!({"key": "a", "operator": "DoesNotExist"}), [false, false, true]),
        ];
        let worlds = [labels(&[("a", "1")]), labels(&[("a", "3")]), labels(&[("b", "1")])];
        for (expression, expected) in rows {
            let selector = compile(json!({"matchExpressions": [expression]})).unwrap();
            for (world, expected) in worlds.iter().zip(expected) {
                assert_eq!(selector.matches(world), expected, "{selector:?} on {world:?}");
            }
        }
    }

    #[test]
    fn what_kubernetes_refuses_is_refused_in_its_words() {
        let long = "a".repeat(64);
        let rows = [
            (json!({}), "labelSelector must not be empty"),
            (json!({"matchLabels": {}, "matchExpressions": []}), "labelSelector must not be empty"),
            (json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}), "\"Near\" is not a valid label selector operator"),
            (json!({"matchExpressions": [{"key": "a", "operator": ""}]}), "\"\" is not a valid label selector operator"),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
                "values: Invalid value: [\"x\"]: values set must be empty for exists and does not exist",
            ),
            (json!({"matchLabels": {"": "x"}}), "key: Invalid value: \"\": name part must be non-empty; name part must"),
            (json!({"matchLabels": {"a b": "x"}}), "key: Invalid value: \"a b\": name part must consist of alphanumeric"),
            (json!({"matchLabels": {"/b": "x"}}), "key: Invalid value: \"/b\": prefix part must be non-empty"),
            (json!({"matchLabels": {"A/b": "x"}}), "key: Invalid value: \"A/b\": prefix part a lowercase RFC 1123"),
            (json!({"matchLabels": {"a/b/c": "x"}}), "key: Invalid value: \"a/b/c\": a valid label key must consist"),
            (json!({"matchLabels": {long.clone(): "x"}}), "key: Invalid value: "),
            (json!({"matchLabels": {"a": "-"}}), "values[0][a]: Invalid value: \"-\": a valid label must be an empty"),
            (json!({"matchLabels": {"a": long}}), "values[0][a]: Invalid value: "),
        ];
        for (selector, expected) in rows {
            let error = compile(selector.clone()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{selector}: {error}");
        }
    }

    #[test]
    fn keys_and_values_at_their_limits_are_accepted() {
        let name = "a".repeat(63);
        let prefix = format!("{}.{}.{}.{}", name, name, name, "b".repeat(61));
        assert_eq!(prefix.len(), 253);
        for (key, value) in [(name.clone(), ""), (format!("{prefix}/{name}"), "x"), ("a".to_owned(), name.as_str())] {
            assert!(compile(json!({"matchLabels": {key.clone(): value}})).is_ok(), "{key}={value}");
        }
    }
}
