//! Names of the OpenSandbox adapter: the metadata of its sandboxes, by which they are found again, and the variable of execd's token.

use berth_opensandbox::{Metadata, Sandbox};
use berth_runtime::ObjectKey;

/// UID of the Job.
pub const META_JOB_UID: &str = "execution.ayatori.ddupan.top/job-uid";
/// Name of the Job.
pub const META_JOB_NAME: &str = "execution.ayatori.ddupan.top/job-name";
/// Namespace of the Job.
pub const META_JOB_NAMESPACE: &str = "execution.ayatori.ddupan.top/job-namespace";
/// Which installation of Berth made it: nothing of another is ever touched.
pub const META_INSTALLATION: &str = "execution.ayatori.ddupan.top/installation";
/// The how-manyth create of its Job it was, from 1. For people.
pub const META_ATTEMPT: &str = "execution.ayatori.ddupan.top/attempt";
/// In Entrypoint mode: the reference `Instance` that was on record before it was made.
pub const META_INSTANCE: &str = "execution.ayatori.ddupan.top/instance";
/// What makes execd ask for a token.
pub const ENV_EXECD_TOKEN: &str = "EXECD_ACCESS_TOKEN";
/// Where the lock of mode FencedCommand is. Everybody may write there, in any image that has it.
pub const FENCE_FOLDER: &str = "/tmp";
/// Characters of its nonce.
pub const NONCE_LENGTH: usize = 32;

/// What finds the sandboxes of one Job.
pub fn of_job(installation: &str, uid: &str) -> Metadata {
    Metadata::from([(META_INSTALLATION.to_owned(), installation.to_owned()), (META_JOB_UID.to_owned(), uid.to_owned())])
}

/// What finds those of an installation.
pub fn of_installation(installation: &str) -> Metadata {
    Metadata::from([(META_INSTALLATION.to_owned(), installation.to_owned())])
}

/// What a sandbox is born with.
pub fn metadata(installation: &str, key: &ObjectKey, uid: &str, attempt: u32, instance: Option<&str>) -> Metadata {
    let mut metadata = of_job(installation, uid);
    metadata.insert(META_JOB_NAME.to_owned(), key.name.to_string());
    metadata.insert(META_JOB_NAMESPACE.to_owned(), key.namespace.to_string());
    metadata.insert(META_ATTEMPT.to_owned(), attempt.to_string());
    metadata.extend(instance.map(|instance| (META_INSTANCE.to_owned(), instance.to_owned())));
    metadata
}

/// The Job that a sandbox was made for, and its UID; None if it does not say so.
pub fn job_of(sandbox: &Sandbox) -> Option<(ObjectKey, &str)> {
    let get = |key: &str| sandbox.metadata.get(key).map(String::as_str).filter(|value| !value.is_empty());
    Some((ObjectKey::new(get(META_JOB_NAMESPACE)?, get(META_JOB_NAME)?), get(META_JOB_UID)?))
}
