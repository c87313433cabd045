//! The account of a waiting Run in one line, and Runs that wait for each other.

use std::fmt::Write as _;
use std::sync::Arc;

use berth_api::constants::MESSAGE_BYTES_MAX;
use berth_api::message::bounded;
use berth_api::selector::{CompiledSelector, Operator, Requirement};
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::affinity_index::TermId;
use crate::cache::{Cache, RunEntry, RunId};
use crate::cycle::Diagnosis;
use crate::model::ObjectKey;
use crate::views::RunView;

/// How every waiting message begins; clients of the neighbour match it (reference kruntimes §3.7).
pub const WAITING_PREFIX: &str = "waiting for available runtime pods";
/// How many Runs and terms the search for Runs that wait for each other looks at.
pub const STUCK_NODES_MAX: usize = 10_000;

/// The waiting message: `waiting for available runtime pods: 0/12 fit: 1 heartbeat stale, 11 insufficient runs`.
pub fn message(diagnosis: &Diagnosis, runtime: &str, stuck: Option<&str>) -> String {
    let mut text = format!("{WAITING_PREFIX}: 0/{} fit", diagnosis.pods);
    let mut separator = ": ";
    if diagnosis.pods == 0 {
        let _ = write!(text, "{separator}no Pod has label runtime={runtime}");
        separator = ", ";
    }
    // Where every Pod is charged for something else first (or there is none), what refused the Run is told all the same.
    if let Some((_, rejection)) = diagnosis.refused.as_ref().filter(|(_, refusal)| diagnosis.rejections.iter().all(|charge| charge.rejection != *refusal)) {
        let _ = write!(text, "{separator}{rejection}");
        separator = ", ";
    }
    for charge in &diagnosis.rejections {
        let row = format!("{separator}{} {}", charge.pods, charge.rejection);
        if text.len() + row.len() > MESSAGE_BYTES_MAX - 200 {
            text.push_str(", …");
            break;
        }
        text.push_str(&row);
        separator = ", ";
    }
    if let Some(stuck) = stuck {
        let _ = write!(text, "; {stuck}");
    }
    bounded(text)
}

/// Why waiting Runs of one namespace can't get on by themselves, by Run.
pub(crate) type Stuck = FxHashMap<RunId, Arc<str>>;

/// Finds the waiting Runs outside the least fixpoint of "every required term can be seeded by the Run itself, has a
/// target, or is offered by a waiting Run already in the set", and says what each of them waits for.
///
/// Linear in Runs and their terms; looks at [`STUCK_NODES_MAX`] nodes at most, then says nothing.
pub(crate) fn find_stuck(cache: &Cache, runs: &[RunId]) -> Stuck {
    let mut stuck = Stuck::default();
    let entries: Vec<(RunId, &RunEntry)> = runs.iter().filter_map(|id| cache.run(*id).map(|entry| (*id, entry))).collect();
    let mut terms: FxHashMap<(TermId, crate::cache::DomainId), Vec<usize>> = FxHashMap::default();
    for (i, (_, entry)) in entries.iter().enumerate() {
        for term in &entry.terms.required {
            terms.entry((*term, entry.domain)).or_default().push(i);
        }
    }
    if entries.len() + terms.len() > STUCK_NODES_MAX {
        return stuck;
    }
    let matches = |term: TermId, entry: &RunEntry| cache.affinity.matches(term, entry.labels);
    // offered[i]: open terms that Run i's labels would satisfy for others of its domain.
    let offers: Vec<Vec<(TermId, crate::cache::DomainId)>> = entries
        .iter()
        .map(|(_, entry)| cache.affinity.terms_of(entry.labels).iter().map(|t| (*t, entry.domain)).filter(|key| terms.contains_key(key)).collect())
        .collect();
    let mut satisfied: FxHashSet<(TermId, crate::cache::DomainId)> =
        terms.keys().copied().filter(|(term, domain)| cache.term_total(*term, *domain) > 0).collect();
    let open_terms = |i: usize, satisfied: &FxHashSet<_>| -> usize {
        let (_, entry) = &entries[i];
        entry.terms.required.iter().filter(|t| !matches(**t, entry) && !satisfied.contains(&(**t, entry.domain))).count()
    };
    let mut missing: Vec<usize> = (0..entries.len()).map(|i| open_terms(i, &satisfied)).collect();
    let mut ready: Vec<usize> = (0..entries.len()).filter(|i| missing[*i] == 0).collect();
    let mut seen: Vec<bool> = missing.iter().map(|m| *m == 0).collect();
    while let Some(i) = ready.pop() {
        for key in &offers[i] {
            if !satisfied.insert(*key) {
                continue;
            }
            for &waiter in &terms[key] {
                if !matches(key.0, entries[waiter].1) && missing[waiter] > 0 {
                    missing[waiter] -= 1;
                    if missing[waiter] == 0 && !seen[waiter] {
                        seen[waiter] = true;
                        ready.push(waiter);
                    }
                }
            }
        }
    }
    explain(cache, &entries, &offers, &missing, &satisfied, &mut stuck);
    for (i, (id, entry)) in entries.iter().enumerate() {
        if missing[i] == 0 && one_at_a_time(cache, entry) {
            stuck.insert(*id, Arc::from("runs one at a time: it requires and excludes Runs like itself"));
        }
    }
    stuck
}

