//! What every controller of Berth runs on: informers, keyed workqueues, API calls with time-outs, Events, shutdown.
//!
//! | module | what it gives |
//! |---|---|
//! | [`apiclient`] | a Kubernetes client whose every request has a time-out and is reported, errors that say whether a write may have happened |
//! | [`informer`] | one watch per kind; a shared store; relists turned into explicit deletes; ordered deltas |
//! | [`workqueue`] | keyed, coalescing, with a backoff per key and delayed adds |
//! | [`events`] | Kubernetes Events, aggregated and off the critical path |
//! | [`lease`] | leader election on one Lease, and the fence that stands before every send of a leader |
//! | [`shutdown`] | tasks in ordered groups |

pub mod apiclient;
pub mod backoff;
pub mod clock;
pub mod events;
pub mod informer;
pub mod key;
pub mod lease;
pub mod shutdown;
pub mod workqueue;

pub use clock::{Clock, ServerTime, SystemClock};
pub use key::ObjectKey;

/// Locks `mutex`; a lock poisoned by a panicked holder is taken over, since every critical section here leaves its
/// data whole between two statements that can panic.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
