//! Which active Runs match which affinity terms, per Pod, kept up to date change by change.
//!
//! Label sets and terms (namespace and selector) are interned and reference-counted. A term remembers the
//! label sets it matches and, per Pod, how many active Runs carry one of them (a *cell*); so a change of
//! one Run touches only the terms that match its labels. A new term is filed under its rarest positive
//! requirement and finds its label sets through postings `(key, value) → label sets`; a term with only
//! negative requirements costs the number of distinct label sets of its namespace.

use std::collections::VecDeque;
use std::sync::Arc;

use berth_api::selector::{CompiledSelector, Operator};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::Labels;
use crate::views::PodId;

/// An interned (namespace, labels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSetId(pub(crate) u32);

/// An interned (namespace, selector); never reused, so that a stale id matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermId(pub(crate) u64);

impl TermId {
    /// A number that is equal for equal terms, for shape keys.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct LabelSet {
    namespace: Arc<str>,
    labels: Labels,
    refs: u32,
    active: FxHashMap<PodId, u32>,
    terms: Vec<TermId>,
}

#[derive(Debug)]
struct Term {
    namespace: Arc<str>,
    selector: Arc<CompiledSelector>,
    refs: u32,
    /// In the queue of idle terms (it may have been taken up again since).
    idle: bool,
    anti_refs: u32,
    sets: FxHashSet<LabelSetId>,
    cells: FxHashMap<PodId, u32>,
    owners: FxHashMap<PodId, u32>,
    filed: Filing,
}

/// Where a term is filed, so that a new label set finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Filing {
    Values(String, Vec<String>),
    Key(String),
    Negative,
}

/// Slots of a vector, reused through a free list.
#[derive(Debug)]
struct Slots<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    fn insert(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = Some(item);
            return id;
        }
        self.items.push(Some(item));
        u32::try_from(self.items.len() - 1).unwrap_or(u32::MAX)
    }
    fn remove(&mut self, id: u32) -> Option<T> {
        let item = self.items.get_mut(id as usize)?.take();
        self.free.push(id);
        item
    }
    fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)?.as_ref()
    }
    fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.items.get_mut(id as usize)?.as_mut()
    }
}

/// What one Run's change did to the cells of one Pod.
#[derive(Debug, Default)]
pub(crate) struct CellChanges {
    /// Terms whose cell on the Pod went from zero to one.
    pub appeared: Vec<TermId>,
    /// Terms whose cell on the Pod went to zero.
    pub ended: Vec<TermId>,
}

/// Postings of one key of one namespace.
#[derive(Debug, Default)]
struct KeyPostings {
    by_value: FxHashMap<String, FxHashSet<LabelSetId>>,
    sets: usize,
}

/// Everything filed per namespace.
#[derive(Debug, Default)]
struct NamespaceIndex {
    postings: FxHashMap<String, KeyPostings>,
    all_sets: FxHashSet<LabelSetId>,
    by_value: FxHashMap<String, FxHashMap<String, Vec<TermId>>>,
    by_key: FxHashMap<String, Vec<TermId>>,
    negative: Vec<TermId>,
}

/// How many terms that no Run refers to are kept up to date, oldest dropped first: the next Run with such a term
/// finds its cells (and its shape's table) as they are instead of building them anew.
const IDLE_TERMS_MAX: usize = 1024;

/// The index itself. See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct AffinityIndex {
    idle: VecDeque<TermId>,
    sets: Slots<LabelSet>,
    terms: FxHashMap<u64, Term>,
    next_term: u64,
    set_ids: FxHashMap<(Arc<str>, Labels), LabelSetId>,
    term_ids: FxHashMap<(Arc<str>, Arc<CompiledSelector>), TermId>,
    namespaces: FxHashMap<Arc<str>, NamespaceIndex>,
    /// Terms and label sets looked at, ever: the work counter that tests read.
    pub touched: u64,
}

