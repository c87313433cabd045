//! Every rule of the API beyond the shape that the Rust types give.
//!
//! A path names nodes of the schema: properties joined by `.`, `*` for any property, `[]` for the items of a list and
//! `{}` for the values of a map. "Ref" is the behaviour reference; "ours" is decisions, "Wire".

use super::cel::{self, CelRule};
use crate::constants::{API_VERSION, KIND_PERSISTENT_WORKSPACE, TOPOLOGY_RUNTIME_POD};
use crate::persistent_workspace::PersistentWorkspaceSpec;
use crate::selector::Operator;

/// Rules that hold for the nodes at `path`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Nodes of the schema.
    pub path: &'static str,
    /// What holds there.
    pub constraints: &'static [Constraint],
}

/// One constraint on a node.
#[derive(Clone, Copy, Debug)]
pub enum Constraint {
    /// An object must have this member.
    Required(&'static str),
    /// An object need not have this member, though the Rust type always has it.
    Optional(&'static str),
    /// The value, as JSON, of a member that is absent.
    Default(&'static str),
    /// Least number of characters.
    MinLength(u64),
    /// Greatest number of characters.
    MaxLength(u64),
    /// RE2 pattern of a text.
    Pattern(&'static str),
    /// The only texts.
    Enum(&'static [&'static str]),
    /// Least number.
    Minimum(i64),
    /// Greatest number.
    Maximum(i64),
    /// Least number of items.
    MinItems(u64),
    /// Greatest number of items.
    MaxItems(u64),
    /// Greatest number of entries of a map.
    MaxProperties(u64),
    /// Format that the API server checks.
    Format(&'static str),
    /// A list with one entry per value of this member.
    ListMap(&'static str),
    /// A list that is replaced as a whole by server-side apply.
    AtomicList,
    /// An object that is replaced as a whole by server-side apply.
    AtomicMap,
    /// A CEL rule.
    Cel(&'static CelRule),
    /// A CEL rule that is about this member.
    CelOf(&'static str, &'static CelRule),
}

/// Every CEL rule of a table.
pub(super) fn cel_rules(rules: &[&'static [Rule]]) -> Vec<&'static CelRule> {
    let constraints = rules.iter().copied().flatten().flat_map(|rule| rule.constraints);
    constraints
        .filter_map(|constraint| match constraint {
            Constraint::Cel(rule) | Constraint::CelOf(_, rule) => Some(*rule),
            _ => None,
        })
        .collect()
}

use Constraint::{
    AtomicList, AtomicMap, Cel, Default, Enum, Format, ListMap, MaxItems, MaxLength, MaxProperties, Maximum, MinLength, Minimum, Optional, Pattern, Required,
};

/// A value of a label, not empty (Ref §1.1).
pub const LABEL_VALUE: &str = "^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
/// A name of an object (spec, "Validation").
pub const DNS_1123_SUBDOMAIN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A quantity whose exponent is an integer of at most nine digits: the neighbour's pattern also admits `1e1.5` (ours).
const QUANTITY: &str = "^[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,9})?$";
/// A duration that Go reads; its range is [`cel::DURATION_IN_RANGE`] (ours).
pub const GO_DURATION: &str = "^[+-]?(0|(([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
/// `reason` of a metav1.Condition.
const CONDITION_REASON: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
/// `type` of a metav1.Condition.
const CONDITION_TYPE: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

const DRIVERS: &[&str] = &["filesystem", "s3"];

/// Rules of Run.
pub const RUN: &[&[Rule]] = &[RUN_SPEC, RUN_ENV, RUN_AFFINITY, RUN_STATUS, CONDITIONS];

/// Rules of PersistentWorkspace.
pub const WORKSPACE: &[&[Rule]] = &[WORKSPACE_RULES, CONDITIONS];

/// Ref §1.1.
const RUN_SPEC: &[Rule] = &[
    Rule { path: "", constraints: &[Cel(&cel::RUN_SPEC_STAYS)] },
    Rule {
        path: "spec",
        constraints: &[
            Cel(&cel::ENTRYPOINT_IS_RELATIVE),
            Cel(&cel::INLINE_PATH_NEEDS_FUNCTION),
            Cel(&cel::FUNCTION_NEEDS_INLINE_PATH),
            Cel(&cel::EXECUTION_IS_IMMUTABLE),
            Cel(&cel::PLACEMENT_IS_IMMUTABLE),
            Cel(&cel::CANCEL_IS_ONE_WAY),
        ],
    },
    Rule { path: "spec.runtime", constraints: &[MinLength(1), MaxLength(63), Pattern(LABEL_VALUE)] },
    Rule { path: "spec.mode", constraints: &[Cel(&cel::ONE_MODE)] },
    Rule { path: "spec.mode.task.entrypoint", constraints: &[MaxLength(4096)] },
    Rule { path: "spec.mode.task.args", constraints: &[MaxItems(256)] },
    Rule { path: "spec.mode.task.args[]", constraints: &[MaxLength(8192)] },
    Rule { path: "spec.mode.function.handler", constraints: &[MaxLength(512)] },
    Rule { path: "spec.mode.function.idleTimeoutSeconds", constraints: &[Minimum(1)] },
    Rule { path: "spec.source", constraints: &[Cel(&cel::ONE_SOURCE), Cel(&cel::COMMIT_NEEDS_REPO)] },
    Rule { path: "spec.source.inline", constraints: &[MaxLength(262_144)] },
    Rule { path: "spec.source.inlinePath", constraints: &[MinLength(1), MaxLength(4096), Cel(&cel::INLINE_PATH_IS_RELATIVE)] },
    Rule { path: "spec.source.repoURL", constraints: &[MaxLength(2048)] },
    Rule { path: "spec.source.commitSHA", constraints: &[MaxLength(256)] },
    Rule { path: "spec.workspace.name", constraints: &[MinLength(1), MaxLength(253), Pattern(DNS_1123_SUBDOMAIN)] },
    Rule { path: "spec.workspace.kind", constraints: &[Default("\"PersistentWorkspace\""), Enum(&[KIND_PERSISTENT_WORKSPACE])] },
    Rule { path: "spec.workspace.apiGroup", constraints: &[Default("\"kruntimes.io/v1alpha1\""), Enum(&[API_VERSION])] },
    Rule { path: "spec.resources.requests", constraints: &[MaxProperties(64)] }, // ours
    Rule { path: "spec.resources.requests{}", constraints: &[Pattern(QUANTITY)] }, // ours
    Rule { path: "spec.timeout", constraints: &[Pattern(GO_DURATION), Cel(&cel::DURATION_IN_RANGE)] }, // ours
    Rule { path: "spec.retryPolicy.maxAttempts", constraints: &[Minimum(1), Maximum(100)] },
    Rule { path: "spec.retryPolicy.backoff", constraints: &[Pattern(GO_DURATION), Cel(&cel::DURATION_IN_RANGE)] }, // ours
    Rule { path: "spec.retryPolicy.retryableReasons", constraints: &[MaxItems(32)] },
    Rule { path: "spec.retryPolicy.retryableReasons[]", constraints: &[MaxLength(128)] },
    Rule { path: "spec.ttlSecondsAfterFinished", constraints: &[Minimum(0)] },
];

/// core/v1 EnvVar, as controller-gen renders it for the neighbours.
const RUN_ENV: &[Rule] = &[
    Rule { path: "spec.env", constraints: &[MaxItems(256)] },
    Rule { path: "spec.env[].valueFrom.*", constraints: &[AtomicMap] },
    Rule { path: "spec.env[].valueFrom.configMapKeyRef", constraints: &[Optional("name")] },
    Rule { path: "spec.env[].valueFrom.configMapKeyRef.name", constraints: &[Default("\"\"")] },
    Rule { path: "spec.env[].valueFrom.secretKeyRef", constraints: &[Optional("name")] },
    Rule { path: "spec.env[].valueFrom.secretKeyRef.name", constraints: &[Default("\"\"")] },
    Rule { path: "spec.env[].valueFrom.fileKeyRef.optional", constraints: &[Default("false")] },
    Rule { path: "spec.env[].valueFrom.resourceFieldRef.divisor", constraints: &[Pattern(QUANTITY)] }, // ours
];

macro_rules! term_rules {
    ($($term:literal),+) => {
        &[
            Rule {
                path: "spec.affinity.*.requiredDuringSchedulingIgnoredDuringExecution",
                constraints: &[MaxItems(32)],
            },
            Rule {
                path: "spec.affinity.*.preferredDuringSchedulingIgnoredDuringExecution",
                constraints: &[MaxItems(32)],
            },
            Rule {
                path: "spec.affinity.*.preferredDuringSchedulingIgnoredDuringExecution[].weight",
                constraints: &[Minimum(1), Maximum(100)],
            },
            $(
                Rule { path: $term, constraints: &[Cel(&cel::SELECTOR_IS_NOT_EMPTY)] },
                Rule { path: concat!($term, ".topologyKey"), constraints: &[Enum(&[TOPOLOGY_RUNTIME_POD])] },
                Rule { path: concat!($term, ".labelSelector"), constraints: &[AtomicMap] },
                Rule { path: concat!($term, ".labelSelector.matchLabels"), constraints: &[MaxProperties(64)] }, // ours
                Rule {
                    path: concat!($term, ".labelSelector.matchExpressions"),
                    constraints: &[AtomicList, MaxItems(64)], // ours
                },
                Rule {
                    path: concat!($term, ".labelSelector.matchExpressions[].operator"),
                    constraints: &[Enum(&Operator::KNOWN)], // ours
                },
                Rule {
                    path: concat!($term, ".labelSelector.matchExpressions[].values"),
                    constraints: &[AtomicList, MaxItems(64)], // ours
                },
            )+
        ]
    };
}

/// Spec, "Run Affinity API" and "Validation"; Ref §1.1.
const RUN_AFFINITY: &[Rule] = term_rules!(
    "spec.affinity.*.requiredDuringSchedulingIgnoredDuringExecution[]",
    "spec.affinity.*.preferredDuringSchedulingIgnoredDuringExecution[].runAffinityTerm"
);

/// Ref §1.2. The enum of `phase` comes from the type.
const RUN_STATUS: &[Rule] = &[
    Rule { path: "status", constraints: &[Required("phase")] },
    Rule { path: "status.phase", constraints: &[Default("\"Pending\"")] },
    Rule { path: "status.assignedPodUID", constraints: &[MaxLength(253)] },
    Rule { path: "status.message", constraints: &[MaxLength(4096)] },
    Rule { path: "status.outputs", constraints: &[MaxProperties(64)] },
    Rule { path: "status.artifactRefs", constraints: &[MaxItems(32)] },
    Rule { path: "status.artifactRefs[]", constraints: &[Cel(&cel::ARTIFACT_MATCHES_DRIVER)] },
    Rule { path: "status.artifactRefs[].name", constraints: &[MinLength(1), MaxLength(255)] },
    Rule { path: "status.artifactRefs[].driver", constraints: &[Enum(DRIVERS)] },
    Rule { path: "status.artifactRefs[].type", constraints: &[Enum(&["file", "directory", "archive", "blob"])] },
    Rule { path: "status.artifactRefs[].location", constraints: &[Cel(&cel::ONE_LOCATION)] },
    Rule { path: "status.artifactRefs[].location.filesystem.path", constraints: &[MinLength(1), MaxLength(4096)] },
    Rule { path: "status.artifactRefs[].location.filesystem.volumeClaimName", constraints: &[MaxLength(253)] },
    Rule { path: "status.artifactRefs[].location.s3.bucket", constraints: &[MinLength(1), MaxLength(255)] },
    Rule { path: "status.artifactRefs[].location.s3.key", constraints: &[MinLength(1), MaxLength(4096)] },
    Rule { path: "status.artifactRefs[].sizeBytes", constraints: &[Minimum(0)] },
    Rule { path: "status.artifactRefs[].digest", constraints: &[MaxLength(256)] },
    Rule { path: "status.artifactRefs[].contentType", constraints: &[MaxLength(255)] },
    Rule { path: "status.artifactStore", constraints: &[Cel(&cel::STORE_MATCHES_DRIVER)] },
    Rule { path: "status.artifactStore.driver", constraints: &[Enum(DRIVERS)] },
    Rule { path: "status.artifactStore.filesystem.volumeClaimName", constraints: &[MinLength(1)] },
    Rule { path: "status.artifactStore.s3.bucket", constraints: &[MinLength(1), Pattern("^[^/]+$")] },
    Rule { path: "status.artifactStore.s3.prefix", constraints: &[MaxLength(1024)] },
    Rule { path: "status.artifactStore.s3.region", constraints: &[MaxLength(128)] },
    Rule { path: "status.artifactStore.s3.endpoint", constraints: &[MaxLength(2048)] },
    Rule { path: "status.artifactStore.s3.credentialsSecretName", constraints: &[MinLength(1), MaxLength(253)] },
    Rule { path: "status.artifactStore.s3.uploadPartSize", constraints: &[Minimum(5_242_880)] },
    Rule { path: "status.artifactStore.s3.uploadConcurrency", constraints: &[Minimum(1)] },
    Rule { path: "status.endpoint.protocol", constraints: &[Enum(&["HTTPS"])] },
    Rule { path: "status.endpoint.url", constraints: &[MaxLength(2048)] },
    Rule { path: "status.endpoint.caBundle", constraints: &[MaxLength(16_384), Format("byte")] },
];

/// metav1.Condition, as the list `status.conditions`; Ref §1.2 and §1.5.
pub const CONDITIONS: &[Rule] = &[
    Rule { path: "status.conditions", constraints: &[MaxItems(16), ListMap("type")] },
    Rule { path: "status.conditions[].type", constraints: &[MaxLength(316), Pattern(CONDITION_TYPE)] },
    Rule { path: "status.conditions[].status", constraints: &[Enum(&["True", "False", "Unknown"])] },
    Rule { path: "status.conditions[].reason", constraints: &[MinLength(1), MaxLength(1024), Pattern(CONDITION_REASON)] },
    Rule { path: "status.conditions[].message", constraints: &[MaxLength(32_768)] },
    Rule { path: "status.conditions[].observedGeneration", constraints: &[Minimum(0)] },
];

/// Ref §1.5. The enums of `phase` and `cleanupPolicy` come from the types.
const WORKSPACE_RULES: &[Rule] = &[
    Rule { path: "", constraints: &[Cel(&cel::WORKSPACE_SPEC_STAYS)] },
    Rule { path: "spec.runtime", constraints: &[MinLength(1), MaxLength(63), Pattern(LABEL_VALUE), Cel(&cel::WORKSPACE_RUNTIME_IS_IMMUTABLE)] },
    Rule { path: "spec.mode", constraints: &[Default("\"RuntimePodLocal\""), Enum(&[PersistentWorkspaceSpec::MODE_RUNTIME_POD_LOCAL])] },
    Rule { path: "spec.ttlSecondsAfterUnused", constraints: &[Minimum(0)] },
    Rule { path: "spec.cleanupPolicy", constraints: &[Default("\"DeleteAfterTTL\"")] },
    Rule { path: "status.phase", constraints: &[Default("\"Pending\"")] },
];
