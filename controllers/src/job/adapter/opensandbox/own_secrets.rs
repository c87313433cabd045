//! The Secrets that are the installation's own: its identity, and the API keys of its servers.

use std::fmt;

use berth_runtime::apiclient::{CallError, get_uncached};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde_json::json;

use super::names::NONCE_LENGTH;
use crate::job::api::opensandbox::SecretKeyReference;
use crate::job::reason::Readiness;

/// Key of the installation's Secret.
const KEY: &str = "key";
/// Bytes that it has at least.
const KEY_BYTES_MIN: usize = 16;
/// Bytes of one that is made here.
const KEY_BYTES: usize = 32;
/// How often it is read and, if it is empty, filled.
const FILLS: usize = 3;

/// A Secret's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which Secrets are the installation's own.
#[derive(Clone, Debug)]
pub struct OwnSecrets {
    /// That with its identity: empty at first, and filled once.
    pub installation: SecretName,
    /// Those with servers' API keys. Whoever makes parameters names a Secret *and* where it is sent to: he can name none but these.
    pub api_keys: Vec<SecretName>,
}

/// Why there is no API key. In words of ours, which name the Secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoApiKey {
    /// It was not read.
    #[error(
        "Secret {0} is none of the API keys of this installation: jobs.openSandbox.apiKeySecrets of the chart lists them, --jobs-opensandbox-api-key of berth serve"
    )]
    NotAllowed(SecretName),
    /// 403.
    #[error("the controller may not get Secret {0}: its Role is missing, which the chart makes of jobs.openSandbox.apiKeySecrets")]
    Forbidden(SecretName),
    /// 404.
    #[error("Secret {0} does not exist")]
    Absent(SecretName),
    /// It has other keys, or none.
    #[error("Secret {0} has no key {1}")]
    NoSuchKey(SecretName, String),
    /// No header can carry it.
    #[error("Secret {0}: key {1} is no text in UTF-8")]
    NoText(SecretName, String),
    /// That may pass.
    #[error("the API server does not tell what Secret {0} has")]
    Untold(SecretName),
}

impl NoApiKey {
    /// Whether it is certain that there is none, so that one of before counts no more.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Forbidden(_) | Self::Untold(_))
    }

    /// For the classes of the server.
    pub fn readiness(&self) -> Readiness {
        match self {
            Self::NotAllowed(_) => Readiness::ApiKeyNotAllowed,
            _ => Readiness::ApiKeyUnavailable,
        }
    }
}

/// A server's API key as it is now.
///
/// # Errors
/// There is none, or it can't be had.
pub async fn api_key(client: &Client, allowed: &[SecretName], reference: &SecretKeyReference) -> Result<SecretString, NoApiKey> {
    let name = SecretName { namespace: reference.namespace.clone(), name: reference.name.clone() };
    if !allowed.contains(&name) {
        return Err(NoApiKey::NotAllowed(name));
    }
    let api: Api<Secret> = Api::namespaced(client.clone(), &name.namespace);
    match get_uncached(&api, &name.name).await {
        Ok(Some(secret)) => of_key(secret, name, &reference.key),
        Ok(None) => Err(NoApiKey::Absent(name)),
        Err(error) if error.is_forbidden() => Err(NoApiKey::Forbidden(name)),
        Err(_) => Err(NoApiKey::Untold(name)),
    }
}

fn of_key(secret: Secret, name: SecretName, key: &str) -> Result<SecretString, NoApiKey> {
    match secret.data.and_then(|mut data| data.remove(key)).map(|value| String::from_utf8(value.0)) {
        Some(Ok(value)) => Ok(value.into()),
        Some(Err(_)) => Err(NoApiKey::NoText(name, key.to_owned())),
        None => Err(NoApiKey::NoSuchKey(name, key.to_owned())),
    }
}

/// What makes an installation itself: no other has its sandboxes' tokens, nor its name in their metadata.
#[derive(Clone)]
pub struct Installation {
    key: SecretSlice<u8>,
    /// Its name in metadata.
    pub id: String,
}

impl Installation {
    fn of(key: Vec<u8>) -> Self {
        let id = berth_opensandbox::access_token(&key, "installation").expose_secret().chars().take(32).collect();
        Self { key: key.into(), id }
    }

    /// The token of the execd of a Job's sandboxes.
    pub fn token(&self, uid: &str) -> SecretString {
        berth_opensandbox::access_token(self.key.expose_secret(), uid)
    }
}

/// Why the installation has no identity. In words of ours, which name the Secret.
#[derive(Debug, thiserror::Error)]
pub enum NoInstallation {
    /// Nobody has made it, and the process may not.
    #[error("Secret {0} of the installation does not exist: the chart makes it; without the chart: kubectl create secret generic {name} -n {namespace}", name = .0.name, namespace = .0.namespace)]
    Absent(SecretName),
    /// 401 or 403.
    #[error("the controller may not get or patch Secret {0} of the installation: its Role is missing, which the chart makes")]
    Forbidden(SecretName),
    /// It has data, and they are of no use.
    #[error("Secret {0} of the installation has data, and no {KEY} of {KEY_BYTES_MIN} bytes or more")]
    Unusable(SecretName),
    /// That may pass.
    #[error("the API server does not tell what Secret {0} of the installation has")]
    Untold(SecretName),
    /// None can be made.
    #[error("this machine gives no random bytes")]
    NoRandomness,
}

