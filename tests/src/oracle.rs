//! The exhaustive oracle: decides where one Run goes by scanning everything, every time. Slow and obviously right.
//!
//! It keeps plain lists of what the core has been told and shares no code with the framework's cache, cycle,
//! tables, waiting index or plugins: only the model types, berth_api's selector matching and its predicate of an
//! available Pod. The rules are those of design/decisions "Scheduling"; where the two differ, one of them is wrong.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::runtime_ready::{Heartbeat, Now, PodFacts, Verdict};
use berth_api::selector::{CompiledSelector, Operator};
use berth_framework::model::{Affinity, ObjectKey, Phase, PodObject, RunObject, WorkspaceObject, WorkspacePhase};

/// Which plugins run and with which args: the profile, told plainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// RuntimeReady: its arg `requireHeartbeat`; `None` = disabled.
    pub runtime_ready: Option<bool>,
    /// WorkspaceFencing: its arg `requireWorkspaceAgent`.
    pub workspace_fencing: Option<bool>,
    /// RunAffinity: its arg `symmetricAntiAffinity`, and its weight.
    pub run_affinity: Option<(bool, i64)>,
    /// Capacity: `true` for `MostAllocated`, and its weight.
    pub capacity: Option<(bool, i64)>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { runtime_ready: Some(true), workspace_fencing: Some(false), run_affinity: Some((true, 1)), capacity: Some((false, 1)) }
    }
}

/// Plugin, reason code, subject.
pub type Rejected = (&'static str, &'static str, Option<String>);

/// A feasible Pod with its total and its scores by plugin, in 1/1000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scored {
    /// The Pod's name.
    pub pod: String,
    /// Weighted sum.
    pub total: i64,
    /// Before weighting, in profile order.
    pub by_plugin: Vec<(&'static str, i64)>,
}

/// What must become of a Run that is tried now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Ends with this phase and reason.
    Terminates(&'static str, &'static str),
    /// Its retry back-off is not over.
    Held,
    /// Goes to the first Pod; the others follow in order.
    Fits(Vec<Scored>),
    /// No Pod fits.
    Waits {
        /// Pods of the namespace labelled with the runtime.
        pods: u32,
        /// How many of them each plugin rejected first, by reason and subject.
        rejections: BTreeMap<Rejected, u32>,
        /// What a PreFilter decided alone, the first in profile order.
        refused: Option<Rejected>,
    },
}

struct SeenPod {
    object: Arc<PodObject>,
    heartbeat: Option<Heartbeat>,
}

struct Assumption {
    write: u64,
    key: ObjectKey,
    pod: Arc<str>,
    bound_version: Option<u64>,
}

/// What the core has been told, as plain lists.
#[derive(Default)]
pub struct Oracle {
    /// The profile in force.
    pub rules: Rules,
    pods: Vec<SeenPod>,
    runs: Vec<Arc<RunObject>>,
    workspaces: Vec<Arc<WorkspaceObject>>,
    assumptions: Vec<Assumption>,
}

/// A Pod of the Run's runtime and the Runs counted on its name.
struct Candidate<'a> {
    pod: &'a SeenPod,
    holders: Vec<&'a RunObject>,
}

impl Oracle {
    /// An oracle that was told nothing yet.
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    // ---- what the core is told -------------------------------------------------------------------

    /// A Pod was seen.
    pub fn see_pod(&mut self, object: &Arc<PodObject>, now: Now) {
        let same_uid = self.pods.iter().find(|p| p.object.key == object.key && p.object.uid == object.uid);
        let known = same_uid.and_then(|p| p.heartbeat);
        let heartbeat = match object.probe_ms {
            Some(probe) => Some(Heartbeat::observe(known, probe, now)),
            None => known,
        };
        self.pods.retain(|p| p.object.key != object.key);
        self.pods.push(SeenPod { object: object.clone(), heartbeat });
    }

    /// A Pod is gone.
    pub fn lose_pod(&mut self, key: &ObjectKey, uid: &str) {
        self.pods.retain(|p| p.object.key != *key || *p.object.uid != *uid);
    }

    /// A Run was seen.
    pub fn see_run(&mut self, object: &Arc<RunObject>) {
        let replaced = self.runs.iter().any(|r| r.key == object.key && r.uid != object.uid);
        self.runs.retain(|r| r.key != object.key);
        self.runs.push(object.clone());
        self.assumptions.retain(|a| a.key != object.key || (!replaced && stands(a, object)));
    }

