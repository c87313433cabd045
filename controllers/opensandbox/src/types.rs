//! Requests and answers of the lifecycle API.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::secret::{expose, expose_map};

/// Metadata: keys and values as Kubernetes labels have them.
pub type Metadata = BTreeMap<String, String>;

/// `POST /sandboxes`. Fields that a server does not know it ignores without a word.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateSandbox {
    /// What it is made of.
    pub image: Image,
    /// Its process 1's command, at least one word. When that ends, the sandbox ends.
    pub entrypoint: Vec<String>,
    /// Environment. Readable in the sandbox and, but for some names, in the server's diagnostics.
    #[serde(serialize_with = "expose_map", skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, SecretString>,
    /// Limits: `cpu`, `memory`, `gpu`. Docker ignores any other key.
    pub resource_limits: BTreeMap<String, String>,
    /// Requests; Kubernetes only, servers since 1.1.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resource_requests: BTreeMap<String, String>,
    /// Seconds until it is removed, at least 60; None is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// What it can be found by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Metadata,
    /// Which platform it must be of; None is the server's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// An image and who may pull it.
#[derive(Clone, Debug, Serialize)]
pub struct Image {
    /// Its reference.
    pub uri: String,
    /// Credentials of its registry. Docker looks at them only when it pulls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<ImageAuth>,
}

/// Credentials of a registry.
#[derive(Clone, Debug, Serialize)]
pub struct ImageAuth {
    /// User.
    pub username: String,
    /// Password or token.
    #[serde(serialize_with = "expose")]
    pub password: SecretString,
}

/// A platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux` or `windows`.
    pub os: String,
    /// `amd64` or `arm64`.
    pub arch: String,
}

/// A sandbox as the server tells of it. Its create answer's `createdAt` differs a little from that of all later ones.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Chosen by the server.
    pub id: String,
    /// How it is.
    pub status: Status,
    /// What was given at its creation, and on Docker the image's labels too.
    #[serde(default, deserialize_with = "none_as_default")]
    pub metadata: Metadata,
    /// When the server removes it; None is never.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// State of a sandbox.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// State.
    pub state: State,
    /// Why, a word.
    #[serde(default)]
    pub reason: Option<String>,
    /// For people, but the only place where Docker tells an entrypoint's exit code. Not printed: a peer's text.
    #[serde(default)]
    pub message: Option<String>,
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Status {
    /// The exit code of the entrypoint, where the server tells it: 0 if Terminated by exit, else out of the message.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        match (&self.state, self.reason.as_deref()) {
            (State::Terminated, Some("CONTAINER_EXITED")) => Some(0),
            (State::Failed, Some("CONTAINER_EXITED_ERROR")) => {
                let message = self.message.as_deref()?.trim_end().trim_end_matches('.');
                message.rsplit_once("code ")?.1.parse().ok()
            }
            _ => None,
        }
    }
}

/// Declares the states; the server may know more.
macro_rules! states {
    ($($(#[$doc:meta])* $state:ident),+ $(,)?) => {
        /// State of a sandbox.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
        pub enum State {
            $($(#[$doc])* $state,)+
            /// `Unknown`, or a word that this client does not know.
            #[serde(other)]
            Unknown,
        }

        impl State {
            /// The word on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$state => stringify!($state),)+
                    Self::Unknown => "Unknown",
                }
            }
        }
    };
}

states! {
    /// Being made; on some Kubernetes runtimes also: ended.
    Pending,
    /// It has an address and is not ready yet.
    Allocated,
    /// Its entrypoint runs.
    Running,
    /// About to be frozen.
    Pausing,
    /// Frozen: execd does not answer.
    Paused,
    /// About to go on.
    Resuming,
    /// About to be removed.
    Stopping,
    /// Its entrypoint ended with 0.
    Terminated,
    /// Its entrypoint ended otherwise, or it could not be made.
    Failed,
}

/// A page of `GET /sandboxes`. Pages shift while sandboxes come and go.
#[derive(Debug, Deserialize)]
pub struct Page {
    /// Newest first.
    pub items: Vec<Sandbox>,
    pub(crate) pagination: Pagination,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pagination {
    pub has_next_page: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Expiration {
    pub expires_at: Timestamp,
}

fn none_as_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_secrets_that_its_debug_does_not() {
        let request = CreateSandbox {
            image: Image { uri: "r/a:1".into(), auth: Some(ImageAuth { username: "u".into(), password: "canary-1".into() }) },
            entrypoint: vec!["sleep".into()],
            env: BTreeMap::from([("K".to_owned(), "canary-2".into())]),
            resource_limits: BTreeMap::new(),
            resource_requests: BTreeMap::new(),
            timeout: Some(60),
            metadata: Metadata::new(),
            platform: None,
        };
        let sent = serde_json::to_value(&request).unwrap();
        assert_eq!(sent["image"]["auth"]["password"], "canary-1");
        assert_eq!(sent["env"]["K"], "canary-2");
        assert_eq!(sent["resourceLimits"], serde_json::json!({}), "required, though empty");
        assert!(!format!("{request:?} {request:#?}").contains("canary"));
    }

    #[test]
    fn unknown_states_absent_fields_and_nulls_are_borne() {
        let text = r#"{"id":"a","status":{"state":"Hibernating","reason":null},"metadata":null,"createdAt":"2026-11-29T10:00:00.123456Z","new":1}"#;
        let sandbox: Sandbox = serde_json::from_str(text).unwrap();
        assert_eq!((sandbox.status.state, sandbox.expires_at), (State::Unknown, None));
    }

    #[test]
    fn an_entrypoint_s_exit_code_is_read_where_it_is_told() {
        let status = |state, reason: &str, message: &str| Status { state, reason: Some(reason.into()), message: Some(message.into()) };
        assert_eq!(status(State::Failed, "CONTAINER_EXITED_ERROR", "Sandbox container exited with code 137.").exit_code(), Some(137));
        assert_eq!(status(State::Terminated, "CONTAINER_EXITED", "Sandbox container exited.").exit_code(), Some(0));
        assert_eq!(status(State::Failed, "CONTAINER_EXITED_ERROR", "gone").exit_code(), None);
        assert_eq!(status(State::Running, "CONTAINER_RUNNING", "code 3").exit_code(), None);
    }
}
