//! Which object of which cluster a command is about.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;

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
    /// Namespace and name.
    ///
    /// # Errors
    /// The name says another namespace than the flag.
    pub fn of(&self, default_namespace: &str) -> anyhow::Result<(String, String)> {
        let (namespace, name) = match (self.name.split_once('/'), self.namespace.as_deref()) {
            (None, namespace) => (namespace.unwrap_or(default_namespace), &*self.name),
            (Some((namespace, name)), None) => (namespace, name),
            (Some((namespace, name)), Some(flag)) if namespace == flag => (namespace, name),
            (Some(_), Some(flag)) => bail!("{} is in another namespace than --namespace {flag}", self.name),
        };
        let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
        ensure!(is_name(name) && is_name(namespace), "{:?} is not a name; it must be NAME or NAMESPACE/NAME", self.name);
        Ok((namespace.to_owned(), name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_said_once_or_twice_the_same() {
        let of = |name: &str, flag: Option<&str>| {
            let args = PlaceArgs { name: name.to_owned(), namespace: flag.map(str::to_owned), kubeconfig: None };
            args.of("own").ok().map(|(namespace, name)| format!("{namespace}/{name}"))
        };
        for (name, flag, expected) in [
            ("a", None, Some("own/a")),
            ("a", Some("ci"), Some("ci/a")),
            ("ci/a", None, Some("ci/a")),
            ("ci/a", Some("ci"), Some("ci/a")),
            ("ci/a", Some("other"), None),
        ] {
            assert_eq!(of(name, flag).as_deref(), expected, "{name} {flag:?}");
        }
    }
}
