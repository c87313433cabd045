//! A proxy in front of a server, and of its sandboxes through it or directly, that loses, refuses, cuts and holds, by a seed or on demand; and that may have tenants.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::random::Random;
use crate::tenants::{Answer, Tenants};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is passed on and answered.
    Passes,
    /// The connection breaks before it is passed on.
    Refused,
    /// 503, and it is not passed on: what overload looks like.
    TurnedAway,
    /// It is passed on once the test lets it go, also if nobody waits for the answer any more.
    Held,
    /// It takes effect, and the connection breaks before the answer.
    AnswerLost,
    /// It takes effect, and the answer is a plain 502: what a proxy in between makes of a broken connection.
    AnswerReplaced,
    /// It is never passed on, and never answered.
    Hangs,
    /// It takes effect, and is never answered.
    AnswerHangs,
}

/// A fault on demand: of the requests that change something, or of those of one method and an end of the path, the one after `after` others, or each.
struct Wanted {
    method: &'static str,
    path_end: &'static str,
    after: usize,
    is_lasting: bool,
    fate: Fate,
}

impl Wanted {
    fn is_meant(&self, method: &str, path: &str) -> bool {
        path.ends_with(self.path_end) && if self.method.is_empty() { method != "GET" } else { method == self.method }
    }
}

/// What chance goes by: `BERTH_SEED`, which a test that goes by it prints.
pub fn seed() -> u64 {
    const USUAL: u64 = 7;
    let seed = std::env::var("BERTH_SEED").map_or(USUAL, |text| text.parse().expect("BERTH_SEED is a number"));
    println!("BERTH_SEED={seed}");
    seed
}

/// Between the path of a request to an execd that is reached directly, and its address.
const DIRECT: &str = "/direct/";

/// A running proxy; dropping it ends it.
pub struct FaultyProxy {
    port: u16,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    upstream: String,
    client: Client<HttpConnector, Full<Bytes>>,
    random: Mutex<Random>,
    /// Of a hundred requests, so many are struck.
    percent: usize,
    /// What is to strike, before chance does.
    wanted: Mutex<Vec<Wanted>>,
    struck: AtomicUsize,
    /// Nobody gets through.
    is_down: AtomicBool,
    tenants: Tenants,
    /// One for each held request that was let go.
    released: Semaphore,
    /// Where it is itself.
    port: u16,
    /// Requests that went to an execd at its own address.
    direct: AtomicUsize,
}

impl FaultyProxy {
    /// Starts one in front of `HOST:PORT` that strikes on demand only.
    pub async fn quiet(upstream: &str) -> Result<Self> {
        Self::start(upstream, 0, 0).await
    }

    /// Starts one in front of `HOST:PORT`.
    pub async fn start(upstream: &str, seed: u64, percent: usize) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            random: Mutex::new(Random::new(seed)),
            percent,
            wanted: Mutex::default(),
            struck: AtomicUsize::default(),
            is_down: AtomicBool::default(),
            tenants: Tenants::default(),
            released: Semaphore::new(0),
            port,
            direct: AtomicUsize::default(),
        });
        let stop = CancellationToken::new();
        let (stopped, served) = (stop.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let (served, stopped) = (Arc::clone(&served), stopped.clone());
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| answer(Arc::clone(&served), request));
                    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    stopped.run_until_cancelled(connection).await
                });
            }
        });
        Ok(Self { port, shared, _stop: stop.drop_guard() })
    }

    /// The base URL of the server's API through it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Strikes one request: of that method, or of any that changes something if that is empty, whose path ends so, the one after `after` others.
    pub fn strike(&self, method: &'static str, path_end: &'static str, after: usize, fate: Fate) {
        self.shared.want(Wanted { method, path_end, after, is_lasting: false, fate });
    }

    /// Strikes every such request, until [`forget`](Self::forget).
    pub fn strike_all(&self, method: &'static str, path_end: &'static str, fate: Fate) {
        self.shared.want(Wanted { method, path_end, after: 0, is_lasting: true, fate });
    }

    /// Lets so many held requests go.
    pub fn release(&self, count: usize) {
        self.shared.released.add_permits(count);
    }

    /// Whether nobody gets through.
    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::Relaxed);
    }

    /// How many requests went to an execd at its own address, which the server told by way of this proxy.
    #[must_use]
    pub fn direct(&self) -> usize {
        self.shared.direct.load(Ordering::Relaxed)
    }

    /// What was asked for and has not struck yet is not asked for any more.
    pub fn forget(&self) {
        self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Its tenants; none at first.
    pub fn tenants(&self) -> &Tenants {
        &self.shared.tenants
    }

    /// How many requests it has struck.
    #[must_use]
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }
}

