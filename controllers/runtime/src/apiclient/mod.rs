//! A Kubernetes client for writers that must know what happened.
//!
//! kube's own default retries every verb, POST and PATCH too, up to 15 times and has no read time-out. [`connect`] turns
//! that off, bounds every request by verb ([`Limits`]) and reports each to a [`CallObserver`]. Only reads are retried
//! ([`read`]). A failed write is classified ([`CallError`]): refused, never sent, or *ambiguous*, in which case only a read tells.

mod error;
mod layer;
mod patch;
mod status;

pub use error::CallError;
pub use layer::{Call, CallLayer, CallObserver, Limits, Outcome, Verb};
pub use patch::json_patch;
pub use status::{Precondition, Written, annotations_merge_patch, delete_observed, finalizers_merge_patch, merge_difference, status_merge_patch};

use crate::backoff::Backoff;
use kube::api::{GetParams, Request};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The named kubeconfig is missing, unreadable or incomplete.
    #[error("kubeconfig {path}: {}", why(.source))]
    Kubeconfig {
        /// The file that was named, or the list in `$KUBECONFIG`.
        path: String,
        /// What is wrong with it.
        source: Box<kube::config::KubeconfigError>,
    },
    /// No file was named, and neither `$KUBECONFIG`, `~/.kube/config` nor a service account leads to a cluster.
    #[error("no cluster: neither a kubeconfig nor a service account ({0})")]
    Infer(Box<kube::config::InferConfigError>),
    /// The configuration can't be turned into a client (certificates, proxy, credentials).
    #[error("client: {0}")]
    Client(Box<kube::Error>),
}

/// What is wrong with a kubeconfig whose name is told already.
fn why(error: &kube::config::KubeconfigError) -> String {
    match error {
        kube::config::KubeconfigError::ReadConfig(error, _) => error.to_string(),
        error => error.to_string(),
    }
}

/// A client for the cluster of `kubeconfig`, or, without one, of the environment (kubeconfig, then in-cluster).
///
/// Every request made through it, also by an `Api<K>` or a watcher, is bounded by `limits` and reported to `observer`.
pub async fn connect(kubeconfig: Option<&Path>, limits: Limits, observer: Arc<dyn CallObserver>) -> Result<Client, ConnectError> {
    client(config(kubeconfig).await?, limits, observer)
}

/// Cluster and credential of `kubeconfig`, or, without one, of the environment (kubeconfig, then in-cluster).
pub async fn config(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let (name, files) = match kubeconfig {
        Some(path) => (path.as_os_str(), vec![path.to_owned()]),
        None => (&*listed, existing(&listed)),
    };
    if files.is_empty() {
        return Config::infer().await.map_err(|error| ConnectError::Infer(Box::new(error)));
    }
    let wrap = |source| ConnectError::Kubeconfig { path: name.display().to_string(), source: Box::new(source) };
    let merged = files.iter().try_fold(Kubeconfig::default(), |merged, file| merged.merge(Kubeconfig::read_from(file)?)).map_err(wrap)?;
    Config::from_custom_kubeconfig(merged, &KubeConfigOptions::default()).await.map_err(wrap)
}

/// The files of a list as `$KUBECONFIG` is one; as with kubectl, those that don't exist are passed over.
fn existing(list: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty() && path.try_exists().unwrap_or(true)).collect()
}

/// A client for a configuration that the caller already has. Its retries and time-outs are overridden.
pub fn client(mut config: Config, limits: Limits, observer: Arc<dyn CallObserver>) -> Result<Client, ConnectError> {
    config.default_retry = false;
    config.connect_timeout = Some(limits.connect);
    config.write_timeout = Some(limits.write);
    config.read_timeout = Some(limits.silence);
    // Without this, the time a pooled connection sat idle counts against the next answer.
    config.reset_reader_on_write = true;
    let host = host_of(&config.cluster_url);
    let builder = ClientBuilder::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
    Ok(builder.with_layer(&CallLayer::new(limits, &host, observer)).build())
}

/// Host, and port if it is told; without a user's name or password.
fn host_of(url: &http::Uri) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}", url.host().unwrap_or_default())
}

