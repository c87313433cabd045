//! The way of a span to its receiver: a bounded queue that never waits, batches, a bounded end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry::Context;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use prometheus::{IntCounter, IntCounterVec, Opts};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::metrics::Metrics;
use super::Settings;

/// How long what is left may take when the process stops.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);
/// Between two lines of the log about a receiver that takes nothing.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Where the tracer puts ended spans.
#[derive(Debug)]
pub struct Queue {
    spans: mpsc::Sender<SpanData>,
    dropped: IntCounter,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.dropped.inc();
        }
    }

    /// The exporter's task does.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// The exporter's task does.
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends what is in the queue.
pub struct Exporter {
    spans: mpsc::Receiver<SpanData>,
    exporter: opentelemetry_otlp::SpanExporter,
    batch_max: usize,
    delay: Duration,
    exported: IntCounter,
    failed: IntCounter,
    told: Option<Instant>,
}

/// How many spans were exported, failed and were dropped, among `metrics`.
///
/// # Errors
/// The metric is there already.
pub fn outcomes(metrics: &Metrics) -> Result<[IntCounter; 3], prometheus::Error> {
    let outcomes = IntCounterVec::new(Opts::new("berth_trace_spans_total", "Spans of traces by what became of them; only with traces."), &["outcome"])?;
    metrics.register(outcomes.clone())?;
    Ok(["exported", "failed", "dropped"].map(|outcome| outcomes.with_label_values(&[outcome])))
}

impl Exporter {
    /// An exporter and its queue.
    ///
    /// # Errors
    /// An authority that can't be read, or something in the environment that can't be used.
    pub fn new(settings: &Settings, resource: &Resource, outcomes: [IntCounter; 3]) -> anyhow::Result<(Self, Queue)> {
        let client = HyperClient::new(connector(settings)?, settings.timeout, None);
        let http = opentelemetry_otlp::SpanExporter::builder().with_http().with_http_client(client);
        let mut exporter = http.with_endpoint(settings.endpoint.to_string()).with_timeout(settings.timeout).build()?;
        exporter.set_resource(resource);
        let [exported, failed, dropped] = outcomes;
        let (sender, spans) = mpsc::channel(settings.queue_max);
        let queue = Queue { spans: sender, dropped };
        Ok((Self { spans, exporter, batch_max: settings.batch_max, delay: settings.delay, exported, failed, told: None }, queue))
    }

    /// Sends until `stop`, then what is left.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::new();
        loop {
            let first = tokio::select! {
                () = stop.cancelled() => break,
                span = self.spans.recv() => span,
            };
            // The tracer lives as long as the process.
            let Some(first) = first else { break };
            batch.push(first);
            let full = async {
                while batch.len() < self.batch_max {
                    match self.spans.recv().await {
                        Some(span) => batch.push(span),
                        None => break,
                    }
                }
            };
            let _ = tokio::time::timeout(self.delay, stop.run_until_cancelled(full)).await;
            let batch = std::mem::take(&mut batch);
            let too_late = async {
                stop.cancelled().await;
                tokio::time::sleep(FLUSH_WITHIN).await;
            };
            tokio::select! {
                () = self.send(batch) => {}
                () = too_late => break,
            }
        }
        self.spans.close();
        let rest = async {
            while let Some(span) = self.spans.recv().await {
                let mut batch = vec![span];
                while let Ok(span) = self.spans.try_recv()
                    && batch.len() < self.batch_max
                {
                    batch.push(span);
                }
                self.send(batch).await;
            }
        };
        if tokio::time::timeout(FLUSH_WITHIN, rest).await.is_err() {
            tracing::warn!("not every span of the traces could be sent before the end");
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let spans = batch.len() as u64;
        match self.exporter.export(batch).await {
            Ok(()) => self.exported.inc_by(spans),
            Err(error) => {
                self.failed.inc_by(spans);
                if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                    self.told = Some(Instant::now());
                    tracing::warn!(%error, spans, "traces are not taken");
                }
            }
        }
    }
}

/// Plain or TLS, as the URL says. The system's authorities are only looked for where they are needed: an image from scratch has none.
fn connector(settings: &Settings) -> anyhow::Result<hyper_rustls::HttpsConnector<hyper_util::client::legacy::connect::HttpConnector>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let by = |roots: RootCertStore| {
        let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?.with_root_certificates(roots);
        anyhow::Ok(HttpsConnectorBuilder::new().with_tls_config(config.with_no_client_auth()))
    };
    let builder = match &settings.authority {
        Some(file) => {
            let of = || format!("authority of the receiver of traces, {}", file.display());
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(file).with_context(of)? {
                roots.add(certificate.with_context(of)?).with_context(of)?;
            }
            by(roots)?
        }
        None if settings.endpoint.scheme_str() == Some("https") => HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(provider.clone())
            .context("no authority is known here; name a file of it in OTEL_EXPORTER_OTLP_CERTIFICATE")?,
        None => by(RootCertStore::empty())?,
    };
    Ok(builder.https_or_http().enable_http1().build())
}
