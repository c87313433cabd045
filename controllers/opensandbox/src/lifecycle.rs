//! The lifecycle API: sandboxes of one server.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use reqwest::Method;
use reqwest::RequestBuilder;
use secrecy::SecretString;
use serde_json::json;

use crate::endpoint::{Access, EXECD_PORT, Endpoint, ServerUrl};
use crate::error::{Cause, Error, Operation};
use crate::execd::Execd;
use crate::secret::ApiKeys;
use crate::transport::{Answer, InvalidAuthority, Peer, Settings, Transport};
use crate::types::{CreateSandbox, Expiration, Metadata, Page, Sandbox};

/// As many as the server gives.
const PAGE_SIZE: u32 = 200;
/// A hundred thousand sandboxes; more is a server that always says that there is more.
const PAGES_MAX: u32 = 500;

/// A client of one server. Clones share its connections and limits.
#[derive(Clone)]
pub struct Client {
    server: ServerUrl,
    transport: Arc<Transport>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Client {
    /// A client; nothing is sent yet.
    pub fn new(server: ServerUrl, keys: Arc<dyn ApiKeys>, settings: &Settings) -> Result<Self, InvalidAuthority> {
        Ok(Self { server, transport: Arc::new(Transport::new(settings, keys)?) })
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        self.transport.http.request(method, self.server.at(path)).timeout(self.transport.timeouts.call)
    }

    async fn send(&self, operation: Operation, request: RequestBuilder) -> Result<Answer, Error> {
        self.transport.send(operation, Peer::Server, request).await
    }

    /// The server's time now, by the date of its last answer, right to a second and to how long that took; None before the first. Times that it is told, and
    /// tells, are by this clock.
    #[must_use]
    pub fn server_time(&self) -> Option<Timestamp> {
        self.transport.server_time()
    }

    /// Whether the server answers. It says nothing of its runtime, nor of the key.
    pub async fn health(&self) -> Result<(), Error> {
        let request = self.transport.http.request(Method::GET, self.server.health()).timeout(self.transport.timeouts.call);
        self.send(Operation::Health, request).await.map(drop)
    }

    /// Makes a sandbox. It takes as long as the pull of its image and its start. Two calls make two.
    pub async fn create(&self, sandbox: &CreateSandbox) -> Result<Sandbox, Error> {
        let request = self.request(Method::POST, &["sandboxes"]).timeout(self.transport.timeouts.create).json(sandbox);
        self.send(Operation::Create, request).await?.json().await
    }

    /// One sandbox. A 404 of [`Error::is_sandbox_not_found`]: deleted or expired, nobody knows which.
    pub async fn get(&self, id: &str) -> Result<Sandbox, Error> {
        self.send(Operation::Get, self.request(Method::GET, &["sandboxes", id])).await?.json().await
    }

    /// Every sandbox with all of this metadata, also those that have ended; each once. One that comes or goes meanwhile may be left out.
    ///
    /// [`Cause::Unfiltered`] if any of them does not have it. While a create is under way its sandbox may not be listed yet: that none is listed does not prove that none is coming.
    pub async fn list(&self, metadata: &Metadata) -> Result<Vec<Sandbox>, Error> {
        let mut found: Vec<Sandbox> = Vec::new();
        for page in 1..=PAGES_MAX {
            let query = [("metadata", metadata_query(metadata)), ("page", page.to_string()), ("pageSize", PAGE_SIZE.to_string())];
            let given = query.iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>();
            let answer = self.send(Operation::List, self.request(Method::GET, &["sandboxes"]).query(&given)).await?;
            let Page { items, pagination } = answer.json().await?;
            // What comes of a list is removed, or taken for a Job's: it must not rest on a query that something drops on its way.
            if items.iter().any(|sandbox| metadata.iter().any(|(key, value)| sandbox.metadata.get(key) != Some(value))) {
                return Err(Error::no_answer(Operation::List, Cause::Unfiltered));
            }
            let is_last = items.is_empty() || !pagination.has_next_page;
            for sandbox in items {
                if !found.iter().any(|other| other.id == sandbox.id) {
                    found.push(sandbox);
                }
            }
            if is_last {
                return Ok(found);
            }
        }
        Err(Error::no_answer(Operation::List, Cause::TooLong))
    }

    /// Removes a sandbox and kills all in it. Ok(false) if there is none. Kubernetes only begins to.
    pub async fn delete(&self, id: &str) -> Result<bool, Error> {
        match self.send(Operation::Delete, self.request(Method::DELETE, &["sandboxes", id])).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_sandbox_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Freezes a sandbox. Its time to live and those of its commands go on.
    pub async fn pause(&self, id: &str) -> Result<(), Error> {
        self.send(Operation::Pause, self.request(Method::POST, &["sandboxes", id, "pause"])).await.map(drop)
    }

    /// Lets a frozen sandbox go on.
    pub async fn resume(&self, id: &str) -> Result<(), Error> {
        self.send(Operation::Resume, self.request(Method::POST, &["sandboxes", id, "resume"])).await.map(drop)
    }

    /// Sets when the server removes the sandbox; the time that it confirms.
    pub async fn renew(&self, id: &str, expires_at: Timestamp) -> Result<Timestamp, Error> {
        let request = self.request(Method::POST, &["sandboxes", id, "renew-expiration"]).json(&json!({"expiresAt": expires_at}));
        let Expiration { expires_at } = self.send(Operation::Renew, request).await?.json().await?;
        Ok(expires_at)
    }

    /// The execd of a sandbox. It is not asked: it may not be there yet, or no longer.
    ///
    /// `token` must be what the sandbox got as `EXECD_ACCESS_TOKEN`. The address counts for this sandbox's life only.
    pub async fn execd(&self, id: &str, access: Access, token: Option<SecretString>) -> Result<Execd, Error> {
        let request = self.request(Method::GET, &["sandboxes", id, "endpoints", &EXECD_PORT.to_string()]);
        let request = if access == Access::ServerProxy { request.query(&[("use_server_proxy", "true")]) } else { request };
        let endpoint: Endpoint = self.send(Operation::Endpoint, request).await?.json().await?;
        let unreadable = || Error::no_answer(Operation::Endpoint, Cause::Unreadable);
        let route = endpoint.route(&self.server, access).ok_or_else(unreadable)?;
        Execd::new(Arc::clone(&self.transport), route, token)
    }
}

/// `k=v&k2=v2`, encoded: one parameter's value, which is encoded once more as such.
fn metadata_query(metadata: &Metadata) -> String {
    let Ok(mut url) = reqwest::Url::parse("http://x/") else { return String::new() };
    url.query_pairs_mut().extend_pairs(metadata);
    url.query().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_a_query_within_a_query() {
        let metadata = [("a/job-uid", "6f1c-1"), ("b", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(metadata_query(&Metadata::from(metadata)), "a%2Fjob-uid=6f1c-1&b=");
        assert_eq!(metadata_query(&Metadata::new()), "");
    }
}