/// What the installation's Secret shows.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// This key.
    Key(Vec<u8>),
    /// Nobody has filled it.
    Empty,
    /// Something else.
    Unusable,
}

fn identity(secret: &Secret) -> Identity {
    let data = secret.data.clone().unwrap_or_default();
    match data.get(KEY) {
        Some(ByteString(key)) if key.len() >= KEY_BYTES_MIN => Identity::Key(key.clone()),
        None if data.is_empty() => Identity::Empty,
        _ => Identity::Unusable,
    }
}

/// Reads the installation's Secret; fills it, if it is empty, so that nobody can empty it again: whoever replaces it by the chart's would lose what
/// its sandboxes are found by.
///
/// # Errors
/// It can't be read, used or filled.
pub async fn installation(client: &Client, secret: &SecretName) -> Result<Installation, NoInstallation> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &secret.namespace);
    let failed = |error: &CallError| match error.is_forbidden() {
        true => NoInstallation::Forbidden(secret.clone()),
        false => NoInstallation::Untold(secret.clone()),
    };
    // Of several that fill it at once, one does: the others read what it has written.
    for _ in 0..FILLS {
        let found = get_uncached(&api, &secret.name).await.map_err(|error| failed(&error))?.ok_or_else(|| NoInstallation::Absent(secret.clone()))?;
        match identity(&found) {
            Identity::Key(key) => return Ok(Installation::of(key)),
            Identity::Unusable => return Err(NoInstallation::Unusable(secret.clone())),
            Identity::Empty => {}
        }
        let mut key = vec![0; KEY_BYTES];
        SystemRandom::new().fill(&mut key).map_err(|_| NoInstallation::NoRandomness)?;
        let (uid, version) = (found.metadata.uid, found.metadata.resource_version);
        let filled = json!({"metadata": {"uid": uid, "resourceVersion": version}, "data": {KEY: ByteString(key)}, "immutable": true});
        match api.patch_metadata(&secret.name, &PatchParams::default(), &Patch::Merge(filled)).await.map_err(CallError::from) {
            Err(error) if !error.is_conflict() && !error.is_ambiguous() => return Err(failed(&error)),
            _ => {}
        }
    }
    Err(NoInstallation::Untold(secret.clone()))
}

/// Characters of a fence's nonce: nobody guesses it, and no two are the same.
pub fn nonce() -> Option<String> {
    let mut bytes = [0; NONCE_LENGTH / 2];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::collections::BTreeMap;

    use super::*;

    fn secret(data: &[(&str, &[u8])]) -> Secret {
        let data: BTreeMap<_, _> = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec()))).collect();
        Secret { data: (!data.is_empty()).then_some(data), ..Secret::default() }
    }

    #[test]
    fn an_identity_is_long_enough_and_only_an_empty_secret_is_filled() {
        assert_eq!(identity(&secret(&[])), Identity::Empty);
        assert_eq!(identity(&secret(&[(KEY, &[7; 16])])), Identity::Key(vec![7; 16]));
        for other in [secret(&[(KEY, &[7; 15])]), secret(&[(KEY, b"")]), secret(&[("else", b"x")])] {
            assert_eq!(identity(&other), Identity::Unusable, "{:?}", other.data.unwrap().keys());
        }
    }

    #[test]
    fn what_is_wrong_with_an_api_key_is_told_apart_and_never_by_what_it_is() {
        let name = || SecretName { namespace: "a".to_owned(), name: "b".to_owned() };
        assert_eq!(of_key(secret(&[("key", b"canary\n")]), name(), "key").unwrap().expose_secret(), "canary\n");
        let rows = [
            of_key(secret(&[("else", b"canary")]), name(), "key").unwrap_err(),
            of_key(secret(&[("key", b"canary\xff")]), name(), "key").unwrap_err(),
            NoApiKey::Absent(name()),
            NoApiKey::Forbidden(name()),
            NoApiKey::Untold(name()),
            NoApiKey::NotAllowed(name()),
        ];
        let told: Vec<_> = rows.iter().map(ToString::to_string).collect();
        for (number, text) in told.iter().enumerate() {
            assert!(text.contains("Secret a/b"), "{text}");
            assert!(!text.contains("canary") && !told[..number].contains(text), "{text}");
        }
        let kept: Vec<_> = rows.iter().map(NoApiKey::is_certain).collect();
        assert_eq!(kept, [true, true, true, false, false, true], "one of before counts on while nobody can say");
    }
}
