//! A proxy in front of a server, and so of its sandboxes through it, that loses, refuses and cuts by a seed.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::random::Random;

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
    /// It takes effect, and the connection breaks before the answer.
    AnswerLost,
    /// It takes effect, and the answer is a plain 502: what a proxy in between makes of a broken connection.
    AnswerReplaced,
    /// It is never passed on, and never answered.
    Hangs,
    /// It takes effect, and is never answered.
    AnswerHangs,
}

/// A fault on demand: of the requests that change something, or of those of one method and an end of the path, the one after `after` others.
struct Wanted {
    method: &'static str,
    path_end: &'static str,
    after: usize,
    fate: Fate,
}

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
}

impl FaultyProxy {
    /// Starts one in front of `HOST:PORT`.
    pub async fn start(upstream: &str, seed: u64, percent: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            random: Mutex::new(Random::new(seed)),
            percent,
            wanted: Mutex::default(),
            struck: AtomicUsize::default(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
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
        self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner).push(Wanted { method, path_end, after, fate });
    }

    /// What was asked for and has not struck yet is not asked for any more.
    pub fn forget(&self) {
        self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// How many requests it has struck.
    #[must_use]
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }
}

/// An error makes hyper close the connection without an answer.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>> {
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
    parts.uri =
        Uri::builder().scheme("http").authority(shared.upstream.as_str()).path_and_query(parts.uri.path_and_query().map_or("/", |all| all.as_str())).build()?;
    for hop in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        parts.headers.remove(hop);
    }
    let client = shared.client.clone();
    // On a task of its own: what was sent takes effect even if the connection in front breaks meanwhile.
    let mut response = tokio::spawn(async move { client.request(Request::from_parts(parts, Full::new(payload))).await }).await??;
    match fate {
        Fate::AnswerHangs => std::future::pending().await,
        Fate::AnswerLost => return Err(anyhow!("answer lost by the test")),
        Fate::AnswerReplaced => return plain(StatusCode::BAD_GATEWAY),
        _ => {}
    }
    for hop in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(hop);
    }
    Ok(response.map(BodyExt::boxed_unsync))
}

fn plain(status: StatusCode) -> Result<Response<Body>> {
    let body = Full::new(Bytes::from_static(b"by the test")).map_err(|never: Infallible| match never {});
    Ok(Response::builder().status(status).body(body.boxed_unsync())?)
}

impl Shared {
    fn demand(&self, method: &str, path: &str) -> Option<Fate> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant =
            |wanted: &&mut Wanted| path.ends_with(wanted.path_end) && if wanted.method.is_empty() { method != "GET" } else { method == wanted.method };
        let meant = wanted.iter_mut().find(is_meant)?;
        if meant.after > 0 {
            meant.after -= 1;
            return None;
        }
        let index = wanted.iter().position(|wanted| wanted.after == 0 && path.ends_with(wanted.path_end))?;
        self.struck.fetch_add(1, Ordering::Relaxed);
        Some(wanted.remove(index).fate)
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
