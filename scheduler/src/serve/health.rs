//! The endpoints for machines and people: /healthz /livez /readyz /metrics /configz; /debug/queue is [`super::debug_queue`].

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use berth_framework::model::PodObject;
use berth_framework::profile::BerthConfiguration;
use berth_runtime::ObjectKey as StoreKey;
use berth_runtime::events::Recorder;
use berth_runtime::informer::{Informer, InformerStats};
use berth_runtime::workqueue::WorkQueue;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::configuration::SeenConfigMap;
use super::debug_queue::{Doing, debug_queue};
use super::dispatch::Dispatcher;
use super::endpoint::Routes;
use super::jobs;
use super::leading::View;
use super::metrics::Metrics;
use super::objects::{SeenRun, SeenWorkspace};
use super::owner::{Pulse, Question};

/// The owner's loop turns every second; one that has not turned for that long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

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
    /// The one namespace that is served; else all.
    pub namespace: Option<String>,
    /// The configuration in force.
    pub configuration: watch::Receiver<Arc<BerthConfiguration>>,
    /// The election, if one is held.
    pub election: Option<View>,
    /// The Job controller, if it runs.
    pub jobs: Option<jobs::View>,
}

impl Views {
    fn informers(&self) -> Vec<(&'static str, InformerStats)> {
        let own = [(self.runs.name(), self.runs.stats()), (self.pods.name(), self.pods.stats()), (self.workspaces.name(), self.workspaces.stats())];
        let maps = self.config_maps.as_ref().map(|maps| (maps.name(), maps.stats()));
        own.into_iter().chain(maps).chain(self.jobs.iter().flat_map(jobs::View::informers)).collect()
    }

    fn alive(&self) -> Vec<Check> {
        let owner = Check { name: "owner", ok: self.pulse.silence() < STUCK_AFTER };
        let election = self.election.as_ref().map(|election| Check { name: "leader-election", ok: election.is_alive() });
        [owner].into_iter().chain(election).collect()
    }

    /// What it does about placing.
    pub fn doing(&self) -> Doing {
        match self.election.as_ref() {
            _ if self.shutdown.is_cancelled() => Doing::Stopping,
            _ if *self.pulse.placing.borrow() => Doing::Placing,
            Some(election) if election.stands_by() => Doing::Standby,
            _ => Doing::Starting,
        }
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
    let mut checks: Vec<_> = views.informers().into_iter().map(|(name, stats)| Check { name, ok: stats.synced }).collect();
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
    for (name, stats) in views.jobs.iter().flat_map(jobs::View::queues) {
        views.metrics.client.workqueue(name, &stats);
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
