//! The machine, input by input: who may take a Lease when, and what ends a term.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::config::ElectionConfig;
use super::machine::{Counts, Lost, Machine, Moment, Purpose, Role, Step, Write};
use super::record::holder;
use crate::apiclient::CallError;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// A candidate `me` and a clock; times are ms since the start.
struct Rig {
    machine: Machine,
    start: Instant,
}

impl Rig {
    fn new() -> Self {
        Self { machine: Machine::new(ElectionConfig::new("ns", "lease", "me"), || 0), start: Instant::now() }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    /// `read`, `wait MS`, `acquire EPOCH`, `renew EPOCH`.
    fn next(&mut self, ms: u64) -> String {
        match self.step(ms) {
            Step::Read => "read".to_owned(),
            Step::Wait(until) => format!("wait {}", (until - self.start).as_millis()),
            Step::Write(Write { purpose: Purpose::Acquire { epoch }, create, .. }) => format!("{} {epoch}", if create { "create" } else { "acquire" }),
            Step::Write(Write { purpose: Purpose::Renew { epoch }, .. }) => format!("renew {epoch}"),
            Step::Write(write) => panic!("{write:?}"),
        }
    }

    fn step(&mut self, ms: u64) -> Step {
        let wall = Timestamp::from_millisecond(1_000_000_000_000 + i64::try_from(ms).unwrap()).unwrap();
        self.machine.next(Moment { mono: self.at(ms), wall })
    }

    fn read(&mut self, ms: u64, lease: Option<Lease>) {
        self.machine.read(Ok(lease), self.at(ms));
    }

    fn watched(&mut self, ms: u64, lease: Lease) {
        let now = self.at(ms);
        self.machine.tick(now);
        self.machine.watched(lease, now);
    }

    /// The write that is due at `sent` succeeds as version `version`, answered at `ms`.
    fn write(&mut self, sent: u64, ms: u64, version: u64) -> Lease {
        let Step::Write(Write { mut lease, purpose, .. }) = self.step(sent) else { panic!("no write is due") };
        lease.metadata.resource_version = Some(version.to_string());
        lease.metadata.uid = Some("u".to_owned());
        let (sent, now) = (self.at(sent), self.at(ms));
        self.machine.tick(now);
        self.machine.wrote(purpose, sent, Ok((*lease).clone()), now);
        *lease
    }

    /// The write that is due at `sent` fails at `ms`.
    fn fail(&mut self, sent: u64, ms: u64, error: &CallError) {
        let Step::Write(Write { purpose, .. }) = self.step(sent) else { panic!("no write is due") };
        let (sent, now) = (self.at(sent), self.at(ms));
        self.machine.tick(now);
        self.machine.wrote(purpose, sent, Err(error), now);
    }

    fn leader() -> Self {
        let mut rig = Self::new();
        rig.read(0, None);
        rig.write(0, 10, 1);
        assert_eq!(rig.epoch(), Some(1));
        rig
    }

    fn epoch(&self) -> Option<u64> {
        match self.machine.role() {
            Role::Leader { epoch, .. } => Some(epoch),
            Role::Standby => None,
        }
    }
}

fn lease(version: u64, holder: &str, renewed: u32, duration_s: i32, transitions: i32) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": "lease", "namespace": "ns", "uid": "u", "resourceVersion": version.to_string(), "labels": {"theirs": "kept"}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": duration_s, "leaseTransitions": transitions,
                 "acquireTime": "2001-01-01T00:00:00.000000Z", "renewTime": format!("2001-01-01T00:00:{renewed:02}.000000Z")},
    }))
    .unwrap()
}

fn refused(code: u16, reason: &str) -> CallError {
    CallError::Refused { code, reason: reason.to_owned(), message: String::new(), retry_after: None }
}

#[test]
fn a_lease_is_taken_if_missing_released_ours_or_not_seen_to_change_for_its_duration() {
    let table: [(&str, Option<Lease>, u64, &str); 9] = [
        ("missing", None, 0, "create 1"),
        ("released", Some(lease(5, "", 0, 1, 7)), 0, "acquire 9"),
        ("ours, from before", Some(lease(5, "me", 0, 15, 7)), 0, "acquire 9"),
        ("held", Some(lease(5, "other", 0, 15, 7)), 0, "wait 2000"),
        ("held, next poll", Some(lease(5, "other", 0, 15, 7)), 2_000, "read"),
        ("held, at its end", Some(lease(5, "other", 0, 15, 7)), 15_000, "acquire 9"),
        ("its own duration counts, not ours", Some(lease(5, "other", 0, 1, 7)), 1_000, "acquire 9"),
        ("just before", Some(lease(5, "other", 0, 1, 7)), 999, "wait 1000"),
        ("no duration: ours", Some(lease(5, "other", 0, 0, 7)), 14_999, "read"),
    ];
    for (name, found, ms, expected) in table {
        let mut rig = Rig::new();
        assert_eq!(rig.next(0), "read", "{name}: nothing is done before a look");
        rig.read(0, found);
        assert_eq!(rig.next(ms), expected, "{name}");
    }
}