impl AffinityIndex {
    /// Interns a label set and takes a reference.
    pub fn acquire_set(&mut self, namespace: &Arc<str>, labels: &Labels) -> LabelSetId {
        let key = (namespace.clone(), labels.clone());
        if let Some(&id) = self.set_ids.get(&key) {
            if let Some(set) = self.sets.get_mut(id.0) {
                set.refs += 1;
            }
            return id;
        }
        let id = LabelSetId(self.sets.insert(LabelSet {
            namespace: namespace.clone(),
            labels: labels.clone(),
            refs: 1,
            active: FxHashMap::default(),
            terms: Vec::new(),
        }));
        self.set_ids.insert(key, id);
        let index = self.namespaces.entry(namespace.clone()).or_default();
        index.all_sets.insert(id);
        let mut candidates: Vec<TermId> = index.negative.clone();
        for (k, v) in labels.iter() {
            let postings = index.postings.entry(k.clone()).or_default();
            postings.by_value.entry(v.clone()).or_default().insert(id);
            postings.sets += 1;
            if let Some(terms) = index.by_value.get(k).and_then(|values| values.get(v)) {
                candidates.extend_from_slice(terms);
            }
            if let Some(terms) = index.by_key.get(k) {
                candidates.extend_from_slice(terms);
            }
        }
        self.touched += candidates.len() as u64;
        let mut matched = Vec::new();
        for term_id in candidates {
            if let Some(term) = self.terms.get_mut(&term_id.0)
                && term.selector.matches(labels)
            {
                term.sets.insert(id);
                matched.push(term_id);
            }
        }
        matched.sort_unstable();
        matched.dedup();
        if let Some(set) = self.sets.get_mut(id.0) {
            set.terms = matched;
        }
        id
    }

    /// Gives a reference back; the last one removes the label set. It must have no active Run.
    pub fn release_set(&mut self, id: LabelSetId) {
        let Some(set) = self.sets.get_mut(id.0) else { return };
        set.refs -= 1;
        if set.refs > 0 {
            return;
        }
        let Some(set) = self.sets.remove(id.0) else { return };
        for term in &set.terms {
            if let Some(term) = self.terms.get_mut(&term.0) {
                term.sets.remove(&id);
            }
        }
        if let Some(index) = self.namespaces.get_mut(&set.namespace) {
            index.all_sets.remove(&id);
            for (k, v) in set.labels.iter() {
                if let Some(postings) = index.postings.get_mut(k) {
                    postings.sets -= 1;
                    if let Some(sets) = postings.by_value.get_mut(v) {
                        sets.remove(&id);
                        if sets.is_empty() {
                            postings.by_value.remove(v);
                        }
                    }
                    if postings.sets == 0 {
                        index.postings.remove(k);
                    }
                }
            }
        }
        self.forget_namespace_if_empty(&set.namespace);
        self.set_ids.remove(&(set.namespace, set.labels));
    }

    fn forget_namespace_if_empty(&mut self, namespace: &Arc<str>) {
        let empty = self
            .namespaces
            .get(namespace)
            .is_some_and(|index| index.all_sets.is_empty() && index.by_value.is_empty() && index.by_key.is_empty() && index.negative.is_empty());
        if empty {
            self.namespaces.remove(namespace);
        }
    }

    /// Interns a term and takes a reference; `anti` if a Run owns it as required anti-affinity.
    ///
    /// Returns the id and whether this made it the first anti-affinity reference.
    pub fn acquire_term(&mut self, namespace: &Arc<str>, selector: &CompiledSelector, anti: bool) -> (TermId, bool) {
        let key = (namespace.clone(), Arc::new(selector.clone()));
        if let Some(&id) = self.term_ids.get(&key) {
            let mut first_anti = false;
            if let Some(term) = self.terms.get_mut(&id.0) {
                term.refs += 1;
                if anti {
                    first_anti = term.anti_refs == 0;
                    term.anti_refs += 1;
                }
            }
            return (id, first_anti);
        }
        let index = self.namespaces.entry(namespace.clone()).or_default();
        let (filed, candidates) = file(index, selector);
        self.touched += candidates.len() as u64;
        let selector = key.1.clone();
        let id = TermId(self.next_term);
        self.next_term += 1;
        self.terms.insert(
            id.0,
            Term {
                namespace: namespace.clone(),
                selector: selector.clone(),
                refs: 1,
                idle: false,
                anti_refs: u32::from(anti),
                sets: FxHashSet::default(),
                cells: FxHashMap::default(),
                owners: FxHashMap::default(),
                filed: filed.clone(),
            },
        );
        match filed {
            Filing::Values(k, values) => {
                let by_value = index.by_value.entry(k).or_default();
                for value in values {
                    by_value.entry(value).or_default().push(id);
                }
            }
            Filing::Key(k) => index.by_key.entry(k).or_default().push(id),
            Filing::Negative => index.negative.push(id),
        }
        self.term_ids.insert(key, id);
        let mut matched = FxHashSet::default();
        let mut cells: FxHashMap<PodId, u32> = FxHashMap::default();
        for set_id in candidates {
            if let Some(set) = self.sets.get_mut(set_id.0)
                && selector.matches(&set.labels)
                && matched.insert(set_id)
            {
                if let Err(at) = set.terms.binary_search(&id) {
                    set.terms.insert(at, id);
                }
                for (&pod, &count) in &set.active {
                    *cells.entry(pod).or_default() += count;
                }
            }
        }
        if let Some(term) = self.terms.get_mut(&id.0) {
            term.sets = matched;
            term.cells = cells;
        }
        (id, anti)
    }

