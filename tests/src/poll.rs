//! Waiting for a condition with a deadline: the only way a suite waits.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a suite waits for what should come within moments; generous, because a laden machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks `probe` until it answers `Some`, at most `limit`. `what` is what was awaited, for the message.
///
/// An error of the probe counts as "not yet"; the last one is part of the message.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let last = match probe().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if start.elapsed() > limit {
            match last {
                Some(error) => bail!("gave up on {what} after {limit:?}: {error:#}"),
                None => bail!("gave up on {what} after {limit:?}"),
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Requires that `probe` stays true for all of `span`: for what must not happen.
pub async fn stays<F, Fut>(what: &str, span: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let start = Instant::now();
    while start.elapsed() < span {
        if !probe().await? {
            bail!("{what} did not stay so: it changed after {:?}", start.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
