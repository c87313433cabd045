//! The Berth process as a library: a third party adds plugins to the [`Registry`](prelude::Registry) and calls [`main_with`].
//!
//! ```no_run
//! use berth_scheduler::prelude::*;
//!
//! fn main() -> std::process::ExitCode {
//!     berth_scheduler::main_with(Registry::builtin())
//! }
//! ```

pub mod cli;
pub mod config;
pub mod crds;
mod explain;
mod logs;
mod printable;
pub mod serve;
pub mod simulate;

pub use cli::main_with;

/// What the main of a scheduler with own plugins needs, and what the plugins themselves need.
pub mod prelude {
    pub use berth_framework::plugin::{
        Bind, BindNote, Filter, Fraction, MAX_SCORE, Narrow, Normalize, Plugin, PreFilter, Prepared, Reason, Rejection, Reserve, Score, State, TieKey,
        WakeCause,
    };
    pub use berth_framework::profile::{PluginType, Registry};
    pub use berth_framework::views::{PodId, PodView, RunView, Snapshot};
    pub use berth_plugins::Builtin;
}
