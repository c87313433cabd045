//! The client on the wire, against a server that misbehaves as told: what is certain after each fault, who sees which credential, and that nothing
//! is ever printed of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use berth_opensandbox::{
    Access, ApiKeys, Breaker, Cause, Certainty, Client, Code, Command, CreateSandbox, Failure, Image, ImageAuth, Metadata, ServerUrl, Settings, Timeouts,
    TlsTrouble, Unsent,
};
use futures::StreamExt as _;
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

const SANDBOX: &str = r#"{"id":"s1","status":{"state":"Running"},"createdAt":"2026-11-29T10:00:00Z"}"#;

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

fn settings() -> Settings {
    let timeouts = Timeouts {
        connect: Duration::from_secs(2),
        place: Duration::from_millis(300),
        call: Duration::from_secs(2),
        create: Duration::from_secs(2),
        idle: Duration::from_millis(500),
    };
    Settings { timeouts, breaker: Breaker { failures: 1000, ..Breaker::default() }, ..Settings::default() }
}

fn client_of(address: SocketAddr, settings: &Settings) -> Client {
    let keys: Arc<dyn ApiKeys> = Arc::new(SecretString::from("canary-key"));
    Client::new(ServerUrl::parse(&format!("http://{address}/v1")).unwrap(), keys, settings).unwrap()
}

fn sandbox() -> CreateSandbox {
    CreateSandbox {
        image: Image { uri: "r/a:1".into(), auth: Some(ImageAuth { username: "u".into(), password: "canary-password".into() }) },
        entrypoint: vec!["sleep".into(), "1000".into()],
        env: BTreeMap::from([("TOKEN".to_owned(), "canary-env".into())]),
        resource_limits: BTreeMap::new(),
        resource_requests: BTreeMap::new(),
        timeout: Some(60),
        metadata: Metadata::new(),
        platform: None,
    }
}

/// A peer that reads a request and then does as told with the connection.
async fn peer(answer: &'static [u8], holds: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 16384];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer).await;
                if holds {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn what_is_certain_after_a_fault_depends_on_whether_it_was_sent() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    let error = client_of(nobody, &settings()).create(&sandbox()).await.unwrap_err();
    assert!(matches!(error.failure, Failure::NotSent(Unsent::Connect(_))), "{error}");
    let unknown = ServerUrl::parse("http://no-such-host.invalid/v1").unwrap();
    let error = Client::new(unknown, Arc::new(SecretString::from("k")), &settings()).unwrap().create(&sandbox()).await.unwrap_err();
    assert_eq!(error.to_string(), "create: not sent: no connection: the name of the host is not known");
    assert_eq!(error.certainty(), Certainty::Retryable);

    let ok_but_cut = b"HTTP/1.1 202 Accepted\r\ncontent-length: 500\r\n\r\n{\"id\":";
    let not_of_the_api = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>";
    for (answer, holds, cause) in [
        (b"".as_slice(), false, None),
        (b"".as_slice(), true, Some(Cause::TimedOut)),
        (ok_but_cut, false, None),
        (ok_but_cut, true, Some(Cause::TimedOut)),
        (not_of_the_api, true, Some(Cause::Unreadable)),
    ] {
        let client = client_of(peer(answer, holds).await, &settings());
        let error = client.create(&sandbox()).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::Ambiguous, "{error}");
        if let Some(cause) = cause {
            assert_eq!(error.failure, Failure::NoAnswer(cause));
        }
        let error = client.get("s1").await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::Retryable, "the same fault of a read: {error}");
    }
}

#[tokio::test]
async fn a_list_that_was_not_filtered_is_an_error() {
    let answer = || async {
        r#"{"items":[{"id":"s1","status":{"state":"Running"},"metadata":{"a":"1","b":"2"},"createdAt":"2026-11-29T10:00:00Z"}],"pagination":{"hasNextPage":false}}"#
    };
    let client = client_of(serve(Router::new().fallback(any(answer))).await, &settings());
    let of = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Metadata>();
    for mine in [of(&[]), of(&[("a", "1")]), of(&[("a", "1"), ("b", "2")])] {
        assert_eq!(client.list(&mine).await.unwrap().len(), 1, "{mine:?}");
    }
    for other in [of(&[("a", "2")]), of(&[("a", "1"), ("c", "")])] {
        assert_eq!(client.list(&other).await.unwrap_err().failure, Failure::NoAnswer(Cause::Unfiltered), "{other:?}");
    }
}

