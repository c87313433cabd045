//! Run-to-Run affinity, in the vocabulary of Kubernetes (spec, "Run Affinity API").

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement relative to other active Runs of the namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunAffinity {
    /// Share the topology of matching active Runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_affinity: Option<RunAffinityRules>,
    /// Avoid the topology of matching active Runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_anti_affinity: Option<RunAffinityRules>,
}

/// Required terms filter, preferred terms score.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunAffinityRules {
    /// Every term must hold, else the Run stays Pending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_during_scheduling_ignored_during_execution: Vec<RunAffinityTerm>,
    /// Weighted wishes; they never filter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedRunAffinityTerm>,
}

/// A preferred term and its weight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightedRunAffinityTerm {
    /// 1 to 100.
    pub weight: i32,
    /// The term.
    pub run_affinity_term: RunAffinityTerm,
}

/// Matches active Runs of the namespace, by label, within one topology.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunAffinityTerm {
    /// Selects Runs by label; not empty.
    pub label_selector: LabelSelector,
    /// Only `kruntimes.io/runtime-pod`: the topology is the assigned Pod's name.
    pub topology_key: String,
}
