//! Domains: the Pods of one runtime in one namespace and the log of their changes, kept while a Pod or a Run belongs to them.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::views::PodId;

/// A (namespace, runtime) pair; reused after its last Pod and Run are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DomainId(u32);

/// The Pods of one runtime in one namespace, and the log of their changes.
#[derive(Debug)]
pub(crate) struct Domain {
    pub pods: Vec<PodId>,
    /// Never reused, unlike the id: verdict tables outlive the domain they were made for.
    pub serial: u64,
    key: (Arc<str>, Arc<str>),
    /// Pods and Runs that belong to it.
    refs: u32,
    /// Slots that changed, oldest first; entry `i` has position `log_base + i`.
    log: VecDeque<PodId>,
    log_base: u64,
}

impl Domain {
    /// The position after the newest change.
    pub fn log_end(&self) -> u64 {
        self.log_base + self.log.len() as u64
    }
    /// Changes since `position`, or `None` if the log no longer reaches back so far.
    pub fn changes_since(&self, position: u64) -> Option<impl Iterator<Item = (u64, PodId)> + '_> {
        let skip = usize::try_from(position.checked_sub(self.log_base)?).ok()?;
        Some(self.log.iter().copied().enumerate().skip(skip).map(|(i, pod)| (self.log_base + i as u64, pod)))
    }
    pub(super) fn record(&mut self, pod: PodId) -> u64 {
        let bound = 1024.max(2 * self.pods.len());
        if self.log.len() >= bound {
            let drop = self.log.len() / 2;
            self.log.drain(..drop);
            self.log_base += drop as u64;
        }
        self.log.push_back(pod);
        self.log_end() - 1
    }
}

/// Every domain there is, counted by those who belong to it.
#[derive(Debug, Default)]
pub(super) struct Domains {
    list: Vec<Domain>,
    ids: FxHashMap<(Arc<str>, Arc<str>), DomainId>,
    free: Vec<DomainId>,
    next_serial: u64,
}

impl Domains {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn get(&self, id: DomainId) -> &Domain {
        &self.list[id.0 as usize]
    }

    pub fn get_mut(&mut self, id: DomainId) -> &mut Domain {
        &mut self.list[id.0 as usize]
    }

    /// Whether a domain is that of this runtime.
    pub fn is_of(&self, id: DomainId, runtime: &Arc<str>) -> bool {
        self.get(id).key.1 == *runtime
    }

    /// The domain of a Pod or Run that comes; given back with [`Self::release`] when it goes.
    pub fn acquire(&mut self, namespace: &Arc<str>, runtime: &Arc<str>) -> DomainId {
        let key = (namespace.clone(), runtime.clone());
        if let Some(&id) = self.ids.get(&key) {
            self.get_mut(id).refs += 1;
            return id;
        }
        self.next_serial += 1;
        let domain = Domain { pods: Vec::new(), serial: self.next_serial, key: key.clone(), refs: 1, log: VecDeque::new(), log_base: 0 };
        let id = if let Some(free) = self.free.pop() {
            *self.get_mut(free) = domain;
            free
        } else {
            self.list.push(domain);
            DomainId(u32::try_from(self.list.len() - 1).unwrap_or(u32::MAX))
        };
        self.ids.insert(key, id);
        id
    }

    pub fn release(&mut self, id: DomainId) {
        let domain = self.get_mut(id);
        domain.refs -= 1;
        if domain.refs == 0 {
            // What is left in the free place is small.
            (domain.pods, domain.log) = (Vec::new(), VecDeque::new());
            let key = domain.key.clone();
            self.ids.remove(&key);
            self.free.push(id);
        }
    }
}
