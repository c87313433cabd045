//! Secrets and ConfigMaps that Jobs refer to: read by name when they are needed, and kept nowhere. Values are in types that nobody can print.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use berth_opensandbox::{ImageAuth, registry};
use berth_runtime::apiclient::{CallError, get_uncached};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};

use crate::job::api::spec::{EnvVar, KeyReference, TaskSpec};
use crate::job::machine::Attempt;
use crate::job::reason::{Failure, NotAccepted};

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

/// What an environment may refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Secret,
    ConfigMap,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// That there is no such object, and that it has no such key.
    fn missing(self) -> (NotAccepted, NotAccepted) {
        match self {
            Self::Secret => (NotAccepted::SecretNotFound, NotAccepted::SecretKeyNotFound),
            Self::ConfigMap => (NotAccepted::ConfigMapNotFound, NotAccepted::ConfigMapKeyNotFound),
        }
    }
}

/// Values by key; None if there is no such object.
type Data = Option<BTreeMap<String, Vec<u8>>>;

/// The task's environment with the values of what it refers to. What is optional and not there is left out.
///
/// # Errors
/// The first that is missing.
pub async fn environment(client: &Client, namespace: &str, env: &[EnvVar]) -> Result<BTreeMap<String, SecretString>, Unresolved> {
    // Each object is asked for once, however many variables are of it.
    let mut read: HashMap<(Kind, &str), Data> = HashMap::new();
    let mut resolved = BTreeMap::new();
    for EnvVar { name, value, value_from } in env {
        let secret = value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref()).map(|reference| (Kind::Secret, reference));
        let config_map = value_from.as_ref().and_then(|from| from.config_map_key_ref.as_ref()).map(|reference| (Kind::ConfigMap, reference));
        let value = match secret.or(config_map) {
            None => Some(value.clone().unwrap_or_default().into()),
            Some((kind, reference)) => {
                let data = match read.entry((kind, &reference.name)) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(data_of(client, namespace, kind, &reference.name).await?),
                };
                of_key(kind, reference, data.as_ref()).map_err(|missing| missing.of(name, namespace))?
            }
        };
        resolved.extend(value.map(|value| (name.clone(), value)));
    }
    Ok(resolved)
}

async fn data_of(client: &Client, namespace: &str, kind: Kind, name: &str) -> Result<Data, Unresolved> {
    let found = match kind {
        Kind::Secret => {
            let found = get_uncached(&Api::<Secret>::namespaced(client.clone(), namespace), name).await;
            found.map(|found| found.map(|secret| secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect()))
        }
        Kind::ConfigMap => {
            let found = get_uncached(&Api::<ConfigMap>::namespaced(client.clone(), namespace), name).await;
            found.map(|found| found.map(|map| map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes())).collect()))
        }
    };
    found.map_err(|error| match error {
        // A right that is missing is the administrator's to give: it is told, and waited for, like what is missing itself.
        CallError::Refused { code: 403, .. } => {
            let message =
                format!("the controller may not read {}s of namespace {namespace}; see jobs.openSandbox.referenceNamespaces of the chart", kind.as_str());
            Unresolved::Missing((NotAccepted::SecretDeliveryNotAllowed, message))
        }
        error => error.into(),
    })
}

impl Unresolved {
    /// What is missing for a variable of a Job in that namespace.
    fn of(self, variable: &str, namespace: &str) -> Self {
        match self {
            Self::Missing((reason, message)) => Self::Missing((reason, format!("task.env[{variable}], namespace {namespace}: {message}"))),
            call => call,
        }
    }
}

fn of_key(kind: Kind, reference: &KeyReference, data: Option<&BTreeMap<String, Vec<u8>>>) -> Result<Option<SecretString>, Unresolved> {
    let KeyReference { name, key, optional } = reference;
    let (no_object, no_key) = kind.missing();
    let kind = kind.as_str();
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
            return refused(Failure::ImagePullSecretUnavailable, format!("task.imagePullSecrets: Secret {namespace}/{} does not exist", reference.name));
        };
        let Some(config) = secret.data.and_then(|mut data| data.remove(DOCKER_CONFIG)) else {
            return refused(
                Failure::ImagePullSecretUnavailable,
                format!("task.imagePullSecrets: Secret {namespace}/{} has no key {DOCKER_CONFIG}", reference.name),
            );
        };
        configs.push(SecretSlice::from(config.0));
    }
    match registry::credentials(&task.image, configs.iter().map(|config| config.expose_secret())) {
        Ok(auth) => Ok(Ok(Some(auth))),
        Err(registry::NoCredentials::InvalidImage) => refused(Failure::InvalidImageName, format!("{} is no name of an image", task.image)),
        Err(registry::NoCredentials::Unreadable(number)) => {
            let name = task.image_pull_secrets.get(number).map_or("", |reference| reference.name.as_str());
            refused(Failure::ImagePullSecretUnavailable, format!("task.imagePullSecrets: Secret {namespace}/{name}: {DOCKER_CONFIG} can't be read"))
        }
        Err(error) => refused(Failure::ImagePullSecretUnavailable, format!("task.imagePullSecrets: {error} ({})", task.image)),
    }
}
