//! The layer around kube's HTTP service: a time-out per verb, and a report of every request.

use super::error::Elapsed;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::client::Body;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Layer, Service};

/// How long each step of a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// TCP and TLS.
    pub connect: Duration,
    /// From request to the last byte of the answer: GET of one object and non-resource paths.
    pub get: Duration,
    /// From request to the last byte of the answer: one page of a LIST.
    pub list: Duration,
    /// From request to the last byte of the answer: any write.
    pub write: Duration,
    /// From a WATCH request to the headers of its answer; the stream itself is bounded by the watcher.
    pub watch_start: Duration,
    /// A connection without one byte from the server for that long is dead. Longer than a watch may be silent
    /// (the API server sends a bookmark about once a minute).
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            get: Duration::from_secs(10),
            list: Duration::from_secs(60),
            write: Duration::from_secs(10),
            watch_start: Duration::from_secs(30),
            silence: Duration::from_secs(180),
        }
    }
}

/// What a request does, as Kubernetes' RBAC names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// One object.
    Get,
    /// A page of objects.
    List,
    /// A stream of changes.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
}

impl Verb {
    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// How a request ended, as far as its headers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The server answered with this HTTP status.
    Status(u16),
    /// No answer: broken, refused or timed out.
    Error,
    /// The caller went away before the answer came.
    Cancelled,
}

/// One request, once its answer's headers are in or it failed.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// What it did.
    pub verb: Verb,
    /// Plural and subresource, `runs` or `runs/status`; empty for a path that is no resource. Comes from our own
    /// request paths, so its values are few.
    pub resource: &'a str,
    /// Host and port of the API server.
    pub host: &'a str,
    /// How it ended.
    pub outcome: Outcome,
    /// From request to headers.
    pub duration: Duration,
}

/// Told of every request; feeds `rest_client_requests_total` and `rest_client_request_duration_seconds`. Must not block.
pub trait CallObserver: Send + Sync + 'static {
    /// A request ended.
    fn called(&self, call: &Call<'_>);

    /// An answer bears the server's date, in whole seconds, and came after `took`; see [`crate::clock::ServerTime`].
    fn dated(&self, date: Timestamp, took: Duration) {
        let _ = (date, took);
    }
}

/// Observes nothing.
impl CallObserver for () {
    fn called(&self, _: &Call<'_>) {}
}

/// See the module.
#[derive(Clone)]
pub struct CallLayer {
    limits: Limits,
    host: Arc<str>,
    observer: Arc<dyn CallObserver>,
}

impl CallLayer {
    /// Bounds by `limits` what is asked of `host`, reports to `observer`.
    pub fn new(limits: Limits, host: &str, observer: Arc<dyn CallObserver>) -> Self {
        Self { limits, host: host.into(), observer }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService { inner, layer: self.clone() }
    }
}

/// The service that [`CallLayer`] makes.
pub struct CallService<S> {
    inner: S,
    layer: CallLayer,
}

impl<S, B> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = bytes::Bytes>,
    B::Error: Into<BoxError>,
{
    type Response = Response<BoundedBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let target = Target::of(&request);
        let limit = match target.verb {
            Verb::Get => self.layer.limits.get,
            Verb::List => self.layer.limits.list,
            Verb::Watch => self.layer.limits.watch_start,
            _ => self.layer.limits.write,
        };
        let start = Instant::now();
        let streams = target.verb == Verb::Watch;
        let mut report = Report { observer: self.layer.observer.clone(), host: self.layer.host.clone(), target, start, outcome: Outcome::Cancelled };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = match tokio::time::timeout_at(start + limit, answer).await {
                Ok(response) => response.map_err(Into::into),
                Err(_) => Err(Elapsed(limit).into()),
            };
            if let Some(date) = response.as_ref().ok().and_then(server_date) {
                report.observer.dated(date, start.elapsed());
            }
            report.outcome = response.as_ref().map_or(Outcome::Error, |r| Outcome::Status(r.status().as_u16()));
            drop(report);
            let deadline = (!streams).then(|| (Box::pin(tokio::time::sleep_until(start + limit)), limit));
            Ok(response?.map(|body| BoundedBody { body: Box::pin(body), deadline }))
        })
    }
}

