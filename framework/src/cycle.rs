//! One scheduling cycle: PreFilter, Filter, Score and normalise, pick; and the account of why not.
//!
//! The cycle reads the cache and owns only the verdict tables. Three ways lead to a decision, all exact:
//! a *narrowed* Run looks at its few candidates; any other Run takes the best of its shape's table and of
//! its overlay; a profile with a volatile plugin looks at every Pod.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::{Cache, RunEntry};
use crate::evaluate::{Ask, Depth, No, Prepares, Scored, prepare};
use crate::observe::Observer;
use crate::pick::{Candidate, pick};
use crate::plugin::{Rejection, WakeCause};
use crate::profile::Profile;
use crate::table::{MAX_TABLES, ShapeTable, add_rejection};
use crate::views::{PodId, PodView, RunView};

/// Why no Pod fits, folded: how many Pods each plugin rejected for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// Pods of the Run's namespace labelled with its runtime.
    pub pods: u32,
    /// Rows in profile order, then most Pods first, then by text. The counts sum to `pods` unless a Pod fits.
    pub rejections: Vec<Charge>,
    /// What the first PreFilter that did so decided alone (as a workspace that is not there), told even when there is no Pod.
    pub refused: Option<(&'static str, Rejection)>,
}

impl Diagnosis {
    /// Every plugin that rejected a Pod, or all of them at PreFilter; each once, in profile order.
    pub fn plugins(&self) -> impl Iterator<Item = &'static str> + '_ {
        let alone = self.refused.as_ref().filter(|_| self.rejections.is_empty()).map(|(plugin, _)| *plugin);
        let rows = self.rejections.iter().enumerate().filter(|(at, row)| *at == 0 || self.rejections[at - 1].plugin != row.plugin);
        alone.into_iter().chain(rows.map(|(_, row)| row.plugin))
    }

    /// Codes of all its reasons, each once, in alphabetical order.
    pub fn codes(&self) -> Vec<&'static str> {
        let refused = self.refused.iter().map(|(_, rejection)| rejection.reason.code);
        let mut codes: Vec<_> = self.rejections.iter().map(|row| row.rejection.reason.code).chain(refused).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

/// One row of a [`Diagnosis`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The plugin that rejected.
    pub plugin: &'static str,
    /// Its reason.
    pub rejection: Rejection,
    /// How many Pods.
    pub pods: u32,
}

/// A Pod with its total score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The Pod's name.
    pub pod: Arc<str>,
    /// Weighted sum, fixed point (1/1000).
    pub total: i64,
    /// Normalised score by plugin before weighting, fixed point (1/1000).
    pub by_plugin: Vec<(&'static str, i64)>,
}

/// Where the Run goes.
#[derive(Debug)]
pub(crate) struct Choice {
    pub pod: PodId,
    /// The chosen Pod first, then runners-up, if asked for.
    pub ranked: Vec<Ranked>,
}

/// The outcome of one attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    Fits(Choice),
    Waits(Wait),
}

impl Outcome {
    /// The chosen Pod, if one fits.
    pub fn pod(&self) -> Option<PodId> {
        match self {
            Self::Fits(choice) => Some(choice.pod),
            Self::Waits(_) => None,
        }
    }
}

/// Why a Run waits, and what for.
#[derive(Debug)]
pub(crate) struct Wait {
    pub diagnosis: Diagnosis,
    pub wants: Wants,
    pub scope: Scope,
}

/// Which events can help.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// Union of the events of the plugins that rejected, a bit each.
    pub events: u32,
    /// These plugins, a bit each by index; those from 63 on share the last.
    plugins: u64,
}

impl Wants {
    /// What a plugin asked for.
    pub fn of(profile: &Profile, plugin: usize) -> Self {
        Self { events: profile.events_of(plugin), plugins: 1 << plugin.min(63) }
    }

    pub fn and(self, other: Self) -> Self {
        Self { events: self.events | other.events, plugins: self.plugins | other.plugins }
    }

    /// Whose wish an event meets: the first plugin that rejected and asked for it, or that might have.
    pub fn asker(self, profile: &Profile, cause: WakeCause) -> usize {
        let asks = |plugin: &usize| profile.events_of(*plugin) & cause.bit() != 0;
        let rejected = |plugin: &usize| self.plugins & (1 << (*plugin).min(63)) != 0;
        let mut all = 0..profile.plugins.len();
        all.clone().filter(rejected).find(asks).or_else(|| all.find(asks)).unwrap_or(0)
    }
}

