//! The validation suite's rows: objects, what is done with them, and what the API server must answer. Two tests read
//! them: `api_rows` of the suite on a real API server, and `rows_offline` of this crate, which needs none.
#![allow(dead_code, reason = "each of the two tests uses a part")]

use serde_json::{Value, json};

mod affinity;
mod execution;
mod metadata;
mod status;
mod transitions;
mod workspace;

use std::sync::LazyLock;

use berth_api::rules;

use crate::row::Kind;
pub use crate::row::{Act, Expect, Row, many, map_of, merge, merge_keeping_nulls, object};

pub const RUN: Kind = Kind { api_version: "kruntimes.io/v1alpha1", kind: "Run", plural: "runs", namespaced: true, definition: || LazyLock::force(&rules::RUN) };
pub const WORKSPACE: Kind = Kind { kind: "PersistentWorkspace", plural: "persistentworkspaces", definition: || LazyLock::force(&rules::WORKSPACE), ..RUN };

/// Every row.
pub fn all() -> Vec<Row> {
    [workspace::rows(), affinity::rows(), execution::rows(), metadata::rows(), transitions::rows(), status::rows()].concat()
}

fn accept(name: impl Into<String>, object: Value) -> Row {
    RUN.accept(name, object)
}

fn store(name: impl Into<String>, object: Value, at: &'static str, stored: Value) -> Row {
    RUN.store(name, object, at, stored)
}

fn refuse(name: impl Into<String>, object: Value, path: impl Into<String>, message: &'static str) -> Row {
    RUN.refuse(name, object, path, message)
}

fn update(name: impl Into<String>, object: Value, patch: Value) -> Row {
    RUN.update(name, object, patch)
}

fn update_refused(name: impl Into<String>, object: Value, patch: Value, path: impl Into<String>, message: &'static str) -> Row {
    RUN.update_refused(name, object, patch, path, message)
}

fn status(name: impl Into<String>, object: Value, patch: Value) -> Row {
    RUN.status(name, object, patch)
}

fn status_refused(name: impl Into<String>, object: Value, patch: Value, path: impl Into<String>, message: &'static str) -> Row {
    RUN.status_refused(name, object, patch, path, message)
}

/// A minimal Run with `extra` in its spec; a null there takes a field away.
fn run(extra: Value) -> Value {
    object(json!({"runtime": "bash", "mode": {"task": {}}}), extra)
}

/// A minimal PersistentWorkspace with `extra` in its spec.
fn persistent_workspace(extra: Value) -> Value {
    object(json!({"runtime": "bash"}), extra)
}
