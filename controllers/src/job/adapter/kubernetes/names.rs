//! Names of the Kubernetes adapter: the native Job, its labels, the gate, the finalizer.

use crate::job::api::names::GROUP;

/// Label on native Job and Pod: UID of the Job. What carries it is looked at; it alone makes nothing ours.
pub const LABEL_JOB_UID: &str = "execution.ayatori.ddupan.top/job-uid";
/// Label on both: name of the Job. Its namespace is theirs.
pub const LABEL_JOB_NAME: &str = "execution.ayatori.ddupan.top/job-name";
/// Annotation on the native Job: of what it was built, so that a later one built otherwise is told apart.
pub const ANNOTATION_BUILT_OF: &str = "execution.ayatori.ddupan.top/built-of";
/// Annotation on the Pod, for whatever collects logs: namespace, name and UID of the Job, as `ns/name/uid`.
pub const ANNOTATION_JOB: &str = "execution.ayatori.ddupan.top/job";
/// Scheduling gate that every Pod is born with; only the recorded Pod ever loses it.
pub const GATE_START: &str = "execution.ayatori.ddupan.top/start";
/// Finalizer that holds a Pod until the end of its Job is stored.
pub const FINALIZER_RESULT: &str = "execution.ayatori.ddupan.top/result";
/// The Job's own container.
pub const CONTAINER: &str = "main";

/// The name of the native Job: 40 characters, no two Jobs share it.
pub fn native_name(uid: &str) -> String {
    format!("ayj-{uid}")
}

/// Whether a label or annotation is this group's.
pub fn is_ours(key: &str) -> bool {
    key.strip_prefix(GROUP).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_job_s_name_fits_with_room_for_its_pod_s() {
        let name = native_name("0a1b2c3d-0000-4000-8000-000000000000");
        // A Job's Pod is named after it, with six characters more; names of Jobs are label values.
        assert!(name.len() == 40 && name.len() + 6 <= 63);
        assert!(is_ours(LABEL_JOB_UID) && is_ours(GATE_START) && !is_ours("execution.ayatori.ddupan.top.evil/x") && !is_ours("app"));
    }
}