/// An error makes hyper close the connection without an answer.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>> {
    if shared.is_down.load(Ordering::Relaxed) {
        return Err(anyhow!("down by the test"));
    }
    let fate = match shared.demand(request.method().as_str(), request.uri().path()) {
        Some(fate) => fate,
        None => shared.draw(),
    };
    if fate == Fate::Hangs {
        std::future::pending::<()>().await;
    }
    let (mut parts, incoming) = request.into_parts();
    let payload = incoming.collect().await?.to_bytes();
    match fate {
        Fate::Refused => return Err(anyhow!("refused by the test")),
        Fate::TurnedAway => return plain(StatusCode::SERVICE_UNAVAILABLE),
        _ => {}
    }
    let (is_lookup, whose) = shared.route(&mut parts)?;
    for hop in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        parts.headers.remove(hop);
    }
    let sender = Arc::clone(&shared);
    // On a task of its own: what was sent takes effect even if the connection in front breaks meanwhile.
    let sent = tokio::spawn(async move {
        if fate == Fate::Held {
            sender.released.acquire().await?.forget();
        }
        anyhow::Ok(sender.client.request(Request::from_parts(parts, Full::new(payload))).await?)
    });
    let mut response = sent.await??;
    match fate {
        Fate::AnswerHangs => std::future::pending().await,
        Fate::AnswerLost => return Err(anyhow!("answer lost by the test")),
        Fate::AnswerReplaced => return plain(StatusCode::BAD_GATEWAY),
        _ => {}
    }
    for hop in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(hop);
    }
    if is_lookup && response.status().is_success() {
        return shared.by_way_of_here(response).await;
    }
    if whose == Answer::AsItIs {
        return Ok(response.map(BodyExt::boxed_unsync));
    }
    response.headers_mut().remove(header::CONTENT_LENGTH);
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = shared.tenants.leave(&whose, &body).map_or(body, Bytes::from);
    Ok(Response::from_parts(parts, full(body)))
}

fn plain(status: StatusCode) -> Result<Response<Body>> {
    Ok(Response::builder().status(status).body(full(Bytes::from_static(b"by the test")))?)
}

fn full(body: Bytes) -> Body {
    Full::new(body).map_err(|never: Infallible| match never {}).boxed_unsync()
}

impl Shared {
    fn want(&self, wanted: Wanted) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).push(wanted);
    }

    fn demand(&self, method: &str, path: &str) -> Option<Fate> {
        let mut all = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let index = all.iter().position(|wanted| wanted.is_meant(method, path))?;
        let meant = &mut all[index];
        if meant.after > 0 {
            meant.after -= 1;
            return None;
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        Some(if meant.is_lasting { meant.fate } else { all.remove(index).fate })
    }

    /// Where a request goes. True if it asks where an execd is to be reached directly; and what becomes of its answer.
    fn route(&self, parts: &mut Parts) -> Result<(bool, Answer)> {
        let path = parts.uri.path_and_query().map_or("/", |all| all.as_str()).to_owned();
        let (authority, path, whose) = match path.strip_prefix(DIRECT).and_then(|rest| rest.split_once('/')) {
            Some((authority, rest)) => {
                self.direct.fetch_add(1, Ordering::Relaxed);
                (authority.to_owned(), format!("/{rest}"), Answer::AsItIs)
            }
            None => {
                let (path, whose) = self.tenants.enter(parts);
                (self.upstream.clone(), path, whose)
            }
        };
        let is_lookup = parts.method == Method::GET && path.contains("/endpoints/") && !path.contains("use_server_proxy=true");
        parts.uri = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
        Ok((is_lookup, whose))
    }

    /// The address of an execd, by way of this proxy.
    async fn by_way_of_here(&self, response: Response<Incoming>) -> Result<Response<Body>> {
        let (mut parts, body) = response.into_parts();
        let mut told: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let address = told["endpoint"].as_str().context("an address")?;
        told["endpoint"] = format!("127.0.0.1:{}{DIRECT}{address}", self.port).into();
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, full(told.to_string().into())))
    }

    fn draw(&self) -> Fate {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(100) >= self.percent {
            return Fate::Passes;
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        [Fate::Refused, Fate::TurnedAway, Fate::AnswerLost, Fate::AnswerReplaced][random.below(4)]
    }
}
