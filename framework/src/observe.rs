//! What the core tells of its work as it goes. The core has no clock: whoever observes reads one at each [`Lap`].
//!
//! ```text
//! AttemptStart ─► PreFilter, a lap per plugin ─► Filter, Score: a lap per plugin, however many Pods ─► Decided
//!                                   ─► (Other: shadow profiles) ─► Reserve, Bind: a lap per plugin ─► AttemptEnd
//! Other ─► Hint … Hint      between attempts: waiting Runs are looked at for an event
//! ```

use crate::model::{Phase, RunObject};
use crate::plugin::WakeCause;

/// An extension point of a cycle, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Point {
    /// Once per attempt, before any Pod is looked at.
    PreFilter,
    /// Each Pod that has to be looked at.
    Filter,
    /// Each feasible Pod of these, and the choice among all.
    Score,
    /// The chosen Pod.
    Reserve,
    /// Remarks on the placement.
    Bind,
}

impl Point {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::PreFilter, Self::Filter, Self::Score, Self::Reserve, Self::Bind];
    /// The point's name, as in kube-scheduler's metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Bind => "Bind",
        }
    }
    /// The point's name in a configuration.
    pub fn field(self) -> &'static str {
        match self {
            Self::PreFilter => "preFilter",
            Self::Filter => "filter",
            Self::Score => "score",
            Self::Reserve => "reserve",
            Self::Bind => "bind",
        }
    }
}

/// How a plugin, or all plugins of a point, answered: those of kube-scheduler's status codes that exist here. Worst last. To say no to Pods is
/// how Filter works: there it is Success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Status {
    /// It did what it is for.
    #[default]
    Success,
    /// It said no to the chosen Pod.
    Unschedulable,
    /// It said no, whatever the Pods are.
    UnschedulableAndUnresolvable,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Success, Self::Unschedulable, Self::UnschedulableAndUnresolvable];
    /// The status's name, as in kube-scheduler's metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Unschedulable => "Unschedulable",
            Self::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
        }
    }
}

/// What the time since the last lap was spent on. Profiles are told by their place in [`crate::profile::Profiles::iter`], plugins by
/// theirs in [`crate::profile::Profile::plugin_names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lap {
    /// Nothing that is told of.
    Other,
    /// Nothing that is told of; an attempt begins.
    AttemptStart {
        /// Who decides.
        profile: usize,
    },
    /// One plugin at one point.
    Plugin {
        /// The point.
        point: Point,
        /// The plugin.
        plugin: usize,
        /// What came of it.
        status: Status,
        /// How many times it was asked: Pods, or 1.
        asked: usize,
    },
    /// The host's own work at a point.
    Host(Point),
    /// The host's own work at a point; a Pod is chosen, or none fits.
    Decided(Point),
    /// Shadow profiles, which are no part of the attempt: their time counts for nobody.
    Shadows,
    /// What comes after the last plugin; the attempt is over.
    AttemptEnd,
    /// One look whether an event helps a waiting Run.
    Hint {
        /// Whose plugins looked.
        profile: usize,
        /// The plugin that asked for the event.
        plugin: usize,
        /// The event.
        cause: WakeCause,
        /// It does: the Run is tried.
        helps: bool,
    },
}

/// Told of every lap. Must be quick: it is called some fifteen times per attempt.
pub trait Observer: Send {
    /// A lap is over and the next begins.
    fn lap(&mut self, lap: Lap);
}

/// Observes nothing.
impl Observer for () {
    fn lap(&mut self, _: Lap) {}
}

/// What kind of change an input was, as kube-scheduler calls it: its Pod is our Run, its Node our Runtime Pod. A Run that ended is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Event {
    UnscheduledPodAdd,
    UnscheduledPodUpdate,
    UnscheduledPodDelete,
    AssignedPodAdd,
    AssignedPodUpdate,
    AssignedPodDelete,
    NodeAdd,
    NodeUpdate,
    NodeDelete,
    PersistentWorkspaceAdd,
    PersistentWorkspaceUpdate,
    PersistentWorkspaceDelete,
}