#[test]
fn its_time_starts_anew_whenever_the_record_is_seen_to_change_and_only_then() {
    let mut rig = Rig::new();
    rig.read(0, Some(lease(5, "other", 0, 4, 7)));
    rig.watched(3_000, lease(6, "other", 2, 4, 7));
    assert_eq!(rig.next(5_000), "read");
    rig.read(5_000, Some(lease(6, "other", 2, 4, 7)));
    assert_eq!(rig.next(6_500), "wait 7000");
    let mut labelled = lease(7, "other", 2, 4, 7);
    labelled.metadata.labels = None;
    rig.watched(6_600, labelled);
    assert_eq!(rig.next(6_999), "wait 7000", "a label is no sign of life");
    rig.watched(6_999, lease(5, "other", 0, 4, 7));
    assert_eq!(rig.next(7_000), "acquire 9", "nor is old news; and what is written is based on the newest version");
    let Step::Write(write) = rig.step(7_000) else { panic!() };
    assert_eq!(write.lease.metadata.resource_version.as_deref(), Some("7"));
}

#[test]
fn the_clocks_in_the_record_are_never_read() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let mut rig = Rig::new();
        let mut found = serde_json::to_value(lease(5, "other", 0, 15, 0)).unwrap();
        found["spec"]["renewTime"] = json!(renewed);
        rig.read(0, serde_json::from_value(found).unwrap());
        assert_eq!(rig.next(14_999), "read");
        assert_eq!(rig.next(15_000), "acquire 2");
    }
}

#[test]
fn what_is_written_is_what_client_go_writes() {
    let mut rig = Rig::new();
    rig.read(0, Some(lease(5, "", 0, 1, 7)));
    let Step::Write(Write { lease: taken, create: false, .. }) = rig.step(500) else { panic!() };
    let taken = serde_json::to_value(taken).unwrap();
    let spec = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 8,
                      "acquireTime": "2001-09-09T01:46:40.500000Z", "renewTime": "2001-09-09T01:46:40.500000Z"});
    assert_eq!(taken["spec"], spec);
    assert_eq!((&taken["metadata"]["resourceVersion"], &taken["metadata"]["labels"]["theirs"]), (&json!("5"), &json!("kept")));

    rig.write(500, 510, 6);
    let renewed = serde_json::to_value(rig.write(2_510, 2_520, 7)).unwrap();
    assert_eq!(renewed["spec"]["acquireTime"], "2001-09-09T01:46:40.500000Z");
    assert_eq!((&renewed["spec"]["renewTime"], &renewed["spec"]["leaseTransitions"]), (&json!("2001-09-09T01:46:42.510000Z"), &json!(8)));

    rig.machine.resign(rig.at(3_000));
    let released = rig.machine.release(Timestamp::from_millisecond(1_000_000_003_000).unwrap()).unwrap();
    let spec = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 8,
                      "acquireTime": "2001-09-09T01:46:43.000000Z", "renewTime": "2001-09-09T01:46:43.000000Z"});
    assert_eq!(serde_json::to_value(&released.lease).unwrap()["spec"], spec);
    assert_eq!(released.lease.metadata.resource_version.as_deref(), Some("7"));
}

#[test]
fn a_leader_renews_every_retry_period_and_its_deadline_counts_from_the_sending() {
    let mut rig = Rig::leader();
    assert_eq!(rig.machine.deadline(), Some(rig.at(10_000)), "sent at 0, not confirmed at 10");
    assert_eq!(rig.next(10), "wait 2010");
    assert_eq!(rig.next(2_010), "renew 1");
    rig.write(2_010, 2_500, 2);
    assert_eq!(rig.machine.deadline(), Some(rig.at(12_010)));
    assert_eq!(rig.next(2_500), "wait 4500");
    assert_eq!(rig.epoch(), Some(1));
}

