//! Addresses: the server's base URL, and that of a sandbox's execd, which comes without a scheme and perhaps with a path.

use std::collections::BTreeMap;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

/// Where execd listens in a sandbox.
pub(crate) const EXECD_PORT: u16 = 44772;

/// How a sandbox's execd is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Through the server, at its address and with its TLS.
    #[default]
    ServerProxy,
    /// At the address that the server names, by plain HTTP. The API key is never sent there.
    Direct,
}

/// A base URL that can't be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint must be an http or https URL with a host and without credentials, query and fragment")]
pub struct InvalidUrl;

/// The base URL of a server, as `https://host/v1`; what is below it is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(Url);

impl ServerUrl {
    /// Reads it.
    pub fn parse(text: &str) -> Result<Self, InvalidUrl> {
        base(text).map(Self)
    }

    pub(crate) fn at(&self, path: &[&str]) -> Url {
        below(&self.0, path)
    }

    /// `/health` stands beside `/v1`.
    pub(crate) fn health(&self) -> Url {
        let mut url = self.0.clone();
        if url.path().trim_end_matches('/').ends_with("/v1")
            && let Ok(mut segments) = url.path_segments_mut()
        {
            segments.pop_if_empty().pop();
        }
        below(&url, &["health"])
    }

    pub(crate) fn url(&self) -> &Url {
        &self.0
    }
}

fn base(text: &str) -> Result<Url, InvalidUrl> {
    let url = Url::parse(text).map_err(|_| InvalidUrl)?;
    let is_base = matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty() && url.password().is_none();
    if !is_base || url.query().is_some() || url.fragment().is_some() {
        return Err(InvalidUrl);
    }
    Ok(url)
}

/// `path` below `url`; each of its parts is encoded, so that an id can't lead elsewhere.
pub(crate) fn below(url: &Url, path: &[&str]) -> Url {
    let mut url = url.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    url
}

/// The answer of `/endpoints/{port}`.
#[derive(Debug, Deserialize)]
pub(crate) struct Endpoint {
    endpoint: String,
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
}

/// Where an execd is, and what every call to it carries.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub url: Url,
    pub headers: HeaderMap,
    /// It is at the server's own address, which may want its key.
    pub with_key: bool,
}

impl Endpoint {
    /// Makes a URL of it; None if that can't be done.
    pub(crate) fn route(self, server: &ServerUrl, access: Access) -> Option<Route> {
        let scheme = match access {
            Access::ServerProxy => server.url().scheme(),
            Access::Direct => "http",
        };
        let has_scheme = self.endpoint.starts_with("http://") || self.endpoint.starts_with("https://");
        let url = base(&if has_scheme { self.endpoint } else { format!("{scheme}://{}", self.endpoint) }).ok()?;
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers.unwrap_or_default() {
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true); // OpenSandbox-Secure-Access is a credential
            headers.insert(HeaderName::try_from(name).ok()?, value);
        }
        let with_key = access == Access::ServerProxy && url.origin() == server.url().origin();
        Some(Route { url, headers, with_key })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn route(server: &str, access: Access, endpoint: &str) -> (String, bool) {
        let answer = Endpoint { endpoint: endpoint.to_owned(), headers: None };
        let route = answer.route(&ServerUrl::parse(server).unwrap(), access).unwrap();
        (below(&route.url, &["command", "status", "a/../b"]).to_string(), route.with_key)
    }

    #[test]
    fn an_endpoint_has_no_scheme_and_may_have_a_path() {
        let direct = route("https://s/v1", Access::Direct, "127.0.0.1:41157/proxy/44772");
        assert_eq!(direct, ("http://127.0.0.1:41157/proxy/44772/command/status/a%2F..%2Fb".to_owned(), false));
        let proxied = route("https://s:8443/v1", Access::ServerProxy, "s:8443/v1/sandboxes/x/proxy/44772");
        assert_eq!(proxied, ("https://s:8443/v1/sandboxes/x/proxy/44772/command/status/a%2F..%2Fb".to_owned(), true));
    }

    #[test]
    fn the_key_goes_to_nobody_but_the_server() {
        for (endpoint, access) in [("other:8443/x", Access::ServerProxy), ("s:8443/x", Access::Direct), ("http://s:8443/x", Access::ServerProxy)] {
            assert!(!route("https://s:8443/v1", access, endpoint).1, "{endpoint}");
        }
    }

    #[test]
    fn a_base_has_nothing_that_could_be_a_secret() {
        for text in ["", "s/v1", "ftp://s", "http://u:p@s/v1", "http://u@s", "http://s/v1?key=x", "http://s/#x", "http://"] {
            assert_eq!(ServerUrl::parse(text), Err(InvalidUrl), "{text}");
        }
        assert_eq!(ServerUrl::parse("http://s/v1/").unwrap().at(&["sandboxes"]).as_str(), "http://s/v1/sandboxes");
        for (base, health) in [("http://s/v1", "http://s/health"), ("http://s/a/v1/", "http://s/a/health"), ("http://s", "http://s/health")] {
            assert_eq!(ServerUrl::parse(base).unwrap().health().as_str(), health);
        }
    }
}
