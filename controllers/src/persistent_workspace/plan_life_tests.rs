//! Tables of what follows binding: finalizer, use, time to live, release, deletion, cleaning.

use super::*;
use berth_api::conditions::{ConditionStatus, set_condition};

const SECOND: i64 = 1_000;
const HOUR: i64 = 3_600 * SECOND;
/// When `bound_status` was bound, as it is written.
const BOUND_S: i64 = NOW / 1_000;

fn brief(ttl_s: i32) -> PersistentWorkspaceSpec {
    PersistentWorkspaceSpec { ttl_seconds_after_unused: Some(ttl_s), ..spec("bash") }
}

fn at(wall_ms: i64) -> Observed {
    Observed { wall_ms, ..seen(BoundPod::Exists(Verdict::Ready)) }
}

fn used(live: usize, active: usize, last_s: Option<i64>) -> Usage {
    Usage { live, active, last_s }
}

fn later(ms: i64) -> Option<Duration> {
    Some(Duration::from_millis(u64::try_from(ms).unwrap()))
}

#[test]
fn the_finalizer_is_there_before_anything_depends_on_it() {
    let spec = brief(1);
    let bare = |status| WorkspaceFacts { has_finalizer: false, ..facts(&spec, status) };
    let status = bound_status();
    // An older object that is bound without it gets it, even where its time has come meanwhile.
    for wall_ms in [NOW, NOW + HOUR] {
        assert_eq!(plan(bare(Some(&status)), [ready("p")], &at(wall_ms)).step, Step::AddFinalizer);
    }
    let released = PersistentWorkspaceStatus { phase: WorkspacePhase::Released, ..status.clone() };
    assert_eq!(plan(bare(Some(&released)), [ready("p")], &at(NOW)).step, Step::AddFinalizer);
    assert_eq!(plan(bare(Some(&released)), [], &seen(BoundPod::Gone)).step, Step::Delete, "nothing to clean");
    // Who is lost, or waits, has no data.
    assert_eq!(word(&plan(bare(Some(&status)), [], &seen(BoundPod::Gone)).step), "lost PodDeleted");
    assert_eq!(word(&plan(bare(None), [], &seen(BoundPod::NotNamed)).step), "write");
    assert_eq!(word(&plan(bare(None), [ready("a")], &seen(BoundPod::NotNamed)).step), "bind a u");
}

#[test]
fn the_time_to_live_counts_from_the_last_use_and_only_while_unused() {
    let table = [
        ("kept for ever", 0, Usage::default(), None, HOUR, "rest", None),
        ("negative: as if absent", -5, Usage::default(), None, HOUR, "rest", None),
        ("just bound", 60, Usage::default(), None, 0, "rest", later(59_001)),
        ("one millisecond before its time", 60, Usage::default(), None, 59_000, "rest", later(1)),
        ("its time has come", 60, Usage::default(), None, 59_001, "release", None),
        ("long ago: nobody looked meanwhile", 60, Usage::default(), None, 9_999 * HOUR, "release", None),
        ("a Run waits for it", 60, used(1, 0, None), None, HOUR, "rest", None),
        ("a Run is on its Pod", 60, used(1, 1, None), None, HOUR, "rest", None),
        ("used a while ago, as was seen", 60, used(0, 0, Some(BOUND_S + 100)), Some(BOUND_S + 100), 101_000, "rest", later(58_001)),
        ("used a while ago, as was written", 60, Usage::default(), Some(BOUND_S + 100), 101_000, "rest", later(58_001)),
        ("and over", 60, Usage::default(), Some(BOUND_S + 100), 159_001, "release", None),
        ("written by a clock that is ahead: not longer than from now", 60, Usage::default(), Some(BOUND_S + 99_999), 0, "rest", later(59_001)),
        ("the largest", i32::MAX, Usage::default(), None, 0, "rest", later(i64::from(i32::MAX) * SECOND - 999)),
        ("a clock far ahead overflows nothing", i32::MAX, Usage::default(), None, i64::MAX / 2, "release", None),
    ];
    for (row, ttl_s, usage, last_used_s, ago_ms, step, look_again) in table {
        let spec = brief(ttl_s);
        let status = PersistentWorkspaceStatus { last_used_time: last_used_s.map(seconds), ..bound_status() };
        let observed = Observed { usage, ..at(NOW + ago_ms) };
        let planned = plan(facts(&spec, Some(&status)), [ready("p")], &observed);
        assert_eq!((word(&planned.step).as_str(), planned.look_again), (step, look_again), "{row}");
    }
}

