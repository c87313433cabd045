//! How a call is made: a limit on those under way, a circuit breaker, time-outs on everything, TLS, and bodies read up to a bound.

use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use failsafe::StateMachine;
use failsafe::backoff::{EqualJittered, equal_jittered};
use failsafe::failure_policy::{ConsecutiveFailures, consecutive_failures};
use futures::StreamExt as _;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderValue};
use reqwest::{RequestBuilder, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::answer::refusal;
use crate::error::{Cause, Error, Failure, Operation, TlsTrouble, Unsent};
use crate::secret::ApiKeys;

const KEY_HEADER: &str = "OPEN-SANDBOX-API-KEY";
/// The longest page of a list is well below it.
const BODY_BYTES_MAX: usize = 8 << 20;
const ERROR_BYTES_MAX: usize = 64 << 10;

/// How a server is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Calls under way at once, to the server and to the sandboxes together.
    pub concurrency: usize,
    /// Authorities beside the system's, PEM; empty is none.
    pub authorities: Vec<u8>,
    /// Time-outs.
    pub timeouts: Timeouts,
    /// When the server is left alone.
    pub breaker: Breaker,
    /// Told of every call.
    pub observer: Arc<dyn CallObserver>,
}

/// Told of every call, to the server and to sandboxes, once it is answered: up to the head of the answer, and not the wait for a place before it.
pub trait CallObserver: std::fmt::Debug + Send + Sync + 'static {
    /// A call that took so long; its error, if it failed, tells the outcome ([`Error::certainty`]).
    fn called(&self, operation: Operation, error: Option<&Error>, took: Duration);
}

/// Nobody.
impl CallObserver for () {
    fn called(&self, _: Operation, _: Option<&Error>, _: Duration) {}
}

impl Default for Settings {
    fn default() -> Self {
        Self { concurrency: 50, authorities: Vec::new(), timeouts: Timeouts::default(), breaker: Breaker::default(), observer: Arc::new(()) }
    }
}

/// Time-outs of calls. There is none without.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// Until one of the calls under way makes place.
    pub place: Duration,
    /// Of a whole call, but a create.
    pub call: Duration,
    /// Of a create: longer than the server's own, which pulls the image meanwhile.
    pub create: Duration,
    /// Between two pieces of a stream. execd sends something every 3 s.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            place: Duration::from_secs(10),
            call: Duration::from_secs(20),
            create: Duration::from_secs(180),
            idle: Duration::from_secs(15),
        }
    }
}

/// When a server is left alone. Only calls of the lifecycle API count: a sandbox that hangs says nothing of its server.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    /// So many failures in a row.
    pub failures: u32,
    /// For so long at first, give or take a half, but at least a second; it doubles.
    pub pause_min: Duration,
    /// And no longer than that, which is at least a second more.
    pub pause_max: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 5, pause_min: Duration::from_secs(1), pause_max: Duration::from_secs(30) }
    }
}

/// Authorities that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CA bundle must be PEM certificates")]
pub struct InvalidAuthority;

pub(crate) struct Transport {
    pub http: reqwest::Client,
    pub timeouts: Timeouts,
    keys: Arc<dyn ApiKeys>,
    places: Arc<Semaphore>,
    observer: Arc<dyn CallObserver>,
    circuit: StateMachine<ConsecutiveFailures<EqualJittered>, ()>,
    /// The date of the server's last answer, and when it came.
    dated: Mutex<Option<(Timestamp, Instant)>>,
}

/// Whom a call is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Server,
    Sandbox { with_key: bool },
}

/// An answer of success, and the place that its call takes until it is read.
pub(crate) struct Answer {
    response: Response,
    operation: Operation,
    place: OwnedSemaphorePermit,
}

