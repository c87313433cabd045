//! The state machine of a Job: one pure function from (Job, observation, now) to (status, action, when to look again).
//!
//! The picture is `design/job-states.md`; a test draws it from [`TRANSITIONS`] and holds the function to it.

mod decide;
mod draft;
mod input;
mod state;
mod transitions;

pub use decide::{Action, Decision, adapter_of, decide};
pub(crate) use draft::after;
pub use input::{Attempt, Backend, Ending, Execution, GiveUp, JobFacts, Observation, Started, Wait};
pub use state::State;
pub use transitions::{TRANSITIONS, Transition, allowed, drawing};

#[cfg(test)]
mod tests;
