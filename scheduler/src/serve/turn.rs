//! When this process may place: while it leads, and only after a list that was begun in that term.
//!
//! ```text
//!             leads (term e)                 listed anew in term e, and every delta of it taken in
//!  stands by ────────────────► catches up ───────────────────────────────────────────────────────► places in term e
//!      ▲                           │                                                                   │
//!      └───────────────────────────┴──────────────── leads no more, or in another term ◄───────────────┘
//! ```
//! The caches of a standby are warm, so that the list changes next to nothing; but only the list proves that they hold the last
//! writes of whoever led before (kubernetes#137308).

use berth_runtime::lease::{Fence, Leadership};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

/// Complete lists per informer: Runs, Pods, PersistentWorkspaces.
pub type Lists = [u64; 3];

/// Begins a list of every kind; answers how many lists each has then completed.
pub type Relist = Box<dyn Fn() -> BoxFuture<'static, Lists> + Send>;

/// What the owner must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Nothing new.
    Stay,
    /// Place, in this term.
    Start(u64),
    /// Place nothing any more.
    Stop,
}

/// See the module.
pub struct Turn {
    leadership: watch::Receiver<Leadership>,
    fence: Fence,
    relist: Relist,
    listing: Option<(u64, BoxFuture<'static, Lists>)>,
    listed: Option<(u64, Lists)>,
    placing: Option<u64>,
}

impl Turn {
    /// Follows an election. `relist` is called once per term.
    pub fn new(leadership: watch::Receiver<Leadership>, fence: Fence, relist: Relist) -> Self {
        Self { leadership, fence, relist, listing: None, listed: None, placing: None }
    }

    /// Without an election: leads for ever, once the first lists are complete.
    pub fn always() -> Self {
        let leads = Leadership::Leader { epoch: 0, deadline: Instant::now() };
        let relist: Relist = Box::new(|| Box::pin(std::future::ready([1; 3])));
        // The sender goes; what it sent stays.
        Self::new(watch::channel(leads).1, Fence::unguarded(), relist)
    }

    /// The term that decisions are made in; None while none may be made.
    pub fn epoch(&self) -> Option<u64> {
        self.placing
    }

    /// What follows from the state of things; `taken` are the lists whose deltas have all been taken in.
    pub fn next(&mut self, taken: Lists) -> Move {
        let epoch = self.leadership.borrow_and_update().epoch();
        if self.placing.is_some() && self.placing != epoch {
            self.placing = None;
            return Move::Stop;
        }
        let Some(epoch) = epoch else {
            (self.listing, self.listed) = (None, None);
            return Move::Stay;
        };
        if self.placing.is_some() {
            return Move::Stay;
        }
        let begun = [self.listing.as_ref().map(|(of, _)| *of), self.listed.map(|(of, _)| of)];
        if !begun.contains(&Some(epoch)) {
            self.listed = None;
            self.listing = Some((epoch, (self.relist)()));
        }
        let caught_up = self.listed.is_some_and(|(_, lists)| taken.iter().zip(lists).all(|(taken, list)| *taken >= list));
        if !caught_up || self.fence.epoch() != Ok(epoch) {
            return Move::Stay;
        }
        self.fence.admit(epoch);
        self.placing = Some(epoch);
        Move::Start(epoch)
    }

