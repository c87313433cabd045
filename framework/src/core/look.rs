//! Looking into the core: why a Run waits, where it stands, what every plugin says of every Pod, how much work was done.

use std::sync::Arc;

use super::{Core, Explanation, Judgement, PodExplanation, Position, QueueLengths, Queued, Short, Sizes, Standing, Stats};
use crate::cache::{Counts, Place, WorkCounters};
use crate::cycle::{Diagnosis, Outcome};
use crate::evaluate::{Ask, Depth, prepare};
use crate::model::{Now, ObjectKey, Shown};
use crate::profile::Profiles;
use crate::views::RunView;

impl Core {
    /// Why a Run waits, as of its last attempt; `None` if it does not wait.
    pub fn waiting_on(&mut self, key: &ObjectKey, now: Now) -> Option<(Arc<Diagnosis>, Shown)> {
        let id = self.cache.run_id(key)?;
        let diagnosis = self.records.get(&id).filter(|r| matches!(r.standing, Standing::Waiting))?.diagnosis.clone()?;
        let shown = self.waiting_text(id, now)?;
        Some((diagnosis, shown))
    }

    /// Where a Run stands; `None` if the core does not know it.
    pub fn standing(&self, key: &ObjectKey) -> Option<Standing> {
        let id = self.cache.run_id(key)?;
        self.records.get(&id).map(|record| record.standing)
    }

    /// Where a Run stands and how it came there; `None` if it is not to be placed.
    pub fn queued(&self, key: &ObjectKey) -> Option<Queued> {
        let id = self.cache.run_id(key)?;
        let record = self.records.get(&id)?;
        Some(Queued {
            standing: record.standing,
            attempts: record.attempts,
            attempted_ms: record.attempted_ms,
            waiting_since_ms: record.waiting_since_ms,
            cause: record.cause,
            alarm: record.flush,
            until_ms: self.backoff.get(&id).copied(),
        })
    }

    /// How many go before a Run that is to be tried, or that waits; `None` of any other. Costs O(those it competes with).
    pub fn position(&self, key: &ObjectKey) -> Option<Position> {
        let id = self.cache.run_id(key)?;
        if let Some(own) = self.active.get_priority(&id) {
            return Some(Position { before: self.active.iter().filter(|(_, other)| *other > own).count(), of: self.active.len() });
        }
        let (before, of) = self.waiting.position(id, self.cache.run(id)?)?;
        Some(Position { before, of })
    }

    /// The Pod name a Run is counted on, assumed or active.
    pub fn counted_on(&self, key: &ObjectKey) -> Option<Arc<str>> {
        let id = self.cache.run_id(key)?;
        match self.cache.run(id)?.place {
            Place::Nowhere => None,
            Place::Assumed(pod) | Place::Active(pod) => self.cache.pod_key(pod).map(|key| key.name.clone()),
        }
    }

    /// What every plugin says of every Pod for this Run, as things stand now; costs O(Pods).
    pub fn explain(&self, key: &ObjectKey) -> Option<Explanation> {
        let id = self.cache.run_id(key)?;
        let entry = self.cache.run(id)?;
        let profile = self.profiles.of(&entry.object.runtime);
        let run = RunView { cache: &self.cache, entry };
        let prepares = prepare(profile, run, &mut ());
        let ask = Ask { profile, prepares: &prepares, run };
        let mut pods = Vec::new();
        for view in ask.there(self.cache.domain(entry.domain).pods.iter().copied()) {
            let verdicts = profile
                .plugins
                .iter()
                .enumerate()
                .filter_map(|(index, slot)| {
                    let narrowed =
                        prepares.list.get(index).and_then(|p| p.narrow.as_ref()).filter(|n| !n.pods.contains(&view.id())).map(|n| n.rejection.clone());
                    let filter = slot.plugin.as_filter().filter(|_| slot.filters);
                    if filter.is_none() && narrowed.is_none() {
                        return None;
                    }
                    let verdict = narrowed.or_else(|| filter.and_then(|f| f.filter(prepares.state(index, true), run, view).err()));
                    Some((slot.plugin.name(), verdict))
                })
                .collect();
            let fits = ask.filter::<()>(&[view], Depth::RunAndNarrowing, &mut ()).iter().all(Result::is_ok);
            let short = run.requests().filter_map(|(resource, request)| {
                let room = view.room(resource);
                let missing = room.used + i128::from(request) - i128::from(room.capacity);
                (missing > 0).then(|| Short { resource: Arc::from(resource), missing, capacity: room.capacity })
            });
            pods.push(PodExplanation { pod: view.name().clone(), fits, verdicts, short: short.collect() });
        }
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        Some(Explanation { runtime: entry.object.runtime.clone(), pods })
    }

    /// What would become of a Run if it were tried now; nothing changes. Costs O(Pods).
    pub fn judge(&mut self, key: &ObjectKey, now: Now) -> Option<Judgement> {
        let id = self.cache.run_id(key)?;
        let entry = self.cache.run(id)?;
        let profile = self.profiles.of(&entry.object.runtime).clone();
        match self.cycle.attempt(&self.cache, &profile, entry, usize::MAX, &mut ()).0 {
            Outcome::Fits(_) => Some(Judgement { ranked: self.cycle.rank_all(&self.cache, &profile, entry), diagnosis: None, shown: None }),
            Outcome::Waits(wait) => {
                let shown = self.text_of(id, &wait.diagnosis, now);
                Some(Judgement { ranked: Vec::new(), diagnosis: Some(wait.diagnosis), shown })
            }
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Waiting Runs by profile and plugin: a Run counts once for each plugin that rejected a Pod. Once there, a row stays until
    /// other profiles are in force.
    pub fn unschedulable(&self) -> impl Iterator<Item = (&str, &'static str, usize)> {
        self.unschedulable.iter().map(|(profile, plugin, runs)| (self.profiles.at(profile).name.as_str(), plugin, runs))
    }

    /// Work done since the start.
    pub fn work(&self) -> WorkCounters {
        WorkCounters { pods: self.cycle.evaluated, terms: self.cache.affinity.touched, runs: self.waiting.touched, searched: self.searched }
    }

    /// Queue gauges.
    pub fn queue(&self) -> QueueLengths {
        QueueLengths { active: self.active.len(), backoff: self.backoff.len(), waiting: self.waiting.len() }
    }

    /// Cache gauges.
    pub fn counts(&self) -> Counts {
        self.cache.counts()
    }

    /// How much of what is derived from the objects is kept.
    pub fn sizes(&self) -> Sizes {
        let (label_sets, terms) = self.cache.affinity_sizes();
        Sizes { tables: self.cycle.tables(), label_sets, terms, domains: self.cache.domains(), namespaces: self.namespaces.len() }
    }

    /// The profiles in force.
    pub fn profiles(&self) -> &Profiles {
        &self.profiles
    }
}
