//! How many Jobs stand where, and which have stood there longest: kept up by each change, so that a look costs nothing per Job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use berth_api::conditions::find;
use berth_runtime::ObjectKey;
use berth_runtime::informer::Change;
use k8s_openapi::jiff::Timestamp;

use super::SeenJob;
use crate::job::api::names::condition::{BACKEND_OBSERVED, STOP_REQUESTED};
use crate::job::machine::State;
use crate::job::measure::{Group, span};
use berth_runtime::lock;

/// What ages are kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// Nothing certain is known of the execution.
    Unknown,
    /// A stop was decided and is not confirmed.
    Stopping,
    /// Deleted, and our finalizer holds it.
    Deleting,
}

impl Age {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Stopping, Self::Deleting];
}

/// See the module.
#[derive(Default)]
pub struct Tally {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    standing: BTreeMap<(Group, State), usize>,
    since: BTreeSet<(Age, Timestamp, ObjectKey)>,
}

/// What one Job adds.
struct Share {
    standing: (Group, State),
    since: Vec<(Age, Timestamp)>,
}

impl Tally {
    /// A Job came, changed or went.
    pub(super) fn changed(&self, change: &Change<'_, SeenJob>) {
        let share = |side: Option<&berth_runtime::informer::Stored<SeenJob>>| side.map(|stored| Share::of(&stored.object));
        lock(&self.inner).change(change.key, share(change.old), share(change.new));
    }

    /// How many Jobs of a group are in a state, where there are any.
    pub fn standing(&self) -> Vec<((Group, State), usize)> {
        lock(&self.inner).standing.iter().map(|(key, count)| (key.clone(), *count)).collect()
    }

    /// How long the first of those has lasted; none if there are none.
    pub fn longest(&self, age: Age, now: Timestamp) -> Option<Duration> {
        let inner = lock(&self.inner);
        let (_, since, _) = inner.since.range((age, Timestamp::MIN, ObjectKey::new("", ""))..).next().filter(|(kind, ..)| *kind == age)?;
        Some(span(*since, now))
    }
}

impl Inner {
    fn change(&mut self, key: &ObjectKey, old: Option<Share>, new: Option<Share>) {
        if let Some(old) = old {
            if let Some(count) = self.standing.get_mut(&old.standing) {
                *count = count.saturating_sub(1);
            }
            if self.standing.get(&old.standing) == Some(&0) {
                self.standing.remove(&old.standing);
            }
            for (age, since) in old.since {
                self.since.remove(&(age, since, key.clone()));
            }
        }
        if let Some(new) = new {
            *self.standing.entry(new.standing).or_default() += 1;
            self.since.extend(new.since.into_iter().map(|(age, since)| (age, since, key.clone())));
        }
    }
}

impl Share {
    fn of(job: &SeenJob) -> Self {
        let (facts, status) = (job.facts(), job.status());
        let state = State::of(facts.deleting, facts.spec, status);
        let since = |kind: &str, value: &str| {
            let condition = status.and_then(|status| find(&status.conditions, kind)).filter(|condition| condition.status == value);
            condition.map(|condition| condition.last_transition_time.0)
        };
        let ended = status.is_some_and(|status| status.completion_time.is_some());
        let deleted = job.job.metadata.deletion_timestamp.as_ref().map(|time| time.0).filter(|_| facts.finalizer);
        let ages = [
            (Age::Unknown, since(BACKEND_OBSERVED, "False").filter(|_| !ended)),
            (Age::Stopping, since(STOP_REQUESTED, "True").filter(|_| !ended)),
            (Age::Deleting, deleted),
        ];
        Self { standing: (Group::of(status), state), since: ages.into_iter().filter_map(|(age, since)| Some((age, since?))).collect() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::{Value, from_value, json};

    use super::*;

    fn job(meta: Value, status: Value) -> Share {
        let mut whole = json!({"metadata": meta, "spec": {"task": {"image": "i"}}});
        if !status.is_null() {
            whole["status"] = status;
        }
        Share::of(&SeenJob::of(from_value(whole).unwrap()))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn unknown(second: i64) -> Value {
        json!({"conditions": [{"type": "BackendObserved", "status": "False", "reason": "NodeLost", "message": "", "lastTransitionTime": at(second).to_string()},
            {"type": "Succeeded", "status": "Unknown", "reason": "ResultUnknown", "message": "", "lastTransitionTime": at(second).to_string()}]})
    }

    #[test]
    fn what_stands_where_follows_every_change_and_nothing_stays_behind() {
        let tally = Tally::default();
        let change = |name: &str, old, new| lock(&tally.inner).change(&ObjectKey::new("ns", name), old, new);
        let born = || job(json!({"name": "x"}), Value::Null);
        change("a", None, Some(born()));
        change("b", None, Some(born()));
        assert_eq!(tally.standing(), [((Group::default(), State::Resolving), 2)]);
        change("a", Some(born()), Some(job(json!({}), unknown(50))));
        change("b", Some(born()), Some(job(json!({}), unknown(40))));
        assert_eq!(tally.standing(), [((Group::default(), State::ResultUnknown), 2)]);
        assert_eq!(tally.longest(Age::Unknown, at(100)), Some(Duration::from_secs(60)));
        change("b", Some(job(json!({}), unknown(40))), None);
        assert_eq!(tally.longest(Age::Unknown, at(100)), Some(Duration::from_secs(50)));
        change("a", Some(job(json!({}), unknown(50))), None);
        assert_eq!((tally.standing(), tally.longest(Age::Unknown, at(100))), (Vec::new(), None));
    }

    #[test]
    fn a_deleted_job_ages_while_our_finalizer_is_on_it() {
        let meta = |finalizers: Value| json!({"deletionTimestamp": at(10).to_string(), "finalizers": finalizers});
        let ours = job(meta(json!([crate::job::api::names::FINALIZER_JOB_CLEANUP])), Value::Null);
        assert_eq!((ours.standing.1, ours.since), (State::Deleting, vec![(Age::Deleting, at(10))]));
        assert_eq!(job(meta(json!(["example.com/other"])), Value::Null).since, []);
    }
}
