//! `GpuModel`, a third-party plugin: a Run may insist on a GPU model, and Runs that don't are kept off the dear Pods.
//!
//! * Filter: a Run labelled `example.com/gpu: h100` fits only Pods labelled `example.com/gpu: h100`.
//! * Score: a Run without the label scores 0 on Pods that have one, 100 elsewhere.
//!
//! Everything it needs comes from `berth_scheduler::prelude`; it touches no client, no clock and no lock, so `berth simulate` and
//! `berth serve` run it alike.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use berth_scheduler::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

static REASONS: [Reason; 1] = [Reason { code: "WrongGpuModel", text: "without GPU {}" }];

/// Args of [`GpuModel`] in the profile.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GpuModelArgs {
    /// The label of Runs and Pods that names the model.
    pub label: String,
}

impl Default for GpuModelArgs {
    fn default() -> Self {
        Self { label: "example.com/gpu".into() }
    }
}

/// See the module documentation.
pub struct GpuModel {
    label: String,
}

impl PluginType for GpuModel {
    const NAME: &'static str = "GpuModel";
    type Args = GpuModelArgs;

    fn new(args: GpuModelArgs) -> Result<Self, String> {
        if args.label.is_empty() { Err("label: must not be empty".into()) } else { Ok(Self { label: args.label }) }
    }
}

impl Plugin for GpuModel {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    /// What can end a rejection: another Pod, other labels of a Pod, other labels of the Run.
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::PodReady, WakeCause::PodDeletedOrRelabelled, WakeCause::OwnLabelsChanged]
    }
    fn as_pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn as_score(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

impl GpuModel {
    fn model_key(&self, run: RunView<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        run.labels().get(&self.label).hash(&mut hasher);
        hasher.finish()
    }
}

impl PreFilter for GpuModel {
    /// Runs that ask for one model are treated alike, however many wait.
    fn class_key(&self, run: RunView<'_>) -> Option<Vec<u64>> {
        Some(vec![self.model_key(run)])
    }

    /// All that Filter and Score read of the Run is the model it asks for, so that is the key: Runs of one model share their verdicts.
    fn pre_filter(&self, run: RunView<'_>, _: Snapshot<'_>) -> Prepared {
        let wanted: Option<String> = run.labels().get(&self.label).cloned();
        Prepared { key: vec![self.model_key(run)], base: State::new(wanted.clone()), exact: State::new(wanted), ..Prepared::default() }
    }
}

impl Filter for GpuModel {
    fn filter(&self, state: &State, _: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        match state.get::<Option<String>>() {
            Some(Some(wanted)) if pod.labels().get(&self.label) != Some(wanted) => Err(Rejection::about(&REASONS[0], wanted.as_str())),
            _ => Ok(()),
        }
    }
}

impl Score for GpuModel {
    fn score(&self, state: &State, _: RunView<'_>, pod: PodView<'_>) -> i64 {
        let wants = matches!(state.get::<Option<String>>(), Some(Some(_)));
        if wants || !pod.labels().contains_key(&self.label) { MAX_SCORE } else { 0 }
    }
}
