//! Tables of the plan: each row an observation, what is planned, and that the plan is then at rest.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use berth_api::conditions::find;

const NOW: i64 = 1_700_000_000_999;

fn spec(runtime: &str) -> PersistentWorkspaceSpec {
    PersistentWorkspaceSpec { runtime: runtime.to_owned(), mode: "RuntimePodLocal".to_owned(), ..Default::default() }
}

fn facts<'a>(spec: &'a PersistentWorkspaceSpec, status: Option<&'a PersistentWorkspaceStatus>) -> WorkspaceFacts<'a> {
    WorkspaceFacts { name: "ci-build", generation: Some(3), deleting: false, spec, status }
}

fn ready(name: &'static str) -> Candidate<'static> {
    Candidate { name, uid: "u", verdict: Verdict::Ready }
}

fn bound_status() -> PersistentWorkspaceStatus {
    match plan(facts(&spec("bash"), None), [Candidate { name: "p", uid: "u1", verdict: Verdict::Ready }], BoundPod::NotNamed, NOW) {
        Plan::Bind { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

/// `type=Status/Reason` of the conditions, sorted.
fn conditions(status: &PersistentWorkspaceStatus) -> Vec<String> {
    let mut all: Vec<String> = status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason)).collect();
    all.sort();
    all
}

/// Plans; then plans again from the result and requires rest.
fn settled(runtime: &str, status: Option<&PersistentWorkspaceStatus>, pods: &[Candidate<'_>], bound: BoundPod) -> Plan {
    let spec = spec(runtime);
    let first = plan(facts(&spec, status), pods.iter().copied(), bound, NOW);
    if let Some(wanted) = first.status() {
        let wire = serde_json::from_value(serde_json::to_value(wanted).unwrap()).unwrap();
        assert_eq!(&wire, wanted, "what is written reads back the same");
        let after = match &first {
            Plan::Bind { .. } => BoundPod::Exists(Verdict::Ready),
            _ => bound,
        };
        assert_eq!(plan(facts(&spec, Some(&wire)), pods.iter().copied(), after, NOW + 60_000), Plan::NoChange, "at rest");
    }
    first
}

#[test]
fn a_pending_workspace_binds_to_the_first_available_pod_by_name() {
    let not = |name, verdict| Candidate { name, uid: "u", verdict };
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
        match (settled("bash", None, &pods, BoundPod::NotNamed), expected) {
            (Plan::Bind { pod, uid, status }, Some(expected)) => {
                assert_eq!((pod.as_str(), uid.as_str()), (expected, "u"), "{row}");
                assert_eq!((status.bound_pod.as_deref(), status.bound_pod_uid.as_deref()), (Some(expected), Some("u")), "{row}");
                assert_eq!((status.phase.as_str(), status.runtime.as_deref()), ("Bound", Some("bash")), "{row}");
                assert_eq!(status.path.as_deref(), Some("/workspace/persistent/ci-build"), "{row}");
                assert_eq!(conditions(&status), ["Accepted=True/Accepted", "Available=True/PodReady", "Bound=True/Bound", "RuntimeReady=True/RuntimeFound"]);
                assert!(status.conditions.iter().all(|c| c.observed_generation == Some(3) && c.last_transition_time.0.as_second() == NOW / 1_000));
            }
            (Plan::Conditions { status }, None) => {
                let found = if pods.is_empty() { "RuntimeReady=False/RuntimeNotFound" } else { "RuntimeReady=True/RuntimeFound" };
                assert_eq!(conditions(&status), ["Accepted=True/Accepted", "Available=False/NotBound", "Bound=False/WaitingForRuntimePod", found], "{row}");
                assert_eq!((status.phase.as_str(), status.runtime.as_deref(), status.bound_pod.as_deref()), ("Pending", Some("bash"), None), "{row}");
            }
            (other, _) => panic!("{row}: {other:?}"),
        }
    }
}

#[test]
fn a_bound_workspace_stays_while_its_pod_object_exists_and_is_lost_when_it_does_not() {
    let table = [
        (BoundPod::Exists(Verdict::Ready), "", "Available=True/PodReady"),
        (BoundPod::Exists(Verdict::NotRunning), "conditions", "Available=False/PodNotRunning"),
        (BoundPod::Exists(Verdict::NotReady), "conditions", "Available=False/PodNotReady"),
        (BoundPod::Exists(Verdict::Terminating), "conditions", "Available=False/PodTerminating"),
        (BoundPod::Exists(Verdict::HeartbeatMissing), "conditions", "Available=False/HeartbeatMissing"),
        (BoundPod::Exists(Verdict::HeartbeatStale), "conditions", "Available=False/HeartbeatStale"),
        (BoundPod::OfAnotherRuntime, "conditions", "Available=False/PodOfAnotherRuntime"),
        (BoundPod::UidUnknown, "conditions", "Available=False/PodUIDUnknown"),
        (BoundPod::NotNamed, "conditions", "Available=False/PodUnknown"),
        (BoundPod::Gone, "lost PodDeleted", "Available=False/PodDeleted"),
        (BoundPod::Replaced, "lost PodReplaced", "Available=False/PodReplaced"),
    ];
    let status = bound_status();
    for (bound, expected, available) in table {
        // A better Pod is there all the time, and is never taken.
        let plan = settled("bash", Some(&status), &[ready("a"), ready("p")], bound);
        let kind = match &plan {
            Plan::NoChange => String::new(),
            Plan::Conditions { .. } => "conditions".to_owned(),
            Plan::Lost { reason, .. } => format!("lost {}", reason.as_str()),
            Plan::Bind { .. } => "bind".to_owned(),
        };
        assert_eq!(kind, expected, "{bound:?}");
        let wanted = plan.status().unwrap_or(&status);
        assert!(conditions(wanted).contains(&available.to_owned()), "{bound:?}: {:?}", conditions(wanted));
        assert_eq!((wanted.bound_pod.as_deref(), wanted.bound_pod_uid.as_deref()), (Some("p"), Some("u1")), "{bound:?}");
        assert_eq!(wanted.phase.as_str(), if kind.starts_with("lost") { "Lost" } else { "Bound" });
        if kind.starts_with("lost") {
            assert!(conditions(wanted).iter().any(|c| c.starts_with("Bound=False/Pod")));
        }
    }
}

#[test]
fn a_lost_workspace_is_lost_for_ever() {
    let status = bound_status();
    let Plan::Lost { status: lost, .. } = settled("bash", Some(&status), &[], BoundPod::Gone) else { panic!() };
    for bound in [BoundPod::Exists(Verdict::Ready), BoundPod::NotNamed, BoundPod::Gone, BoundPod::Replaced] {
        assert_eq!(settled("bash", Some(&lost), &[ready("a"), ready("p")], bound), Plan::NoChange);
    }
    // Set by other hands, without conditions: they are repaired, the phase stays.
    let by_hand = PersistentWorkspaceStatus { phase: WorkspacePhase::Lost, ..Default::default() };
    let Plan::Conditions { status } = settled("bash", Some(&by_hand), &[ready("a")], BoundPod::NotNamed) else { panic!() };
    assert_eq!((status.phase.as_str(), conditions(&status)), ("Lost", vec!["Available=False/Lost".to_owned(), "Bound=False/Lost".to_owned()]));
}

#[test]
fn what_is_deleted_released_or_unknown_is_left_alone() {
    let spec = spec("bash");
    let status = bound_status();
    for status in [None, Some(&status)] {
        let deleting = WorkspaceFacts { deleting: true, ..facts(&spec, status) };
        assert_eq!(plan(deleting, [ready("a")], BoundPod::Gone, NOW), Plan::NoChange);
    }
    for phase in ["Released", "Frozen"] {
        let status = PersistentWorkspaceStatus { phase: WorkspacePhase::parse(phase), ..bound_status() };
        assert_eq!(plan(facts(&spec, Some(&status)), [ready("a")], BoundPod::Gone, NOW), Plan::NoChange);
    }
}

#[test]
fn a_spec_that_slipped_past_the_schema_is_not_accepted_and_not_bound() {
    for (runtime, mode) in [("", "RuntimePodLocal"), ("bash", "Shared")] {
        let spec = PersistentWorkspaceSpec { mode: mode.to_owned(), ..spec(runtime) };
        let Plan::Conditions { status } = plan(facts(&spec, None), [ready("a")], BoundPod::NotNamed, NOW) else { panic!() };
        assert_eq!(find(&status.conditions, ACCEPTED).unwrap().status, "False");
        assert_eq!(status.phase.as_str(), "Pending");
    }
}

#[test]
fn a_transition_time_moves_only_with_the_status_and_generation_is_followed() {
    let status = bound_status();
    let later = NOW + 60_000;
    let spec = spec("bash");
    let Plan::Conditions { status: stale } = plan(facts(&spec, Some(&status)), [ready("p")], BoundPod::Exists(Verdict::HeartbeatStale), later) else {
        panic!()
    };
    let time = |status: &PersistentWorkspaceStatus, kind| find(&status.conditions, kind).unwrap().last_transition_time.0.as_second();
    assert_eq!((time(&stale, "Available"), time(&stale, "Bound")), (later / 1_000, NOW / 1_000));
    let Plan::Conditions { status: other } = plan(facts(&spec, Some(&stale)), [ready("p")], BoundPod::Exists(Verdict::NotReady), later + 5_000) else {
        panic!()
    };
    assert_eq!(time(&other, "Available"), later / 1_000, "another reason is no transition");
    let newer = WorkspaceFacts { generation: Some(4), ..facts(&spec, Some(&status)) };
    let Plan::Conditions { status: followed } = plan(newer, [ready("p")], BoundPod::Exists(Verdict::Ready), later) else { panic!() };
    assert!(followed.conditions.iter().all(|c| c.observed_generation == Some(4) && c.last_transition_time.0.as_second() == NOW / 1_000));
}

#[test]
fn conditions_of_others_are_kept() {
    let mut status = bound_status();
    status.conditions.push(k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
        type_: "Cleaned".to_owned(),
        status: "False".to_owned(),
        reason: "X".to_owned(),
        message: String::new(),
        last_transition_time: seconds(NOW),
        observed_generation: None,
    });
    let Plan::Lost { status: lost, .. } = settled("bash", Some(&status), &[], BoundPod::Gone) else { panic!() };
    assert!(find(&lost.conditions, "Cleaned").is_some());
}

#[test]
fn a_pod_is_compared_by_uid_and_then_by_runtime() {
    let found = |uid, runtime| Some(Found { uid, runtime, verdict: Verdict::NotReady });
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