#[tokio::test]
async fn the_server_s_time_is_that_of_its_last_answer() {
    let answer = b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\ncontent-length: 83\r\n\r\n";
    let text = [answer.as_slice(), &b" ".repeat(83 - SANDBOX.len()), SANDBOX.as_bytes()].concat();
    let client = client_of(peer(text.leak(), true).await, &settings());
    assert_eq!(client.server_time(), None);
    client.get("s1").await.unwrap();
    let told: jiff::Timestamp = "2026-11-29T12:00:00Z".parse().unwrap();
    let late = client.server_time().unwrap().duration_since(told);
    assert!(!late.is_negative() && late < jiff::SignedDuration::from_secs(5), "{late}");
}

#[tokio::test]
async fn an_echo_of_the_request_is_in_no_error() {
    // As FastAPI answers a request that is not of the schema.
    let echo = |request: Request| async move {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("canary-env") && text.contains("canary-password"));
        (StatusCode::UNPROCESSABLE_ENTITY, format!(r#"{{"detail":[{{"type":"x","input":{text}}}]}}"#))
    };
    let client = client_of(serve(Router::new().fallback(any(echo))).await, &settings());
    let error = client.create(&sandbox()).await.unwrap_err();
    assert_eq!((error.code(), error.certainty()), (Some(Code::Schema), Certainty::Definite));
    let said = format!("{error} {error:?} {client:?}");
    assert!(!said.contains("canary"), "{said}");
}

fn seen_key(headers: &HeaderMap) -> String {
    headers.get("OPEN-SANDBOX-API-KEY").map_or_else(String::new, |key| key.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_rotated_key_counts_at_the_next_call_and_without_one_nothing_is_sent() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let answer = move |headers: HeaderMap| async move {
        kept.lock().unwrap().push(seen_key(&headers));
        SANDBOX
    };
    let address = serve(Router::new().fallback(any(answer))).await;
    let (rotate, keys) = watch::channel(None);
    let client = Client::new(ServerUrl::parse(&format!("http://{address}")).unwrap(), Arc::new(keys), &settings()).unwrap();
    let error = client.get("s1").await.unwrap_err();
    assert!(error.is_unauthorized() && error.certainty() == Certainty::Retryable);
    for key in ["first\n", "second"] {
        rotate.send(Some(SecretString::from(key))).unwrap();
        client.get("s1").await.unwrap();
    }
    rotate.send(Some(SecretString::from("bad\nkey"))).unwrap();
    assert_eq!(client.get("s1").await.unwrap_err().failure, Failure::NotSent(Unsent::NoApiKey));
    assert_eq!(*seen.lock().unwrap(), ["first", "second"]);
}

#[tokio::test]
async fn a_sandbox_sees_its_token_and_its_headers_but_never_the_key_unless_the_server_stands_between() {
    let seen: Arc<Mutex<Vec<(String, String, String)>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let ping = move |request: Request| async move {
        let of = |name: &str| request.headers().get(name).map_or_else(String::new, |value| value.to_str().unwrap().to_owned());
        kept.lock().unwrap().push((seen_key(request.headers()), of("X-EXECD-ACCESS-TOKEN"), of("OpenSandbox-Ingress-To")));
    };
    let endpoint = |request: Request| async move {
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        let path = if request.uri().query() == Some("use_server_proxy=true") { "/v1/sandboxes/s1/proxy/44772" } else { "/proxy/44772" };
        format!(r#"{{"endpoint":"{host}{path}","headers":{{"OpenSandbox-Ingress-To":"s1"}}}}"#)
    };
    let router = Router::new()
        .route("/v1/sandboxes/s1/endpoints/44772", get(endpoint))
        .route("/v1/sandboxes/s1/proxy/44772/ping", get(ping.clone()))
        .route("/proxy/44772/ping", get(ping));
    let client = client_of(serve(router).await, &settings());
    for access in [Access::Direct, Access::ServerProxy] {
        let execd = client.execd("s1", access, Some("canary-token".into())).await.unwrap();
        execd.ping().await.unwrap();
        assert!(!format!("{execd:?}").contains("canary"));
    }
    let row = |key: &str| (key.to_owned(), "canary-token".to_owned(), "s1".to_owned());
    assert_eq!(*seen.lock().unwrap(), [row(""), row("canary-key")]);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere =
        serve(Router::new().fallback(any(|headers: HeaderMap| async move { assert!(seen_key(&headers).is_empty(), "the key went elsewhere") }))).await;
    let answer = move || async move { (StatusCode::TEMPORARY_REDIRECT, [("location", format!("http://{elsewhere}/"))]) };
    let error = client_of(serve(Router::new().fallback(any(answer))).await, &settings()).get("s1").await.unwrap_err();
    assert_eq!((error.refusal().unwrap().status, error.certainty()), (307, Certainty::Definite));
}

#[tokio::test]
async fn no_more_calls_are_under_way_than_allowed_and_one_too_many_says_so() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (Arc::clone(&now), Arc::clone(&most));
    let answer = move || async move {
        counted.1.fetch_max(counted.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        counted.0.fetch_sub(1, Ordering::SeqCst);
        SANDBOX
    };
    let mut settings = settings();
    settings.concurrency = 3;
    settings.timeouts.place = Duration::from_secs(10);
    let client = client_of(serve(Router::new().fallback(any(answer))).await, &settings);
    let calls = futures::future::join_all((0..20).map(|_| client.get("s1"))).await;
    assert!(calls.iter().all(Result::is_ok));
    assert_eq!(most.load(Ordering::SeqCst), 3);

    settings.concurrency = 1;
    settings.timeouts.place = Duration::from_millis(50);
    let client = client_of(peer(b"", true).await, &settings);
    let (first, second) = tokio::join!(client.get("a"), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.get("b").await
    });
    assert_eq!(first.unwrap_err().failure, Failure::NoAnswer(Cause::TimedOut));
    assert_eq!(second.unwrap_err().failure, Failure::NotSent(Unsent::Busy));
}

#[tokio::test]
async fn a_server_that_is_down_is_left_alone_for_a_while_and_a_sandbox_that_hangs_is_not_the_server() {
    let is_down = Arc::new(AtomicUsize::new(1));
    let (calls, state) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&is_down));
    let counted = Arc::clone(&calls);
    let answer = move |request: Request| async move {
        counted.fetch_add(1, Ordering::SeqCst);
        let path = request.uri().path().to_owned();
        if path.ends_with("/endpoints/44772") {
            return format!(r#"{{"endpoint":"{}/x"}}"#, request.headers()["host"].to_str().unwrap()).into_response();
        }
        if path.starts_with("/x/") || state.load(Ordering::SeqCst) == 1 {
            return (StatusCode::BAD_GATEWAY, r#"{"code":"BACKEND_CONNECTION_FAILED"}"#).into_response();
        }
        SANDBOX.into_response()
    };
    let mut settings = settings();
    settings.breaker = Breaker { failures: 3, pause_min: Duration::from_secs(2), pause_max: Duration::from_secs(3) };
    let client = client_of(serve(Router::new().fallback(any(answer))).await, &settings);

    let execd = client.execd("s1", Access::ServerProxy, None).await.unwrap();
    for _ in 0..5 {
        assert_eq!(execd.ping().await.unwrap_err().code(), Some(Code::ExecdUnreachable));
    }
    for _ in 0..3 {
        assert!(client.get("s1").await.unwrap_err().refusal().is_some());
    }
    let before = calls.load(Ordering::SeqCst);
    let error = client.get("s1").await.unwrap_err();
    assert_eq!((error.failure.clone(), error.certainty()), (Failure::NotSent(Unsent::CircuitOpen), Certainty::Retryable));
    assert_eq!(calls.load(Ordering::SeqCst), before, "nothing was sent");
    is_down.store(0, Ordering::SeqCst);
    let start = std::time::Instant::now();
    while client.get("s1").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A definite refusal is an answer of a server that is up.
    assert!(client.get("s1").await.is_ok());
}

/// A body that comes in pieces, as execd's streams do, and then ends or hangs.
fn stream(pieces: Vec<&'static str>, hangs: bool) -> Response {
    let pieces = futures::stream::iter(pieces).map(Ok::<_, std::convert::Infallible>);
    let body = if hangs { axum::body::Body::from_stream(pieces.chain(futures::stream::pending())) } else { axum::body::Body::from_stream(pieces) };
    body.into_response()
}

async fn execd_that(answers: impl Fn() -> Response + Clone + Send + Sync + 'static) -> berth_opensandbox::Execd {
    let answer = move |request: Request| {
        let answers = answers.clone();
        async move {
            if request.uri().path().ends_with("/endpoints/44772") {
                return format!(r#"{{"endpoint":"{}"}}"#, request.headers()["host"].to_str().unwrap()).into_response();
            }
            answers()
        }
    };
    client_of(serve(Router::new().fallback(any(answer))).await, &settings()).execd("s1", Access::Direct, None).await.unwrap()
}

const INIT: &str = "{\"type\":\"init\",\"text\":\"c1\",\"timestamp\":1}\n\n";
const COMPLETE: &str = "{\"type\":\"execution_complete\",\"timestamp\":1}\n\n";

#[tokio::test]
async fn a_start_is_known_only_when_the_stream_says_so() {
    let start = |pieces: Vec<&'static str>, hangs: bool| async move {
        let execd = execd_that(move || stream(pieces.clone(), hangs)).await;
        execd.start(&Command { text: "x".into(), ..Command::default() }).await
    };
    assert_eq!(start(vec![INIT, COMPLETE], true).await.unwrap(), "c1", "the end of the stream is not waited for");
    assert_eq!(start(vec!["data: {\"type\":\"init\",\"text\":\"c2\"}\n\ndata: {\"type\":\"execution_complete\"}\n\n"], false).await.unwrap(), "c2");
    for (pieces, hangs, cause) in
        [(vec![INIT], false, Cause::Cut), (vec![INIT], true, Cause::TimedOut), (vec![], false, Cause::Cut), (vec![COMPLETE], false, Cause::Unreadable)]
    {
        let error = start(pieces, hangs).await.unwrap_err();
        assert_eq!((error.failure.clone(), error.certainty()), (Failure::NoAnswer(cause), Certainty::Ambiguous));
    }
    let refused = start(vec![INIT, "{\"code\":\"RUNTIME_ERROR\",\"message\":\"canary\"}\n\n"], false).await.unwrap_err();
    assert_eq!((refused.code(), refused.certainty()), (Some(Code::RuntimeError), Certainty::Definite));
    assert!(!format!("{refused:?} {refused}").contains("canary"));
}

#[tokio::test]
async fn a_stream_that_falls_silent_or_says_too_much_ends() {
    let execd = execd_that(|| stream(vec![INIT], true)).await;
    let command = Command { text: "x".into(), kill_after: Some(Duration::from_secs(60)), ..Command::default() };
    assert_eq!(execd.run(&command, 100).await.unwrap_err().failure, Failure::NoAnswer(Cause::TimedOut), "execd pings every 3 s");
    let execd = execd_that(|| stream(vec![INIT, "{\"type\":\"stdout\",\"text\":\"0123456789\"}\n\n", COMPLETE], false)).await;
    assert_eq!(execd.run(&command, 100).await.unwrap().stdout, "0123456789\n");
    assert_eq!(execd.run(&command, 5).await.unwrap_err().failure, Failure::NoAnswer(Cause::TooLong));
}

#[tokio::test]
async fn logs_that_stop_coming_are_an_error_and_not_an_end() {
    let execd = execd_that(|| stream(vec!["abc"], true)).await;
    let pieces: Vec<_> = execd.logs("c1", None).await.unwrap().bytes().collect().await;
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[1].as_ref().unwrap_err().failure, Failure::NoAnswer(Cause::TimedOut));
}

#[tokio::test]
async fn a_private_authority_is_trusted_if_given_and_otherwise_not() {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = ServerUrl::parse(&format!("https://{}/v1", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{SANDBOX}", SANDBOX.len()).as_bytes()).await;
            });
        }
    });
    let client = |authorities: &str| {
        let settings = Settings { authorities: authorities.as_bytes().to_vec(), ..settings() };
        Client::new(url.clone(), Arc::new(SecretString::from("k")), &settings)
    };
    assert_eq!(client(&certified.cert.pem()).unwrap().get("s1").await.unwrap().id, "s1");
    let error = client("").unwrap().get("s1").await.unwrap_err();
    assert!(matches!(&error.failure, Failure::NotSent(Unsent::Connect(Cause::Tls(TlsTrouble::UnknownAuthority)))), "{error:?}");
    assert!(client("no PEM").is_err());
}
