//! Who may read the endpoints: a bearer token that the API server knows, and the right to get the path.
//!
//! ```text
//! no token, unknown token ─► 401      no right ─► 403      Berth may not ask ─► 500      the API server does not answer ─► 503
//! ```
//! Answers hold for seconds, so that a scrape costs two reviews at most. A token is kept nowhere: what is remembered is found by an HMAC
//! of it under a key of this process.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_runtime::lock;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use lru::LruCache;
use ring::{hmac, rand};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::metrics::EndpointMetrics;
use super::review::{self, Unanswered};

/// Answers remembered of each kind; the one that was not asked for the longest makes room.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();
/// Reviews under way at once; more wait.
const REVIEWS_MAX: usize = 8;
/// How long a request may wait for its reviews.
const REVIEW_WITHIN: Duration = Duration::from_secs(10);
/// Between two lines of the log about reviews that came to no answer.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// How long answers hold, and what needs none.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of a TokenReview.
    pub token_ttl: Duration,
    /// Of a SubjectAccessReview that allows.
    pub allowed_ttl: Duration,
    /// Of one that does not.
    pub denied_ttl: Duration,
    /// Paths that anybody may get; a trailing `*` stands for any ending.
    pub open: Vec<String>,
}

type Fingerprint = [u8; 32];

/// An answer and until when it holds.
struct Held<T> {
    answer: T,
    until: Instant,
}

type Memory<T> = Mutex<LruCache<Fingerprint, Held<T>>>;

/// See the module.
pub struct Gate {
    settings: Settings,
    client: Client,
    key: hmac::Key,
    identities: Memory<Option<Arc<UserInfo>>>,
    decisions: Memory<bool>,
    reviews: Semaphore,
    told: Mutex<Option<Instant>>,
    metrics: EndpointMetrics,
}

/// Why a request is refused.
#[derive(Debug)]
pub enum Refusal {
    /// No token, or one that belongs to nobody.
    Unauthenticated,
    /// The user may not.
    Forbidden {
        /// Who.
        user: String,
        /// As in RBAC.
        verb: String,
        /// What.
        path: String,
    },
    /// Nobody knows.
    Unanswered(Unanswered),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthenticated => {
                (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], "Unauthorized: a bearer token that the API server knows is needed\n")
                    .into_response()
            }
            Self::Forbidden { user, verb, path } => (StatusCode::FORBIDDEN, format!("Forbidden: user {user:?} may not {verb} path {path:?}\n")).into_response(),
            Self::Unanswered(Unanswered::Forbidden(kind)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", Unanswered::Forbidden(kind))).into_response(),
            Self::Unanswered(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("it can't be told who may read this: {why}\n")).into_response(),
        }
    }
}

