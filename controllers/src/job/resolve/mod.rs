//! Which class a Job is executed under, and whether that class allows it: a pure function of the Job, its Namespace, and what is known of
//! classes and parameters (specification, "jobClassName"; design of Jobs, §0 and §3).
//!
//! ```text
//! spec.jobClassName, else the Namespace's annotation ─► JobClass ─► another's controllerName: left alone
//!                                                          │
//!                          its parameters, or the defaults ┤
//!                                                          └─► ranges, limits, policies ─► accepted, or what is wrong
//! ```
//! Whatever is wrong is never an end: it is judged again when the class, its parameters or the Namespace change. After Accepted=True nothing
//! is judged again; the Job goes on with what its status says ([`recall`]).

mod opensandbox;
mod resources;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::selector::{CompiledSelector, SelectorError};

use super::api::class::{JobClass, JobClassSpec, SecretDelivery};
use super::api::kubernetes::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use super::api::names::{ANNOTATION_DEFAULT_CLASS, CONTROLLER_KUBERNETES, CONTROLLER_OPENSANDBOX, FINALIZER_CLASS_IN_USE, GROUP};
use super::api::opensandbox::{OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec};
use super::api::resources::ResourceRequirements;
use super::api::spec::JobSpec;
use super::api::status::{JobStatus, ResolvedJobClass, ResolvedParameters};
use super::reason::NotAccepted;

pub use resources::effective;

/// What is known of classes and parameters, by name.
pub trait Catalog {
    /// The class of that name.
    fn class(&self, name: &str) -> Option<Arc<JobClass>>;
    /// The KubernetesExecutionParameters of that name.
    fn kubernetes(&self, name: &str) -> Option<Arc<KubernetesExecutionParameters>>;
    /// The OpenSandboxExecutionParameters of that name.
    fn opensandbox(&self, name: &str) -> Option<Arc<OpenSandboxExecutionParameters>>;
}

/// What of a Namespace matters.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: &'a BTreeMap<String, String>,
}

/// What this process is about.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The controllerNames that it answers to.
    pub controllers: &'a [&'a str],
    /// Whether a class must carry the in-use finalizer before a Job is accepted under it. False where no controller runs (`simulate`).
    pub classes_are_held: bool,
}

/// How a Job is executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The class, for the status.
    pub class: ResolvedJobClass,
    /// CPU and memory, for the status and the backend.
    pub resources: ResourceRequirements,
    /// The backend's parameters.
    pub parameters: Parameters,
}

/// Parameters by backend.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameters {
    /// Of the Kubernetes adapter.
    Kubernetes(Arc<KubernetesExecutionParametersSpec>),
    /// Of the OpenSandbox adapter.
    OpenSandbox(Arc<OpenSandboxExecutionParametersSpec>),
}

/// What becomes of a Job that is not accepted yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// Its class belongs to another controller: it is left alone.
    Foreign,
    /// Something is missing or not allowed; it waits.
    Refused {
        /// The first thing that is wrong.
        reason: NotAccepted,
        /// Everything that is wrong.
        message: String,
    },
    /// It can be executed.
    Admitted(Box<Admission>),
    /// It was accepted, and the parameters it was accepted with are gone.
    Gone {
        /// The adapter that it was accepted for.
        adapter: &'static str,
        /// What is gone.
        message: String,
    },
}

impl Resolution {
    fn refused(reason: NotAccepted, message: impl Into<String>) -> Self {
        Self::Refused { reason, message: message.into() }
    }
}

