//! Electors against an API server that is a closure, on a clock that is held: time-outs, lost answers, frozen processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::{ElectionConfig, Elector, Fence, Leadership, Stats};
use crate::apiclient::testing::{Answer, Seen, client};
use futures::task::AtomicWaker;
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// It takes effect, and no answer ever comes.
    AnswerLost,
    /// It takes effect, and the answer is 500.
    ServerError,
    /// It never arrives.
    Lost,
}

/// One Lease with compare-and-swap; no watch, so that only polling helps.
#[derive(Default)]
struct Server {
    lease: Mutex<Option<Value>>,
    version: Mutex<u64>,
    /// Holder after each write that changed it.
    holders: Mutex<Vec<String>>,
}

fn status(code: u16, reason: &str) -> Answer {
    Answer::Json(code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "m"}))
}

impl Server {
    fn serve(&self, seen: &Seen, fate: Fate) -> Answer {
        // The watch's list names no object.
        if seen.method == "GET" && !seen.uri.contains("/leases/l") {
            return status(403, "Forbidden");
        }
        if fate == Fate::Lost {
            return Answer::Never;
        }
        let answer = self.effect(seen);
        match fate {
            Fate::AnswerLost => Answer::Never,
            Fate::ServerError => status(500, "InternalError"),
            _ => answer,
        }
    }

    fn effect(&self, seen: &Seen) -> Answer {
        let (mut lease, mut version) = (self.lease.lock().unwrap(), self.version.lock().unwrap());
        match (seen.method.as_str(), lease.as_ref()) {
            ("GET", None) | ("PUT", None) => return status(404, "NotFound"),
            ("GET", Some(lease)) => return Answer::Json(200, lease.clone()),
            ("POST", Some(_)) => return status(409, "AlreadyExists"),
            ("PUT", Some(old)) if old["metadata"]["resourceVersion"] != seen.body["metadata"]["resourceVersion"] => return status(409, "Conflict"),
            ("POST" | "PUT", _) => {}
            (other, _) => panic!("{other}"),
        }
        *version += 1;
        let mut new = seen.body.clone();
        new["metadata"]["resourceVersion"] = json!(version.to_string());
        new["metadata"]["uid"] = json!("u");
        let holder = |lease: &Value| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        if lease.as_ref().map(holder) != Some(holder(&new)) {
            self.holders.lock().unwrap().push(holder(&new));
        }
        *lease = Some(new.clone());
        Answer::Json(200, new)
    }

    fn holders(&self) -> Vec<String> {
        self.holders.lock().unwrap().clone()
    }
}

/// Is not polled while `frozen`: what SIGSTOP does to a process.
struct Freezable<F> {
    inner: Pin<Box<F>>,
    frost: Arc<Frost>,
}

#[derive(Default)]
struct Frost {
    frozen: AtomicBool,
    waker: AtomicWaker,
}

impl Frost {
    fn set(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
        if !frozen {
            self.waker.wake();
        }
    }
}

impl<F: Future> Future for Freezable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.frost.waker.register(cx.waker());
        if self.frost.frozen.load(Ordering::SeqCst) { Poll::Pending } else { self.inner.as_mut().poll(cx) }
    }
}

struct Candidate {
    fence: Fence,
    leadership: tokio::sync::watch::Receiver<Leadership>,
    stats: Stats,
    stop: CancellationToken,
    frost: Arc<Frost>,
    task: JoinHandle<()>,
}

impl Candidate {
    fn start(name: &str, server: &Arc<Server>, fate: impl FnMut() -> Fate + Send + 'static) -> Self {
        let config = ElectionConfig::new("ns", "l", name);
        let server = server.clone();
        let fate = Mutex::new(fate);
        let client = client(config.limits(), Arc::new(()), move |seen| {
            let fate = (fate.lock().unwrap())();
            server.serve(&seen, fate)
        });
        let elector = Elector::new(config).unwrap();
        let (fence, leadership, stats) = (elector.fence(), elector.leadership(), elector.stats());
        let (stop, frost) = (CancellationToken::new(), Arc::<Frost>::default());
        let inner = Box::pin(elector.run(client, stop.clone()));
        let task = tokio::spawn(Freezable { inner, frost: frost.clone() });
        Self { fence, leadership, stats, stop, frost, task }
    }

    async fn leads(&mut self) -> u64 {
        self.leadership.wait_for(|now| now.epoch().is_some()).await.unwrap().epoch().unwrap()
    }

