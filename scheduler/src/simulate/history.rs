//! What happened when in a simulation: placements, ends, and what the waiting Runs waited for.
//!
//! Kept only for `--compare` and `--html`. Memory is bounded: a few numbers per Run, and a bounded number of samples of the
//! waiting causes, which get coarser as the simulation gets longer.

use berth_framework::Diagnosis;
use berth_framework::core::AttemptResult;
use berth_framework::plugin::{Reason, Rejection};

/// How many samples of the waiting causes are kept on each axis.
const SAMPLES_MAX: usize = 2_000;

/// A point in the simulation, on both axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Virtual time since the clock's start, milliseconds.
    pub ms: u64,
    /// Decisions made before it.
    pub step: u64,
}

/// What a waiting Run waits for: what rejects most of its Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The plugin; empty if it is none.
    pub plugin: &'static str,
    /// Code of the reason, as `InsufficientCapacity`.
    pub code: &'static str,
}

impl Cause {
    const QUEUED: Self = Self { plugin: "", code: "NotTriedYet" };
    const NO_POD: Self = Self { plugin: "", code: "NoPodOfItsRuntime" };
    const HELD: Self = Self { plugin: "", code: "RetryBackOff" };

    /// What a Run waits for after such an attempt, if it does.
    pub fn after(result: &AttemptResult) -> Option<Self> {
        match result {
            AttemptResult::Waits { diagnosis } => Some(Self::of(diagnosis)),
            AttemptResult::Refused { by: (plugin, rejection) } => Some(Self::rejection(plugin, rejection)),
            AttemptResult::Held => Some(Self::HELD),
            AttemptResult::Placed { .. } | AttemptResult::Terminates { .. } => None,
        }
    }

    /// What most Pods were rejected for, or what decided alone.
    fn of(diagnosis: &Diagnosis) -> Self {
        if let Some((plugin, rejection)) = &diagnosis.refused {
            return Self::rejection(plugin, rejection);
        }
        // Of equals the first: rows are in profile order.
        let most = diagnosis.rejections.iter().rev().max_by_key(|row| row.pods);
        most.map_or(Self::NO_POD, |row| Self::rejection(row.plugin, &row.rejection))
    }

    fn rejection(plugin: &'static str, rejection: &Rejection) -> Self {
        let Reason { code, .. } = rejection.reason;
        Self { plugin, code }
    }
}

/// What happened to one Run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The input has it on a Pod.
    pub held: bool,
    /// When the simulation put it on its Pod.
    pub placed: Option<Moment>,
    /// When it ended.
    pub ended: Option<Moment>,
    /// What it waits for, or waited for last; index into [`History::causes`].
    pub cause: Option<usize>,
    waiting: bool,
}

impl Span {
    /// Whether the simulation had to find a Pod for it.
    pub fn was_pending(&self) -> bool {
        self.cause.is_some()
    }
}

/// Everything that happened.
#[derive(Debug)]
pub struct History {
    /// The Runs, in input order.
    pub spans: Vec<Span>,
    /// Every cause that was met; the first is "not tried yet".
    pub causes: Vec<Cause>,
    /// Waiting Runs by cause over time; `at` is in milliseconds.
    pub by_time: Samples,
    /// Waiting Runs by cause over decisions; `at` is in steps.
    pub by_step: Samples,
    waiting: Vec<u32>,
}

impl Default for History {
    fn default() -> Self {
        Self { spans: Vec::new(), causes: vec![Cause::QUEUED], by_time: Samples::default(), by_step: Samples::default(), waiting: vec![0] }
    }
}

impl History {
    /// The next Run of the input: `pending` if it is to be placed, `held` if it is on a Pod already.
    pub fn add(&mut self, pending: bool, held: bool) {
        self.spans.push(Span { held, ..Span::default() });
        if pending {
            self.wait(self.spans.len() - 1, 0);
        }
    }

    /// A Run was put on a Pod.
    pub fn placed(&mut self, run: usize, now: Moment) {
        self.leave(run);
        if let Some(span) = self.spans.get_mut(run) {
            span.placed = Some(now);
        }
    }

    /// A Run ended.
    pub fn ended(&mut self, run: usize, now: Moment) {
        self.leave(run);
        if let Some(span) = self.spans.get_mut(run) {
            span.ended = Some(now);
        }
    }

    /// A Run was tried in vain.
    pub fn waits(&mut self, run: usize, cause: Cause) {
        let known = self.causes.iter().position(|known| *known == cause);
        let index = known.unwrap_or_else(|| {
            self.causes.push(cause);
            self.waiting.push(0);
            self.causes.len() - 1
        });
        self.leave(run);
        self.wait(run, index);
    }

    /// Looks at what waits; called whenever something happened.
    pub fn sample(&mut self, now: Moment) {
        self.by_time.push(now.ms, &self.waiting);
        self.by_step.push(now.step, &self.waiting);
    }

