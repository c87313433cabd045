//! THE answer to "is this Pod available?", for the plugin, the binder and the lifecycle alike.
//!
//! Rule: decisions, "RuntimeReady". Pure integer arithmetic on two clocks that the caller hands in: wall time, in which
//! the agent dates its heartbeat, and monotonic time, in which we measure how long ago we saw something.

use k8s_openapi::api::core::v1::Pod;

use crate::constants::{HEARTBEAT_FRESH_MS, LABEL_RUNTIME, POD_CONDITION_RUNTIMED_READY, reason};

/// The present on both clocks, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the Unix epoch.
    pub wall_ms: i64,
    /// Since any fixed moment; never goes back.
    pub mono_ms: u64,
}

/// What we know about the heartbeat of one Pod (one UID).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// `lastProbeTime` of the condition, by the agent's clock, in milliseconds since the Unix epoch.
    pub probe_time_ms: i64,
    /// When we first saw this probe time, monotonic.
    pub first_seen_mono_ms: u64,
    /// When we saw the probe time change to this one, monotonic; first sight of a Pod is no change.
    pub changed_seen_mono_ms: Option<u64>,
}

impl Heartbeat {
    /// Folds a probe time that was just read into what was known of the same Pod.
    pub fn observe(previous: Option<Self>, probe_time_ms: i64, now: Now) -> Self {
        match previous {
            Some(same) if same.probe_time_ms == probe_time_ms => same,
            Some(_) => Self { probe_time_ms, first_seen_mono_ms: now.mono_ms, changed_seen_mono_ms: Some(now.mono_ms) },
            None => Self { probe_time_ms, first_seen_mono_ms: now.mono_ms, changed_seen_mono_ms: None },
        }
    }

    /// The last monotonic instant, inclusive, at which this heartbeat is fresh; `None` if it is stale already.
    ///
    /// Fresh is a probe time of which we saw the change at most 15 s ago, or that is at most 15 s old by our clock and
    /// that we have not been looking at for more than 15 s. The latter limits a time in the future, and
    /// for a time in the past it changes nothing.
    pub fn fresh_until(&self, now: Now) -> Option<u64> {
        let limit_ms = HEARTBEAT_FRESH_MS.unsigned_abs();
        let by_change = self.changed_seen_mono_ms.map(|seen| seen.saturating_add(limit_ms));
        // What remains of the 15 s by our clock; beyond 64 bits only for absurd times, hence i128.
        let remaining_ms = i128::from(self.probe_time_ms) + i128::from(HEARTBEAT_FRESH_MS) - i128::from(now.wall_ms);
        let by_clock = u64::try_from(remaining_ms.min(i128::from(HEARTBEAT_FRESH_MS)))
            .ok()
            .map(|remaining| now.mono_ms.saturating_add(remaining).min(self.first_seen_mono_ms.saturating_add(limit_ms)));
        by_change.max(by_clock).filter(|until| *until >= now.mono_ms)
    }
}

/// What a Pod object says of its availability by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodSigns {
    /// `status.phase` is Running.
    pub running: bool,
    /// Condition Ready is True.
    pub ready: bool,
    /// Has a `deletionTimestamp`.
    pub terminating: bool,
    /// Condition `kruntimes.io/RuntimedReady` is True, and dated.
    pub heartbeat_true: bool,
    /// That condition is False with reason `Cordoned`: the agent lives and goes on with its Runs, and takes no others.
    pub cordoned: bool,
    /// Its `lastProbeTime`, milliseconds since the Unix epoch.
    pub probe_time_ms: Option<i64>,
}

impl PodSigns {
    /// Reads a Pod.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let condition = |kind: &str| status.and_then(|status| status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind));
        let beat = condition(POD_CONDITION_RUNTIMED_READY);
        Self {
            running: status.and_then(|status| status.phase.as_deref()) == Some("Running"),
            ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            heartbeat_true: beat.is_some_and(|beat| beat.status == "True" && beat.last_probe_time.is_some()),
            cordoned: beat.is_some_and(|beat| beat.status == "False" && beat.reason.as_deref() == Some(reason::CORDONED)),
            probe_time_ms: beat.and_then(|beat| beat.last_probe_time.as_ref()).map(|probe| probe.0.as_millisecond()),
        }
    }
}

