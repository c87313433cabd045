//! Error answers: five shapes of body, of which only a code of a closed set leaves this file.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::error::{Code, Refusal};

/// Reads an error answer. The body may echo what was sent and is not kept.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, body: &[u8]) -> Refusal {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(|value| value.trim().parse().ok());
    Refusal { status, code: code(status, body), retry_after: seconds.map(Duration::from_secs) }
}

/// The code of an error answer that comes as an event of a stream; None if it is none.
pub(crate) fn refused_within(event: &str) -> Option<Code> {
    let body: Value = serde_json::from_str(event).ok()?;
    (body.get("type").is_none()).then(|| body.get("code").and_then(Value::as_str).map(known)).flatten()
}

fn code(status: u16, body: &[u8]) -> Code {
    let Ok(Value::Object(body)) = serde_json::from_slice(body) else { return Code::Plain };
    if let Some(word) = body.get("code").and_then(Value::as_str) {
        return known(word);
    }
    match body.get("detail") {
        Some(Value::Array(_)) => Code::Schema,
        Some(Value::Object(detail)) => detail.get("code").and_then(Value::as_str).map_or(Code::Other, known),
        Some(_) if matches!(status, 404 | 405) => Code::Route,
        Some(_) => Code::Plain,
        None if status == 401 && body.contains_key("error") => Code::ExecdUnauthorized,
        None => Code::Other,
    }
}

