//! The smallest change that would place a waiting Run, in words.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_framework::Diagnosis;
use berth_framework::core::{Explanation, PodExplanation};
use berth_framework::plugin::Rejection;

/// How many changes are told at most.
const CHANGES_MAX: usize = 5;

/// Changes any one of which would place the Run, the fewest hurdles first; empty if it fits already.
pub fn smallest(explanation: &Explanation, diagnosis: &Diagnosis) -> Vec<String> {
    if let Some((_, rejection)) = &diagnosis.refused {
        return vec![before_any_pod(rejection)];
    }
    if explanation.pods.is_empty() {
        return vec![format!("a Pod with label runtime={} that is ready and has room", explanation.runtime)];
    }
    let hurdles = |pod: &PodExplanation| pod.verdicts.iter().filter(|(_, rejection)| rejection.is_some()).count();
    let Some(fewest) = explanation.pods.iter().map(hurdles).filter(|n| *n > 0).min() else { return Vec::new() };
    // The same hurdles on several Pods are one change, on any of them.
    let mut changes: BTreeMap<Vec<String>, Vec<&Arc<str>>> = BTreeMap::new();
    for pod in explanation.pods.iter().filter(|pod| hurdles(pod) == fewest) {
        let steps = pod.verdicts.iter().filter_map(|(plugin, rejection)| rejection.as_ref().map(|r| step(plugin, r, pod))).collect();
        changes.entry(steps).or_default().push(&pod.pod);
    }
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_by_key(|(_, pods)| std::cmp::Reverse(pods.len()));
    changes.iter().take(CHANGES_MAX).map(|(steps, pods)| format!("{} {}", steps.join(" and "), on(pods))).collect()
}

fn on(pods: &[&Arc<str>]) -> String {
    match pods {
        [one] => format!("on Pod {one}"),
        many => format!("on any of {} Pods", many.len()),
    }
}

/// What PreFilter refused, turned round.
fn before_any_pod(rejection: &Rejection) -> String {
    let subject = rejection.subject.as_deref().unwrap_or_default();
    match rejection.reason.code {
        "WorkspaceNotFound" => format!("workspace {subject} must be created and become Bound"),
        "WorkspacePending" => format!("workspace {subject} must be Bound"),
        "WorkspaceLost" | "WorkspaceReleased" | "WorkspaceDeleting" => {
            format!("another workspace: {subject} does not come back; recreate it under this name or name another in a new Run")
        }
        "WorkspaceRuntimeMismatch" => format!("workspace {subject} must be of the Run's runtime; it can't change, so name another in a new Run"),
        "WorkspaceUnfenced" => format!("workspace {subject} must tell status.boundPodUID"),
        "NoAffinityTarget" => format!("label {subject} on an active Run of this runtime"),
        _ => format!("end of: {rejection}"),
    }
}

/// One plugin's rejection of one Pod, turned round.
fn step(plugin: &str, rejection: &Rejection, pod: &PodExplanation) -> String {
    match rejection.reason.code {
        "InsufficientCapacity" => pod.short.iter().map(|(resource, missing)| slots(resource, *missing)).collect::<Vec<_>>().join(" and "),
        "HeartbeatStale" | "HeartbeatMissing" => "a fresh heartbeat".into(),
        "PodNotRunning" | "PodNotReady" => "readiness".into(),
        "PodTerminating" => "another Pod instead of the terminating one".into(),
        "RequiredAffinityUnmet" => "an active Run that the required affinity matches".into(),
        "AntiAffinityMatched" => "the end of the Run that it avoids".into(),
        "AntiAffinityOfPlacedRun" => "the end of the Run that avoids it".into(),
        "NotBoundToWorkspace" => "its workspace bound".into(),
        "NoWorkspaceAgent" => "an agent that honours workspaces".into(),
        _ => format!("end of {plugin}'s {rejection}"),
    }
}

fn slots(resource: &str, missing: i128) -> String {
    match (resource, missing) {
        ("runs", 1) => "one more slot".into(),
        ("runs", n) => format!("{n} more slots"),
        (other, n) => format!("{n} more {other}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use berth_framework::Charge;
    use berth_framework::plugin::Reason;

    use super::*;

    static ROOM: Reason = Reason { code: "InsufficientCapacity", text: "insufficient {}" };
    static STALE: Reason = Reason { code: "HeartbeatStale", text: "heartbeat stale" };
    static OTHER: Reason = Reason { code: "WrongZone", text: "in the wrong zone" };
    static NO_TARGET: Reason = Reason { code: "NoAffinityTarget", text: "no active Run matches required affinity {}" };

    fn pod(name: &str, rejections: &[(&'static str, &'static Reason)], short: &[(&str, i128)]) -> PodExplanation {
        PodExplanation {
            pod: name.into(),
            fits: rejections.is_empty(),
            verdicts: rejections.iter().map(|(plugin, reason)| (*plugin, Some(Rejection::about(reason, "runs")))).collect(),
            short: short.iter().map(|(resource, n)| (Arc::from(*resource), *n)).collect(),
        }
    }

    fn changes(pods: Vec<PodExplanation>) -> Vec<String> {
        smallest(&Explanation { runtime: "bash".into(), pods }, &Diagnosis::default())
    }

    #[test]
    fn the_fewest_hurdles_come_first_and_equal_ones_are_one_change() {
        let full = |name: &str| pod(name, &[("Capacity", &ROOM)], &[("runs", 1)]);
        let far = pod("d", &[("RuntimeReady", &STALE), ("Capacity", &ROOM)], &[("runs", 9)]);
        assert_eq!(changes(vec![full("a"), full("b"), full("c"), far]), ["one more slot on any of 3 Pods"]);
        assert_eq!(
            changes(vec![pod("a", &[("RuntimeReady", &STALE), ("Capacity", &ROOM)], &[("runs", 2), ("gpu", 1)])]),
            ["a fresh heartbeat and 2 more slots and 1 more gpu on Pod a"]
        );
        assert_eq!(changes(vec![pod("a", &[("Zones", &OTHER)], &[])]), ["end of Zones's in the wrong zone on Pod a"]);
        assert_eq!(changes(vec![pod("a", &[], &[])]), Vec::<String>::new(), "it fits");
    }

    #[test]
    fn without_pods_or_before_pods_the_change_is_another() {
        assert_eq!(changes(Vec::new()), ["a Pod with label runtime=bash that is ready and has room"]);
        let rejection = Rejection::about(&NO_TARGET, "app=x");
        let diagnosis = Diagnosis {
            pods: 1,
            rejections: vec![Charge { plugin: "RunAffinity", rejection: rejection.clone(), pods: 1 }],
            refused: Some(("RunAffinity", rejection)),
        };
        let explanation = Explanation { runtime: "bash".into(), pods: vec![pod("a", &[], &[])] };
        assert_eq!(smallest(&explanation, &diagnosis), ["label app=x on an active Run of this runtime"]);
    }
}
