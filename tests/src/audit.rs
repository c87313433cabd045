//! What the API server itself says it was asked: its audit log, read and counted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One line per request once it is answered (a watch: once it is open). Its own loopback client is left out.
pub const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  users: ["system:apiserver"]
- level: Metadata
  verbs: ["watch"]
  omitStages: ["RequestReceived", "ResponseComplete"]
- level: Metadata
  omitStages: ["RequestReceived", "ResponseStarted"]
"#;

/// The audit log of one API server; it goes on over restarts.
#[derive(Clone, Debug)]
pub struct Audit {
    path: PathBuf,
}

/// One request as the API server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Kubernetes' verb: get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// API group, empty for core.
    pub group: String,
    /// Plural resource, empty for a request of no resource (`/readyz`).
    pub resource: String,
    /// `status`, `eviction`, … or empty.
    pub subresource: String,
    /// Namespace or empty.
    pub namespace: String,
    /// Object name or empty.
    pub name: String,
    /// Who asked.
    pub user: String,
    /// With which client.
    pub user_agent: String,
    /// HTTP status of the answer, 0 if there was none.
    pub code: u16,
    /// Path and query.
    pub uri: String,
    /// What admission noted, as `POLICY/KEY` of a ValidatingAdmissionPolicy's auditAnnotations.
    pub annotations: BTreeMap<String, String>,
}

impl Request {
    /// Whether it asked for a change.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether the answer was 2xx.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl Audit {
    /// Reads the log at `path`; the file may not exist yet.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Every request so far, in the order of their answers. The line of a request is written before its (small) answer
    /// is sent, so whoever has an answer finds its request here.
    pub fn requests(&self) -> Result<Vec<Request>> {
        let text = match std::fs::read(&self.path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", self.path.display()));
            }
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines().filter(|line| line.starts_with('{'));
        // A killed API server may leave half a line in the middle of the file, joined to the next one: left out.
        Ok(lines.filter_map(|line| serde_json::from_str::<Event>(line).ok()).map(Request::from).collect())
    }

    /// How many requests satisfy `wanted`.
    pub fn count(&self, wanted: impl Fn(&Request) -> bool) -> Result<usize> {
        Ok(self.requests()?.iter().filter(|request| wanted(request)).count())
    }

    /// Requests by (verb, resource, subresource, user agent).
    pub fn tally(&self) -> Result<BTreeMap<(String, String, String, String), usize>> {
        let mut tally = BTreeMap::new();
        for r in self.requests()? {
            *tally.entry((r.verb, r.resource, r.subresource, r.user_agent)).or_default() += 1;
        }
        Ok(tally)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl From<Event> for Request {
    fn from(event: Event) -> Self {
        Self {
            verb: event.verb,
            group: event.object_ref.api_group,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            namespace: event.object_ref.namespace,
            name: event.object_ref.name,
            user: event.user.username,
            user_agent: event.user_agent,
            code: event.response_status.code,
            uri: event.request_uri,
            annotations: event.annotations,
        }
    }
}
