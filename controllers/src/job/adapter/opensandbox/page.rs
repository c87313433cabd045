//! What the adapter remembers of a Job: what its sandbox last showed, and what of it was only told to this process. A restart forgets it; then the
//! sandbox is asked again, and what only this process knew (that a key has seen the sandbox, that a create may be under way) is assumed not to be so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_opensandbox::{Execd, Sandbox};
use berth_runtime::{ObjectKey, lock};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex as AsyncMutex;

use super::endpoint::Endpoint;
use crate::job::adapter::Seen;
use crate::job::api::names::reference;
use crate::job::api::status::Reference;
use crate::job::machine::{Attempt, Backend, Execution, Started, after};
use crate::job::reason::NotScheduled;

/// Between two attempts at the same thing.
const RETRIES: [u64; 5] = [1, 2, 4, 8, 15];

/// The references on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub sandbox: Option<String>,
    pub instance: Option<String>,
    pub command: Option<String>,
}

impl Recorded {
    pub fn of(references: &[Reference]) -> Self {
        let find = |kind: &str| references.iter().find(|reference| reference.type_ == kind).map(|reference| reference.id.clone());
        Self { sandbox: find(reference::SANDBOX), instance: find(reference::INSTANCE), command: find(reference::COMMAND) }
    }

    pub fn is_some(&self) -> bool {
        self.instance.is_some() || self.sandbox.is_some()
    }

    fn references(&self) -> Vec<Reference> {
        let of = |kind: &str, id: &Option<String>| id.clone().map(|id| Reference { type_: kind.to_owned(), id });
        [of(reference::SANDBOX, &self.sandbox), of(reference::INSTANCE, &self.instance), of(reference::COMMAND, &self.command)].into_iter().flatten().collect()
    }
}

/// What is known of one Job's sandbox. Held by whoever is at work on it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What is, or is to be, on record.
    pub known: Recorded,
    /// The sandbox of `known`, as the server last told of it.
    pub sandbox: Option<Sandbox>,
    /// How its execd is reached, and by which of the endpoint's keys that was told.
    pub execd: Option<(Execd, u64)>,
    /// What is seen of the execution.
    pub execution: Execution,
    /// Why there is none.
    pub attempt: Option<Attempt>,
    /// Other sandboxes may be this Job's.
    pub look_for_strays: bool,
    /// Others are, or what is left of its own must go.
    pub strays: bool,
    /// What is left of its own must go, and why.
    pub remains: Option<&'static str>,
    /// Creates that were sent.
    pub creates: u32,
    /// Until when a create without an answer may still come to something.
    pub ambiguous_until: Option<Timestamp>,
    /// A removal of the sandbox of `known` may have been taken: what ends from then on does not end by itself.
    pub removing: bool,
    /// The sandbox of `known` was removed by us, and is not there any more.
    pub removed: bool,
    /// The sandbox that the server showed us last, and by which of the endpoint's keys.
    pub shown: Option<(String, u64)>,
    /// When it was first told not to be there, without our doing, and by which key.
    pub missing_since: Option<Timestamp>,
    pub missed_by: Option<u64>,
    /// It may live until then at most, by what it was last given; else by what it can have been given.
    pub lives_until: Option<Timestamp>,
    /// When the process began.
    pub started: Option<Started>,
    /// When it was last seen not to have begun.
    pub waited_until: Option<Timestamp>,
    /// The code that it had when it was stopped.
    pub stopped: Option<(i32, bool)>,
    /// The start that was refused for good, or the like: what is to be told once nothing can run any more.
    pub refused: Option<(crate::job::reason::Failure, String)>,
    /// Mode Entrypoint: the instance that was reserved here, and that nothing has been posted of.
    pub reserved: Option<String>,
    /// Creates in a row that were refused for now.
    pub refusals: u32,
    /// Since when a start that was taken has not shown in the lock, and nobody knows of it.
    pub unlocked_since: Option<Timestamp>,
    /// Attempts in a row that came to nothing, since when, and why.
    pub failures: u32,
    pub failing_since: Option<Timestamp>,
    pub failing: String,
    /// When to look or try again.
    pub due: Option<Timestamp>,
}

impl Facts {
    /// Nothing but what is on record.
    pub fn of(known: Recorded) -> Self {
        Self { known, ..Self::default() }
    }

    /// An attempt came to nothing.
    pub fn failed(&mut self, why: String, now: Timestamp) {
        self.failures += 1;
        self.failing_since.get_or_insert(now);
        self.failing = why;
        self.due = Some(after(now, Duration::from_secs(retry(self.failures))));
    }

