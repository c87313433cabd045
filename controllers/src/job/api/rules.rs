//! Every rule of the kinds here beyond the shape that the Rust types give; see [`berth_api::rules::table`] for how paths are written.
//!
//! Rules are those of the specification and of the design of Jobs, §3; "ours" marks what neither says.

use berth_api::rules::table::Constraint::{
    AtomicList, Cel, CelOf, Default, Enum, Format, ListMap, MaxItems, MaxLength, MaxProperties, Maximum, MinItems, MinLength, Minimum, Pattern, Required,
};
use berth_api::rules::table::{CONDITIONS, Constraint, DNS_1123_SUBDOMAIN, GO_DURATION, Rule};
use berth_api::selector::Operator;

use super::{cel, cel_class, cel_status};

/// Rules of Job.
pub const JOB: &[&[Rule]] = &[JOB_SPEC, JOB_STATUS, JOB_INVARIANTS, CONDITIONS, CONDITION_TIMES];
/// Rules of JobClass.
pub const JOB_CLASS: &[&[Rule]] = &[CLASS_SPEC, CONDITIONS, CONDITION_TIMES];
/// Rules of KubernetesExecutionParameters.
pub const KUBERNETES: &[&[Rule]] = &[KUBERNETES_SPEC];
/// Rules of OpenSandboxExecutionParameters.
pub const OPENSANDBOX: &[&[Rule]] = &[OPENSANDBOX_SPEC];

/// A name of a JobClass.
const DNS_1123_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A key of a Secret or ConfigMap, as batch/v1 takes it: not `.`, and not beginning with `..`.
const DATA_KEY: &str = "^[.]?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$";
/// A name of a variable, as batch/v1 takes it: printable ASCII without `=`.
const ENV_NAME: &str = "^[ -<>-~]+$";
/// No process can be given a NUL (ours).
const NO_NUL: &str = "^[^\\x00]*$";
/// A quantity that is not negative; an exponent of two digits is enough for any machine (ours).
const AMOUNT: &str = "^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$";
/// A word for programs.
const PASCAL_CASE: &str = "^[A-Z][A-Za-z0-9]*$";
/// A controller, as Gateway API names them.
const CONTROLLER_NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/._~%!$&'()*+,;=:-]+$";
/// A base URL: no credentials, no query, no fragment.
const BASE_URL: &str = "^https?://([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$";

/// Longest UID; Kubernetes makes 36 characters.
const UID: u64 = 128;

/// What every amount of a resource obeys.
const AMOUNT_RULES: &[Constraint] = &[MaxLength(32), Pattern(AMOUNT), Cel(&cel::QUANTITY_IS_POSITIVE)];
const WITHIN_LIMITS: &[Constraint] = &[Cel(&cel::CPU_REQUEST_WITHIN_LIMIT), Cel(&cel::MEMORY_REQUEST_WITHIN_LIMIT)];
const GRACE: &[Constraint] = &[MaxLength(16), Pattern(GO_DURATION), Cel(&cel_class::UP_TO_A_WEEK)];

