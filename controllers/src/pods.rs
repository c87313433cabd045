//! What the reconcilers need of Runtime Pods.

use berth_api::runtime_ready::PodSigns;

/// What the reconcilers read of a Pod, whatever the process keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimePod<'a> {
    /// Label `runtime`.
    pub runtime: &'a str,
    /// What it says of its availability.
    pub signs: PodSigns,
    /// Annotation `kruntimes.io/workspace-agent`: its agent honours workspaces.
    pub agent: bool,
    /// `runs` it advertises.
    pub runs: u64,
}
