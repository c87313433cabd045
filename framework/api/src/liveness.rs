//! THE answer to "is the agent of this Pod lost?", for whoever takes Runs away from Pods.
//!
//! Rule: reference §3.9 (not ready, or without a heartbeat, for more than 30 s), by our own watching alone; a heartbeat that says
//! "Cordoned" is one (ADR 0044). Placement may be wrong about a Pod for a
//! moment, and a Run then goes elsewhere; whoever ends a Run must not be. So no clock of an agent or node counts, and what was
//! not watched for 30 s is not lost: a controller that starts, or a skewed clock, kills nothing.

use crate::constants::HEARTBEAT_LOST_MS;
use crate::runtime_ready::{Now, PodSigns};

/// What was seen of one Pod (one UID), as far as signs of life go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// When it last showed that it takes Runs, monotonic: at first sight, with each new heartbeat while it was Ready, and at the moment it
    /// ceased to be.
    last_sign_mono_ms: u64,
    /// When it last showed that it lives: then, and with each new heartbeat that says that it goes on with the Runs it has.
    last_voice_mono_ms: u64,
    /// It was Ready and its heartbeat condition True.
    well: bool,
    /// It was Ready and its heartbeat said that it takes Runs, or that it goes on with those it has.
    lives: bool,
    /// `lastProbeTime` of the heartbeat.
    probe_time_ms: Option<i64>,
}

/// What is to be made of what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It takes Runs, or did until a moment ago.
    Well,
    /// It lives, and has taken no further Runs for more than 30 s.
    Cordoned,
    /// Nothing has been heard of it for more than 30 s.
    Lost,
}

impl Liveness {
    /// Folds what was just read of a Pod into what was known of it.
    pub fn observe(previous: Option<Self>, signs: PodSigns, now: Now) -> Self {
        let PodSigns { ready, heartbeat_true, cordoned, probe_time_ms, .. } = signs;
        let (well, lives) = (ready && heartbeat_true, ready && (heartbeat_true || cordoned));
        let Some(previous) = previous else {
            return Self { last_sign_mono_ms: now.mono_ms, last_voice_mono_ms: now.mono_ms, well, lives, probe_time_ms };
        };
        let has_beaten = previous.probe_time_ms != probe_time_ms;
        // A sign is a new heartbeat while it holds, and the moment at which it comes or goes.
        let last = |is: bool, was: bool, last_ms: u64| if is != was || (is && has_beaten) { now.mono_ms } else { last_ms };
        let last_sign_mono_ms = last(well, previous.well, previous.last_sign_mono_ms);
        let last_voice_mono_ms = last(lives, previous.lives, previous.last_voice_mono_ms).max(last_sign_mono_ms);
        Self { last_sign_mono_ms, last_voice_mono_ms, well, lives, probe_time_ms }
    }

    /// What it is now.
    pub fn life(self, now: Now) -> Life {
        match now.mono_ms {
            now if now >= over(self.last_voice_mono_ms) => Life::Lost,
            now if now >= over(self.last_sign_mono_ms) => Life::Cordoned,
            _ => Life::Well,
        }
    }

    /// The first monotonic millisecond at which it becomes worse if nothing more is seen of it; None if it is lost.
    pub fn worse_at_mono_ms(self, now: Now) -> Option<u64> {
        match self.life(now) {
            Life::Well => Some(over(self.last_sign_mono_ms)),
            Life::Cordoned => Some(over(self.last_voice_mono_ms)),
            Life::Lost => None,
        }
    }
}

