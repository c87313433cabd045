//! Installs Berth's CRDs from deploy/crds, as a user would, and waits until the API server serves them.

use anyhow::{Context as _, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};

use crate::controlplane::checkout;
use crate::poll::{PATIENCE, until};

/// Reads every CRD of deploy/crds, in the order of the file names.
pub fn read() -> Result<Vec<CustomResourceDefinition>> {
    let folder = checkout().join("deploy/crds");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}; `make crds` writes it", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    files.sort();
    let mut crds = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        for document in text.split("\n---\n") {
            if document.lines().all(|line| line.trim().is_empty() || line.starts_with('#') || line == "---") {
                continue;
            }
            crds.push(serde_saphyr::from_str(document).with_context(|| format!("{} is no CRD", file.display()))?);
        }
    }
    if crds.is_empty() {
        bail!("{} holds no CRD; `make crds` writes them", folder.display());
    }
    Ok(crds)
}

/// Installs what [`read`] returns.
pub async fn install(client: &Client) -> Result<()> {
    install_these(client, &read()?).await
}

/// Installs or replaces `crds` and waits until each is served.
pub async fn install_these(client: &Client, crds: &[CustomResourceDefinition]) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds {
        let params = PatchParams::apply("berth-tests").force();
        let name = crd.name_any();
        match api.patch(&name, &params, &Patch::Apply(crd)).await {
            Err(kube::Error::Api(status)) => {
                bail!("the API server refuses CRD {name}: {}", status.message)
            }
            other => other?,
        };
    }
    for crd in crds {
        let name = crd.name_any();
        until(&format!("CRD {name} to be established"), PATIENCE, || async {
            let status = api.get(&name).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            Ok(conditions.iter().any(|c| c.type_ == "Established" && c.status == "True").then_some(()))
        })
        .await?;
        // Established comes a moment before every path is served.
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let path = format!("/apis/{}/{}/{}?limit=1", crd.spec.group, version.name, crd.spec.names.plural);
            until(&format!("{path} to be served"), PATIENCE, || async {
                client.request_text(crate::controlplane::http_get(&path)?).await?;
                Ok(Some(()))
            })
            .await?;
        }
    }
    Ok(())
}
