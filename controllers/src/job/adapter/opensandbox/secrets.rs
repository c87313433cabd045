//! Secrets and ConfigMaps that the controller reads itself: read by name when they are needed, and kept nowhere. Values are in types that nobody can
//! print.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use berth_opensandbox::{ImageAuth, registry};
use berth_runtime::apiclient::{CallError, get_uncached};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::{Api, Client};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::{SecretSlice, SecretString};

use super::names::NONCE_LENGTH;
use crate::job::api::opensandbox::SecretKeyReference;
use crate::job::api::spec::{EnvVar, KeyReference, TaskSpec};
use crate::job::machine::Attempt;
use crate::job::reason::{Failure, NotAccepted};

/// Key of the installation's Secret.
const KEY: &str = "key";
/// Key of a registry's Secret.
const DOCKER_CONFIG: &str = ".dockerconfigjson";

/// What is missing, for a condition.
pub type Missing = (NotAccepted, String);

/// What became of a look for values.
#[derive(Debug, thiserror::Error)]
pub enum Unresolved {
    /// Something is not there, or may not be read.
    #[error("{}", .0.1)]
    Missing(Missing),
    /// It can't be said.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A right that is missing is the administrator's to give: it is told, and waited for, like what is missing itself.
fn unreadable(error: CallError, what: &str, namespace: &str) -> Unresolved {
    match error {
        CallError::Refused { code: 403, .. } => {
            let message = format!("the controller may not read {what} of namespace {namespace}; see jobs.openSandbox.referenceNamespaces of the chart");
            Unresolved::Missing((NotAccepted::SecretDeliveryNotAllowed, message))
        }
        error => error.into(),
    }
}

/// The task's environment with the values of what it refers to. What is optional and not there is left out.
///
/// # Errors
/// The first that is missing.
pub async fn environment(client: &Client, namespace: &str, env: &[EnvVar]) -> Result<BTreeMap<String, SecretString>, Unresolved> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // Each object is asked for once, however many variables are of it.
    let mut read: HashMap<(&str, &str), Option<BTreeMap<String, Vec<u8>>>> = HashMap::new();
    let mut resolved = BTreeMap::new();
    for EnvVar { name, value, value_from } in env {
        let from = value_from.as_ref();
        let value = if let Some(reference) = from.and_then(|from| from.secret_key_ref.as_ref()) {
            let data = match read.entry(("Secret", reference.name.as_str())) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let found = get_uncached(&secrets, &reference.name).await.map_err(|error| unreadable(error, "Secrets", namespace))?;
                    new.insert(found.map(|secret| secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect()))
                }
            };
            of_key("Secret", reference, data.as_ref(), (NotAccepted::SecretNotFound, NotAccepted::SecretKeyNotFound))?
        } else if let Some(reference) = from.and_then(|from| from.config_map_key_ref.as_ref()) {
            let data = match read.entry(("ConfigMap", reference.name.as_str())) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let found = get_uncached(&config_maps, &reference.name).await.map_err(|error| unreadable(error, "ConfigMaps", namespace))?;
                    new.insert(found.map(|map| map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes())).collect()))
                }
            };
            of_key("ConfigMap", reference, data.as_ref(), (NotAccepted::ConfigMapNotFound, NotAccepted::ConfigMapKeyNotFound))?
        } else {
            Some(value.clone().unwrap_or_default().into())
        };
        resolved.extend(value.map(|value| (name.clone(), value)));
    }
    Ok(resolved)
}

fn of_key(
    kind: &str,
    reference: &KeyReference,
    data: Option<&BTreeMap<String, Vec<u8>>>,
    (no_object, no_key): (NotAccepted, NotAccepted),
) -> Result<Option<SecretString>, Unresolved> {
    let KeyReference { name, key, optional } = reference;
    let missing = |reason, message: String| if *optional == Some(true) { Ok(None) } else { Err(Unresolved::Missing((reason, message))) };
    let Some(data) = data else { return missing(no_object, format!("{kind} {name} does not exist")) };
    let Some(value) = data.get(key) else { return missing(no_key, format!("{kind} {name} has no key {key}")) };
    match String::from_utf8(value.clone()) {
        Ok(value) => Ok(Some(value.into())),
        // As the kubelet, an environment holds text; what it can't hold is as good as absent, and told.
        Err(_) => Err(Unresolved::Missing((no_key, format!("{kind} {name}: key {key} is no text in UTF-8, which an environment needs")))),
    }
}

