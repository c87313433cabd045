//! Drives the core through virtual time: what a real API server would answer, and the clock.
//!
//! ```text
//! now:   binder ─► step, step, … ─► every effect is stored, answered Applied and delivered again
//! then:  the clock goes to the next timer of the core or the next end of a Run; fresh Pods beat on the way
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::constants::reason;
use berth_api::runtime_ready::{Heartbeat, Now};
use berth_framework::core::{Attempt, AttemptResult, BindIntent, Core, Effect, Explanation, Input, RunRef, WriteOutcome};
use berth_framework::model::{Delta, ObjectKey, Phase, PodObject, RunObject, Shown, WorkspaceObject};
use berth_framework::profile::Profiles;
use berth_framework::{Charge, Ranked};
use rustc_hash::FxHashMap;

use super::history::{Cause, History, Moment};

/// The monotonic clock starts here.
const MONO_START_MS: u64 = 1_000;
/// Fresh Pods beat when the clock has moved this far; far below the 15 s after which they would be stale.
const BEAT_MS: u64 = 5_000;
/// After so many moments in which nothing was placed, ended or told, nothing moves any more.
const IDLE_MOMENTS_MAX: usize = 100;
/// The chosen Pod and two runners-up.
const RANKED: usize = 3;

/// What `--run-duration` and `--until` say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// How long a placed Run lasts.
    pub run_duration_ms: Option<u64>,
    /// How far the clock may go.
    pub until_ms: Option<u64>,
}

/// A Run and what became of it.
#[derive(Debug)]
pub struct SimulatedRun {
    /// How many objects came before it.
    pub order: usize,
    /// As stored.
    pub object: Arc<RunObject>,
    /// File and line of what will end it as invalid.
    pub fault: Option<Arc<str>>,
    /// `status.phase` in full.
    pub phase: Arc<str>,
    /// Reason of its condition.
    pub reason: Arc<str>,
    /// `status.message`.
    pub message: Arc<str>,
    /// Attempts.
    pub attempts: u32,
    /// Ranked Pods of the attempt that placed it.
    pub ranked: Vec<Ranked>,
    /// Why it waits.
    pub rejections: Vec<Charge>,
    /// What this simulation did with it.
    pub outcome: Outcome,
    /// How many attempts, of all Runs, came before the one that placed it.
    pub placed_after: Option<usize>,
    /// When it was put on its Pod, wall milliseconds, if the input has it there.
    pub placed_wall_ms: Option<i64>,
}

/// What the simulation did with a Run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing (so far).
    Untouched,
    /// Placed.
    Placed,
    /// Ended Failed.
    Failed,
    /// Ended Cancelled.
    Cancelled,
}

/// Verdicts on every Pod and the moment they are of.
#[derive(Debug)]
pub struct Explained {
    /// The verdicts.
    pub explanation: Explanation,
    /// `before it was placed` or `at the end`.
    pub when: &'static str,
    /// Scores, if it was placed.
    pub ranked: Vec<Ranked>,
}

/// The simulation under way.
pub struct Simulation {
    core: Core,
    settings: Settings,
    runs: Vec<SimulatedRun>,
    by_key: FxHashMap<ObjectKey, usize>,
    beating: Vec<PodObject>,
    pods: usize,
    start_wall_ms: i64,
    now: Now,
    beaten_mono_ms: u64,
    /// Monotonic end and index of every Run that will end.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    version: u64,
    times: Vec<Duration>,
    placed: usize,
    /// Stop at this attempt and explain this Run, whose attempt it is.
    stop_at: Option<(usize, ObjectKey)>,
    explained: Option<Explained>,
    history: Option<History>,
    cut_short: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Outcomes {
    /// The Runs, in input order.
    pub runs: Vec<SimulatedRun>,
    /// Real time of every attempt.
    pub times: Vec<Duration>,
    /// How far the clock went.
    pub elapsed_ms: u64,
    /// The time was up before nothing moved any more.
    pub cut_short: bool,
    /// Runs that only the alarm found: a lost wake-up, a bug.
    pub placed_after_flush: u64,
    /// What happened when, if it was recorded.
    pub history: Option<History>,
}

/// The present at the clock's start.
pub fn first_moment(start_wall_ms: i64) -> Now {
    Now { wall_ms: start_wall_ms, mono_ms: MONO_START_MS }
}

impl Simulation {
    /// A simulation at the clock's start. `version` is above every resource version of the input.
    pub fn new(profiles: Profiles, settings: Settings, start_wall_ms: i64, version: u64) -> Self {
        let mut core = Core::new(profiles);
        core.keep_ranked(RANKED);
        Self {
            core,
            settings,
            runs: Vec::new(),
            by_key: FxHashMap::default(),
            beating: Vec::new(),
            pods: 0,
            start_wall_ms,
            now: first_moment(start_wall_ms),
            beaten_mono_ms: MONO_START_MS,
            ends: BinaryHeap::new(),
            version,
            times: Vec::new(),
            cut_short: false,
            placed: 0,
            stop_at: None,
            explained: None,
            history: None,
        }
    }

