//! Leader election on one `coordination.k8s.io/v1` Lease, by client-go's rules; see [`Elector`].
//!
//! ```text
//! Lease (PUT with resourceVersion) ◄─► Elector: one request at a time, a watch, a clock ─► Leadership (watch channel)
//!                                         └─► machine: who leads, pure                  └► Fence: asked before every send
//! ```
//! * The Lease is taken and renewed by compare-and-swap alone; whoever holds it wrote it last.
//! * A holder's time is over when its record has not been *seen to change* for `leaseDurationSeconds` on our own monotonic
//!   clock. Nobody's wall clock is compared with anybody else's.
//! * We lead from the moment a write was *sent* that the API server then confirmed, for RenewDeadline. Others wait for LeaseDuration
//!   from the moment they *saw* it, which is later: the difference is the safety margin, and time for what is in flight.
//! * The deadline is kept by the [`Fence`] itself: a process that was stopped and wakes after it refuses to send before anything
//!   has run that could notice. Time that the whole machine sleeps does not count for the monotonic clock; there, as for a write
//!   that is in flight across the deadline, the compare-and-swap of the write itself is the fence.
//! * Somebody who deletes the Lease, or empties its holder, calls a new election at once and waives the margin, as in client-go.
//!
//! Rights needed on the Lease: get, create, update; list and watch by name make a standby quick, without them it polls.

mod config;
mod elector;
mod fence;
mod machine;
mod record;
mod watching;

pub use config::{ElectionConfig, InvalidElection, identity};
pub use elector::{ElectionStats, Elector, Leadership, Stats};
pub use fence::{Fence, NotLeader, Sending};

#[cfg(test)]
mod elector_tests;
#[cfg(test)]
mod machine_tests;