/// The words of the server's and execd's `code`, whatever namespace they are in.
fn known(word: &str) -> Code {
    match word.rsplit("::").next().unwrap_or(word) {
        "SANDBOX_NOT_FOUND" => Code::SandboxNotFound,
        "SANDBOX_IMAGE_PULL_FAILED" => Code::ImagePullFailed,
        "QUOTA_EXCEEDED" => Code::QuotaExceeded,
        "POOL_CAPACITY_EXHAUSTED" => Code::PoolCapacityExhausted,
        "POD_READY_TIMEOUT" => Code::PodReadyTimeout,
        "POD_FAILED" => Code::PodFailed,
        "SANDBOX_START_FAILED" => Code::SandboxStartFailed,
        "SANDBOX_EXECD_START_FAILED" | "SANDBOX_EXECD_DISTRIBUTION_FAILED" | "SANDBOX_BOOTSTRAP_INSTALL_FAILED" => Code::ExecdInstallFailed,
        "SANDBOX_NOT_RUNNING" => Code::SandboxNotRunning,
        "SANDBOX_NOT_PAUSED" => Code::SandboxNotPaused,
        "INVALID_EXPIRATION" | "EXPIRATION_NOT_EXTENDED" => Code::InvalidExpiration,
        "INVALID_PARAMETER" | "INVALID_ENTRYPOINT" => Code::InvalidParameter,
        "INVALID_METADATA_LABEL" | "INVALID_METADATA_FORMAT" => Code::InvalidMetadata,
        "NETWORK_MODE_ENDPOINT_UNAVAILABLE" | "POD_IP_NOT_AVAILABLE" => Code::EndpointUnavailable,
        "MISSING_API_KEY" => Code::MissingApiKey,
        "INVALID_API_KEY" => Code::InvalidApiKey,
        "TENANT_PROVIDER_UNAVAILABLE" => Code::TenantProviderUnavailable,
        "BACKEND_CONNECTION_FAILED" | "BACKEND_TIMEOUT" | "BACKEND_RESPONSE_FAILED" => Code::ExecdUnreachable,
        "INVALID_REQUEST_BODY" => Code::InvalidRequestBody,
        "MISSING_QUERY" => Code::MissingQuery,
        "RUNTIME_ERROR" => Code::RuntimeError,
        "NOT_SUPPORTED" | "API_NOT_SUPPORTED" => Code::NotSupported,
        _ => Code::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Certainty, Error, Failure, Operation};

    /// Status, body, code, and what is certain after a create.
    const ROWS: &[(u16, &str, Code, Certainty)] = &[
        (404, r#"{"code":"DOCKER::SANDBOX_NOT_FOUND","message":"x"}"#, Code::SandboxNotFound, Certainty::Definite),
        (404, r#"{"code":"KUBERNETES::SANDBOX_NOT_FOUND","message":"x"}"#, Code::SandboxNotFound, Certainty::Definite),
        (404, r#"{"detail":"Not Found"}"#, Code::Route, Certainty::Definite),
        (405, r#"{"detail":"Method Not Allowed"}"#, Code::Route, Certainty::Definite),
        (422, r#"{"detail":[{"type":"missing","loc":["body"],"input":{"env":{"K":"canary"}}}]}"#, Code::Schema, Certainty::Definite),
        (400, r#"{"code":"SANDBOX::INVALID_METADATA_LABEL","message":"canary"}"#, Code::InvalidMetadata, Certainty::Definite),
        (401, r#"{"code":"INVALID_API_KEY","message":"x"}"#, Code::InvalidApiKey, Certainty::Definite),
        (401, r#"{"code":"MISSING_API_KEY","message":"x"}"#, Code::MissingApiKey, Certainty::Definite),
        (401, r#"{"error":"Unauthorized: invalid or missing header"}"#, Code::ExecdUnauthorized, Certainty::Definite),
        (403, r#"{"code":"KUBERNETES::QUOTA_EXCEEDED","message":"x"}"#, Code::QuotaExceeded, Certainty::Definite),
        (429, r#"{"code":"KUBERNETES::POOL_CAPACITY_EXHAUSTED","message":"x"}"#, Code::PoolCapacityExhausted, Certainty::Retryable),
        (500, r#"{"code":"DOCKER::SANDBOX_IMAGE_PULL_FAILED","message":"canary"}"#, Code::ImagePullFailed, Certainty::Definite),
        (500, "Internal Server Error", Code::Plain, Certainty::Ambiguous),
        (500, r#"{"code":"DOCKER::SOMETHING_NEW"}"#, Code::Other, Certainty::Ambiguous),
        (502, r#"{"code":"BACKEND_CONNECTION_FAILED","message":"x"}"#, Code::ExecdUnreachable, Certainty::Ambiguous),
        (502, "<html>bad gateway</html>", Code::Plain, Certainty::Ambiguous),
        (503, "Service Unavailable", Code::Plain, Certainty::Retryable),
        (503, r#"{"code":"TENANT_PROVIDER_UNAVAILABLE"}"#, Code::TenantProviderUnavailable, Certainty::Retryable),
        (504, r#"{"code":"KUBERNETES::POD_READY_TIMEOUT"}"#, Code::PodReadyTimeout, Certainty::Ambiguous),
        (408, "", Code::Plain, Certainty::Ambiguous),
        (307, "", Code::Plain, Certainty::Definite),
    ];

    #[test]
    fn each_shape_of_body_has_its_code_and_certainty_and_none_of_its_text() {
        for (status, body, code, certainty) in ROWS {
            let refusal = refusal(*status, &HeaderMap::new(), body.as_bytes());
            assert_eq!(refusal.code, *code, "{status} {body}");
            let error = Error { operation: Operation::Create, failure: Failure::Refused(refusal) };
            assert_eq!(error.certainty(), *certainty, "{status} {body}");
            let said = format!("{error} {error:?}");
            assert!(!said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn what_may_be_repeated_is_never_ambiguous() {
        for operation in Operation::ALL.iter().filter(|operation| operation.is_repeatable()) {
            for (status, body, ..) in ROWS {
                let failure = Failure::Refused(refusal(*status, &HeaderMap::new(), body.as_bytes()));
                assert_ne!(Error { operation: *operation, failure }.certainty(), Certainty::Ambiguous, "{operation} {status}");
            }
        }
    }

    #[test]
    fn a_missing_sandbox_is_not_a_wrong_path() {
        let error = |body: &str| Error { operation: Operation::Get, failure: Failure::Refused(refusal(404, &HeaderMap::new(), body.as_bytes())) };
        assert!(error(r#"{"code":"DOCKER::SANDBOX_NOT_FOUND"}"#).is_sandbox_not_found());
        assert!(!error(r#"{"detail":"Not Found"}"#).is_sandbox_not_found());
        assert!(!error("<html>").is_sandbox_not_found());
    }
}