/// Which Pods' changes can help a waiting Run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Any Pod of the domain.
    Wide,
    /// Only these Pods, by name; empty = no Pod's change alone.
    Narrow(Vec<Arc<str>>),
}

/// The verdict tables of one profile.
#[derive(Debug, Default)]
pub(crate) struct Cycle {
    tables: FxHashMap<Vec<u64>, ShapeTable>,
    used: u64,
    /// Pods evaluated, ever.
    pub evaluated: u64,
}

impl Cycle {
    /// Forgets every verdict: another profile is in force.
    pub fn clear(&mut self) {
        self.tables.clear();
    }

    /// How many shapes keep a table.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Decides where `run` goes; `keep` ranked Pods (at least one) are told. Also answers what PreFilter found out.
    pub fn attempt(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, keep: usize, observer: &mut dyn Observer) -> (Outcome, Prepares) {
        let run = RunView { cache, entry: run };
        let prepares = prepare(profile, run, observer);
        let ask = Ask { profile, prepares: &prepares, run };
        let outcome = match Narrowed::of(&prepares) {
            Some(narrowed) => self.attempt_narrowed(ask, &narrowed, keep, observer),
            None if profile.volatile => self.attempt_by_scan(ask, keep, observer),
            None => self.attempt_by_table(ask, keep, observer),
        };
        (outcome, prepares)
    }

    /// Filters and scores `pods`: the feasible ones, and how many each rejection was charged with.
    fn look<'c>(&mut self, ask: Ask<'c>, pods: &[PodView<'c>], observer: &mut dyn Observer) -> (Vec<Feasible<'c>>, Charges) {
        self.evaluated += pods.len() as u64;
        let (mut feasible, mut charges) = (Vec::new(), Charges::new());
        for (pod, verdict) in pods.iter().zip(ask.evaluate(pods, Depth::Run, observer)) {
            match verdict {
                Ok(scored) => feasible.push(Feasible { pod: pod.id(), name: pod.name(), scored }),
                Err((plugin, rejection)) => add_rejection(&mut charges, plugin, &rejection, 1),
            }
        }
        (feasible, charges)
    }

    /// Adds those who say no to `pods`, also by narrowing, to `charges`.
    fn charge<'c>(&mut self, ask: Ask<'c>, pods: &[PodView<'c>], charges: &mut Charges, observer: &mut dyn Observer) {
        self.evaluated += pods.len() as u64;
        for (plugin, rejection) in ask.filter::<()>(pods, Depth::RunAndNarrowing, observer).into_iter().filter_map(Result::err) {
            add_rejection(charges, plugin, &rejection, 1);
        }
    }

    fn attempt_narrowed(&mut self, ask: Ask<'_>, narrowed: &Narrowed, keep: usize, observer: &mut dyn Observer) -> Outcome {
        let candidates = ask.there(narrowed.candidates(ask.prepares));
        let (feasible, _) = self.look(ask, &candidates, observer);
        match pick(ask.profile, feasible.iter().map(Feasible::candidate), keep) {
            Some(choice) => Outcome::Fits(choice),
            None => self.diagnose_narrowed(ask, narrowed, observer),
        }
    }

    fn table<'t>(&'t mut self, ask: Ask<'_>, observer: &mut dyn Observer) -> &'t ShapeTable {
        let mut key = vec![ask.run.cache.domain(ask.run.entry.domain).serial];
        for prepared in &ask.prepares.list {
            key.push(prepared.key.len() as u64);
            key.extend_from_slice(&prepared.key);
        }
        self.used += 1;
        if self.tables.len() >= MAX_TABLES
            && !self.tables.contains_key(&key)
            && let Some(oldest) = self.tables.iter().min_by_key(|(_, table)| table.last_used).map(|(key, _)| key.clone())
        {
            self.tables.remove(&oldest);
        }
        let used = self.used;
        let table = self.tables.entry(key).or_default();
        table.last_used = used;
        self.evaluated += table.catch_up(ask, observer);
        table
    }

