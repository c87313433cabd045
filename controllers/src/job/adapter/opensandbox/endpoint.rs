//! One OpenSandbox server, as one OpenSandboxExecutionParameters has it: its client, its key, and what is known of both.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use berth_api::duration;
use berth_opensandbox::{Access, CallObserver, Client, Error, Failure, Sandbox, ServerUrl, Settings, Timeouts, Unsent};
use berth_runtime::lock;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::time::Instant;

use super::Tools;
use super::own_secrets::{NoApiKey, api_key};
use super::page::{retry, timed};
use super::verdict::words;
use crate::job::api::opensandbox::{ExecdAccess, ExecutionMode, OpenSandboxExecutionParametersSpec};
use crate::job::reason::Readiness;

/// How old a key may be that is used.
const KEY_AGE: Duration = Duration::from_secs(30);

/// Counts the keys of all endpoints, by two for each: parameters that are told of another Secret have another endpoint, whose key is another as well.
static KEYS: AtomicU64 = AtomicU64::new(0);

/// How long a worker waits for an answer that decides an end.
const ON_THE_SPOT: Duration = Duration::from_secs(10);
/// So many workers wait for one server at once; they carry other backends' Jobs as well.
const WAITING_MAX: usize = 2;
/// How long one waits to be among them: a server that answers makes nobody wait.
const PLACE: Duration = Duration::from_secs(1);

/// Windows and lives, read once.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    pub create_timeout: Duration,
    pub create_window: Duration,
    pub orphan: Duration,
    pub lease: Duration,
}

/// See the module.
pub struct Endpoint {
    /// Name of the parameters.
    pub name: Arc<str>,
    /// The parameters.
    pub spec: Arc<OpenSandboxExecutionParametersSpec>,
    pub client: Client,
    pub spans: Spans,
    /// Creates under way at once: a quarter of all places is left for what is quick.
    pub creates: Semaphore,
    key: watch::Sender<Option<SecretString>>,
    key_read: AsyncMutex<Option<Instant>>,
    /// Reads in a row since the key was not taken that brought no other, and one; 0 if it was taken.
    key_refused: AtomicU32,
    /// Why it could not be read last.
    key_trouble: Mutex<Option<NoApiKey>>,
    /// Why the last call failed that was made.
    last_trouble: Mutex<Option<String>>,
    /// Which key is in use, by [`KEYS`]: what is asked while one takes the other's place is of neither.
    generation: AtomicU64,
    /// Workers that wait for an answer of this server.
    waiting: Arc<Semaphore>,
    readiness: Mutex<Option<(Readiness, String)>>,
}

