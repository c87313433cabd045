//! One request to an endpoint of `berth serve`, each over a connection of its own: with a token or without, trusting anybody or one authority.

use anyhow::Result;
use kube::client::Body;
use kube::{Client, Config};

/// Whose certificate is taken.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Anybody's: a self-signed one.
    Anybody,
    /// One that this authority signed, DER.
    Authority(&'a [u8]),
}

/// GET: status and body. An error if no answer came, as when the certificate is not trusted.
pub async fn get(server: &str, path: &str, token: Option<&str>, trust: Trust<'_>) -> Result<(u16, String)> {
    let mut config = Config::new(server.parse()?);
    config.default_retry = false;
    match trust {
        Trust::Anybody => config.accept_invalid_certs = true,
        Trust::Authority(authority) => config.root_cert = Some(vec![authority.to_vec()]),
    }
    config.auth_info.token = token.map(|token| token.to_owned().into());
    let request = hyper::Request::get(path).body(Body::empty())?;
    let answer = Client::try_from(config)?.send(request).await?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await?;
    Ok((code, String::from_utf8(body.to_vec())?))
}
