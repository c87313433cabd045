//! N workers on one queue, until cancelled.

use super::WorkQueue;
use futures::FutureExt;
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What becomes of a key after it was worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Succeeded: its failures are forgotten; it comes back when it is added.
    Done,
    /// Succeeded, and wants to be looked at again after that time at the latest.
    After(Duration),
    /// Failed: again after its backoff.
    Retry,
}

/// Works on keys, at most `workers` at once (at least 1), until `stop` is cancelled. Then what is being worked on is
/// finished, nothing new is begun, and the future ends. A `work` that panics counts as failed.
pub async fn run_workers<K, F>(queue: &WorkQueue<K>, workers: usize, stop: CancellationToken, work: impl Fn(K) -> F)
where
    K: Clone + Eq + Hash + Debug,
    F: Future<Output = Next>,
{
    let worker = || async {
        while let Some(key) = queue.next().await {
            let outcome = match AssertUnwindSafe(async { work(key.clone()).await }).catch_unwind().await {
                Ok(outcome) => outcome,
                Err(_) => {
                    tracing::error!(queue = queue.name(), key = ?*key, "worker panicked");
                    Next::Retry
                }
            };
            match outcome {
                Next::Done => queue.forget(&key),
                Next::After(delay) => {
                    queue.forget(&key);
                    queue.add_after(key.clone(), delay);
                }
                Next::Retry => queue.retry(key.clone()),
            }
        }
    };
    let stopper = async {
        stop.cancelled().await;
        queue.shut_down();
    };
    futures::join!(stopper, futures::future::join_all((0..workers.max(1)).map(|_| worker())));
}
