//! What the reconcilers need of Runtime Pods.

/// What the reconcilers read of a Pod, whatever the process keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimePod<'a> {
    /// Label `runtime`.
    pub runtime: &'a str,
    /// `status.phase` is Running.
    pub running: bool,
    /// Condition Ready is True.
    pub ready: bool,
    /// Has a deletionTimestamp.
    pub terminating: bool,
    /// Condition `kruntimes.io/RuntimedReady` is True and has a time.
    pub heartbeat_true: bool,
    /// Its `lastProbeTime`, milliseconds since the Unix epoch.
    pub probe_time_ms: Option<i64>,
    /// Annotation `kruntimes.io/workspace-agent`: its agent honours workspaces.
    pub agent: bool,
    /// `runs` it advertises.
    pub runs: u64,
}
