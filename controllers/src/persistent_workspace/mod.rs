//! The PersistentWorkspace binder: gives a workspace its Pod, once, says so when that Pod is gone, and lets it go when its time is over.
//!
//! ```text
//! Pods ──► tracker: readiness by the shared predicate, one timer per Pod ──┐ wakes those waiting for the Runtime,
//!                                                                         ├─► queue ─► reconcile: observe → plan → one step
//! PersistentWorkspaces ──► index: waiting for a Runtime | on a Pod ────────┤ and those on the Pod
//! Runs ──► index: who uses it, and when it was last used ──────────────────┘ and those whose use changed
//! ```
//! Phases and rules: [`plan`](mod@plan). The directory is the agent's; the contract with it is in docs/workspaces.md.

mod apply;
mod choose;
mod conditions;
pub mod plan;
mod reconcile;
mod tracker;

pub use choose::{Candidate, Load, WorkspaceBinding};
pub use reconcile::{Binder, Context};
