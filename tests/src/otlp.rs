//! A receiver of OpenTelemetry traces: OTLP over HTTP, protobuf, decoded by the specification's own types.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How the receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Takes everything.
    Take,
    /// 400.
    Refuse,
    /// Never.
    Hang,
}

/// A span as it was received.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// Of its trace.
    pub trace_id: Vec<u8>,
    /// Its own.
    pub span_id: Vec<u8>,
    /// Empty for the first of a trace.
    pub parent_span_id: Vec<u8>,
    /// Nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub end_ns: u64,
    /// Its status is an error.
    pub error: bool,
    /// Its attributes, as texts.
    pub attributes: BTreeMap<String, String>,
    /// The attributes of who sent it.
    pub resource: BTreeMap<String, String>,
}

impl Span {
    /// An attribute, or nothing.
    #[must_use]
    pub fn get(&self, attribute: &str) -> &str {
        self.attributes.get(attribute).map_or("", String::as_str)
    }
}

#[derive(Default)]
struct Received {
    requests: usize,
    headers: Vec<BTreeMap<String, String>>,
    spans: Vec<Span>,
}

/// A listening receiver, until it is dropped.
pub struct Receiver {
    port: u16,
    received: Arc<Mutex<Received>>,
    _stop: DropGuard,
}

impl Receiver {
    /// Listens on a loopback port.
    pub async fn start(answer: Answer) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let received = Arc::<Mutex<Received>>::default();
        let stop = CancellationToken::new();
        let (shared, until) = (received.clone(), stop.clone());
        tokio::spawn(until.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                let service = service_fn(move |request| take(request, shared.clone(), answer));
                tokio::spawn(until.clone().run_until_cancelled_owned(http1::Builder::new().serve_connection(TokioIo::new(stream), service)));
            }
        }));
        Ok(Self { port, received, _stop: stop.drop_guard() })
    }

    /// What a sender is told, without the path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn with<R>(&self, read: impl FnOnce(&Received) -> R) -> R {
        read(&self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests that have come.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.with(|received| received.requests)
    }

    /// The headers of the first request.
    #[must_use]
    pub fn headers(&self) -> BTreeMap<String, String> {
        self.with(|received| received.headers.first().cloned().unwrap_or_default())
    }

    /// The spans that have come and are of `name`.
    #[must_use]
    pub fn spans(&self, name: &str) -> Vec<Span> {
        self.with(|received| received.spans.iter().filter(|span| span.name == name).cloned().collect())
    }
}

async fn take(request: Request<Incoming>, received: Arc<Mutex<Received>>, answer: Answer) -> Result<Response<Full<Bytes>>, Infallible> {
    let headers = request.headers().iter().map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())).collect();
    let expected = request.method() == "POST"
        && request.uri().path() == "/v1/traces"
        && request.headers().get("content-type").is_some_and(|t| t == "application/x-protobuf");
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let decoded = ExportTraceServiceRequest::decode(body).ok().filter(|_| expected);
    {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.requests += 1;
        received.headers.push(headers);
        if answer == Answer::Take {
            received.spans.extend(decoded.iter().flat_map(spans));
        }
    }
    if answer == Answer::Hang {
        std::future::pending::<()>().await;
    }
    let code = if answer == Answer::Take && decoded.is_some() { 200 } else { 400 };
    let mut response = Response::new(Full::default());
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or_default();
    Ok(response)
}

fn spans(request: &ExportTraceServiceRequest) -> Vec<Span> {
    let mut all = Vec::new();
    for of_resource in &request.resource_spans {
        let resource = texts(of_resource.resource.iter().flat_map(|resource| &resource.attributes));
        for span in of_resource.scope_spans.iter().flat_map(|scope| &scope.spans) {
            all.push(Span {
                name: span.name.clone(),
                trace_id: span.trace_id.clone(),
                span_id: span.span_id.clone(),
                parent_span_id: span.parent_span_id.clone(),
                start_ns: span.start_time_unix_nano,
                end_ns: span.end_time_unix_nano,
                error: span.status.as_ref().is_some_and(|status| status.code == 2),
                attributes: texts(&span.attributes),
                resource: resource.clone(),
            });
        }
    }
    all
}

fn texts<'a>(attributes: impl IntoIterator<Item = &'a KeyValue>) -> BTreeMap<String, String> {
    attributes.into_iter().map(|attribute| (attribute.key.clone(), text(attribute.value.as_ref()))).collect()
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::ArrayValue(array)) => array.values.iter().map(|value| text(Some(value))).collect::<Vec<_>>().join(","),
        other => format!("{other:?}"),
    }
}
