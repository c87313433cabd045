//! The scheduling framework of Berth: what a plugin author needs and nothing else.
//!
//! Pure: no Kubernetes client, no async runtime, no clock, no I/O. See [`plugin`] for the contract of a plugin,
//! [`profile`] for how plugins are registered and configured, and [`core`] for the machine that runs them.

mod affinity_index;
mod cache;
pub mod config;
pub mod core;
mod cycle;
pub mod diagnosis;
mod evaluate;
pub mod from_api;
pub mod model;
pub mod observe;
mod pick;
pub mod plugin;
pub mod profile;
pub mod registry;
mod table;
pub mod views;
mod waiting;

pub use affinity_index::TermId;
pub use cache::{Counts, Room, WorkCounters};
pub use cycle::{Charge, Diagnosis, Ranked};
