//! The schema of a CRD, read back from the generated definition and ready to be walked.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use regex::Regex;
use serde_json::Value;

use super::CrdError;
use super::cel::{self, CelRule};

/// One node of a schema.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub kind: Kind,
    pub format: Option<String>,
    pub properties: BTreeMap<String, Node>,
    pub additional: Option<Box<Node>>,
    pub items: Option<Box<Node>>,
    pub required: Vec<String>,
    pub default: Option<Value>,
    pub allowed: Vec<Value>,
    pub pattern: Option<Regex>,
    pub min_length: Option<i64>,
    pub max_length: Option<i64>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub max_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub list_keys: Vec<String>,
    pub cel: Vec<&'static CelRule>,
}

/// JSON type of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Object,
    Array,
    String,
    Integer,
    Boolean,
    IntOrString,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::IntOrString => "integer or string",
        }
    }
}

impl Node {
    /// The root of the only version. A definition that can't be made gives an empty node, which admits everything; a test
    /// shows that this doesn't happen.
    pub fn of_crd(crd: Result<CustomResourceDefinition, CrdError>) -> Self {
        let version = crd.ok().and_then(|crd| crd.spec.versions.into_iter().next());
        let schema = version.and_then(|version| version.schema?.open_api_v3_schema);
        schema.map(|schema| Self::of(&schema)).unwrap_or_default()
    }

    fn of(schema: &JSONSchemaProps) -> Self {
        use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};
        let kind = match schema.type_.as_deref() {
            _ if schema.x_kubernetes_int_or_string == Some(true) => Kind::IntOrString,
            Some("array") => Kind::Array,
            Some("string") => Kind::String,
            Some("integer") => Kind::Integer,
            Some("boolean") => Kind::Boolean,
            _ => Kind::Object,
        };
        let rules = schema.x_kubernetes_validations.iter().flatten();
        Self {
            kind,
            format: schema.format.clone(),
            properties: schema.properties.iter().flatten().map(|(name, child)| (name.clone(), Self::of(child))).collect(),
            additional: match &schema.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(child)) => Some(Box::new(Self::of(child))),
                _ => None,
            },
            items: match &schema.items {
                Some(JSONSchemaPropsOrArray::Schema(child)) => Some(Box::new(Self::of(child))),
                _ => None,
            },
            required: schema.required.clone().unwrap_or_default(),
            default: schema.default.as_ref().map(|json| json.0.clone()),
            allowed: schema.enum_.iter().flatten().map(|json| json.0.clone()).collect(),
            pattern: schema.pattern.as_deref().and_then(|pattern| Regex::new(pattern).ok()),
            min_length: schema.min_length,
            max_length: schema.max_length,
            minimum: schema.minimum,
            maximum: schema.maximum,
            max_items: schema.max_items,
            max_properties: schema.max_properties,
            list_keys: schema.x_kubernetes_list_map_keys.clone().unwrap_or_default(),
            cel: rules.filter_map(|rule| cel::ALL.iter().copied().find(|known| known.rule == rule.rule)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::collections::BTreeSet;

    use super::super::{run_crd, schema::workspace_crd};
    use super::*;

    fn visit(schema: &JSONSchemaProps, path: &str, seen: &mut dyn FnMut(&str, &JSONSchemaProps, &Node)) {
        use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};
        seen(path, schema, &Node::of(schema));
        for (name, child) in schema.properties.iter().flatten() {
            visit(child, &format!("{path}.{name}"), seen);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(child)) = &schema.items {
            visit(child, &format!("{path}[]"), seen);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(child)) = &schema.additional_properties {
            visit(child, &format!("{path}{{}}"), seen);
        }
    }

    #[test]
    fn nothing_of_the_definitions_is_lost_offline() {
        let mut rules = BTreeSet::new();
        for crd in [run_crd().unwrap(), workspace_crd().unwrap()] {
            let root = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
            visit(&root, "", &mut |path, schema, node| {
                assert_eq!(schema.pattern.is_some(), node.pattern.is_some(), "pattern of {path}");
                let written = schema.x_kubernetes_validations.clone().unwrap_or_default();
                assert_eq!(written.len(), node.cel.len(), "CEL of {path}");
                rules.extend(written.into_iter().map(|rule| rule.rule));
                assert_eq!(schema.nullable, None, "nullable of {path}");
                let known = matches!(schema.format.as_deref(), None | Some("int32" | "int64" | "date-time" | "byte"));
                assert!(known, "format of {path}");
                // Keywords this walker doesn't know must not appear.
                let unknown = (&schema.any_of, &schema.one_of, &schema.all_of, &schema.not, &schema.multiple_of);
                assert_eq!(unknown, (&None, &None, &None, &None, &None), "keywords of {path}");
                let unknown = (&schema.min_items, &schema.min_properties, &schema.exclusive_minimum);
                assert_eq!(unknown, (&None, &None, &None), "keywords of {path}");
                if schema.type_.as_deref() == Some("object") {
                    let shaped = schema.properties.is_some() != schema.additional_properties.is_some();
                    assert!(shaped || path.is_empty(), "{path} has members or values");
                }
            });
        }
        let all: BTreeSet<String> = cel::ALL.iter().map(|rule| rule.rule.to_owned()).collect();
        assert_eq!(rules, all, "each rule of the list is used, and each text is its own");
        assert_eq!(all.len(), cel::ALL.len());
    }
}
