//! Borrowed, copyable views of one snapshot: what a plugin may see.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::selector::CompiledSelector;

use crate::affinity_index::TermId;
use crate::cache::{Cache, DomainId, Room, RunEntry};
use crate::model::{Labels, PodObject, Readiness, RunObject, WorkspaceObject};

/// A Pod's place in the cache. Ids are reused after a Pod is gone; they mean nothing across cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId(pub(crate) u32);

/// One Runtime Pod of the Run's namespace and runtime, with what is placed on it.
#[derive(Clone, Copy)]
pub struct PodView<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) id: PodId,
    pub(crate) object: &'a PodObject,
}

impl<'a> PodView<'a> {
    /// This Pod's id, for [`crate::plugin::Prepared::overlay`] and [`crate::plugin::Narrow::pods`].
    pub fn id(self) -> PodId {
        self.id
    }
    /// `metadata.name`.
    pub fn name(self) -> &'a Arc<str> {
        &self.object.key.name
    }
    /// `metadata.uid`.
    pub fn uid(self) -> &'a Arc<str> {
        &self.object.uid
    }
    /// `metadata.labels`.
    pub fn labels(self) -> &'a BTreeMap<String, String> {
        &self.object.labels
    }
    /// `metadata.annotations`.
    pub fn annotations(self) -> &'a BTreeMap<String, String> {
        &self.object.annotations
    }
    /// Whether the Pod is available, as of the last event or timer.
    pub fn readiness(self) -> Readiness {
        self.cache.readiness(self.id)
    }
    /// What the Pod has of a resource and what is held of it.
    pub fn room(self, resource: &str) -> Room {
        self.cache.room(self.id, resource)
    }
    /// Every resource that the Pod advertises or that is held on it: `runs` first, the others in no order.
    pub fn rooms(self) -> impl Iterator<Item = (&'a str, Room)> {
        self.cache.rooms(self.id)
    }
    /// `true` if the Pod advertises an agent that honours workspaces.
    pub fn has_workspace_agent(self) -> bool {
        self.object.workspace_agent
    }
    /// `true` if an active or assumed Run on this Pod matches the term.
    pub fn has_target(self, term: TermId) -> bool {
        self.cache.affinity.cells(term).is_some_and(|cells| cells.contains_key(&self.id))
    }
    /// `true` if an active or assumed Run on this Pod owns the term as required anti-affinity.
    pub fn has_anti_owner(self, term: TermId) -> bool {
        self.cache.affinity.owners(term).is_some_and(|owners| owners.contains_key(&self.id))
    }
}

/// The Run being placed.
#[derive(Clone, Copy)]
pub struct RunView<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) entry: &'a RunEntry,
}

impl<'a> RunView<'a> {
    /// The Run itself.
    pub fn object(self) -> &'a RunObject {
        &self.entry.object
    }
    /// `metadata.labels`.
    pub fn labels(self) -> &'a Labels {
        &self.entry.object.labels
    }
    /// What it asks for: `runs` first, then by name.
    pub fn requests(self) -> impl Iterator<Item = (&'a str, i64)> {
        self.entry.object.requests.iter().flat_map(|r| r.iter())
    }
    /// A number that is equal for equal requests, for [`crate::plugin::Prepared::key`].
    pub fn requests_key(self) -> u64 {
        self.cache.requests_serial(self.entry.requests)
    }
    /// Required affinity terms.
    pub fn required(self) -> &'a [TermId] {
        &self.entry.terms.required
    }
    /// Preferred affinity terms with weights.
    pub fn preferred(self) -> &'a [(i32, TermId)] {
        &self.entry.terms.preferred
    }
    /// Required anti-affinity terms.
    pub fn required_anti(self) -> &'a [TermId] {
        &self.entry.terms.required_anti
    }
    /// Preferred anti-affinity terms with weights.
    pub fn preferred_anti(self) -> &'a [(i32, TermId)] {
        &self.entry.terms.preferred_anti
    }
    /// `true` if the term matches the Run's own labels.
    pub fn matches(self, term: TermId) -> bool {
        self.cache.affinity.matches(term, self.entry.labels)
    }
    /// Terms, owned by any Run as required anti-affinity, that match this Run's labels; sorted.
    pub fn anti_terms_against(self) -> impl Iterator<Item = TermId> + 'a {
        let affinity = &self.cache.affinity;
        affinity.terms_of(self.entry.labels).iter().copied().filter(move |t| affinity.is_anti(*t))
    }
}

/// Everything else a plugin may look at in PreFilter.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) domain: DomainId,
    pub(crate) namespace: &'a Arc<str>,
}

impl<'a> Snapshot<'a> {
    /// A PersistentWorkspace of the Run's namespace.
    pub fn workspace(self, name: &str) -> Option<&'a WorkspaceObject> {
        self.cache.workspace(self.namespace, name)
    }
    /// A Pod of the Run's namespace by name, if it exists and is of the Run's runtime.
    pub fn pod_named(self, name: &str) -> Option<PodView<'a>> {
        let id = self.cache.pod_id(self.namespace, name)?;
        self.pod(id)
    }
    /// A Pod by id, if it exists and is of the Run's runtime.
    pub fn pod(self, id: PodId) -> Option<PodView<'a>> {
        (self.cache.domain_of(id) == Some(self.domain)).then(|| self.cache.pod_view(id)).flatten()
    }
    /// How many existing Pods of the Run's runtime hold a target of the term.
    pub fn pods_with_target(self, term: TermId) -> u32 {
        self.cache.term_total(term, self.domain)
    }
    /// On how many Pods (existing or not, of any runtime) the term has targets: a bound for [`Self::target_pods`].
    pub fn target_cells(self, term: TermId) -> usize {
        self.cache.affinity.cells(term).map_or(0, |cells| cells.len())
    }
    /// Pods that hold a target of the term, of any runtime, in no order.
    pub fn target_pods(self, term: TermId) -> impl Iterator<Item = PodId> + 'a {
        self.cache.affinity.cells(term).into_iter().flat_map(|cells| cells.keys().copied())
    }
    /// On how many Pods an owner of the anti-affinity term sits.
    pub fn owner_cells(self, term: TermId) -> usize {
        self.cache.affinity.owners(term).map_or(0, |owners| owners.len())
    }
    /// Pods that hold an owner of the anti-affinity term, in no order.
    pub fn owner_pods(self, term: TermId) -> impl Iterator<Item = PodId> + 'a {
        self.cache.affinity.owners(term).into_iter().flat_map(|owners| owners.keys().copied())
    }
    /// The term's selector, for texts.
    pub fn selector(self, term: TermId) -> Option<&'a CompiledSelector> {
        self.cache.affinity.selector(term).map(|s| &**s)
    }
}