    fn attempt_by_table(&mut self, ask: Ask<'_>, keep: usize, observer: &mut dyn Observer) -> Outcome {
        let overlay = overlay_of(ask);
        let (feasible, rejected) = self.look(ask, &ask.there(overlay.iter().copied()), observer);
        let table = self.table(ask, observer);
        let feasible = feasible.iter().map(Feasible::candidate);
        let choice = if ask.profile.normalized > 1 {
            let rest = table.feasible().filter(|(pod, ..)| !overlay.contains(pod)).map(|(pod, scored, name)| Candidate { pod, name, scored });
            pick(ask.profile, feasible.chain(rest), keep)
        } else {
            // The best of each bucket stands for all of it: within a bucket the normalised score is equal.
            let heads = table.buckets.values().flat_map(|ranks| ranks.iter().filter(|rank| !overlay.contains(&rank.pod)).take(keep.max(1)));
            let heads = heads.filter_map(|rank| table.scored(rank.pod).map(|scored| Candidate { pod: rank.pod, name: &rank.name, scored }));
            pick(ask.profile, feasible.chain(heads), keep)
        };
        if let Some(choice) = choice {
            return Outcome::Fits(choice);
        }
        let mut counts = table.rejected.clone();
        for &pod in &overlay {
            if let Some((plugin, rejection)) = table.rejection(pod)
                && let Some(row) = counts.iter_mut().find(|(p, r, _)| *p == plugin && r == rejection)
            {
                row.2 -= 1;
            }
        }
        counts.retain(|(_, _, pods)| *pods > 0);
        for (plugin, rejection, pods) in rejected {
            add_rejection(&mut counts, plugin, &rejection, pods);
        }
        Outcome::Waits(waits(ask, counts, Scope::Wide, None))
    }

    fn attempt_by_scan(&mut self, ask: Ask<'_>, keep: usize, observer: &mut dyn Observer) -> Outcome {
        let (feasible, charges) = self.look(ask, &all_pods(ask), observer);
        match pick(ask.profile, feasible.iter().map(Feasible::candidate), keep) {
            Some(choice) => Outcome::Fits(choice),
            None => Outcome::Waits(waits(ask, charges, Scope::Wide, None)),
        }
    }

    /// Charges every Pod of the domain: those the narrower left by looking, all others from the shape's table.
    fn diagnose_narrowed(&mut self, ask: Ask<'_>, narrowed: &Narrowed, observer: &mut dyn Observer) -> Outcome {
        let Ask { profile, prepares, run } = ask;
        let (cache, first) = (run.cache, narrowed.first);
        let mut counts = Charges::new();
        let mut looked: FxHashSet<PodId> = FxHashSet::default();
        let left = prepares.list[first].narrow.as_ref().map(|n| n.pods.clone()).unwrap_or_default();
        let mut pods = ask.there(left.into_iter().chain(overlay_of(ask)));
        pods.retain(|pod| looked.insert(pod.id()));
        self.charge(ask, &pods, &mut counts, observer);
        let domain_pods = u32::try_from(cache.domain(run.entry.domain).pods.len()).unwrap_or(u32::MAX);
        let mut others = domain_pods - u32::try_from(looked.len()).unwrap_or(0);
        if profile.volatile {
            let mut rest = all_pods(ask);
            rest.retain(|pod| looked.insert(pod.id()));
            self.charge(ask, &rest, &mut counts, observer);
            others = 0;
        } else if others > 0 && profile.filters.first().is_some_and(|f| *f < first) {
            let table = self.table(ask, observer);
            for (plugin, rejection, pods) in table.rejected.iter().filter(|(plugin, ..)| *plugin < first) {
                let among_looked = looked.iter().filter(|pod| table.rejection(**pod).is_some_and(|(p, r)| p == *plugin && r == rejection)).count();
                let pods = pods - u32::try_from(among_looked).unwrap_or(0);
                others -= pods;
                add_rejection(&mut counts, *plugin, rejection, pods);
            }
        }
        if let Some(narrow) = &prepares.list[first].narrow {
            add_rejection(&mut counts, first, &narrow.rejection, others);
        }
        let mut names: Vec<Arc<str>> = narrowed.candidates(prepares).filter_map(|pod| cache.pod_key(pod).map(|key| key.name.clone())).collect();
        names.extend(prepares.list.iter().filter_map(|p| p.narrow.as_ref()).flat_map(|n| n.awaited.iter().cloned()));
        names.sort();
        names.dedup();
        let refusals = prepares.list.iter().zip(&profile.plugins).filter_map(|(p, slot)| p.narrow.as_ref().filter(|n| n.refuses).map(|n| (slot, n)));
        let refused = refusals.map(|(slot, n)| (slot.plugin.name(), n.rejection.clone())).next();
        let mut wait = waits(ask, counts, Scope::Narrow(names), refused);
        for (index, prepared) in prepares.list.iter().enumerate() {
            if prepared.narrow.is_some() {
                wait.wants = wait.wants.and(Wants::of(profile, index));
            }
        }
        Outcome::Waits(wait)
    }

