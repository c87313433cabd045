//! Asks plugins, one after the other: PreFilter about a Run; Filter, then Score, about some Pods. Plugin by plugin, so that an observer
//! needs one look at its clock per plugin, however many Pods there are.

use smallvec::SmallVec;

use crate::observe::{Lap, Observer, Point, Status};
use crate::plugin::{MAX_SCORE, Normalize, Prepared, Rejection, State, TieKey};
use crate::profile::Profile;
use crate::views::{PodId, PodView, RunView, Snapshot};

/// The first plugin, by its index in the profile, that says no, and what it says.
pub(crate) type No = (usize, Rejection);

/// The scores of one feasible Pod before normalisation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scored {
    /// Raw scores of the normalising plugins, in profile order.
    pub raw: SmallVec<[i64; 2]>,
    /// Weighted sum of all other scores, fixed point.
    pub fixed: i64,
    /// The scores `fixed` is the weighted sum of, in profile order.
    pub parts: SmallVec<[i64; 4]>,
    /// Decides ties in the total.
    pub tie: TieKey,
}

/// The per-plugin states of one cycle.
#[derive(Debug)]
pub(crate) struct Prepares {
    pub list: Vec<Prepared>,
}

impl Prepares {
    pub fn state(&self, plugin: usize, exact: bool) -> &State {
        static NONE: State = State::NONE;
        self.list.get(plugin).map_or(&NONE, |p| if exact { &p.exact } else { &p.base })
    }
}

/// How much of the Run counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What it shares with all of its shape.
    Shape,
    /// All of it, about a Pod that no plugin narrowed away.
    Run,
    /// All of it, about any Pod: a plugin also says no by narrowing.
    RunAndNarrowing,
}

/// Runs every plugin's PreFilter.
pub(crate) fn prepare(profile: &Profile, run: RunView<'_>, observer: &mut dyn Observer) -> Prepares {
    let snapshot = Snapshot { cache: run.cache, domain: run.entry.domain, namespace: &run.entry.object.key.namespace };
    let asked = profile.plugins.iter().enumerate().map(|(plugin, slot)| {
        let Some(asked) = slot.plugin.as_pre_filter().filter(|_| slot.pre_filters) else { return Prepared::default() };
        let prepared = asked.pre_filter(run, snapshot);
        let refuses = prepared.narrow.as_ref().is_some_and(|narrow| narrow.refuses);
        let status = if refuses { Status::UnschedulableAndUnresolvable } else { Status::Success };
        observer.lap(Lap::Plugin { point: Point::PreFilter, plugin, status, asked: 1 });
        prepared
    });
    Prepares { list: asked.collect() }
}

/// A Run and those who are asked about it.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'c> {
    pub profile: &'c Profile,
    pub prepares: &'c Prepares,
    pub run: RunView<'c>,
}

impl<'c> Ask<'c> {
    /// Those of `pods` that the Run's domain has.
    pub fn there(self, pods: impl IntoIterator<Item = PodId>) -> Vec<PodView<'c>> {
        let RunView { cache, entry } = self.run;
        pods.into_iter().filter(|pod| cache.domain_of(*pod) == Some(entry.domain)).filter_map(|pod| cache.pod_view(pod)).collect()
    }

    /// Who says no to each of `pods`: for each the first plugin, in order.
    pub fn filter<T: Default>(self, pods: &[PodView<'c>], depth: Depth, observer: &mut dyn Observer) -> Vec<Result<T, No>> {
        let mut verdicts: Vec<Result<T, No>> = pods.iter().map(|_| Ok(T::default())).collect();
        if pods.is_empty() {
            return verdicts;
        }
        observer.lap(Lap::Host(Point::Filter));
        for (plugin, slot) in self.profile.plugins.iter().enumerate() {
            let narrow = self.prepares.list.get(plugin).and_then(|p| p.narrow.as_ref()).filter(|_| depth == Depth::RunAndNarrowing);
            let filter = slot.plugin.as_filter().filter(|_| slot.filters);
            if narrow.is_none() && filter.is_none() {
                continue;
            }
            let state = self.prepares.state(plugin, depth != Depth::Shape);
            let mut asked = 0;
            for (pod, verdict) in pods.iter().zip(&mut verdicts).filter(|(_, verdict)| verdict.is_ok()) {
                if let Some(narrow) = narrow.filter(|narrow| !narrow.pods.contains(&pod.id)) {
                    *verdict = Err((plugin, narrow.rejection.clone()));
                } else if let Some(filter) = filter {
                    asked += 1;
                    if let Err(rejection) = filter.filter(state, self.run, *pod) {
                        *verdict = Err((plugin, rejection));
                    }
                }
            }
            if asked > 0 {
                observer.lap(Lap::Plugin { point: Point::Filter, plugin, status: Status::Success, asked });
            }
        }
        verdicts
    }

    /// Filters `pods` and scores those that are left.
    pub fn evaluate(self, pods: &[PodView<'c>], depth: Depth, observer: &mut dyn Observer) -> Vec<Result<Scored, No>> {
        let mut verdicts: Vec<Result<Scored, No>> = self.filter(pods, depth, observer);
        let feasible = verdicts.iter().filter(|verdict| verdict.is_ok()).count();
        if feasible == 0 {
            return verdicts;
        }
        for &(plugin, weight) in &self.profile.scores {
            let Some(score) = self.profile.plugins[plugin].plugin.as_score() else { continue };
            let state = self.prepares.state(plugin, depth != Depth::Shape);
            let (normalize, orders_ties) = (score.normalize(), self.profile.tie == Some(plugin));
            for (pod, scored) in pods.iter().zip(&mut verdicts).filter_map(|(pod, verdict)| Some((pod, verdict.as_mut().ok()?))) {
                let raw = score.score(state, self.run, *pod);
                match normalize {
                    Normalize::None => {
                        let score = raw.clamp(0, MAX_SCORE);
                        scored.fixed += weight * score;
                        scored.parts.push(score);
                    }
                    Normalize::MinMax => scored.raw.push(raw),
                }
                if orders_ties {
                    scored.tie = score.tie(self.run, *pod).unwrap_or_default();
                }
            }
            observer.lap(Lap::Plugin { point: Point::Score, plugin, status: Status::Success, asked: feasible });
        }
        verdicts
    }
}
