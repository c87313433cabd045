//! Time-outs, reports, classification and the compare-and-swap patch, against a server that is a closure.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::testing::{Answer, Seen, client};
use super::*;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
struct Calls(Mutex<Vec<String>>);

impl CallObserver for Calls {
    fn called(&self, call: &Call<'_>) {
        self.0.lock().unwrap().push(format!("{} {} {:?}", call.verb.as_str(), call.resource, call.outcome));
    }
}

fn status(code: u16, reason: &str) -> Answer {
    Answer::Json(code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "m"}))
}

async fn write_error(answer: fn() -> Answer) -> CallError {
    let api: Api<Pod> = Api::namespaced(client(Limits::default(), Arc::new(()), move |_| answer()), "a");
    status_merge_patch(&api, "p", Precondition { uid: "u", resource_version: "7" }, &json!({"phase": "X"})).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_refused_or_unsent_or_ambiguous() {
    type Row = (fn() -> Answer, &'static str);
    let table: [Row; 14] = [
        (|| status(409, "Conflict"), "conflict definite"),
        (|| status(409, "AlreadyExists"), "definite"),
        (|| status(404, "NotFound"), "not_found definite"),
        (|| status(403, "Forbidden"), "definite"),
        (|| status(422, "Invalid"), "definite"),
        (|| status(429, "TooManyRequests"), "definite retryable"),
        (|| status(500, "InternalError"), "ambiguous retryable"),
        (|| status(503, "ServiceUnavailable"), "ambiguous retryable"),
        (|| status(504, "Timeout"), "ambiguous retryable"),
        (|| Answer::Never, "ambiguous retryable"),
        (|| Answer::Stuck, "ambiguous retryable"),
        (|| Answer::Broken(ErrorKind::ConnectionReset), "ambiguous retryable"),
        (|| Answer::Broken(ErrorKind::ConnectionRefused), "retryable"),
        (|| Answer::Json(200, json!({"metadata": {}})), "ambiguous"),
    ];
    for (n, (answer, expected)) in table.into_iter().enumerate() {
        let error = write_error(answer).await;
        let facts = [
            (error.is_conflict(), "conflict"),
            (error.is_not_found(), "not_found"),
            (error.is_definite(), "definite"),
            (error.is_ambiguous(), "ambiguous"),
            (error.retryable(), "retryable"),
        ];
        let found: Vec<&str> = facts.iter().filter(|(holds, _)| *holds).map(|(_, name)| *name).collect();
        assert_eq!(found.join(" "), expected, "row {n}: {error:?}");
    }
    assert!(matches!(write_error(|| Answer::Never).await, CallError::TimedOut(after) if after == Limits::default().write));
    assert!(matches!(write_error(|| Answer::Stuck).await, CallError::TimedOut(after) if after == Limits::default().write));
}

#[tokio::test(start_paused = true)]
async fn a_path_nobody_serves_asks_for_the_crds_and_a_missing_object_does_not() {
    let unknown = write_error(|| Answer::Json(404, json!("404 page not found"))).await;
    assert!(unknown.is_not_found() && unknown.to_string().ends_with("are the CRDs installed? `berth crds | kubectl apply --server-side -f -`"), "{unknown}");
    assert_eq!(write_error(|| status(404, "NotFound")).await.to_string(), "refused with 404 NotFound: m");
}

#[tokio::test]
async fn a_kubeconfig_that_is_missing_is_told_once_and_passed_over_in_a_list() {
    let error = config(Some(Path::new("/no/such/file"))).await.unwrap_err().to_string();
    assert_eq!(error, "kubeconfig /no/such/file: No such file or directory (os error 2)");
    let here = std::env::current_exe().unwrap();
    let list = std::env::join_paths([Path::new("/no/such/file"), &here, Path::new("")]).unwrap();
    assert_eq!(existing(&list), [here]);
    assert_eq!(existing(OsStr::new("/no/such/file")), Vec::<PathBuf>::new());
}

#[tokio::test(start_paused = true)]
async fn a_status_write_is_one_merge_patch_with_uid_and_resource_version() {
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let calls = Arc::new(Calls::default());
    let log = seen.clone();
    let client = client(Limits::default(), calls.clone(), move |request| {
        log.lock().unwrap().push(request);
        Answer::Json(200, json!({"metadata": {"resourceVersion": "8"}, "spec": "not a Pod"}))
    });
    let api: Api<Pod> = Api::namespaced(client, "a");
    let written = status_merge_patch(&api, "p", Precondition { uid: "u", resource_version: "7" }, &json!({"phase": "X"})).await.unwrap();
    assert_eq!(written.resource_version, "8");
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].method, "PATCH");
    assert_eq!(seen[0].uri.trim_end_matches('?'), "/api/v1/namespaces/a/pods/p/status");
    assert_eq!(seen[0].content_type, "application/merge-patch+json");
    assert_eq!(seen[0].body, json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"phase": "X"}}));
    assert_eq!(*calls.0.lock().unwrap(), ["patch pods/status Status(200)"]);
}