    /// Every feasible Pod with its scores, best first; looks at all Pods.
    pub fn rank_all(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry) -> Vec<Ranked> {
        let run = RunView { cache, entry: run };
        let prepares = prepare(profile, run, &mut ());
        let ask = Ask { profile, prepares: &prepares, run };
        let pods = all_pods(ask);
        self.evaluated += pods.len() as u64;
        let verdicts = ask.evaluate(&pods, Depth::RunAndNarrowing, &mut ());
        let feasible = pods.iter().zip(&verdicts).filter_map(|(pod, verdict)| Some((pod, verdict.as_ref().ok()?)));
        let candidates = feasible.map(|(pod, scored)| Candidate { pod: pod.id(), name: pod.name(), scored });
        pick(profile, candidates, usize::MAX).map_or_else(Vec::new, |choice| choice.ranked)
    }

    /// Looks at one Pod only: does it fit now, and if not, who says no?
    ///
    /// # Errors
    /// The first rejecting plugin's index and rejection.
    pub fn hint(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, pod: PodId) -> Result<(), No> {
        let run = RunView { cache, entry: run };
        let prepares = prepare(profile, run, &mut ());
        let Some(view) = cache.pod_view(pod) else { return Ok(()) };
        self.evaluated += 1;
        let ask = Ask { profile, prepares: &prepares, run };
        ask.filter::<()>(&[view], Depth::RunAndNarrowing, &mut ()).pop().unwrap_or(Ok(()))
    }
}

/// A Pod that can take the Run.
struct Feasible<'c> {
    pod: PodId,
    name: &'c Arc<str>,
    scored: Scored,
}

impl Feasible<'_> {
    fn candidate(&self) -> Candidate<'_> {
        Candidate { pod: self.pod, name: self.name, scored: &self.scored }
    }
}

/// How many Pods each plugin's rejection was charged with.
type Charges = Vec<(usize, Rejection, u32)>;

fn all_pods(ask: Ask<'_>) -> Vec<PodView<'_>> {
    ask.there(ask.run.cache.domain(ask.run.entry.domain).pods.iter().copied())
}

/// The Pods of the domain about which this Run differs from its shape.
fn overlay_of(ask: Ask<'_>) -> FxHashSet<PodId> {
    let pods = ask.prepares.list.iter().flat_map(|p| p.overlay.iter().copied());
    pods.filter(|pod| ask.run.cache.domain_of(*pod) == Some(ask.run.entry.domain)).collect()
}

/// Which plugins narrowed.
struct Narrowed {
    first: usize,
    smallest: usize,
}

impl Narrowed {
    fn of(prepares: &Prepares) -> Option<Self> {
        let narrowers = || prepares.list.iter().enumerate().filter_map(|(i, p)| p.narrow.as_ref().map(|n| (i, n.pods.len())));
        let (first, _) = narrowers().next()?;
        let (smallest, _) = narrowers().min_by_key(|(_, len)| *len)?;
        Some(Self { first, smallest })
    }

    fn candidates<'p>(&self, prepares: &'p Prepares) -> impl Iterator<Item = PodId> + 'p {
        let smallest = prepares.list[self.smallest].narrow.as_ref();
        smallest
            .into_iter()
            .flat_map(|n| n.pods.iter().copied())
            .filter(|pod| prepares.list.iter().filter_map(|p| p.narrow.as_ref()).all(|n| n.pods.contains(pod)))
    }
}

fn waits(ask: Ask<'_>, mut counts: Charges, scope: Scope, refused: Option<(&'static str, Rejection)>) -> Wait {
    let Ask { profile, run, .. } = ask;
    counts.sort_by(|(pa, ra, na), (pb, rb, nb)| (pa, std::cmp::Reverse(na), ra).cmp(&(pb, std::cmp::Reverse(nb), rb)));
    let always = Wants { events: WakeCause::ProfileChanged.bit(), plugins: 0 };
    let wants = counts.iter().fold(always, |wants, (plugin, ..)| wants.and(Wants::of(profile, *plugin)));
    let rejections = counts.into_iter().map(|(plugin, rejection, pods)| Charge { plugin: profile.plugins[plugin].plugin.name(), rejection, pods }).collect();
    let pods = u32::try_from(run.cache.domain(run.entry.domain).pods.len()).unwrap_or(u32::MAX);
    Wait { diagnosis: Diagnosis { pods, rejections, refused }, wants, scope }
}
