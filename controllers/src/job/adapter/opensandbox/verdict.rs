//! From what a sandbox and its lock show to what the state machine is told: pure functions.

use berth_opensandbox::fence::State as Lock;
use berth_opensandbox::{Code, Error, Failure as CallFailure, Sandbox, State, Unsent};
use k8s_openapi::jiff::Timestamp;

use crate::job::machine::{Attempt, Ending, Execution, GiveUp, Started};
use crate::job::reason::{Failure, NotScheduled, Unobserved};
use std::time::Duration;

/// What a process's end is, told in words.
fn told(code: i32, oom: bool) -> String {
    if oom { format!("exit code {code}; a process of the sandbox was ended for using too much memory") } else { format!("exit code {code}") }
}

/// What remains to be done about an execution that its lock tells nothing good of.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// This.
    As(Execution),
    /// Nothing of it will go on by itself, and what may be left of it must be removed before that is certain. Why.
    Remains(&'static str),
}

/// What the lock of a recorded sandbox shows.
pub fn of_lock(lock: Lock, started: Option<Started>) -> Shown {
    let ended = |ending| Shown::As(Execution::Ended(ending));
    match lock {
        Lock::NotStarted => Shown::As(Execution::Idle),
        Lock::Starting => Shown::As(Execution::Starting(None)),
        Lock::Running => Shown::As(started.map_or(Execution::Starting(None), Execution::Running)),
        Lock::Exited { code, stopped: false, oom } => ended(Ending::Exited { code, oom, started, message: told(code, oom) }),
        Lock::Exited { code, stopped: true, oom } => ended(Ending::Stopped { code: Some(code), started, message: told(code, oom) }),
        Lock::Sealed => ended(Ending::Stopped { code: None, started: None, message: "it was kept from starting".to_owned() }),
        Lock::Lost => Shown::Remains("the process is gone, and its exit code is not known"),
        Lock::OtherInstance => Shown::Remains("the sandbox was started anew, and what became of the process before is not known"),
    }
}

/// What the state of a sandbox shows whose execd does not answer, or is not needed; None if it may be well.
pub fn of_sandbox(sandbox: &Sandbox, started: Option<Started>) -> Option<Execution> {
    match sandbox.status.state {
        State::Paused | State::Pausing | State::Resuming => {
            let message = "the sandbox is paused".to_owned();
            Some(Execution::Unknown { reason: Unobserved::BackendPaused, message })
        }
        State::Terminated | State::Failed => {
            let message = "the sandbox has ended, and the exit code of the process is not known".to_owned();
            Some(Execution::Ended(Ending::Stopped { code: None, started, message }))
        }
        State::Running | State::Allocated | State::Pending | State::Stopping | State::Unknown => None,
    }
}

/// What a sandbox shows whose process 1 is the Job's.
pub fn of_entrypoint(sandbox: &Sandbox, now: Timestamp) -> Execution {
    let started = Started { at: sandbox.created_at, earliest: sandbox.created_at };
    match (sandbox.status.state, sandbox.status.exit_code()) {
        (State::Terminated | State::Failed, Some(code)) => {
            Execution::Ended(Ending::Exited { code, oom: false, started: Some(started), message: told(code, false) })
        }
        (State::Pending | State::Allocated, _) => Execution::Starting(None),
        _ => match of_sandbox(sandbox, Some(started)) {
            Some(execution) => execution,
            None if sandbox.status.state == State::Running => Execution::Running(Started { at: started.at.min(now), ..started }),
            None => Execution::Unknown { reason: Unobserved::BackendUnreachable, message: "the server does not say how the sandbox is".to_owned() },
        },
    }
}

/// What a create that was answered by an error means; `window` is how long what may pass is waited out. An ambiguous one is not asked here.
pub fn refused(error: &Error, window: Duration) -> Attempt {
    let later = |reason, message: String, failure: Option<Failure>| Attempt::Later {
        reason,
        message,
        give_up: failure.map(|failure| GiveUp { failure, after: window }),
    };
    let text = words(error);
    match (&error.failure, error.code()) {
        _ if error.is_unauthorized() => later(NotScheduled::BackendUnavailable, "the server does not take the API key".to_owned(), None),
        (CallFailure::NotSent(Unsent::Request(_)), _) => Attempt::Refused { failure: Failure::BackendRejected, message: text },
        (CallFailure::NotSent(_) | CallFailure::NoAnswer(_), _) => later(NotScheduled::BackendUnavailable, text, None),
        (_, Some(Code::ImagePullFailed)) => later(
            NotScheduled::BackendRefuses,
            "the server can't pull the image: it is missing, or refused, or the registry is".to_owned(),
            Some(Failure::ImagePullFailed),
        ),
        (_, Some(Code::SandboxStartFailed | Code::ExecdInstallFailed | Code::PodFailed)) => {
            let message = format!("{text}: the sandbox can't be started; an image without a shell can't be");
            later(NotScheduled::BackendRefuses, message, Some(Failure::StartFailed))
        }
        (CallFailure::Refused(refusal), code) => match (refusal.status, code) {
            // A wrong URL, or something in front of the server.
            (404 | 405 | 300..400, _) => later(NotScheduled::BackendUnavailable, text, None),
            (403 | 429 | 500.., _) => later(NotScheduled::BackendRefuses, text, Some(Failure::BackendUnavailable)),
            _ => Attempt::Refused { failure: Failure::BackendRejected, message: text },
        },
    }
}