    /// One came to something.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.failing_since = None;
    }

    /// The server shows a sandbox to that key.
    pub fn is_shown(&mut self, sandbox: &Sandbox, key: u64) {
        (self.missing_since, self.missed_by) = (None, None);
        self.lives_until = sandbox.expires_at.or(self.lives_until);
        self.shown = Some((sandbox.id.clone(), key));
        self.sandbox = Some(sandbox.clone());
    }

    /// The server says that there is none of that id. What was said to another key is another matter.
    pub fn is_missed(&mut self, key: u64) {
        if self.missed_by.replace(key) != Some(key) {
            self.missing_since = None;
        }
    }

    /// Whether the key has shown us that very sandbox: then a "not found" is no other tenant's.
    pub fn has_shown(&self, id: &str, key: u64) -> bool {
        self.shown.as_ref().is_some_and(|(shown, by)| shown == id && *by == key)
    }

    /// Mode Entrypoint: whether the instance that is on record is ours to post. Another's may have been posted, or may yet be.
    pub fn may_post(&self, recorded: &Recorded) -> bool {
        self.reserved.is_some() && self.reserved == recorded.instance && recorded.sandbox.is_none() && self.known.sandbox.is_none()
    }

    /// A create had no answer, or none yet, and may come to something.
    pub fn may_appear(&self, now: Timestamp) -> bool {
        self.ambiguous_until.is_some_and(|until| now < until)
    }

    /// The same as a status is told.
    pub fn seen(&self, recorded: bool, now: Timestamp) -> Seen {
        let execution = match self.failing_since {
            Some(since) if recorded && !matches!(self.execution, Execution::Ended(_)) => {
                Execution::Unreachable { failures: self.failures, since, message: self.failing.clone() }
            }
            _ => self.execution.clone(),
        };
        // What has none yet can't be unreachable: it is being made, and the server is in the way.
        let in_the_way = self.failing_since.filter(|_| !recorded).map(|_| Attempt::Later {
            reason: NotScheduled::BackendUnavailable,
            message: self.failing.clone(),
            give_up: None,
        });
        let exists = !self.removed && (self.sandbox.is_some() || self.known.sandbox.is_some());
        let backend = Backend {
            execution,
            references: self.known.references(),
            stopping: false,
            strays: self.strays,
            leftovers: exists || self.strays || self.may_appear(now),
            held: exists,
        };
        Seen { backend, attempt: self.attempt.clone().or(in_the_way), notes: Vec::new(), look_again: self.due }
    }
}

/// A time by a clock that is ahead by that much.
pub fn shifted(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(at)
}

/// A sandbox that was told by a clock that is ahead by that much.
pub fn timed(sandbox: Sandbox, ahead: SignedDuration) -> Sandbox {
    let at = |time| shifted(time, -ahead);
    Sandbox { created_at: at(sandbox.created_at), expires_at: sandbox.expires_at.map(at), ..sandbox }
}

pub fn retry(failures: u32) -> u64 {
    let index = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX);
    RETRIES[index.min(RETRIES.len() - 1)]
}

/// What is being done about a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    Look,
    Acquire,
    Start,
    Stop,
    Remove,
}

/// One Job.
#[derive(Clone)]
pub struct Page {
    pub uid: Arc<str>,
    pub term: u64,
    pub endpoint: Arc<Endpoint>,
    pub facts: Arc<AsyncMutex<Facts>>,
    /// As of the last errand.
    pub shown: Seen,
    /// What is being done.
    pub busy: Option<Errand>,
    /// What was done last.
    pub last: Option<Errand>,
}

impl Page {
    /// Nothing is known.
    pub fn new(uid: Arc<str>, term: u64, endpoint: Arc<Endpoint>) -> Self {
        Self { uid, term, endpoint, facts: Arc::default(), shown: Seen::default(), busy: None, last: None }
    }
}

/// By Job.
#[derive(Default)]
pub struct Book(Mutex<HashMap<ObjectKey, Vec<Page>>>);

impl Book {
    /// The page of a Job, made by `new` if there is none of this term: what another term knew may have been overtaken by another leader.
    pub fn page(&self, key: &ObjectKey, uid: &str, term: u64, new: impl FnOnce() -> Page) -> Page {
        let mut book = lock(&self.0);
        let pages = book.entry(key.clone()).or_default();
        pages.retain(|page| page.uid.as_ref() != uid || page.term == term);
        match pages.iter().find(|page| page.uid.as_ref() == uid) {
            Some(page) => page.clone(),
            None => {
                let page = new();
                pages.push(page.clone());
                page
            }
        }
    }

    pub fn get(&self, key: &ObjectKey, uid: &str) -> Option<Page> {
        lock(&self.0).get(key)?.iter().find(|page| page.uid.as_ref() == uid).cloned()
    }

    /// Changes the page, if it is of that term.
    pub fn change<T>(&self, key: &ObjectKey, uid: &str, term: u64, change: impl FnOnce(&mut Page) -> T) -> Option<T> {
        lock(&self.0).get_mut(key)?.iter_mut().find(|page| page.uid.as_ref() == uid && page.term == term).map(change)
    }

    /// Nothing is left of it.
    pub fn forget(&self, key: &ObjectKey, uid: &str) {
        let mut book = lock(&self.0);
        if let Some(pages) = book.get_mut(key) {
            pages.retain(|page| page.uid.as_ref() != uid);
            if pages.is_empty() {
                book.remove(key);
            }
        }
    }

