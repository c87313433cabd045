//! What becomes of a JobClass and of parameters: pure functions of what was read.
//!
//! A class of ours, and parameters that such a class can name, carry the finalizer `class-in-use` from the moment they are seen, so that
//! nothing a Job rests on can vanish under it; no Job is accepted under one that doesn't. Being deleted, they go when no Job that has not ended
//! names their UID.

use berth_api::conditions::{ConditionStatus, set_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

use super::api::class::{JobClass, JobClassStatus};
use super::api::names::{FINALIZER_CLASS_IN_USE, class_condition};
use super::reason::{ClassVerdict, NotAccepted, Readiness};
use super::resolve::{Catalog, usable};

/// What to do about the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    Leave,
    /// Put it on.
    Add,
    /// Take it off.
    Release,
}

/// What to do about the finalizer of a class or of parameters of ours; `in_use` if a Job that has not ended names the UID.
pub fn hold(meta: &ObjectMeta, in_use: bool) -> Hold {
    let held = meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER_CLASS_IN_USE);
    match (meta.deletion_timestamp.is_some(), held) {
        (false, false) => Hold::Add,
        (true, true) if !in_use => Hold::Release,
        _ => Hold::Leave,
    }
}

/// The status that a class of ours should have, if it differs from the one it has. `readiness` is None while nothing is known.
pub fn class_status(class: &JobClass, catalog: &dyn Catalog, readiness: Option<(Readiness, &str)>, now: Timestamp) -> Option<JobClassStatus> {
    let old = class.status.clone().unwrap_or_default();
    let mut status = old.clone();
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let generation = class.metadata.generation;
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        let truth = if holds { ConditionStatus::True } else { ConditionStatus::False };
        // A list that others have filled takes no new type.
        let _ = set_condition(&mut status.conditions, kind, truth, reason, message, &now);
        if let Some(condition) = status.conditions.iter_mut().find(|condition| condition.type_ == kind) {
            condition.observed_generation = generation;
        }
    };
    match usable(class, catalog) {
        _ if class.metadata.deletion_timestamp.is_some() => {
            let message = "it is being deleted: it takes no new Job, and goes when every Job that uses it has ended";
            set(class_condition::ACCEPTED, false, ClassVerdict::Deleting.as_str(), message);
        }
        Ok(()) => set(class_condition::ACCEPTED, true, ClassVerdict::Accepted.as_str(), "Jobs may use this class"),
        Err((reason, message)) => {
            let verdict = match reason {
                NotAccepted::ParametersNotFound => ClassVerdict::ParametersNotFound,
                NotAccepted::InvalidJobClass => ClassVerdict::InvalidSelector,
                _ => ClassVerdict::InvalidParameters,
            };
            set(class_condition::ACCEPTED, false, verdict.as_str(), &message);
        }
    }
    if let Some((readiness, message)) = readiness {
        set(class_condition::BACKEND_READY, readiness == Readiness::Reachable, readiness.as_str(), message);
    }
    status.observed_generation = generation;
    (status != old).then_some(status)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::Arc;

    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::job::api::names::{CONTROLLER_KUBERNETES, GROUP};
    use crate::job::api::{KubernetesExecutionParameters, OpenSandboxExecutionParameters};
    use crate::job::resolve::KIND_KUBERNETES;

    /// Knows KubernetesExecutionParameters `p`, if any.
    struct Known(bool);

    impl Catalog for Known {
        fn class(&self, _: &str) -> Option<Arc<JobClass>> {
            None
        }

        fn kubernetes(&self, name: &str) -> Option<Arc<KubernetesExecutionParameters>> {
            (self.0 && name == "p").then(|| Arc::new(from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {}})).unwrap()))
        }

        fn opensandbox(&self, _: &str) -> Option<Arc<OpenSandboxExecutionParameters>> {
            None
        }
    }

    #[test]
    fn a_class_is_held_from_the_start_and_released_when_nobody_needs_it() {
        let held = || json!([FINALIZER_CLASS_IN_USE, "other"]);
        let deleting = json!("2026-01-01T00:00:00Z");
        for (meta, in_use, expected) in [
            (json!({}), false, Hold::Add),
            (json!({"finalizers": ["other"]}), true, Hold::Add),
            (json!({"finalizers": held()}), false, Hold::Leave),
            (json!({"finalizers": held(), "deletionTimestamp": deleting}), true, Hold::Leave),
            (json!({"finalizers": held(), "deletionTimestamp": deleting}), false, Hold::Release),
            (json!({"deletionTimestamp": deleting}), true, Hold::Leave),
        ] {
            assert_eq!(hold(&from_value(meta.clone()).unwrap(), in_use), expected, "{meta}");
        }
    }

    #[test]
    fn a_class_that_is_being_deleted_says_so() {
        let meta = json!({"name": "c", "finalizers": [FINALIZER_CLASS_IN_USE], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let class = from_value::<JobClass>(json!({"metadata": meta, "spec": {"controllerName": CONTROLLER_KUBERNETES}})).unwrap();
        let told = class_status(&class, &Known(false), None, "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        let accepted = berth_api::conditions::find(&told.conditions, "Accepted").unwrap();
        assert_eq!((accepted.status.as_str(), accepted.reason.as_str()), ("False", "Deleting"));
    }

    #[test]
    fn a_class_tells_whether_it_can_be_used_and_writes_only_changes() {
        let class = |extra: Value| {
            let mut spec = json!({"controllerName": CONTROLLER_KUBERNETES});
            spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            from_value::<JobClass>(json!({"metadata": {"name": "c", "generation": 3}, "spec": spec})).unwrap()
        };
        let parameters = |kind: &str| json!({"parametersRef": {"group": GROUP, "kind": kind, "name": "p"}});
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let ready = Some((Readiness::Reachable, ""));
        for (extra, known, status, reason) in [
            (json!({}), false, "True", "Accepted"),
            (parameters(KIND_KUBERNETES), true, "True", "Accepted"),
            (parameters(KIND_KUBERNETES), false, "False", "ParametersNotFound"),
            (parameters("Other"), true, "False", "InvalidParameters"),
            (json!({"namespaceSelector": {"matchLabels": {"a b": "c"}}}), true, "False", "InvalidSelector"),
        ] {
            let mut class = class(extra);
            let told = class_status(&class, &Known(known), ready, now).unwrap();
            let accepted = berth_api::conditions::find(&told.conditions, "Accepted").unwrap();
            assert_eq!((accepted.status.as_str(), accepted.reason.as_str(), accepted.observed_generation), (status, reason, Some(3)));
            let backend = berth_api::conditions::find(&told.conditions, "BackendReady").unwrap();
            assert_eq!((backend.status.as_str(), backend.reason.as_str()), ("True", "Reachable"));
            class.status = Some(told);
            assert_eq!(class_status(&class, &Known(known), ready, now + k8s_openapi::jiff::SignedDuration::from_hours(1)), None);
            let unready = class_status(&class, &Known(known), Some((Readiness::Unauthorized, "401")), now).unwrap();
            assert_eq!(berth_api::conditions::find(&unready.conditions, "BackendReady").unwrap().status, "False");
        }
    }
}