/// The credentials for the task's image; None if it names no Secrets. There is no pull without, once it names some.
///
/// # Errors
/// A Secret can't be read; that may pass.
pub async fn image_auth(client: &Client, namespace: &str, task: &TaskSpec) -> Result<Result<Option<ImageAuth>, Attempt>, CallError> {
    if task.image_pull_secrets.is_empty() {
        return Ok(Ok(None));
    }
    let refused = |failure, message: String| Ok(Err(Attempt::Refused { failure, message }));
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut configs = Vec::new();
    for reference in &task.image_pull_secrets {
        let found = match get_uncached(&api, &reference.name).await {
            Err(CallError::Refused { code: 403, .. }) => {
                return refused(Failure::ImagePullSecretUnavailable, format!("the controller may not read Secrets of namespace {namespace}"));
            }
            found => found?,
        };
        let Some(secret) = found else {
            return refused(Failure::ImagePullSecretUnavailable, format!("Secret {} for the registry does not exist", reference.name));
        };
        let Some(config) = secret.data.and_then(|mut data| data.remove(DOCKER_CONFIG)) else {
            return refused(Failure::ImagePullSecretUnavailable, format!("Secret {} has no key {DOCKER_CONFIG}", reference.name));
        };
        configs.push(SecretSlice::from(config.0));
    }
    use secrecy::ExposeSecret as _;
    match registry::credentials(&task.image, configs.iter().map(|config| config.expose_secret())) {
        Ok(auth) => Ok(Ok(Some(auth))),
        Err(registry::NoCredentials::InvalidImage) => refused(Failure::InvalidImageName, format!("{} is no name of an image", task.image)),
        Err(registry::NoCredentials::Unreadable(number)) => {
            let name = task.image_pull_secrets.get(number).map_or("", |reference| reference.name.as_str());
            refused(Failure::ImagePullSecretUnavailable, format!("Secret {name}: {DOCKER_CONFIG} can't be read"))
        }
        Err(error) => refused(Failure::ImagePullSecretUnavailable, format!("task.imagePullSecrets: {error}")),
    }
}

/// A server's API key as it is now; None if it is not there.
///
/// # Errors
/// The Secret can't be read.
pub async fn api_key(client: &Client, reference: &SecretKeyReference) -> Result<Option<SecretString>, CallError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &reference.namespace);
    let secret = get_uncached(&api, &reference.name).await?;
    let value = secret.and_then(|secret| secret.data).and_then(|mut data| data.remove(&reference.key));
    Ok(value.and_then(|value| String::from_utf8(value.0).ok()).map(SecretString::from))
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
        use secrecy::ExposeSecret as _;
        let id = berth_opensandbox::access_token(&key, "installation").expose_secret().chars().take(32).collect();
        Self { key: key.into(), id }
    }

    /// The token of the execd of a Job's sandboxes.
    pub fn token(&self, uid: &str) -> SecretString {
        use secrecy::ExposeSecret as _;
        berth_opensandbox::access_token(self.key.expose_secret(), uid)
    }
}

/// Reads the installation's Secret, or makes it.
///
/// # Errors
/// Neither can be done.
pub async fn installation(client: &Client, namespace: &str, name: &str) -> Result<Installation, CallError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let read = |secret: Secret| secret.data.and_then(|mut data| data.remove(KEY)).map(|key| key.0).filter(|key| key.len() >= 16);
    let unusable = || CallError::Undecodable(format!("Secret {namespace}/{name} has no {KEY} of 16 bytes or more"));
    if let Some(secret) = get_uncached(&api, name).await? {
        return read(secret).map(Installation::of).ok_or_else(unusable);
    }
    let mut key = vec![0; 32];
    SystemRandom::new().fill(&mut key).map_err(|_| CallError::NotSent("no randomness".to_owned()))?;
    let data = BTreeMap::from([(KEY.to_owned(), k8s_openapi::ByteString(key))]);
    let meta = kube::core::ObjectMeta { name: Some(name.to_owned()), ..kube::core::ObjectMeta::default() };
    let secret = Secret { metadata: meta, data: Some(data), ..Secret::default() };
    let made = api.create(&PostParams::default(), &secret).await.map_err(CallError::from);
    match made {
        Err(error) if !error.is_already_exists() && !error.is_ambiguous() => return Err(error),
        _ => {}
    }
    // Of several that make it at once, one did.
    get_uncached(&api, name).await?.and_then(read).map(Installation::of).ok_or_else(unusable)
}

/// Characters of a fence's nonce: nobody guesses it, and no two are the same.
pub fn nonce() -> Option<String> {
    let mut bytes = [0; NONCE_LENGTH / 2];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
