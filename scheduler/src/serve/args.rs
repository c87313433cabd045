//! The flags of `berth serve`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use berth_controllers::job::adapter::opensandbox::{OwnSecrets, SecretName};
use berth_framework::profile::MAX_BIND_WORKERS;
use clap::{Args, ValueEnum};

use super::configuration::{ConfigMapName, Overrides, Source};
use super::endpoint::EndpointArgs;
use super::leading::ElectionArgs;

/// Flags of `berth serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Kubeconfig of the cluster; else KUBECONFIG, ~/.kube/config or the Pod's own account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Serves this namespace only
    #[arg(long, short, value_name = "NAME", value_parser = namespace)]
    pub namespace: Option<String>,
    /// Where health, metrics and debug endpoints listen, as 127.0.0.1:8080, localhost:8080 or :8080 (everywhere); port 0 picks a free one and logs it
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", value_parser = address)]
    pub metrics_addr: SocketAddr,
    /// BerthConfiguration: profiles, plugins, args; read again when it changes and at SIGHUP
    #[arg(long, value_name = "FILE", conflicts_with = "config_map")]
    pub config: Option<PathBuf>,
    /// ConfigMap with a BerthConfiguration under config.yaml or its only key; watched
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub config_map: Option<ConfigMapName>,
    /// Status writes of Runs under way at once; wins over the configuration's bindWorkers (32)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_BIND_WORKERS)))]
    pub bind_workers: Option<u32>,
    /// Publishes no Event per placement
    #[arg(long)]
    pub no_scheduled_events: bool,
    /// Carries Jobs of execution.ayatori.ddupan.top too, of the whole cluster; needs their CRDs
    #[arg(long, conflicts_with = "namespace")]
    pub jobs: bool,
    /// Those of JobClasses of OpenSandbox too; this Secret is the installation's identity: empty at first, it is filled once
    #[arg(long, value_name = "NAMESPACE/SECRET", requires = "jobs", value_parser = secret)]
    pub jobs_opensandbox: Option<SecretName>,
    /// A Secret that an OpenSandboxExecutionParameters may name as its apiKeySecretRef, each; no other is read
    #[arg(long, value_name = "NAMESPACE/SECRET", requires = "jobs_opensandbox", value_parser = secret)]
    pub jobs_opensandbox_api_key: Vec<SecretName>,
    /// Leader election
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Receiver of OpenTelemetry traces, OTLP over HTTP with protobuf, as http://collector:4318; else OTEL_EXPORTER_OTLP_ENDPOINT; none without
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Who may read the endpoints, and over TLS
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Format of the log on stderr
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// More log; twice for every attempt
    #[arg(short, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl ServeArgs {
    /// Where the configuration comes from.
    pub fn source(&self) -> Source {
        match (&self.config_map, &self.config) {
            (Some(name), _) => Source::ConfigMap(name.clone()),
            (None, Some(path)) => Source::File(path.clone()),
            (None, None) => Source::Defaults,
        }
    }

    /// What wins over the configuration.
    pub fn overrides(&self) -> Overrides {
        Overrides { bind_workers: self.bind_workers, election: self.election.clone() }
    }

    /// The installation's own Secrets, if Jobs of OpenSandbox classes are carried.
    pub fn opensandbox(&self) -> Option<OwnSecrets> {
        let installation = self.jobs_opensandbox.clone()?;
        Some(OwnSecrets { installation, api_keys: self.jobs_opensandbox_api_key.clone() })
    }
}

fn secret(text: &str) -> Result<SecretName, String> {
    let named = text.split_once('/').filter(|(namespace, name)| berth_api::names::is_dns_label(namespace) && berth_api::names::is_dns_subdomain(name));
    let (namespace, name) = named.ok_or("a Secret is named by its namespace and its name, as berth/berth-installation")?;
    Ok(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn namespace(text: &str) -> Result<String, String> {
    if berth_api::names::is_dns_label(text) { Ok(text.to_owned()) } else { Err("no namespace can have this name; leave the flag out for all".to_owned()) }
}

/// `HOST:PORT`; without a host every IPv4 address of this machine.
fn address(text: &str) -> Result<SocketAddr, String> {
    let everywhere = text.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
    let found =
        everywhere.as_deref().unwrap_or(text).to_socket_addrs().map_err(|error| format!("{error}; write it as 127.0.0.1:8080, localhost:8080 or :8080"))?;
    found.into_iter().next().ok_or_else(|| "this host has no address".to_owned())
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_namespaces_are_read_or_refused_with_a_remedy() {
        for (text, expected) in [("127.0.0.1:0", "127.0.0.1:0"), (":8080", "0.0.0.0:8080"), ("[::1]:80", "[::1]:80")] {
            assert_eq!(address(text).map(|address| address.to_string()), Ok(expected.to_owned()));
        }
        assert!(address("localhost:8080").is_ok_and(|address| address.ip().is_loopback() && address.port() == 8080));
        for text in ["", "8080", "localhost", "127.0.0.1:http", ":", "127.0.0.1:65536"] {
            assert!(address(text).is_err_and(|error| error.contains("write it as")), "{text}");
        }
        assert_eq!(namespace("ci"), Ok("ci".to_owned()));
        for text in ["", "Bad_NS!", "a.b"] {
            assert!(namespace(text).is_err(), "{text}");
        }
    }
}
