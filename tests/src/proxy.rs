//! A small HTTP proxy between a client and the API server that counts, and that can lose, delay, refuse and cut.
//!
//! Plain HTTP in front (a kubeconfig with `http://127.0.0.1:PORT` works), TLS behind. The client's own token passes
//! through. Watches are streamed.

mod body;
mod seen;

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::seen::Seen;
use crate::controlplane::{ControlPlane, write_kubeconfig};

/// What happens to a request instead of being passed on and answered.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is passed on and takes effect, but the connection breaks before the answer.
    DropAnswer,
    /// The connection breaks before it is passed on.
    Refuse,
    /// It is never passed on and never answered.
    Hang,
    /// It is passed on and takes effect, but the answer never comes.
    HangAnswer,
    /// It is passed on after a while, even if whoever sent it is gone by then.
    Delay(Duration),
    /// It is passed on at once, its answer comes after a while.
    DelayAnswer(Duration),
    /// It is answered with this status and a Kubernetes `Status` body, and not passed on. 429 and 503 carry no `Retry-After`.
    Answer(StatusCode),
}

/// A fault that was put in place; tells how often it struck. Dropping the handle leaves the fault in place.
#[derive(Clone, Debug)]
pub struct Placed {
    left: Arc<AtomicUsize>,
    hits: Arc<AtomicUsize>,
}

impl Placed {
    /// How many requests it has struck.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Takes it away.
    pub fn remove(&self) {
        self.left.store(0, Ordering::SeqCst);
    }
}

type Predicate = Box<dyn Fn(&Seen) -> bool + Send + Sync>;

struct Rule {
    matches: Predicate,
    fault: Fault,
    placed: Placed,
}

struct OpenWatch {
    seen: Seen,
    cut: CancellationToken,
}

struct State {
    upstream: Client,
    journal: Mutex<Vec<Seen>>,
    rules: Mutex<Vec<Rule>>,
    watches: Mutex<Vec<OpenWatch>>,
    /// Cancelled and replaced at each partition: every connection of that time ends.
    connections: Mutex<CancellationToken>,
    partitioned: watch::Sender<bool>,
    held: watch::Sender<HashSet<String>>,
}

/// A running proxy; dropping it ends it and its connections. It lives on the runtime it was started on.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    end: CancellationToken,
}

impl Proxy {
    /// Starts one in front of `plane`'s API server.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let mut config = plane.config("")?;
        config.auth_info.token = None; // the client in front brings its own
        config.read_timeout = None;
        let state = Arc::new(State {
            upstream: Client::try_from(config)?,
            journal: Mutex::default(),
            rules: Mutex::default(),
            watches: Mutex::default(),
            connections: Mutex::default(),
            partitioned: watch::Sender::new(false),
            held: watch::Sender::new(HashSet::new()),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, crate::process::free_port()?)).await?;
        let address = listener.local_addr()?;
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(accept(listener, Arc::clone(&state), end.clone())));
        Ok(Self { address, state, end })
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig file that leads through this proxy.
    pub fn kubeconfig(&self, plane: &ControlPlane, token: &str) -> Result<PathBuf> {
        write_kubeconfig(plane.scratch(), json!({"server": self.url()}), token)
    }

    /// A client that goes through this proxy; nothing is retried.
    pub fn client(&self, token: &str) -> Result<Client> {
        let mut config = kube::Config::new(self.url().parse()?);
        config.auth_info.token = Some(token.to_owned().into());
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Every request so far, in the order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Seen> {
        lock(&self.state.journal).clone()
    }

    /// How many requests satisfy `wanted`.
    #[must_use]
    pub fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        lock(&self.state.journal).iter().filter(|seen| wanted(seen)).count()
    }

    /// Puts `fault` in place for the next `times` requests that satisfy `matches`. The oldest fault that matches strikes.
    pub fn inject(&self, fault: Fault, times: usize, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Placed {
        let placed = Placed { left: Arc::new(AtomicUsize::new(times)), hits: Arc::default() };
        lock(&self.state.rules).push(Rule { matches: Box::new(matches), fault, placed: placed.clone() });
        placed
    }

    /// Starts or ends a partition. While it lasts new connections are closed at once; those that were open when it
    /// started are cut, with the requests and watches on them.
    pub fn partition(&self, on: bool) {
        self.state.partitioned.send_replace(on);
        if on {
            std::mem::take(&mut *lock(&self.state.connections)).cancel();
        }
    }

    /// Breaks the open watches that satisfy `matches`, in the middle of the stream; returns how many.
    pub fn cut_watches(&self, matches: impl Fn(&Seen) -> bool) -> usize {
        let mut cut = 0;
        lock(&self.state.watches).retain(|watch| {
            let strike = matches(&watch.seen) && !watch.cut.is_cancelled();
            if strike {
                watch.cut.cancel();
                cut += 1;
            }
            !strike
        });
        cut
    }

    /// Holds back the events of every watch of `resource` (plural) until [`Proxy::release_watches`]; none is lost.
    pub fn hold_watches(&self, resource: &str) {
        self.state.held.send_modify(|held| _ = held.insert(resource.to_owned()));
    }

    /// Delivers what [`Proxy::hold_watches`] held back, and holds back no more.
    pub fn release_watches(&self, resource: &str) {
        self.state.held.send_modify(|held| _ = held.remove(resource));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.cancel();
        lock(&self.state.connections).cancel();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, end: CancellationToken) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        if *state.partitioned.borrow() || end.is_cancelled() {
            continue; // the stream is dropped: the client sees the connection close
        }
        let _ = stream.set_nodelay(true);
        let cut = lock(&state.connections).clone();
        let state = Arc::clone(&state);
        tokio::spawn(cut.run_until_cancelled_owned(async move {
            let service = hyper::service::service_fn(move |request| answer(Arc::clone(&state), request));
            let connection = hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
            let _ = connection.await; // a broken connection is what this proxy is for
        }));
    }
}