    fn wait(&mut self, run: usize, cause: usize) {
        let (Some(span), Some(count)) = (self.spans.get_mut(run), self.waiting.get_mut(cause)) else { return };
        (span.waiting, span.cause) = (true, Some(cause));
        *count += 1;
    }

    fn leave(&mut self, run: usize) {
        let Some(span) = self.spans.get_mut(run).filter(|span| span.waiting) else { return };
        span.waiting = false;
        if let Some(count) = span.cause.and_then(|cause| self.waiting.get_mut(cause)) {
            *count -= 1;
        }
    }
}

/// How many Runs waited for what, from each sample to the next.
#[derive(Debug, Default)]
pub struct Samples {
    /// Where each sample begins, ascending.
    pub at: Vec<u64>,
    /// Runs by cause in each; causes that were not met yet are missing.
    pub counts: Vec<Box<[u32]>>,
    /// Samples are at least so far apart.
    gap: u64,
}

impl Samples {
    fn push(&mut self, at: u64, counts: &[u32]) {
        if let (Some(&last), Some(row)) = (self.at.last(), self.counts.last_mut()) {
            if **row == *counts {
                return;
            }
            // The first sample, how it all began, stays.
            if at == last || (self.at.len() > 1 && at < last.saturating_add(self.gap)) {
                *row = counts.into();
                return;
            }
        }
        if self.at.len() == SAMPLES_MAX {
            self.thin(at);
        }
        self.at.push(at);
        self.counts.push(counts.into());
    }

    /// Keeps half of the samples, evenly: of those that get too close the last, which is what came of it.
    fn thin(&mut self, end: u64) {
        let first = self.at.first().copied().unwrap_or_default();
        self.gap = (end.saturating_sub(first) / (SAMPLES_MAX as u64 / 2)).max(self.gap.saturating_mul(2)).max(1);
        let old = std::mem::replace(self, Self { gap: self.gap, ..Self::default() });
        for (at, counts) in old.at.into_iter().zip(old.counts) {
            let more = self.at.len() > 1;
            match (self.at.last(), self.counts.last_mut()) {
                (Some(&last), Some(row)) if more && at < last.saturating_add(self.gap) => *row = counts,
                _ => {
                    self.at.push(at);
                    self.counts.push(counts);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Cause = Cause { plugin: "Capacity", code: "InsufficientCapacity" };

    fn at(ms: u64) -> Moment {
        Moment { ms, step: ms * 10 }
    }

    #[test]
    fn a_run_waits_for_one_thing_at_a_time_until_it_is_placed() {
        let mut history = History::default();
        history.add(true, false);
        history.add(true, false);
        history.add(false, true);
        history.sample(at(0));
        history.waits(0, FULL);
        history.sample(at(1));
        history.waits(0, FULL);
        history.sample(at(2));
        history.placed(1, at(3));
        history.ended(2, at(3));
        history.sample(at(3));
        history.placed(0, at(4));
        history.sample(at(4));
        let rows: Vec<(u64, &[u32])> = history.by_time.at.iter().copied().zip(history.by_time.counts.iter().map(|row| &**row)).collect();
        assert_eq!(rows, [(0, &[2][..]), (1, &[1, 1]), (3, &[0, 1]), (4, &[0, 0])]);
        assert_eq!(history.by_step.at, [0, 10, 30, 40]);
        assert_eq!(history.causes, [Cause::QUEUED, FULL]);
        assert_eq!(history.spans[0].cause, Some(1), "what it waited for last is remembered");
        assert!(history.spans[2].held && history.spans[2].ended == Some(at(3)));
    }

    #[test]
    fn what_happens_in_one_instant_is_one_sample_and_the_last_word_counts() {
        let mut samples = Samples::default();
        for count in [5, 3, 1] {
            samples.push(7, &[count]);
        }
        assert_eq!((samples.at.as_slice(), &*samples.counts[0]), (&[7][..], &[1][..]));
    }

    #[test]
    fn samples_are_bounded_evenly_spread_and_end_with_the_last_state() {
        for spacing in [1, 1_000] {
            let mut samples = Samples::default();
            for i in 0..100_000u64 {
                samples.push(i * spacing, &[u32::try_from(i).unwrap_or_default()]);
            }
            let n = samples.at.len();
            assert!((SAMPLES_MAX / 4..=SAMPLES_MAX).contains(&n), "{n}");
            assert!(samples.at.is_sorted() && samples.at[0] == 0);
            assert_eq!((&*samples.counts[0], &*samples.counts[n - 1]), (&[0][..], &[99_999][..]));
            let widest = samples.at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            assert!(widest <= 100_000 * spacing / (n as u64) * 3, "{widest} of {n}");
        }
    }
}
