//! The listener of the endpoints: TLS, who may read what, and limits on connections.
//!
//! ```text
//! accept ─► a place (in all, per peer) ─► TLS handshake ─► HTTP/1.1 ─┬─► /healthz /livez /readyz: anybody
//!                                              ▲                    └─► the rest ─► Gate: token ─► TokenReview ─► SubjectAccessReview
//!             certificate files, looked at ────┘
//! ```
//! Delegated as kube-scheduler and controller-runtime do it: who asks and what they may is the API server's to say.

pub mod args;
mod connections;
pub mod gate;
mod metrics;
mod review;
pub mod tls;

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::args::EndpointArgs;
use self::connections::Connections;
use self::gate::Gate;
pub use self::metrics::EndpointMetrics;
use self::tls::Tls;
use super::Misconfigured;
use super::metrics::Metrics;

/// What may be asked of the process.
pub struct Routes {
    /// Anybody may: health.
    pub open: Router,
    /// Whoever the [`Gate`] lets pass, if there is one. Its fallback answers every other path.
    pub guarded: Router,
}

/// A bound socket and how it is served; see the module.
pub struct Endpoint {
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    gate: Option<Arc<Gate>>,
    connections: Arc<Connections>,
}

impl Endpoint {
    /// Serves `listener` as `args` say; reviews go through `client`.
    ///
    /// # Errors
    /// [`Misconfigured`] if the certificate can't be used.
    pub async fn new(args: &EndpointArgs, listener: TcpListener, client: &Client, metrics: &Metrics) -> anyhow::Result<Self> {
        let metrics = EndpointMetrics::new(metrics).context("metrics")?;
        let at = listener.local_addr()?;
        let tls = match args.certificate() {
            Some(files) => Some(Tls::from_files(files, metrics.certificate_valid.clone()).await.map_err(Misconfigured)?),
            None if args.delegated_auth => Some(Tls::self_signed(at.ip()).context("self-signed certificate")?),
            None => None,
        };
        let gate = if args.delegated_auth { Some(Arc::new(Gate::new(args.into(), client.clone(), metrics.clone())?)) } else { None };
        Ok(Self { listener: listener.into_std()?, tls, gate, connections: Arc::new(Connections::new(metrics)) })
    }

    /// `https` or `http`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The address that is listened on.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn address(&self) -> std::io::Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, and follows the certificate's files meanwhile. May be called again with other routes.
    ///
    /// # Errors
    /// The socket is gone.
    pub async fn serve(&self, routes: Routes, stop: CancellationToken) -> Result<(), String> {
        let Routes { open, guarded } = routes;
        let guarded = guarded.fallback(async || axum::http::StatusCode::NOT_FOUND);
        let guarded = match &self.gate {
            Some(gate) => guarded.layer(axum::middleware::from_fn_with_state(gate.clone(), gate::guard)),
            None => guarded,
        };
        let listener = self.listener.try_clone().and_then(TcpListener::from_std).map_err(|error| error.to_string())?;
        let configs = self.tls.as_ref().map(Tls::in_use);
        let follow = async {
            match &self.tls {
                Some(tls) => tls.follow().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.connections.serve(listener, configs, open.merge(guarded), &stop) => {}
            () = follow => {}
        }
        Ok(())
    }
}
