//! How long a watch waits after an error, and what is said of it.

use crate::apiclient::CallError;
use crate::backoff::Backoff;
use kube::runtime::watcher;
use std::time::Duration;

/// Errors since the watch last got on. Answers and failures without one are counted apart: a server that is back is asked again
/// soon, however long it was away.
#[derive(Debug, Default)]
pub struct Failures {
    answered: u32,
    unanswered: u32,
}

impl Failures {
    /// Counts an error; the delay is at least what the server asks for, up to the longest of `backoff`.
    pub fn delay(&mut self, error: &CallError, backoff: Backoff) -> Duration {
        let answered = matches!(error, CallError::Refused { .. } | CallError::Server { .. });
        let count = if answered { &mut self.answered } else { &mut self.unanswered };
        let delay = backoff.delay(*count);
        *count = count.saturating_add(1);
        delay.max(error.retry_after().unwrap_or_default().min(backoff.max))
    }
}

/// The error of a list or a watch as that of the call it was.
pub fn call_error(error: watcher::Error) -> CallError {
    use watcher::Error as E;
    match error {
        E::InitialListFailed(error) | E::WatchStartFailed(error) | E::WatchFailed(error) => error.into(),
        E::WatchError(status) => kube::Error::Api(status).into(),
        E::NoResourceVersion => CallError::Undecodable(error.to_string()),
    }
}