/// Resolves a Job that is not accepted yet.
pub fn resolve(spec: &JobSpec, namespace: NamespaceFacts<'_>, catalog: &dyn Catalog, policy: Policy<'_>) -> Resolution {
    let default = || namespace.annotations.get(ANNOTATION_DEFAULT_CLASS).map(String::as_str).filter(|name| !name.is_empty());
    let Some(name) = spec.job_class_name.as_deref().or_else(default) else {
        let message = format!("spec.jobClassName is not set, and namespace {} has no annotation {ANNOTATION_DEFAULT_CLASS}", namespace.name);
        return Resolution::refused(NotAccepted::NoDefaultClass, message);
    };
    let Some(class) = catalog.class(name) else {
        return Resolution::refused(NotAccepted::JobClassNotFound, format!("JobClass {name} does not exist"));
    };
    if !policy.controllers.contains(&class.spec.controller_name.as_str()) {
        return Resolution::Foreign;
    }
    if class.metadata.deletion_timestamp.is_some() {
        return Resolution::refused(NotAccepted::JobClassNotReady, format!("JobClass {name} is being deleted"));
    }
    let held =
        |meta: &kube::core::ObjectMeta| !policy.classes_are_held || meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER_CLASS_IN_USE);
    if !held(&class.metadata) {
        return Resolution::refused(NotAccepted::JobClassNotReady, format!("JobClass {name} is not taken into use yet"));
    }
    let (parameters, reference) = match parameters_of(&class, catalog, &held) {
        Ok(found) => found,
        Err((reason, message)) => return Resolution::Refused { reason, message },
    };
    let mut problems = Vec::new();
    if let Err(problem) = allows_namespace(&class.spec, namespace) {
        problems.push(problem);
    }
    let resources = match effective(spec.resources.as_ref(), class.spec.resources.as_ref()) {
        Ok(effective) => effective,
        Err(lines) => {
            problems.extend(lines.into_iter().map(|line| (NotAccepted::ResourcesOutOfRange, line)));
            ResourceRequirements::default()
        }
    };
    limits(spec, &class.spec, &mut problems);
    if let Parameters::OpenSandbox(parameters) = &parameters {
        if class.spec.secret_delivery != SecretDelivery::ControllerResolved && opensandbox::needs_secrets(spec) {
            let message = "the Job names Secrets, and the class's secretDelivery doesn't let the controller read them".to_owned();
            problems.push((NotAccepted::SecretDeliveryNotAllowed, message));
        }
        problems.extend(opensandbox::unsupported(spec, parameters).into_iter().map(|line| (NotAccepted::Unsupported, line)));
    }
    if let Some((reason, _)) = problems.first() {
        let lines: Vec<&str> = problems.iter().map(|(_, line)| line.as_str()).collect();
        return Resolution::refused(*reason, format!("JobClass {name}: {}", lines.join("; ")));
    }
    let class = ResolvedJobClass {
        name: name.to_owned(),
        uid: class.metadata.uid.clone().unwrap_or_default(),
        controller_name: class.spec.controller_name.clone(),
        parameters_ref: reference,
    };
    Resolution::Admitted(Box::new(Admission { class, resources, parameters }))
}

/// What an accepted Job goes on with: the class and the resources of its status, and the parameters of that very UID.
///
/// # Errors
/// The parameters are gone or replaced, in words.
pub fn recall(status: &JobStatus, catalog: &dyn Catalog) -> Result<Option<Admission>, String> {
    let Some(class) = &status.resolved_job_class else { return Ok(None) };
    let parameters = match (&class.parameters_ref, class.controller_name.as_str()) {
        (None, CONTROLLER_KUBERNETES) => Parameters::Kubernetes(Arc::default()),
        (None, other) => return Err(format!("status.resolvedJobClass of {other} has no parametersRef")),
        (Some(reference), _) => {
            let gone = |what: &str| format!("{} {} {what}; the Job was accepted with UID {}", reference.kind, reference.name, reference.uid);
            let (found, uid) = lookup(&reference.kind, &reference.name, catalog).ok_or_else(|| gone("does not exist"))?;
            if uid.as_deref() != Some(&reference.uid) {
                return Err(gone("was replaced"));
            }
            found
        }
    };
    Ok(Some(Admission { class: class.clone(), resources: status.effective_resources.clone().unwrap_or_default(), parameters }))
}

type Wrong = (NotAccepted, String);

/// What is wrong with a class itself, whoever uses it.
///
/// # Errors
/// The first thing that is wrong: `InvalidParameters`, `ParametersNotFound` or `InvalidJobClass`.
pub fn usable(class: &JobClass, catalog: &dyn Catalog) -> Result<(), (NotAccepted, String)> {
    parameters_of(class, catalog, &|_| true)?;
    match class.spec.namespace_selector.as_ref().map(CompiledSelector::compile) {
        None | Some(Ok(_) | Err(SelectorError::Empty)) => Ok(()),
        Some(Err(error)) => Err((NotAccepted::InvalidJobClass, format!("spec.namespaceSelector: {error}"))),
    }
}

