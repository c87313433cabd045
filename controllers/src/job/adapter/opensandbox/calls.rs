//! Calls to servers and sandboxes as requests to a backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_opensandbox::{CallObserver, Certainty, Error, Operation as Call};

use crate::job::api::names::ADAPTER_OPENSANDBOX;
use crate::job::measure::{JobObserver, Operation, Outcome, Request};

/// Tells of each call to a server or a sandbox as of a request to a backend.
pub struct Calls(pub Arc<dyn JobObserver>);

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}

impl CallObserver for Calls {
    fn called(&self, call: Call, error: Option<&Error>, took: Duration) {
        let operation = match call {
            Call::Create | Call::Start | Call::Renew => Operation::Ensure,
            Call::Interrupt => Operation::Cancel,
            Call::Delete => Operation::Delete,
            _ => Operation::Observe,
        };
        let outcome = match error.map(Error::certainty) {
            None | Some(Certainty::Definite) => Outcome::Definite,
            Some(Certainty::Retryable) => Outcome::Retry,
            Some(Certainty::Ambiguous) => Outcome::Ambiguous,
        };
        self.0.requested(&Request { adapter: ADAPTER_OPENSANDBOX, operation, outcome, took });
    }
}