/// An error for a condition: of closed sets throughout.
pub fn words(error: &Error) -> String {
    format!("OpenSandbox: {error}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use berth_opensandbox::{Operation, Refusal};
    use serde_json::{from_value, json};

    use super::*;

    fn sandbox(state: &str, reason: &str, message: &str) -> Sandbox {
        from_value(json!({"id": "s", "status": {"state": state, "reason": reason, "message": message}, "createdAt": "2026-01-01T00:00:00Z"})).unwrap()
    }

    #[test]
    fn a_code_counts_as_the_process_s_own_only_if_no_stop_came_before() {
        let started = Some(Started { at: Timestamp::UNIX_EPOCH, earliest: Timestamp::UNIX_EPOCH });
        let exited = |stopped| of_lock(Lock::Exited { code: 0, stopped, oom: true }, started);
        assert!(matches!(exited(false), Shown::As(Execution::Ended(Ending::Exited { code: 0, oom: true, .. }))));
        assert!(matches!(exited(true), Shown::As(Execution::Ended(Ending::Stopped { code: Some(0), .. }))));
        assert_eq!(of_lock(Lock::NotStarted, None), Shown::As(Execution::Idle));
        assert_eq!(of_lock(Lock::Running, None), Shown::As(Execution::Starting(None)), "nobody knows since when");
        for lock in [Lock::Lost, Lock::OtherInstance] {
            assert!(matches!(of_lock(lock, started), Shown::Remains(_)), "{lock}: children may live on");
        }
    }

    #[test]
    fn a_sandbox_that_is_well_says_nothing_of_its_process() {
        for state in ["Running", "Pending", "Stopping", "Hibernating"] {
            assert_eq!(of_sandbox(&sandbox(state, "", ""), None), None, "{state}");
        }
        assert!(matches!(of_sandbox(&sandbox("Paused", "", ""), None), Some(Execution::Unknown { reason: Unobserved::BackendPaused, .. })));
        assert!(matches!(of_sandbox(&sandbox("Failed", "", ""), None), Some(Execution::Ended(Ending::Stopped { code: None, .. }))));
    }

    #[test]
    fn an_entrypoint_s_end_has_its_code_where_the_server_tells_it() {
        let now = Timestamp::now();
        let code = |state: &str, reason: &str, message: &str| match of_entrypoint(&sandbox(state, reason, message), now) {
            Execution::Ended(Ending::Exited { code, .. }) => Some(code),
            _ => None,
        };
        assert_eq!(code("Terminated", "CONTAINER_EXITED", ""), Some(0));
        assert_eq!(code("Failed", "CONTAINER_EXITED_ERROR", "Sandbox container exited with code 7."), Some(7));
        assert_eq!(code("Failed", "CONTAINER_EXITED_ERROR", "who knows"), None);
        assert!(matches!(of_entrypoint(&sandbox("Terminated", "", ""), now), Execution::Ended(Ending::Stopped { code: None, .. })), "lost, not a success");
        assert!(matches!(of_entrypoint(&sandbox("Running", "", ""), now), Execution::Running(_)));
        assert!(matches!(of_entrypoint(&sandbox("Odd", "", ""), now), Execution::Unknown { .. }));
    }

    #[test]
    fn an_answer_to_a_create_is_for_good_or_may_pass() {
        let refusal = |status, code| Error { operation: Operation::Create, failure: CallFailure::Refused(Refusal { status, code, retry_after: None }) };
        let window = Duration::from_secs(300);
        let given_up = |error: &Error| match refused(error, window) {
            Attempt::Refused { failure, .. } => (Some(failure), true),
            Attempt::Later { give_up, .. } => (give_up.map(|give_up| give_up.failure), false),
            Attempt::Ambiguous { .. } => (None, false),
        };
        for (status, code, failure, at_once) in [
            (422, Code::Schema, Some(Failure::BackendRejected), true),
            (400, Code::InvalidParameter, Some(Failure::BackendRejected), true),
            (500, Code::ImagePullFailed, Some(Failure::ImagePullFailed), false),
            (500, Code::SandboxStartFailed, Some(Failure::StartFailed), false),
            (403, Code::QuotaExceeded, Some(Failure::BackendUnavailable), false),
            (429, Code::PoolCapacityExhausted, Some(Failure::BackendUnavailable), false),
            (503, Code::Plain, Some(Failure::BackendUnavailable), false),
            (401, Code::InvalidApiKey, None, false),
            (404, Code::Route, None, false),
        ] {
            assert_eq!(given_up(&refusal(status, code)), (failure, at_once), "{status} {code}");
        }
        let unsent = |unsent| Error { operation: Operation::Create, failure: CallFailure::NotSent(unsent) };
        assert_eq!(given_up(&unsent(Unsent::CircuitOpen)), (None, false));
        assert_eq!(given_up(&unsent(Unsent::NoApiKey)), (None, false));
    }
}