impl Endpoint {
    /// None if the parameters can't be used: the schema admits no such URL, but it admits any bytes for certificates.
    pub fn new(name: Arc<str>, spec: Arc<OpenSandboxExecutionParametersSpec>, calls: Arc<dyn CallObserver>) -> Result<Self, String> {
        // The schema admits nothing that can't be read.
        let read = |text: &str| duration::parse_go(text).unwrap_or(Duration::from_secs(600));
        let spans = Spans {
            create_timeout: read(&spec.create_timeout),
            create_window: read(&spec.create_window),
            orphan: read(&spec.orphan_ttl),
            lease: read(&spec.lease_ttl),
        };
        let concurrency = usize::try_from(spec.concurrency).unwrap_or(1).max(1);
        let bundle = spec.tls.as_ref().and_then(|tls| tls.ca_bundle.as_deref()).unwrap_or_default();
        let authorities = base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| "tls.caBundle is no base64".to_owned())?;
        let timeouts = Timeouts { create: spans.create_timeout, ..Timeouts::default() };
        let settings = Settings { concurrency, authorities, timeouts, observer: calls, ..Settings::default() };
        let (key, current) = watch::channel(None);
        let server = ServerUrl::parse(&spec.endpoint).map_err(|error| error.to_string())?;
        let client = Client::new(server, Arc::new(current), &settings).map_err(|error| error.to_string())?;
        Ok(Self {
            name,
            client,
            spans,
            creates: Semaphore::new((concurrency - concurrency / 4).max(1)),
            key,
            key_read: AsyncMutex::new(None),
            key_refused: AtomicU32::new(0),
            key_trouble: Mutex::default(),
            last_trouble: Mutex::default(),
            generation: AtomicU64::new(0),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            readiness: Mutex::default(),
            spec,
        })
    }

    pub fn access(&self) -> Access {
        match self.spec.execd_access {
            ExecdAccess::Direct => Access::Direct,
            _ => Access::ServerProxy,
        }
    }

    pub fn is_entrypoint(&self) -> bool {
        self.spec.execution_mode == ExecutionMode::Entrypoint
    }

    /// Sees to it that the key in use is none of long ago. A Secret that can't be read leaves the one there was; one that is read in vain because the
    /// server does not take what it has is read again at once, and then less and less often.
    pub async fn refresh_key(&self, tools: &Tools) {
        let mut read = self.key_read.lock().await;
        let refused = self.key_refused.load(Ordering::Relaxed);
        let age = if refused > 0 { Duration::from_secs(retry(refused)) } else { KEY_AGE };
        if read.is_some_and(|at| at.elapsed() < age) {
            return;
        }
        *read = Some(Instant::now());
        if refused > 0 {
            self.key_refused.store(refused.saturating_add(1), Ordering::Relaxed);
        }
        let found = api_key(&tools.client, &tools.secrets.api_keys, &self.spec.api_key_secret_ref).await;
        let mut known = lock(&self.key_trouble);
        let trouble = match found {
            Ok(key) => {
                self.set_key(Some(key));
                None
            }
            Err(trouble) => {
                if trouble.is_certain() {
                    self.set_key(None);
                }
                if known.as_ref() != Some(&trouble) {
                    tracing::warn!(parameters = &*self.name, %trouble, "no API key");
                }
                Some(trouble)
            }
        };
        *known = trouble;
    }

    fn set_key(&self, key: Option<SecretString>) {
        let is_new = key.as_ref().map(ExposeSecret::expose_secret) != self.key.borrow().as_ref().map(ExposeSecret::expose_secret);
        if is_new {
            let changing = KEYS.fetch_add(2, Ordering::SeqCst) + 1;
            self.generation.store(changing, Ordering::SeqCst);
            self.key.send_replace(key);
            self.generation.store(changing + 1, Ordering::SeqCst);
            self.key_refused.store(0, Ordering::Relaxed);
        }
    }

    /// What is wrong with the key that the server does not take, or that there is not.
    pub fn unauthorized(&self) -> (Readiness, String) {
        match &*lock(&self.key_trouble) {
            Some(trouble) => (trouble.readiness(), format!("OpenSandboxExecutionParameters {}, spec.apiKeySecretRef: {trouble}", self.name)),
            None => (Readiness::Unauthorized, "the server does not take the API key".to_owned()),
        }
    }

    /// An error in words: why there is no key, and why a server is left alone.
    pub fn words(&self, error: &Error) -> String {
        if error.is_unauthorized() {
            return self.unauthorized().1;
        }
        let last = lock(&self.last_trouble).clone().filter(|_| error.failure == Failure::NotSent(Unsent::CircuitOpen));
        last.unwrap_or_else(|| words(error))
    }

    /// Which key is in use. A call that was begun and judged in the same one had that key.
    pub fn key_generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Does what a worker waits for, and tells what came of it if that is soon. It goes on in any case, so that the server is judged by it. None at once
    /// if others wait for this server already.
    pub async fn on_the_spot<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let place = tokio::time::timeout(PLACE, self.waiting.clone().acquire_owned()).await.ok()?.ok()?;
        let work = tokio::spawn(async move {
            let done = work.await;
            drop(place);
            done
        });
        tokio::time::timeout(ON_THE_SPOT, work).await.ok()?.ok()
    }

    /// Takes note of what a call came to; answers the same.
    pub fn note<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(error) if error.is_unauthorized() => {
                // What is counted already goes on being counted.
                let _ = self.key_refused.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
            }
            Ok(_) => self.key_refused.store(0, Ordering::Relaxed),
            Err(error) if matches!(error.failure, Failure::NotSent(Unsent::CircuitOpen | Unsent::Busy)) => {}
            Err(error) => *lock(&self.last_trouble) = Some(words(error)),
        }
        result
    }

    /// How far the server's clock is ahead of that time. What it tells of, and is told, is by its clock. A date has whole seconds: what may come of that
    /// is none.
    pub fn ahead(&self, now: Timestamp) -> SignedDuration {
        const WITHIN: SignedDuration = SignedDuration::from_secs(2);
        let ahead = self.client.server_time().map_or(SignedDuration::ZERO, |theirs| theirs.duration_since(now));
        if ahead.abs() <= WITHIN { SignedDuration::ZERO } else { ahead }
    }

    /// A sandbox as the server has told it, with its times by our clock.
    pub fn by_our_clock(&self, sandbox: Sandbox, now: Timestamp) -> Sandbox {
        timed(sandbox, self.ahead(now))
    }

    pub fn readiness(&self) -> Option<(Readiness, String)> {
        lock(&self.readiness).clone()
    }

    /// The server answers, and takes the key, as far as it has been asked.
    pub fn is_ready(&self) -> bool {
        self.readiness().is_none_or(|(readiness, _)| readiness == Readiness::Reachable)
    }

    /// True if that is news.
    pub fn set_readiness(&self, readiness: Readiness, message: &str) -> bool {
        let mut known = lock(&self.readiness);
        // A server that is not reached gives other words each time.
        let is_news = known.as_ref().is_none_or(|(old, said)| *old != readiness || readiness != Readiness::Unreachable && said != message);
        if is_news {
            *known = Some((readiness, message.to_owned()));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use berth_opensandbox::Operation;
    use serde_json::json;

    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl CallObserver for Nobody {
        fn called(&self, _: Operation, _: Option<&Error>, _: Duration) {}
    }

    fn endpoint() -> Endpoint {
        let spec = json!({"endpoint": "http://127.0.0.1:9/v1", "apiKeySecretRef": {"namespace": "a", "name": "b", "key": "c"}});
        Endpoint::new(Arc::from("p"), Arc::new(serde_json::from_value(spec).unwrap()), Arc::new(Nobody)).unwrap()
    }

    #[tokio::test]
    async fn each_key_has_a_number_of_its_own() {
        let endpoint = endpoint();
        let mut known = vec![endpoint.key_generation()];
        for (key, is_new) in [("a", true), ("a", false), ("b", true), ("a", true)] {
            endpoint.set_key(Some(key.into()));
            assert_eq!(!known.contains(&endpoint.key_generation()), is_new, "{key}");
            known.push(endpoint.key_generation());
        }
        // The parameters name another Secret now.
        let next = self::endpoint();
        next.set_key(Some("c".into()));
        assert!(!known.contains(&next.key_generation()));
    }

    #[tokio::test(start_paused = true)]
    async fn few_workers_wait_for_a_server_that_hangs_and_what_they_asked_for_goes_on() {
        let endpoint = Arc::new(endpoint());
        let (tell, told) = tokio::sync::oneshot::channel();
        let begun = Instant::now();
        let hanging = |endpoint: Arc<Endpoint>| async move { endpoint.on_the_spot(std::future::pending::<()>()).await };
        let slow = endpoint.on_the_spot(async move {
            tokio::time::sleep(Duration::from_secs(25)).await;
            tell.send(()).unwrap();
        });
        let (slow, second, third) = tokio::join!(slow, hanging(endpoint.clone()), async {
            let answer = hanging(endpoint.clone()).await;
            (answer, begun.elapsed())
        });
        assert_eq!((slow, second), (None, None));
        assert_eq!(third.0, None);
        assert!(third.1 < Duration::from_secs(2), "the third waits for its place alone: {:?}", third.1);
        assert!(begun.elapsed() < Duration::from_secs(11));
        told.await.unwrap();
        assert_eq!(endpoint.on_the_spot(async { 7 }).await, Some(7), "a place is free again");
    }
}