/// The layer around what is guarded.
pub async fn guard(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    match gate.admit(request.headers(), request.method(), request.uri().path()).await {
        Ok(()) => {
            request.headers_mut().remove(header::AUTHORIZATION);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

impl Gate {
    /// A gate that remembers nothing yet; reviews go through `client`.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(settings: Settings, client: Client, metrics: EndpointMetrics) -> anyhow::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).map_err(|_| anyhow::anyhow!("the system has no randomness"))?;
        let (identities, decisions) = (Mutex::new(LruCache::new(REMEMBERED_MAX)), Mutex::new(LruCache::new(REMEMBERED_MAX)));
        Ok(Self { settings, client, key, identities, decisions, metrics, reviews: Semaphore::new(REVIEWS_MAX), told: Mutex::default() })
    }

    /// Whether a request may pass.
    ///
    /// # Errors
    /// Why not.
    pub async fn admit(&self, headers: &HeaderMap, method: &Method, path: &str) -> Result<(), Refusal> {
        if self.settings.open.iter().any(|open| matches(open, path)) {
            return Ok(());
        }
        let decided = tokio::time::timeout(REVIEW_WITHIN, self.decide(headers, &method.as_str().to_ascii_lowercase(), path)).await;
        let decided = decided.unwrap_or(Err(Refusal::Unanswered(Unanswered::TooSlow(REVIEW_WITHIN))));
        if let Err(Refusal::Unanswered(why)) = &decided {
            self.tell(why);
        }
        decided
    }

    /// As kube's: the verb of a path is the method in lower case.
    async fn decide(&self, headers: &HeaderMap, verb: &str, path: &str) -> Result<(), Refusal> {
        let token = bearer(headers).ok_or(Refusal::Unauthenticated)?;
        let user = self.who(token).await?.ok_or(Refusal::Unauthenticated)?;
        if self.may(&user, verb, path).await? {
            return Ok(());
        }
        Err(Refusal::Forbidden { user: user.username.clone().unwrap_or_default(), verb: verb.to_owned(), path: path.to_owned() })
    }

    async fn who(&self, token: &str) -> Result<Option<Arc<UserInfo>>, Refusal> {
        let fingerprint = self.fingerprint(token.as_bytes());
        let ask = async {
            let answer = review::who(&self.client, token).await;
            let result = match &answer {
                Ok(Some(_)) => "success",
                Ok(None) => "failure",
                Err(_) => "error",
            };
            self.metrics.authentications.with_label_values(&[result]).inc();
            Ok((answer?.map(Arc::new), self.settings.token_ttl))
        };
        self.remembered(&self.identities, fingerprint, ask).await
    }

    async fn may(&self, user: &UserInfo, verb: &str, path: &str) -> Result<bool, Refusal> {
        let question = serde_json::to_vec(&(user, verb, path)).unwrap_or_default();
        let ask = async {
            let answer = review::may(&self.client, user, verb, path).await;
            let result = match &answer {
                Ok(true) => "allowed",
                Ok(false) => "denied",
                Err(_) => "error",
            };
            self.metrics.authorizations.with_label_values(&[result]).inc();
            let allowed = answer?;
            Ok((allowed, if allowed { self.settings.allowed_ttl } else { self.settings.denied_ttl }))
        };
        self.remembered(&self.decisions, self.fingerprint(&question), ask).await
    }

    /// The answer that is remembered, or that of `ask`, which also says how long it holds. Who waits for a place to ask may find
    /// that somebody else has asked the same meanwhile.
    async fn remembered<T: Clone>(
        &self,
        memory: &Memory<T>,
        fingerprint: Fingerprint,
        ask: impl Future<Output = Result<(T, Duration), Unanswered>>,
    ) -> Result<T, Refusal> {
        if let Some(answer) = recall(memory, &fingerprint) {
            return Ok(answer);
        }
        // Never closed.
        let _place = self.reviews.acquire().await;
        if let Some(answer) = recall(memory, &fingerprint) {
            return Ok(answer);
        }
        let (answer, ttl) = ask.await.map_err(Refusal::Unanswered)?;
        lock(memory).put(fingerprint, Held { answer: answer.clone(), until: Instant::now() + ttl });
        Ok(answer)
    }

    fn fingerprint(&self, text: &[u8]) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(hmac::sign(&self.key, text).as_ref());
        fingerprint
    }

    fn tell(&self, why: &Unanswered) {
        let mut told = lock(&self.told);
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            *told = Some(Instant::now());
            tracing::error!(%why, "requests to the endpoints are refused");
        }
    }
}

fn recall<T: Clone>(memory: &Memory<T>, fingerprint: &Fingerprint) -> Option<T> {
    let mut memory = lock(memory);
    let held = memory.get(fingerprint)?;
    if held.until <= Instant::now() {
        memory.pop(fingerprint);
        return None;
    }
    Some(held.answer.clone())
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

fn matches(open: &str, path: &str) -> bool {
    open.strip_suffix('*').map_or(open == path, |start| path.starts_with(start))
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
