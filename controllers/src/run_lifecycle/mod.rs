//! The Run lifecycle: takes Runs off Pods that can't run them any more, retries or ends them, and deletes finished ones in time.
//!
//! ```text
//! Pods ───────► pods: who is gone, replaced, terminating, silent ──┐ wakes the Runs on it
//! workspaces ─► who no longer admits ──────────────────────────────┤ wakes Scheduled Runs that name it
//! Runs ───────► index by Pod and workspace ────────────────────────┴─► queue ─► cached look ─► read Run and Pod ─► plan ─► one write
//!                 └─► finished, with a time to live ──► queue, when it is over
//! ```
//! Nothing is done on the word of a cache: Run and Pod are read first, and the write is a compare-and-swap on what was read. Rules: [`plan`](mod@plan).

mod apply;
pub mod plan;
mod pods;
mod reconcile;

pub use apply::Action;
pub use reconcile::{Context, Lifecycle};