    /// UIDs of Jobs of that name with something left, `live` apart; what has nothing left and is idle is forgotten.
    pub fn others(&self, key: &ObjectKey, live: Option<&str>) -> Vec<String> {
        let mut book = lock(&self.0);
        let Some(pages) = book.get_mut(key) else { return Vec::new() };
        let is_live = |page: &Page| Some(page.uid.as_ref()) == live;
        pages.retain(|page| is_live(page) || page.busy.is_some() || page.shown.backend.leftovers || !page.shown.backend.references.is_empty());
        pages.iter().filter(|page| !is_live(page) && page.busy.is_none()).map(|page| page.uid.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use crate::job::machine::Ending;

    #[test]
    fn what_can_not_be_asked_is_unreachable_unless_its_end_is_known() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let mut facts = Facts::of(Recorded { sandbox: Some("s".to_owned()), instance: Some("n".to_owned()), command: None });
        facts.execution = Execution::Idle;
        facts.failed("away".to_owned(), now);
        facts.failed("away".to_owned(), after(now, Duration::from_secs(1)));
        let seen = facts.seen(true, now);
        assert_eq!(seen.backend.execution, Execution::Unreachable { failures: 2, since: now, message: "away".to_owned() });
        assert_eq!(seen.look_again, Some(after(now, Duration::from_secs(3))), "later each time");
        assert!(seen.backend.leftovers && seen.backend.held);
        assert_eq!(seen.backend.references.len(), 2);
        facts.execution = Execution::Ended(Ending::Stopped { code: None, started: None, message: String::new() });
        assert!(matches!(facts.seen(true, now).backend.execution, Execution::Ended(_)));
        facts.removed = true;
        assert!(!facts.seen(true, now).backend.leftovers);
        assert!(matches!(facts.seen(false, now).attempt, Some(Attempt::Later { give_up: None, .. })), "told also while there is none");
    }

    #[test]
    fn only_the_instance_that_was_reserved_here_may_be_posted() {
        let recorded = |instance: Option<&str>, sandbox: Option<&str>| Recorded {
            instance: instance.map(str::to_owned),
            sandbox: sandbox.map(str::to_owned),
            command: None,
        };
        let facts = |reserved: Option<&str>| Facts { reserved: reserved.map(str::to_owned), ..Facts::default() };
        assert!(facts(Some("a")).may_post(&recorded(Some("a"), None)));
        for (reserved, instance, sandbox) in
            [(Some("b"), Some("a"), None), (None, Some("a"), None), (None, None, None), (Some("a"), None, None), (Some("a"), Some("a"), Some("s"))]
        {
            assert!(!facts(reserved).may_post(&recorded(instance, sandbox)), "{reserved:?} of {instance:?}");
        }
    }

    #[test]
    fn a_sandbox_is_missing_by_the_key_that_has_shown_it_alone() {
        let sandbox: Sandbox =
            serde_json::from_value(serde_json::json!({"id": "s", "status": {"state": "Running"}, "createdAt": "2026-01-01T00:00:00Z"})).unwrap();
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let mut facts = Facts::default();
        assert!(!facts.has_shown("s", 2));
        facts.is_shown(&sandbox, 2);
        assert!(facts.has_shown("s", 2) && !facts.has_shown("s", 4) && !facts.has_shown("other", 2));
        facts.is_missed(2);
        facts.missing_since = Some(now);
        facts.is_missed(2);
        assert_eq!(facts.missing_since, Some(now), "said twice to the same key");
        facts.is_missed(4);
        assert_eq!(facts.missing_since, None, "another key begins anew");
    }

    #[test]
    fn what_a_server_tells_of_times_is_by_its_clock() {
        let expires = "2026-01-01T02:00:00Z";
        let sandbox = serde_json::json!({"id": "s", "status": {"state": "Running"}, "createdAt": "2026-01-01T00:00:00Z", "expiresAt": expires});
        let sandbox: Sandbox = serde_json::from_value(sandbox).unwrap();
        // An hour ahead, and an hour behind.
        for (ahead, created, lives) in [(1, "2025-12-31T23:00:00Z", "2026-01-01T01:00:00Z"), (-1, "2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z")] {
            let sandbox = timed(sandbox.clone(), SignedDuration::from_hours(ahead));
            let mut facts = Facts::default();
            facts.is_shown(&sandbox, 2);
            assert_eq!((sandbox.created_at, facts.lives_until), (created.parse().unwrap(), Some(lives.parse().unwrap())));
        }
    }

    #[test]
    fn a_create_without_an_answer_is_something_left_until_its_window_is_over() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let facts = Facts { ambiguous_until: Some(after(now, Duration::from_secs(5))), ..Facts::default() };
        assert!(facts.seen(false, now).backend.leftovers);
        assert!(!facts.seen(false, after(now, Duration::from_secs(5))).backend.leftovers);
        assert_eq!((retry(0), retry(1), retry(3), retry(99)), (1, 1, 4, 15));
    }
}
