//! Which of the available Pods a workspace gets.

use std::cmp::Ordering;

pub use berth_api::persistent_workspace::WorkspaceBinding;
use berth_api::runtime_ready::Verdict;

/// A Pod of the workspace's namespace whose `runtime` label is the workspace's `spec.runtime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
    /// What the one predicate says of it now.
    pub verdict: Verdict,
    /// How loaded it is; only looked at by [`WorkspaceBinding::LeastLoaded`].
    pub load: Load,
}

/// How loaded a Pod is: what its active Runs hold of `runs`, and one for each workspace bound to it, over what it has of `runs`. A workspace
/// holds nothing (reference §4), but its Runs will come to this Pod and to no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Held and to come.
    pub held: u64,
    /// Advertised; 0 is a drained Pod, which is fuller than any other.
    pub capacity: u64,
}

impl Load {
    /// Compares held ÷ capacity, exactly.
    fn compare(self, other: Self) -> Ordering {
        match (self.capacity, other.capacity) {
            (0, 0) => self.held.cmp(&other.held),
            (0, _) => Ordering::Greater,
            (_, 0) => Ordering::Less,
            (mine, theirs) => (u128::from(self.held) * u128::from(theirs)).cmp(&(u128::from(other.held) * u128::from(mine))),
        }
    }
}

/// The Pod to bind to, if any is available. `pods` may come in any order; ties go to the smallest name.
pub fn choose<'a>(binding: WorkspaceBinding, pods: impl Iterator<Item = Candidate<'a>>) -> Option<Candidate<'a>> {
    let by_load = |a: &Candidate<'_>, b: &Candidate<'_>| match binding {
        WorkspaceBinding::FirstByName => Ordering::Equal,
        WorkspaceBinding::LeastLoaded => a.load.compare(b.load),
    };
    pods.filter(|pod| pod.verdict == Verdict::Ready).min_by(|a, b| by_load(a, b).then_with(|| a.name.cmp(b.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, held: u64, capacity: u64) -> Candidate<'_> {
        Candidate { name, uid: "u", verdict: Verdict::Ready, load: Load { held, capacity } }
    }

    #[test]
    fn the_first_by_name_or_the_least_loaded_is_chosen() {
        let not = |name, verdict| Candidate { verdict, ..pod(name, 0, 9) };
        let table = [
            ("none", vec![], None, None),
            ("the smaller share, not the smaller number", vec![pod("a", 2, 2), pod("b", 3, 10)], Some("a"), Some("b")),
            ("equal shares: by name", vec![pod("c", 2, 4), pod("b", 1, 2)], Some("b"), Some("b")),
            ("empty ones: by name, whatever they have", vec![pod("c", 0, 100), pod("b", 0, 1)], Some("b"), Some("b")),
            ("over capacity counts on", vec![pod("a", 7, 2), pod("b", 6, 2)], Some("a"), Some("b")),
            ("a drained Pod is the last resort", vec![pod("a", 0, 0), pod("b", 99, 1)], Some("a"), Some("b")),
            ("of drained ones the emptier", vec![pod("a", 2, 0), pod("b", 1, 0)], Some("a"), Some("b")),
            ("no overflow", vec![pod("a", u64::MAX, u64::MAX - 1), pod("b", u64::MAX - 1, u64::MAX)], Some("a"), Some("b")),
            (
                "only available ones",
                vec![not("a", Verdict::Terminating), not("b", Verdict::HeartbeatStale), not("c", Verdict::NotReady), pod("d", 9, 9)],
                Some("d"),
                Some("d"),
            ),
        ];
        for (row, mut pods, first, least) in table {
            for _ in 0..2 {
                let chosen = |binding| choose(binding, pods.iter().copied()).map(|pod| pod.name);
                assert_eq!((chosen(WorkspaceBinding::FirstByName), chosen(WorkspaceBinding::LeastLoaded)), (first, least), "{row}");
                pods.reverse();
            }
        }
    }
}
