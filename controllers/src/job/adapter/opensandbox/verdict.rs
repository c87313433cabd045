//! From what a sandbox and its lock show to what the state machine is told: pure functions.

use std::time::Duration;

use berth_opensandbox::fence::{State as Lock, is_of_command};
use berth_opensandbox::{Certainty, Code, CommandStatus, Error, Failure as CallFailure, Outcome, Sandbox, State, Unsent};
use k8s_openapi::jiff::Timestamp;

use crate::job::machine::{Attempt, Ending, Execution, GiveUp, Started, Wait, after};
use crate::job::reason::{Failure, NotScheduled, Unfinished, Unobserved};

/// What a process's end is, told in words.
pub fn told(code: i32, oom: bool) -> String {
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
        // What it began may have been deaf to the stop.
        Lock::Exited { stopped: true, .. } => Shown::Remains("the process was stopped, and its sandbox is still there"),
        Lock::Sealed => ended(Ending::Stopped { code: None, started: None, message: "it was kept from starting".to_owned() }),
        Lock::Lost { .. } => Shown::Remains("the process is gone, and its exit code is not known"),
        Lock::OtherInstance => Shown::Remains("the sandbox was started anew, and what became of the process before is not known"),
    }
}

/// The lock, and where the code could not be written to it (a full disk) what execd has: that is the process's own if no start that lost has such a one.
pub fn with_code(lock: Lock, status: Option<&CommandStatus>) -> Lock {
    match (lock, status.and_then(|status| status.exit_code)) {
        (Lock::Lost { stopped: false, oom }, Some(code)) if is_of_command(code) => Lock::Exited { code, stopped: false, oom },
        _ => lock,
    }
}

/// A sandbox that is not there for that long is gone (design of Jobs, §2b).
const MISSING: Duration = Duration::from_secs(30);

/// What it means that a server has no sandbox of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing: it may be another tenant's.
    Doubted,
    /// To be asked again then.
    Until(Timestamp),
    /// Nothing of it runs.
    Gone,
}

