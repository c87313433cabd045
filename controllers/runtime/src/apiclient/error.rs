//! What a failed call means for its caller: refused, never sent, or unknown.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::time::Duration;

/// Longest error text that is kept, bytes; an API server's message can quote a whole object.
const TEXT_BYTES_MAX: usize = 512;
/// What a 404 means that is no Kubernetes answer about an object: the path itself is unknown.
const UNKNOWN_KIND: &str = "the API server does not know this kind; are the CRDs installed? `berth crds | kubectl apply --server-side -f -`";

/// A failed API call. For a write, [`is_ambiguous`](Self::is_ambiguous) says whether it may have taken effect all the same.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered 4xx: the request took no effect.
    #[error("refused with {code} {reason}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// `reason` of the Status (`NotFound`, `AlreadyExists`, `Conflict`, …).
        reason: String,
        /// `message` of the Status.
        message: String,
        /// When the server asks to be tried again.
        retry_after: Option<Duration>,
    },
    /// The server answered 5xx. Behind it, etcd may have taken the write.
    #[error("server error {code} {reason}: {message}")]
    Server {
        /// HTTP status.
        code: u16,
        /// `reason` of the Status.
        reason: String,
        /// `message` of the Status.
        message: String,
        /// When the server asks to be tried again.
        retry_after: Option<Duration>,
    },
    /// The request never left this process, or nobody listened.
    #[error("not sent: {0}")]
    NotSent(String),
    /// No answer within the time-out.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection broke before the whole answer was in.
    #[error("answer lost: {0}")]
    Lost(String),
    /// The server answered 2xx with something we can't read. A write has taken effect.
    #[error("answer not understood: {0}")]
    Undecodable(String),
}

/// The time-out of [`super::CallLayer`], as it travels through kube's error.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} ms", .0.as_millis())]
pub(super) struct Elapsed(pub Duration);

impl CallError {
    /// 409 because the object changed or its UID differs (not: because it already exists).
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason != "AlreadyExists")
    }

    /// 409 because an object of that name already exists.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// 401 or 403.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 401 | 403, .. })
    }

    /// The server answered, and the answer settles it: for a write, no effect.
    pub fn is_definite(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// A write may have taken effect: only a read tells. Neither this nor definite: the request was never sent.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Server { .. } | Self::TimedOut(_) | Self::Lost(_) | Self::Undecodable(_))
    }

    /// Whether the same request may well succeed a little later. A write that [is ambiguous](Self::is_ambiguous) needs a read first.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Refused { code, .. } => matches!(code, 408 | 429),
            Self::Server { .. } | Self::NotSent(_) | Self::TimedOut(_) | Self::Lost(_) => true,
            Self::Undecodable(_) => false,
        }
    }

    /// The delay the server asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } | Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    fn answered(status: &kube::core::response::Status) -> Self {
        let (code, mut reason, mut message) = (status.code, status.reason.clone(), cut(&status.message));
        if code == 404 && reason != "NotFound" {
            (reason, message) = ("NotFound".to_owned(), UNKNOWN_KIND.to_owned());
        }
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        if (400..500).contains(&code) { Self::Refused { code, reason, message, retry_after } } else { Self::Server { code, reason, message, retry_after } }
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        use kube::Error as E;
        match &error {
            E::Api(status) => Self::answered(status),
            E::SerdeError(_) | E::FromUtf8(_) => Self::Undecodable(cut(&error.to_string())),
            E::Service(_) | E::HyperError(_) | E::ReadEvents(_) => transport(&error),
            E::LinesCodecMaxLineLengthExceeded => Self::Lost(error.to_string()),
            // Building the request, its credentials or the connector failed.
            _ => Self::NotSent(cut(&error.to_string())),
        }
    }
}

fn transport(error: &kube::Error) -> CallError {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    let mut deepest = error.to_string();
    while let Some(error) = cause {
        if let Some(Elapsed(after)) = error.downcast_ref() {
            return CallError::TimedOut(*after);
        }
        if let Some(inner) = error.downcast_ref::<kube::Error>()
            && matches!(inner, kube::Error::Auth(_) | kube::Error::BuildRequest(_))
        {
            return CallError::NotSent(cut(&inner.to_string()));
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            // These come from connect() alone.
            if matches!(io.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) {
                return CallError::NotSent(cut(&io.to_string()));
            }
        }
        deepest = error.to_string();
        cause = error.source();
    }
    CallError::Lost(cut(&deepest))
}

/// At most [`TEXT_BYTES_MAX`] bytes, cut between characters.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}
