//! The rules of the API: one table makes the schema and the CEL of the CRDs, and is this offline check.
//!
//! [`table`] lists the rules. `schema` writes them onto the schema that the Rust types give, which is what the API
//! server gets. `node` reads that very schema back, and `walk` applies it here in the order of the API server: drop
//! nulls and unknown fields, fill in defaults, check the schema, and then, unless something basic is wrong, CEL.
//! The suite `tests/apiserver/api_rows.rs` holds both to the same verdict, row by row. Kinds of other groups bring types and a
//! table of their own and make a [`Definition`] of them.

use std::fmt;
use std::sync::LazyLock;

use serde_json::Value;

pub mod cel;
mod coverage;
mod format;
mod metadata;
mod node;
mod schema;
pub mod table;
mod walk;

pub use schema::CrdError;

use crate::{PersistentWorkspace, Run};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use node::Node;
use table::Rule;

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path such as `spec.affinity.runAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey`; empty for
    /// the object as a whole.
    pub path: String,
    /// What is wrong, for people; for a CEL rule exactly the rule's message.
    pub message: String,
    /// Which sort of rule is broken.
    pub kind: FieldErrorKind,
}

/// Sorts of broken rules, as the API server tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// A required field is missing.
    Required,
    /// A value of another JSON type.
    Type,
    /// Not one of the listed values.
    NotSupported,
    /// A text with too many characters.
    TooLong,
    /// A list or map with too many entries.
    TooMany,
    /// The same key twice in a list that is a map.
    Duplicate,
    /// A pattern, a format, a bound or a CEL rule.
    Invalid,
    /// A field the schema doesn't have; only in strict mode.
    Unknown,
}

impl FieldErrorKind {
    /// The API server skips CEL when one of these is found (it can't trust the shape).
    fn blocks_cel(self) -> bool {
        matches!(self, Self::Required | Self::Type | Self::NotSupported | Self::TooLong | Self::TooMany)
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// One kind: its CRD, and the same rules for here.
#[derive(Debug)]
pub struct Definition {
    crd: Result<CustomResourceDefinition, CrdError>,
    root: Node,
}

/// Run.
pub static RUN: LazyLock<Definition> = LazyLock::new(|| Definition::new(Run::crd(), table::RUN));
/// PersistentWorkspace.
pub static WORKSPACE: LazyLock<Definition> = LazyLock::new(|| Definition::new(PersistentWorkspace::crd(), table::WORKSPACE));

impl Definition {
    /// What `rules` make of the definition that the Rust type gives. If they don't fit, [`Definition::crd`] says so, and a test of the
    /// kind shows that they do; the checks then admit everything.
    pub fn new(crd: CustomResourceDefinition, rules: &[&'static [Rule]]) -> Self {
        let crd = schema::with_rules(crd, rules);
        let root = crd.as_ref().ok().map(|crd| Node::of_crd(crd, &table::cel_rules(rules))).unwrap_or_default();
        Self { crd, root }
    }

    /// The CRD.
    ///
    /// # Errors
    /// See [`CrdError`]; a test shows that there is none.
    pub fn crd(&self) -> Result<CustomResourceDefinition, CrdError> {
        self.crd.clone()
    }

    /// What is wrong with an object as it would be created; empty if nothing is. `status` is checked too, if there is one.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        walk::validate(&self.root, object, None)
    }

    /// What is wrong with an update from `old` (as stored) to `new`: rules of transition included, and as on the
    /// API server a rule that a stored value already broke doesn't hold up an update that leaves the value alone.
    pub fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        walk::validate(&self.root, new, Some(old))
    }

    /// The fields of an object that the schema doesn't have: what strict field validation refuses.
    pub fn unknown_fields(&self, object: &Value) -> Vec<FieldError> {
        walk::unknown_fields(&self.root, object)
    }

    /// Where an object has a list in place of an object, which serde would read as the object's fields in their order.
    pub(crate) fn list_in_place_of_object(&self, object: &Value) -> Option<String> {
        walk::list_in_place_of_object(&self.root, object)
    }

    /// The object as the API server would store it: without nulls and unknown fields, with defaults.
    pub fn stored(&self, object: &Value) -> Value {
        walk::normalise(&self.root, object)
    }
}
