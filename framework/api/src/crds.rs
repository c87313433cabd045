//! The CRDs as objects and as the files of deploy/crds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::rules::{self, CrdError};

/// First line of each generated file.
const HEADER: &str = "# Generated from the Rust types and their rules by `berth crds`; do not edit.\n";

/// A definition can't be written.
#[derive(Debug, thiserror::Error)]
pub enum CrdsError {
    /// The table of rules doesn't fit the types.
    #[error(transparent)]
    Crd(#[from] CrdError),
    /// The definition can't be written as YAML.
    #[error("cannot write {name} as YAML: {cause}")]
    Yaml {
        /// Name of the CRD.
        name: String,
        /// Why.
        cause: String,
    },
}

/// Run and PersistentWorkspace.
///
/// # Errors
/// None on a tested build: the table of rules fits the types.
pub fn try_crds() -> Result<Vec<CustomResourceDefinition>, CrdError> {
    Ok(vec![rules::RUN.crd()?, rules::WORKSPACE.crd()?])
}

/// The files of [`try_crds`]; see [`yaml_files`].
///
/// # Errors
/// None on a tested build.
pub fn crds_yaml() -> Result<Vec<(String, String)>, CrdsError> {
    yaml_files(try_crds()?)
}

/// File name (`<group>_<plural>.yaml`) and content of each CRD; the same bytes from the same sources.
///
/// # Errors
/// A definition that can't be written as YAML; none on a tested build.
pub fn yaml_files(crds: Vec<CustomResourceDefinition>) -> Result<Vec<(String, String)>, CrdsError> {
    crds.into_iter()
        .map(|crd| {
            let file = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
            let yaml = serde_saphyr::to_string(&crd).map_err(|error| CrdsError::Yaml { name: file.clone(), cause: error.to_string() })?;
            Ok((file, format!("{HEADER}{yaml}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn yaml_reads_back_as_the_same_definition() {
        for (crd, (name, yaml)) in try_crds().unwrap().into_iter().zip(crds_yaml().unwrap()) {
            let back: CustomResourceDefinition = serde_saphyr::from_str(&yaml).unwrap();
            assert_eq!(back, crd, "{name}");
        }
    }
}
