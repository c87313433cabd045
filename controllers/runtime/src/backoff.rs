//! Exponential delays with jitter: for reads, watches and keys of a workqueue.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Delay number `n` (from 0) is `min · 2^n`, at most `max`, and up to `jitter_percent` less, at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub min: Duration,
    /// No delay is longer.
    pub max: Duration,
    /// How much of a delay may be taken off at random, 0..=100.
    pub jitter_percent: u8,
}

impl Backoff {
    /// A workqueue's keys: 1 s … 10 s, exact (decisions "Queue": errors and conflicts back off 1 s … 10 s).
    pub const KEYS: Self = Self { min: Duration::from_secs(1), max: Duration::from_secs(10), jitter_percent: 0 };
    /// A read that failed for lack of an answer: 100 ms … 2 s.
    pub const READS: Self = Self { min: Duration::from_millis(100), max: Duration::from_secs(2), jitter_percent: 50 };
    /// A watch that broke: 200 ms … 10 s. Short, since everything waits for it after an API server restart.
    pub const WATCHES: Self = Self { min: Duration::from_millis(200), max: Duration::from_secs(10), jitter_percent: 50 };

    /// The delay after `failures` earlier failures (0 for the first). No overflow for any input.
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        let full = self.min.checked_mul(factor).map_or(self.max, |delay| delay.min(self.max));
        if self.jitter_percent == 0 {
            return full;
        }
        let cut = u128::from(self.jitter_percent.min(100)) * u128::from(random() % 1_001);
        let off_ns = full.as_nanos() * cut / 100_000;
        full.saturating_sub(Duration::from_nanos(u64::try_from(off_ns).unwrap_or(u64::MAX)))
    }
}

/// A number that differs from process to process and call to call. Good enough to spread retries; not for secrets.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_for_any_number_of_failures() {
        let delays: Vec<u64> = [0, 1, 2, 3, 4, 31, 32, u32::MAX].iter().map(|n| Backoff::KEYS.delay(*n).as_millis() as u64).collect();
        assert_eq!(delays, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000, 10_000]);
    }

    #[test]
    fn jitter_only_shortens_and_at_most_by_its_percentage() {
        for n in 0..200 {
            let delay = Backoff::WATCHES.delay(n % 8);
            let full = Duration::from_millis(200 << (n % 8)).min(Duration::from_secs(10));
            assert!(delay <= full && delay >= full / 2, "{delay:?} of {full:?}");
        }
    }
}