#[test]
fn a_leader_that_cannot_renew_tries_on_and_stands_down_at_the_deadline() {
    let mut rig = Rig::leader();
    rig.fail(2_010, 2_011, &CallError::NotSent(String::new()));
    assert_eq!(rig.next(2_011), "wait 4010");
    assert_eq!(rig.next(4_010), "read");
    rig.machine.read(Err(&CallError::TimedOut(Duration::from_secs(5))), rig.at(9_010));
    assert_eq!(rig.next(9_500), "wait 10000", "the deadline comes before the next attempt");
    assert_eq!(rig.epoch(), Some(1));
    assert_eq!(rig.next(10_000), "read");
    assert_eq!((rig.epoch(), rig.machine.take_lost()), (None, Some(Lost::Deadline)));
    // Nobody has taken it: a new term begins, and says so.
    rig.read(10_100, Some(lease(1, "me", 0, 15, 0)));
    assert_eq!(rig.next(10_100), "acquire 2");
    let taken = rig.write(10_100, 10_110, 3);
    assert_eq!((rig.epoch(), taken.spec.unwrap().lease_transitions), (Some(2), Some(1)));
    assert_eq!(rig.machine.counts(), Counts { acquired: 2, lost: 1, renew_failures: 1, overlaps: 0 });
}

#[test]
fn a_renewal_confirmed_too_late_does_not_bring_the_term_back() {
    let mut rig = Rig::leader();
    let Step::Write(renewal) = rig.step(9_000) else { panic!() };
    let Purpose::Renew { epoch: 1 } = renewal.purpose else { panic!() };
    rig.machine.tick(rig.at(10_000));
    let mut stored = *renewal.lease;
    stored.metadata.resource_version = Some("2".to_owned());
    rig.machine.wrote(renewal.purpose, rig.at(9_000), Ok(stored), rig.at(10_500));
    assert_eq!(rig.epoch(), None);
    assert_eq!(rig.next(10_500), "acquire 2", "ours still, but in a new term");
    // An acquisition that takes that long is none either.
    let Step::Write(write) = rig.step(10_500) else { panic!() };
    let mut stored = *write.lease;
    stored.metadata.resource_version = Some("3".to_owned());
    rig.machine.wrote(write.purpose, rig.at(10_500), Ok(stored), rig.at(20_500));
    assert_eq!((rig.epoch(), rig.next(20_500)), (None, "acquire 3".to_owned()));
}

#[test]
fn an_answer_that_was_lost_is_followed_by_a_read_and_ours_is_written_once_more() {
    let lost = CallError::Lost(String::new());
    let mut rig = Rig::new();
    rig.read(0, None);
    rig.fail(0, 100, &lost);
    assert_eq!(rig.next(100), "wait 2000");
    assert_eq!(rig.next(2_000), "read");
    rig.read(2_000, Some(lease(1, "me", 0, 15, 0)));
    assert_eq!((rig.epoch(), rig.next(2_000)), (None, "acquire 2".to_owned()), "a read makes no leader");

    let mut rig = Rig::leader();
    rig.fail(2_010, 7_010, &CallError::TimedOut(Duration::from_secs(5)));
    assert_eq!(rig.next(7_010), "read", "a request that hung has been pause enough");
    rig.read(7_020, Some(lease(2, "me", 2, 15, 0)));
    assert_eq!(rig.machine.deadline(), Some(rig.at(10_000)), "what took effect unanswered gives no time");
    assert_eq!(rig.next(7_020), "renew 1");
    rig.write(7_020, 7_030, 3);
    assert_eq!(rig.machine.deadline(), Some(rig.at(17_020)));
}

#[test]
fn who_was_quicker_is_looked_up_at_once_but_a_second_refusal_costs_a_pause() {
    for error in [refused(409, "Conflict"), refused(409, "AlreadyExists"), refused(404, "NotFound")] {
        let mut rig = Rig::new();
        rig.read(0, None);
        rig.fail(0, 10, &error);
        assert_eq!(rig.next(10), "read");
        rig.read(20, Some(lease(5, "", 0, 1, 0)));
        rig.fail(20, 30, &error);
        assert_eq!(rig.next(30), "wait 2020");
    }
    let mut rig = Rig::new();
    rig.read(0, None);
    let slow = CallError::Refused { code: 429, reason: String::new(), message: String::new(), retry_after: Some(Duration::from_secs(4)) };
    rig.fail(0, 10, &slow);
    assert_eq!(rig.next(10), "wait 4010", "the server's own wish counts");
}

#[test]
fn a_leader_that_sees_another_holder_stands_down_and_counts_it() {
    let mut rig = Rig::leader();
    rig.watched(3_000, lease(9, "other", 3, 15, 4));
    assert_eq!((rig.epoch(), rig.machine.take_lost()), (None, Some(Lost::HeldByAnother)));
    assert_eq!(rig.machine.counts().overlaps, 1);
    rig.read(3_000, Some(lease(9, "other", 3, 15, 4)));
    assert_eq!(rig.machine.counts().overlaps, 1, "once");
    // The same by a refused renewal.
    let mut rig = Rig::leader();
    rig.fail(2_010, 2_020, &refused(409, "Conflict"));
    assert_eq!((rig.epoch(), rig.next(2_020)), (Some(1), "read".to_owned()));
    rig.read(2_030, Some(lease(9, "other", 3, 15, 4)));
    assert_eq!((rig.epoch(), rig.machine.counts().overlaps), (None, 1));
}

