//! The PersistentWorkspace binder: gives a workspace its Pod, once, and says so when that Pod is gone.
//!
//! ```text
//! Pods ──► tracker: readiness by the shared predicate, one timer per Pod ──┐ wakes those waiting for the Runtime,
//!                                                                         ├─► queue ─► reconcile: observe → plan → one write
//! PersistentWorkspaces ──► index: waiting for a Runtime | on a Pod ────────┘ and those on the Pod
//! ```
//! Phases and rules: [`plan`]. What follows binding (use, time to live, cleaning) is not here yet.

mod heartbeat;
pub mod plan;
mod reconcile;
mod tracker;

pub use heartbeat::HeartbeatPolicy;
pub use reconcile::{Binder, Context, run};
pub use tracker::RuntimePod;
