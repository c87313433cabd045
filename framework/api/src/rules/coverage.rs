//! Whether the offline check knows everything that a CRD says: asked by the tests of each kind.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};

use super::Definition;
use super::node::Node;
use super::table::{self, Rule};

impl Definition {
    /// What of the CRD the offline check would not apply, one line each; the tests of a kind show that there is nothing. `rules` is the
    /// table it was made of.
    pub fn lost_offline(&self, rules: &[&'static [Rule]]) -> Vec<String> {
        let crd = match &self.crd {
            Ok(crd) => crd,
            Err(error) => return vec![error.to_string()],
        };
        let known = table::cel_rules(rules);
        let mut lost = Vec::new();
        let mut messages = BTreeMap::new();
        for rule in &known {
            if messages.insert(rule.rule, rule.message).is_some_and(|other| other != rule.message) {
                lost.push(format!("two rules have the text {:?}", rule.rule));
            }
        }
        for version in &crd.spec.versions {
            let Some(root) = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()) else { continue };
            visit(root, "", &mut |path, schema| compare(path, schema, &Node::of(schema, &known), &mut lost));
        }
        lost
    }
}

fn visit(schema: &JSONSchemaProps, path: &str, seen: &mut dyn FnMut(&str, &JSONSchemaProps)) {
    seen(path, schema);
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

fn compare(path: &str, schema: &JSONSchemaProps, node: &Node, lost: &mut Vec<String>) {
    let mut check = |right: bool, what: &str| {
        if !right {
            lost.push(format!("{what} of {path:?}"));
        }
    };
    check(schema.pattern.is_some() == node.pattern.is_some(), "pattern");
    check(schema.x_kubernetes_validations.iter().flatten().count() == node.cel.len(), "CEL");
    check(schema.nullable.is_none(), "nullable");
    check(matches!(schema.format.as_deref(), None | Some("int32" | "int64" | "date-time" | "byte")), "format");
    // Keywords that the walker doesn't know.
    let logic = (&schema.any_of, &schema.one_of, &schema.all_of, &schema.not, &schema.multiple_of);
    let bounds = (&schema.min_properties, &schema.exclusive_minimum, &schema.exclusive_maximum, &schema.unique_items);
    check(logic == (&None, &None, &None, &None, &None) && bounds == (&None, &None, &None, &None), "keywords");
    if schema.type_.as_deref() == Some("object") {
        let shaped = schema.properties.is_some() != schema.additional_properties.is_some();
        check(shaped || path.is_empty() || path == ".metadata", "members or values");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RUN, WORKSPACE, table};

    #[test]
    fn nothing_of_the_definitions_is_lost_offline() {
        assert_eq!(RUN.lost_offline(table::RUN), Vec::<String>::new());
        assert_eq!(WORKSPACE.lost_offline(table::WORKSPACE), Vec::<String>::new());
    }
}
