//! Errors: which call, what became of it, and what is certain then. Closed sets throughout; no text of a peer is kept.

use std::fmt;
use std::io;
use std::time::Duration;

/// What is certain after a call failed (design of Jobs, §2b, "Answers of O2").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// It had no effect, and the same call would fail again.
    Definite,
    /// The same call may be sent again: it had no effect, or having it twice is the same as once.
    Retryable,
    /// It may have had its effect, or may still: look before another is sent.
    Ambiguous,
}

/// Declares a closed set of words that Display prints.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl $name {
            /// Every one of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As logs and metrics have it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// A call.
    Operation {
        /// `GET /health`.
        Health = "health",
        /// `POST /sandboxes`.
        Create = "create",
        /// `GET /sandboxes/{id}`.
        Get = "get",
        /// `GET /sandboxes`.
        List = "list",
        /// `DELETE /sandboxes/{id}`.
        Delete = "delete",
        /// `POST /sandboxes/{id}/pause`.
        Pause = "pause",
        /// `POST /sandboxes/{id}/resume`.
        Resume = "resume",
        /// `POST /sandboxes/{id}/renew-expiration`.
        Renew = "renew",
        /// `GET /sandboxes/{id}/endpoints/{port}`.
        Endpoint = "endpoint",
        /// execd's `GET /ping`.
        Ping = "ping",
        /// execd's `POST /command`, in the foreground.
        Run = "run",
        /// execd's `POST /command`, in the background.
        Start = "start",
        /// execd's `GET /command/status/{id}`.
        CommandStatus = "command_status",
        /// execd's `GET /command/{id}/logs`.
        CommandLogs = "command_logs",
        /// execd's `DELETE /command`.
        Interrupt = "interrupt",
    }
}

impl Operation {
    /// Whether sending it twice is the same as once.
    #[must_use]
    pub fn is_repeatable(self) -> bool {
        !matches!(self, Self::Create | Self::Run | Self::Start)
    }
}

words! {
    /// What an error answer says, of its `code` or else of its shape.
    Code {
        /// `*::SANDBOX_NOT_FOUND`.
        SandboxNotFound = "sandbox_not_found",
        /// `*::SANDBOX_IMAGE_PULL_FAILED`: missing, unauthorized or no network.
        ImagePullFailed = "image_pull_failed",
        /// `*::QUOTA_EXCEEDED`.
        QuotaExceeded = "quota_exceeded",
        /// `*::POOL_CAPACITY_EXHAUSTED`.
        PoolCapacityExhausted = "pool_capacity_exhausted",
        /// `*::POD_READY_TIMEOUT`.
        PodReadyTimeout = "pod_ready_timeout",
        /// `*::POD_FAILED`.
        PodFailed = "pod_failed",
        /// `*::SANDBOX_START_FAILED`.
        SandboxStartFailed = "sandbox_start_failed",
        /// `*::SANDBOX_EXECD_START_FAILED`, `*::SANDBOX_EXECD_DISTRIBUTION_FAILED`, `*::SANDBOX_BOOTSTRAP_INSTALL_FAILED`.
        ExecdInstallFailed = "execd_install_failed",
        /// `*::SANDBOX_NOT_RUNNING`.
        SandboxNotRunning = "sandbox_not_running",
        /// `*::SANDBOX_NOT_PAUSED`.
        SandboxNotPaused = "sandbox_not_paused",
        /// `*::INVALID_EXPIRATION`, `*::EXPIRATION_NOT_EXTENDED`.
        InvalidExpiration = "invalid_expiration",
        /// `*::INVALID_PARAMETER`, `*::INVALID_ENTRYPOINT`.
        InvalidParameter = "invalid_parameter",
        /// `*::INVALID_METADATA_LABEL`, `INVALID_METADATA_FORMAT`.
        InvalidMetadata = "invalid_metadata",
        /// `*::NETWORK_MODE_ENDPOINT_UNAVAILABLE`, `*::POD_IP_NOT_AVAILABLE`.
        EndpointUnavailable = "endpoint_unavailable",
        /// `MISSING_API_KEY`.
        MissingApiKey = "missing_api_key",
        /// `INVALID_API_KEY`.
        InvalidApiKey = "invalid_api_key",
        /// `TENANT_PROVIDER_UNAVAILABLE`.
        TenantProviderUnavailable = "tenant_provider_unavailable",
        /// `BACKEND_CONNECTION_FAILED`, `BACKEND_TIMEOUT`, `BACKEND_RESPONSE_FAILED`: the server could not reach execd.
        ExecdUnreachable = "execd_unreachable",
        /// execd's 401: `{"error":"Unauthorized: ..."}`.
        ExecdUnauthorized = "execd_unauthorized",
        /// execd's `INVALID_REQUEST_BODY`; with 404: no such command.
        InvalidRequestBody = "invalid_request_body",
        /// execd's `MISSING_QUERY`.
        MissingQuery = "missing_query",
        /// execd's `RUNTIME_ERROR`.
        RuntimeError = "runtime_error",
        /// execd's or the server's `NOT_SUPPORTED`.
        NotSupported = "not_supported",
        /// A `code` that this client does not know.
        Other = "other",
        /// `{"detail":[...]}`: the request is not of the schema.
        Schema = "schema",
        /// `{"detail":"..."}`: no such path or method; not a missing sandbox.
        Route = "route",
        /// No JSON: an unhandled failure of the server, or something in front of it.
        Plain = "plain",
    }
}