const JOB_SPEC: &[Rule] = &[
    Rule { path: "", constraints: &[Required("spec"), Cel(&cel::NAME_IS_SHORT), Cel(&cel::STATUS_STAYS), Cel(&cel::CANCELLED_GETS_NO_EXECUTION)] },
    Rule {
        path: "spec",
        constraints: &[
            CelOf("task", &cel::TASK_STAYS),
            CelOf("jobClassName", &cel::CLASS_NAME_STAYS),
            CelOf("resources", &cel::RESOURCES_STAY),
            CelOf("activeDeadlineSeconds", &cel::DEADLINE_STAYS),
            CelOf("desiredState", &cel::CANCELLED_STAYS),
        ],
    },
    Rule { path: "spec.jobClassName", constraints: &[MinLength(1), MaxLength(63), Pattern(DNS_1123_LABEL)] },
    Rule { path: "spec.task.image", constraints: &[MinLength(1), MaxLength(1024), Pattern("^\\S+$")] },
    Rule { path: "spec.task.imagePullSecrets", constraints: &[MaxItems(8), ListMap("name")] },
    Rule { path: "spec.task.imagePullSecrets[].name", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.task.command", constraints: &[MaxItems(64), AtomicList] },
    Rule { path: "spec.task.command[]", constraints: &[MaxLength(131_072), Pattern(NO_NUL)] },
    Rule { path: "spec.task.args", constraints: &[MaxItems(512), AtomicList] },
    Rule { path: "spec.task.args[]", constraints: &[MaxLength(131_072), Pattern(NO_NUL)] },
    Rule { path: "spec.task.workingDir", constraints: &[MaxLength(4096), Pattern("^/[^\\x00]*$")] },
    Rule { path: "spec.task.env", constraints: &[MaxItems(128), ListMap("name")] },
    Rule { path: "spec.task.env[]", constraints: &[Cel(&cel::ONE_OF_VALUE_AND_SOURCE)] },
    Rule { path: "spec.task.env[].name", constraints: &[MinLength(1), MaxLength(256), Pattern(ENV_NAME)] },
    Rule { path: "spec.task.env[].value", constraints: &[MaxLength(32_768), Pattern(NO_NUL)] },
    Rule { path: "spec.task.env[].valueFrom", constraints: &[Cel(&cel::ONE_SOURCE)] },
    Rule { path: "spec.task.env[].valueFrom.*.name", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.task.env[].valueFrom.*.key", constraints: &[MinLength(1), MaxLength(253), Pattern(DATA_KEY)] },
    Rule { path: "spec.resources", constraints: WITHIN_LIMITS },
    Rule { path: "spec.resources.*.*", constraints: AMOUNT_RULES },
    Rule { path: "spec.activeDeadlineSeconds", constraints: &[Minimum(1), Maximum(2_147_483_647)] },
    Rule { path: "spec.ttlSecondsAfterFinished", constraints: &[Minimum(0)] },
    Rule { path: "spec.desiredState", constraints: &[Default("\"Running\"")] },
];

/// Fields of the status; every text is bounded, so that CEL's cost is.
const JOB_STATUS: &[Rule] = &[
    Rule { path: "status.observedGeneration", constraints: &[Minimum(0)] },
    Rule { path: "status.resolvedJobClass.name", constraints: &[MinLength(1), MaxLength(253)] },
    Rule { path: "status.resolvedJobClass.uid", constraints: &[MinLength(1), MaxLength(UID)] },
    Rule { path: "status.resolvedJobClass.controllerName", constraints: &[MinLength(1), MaxLength(253)] },
    Rule { path: "status.resolvedJobClass.parametersRef.group", constraints: &[MinLength(1), MaxLength(253)] },
    Rule { path: "status.resolvedJobClass.parametersRef.kind", constraints: &[MinLength(1), MaxLength(63)] },
    Rule { path: "status.resolvedJobClass.parametersRef.name", constraints: &[MinLength(1), MaxLength(253)] },
    Rule { path: "status.resolvedJobClass.parametersRef.uid", constraints: &[MinLength(1), MaxLength(UID)] },
    Rule { path: "status.effectiveResources", constraints: WITHIN_LIMITS },
    Rule { path: "status.effectiveResources.*.*", constraints: AMOUNT_RULES },
    Rule { path: "status.execution", constraints: &[Cel(&cel_status::ADAPTER_STAYS), Cel(&cel_status::REFERENCES_STAY)] },
    Rule { path: "status.execution.adapter", constraints: &[MinLength(1), MaxLength(64)] },
    Rule { path: "status.execution.references", constraints: &[MinItems(1), MaxItems(8), ListMap("type")] },
    Rule { path: "status.execution.references[].type", constraints: &[MinLength(1), MaxLength(64)] },
    Rule { path: "status.execution.references[].id", constraints: &[MinLength(1), MaxLength(256)] },
    Rule { path: "status.result.reason", constraints: &[MinLength(1), MaxLength(64), Pattern(PASCAL_CASE)] },
];

/// The state machine (specification, "invariants").
const JOB_INVARIANTS: &[Rule] = &[Rule {
    path: "status",
    constraints: &[
        Cel(&cel_status::SUCCEEDED_IS_THERE),
        Cel(&cel_status::END_IS_FINAL),
        Cel(&cel_status::END_HAS_TIME),
        Cel(&cel_status::TIME_HAS_END),
        Cel(&cel_status::START_STAYS),
        Cel(&cel_status::COMPLETION_STAYS),
        Cel(&cel_status::COMPLETION_AFTER_START),
        Cel(&cel_status::START_IS_SANE),
        Cel(&cel_status::COMPLETION_IS_SANE),
        Cel(&cel_status::START_NEEDS_SCHEDULED),
        Cel(&cel_status::START_IS_FROZEN),
        Cel(&cel_status::SCHEDULED_STAYS),
        Cel(&cel_status::SCHEDULED_NEEDS_EXECUTION),
        Cel(&cel_status::ACCEPTED_STAYS),
        Cel(&cel_status::EXECUTION_NEEDS_ACCEPTED),
        Cel(&cel_status::EXECUTION_STAYS),
        Cel(&cel_status::ENDED_GETS_NO_EXECUTION),
        Cel(&cel_status::RESULT_STAYS),
        Cel(&cel_status::RESULT_NEEDS_END),
        Cel(&cel_status::CLASS_STAYS),
        Cel(&cel_status::EFFECTIVE_RESOURCES_STAY),
    ],
}];

const CONDITION_TIMES: &[Rule] = &[Rule { path: "status.conditions[]", constraints: &[Cel(&cel_status::TRANSITION_IS_SANE)] }];

const CLASS_SPEC: &[Rule] = &[
    Rule { path: "", constraints: &[Required("spec")] },
    Rule { path: "spec", constraints: &[CelOf("controllerName", &cel_class::CONTROLLER_STAYS)] },
    Rule { path: "spec.controllerName", constraints: &[MinLength(1), MaxLength(253), Pattern(CONTROLLER_NAME)] },
    Rule { path: "spec.parametersRef.group", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.parametersRef.kind", constraints: &[MinLength(1), MaxLength(63), Pattern(PASCAL_CASE)] },
    Rule { path: "spec.parametersRef.name", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.description", constraints: &[MaxLength(64)] },
    Rule { path: "spec.namespaceSelector.matchLabels", constraints: &[MaxProperties(64)] },
    Rule { path: "spec.namespaceSelector.matchExpressions", constraints: &[AtomicList, MaxItems(64)] },
    Rule { path: "spec.namespaceSelector.matchExpressions[].operator", constraints: &[Enum(&Operator::KNOWN)] },
    Rule { path: "spec.namespaceSelector.matchExpressions[].values", constraints: &[AtomicList, MaxItems(64)] },
    Rule { path: "spec.resources", constraints: &[Cel(&cel_class::CPU_RANGE), Cel(&cel_class::MEMORY_RANGE)] },
    Rule { path: "spec.resources.default", constraints: WITHIN_LIMITS },
    Rule { path: "spec.resources.default.*.*", constraints: AMOUNT_RULES },
    Rule { path: "spec.resources.min.*", constraints: AMOUNT_RULES },
    Rule { path: "spec.resources.max.*", constraints: AMOUNT_RULES },
    Rule { path: "spec.resources.maxLimitRequestRatio.*", constraints: &[Minimum(1)] },
    Rule { path: "spec.activeDeadlineSeconds.max", constraints: &[Minimum(1)] },
    Rule { path: "spec.ttlSecondsAfterFinished", constraints: &[CelOf("recommended", &cel_class::RECOMMENDED_WITHIN_MAX)] },
    Rule { path: "spec.ttlSecondsAfterFinished.max", constraints: &[Minimum(0)] },
    Rule { path: "spec.ttlSecondsAfterFinished.recommended", constraints: &[Minimum(0)] },
    Rule { path: "spec.secretDelivery", constraints: &[Default("\"NodeResolved\"")] },
    Rule { path: "spec.minLossConfirmationAge", constraints: &[Default("\"15m\""), MaxLength(16), Pattern(GO_DURATION), Cel(&cel_class::NONE_UP_TO_A_WEEK)] },
    Rule { path: "status.observedGeneration", constraints: &[Minimum(0)] },
];

const KUBERNETES_SPEC: &[Rule] = &[
    Rule { path: "", constraints: &[Required("spec")] },
    Rule { path: "spec", constraints: &[Cel(&cel_class::PARAMETERS_STAY)] },
    Rule { path: "spec.serviceAccountName", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.automountServiceAccountToken", constraints: &[Default("false")] },
    Rule { path: "spec.runtimeClassName", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.priorityClassName", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.nodeSelector", constraints: &[MaxProperties(32)] },
    Rule { path: "spec.nodeSelector{}", constraints: &[MaxLength(63)] },
    Rule { path: "spec.tolerations", constraints: &[MaxItems(16), AtomicList] },
    Rule { path: "spec.tolerations[].key", constraints: &[MaxLength(316)] },
    Rule { path: "spec.tolerations[].operator", constraints: &[Enum(&["Exists", "Equal"])] },
    Rule { path: "spec.tolerations[].value", constraints: &[MaxLength(63)] },
    Rule { path: "spec.tolerations[].effect", constraints: &[Enum(&["NoSchedule", "PreferNoSchedule", "NoExecute"])] },
    Rule { path: "spec.podSecurityProfile", constraints: &[Default("\"Inherit\"")] },
    Rule { path: "spec.terminationGracePeriodSeconds", constraints: &[Default("30"), Minimum(0), Maximum(3600)] },
    Rule { path: "spec.imagePull", constraints: &[Default(r#"{"policy":"Always","failureGracePeriod":"5m"}"#)] },
    Rule { path: "spec.imagePull.policy", constraints: &[Default("\"Always\"")] },
    Rule { path: "spec.imagePull.failureGracePeriod", constraints: &[Default("\"5m\"")] },
    Rule { path: "spec.imagePull.failureGracePeriod", constraints: GRACE },
    Rule { path: "spec.createErrorGracePeriod", constraints: &[Default("\"10m\"")] },
    Rule { path: "spec.createErrorGracePeriod", constraints: GRACE },
    Rule { path: "spec.nodeLostPolicy", constraints: &[Default("\"WaitForConfirmation\"")] },
    Rule { path: "spec.injectedContainers", constraints: &[Default("\"StopAfterMain\"")] },
];

const OPENSANDBOX_SPEC: &[Rule] = &[
    Rule { path: "", constraints: &[Required("spec")] },
    Rule {
        path: "spec",
        constraints: &[
            Cel(&cel_class::SANDBOX_PARAMETERS_STAY),
            CelOf("createWindow", &cel_class::WINDOW_COVERS_CREATE),
            CelOf("leaseTTL", &cel_class::LEASE_COVERS_ORPHAN),
        ],
    },
    Rule { path: "spec.endpoint", constraints: &[MaxLength(512), Pattern(BASE_URL)] },
    Rule { path: "spec.apiKeySecretRef.namespace", constraints: &[MinLength(1), MaxLength(63), Pattern(DNS_1123_LABEL)] },
    Rule { path: "spec.apiKeySecretRef.name", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.apiKeySecretRef.key", constraints: &[MinLength(1), MaxLength(253), Pattern(DATA_KEY)] },
    Rule { path: "spec.tls.caBundle", constraints: &[MaxLength(65_536), Format("byte")] },
    Rule { path: "spec.execdAccess", constraints: &[Default("\"ServerProxy\"")] },
    Rule { path: "spec.executionMode", constraints: &[Default("\"FencedCommand\"")] },
    Rule { path: "spec.createTimeout", constraints: &[Default("\"3m\"")] },
    Rule { path: "spec.createTimeout", constraints: GRACE },
    Rule { path: "spec.createWindow", constraints: &[Default("\"5m\"")] },
    Rule { path: "spec.createWindow", constraints: GRACE },
    Rule { path: "spec.orphanTTL", constraints: &[Default("\"10m\"")] },
    Rule { path: "spec.orphanTTL", constraints: GRACE },
    Rule { path: "spec.leaseTTL", constraints: &[Default("\"24h\"")] },
    Rule { path: "spec.leaseTTL", constraints: GRACE },
    Rule { path: "spec.maxCreateAttempts", constraints: &[Default("3"), Minimum(1), Maximum(10)] },
    Rule { path: "spec.resourceMapping", constraints: &[Default(r#"{"requests":"AdmissionOnly"}"#)] },
    Rule { path: "spec.resourceMapping.requests", constraints: &[Default("\"AdmissionOnly\"")] },
    Rule { path: "spec.imageAuth", constraints: &[Default("\"PerRequest\"")] },
    Rule { path: "spec.platform.os", constraints: &[Enum(&["linux"])] },
    Rule { path: "spec.platform.arch", constraints: &[Enum(&["amd64", "arm64"])] },
    Rule { path: "spec.concurrency", constraints: &[Default("50"), Minimum(1), Maximum(1000)] },
];
