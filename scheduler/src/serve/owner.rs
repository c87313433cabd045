//! The one owner of the core: takes inputs in order, lets it step, hands its effects on. Nobody else touches it.
//!
//! ```text
//! Runs, Pods, workspaces (ordered deltas) ─┐
//! answers of writes ───────────────────────┼─► handle, bounded ─► step, bounded ─► effects ─► dispatcher
//! timers (next_wake_ms) ───────────────────┘         ▲                │
//!                                                     └── input waits ─┘
//! ```
//! It runs on a thread of its own, so that neither a long step nor a laden runtime holds up the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use berth_framework::core::{AttemptResult, Core, Input, Position, QueueLengths, Queued};
use berth_framework::model::{self, Now, ObjectKey, PodObject, Shown};
use berth_runtime::Clock;
use berth_runtime::informer::{Delta, Informer, Stored};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::configuration::Reconfigure;
use super::dispatch::intent::{Intent, Origin};
use super::dispatch::{Dispatcher, Settled};
use super::metrics::Metrics;
use super::metrics::cycle::Recorder;
use super::objects::{SeenRun, SeenWorkspace, model_key, store_key};
use super::shadow::ShadowLog;
use super::traces::Traces;
use super::turn::{Lists, Move, Turn};

/// Inputs of one kind taken before the core steps again.
const INPUTS_AT_ONCE: usize = 256;
/// Steps before inputs are looked at again.
const STEPS_AT_ONCE: usize = 64;
/// The loop turns at least this often, for the watchdog.
const TURN_EVERY: Duration = Duration::from_secs(1);

/// Something asked of the core from outside, for people.
#[derive(Debug)]
pub struct Question {
    /// About these Runs.
    pub keys: Vec<ObjectKey>,
    /// Also their positions; each costs a look at everyone it competes with.
    pub positions: bool,
    /// Where the answer goes: what is known, and what time it is on the core's clock.
    pub answer: oneshot::Sender<(Now, Vec<Told>)>,
}

/// What the core knows of a Run.
#[derive(Debug)]
pub struct Told {
    /// The Run.
    pub key: ObjectKey,
    /// Where it stands, if it is to be placed.
    pub queued: Option<Queued>,
    /// How many go first, if that was asked.
    pub position: Option<Position>,
    /// Why it waits, if it does.
    pub waits: Option<Shown>,
    /// The Pod it is counted on.
    pub pod: Option<Arc<str>>,
}

/// What the owner lets others see.
#[derive(Debug)]
pub struct Pulse {
    start: Instant,
    last_ms: AtomicU64,
    warm: AtomicBool,
    /// Every cache has been taken in, it is our turn, and attempts have begun.
    pub placing: watch::Sender<bool>,
}