/// `is_ours`: the key has shown it before. `is_over`: it can't live any more. `first`: when it was first said to this key.
pub fn missing(is_ours: bool, is_over: bool, first: Timestamp, now: Timestamp) -> Missing {
    let gone = after(first, MISSING);
    match (is_ours || is_over, now < gone) {
        (false, _) => Missing::Doubted,
        (true, true) => Missing::Until(gone),
        (true, false) => Missing::Gone,
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

/// What a create of a sandbox of `image` that was answered by an error, `text` in words, means; `window` is how long what may pass is waited out. An
/// ambiguous one is not asked here.
pub fn refused(error: &Error, text: String, image: &str, window: Duration) -> Attempt {
    let later = |reason, message: String, failure: Option<Failure>| Attempt::Later {
        reason,
        message,
        give_up: failure.map(|failure| GiveUp { failure, after: window }),
    };
    match (&error.failure, error.code()) {
        _ if error.is_unauthorized() => later(NotScheduled::BackendUnavailable, text, None),
        (CallFailure::NotSent(Unsent::Request(_)), _) => Attempt::Refused { failure: Failure::BackendRejected, message: text },
        (CallFailure::NotSent(_) | CallFailure::NoAnswer(_), _) => later(NotScheduled::BackendUnavailable, text, None),
        (_, Some(Code::ImagePullFailed)) => later(
            NotScheduled::BackendRefuses,
            format!("the server can't pull {image}: it is missing, it is not for this platform, its registry refuses it, or the registry can't be reached"),
            Some(Failure::ImagePullFailed),
        ),
        _ if is_told(error) => {
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

/// Whether the server says of a create that it made a sandbox, that it did not start, and so that none is left.
pub fn is_told(error: &Error) -> bool {
    matches!(error.code(), Some(Code::SandboxStartFailed | Code::ExecdInstallFailed | Code::PodFailed))
}

/// What an error means that answered the create which is the start.
#[derive(Clone, Debug, PartialEq)]
pub enum Posted {
    /// Nothing was made, and it is not sent again.
    Never(Failure, String),
    /// Nothing was made; it may be sent again.
    NotYet(Wait),
    /// It did not start, and nothing is left if none is listed.
    Broken(Failure, String),
    /// It may run, or may yet.
    Lost,
}

/// See [`Posted`] and [`refused`].
pub fn posted(error: &Error, text: String, image: &str, window: Duration) -> Posted {
    // A 5xx that is not in the server's words is of something in front of it, which may have passed the create on.
    let is_strange = error.refusal().is_some_and(|refusal| refusal.status >= 500 && matches!(refusal.code, Code::Plain | Code::Route | Code::Other));
    if is_strange || error.certainty() == Certainty::Ambiguous && !is_told(error) {
        return Posted::Lost;
    }
    match refused(error, text, image, window) {
        Attempt::Refused { failure, message } => Posted::Never(failure, message),
        Attempt::Later { message, give_up: Some(GiveUp { failure, .. }), .. } if is_told(error) => Posted::Broken(failure, message),
        Attempt::Later { message, give_up, .. } => {
            let is_image = give_up.is_some_and(|give_up| give_up.failure == Failure::ImagePullFailed);
            let reason = if is_image { Unfinished::WaitingForImage } else { Unfinished::WaitingForContainer };
            Posted::NotYet(Wait { reason, message, give_up })
        }
        Attempt::Ambiguous { .. } => Posted::Lost,
    }
}

/// What it means that the nonce could not be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The image can't be used.
    Never(Failure, &'static str),
    /// It may pass.
    NotYet(&'static str),
    /// Nothing was said about it.
    Unknown,
}

/// By what became of the command, and by the sandbox's state after it; None if it is not there.
pub fn planted(became: &Result<Outcome, Error>, state: Option<State>) -> Planted {
    let no_shell = "the image has no shell, which mode FencedCommand needs; mode Entrypoint of the class's parameters does not, where its runtime does not";
    let is_dead = matches!(state, Some(State::Terminated | State::Failed));
    match became {
        // What keeps a sandbox alive is a shell: where there is none, it does not live.
        Ok(_) if is_dead => Planted::Never(Failure::ImageHasNoShell, no_shell),
        Ok(Outcome::Exited(0..=2)) if state == Some(State::Running) => Planted::Never(Failure::StartFailed, "the image has no /tmp that the task may write to"),
        Ok(_) => Planted::NotYet("a short command in the sandbox was ended, or could not be begun"),
        Err(error) if error.code() == Some(Code::RuntimeError) => match is_dead {
            true => Planted::Never(Failure::ImageHasNoShell, no_shell),
            false => Planted::NotYet("a short command in the sandbox could not be begun"),
        },
        Err(_) => Planted::Unknown,
    }
}

/// Whether execd refuses a start for good: it is of what was sent, and the same would be refused again.
pub fn is_start_refused(error: &Error) -> bool {
    let of_the_request = |code| matches!(code, Code::RuntimeError | Code::InvalidRequestBody | Code::NotSupported | Code::MissingQuery | Code::Schema);
    let is_of_it = error.refusal().is_some_and(|refusal| matches!(refusal.status, 400 | 413 | 414 | 422 | 431) || of_the_request(refusal.code));
    error.certainty() == Certainty::Definite && is_of_it
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
        assert!(matches!(exited(true), Shown::Remains(_)), "its children may be deaf to the stop: the sandbox goes first");
        assert_eq!(of_lock(Lock::NotStarted, None), Shown::As(Execution::Idle));
        assert_eq!(of_lock(Lock::Running, None), Shown::As(Execution::Starting(None)), "nobody knows since when");
        for lock in [Lock::Lost { stopped: false, oom: false }, Lock::OtherInstance] {
            assert!(matches!(of_lock(lock, started), Shown::Remains(_)), "{lock}: children may live on");
        }
    }

    #[test]
    fn a_code_that_could_not_be_written_is_execd_s_if_only_the_process_can_have_had_it() {
        let lost = |stopped| Lock::Lost { stopped, oom: true };
        let status = |code: Option<i32>| from_value(json!({"id": "c", "running": false, "exit_code": code})).unwrap();
        for code in [0, 3, 42, 96, 137, 143] {
            assert_eq!(with_code(lost(false), Some(&status(Some(code)))), Lock::Exited { code, stopped: false, oom: true });
            assert_eq!(with_code(lost(true), Some(&status(Some(code)))), lost(true), "{code}: the stop may have been the cause");
        }
        // Killed; a start that came too late; a shell that failed.
        for code in [-1, 1, 2, 97, 124, 125, 126, 127, 254, 255] {
            assert_eq!(with_code(lost(false), Some(&status(Some(code)))), lost(false), "{code}");
        }
        assert_eq!(with_code(lost(false), Some(&status(None))), lost(false));
        assert_eq!(with_code(lost(false), None), lost(false));
        assert_eq!(with_code(Lock::Running, Some(&status(Some(0)))), Lock::Running, "the lock comes first");
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
    fn a_sandbox_is_gone_when_the_key_that_showed_it_is_told_so_for_a_while() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        for (is_ours, is_over, now, wanted) in [
            (false, false, 0, Missing::Doubted),
            (false, false, 9_999, Missing::Doubted),
            (true, false, 29, Missing::Until(at(30))),
            (true, false, 30, Missing::Gone),
            (false, true, 0, Missing::Until(at(30))),
            (false, true, 30, Missing::Gone),
        ] {
            assert_eq!(missing(is_ours, is_over, at(0), at(now)), wanted, "{is_ours} {is_over} {now}");
        }
    }

    #[test]
    fn a_create_that_is_the_start_is_sent_again_only_if_nothing_was_made() {
        let refusal = |status, code| Error { operation: Operation::Create, failure: CallFailure::Refused(Refusal { status, code, retry_after: None }) };
        let unsent = |unsent| Error { operation: Operation::Create, failure: CallFailure::NotSent(unsent) };
        let window = Duration::from_secs(300);
        let waits = |failure: Option<Failure>| (format!("NotYet {failure:?}"), failure.is_some());
        for (error, wanted) in [
            (refusal(422, Code::Schema), ("Never BackendRejected".to_owned(), false)),
            (refusal(400, Code::InvalidParameter), ("Never BackendRejected".to_owned(), false)),
            (unsent(Unsent::Request("x")), ("Never BackendRejected".to_owned(), false)),
            (refusal(500, Code::ImagePullFailed), waits(Some(Failure::ImagePullFailed))),
            (refusal(403, Code::QuotaExceeded), waits(Some(Failure::BackendUnavailable))),
            (refusal(429, Code::Plain), waits(Some(Failure::BackendUnavailable))),
            (refusal(503, Code::TenantProviderUnavailable), waits(Some(Failure::BackendUnavailable))),
            (refusal(401, Code::InvalidApiKey), waits(None)),
            (unsent(Unsent::CircuitOpen), waits(None)),
            (refusal(500, Code::SandboxStartFailed), ("Broken StartFailed".to_owned(), false)),
            (refusal(500, Code::ExecdInstallFailed), ("Broken StartFailed".to_owned(), false)),
            (refusal(503, Code::Plain), ("Lost".to_owned(), false)),
            (refusal(503, Code::Other), ("Lost".to_owned(), false)),
            (refusal(502, Code::Plain), ("Lost".to_owned(), false)),
            (refusal(500, Code::Other), ("Lost".to_owned(), false)),
            (Error { operation: Operation::Create, failure: CallFailure::NoAnswer(berth_opensandbox::Cause::TimedOut) }, ("Lost".to_owned(), false)),
        ] {
            let told = match posted(&error, words(&error), "i", window) {
                Posted::Never(failure, _) => (format!("Never {failure:?}"), false),
                Posted::Broken(failure, _) => (format!("Broken {failure:?}"), false),
                Posted::Lost => ("Lost".to_owned(), false),
                Posted::NotYet(wait) => {
                    assert!(wait.give_up.is_none_or(|give_up| give_up.after == window), "{error}");
                    (format!("NotYet {:?}", wait.give_up.map(|give_up| give_up.failure)), wait.give_up.is_some())
                }
            };
            assert_eq!(told, wanted, "{error}");
        }
    }

    #[test]
    fn only_a_sandbox_that_does_not_live_has_no_shell_and_only_a_command_s_own_code_tells_of_its_folder() {
        let error = |code| Error { operation: Operation::Run, failure: CallFailure::Refused(Refusal { status: 200, code, retry_after: None }) };
        let (never, not_yet) = (|failure| Some(Some(failure)), Some(None));
        for (became, state, wanted) in [
            (Ok(Outcome::Exited(1)), Some(State::Running), never(Failure::StartFailed)),
            (Ok(Outcome::Exited(2)), Some(State::Running), never(Failure::StartFailed)),
            (Ok(Outcome::Exited(-1)), Some(State::Running), not_yet),
            (Ok(Outcome::Exited(137)), Some(State::Running), not_yet),
            (Ok(Outcome::NotStarted), Some(State::Running), not_yet),
            (Ok(Outcome::NotStarted), Some(State::Terminated), never(Failure::ImageHasNoShell)),
            (Ok(Outcome::Exited(1)), None, not_yet),
            (Err(error(Code::RuntimeError)), Some(State::Running), not_yet),
            (Err(error(Code::RuntimeError)), Some(State::Failed), never(Failure::ImageHasNoShell)),
            (Err(error(Code::ExecdUnreachable)), Some(State::Running), None),
        ] {
            let told = match planted(&became, state) {
                Planted::Never(failure, _) => Some(Some(failure)),
                Planted::NotYet(_) => Some(None),
                Planted::Unknown => None,
            };
            assert_eq!(told, wanted, "{became:?} {state:?}");
        }
    }

    #[test]
    fn a_start_is_refused_for_good_by_what_is_said_of_it_and_not_by_what_is_in_the_way() {
        let refusal = |status, code| Error { operation: Operation::Start, failure: CallFailure::Refused(Refusal { status, code, retry_after: None }) };
        for (status, code, wanted) in [
            (200, Code::RuntimeError, true),
            (400, Code::InvalidRequestBody, true),
            (400, Code::RuntimeError, true),
            (413, Code::Plain, true),
            (401, Code::ExecdUnauthorized, false),
            (401, Code::InvalidApiKey, false),
            (404, Code::SandboxNotFound, false),
            (404, Code::Route, false),
            (429, Code::Plain, false),
            (500, Code::Plain, false),
            (502, Code::ExecdUnreachable, false),
        ] {
            assert_eq!(is_start_refused(&refusal(status, code)), wanted, "{status} {code}");
        }
    }

    #[test]
    fn an_answer_to_a_create_is_for_good_or_may_pass() {
        let refusal = |status, code| Error { operation: Operation::Create, failure: CallFailure::Refused(Refusal { status, code, retry_after: None }) };
        let window = Duration::from_secs(300);
        let given_up = |error: &Error| match refused(error, words(error), "i", window) {
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