words! {
    /// What is wrong with TLS.
    TlsTrouble {
        /// The certificate is of no authority that is known.
        UnknownAuthority = "the certificate is of no known authority",
        /// It is of another name.
        OtherName = "the certificate is of another name",
        /// It is over.
        Expired = "the certificate has expired",
        /// It is not valid yet.
        NotYet = "the certificate is not valid yet",
        /// Anything else about it.
        Certificate = "the certificate is not valid",
        /// The two have no way of speaking TLS, or the peer has another protocol there.
        Handshake = "the handshake failed",
    }
}

/// Why a connection or an answer did not come about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// In time.
    #[error("timed out")]
    TimedOut,
    /// Nobody knows the host's name.
    #[error("the name of the host is not known")]
    Name,
    /// The connection.
    #[error("{0}")]
    Io(io::ErrorKind),
    /// The certificate or the handshake. What rustls says of it may have names out of the peer's certificate.
    #[error("TLS: {0}")]
    Tls(TlsTrouble),
    /// The stream ended before it said how the command ended.
    #[error("the stream ended early")]
    Cut,
    /// More was sent than is taken.
    #[error("the answer is too long")]
    TooLong,
    /// What was sent is not of the API.
    #[error("the answer can't be read")]
    Unreadable,
    /// A list has what was not asked for: something drops the query on its way, or the server takes no heed of it.
    #[error("the list is not of the metadata that was asked for")]
    Unfiltered,
    /// Anything else of HTTP.
    #[error("HTTP failed")]
    Http,
}

/// Why nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// The server failed again and again; it is left alone for a while.
    #[error("it is left alone for a while, after failures in a row")]
    CircuitOpen,
    /// As many calls as allowed are under way.
    #[error("too many calls under way")]
    Busy,
    /// There is no API key now, or none that a header can carry.
    #[error("no API key")]
    NoApiKey,
    /// The request can't be made.
    #[error("{0}")]
    Request(&'static str),
    /// There is no connection.
    #[error("no connection: {0}")]
    Connect(Cause),
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// What it says.
    pub code: Code,
    /// `Retry-After`, if given in seconds.
    pub retry_after: Option<Duration>,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing was sent.
    #[error("not sent: {0}")]
    NotSent(Unsent),
    /// It was sent; there is no answer, or no whole one.
    #[error("no answer: {0}")]
    NoAnswer(Cause),
    /// It was answered by an error.
    #[error("answered {} {}", .0.status, .0.code)]
    Refused(Refusal),
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {failure}")]
pub struct Error {
    /// The call.
    pub operation: Operation,
    /// What became of it.
    pub failure: Failure,
}

impl Error {
    pub(crate) fn unsent(operation: Operation, unsent: Unsent) -> Self {
        Self { operation, failure: Failure::NotSent(unsent) }
    }

    pub(crate) fn no_answer(operation: Operation, cause: Cause) -> Self {
        Self { operation, failure: Failure::NoAnswer(cause) }
    }

    /// What is certain.
    #[must_use]
    pub fn certainty(&self) -> Certainty {
        let lost = if self.operation.is_repeatable() { Certainty::Retryable } else { Certainty::Ambiguous };
        match &self.failure {
            Failure::NotSent(Unsent::Request(_)) => Certainty::Definite,
            Failure::NotSent(_) => Certainty::Retryable,
            Failure::NoAnswer(_) => lost,
            Failure::Refused(refusal) => match (refusal.status, refusal.code) {
                (_, Code::ImagePullFailed | Code::QuotaExceeded) => Certainty::Definite,
                (429 | 503, _) => Certainty::Retryable,
                // Of something in between, which gave up waiting for what it had passed on.
                (408, _) => lost,
                (0..500, _) => Certainty::Definite,
                _ => lost,
            },
        }
    }

    /// Whether the call may have had its effect all the same, also where it may be sent again.
    #[must_use]
    pub fn may_have_had_effect(&self) -> bool {
        !matches!(self.failure, Failure::NotSent(_)) && self.certainty() != Certainty::Definite
    }

    /// What the answer said, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.refusal().map(|refusal| refusal.code)
    }

    /// The error answer, if there was one.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.failure {
            Failure::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the server says that there is no such sandbox. A 404 without that code is a wrong URL.
    #[must_use]
    pub fn is_sandbox_not_found(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.status == 404 && refusal.code == Code::SandboxNotFound)
    }

    /// Whether execd says that it knows no such command.
    #[must_use]
    pub fn is_command_not_found(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.status == 404 && refusal.code == Code::InvalidRequestBody)
    }

    /// Whether the server did not take the API key, or there is none.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        matches!(self.code(), Some(Code::MissingApiKey | Code::InvalidApiKey)) || self.failure == Failure::NotSent(Unsent::NoApiKey)
    }
}