/// The header `Date` of an answer.
fn server_date<B>(response: &Response<B>) -> Option<Timestamp> {
    let date = response.headers().get(http::header::DATE)?.to_str().ok()?;
    rfc2822::parse(date).ok().map(|date| date.timestamp())
}

/// Reports its request when dropped, so that a cancelled one is counted too.
struct Report {
    observer: Arc<dyn CallObserver>,
    host: Arc<str>,
    target: Target,
    start: Instant,
    outcome: Outcome,
}

impl Drop for Report {
    fn drop(&mut self) {
        let Target { verb, resource } = &self.target;
        self.observer.called(&Call { verb: *verb, resource, host: &self.host, outcome: self.outcome, duration: self.start.elapsed() });
    }
}

/// An answer's body that fails when it isn't complete by the request's deadline.
pub struct BoundedBody<B> {
    body: Pin<Box<B>>,
    deadline: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl<B> HttpBody for BoundedBody<B>
where
    B: HttpBody<Data = bytes::Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = bytes::Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<bytes::Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = self.body.as_mut().poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some((sleep, limit)) = self.deadline.as_mut() else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Some(Err(Elapsed(*limit).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Verb and resource of a request, read from its method and path.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    verb: Verb,
    resource: String,
}

impl Target {
    fn of(request: &Request<Body>) -> Self {
        let uri = request.uri();
        let watch = uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
        Self::parse(request.method(), uri.path(), watch)
    }

    fn parse(method: &Method, path: &str, watch: bool) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let rest = match parts.as_slice() {
            ["api", _version, rest @ ..] | ["apis", _, _version, rest @ ..] => rest,
            _ => &[],
        };
        // Below `namespaces/<ns>` come that namespace's objects, except for the namespace's own subresources.
        let rest = match rest {
            ["namespaces", _, "status" | "finalize"] => rest,
            ["namespaces", _, inner @ ..] if !inner.is_empty() => inner,
            _ => rest,
        };
        let (resource, named) = match rest {
            [] => (String::new(), true),
            [plural] => ((*plural).to_owned(), false),
            [plural, _name] => ((*plural).to_owned(), true),
            [plural, _name, sub, ..] => (format!("{plural}/{sub}"), true),
        };
        let verb = match (method, named) {
            (&Method::GET, _) if watch => Verb::Watch,
            (&Method::POST, _) => Verb::Create,
            (&Method::PUT, _) => Verb::Update,
            (&Method::PATCH, _) => Verb::Patch,
            (&Method::DELETE, true) => Verb::Delete,
            (&Method::DELETE, false) => Verb::DeleteCollection,
            (_, true) => Verb::Get,
            (_, false) => Verb::List,
        };
        Self { verb, resource }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verb_and_resource_are_read_from_the_path() {
        let table = [
            (Method::GET, "/apis/kruntimes.io/v1alpha1/runs", false, Verb::List, "runs"),
            (Method::GET, "/apis/kruntimes.io/v1alpha1/runs", true, Verb::Watch, "runs"),
            (Method::GET, "/apis/kruntimes.io/v1alpha1/namespaces/a/runs/b", false, Verb::Get, "runs"),
            (Method::PATCH, "/apis/kruntimes.io/v1alpha1/namespaces/a/runs/b/status", false, Verb::Patch, "runs/status"),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events", false, Verb::Create, "events"),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", false, Verb::Update, "leases"),
            (Method::DELETE, "/api/v1/namespaces/a/pods/p", false, Verb::Delete, "pods"),
            (Method::DELETE, "/api/v1/namespaces/a/pods", false, Verb::DeleteCollection, "pods"),
            (Method::GET, "/api/v1/namespaces", false, Verb::List, "namespaces"),
            (Method::GET, "/api/v1/namespaces/a", false, Verb::Get, "namespaces"),
            (Method::PUT, "/api/v1/namespaces/a/finalize", false, Verb::Update, "namespaces/finalize"),
            (Method::GET, "/version", false, Verb::Get, ""),
        ];
        for (method, path, watch, verb, resource) in table {
            assert_eq!(Target::parse(&method, path, watch), Target { verb, resource: resource.to_owned() }, "{method} {path}");
        }
    }
}