/// Everything about a Pod that availability depends on, besides the Runtime it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// `status.phase` is Running.
    pub running: bool,
    /// Condition Ready is True.
    pub ready: bool,
    /// Has a `deletionTimestamp`.
    pub terminating: bool,
    /// Condition `kruntimes.io/RuntimedReady` is True.
    pub heartbeat_true: bool,
    /// Its `lastProbeTime`, remembered also while the condition is not True.
    pub heartbeat: Option<Heartbeat>,
}

impl PodFacts {
    /// Reads a Pod; `previous` is what was known of the Pod of the same UID.
    pub fn observe(previous: Option<&Self>, pod: &Pod, now: Now) -> Self {
        Self::fold(previous, PodSigns::of(pod), now)
    }

    /// The same from what was read of it.
    pub fn fold(previous: Option<&Self>, signs: PodSigns, now: Now) -> Self {
        let PodSigns { running, ready, terminating, heartbeat_true, probe_time_ms, .. } = signs;
        let remembered = previous.and_then(|facts| facts.heartbeat);
        let heartbeat = probe_time_ms.map_or(remembered, |probe| Some(Heartbeat::observe(remembered, probe, now)));
        Self { running, ready, terminating, heartbeat_true, heartbeat }
    }

    /// Whether the Pod is available, and until when.
    pub fn availability(&self, now: Now) -> Availability {
        let fixed = |verdict| Availability { verdict, stale_at_mono_ms: None };
        if self.terminating {
            return fixed(Verdict::Terminating);
        }
        if !self.running {
            return fixed(Verdict::NotRunning);
        }
        if !self.ready {
            return fixed(Verdict::NotReady);
        }
        let Some(heartbeat) = self.heartbeat.filter(|_| self.heartbeat_true) else {
            return fixed(Verdict::HeartbeatMissing);
        };
        match heartbeat.fresh_until(now) {
            Some(until) => Availability { verdict: Verdict::Ready, stale_at_mono_ms: Some(until.saturating_add(1)) },
            None => fixed(Verdict::HeartbeatStale),
        }
    }
}

/// The Runtime a Pod belongs to: its label `runtime` (reference §2). A Pod serves the Runs that name this Runtime.
pub fn runtime_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(LABEL_RUNTIME).map(String::as_str)
}

/// Why a Pod is or is not available; the first that applies, in the order terminating, not running, not ready,
/// heartbeat missing, heartbeat stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Available.
    Ready,
    /// Its phase is not Running.
    NotRunning,
    /// Its condition Ready is not True.
    NotReady,
    /// It is being deleted.
    Terminating,
    /// Its agent has not reported, or reports not to be ready.
    HeartbeatMissing,
    /// Its agent has fallen silent.
    HeartbeatStale,
}

/// A verdict and how long it lasts if nothing else is heard of the Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The verdict now.
    pub verdict: Verdict,
    /// For `Ready`: the first monotonic millisecond at which it becomes `HeartbeatStale`.
    pub stale_at_mono_ms: Option<u64>,
}

impl Availability {
    /// Available now.
    pub fn is_ready(&self) -> bool {
        self.verdict == Verdict::Ready
    }