fn explain(
    cache: &Cache,
    entries: &[(RunId, &RunEntry)],
    offers: &[Vec<(TermId, crate::cache::DomainId)>],
    missing: &[usize],
    satisfied: &FxHashSet<(TermId, crate::cache::DomainId)>,
    stuck: &mut Stuck,
) {
    let outside: Vec<usize> = (0..entries.len()).filter(|i| missing[*i] > 0).collect();
    let mut offered_by: FxHashMap<(TermId, crate::cache::DomainId), Vec<usize>> = FxHashMap::default();
    for &i in &outside {
        for key in &offers[i] {
            offered_by.entry(*key).or_default().push(i);
        }
    }
    let mut graph: DiGraph<usize, ()> = DiGraph::new();
    let nodes: FxHashMap<usize, NodeIndex> = outside.iter().map(|i| (*i, graph.add_node(*i))).collect();
    let mut waits_for: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
    let mut nobody: FxHashMap<usize, TermId> = FxHashMap::default();
    for &i in &outside {
        let (_, entry) = &entries[i];
        for term in entry.terms.required.iter().filter(|t| !cache.affinity.matches(**t, entry.labels)) {
            let key = (*term, entry.domain);
            if satisfied.contains(&key) {
                continue;
            }
            match offered_by.get(&key) {
                // One witness per term keeps the graph linear.
                Some(by) => {
                    if let Some(&other) = by.iter().min_by_key(|o| &entries[**o].1.object.key) {
                        graph.add_edge(nodes[&i], nodes[&other], ());
                        waits_for.entry(i).or_default().push(other);
                    }
                }
                None => {
                    nobody.entry(i).or_insert(*term);
                }
            }
        }
    }
    let mut component: FxHashMap<usize, usize> = FxHashMap::default();
    for (number, members) in tarjan_scc(&graph).into_iter().enumerate() {
        for node in &members {
            component.insert(graph[*node], number);
        }
    }
    let key = |i: usize| -> &ObjectKey { &entries[i].1.object.key };
    for &i in &outside {
        let text = if let Some(term) = nobody.get(&i) {
            let selector = cache.affinity.selector(*term).map(|s| selector_text(s)).unwrap_or_default();
            format!("no Run offers {selector}")
        } else {
            let mut others = waits_for.get(&i).cloned().unwrap_or_default();
            others.sort_by_key(|o| key(*o));
            others.dedup();
            match others.iter().find(|o| component.get(o) == component.get(&i)).or(others.first()) {
                Some(&other) if component.get(&other) == component.get(&i) => format!("waits for {}, which waits for it", key(other)),
                Some(&other) => format!("waits for {}, which can't be placed either", key(other)),
                None => continue,
            }
        };
        stuck.insert(entries[i].0, Arc::from(text.as_str()));
    }
}

/// Requires Runs like itself on the Pod and forbids Runs like itself on the Pod.
fn one_at_a_time(cache: &Cache, entry: &RunEntry) -> bool {
    let run = RunView { cache, entry };
    run.required().iter().any(|t| run.matches(*t)) && run.required_anti().iter().any(|t| run.matches(*t))
}

/// A selector as kubectl writes it: `app=x,env in (a,b),!canary`.
pub fn selector_text(selector: &CompiledSelector) -> String {
    let one = |r: &Requirement| match (r.op, r.values.as_slice()) {
        (Operator::In, [value]) => format!("{}={value}", r.key),
        (Operator::NotIn, [value]) => format!("{}!={value}", r.key),
        (Operator::In, values) => format!("{} in ({})", r.key, values.join(",")),
        (Operator::NotIn, values) => format!("{} notin ({})", r.key, values.join(",")),
        (Operator::Exists, _) => r.key.clone(),
        (Operator::DoesNotExist, _) => format!("!{}", r.key),
    };
    selector.requirements.iter().map(one).collect::<Vec<_>>().join(",")
}
