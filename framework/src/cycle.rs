//! One scheduling cycle: PreFilter, Filter, Score and normalise, pick; and the account of why not.
//!
//! The cycle reads the cache and owns only the verdict tables. Three ways lead to a decision, all exact:
//! a *narrowed* Run looks at its few candidates; any other Run takes the best of its shape's table and of
//! its overlay; a profile with a volatile plugin looks at every Pod.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::{Cache, DomainId, RunEntry};
use crate::plugin::{MAX_SCORE, Prepared, Rejection, WakeCause};
use crate::profile::Profile;
use crate::table::{MAX_TABLES, Prepares, Scored, ShapeTable, add_rejection, evaluate};
use crate::views::{PodId, RunView, Snapshot};

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
    /// Union of the events of the plugins that rejected.
    pub wanted: u32,
    pub scope: Scope,
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

/// A candidate while picking.
struct Candidate<'a> {
    pod: PodId,
    name: &'a Arc<str>,
    scored: &'a Scored,
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

    /// Decides where `run` goes; `keep` ranked Pods (at least one) are told.
    pub fn attempt(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, keep: usize) -> Outcome {
        let prepares = prepare(cache, profile, run);
        let domain = run.domain;
        let Some(narrowed) = Narrowed::of(&prepares) else {
            return if profile.volatile {
                self.attempt_by_scan(cache, profile, run, &prepares, keep)
            } else {
                self.attempt_by_table(cache, profile, run, &prepares, keep)
            };
        };
        let mut feasible = Vec::new();
        for pod in narrowed.candidates(&prepares) {
            if cache.domain_of(pod) != Some(domain) {
                continue;
            }
            let Some(view) = cache.pod_view(pod) else { continue };
            self.evaluated += 1;
            if let Ok(scored) = evaluate(profile, &prepares, RunView { cache, entry: run }, view, true) {
                feasible.push((pod, view.name(), scored));
            }
        }
        if let Some(choice) = pick(profile, feasible.iter().map(|(pod, name, scored)| Candidate { pod: *pod, name, scored }), keep) {
            return Outcome::Fits(choice);
        }
        self.diagnose_narrowed(cache, profile, run, &prepares, &narrowed)
    }

    fn table<'t>(&'t mut self, cache: &Cache, profile: &Profile, run: &RunEntry, prepares: &Prepares) -> &'t ShapeTable {
        let mut key = vec![u64::from(run.domain.0)];
        for prepared in &prepares.list {
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
        self.evaluated += table.catch_up(cache, run.domain, profile, prepares, run);
        table
    }

    fn attempt_by_table(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, prepares: &Prepares, keep: usize) -> Outcome {
        let overlay = overlay_of(cache, run.domain, prepares);
        let mut feasible = Vec::new();
        let mut rejected: Vec<(usize, Rejection, u32)> = Vec::new();
        for &pod in &overlay {
            let Some(view) = cache.pod_view(pod) else { continue };
            self.evaluated += 1;
            match evaluate(profile, prepares, RunView { cache, entry: run }, view, true) {
                Ok(scored) => feasible.push((pod, view.name(), scored)),
                Err((plugin, rejection)) => add_rejection(&mut rejected, plugin, &rejection, 1),
            }
        }
        let table = self.table(cache, profile, run, prepares);
        let choice = if profile.normalized > 1 {
            let rest = table.feasible().filter(|(pod, ..)| !overlay.contains(pod)).map(|(pod, scored, name)| Candidate { pod, name, scored });
            pick(profile, feasible.iter().map(|(pod, name, scored)| Candidate { pod: *pod, name, scored }).chain(rest), keep)
        } else {
            // The best of each bucket stands for all of it: within a bucket the normalised score is equal.
            let heads = table.buckets.values().flat_map(|ranks| ranks.iter().filter(|rank| !overlay.contains(&rank.pod)).take(keep.max(1)));
            let heads = heads.filter_map(|rank| table.scored(rank.pod).map(|scored| Candidate { pod: rank.pod, name: &rank.name, scored }));
            pick(profile, feasible.iter().map(|(pod, name, scored)| Candidate { pod: *pod, name, scored }).chain(heads), keep)
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
        Outcome::Waits(waits(cache, profile, run.domain, counts, Scope::Wide, None))
    }

    fn attempt_by_scan(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, prepares: &Prepares, keep: usize) -> Outcome {
        let mut feasible = Vec::new();
        let mut counts = Vec::new();
        for &pod in &cache.domain(run.domain).pods {
            let Some(view) = cache.pod_view(pod) else { continue };
            self.evaluated += 1;
            match evaluate(profile, prepares, RunView { cache, entry: run }, view, true) {
                Ok(scored) => feasible.push((pod, view.name(), scored)),
                Err((plugin, rejection)) => add_rejection(&mut counts, plugin, &rejection, 1),
            }
        }
        match pick(profile, feasible.iter().map(|(pod, name, scored)| Candidate { pod: *pod, name, scored }), keep) {
            Some(choice) => Outcome::Fits(choice),
            None => Outcome::Waits(waits(cache, profile, run.domain, counts, Scope::Wide, None)),
        }
    }

    /// Charges every Pod of the domain: those the narrower left by looking, all others from the shape's table.
    fn diagnose_narrowed(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, prepares: &Prepares, narrowed: &Narrowed) -> Outcome {
        let first = narrowed.first;
        let mut counts: Vec<(usize, Rejection, u32)> = Vec::new();
        let mut looked: FxHashSet<PodId> = FxHashSet::default();
        let left = prepares.list[first].narrow.as_ref().map(|n| n.pods.clone()).unwrap_or_default();
        let overlay = overlay_of(cache, run.domain, prepares);
        for pod in left.iter().copied().chain(overlay.iter().copied()) {
            if cache.domain_of(pod) != Some(run.domain) || !looked.insert(pod) {
                continue;
            }
            let Some(view) = cache.pod_view(pod) else { continue };
            self.evaluated += 1;
            if let Some((plugin, rejection)) = charge_exactly(profile, prepares, RunView { cache, entry: run }, view) {
                add_rejection(&mut counts, plugin, &rejection, 1);
            }
        }
        let domain_pods = u32::try_from(cache.domain(run.domain).pods.len()).unwrap_or(u32::MAX);
        let mut others = domain_pods - u32::try_from(looked.len()).unwrap_or(0);
        if profile.volatile {
            for &pod in &cache.domain(run.domain).pods {
                let Some(view) = cache.pod_view(pod) else { continue };
                if looked.insert(pod)
                    && let Some((plugin, rejection)) = charge_exactly(profile, prepares, RunView { cache, entry: run }, view)
                {
                    self.evaluated += 1;
                    add_rejection(&mut counts, plugin, &rejection, 1);
                }
            }
            others = 0;
        } else if others > 0 && profile.filters.first().is_some_and(|f| *f < first) {
            let table = self.table(cache, profile, run, prepares);
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
        let mut wait = waits(cache, profile, run.domain, counts, Scope::Narrow(names), refused);
        for (index, prepared) in prepares.list.iter().enumerate() {
            if prepared.narrow.is_some() {
                wait.wanted |= profile.events_of(index);
            }
        }
        Outcome::Waits(wait)
    }

    /// Every feasible Pod with its scores, best first; looks at all Pods.
    pub fn rank_all(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry) -> Vec<Ranked> {
        let prepares = prepare(cache, profile, run);
        let mut feasible = Vec::new();
        for view in cache.domain(run.domain).pods.iter().filter_map(|pod| cache.pod_view(*pod)) {
            self.evaluated += 1;
            let run = RunView { cache, entry: run };
            if charge_exactly(profile, &prepares, run, view).is_none()
                && let Ok(scored) = evaluate(profile, &prepares, run, view, true)
            {
                feasible.push((view.id(), view.name(), scored));
            }
        }
        let candidates = feasible.iter().map(|(pod, name, scored)| Candidate { pod: *pod, name, scored });
        pick(profile, candidates, usize::MAX).map_or_else(Vec::new, |choice| choice.ranked)
    }

    /// Looks at one Pod only: does it fit now, and if not, who says no?
    ///
    /// # Errors
    /// The first rejecting plugin's index and rejection.
    pub fn hint(&mut self, cache: &Cache, profile: &Profile, run: &RunEntry, pod: PodId) -> Result<(), (usize, Rejection)> {
        let prepares = prepare(cache, profile, run);
        let Some(view) = cache.pod_view(pod) else { return Ok(()) };
        self.evaluated += 1;
        match charge_exactly(profile, &prepares, RunView { cache, entry: run }, view) {
            Some(charge) => Err(charge),
            None => Ok(()),
        }
    }
}

/// Runs every plugin's PreFilter.
pub(crate) fn prepare(cache: &Cache, profile: &Profile, run: &RunEntry) -> Prepares {
    let view = RunView { cache, entry: run };
    let snapshot = Snapshot { cache, domain: run.domain, namespace: &run.object.key.namespace };
    let list = profile
        .plugins
        .iter()
        .map(|slot| slot.plugin.as_pre_filter().filter(|_| slot.pre_filters).map_or_else(Prepared::default, |p| p.pre_filter(view, snapshot)))
        .collect();
    Prepares { list }
}

/// The first plugin, in order, that says no to this Pod: by narrowing it away or by filtering it.
pub(crate) fn charge_exactly(profile: &Profile, prepares: &Prepares, run: RunView<'_>, pod: crate::views::PodView<'_>) -> Option<(usize, Rejection)> {
    for (index, slot) in profile.plugins.iter().enumerate() {
        if let Some(narrow) = prepares.list.get(index).and_then(|p| p.narrow.as_ref())
            && !narrow.pods.contains(&pod.id)
        {
            return Some((index, narrow.rejection.clone()));
        }
        if slot.filters
            && let Some(filter) = slot.plugin.as_filter()
            && let Err(rejection) = filter.filter(prepares.state(index, true), run, pod)
        {
            return Some((index, rejection));
        }
    }
    None
}

fn overlay_of(cache: &Cache, domain: DomainId, prepares: &Prepares) -> FxHashSet<PodId> {
    prepares.list.iter().flat_map(|p| p.overlay.iter().copied()).filter(|pod| cache.domain_of(*pod) == Some(domain)).collect()
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

fn waits(
    cache: &Cache,
    profile: &Profile,
    domain: DomainId,
    mut counts: Vec<(usize, Rejection, u32)>,
    scope: Scope,
    refused: Option<(&'static str, Rejection)>,
) -> Wait {
    counts.sort_by(|(pa, ra, na), (pb, rb, nb)| (pa, std::cmp::Reverse(na), ra).cmp(&(pb, std::cmp::Reverse(nb), rb)));
    let wanted = counts.iter().fold(0, |mask, (plugin, ..)| mask | profile.events_of(*plugin));
    let rejections = counts.into_iter().map(|(plugin, rejection, pods)| Charge { plugin: profile.plugins[plugin].plugin.name(), rejection, pods }).collect();
    let pods = u32::try_from(cache.domain(domain).pods.len()).unwrap_or(u32::MAX);
    Wait { diagnosis: Diagnosis { pods, rejections, refused }, wanted: wanted | WakeCause::ProfileChanged.bit(), scope }
}

/// Normalises and picks the best; ties by the tie key, then the smallest name.
fn pick<'a>(profile: &Profile, candidates: impl Iterator<Item = Candidate<'a>>, keep: usize) -> Option<Choice> {
    let candidates: Vec<Candidate<'a>> = candidates.collect();
    let mut ends = vec![(i64::MAX, i64::MIN); profile.normalized];
    for candidate in &candidates {
        for (end, raw) in ends.iter_mut().zip(&candidate.scored.raw) {
            *end = (end.0.min(*raw), end.1.max(*raw));
        }
    }
    let weights: Vec<i64> = profile.normalizing_weights();
    let total = |scored: &Scored| {
        let normalized = scored.raw.iter().zip(&ends).zip(&weights).map(|((raw, end), weight)| weight * min_max(*raw, *end));
        scored.fixed + normalized.sum::<i64>()
    };
    let order = |a: &&Candidate<'a>, b: &&Candidate<'a>| {
        let totals = total(b.scored).cmp(&total(a.scored));
        totals.then_with(|| a.scored.tie.cmp(&b.scored.tie)).then_with(|| a.name.cmp(b.name))
    };
    if keep <= 1 {
        let best = candidates.iter().min_by(order)?;
        let ranked = vec![Ranked { pod: best.name.clone(), total: total(best.scored), by_plugin: Vec::new() }];
        return Some(Choice { pod: best.pod, ranked });
    }
    let mut ranked: Vec<&Candidate<'a>> = candidates.iter().collect();
    ranked.sort_by(order);
    let pod = ranked.first()?.pod;
    let told = |c: &&Candidate<'a>| Ranked { pod: c.name.clone(), total: total(c.scored), by_plugin: by_plugin(profile, c.scored, &ends) };
    Some(Choice { pod, ranked: ranked.iter().take(keep).map(told).collect() })
}

/// Min-max to 0..=[`MAX_SCORE`], floored; all equal is 0 (decisions "Preferred").
fn min_max(raw: i64, (min, max): (i64, i64)) -> i64 {
    if max <= min {
        return 0;
    }
    let scaled = i128::from(raw - min) * i128::from(MAX_SCORE) / i128::from(max - min);
    i64::try_from(scaled).unwrap_or(MAX_SCORE)
}

fn by_plugin(profile: &Profile, scored: &Scored, ends: &[(i64, i64)]) -> Vec<(&'static str, i64)> {
    let mut raw = scored.raw.iter().zip(ends);
    let mut parts = scored.parts.iter();
    profile
        .scores
        .iter()
        .map(|&(index, _)| {
            let name = profile.plugins[index].plugin.name();
            let value = if profile.is_normalizing(index) { raw.next().map_or(0, |(raw, end)| min_max(*raw, *end)) } else { parts.next().copied().unwrap_or(0) };
            (name, value)
        })
        .collect()
}
