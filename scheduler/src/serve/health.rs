//! The endpoints for machines and people: /healthz /livez /readyz /metrics /configz /debug/queue.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use berth_framework::core::Standing;
use berth_framework::model::{Phase, PodObject};
use berth_framework::profile::BerthConfiguration;
use berth_runtime::ObjectKey as StoreKey;
use berth_runtime::events::Recorder;
use berth_runtime::informer::{Informer, InformerStats};
use berth_runtime::workqueue::WorkQueue;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::configuration::SeenConfigMap;
use super::dispatch::Dispatcher;
use super::endpoint::Routes;
use super::leading::View;
use super::metrics::Metrics;
use super::objects::{SeenRun, SeenWorkspace, model_key};
use super::owner::{Pulse, Question};

/// The owner's loop turns every second; one that has not turned for that long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Runs told by /debug/queue.
const RUNS_MAX: usize = 500;

/// What the endpoints look at.
pub struct Views {
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The owner's pulse.
    pub pulse: Arc<Pulse>,
    /// Cancelled when the process is asked to end.
    pub shutdown: CancellationToken,
    /// Runs.
    pub runs: Informer<SeenRun>,
    /// Runtime Pods.
    pub pods: Informer<PodObject>,
    /// Workspaces.
    pub workspaces: Informer<SeenWorkspace>,
    /// The ConfigMap of the configuration, if it comes from one.
    pub config_maps: Option<Informer<SeenConfigMap>>,
    /// The reconcilers' queues.
    pub queues: [WorkQueue<StoreKey>; 2],
    /// Events.
    pub recorder: Recorder,
    /// Writes.
    pub dispatcher: Dispatcher,
    /// The way to the owner.
    pub questions: mpsc::Sender<Question>,
    /// The configuration in force.
    pub configuration: watch::Receiver<Arc<BerthConfiguration>>,
    /// The election, if one is held.
    pub election: Option<View>,
}

impl Views {
    fn informers(&self) -> impl Iterator<Item = (&'static str, InformerStats)> {
        let always = [(self.runs.name(), self.runs.stats()), (self.pods.name(), self.pods.stats()), (self.workspaces.name(), self.workspaces.stats())];
        always.into_iter().chain(self.config_maps.as_ref().map(|maps| (maps.name(), maps.stats())))
    }

    fn alive(&self) -> Vec<Check> {
        let owner = Check { name: "owner", ok: self.pulse.silence() < STUCK_AFTER };
        let election = self.election.as_ref().map(|election| Check { name: "leader-election", ok: election.is_alive() });
        [owner].into_iter().chain(election).collect()
    }

    /// Placing, or ready to as soon as it is our turn.
    fn places(&self) -> Check {
        let stands_by = self.election.as_ref().is_some_and(View::stands_by) && self.pulse.is_warm();
        Check { name: "placing", ok: stands_by || *self.pulse.placing.borrow() }
    }
}

/// What is answered once there is a configuration.
pub fn routes(views: Arc<Views>) -> Routes {
    let open = Router::new().route("/healthz", get(livez)).route("/livez", get(livez)).route("/readyz", get(readyz));
    let guarded = Router::new().route("/metrics", get(metrics)).route("/configz", get(configz)).route("/debug/queue", get(debug_queue));
    Routes { open: open.with_state(views.clone()), guarded: guarded.with_state(views) }
}

/// What is answered while there is no configuration yet: alive, not ready.
pub fn routes_unconfigured(metrics: Arc<Metrics>) -> Routes {
    let open = Router::new()
        .route("/healthz", get(async || report("healthz", &[])))
        .route("/livez", get(async || report("livez", &[])))
        .route("/readyz", get(async || report("readyz", &[Check { name: "configuration", ok: false }])));
    let guarded = Router::new().route("/metrics", get(async |State(metrics): State<Arc<Metrics>>| encoded(&metrics)));
    Routes { open, guarded: guarded.with_state(metrics) }
}

struct Check {
    name: &'static str,
    ok: bool,
}

/// As kube's: one line per check; 200 only if all are well.
fn report(what: &str, checks: &[Check]) -> Response {
    let mut text = String::new();
    for check in checks {
        let _ = if check.ok { writeln!(text, "[+]{} ok", check.name) } else { writeln!(text, "[-]{} failed", check.name) };
    }
    let ok = checks.iter().all(|check| check.ok);
    let _ = writeln!(text, "{what} check {}", if ok { "passed" } else { "failed" });
    (if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text).into_response()
}

async fn livez(State(views): State<Arc<Views>>) -> Response {
    report("livez", &views.alive())
}

async fn readyz(State(views): State<Arc<Views>>) -> Response {
    let mut checks: Vec<_> = views.informers().map(|(name, stats)| Check { name, ok: stats.synced }).collect();
    checks.push(views.places());
    checks.extend(views.alive());
    checks.push(Check { name: "shutdown", ok: !views.shutdown.is_cancelled() });
    report("readyz", &checks)
}

async fn metrics(State(views): State<Arc<Views>>) -> Response {
    for (name, stats) in views.informers() {
        views.metrics.client.informer(name, &stats);
    }
    for queue in &views.queues {
        views.metrics.client.workqueue(queue.name(), &queue.stats());
    }
    let events = views.recorder.stats();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    views.metrics.client.events(load(&events.written), load(&events.dropped), load(&events.failed));
    encoded(&views.metrics)
}

fn encoded(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The configuration in force, defaults merged.
async fn configz(State(views): State<Arc<Views>>) -> Response {
    let configuration = views.configuration.borrow().clone();
    Json(&*configuration).into_response()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueView {
    /// Runs that are not placed and have not ended.
    pending: usize,
    /// Writes under way or waiting: placements and ends, waiting messages.
    writes: [usize; 2],
    runs: Vec<RunView>,
    /// There are more than are told here.
    truncated: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunView {
    namespace: Arc<str>,
    name: Arc<str>,
    standing: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<Arc<str>>,
}

/// The Pending Runs, oldest first, and what the core knows of each.
async fn debug_queue(State(views): State<Arc<Views>>) -> Response {
    let mut pending: Vec<_> = views.runs.list().into_iter().filter(|run| run.object.model.phase == Phase::Pending).collect();
    pending.sort_by(|a, b| (a.object.model.created_s, &a.uid).cmp(&(b.object.model.created_s, &b.uid)));
    let keys = pending.iter().take(RUNS_MAX).map(|run| model_key(&run.key)).collect();
    let (answer, told) = oneshot::channel();
    let told = match views.questions.try_send(Question { keys, answer }) {
        Ok(()) => tokio::time::timeout(Duration::from_secs(5), told).await.ok().and_then(Result::ok),
        Err(_) => None,
    };
    let Some(told) = told else { return (StatusCode::SERVICE_UNAVAILABLE, "the owner does not answer").into_response() };
    let runs = told.into_iter().map(|run| {
        let (reason, message) = run.waits.map(|shown| (shown.reason, shown.message)).unzip();
        RunView { namespace: run.key.namespace, name: run.key.name, standing: word(run.standing), reason, message, pod: run.pod }
    });
    let (urgent, messages) = views.dispatcher.pending();
    Json(QueueView { pending: pending.len(), writes: [urgent, messages], runs: runs.collect(), truncated: pending.len() > RUNS_MAX }).into_response()
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Active => "active",
        Standing::Backoff => "backoff",
        Standing::Waiting => "waiting",
        Standing::Assumed => "assumed",
        Standing::Terminating => "terminating",
        Standing::Idle => "idle",
    }
}
