//! Connections to the endpoints: each in a task of its own, so that a slow or broken one holds up nobody, and not too many of them.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use berth_runtime::lock;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::metrics::EndpointMetrics;

/// Connections at once; one more, and the oldest ends after the answer that is under way, so that a probe always finds a place.
const CONNECTIONS_MAX: usize = 256;
/// Connections at once, those included that are asked to end.
const CONNECTIONS_ENDING_MAX: usize = 320;
/// Connections of one address at once, so that one client can't take them all.
const PER_PEER_MAX: usize = 64;
/// For the TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// From a connection's begin, or its last answer, to the end of the next request's headers: also how long one may be idle.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Longest request line and headers together; tokens are among them.
const HEADERS_BYTES_MAX: usize = 64 * 1_024;
/// Longest life of a connection: by then also those end that do not take their answer.
const LIFE_MAX: Duration = Duration::from_secs(600);
/// How long a request under way gets when its connection is to end.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After the process could not accept, as when it has no more file descriptors.
const BREATHE: Duration = Duration::from_secs(1);
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 22;
/// To who speaks HTTP where TLS is spoken; Go's servers say the same.
const PLAINTEXT: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// See the module.
pub struct Connections {
    open: Mutex<Open>,
    metrics: EndpointMetrics,
}

#[derive(Default)]
struct Open {
    all: usize,
    /// By age, how to ask one to end; those that were asked are not among them.
    by_age: BTreeMap<u64, CancellationToken>,
    next: u64,
    by_peer: HashMap<IpAddr, usize>,
}

/// A connection that counts, until it is dropped.
struct Place {
    connections: Arc<Connections>,
    peer: IpAddr,
    age: u64,
    /// Cancelled when somebody newer needs the place.
    make_room: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.connections.open);
        open.all -= 1;
        open.by_age.remove(&self.age);
        if let Some(of_peer) = open.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                open.by_peer.remove(&self.peer);
            }
        }
    }
}

impl Connections {
    /// None yet.
    pub fn new(metrics: EndpointMetrics) -> Self {
        Self { open: Mutex::default(), metrics }
    }

    fn place(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let mut open = lock(&self.open);
        let of_peer = open.by_peer.get(&peer).copied().unwrap_or(0);
        if open.all >= CONNECTIONS_ENDING_MAX || of_peer >= PER_PEER_MAX {
            return None;
        }
        if open.by_age.len() >= CONNECTIONS_MAX
            && let Some((_, oldest)) = open.by_age.pop_first()
        {
            oldest.cancel();
            self.refused("displaced");
        }
        let (age, make_room) = (open.next, CancellationToken::new());
        open.next += 1;
        open.all += 1;
        open.by_age.insert(age, make_room.clone());
        open.by_peer.insert(peer, of_peer + 1);
        Some(Place { connections: self.clone(), peer, age, make_room })
    }

    fn refused(&self, reason: &str) {
        self.metrics.refused.with_label_values(&[reason]).inc();
    }

    /// Accepts until `stop`; then connections end after the answer that is under way.
    pub async fn serve(self: &Arc<Self>, listener: TcpListener, tls: Option<watch::Receiver<Arc<ServerConfig>>>, router: Router, stop: &CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                // Of the one connection, not of the socket.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => continue,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept");
                    tokio::time::sleep(BREATHE).await;
                    continue;
                }
            };
            let Some(place) = self.place(peer.ip()) else {
                self.refused("limit");
                continue;
            };
            let config = tls.as_ref().map(|tls| tls.borrow().clone());
            let (connections, router, stop) = (self.clone(), router.clone(), stop.clone());
            tokio::spawn(async move {
                let end = async {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = place.make_room.cancelled() => {}
                    }
                };
                match config {
                    None => serve_http(stream, router, end).await,
                    Some(config) => {
                        let shaken = tokio::select! {
                            shaken = tokio::time::timeout(HANDSHAKE_WITHIN, handshake(stream, config)) => shaken,
                            () = place.make_room.cancelled() => return,
                        };
                        match shaken {
                            Ok(Ok(stream)) => serve_http(stream, router, end).await,
                            Ok(Err(reason)) => connections.refused(reason),
                            Err(_) => connections.refused("timeout"),
                        }
                    }
                }
            });
        }
    }
}

async fn handshake(mut stream: TcpStream, config: Arc<ServerConfig>) -> Result<tokio_rustls::server::TlsStream<TcpStream>, &'static str> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) if first == [TLS_HANDSHAKE] => {}
        Ok(1) => {
            // Whether it arrives or not: this connection ends.
            let _ = stream.write_all(PLAINTEXT).await;
            let _ = stream.shutdown().await;
            return Err("plaintext");
        }
        _ => return Err("handshake"),
    }
    TlsAcceptor::from(config).accept(stream).await.map_err(|error| {
        tracing::debug!(%error, "TLS handshake failed");
        "handshake"
    })
}

/// Serves a connection until it ends, or `end`.
async fn serve_http(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, end: impl Future<Output = ()>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(HEADERS_BYTES_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        // How it ended is the client's affair.
        _ = &mut connection => return,
        () = tokio::time::sleep(LIFE_MAX) => {}
        () = end => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(LAST_ANSWER_WITHIN, connection).await;
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
