//! RunAffinity: near Runs it wants, away from Runs it avoids; the topology is the Runtime Pod.
//!
//! Rules: specification "Run Affinity API"; decisions "RunAffinity", "Anti-affinity", "Preferred". A term with
//! targets on few Pods narrows or overlays the shape; one with targets on many is part of the shape.

use berth_framework::TermId;
use berth_framework::diagnosis::selector_text;
use berth_framework::plugin::{Filter, Narrow, Normalize, Plugin, PreFilter, Prepared, Reason, Rejection, Reserve, Score, State, WakeCause};
use berth_framework::profile::PluginType;
use berth_framework::views::{PodId, PodView, RunView, Snapshot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Up to this many Pods a term is looked at Pod by Pod; above, it becomes part of the shape.
const SPARSE_PODS_MAX: usize = 64;

static NO_TARGET: &Reason = &REASONS[0];
static UNMET: &Reason = &REASONS[1];
static AVOIDED: &Reason = &REASONS[2];
static AVOIDS: &Reason = &REASONS[3];
static REASONS: [Reason; 4] = [
    Reason { code: "NoAffinityTarget", text: "no active Run matches required affinity {}" },
    Reason { code: "RequiredAffinityUnmet", text: "without a Run matching required affinity" },
    Reason { code: "AntiAffinityMatched", text: "with a Run matching required anti-affinity" },
    Reason { code: "AntiAffinityOfPlacedRun", text: "with a Run whose anti-affinity matches" },
];

/// Args of [`RunAffinity`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RunAffinityArgs {
    /// A placed Run's required anti-affinity also keeps matching newcomers away, as in Kubernetes. Default `true`.
    pub symmetric_anti_affinity: bool,
}

impl Default for RunAffinityArgs {
    fn default() -> Self {
        Self { symmetric_anti_affinity: true }
    }
}

/// Places Runs by the Runs around them. See the module documentation.
#[derive(Debug)]
pub struct RunAffinity {
    args: RunAffinityArgs,
}

impl PluginType for RunAffinity {
    const NAME: &'static str = "RunAffinity";
    type Args = RunAffinityArgs;
    fn new(args: RunAffinityArgs) -> Result<Self, String> {
        Ok(Self { args })
    }
}

impl Plugin for RunAffinity {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[
            WakeCause::TargetAppeared,
            WakeCause::LastTargetEnded,
            WakeCause::AntiAffinityOwnerEnded,
            WakeCause::RunEnded,
            WakeCause::RunDeleted,
            WakeCause::AssumptionReleased,
            WakeCause::OwnLabelsChanged,
            WakeCause::PodDeletedOrRelabelled,
        ]
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
    fn as_reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
}

/// The terms that still say something about a Pod.
#[derive(Clone, Debug, Default)]
struct Terms {
    required: Vec<TermId>,
    anti: Vec<TermId>,
    against: Vec<TermId>,
    /// Signed weights: anti-affinity subtracts.
    preferred: Vec<(i64, TermId)>,
}

/// Which table of the shape key a term belongs to.
#[derive(Clone, Copy)]
enum Role {
    Required = 1,
    Anti,
    Against,
    Preferred,
}

