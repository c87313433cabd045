//! Tables of resolution: a Job, a Namespace, classes and parameters, and what comes of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use serde_json::{Value, from_value, json};

use super::*;

/// Classes and parameters by name.
#[derive(Default)]
struct Known(BTreeMap<(&'static str, String), Value>);

impl Known {
    fn with(mut self, kind: &'static str, name: &str, spec: Value) -> Self {
        let meta = json!({"name": name, "uid": format!("{name}-uid"), "finalizers": [FINALIZER_CLASS_IN_USE]});
        self.0.insert((kind, name.to_owned()), json!({"metadata": meta, "spec": spec}));
        self
    }

    fn meta(mut self, kind: &'static str, name: &str, field: &str, value: Value) -> Self {
        self.0.get_mut(&(kind, name.to_owned())).unwrap()["metadata"][field] = value;
        self
    }

    fn get<T: serde::de::DeserializeOwned>(&self, kind: &'static str, name: &str) -> Option<Arc<T>> {
        self.0.get(&(kind, name.to_owned())).map(|value| Arc::new(from_value(value.clone()).unwrap()))
    }
}

const CLASS: &str = "JobClass";

impl Catalog for Known {
    fn class(&self, name: &str) -> Option<Arc<JobClass>> {
        self.get(CLASS, name)
    }

    fn kubernetes(&self, name: &str) -> Option<Arc<KubernetesExecutionParameters>> {
        self.get(KIND_KUBERNETES, name)
    }

    fn opensandbox(&self, name: &str) -> Option<Arc<OpenSandboxExecutionParameters>> {
        self.get(KIND_OPENSANDBOX, name)
    }
}

fn class(extra: Value) -> Value {
    let mut spec = json!({"controllerName": CONTROLLER_KUBERNETES});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    spec
}

/// One class `c` of the Kubernetes adapter.
fn one(extra: Value) -> Known {
    Known::default().with(CLASS, "c", class(extra))
}

fn job(extra: Value) -> JobSpec {
    let mut spec = json!({"jobClassName": "c", "task": {"image": "r.example/app:1"}});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    from_value(spec).unwrap()
}

const OURS: &[&str] = &[CONTROLLER_KUBERNETES, CONTROLLER_OPENSANDBOX];

fn resolve_in(spec: &JobSpec, namespace: (&[(&str, &str)], Option<&str>), known: &Known) -> Resolution {
    let labels = namespace.0.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let annotations = namespace.1.map(|class| (ANNOTATION_DEFAULT_CLASS.to_owned(), class.to_owned())).into_iter().collect();
    let facts = NamespaceFacts { name: "ci", labels: &labels, annotations: &annotations };
    resolve(spec, facts, known, Policy { controllers: OURS, classes_are_held: true })
}

fn resolved(spec: &JobSpec, known: &Known) -> Resolution {
    resolve_in(spec, (&[], None), known)
}

#[track_caller]
fn admitted(resolution: Resolution) -> Admission {
    match resolution {
        Resolution::Admitted(admission) => *admission,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(resolution: &Resolution, reason: NotAccepted, message: &str) {
    match resolution {
        Resolution::Refused { reason: found, message: told } => assert!(*found == reason && told.contains(message), "{found:?}: {told}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_class_is_the_named_one_or_the_namespace_s_default_and_never_a_guess() {
    let known = one(json!({})).with(CLASS, "default", class(json!({}))).with(CLASS, "other", class(json!({})));
    let unnamed = || job(json!({"jobClassName": null}));
    for (name, spec, annotation, expected) in [
        ("named", job(json!({})), None, Some("c")),
        ("named wins", job(json!({})), Some("other"), Some("c")),
        ("by annotation", unnamed(), Some("other"), Some("other")),
        ("no class is the default by its name", unnamed(), None, None),
        ("an empty annotation is none", unnamed(), Some(""), None),
    ] {
        match (resolve_in(&spec, (&[], annotation), &known), expected) {
            (Resolution::Admitted(admission), Some(class)) => assert_eq!(admission.class.name, class, "{name}"),
            (resolution, None) => {
                refused(&resolution, NotAccepted::NoDefaultClass, "namespace ci has no annotation execution.ayatori.ddupan.top/default-job-class")
            }
            (resolution, _) => panic!("{name}: {resolution:?}"),
        }
    }
    refused(&resolve_in(&unnamed(), (&[], Some("gone")), &known), NotAccepted::JobClassNotFound, "JobClass gone does not exist");
}

#[test]
fn the_status_records_uids() {
    let known =
        one(json!({"parametersRef": {"group": GROUP, "kind": KIND_KUBERNETES, "name": "p"}})).with(KIND_KUBERNETES, "p", json!({"runtimeClassName": "gvisor"}));
    let admission = admitted(resolved(&job(json!({})), &known));
    let reference = ResolvedParameters { group: GROUP.into(), kind: KIND_KUBERNETES.into(), name: "p".into(), uid: "p-uid".into() };
    let class = ResolvedJobClass { name: "c".into(), uid: "c-uid".into(), controller_name: CONTROLLER_KUBERNETES.into(), parameters_ref: Some(reference) };
    assert_eq!(admission.class, class);
    let Parameters::Kubernetes(parameters) = admission.parameters else { panic!() };
    assert_eq!(parameters.runtime_class_name.as_deref(), Some("gvisor"));
}

#[test]
fn a_class_of_another_controller_is_left_alone() {
    let theirs = Known::default().with(CLASS, "c", json!({"controllerName": "example.com/theirs"})).meta(CLASS, "c", "finalizers", json!([]));
    assert_eq!(resolved(&job(json!({})), &theirs), Resolution::Foreign);
    // So is one of an adapter that this process doesn't have.
    let sandbox = Known::default().with(CLASS, "c", json!({"controllerName": CONTROLLER_OPENSANDBOX}));
    let (labels, annotations) = (BTreeMap::new(), BTreeMap::new());
    let facts = NamespaceFacts { name: "ci", labels: &labels, annotations: &annotations };
    let policy = Policy { controllers: &[CONTROLLER_KUBERNETES], classes_are_held: true };
    assert_eq!(resolve(&job(json!({})), facts, &sandbox, policy), Resolution::Foreign);
}

#[test]
fn a_class_that_may_vanish_is_not_ready() {
    let unheld = || one(json!({})).meta(CLASS, "c", "finalizers", json!(["other"]));
    refused(&resolved(&job(json!({})), &unheld()), NotAccepted::JobClassNotReady, "not taken into use yet");
    let (labels, annotations) = (BTreeMap::new(), BTreeMap::new());
    let facts = NamespaceFacts { name: "ci", labels: &labels, annotations: &annotations };
    let offline = resolve(&job(json!({})), facts, &unheld(), Policy { controllers: OURS, classes_are_held: false });
    assert!(matches!(offline, Resolution::Admitted(_)), "{offline:?}");
    let going = one(json!({})).meta(CLASS, "c", "deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    refused(&resolved(&job(json!({})), &going), NotAccepted::JobClassNotReady, "is being deleted");
    let with_parameters = || one(json!({"parametersRef": {"group": GROUP, "kind": KIND_KUBERNETES, "name": "p"}})).with(KIND_KUBERNETES, "p", json!({}));
    let unheld = with_parameters().meta(KIND_KUBERNETES, "p", "finalizers", json!([]));
    refused(&resolved(&job(json!({})), &unheld), NotAccepted::JobClassNotReady, "KubernetesExecutionParameters p is not taken into use yet");
    let going = with_parameters().meta(KIND_KUBERNETES, "p", "deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    refused(&resolved(&job(json!({})), &going), NotAccepted::ParametersNotFound, "KubernetesExecutionParameters p is being deleted");
}

#[test]
fn parameters_are_of_the_controller_s_kind_or_the_defaults() {
    let of = |group: &str, kind: &str| one(json!({"parametersRef": {"group": group, "kind": kind, "name": "p"}})).with(KIND_OPENSANDBOX, "p", json!({}));
    assert_eq!(admitted(resolved(&job(json!({})), &one(json!({})))).parameters, Parameters::Kubernetes(Arc::default()));
    refused(&resolved(&job(json!({})), &of(GROUP, KIND_KUBERNETES)), NotAccepted::ParametersNotFound, "KubernetesExecutionParameters p does not exist");
    refused(&resolved(&job(json!({})), &of(GROUP, KIND_OPENSANDBOX)), NotAccepted::InvalidParameters, "must name a KubernetesExecutionParameters");
    refused(&resolved(&job(json!({})), &of("example.com", KIND_KUBERNETES)), NotAccepted::InvalidParameters, "of example.com");
    refused(&resolved(&job(json!({})), &of("", "ConfigMap")), NotAccepted::InvalidParameters, "not a ConfigMap of ");
    let sandbox = Known::default().with(CLASS, "c", json!({"controllerName": CONTROLLER_OPENSANDBOX}));
    refused(&resolved(&job(json!({})), &sandbox), NotAccepted::InvalidParameters, "spec.parametersRef is required");
}

#[test]
fn a_class_may_be_for_some_namespaces() {
    let known = |selector: Value| one(json!({ "namespaceSelector": selector }));
    let team = json!({"matchLabels": {"team": "a"}});
    let row = |selector: &Value, labels: &[(&str, &str)]| resolve_in(&job(json!({})), (labels, None), &known(selector.clone()));
    admitted(row(&team, &[("team", "a"), ("x", "y")]));
    refused(&row(&team, &[("team", "b")]), NotAccepted::NamespaceNotAllowed, "JobClass c: namespaceSelector doesn't select namespace ci");
    refused(&row(&team, &[]), NotAccepted::NamespaceNotAllowed, "");
    admitted(row(&json!({}), &[]));
    let expression = json!({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["prod"]}]});
    admitted(row(&expression, &[]));
    refused(&row(&expression, &[("env", "prod")]), NotAccepted::NamespaceNotAllowed, "");
    refused(&row(&json!({"matchLabels": {"a b": "c"}}), &[]), NotAccepted::InvalidJobClass, "spec.namespaceSelector");
}

#[test]
fn deadline_time_to_live_and_image_are_bounded_by_the_class() {
    let deadline = json!({"activeDeadlineSeconds": {"max": 60, "required": true}});
    let ttl = json!({"ttlSecondsAfterFinished": {"max": 60, "recommended": 30, "required": true}});
    let free = json!({"activeDeadlineSeconds": {"max": 60}, "ttlSecondsAfterFinished": {"max": 60}});
    let digest = json!({"imagePolicy": {"requireDigest": true}});
    let image = |image: &str| json!({"task": {"image": image}});
    let sha = "0123456789abcdef".repeat(4);
    for (name, class, spec, expected) in [
        ("deadline at the maximum", &deadline, json!({"activeDeadlineSeconds": 60}), None),
        ("deadline beyond", &deadline, json!({"activeDeadlineSeconds": 61}), Some((NotAccepted::DeadlineTooLong, "61 exceeds the class's maximum 60"))),
        ("deadline missing", &deadline, json!({}), Some((NotAccepted::DeadlineRequired, "activeDeadlineSeconds is required"))),
        ("deadline may be missing", &free, json!({}), None),
        ("ttl at the maximum", &ttl, json!({"ttlSecondsAfterFinished": 60}), None),
        ("ttl zero", &ttl, json!({"ttlSecondsAfterFinished": 0}), None),
        ("ttl beyond", &ttl, json!({"ttlSecondsAfterFinished": 61}), Some((NotAccepted::TTLTooLong, "61 exceeds the class's maximum 60"))),
        ("ttl missing", &ttl, json!({}), Some((NotAccepted::TTLRequired, "is required (recommended: 30)"))),
        ("a digest", &digest, image(&format!("r/a:1@sha256:{sha}")), None),
        ("a long digest", &digest, image(&format!("r/a@sha512:{sha}{sha}")), None),
        ("a tag", &digest, image("r/a:1"), Some((NotAccepted::ImageDigestRequired, "digest"))),
        ("half a digest", &digest, image("r/a@sha256:0123"), Some((NotAccepted::ImageDigestRequired, ""))),
        ("a digest of upper case", &digest, image(&format!("r/a@sha256:{}", sha.to_uppercase())), Some((NotAccepted::ImageDigestRequired, ""))),
        ("a digest of nothing", &digest, image(&format!("@sha256:{sha}")), Some((NotAccepted::ImageDigestRequired, ""))),
        ("another algorithm", &digest, image(&format!("r/a@md5:{sha}")), Some((NotAccepted::ImageDigestRequired, ""))),
    ] {
        let resolution = resolved(&job(spec), &one(class.clone()));
        match expected {
            None => drop(admitted(resolution)),
            Some((reason, message)) => {
                assert!(matches!(&resolution, Resolution::Refused { .. }), "{name}");
                refused(&resolution, reason, message);
            }
        }
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let known = one(json!({"resources": {"max": {"cpu": "1"}}, "activeDeadlineSeconds": {"required": true}, "imagePolicy": {"requireDigest": true}}));
    let resolution = resolved(&job(json!({"resources": {"limits": {"cpu": "2"}}})), &known);
    refused(
        &resolution,
        NotAccepted::ResourcesOutOfRange,
        "JobClass c: resources.limits.cpu 2 exceeds the class's maximum 1; activeDeadlineSeconds is required; task.image must be named with its digest",
    );
}

#[test]
fn effective_resources_are_those_of_job_and_class() {
    let known = one(json!({"resources": {"default": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}}}}));
    let admission = admitted(resolved(&job(json!({"resources": {"limits": {"cpu": "2"}}})), &known));
    let expected = json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    assert_eq!(serde_json::to_value(admission.resources).unwrap(), expected);
}

/// What OpenSandbox can't do or the class doesn't allow there.
#[test]
fn secrets_reach_a_sandbox_only_if_the_class_says_so() {
    let known = |delivery: &str, parameters: Value| {
        let mut spec = json!({"endpoint": "https://x", "apiKeySecretRef": {"namespace": "a", "name": "b", "key": "c"}});
        spec.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
        let reference = json!({"group": GROUP, "kind": KIND_OPENSANDBOX, "name": "p"});
        let class = json!({"controllerName": CONTROLLER_OPENSANDBOX, "parametersRef": reference, "secretDelivery": delivery});
        Known::default().with(CLASS, "c", class).with(KIND_OPENSANDBOX, "p", spec)
    };
    let task = |extra: Value| {
        let mut task = json!({"image": "i", "command": ["x"]});
        task.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        job(json!({ "task": task }))
    };
    let secret = json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}}]});
    let config = json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}}]});
    let pull = json!({"imagePullSecrets": [{"name": "s"}]});
    let node = || known("NodeResolved", json!({}));
    let controller = || known("ControllerResolved", json!({}));
    refused(&resolved(&task(secret.clone()), &node()), NotAccepted::SecretDeliveryNotAllowed, "secretDelivery");
    refused(&resolved(&task(pull.clone()), &node()), NotAccepted::SecretDeliveryNotAllowed, "");
    admitted(resolved(&task(config), &node()));
    admitted(resolved(&task(secret.clone()), &controller()));
    admitted(resolved(&task(pull.clone()), &controller()));
    // On Kubernetes the node resolves them, whatever the class says.
    admitted(resolved(&task(secret), &one(json!({}))));

    refused(&resolved(&job(json!({})), &node()), NotAccepted::Unsupported, "task.command is required");
    for name in ["EXECD_ACCESS_TOKEN", "OPENSANDBOX_ID"] {
        refused(&resolved(&task(json!({"env": [{"name": name, "value": ""}]})), &node()), NotAccepted::Unsupported, "belongs to the sandbox");
    }
    for name in ["A.B", "BASH_ENV", "__berth"] {
        refused(&resolved(&task(json!({"env": [{"name": name, "value": ""}]})), &node()), NotAccepted::Unsupported, "none that a shell has");
    }
    // Both ends of what Linux takes for one word; in the other mode no shell has all of it.
    for (length, accepted) in [(130_000, true), (131_071, false)] {
        let task = task(json!({"args": ["x".repeat(length)]}));
        match accepted {
            true => drop(admitted(resolved(&task, &node()))),
            false => refused(&resolved(&task, &node()), NotAccepted::Unsupported, "131071 at most"),
        }
        admitted(resolved(&task, &known("NodeResolved", json!({"executionMode": "Entrypoint"}))));
    }
    let value = json!({"env": [{"name": "A", "value": "x".repeat(131_070)}]});
    refused(&resolved(&task(value), &node()), NotAccepted::Unsupported, "task.env A: longer");
    refused(&resolved(&task(pull), &known("ControllerResolved", json!({"imageAuth": "Unsupported"}))), NotAccepted::Unsupported, "imagePullSecrets");
    let mut asks = task(json!({}));
    asks.resources = from_value(json!({"requests": {"cpu": "1"}})).unwrap();
    refused(&resolved(&asks, &known("NodeResolved", json!({"resourceMapping": {"requests": "Reject"}}))), NotAccepted::Unsupported, "limits alone");
    admitted(resolved(&asks, &node()));
}

#[test]
fn an_accepted_job_goes_on_with_what_it_was_accepted_with() {
    let reference = json!({"parametersRef": {"group": GROUP, "kind": KIND_KUBERNETES, "name": "p"}});
    let known = one(reference).with(KIND_KUBERNETES, "p", json!({"serviceAccountName": "runner"}));
    let admission = admitted(resolved(&job(json!({})), &known));
    let status =
        JobStatus { resolved_job_class: Some(admission.class.clone()), effective_resources: Some(admission.resources.clone()), ..JobStatus::default() };
    // The class may be gone or changed meanwhile, the default may be another one: nothing is judged again.
    let later = Known::default().with(KIND_KUBERNETES, "p", json!({"serviceAccountName": "runner"}));
    assert_eq!(recall(&status, &later), Ok(Some(admission)));
    let replaced = Known::default().with(KIND_KUBERNETES, "p", json!({})).meta(KIND_KUBERNETES, "p", "uid", json!("other"));
    assert!(recall(&status, &replaced).is_err_and(|error| error.contains("was replaced; the Job was accepted with UID p-uid")));
    assert!(recall(&status, &Known::default()).is_err_and(|error| error.contains("does not exist")));
    assert_eq!(recall(&JobStatus::default(), &known), Ok(None));
}