/// The parameters of a class of ours, and what the status says of them.
fn parameters_of(
    class: &JobClass,
    catalog: &dyn Catalog,
    held: &dyn Fn(&kube::core::ObjectMeta) -> bool,
) -> Result<(Parameters, Option<ResolvedParameters>), Wrong> {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let kind = kind_of(&class.spec.controller_name);
    let Some(reference) = &class.spec.parameters_ref else {
        return match kind {
            KIND_KUBERNETES => Ok((Parameters::Kubernetes(Arc::default()), None)),
            _ => Err((NotAccepted::InvalidParameters, format!("JobClass {name}: spec.parametersRef is required, a {kind}"))),
        };
    };
    if (reference.group.as_str(), reference.kind.as_str()) != (GROUP, kind) {
        let message = format!("JobClass {name}: spec.parametersRef must name a {kind} of {GROUP}, not a {} of {}", reference.kind, reference.group);
        return Err((NotAccepted::InvalidParameters, message));
    }
    let (meta, parameters) = match kind {
        KIND_KUBERNETES => catalog.kubernetes(&reference.name).map(|found| (found.metadata.clone(), Parameters::Kubernetes(Arc::new(found.spec.clone())))),
        _ => catalog.opensandbox(&reference.name).map(|found| (found.metadata.clone(), Parameters::OpenSandbox(Arc::new(found.spec.clone())))),
    }
    .ok_or_else(|| (NotAccepted::ParametersNotFound, format!("JobClass {name}: {kind} {} does not exist", reference.name)))?;
    if meta.deletion_timestamp.is_some() {
        return Err((NotAccepted::ParametersNotFound, format!("JobClass {name}: {kind} {} is being deleted", reference.name)));
    }
    if !held(&meta) {
        return Err((NotAccepted::JobClassNotReady, format!("JobClass {name}: {kind} {} is not taken into use yet", reference.name)));
    }
    let resolved = ResolvedParameters { group: GROUP.to_owned(), kind: kind.to_owned(), name: reference.name.clone(), uid: meta.uid.unwrap_or_default() };
    Ok((parameters, Some(resolved)))
}

/// Kind of the parameters of the Kubernetes adapter.
pub const KIND_KUBERNETES: &str = "KubernetesExecutionParameters";
/// Kind of the parameters of the OpenSandbox adapter.
pub const KIND_OPENSANDBOX: &str = "OpenSandboxExecutionParameters";

/// The kind of parameters that a controller of ours takes.
pub fn kind_of(controller_name: &str) -> &'static str {
    if controller_name == CONTROLLER_OPENSANDBOX { KIND_OPENSANDBOX } else { KIND_KUBERNETES }
}

fn lookup(kind: &str, name: &str, catalog: &dyn Catalog) -> Option<(Parameters, Option<String>)> {
    match kind {
        KIND_KUBERNETES => catalog.kubernetes(name).map(|found| (Parameters::Kubernetes(Arc::new(found.spec.clone())), found.metadata.uid.clone())),
        KIND_OPENSANDBOX => catalog.opensandbox(name).map(|found| (Parameters::OpenSandbox(Arc::new(found.spec.clone())), found.metadata.uid.clone())),
        _ => None,
    }
}

fn allows_namespace(class: &JobClassSpec, namespace: NamespaceFacts<'_>) -> Result<(), Wrong> {
    let Some(selector) = &class.namespace_selector else { return Ok(()) };
    match CompiledSelector::compile(selector) {
        Ok(selector) if selector.matches(namespace.labels) => Ok(()),
        Ok(_) => Err((NotAccepted::NamespaceNotAllowed, format!("namespaceSelector doesn't select namespace {}", namespace.name))),
        // As everywhere in Kubernetes, an empty selector selects everything.
        Err(SelectorError::Empty) => Ok(()),
        Err(error) => Err((NotAccepted::InvalidJobClass, format!("spec.namespaceSelector: {error}"))),
    }
}

/// Deadline, time to live and image.
fn limits(spec: &JobSpec, class: &JobClassSpec, problems: &mut Vec<Wrong>) {
    if let Some(limit) = &class.active_deadline_seconds {
        match (spec.active_deadline_seconds, limit.max) {
            (Some(asked), Some(max)) if asked > max => {
                problems.push((NotAccepted::DeadlineTooLong, format!("activeDeadlineSeconds {asked} exceeds the class's maximum {max}")));
            }
            (None, _) if limit.required => problems.push((NotAccepted::DeadlineRequired, "activeDeadlineSeconds is required".to_owned())),
            _ => {}
        }
    }
    if let Some(limit) = &class.ttl_seconds_after_finished {
        match (spec.ttl_seconds_after_finished, limit.max) {
            (Some(asked), Some(max)) if asked > max => {
                problems.push((NotAccepted::TTLTooLong, format!("ttlSecondsAfterFinished {asked} exceeds the class's maximum {max}")));
            }
            (None, _) if limit.required => {
                let hint = limit.recommended.map(|seconds| format!(" (recommended: {seconds})")).unwrap_or_default();
                problems.push((NotAccepted::TTLRequired, format!("ttlSecondsAfterFinished is required{hint}")));
            }
            _ => {}
        }
    }
    if class.image_policy.as_ref().is_some_and(|policy| policy.require_digest) && !has_digest(&spec.task.image) {
        problems.push((NotAccepted::ImageDigestRequired, "task.image must be named with its digest, as name@sha256:…".to_owned()));
    }
}

/// Whether an image is named with a digest: of SHA-256 or SHA-512, as registries take them.
fn has_digest(image: &str) -> bool {
    let Some((name, digest)) = image.split_once('@') else { return false };
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let length = match algorithm {
        "sha256" => 64,
        "sha512" => 128,
        _ => return false,
    };
    !name.is_empty() && hex.len() == length && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests;
