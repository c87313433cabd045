//! Where controllers get the time from, so that tests can hold it.

use crate::apiclient::{Call, CallObserver};
use berth_api::runtime_ready::Now;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The present on both clocks. Durations are measured on the monotonic one; the wall clock is only for times that come from or
/// go to the wire, and may jump.
pub trait Clock: Send + Sync + 'static {
    /// Both clocks, read together.
    fn now(&self) -> Now;
}

/// The machine's clocks. The monotonic one is tokio's, so that a paused runtime holds it.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic reading starts at 0 now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall_ms = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        Now { wall_ms, mono_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX) }
    }
}

/// The time of the API server, learnt from the dates of its answers: what deadlines and times to live are compared with, so that no controller's own
/// clock ends anybody's work. Right to a second; our own clock while nothing was learnt.
///
/// As a [`CallObserver`] it hands every report on to another one.
pub struct ServerTime {
    clock: Arc<dyn Clock>,
    inner: Arc<dyn CallObserver>,
    /// Server minus us.
    offset_ms: AtomicI64,
}

impl ServerTime {
    /// Learns from answers, and tells `inner` of them.
    pub fn new(clock: Arc<dyn Clock>, inner: Arc<dyn CallObserver>) -> Self {
        Self { clock, inner, offset_ms: AtomicI64::new(0) }
    }

    /// The server's time now.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.clock.now().wall_ms.saturating_add(self.offset_ms())).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// How far the server's clock is ahead of ours, in milliseconds.
    pub fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }
}

impl CallObserver for ServerTime {
    fn called(&self, call: &Call<'_>) {
        self.inner.called(call);
    }

    fn dated(&self, date: Timestamp, took: Duration) {
        // The server wrote its date, cut to seconds, at some moment of the call: its clock is now between that second and the next plus the call.
        let least = date.as_millisecond().saturating_sub(self.clock.now().wall_ms);
        let most = least.saturating_add(999).saturating_add(i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        let known = self.offset_ms();
        if !(least..=most).contains(&known) {
            self.offset_ms.store(known.clamp(least, most), Ordering::Relaxed);
        }
        self.inner.dated(date, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(i64);

    impl Clock for Fixed {
        fn now(&self) -> Now {
            Now { wall_ms: self.0, mono_ms: 0 }
        }
    }

    #[test]
    fn a_clock_that_is_right_is_left_alone_and_one_that_is_off_is_corrected() {
        // Our clock, the server's date, how long the call took; what we then take for its time.
        for (ours, date, took_ms, expected) in [
            (100_400, 100, 0, 100_400),
            (100_400, 100, 50, 100_400),
            (100_400, 99, 0, 99_999),
            (100_400, 99, 2_000, 100_400),
            (100_400, 101, 0, 101_000),
            (100_400, 4_000, 10, 4_000_000),
            (4_000_000, 100, 0, 100_999),
        ] {
            let time = ServerTime::new(Arc::new(Fixed(ours)), Arc::new(()));
            let date = Timestamp::from_second(date).unwrap_or_default();
            time.dated(date, Duration::from_millis(took_ms));
            assert_eq!(time.now().as_millisecond(), expected, "{ours} {date}");
            time.dated(date, Duration::from_millis(took_ms));
            assert_eq!(time.now().as_millisecond(), expected, "the same once more");
        }
    }
}