#[test]
fn retain_is_never_released_and_a_clock_behind_releases_nothing() {
    let retain = PersistentWorkspaceSpec { cleanup_policy: CleanupPolicy::Retain, ..brief(1) };
    let unknown = PersistentWorkspaceSpec { cleanup_policy: CleanupPolicy::parse("Archive"), ..brief(1) };
    let status = bound_status();
    for spec in [retain, unknown] {
        assert_eq!(plan(facts(&spec, Some(&status)), [ready("p")], &at(NOW + HOUR)), Plan { step: Step::Rest, look_again: None });
    }
    assert_eq!(plan(facts(&brief(60), Some(&status)), [ready("p")], &at(NOW - HOUR)).step, Step::Rest);
    // Bound since nobody knows when.
    let mut full = bound_status();
    full.conditions.retain(|condition| condition.type_ != "Bound");
    for n in full.conditions.len()..16 {
        set_condition(&mut full.conditions, &format!("T{n}"), ConditionStatus::True, "R", "", &seconds(1));
    }
    assert_eq!(plan(facts(&brief(1), Some(&full)), [ready("p")], &at(NOW + HOUR)), Plan { step: Step::Rest, look_again: None });
}

#[test]
fn the_last_use_is_written_with_any_write_and_alone_not_too_often() {
    let spec = spec("bash");
    let status = bound_status();
    let table = [
        ("nothing new", None, 0, NOW, "rest", None, None),
        ("first use", Some(BOUND_S + 5), 0, NOW + 9_000, "write", Some(BOUND_S + 5), None),
        ("too soon", Some(BOUND_S + 5), 1_500, NOW + 9_000, "rest", None, later(1_500)),
        ("in the second of binding", Some(BOUND_S), 0, NOW, "write", Some(BOUND_S), None),
        ("before it was bound: a namesake's", Some(BOUND_S - 1), 0, NOW, "rest", None, None),
    ];
    for (row, last_s, use_writable_in_ms, wall_ms, step, written_s, look_again) in table {
        let observed = Observed { usage: used(1, 1, last_s), use_writable_in_ms, ..at(wall_ms) };
        let planned = plan(facts(&spec, Some(&status)), [ready("p")], &observed);
        assert_eq!((word(&planned.step).as_str(), planned.look_again), (step, look_again), "{row}");
        let wrote = planned.status().and_then(|status| status.last_used_time.as_ref()).map(|time| time.0.as_second());
        assert_eq!(wrote, written_s, "{row}");
    }
    // Another write takes it along; an older one than is written is no news.
    let observed = Observed { usage: used(1, 1, Some(BOUND_S + 5)), use_writable_in_ms: 1_500, ..seen(BoundPod::Exists(Verdict::NotReady)) };
    let along = written(plan(facts(&spec, Some(&status)), [ready("p")], &Observed { wall_ms: NOW + 9_000, ..observed }).step);
    assert_eq!(along.last_used_time, Some(seconds(BOUND_S + 5)));
    let older = Observed { usage: used(0, 0, Some(BOUND_S + 4)), ..seen(BoundPod::Exists(Verdict::NotReady)) };
    assert_eq!(plan(facts(&spec, Some(&along)), [ready("p")], &older).step, Step::Rest);
}

#[test]
fn a_released_workspace_keeps_its_place_until_it_is_deleted() {
    let spec = brief(60);
    let status = bound_status();
    let released = written(plan(facts(&spec, Some(&status)), [ready("p")], &at(NOW + HOUR)).step);
    assert_eq!((released.phase.as_str(), released.bound_pod_uid.as_deref()), ("Released", Some("u1")));
    assert_eq!(conditions(&released), ["Accepted=True/Accepted", "Available=False/Released", "Bound=True/Bound", "RuntimeReady=True/RuntimeFound"]);
    // Whatever happens then (a Run that comes too late, a longer time to live), it goes; only Retain stops it.
    for (spec, usage) in [(brief(60), Usage::default()), (brief(99_999), Usage::default()), (brief(0), Usage::default()), (brief(60), used(1, 1, None))] {
        let observed = Observed { usage, ..at(NOW + HOUR) };
        assert_eq!(plan(facts(&spec, Some(&released)), [ready("p")], &observed).step, Step::Delete);
    }
    let retain = PersistentWorkspaceSpec { cleanup_policy: CleanupPolicy::Retain, ..brief(60) };
    assert_eq!(plan(facts(&retain, Some(&released)), [ready("p")], &at(NOW + HOUR)).step, Step::Rest);
}

/// What the agent, or we, have said of the directory.
fn cleaned(status: &PersistentWorkspaceStatus, is: ConditionStatus, reason: &str) -> PersistentWorkspaceStatus {
    let mut status = status.clone();
    set_condition(&mut status.conditions, "Cleaned", is, reason, "", &seconds(BOUND_S));
    status
}