impl Transport {
    pub(crate) fn new(settings: &Settings, keys: Arc<dyn ApiKeys>) -> Result<Self, InvalidAuthority> {
        let timeouts = settings.timeouts;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(&settings.authorities)?)
            .connect_timeout(timeouts.connect)
            .redirect(reqwest::redirect::Policy::none()) // the key is for this host alone
            .no_proxy()
            .build()
            .map_err(|_| InvalidAuthority)?;
        // The crate panics on less than a second, and on a maximum that is not above the minimum.
        let pause_min = settings.breaker.pause_min.max(Duration::from_secs(1));
        let pause_max = settings.breaker.pause_max.max(pause_min + Duration::from_secs(1));
        let backoff = equal_jittered(pause_min, pause_max);
        Ok(Self {
            http,
            timeouts,
            keys,
            places: Arc::new(Semaphore::new(settings.concurrency.max(1))),
            observer: Arc::clone(&settings.observer),
            circuit: StateMachine::new(consecutive_failures(settings.breaker.failures.max(1), backoff), ()),
            dated: Mutex::default(),
        })
    }

    /// Sends a call and waits for the head of its answer, or the whole of an error answer.
    pub(crate) async fn send(&self, operation: Operation, peer: Peer, request: RequestBuilder) -> Result<Answer, Error> {
        if peer == Peer::Server && !self.circuit.is_call_permitted() {
            return Err(Error::unsent(operation, Unsent::CircuitOpen));
        }
        let request = match peer {
            Peer::Server | Peer::Sandbox { with_key: true } => request.header(KEY_HEADER, self.key(operation)?),
            Peer::Sandbox { with_key: false } => request,
        };
        let place = tokio::time::timeout(self.timeouts.place, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(Error::unsent(operation, Unsent::Busy)) };
        let begun = Instant::now();
        let answered = self.exchange(operation, peer, request).await;
        self.observer.called(operation, answered.as_ref().err(), begun.elapsed());
        if peer == Peer::Server {
            self.judge(answered.as_ref().err());
        }
        Ok(Answer { response: answered?, operation, place })
    }

    async fn exchange(&self, operation: Operation, peer: Peer, request: RequestBuilder) -> Result<Response, Error> {
        let response = request.send().await.map_err(|error| failure(operation, &error))?;
        // Of a gateway's own answer the date is the gateway's.
        if peer == Peer::Server
            && !matches!(response.status().as_u16(), 502..=504)
            && let Some(date) = response.headers().get(DATE).and_then(|date| rfc2822::parse(date.to_str().ok()?).ok())
        {
            *self.dated.lock().unwrap_or_else(PoisonError::into_inner) = Some((date.timestamp(), Instant::now()));
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        // Whatever becomes of the body, the status is an answer.
        let body = read(response, ERROR_BYTES_MAX).await.unwrap_or_default();
        Err(Error { operation, failure: Failure::Refused(refusal(status, &headers, &body)) })
    }

    /// The server's time now.
    pub(crate) fn server_time(&self) -> Option<Timestamp> {
        let (date, at) = (*self.dated.lock().unwrap_or_else(PoisonError::into_inner))?;
        date.checked_add(at.elapsed()).ok()
    }

    fn key(&self, operation: Operation) -> Result<HeaderValue, Error> {
        let none = || Error::unsent(operation, Unsent::NoApiKey);
        let key = self.keys.current().ok_or_else(none)?;
        // A file's last newline is part of many a Secret.
        let mut value = HeaderValue::from_str(key.expose_secret().trim()).map_err(|_| none())?;
        if value.is_empty() {
            return Err(none());
        }
        value.set_sensitive(true);
        Ok(value)
    }

    fn judge(&self, error: Option<&Error>) {
        let is_down = match error.map(|error| &error.failure) {
            None => false,
            Some(Failure::Refused(refusal)) => matches!(refusal.status, 502..=504),
            Some(_) => true,
        };
        if is_down { self.circuit.on_error() } else { self.circuit.on_success() }
    }
}

impl Answer {
    /// The answer, and the place to be kept while it is read.
    pub(crate) fn into_parts(self) -> (Response, OwnedSemaphorePermit) {
        (self.response, self.place)
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        Some(self.response.headers().get(name)?.to_str().ok()?.to_owned())
    }

    pub(crate) async fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let body = read(self.response, BODY_BYTES_MAX).await.map_err(|cause| Error::no_answer(self.operation, cause))?;
        serde_json::from_slice(&body).map_err(|_| Error::no_answer(self.operation, Cause::Unreadable))
    }
}

/// Reads a body up to a bound.
async fn read(response: Response, bytes_max: usize) -> Result<Bytes, Cause> {
    let mut body = BytesMut::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| cause(&error))?;
        if body.len() + piece.len() > bytes_max {
            return Err(Cause::TooLong);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

fn failure(operation: Operation, error: &reqwest::Error) -> Error {
    if error.is_builder() {
        Error::unsent(operation, Unsent::Request("the request can't be made"))
    } else if error.is_connect() {
        Error::unsent(operation, Unsent::Connect(cause(error)))
    } else {
        Error::no_answer(operation, cause(error))
    }
}

/// Why, of a closed set: what a peer wrote is nowhere in it.
pub(crate) fn cause(error: &reqwest::Error) -> Cause {
    let mut found = if error.is_timeout() { Cause::TimedOut } else { Cause::Http };
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Cause::Tls(tls_trouble(error));
        }
        // The resolver's errors have no type of their own in hyper-util.
        if error.to_string().starts_with("dns error") {
            return Cause::Name;
        }
        source = match error.downcast_ref::<io::Error>() {
            None => error.source(),
            Some(error) => {
                if found == Cause::Http {
                    found = Cause::Io(error.kind());
                }
                // Its source() is that of what it holds, which is passed over.
                error.get_ref().map(|held| held as &(dyn std::error::Error + 'static))
            }
        };
    }
    found
}

fn tls_trouble(error: &rustls::Error) -> TlsTrouble {
    use rustls::CertificateError as Certificate;
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            Certificate::UnknownIssuer => TlsTrouble::UnknownAuthority,
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => TlsTrouble::OtherName,
            Certificate::Expired | Certificate::ExpiredContext { .. } => TlsTrouble::Expired,
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => TlsTrouble::NotYet,
            _ => TlsTrouble::Certificate,
        },
        _ => TlsTrouble::Handshake,
    }
}

fn tls(authorities: &[u8]) -> Result<ClientConfig, InvalidAuthority> {
    let mut roots = RootCertStore::empty();
    // A system without any, or with some that can't be read, is no error: a class may bring its own.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        roots.add(certificate.map_err(|_| InvalidAuthority)?).map_err(|_| InvalidAuthority)?;
    }
    if !authorities.is_empty() && CertificateDer::pem_slice_iter(authorities).next().is_none() {
        return Err(InvalidAuthority);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|_| InvalidAuthority)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
