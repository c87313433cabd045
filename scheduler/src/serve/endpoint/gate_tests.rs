//! The gate before an API server in memory, on tokio's paused clock.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http;
use axum::routing::get;
use http::HeaderValue;
use kube::client::Body as ClientBody;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::super::super::metrics::Metrics;
use super::*;

/// What the API server answers to reviews, and how many of each it saw.
#[derive(Default)]
struct Api {
    tokens: AtomicUsize,
    accesses: AtomicUsize,
    /// Answered instead of a review.
    instead: Mutex<Option<u16>>,
    mute: bool,
}

/// `good-USER` is a token of USER; USER `prometheus` may get /metrics.
async fn serve(api: Arc<Api>, request: http::Request<ClientBody>) -> Result<http::Response<ClientBody>, tower::BoxError> {
    let (parts, body) = request.into_parts();
    let mut review: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
    if api.mute {
        std::future::pending::<()>().await;
    }
    let spec = review["spec"].clone();
    if parts.uri.path().ends_with("tokenreviews") {
        api.tokens.fetch_add(1, Ordering::Relaxed);
        let user = spec["token"].as_str().unwrap().strip_prefix("good-");
        review["status"] = match user {
            Some(user) => json!({"authenticated": true, "user": {"username": user, "groups": ["g"], "extra": {"k": ["v"]}}}),
            None => json!({"authenticated": false, "error": "unknown token"}),
        };
    } else {
        api.accesses.fetch_add(1, Ordering::Relaxed);
        assert_eq!((&spec["groups"], &spec["extra"]), (&json!(["g"]), &json!({"k": ["v"]})), "all that is known of the user");
        let wanted = json!({"path": "/metrics", "verb": "get"});
        review["status"] = json!({"allowed": spec["user"] == "prometheus" && spec["nonResourceAttributes"] == wanted});
    }
    let instead = *api.instead.lock().unwrap();
    let (code, answer) = match instead {
        Some(code) => (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Because", "message": spec["token"]})),
        None => (201, review),
    };
    Ok(http::Response::builder().status(code).body(ClientBody::from(serde_json::to_vec(&answer)?))?)
}

fn settings() -> Settings {
    let [token_ttl, allowed_ttl, denied_ttl] = [10, 20, 5].map(Duration::from_secs);
    Settings { token_ttl, allowed_ttl, denied_ttl, open: vec!["/open".to_owned(), "/all/*".to_owned()] }
}

fn gate_of(api: &Arc<Api>) -> Arc<Gate> {
    let server = api.clone();
    let client = Client::new(tower::service_fn(move |request| serve(server.clone(), request)), "default");
    Arc::new(Gate::new(settings(), client, EndpointMetrics::new(&Metrics::new().unwrap()).unwrap()).unwrap())
}

/// Code and body of a request with that `Authorization`.
async fn ask(gate: &Arc<Gate>, method: &str, path: &str, authorization: Option<&str>) -> (u16, String) {
    let seen = |request: Request| async move { assert!(request.headers().get(header::AUTHORIZATION).is_none(), "the token goes no further") };
    let routes = Router::new().route("/metrics", get(seen)).fallback(async || StatusCode::NOT_FOUND);
    let routes = routes.layer(axum::middleware::from_fn_with_state(gate.clone(), guard));
    let mut request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    if let Some(text) = authorization {
        request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_str(text).unwrap());
    }
    let answer = routes.oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 4_096).await.unwrap();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

async fn code(gate: &Arc<Gate>, path: &str, authorization: &str) -> u16 {
    ask(gate, "GET", path, Some(authorization)).await.0
}