/// How often and how long a read is tried again.
#[derive(Clone, Copy, Debug)]
pub struct ReadRetry {
    /// Requests at most, the first included.
    pub attempts: u32,
    /// Between them.
    pub backoff: Backoff,
}

impl Default for ReadRetry {
    fn default() -> Self {
        Self { attempts: 4, backoff: Backoff::READS }
    }
}

/// Runs `call`, which must be a read, and again after a [retryable](CallError::retryable) failure, as the server asks or with backoff.
pub async fn read<T, F>(retry: ReadRetry, mut call: impl FnMut() -> F) -> Result<T, CallError>
where
    F: Future<Output = kube::Result<T>>,
{
    let mut failures = 0;
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => CallError::from(error),
        };
        if !error.retryable() || failures + 1 >= retry.attempts {
            return Err(error);
        }
        let delay = error.retry_after().unwrap_or_default().min(Duration::from_secs(10)).max(retry.backoff.delay(failures));
        failures += 1;
        tokio::time::sleep(delay).await;
    }
}

/// The object as it is now, or None if there is none: a quorum read, past every cache, retried. It resolves an ambiguous write.
pub async fn get_uncached<K>(api: &Api<K>, name: &str) -> Result<Option<K>, CallError>
where
    K: Clone + DeserializeOwned + Debug,
{
    read(ReadRetry::default(), || api.get_opt(name)).await
}

/// [`get_uncached`] as JSON, so that an object which our types can't read is no obstacle.
pub async fn get_json<K>(api: &Api<K>, name: &str) -> Result<Option<serde_json::Value>, CallError>
where
    K: kube::Resource + Clone,
{
    let url = api.resource_url().to_owned();
    let client = api.clone().into_client();
    let object = read(ReadRetry::default(), || async {
        let request = Request::new(&url).get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        client.request::<serde_json::Value>(request).await
    });
    match object.await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(crate) mod testing {
    //! A client whose server is a closure.

    use super::*;
    use http::{Request, Response};
    use kube::client::Body;

    /// What the server answers: status and JSON, or no answer at all, ever.
    pub enum Answer {
        Json(u16, serde_json::Value),
        /// Headers, then nothing.
        Stuck,
        /// The connection breaks with this error.
        Broken(std::io::ErrorKind),
        /// Lines of a watch, then silence.
        Watch(Vec<serde_json::Value>),
        Never,
    }

    /// A request as the server saw it.
    #[derive(Clone, Debug)]
    pub struct Seen {
        pub method: String,
        pub uri: String,
        pub content_type: String,
        pub body: serde_json::Value,
    }

    pub fn client(limits: Limits, observer: Arc<dyn CallObserver>, serve: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> Client {
        use futures::StreamExt;
        use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
        let serve = Arc::new(serve);
        let service = tower::service_fn(move |request: Request<Body>| {
            let serve = serve.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let seen = Seen {
                    method: parts.method.to_string(),
                    uri: parts.uri.to_string(),
                    content_type: parts.headers.get("content-type").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default(),
                    body: serde_json::from_slice(&bytes).unwrap_or_default(),
                };
                let chunks = |lines: Vec<String>, then_hang: bool| -> BoxBody<bytes::Bytes, std::io::Error> {
                    let first = futures::stream::iter(lines.into_iter().map(|l| Ok(http_body::Frame::data(bytes::Bytes::from(l)))));
                    match then_hang {
                        true => BodyExt::boxed(StreamBody::new(first.chain(futures::stream::pending()))),
                        false => BodyExt::boxed(StreamBody::new(first)),
                    }
                };
                let (code, body) = match serve(seen) {
                    Answer::Json(code, json) => (code, chunks(vec![json.to_string()], false)),
                    Answer::Stuck => (200, chunks(vec![], true)),
                    Answer::Watch(lines) => (200, chunks(lines.into_iter().map(|l| format!("{l}\n")).collect(), true)),
                    Answer::Broken(kind) => return Err(tower::BoxError::from(std::io::Error::from(kind))),
                    Answer::Never => futures::future::pending().await,
                };
                Ok(Response::builder().status(code).body(body).unwrap())
            }
        });
        ClientBuilder::new(service, "default").with_layer(&CallLayer::new(limits, "server", observer)).build()
    }
}

#[cfg(test)]
mod tests;