    /// A Run is gone.
    pub fn lose_run(&mut self, key: &ObjectKey, uid: &str) {
        if self.runs.iter().any(|r| r.key == *key && *r.uid == *uid) {
            self.runs.retain(|r| r.key != *key);
            self.assumptions.retain(|a| a.key != *key);
        }
    }

    /// A workspace was seen.
    pub fn see_workspace(&mut self, object: &Arc<WorkspaceObject>) {
        self.workspaces.retain(|w| w.key != object.key);
        self.workspaces.push(object.clone());
    }

    /// A workspace is gone.
    pub fn lose_workspace(&mut self, key: &ObjectKey, uid: &str) {
        self.workspaces.retain(|w| w.key != *key || *w.uid != *uid);
    }

    /// The core placed a Run and asked for this write.
    pub fn placed(&mut self, key: &ObjectKey, pod: &Arc<str>, write: u64) {
        self.assumptions.retain(|a| a.key != *key);
        self.assumptions.push(Assumption { write, key: key.clone(), pod: pod.clone(), bound_version: None });
    }

    /// The bind was stored with this version, or it was not.
    pub fn bind_answered(&mut self, write: u64, stored: Option<&str>) {
        let version = stored.and_then(|v| v.parse().ok());
        for assumption in self.assumptions.iter_mut().filter(|a| a.write == write) {
            assumption.bound_version = version;
        }
        let runs = &self.runs;
        self.assumptions.retain(|a| a.write != write || (version.is_some() && runs.iter().any(|r| r.key == a.key && stands(a, r))));
    }

    // ---- what can be asked -----------------------------------------------------------------------

    /// Every Run, in no order.
    pub fn runs(&self) -> impl Iterator<Item = &Arc<RunObject>> {
        self.runs.iter()
    }

    /// The Run of this key.
    pub fn run(&self, key: &ObjectKey) -> Option<&Arc<RunObject>> {
        self.runs.iter().find(|r| r.key == *key)
    }

    /// UID of the Run (0), Pod (1) or workspace (2) of this key.
    pub fn uid(&self, kind: usize, key: &ObjectKey) -> Option<Arc<str>> {
        match kind {
            0 => self.run(key).map(|run| run.uid.clone()),
            1 => self.pods.iter().find(|p| p.object.key == *key).map(|p| p.object.uid.clone()),
            _ => self.workspaces.iter().find(|w| w.key == *key).map(|w| w.uid.clone()),
        }
    }

    /// The Pod name a Run is counted on.
    pub fn counted_on<'a>(&'a self, run: &'a RunObject) -> Option<&'a str> {
        let assumed = self.assumptions.iter().find(|a| a.key == run.key).map(|a| &*a.pod);
        if run.phase == Phase::Active { run.assigned_pod.as_deref() } else { assumed }
    }

    /// Pods, Runs counted as active, Runs assumed.
    pub fn counts(&self) -> (usize, usize, usize) {
        let active = self.runs.iter().filter(|r| r.phase == Phase::Active && r.assigned_pod.is_some()).count();
        (self.pods.len(), active, self.assumptions.len())
    }

    /// Resources of which the Pod of this name holds more than it advertises, though `run` asks for them.
    pub fn overcommitted(&self, run: &RunObject, pod: &str) -> Vec<String> {
        let Some(candidate) = self.candidates(run).into_iter().find(|c| *c.pod.object.key.name == *pod) else { return vec!["no such Pod".into()] };
        let asked = run.requests.iter().flat_map(|r| r.iter());
        asked.filter(|(r, _)| used(&candidate, r) > capacity(&candidate, r)).map(|(r, _)| r.to_string()).collect()
    }

    /// What must become of the Run if it is tried now.
    pub fn expected(&self, run: &RunObject, now: Now) -> Decision {
        if run.cancel_requested {
            return Decision::Terminates("Cancelled", "Cancelled");
        }
        if let Some(invalid) = &run.invalid {
            return Decision::Terminates("Failed", invalid.reason.as_str());
        }
        if run.retry_not_before_wall_ms.is_some_and(|t| t > now.wall_ms) {
            return Decision::Held;
        }
        self.decide(run, now)
    }

