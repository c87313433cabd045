//! One OpenSandbox server, as one OpenSandboxExecutionParameters has it: its client, its key, and what is known of both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use berth_api::duration;
use berth_opensandbox::{Access, CallObserver, Client, Error, ServerUrl, Settings, Timeouts};
use berth_runtime::lock;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::time::Instant;

use super::secrets;
use crate::job::api::opensandbox::{ExecdAccess, ExecutionMode, OpenSandboxExecutionParametersSpec};
use crate::job::reason::Readiness;

/// How old a key may be that is used.
const KEY_AGE: Duration = Duration::from_secs(30);
/// How soon one that was not taken is read again.
const KEY_AGE_REFUSED: Duration = Duration::from_secs(1);

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
    /// The key was not taken.
    key_refused: AtomicBool,
    /// The key, as it is now, has shown us a sandbox of ours: a "not found" of this server is then no other tenant's.
    knows_ours: AtomicBool,
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
            key_refused: AtomicBool::new(false),
            knows_ours: AtomicBool::new(false),
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

    /// Sees to it that the key in use is none of long ago. A Secret that can't be read leaves the one there was.
    pub async fn refresh_key(&self, client: &kube::Client) {
        let mut read = self.key_read.lock().await;
        let age = if self.key_refused.load(Ordering::Relaxed) { KEY_AGE_REFUSED } else { KEY_AGE };
        if read.is_some_and(|at| at.elapsed() < age) {
            return;
        }
        *read = Some(Instant::now());
        match secrets::api_key(client, &self.spec.api_key_secret_ref).await {
            Ok(key) => {
                let is_new = key.as_ref().map(ExposeSecret::expose_secret) != self.key.borrow().as_ref().map(ExposeSecret::expose_secret);
                if is_new {
                    self.knows_ours.store(false, Ordering::Relaxed);
                    self.key_refused.store(false, Ordering::Relaxed);
                    self.key.send_replace(key);
                }
            }
            Err(error) => {
                let code = if let berth_runtime::apiclient::CallError::Refused { code, .. } = error { code } else { 0 };
                tracing::warn!(parameters = &*self.name, code, "the Secret with the API key can't be read");
            }
        }
    }

    /// Takes note of what a call came to; answers the same.
    pub fn note<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result
            && error.is_unauthorized()
        {
            self.key_refused.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The server has shown us a sandbox of ours.
    pub fn saw_ours(&self) {
        self.knows_ours.store(true, Ordering::Relaxed);
    }

    pub fn knows_ours(&self) -> bool {
        self.knows_ours.load(Ordering::Relaxed)
    }

    pub fn readiness(&self) -> Option<(Readiness, String)> {
        lock(&self.readiness).clone()
    }

    /// True if that is news.
    pub fn set_readiness(&self, readiness: Readiness, message: &str) -> bool {
        let mut known = lock(&self.readiness);
        let is_news = known.as_ref().is_none_or(|(old, _)| *old != readiness);
        if is_news {
            *known = Some((readiness, message.to_owned()));
        }
        is_news
    }
}
