//! What is measured about the endpoints. kube's names where the meaning is the same.

use prometheus::{IntCounterVec, IntGauge, Opts};

use super::super::metrics::Metrics;

/// See the module. Clones count together.
#[derive(Clone)]
pub struct EndpointMetrics {
    /// Tokens that were looked at, by result: success, failure, error.
    pub authentications: IntCounterVec,
    /// Decisions on who may get a path, by result: allowed, denied, error.
    pub authorizations: IntCounterVec,
    /// Connections that came to no request, by reason: handshake, plaintext, timeout, limit; and those that made room: displaced.
    pub refused: IntCounterVec,
    /// Whether the certificate's files as they are now can be used.
    pub certificate_valid: IntGauge,
}

impl EndpointMetrics {
    /// All of them, at zero, among `metrics`.
    ///
    /// # Errors
    /// A name that is there already.
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, label: &str, values: &[&str]| {
            let made = IntCounterVec::new(Opts::new(name, help), &[label])?;
            metrics.register(made.clone())?;
            for value in values {
                made.with_label_values(&[*value]);
            }
            Ok::<_, prometheus::Error>(made)
        };
        let results = ["success", "failure", "error"];
        let decisions = ["allowed", "denied", "error"];
        let reasons = ["handshake", "plaintext", "timeout", "limit", "displaced"];
        let certificate_valid = IntGauge::new(
            "berth_tls_certificate_valid",
            "Whether the certificate of the endpoints as its files are now can be used; if 0, the last good one is served.",
        )?;
        certificate_valid.set(1);
        metrics.register(certificate_valid.clone())?;
        Ok(Self {
            authentications: counters("authentication_attempts", "Bearer tokens shown to the endpoints, by result.", "result", &results)?,
            authorizations: counters("authorization_attempts_total", "Decisions on who may get a path of the endpoints.", "result", &decisions)?,
            refused: counters(
                "berth_endpoint_refused_connections_total",
                "Connections to the endpoints that came to no request, and idle ones that made room for newer ones (displaced).",
                "reason",
                &reasons,
            )?,
            certificate_valid,
        })
    }
}
