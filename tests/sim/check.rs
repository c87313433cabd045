//! What is required of the core: of every attempt, of every effect, and of the state in which it has nothing to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::constants::MESSAGE_BYTES_MAX;
use berth_framework::core::{Attempt, AttemptResult, Effect, FIRST_MESSAGE_AFTER_MS, Standing};
use berth_framework::diagnosis::WAITING_PREFIX;
use berth_framework::model::{Phase, RunObject, Shown};
use berth_tests::oracle::{Decision, Rejected, Scored};

use crate::world::World;

/// How many steps in a row are taken for a livelock.
const STEPS_MAX: usize = 5_000;

/// What a history did, so that the suite can show that it tried something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub attempts: u64,
    pub placed: u64,
    pub waits: u64,
    pub woken: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.placed += other.placed;
        self.waits += other.waits;
        self.woken += other.woken;
    }
}

/// The waiting life of one Run, as far as its messages go.
#[derive(Clone, Debug, Default)]
pub struct Story {
    since_ms: u64,
    /// What it was told last, unless that write failed.
    pub last: Option<Shown>,
    attempts_since: u32,
}

pub type Stories = BTreeMap<Arc<str>, Story>;

impl World {
    /// Steps the core until it has nothing to try; the oracle must agree with every attempt.
    pub fn step_until_none(&mut self) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let before = self.core.stats().placed_after_flush;
            let attempt = self.core.step(self.now);
            let effects = self.core.drain_effects();
            let Some(attempt) = attempt else {
                self.effects_without_attempt(effects)?;
                if self.core.next_event_ms() == Some(0) {
                    return Err("the core stops with something to try".into());
                }
                return Ok(());
            };
            self.check_attempt(&attempt, effects).map_err(|e| format!("attempt of {}: {e}\n  {attempt:?}", attempt.key))?;
            if self.core.stats().placed_after_flush != before {
                return Err(format!("only the alarm flush placed {}: a wake-up was lost", attempt.key));
            }
        }
        Err("the core never stops trying".into())
    }

    fn check_attempt(&mut self, attempt: &Attempt, effects: Vec<Effect>) -> Result<(), String> {
        self.tally.attempts += 1;
        self.tally.woken += u64::from(attempt.cause.is_some());
        let Some(run) = self.oracle.run(&attempt.key).cloned() else { return Err("no such Run".into()) };
        if run.uid != attempt.uid || run.phase != Phase::Pending || run.deleting || self.oracle.counted_on(&run).is_some() {
            return Err(format!("this Run must not be tried: {run:?}"));
        }
        let expected = self.oracle.expected(&run, self.now);
        compare(&expected, &attempt.result)?;
        let (messages, mut others): (Vec<Effect>, Vec<Effect>) = effects.into_iter().partition(|e| matches!(e, Effect::SetWaiting { .. }));
        self.check_messages(messages)?;
        match (&attempt.result, others.pop(), others.is_empty()) {
            (AttemptResult::Placed { pod_uid, ranked }, Some(Effect::Bind(bind)), true) => {
                if bind.run.key != run.key || bind.run.uid != run.uid || bind.run.resource_version != run.resource_version {
                    return Err(format!("the bind is about another object: {bind:?}"));
                }
                if bind.pod != ranked[0].pod || bind.pod_uid != *pod_uid {
                    return Err(format!("the bind names another Pod: {bind:?}"));
                }
                self.no_older_twin_waits(&run)?;
                self.oracle.placed(&run.key, &bind.pod, bind.write.0);
                self.tally.placed += 1;
                if self.oracle.rules.capacity.is_some() {
                    let over = self.oracle.overcommitted(&run, &bind.pod);
                    if !over.is_empty() {
                        return Err(format!("{} is over capacity: {over:?}", bind.pod));
                    }
                }
                self.stories.remove(&run.uid);
                self.ask(Effect::Bind(bind));
            }
            (AttemptResult::Terminates { phase, .. }, Some(effect), true) => {
                let Effect::Terminate { run: of, phase: to, .. } = &effect else { return Err(format!("not the end of a Run: {effect:?}")) };
                if of.uid != run.uid || of.resource_version != run.resource_version || to != phase {
                    return Err(format!("the end of another object: {effect:?}"));
                }
                self.stories.remove(&run.uid);
                self.ask(effect);
            }
            (AttemptResult::Waits { .. }, None, true) => {
                self.tally.waits += 1;
                let since_ms = self.now.mono_ms;
                self.stories.entry(run.uid.clone()).or_insert_with(|| Story { since_ms, ..Story::default() }).attempts_since += 1;
            }
            (AttemptResult::Held, None, true) => {}
            (_, effect, _) => return Err(format!("unexpected effects {effect:?} {others:?}")),
        }
        Ok(())
    }

    fn effects_without_attempt(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        if let Some(other) = effects.iter().find(|e| !matches!(e, Effect::SetWaiting { .. })) {
            return Err(format!("an effect without an attempt: {other:?}"));
        }
        self.check_messages(effects)
    }

    /// A message comes after a second of waiting, and again only when an attempt of that Run changed it.
    fn check_messages(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            let Effect::SetWaiting { run, shown, .. } = &effect else { continue };
            let wrong = |why: &str| Err(format!("message of {}: {why}: {shown:?}", run.key));
            let Some(story) = self.stories.get_mut(&run.uid) else { return wrong("the Run does not wait") };
            if self.now.mono_ms < story.since_ms + FIRST_MESSAGE_AFTER_MS {
                return wrong("before the first second is over");
            }
            if !shown.message.starts_with(WAITING_PREFIX) || shown.message.len() >= MESSAGE_BYTES_MAX {
                return wrong("not a waiting message");
            }
            if story.last.as_ref() == Some(shown) && story.attempts_since == 0 {
                return wrong("said already");
            }
            story.attempts_since = 0;
            story.last = Some(shown.clone());
            self.ask(effect);
        }
        Ok(())
    }

    /// A younger Run that is equal in everything but name, UID and creation was placed: no older one may be left waiting.
    fn no_older_twin_waits(&self, placed: &RunObject) -> Result<(), String> {
        for other in self.oracle.runs() {
            let older = (other.created_s, &other.uid) < (placed.created_s, &placed.uid);
            if !older || !twins(other, placed) {
                continue;
            }
            let standing = self.core.standing(&other.key);
            let held = other.retry_not_before_wall_ms.is_some_and(|t| t > self.now.wall_ms);
            if !held && matches!(standing, Some(Standing::Waiting | Standing::Active)) {
                return Err(format!("overtakes its older twin {} ({standing:?})", other.key));
            }
        }
        Ok(())
    }

    /// The core has nothing to do: nobody is forgotten, and it counts as the oracle counts.
    pub fn check_quiet(&mut self) -> Result<(), String> {
        let counts = self.core.counts();
        if (counts.pods, counts.active, counts.assumed) != self.oracle.counts() {
            return Err(format!("counts {counts:?}, the oracle {:?}", self.oracle.counts()));
        }
        let runs: Vec<Arc<RunObject>> = self.oracle.runs().cloned().collect();
        let (mut waiting, mut backoff) = (0, 0);
        let mut because_of: BTreeMap<&'static str, usize> = BTreeMap::new();
        for run in runs {
            let counted = self.core.counted_on(&run.key);
            if counted.as_deref() != self.oracle.counted_on(&run) {
                return Err(format!("{} is counted on {counted:?}, by the oracle on {:?}", run.key, self.oracle.counted_on(&run)));
            }
            let standing = self.core.standing(&run.key);
            let to_be_placed = run.phase == Phase::Pending && !run.deleting;
            let at_home = match standing {
                Some(Standing::Waiting | Standing::Backoff) => to_be_placed && counted.is_none(),
                Some(Standing::Assumed) => run.phase == Phase::Pending && counted.is_some(),
                Some(Standing::Terminating) => run.phase == Phase::Pending,
                Some(Standing::Idle) | None => !to_be_placed,
                Some(Standing::Active) => false,
            };
            if !at_home {
                return Err(format!("{} stands {standing:?}, counted on {counted:?}: {run:?}", run.key));
            }
            backoff += usize::from(standing == Some(Standing::Backoff));
            if standing == Some(Standing::Waiting) {
                waiting += 1;
                let Some((diagnosis, _)) = self.core.waiting_on(&run.key, self.now) else { return Err(format!("{} waits for no reason", run.key)) };
                for plugin in diagnosis.plugins() {
                    *because_of.entry(plugin).or_default() += 1;
                }
                if let decision @ Decision::Fits(_) = self.oracle.decide(&run, self.now) {
                    return Err(format!("{} waits, but it fits: a wake-up was lost: {decision:?}\n  {run:?}", run.key));
                }
            }
        }
        let queue = self.core.queue();
        if (queue.active, queue.backoff, queue.waiting) != (0, backoff, waiting) {
            return Err(format!("gauges {queue:?}, but {backoff} back off and {waiting} wait"));
        }
        let told: BTreeMap<_, _> = self.core.unschedulable().filter(|(.., runs)| *runs > 0).map(|(_, plugin, runs)| (plugin, runs)).collect();
        if told != because_of {
            return Err(format!("Runs wait because of {because_of:?}, the gauge says {told:?}"));
        }
        Ok(())
    }
}

