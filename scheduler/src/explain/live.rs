//! Reads what explaining a Run needs from a live cluster, with the caller's own rights.

use anyhow::{Context, bail};
use berth_api::constants::LABEL_RUNTIME;
use berth_api::{PersistentWorkspace, Run, decode};
use berth_framework::from_api;
use berth_framework::model::{PodObject, RunObject, WorkspaceObject};
use berth_runtime::apiclient::CallError;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, Resource, ResourceExt};

/// Objects per page of a list.
const PAGE: u32 = 500;

/// The part of the cluster that decides about one Run.
#[derive(Debug)]
pub struct Live {
    /// The Run as it is stored.
    pub run: Run,
    /// Every other Run of its namespace that can be read.
    pub others: Vec<RunObject>,
    /// The Pods of its runtime in its namespace.
    pub pods: Vec<PodObject>,
    /// Its workspace, if it names one that exists.
    pub workspace: Option<WorkspaceObject>,
    /// What could not be read.
    pub warnings: Vec<String>,
}

/// Reads the cluster.
///
/// # Errors
/// The cluster can't be reached, or the Run can't be read.
pub async fn read(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Live> {
    let mut warnings = Vec::new();
    let stored = runs(client, namespace).get_opt(name).await.map_err(CallError::from).with_context(|| format!("cannot get Run {namespace}/{name}"))?;
    let Some(stored) = stored else { bail!("Run {namespace}/{name} not found") };
    let run = decode::run(serde_json::to_value(stored)?)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&format!("{LABEL_RUNTIME}={}", run.spec.runtime)).limit(PAGE);
    let pods = pages(&pods, params).await.context("cannot list Pods")?.iter().filter_map(from_api::pod_object).collect();
    let mut others = Vec::new();
    for other in pages(&runs(client, namespace), ListParams::default().limit(PAGE)).await.context("cannot list Runs")? {
        let uid = other.uid();
        match from_api::read_run(serde_json::to_value(other)?) {
            Ok(_) if uid == run.metadata.uid => {}
            Ok(other) => {
                if let Some(invalid) = other.undecodable.as_ref().filter(|invalid| !invalid.without_spec) {
                    warnings.push(format!("read in part: {invalid}"));
                }
                others.push(other.object());
            }
            Err(invalid) => warnings.push(format!("left out: {invalid}")),
        }
    }
    let workspace = match &run.spec.workspace {
        None => None,
        Some(named) => {
            let api: Api<PersistentWorkspace> = Api::namespaced(client.clone(), namespace);
            let found = api
                .get_opt(&named.name)
                .await
                .map_err(CallError::from)
                .with_context(|| format!("cannot get PersistentWorkspace {namespace}/{}", named.name))?;
            found.as_ref().map(from_api::workspace_object)
        }
    };
    Ok(Live { run, others, pods, workspace, warnings })
}

fn runs(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Run>(&()))
}

pub(super) async fn pages<K>(api: &Api<K>, mut params: ListParams) -> Result<Vec<K>, CallError>
where
    K: Clone + std::fmt::Debug + Resource + serde::de::DeserializeOwned,
{
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