/// The first millisecond that is more than 30 s after that one.
fn over(since_mono_ms: u64) -> u64 {
    since_mono_ms.saturating_add(HEARTBEAT_LOST_MS.unsigned_abs() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After `elapsed` ms; the wall clock says anything.
    fn now(elapsed: u64) -> Now {
        Now { wall_ms: 7, mono_ms: 1_000 + elapsed }
    }

    fn signs(ready: bool, heartbeat: &str, probe_time_ms: Option<i64>) -> PodSigns {
        PodSigns { running: true, ready, terminating: false, heartbeat_true: heartbeat == "yes", cordoned: heartbeat == "cordoned", probe_time_ms }
    }

    /// When a Pod is cordoned, and when lost, that was observed like this: at, ready, what its heartbeat says, its time.
    fn worse_after(seen: &[(u64, bool, &str, Option<i64>)]) -> (Option<u64>, u64) {
        let mut known = None;
        for (at, ready, beats, probe) in seen {
            known = Some(Liveness::observe(known, signs(*ready, beats, *probe), now(*at)));
        }
        let life = |elapsed| known.map(|known| known.life(now(elapsed)));
        let first = |wanted| (0..90_000).find(|elapsed| life(*elapsed) == Some(wanted));
        let (cordoned, lost) = (first(Life::Cordoned), first(Life::Lost));
        let promised = |elapsed| known.and_then(|known| known.worse_at_mono_ms(now(elapsed)));
        let next = cordoned.or(lost).map(|at| at + 1_000);
        assert_eq!((promised(0), promised(89_999)), (next, None));
        assert_eq!(cordoned.and_then(promised), cordoned.and(lost).map(|at| at + 1_000));
        (cordoned, lost.unwrap_or_default())
    }

    #[test]
    fn thirty_seconds_after_the_last_sign_whatever_the_clocks_say() {
        for (row, seen, cordoned, lost) in [
            ("first sight, however old", vec![(0, true, "yes", Some(-99_999_999))], None, 30_001),
            ("a heartbeat", vec![(0, true, "yes", Some(0)), (5_000, true, "yes", Some(5_000))], None, 35_001),
            ("of a clock that goes backwards", vec![(0, true, "yes", Some(0)), (5_000, true, "yes", Some(-1))], None, 35_001),
            ("the same one again is none", vec![(0, true, "yes", Some(0)), (5_000, true, "yes", Some(0))], None, 30_001),
            ("not ready from the start", vec![(0, false, "yes", Some(0)), (5_000, false, "yes", Some(5_000))], None, 30_001),
            (
                "not ready any more: from then on",
                vec![(0, true, "yes", Some(0)), (4_000, false, "yes", Some(0)), (5_000, false, "yes", Some(5_000))],
                None,
                34_001,
            ),
            ("not ready for a while", vec![(0, true, "yes", Some(0)), (4_000, false, "yes", Some(0)), (20_000, true, "yes", Some(0))], None, 50_001),
            ("the heartbeat says no", vec![(0, true, "yes", Some(0)), (6_000, true, "no", Some(6_000)), (12_000, true, "no", Some(12_000))], None, 36_001),
            (
                "cordoned",
                vec![(0, true, "yes", Some(0)), (6_000, true, "cordoned", Some(6_000)), (12_000, true, "cordoned", Some(12_000))],
                Some(36_001),
                42_001,
            ),
            (
                "cordoned, and not ready",
                vec![(0, true, "yes", Some(0)), (6_000, false, "cordoned", Some(6)), (12_000, false, "cordoned", Some(12))],
                None,
                36_001,
            ),
            (
                "cordoned, and then not ready",
                vec![(0, true, "cordoned", Some(0)), (5_000, true, "cordoned", Some(5)), (9_000, false, "cordoned", Some(5))],
                Some(30_001),
                39_001,
            ),
            ("cordoned, and silent", vec![(0, true, "yes", Some(0)), (6_000, true, "cordoned", Some(6)), (12_000, true, "cordoned", Some(6))], None, 36_001),
            ("cordoned for a while", vec![(0, true, "cordoned", Some(0)), (9_000, true, "cordoned", Some(9)), (20_000, true, "yes", Some(20))], None, 50_001),
            ("the condition is gone", vec![(0, true, "yes", Some(0)), (6_000, true, "no", None)], None, 36_001),
            ("never had an agent", vec![(0, true, "no", None), (9_000, true, "no", None)], None, 30_001),
            ("an agent came", vec![(0, true, "no", None), (9_000, true, "yes", Some(0))], None, 39_001),
        ] {
            assert_eq!(worse_after(&seen), (cordoned, lost), "{row}");
        }
    }

    #[test]
    fn no_time_overflows() {
        let late = Now { wall_ms: i64::MAX, mono_ms: u64::MAX };
        let seen = Liveness::observe(None, signs(true, "yes", Some(i64::MIN)), late);
        assert_eq!((seen.life(late), seen.worse_at_mono_ms(late)), (Life::Lost, None), "the end of time");
    }
}
