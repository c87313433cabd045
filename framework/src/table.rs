//! Verdicts kept per shape: what Filter and Score said about each Pod, ranked, and caught up by the change log.
//!
//! Two Runs with equal shape keys get equal answers for every Pod outside their overlays, so one table
//! serves both. Feasible Pods are kept in buckets by the raw score of the (one) min-max-normalised plugin,
//! each bucket ordered by the sum of all other scores; the minimum and maximum that normalising needs are
//! the first and last bucket. A table that is behind re-evaluates only the Pods in the log.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::evaluate::{Ask, Depth, No, Scored};
use crate::observe::{Lap, Observer, Point};
use crate::plugin::{Rejection, TieKey};
use crate::views::{PodId, PodView};

/// How many shapes keep a table; the least recently used one goes.
pub(crate) const MAX_TABLES: usize = 128;

/// Order within a bucket: best first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub fixed: Reverse<i64>,
    pub tie: TieKey,
    pub name: Arc<str>,
    pub pod: PodId,
}

#[derive(Debug)]
enum Entry {
    Feasible { scored: Scored, name: Arc<str> },
    Rejected { plugin: usize, rejection: Rejection },
}

/// One shape's verdicts over the Pods of its domain.
#[derive(Debug, Default)]
pub(crate) struct ShapeTable {
    /// Log position up to which the table is exact; `None` before the first build.
    position: Option<u64>,
    entries: FxHashMap<PodId, Entry>,
    /// First normalised raw score → feasible Pods, best first. With no such plugin there is one bucket.
    pub buckets: BTreeMap<i64, BTreeSet<Rank>>,
    /// How many Pods each rejection was charged with.
    pub rejected: Vec<(usize, Rejection, u32)>,
    pub last_used: u64,
}

impl ShapeTable {
    /// Brings the table to the newest state of the domain. Returns how many Pods were evaluated.
    pub fn catch_up(&mut self, ask: Ask<'_>, observer: &mut dyn Observer) -> u64 {
        let (cache, domain) = (ask.run.cache, ask.run.entry.domain);
        let end = cache.domain(domain).log_end();
        let changed: Option<Vec<PodId>> = self.position.and_then(|position| cache.domain(domain).changes_since(position)).map(|changes| {
            changes.filter(|(at, pod)| cache.is_newest_change(*pod, *at) || cache.domain_of(*pod) != Some(domain)).map(|(_, pod)| pod).collect()
        });
        let changed = changed.unwrap_or_else(|| {
            self.entries.clear();
            self.buckets.clear();
            self.rejected.clear();
            cache.domain(domain).pods.clone()
        });
        for pod in &changed {
            self.remove(*pod);
        }
        let pods = ask.there(changed);
        for (pod, verdict) in pods.iter().zip(ask.evaluate(&pods, Depth::Shape, observer)) {
            self.insert(*pod, verdict);
        }
        self.position = Some(end);
        observer.lap(Lap::Host(Point::Filter));
        pods.len() as u64
    }

    fn insert(&mut self, pod: PodView<'_>, verdict: Result<Scored, No>) {
        let entry = match verdict {
            Ok(scored) => {
                let name = pod.name().clone();
                let bucket = scored.raw.first().copied().unwrap_or(0);
                self.buckets.entry(bucket).or_default().insert(rank(&scored, &name, pod.id()));
                Entry::Feasible { scored, name }
            }
            Err((plugin, rejection)) => {
                add_rejection(&mut self.rejected, plugin, &rejection, 1);
                Entry::Rejected { plugin, rejection }
            }
        };
        self.entries.insert(pod.id(), entry);
    }

    fn remove(&mut self, pod: PodId) {
        match self.entries.remove(&pod) {
            Some(Entry::Feasible { scored, name }) => {
                let bucket = scored.raw.first().copied().unwrap_or(0);
                if let Some(ranks) = self.buckets.get_mut(&bucket) {
                    ranks.remove(&rank(&scored, &name, pod));
                    if ranks.is_empty() {
                        self.buckets.remove(&bucket);
                    }
                }
            }
            Some(Entry::Rejected { plugin, rejection }) => {
                if let Some(at) = self.rejected.iter().position(|(p, r, _)| *p == plugin && *r == rejection) {
                    self.rejected[at].2 -= 1;
                    if self.rejected[at].2 == 0 {
                        self.rejected.swap_remove(at);
                    }
                }
            }
            None => {}
        }
    }

    /// The rejection the table holds for this Pod, if it holds one.
    pub fn rejection(&self, pod: PodId) -> Option<(usize, &Rejection)> {
        match self.entries.get(&pod) {
            Some(Entry::Rejected { plugin, rejection }) => Some((*plugin, rejection)),
            _ => None,
        }
    }

    /// The scores of a feasible Pod.
    pub fn scored(&self, pod: PodId) -> Option<&Scored> {
        match self.entries.get(&pod) {
            Some(Entry::Feasible { scored, .. }) => Some(scored),
            _ => None,
        }
    }

    /// Every feasible Pod, in no order: for profiles with more than one normalising plugin.
    pub fn feasible(&self) -> impl Iterator<Item = (PodId, &Scored, &Arc<str>)> {
        self.entries.iter().filter_map(|(pod, entry)| match entry {
            Entry::Feasible { scored, name } => Some((*pod, scored, name)),
            Entry::Rejected { .. } => None,
        })
    }
}

pub(crate) fn rank(scored: &Scored, name: &Arc<str>, pod: PodId) -> Rank {
    Rank { fixed: Reverse(scored.fixed), tie: scored.tie, name: name.clone(), pod }
}

/// Adds `pods` to the count of a rejection, keeping one row per (plugin, rejection).
pub(crate) fn add_rejection(counts: &mut Vec<(usize, Rejection, u32)>, plugin: usize, rejection: &Rejection, pods: u32) {
    if pods == 0 {
        return;
    }
    if let Some(row) = counts.iter_mut().find(|(p, r, _)| *p == plugin && r == rejection) {
        row.2 += pods;
    } else {
        counts.push((plugin, rejection.clone(), pods));
    }
}
