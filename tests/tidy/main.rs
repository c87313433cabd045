//! The rules of the house that no compiler checks: arrows between crates, purity of the core, and the state of the files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod arrows;
mod files;
mod generated;
mod job_matrix;
mod specification;

/// Fails with one line per violation.
fn none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}
