//! What stands before every send: open until the local deadline, and not one moment longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Refused: we do not lead, or not any more, or not in the term that the decision was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the leader")]
pub struct NotLeader;

/// Says whether we lead at this very moment. Cheap (a clock and two loads); clones are one fence.
///
/// It compares the clock with the deadline of the last confirmed renewal by itself. Nothing has to run for it to close.
#[derive(Clone, Debug)]
pub struct Fence {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    origin: Instant,
    /// Open before that many ns after `origin`: 0 is closed, MAX is for ever.
    until_ns: AtomicU64,
    /// The current or last term.
    epoch: AtomicU64,
    /// The last term that was admitted.
    admitted: AtomicU64,
    in_flight: AtomicU64,
    crossed: AtomicU64,
}

const FOR_EVER: u64 = u64::MAX;
const NO_TERM: u64 = u64::MAX;

impl Fence {
    /// A fence that an election opens and closes.
    pub fn closed() -> Self {
        Self::with(0, NO_TERM)
    }

    /// A fence that is always open, epoch 0: for a process that runs without an election.
    pub fn unguarded() -> Self {
        Self::with(FOR_EVER, 0)
    }

    fn with(until_ns: u64, admitted: u64) -> Self {
        let shared =
            Shared { origin: Instant::now(), until_ns: until_ns.into(), epoch: 0.into(), admitted: admitted.into(), in_flight: 0.into(), crossed: 0.into() };
        Self { shared: Arc::new(shared) }
    }

    /// Whether we lead now.
    ///
    /// # Errors
    /// We don't, or the deadline has passed.
    pub fn check(&self) -> Result<(), NotLeader> {
        let until_ns = self.shared.until_ns.load(Ordering::Acquire);
        if until_ns == FOR_EVER || self.now_ns() < until_ns { Ok(()) } else { Err(NotLeader) }
    }

    /// The term we lead in now: what a decision is stamped with when it is made.
    ///
    /// # Errors
    /// We don't lead.
    pub fn epoch(&self) -> Result<u64, NotLeader> {
        self.check().map(|()| self.shared.epoch.load(Ordering::Acquire))
    }

    /// Says that the caches have been listed in term `epoch`: from now on decisions of it may be made.
    pub fn admit(&self, epoch: u64) {
        self.shared.admitted.store(epoch, Ordering::Release);
    }

    /// The term that decisions may be made in now: we lead, and it was [admitted](Fence::admit).
    ///
    /// # Errors
    /// We don't lead, or have not listed yet.
    pub fn admitted(&self) -> Result<u64, NotLeader> {
        self.epoch().and_then(|epoch| if self.shared.admitted.load(Ordering::Acquire) == epoch { Ok(epoch) } else { Err(NotLeader) })
    }

    /// Begins a send of something that was decided in term `epoch`. Keep the answer until the send has ended: one that is in
    /// flight when the term ends is counted ([`Fence::crossed`]), since the next leader may already be at work.
    ///
    /// # Errors
    /// We don't lead, or in another term: what was decided then is void, others have led in between.
    pub fn begin(&self, epoch: u64) -> Result<Sending, NotLeader> {
        // A new term's epoch is stored before its deadline: who sees the deadline sees the epoch.
        if self.epoch()? != epoch {
            return Err(NotLeader);
        }
        Ok(self.sending(epoch))
    }

    /// Begins a send that was decided just now.
    ///
    /// # Errors
    /// We don't lead.
    pub fn begin_now(&self) -> Result<Sending, NotLeader> {
        Ok(self.sending(self.epoch()?))
    }

    fn sending(&self, epoch: u64) -> Sending {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        Sending { fence: self.clone(), epoch }
    }

