//! Tables of the plan: binding, its Pod's life, accepting, conditions. Each row is an observation, what is planned, and that the plan is then at rest.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::super::choose::Load;
use super::*;

#[path = "plan_life_tests.rs"]
mod life;

pub(super) const NOW: i64 = 1_700_000_000_999;

pub(super) fn spec(runtime: &str) -> PersistentWorkspaceSpec {
    PersistentWorkspaceSpec { runtime: runtime.to_owned(), mode: "RuntimePodLocal".to_owned(), ..Default::default() }
}

pub(super) fn facts<'a>(spec: &'a PersistentWorkspaceSpec, status: Option<&'a PersistentWorkspaceStatus>) -> WorkspaceFacts<'a> {
    WorkspaceFacts { name: "ci-build", generation: Some(3), deleting: false, has_finalizer: true, spec, status }
}

pub(super) fn ready(name: &str) -> Candidate<'_> {
    Candidate { name, uid: "u", verdict: Verdict::Ready, load: Load::default() }
}

/// Nobody uses it; its Pod has an agent.
pub(super) fn seen(bound: BoundPod) -> Observed {
    Observed { bound, agent: true, usage: Usage::default(), binding: WorkspaceBinding::FirstByName, use_writable_in_ms: 0, wall_ms: NOW }
}

