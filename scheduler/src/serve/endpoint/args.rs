//! The flags about the endpoints, by the names that kube-scheduler's have where the meaning is the same.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::duration::parse_go;
use clap::Args;

use super::gate;
use super::tls::Files;

/// See the module.
#[derive(Clone, Debug, Args)]
pub struct EndpointArgs {
    /// Serves the endpoints over TLS with this certificate, PEM, intermediates after it; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// All endpoints but the health checks want a bearer token (TokenReview) that may get their path (SubjectAccessReview). Over TLS,
    /// self-signed unless a certificate is given
    #[arg(long)]
    pub delegated_auth: bool,
    /// How long the answer to a TokenReview holds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// How long a SubjectAccessReview that allows holds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a SubjectAccessReview that does not allow holds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Paths that anybody may get besides the health checks, as /metrics; a trailing * stands for any ending
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    pub authorization_always_allow_paths: Vec<String>,
}

impl EndpointArgs {
    /// The certificate, if one is given.
    pub fn certificate(&self) -> Option<Files> {
        let (certificate, key) = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone())?;
        Some(Files { certificate, key })
    }
}

impl From<&EndpointArgs> for gate::Settings {
    fn from(args: &EndpointArgs) -> Self {
        Self {
            token_ttl: args.authentication_token_webhook_cache_ttl,
            allowed_ttl: args.authorization_webhook_cache_authorized_ttl,
            denied_ttl: args.authorization_webhook_cache_unauthorized_ttl,
            open: args.authorization_always_allow_paths.clone(),
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_go(text).map_err(|error| format!("{error}; write it as 10s or 1m30s"))
}
