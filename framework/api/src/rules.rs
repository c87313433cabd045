//! The rules of the API: one table makes the schema and the CEL of the CRDs, and is this offline check.
//!
//! [`table`] lists the rules. `schema` writes them onto the schema that the Rust types give, which is what the API
//! server gets. `node` reads that very schema back, and `walk` applies it here in the order of the API server: drop
//! nulls and unknown fields, fill in defaults, check the schema, and then, unless something basic is wrong, CEL.
//! The suite `tests/apiserver/api_rows.rs` holds both to the same verdict, row by row.

use std::fmt;
use std::sync::LazyLock;

use serde_json::Value;

use crate::constants::KIND_RUN;

pub mod cel;
mod format;
mod metadata;
mod node;
mod schema;
pub mod table;
mod walk;

pub use schema::{CrdError, run_crd, workspace_crd};

use node::Node;

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

static RUN: LazyLock<Node> = LazyLock::new(|| Node::of_crd(schema::run_crd()));
static WORKSPACE: LazyLock<Node> = LazyLock::new(|| Node::of_crd(schema::workspace_crd()));

/// What is wrong with a Run as it would be created; empty if nothing is. `status` is checked too, if there is one.
pub fn validate_run(run: &Value) -> Vec<FieldError> {
    walk::validate(&RUN, run, None)
}

/// What is wrong with an update of a Run from `old` (as stored) to `new`: rules of transition included, and as on the
/// API server a rule that a stored value already broke doesn't hold up an update that leaves the value alone.
pub fn validate_run_update(new: &Value, old: &Value) -> Vec<FieldError> {
    walk::validate(&RUN, new, Some(old))
}

/// As [`validate_run`].
pub fn validate_workspace(workspace: &Value) -> Vec<FieldError> {
    walk::validate(&WORKSPACE, workspace, None)
}

/// As [`validate_run_update`].
pub fn validate_workspace_update(new: &Value, old: &Value) -> Vec<FieldError> {
    walk::validate(&WORKSPACE, new, Some(old))
}

/// The fields of a Run that the schema doesn't have: what strict field validation refuses.
pub fn unknown_run_fields(run: &Value) -> Vec<FieldError> {
    walk::unknown_fields(&RUN, run)
}

/// As [`unknown_run_fields`].
pub fn unknown_workspace_fields(workspace: &Value) -> Vec<FieldError> {
    walk::unknown_fields(&WORKSPACE, workspace)
}

/// The Run as the API server would store it: without nulls and unknown fields, with defaults.
pub fn stored_run(run: &Value) -> Value {
    walk::normalise(&RUN, run)
}

/// As [`stored_run`].
pub fn stored_workspace(workspace: &Value) -> Value {
    walk::normalise(&WORKSPACE, workspace)
}

/// Where a Run or PersistentWorkspace has a list in place of an object, which serde would read as the object's fields in their order.
pub(crate) fn list_in_place_of_object(kind: &str, value: &Value) -> Option<String> {
    walk::list_in_place_of_object(if kind == KIND_RUN { &RUN } else { &WORKSPACE }, value)
}