    /// Where the Run goes, or why it can't go anywhere.
    pub fn decide(&self, run: &RunObject, now: Now) -> Decision {
        let candidates = self.candidates(run);
        let refused = self.workspace_refusal(run).or_else(|| self.affinity_refusal(run, &candidates));
        let mut feasible = Vec::new();
        let mut rejections: BTreeMap<Rejected, u32> = BTreeMap::new();
        for candidate in &candidates {
            match self.rejection(run, candidate, &candidates, now) {
                Some(rejected) => *rejections.entry(rejected).or_default() += 1,
                None => feasible.push(candidate),
            }
        }
        if feasible.is_empty() {
            return Decision::Waits { pods: u32::try_from(candidates.len()).unwrap_or(u32::MAX), rejections, refused };
        }
        Decision::Fits(self.ranked(run, &feasible))
    }

    fn candidates(&self, run: &RunObject) -> Vec<Candidate<'_>> {
        let mut candidates = Vec::new();
        for pod in &self.pods {
            if pod.object.key.namespace != run.key.namespace || pod.object.runtime != run.runtime {
                continue;
            }
            let here = |other: &&Arc<RunObject>| other.key.namespace == run.key.namespace && self.counted_on(other) == Some(&*pod.object.key.name);
            candidates.push(Candidate { pod, holders: self.runs.iter().filter(here).map(|r| &**r).collect() });
        }
        candidates
    }

    // ---- Filter ----------------------------------------------------------------------------------

    /// The first plugin that says no to this Pod.
    fn rejection(&self, run: &RunObject, candidate: &Candidate<'_>, all: &[Candidate<'_>], now: Now) -> Option<Rejected> {
        let ready = self.runtime_ready(candidate, now);
        ready.or_else(|| self.workspace_fencing(run, candidate)).or_else(|| self.run_affinity(run, candidate, all)).or_else(|| self.capacity(run, candidate))
    }

    fn runtime_ready(&self, candidate: &Candidate<'_>, now: Now) -> Option<Rejected> {
        let require_heartbeat = self.rules.runtime_ready?;
        let pod = &candidate.pod.object;
        let facts = PodFacts {
            running: pod.running,
            ready: pod.ready,
            terminating: pod.terminating,
            heartbeat_true: pod.heartbeat_true,
            heartbeat: candidate.pod.heartbeat,
        };
        let code = match facts.availability(now).verdict {
            Verdict::Ready => return None,
            Verdict::NotRunning => "PodNotRunning",
            Verdict::NotReady => "PodNotReady",
            Verdict::Terminating => "PodTerminating",
            Verdict::HeartbeatMissing if require_heartbeat => "HeartbeatMissing",
            Verdict::HeartbeatStale if require_heartbeat => "HeartbeatStale",
            Verdict::HeartbeatMissing | Verdict::HeartbeatStale => return None,
        };
        Some(("RuntimeReady", code, None))
    }

    /// Why nothing is feasible with the Run's workspace, whatever the Pods are.
    fn workspace_refusal(&self, run: &RunObject) -> Option<Rejected> {
        self.rules.workspace_fencing?;
        let name = run.workspace.as_ref()?;
        let workspace = self.workspaces.iter().find(|w| w.key.namespace == run.key.namespace && w.key.name == *name);
        let code = match workspace {
            None => "WorkspaceNotFound",
            Some(w) if w.deleting => "WorkspaceDeleting",
            Some(w) if w.runtime != run.runtime => "WorkspaceRuntimeMismatch",
            Some(w) => match (w.phase, &w.bound_pod, &w.bound_pod_uid) {
                (WorkspacePhase::Pending, ..) => "WorkspacePending",
                (WorkspacePhase::Lost, ..) => "WorkspaceLost",
                (WorkspacePhase::Released, ..) => "WorkspaceReleased",
                (WorkspacePhase::Bound, Some(_), Some(_)) => return None,
                (WorkspacePhase::Bound, ..) => "WorkspaceUnfenced",
            },
        };
        Some(("WorkspaceFencing", code, Some(name.to_string())))
    }

    fn workspace_fencing(&self, run: &RunObject, candidate: &Candidate<'_>) -> Option<Rejected> {
        let require_agent = self.rules.workspace_fencing?;
        let name = run.workspace.as_ref()?;
        if let Some(refusal) = self.workspace_refusal(run) {
            return Some(refusal);
        }
        let workspace = self.workspaces.iter().find(|w| w.key.namespace == run.key.namespace && w.key.name == *name)?;
        let pod = &candidate.pod.object;
        if workspace.bound_pod.as_ref() != Some(&pod.key.name) || workspace.bound_pod_uid.as_ref() != Some(&pod.uid) {
            return Some(("WorkspaceFencing", "NotBoundToWorkspace", Some(name.to_string())));
        }
        (require_agent && !pod.workspace_agent).then_some(("WorkspaceFencing", "NoWorkspaceAgent", None))
    }

    /// The first required term that has no target on any Pod and that the Run can't seed.
    fn affinity_refusal(&self, run: &RunObject, all: &[Candidate<'_>]) -> Option<Rejected> {
        self.rules.run_affinity?;
        let hopeless = |term: &&CompiledSelector| !all.iter().any(|c| has_target(c, term)) && !term.matches(&run.labels);
        run.affinity.required.iter().find(hopeless).map(|term| ("RunAffinity", "NoAffinityTarget", Some(selector_text(term))))
    }

    fn run_affinity(&self, run: &RunObject, candidate: &Candidate<'_>, all: &[Candidate<'_>]) -> Option<Rejected> {
        let (symmetric, _) = self.rules.run_affinity?;
        if let Some(refusal) = self.affinity_refusal(run, all) {
            return Some(refusal);
        }
        for term in &run.affinity.required {
            let seeded = all.iter().any(|c| has_target(c, term));
            if seeded && !has_target(candidate, term) {
                return Some(("RunAffinity", "RequiredAffinityUnmet", None));
            }
        }
        if run.affinity.required_anti.iter().any(|term| has_target(candidate, term)) {
            return Some(("RunAffinity", "AntiAffinityMatched", None));
        }
        let avoids = |affinity: &Affinity| affinity.required_anti.iter().any(|term| term.matches(&run.labels));
        if symmetric && candidate.holders.iter().any(|holder| avoids(&holder.affinity)) {
            return Some(("RunAffinity", "AntiAffinityOfPlacedRun", None));
        }
        None
    }

    fn capacity(&self, run: &RunObject, candidate: &Candidate<'_>) -> Option<Rejected> {
        self.rules.capacity?;
        let mut asked: Vec<(&str, i64)> = run.requests.as_ref()?.iter().collect();
        asked.sort_by_key(|(resource, _)| (*resource != "runs", *resource));
        let short = |(resource, amount): &(&str, i64)| used(candidate, resource) + i128::from(*amount) > capacity(candidate, resource);
        asked.into_iter().find(short).map(|(resource, _)| ("Capacity", "InsufficientCapacity", Some(resource.to_string())))
    }

    // ---- Score -----------------------------------------------------------------------------------

    /// All feasible Pods, best first.
    fn ranked(&self, run: &RunObject, feasible: &[&Candidate<'_>]) -> Vec<Scored> {
        let raw: Vec<i64> = feasible.iter().map(|c| preference(run, c)).collect();
        let (min, max) = (raw.iter().min().copied().unwrap_or(0), raw.iter().max().copied().unwrap_or(0));
        let mut ranked: Vec<(Scored, Shares)> = Vec::new();
        for (candidate, raw) in feasible.iter().zip(raw) {
            let mut scored = Scored { pod: candidate.pod.object.key.name.to_string(), total: 0, by_plugin: Vec::new() };
            if let Some((_, weight)) = self.rules.run_affinity {
                let score = if max > min { (raw - min) * 100_000 / (max - min) } else { 0 };
                scored.total += weight * score;
                scored.by_plugin.push(("RunAffinity", score));
            }
            let shares = Shares::after(run, candidate);
            if let Some((most, weight)) = self.rules.capacity {
                let score = shares.score(most);
                scored.total += weight * score;
                scored.by_plugin.push(("Capacity", score));
            }
            ranked.push((scored, shares));
        }
        ranked.sort_by(|(a, sa), (b, sb)| b.total.cmp(&a.total).then_with(|| self.tie(sa, sb)).then_with(|| a.pod.cmp(&b.pod)));
        ranked.into_iter().map(|(scored, _)| scored).collect()
    }

    fn tie(&self, a: &Shares, b: &Shares) -> Ordering {
        match self.rules.capacity {
            Some((false, _)) => a.cmp(b),
            Some((true, _)) => b.cmp(a),
            None => Ordering::Equal,
        }
    }
}