impl Pulse {
    /// A pulse that has just beaten.
    pub fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0), warm: AtomicBool::new(false), placing: watch::Sender::new(false) }
    }

    fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// Whether every cache has been taken in.
    pub fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Relaxed)
    }

    /// How long ago the loop last turned.
    pub fn silence(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the owner's inputs come from.
pub struct Inputs {
    /// Runs in order.
    pub runs: mpsc::Receiver<Delta<SeenRun>>,
    /// Runtime Pods in order.
    pub pods: mpsc::Receiver<Delta<PodObject>>,
    /// PersistentWorkspaces in order.
    pub workspaces: mpsc::Receiver<Delta<SeenWorkspace>>,
    /// How writes ended.
    pub answers: mpsc::Receiver<Settled>,
    /// Questions of people.
    pub questions: mpsc::Receiver<Question>,
    /// Profiles that take over from those in force.
    pub profiles: mpsc::Receiver<Reconfigure>,
}

/// What the owner works with.
pub struct Tools {
    /// The Runs as last seen, for a second look.
    pub runs: Informer<SeenRun>,
    /// Where writes go.
    pub dispatcher: Dispatcher,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What others see of the owner.
    pub pulse: Arc<Pulse>,
    /// Whose turn it is to place.
    pub turn: Turn,
    /// Told whenever placing begins.
    pub began: Box<dyn Fn() + Send>,
    /// A span per cycle, if asked for.
    pub traces: Option<Traces>,
}

/// See the module.
pub struct Owner {
    core: Core,
    inputs: Inputs,
    dispatcher: Dispatcher,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    pulse: Arc<Pulse>,
    traces: Option<Traces>,
    cycle_ns: Arc<AtomicU64>,
    runs: Informer<SeenRun>,
    default_profile: Arc<str>,
    only_profile: bool,
    shadows: ShadowLog,
    turn: Turn,
    began: Box<dyn Fn() + Send>,
    synced: Lists,
    stopping: bool,
}

/// Takes what is there of one channel, at most [`INPUTS_AT_ONCE`].
macro_rules! take {
    ($owner:ident, $channel:ident, $handle:ident) => {{
        let mut taken = 0;
        while taken < INPUTS_AT_ONCE {
            let Ok(item) = $owner.inputs.$channel.try_recv() else { break };
            $owner.$handle(item);
            taken += 1;
        }
        taken
    }};
}

impl Owner {
    /// An owner of `core`.
    pub fn new(core: Core, inputs: Inputs, tools: Tools) -> Self {
        let cycle_ns = Arc::<AtomicU64>::default();
        let Tools { runs, dispatcher, clock, metrics, pulse, turn, began, traces } = tools;
        let default_profile = Arc::from("");
        let mut owner = Self {
            core,
            inputs,
            dispatcher,
            clock,
            metrics,
            pulse,
            traces,
            cycle_ns,
            runs,
            default_profile,
            only_profile: true,
            shadows: ShadowLog::default(),
            turn,
            began,
            synced: [0; 3],
            stopping: false,
        };
        owner.profiles_changed();
        owner
    }

    /// Owns the core until `stop`. From `shutdown` on nothing new is placed; answers still count.
    pub async fn run(mut self, shutdown: CancellationToken, stop: CancellationToken) -> Result<(), String> {
        loop {
            self.pulse.beat();
            if shutdown.is_cancelled() && !self.stopping {
                self.stopping = true;
                self.core.stop_placing();
            }
            let taken = self.take_inputs();
            self.take_turns();
            let stepped = self.steps();
            self.publish();
            self.shadows.tell();
            if taken + stepped > 0 {
                if stop.is_cancelled() {
                    return Ok(());
                }
                continue;
            }
            let pause = self.pause();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = shutdown.cancelled(), if !self.stopping => {}
                () = self.turn.changed() => {}
                Some(answer) = self.inputs.answers.recv() => self.answered(answer),
                delta = self.inputs.runs.recv() => self.run_changed(delta.ok_or("the informer of Runs has ended")?),
                delta = self.inputs.pods.recv() => self.pod_changed(delta.ok_or("the informer of Pods has ended")?),
                delta = self.inputs.workspaces.recv() => self.workspace_changed(delta.ok_or("the informer of PersistentWorkspaces has ended")?),
                Some(question) = self.inputs.questions.recv() => self.asked(question),
                Some(profile) = self.inputs.profiles.recv() => self.reconfigured(profile),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// How long nothing needs to be done unless something comes.
    fn pause(&self) -> Duration {
        let now_ms = self.clock.now().mono_ms;
        match self.core.next_wake_ms() {
            // Attempts wait for writes to end, whose answers wake this loop.
            Some(at) if at <= now_ms && self.dispatcher.room() > 0 => Duration::ZERO,
            Some(at) if at > now_ms => Duration::from_millis(at - now_ms).min(TURN_EVERY),
            _ => TURN_EVERY,
        }
    }

    fn take_inputs(&mut self) -> usize {
        let mut taken = take!(self, answers, answered);
        taken += take!(self, workspaces, workspace_changed);
        taken += take!(self, pods, pod_changed);
        taken += take!(self, runs, run_changed);
        taken += take!(self, profiles, reconfigured);
        taken + take!(self, questions, asked)
    }

    /// Begins and ends placing: after the first lists, or as the election goes.
    fn take_turns(&mut self) {
        self.pulse.warm.store(self.synced.iter().all(|lists| *lists > 0), Ordering::Relaxed);
        match self.turn.next(self.synced) {
            Move::Stay => {}
            Move::Start(_) if self.stopping => {}
            Move::Start(epoch) => {
                self.core.start_placing();
                self.pulse.placing.send_replace(true);
                (self.began)();
                let counts = self.core.counts();
                let pending_runs = self.core.queue().active;
                tracing::info!(epoch, pods = counts.pods, active_runs = counts.active, pending_runs, "every cache is synced; placing begins");
            }
            Move::Stop => {
                // What is queued for the dispatcher fails at the fence; what is in flight comes to its end.
                self.core.stop_placing();
                self.pulse.placing.send_replace(false);
                tracing::warn!("placing ends: not the leader any more; standing by");
            }
        }
    }

    /// Steps until there is nothing to try, or inputs have waited long enough, or writes lag.
    fn steps(&mut self) -> usize {
        let mut stepped = 0;
        let mut room = self.dispatcher.room().min(STEPS_AT_ONCE);
        // A step also fires timers, so at least one is made unless attempts would have to wait.
        while room > 0 {
            room -= 1;
            let now = self.clock.now();
            let epoch = self.turn.epoch().unwrap_or(u64::MAX); // of no term: nothing to be sent comes of it
            let start = self.traces.is_some().then(SystemTime::now);
            let attempt = self.core.step(now);
            let ended = Instant::now();
            let of_attempt = attempt.as_ref().map(|attempt| {
                let profile = self.profile_of(&attempt.key);
                let took = Duration::from_nanos(self.cycle_ns.load(Ordering::Relaxed));
                self.metrics.attempts.attempted(attempt, &profile, took);
                self.shadows.saw(attempt);
                tell(attempt);
                let traced = self.traces.as_ref().zip(start);
                let trace = traced.map(|(traces, start)| traces.cycle(attempt, &profile, start, SystemTime::now()));
                let queued_for_ms = now.mono_ms.saturating_sub(attempt.queued_ms);
                // Without the time that shadows took.
                let decided = ended.checked_sub(took).unwrap_or(ended);
                (&attempt.key, Origin { epoch, profile, attempts: attempt.attempts, queued_for_ms, decided, trace })
            });
            let effects = self.core.drain_effects();
            let idle = attempt.is_none() && effects.is_empty();
            for effect in effects {
                let origin = match &of_attempt {
                    Some((key, origin)) if *key == effect.key() => origin.clone(),
                    // A message that was due, of whichever Run: no part of this attempt.
                    _ => Origin { epoch, profile: self.profile_of(effect.key()), attempts: 0, queued_for_ms: 0, decided: ended, trace: None },
                };
                if let Some(never_sent) = self.dispatcher.submit(Intent::of(effect, origin)) {
                    self.answered(never_sent);
                }
            }
            if idle {
                break;
            }
            stepped += 1;
        }
        stepped
    }

    /// Name of the profile that places this Run.
    fn profile_of(&self, key: &ObjectKey) -> Arc<str> {
        if self.only_profile {
            return self.default_profile.clone();
        }
        let run = self.runs.get(&store_key(key));
        run.map_or_else(|| self.default_profile.clone(), |run| Arc::from(self.core.profiles().of(&run.object.model.runtime).name.as_str()))
    }

    fn publish(&self) {
        // For who stands by, nothing is pending: the one that places tells what is.
        let queue = if self.turn.epoch().is_some() { self.core.queue() } else { QueueLengths::default() };
        self.metrics.core.core(&self.core, queue, self.dispatcher.pending());
    }

    // ---- inputs ----------------------------------------------------------------------------------

    fn input(&mut self, input: Input) {
        let now = self.clock.now();
        let start = Instant::now();
        if let Some(event) = self.core.handle(input, now) {
            self.metrics.cycles.handled(event, start.elapsed());
        }
    }

    fn answered(&mut self, settled: Settled) {
        self.input(Input::Answer(settled.write, settled.outcome));
    }

    fn run_changed(&mut self, delta: Delta<SeenRun>) {
        match change(delta, "Run", |stored| stored.object.model.clone()) {
            Some(delta) => self.input(Input::Run(delta)),
            None => self.synced[0] += 1,
        }
    }

    fn pod_changed(&mut self, delta: Delta<PodObject>) {
        match change(delta, "Pod", |stored| stored.object.clone()) {
            Some(delta) => self.input(Input::Pod(delta)),
            None => self.synced[1] += 1,
        }
    }

    fn workspace_changed(&mut self, delta: Delta<SeenWorkspace>) {
        match change(delta, "PersistentWorkspace", |stored| stored.object.model.clone()) {
            Some(delta) => self.input(Input::Workspace(delta)),
            None => self.synced[2] += 1,
        }
    }

    fn reconfigured(&mut self, other: Reconfigure) {
        self.input(Input::Profiles(other.profiles));
        self.profiles_changed();
        // Who sent it may have been stopped.
        let _ = other.done.send(());
    }

    fn profiles_changed(&mut self) {
        let profiles = self.core.profiles();
        self.default_profile = Arc::from(profiles.of("").name.as_str());
        self.only_profile = profiles.iter().count() == 1;
        self.metrics.profiles_are(profiles);
        let recorder = Recorder::new(self.metrics.cycles.clone(), profiles, self.cycle_ns.clone());
        self.shadows.only(profiles.shadows().iter().map(|shadow| shadow.profile.name.as_str()));
        self.core.observe(Box::new(recorder));
    }

    fn asked(&mut self, question: Question) {
        let now = self.clock.now();
        let told = question.keys.into_iter().map(|key| {
            let waits = self.core.waiting_on(&key, now).map(|(_, shown)| shown);
            let position = if question.positions { self.core.position(&key) } else { None };
            Told { queued: self.core.queued(&key), position, waits, pod: self.core.counted_on(&key), key }
        });
        let told = told.collect();
        // Whoever asked may have gone away.
        let _ = question.answer.send((now, told));
    }
}

/// An informer's delta as the core's; `None` for the end of a list. What can't be read at all is as good as gone.
fn change<T, M>(delta: Delta<T>, kind: &'static str, model: impl FnOnce(&Stored<T>) -> Arc<M>) -> Option<model::Delta<M>> {
    Some(match delta {
        Delta::Applied(stored) => model::Delta::Applied(model(&stored)),
        Delta::Deleted { key, uid, .. } => model::Delta::Deleted { key: model_key(&key), uid },
        Delta::Invalid(invalid) => {
            tracing::warn!(kind, object = %invalid.key, error = %invalid.error, "object can't be read and is ignored");
            model::Delta::Deleted { key: model_key(&invalid.key), uid: invalid.uid }
        }
        Delta::Synced => return None,
    })
}

/// One line per attempt, for `-vv`.
fn tell(attempt: &berth_framework::core::Attempt) {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    let cause = attempt.cause.map_or("-", |cause| cause.as_str());
    match &attempt.result {
        AttemptResult::Placed { ranked, .. } => {
            let pod = ranked.first().map_or("", |first| &first.pod);
            tracing::trace!(run = %attempt.key, attempt = attempt.attempts, cause, pod, "attempt: placed");
        }
        AttemptResult::Waits { diagnosis } => {
            let reasons: Vec<_> = diagnosis.rejections.iter().map(|charge| format!("{} {}", charge.pods, charge.rejection)).collect();
            tracing::trace!(run = %attempt.key, attempt = attempt.attempts, cause, pods = diagnosis.pods, ?reasons, "attempt: waits");
        }
        other => tracing::trace!(run = %attempt.key, attempt = attempt.attempts, cause, result = ?other, "attempt"),
    }
}