#[test]
fn somebody_who_only_touches_the_lease_does_not_end_the_term() {
    let mut rig = Rig::leader();
    rig.fail(2_010, 2_020, &refused(409, "Conflict"));
    rig.read(2_030, Some(lease(2, "me", 0, 15, 0)));
    assert_eq!(rig.next(2_030), "renew 1");
    rig.write(2_030, 2_040, 3);
    assert_eq!((rig.epoch(), rig.machine.counts().lost), (Some(1), 0));
}

#[test]
fn a_leader_whose_lease_is_deleted_or_emptied_stands_again() {
    let mut rig = Rig::leader();
    rig.machine.must_look();
    assert_eq!(rig.next(100), "read");
    rig.read(110, None);
    assert_eq!((rig.epoch(), rig.machine.take_lost()), (None, Some(Lost::Emptied)));
    assert_eq!(rig.next(110), "create 2", "terms go on counting");

    let mut rig = Rig::leader();
    rig.watched(100, lease(2, "", 0, 1, 0));
    assert_eq!(rig.epoch(), None);
    rig.read(110, Some(lease(2, "", 0, 1, 0)));
    assert_eq!(rig.next(110), "acquire 2");
    assert_eq!(rig.machine.counts().overlaps, 0);
}

/// A process that was stopped notices the end of its term late: did somebody lead meanwhile?
#[test]
fn an_overlap_is_counted_if_the_end_was_noticed_after_the_lease_and_another_has_led() {
    let table: [(&str, u64, Lease, u64); 5] = [
        ("woke in time", 9_000, lease(9, "me", 3, 15, 0), 0),
        ("woke after the deadline, before the end of the lease", 14_999, lease(9, "other", 3, 15, 4), 0),
        ("woke after the lease, another leads", 15_000, lease(9, "other", 3, 15, 4), 1),
        ("woke after the lease, another has led", 15_000, lease(9, "", 3, 1, 1), 1),
        ("woke after the lease, nobody has led", 15_000, lease(1, "me", 0, 15, 0), 0),
    ];
    for (name, woke, found, overlaps) in table {
        let mut rig = Rig::leader();
        rig.machine.tick(rig.at(woke));
        assert_eq!(rig.epoch(), (woke < 10_000).then_some(1), "{name}");
        rig.read(woke + 10, Some(found));
        assert_eq!(rig.machine.counts().overlaps, overlaps, "{name}");
        rig.read(woke + 20, Some(lease(19, "third", 3, 15, 9)));
        assert!(rig.machine.counts().overlaps <= 1, "{name}");
    }
}

#[test]
fn the_answer_to_an_acquisition_that_the_watch_has_overtaken_makes_no_leader() {
    let mut rig = Rig::new();
    rig.read(0, None);
    let Step::Write(write) = rig.step(0) else { panic!() };
    rig.watched(5, lease(7, "other", 3, 15, 0));
    let mut stored = *write.lease;
    stored.metadata.resource_version = Some("3".to_owned());
    rig.machine.wrote(write.purpose, rig.at(0), Ok(stored), rig.at(10));
    assert_eq!(rig.epoch(), None);
    assert_eq!(rig.machine.holder(), Some("other"));
}

#[test]
fn only_what_is_ours_is_released_and_only_when_that_is_certain() {
    let mut rig = Rig::leader();
    rig.machine.resign(rig.at(100));
    assert_eq!((rig.epoch(), rig.machine.is_unsure(), rig.machine.counts().lost), (None, false, 0));
    let release = rig.machine.release(Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(holder(&release.lease), None);
    rig.machine.wrote(Purpose::Release, rig.at(100), Err(&refused(409, "Conflict")), rig.at(110));
    assert!(rig.machine.is_unsure());
    rig.read(120, Some(lease(5, "other", 0, 15, 1)));
    assert!(rig.machine.release(Timestamp::UNIX_EPOCH).is_none());

    let mut rig = Rig::leader();
    rig.fail(2_010, 2_020, &CallError::Lost(String::new()));
    rig.machine.resign(rig.at(2_030));
    assert!(rig.machine.is_unsure(), "a renewal may have changed the version");
    assert!(Rig::new().machine.release(Timestamp::UNIX_EPOCH).is_none());
}
