//! The in-tree plugins of Berth. They know the framework and nothing else: no client, no runtime, no clock.
//!
//! Pods are charged to the first rejecting plugin in this order: [`RuntimeReady`], [`WorkspaceFencing`],
//! [`RunAffinity`], [`Capacity`] (decisions "Scheduling").

mod capacity;
mod run_affinity;
mod runtime_ready;
mod workspace_fencing;

pub use capacity::{Capacity, CapacityArgs, Strategy};
pub use run_affinity::{RunAffinity, RunAffinityArgs};
pub use runtime_ready::{RuntimeReady, RuntimeReadyArgs};
pub use workspace_fencing::{WorkspaceFencing, WorkspaceFencingArgs};

use berth_framework::profile::Registry;

/// `Registry::builtin()`: the in-tree plugins, to which others add theirs.
pub trait Builtin {
    /// A registry of the four in-tree plugins, enabled by default, each with weight 1.
    #[must_use]
    fn builtin() -> Self;
}

impl Builtin for Registry {
    fn builtin() -> Self {
        Self::empty().with::<RuntimeReady>().with::<WorkspaceFencing>().with::<RunAffinity>().with::<Capacity>()
    }
}
