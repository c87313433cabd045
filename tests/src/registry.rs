//! A small image registry on loopback (OCI distribution, pulls only): open or with a password, quick or slow; images come and go as the test says.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::image::{Image, digest};
use crate::process::free_port;

/// Who may pull what is private.
pub const USER: &str = "berth";
/// With this password.
pub const PASSWORD: &str = "canary";
/// Both of them, as a client shows them.
const BASIC: &str = "Basic YmVydGg6Y2FuYXJ5";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry; dropping it ends it. It lives on the runtime it was started on.
pub struct Registry {
    port: u16,
    shelf: Arc<Shelf>,
    end: CancellationToken,
}

#[derive(Default)]
struct Shelf {
    repositories: Mutex<BTreeMap<String, Repository>>,
    refused: AtomicUsize,
    layers: AtomicUsize,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Repository>> {
        self.repositories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Repository {
    tag: String,
    manifest: Bytes,
    config: Bytes,
    layer: Bytes,
    terms: Terms,
}

/// How an image is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// To nobody without [`USER`] and [`PASSWORD`].
    pub private: bool,
    /// How long the layer takes.
    pub slow: Duration,
}

impl Registry {
    /// Starts an empty one.
    pub async fn start() -> Result<Self> {
        let port = free_port()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let (shelf, end) = (Arc::<Shelf>::default(), CancellationToken::new());
        tokio::spawn(end.clone().run_until_cancelled_owned(accept(listener, shelf.clone(), end.clone())));
        Ok(Self { port, shelf, end })
    }

    /// Its loopback port. Container runtimes speak http to `127.0.0.1:PORT`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host and port of its images' names.
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How many requests for what is private came without or with wrong credentials.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.shelf.refused.load(Ordering::Relaxed)
    }

    /// How many times a layer was asked for, however long it then took.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.shelf.layers.load(Ordering::Relaxed)
    }

    /// Serves an image from now on, as the only one of its repository.
    pub fn serve(&self, repository: &str, tag: &str, image: &Image, terms: Terms) {
        let blob = |kind: &str, bytes: &[u8]| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "size": bytes.len(), "digest": digest(bytes)});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": blob("config.v1+json", &image.config), "layers": [blob("layer.v1.tar", &image.layer)],
        });
        let (config, layer) = (Bytes::from(image.config.clone()), Bytes::from(image.layer.clone()));
        let entry = Repository { tag: tag.to_owned(), manifest: manifest.to_string().into(), config, layer, terms };
        self.shelf.lock().insert(repository.to_owned(), entry);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn accept(listener: TcpListener, shelf: Arc<Shelf>, end: CancellationToken) {
    while let Ok((stream, _)) = listener.accept().await {
        let shelf = shelf.clone();
        tokio::spawn(end.clone().run_until_cancelled_owned(async move {
            let service = hyper::service::service_fn(move |request| {
                let shelf = shelf.clone();
                async move { Ok::<_, Infallible>(answer(&shelf, &request).await) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await; // the client may leave at any time
        }));
    }
}

async fn answer(shelf: &Shelf, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let is_known = request.headers().get(header::AUTHORIZATION).is_some_and(|shown| shown == BASIC);
    if request.uri().path() == "/v2/" {
        // What Docker asks first, to learn whether it must show who it is.
        let is_open = is_known || shelf.lock().values().all(|repository| !repository.terms.private);
        return if is_open { Response::new(Full::new(Bytes::from_static(b"{}"))) } else { refuse(shelf) };
    }
    let unknown = || error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown");
    // /v2/REPOSITORY/manifests/REFERENCE or /v2/REPOSITORY/blobs/DIGEST
    let parts = request.uri().path().trim_matches('/').rsplitn(3, '/').collect::<Vec<_>>();
    let [reference, kind, repository] = parts[..] else { return unknown() };
    let Some(found) = repository.strip_prefix("v2/").and_then(|name| shelf.lock().get(name).cloned()) else { return unknown() };
    if found.terms.private && !is_known {
        return refuse(shelf);
    }
    let (media, body) = match kind {
        "manifests" if reference == found.tag || reference == digest(&found.manifest) => (MANIFEST, found.manifest),
        "blobs" if reference == digest(&found.config) => ("application/octet-stream", found.config),
        "blobs" if reference == digest(&found.layer) => {
            shelf.layers.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(found.terms.slow).await;
            ("application/octet-stream", found.layer)
        }
        _ => return unknown(),
    };
    let sum = digest(&body);
    let length = body.len();
    let mut response = Response::new(Full::new(if request.method() == Method::HEAD { Bytes::new() } else { body }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media));
    headers.insert(header::CONTENT_LENGTH, length.into());
    if let Ok(sum) = sum.parse() {
        headers.insert("docker-content-digest", sum);
    }
    response
}

fn refuse(shelf: &Shelf) -> Response<Full<Bytes>> {
    shelf.refused.fetch_add(1, Ordering::Relaxed);
    let mut refused = error(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required");
    refused.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Basic realm=\"test\""));
    refused
}

fn error(status: StatusCode, code: &str, message: &str) -> Response<Full<Bytes>> {
    let body = json!({"errors": [{"code": code, "message": message}]}).to_string();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}
