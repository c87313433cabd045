//! Names and numbers of the wire: group, controllers, finalizers, annotations, labels, condition types.

/// API group of every kind here.
pub const GROUP: &str = "execution.ayatori.ddupan.top";
/// `apiVersion` of every kind here.
pub const API_VERSION: &str = "execution.ayatori.ddupan.top/v1alpha1";

/// `JobClass.spec.controllerName` of the Kubernetes adapter.
pub const CONTROLLER_KUBERNETES: &str = "execution.ayatori.ddupan.top/kubernetes";
/// `JobClass.spec.controllerName` of the OpenSandbox adapter.
pub const CONTROLLER_OPENSANDBOX: &str = "execution.ayatori.ddupan.top/opensandbox";

/// The adapter of a class, by its controllerName: as `status.execution.adapter` and metrics have it; None if it is another's.
pub fn adapter_of(controller_name: &str) -> Option<&'static str> {
    match controller_name {
        CONTROLLER_KUBERNETES => Some(ADAPTER_KUBERNETES),
        CONTROLLER_OPENSANDBOX => Some(ADAPTER_OPENSANDBOX),
        _ => None,
    }
}

/// `status.execution.adapter` of the Kubernetes adapter.
pub const ADAPTER_KUBERNETES: &str = "kubernetes";
/// `status.execution.adapter` of the OpenSandbox adapter.
pub const ADAPTER_OPENSANDBOX: &str = "opensandbox";

/// On a Job from before its backend can exist until it is cleaned up (specification, "Deletion and finalizer").
pub const FINALIZER_JOB_CLEANUP: &str = "execution.ayatori.ddupan.top/job-cleanup";
/// On a JobClass and its parameters while a Job that has not ended names their UID.
pub const FINALIZER_CLASS_IN_USE: &str = "execution.ayatori.ddupan.top/class-in-use";

/// On a Namespace: the JobClass of Jobs that name none. Whoever may edit the Namespace may set it.
pub const ANNOTATION_DEFAULT_CLASS: &str = "execution.ayatori.ddupan.top/default-job-class";
/// On a Job: its own UID, as the confirmation that its backend is lost and can't go on.
pub const ANNOTATION_CONFIRM_LOST: &str = "execution.ayatori.ddupan.top/confirm-backend-lost";
/// On a Job: who confirmed its loss, as the API server's policy wrote it.
pub const ANNOTATION_CONFIRMED_BY: &str = "execution.ayatori.ddupan.top/backend-lost-confirmed-by";
/// On a Job: why its finalizer is removed by force, in the request that removes it.
pub const ANNOTATION_FORCE_REASON: &str = "execution.ayatori.ddupan.top/force-cleanup-reason";

/// ValidatingAdmissionPolicy, and its binding, that lets only holders of verb `confirm-lost` confirm a loss.
pub const POLICY_BACKEND_LOST: &str = "job-backend-lost.execution.ayatori.ddupan.top";

/// Longest name of a Job, in characters: it travels in labels, which hold 63.
pub const JOB_NAME_CHARS_MAX: usize = 63;

/// Condition types of a Job.
pub mod condition {
    /// Spec, references, policy and JobClass are resolved.
    pub const ACCEPTED: &str = "Accepted";
    /// The backend is chosen and an execution of it can be observed; never goes back.
    pub const SCHEDULED: &str = "Scheduled";
    /// The result: Unknown until the end.
    pub const SUCCEEDED: &str = "Succeeded";
    /// A stop was decided; why, and since when. Written before the stop is asked for, so that a restart knows the reason.
    pub const STOP_REQUESTED: &str = "StopRequested";
    /// Whether the backend tells what the execution does; dates an uncertainty across restarts.
    pub const BACKEND_OBSERVED: &str = "BackendObserved";
    /// Whether the execution gets on; False, with its reason and since when, while something that may pass keeps it from starting.
    pub const PROGRESSING: &str = "Progressing";
}

/// Condition types of a JobClass.
pub mod class_condition {
    /// The class can be used.
    pub const ACCEPTED: &str = "Accepted";
    /// Its backend answers.
    pub const BACKEND_READY: &str = "BackendReady";
}

/// `type` of references in `status.execution`.
pub mod reference {
    /// The batch/v1 Job; id is its UID.
    pub const JOB: &str = "Job";
    /// The one Pod that may run; id is its UID.
    pub const POD: &str = "Pod";
    /// The OpenSandbox sandbox; id is the server's.
    pub const SANDBOX: &str = "Sandbox";
    /// What tells the sandbox that may run it from any other, a restarted one too: the nonce that was planted in it; in mode Entrypoint the one that it
    /// is made with. No secret.
    pub const INSTANCE: &str = "Instance";
    /// The command in it; id is execd's. For diagnosis.
    pub const COMMAND: &str = "Command";
}
