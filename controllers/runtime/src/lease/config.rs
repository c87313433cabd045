//! What an election is about, and which durations make sense together.

use crate::apiclient::Limits;
use crate::backoff::random;
use berth_api::names::is_dns_subdomain;
use std::time::Duration;

/// Longest jitter of RetryPeriod, as a factor on top of it (client-go's JitterFactor).
pub(super) const JITTER_FACTOR: f64 = 1.2;

/// One candidate of an election. The defaults are client-go's and kube-scheduler's: 15 s, 10 s, 2 s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease; all candidates of one election name the same.
    pub name: String,
    /// Who we are, in the Lease. Must be unlike that of every other process, also of our own predecessor: [`identity`].
    pub identity: String,
    /// LeaseDuration: how long others wait after the last change they saw. Whole seconds, since the Lease holds such.
    pub lease: Duration,
    /// RenewDeadline: how long we lead after the last confirmed renewal was sent.
    pub renew: Duration,
    /// RetryPeriod: between renewals, and between attempts.
    pub retry: Duration,
}

/// Why no election can be held like that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidElection {
    /// The name of the Lease, its namespace or the identity is missing.
    #[error("leader election: {0} is empty")]
    Empty(&'static str),
    /// Not the name of an object.
    #[error("leader election: {0:?} is no name of a Lease")]
    Name(String),
    /// A Lease holds whole seconds, at least one.
    #[error("leader election: the lease duration must be whole seconds, 1 to 2147483647, not {0:?}")]
    LeaseSeconds(Duration),
    /// client-go: leaseDuration must be greater than renewDeadline.
    #[error(
        "leader election: the lease duration ({lease:?}) must be longer than the renew deadline ({renew:?}): a leader must give up before others may take over"
    )]
    LeaseNotAboveRenew {
        /// LeaseDuration.
        lease: Duration,
        /// RenewDeadline.
        renew: Duration,
    },
    /// client-go: renewDeadline must be greater than retryPeriod*JitterFactor.
    #[error("leader election: the renew deadline ({renew:?}) must be longer than 1.2 times the retry period ({retry:?}): there must be time for a renewal")]
    RenewNotAboveRetry {
        /// RenewDeadline.
        renew: Duration,
        /// RetryPeriod.
        retry: Duration,
    },
    /// client-go: retryPeriod must be greater than zero. Below 10 ms it would only heat the API server.
    #[error("leader election: the retry period must be at least 10 ms, not {0:?}")]
    RetryTooShort(Duration),
}

impl ElectionConfig {
    /// The usual durations.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        let seconds = Duration::from_secs;
        Self { namespace: namespace.into(), name: name.into(), identity: identity.into(), lease: seconds(15), renew: seconds(10), retry: seconds(2) }
    }

    /// Whether such an election can be held.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), InvalidElection> {
        for (what, text) in [("the namespace", &self.namespace), ("the name of the Lease", &self.name), ("the identity", &self.identity)] {
            if text.is_empty() {
                return Err(InvalidElection::Empty(what));
            }
        }
        if !is_dns_subdomain(&self.name) {
            return Err(InvalidElection::Name(self.name.clone()));
        }
        let (lease, renew, retry) = (self.lease, self.renew, self.retry);
        if lease.subsec_nanos() != 0 || lease.as_secs() == 0 || i32::try_from(lease.as_secs()).is_err() {
            return Err(InvalidElection::LeaseSeconds(lease));
        }
        if lease <= renew {
            return Err(InvalidElection::LeaseNotAboveRenew { lease, renew });
        }
        if retry < Duration::from_millis(10) {
            return Err(InvalidElection::RetryTooShort(retry));
        }
        // RetryPeriod is shorter than LeaseDuration or this fails anyway, so the product can't overflow where it matters.
        if renew <= retry.min(lease).mul_f64(JITTER_FACTOR) {
            return Err(InvalidElection::RenewNotAboveRetry { renew, retry });
        }
        Ok(())
    }

    /// The time-outs of the client that renews: as in client-go, a request gets half of RenewDeadline, so that one that hangs leaves
    /// time for another. The client must be the election's own: then neither connections nor answers wait behind other traffic.
    pub fn limits(&self) -> Limits {
        let half = self.renew / 2;
        Limits { connect: half, get: half, list: half, write: half, watch_start: half, ..Limits::default() }
    }

    /// LeaseDuration as the Lease holds it.
    pub(super) fn lease_s(&self) -> i32 {
        i32::try_from(self.lease.as_secs()).unwrap_or(i32::MAX)
    }
}

/// An identity like no other: `host`, and a random number. A successor of the same name (a restarted container) is a stranger, and
/// must be: its predecessor's writes may still be under way.
pub fn identity(host: &str) -> String {
    format!("{host}_{:016x}", random())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn durations_must_leave_time_to_renew_and_to_give_up() {
        let table = [
            (15_000, 10_000, 2_000, ""),
            (2_000, 1_500, 200, ""),
            (10_000, 10_000, 2_000, "the lease duration (10s) must be longer than the renew deadline (10s)"),
            (15_000, 2_400, 2_000, "the renew deadline (2.4s) must be longer than 1.2 times the retry period (2s)"),
            (15_000, 2_401, 2_000, ""),
            (15_000, 10_000, 0, "at least 10 ms"),
            (15_000, 10_000, u64::MAX, "longer than 1.2 times the retry period"),
            (1_500, 1_000, 200, "whole seconds, 1 to 2147483647, not 1.5s"),
            (0, 10_000, 2_000, "whole seconds"),
            (u64::MAX / 1_000 * 1_000, 10_000, 2_000, "whole seconds"),
        ];
        for (lease, renew, retry, error) in table {
            let millis = Duration::from_millis;
            let config = ElectionConfig { lease: millis(lease), renew: millis(renew), retry: millis(retry), ..ElectionConfig::new("a", "b", "c") };
            let said = config.validate().map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(said.is_empty(), error.is_empty(), "{config:?}: {said}");
            assert!(said.contains(error), "{config:?}: {said}");
        }
    }

    #[test]
    fn names_must_be_there_and_be_names() {
        assert_eq!(ElectionConfig::new("", "b", "c").validate(), Err(InvalidElection::Empty("the namespace")));
        assert_eq!(ElectionConfig::new("a", "", "c").validate(), Err(InvalidElection::Empty("the name of the Lease")));
        assert_eq!(ElectionConfig::new("a", "b", "").validate(), Err(InvalidElection::Empty("the identity")));
        assert_eq!(ElectionConfig::new("a", "B", "c").validate(), Err(InvalidElection::Name("B".to_owned())));
        assert_eq!(ElectionConfig::new("a", "-b", "c").validate(), Err(InvalidElection::Name("-b".to_owned())));
        assert_eq!(ElectionConfig::new("a", "../x", "c").validate(), Err(InvalidElection::Name("../x".to_owned())));
        assert!(ElectionConfig::new("a", "berth.kruntimes.io", "c").validate().is_ok());
    }

    #[test]
    fn an_identity_is_never_given_twice() {
        assert_ne!(identity("host"), identity("host"));
        assert!(identity("host").starts_with("host_"));
    }
}
