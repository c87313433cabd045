//! The API of kruntimes.io/v1alpha1: types, rules, CRDs, and the predicates that more than one component needs.
//!
//! Pure: no client, no clock, no I/O. What the wire looks like is fixed by the specification
//! (Run workspace reference and affinity) and by what the neighbours do today (the reference); every rule says which.

pub mod capacity;
pub mod conditions;
pub mod constants;
pub mod crds;
pub mod decode;
pub mod duration;
pub mod liveness;
pub mod message;
pub mod names;
mod open_enum;
pub mod persistent_workspace;
pub mod quantity;
pub mod rules;
pub mod run;
pub mod runtime_ready;
pub mod selector;

pub use crds::{crds_yaml, try_crds};
pub use persistent_workspace::PersistentWorkspace;
pub use run::Run;
