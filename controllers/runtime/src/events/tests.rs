//! Properties of the recorder, against an API server that is a closure.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use crate::apiclient::Limits;
use crate::apiclient::testing::{Answer, Seen, client};
use crate::clock::SystemClock;
use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

type Log = Arc<Mutex<Vec<Seen>>>;

fn recorder(config: RecorderConfig, answer: fn() -> Answer) -> (Recorder, Writer, Log) {
    answering(config, move |_| answer())
}

/// A recorder whose server answers by the number of the request.
fn answering(config: RecorderConfig, answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> (Recorder, Writer, Log) {
    let log = Log::default();
    let seen = log.clone();
    let client = client(Limits::default(), Arc::new(()), move |request| {
        let mut seen = seen.lock().unwrap();
        seen.push(request);
        answer(seen.len() - 1)
    });
    let (recorder, writer) = Recorder::new(client, Arc::new(SystemClock::new()), config);
    (recorder, writer, log)
}

fn accepted() -> Answer {
    Answer::Json(201, json!({"metadata": {"name": "e"}, "eventTime": null}))
}

fn bound(name: &str, note: &str) -> Occurrence {
    Occurrence {
        regarding: Regarding::of::<berth_api::Run>(ObjectKey::new("a", name), Arc::from("u")),
        type_: EventType::Normal,
        reason: "Scheduled",
        action: "Bind",
        note: note.to_owned(),
    }
}

fn config() -> RecorderConfig {
    RecorderConfig::new("kruntimes.io/berth", "berth-0")
}

#[tokio::test(start_paused = true)]
async fn repetitions_become_one_event_with_a_series() {
    let (recorder, writer, log) = recorder(config(), accepted);
    let stop = CancellationToken::new();
    let task = tokio::spawn(writer.run(stop.clone()));
    for _ in 0..500 {
        recorder.publish(bound("r", "assigned"));
    }
    recorder.publish(bound("r", "something else"));
    tokio::time::sleep(Duration::from_secs(200)).await;
    stop.cancel();
    task.await.unwrap();
    let log = log.lock().unwrap();
    let methods: Vec<&str> = log.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["POST", "POST", "PATCH"]);
    let event = &log[0].body;
    assert!(log[0].uri.starts_with("/apis/events.k8s.io/v1/namespaces/a/events"));
    assert_eq!((event["reason"].as_str(), event["note"].as_str()), (Some("Scheduled"), Some("assigned")));
    assert_eq!((event["reportingController"].as_str(), event["reportingInstance"].as_str()), (Some("kruntimes.io/berth"), Some("berth-0")));
    assert_eq!(event["regarding"]["uid"], "u");
    assert!(event["series"].is_null() && event["eventTime"].is_string());
    assert_eq!(log[2].body["series"]["count"], 500);
    assert!(log[2].uri.contains(event["metadata"]["name"].as_str().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn writes_keep_to_the_rate_after_the_burst() {
    let (recorder, writer, log) = recorder(RecorderConfig { burst: 10, writes_per_s: 5, ..config() }, accepted);
    let stop = CancellationToken::new();
    tokio::spawn(writer.run(stop.clone()));
    for n in 0..100 {
        recorder.publish(bound(&format!("r{n}"), "assigned"));
    }
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    let written = log.lock().unwrap().len();
    assert!((29..=31).contains(&written), "{written}");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts_and_never_waits() {
    let (recorder, _writer, _) = recorder(RecorderConfig { queue_max: 3, ..config() }, accepted);
    for n in 0..10 {
        recorder.publish(bound(&format!("r{n}"), "assigned"));
    }
    assert_eq!(recorder.stats().dropped.load(Ordering::Relaxed), 7);
    Recorder::off().publish(bound("r", "x"));
}

#[tokio::test(start_paused = true)]
async fn stopping_flushes_and_a_silent_server_does_not_hold_it_up() {
    let (recorder, writer, log) = recorder(RecorderConfig { burst: 1, writes_per_s: 1, ..config() }, accepted);
    for n in 0..20 {
        recorder.publish(bound(&format!("r{n}"), "assigned"));
    }
    let stop = CancellationToken::new();
    stop.cancel();
    writer.run(stop.clone()).await;
    assert_eq!(log.lock().unwrap().len(), 20);
    let start = Instant::now();
    let (recorder, writer, _) = self::recorder(config(), || Answer::Never);
    recorder.publish(bound("r", "assigned"));
    writer.run(stop).await;
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn notes_and_series_are_bounded() {
    let (recorder, writer, log) = recorder(RecorderConfig { series_max: 2, ..config() }, accepted);
    let stop = CancellationToken::new();
    tokio::spawn(writer.run(stop.clone()));
    recorder.publish(bound(&"n".repeat(253), &"é".repeat(2_000)));
    for name in ["a", "b", "a", "b"] {
        recorder.publish(bound(name, "x"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 3);
    assert_eq!(log[0].body["note"].as_str().unwrap().len(), 1_024);
    assert!(log[0].body["metadata"]["name"].as_str().unwrap().len() <= 253);
    stop.cancel();
}

fn of(log: &Log) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    log.lock().unwrap().iter().map(|seen| text(&seen.body["regarding"]["name"])).collect()
}

fn refused(code: u16, reason: &str) -> Answer {
    Answer::Json(code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "m"}))
}

#[tokio::test(start_paused = true)]
async fn warnings_overtake_whatever_waits() {
    let (recorder, writer, log) = recorder(RecorderConfig { burst: 10, writes_per_s: 25, ..config() }, accepted);
    let stop = CancellationToken::new();
    tokio::spawn(writer.run(stop.clone()));
    for n in 0..1_000 {
        recorder.publish(bound(&format!("r{n}"), "assigned"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    recorder.publish(Occurrence { type_: EventType::Warning, ..bound("pod", "capacity is ignored") });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let written = of(&log);
    assert!((35..=40).contains(&written.len()) && written.contains(&"pod".to_owned()), "{written:?}");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn an_outage_loses_no_event_and_is_not_hammered() {
    let away = |n: usize| n < 7;
    let (recorder, writer, log) = answering(config(), move |n| if away(n) { Answer::Broken(std::io::ErrorKind::ConnectionRefused) } else { accepted() });
    let stop = CancellationToken::new();
    tokio::spawn(writer.run(stop.clone()));
    for n in 0..96 {
        recorder.publish(bound(&format!("r{n}"), "assigned"));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(log.lock().unwrap().len() <= 7, "each wait is twice as long");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stats = recorder.stats();
    assert_eq!((stats.written.load(Ordering::Relaxed), stats.failed.load(Ordering::Relaxed)), (96, 0));
    assert_eq!(of(&log)[7..], (0..96).map(|n| format!("r{n}")).collect::<Vec<_>>());
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_given_up_and_an_answer_that_was_lost_is_made_good() {
    type Row = (fn(usize) -> Answer, usize, (u64, u64));
    let rows: [Row; 4] = [
        (|_| refused(403, "Forbidden"), 1, (0, 1)),
        (|_| refused(500, "InternalError"), 5, (0, 1)),
        (|n| if n == 0 { refused(429, "TooManyRequests") } else { accepted() }, 2, (1, 0)),
        (|n| if n == 0 { Answer::Broken(std::io::ErrorKind::ConnectionReset) } else { refused(409, "AlreadyExists") }, 2, (1, 0)),
    ];
    for (row, (answer, requests, counts)) in rows.into_iter().enumerate() {
        let (recorder, writer, log) = answering(config(), answer);
        let stop = CancellationToken::new();
        tokio::spawn(writer.run(stop.clone()));
        recorder.publish(bound("r", "assigned"));
        tokio::time::sleep(Duration::from_secs(50)).await;
        let stats = recorder.stats();
        assert_eq!(log.lock().unwrap().len(), requests, "row {row}");
        assert_eq!((stats.written.load(Ordering::Relaxed), stats.failed.load(Ordering::Relaxed)), counts, "row {row}");
        stop.cancel();
    }
}
