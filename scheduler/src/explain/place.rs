//! Which object of which cluster a command is about.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{bail, ensure};
use berth_runtime::apiclient::{Limits, connect};
use clap::Args;
use kube::Client;

#[derive(Clone, Debug, Args)]
pub struct PlaceArgs {
    /// Its name, or NAMESPACE/NAME
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Its namespace; else the one of the kubeconfig's context
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Kubeconfig of the cluster; else KUBECONFIG, ~/.kube/config or the Pod's own account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

impl PlaceArgs {
    /// The cluster, and namespace and name there of an object of that kind. What is wrong with the names is told before any cluster is asked.
    ///
    /// # Errors
    /// The name is none, or says another namespace than the flag; there is no cluster.
    pub async fn find(&self, kind: &str, limits: Limits) -> anyhow::Result<(Client, String, String)> {
        let (namespace, name) = self.names(kind)?;
        let client = connect(self.kubeconfig.as_deref(), limits, Arc::new(())).await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace()).to_owned();
        Ok((client, namespace, name.to_owned()))
    }

    /// Namespace, if one is named, and name.
    fn names(&self, kind: &str) -> anyhow::Result<(Option<&str>, &str)> {
        let (namespace, name) = match (self.name.split_once('/'), self.namespace.as_deref()) {
            (None, namespace) => (namespace, &*self.name),
            (Some((namespace, name)), None) => (Some(namespace), name),
            (Some((namespace, name)), Some(flag)) if namespace == flag => (Some(namespace), name),
            (Some(_), Some(flag)) => bail!("{} is in another namespace than --namespace {flag}", self.name),
        };
        let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
        ensure!(is_name(name) && namespace.is_none_or(is_name), "{:?} is not the name of a {kind}; it must be NAME or NAMESPACE/NAME", self.name);
        Ok((namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_said_once_or_twice_the_same() {
        let of = |name: &str, flag: Option<&str>| {
            let args = PlaceArgs { name: name.to_owned(), namespace: flag.map(str::to_owned), kubeconfig: None };
            args.names("Run").ok().map(|(namespace, name)| format!("{}/{name}", namespace.unwrap_or("own")))
        };
        for (name, flag, expected) in [
            ("a", None, Some("own/a")),
            ("a", Some("ci"), Some("ci/a")),
            ("ci/a", None, Some("ci/a")),
            ("ci/a", Some("ci"), Some("ci/a")),
            ("ci/a", Some("other"), None),
            ("", None, None),
            ("a b", None, None),
        ] {
            assert_eq!(of(name, flag).as_deref(), expected, "{name} {flag:?}");
        }
    }
}