#[test]
fn a_deleted_workspace_stays_until_nobody_uses_it_and_its_directory_is_removed() {
    use BoundPod::{Exists, Gone, NotNamed, OfAnotherRuntime, Replaced, UidUnknown};
    let bound = bound_status();
    let released = PersistentWorkspaceStatus { phase: WorkspacePhase::Released, ..bound.clone() };
    let lost = PersistentWorkspaceStatus { phase: WorkspacePhase::Lost, ..bound.clone() };
    let removed = cleaned(&bound, ConditionStatus::True, "Removed");
    let failed = cleaned(&bound, ConditionStatus::False, "RemoveFailed");
    let in_use = cleaned(&bound, ConditionStatus::False, "InUse");
    let cannot = cleaned(&bound, ConditionStatus::False, "AgentCannotClean");
    let (silent, here) = (Exists(Verdict::HeartbeatStale), Exists(Verdict::Ready));
    let table = [
        ("never bound", None, NotNamed, true, 0, "remove finalizer", ""),
        ("never bound, Runs wait for it", None, NotNamed, true, 0, "remove finalizer", ""),
        ("in use", Some(&bound), here, true, 1, "write", "Cleaned=False/InUse"),
        ("in use, without an agent", Some(&bound), here, false, 1, "write", "Cleaned=False/InUse"),
        ("in use, and released before", Some(&released), here, true, 2, "write", "Cleaned=False/InUse"),
        ("not used", Some(&bound), here, true, 0, "write", "Cleaned=False/WaitingForAgent"),
        ("no longer used", Some(&in_use), here, true, 0, "write", "Cleaned=False/WaitingForAgent"),
        ("released", Some(&released), here, true, 0, "write", "Cleaned=False/WaitingForAgent"),
        ("the agent is silent", Some(&bound), silent, true, 0, "write", "Cleaned=False/WaitingForAgent"),
        ("the Pod lost its label", Some(&bound), OfAnotherRuntime, true, 0, "write", "Cleaned=False/WaitingForAgent"),
        ("the agent could not", Some(&failed), here, true, 0, "write", "Cleaned=False/RemoveFailed"),
        ("the agent could not, and it is used again", Some(&failed), here, true, 1, "write", "Cleaned=False/RemoveFailed"),
        ("removed", Some(&removed), here, true, 0, "remove finalizer", ""),
        ("removed, but a Run was placed late", Some(&removed), here, true, 1, "write", "Cleaned=True/Removed"),
        ("no agent", Some(&bound), here, false, 0, "cannot clean", "Cleaned=False/AgentCannotClean"),
        ("no agent, and told", Some(&cannot), here, false, 0, "remove finalizer", ""),
        ("an agent came after all", Some(&cannot), here, true, 0, "write", "Cleaned=False/WaitingForAgent"),
        ("no UID: no agent may touch it", Some(&bound), UidUnknown, true, 0, "cannot clean", "Cleaned=False/AgentCannotClean"),
        ("the Pod is gone", Some(&bound), Gone, true, 0, "remove finalizer", ""),
        ("the Pod is gone, and a Run still says it is there", Some(&bound), Gone, true, 3, "remove finalizer", ""),
        ("the Pod was replaced", Some(&in_use), Replaced, true, 1, "remove finalizer", ""),
        ("released, the Pod is gone", Some(&released), Gone, true, 0, "remove finalizer", ""),
        ("lost", Some(&lost), Gone, true, 1, "remove finalizer", ""),
        ("lost, and a namesake is there", Some(&lost), here, true, 0, "remove finalizer", ""),
    ];
    let spec = brief(60);
    for (row, status, bound, agent, active, expected, condition) in table {
        let facts = WorkspaceFacts { deleting: true, ..facts(&spec, status) };
        let observed = Observed { agent, usage: used(active, active, None), ..seen(bound) };
        let planned = plan(facts, [ready("p")], &observed);
        assert_eq!((word(&planned.step).as_str(), planned.look_again), (expected, None), "{row}");
        if let Some(wanted) = planned.status() {
            assert!(conditions(wanted).contains(&condition.to_owned()), "{row}: {:?}", conditions(wanted));
            assert!(conditions(wanted).contains(&"Available=False/Deleting".to_owned()), "{row}");
            assert_eq!(Some(&wanted.phase), status.map(|status| &status.phase), "{row}");
            let again = plan(WorkspaceFacts { status: Some(wanted), ..facts }, [ready("p")], &observed);
            let at_rest = if expected == "cannot clean" { Step::RemoveFinalizer } else { Step::Rest };
            assert_eq!(again.step, at_rest, "{row}: then");
        }
        // Without our finalizer it is others who hold it.
        assert_eq!(plan(WorkspaceFacts { has_finalizer: false, ..facts }, [ready("p")], &observed).step, Step::Rest, "{row}");
    }
}

#[test]
fn a_condition_that_finds_no_room_holds_up_no_deletion() {
    let mut full = bound_status();
    for n in full.conditions.len()..16 {
        set_condition(&mut full.conditions, &format!("T{n}"), ConditionStatus::True, "R", "", &seconds(1));
    }
    let spec = spec("bash");
    let facts = WorkspaceFacts { deleting: true, ..facts(&spec, Some(&full)) };
    let observed = Observed { agent: false, ..seen(BoundPod::Exists(Verdict::Ready)) };
    assert_eq!(plan(facts, [], &observed).step, Step::RemoveFinalizer);
}
