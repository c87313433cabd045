//! The phase of a Run, tolerant of phases that a later version may add.

use crate::open_enum::open_enum;

open_enum! {
    /// Phase of a Run (reference §1.3).
    ///
    /// ```text
    /// Pending ─► Scheduled ─► Running (Ready) ─► Succeeded | Failed | Timeout | Cancelled
    ///    ▲           │           │
    ///    └───────────┴───────────┘  never claimed, or Pod lost with an attempt left
    /// ```
    /// Active phases hold capacity and are affinity targets. A phase this version doesn't know is neither active,
    /// terminal nor Pending: such a Run is left alone.
    RunPhase, empty = Pending {
        /// Waits for a Pod; also the meaning of an absent or empty phase.
        Pending,
        /// Assigned to a Pod, not claimed yet.
        Scheduled,
        /// Claimed by the Pod's agent.
        Running,
        /// A function that answers calls.
        Ready,
        /// Ended well.
        Succeeded,
        /// Ended badly.
        Failed,
        /// Ran past its time limit.
        Timeout,
        /// Cancelled by the user.
        Cancelled,
    }
}

impl RunPhase {
    /// Waits for a Pod.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Pending)
    }

    /// Holds capacity and is an affinity target: Scheduled, Running, Ready.
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Scheduled | Self::Running | Self::Ready)
    }

    /// Has ended: Succeeded, Failed, Timeout, Cancelled.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Timeout | Self::Cancelled)
    }
}