    /// Records what happens when; before anything is added.
    pub fn record(&mut self) {
        self.history = Some(History::default());
    }

    /// Adds a Pod. One that is fresh goes on beating.
    pub fn add_pod(&mut self, pod: PodObject) {
        let fresh = pod.heartbeat_true && pod.probe_ms.is_some_and(|probe| Heartbeat::observe(None, probe, self.now).fresh_until(self.now).is_some());
        if fresh {
            self.beating.push(pod.clone());
        }
        self.pods += 1;
        self.core.handle(Input::Pod(Delta::Applied(Arc::new(pod))), self.now);
    }

    /// Adds a workspace, as the binder left it.
    pub fn add_workspace(&mut self, workspace: WorkspaceObject) {
        self.core.handle(Input::Workspace(Delta::Applied(Arc::new(workspace))), self.now);
    }

    /// Adds a Run.
    pub fn add_run(&mut self, run: SimulatedRun) {
        let index = self.runs.len();
        self.by_key.insert(run.object.key.clone(), index);
        if run.object.phase == Phase::Active {
            // Long ago may be before the monotonic clock's start.
            let ago_ms = run.placed_wall_ms.map_or(0, |placed| self.start_wall_ms.saturating_sub(placed));
            self.let_end(index, MONO_START_MS, ago_ms);
        }
        if let Some(history) = &mut self.history {
            history.add(run.object.phase == Phase::Pending && !run.object.deleting, run.object.phase == Phase::Active);
        }
        self.core.handle(Input::Run(Delta::Applied(run.object.clone())), self.now);
        self.runs.push(run);
    }

    /// Runs until nothing moves any more or the time is up, and explains a Run as things stand then.
    /// `progress` is told how many Runs are placed, now and then.
    pub fn run(mut self, explain: Option<&ObjectKey>, progress: &mut dyn FnMut(usize)) -> (Outcomes, Option<Explained>) {
        self.go(progress);
        let explanation = explain.and_then(|key| self.core.explain(key));
        let explained = explanation.map(|explanation| Explained { explanation, when: "at the end", ranked: Vec::new() });
        (self.finish(), explained)
    }

    /// Runs until just before attempt number `cycle`, which is one of `key`, and explains that Run as things stand then. What happens is
    /// always the same, so a first run tells the number.
    pub fn explain_before(mut self, cycle: usize, key: &ObjectKey) -> Option<Explained> {
        self.stop_at = Some((cycle, key.clone()));
        self.go(&mut |_| {});
        self.explained
    }

    fn go(&mut self, progress: &mut dyn FnMut(usize)) {
        self.core.start_placing();
        let mut idle = 0;
        loop {
            let moved = self.settle(progress);
            idle = if moved { 0 } else { idle + 1 };
            let Some(next) = self.next_moment().filter(|_| idle <= IDLE_MOMENTS_MAX) else { return };
            self.cut_short = self.settings.until_ms.is_some_and(|until| next > MONO_START_MS.saturating_add(until));
            if self.explained.is_some() || self.cut_short {
                return;
            }
            self.go_to(next);
        }
    }

