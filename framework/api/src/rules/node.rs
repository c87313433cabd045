//! The schema of a CRD, read back from the generated definition and ready to be walked.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use regex::Regex;
use serde_json::Value;

use super::cel::CelRule;

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
    pub min_items: Option<i64>,
    pub max_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub list_keys: Vec<String>,
    /// Each with the member it is about, empty for the node itself.
    pub cel: Vec<(String, &'static CelRule)>,
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
    /// The root of the only version, whose CEL rules are among `known`.
    pub fn of_crd(crd: &CustomResourceDefinition, known: &[&'static CelRule]) -> Self {
        let schema = crd.spec.versions.first().and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
        schema.map(|schema| Self::of(schema, known)).unwrap_or_default()
    }

    /// One node and what is below it.
    pub fn of(schema: &JSONSchemaProps, known: &[&'static CelRule]) -> Self {
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
            properties: schema.properties.iter().flatten().map(|(name, child)| (name.clone(), Self::of(child, known))).collect(),
            additional: match &schema.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(child)) => Some(Box::new(Self::of(child, known))),
                _ => None,
            },
            items: match &schema.items {
                Some(JSONSchemaPropsOrArray::Schema(child)) => Some(Box::new(Self::of(child, known))),
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
            min_items: schema.min_items,
            max_items: schema.max_items,
            max_properties: schema.max_properties,
            list_keys: schema.x_kubernetes_list_map_keys.clone().unwrap_or_default(),
            cel: rules
                .filter_map(|rule| {
                    let field = rule.field_path.as_deref().unwrap_or_default().trim_start_matches('.').to_owned();
                    known.iter().copied().find(|known| known.rule == rule.rule).map(|known| (field, known))
                })
                .collect(),
        }
    }
}