/// An error makes hyper close the connection without an answer.
async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<body::Passed>> {
    let (mut parts, incoming) = request.into_parts();
    let seen = Seen::read(&parts.method, &parts.uri, &parts.headers);
    let index = {
        let mut journal = lock(&state.journal);
        journal.push(seen.clone());
        journal.len() - 1
    };
    // The whole request first: one that breaks off half-way is never passed on.
    let payload = incoming.collect().await?.to_bytes();
    let fault = strike(&state, &seen);
    match &fault {
        Some(Fault::Refuse) => return Err(anyhow!("refused by the test")),
        Some(Fault::Hang) => never().await,
        Some(Fault::Answer(code)) => return body::status(*code),
        Some(Fault::Delay(_) | Fault::DropAnswer | Fault::HangAnswer | Fault::DelayAnswer(_)) | None => {}
    }

    for hop in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        parts.headers.remove(hop);
    }
    parts.version = hyper::Version::HTTP_11;
    let upstream = state.upstream.clone();
    let forwarded = Request::from_parts(parts, kube::client::Body::from(payload));
    let delay = if let Some(Fault::Delay(time)) = fault { time } else { Duration::ZERO };
    // On a task of its own: what was sent takes effect even if the connection in front breaks meanwhile.
    let (journal, sent) = (Arc::clone(&state), async move {
        tokio::time::sleep(delay).await;
        upstream.send(forwarded).await
    });
    let mut response = tokio::spawn(async move {
        let answer = sent.await;
        if let (Some(entry), Ok(answer)) = (lock(&journal.journal).get_mut(index), &answer) {
            entry.code = Some(answer.status().as_u16());
        }
        answer
    })
    .await??;
    match &fault {
        // The answer is there, so the request has taken effect.
        Some(Fault::DropAnswer) => return Err(anyhow!("answer dropped by the test")),
        Some(Fault::HangAnswer) => never().await,
        Some(Fault::DelayAnswer(time)) => tokio::time::sleep(*time).await,
        _ => {}
    }
    for hop in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(hop);
    }
    let watch = (seen.verb == "watch" && response.status().is_success()).then(|| {
        let cut = CancellationToken::new();
        let mut watches = lock(&state.watches);
        watches.retain(|watch| !watch.cut.is_cancelled());
        watches.push(OpenWatch { seen: seen.clone(), cut: cut.clone() });
        body::Watch { resource: seen.resource, cut, held: state.held.subscribe() }
    });
    Ok(response.map(|inner| body::pass(inner, watch)))
}

async fn never() {
    let pending: Infallible = std::future::pending().await;
    match pending {}
}

fn strike(state: &State, seen: &Seen) -> Option<Fault> {
    let mut rules = lock(&state.rules);
    rules.retain(|rule| rule.placed.left.load(Ordering::SeqCst) > 0);
    let rule = rules.iter().find(|rule| (rule.matches)(seen))?;
    rule.placed.left.fetch_sub(1, Ordering::SeqCst);
    rule.placed.hits.fetch_add(1, Ordering::SeqCst);
    Some(rule.fault.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