    /// Gives a reference back. A term without references stays for a while; returns one whose time is over.
    pub fn release_term(&mut self, id: TermId, anti: bool) -> Option<TermId> {
        let term = self.terms.get_mut(&id.0)?;
        term.refs -= 1;
        term.anti_refs -= u32::from(anti);
        if term.refs == 0 && !term.idle {
            term.idle = true;
            self.idle.push_back(id);
        }
        if self.idle.len() <= IDLE_TERMS_MAX {
            return None;
        }
        let oldest = self.idle.pop_front()?;
        let term = self.terms.get_mut(&oldest.0)?;
        term.idle = false;
        if term.refs > 0 {
            return None;
        }
        self.remove_term(oldest);
        Some(oldest)
    }

    fn remove_term(&mut self, id: TermId) {
        let Some(term) = self.terms.remove(&id.0) else { return };
        for set in &term.sets {
            if let Some(set) = self.sets.get_mut(set.0)
                && let Ok(at) = set.terms.binary_search(&id)
            {
                set.terms.remove(at);
            }
        }
        if let Some(index) = self.namespaces.get_mut(&term.namespace) {
            match &term.filed {
                Filing::Values(k, values) => {
                    if let Some(by_value) = index.by_value.get_mut(k) {
                        for value in values {
                            remove_from(by_value, value, id);
                        }
                        if by_value.is_empty() {
                            index.by_value.remove(k);
                        }
                    }
                }
                Filing::Key(k) => remove_from(&mut index.by_key, k, id),
                Filing::Negative => index.negative.retain(|t| *t != id),
            }
        }
        self.forget_namespace_if_empty(&term.namespace);
        self.term_ids.remove(&(term.namespace, term.selector));
    }

    /// Counts one more active Run with these labels (and anti-affinity terms) on `pod`.
    pub fn add_active(&mut self, set: LabelSetId, owned_anti: &[TermId], pod: PodId) -> CellChanges {
        let mut changes = CellChanges::default();
        let Some(set) = self.sets.get_mut(set.0) else { return changes };
        *set.active.entry(pod).or_default() += 1;
        self.touched += (set.terms.len() + owned_anti.len()) as u64;
        for &id in &set.terms {
            if let Some(term) = self.terms.get_mut(&id.0) {
                let cell = term.cells.entry(pod).or_default();
                *cell += 1;
                if *cell == 1 {
                    changes.appeared.push(id);
                }
            }
        }
        for id in owned_anti {
            if let Some(term) = self.terms.get_mut(&id.0) {
                *term.owners.entry(pod).or_default() += 1;
            }
        }
        changes
    }

    /// Counts one active Run less.
    pub fn remove_active(&mut self, set: LabelSetId, owned_anti: &[TermId], pod: PodId) -> CellChanges {
        let mut changes = CellChanges::default();
        let Some(set) = self.sets.get_mut(set.0) else { return changes };
        decrement(&mut set.active, pod);
        self.touched += (set.terms.len() + owned_anti.len()) as u64;
        for &id in &set.terms {
            if let Some(term) = self.terms.get_mut(&id.0)
                && decrement(&mut term.cells, pod)
            {
                changes.ended.push(id);
            }
        }
        for id in owned_anti {
            if let Some(term) = self.terms.get_mut(&id.0) {
                decrement(&mut term.owners, pod);
            }
        }
        changes
    }