/// Bound to p of UID u1 at `NOW`.
pub(super) fn bound_status() -> PersistentWorkspaceStatus {
    match plan(facts(&spec("bash"), None), [Candidate { uid: "u1", ..ready("p") }], &seen(BoundPod::NotNamed)).step {
        Step::Bind { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

/// `type=Status/Reason` of the conditions, sorted.
pub(super) fn conditions(status: &PersistentWorkspaceStatus) -> Vec<String> {
    let mut all: Vec<String> = status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason)).collect();
    all.sort();
    all
}

/// One word for a step.
pub(super) fn word(step: &Step) -> String {
    match step {
        Step::Rest => "rest".to_owned(),
        Step::AddFinalizer => "add finalizer".to_owned(),
        Step::Bind { pod, uid, .. } => format!("bind {pod} {uid}"),
        Step::Write { news: News::None, .. } => "write".to_owned(),
        Step::Write { news: News::Lost(reason), .. } => format!("lost {}", reason.as_str()),
        Step::Write { news: News::Released, .. } => "release".to_owned(),
        Step::Write { news: News::CannotClean, .. } => "cannot clean".to_owned(),
        Step::Delete => "delete".to_owned(),
        Step::RemoveFinalizer => "remove finalizer".to_owned(),
    }
}

/// Plans; then plans again from the result and requires rest.
fn settled(status: Option<&PersistentWorkspaceStatus>, pods: &[Candidate<'_>], bound: BoundPod) -> Step {
    let spec = spec("bash");
    let first = plan(facts(&spec, status), pods.iter().copied(), &seen(bound));
    if let Some(wanted) = first.status() {
        let wire = serde_json::from_value(serde_json::to_value(wanted).unwrap()).unwrap();
        assert_eq!(&wire, wanted, "what is written reads back the same");
        let after = match &first.step {
            Step::Bind { .. } => BoundPod::Exists(Verdict::Ready),
            _ => bound,
        };
        let later = Observed { wall_ms: NOW + 60_000, ..seen(after) };
        let second = plan(facts(&spec, Some(&wire)), pods.iter().copied(), &later);
        assert_eq!(second, Plan { step: Step::Rest, look_again: None }, "at rest");
    }
    first.step
}

fn written(step: Step) -> PersistentWorkspaceStatus {
    match step {
        Step::Write { status, .. } | Step::Bind { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pending_workspace_binds_to_an_available_pod() {
    let not = |name, verdict| Candidate { verdict, ..ready(name) };
    let table: [(&str, Vec<Candidate<'_>>, Option<&str>); 9] = [
        ("no pod", vec![], None),
        ("one", vec![ready("p")], Some("p")),
        ("the smallest name, not the first", vec![ready("c"), ready("a"), ready("b")], Some("a")),
        ("bytewise", vec![ready("pod-2"), ready("pod-10")], Some("pod-10")),
        ("not running", vec![not("a", Verdict::NotRunning), ready("b")], Some("b")),
        ("not ready", vec![not("a", Verdict::NotReady), ready("b")], Some("b")),
        ("terminating", vec![not("a", Verdict::Terminating), ready("b")], Some("b")),
        ("without heartbeat", vec![not("a", Verdict::HeartbeatMissing), ready("b")], Some("b")),
        ("silent", vec![not("a", Verdict::HeartbeatStale)], None),
    ];
    for (row, pods, expected) in table {
        let step = settled(None, &pods, BoundPod::NotNamed);
        match expected {
            Some(expected) => {
                assert_eq!(word(&step), format!("bind {expected} u"), "{row}");
                let status = written(step);
                assert_eq!((status.bound_pod.as_deref(), status.bound_pod_uid.as_deref()), (Some(expected), Some("u")), "{row}");
                assert_eq!((status.phase.as_str(), status.runtime.as_deref()), ("Bound", Some("bash")), "{row}");
                assert_eq!(status.path.as_deref(), Some("/workspace/persistent/ci-build"), "{row}");
                assert_eq!(conditions(&status), ["Accepted=True/Accepted", "Available=True/PodReady", "Bound=True/Bound", "RuntimeReady=True/RuntimeFound"]);
                assert!(status.conditions.iter().all(|c| c.observed_generation == Some(3) && c.last_transition_time.0.as_second() == NOW / 1_000));
            }
            None => {
                assert_eq!(word(&step), "write", "{row}");
                let status = written(step);
                let found = if pods.is_empty() { "RuntimeReady=False/RuntimeNotFound" } else { "RuntimeReady=True/RuntimeFound" };
                assert_eq!(conditions(&status), ["Accepted=True/Accepted", "Available=False/NotBound", "Bound=False/WaitingForRuntimePod", found], "{row}");
                assert_eq!((status.phase.as_str(), status.runtime.as_deref(), status.bound_pod.as_deref()), ("Pending", Some("bash"), None), "{row}");
            }
        }
    }
}

#[test]
fn the_least_loaded_pod_is_taken_where_the_profile_says_so() {
    let load = |name, held| Candidate { load: Load { held, capacity: 4 }, ..ready(name) };
    for (binding, expected) in [(WorkspaceBinding::FirstByName, "bind a u"), (WorkspaceBinding::LeastLoaded, "bind b u")] {
        let observed = Observed { binding, ..seen(BoundPod::NotNamed) };
        assert_eq!(word(&plan(facts(&spec("bash"), None), [load("a", 2), load("b", 1), load("c", 1)], &observed).step), expected);
    }
}

#[test]
fn a_bound_workspace_stays_while_its_pod_object_exists_and_is_lost_when_it_does_not() {
    let table = [
        (BoundPod::Exists(Verdict::Ready), "rest", "Available=True/PodReady"),
        (BoundPod::Exists(Verdict::NotRunning), "write", "Available=False/PodNotRunning"),
        (BoundPod::Exists(Verdict::NotReady), "write", "Available=False/PodNotReady"),
        (BoundPod::Exists(Verdict::Terminating), "write", "Available=False/PodTerminating"),
        (BoundPod::Exists(Verdict::HeartbeatMissing), "write", "Available=False/HeartbeatMissing"),
        (BoundPod::Exists(Verdict::HeartbeatStale), "write", "Available=False/HeartbeatStale"),
        (BoundPod::OfAnotherRuntime, "write", "Available=False/PodOfAnotherRuntime"),
        (BoundPod::UidUnknown, "write", "Available=False/PodUIDUnknown"),
        (BoundPod::NotNamed, "write", "Available=False/PodUnknown"),
        (BoundPod::Gone, "lost PodDeleted", "Available=False/PodDeleted"),
        (BoundPod::Replaced, "lost PodReplaced", "Available=False/PodReplaced"),
    ];
    let status = bound_status();
    for (bound, expected, available) in table {
        // A better Pod is there all the time, and is never taken.
        let step = settled(Some(&status), &[ready("a"), ready("p")], bound);
        assert_eq!(word(&step), expected, "{bound:?}");
        let wanted = if step == Step::Rest { status.clone() } else { written(step) };
        assert!(conditions(&wanted).contains(&available.to_owned()), "{bound:?}: {:?}", conditions(&wanted));
        assert_eq!((wanted.bound_pod.as_deref(), wanted.bound_pod_uid.as_deref()), (Some("p"), Some("u1")), "{bound:?}");
        assert_eq!(wanted.phase.as_str(), if expected.starts_with("lost") { "Lost" } else { "Bound" });
        if expected.starts_with("lost") {
            assert!(conditions(&wanted).iter().any(|c| c.starts_with("Bound=False/Pod")));
        }
    }
}

#[test]
fn a_lost_workspace_is_lost_for_ever() {
    let status = bound_status();
    let lost = written(settled(Some(&status), &[], BoundPod::Gone));
    for bound in [BoundPod::Exists(Verdict::Ready), BoundPod::NotNamed, BoundPod::Gone, BoundPod::Replaced] {
        assert_eq!(settled(Some(&lost), &[ready("a"), ready("p")], bound), Step::Rest);
    }
    // Not even its time to live does anything: it says what was lost until its owner deletes it.
    let brief = PersistentWorkspaceSpec { ttl_seconds_after_unused: Some(1), ..spec("bash") };
    let later = Observed { wall_ms: NOW + 3_600_000, ..seen(BoundPod::Gone) };
    assert_eq!(plan(facts(&brief, Some(&lost)), [], &later), Plan { step: Step::Rest, look_again: None });
    // Set by other hands, without conditions: they are repaired, the phase stays.
    let by_hand = PersistentWorkspaceStatus { phase: WorkspacePhase::Lost, ..Default::default() };
    let status = written(settled(Some(&by_hand), &[ready("a")], BoundPod::NotNamed));
    assert_eq!((status.phase.as_str(), conditions(&status)), ("Lost", vec!["Available=False/Lost".to_owned(), "Bound=False/Lost".to_owned()]));
}

#[test]
fn a_phase_of_a_later_version_is_left_alone() {
    let spec = PersistentWorkspaceSpec { ttl_seconds_after_unused: Some(1), ..spec("bash") };
    let status = PersistentWorkspaceStatus { phase: WorkspacePhase::parse("Frozen"), ..bound_status() };
    for deleting in [false, true] {
        let facts = WorkspaceFacts { deleting, has_finalizer: deleting, ..facts(&spec, Some(&status)) };
        let later = Observed { wall_ms: NOW + 3_600_000, ..seen(BoundPod::Gone) };
        assert_eq!(plan(facts, [ready("a")], &later), Plan { step: Step::Rest, look_again: None });
    }
}

#[test]
fn a_spec_that_slipped_past_the_schema_is_not_accepted_and_not_bound() {
    for (runtime, mode) in [("", "RuntimePodLocal"), ("bash", "Shared")] {
        let spec = PersistentWorkspaceSpec { mode: mode.to_owned(), ..spec(runtime) };
        let status = written(plan(facts(&spec, None), [ready("a")], &seen(BoundPod::NotNamed)).step);
        assert_eq!(find(&status.conditions, "Accepted").unwrap().status, "False");
        assert_eq!(status.phase.as_str(), "Pending");
    }
}

#[test]
fn a_transition_time_moves_only_with_the_status_and_generation_is_followed() {
    let status = bound_status();
    let later = NOW + 60_000;
    let spec = spec("bash");
    let at = |verdict, wall_ms| Observed { wall_ms, ..seen(BoundPod::Exists(verdict)) };
    let stale = written(plan(facts(&spec, Some(&status)), [ready("p")], &at(Verdict::HeartbeatStale, later)).step);
    let time = |status: &PersistentWorkspaceStatus, kind| find(&status.conditions, kind).unwrap().last_transition_time.0.as_second();
    assert_eq!((time(&stale, "Available"), time(&stale, "Bound")), (later / 1_000, NOW / 1_000));
    let other = written(plan(facts(&spec, Some(&stale)), [ready("p")], &at(Verdict::NotReady, later + 5_000)).step);
    assert_eq!(time(&other, "Available"), later / 1_000, "another reason is no transition");
    let newer = WorkspaceFacts { generation: Some(4), ..facts(&spec, Some(&status)) };
    let followed = written(plan(newer, [ready("p")], &at(Verdict::Ready, later)).step);
    assert!(followed.conditions.iter().all(|c| c.observed_generation == Some(4) && c.last_transition_time.0.as_second() == NOW / 1_000));
}

#[test]
fn conditions_of_others_are_kept() {
    let mut status = bound_status();
    status.conditions.push(k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
        type_: "example.com/Backup".to_owned(),
        status: "False".to_owned(),
        reason: "X".to_owned(),
        message: String::new(),
        last_transition_time: seconds(NOW / 1_000),
        observed_generation: None,
    });
    let lost = written(settled(Some(&status), &[], BoundPod::Gone));
    assert!(find(&lost.conditions, "example.com/Backup").is_some());
}

#[test]
fn a_pod_is_compared_by_uid_and_then_by_runtime() {
    let found = |uid, runtime| Some(Found { uid, runtime, verdict: Verdict::NotReady, agent: true });
    let table = [
        (Some("u1"), None, BoundPod::Gone),
        (None, None, BoundPod::Gone),
        (Some("u1"), found("u1", Some("bash")), BoundPod::Exists(Verdict::NotReady)),
        (Some("u1"), found("u2", Some("bash")), BoundPod::Replaced),
        (Some("u1"), found("u2", None), BoundPod::Replaced),
        (Some("u1"), found("u1", Some("python")), BoundPod::OfAnotherRuntime),
        (Some("u1"), found("u1", None), BoundPod::OfAnotherRuntime),
        (None, found("u1", Some("bash")), BoundPod::UidUnknown),
        (Some(""), found("u1", Some("bash")), BoundPod::UidUnknown),
    ];
    for (uid, found, expected) in table {
        assert_eq!(BoundPod::compare("bash", uid, found), expected, "{uid:?} {found:?}");
    }
}