/// A Pending view that is not newer than what we stored leaves the assumption as it is.
fn stands(assumption: &Assumption, run: &RunObject) -> bool {
    let seen: Option<u64> = run.resource_version.parse().ok();
    let undone = matches!((assumption.bound_version, seen), (Some(bound), Some(seen)) if seen > bound);
    run.phase == Phase::Pending && !undone
}

fn has_target(candidate: &Candidate<'_>, term: &CompiledSelector) -> bool {
    candidate.holders.iter().any(|holder| term.matches(&holder.labels))
}

fn used(candidate: &Candidate<'_>, resource: &str) -> i128 {
    let amounts = candidate.holders.iter().flat_map(|h| h.requests.iter().flat_map(|r| r.iter()));
    amounts.filter(|(name, _)| *name == resource).map(|(_, amount)| i128::from(amount)).sum()
}

fn capacity(candidate: &Candidate<'_>, resource: &str) -> i128 {
    candidate.pod.object.capacity.get(resource).map_or(0, |amount| i128::from(*amount))
}

/// The signed sum of the weights of preferred terms with a target on the Pod.
fn preference(run: &RunObject, candidate: &Candidate<'_>) -> i64 {
    let sum = |terms: &[(i32, CompiledSelector)]| -> i64 { terms.iter().filter(|(_, t)| has_target(candidate, t)).map(|(w, _)| i64::from(*w)).sum() };
    sum(&run.affinity.preferred) - sum(&run.affinity.preferred_anti)
}

