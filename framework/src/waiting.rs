//! Waiting Runs, indexed by what they wait for, so that an event finds those it can help and no others.
//!
//! Runs that any event would treat alike form a *class*; only its oldest member is ever tried. A class waits
//! *wide* (any Pod of its domain may help) or *narrow* (only Pods of some names), for its workspace, and for
//! targets of its required terms. An event opens an *offer* (one Pod may have become feasible) or a *kick*
//! (one class may); an open one names one Run at a time until nobody takes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::affinity_index::{LabelSetId, TermId};
use crate::cache::{Cache, DomainId, RequestsId, RunEntry, RunId};
use crate::cycle::{Cycle, Scope, Wants};
use crate::model::ObjectKey;
use crate::observe::{Lap, Observer};
use crate::plugin::WakeCause;
use crate::profile::{Profile, Profiles};
use crate::views::{PodId, RunView};

/// Queue order: creation in whole seconds, then UID (decisions "Queue").
pub(crate) type Age = (i64, Arc<str>);

pub(crate) fn age(entry: &RunEntry) -> Age {
    (entry.object.created_s, entry.object.uid.clone())
}

/// A class of waiting Runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClassId(u64);

/// Everything of a Run that decides whether it fits, whatever the cluster looks like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClassKey {
    domain: DomainId,
    requests: RequestsId,
    workspace: Option<Arc<str>>,
    required: Vec<(TermId, bool)>,
    anti: Vec<TermId>,
    against: Vec<TermId>,
    /// What plugins that the host knows nothing of make of the Run.
    others: Vec<u64>,
}

impl ClassKey {
    fn of(cache: &Cache, profile: &Profile, id: RunId, run: &RunEntry) -> Self {
        let view = RunView { cache, entry: run };
        Self {
            domain: run.domain,
            requests: run.requests,
            workspace: run.object.workspace.clone(),
            required: view.required().iter().map(|t| (*t, view.matches(*t))).collect(),
            anti: view.required_anti().to_vec(),
            against: view.anti_terms_against().collect(),
            others: others_of(profile, id, view),
        }
    }
}

/// Keys of the plugins' own; a plugin that has none makes the Run a class of its own, as its id tells.
fn others_of(profile: &Profile, id: RunId, run: RunView<'_>) -> Vec<u64> {
    let mut others = Vec::new();
    for slot in &profile.plugins {
        let Some(plugin) = slot.plugin.as_pre_filter().filter(|_| slot.pre_filters || slot.filters) else {
            if slot.plugin.volatile() {
                others.push(u64::from(id.0));
            }
            continue;
        };
        match plugin.class_key(run).filter(|_| !slot.plugin.volatile()) {
            Some(key) => {
                others.push(key.len() as u64);
                others.extend(key);
            }
            None => others.push(u64::from(id.0)),
        }
    }
    others
}

#[derive(Debug)]
struct Class {
    key: ClassKey,
    namespace: Arc<str>,
    members: BTreeMap<Age, RunId>,
    scope: Scope,
    wants: Wants,
}

impl Class {
    fn oldest(&self) -> Option<&Age> {
        self.members.keys().next()
    }
}

/// The wide classes with equal requests.
#[derive(Debug, Default)]
struct Group {
    by_age: BTreeSet<(Age, ClassId)>,
    /// What every member wants besides its own: of plugins whose "no" was taken over from another member.
    also: Wants,
}

/// What may have become possible.
#[derive(Debug)]
pub(crate) enum What {
    Pod { pod: PodId, cause: WakeCause, force: bool, anti_ended: Vec<TermId>, term: Option<TermId> },
    Class { class: ClassId, cause: WakeCause, flush: bool },
}

#[derive(Debug)]
struct Open {
    what: What,
    declined: FxHashSet<ClassId>,
}

/// A Run called out of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nominee {
    pub run: RunId,
    pub cause: WakeCause,
    pub flush: bool,
    pub open: OpenId,
}