    async fn stands_by(&mut self) {
        self.leadership.wait_for(|now| now.epoch().is_none()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_releases_and_the_next_takes_over_at_its_next_poll() {
    let server = Arc::<Server>::default();
    let mut first = Candidate::start("first", &server, || Fate::Answered);
    assert_eq!(first.leads().await, 1);
    let mut second = Candidate::start("second", &server, || Fate::Answered);
    sleep(60 * SECOND).await;
    assert_eq!((first.leadership.borrow().epoch(), second.leadership.borrow().epoch()), (Some(1), None));
    assert_eq!(*second.leadership.borrow(), Leadership::Standby { holder: Some("first".to_owned()) });
    first.stop.cancel();
    first.task.await.unwrap();
    let released = Instant::now();
    assert!(first.fence.check().is_err());
    assert_eq!(second.leads().await, 2);
    assert!(released.elapsed() <= Duration::from_millis(4_400), "{:?}", released.elapsed());
    assert_eq!(server.holders(), ["first", "", "second"]);
    assert_eq!((first.stats.now().lost, first.stats.now().overlaps, second.stats.now().transitions), (0, 0, 1));
    second.stop.cancel();
    second.task.await.unwrap();
    assert_eq!(server.holders(), ["first", "", "second", ""]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_hears_nothing_stands_down_before_another_can_take_over() {
    let server = Arc::<Server>::default();
    let cut = Arc::<AtomicBool>::default();
    let is_cut = cut.clone();
    let mut first = Candidate::start("first", &server, move || if is_cut.load(Ordering::SeqCst) { Fate::Lost } else { Fate::Answered });
    first.leads().await;
    let mut second = Candidate::start("second", &server, || Fate::Answered);
    sleep(10 * SECOND).await;
    cut.store(true, Ordering::SeqCst);
    let since = Instant::now();
    first.stands_by().await;
    let stood_down = since.elapsed();
    assert!(first.fence.check().is_err());
    assert!((8 * SECOND..=10 * SECOND).contains(&stood_down), "{stood_down:?}");
    assert_eq!(second.leads().await, 2);
    let taken = since.elapsed();
    assert!((13 * SECOND..20 * SECOND).contains(&taken), "{taken:?}");
    cut.store(false, Ordering::SeqCst);
    sleep(10 * SECOND).await;
    assert_eq!(*first.leadership.borrow(), Leadership::Standby { holder: Some("second".to_owned()) });
    let stats = first.stats.now();
    assert_eq!((stats.lost, stats.overlaps, stats.leads), (1, 0, false));
    assert!(stats.renew_failures >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_frozen_past_its_lease_may_send_nothing_when_it_wakes_and_counts_the_overlap() {
    let server = Arc::<Server>::default();
    let mut first = Candidate::start("first", &server, || Fate::Answered);
    let epoch = first.leads().await;
    let mut second = Candidate::start("second", &server, || Fate::Answered);
    sleep(5 * SECOND).await;
    let in_flight = first.fence.begin(epoch).unwrap();
    first.frost.set(true);
    second.leads().await;
    assert!(first.leadership.borrow().epoch().is_some(), "it knows nothing yet");
    assert!(first.fence.check().is_err() && first.fence.begin(epoch).is_err(), "and sends nothing all the same");
    assert!(!first.stats.now().leads);
    first.frost.set(false);
    drop(in_flight);
    first.stands_by().await;
    sleep(5 * SECOND).await;
    assert_eq!(first.stats.now().overlaps, 2, "one send, one term");
    assert_eq!(second.stats.now().overlaps, 0);
}

/// Requests that hang, take effect unanswered, or fail, at random, for two virtual hours, with one process frozen now and then.
#[tokio::test(start_paused = true)]
async fn never_two_lead_at_once_whatever_is_lost() {
    let server = Arc::<Server>::default();
    let candidates: Vec<Candidate> = (0..3u64)
        .map(|n| {
            let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(n + 1);
            Candidate::start(&format!("c{n}"), &server, move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match (state >> 33) % 100 {
                    0..40 => Fate::Answered,
                    40..60 => Fate::AnswerLost,
                    60..80 => Fate::ServerError,
                    _ => Fate::Lost,
                }
            })
        })
        .collect();
    let (mut led, mut nobody) = ([0u32; 3], 0u32);
    for turn in 0..72_000u32 {
        sleep(Duration::from_millis(97)).await;
        let open: Vec<usize> = (0..3).filter(|n| candidates[*n].fence.check().is_ok()).collect();
        assert!(open.len() <= 1, "{open:?} at once");
        match open.first() {
            Some(n) => led[*n] += 1,
            None => nobody += 1,
        }
        let frozen = (turn / 400 % 3) as usize;
        for (n, candidate) in candidates.iter().enumerate() {
            candidate.frost.set(n == frozen && turn % 400 < 200);
        }
    }
    assert!(led.iter().all(|turns| *turns > 100), "{led:?}, nobody {nobody}");
    let terms: u64 = candidates.iter().map(|candidate| candidate.stats.now().acquired).sum();
    println!("{terms} terms; turns led {led:?}, nobody {nobody}");
    assert!(terms > 50);
}
