//! Where controllers get the time from, so that tests can hold it.

use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Two clocks. Durations are measured on the monotonic one; the wall clock is only for times that come from or go to the wire.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since an arbitrary start; never goes back.
    fn monotonic_ms(&self) -> i64;
    /// Milliseconds since the Unix epoch; may jump.
    fn wall_ms(&self) -> i64;
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
    fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn wall_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        }
    }
}
