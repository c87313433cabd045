//! Reasons of conditions and results: closed sets of PascalCase words. Programs may rely on them; messages are for people.

/// Declares a closed set of reasons.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl $name {
            /// Every one of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                }
            }

            /// Reads the word on the wire; None if a later version wrote it.
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
            }
        }
    };
}

reasons! {
    /// Accepted=False: what is missing or not allowed. Each is judged again when something of it changes.
    NotAccepted {
        /// The Job names no class and its Namespace has no default.
        NoDefaultClass,
        /// There is no class of that name.
        JobClassNotFound,
        /// The class is about to be deleted, or the controller has not taken it into use yet.
        JobClassNotReady,
        /// The class can't be used as it is.
        InvalidJobClass,
        /// The class is not for the Job's namespace.
        NamespaceNotAllowed,
        /// The class's parameters don't exist.
        ParametersNotFound,
        /// The class's parameters are none for its controller.
        InvalidParameters,
        /// Requests or limits are beyond the class's.
        ResourcesOutOfRange,
        /// The class asks for activeDeadlineSeconds.
        DeadlineRequired,
        /// activeDeadlineSeconds is beyond the class's.
        DeadlineTooLong,
        /// The class asks for ttlSecondsAfterFinished.
        TTLRequired,
        /// ttlSecondsAfterFinished is beyond the class's.
        TTLTooLong,
        /// The class asks for an image with its digest.
        ImageDigestRequired,
        /// The class doesn't let the controller read Secrets, and the backend can't do without.
        SecretDeliveryNotAllowed,
        /// The backend of the class can't execute this.
        Unsupported,
        /// A Secret that the controller must read doesn't exist.
        SecretNotFound,
        /// A key of such a Secret doesn't exist.
        SecretKeyNotFound,
        /// A ConfigMap that the controller must read doesn't exist.
        ConfigMapNotFound,
        /// A key of such a ConfigMap doesn't exist.
        ConfigMapKeyNotFound,
    }
}

reasons! {
    /// Scheduled=False: why there is no execution yet.
    NotScheduled {
        /// It is being made.
        Pending,
        /// The backend refuses it for now: quota, admission.
        BackendRefuses,
        /// The backend doesn't answer, or not what is needed.
        BackendUnavailable,
        /// Something that isn't this Job's has its name.
        BackendNameConflict,
        /// The parameters that the Job was accepted with are gone.
        ParametersGone,
    }
}

reasons! {
    /// Succeeded=Unknown: what the Job is doing.
    Unfinished {
        /// Waits to be accepted.
        Pending,
        /// Accepted; its execution is being made.
        Scheduling,
        /// There is an execution, and the process has not started.
        Starting,
        /// The same, and no node has room.
        WaitingForNode,
        /// The same, and the image can't be pulled.
        WaitingForImage,
        /// The same, and a Secret, a ConfigMap or a key of one is missing.
        WaitingForReference,
        /// The same, and the container can't be made.
        WaitingForContainer,
        /// The process runs.
        Running,
        /// Whether it runs or has ended can't be said.
        ResultUnknown,
    }
}

reasons! {
    /// Succeeded=False: how the Job ended. As the reason of StopRequested: what it will end with once the stop is confirmed.
    Failure {
        /// The process ended with a code other than 0.
        ProcessFailed,
        /// Stopped after activeDeadlineSeconds.
        DeadlineExceeded,
        /// Cancelled, or deleted.
        Cancelled,
        /// It has stopped, or is confirmed to be lost, and no result can be had.
        BackendLost,
        /// Stopped by others: the Pod was deleted or evicted.
        Disrupted,
        /// The backend refuses the execution for good.
        BackendRejected,
        /// The backend refused the execution longer than the class allows.
        BackendUnavailable,
        /// Something that isn't this Job's has its name, longer than the class allows.
        BackendNameConflict,
        /// A node refused the Pod, or the Pod was refused longer than the class allows.
        PodRejected,
        /// The image could not be pulled.
        ImagePullFailed,
        /// The image could not be pulled, and a Secret for it is missing.
        ImagePullSecretUnavailable,
        /// The image's name is none.
        InvalidImageName,
        /// The container could not be made.
        ContainerCreateFailed,
        /// The process could not be started.
        StartFailed,
        /// Somebody put containers into the Pod, and the class forbids it.
        ContainersInjected,
        /// The image has no shell, which the class's mode needs.
        ImageHasNoShell,
    }
}

