//! `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Agent;

/// Ready means that a heartbeat was written that recently: what the scheduler calls fresh.
const FRESH: Duration = Duration::from_secs(15);

/// Serves until `stop`.
///
/// # Errors
/// The socket fails.
pub async fn serve(listener: TcpListener, agent: Arc<Agent>, stop: CancellationToken) -> Result<(), std::io::Error> {
    let router = Router::new()
        // Alive is who answers: a restart would not mend anything else, and would end every Run.
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(agent);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn ready(State(agent): State<Arc<Agent>>) -> (StatusCode, &'static str) {
    match () {
        () if !agent.is_synced() => (StatusCode::SERVICE_UNAVAILABLE, "the caches are not synced"),
        () if !agent.metrics.has_beaten_within(FRESH) => (StatusCode::SERVICE_UNAVAILABLE, "no heartbeat was written lately"),
        () => (StatusCode::OK, "ok"),
    }
}

async fn metrics(State(agent): State<Arc<Agent>>) -> String {
    agent.metrics.set_active(agent.locals.len());
    agent.metrics.text()
}