#[tokio::test(start_paused = true)]
async fn reads_are_retried_and_writes_are_not() {
    let requests = Arc::new(AtomicU32::new(0));
    let calls = Arc::new(Calls::default());
    let counter = requests.clone();
    let client = client(Limits::default(), calls.clone(), move |request| match (request.method.as_str(), counter.fetch_add(1, Ordering::SeqCst)) {
        ("PATCH", _) => status(503, "ServiceUnavailable"),
        (_, 0) => Answer::Broken(ErrorKind::ConnectionReset),
        (_, 1) => Answer::Never,
        _ => status(404, "NotFound"),
    });
    let api: Api<Pod> = Api::namespaced(client, "a");
    assert!(get_uncached(&api, "p").await.unwrap().is_none());
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    let precondition = Precondition { uid: "u", resource_version: "7" };
    assert!(status_merge_patch(&api, "p", precondition, &json!({})).await.unwrap_err().is_ambiguous());
    assert_eq!(requests.load(Ordering::SeqCst), 4);
    assert_eq!(*calls.0.lock().unwrap(), ["get pods Error", "get pods Error", "get pods Status(404)", "patch pods/status Status(503)"]);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_refused_is_not_tried_again() {
    let requests = Arc::new(AtomicU32::new(0));
    let counter = requests.clone();
    let api: Api<Pod> = Api::namespaced(
        client(Limits::default(), Arc::new(()), move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            status(403, "Forbidden")
        }),
        "a",
    );
    assert!(get_uncached(&api, "p").await.unwrap_err().is_definite());
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_bounded_only_until_its_headers() {
    use futures::StreamExt;
    let client = client(Limits::default(), Arc::new(()), |_| Answer::Watch(vec![]));
    let api: Api<Pod> = Api::namespaced(client, "a");
    let mut stream = Box::pin(api.watch(&Default::default(), "0").await.unwrap());
    assert!(tokio::time::timeout(Duration::from_secs(3_600), stream.next()).await.is_err(), "still open after an hour");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_reported() {
    let calls = Arc::new(Calls::default());
    let api: Api<Pod> = Api::namespaced(client(Limits::default(), calls.clone(), |_| Answer::Never), "a");
    assert!(tokio::time::timeout(Duration::from_secs(1), api.get("p")).await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(*calls.0.lock().unwrap(), ["get pods Cancelled"]);
}

#[test]
fn the_host_is_told_as_client_go_does_and_without_secrets() {
    for (url, host) in [
        ("https://10.0.0.1:6443/", "10.0.0.1:6443"),
        ("https://api.example/k8s/clusters/c", "api.example"),
        ("https://user:secret@api.example:443", "api.example:443"),
        ("https://[fd00::1]:6443", "[fd00::1]:6443"),
    ] {
        assert_eq!(host_of(&url.parse().unwrap()), host);
    }
}