fn twins(a: &RunObject, b: &RunObject) -> bool {
    let same = |a: &RunObject, b: &RunObject| {
        (&a.key.namespace, &a.labels, &a.runtime, &a.workspace, &a.requests, &a.affinity)
            == (&b.key.namespace, &b.labels, &b.runtime, &b.workspace, &b.requests, &b.affinity)
    };
    let plain = |r: &RunObject| r.phase == Phase::Pending && !r.deleting && !r.cancel_requested && r.invalid.is_none();
    same(a, b) && plain(a) && plain(b)
}

/// The oracle's decision against the core's.
pub fn compare(expected: &Decision, got: &AttemptResult) -> Result<(), String> {
    let differs = || Err(format!("the oracle says {expected:?}"));
    match (expected, got) {
        (Decision::Terminates(phase, reason), AttemptResult::Terminates { phase: p, reason: r }) if phase == p && reason == r => Ok(()),
        (Decision::Held, AttemptResult::Held) => Ok(()),
        (Decision::Fits(scored), AttemptResult::Placed { ranked, .. }) => {
            let told: Vec<Scored> = ranked.iter().map(|r| Scored { pod: r.pod.to_string(), total: r.total, by_plugin: r.by_plugin.clone() }).collect();
            if told[..] == scored[..scored.len().min(3)] { Ok(()) } else { differs() }
        }
        (Decision::Waits { pods, rejections, refused }, AttemptResult::Waits { diagnosis }) => {
            let rejected = |plugin: &'static str, rejection: &berth_framework::plugin::Rejection| -> Rejected {
                (plugin, rejection.reason.code, rejection.subject.as_ref().map(ToString::to_string))
            };
            let charged: BTreeMap<Rejected, u32> = diagnosis.rejections.iter().map(|c| (rejected(c.plugin, &c.rejection), c.pods)).collect();
            let refusal = diagnosis.refused.as_ref().map(|(plugin, rejection)| rejected(plugin, rejection));
            let rows = diagnosis.rejections.len();
            if diagnosis.pods == *pods && charged == *rejections && rows == charged.len() && refusal == *refused { Ok(()) } else { differs() }
        }
        _ => differs(),
    }
}