/// An offer or kick that has not found its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpenId(u64);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    classes: FxHashMap<ClassId, Class>,
    by_key: FxHashMap<ClassKey, ClassId>,
    by_run: FxHashMap<RunId, ClassId>,
    wide: FxHashMap<DomainId, BTreeMap<RequestsId, Group>>,
    by_pod: FxHashMap<ObjectKey, FxHashSet<ClassId>>,
    by_term: FxHashMap<TermId, FxHashSet<ClassId>>,
    by_workspace: FxHashMap<ObjectKey, FxHashSet<ClassId>>,
    by_labels: FxHashMap<LabelSetId, FxHashSet<RunId>>,
    next: u64,
    opens: FxHashMap<OpenId, Open>,
    to_name: std::collections::VecDeque<OpenId>,
    /// Runs and classes looked at by events, ever.
    pub touched: u64,
}

fn link<K: std::hash::Hash + Eq, V: std::hash::Hash + Eq>(map: &mut FxHashMap<K, FxHashSet<V>>, key: K, value: V) {
    map.entry(key).or_default().insert(value);
}

fn unlink<K: std::hash::Hash + Eq, V: std::hash::Hash + Eq>(map: &mut FxHashMap<K, FxHashSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

impl Waiting {
    /// How many Runs wait.
    pub fn len(&self) -> usize {
        self.by_run.len()
    }

    /// `true` while an offer or kick has not found its end.
    pub fn has_open(&self) -> bool {
        !self.opens.is_empty()
    }

    /// Every waiting Run, in no order.
    pub fn runs(&self) -> impl Iterator<Item = RunId> + '_ {
        self.by_run.keys().copied()
    }

    /// How many members of its class are older than a waiting Run, and how many there are.
    pub fn position(&self, run: RunId, entry: &RunEntry) -> Option<(usize, usize)> {
        let class = self.classes.get(self.by_run.get(&run)?)?;
        Some((class.members.range(..age(entry)).count(), class.members.len()))
    }

    /// Files a Run that was just rejected.
    pub fn insert(&mut self, cache: &Cache, profile: &Profile, run: RunId, entry: &RunEntry, scope: Scope, wants: Wants) {
        let key = ClassKey::of(cache, profile, run, entry);
        let id = if let Some(&id) = self.by_key.get(&key) {
            self.unsubscribe(id);
            id
        } else {
            let id = ClassId(self.next);
            self.next += 1;
            self.by_key.insert(key.clone(), id);
            let namespace = entry.object.key.namespace.clone();
            self.classes.insert(id, Class { key, namespace, members: BTreeMap::new(), scope: Scope::Wide, wants: Wants::default() });
            id
        };
        if let Some(class) = self.classes.get_mut(&id) {
            class.members.insert(age(entry), run);
            class.scope = scope;
            class.wants = wants;
        }
        self.by_run.insert(run, id);
        link(&mut self.by_labels, entry.labels, run);
        self.subscribe(id);
    }

    /// Takes a Run out of waiting, if it is there. `entry` is as it was when it was filed.
    pub fn remove(&mut self, run: RunId, entry: &RunEntry) {
        let Some(id) = self.by_run.remove(&run) else { return };
        unlink(&mut self.by_labels, &entry.labels, &run);
        self.unsubscribe(id);
        let empty = self.classes.get_mut(&id).is_none_or(|class| {
            class.members.remove(&age(entry));
            class.members.is_empty()
        });
        if !empty {
            self.subscribe(id);
        } else if let Some(class) = self.classes.remove(&id) {
            self.by_key.remove(&class.key);
        }
    }

    /// A term became somebody's anti-affinity: Runs it matches move to classes of their own.
    pub fn reclassify(&mut self, cache: &Cache, profiles: &Profiles, term: TermId) {
        let runs: Vec<RunId> = cache.affinity.sets_of(term).filter_map(|set| self.by_labels.get(&set)).flatten().copied().collect();
        for run in runs {
            self.touched += 1;
            let Some(entry) = cache.run(run) else { continue };
            let Some((&old, class)) = self.by_run.get(&run).and_then(|id| Some((id, self.classes.get(id)?))) else { continue };
            let profile = profiles.of(&entry.object.runtime);
            let key = ClassKey::of(cache, profile, run, entry);
            if class.key == key {
                continue;
            }
            let (scope, wants) = (class.scope.clone(), class.wants.and(self.group_wants(class)));
            let target = self.by_key.get(&key).and_then(|id| self.classes.get(id));
            let (scope, wants) = target.map_or((scope.clone(), wants), |t| (join(&scope, &t.scope), wants.and(t.wants)));
            self.remove(run, entry);
            self.insert(cache, profile, run, entry, scope, wants);
            self.carry_kicks(old, run);
        }
    }

    /// A kick that `run` has not had in its old class is due to it in its new one.
    fn carry_kicks(&mut self, old: ClassId, run: RunId) {
        let Some(&class) = self.by_run.get(&run) else { return };
        let due = |open: &Open| match open.what {
            What::Class { class, cause, flush } if class == old && !open.declined.contains(&old) => Some((cause, flush)),
            _ => None,
        };
        let due: Vec<(WakeCause, bool)> = self.opens.values().filter_map(due).collect();
        for (cause, flush) in due {
            self.open(What::Class { class, cause, flush });
        }
    }

    fn group_wants(&self, class: &Class) -> Wants {
        self.wide.get(&class.key.domain).and_then(|groups| groups.get(&class.key.requests)).map_or_else(Wants::default, |group| group.also)
    }

    fn subscribe(&mut self, id: ClassId) {
        let Some(class) = self.classes.get(&id) else { return };
        let Some(oldest) = class.oldest().cloned() else { return };
        match &class.scope {
            Scope::Wide => {
                let group = self.wide.entry(class.key.domain).or_default().entry(class.key.requests).or_default();
                group.by_age.insert((oldest, id));
            }
            Scope::Narrow(names) => {
                for name in names {
                    link(&mut self.by_pod, ObjectKey::new(class.namespace.clone(), name.clone()), id);
                }
            }
        }
        for (term, _) in &class.key.required {
            link(&mut self.by_term, *term, id);
        }
        if let Some(workspace) = &class.key.workspace {
            link(&mut self.by_workspace, ObjectKey::new(class.namespace.clone(), workspace.clone()), id);
        }
    }

    fn unsubscribe(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        match &class.scope {
            Scope::Wide => {
                if let (Some(oldest), Some(groups)) = (class.members.keys().next(), self.wide.get_mut(&class.key.domain))
                    && let Some(group) = groups.get_mut(&class.key.requests)
                {
                    group.by_age.remove(&(oldest.clone(), id));
                    // The group may end here, and the class come back to a new one.
                    class.wants = class.wants.and(group.also);
                    if group.by_age.is_empty() {
                        groups.remove(&class.key.requests);
                        if groups.is_empty() {
                            self.wide.remove(&class.key.domain);
                        }
                    }
                }
            }
            Scope::Narrow(names) => {
                for name in names {
                    unlink(&mut self.by_pod, &ObjectKey::new(class.namespace.clone(), name.clone()), &id);
                }
            }
        }
        for (term, _) in &class.key.required {
            unlink(&mut self.by_term, term, &id);
        }
        if let Some(workspace) = &class.key.workspace {
            unlink(&mut self.by_workspace, &ObjectKey::new(class.namespace.clone(), workspace.clone()), &id);
        }
    }

    /// `true` if some class requires this term.
    pub fn wants_term(&self, term: TermId) -> bool {
        self.by_term.contains_key(&term)
    }

    // ---- events ----------------------------------------------------------------------------------

    /// Opens an offer or kick.
    pub fn open(&mut self, what: What) {
        if self.by_run.is_empty() {
            return;
        }
        let id = OpenId(self.next);
        self.next += 1;
        self.opens.insert(id, Open { what, declined: FxHashSet::default() });
        self.to_name.push_back(id);
    }

    /// Kicks every class waiting for this workspace.
    pub fn kick_workspace(&mut self, key: &ObjectKey) {
        let classes: Vec<ClassId> = self.by_workspace.get(key).into_iter().flatten().copied().collect();
        for class in classes {
            self.open(What::Class { class, cause: WakeCause::WorkspaceChanged, flush: false });
        }
    }

    /// Kicks every class that could seed this term now that it has no target in the domain.
    pub fn kick_seeders(&mut self, term: TermId, domain: DomainId, cause: WakeCause) {
        let seeds = |class: &Class| class.key.domain == domain && class.key.required.contains(&(term, true));
        let classes: Vec<ClassId> = self.by_term.get(&term).into_iter().flatten().copied().filter(|id| self.classes.get(id).is_some_and(seeds)).collect();
        for class in classes {
            self.open(What::Class { class, cause, flush: false });
        }
    }

    /// Kicks every class: the alarm flush.
    pub fn kick_all(&mut self) {
        let classes: Vec<ClassId> = self.classes.keys().copied().collect();
        for class in classes {
            self.open(What::Class { class, cause: WakeCause::RetryDue, flush: true });
        }
    }

    /// The nominee's attempt is over: its open goes on, without the class of a nominee that waits again.
    pub fn attempted(&mut self, open: OpenId, run: RunId) {
        if let Some(state) = self.opens.get_mut(&open) {
            state.declined.extend(self.by_run.get(&run).copied());
            self.to_name.push_back(open);
        }
    }

    /// Names the next Run of an open that has none, closing those that nobody takes.
    pub fn next_nominee(&mut self, cache: &Cache, cycle: &mut Cycle, profiles: &Profiles, observer: &mut dyn Observer) -> Option<Nominee> {
        while let Some(id) = self.to_name.pop_front() {
            let Some(open) = self.opens.remove(&id) else { continue };
            let found = match &open.what {
                What::Class { class, cause, flush } if !open.declined.contains(class) => {
                    self.touched += 1;
                    let run = self.classes.get(class).and_then(|c| c.members.values().next().copied());
                    run.map(|run| (run, *cause, *flush))
                }
                What::Class { .. } => None,
                What::Pod { pod, cause, force, anti_ended, term } => {
                    let asked = Asked { pod: *pod, cause: *cause, force: *force, anti_ended, term: *term };
                    self.taker(cache, cycle, profiles, &asked, &open.declined, observer)
                }
            };
            if let Some((run, cause, flush)) = found {
                self.opens.insert(id, open);
                if let Some(entry) = cache.run(run) {
                    self.remove(run, entry);
                }
                return Some(Nominee { run, cause, flush, open: id });
            }
        }
        None
    }

    /// The oldest waiting Run that the Pod could take now.
    fn taker(
        &mut self,
        cache: &Cache,
        cycle: &mut Cycle,
        profiles: &Profiles,
        asked: &Asked<'_>,
        declined: &FxHashSet<ClassId>,
        observer: &mut dyn Observer,
    ) -> Option<(RunId, WakeCause, bool)> {
        let domain = cache.domain_of(asked.pod)?;
        let profile_at = profiles.place_of(&cache.pod_view(asked.pod)?.object.runtime);
        let profile: &Profile = profiles.at(profile_at);
        let key = cache.pod_key(asked.pod)?.clone();
        let mut others: Vec<(Age, ClassId)> = match asked.term {
            Some(term) => self.by_term.get(&term).into_iter().flatten().copied().collect::<Vec<_>>(),
            None => self.by_pod.get(&key).into_iter().flatten().copied().collect(),
        }
        .into_iter()
        .filter_map(|id| self.classes.get(&id).filter(|c| c.key.domain == domain).and_then(|c| Some((c.oldest()?.clone(), id))))
        .collect();
        others.sort();
        let mut refused: Vec<(ClassId, usize)> = Vec::new();
        let mut found = None;
        let mut groups_refused: Vec<(RequestsId, usize)> = Vec::new();
        {
            let groups = if asked.term.is_none() { self.wide.get(&domain) } else { None };
            // Per group: its requests and what it also wants, and its classes not yet looked at, oldest first.
            let mut heads: Vec<_> = groups.into_iter().flatten().map(|(requests, group)| ((*requests, group.also), group.by_age.iter().peekable())).collect();
            let mut others = others.iter().peekable();
            observer.lap(Lap::Other);
            loop {
                let oldest_wide = heads.iter_mut().enumerate().filter_map(|(i, (_, head))| head.peek().map(|item| (*item, i))).min();
                let take_other = match (others.peek(), oldest_wide) {
                    (Some(other), Some((wide, _))) => *other < wide,
                    (Some(_), None) => true,
                    (None, Some(_)) => false,
                    (None, None) => break,
                };
                let (class_id, group) = if take_other {
                    match others.next() {
                        Some((_, id)) => (*id, None),
                        None => break,
                    }
                } else if let Some(((_, id), at)) = oldest_wide {
                    let id = *id;
                    heads[at].1.next();
                    (id, Some(at))
                } else {
                    break;
                };
                self.touched += 1;
                let Some(class) = self.classes.get(&class_id) else { continue };
                let also = group.map_or_else(Wants::default, |at| heads[at].0.1);
                let Some(cause) = asked.cause_for(class, also) else { continue };
                if declined.contains(&class_id) {
                    continue;
                }
                let Some((&run, entry)) = class.members.values().next().and_then(|run| cache.run(*run).map(|entry| (run, entry))) else { continue };
                let verdict = cycle.hint(cache, profile, entry, asked.pod);
                let plugin = class.wants.and(also).asker(profile, cause);
                observer.lap(Lap::Hint { profile: profile_at, plugin, cause, helps: verdict.is_ok() });
                match verdict {
                    Ok(()) => {
                        found = Some((run, cause, false));
                        break;
                    }
                    Err((plugin, _)) => {
                        refused.push((class_id, plugin));
                        if let Some(at) = group
                            && profile.same_for_equal_requests(plugin)
                        {
                            groups_refused.push((heads[at].0.0, plugin));
                            drop(heads.swap_remove(at));
                        }
                    }
                }
            }
        }
        for (class, plugin) in refused {
            self.note_refusal(class, Wants::of(profile, plugin), &key);
        }
        for (requests, plugin) in groups_refused {
            if let Some(group) = self.wide.get_mut(&domain).and_then(|groups| groups.get_mut(&requests)) {
                group.also = group.also.and(Wants::of(profile, plugin));
            }
        }
        found
    }

    /// The Pod says no to the class for another reason than before: from now on that reason's events count too.
    fn note_refusal(&mut self, id: ClassId, wants: Wants, pod: &ObjectKey) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        class.wants = class.wants.and(wants);
        if let Scope::Narrow(names) = &mut class.scope
            && !names.contains(&pod.name)
        {
            names.push(pod.name.clone());
            link(&mut self.by_pod, pod.clone(), id);
        }
    }
}

struct Asked<'a> {
    pod: PodId,
    cause: WakeCause,
    force: bool,
    anti_ended: &'a [TermId],
    term: Option<TermId>,
}

impl Asked<'_> {
    /// The cause this class would be woken with, if it wants to be.
    fn cause_for(&self, class: &Class, also: Wants) -> Option<WakeCause> {
        let wanted = class.wants.and(also).events;
        if self.anti_ended.iter().any(|term| class.key.against.contains(term)) && wanted & WakeCause::AntiAffinityOwnerEnded.bit() != 0 {
            return Some(WakeCause::AntiAffinityOwnerEnded);
        }
        (self.force || wanted & self.cause.bit() != 0).then_some(self.cause)
    }
}

fn join(a: &Scope, b: &Scope) -> Scope {
    match (a, b) {
        (Scope::Narrow(a), Scope::Narrow(b)) => {
            let mut names = a.clone();
            names.extend(b.iter().cloned());
            names.sort();
            names.dedup();
            Scope::Narrow(names)
        }
        _ => Scope::Wide,
    }
}
