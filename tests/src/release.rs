//! A release of the chart on a control plane that runs no Pods: its objects are applied, its processes are the test's.

use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, ValidationDirective};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::controlplane::ControlPlane;
use crate::helm::{Helm, RELEASE};

/// The ServiceAccount of a release, with every right that the chart grants it and no other.
#[derive(Clone, Debug)]
pub struct Account {
    /// As the audit log calls it.
    pub user: String,
    /// A token of it, as a Pod would hold it.
    pub token: String,
}

impl Account {
    /// Applies what helm rendered for a release in `namespace`, which holds the account.
    pub async fn install(plane: &ControlPlane, namespace: &str, objects: &[Value]) -> Result<Self> {
        let token = plane.service_account(namespace, RELEASE).await?;
        let client = plane.admin()?;
        for object in objects {
            apply(&client, object).await?;
        }
        Ok(Self { user: format!("system:serviceaccount:{namespace}:{RELEASE}"), token })
    }

    /// The account of a release in `namespace` that serves this namespace alone, without the rest of the release.
    pub async fn of(plane: &ControlPlane, namespace: &str) -> Result<Self> {
        let objects: Vec<Value> = serde_json::from_str(&rights()?.replace(SOMEWHERE, namespace))?;
        Self::install(plane, namespace, &objects).await
    }

    /// The account of the agents of that release.
    pub async fn of_agents(plane: &ControlPlane, namespace: &str) -> Result<Self> {
        let name = format!("{RELEASE}-runtimed");
        let token = plane.token_of(namespace, &name).await?;
        Ok(Self { user: format!("system:serviceaccount:{namespace}:{name}"), token })
    }
}

/// Stands for the namespace in what is rendered once for all.
const SOMEWHERE: &str = "namespace-of-the-release";

/// The chart's ServiceAccounts, roles and bindings, as JSON. What is of no namespace gets a name of its own.
fn rights() -> Result<&'static str> {
    static RIGHTS: OnceLock<String> = OnceLock::new();
    if let Some(rights) = RIGHTS.get() {
        return Ok(rights);
    }
    let values = json!({"watchNamespace": SOMEWHERE, "crds": {"install": false}, "runtimes": [{"name": "bash"}]});
    let mut objects = Helm::new()?.rendered("rights", SOMEWHERE, &values)?;
    let is_right = |kind: &str| matches!(kind, "ServiceAccount" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding");
    objects.retain(|object| object["kind"].as_str().is_some_and(is_right));
    for object in &mut objects {
        let kinds = [("/kind", "/metadata/name"), ("/roleRef/kind", "/roleRef/name")];
        for (kind, name) in kinds {
            if object.pointer(kind).and_then(Value::as_str).is_some_and(|kind| kind.starts_with("Cluster"))
                && let Some(Value::String(name)) = object.pointer_mut(name)
            {
                name.push_str(&format!("-{SOMEWHERE}"));
            }
        }
    }
    let text = serde_json::to_string(&objects)?;
    Ok(RIGHTS.get_or_init(|| text))
}

/// Server-side apply, where an unknown or doubled field is an error.
pub async fn apply(client: &Client, object: &Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let types = object.types.clone().context("no kind")?;
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    // Some kinds are plurals themselves.
    let resource = match types.kind.ends_with("Parameters") {
        true => ApiResource::from_gvk_with_plural(&kind, &types.kind.to_lowercase()),
        false => ApiResource::from_gvk(&kind),
    };
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.clone().context("no name")?;
    let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("helm").force() };
    api.patch(&name, &params, &Patch::Apply(&object)).await.with_context(|| format!("the API server refuses {} {name}", types.kind))?;
    Ok(())
}