    /// The same where no heartbeat is required: a missing or stale one is no obstacle, and none runs out.
    #[must_use]
    pub fn without_heartbeat(self) -> Self {
        let verdict = match self.verdict {
            Verdict::HeartbeatMissing | Verdict::HeartbeatStale => Verdict::Ready,
            verdict => verdict,
        };
        Self { verdict, stale_at_mono_ms: None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::json;

    use super::*;

    const WALL: i64 = 1_700_000_000_000;
    const MONO: u64 = 500_000;

    fn now(elapsed_ms: u64) -> Now {
        Now { wall_ms: WALL + i64::try_from(elapsed_ms).unwrap(), mono_ms: MONO + elapsed_ms }
    }

    /// The last millisecond after `now(0)` at which the heartbeat is fresh, found by trying, and checked against
    /// what was promised.
    fn fresh_for(heartbeat: Heartbeat) -> Option<u64> {
        let promised = heartbeat.fresh_until(now(0)).map(|until| until - MONO);
        let tried = (0..=60_000).take_while(|elapsed| heartbeat.fresh_until(now(*elapsed)).is_some()).last();
        assert_eq!(promised, tried);
        tried
    }

    #[test]
    fn at_first_sight_our_clock_decides() {
        for (age_ms, expected) in [
            (0, Some(15_000)),
            (1, Some(14_999)),
            (15_000, Some(0)),
            (15_001, None),
            (3_600_000, None),
            // the future counts for 15 s
            (-1, Some(15_000)),
            (-10_000, Some(15_000)),
            (-3_600_000, Some(15_000)),
            (i64::MIN / 2, Some(15_000)),
        ] {
            let heartbeat = Heartbeat::observe(None, WALL.saturating_sub(age_ms), now(0));
            assert_eq!(fresh_for(heartbeat), expected, "age {age_ms} ms");
        }
    }

    #[test]
    fn a_time_in_the_future_is_not_fresh_again_when_its_hour_comes() {
        let heartbeat = Heartbeat::observe(None, WALL + 3_600_000, now(0));
        assert!(heartbeat.fresh_until(now(15_000)).is_some());
        assert!(heartbeat.fresh_until(now(15_001)).is_none());
        assert!(heartbeat.fresh_until(now(3_600_000)).is_none());
    }

    #[test]
    fn a_change_that_we_saw_counts_for_15_s_however_wrong_the_clock() {
        for skew_ms in [-3_600_000, -20_000, 0, 20_000, 3_600_000] {
            let first = Heartbeat::observe(None, WALL - 60_000 + skew_ms, now(0));
            let second = Heartbeat::observe(Some(first), WALL - 55_000 + skew_ms, now(0));
            assert_eq!(fresh_for(second), Some(15_000), "skew {skew_ms} ms");
            let again = Heartbeat::observe(Some(second), WALL - 55_000 + skew_ms, now(9_000));
            assert_eq!(again, second, "seeing the same time again changes nothing");
        }
    }

    #[test]
    fn absurd_times_neither_overflow_nor_stay_fresh() {
        for probe in [i64::MIN, i64::MAX, 0] {
            let heartbeat = Heartbeat::observe(None, probe, now(0));
            assert!(heartbeat.fresh_until(now(15_001)).is_none(), "{probe}");
            let last = Now { wall_ms: i64::MAX, mono_ms: u64::MAX };
            let _ = Heartbeat::observe(None, probe, last).fresh_until(last);
            let first = Now { wall_ms: i64::MIN, mono_ms: 0 };
            let _ = Heartbeat::observe(None, probe, first).fresh_until(first);
        }
    }

    #[test]
    fn each_fact_has_its_verdict() {
        let pod = |phase: &str, ready: &str, beat: serde_json::Value, deleting: bool| -> Pod {
            let mut metadata = json!({"name": "p", "labels": {"runtime": "bash"}});
            if deleting {
                metadata["deletionTimestamp"] = json!("2023-11-14T22:13:20Z");
            }
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": ready}, beat,
            ]}}))
            .unwrap()
        };
        let beat = |status: &str, time: &str| json!({"type": "kruntimes.io/RuntimedReady", "status": status, "lastProbeTime": time});
        let fresh = beat("True", "2023-11-14T22:13:20Z"); // WALL
        let old = beat("True", "2023-11-14T22:13:04Z");
        let rows = [
            (pod("Running", "True", fresh.clone(), false), Verdict::Ready),
            (pod("Pending", "True", fresh.clone(), false), Verdict::NotRunning),
            (pod("Running", "False", fresh.clone(), false), Verdict::NotReady),
            (pod("Running", "True", fresh.clone(), true), Verdict::Terminating),
            (pod("Running", "True", beat("False", "2023-11-14T22:13:20Z"), false), Verdict::HeartbeatMissing),
            (pod("Running", "True", json!({"type": "Other", "status": "True"}), false), Verdict::HeartbeatMissing),
            (pod("Running", "True", json!({"type": "kruntimes.io/RuntimedReady", "status": "True"}), false), Verdict::HeartbeatMissing),
            (pod("Running", "True", old, false), Verdict::HeartbeatStale),
            (Pod::default(), Verdict::NotRunning),
        ];
        for (pod, verdict) in rows {
            let availability = PodFacts::observe(None, &pod, now(0)).availability(now(0));
            assert_eq!(availability.verdict, verdict);
            assert_eq!(availability.stale_at_mono_ms, (verdict == Verdict::Ready).then_some(MONO + 15_001));
            let waived = availability.without_heartbeat();
            let by_heartbeat = matches!(verdict, Verdict::HeartbeatMissing | Verdict::HeartbeatStale);
            assert_eq!((waived.verdict, waived.stale_at_mono_ms), (if by_heartbeat { Verdict::Ready } else { verdict }, None));
        }
        assert_eq!(runtime_of(&pod("Running", "True", fresh, false)), Some("bash"));
    }
}
