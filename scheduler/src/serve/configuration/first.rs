//! The configuration a process starts with. A file must be there and valid; a ConfigMap must be valid, and is waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_framework::profile::Registry;
use berth_runtime::apiclient::get_uncached;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::super::endpoint::Endpoint;
use super::super::metrics::Metrics;
use super::super::{Misconfigured, health};
use super::{Candidate, ConfigMapName, Source};
use crate::config::{self, Loaded, Refused};

/// Between two looks for a ConfigMap that isn't there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two lines of the log about it.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// What a process starts with.
#[derive(Clone, Debug)]
pub struct First {
    /// As read and checked.
    pub loaded: Loaded,
    /// Its text.
    pub candidate: Candidate,
}

/// The configuration of a file, or the defaults; `None` if it is in a ConfigMap.
///
/// # Errors
/// Everything that is wrong.
pub fn first(source: &Source, registry: &Registry) -> Result<Option<First>, Misconfigured> {
    let wrong = |refused: Refused| Misconfigured(refused.to_string());
    match source {
        Source::ConfigMap(_) => Ok(None),
        Source::Defaults => {
            let candidate = Candidate { source: "defaults".to_owned(), text: Ok(String::new()), generation: None };
            Ok(Some(First { loaded: Loaded::defaults(registry).map_err(wrong)?, candidate }))
        }
        Source::File(path) => {
            let candidate = Candidate {
                source: path.display().to_string(),
                text: std::fs::read(path).map_err(|error| error.to_string()).and_then(config::text_of),
                generation: None,
            };
            let loaded = candidate.load(registry).map_err(wrong)?;
            Ok(Some(First { loaded, candidate }))
        }
    }
}

/// Waits for a ConfigMap, alive but not ready: whoever names one wants nothing to be placed by other rules. `None` if the process is
/// asked to end meanwhile.
///
/// # Errors
/// [`Misconfigured`] if what it holds can't be used.
pub async fn from_config_map(
    name: &ConfigMapName,
    registry: &Registry,
    client: &Client,
    endpoint: &Arc<Endpoint>,
    metrics: &Arc<Metrics>,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<First>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &name.namespace);
    let mut waiting: Option<(CancellationToken, tokio::task::JoinHandle<Result<(), String>>)> = None;
    let mut told: Option<Instant> = None;
    let found = loop {
        let why = match get_uncached(&api, &name.name).await {
            Ok(Some(map)) => break Some(map),
            Ok(None) => "there is no such ConfigMap".to_owned(),
            Err(error) => error.to_string(),
        };
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            told = Some(Instant::now());
            tracing::warn!(config_map = %format!("{}/{}", name.namespace, name.name), why, "waiting for the configuration; nothing is placed until it is there");
        }
        if waiting.is_none() {
            let stop = CancellationToken::new();
            let (endpoint, routes, until) = (endpoint.clone(), health::routes_unconfigured(metrics.clone()), stop.clone());
            waiting = Some((stop, tokio::spawn(async move { endpoint.serve(routes, until).await })));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.cancelled() => break None,
        }
    };
    if let Some((stop, serving)) = waiting {
        stop.cancel();
        serving.await?.map_err(anyhow::Error::msg).context("health")?;
    }
    let Some(map) = found else { return Ok(None) };
    let candidate = Candidate::of(&map, name);
    let loaded = candidate.load(registry).map_err(|refused| Misconfigured(refused.to_string()))?;
    Ok(Some(First { loaded, candidate }))
}