fn reviews(api: &Api) -> (usize, usize) {
    (api.tokens.load(Ordering::Relaxed), api.accesses.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_known_token_with_the_right_passes_and_nothing_else_does() {
    let gate = gate_of(&Arc::default());
    let rows = [
        ("GET", "/metrics", Some("Bearer good-prometheus"), 200),
        ("GET", "/metrics", Some("bearer   good-prometheus "), 200),
        ("GET", "/metrics", None, 401),
        ("GET", "/metrics", Some(""), 401),
        ("GET", "/metrics", Some("Bearer"), 401),
        ("GET", "/metrics", Some("Bearer  "), 401),
        ("GET", "/metrics", Some("Basic good-prometheus"), 401),
        ("GET", "/metrics", Some("good-prometheus"), 401),
        ("GET", "/metrics", Some("Bearer bad"), 401),
        ("GET", "/metrics", Some("Bearer good-"), 401),
        ("GET", "/metrics", Some("Bearer good-other"), 403),
        ("HEAD", "/metrics", Some("Bearer good-prometheus"), 403),
        ("GET", "/metrics/", Some("Bearer good-prometheus"), 403),
        ("GET", "//metrics", Some("Bearer good-prometheus"), 403),
        ("GET", "/nowhere", None, 401),
        ("GET", "/nowhere", Some("Bearer good-prometheus"), 403),
        ("GET", "/open", None, 404),
        ("GET", "/opening", None, 401),
        ("GET", "/all/of/it", None, 404),
    ];
    for (method, path, authorization, wanted) in rows {
        let (code, body) = ask(&gate, method, path, authorization).await;
        assert_eq!(code, wanted, "{method} {path} {authorization:?}: {body}");
        assert!(!body.contains("good-"), "no answer quotes a token: {body}");
    }
    let (_, body) = ask(&gate, "GET", "/metrics", Some("Bearer good-other")).await;
    assert_eq!(body, "Forbidden: user \"other\" may not get path \"/metrics\"\n");
}

#[tokio::test(start_paused = true)]
async fn answers_hold_for_their_time_each_kind_its_own() {
    let api = Arc::<Api>::default();
    let gate = gate_of(&api);
    let mut seen = Vec::new();
    for _ in 0..5 {
        for user in ["prometheus", "other"] {
            code(&gate, "/metrics", &format!("Bearer good-{user}")).await;
        }
        code(&gate, "/metrics", "Bearer bad").await;
        seen.push(reviews(&api));
        tokio::time::advance(Duration::from_secs(6)).await;
    }
    // Tokens (3 of them) are asked for every 10 s; who may not (every 5 s) and who may (every 20 s).
    assert_eq!(seen, [(3, 2), (3, 3), (6, 4), (6, 5), (9, 7)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_is_refused_says_why_and_is_not_remembered() {
    let api = Arc::<Api>::default();
    let gate = gate_of(&api);
    let rows = [
        (403, 500, "may not create TokenReviews"),
        (401, 503, "401 Unauthorized"),
        (500, 503, "500 Internal Server Error"),
        (429, 503, "429 Too Many Requests"),
        (422, 503, "422 Unprocessable Entity"),
        // A success that is no review.
        (200, 503, "its answer can't be read"),
    ];
    for (instead, wanted, text) in rows {
        *api.instead.lock().unwrap() = Some(instead);
        let (code, body) = ask(&gate, "GET", "/metrics", Some("Bearer good-prometheus")).await;
        assert_eq!(code, wanted, "{instead}");
        assert!(body.contains(text) && !body.contains("good-"), "{body}");
    }
    *api.instead.lock().unwrap() = None;
    assert_eq!(code(&gate, "/metrics", "Bearer good-prometheus").await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_mute_api_server_refuses_in_bounded_time() {
    let gate = gate_of(&Arc::new(Api { mute: true, ..Api::default() }));
    let start = Instant::now();
    let asked = (0..2 * REVIEWS_MAX).map(|_| ask(&gate, "GET", "/metrics", Some("Bearer good-prometheus")));
    let answers = futures::future::join_all(asked).await;
    assert!(answers.iter().all(|(code, body)| *code == 503 && body.contains("no answer within 10 s")), "{answers:?}");
    assert_eq!(start.elapsed(), REVIEW_WITHIN);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_is_remembered_in_bounded_space_and_a_herd_asks_once() {
    let api = Arc::<Api>::default();
    let gate = gate_of(&api);
    for n in 0..REMEMBERED_MAX.get() + 100 {
        assert_eq!(code(&gate, "/metrics", &format!("Bearer bad-{n}")).await, 401);
    }
    assert_eq!(lock(&gate.identities).len(), REMEMBERED_MAX.get());
    let before = reviews(&api).0;
    futures::future::join_all((0..100).map(|_| code(&gate, "/metrics", "Bearer good-prometheus"))).await;
    assert!(reviews(&api).0 - before <= REVIEWS_MAX, "those that waited found the answer of those that asked");
}
