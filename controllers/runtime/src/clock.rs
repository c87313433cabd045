//! Where controllers get the time from, so that tests can hold it.

use berth_api::runtime_ready::Now;
use std::time::{SystemTime, UNIX_EPOCH};
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