    /// Sends in flight.
    pub fn in_flight(&self) -> u64 {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Sends that were in flight when their term ended, so far.
    pub fn crossed(&self) -> u64 {
        self.shared.crossed.load(Ordering::Relaxed)
    }

    /// Opens, or keeps open, for term `epoch` until `deadline`.
    pub(super) fn open(&self, epoch: u64, deadline: Instant) {
        self.shared.epoch.store(epoch, Ordering::Release);
        let until = deadline.saturating_duration_since(self.shared.origin);
        self.shared.until_ns.store(ns(until).min(FOR_EVER - 1), Ordering::Release);
    }

    /// Closes.
    pub(super) fn close(&self) {
        self.shared.until_ns.store(0, Ordering::Release);
    }

    fn now_ns(&self) -> u64 {
        ns(self.shared.origin.elapsed())
    }
}

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(FOR_EVER - 1)
}

/// A send under way; drop it when the send has ended.
#[derive(Debug)]
#[must_use = "the send is over when this is dropped"]
pub struct Sending {
    fence: Fence,
    epoch: u64,
}

impl Drop for Sending {
    fn drop(&mut self) {
        let shared = &self.fence.shared;
        shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.fence.epoch() != Ok(self.epoch) {
            shared.crossed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_closes_by_itself_at_the_deadline() {
        let fence = Fence::closed();
        assert_eq!(fence.check(), Err(NotLeader));
        fence.open(1, Instant::now() + 2 * SECOND);
        tokio::time::advance(2 * SECOND - Duration::from_nanos(1)).await;
        assert_eq!((fence.check(), fence.epoch()), (Ok(()), Ok(1)));
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert_eq!(fence.check(), Err(NotLeader));
        fence.open(1, Instant::now() + SECOND);
        assert_eq!(fence.check(), Ok(()));
        fence.close();
        assert_eq!(fence.check(), Err(NotLeader));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_decided_in_another_term_is_not_sent() {
        let fence = Fence::closed();
        fence.open(1, Instant::now() + SECOND);
        assert!(fence.begin(1).is_ok());
        fence.close();
        fence.open(2, Instant::now() + SECOND);
        assert_eq!(fence.begin(1).err(), Some(NotLeader));
        assert!(fence.begin(2).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_wait_until_their_term_is_admitted() {
        let fence = Fence::closed();
        fence.open(1, Instant::now() + SECOND);
        assert_eq!(fence.admitted(), Err(NotLeader));
        fence.admit(1);
        assert_eq!(fence.admitted(), Ok(1));
        tokio::time::advance(SECOND).await;
        assert_eq!(fence.admitted(), Err(NotLeader));
        fence.open(2, Instant::now() + SECOND);
        assert_eq!(fence.admitted(), Err(NotLeader), "of another term");
    }

    #[tokio::test(start_paused = true)]
    async fn a_send_in_flight_at_the_end_of_its_term_is_counted() {
        let fence = Fence::closed();
        let open = |epoch| fence.open(epoch, Instant::now() + SECOND);
        open(1);
        drop(fence.begin(1).unwrap());
        let renewed = fence.begin(1).unwrap();
        tokio::time::advance(SECOND / 2).await;
        open(1);
        tokio::time::advance(SECOND / 2).await;
        drop(renewed);
        assert_eq!((fence.crossed(), fence.in_flight()), (0, 0), "the deadline moved on meanwhile");
        let late = fence.begin(1).unwrap();
        let lost = fence.begin_now().unwrap();
        assert_eq!(fence.in_flight(), 2);
        tokio::time::advance(SECOND).await;
        drop(late);
        assert_eq!(fence.crossed(), 1);
        open(2);
        drop(lost);
        assert_eq!(fence.crossed(), 2, "another term is no excuse");
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_election_it_is_open() {
        let fence = Fence::unguarded();
        tokio::time::advance(1_000_000 * SECOND).await;
        assert_eq!((fence.epoch(), fence.admitted()), (Ok(0), Ok(0)));
        drop(fence.begin(0).unwrap());
        assert_eq!(fence.crossed(), 0);
    }
}
