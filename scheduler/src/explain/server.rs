//! Asks a running `berth serve`: which configuration is in force, and where a Run stands in its queue.
//!
//! It is asked with the caller's own credential, or a token from a file; neither is sent to a server whose certificate is not trusted,
//! nor without TLS.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use http::StatusCode;
use kube::client::Body;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

/// The flags about the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// A `berth serve`: judges by the configuration that is in force there, and tells where the Run stands in its queue
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Bearer token for it; else the credential of the kubeconfig
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_token_file: Option<PathBuf>,
    /// The authority that signed its certificate, PEM; else the system's
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_ca_file: Option<PathBuf>,
    /// Trusts whatever answers there, as through kubectl port-forward to a self-signed one
    #[arg(long, requires = "server", conflicts_with = "server_ca_file")]
    pub server_insecure_skip_tls_verify: bool,
}

/// A client of the server.
pub struct Server {
    client: Client,
}

impl Server {
    /// The server of the flags, if they name one; `kubeconfig` is where the caller's credential is.
    ///
    /// # Errors
    /// A URL, a file or a kubeconfig that can't be used.
    pub async fn of(args: &ServerArgs, kubeconfig: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let Some(url) = &args.server else { return Ok(None) };
        let url: http::Uri = url.parse().with_context(|| format!("--server {url}: not a URL"))?;
        let secure = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => bail!("--server {url}: must begin with https:// or http://"),
        };
        ensure!(secure || args.server_token_file.is_none(), "--server {url}: a token is only sent over https");
        let mut config = Config::new(url);
        if let Some(file) = &args.server_token_file {
            let token = std::fs::read_to_string(file).with_context(|| format!("--server-token-file {}", file.display()))?;
            config.auth_info.token = Some(token.trim().to_owned().into());
        } else if secure {
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
        Ok(Some(Self { client: Client::try_from(config)? }))
    }

    /// The text of the configuration in force, defaults merged.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn configuration(&self) -> anyhow::Result<String> {
        self.get("/configz").await
    }

    /// The entry of /debug/queue about the Run (null if it is none of the oldest 500), and how many Runs are pending.
    ///
    /// # Errors
    /// The server does not answer, or not with a queue.
    pub async fn standing(&self, namespace: &str, name: &str) -> anyhow::Result<Value> {
        let queue: Value = serde_json::from_str(&self.get("/debug/queue").await?).context("its /debug/queue is not JSON")?;
        ensure!(queue.is_object(), "its /debug/queue is not a queue");
        let about = |run: &&Value| run["namespace"] == namespace && run["name"] == name;
        let run = queue["runs"].as_array().and_then(|runs| runs.iter().find(about)).cloned().unwrap_or(Value::Null);
        Ok(json!({"run": run, "pending": queue["pending"]}))
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.client.send(http::Request::get(path).body(Body::empty())?).await.with_context(|| path.to_owned())?;
        let status = answer.status();
        let body = String::from_utf8_lossy(&answer.into_body().collect_bytes().await?).trim().to_owned();
        match status {
            StatusCode::OK => Ok(body),
            StatusCode::UNAUTHORIZED => bail!("{path}: {status}: {body}; --server-token-file names one, as `kubectl create token` makes it"),
            _ => bail!("{path}: {status}: {body}"),
        }
    }
}
