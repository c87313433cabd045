//! THE answer to "is the agent of this Pod lost?", for whoever takes Runs away from Pods.
//!
//! Rule: reference §3.9 (not ready, or without a heartbeat, for more than 30 s), by our own watching alone. Placement may be wrong about a Pod for a
//! moment, and a Run then goes elsewhere; whoever ends a Run must not be. So no clock of an agent or node counts, and what was
//! not watched for 30 s is not lost: a controller that starts, or a skewed clock, kills nothing.

use crate::constants::HEARTBEAT_LOST_MS;
use crate::runtime_ready::{Now, PodSigns};

/// What was seen of one Pod (one UID), as far as signs of life go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// When it last showed that it lives, monotonic: at first sight, with each new heartbeat while it was Ready, and at the moment it
    /// ceased to be.
    last_sign_mono_ms: u64,
    /// It was Ready and its heartbeat condition True.
    well: bool,
    /// `lastProbeTime` of the heartbeat.
    probe_time_ms: Option<i64>,
}

impl Liveness {
    /// Folds what was just read of a Pod into what was known of it.
    pub fn observe(previous: Option<Self>, signs: PodSigns, now: Now) -> Self {
        let PodSigns { ready, heartbeat_true, probe_time_ms, .. } = signs;
        let well = ready && heartbeat_true;
        let is_sign = match previous {
            None => true,
            Some(previous) if well => !previous.well || previous.probe_time_ms != probe_time_ms,
            Some(previous) => previous.well,
        };
        let last_sign_mono_ms = previous.filter(|_| !is_sign).map_or(now.mono_ms, |previous| previous.last_sign_mono_ms);
        Self { last_sign_mono_ms, well, probe_time_ms }
    }

    /// The first monotonic millisecond at which it is lost if nothing more is seen of it.
    pub fn lost_at_mono_ms(self) -> u64 {
        self.last_sign_mono_ms.saturating_add(HEARTBEAT_LOST_MS.unsigned_abs() + 1)
    }

    /// Whether nothing has been seen of it for more than 30 s.
    pub fn is_lost(self, now: Now) -> bool {
        now.mono_ms >= self.lost_at_mono_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After `elapsed` ms; the wall clock says anything.
    fn now(elapsed: u64) -> Now {
        Now { wall_ms: 7, mono_ms: 1_000 + elapsed }
    }

    fn signs(ready: bool, heartbeat_true: bool, probe_time_ms: Option<i64>) -> PodSigns {
        PodSigns { running: true, ready, terminating: false, heartbeat_true, probe_time_ms }
    }

    /// When a Pod is lost that was observed like this: at, ready, heartbeat True, its time.
    fn lost_after(seen: &[(u64, bool, bool, Option<i64>)]) -> u64 {
        let mut known = None;
        for (at, ready, beats, probe) in seen {
            known = Some(Liveness::observe(known, signs(*ready, *beats, *probe), now(*at)));
        }
        let lost = known.map_or(0, Liveness::lost_at_mono_ms);
        assert!(known.is_some_and(|known| known.is_lost(Now { wall_ms: 0, mono_ms: lost }) && !known.is_lost(Now { wall_ms: 0, mono_ms: lost - 1 })));
        lost - 1_000
    }

    #[test]
    fn thirty_seconds_after_the_last_sign_whatever_the_clocks_say() {
        for (row, seen, lost) in [
            ("first sight, however old", vec![(0, true, true, Some(-99_999_999))], 30_001),
            ("a heartbeat", vec![(0, true, true, Some(0)), (5_000, true, true, Some(5_000))], 35_001),
            ("of a clock that goes backwards", vec![(0, true, true, Some(0)), (5_000, true, true, Some(-1))], 35_001),
            ("the same one again is none", vec![(0, true, true, Some(0)), (5_000, true, true, Some(0))], 30_001),
            ("not ready from the start", vec![(0, false, true, Some(0)), (5_000, false, true, Some(5_000))], 30_001),
            ("not ready any more: from then on", vec![(0, true, true, Some(0)), (4_000, false, true, Some(0)), (5_000, false, true, Some(5_000))], 34_001),
            ("not ready for a while", vec![(0, true, true, Some(0)), (4_000, false, true, Some(0)), (20_000, true, true, Some(0))], 50_001),
            ("the heartbeat says no", vec![(0, true, true, Some(0)), (6_000, true, false, Some(6_000)), (12_000, true, false, Some(12_000))], 36_001),
            ("the condition is gone", vec![(0, true, true, Some(0)), (6_000, true, false, None)], 36_001),
            ("never had an agent", vec![(0, true, false, None), (9_000, true, false, None)], 30_001),
            ("an agent came", vec![(0, true, false, None), (9_000, true, true, Some(0))], 39_001),
        ] {
            assert_eq!(lost_after(&seen), lost, "{row}");
        }
    }

    #[test]
    fn no_time_overflows() {
        let late = Now { wall_ms: i64::MAX, mono_ms: u64::MAX };
        let seen = Liveness::observe(None, signs(true, true, Some(i64::MIN)), late);
        assert_eq!(seen.lost_at_mono_ms(), u64::MAX);
    }
}