/// Used and capacity of every advertised resource above 0, after the Run would be placed.
struct Shares(Vec<(i128, i128)>);

impl Shares {
    fn after(run: &RunObject, candidate: &Candidate<'_>) -> Self {
        let mut shares = Vec::new();
        for (resource, amount) in candidate.pod.object.capacity.iter().filter(|(_, amount)| **amount > 0) {
            let asked = run.requests.iter().flat_map(|r| r.iter()).find(|(name, _)| *name == &**resource).map_or(0, |(_, amount)| amount);
            shares.push((used(candidate, resource) + i128::from(asked), i128::from(*amount)));
        }
        Self(shares)
    }

    fn dominant(&self) -> (i128, i128) {
        self.0.iter().copied().max_by(|a, b| fraction(*a, *b)).unwrap_or((0, 1))
    }

    fn score(&self, most: bool) -> i64 {
        let (used, capacity) = self.dominant();
        let part = if most { used.min(capacity) } else { (capacity - used).max(0) };
        i64::try_from(part * 100_000 / capacity).unwrap_or(i64::MAX)
    }

    fn cmp(&self, other: &Self) -> Ordering {
        let sum = |shares: &Self| -> i128 { shares.0.iter().map(|(used, capacity)| used * 1_000_000_000 / capacity).sum() };
        fraction(self.dominant(), other.dominant()).then_with(|| sum(self).cmp(&sum(other)))
    }
}

/// Compares two non-negative fractions: whole parts, then the rests, so that nothing overflows.
fn fraction((a, of_a): (i128, i128), (b, of_b): (i128, i128)) -> Ordering {
    (a / of_a).cmp(&(b / of_b)).then_with(|| ((a % of_a) * of_b).cmp(&((b % of_b) * of_a)))
}

/// As kubectl writes a selector.
fn selector_text(selector: &CompiledSelector) -> String {
    let mut parts = Vec::new();
    for r in &selector.requirements {
        let list = r.values.join(",");
        parts.push(match (r.op, r.values.len()) {
            (Operator::In, 1) => format!("{}={list}", r.key),
            (Operator::In, _) => format!("{} in ({list})", r.key),
            (Operator::NotIn, 1) => format!("{}!={list}", r.key),
            (Operator::NotIn, _) => format!("{} notin ({list})", r.key),
            (Operator::Exists, _) => r.key.clone(),
            (Operator::DoesNotExist, _) => format!("!{}", r.key),
        });
    }
    parts.join(",")
}