    /// Everything that can happen now; `true` if something was placed, ended or told.
    fn settle(&mut self, progress: &mut dyn FnMut(usize)) -> bool {
        let mut moved = self.end_due_runs();
        self.sample();
        loop {
            let attempt = self.step();
            let effects = self.core.drain_effects();
            if self.explained.is_some() || (attempt.is_none() && effects.is_empty()) {
                if let (Some(explained), Some(Attempt { result: AttemptResult::Placed { ranked, .. }, .. })) = (&mut self.explained, attempt) {
                    explained.ranked = ranked;
                }
                return moved;
            }
            if let Some(attempt) = attempt {
                self.note(attempt);
                if self.times.len().is_multiple_of(256) {
                    progress(self.placed);
                }
            }
            for effect in effects {
                moved = true;
                self.perform(effect);
            }
            self.sample();
        }
    }

    fn step(&mut self) -> Option<Attempt> {
        if let Some((_, key)) = self.stop_at.as_ref().filter(|(cycle, _)| *cycle == self.times.len()) {
            let explanation = self.core.explain(key);
            self.explained = explanation.map(|explanation| Explained { explanation, when: "before it was placed", ranked: Vec::new() });
            self.core.keep_ranked(self.pods.max(RANKED));
        }
        let started = Instant::now();
        let attempt = self.core.step(self.now);
        if attempt.is_some() {
            self.times.push(started.elapsed());
        }
        attempt
    }

    fn note(&mut self, attempt: Attempt) {
        let Some(&index) = self.by_key.get(&attempt.key) else { return };
        let Some(run) = self.runs.get_mut(index) else { return };
        run.attempts = attempt.attempts;
        if let (Some(history), Some(cause)) = (&mut self.history, Cause::after(&attempt.result)) {
            history.waits(index, cause);
        }
        match attempt.result {
            AttemptResult::Placed { ranked, .. } => {
                run.ranked = ranked;
                run.placed_after = Some(self.times.len() - 1);
            }
            AttemptResult::Refused { by: (plugin, rejection) } => {
                run.reason = reason::UNSCHEDULABLE.into();
                run.message = format!("{plugin} refuses the chosen Pod: {rejection}; to be tried again").into();
            }
            AttemptResult::Held => run.message = "waits for the back-off of its retry".into(),
            AttemptResult::Waits { .. } | AttemptResult::Terminates { .. } => {}
        }
    }

