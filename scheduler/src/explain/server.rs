//! Asks a running `berth serve`: which configuration is in force, and where a Run stands in its queue.
//!
//! It is asked with the caller's own credential, or a token from a file, and by TLS alone. To a server whose certificate is not verified
//! (`--server-insecure-skip-tls-verify`) the caller's own credential only goes on this machine; further away only a token that was named.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use http::StatusCode;
use kube::client::Body;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;

use crate::cli::causes;
use crate::serve::debug_queue::{Doing, QueueView, RunView};

/// The flags about the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// A `berth serve`: judges by the configuration that is in force there, and tells where the Run stands in its queue. If it can't be
    /// asked, nothing is judged
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// If the server can't be asked, warns and goes on as without --server
    #[arg(long, requires = "server")]
    pub server_optional: bool,
    /// Bearer token for it; else the credential of the kubeconfig
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_token_file: Option<PathBuf>,
    /// The authority that signed its certificate, PEM; else the system's
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_ca_file: Option<PathBuf>,
    /// Trusts whatever answers there, as through kubectl port-forward to a self-signed one; on another host it also needs --server-token-file
    #[arg(long, requires = "server", conflicts_with = "server_ca_file")]
    pub server_insecure_skip_tls_verify: bool,
}

/// A client of the server.
pub struct Server {
    client: Client,
    /// As it was named.
    pub url: String,
}

/// Where a Run stands in the server's queue.
#[derive(Clone, Debug, Serialize)]
pub struct Queue {
    /// What that process does about placing.
    pub state: Doing,
    /// Identity of the leader, if it is one of several.
    pub leader: Option<String>,
    /// The namespace it serves, if it serves one alone.
    pub namespace: Option<String>,
    /// Whether it serves the Run's namespace.
    pub served: bool,
    /// Runs that are not placed and have not ended.
    pub pending: usize,
    /// The Run; null if that process does not know it.
    pub run: Option<RunView>,
}

impl Server {
    /// The server of the flags, if they name one; `kubeconfig` is where the caller's credential is.
    ///
    /// # Errors
    /// A URL, a file or a kubeconfig that can't be used.
    pub async fn of(args: &ServerArgs, kubeconfig: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let Some(named) = &args.server else { return Ok(None) };
        let url: http::Uri = named.parse().with_context(|| format!("--server {named}: not a URL"))?;
        let secure = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => bail!("--server {named}: must begin with https:// or http://"),
        };
        ensure!(secure || args.server_token_file.is_none(), "--server {named}: a token is only sent over https");
        let nearby = is_loopback(url.host().unwrap_or_default());
        let mut config = Config::new(url);
        if let Some(file) = &args.server_token_file {
            let token = std::fs::read_to_string(file).with_context(|| format!("--server-token-file {}", file.display()))?;
            config.auth_info.token = Some(token.trim().to_owned().into());
        } else if secure {
            ensure!(
                nearby || !args.server_insecure_skip_tls_verify,
                "--server {named}: the credential of the kubeconfig is not sent to another host that nobody verifies; name a token for it with \
                 --server-token-file, or who signed its certificate with --server-ca-file"
            );
            config.auth_info = berth_runtime::apiclient::config(kubeconfig).await?.auth_info;
        }
        if let Some(file) = &args.server_ca_file {
            let of = || format!("--server-ca-file {}", file.display());
            let authorities = CertificateDer::pem_file_iter(file).with_context(of)?.collect::<Result<Vec<_>, _>>().with_context(of)?;
            ensure!(!authorities.is_empty(), "{}: holds no certificate in PEM", of());
            config.root_cert = Some(authorities.iter().map(|authority| authority.to_vec()).collect());
        }
        config.accept_invalid_certs = args.server_insecure_skip_tls_verify;
        config.default_retry = false;
        Ok(Some(Self { client: Client::try_from(config)?, url: named.clone() }))
    }

    /// The text of the configuration in force, defaults merged.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn configuration(&self) -> anyhow::Result<String> {
        self.get("/configz").await
    }

    /// Where the Run stands in its queue.
    ///
    /// # Errors
    /// The server does not answer, or not with a queue.
    pub async fn standing(&self, namespace: &str, name: &str) -> anyhow::Result<Queue> {
        // Names of Kubernetes need no escape in a query.
        let text = self.get(&format!("/debug/queue?run={namespace}/{name}")).await?;
        let QueueView { state, leader, namespace: only, pending, runs, .. } =
            serde_json::from_str(&text).context("/debug/queue: not a queue as this version of Berth tells it")?;
        let served = only.as_deref().is_none_or(|only| only == namespace);
        let run = runs.into_iter().find(|run| (&*run.namespace, &*run.name) == (namespace, name));
        Ok(Queue { state, leader, namespace: only, served, pending, run })
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let path_alone = path.split('?').next().unwrap_or_default();
        let sent = self.client.send(http::Request::get(path).body(Body::empty())?).await;
        let answer = sent.map_err(|error| anyhow::anyhow!("{path_alone}: {}", unanswered(&causes(&error))))?;
        let status = answer.status();
        let body = String::from_utf8_lossy(&answer.into_body().collect_bytes().await?).trim().to_owned();
        match status {
            StatusCode::OK => Ok(body),
            StatusCode::UNAUTHORIZED => bail!("{path_alone}: {status}: {body}; --server-token-file names one, as `kubectl create token` makes it"),
            _ => bail!("{path_alone}: {status}: {body}"),
        }
    }
}

/// Whether this host is the machine itself.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Why there was no answer, with what to do about a certificate.
fn unanswered(why: &str) -> String {
    if why.contains("CaUsedAsEndEntity") {
        "its certificate is an authority's (CA:TRUE, as `openssl req -x509` makes them) and can't be a server's as well; make it with \
         `-addext basicConstraints=critical,CA:FALSE`, or skip verification with --server-insecure-skip-tls-verify"
            .to_owned()
    } else if why.contains("UnknownIssuer") {
        format!("{why}; --server-ca-file names who signed it")
    } else {
        why.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_told_from_others() {
        for (host, nearby) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("[::1]", true),
            ("localhost.example", false),
            ("127.0.0.1.example", false),
            ("10.0.0.1", false),
            ("[2001:db8::1]", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host), nearby, "{host}");
        }
    }
}