reasons! {
    /// BackendObserved=False: why nothing certain is known.
    Unobserved {
        /// The node of the Pod doesn't report.
        NodeLost,
        /// The Pod was removed without a trace of its end.
        PodVanished,
        /// The backend doesn't answer.
        BackendUnreachable,
        /// The server says that there is no such sandbox, and it may not be the one to say so: its key never saw that sandbox.
        SandboxVanished,
        /// The sandbox is paused.
        BackendPaused,
        /// A request that starts the process had no answer.
        StartUnconfirmed,
    }
}

reasons! {
    /// Accepted of a JobClass: whether it can be used.
    ClassVerdict {
        /// It can; the only one that goes with True.
        Accepted,
        /// Its parameters are none for its controller.
        InvalidParameters,
        /// Its parameters don't exist.
        ParametersNotFound,
        /// Its namespaceSelector is none.
        InvalidSelector,
        /// It is being deleted, and held for the Jobs that use it.
        Deleting,
    }
}

reasons! {
    /// BackendReady of a JobClass.
    Readiness {
        /// The backend answers; the only one that goes with True.
        Reachable,
        /// It doesn't.
        Unreachable,
        /// The parameters say what can't be used, as certificates that are none.
        InvalidParameters,
        /// It refuses the controller's credentials.
        Unauthorized,
        /// The parameters name a Secret that is none of this installation's API keys.
        ApiKeyNotAllowed,
        /// The Secret that they name can't be read, or has no such key.
        ApiKeyUnavailable,
        /// The Secret with the installation's own identity can't be used.
        InstallationUnavailable,
    }
}

/// Accepted=True.
pub const VALID: &str = "Valid";
/// Scheduled=True.
pub const BACKEND_CREATED: &str = "BackendCreated";
/// Succeeded=True, and the result's reason.
pub const COMPLETED: &str = "Completed";
/// BackendObserved=True.
pub const OBSERVED: &str = "Observed";
/// A result's reason: the process ended with a code other than 0.
pub const ERROR: &str = "Error";
/// A result's reason: the process, or a child of it, was ended for using too much memory.
pub const OOM_KILLED: &str = "OOMKilled";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_a_word_that_is_read_back() {
        let words: Vec<&str> = [
            NotAccepted::ALL.iter().map(|reason| reason.as_str()).collect::<Vec<_>>(),
            NotScheduled::ALL.iter().map(|reason| reason.as_str()).collect(),
            Unfinished::ALL.iter().map(|reason| reason.as_str()).collect(),
            Failure::ALL.iter().map(|reason| reason.as_str()).collect(),
            Unobserved::ALL.iter().map(|reason| reason.as_str()).collect(),
            ClassVerdict::ALL.iter().map(|reason| reason.as_str()).collect(),
            Readiness::ALL.iter().map(|reason| reason.as_str()).collect(),
        ]
        .concat();
        for word in words.iter().chain(&[VALID, BACKEND_CREATED, COMPLETED, OBSERVED, ERROR, OOM_KILLED]) {
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
        }
        assert!(Failure::ALL.iter().all(|reason| Failure::parse(reason.as_str()) == Some(*reason)));
        assert_eq!(Failure::parse("Other"), None);
    }

    /// Specification, "Conditions".
    #[test]
    fn the_specification_s_reasons_are_among_them() {
        for word in ["Pending", "Scheduling", "Running", "ResultUnknown"] {
            assert!(Unfinished::parse(word).is_some(), "{word}");
        }
        for word in ["ProcessFailed", "DeadlineExceeded", "Cancelled", "BackendLost"] {
            assert!(Failure::parse(word).is_some(), "{word}");
        }
        assert_eq!((VALID, BACKEND_CREATED, COMPLETED), ("Valid", "BackendCreated", "Completed"));
    }
}
