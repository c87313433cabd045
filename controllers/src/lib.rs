//! The reconcilers of Berth. Each is observe → plan → apply: the plan is a pure function in its own file, which
//! `berth simulate` calls too; the reconciler around it is thin.

pub mod job;
pub mod persistent_workspace;
pub mod pods;
pub mod policy;
pub mod run_lifecycle;
pub mod runs;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod testing;

use berth_runtime::apiclient::CallError;
use berth_runtime::workqueue::Next;
use std::time::Duration;

/// How often something is tried that the API server refuses for good: a right that is missing, an object that its schema does not admit.
const REFUSED_EVERY: Duration = Duration::from_secs(60);

/// When to try again what failed.
pub(crate) fn again(error: &CallError) -> Next {
    if error.is_definite() && !error.retryable() { Next::After(REFUSED_EVERY) } else { Next::Retry }
}