impl PreFilter for RunAffinity {
    /// Requests, workspace, terms and labels are what the host tells Runs apart by itself.
    fn class_key(&self, _run: RunView<'_>) -> Option<Vec<u64>> {
        Some(Vec::new())
    }
    fn pre_filter(&self, run: RunView<'_>, snapshot: Snapshot<'_>) -> Prepared {
        let mut prepared = Prepared::default();
        let mut base = Terms::default();
        let mut exact = Terms::default();
        for &term in run.required() {
            if snapshot.pods_with_target(term) > 0 {
                exact.required.push(term);
            } else if !run.matches(term) && prepared.narrow.is_none() {
                let selector = snapshot.selector(term).map(selector_text).unwrap_or_default();
                prepared.narrow = Some(Narrow { pods: Vec::new(), awaited: Vec::new(), rejection: Rejection::about(NO_TARGET, selector), refuses: true });
            }
        }
        let rarest = exact.required.iter().copied().min_by_key(|t| snapshot.target_cells(*t)).filter(|t| snapshot.target_cells(*t) <= SPARSE_PODS_MAX);
        if let (None, Some(rarest)) = (&prepared.narrow, rarest) {
            let holds_all = |pod: &PodId| snapshot.pod(*pod).is_some_and(|view| exact.required.iter().all(|t| view.has_target(*t)));
            let pods = snapshot.target_pods(rarest).filter(holds_all).collect();
            // Another Pod may get the missing targets; that is a target appearing, which the Run waits for by term.
            prepared.narrow = Some(Narrow { pods, awaited: Vec::new(), rejection: Rejection::new(UNMET), refuses: false });
        }
        if prepared.narrow.is_none() {
            base.required.clone_from(&exact.required);
            for term in &exact.required {
                key(&mut prepared, Role::Required, *term, 0);
            }
        }
        for &term in run.required_anti() {
            let cells = snapshot.target_cells(term);
            if cells > 0 {
                exact.anti.push(term);
            }
            if cells > SPARSE_PODS_MAX {
                base.anti.push(term);
                key(&mut prepared, Role::Anti, term, 0);
            } else {
                prepared.overlay.extend(snapshot.target_pods(term));
            }
        }
        if self.args.symmetric_anti_affinity {
            for term in run.anti_terms_against() {
                let cells = snapshot.owner_cells(term);
                if cells > 0 {
                    exact.against.push(term);
                }
                if cells > SPARSE_PODS_MAX {
                    base.against.push(term);
                    key(&mut prepared, Role::Against, term, 0);
                } else {
                    prepared.overlay.extend(snapshot.owner_pods(term));
                }
            }
        }
        let attract = run.preferred().iter().map(|(weight, term)| (i64::from(*weight), *term));
        let repel = run.preferred_anti().iter().map(|(weight, term)| (-i64::from(*weight), *term));
        for (weight, term) in attract.chain(repel) {
            let cells = snapshot.target_cells(term);
            if cells > 0 {
                exact.preferred.push((weight, term));
            }
            if cells > SPARSE_PODS_MAX {
                base.preferred.push((weight, term));
                key(&mut prepared, Role::Preferred, term, weight);
            } else {
                prepared.overlay.extend(snapshot.target_pods(term));
            }
        }
        prepared.base = State::new(base);
        prepared.exact = State::new(exact);
        prepared
    }
}

fn key(prepared: &mut Prepared, role: Role, term: TermId, weight: i64) {
    prepared.key.extend([role as u64, term.as_u64(), weight.cast_unsigned()]);
}

fn judge(state: &State, pod: PodView<'_>) -> Result<(), Rejection> {
    let Some(terms) = state.get::<Terms>() else { return Ok(()) };
    if terms.required.iter().any(|t| !pod.has_target(*t)) {
        return Err(Rejection::new(UNMET));
    }
    if terms.anti.iter().any(|t| pod.has_target(*t)) {
        return Err(Rejection::new(AVOIDED));
    }
    if terms.against.iter().any(|t| pod.has_anti_owner(*t)) {
        return Err(Rejection::new(AVOIDS));
    }
    Ok(())
}

impl Filter for RunAffinity {
    fn filter(&self, state: &State, _run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        judge(state, pod)
    }
}

impl Reserve for RunAffinity {
    fn reserve(&self, state: &State, _run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        judge(state, pod)
    }
}

impl Score for RunAffinity {
    fn score(&self, state: &State, _run: RunView<'_>, pod: PodView<'_>) -> i64 {
        let Some(terms) = state.get::<Terms>() else { return 0 };
        terms.preferred.iter().filter(|(_, t)| pod.has_target(*t)).map(|(weight, _)| weight).sum()
    }
    fn normalize(&self) -> Normalize {
        Normalize::MinMax
    }
}
