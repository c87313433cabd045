//! From the texts of a Run's spec to numbers: requests, durations, selectors. What fails here ends the Run (decisions, "Wire").

use std::collections::BTreeMap;
use std::time::Duration;

use super::{RetryPolicy, RunAffinityTerm, RunSpec};
use crate::constants::{DEFAULT_RUNS_REQUEST, RESOURCE_RUNS, TOPOLOGY_RUNTIME_POD};
use crate::duration::{self, DurationError};
use crate::quantity::{QuantityError, non_negative_integer};
use crate::selector::{CompiledSelector, SelectorError};

/// A value in `spec.resources.requests` that can't be counted; the message is the neighbour's (reference §3.2).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resource request {name:?} must be a non-negative integer{}", too_large(.cause))]
pub struct InvalidRequest {
    /// Name of the resource.
    pub name: String,
    /// What is wrong with its quantity.
    pub cause: QuantityError,
}

/// What an integer beyond all limits is told besides.
fn too_large(cause: &QuantityError) -> String {
    if *cause == QuantityError::TooLarge { format!(", and is {cause}") } else { String::new() }
}

/// A term of `spec.affinity` that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTerm {
    /// Any `topologyKey` but `kruntimes.io/runtime-pod`.
    #[error("topologyKey {0:?} is not supported, only \"kruntimes.io/runtime-pod\"")]
    TopologyKey(String),
    /// The selector doesn't compile.
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

/// Longest pause between attempts (reference §3.9).
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// First pause when none, or none above zero, is given (reference §1.1).
const BACKOFF_DEFAULT: Duration = Duration::from_secs(1);

impl RunSpec {
    /// What the Run holds, by resource: entries of zero left out, `runs` at least 1 (reference §4).
    ///
    /// # Errors
    /// The first entry, by name, that is no non-negative integer.
    pub fn requests(&self) -> Result<BTreeMap<String, i64>, InvalidRequest> {
        let mut requests = BTreeMap::from([(RESOURCE_RUNS.to_owned(), DEFAULT_RUNS_REQUEST)]);
        for (name, quantity) in self.resources.iter().flat_map(|resources| &resources.requests) {
            let amount = non_negative_integer(quantity).map_err(|cause| InvalidRequest { name: name.clone(), cause })?;
            if amount > 0 {
                requests.insert(name.clone(), amount);
            }
        }
        Ok(requests)
    }

    /// `spec.timeout`: `None` is no limit, and a negative one is over at once.
    ///
    /// # Errors
    /// The text is no Go duration.
    pub fn timeout(&self) -> Result<Option<Duration>, DurationError> {
        self.timeout.as_deref().map(at_least_zero).transpose()
    }
}

impl RetryPolicy {
    /// Attempts including the first, at least 1.
    pub fn attempts_max(&self) -> i32 {
        self.max_attempts.unwrap_or(1).max(1)
    }

    /// Pause before the second attempt: `backoff`, or 1 s if absent or not above zero.
    ///
    /// # Errors
    /// `backoff` is no Go duration.
    pub fn first_pause(&self) -> Result<Duration, DurationError> {
        let given = self.backoff.as_deref().map(at_least_zero).transpose()?;
        Ok(given.filter(|given| !given.is_zero()).unwrap_or(BACKOFF_DEFAULT))
    }

    /// Pause before `attempt` (2 is the first retry): `backoff × 2^(attempt−2)`, at most 60 s (reference §3.9).
    /// There is none before the first attempt.
    ///
    /// # Errors
    /// `backoff` is no Go duration.
    pub fn pause_before(&self, attempt: i32) -> Result<Duration, DurationError> {
        let first = self.first_pause()?;
        let Ok(doublings) = u32::try_from(i64::from(attempt) - 2) else {
            return Ok(Duration::ZERO);
        };
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        Ok(first.saturating_mul(factor).min(BACKOFF_MAX))
    }

    /// Whether a failure with this reason may be repeated after `attempt` (0 and 1 are the first; reference §3.9).
    pub fn allows_retry(&self, attempt: i32, reason: &str) -> bool {
        attempt.max(1) < self.attempts_max()
            && reason != crate::constants::reason::CANCELLED
            && (self.retryable_reasons.is_empty() || self.retryable_reasons.iter().any(|listed| listed == reason))
    }
}

fn at_least_zero(text: &str) -> Result<Duration, DurationError> {
    match duration::parse_go(text) {
        Err(DurationError::Negative) => Ok(Duration::ZERO),
        other => other,
    }
}

impl RunAffinityTerm {
    /// Checks the topology and compiles the selector.
    ///
    /// # Errors
    /// Another topology, or a selector that Kubernetes refuses.
    pub fn compile(&self) -> Result<CompiledSelector, InvalidTerm> {
        if self.topology_key != TOPOLOGY_RUNTIME_POD {
            return Err(InvalidTerm::TopologyKey(self.topology_key.clone()));
        }
        Ok(CompiledSelector::compile(&self.label_selector)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::json;

    use super::*;

    fn spec(extra: serde_json::Value) -> RunSpec {
        let mut spec = json!({"runtime": "x", "mode": {"task": {}}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn every_run_holds_at_least_one_slot() {
        for (requests, expected) in [
            (json!({}), json!({"runs": 1})),
            (json!({"runs": 0, "gpu": "0"}), json!({"runs": 1})),
            (json!({"runs": "2k", "gpu": 1}), json!({"runs": 2000, "gpu": 1})),
        ] {
            let held = spec(json!({"resources": {"requests": requests}})).requests().unwrap();
            assert_eq!(json!(held), expected);
        }
        assert_eq!(json!(spec(json!({})).requests().unwrap()), json!({"runs": 1}));
        let error = spec(json!({"resources": {"requests": {"gpu": "500m"}}})).requests().unwrap_err();
        assert_eq!(error.to_string(), "resource request \"gpu\" must be a non-negative integer");
    }

    #[test]
    fn pauses_double_up_to_a_minute_whatever_the_attempt() {
        let policy = |backoff: Option<&str>| RetryPolicy { backoff: backoff.map(str::to_owned), ..Default::default() };
        for (backoff, attempt, expected_ms) in [
            (None, 2, 1000),
            (None, 3, 2000),
            (Some("0s"), 2, 1000),
            (Some("-1s"), 2, 1000),
            (Some("300ms"), 4, 1200),
            (Some("1s"), 8, 60_000),
            (Some("1ns"), i32::MAX, 4294),
            (Some("2562047h"), i32::MAX, 60_000),
            (Some("5s"), 1, 0),
            (Some("5s"), 0, 0),
            (Some("5s"), i32::MIN, 0),
        ] {
            let pause = policy(backoff).pause_before(attempt).unwrap();
            assert_eq!(pause.as_millis(), expected_ms, "{backoff:?} before {attempt}");
        }
        assert!(policy(Some("abc")).pause_before(2).is_err());
    }

    #[test]
    fn a_retry_needs_an_attempt_and_a_reason() {
        let policy = RetryPolicy { max_attempts: Some(3), ..Default::default() };
        assert!(policy.allows_retry(0, "PodGone") && policy.allows_retry(2, "PodGone"));
        assert!(!policy.allows_retry(3, "PodGone") && !policy.allows_retry(1, "Cancelled"));
        let listed = RetryPolicy { retryable_reasons: vec!["Timeout".into()], ..policy };
        assert!(listed.allows_retry(1, "Timeout") && !listed.allows_retry(1, "PodGone"));
    }
}