impl Event {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::UnscheduledPodAdd,
        Self::UnscheduledPodUpdate,
        Self::UnscheduledPodDelete,
        Self::AssignedPodAdd,
        Self::AssignedPodUpdate,
        Self::AssignedPodDelete,
        Self::NodeAdd,
        Self::NodeUpdate,
        Self::NodeDelete,
        Self::PersistentWorkspaceAdd,
        Self::PersistentWorkspaceUpdate,
        Self::PersistentWorkspaceDelete,
    ];
    /// The event as a metric label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnscheduledPodAdd => "UnscheduledPodAdd",
            Self::UnscheduledPodUpdate => "UnscheduledPodUpdate",
            Self::UnscheduledPodDelete => "UnscheduledPodDelete",
            Self::AssignedPodAdd => "AssignedPodAdd",
            Self::AssignedPodUpdate => "AssignedPodUpdate",
            Self::AssignedPodDelete => "AssignedPodDelete",
            Self::NodeAdd => "NodeAdd",
            Self::NodeUpdate => "NodeUpdate",
            Self::NodeDelete => "NodeDelete",
            Self::PersistentWorkspaceAdd => "PersistentWorkspaceAdd",
            Self::PersistentWorkspaceUpdate => "PersistentWorkspaceUpdate",
            Self::PersistentWorkspaceDelete => "PersistentWorkspaceDelete",
        }
    }
    pub(crate) fn of_pod(known: bool) -> Self {
        if known { Self::NodeUpdate } else { Self::NodeAdd }
    }
    pub(crate) fn of_workspace(known: bool) -> Self {
        if known { Self::PersistentWorkspaceUpdate } else { Self::PersistentWorkspaceAdd }
    }
    /// From what a Run was to what it is, where nothing is one that has ended or is not there.
    pub(crate) fn of_run(before: RunIs, after: RunIs) -> Self {
        match (before, after) {
            (RunIs::Pending, RunIs::Pending) => Self::UnscheduledPodUpdate,
            (_, RunIs::Pending) => Self::UnscheduledPodAdd,
            (RunIs::Pending, RunIs::Nothing) => Self::UnscheduledPodDelete,
            (RunIs::Active, RunIs::Active) => Self::AssignedPodUpdate,
            (_, RunIs::Active) => Self::AssignedPodAdd,
            (_, RunIs::Nothing) => Self::AssignedPodDelete,
        }
    }
}

/// What a Run is to kube-scheduler's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunIs {
    Nothing,
    Pending,
    Active,
}

impl RunIs {
    pub fn of(run: &RunObject) -> Self {
        match run.phase {
            Phase::Pending => Self::Pending,
            Phase::Active => Self::Active,
            Phase::Terminal | Phase::Unknown => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_their_values_say() {
        for (at, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, at);
            assert_eq!(format!("{event:?}"), event.as_str());
        }
        for (at, point) in Point::ALL.into_iter().enumerate() {
            assert_eq!((point as usize, format!("{point:?}").as_str()), (at, point.as_str()));
        }
        for (at, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!((status as usize, format!("{status:?}").as_str()), (at, status.as_str()));
        }
    }

    #[test]
    fn a_run_s_event_is_told_by_what_it_was_and_is() {
        use RunIs::{Active, Nothing, Pending};
        let rows = [
            (Nothing, Pending, "UnscheduledPodAdd"),
            (Pending, Pending, "UnscheduledPodUpdate"),
            (Active, Pending, "UnscheduledPodAdd"),
            (Pending, Nothing, "UnscheduledPodDelete"),
            (Nothing, Active, "AssignedPodAdd"),
            (Pending, Active, "AssignedPodAdd"),
            (Active, Active, "AssignedPodUpdate"),
            (Active, Nothing, "AssignedPodDelete"),
            (Nothing, Nothing, "AssignedPodDelete"),
        ];
        for (before, after, event) in rows {
            assert_eq!(Event::of_run(before, after).as_str(), event);
        }
    }
}