    /// Terms matching this label set, sorted.
    pub fn terms_of(&self, set: LabelSetId) -> &[TermId] {
        self.sets.get(set.0).map_or(&[], |set| &set.terms)
    }

    /// `true` if the term matches the label set.
    pub fn matches(&self, term: TermId, set: LabelSetId) -> bool {
        self.terms_of(set).binary_search(&term).is_ok()
    }

    /// Pods with at least one target of the term, and how many.
    pub fn cells(&self, term: TermId) -> Option<&FxHashMap<PodId, u32>> {
        self.terms.get(&term.0).map(|term| &term.cells)
    }

    /// Pods with at least one active Run that owns the term as required anti-affinity.
    pub fn owners(&self, term: TermId) -> Option<&FxHashMap<PodId, u32>> {
        self.terms.get(&term.0).map(|term| &term.owners)
    }

    /// `true` if some Run, waiting or active, owns the term as required anti-affinity.
    pub fn is_anti(&self, term: TermId) -> bool {
        self.terms.get(&term.0).is_some_and(|term| term.anti_refs > 0)
    }

    /// The label sets the term matches.
    pub fn sets_of(&self, term: TermId) -> impl Iterator<Item = LabelSetId> + '_ {
        self.terms.get(&term.0).into_iter().flat_map(|term| term.sets.iter().copied())
    }

    /// The term's selector.
    pub fn selector(&self, term: TermId) -> Option<&Arc<CompiledSelector>> {
        self.terms.get(&term.0).map(|term| &term.selector)
    }

    /// How many label sets and terms are alive (memory gauge).
    pub fn sizes(&self) -> (usize, usize) {
        (self.set_ids.len(), self.term_ids.len())
    }
}

fn decrement(map: &mut FxHashMap<PodId, u32>, pod: PodId) -> bool {
    if let Some(count) = map.get_mut(&pod) {
        *count -= 1;
        if *count == 0 {
            map.remove(&pod);
            return true;
        }
    }
    false
}

fn remove_from(map: &mut FxHashMap<String, Vec<TermId>>, key: &str, id: TermId) {
    if let Some(terms) = map.get_mut(key) {
        terms.retain(|t| *t != id);
        if terms.is_empty() {
            map.remove(key);
        }
    }
}

/// Chooses the rarest positive requirement and the label sets that can match through it.
fn file(index: &NamespaceIndex, selector: &CompiledSelector) -> (Filing, Vec<LabelSetId>) {
    let mut best: Option<(usize, Filing)> = None;
    for requirement in &selector.requirements {
        let Some(key) = (match requirement.op {
            Operator::In | Operator::Exists => Some(requirement.key.clone()),
            Operator::NotIn | Operator::DoesNotExist => None,
        }) else {
            continue;
        };
        let postings = index.postings.get(&key);
        let (size, filing) = if requirement.op == Operator::In {
            let values: Vec<String> = requirement.values.to_vec();
            let size = postings.map_or(0, |p| values.iter().filter_map(|v| p.by_value.get(v)).map(FxHashSet::len).sum());
            (size, Filing::Values(key, values))
        } else {
            (postings.map_or(0, |p| p.sets), Filing::Key(key))
        };
        if best.as_ref().is_none_or(|(known, _)| size < *known) {
            best = Some((size, filing));
        }
    }
    let Some((_, filing)) = best else {
        return (Filing::Negative, index.all_sets.iter().copied().collect());
    };
    let candidates = match &filing {
        Filing::Values(key, values) => {
            index.postings.get(key).map_or_else(Vec::new, |p| values.iter().filter_map(|v| p.by_value.get(v)).flatten().copied().collect())
        }
        Filing::Key(key) => index.postings.get(key).map_or_else(Vec::new, |p| p.by_value.values().flatten().copied().collect()),
        Filing::Negative => Vec::new(),
    };
    (filing, candidates)
}
