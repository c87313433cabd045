//! WorkspaceFencing: a Run with a workspace goes to the Pod that the workspace is bound to, by name and UID, or nowhere.
//!
//! Rules: specification "与 PersistentWorkspace 的交互"; decisions "WorkspaceFencing". Never terminal: the Run
//! stays Pending until its workspace changes.

use berth_api::constants::reason::WORKSPACE_NOT_READY;
use berth_framework::model::{WorkspaceObject, WorkspacePhase};
use berth_framework::plugin::{Filter, Narrow, Plugin, PreFilter, Prepared, Reason, Rejection, State, WakeCause};
use berth_framework::profile::PluginType;
use berth_framework::views::{PodView, RunView, Snapshot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

static NOT_FOUND: &Reason = &REASONS[0];
static DELETING: &Reason = &REASONS[1];
static OTHER_RUNTIME: &Reason = &REASONS[2];
static PENDING: &Reason = &REASONS[3];
static LOST: &Reason = &REASONS[4];
static RELEASED: &Reason = &REASONS[5];
static UNFENCED: &Reason = &REASONS[6];
static NOT_BOUND: &Reason = &REASONS[7];
static NO_AGENT: &Reason = &REASONS[8];
static REASONS: [Reason; 9] = [
    reason("WorkspaceNotFound", "workspace {} not found"),
    reason("WorkspaceDeleting", "workspace {} being deleted"),
    reason("WorkspaceRuntimeMismatch", "workspace {} of another runtime"),
    reason("WorkspacePending", "workspace {} not bound yet"),
    reason("WorkspaceLost", "workspace {} lost"),
    reason("WorkspaceReleased", "workspace {} released"),
    reason("WorkspaceUnfenced", "workspace {} bound without Pod UID"),
    reason("NotBoundToWorkspace", "not bound to workspace {}"),
    reason("NoWorkspaceAgent", "without an agent for workspaces"),
];

const fn reason(code: &'static str, text: &'static str) -> Reason {
    Reason { code, text }
}

/// Args of [`WorkspaceFencing`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkspaceFencingArgs {
    /// A Run with a workspace also needs a Pod that advertises an agent which honours workspaces
    /// (annotation `kruntimes.io/workspace-agent`). Default `false`.
    pub require_workspace_agent: bool,
}

/// Holds Runs to the Pod of their workspace. See the module documentation.
#[derive(Debug)]
pub struct WorkspaceFencing {
    args: WorkspaceFencingArgs,
}

impl PluginType for WorkspaceFencing {
    const NAME: &'static str = "WorkspaceFencing";
    type Args = WorkspaceFencingArgs;
    fn new(args: WorkspaceFencingArgs) -> Result<Self, String> {
        Ok(Self { args })
    }
}

impl Plugin for WorkspaceFencing {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::WorkspaceChanged, WakeCause::PodReady, WakeCause::PodDeletedOrRelabelled]
    }
    fn refusal_reason(&self) -> Option<&'static str> {
        Some(WORKSPACE_NOT_READY)
    }
    fn as_pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

/// Why nothing is feasible with this workspace, or the name and UID of the one Pod that is.
fn bound_pod<'w>(workspace: Option<&'w WorkspaceObject>, runtime: &str) -> Result<(&'w str, &'w str), &'static Reason> {
    let workspace = workspace.ok_or(NOT_FOUND)?;
    if workspace.deleting {
        return Err(DELETING);
    }
    if &*workspace.runtime != runtime {
        return Err(OTHER_RUNTIME);
    }
    match workspace.phase {
        WorkspacePhase::Pending => Err(PENDING),
        WorkspacePhase::Lost => Err(LOST),
        WorkspacePhase::Released => Err(RELEASED),
        WorkspacePhase::Bound => match (&workspace.bound_pod, &workspace.bound_pod_uid) {
            (Some(name), Some(uid)) => Ok((name, uid)),
            _ => Err(UNFENCED),
        },
    }
}

impl PreFilter for WorkspaceFencing {
    /// Requests, workspace, terms and labels are what the host tells Runs apart by itself.
    fn class_key(&self, _run: RunView<'_>) -> Option<Vec<u64>> {
        Some(Vec::new())
    }
    fn pre_filter(&self, run: RunView<'_>, snapshot: Snapshot<'_>) -> Prepared {
        let Some(name) = &run.object().workspace else { return Prepared::default() };
        let narrow = match bound_pod(snapshot.workspace(name), &run.object().runtime) {
            Err(reason) => Narrow { pods: Vec::new(), awaited: Vec::new(), rejection: Rejection::about(reason, name.clone()), refuses: true },
            Ok((pod, uid)) => Narrow {
                pods: snapshot.pod_named(pod).filter(|view| &**view.uid() == uid).map(PodView::id).into_iter().collect(),
                awaited: vec![pod.into()],
                rejection: Rejection::about(NOT_BOUND, name.clone()),
                refuses: false,
            },
        };
        Prepared { narrow: Some(narrow), exact: State::new(Fenced), ..Prepared::default() }
    }
}

/// Present in the cycle state of a Run that names a workspace.
struct Fenced;

impl Filter for WorkspaceFencing {
    fn filter(&self, state: &State, _run: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        let fenced = state.get::<Fenced>().is_some();
        if fenced && self.args.require_workspace_agent && !pod.has_workspace_agent() {
            return Err(Rejection::new(NO_AGENT));
        }
        Ok(())
    }
}