    /// Waits until [`Turn::next`] may have another answer, other than by what is taken in. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        let leadership = async {
            // Without a sender nobody will say anything else.
            if self.leadership.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let listing = async {
            match &mut self.listing {
                Some((epoch, lists)) => (*epoch, lists.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = leadership => {}
            listed = listing => {
                self.listing = None;
                self.listed = Some(listed);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    /// A turn, the one who tells it who leads, and the lists it has begun.
    struct Rig {
        turn: Turn,
        leadership: watch::Sender<Leadership>,
        begun: Arc<Mutex<Vec<oneshot::Sender<Lists>>>>,
    }

    fn leads(epoch: u64) -> Leadership {
        Leadership::Leader { epoch, deadline: Instant::now() + Duration::from_secs(10) }
    }

    fn stands_by() -> Leadership {
        Leadership::Standby { holder: Some("other".to_owned()) }
    }

    /// The fence is one that is open in term 0, so that terms of these tests are all called 0 where it matters.
    fn rig() -> Rig {
        let begun = Arc::<Mutex<Vec<oneshot::Sender<Lists>>>>::default();
        let lists = begun.clone();
        let relist: Relist = Box::new(move || {
            let (sender, listed) = oneshot::channel();
            lists.lock().unwrap().push(sender);
            Box::pin(async move { listed.await.unwrap() })
        });
        let leadership = watch::Sender::new(stands_by());
        Rig { turn: Turn::new(leadership.subscribe(), Fence::unguarded(), relist), leadership, begun }
    }

    impl Rig {
        async fn listed(&mut self, list: usize, lists: Lists) {
            let sender = self.begun.lock().unwrap().remove(list);
            sender.send(lists).unwrap();
            self.turn.changed().await;
        }
    }

    #[tokio::test]
    async fn a_leader_lists_and_takes_in_what_was_listed_before_it_places() {
        let mut rig = rig();
        assert_eq!(rig.turn.next([9; 3]), Move::Stay, "a standby never places, however warm");
        assert!(rig.begun.lock().unwrap().is_empty());
        rig.leadership.send_replace(leads(0));
        assert_eq!(rig.turn.next([9; 3]), Move::Stay);
        assert_eq!(rig.turn.next([9; 3]), Move::Stay);
        assert_eq!(rig.begun.lock().unwrap().len(), 1, "one list a term");
        rig.listed(0, [10, 10, 11]).await;
        assert_eq!(rig.turn.next([10, 9, 11]), Move::Stay, "the deltas of one kind are still under way");
        assert_eq!(rig.turn.epoch(), None);
        assert_eq!(rig.turn.next([10, 10, 11]), Move::Start(0));
        assert_eq!((rig.turn.next([10, 10, 11]), rig.turn.epoch()), (Move::Stay, Some(0)));
    }

    #[tokio::test]
    async fn a_list_of_an_earlier_term_does_not_count() {
        let mut rig = rig();
        rig.leadership.send_replace(leads(7));
        assert_eq!(rig.turn.next([0; 3]), Move::Stay);
        rig.leadership.send_replace(stands_by());
        rig.leadership.send_replace(leads(0)); // nobody has seen the moment between
        assert_eq!(rig.turn.next([0; 3]), Move::Stay);
        assert_eq!(rig.begun.lock().unwrap().len(), 2);
        assert!(rig.begun.lock().unwrap()[0].is_closed());
        rig.listed(1, [1; 3]).await;
        assert_eq!(rig.turn.next([1; 3]), Move::Start(0));
    }

    #[tokio::test]
    async fn another_term_stops_first_even_if_the_loss_was_not_seen() {
        let mut rig = rig();
        rig.leadership.send_replace(leads(0));
        rig.turn.next([0; 3]);
        rig.listed(0, [1; 3]).await;
        assert_eq!(rig.turn.next([1; 3]), Move::Start(0));
        rig.leadership.send_replace(leads(1));
        assert_eq!(rig.turn.next([1; 3]), Move::Stop);
        assert_eq!(rig.turn.next([1; 3]), Move::Stay);
        assert_eq!(rig.begun.lock().unwrap().len(), 1, "and lists anew");
        rig.listed(0, [2; 3]).await;
        assert_eq!(rig.turn.next([2; 3]), Move::Stay, "the fence is in another term");
    }

    #[tokio::test]
    async fn without_an_election_the_first_lists_are_enough() {
        let mut turn = Turn::always();
        assert_eq!(turn.next([0; 3]), Move::Stay);
        turn.changed().await;
        assert_eq!(turn.next([1, 1, 0]), Move::Stay);
        assert_eq!(turn.next([1, 1, 1]), Move::Start(0));
    }
}