    /// Stores what the core wants written, as an API server that never fails.
    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Bind(BindIntent { write, run, pod, .. }) => {
                let Some(index) = self.store(&run, |object| {
                    object.phase = Phase::Active;
                    object.assigned_pod = Some(pod);
                    object.shown = None;
                }) else {
                    return;
                };
                if let Some(run) = self.runs.get_mut(index) {
                    (run.phase, run.reason, run.message) = ("Scheduled".into(), reason::ASSIGNED.into(), "".into());
                    run.outcome = Outcome::Placed;
                }
                self.placed += 1;
                self.tell_history(|history, now| history.placed(index, now));
                self.let_end(index, self.now.mono_ms, 0);
                self.confirm(write, index);
            }
            Effect::SetWaiting { write, run, shown, .. } => {
                if let Some(index) = self.store(&run, |object| object.shown = Some(shown)) {
                    self.confirm(write, index);
                }
            }
            Effect::Terminate { write, run, phase, reason, message } => {
                let Some(index) = self.store(&run, |object| object.phase = Phase::Terminal) else { return };
                if let Some(run) = self.runs.get_mut(index) {
                    run.outcome = if phase == "Cancelled" { Outcome::Cancelled } else { Outcome::Failed };
                    let fault = run.fault.as_ref().filter(|_| run.outcome == Outcome::Failed);
                    let message = fault.map_or_else(|| message.clone(), |place| format!("{place}: {message}").into());
                    (run.phase, run.reason, run.message) = (phase.into(), reason.into(), message);
                }
                self.tell_history(|history, now| history.ended(index, now));
                self.confirm(write, index);
            }
        }
    }

    fn store(&mut self, run: &RunRef, change: impl FnOnce(&mut RunObject)) -> Option<usize> {
        let index = *self.by_key.get(&run.key)?;
        let stored = self.runs.get_mut(index)?;
        self.version += 1;
        let mut object = RunObject::clone(&stored.object);
        change(&mut object);
        object.resource_version = self.version.to_string().into();
        stored.object = Arc::new(object);
        Some(index)
    }

    /// The answer of the write, and then what the watch shows.
    fn confirm(&mut self, write: berth_framework::core::WriteId, index: usize) {
        let Some(object) = self.runs.get(index).map(|run| run.object.clone()) else { return };
        self.core.handle(Input::Answer(write, WriteOutcome::Applied(object.resource_version.clone())), self.now);
        self.core.handle(Input::Run(Delta::Applied(object)), self.now);
    }

    /// Plans the end of a Run that at `mono_ms` has been on its Pod for `ago_ms` (below 0: will be).
    fn let_end(&mut self, index: usize, mono_ms: u64, ago_ms: i64) {
        if let Some(duration) = self.settings.run_duration_ms {
            let left = duration.saturating_add_signed(ago_ms.saturating_neg());
            self.ends.push(Reverse((mono_ms.saturating_add(left), index)));
        }
    }

    fn end_due_runs(&mut self) -> bool {
        let mut ended = false;
        while let Some(&Reverse((_, index))) = self.ends.peek().filter(|Reverse((at, _))| *at <= self.now.mono_ms) {
            self.ends.pop();
            let Some(run) = self.runs.get(index).map(|run| RunRef {
                key: run.object.key.clone(),
                uid: run.object.uid.clone(),
                resource_version: run.object.resource_version.clone(),
            }) else {
                continue;
            };
            self.store(&run, |object| object.phase = Phase::Terminal);
            if let Some(run) = self.runs.get_mut(index) {
                (run.phase, run.reason, run.message) = ("Succeeded".into(), reason::RUN_COMPLETED.into(), "".into());
                self.core.handle(Input::Run(Delta::Applied(run.object.clone())), self.now);
                ended = true;
            }
            self.tell_history(|history, now| history.ended(index, now));
        }
        ended
    }

    fn tell_history(&mut self, tell: impl FnOnce(&mut History, Moment)) {
        let now = Moment { ms: self.now.mono_ms - MONO_START_MS, step: self.times.len() as u64 };
        if let Some(history) = &mut self.history {
            tell(history, now);
        }
    }

    fn sample(&mut self) {
        self.tell_history(History::sample);
    }

    fn next_moment(&self) -> Option<u64> {
        let timer = self.core.next_event_ms().map(|at| at.max(self.now.mono_ms + 1));
        let end = self.ends.peek().map(|Reverse((at, _))| (*at).max(self.now.mono_ms + 1));
        timer.into_iter().chain(end).min()
    }

    fn go_to(&mut self, mono_ms: u64) {
        let elapsed = i64::try_from(mono_ms - MONO_START_MS).unwrap_or(i64::MAX);
        self.now = Now { wall_ms: self.start_wall_ms.saturating_add(elapsed), mono_ms };
        if mono_ms - self.beaten_mono_ms < BEAT_MS {
            return;
        }
        self.beaten_mono_ms = mono_ms;
        for pod in &mut self.beating {
            // A clock that is ahead stays ahead.
            pod.probe_ms = pod.probe_ms.map(|probe| probe.max(self.now.wall_ms - 1) + 1);
            self.core.handle(Input::Pod(Delta::Applied(Arc::new(pod.clone()))), self.now);
        }
    }

    fn finish(mut self) -> Outcomes {
        // Whoever waits for each other is searched for once a second: look after the last search.
        let later = Now { wall_ms: self.now.wall_ms.saturating_add(1_000), mono_ms: self.now.mono_ms + 1_000 };
        for run in self.runs.iter_mut().filter(|run| run.object.phase == Phase::Pending) {
            if let Some((diagnosis, Shown { reason, message })) = self.core.waiting_on(&run.object.key, later) {
                (run.reason, run.message, run.rejections) = (reason, message, diagnosis.rejections.clone());
            } else if run.object.deleting {
                run.message = "being deleted, so it is not placed".into();
            } else if run.attempts == 0 {
                run.message = "not tried: the time was up".into();
            }
        }
        Outcomes {
            elapsed_ms: self.now.mono_ms - MONO_START_MS,
            cut_short: self.cut_short,
            placed_after_flush: self.core.stats().placed_after_flush,
            runs: self.runs,
            times: self.times,
            history: self.history,
        }
    }
}
