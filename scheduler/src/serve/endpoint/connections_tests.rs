//! Slow, broken, plain and too many clients beside one that wants its answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::net::{Ipv4Addr, SocketAddr};

use axum::routing::get;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpSocket;
use tokio_util::sync::DropGuard;

use super::super::super::metrics::Metrics;
use super::super::tls::Tls;
use super::*;

struct World {
    address: SocketAddr,
    connections: Arc<Connections>,
    _stop: DropGuard,
}

impl World {
    async fn start(tls: bool) -> Self {
        let connections = Arc::new(Connections::new(EndpointMetrics::new(&Metrics::new().unwrap()).unwrap()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (serving, until) = (connections.clone(), stop.clone());
        tokio::spawn(async move {
            let tls = tls.then(|| Tls::self_signed(Ipv4Addr::LOCALHOST.into()).unwrap());
            serving.serve(listener, tls.as_ref().map(Tls::in_use), router(), &until).await;
        });
        Self { address, connections, _stop: stop.drop_guard() }
    }

    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    fn refused(&self, reason: &str) -> u64 {
        self.connections.metrics.refused.with_label_values(&[reason]).get()
    }
}

fn router() -> Router {
    Router::new().route("/livez", get(async || "alive"))
}

const ONE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Everything that is answered to `request` until the connection ends.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> String {
    stream.write_all(request).await.unwrap();
    let mut text = Vec::new();
    // A connection that is reset has no more to say.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8(text).unwrap()
}

const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[derive(Debug)]
struct Anybody;

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// GET /livez over TLS of that version.
async fn over_tls(world: &World, version: &'static rustls::SupportedProtocolVersion) -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = world.connect(OTHER).await;
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    answer(&mut stream, LIVEZ).await
}

#[tokio::test]
async fn who_is_slow_or_broken_holds_up_nobody_and_is_counted() {
    let world = World::start(true).await;
    // Begin a handshake and fall silent; send something else altogether.
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = world.connect(ONE).await;
        stream.write_all(&[TLS_HANDSHAKE]).await.unwrap();
        silent.push(stream);
    }
    let plain = answer(&mut world.connect(ONE).await, LIVEZ).await;
    assert!(plain.starts_with("HTTP/1.0 400") && plain.contains("HTTP request to an HTTPS server"), "{plain}");
    answer(&mut world.connect(ONE).await, &[TLS_HANDSHAKE, 3, 1, 0, 4, 255, 0, 0, 0]).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let answered = over_tls(&world, version).await;
        assert!(answered.starts_with("HTTP/1.1 200") && answered.ends_with("alive"), "{answered}");
    }
    assert_eq!((world.refused("plaintext"), world.refused("handshake"), world.refused("timeout")), (1, 1, 0));
}

#[tokio::test]
async fn one_address_cannot_take_every_place_and_places_come_back() {
    let world = World::start(false).await;
    let mut held = Vec::new();
    for _ in 0..PER_PEER_MAX {
        held.push(world.connect(ONE).await);
    }
    // Accepted in order: the next of this address is one too many.
    assert_eq!(answer(&mut world.connect(ONE).await, b"").await, "");
    assert_eq!(world.refused("limit"), 1);
    assert!(answer(&mut world.connect(OTHER).await, LIVEZ).await.ends_with("alive"));
    drop(held);
    while !world.connections.open.lock().unwrap().by_peer.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(answer(&mut world.connect(ONE).await, LIVEZ).await.ends_with("alive"));
}

#[tokio::test]
async fn of_all_addresses_together_the_oldest_makes_room() {
    let connections = Arc::new(Connections::new(EndpointMetrics::new(&Metrics::new().unwrap()).unwrap()));
    let peer = |n: usize| IpAddr::from(Ipv4Addr::from(u32::try_from(n).unwrap()));
    let place = |n: usize| connections.place(peer(n));
    let mut places: Vec<_> = (0..CONNECTIONS_MAX).map(|n| place(n).unwrap()).collect();
    let ending = |places: &[Place]| places.iter().map(|place| usize::from(place.make_room.is_cancelled())).sum::<usize>();
    assert_eq!(ending(&places), 0);
    for n in CONNECTIONS_MAX..CONNECTIONS_ENDING_MAX {
        places.push(place(n).unwrap());
    }
    let asked = CONNECTIONS_ENDING_MAX - CONNECTIONS_MAX;
    assert_eq!((ending(&places), ending(&places[..asked])), (asked, asked), "the oldest, each once");
    assert!(place(CONNECTIONS_ENDING_MAX).is_none(), "who does not end when asked can't have more");
    drop(places);
    let open = connections.open.lock().unwrap();
    assert!(open.all == 0 && open.by_peer.is_empty() && open.by_age.is_empty());
}

#[tokio::test]
async fn a_newcomer_is_answered_while_others_hold_every_place() {
    let world = World::start(true).await;
    let mut held = Vec::new();
    for n in 0..CONNECTIONS_MAX {
        // Handshakes that do not come to their end.
        held.push(world.connect(Ipv4Addr::new(127, 0, 1, u8::try_from(n / PER_PEER_MAX).unwrap())).await);
    }
    let answered = over_tls(&world, &rustls::version::TLS13).await;
    assert!(answered.ends_with("alive"), "{answered}");
    assert_eq!((world.refused("displaced"), world.refused("limit")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn headers_that_do_not_come_and_connections_without_end_are_ended() {
    let start = tokio::time::Instant::now();
    let (mut client, server) = tokio::io::duplex(1_024);
    client.write_all(b"GET /livez HTT").await.unwrap();
    serve_http(server, router(), std::future::pending()).await;
    assert_eq!(start.elapsed(), HEADERS_WITHIN);

    // An answer that nobody takes.
    let (mut client, server) = tokio::io::duplex(64);
    client.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let start = tokio::time::Instant::now();
    serve_http(server, router(), std::future::pending()).await;
    assert_eq!(start.elapsed(), LIFE_MAX + LAST_ANSWER_WITHIN);

    // One that is idle when the process stops.
    let (_client, server) = tokio::io::duplex(64);
    let (stop, start) = (CancellationToken::new(), tokio::time::Instant::now());
    stop.cancel();
    serve_http(server, router(), stop.cancelled()).await;
    assert!(start.elapsed() < HEADERS_WITHIN);
}
