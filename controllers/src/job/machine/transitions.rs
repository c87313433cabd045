//! The moves that a Job can make, and their picture. One write may make several moves at once: a process that was never seen running goes
//! from Scheduling to Succeeded in one step, by way of Starting and Running.

use std::fmt::Write as _;

use super::state::State;

/// A move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// From here.
    pub from: State,
    /// To there.
    pub to: State,
    /// What makes it.
    pub cause: &'static str,
}

const fn by(from: State, to: State, cause: &'static str) -> Transition {
    Transition { from, to, cause }
}

/// Every move (specification, "normal", "cancel", "uncertain" and "delete" transitions).
pub const TRANSITIONS: &[Transition] = {
    use State::{Cancelled, Cancelling, Deleting, Failed, Resolving, ResultUnknown, Running, Scheduling, Starting, Succeeded};
    &[
        by(Resolving, Scheduling, "class, references and policy are resolved"),
        by(Scheduling, Starting, "an execution exists and is on record"),
        by(Starting, Running, "the process has begun"),
        by(Running, Succeeded, "the process exited with 0"),
        by(Running, Failed, "the process exited otherwise, or was stopped: deadline, disruption"),
        by(Starting, Failed, "the process could not begin: image, container, node, class's grace"),
        by(Scheduling, Failed, "the backend refused for good, or longer than the class allows"),
        by(Scheduling, ResultUnknown, "a request that starts the process had no answer"),
        by(Starting, ResultUnknown, "nothing certain is seen"),
        by(Running, ResultUnknown, "nothing certain is seen"),
        by(ResultUnknown, Scheduling, "it is certain that nothing was made"),
        by(ResultUnknown, Starting, "the execution is found again"),
        by(ResultUnknown, Running, "the execution is found again"),
        by(ResultUnknown, Succeeded, "it is found to have succeeded"),
        by(ResultUnknown, Failed, "it is found to have failed, or an administrator confirmed its loss"),
        by(Resolving, Cancelling, "desiredState becomes Cancelled"),
        by(Scheduling, Cancelling, "desiredState becomes Cancelled"),
        by(Starting, Cancelling, "desiredState becomes Cancelled"),
        by(Running, Cancelling, "desiredState becomes Cancelled"),
        by(ResultUnknown, Cancelling, "desiredState becomes Cancelled"),
        by(Cancelling, Cancelled, "it is certain that nothing runs and nothing will"),
        by(Cancelling, Succeeded, "it had succeeded before"),
        by(Cancelling, Failed, "it had failed before, or was being stopped for another reason"),
        by(Resolving, Deleting, "the Job is deleted"),
        by(Scheduling, Deleting, "the Job is deleted"),
        by(Starting, Deleting, "the Job is deleted"),
        by(Running, Deleting, "the Job is deleted"),
        by(Cancelling, Deleting, "the Job is deleted"),
        by(ResultUnknown, Deleting, "the Job is deleted"),
        by(Succeeded, Deleting, "the Job is deleted, by a user or after its time to live"),
        by(Failed, Deleting, "the Job is deleted, by a user or after its time to live"),
        by(Cancelled, Deleting, "the Job is deleted, by a user or after its time to live"),
    ]
};

/// Whether a Job may be seen in `from` and next in `to`: the same state, one move, or moves of the controller by way of states that one write
/// may pass.
pub fn allowed(from: State, to: State) -> bool {
    let mut reached = vec![from];
    let mut index = 0;
    while let Some(at) = reached.get(index).copied() {
        let passable = at == from || matches!(at, State::Scheduling | State::Starting | State::Running);
        for transition in TRANSITIONS.iter().filter(|transition| passable && transition.from == at) {
            // A user's move is seen as such: it is the first, or another look sees it.
            let is_user = matches!(transition.to, State::Cancelling | State::Deleting);
            if !reached.contains(&transition.to) && (!is_user || at == from) {
                reached.push(transition.to);
            }
        }
        index += 1;
    }
    reached.contains(&to)
}

/// The page `design/job-states.md`.
pub fn drawing() -> String {
    let mut page = String::from(
        "# The states of a Job\n\n\
         Drawn by `cargo run -p berth-controllers --example job-states` from `controllers/src/job/machine/transitions.rs`; a test compares, and holds every\n\
         move of random histories to it. States are derived from spec, deletionTimestamp, conditions, times and references, never stored. Where several fit,\n\
         the first of Deleting, an end, Cancelling, ResultUnknown, Running, Starting, Scheduling, Resolving counts. One write may make several moves at once.\n\n\
         ```mermaid\nstateDiagram-v2\n  [*] --> Resolving\n",
    );
    let quiet = |transition: &&Transition| !matches!(transition.to, State::Cancelling | State::Deleting);
    for transition in TRANSITIONS.iter().filter(quiet) {
        let _ = writeln!(page, "  {} --> {}", transition.from.name(), transition.to.name());
    }
    let into_cancelling: Vec<_> = TRANSITIONS.iter().filter(|transition| transition.to == State::Cancelling).collect();
    for transition in &into_cancelling {
        let _ = writeln!(page, "  {} --> Cancelling", transition.from.name());
    }
    page.push_str(
        "  Succeeded --> [*]\n  Failed --> [*]\n  Cancelled --> [*]\n```\n\nAny state goes to Deleting when the Job is deleted; that is not drawn.\n\n",
    );
    page.push_str("| from | to | when |\n|---|---|---|\n");
    for transition in TRANSITIONS {
        let _ = writeln!(page, "| {} | {} | {} |", transition.from.name(), transition.to.name(), transition.cause);
    }
    page.push_str("| Deleting | gone | nothing of the backend is left, and the finalizer is off |\n");
    page
}
