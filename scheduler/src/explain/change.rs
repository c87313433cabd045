//! The smallest change that would place a waiting Run, in words.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::constants::{LABEL_RUNTIME, RESOURCE_RUNS};
use berth_framework::Diagnosis;
use berth_framework::core::{Explanation, PodExplanation, Short};
use berth_framework::plugin::Rejection;

/// How many changes are told at most.
const CHANGES_MAX: usize = 5;

/// Reasons of a Pod that is not available, as the binder of workspaces sees it too.
const UNAVAILABLE: [&str; 5] = ["PodNotRunning", "PodNotReady", "PodTerminating", "HeartbeatMissing", "HeartbeatStale"];
/// What somebody did on purpose counts as so many hurdles: it is only told where nothing else helps.
const ON_PURPOSE: usize = 3;

/// Changes any one of which would place the Run, the fewest hurdles first; empty if it fits already. `bound`: the Pod of its workspace.
pub fn smallest(explanation: &Explanation, diagnosis: &Diagnosis, bound: Option<&str>) -> Vec<String> {
    let Explanation { runtime, pods } = explanation;
    if let Some((_, rejection)) = &diagnosis.refused {
        let rejects = |pod: &PodExplanation, codes: &[&str]| pod.verdicts.iter().flat_map(|(_, no)| no).any(|no| codes.contains(&no.reason.code));
        let available = pods.iter().any(|pod| !rejects(pod, &UNAVAILABLE));
        return vec![before_any_pod(rejection, (!available).then(|| format!("a Pod with label {LABEL_RUNTIME}={runtime} that is ready")).as_deref())];
    }
    if pods.iter().any(|pod| pod.verdicts.iter().all(|(_, rejection)| rejection.is_none())) {
        return Vec::new();
    }
    let within_reach: Vec<(usize, Vec<String>, &Arc<str>)> = pods.iter().filter_map(|pod| steps(pod).map(|(cost, steps)| (cost, steps, &pod.pod))).collect();
    let Some(fewest) = within_reach.iter().map(|(cost, ..)| *cost).min() else {
        return vec![match bound {
            Some(pod) => format!("the return of Pod {pod}, which has the Run's workspace: a workspace never moves"),
            None => format!("a Pod with label {LABEL_RUNTIME}={runtime} that is ready and has room"),
        }];
    };
    // The same hurdles on several Pods are one change, on any of them.
    let mut changes: BTreeMap<Vec<String>, Vec<&Arc<str>>> = BTreeMap::new();
    for (_, steps, pod) in within_reach.into_iter().filter(|(cost, ..)| *cost == fewest) {
        changes.entry(steps).or_default().push(pod);
    }
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_by_key(|(_, pods)| std::cmp::Reverse(pods.len()));
    changes.iter().take(CHANGES_MAX).map(|(steps, pods)| format!("{} {}", steps.join(" and "), on(pods))).collect()
}

/// Everything that would have to change on a Pod, and how many hurdles that is; `None` if something can't.
fn steps(pod: &PodExplanation) -> Option<(usize, Vec<String>)> {
    let mut all = (0, Vec::new());
    for (plugin, rejection) in pod.verdicts.iter().filter_map(|(plugin, rejection)| Some((plugin, rejection.as_ref()?))) {
        let (cost, text) = step(plugin, rejection, pod)?;
        all.0 += cost;
        all.1.push(text);
    }
    Some(all)
}

fn on(pods: &[&Arc<str>]) -> String {
    match pods {
        [one] => format!("on Pod {one}"),
        many => format!("on any of {} Pods", many.len()),
    }
}

/// What PreFilter refused, turned round; `pod` is what is missing besides, if no Pod is available.
fn before_any_pod(rejection: &Rejection, pod: Option<&str>) -> String {
    let subject = rejection.subject.as_deref().unwrap_or_default();
    let with_pod = |change: String, why: &str| pod.map_or_else(|| change.clone(), |pod| format!("{change}{why}{pod}"));
    match rejection.reason.code {
        "WorkspaceNotFound" => with_pod(format!("workspace {subject} must be created and become Bound"), ", which needs "),
        "WorkspacePending" => with_pod(format!("workspace {subject} must be Bound"), ", which needs "),
        "WorkspaceLost" | "WorkspaceReleased" | "WorkspaceDeleting" => {
            format!("another workspace: {subject} does not come back; recreate it under this name or name another in a new Run")
        }
        "WorkspaceRuntimeMismatch" => format!("workspace {subject} must be of the Run's runtime; it can't change, so name another in a new Run"),
        "WorkspaceUnfenced" => format!("workspace {subject} must tell status.boundPodUID"),
        "NoAffinityTarget" => with_pod(format!("label {subject} on an active Run of this runtime"), ", and "),
        _ => format!("end of: {rejection}"),
    }
}

/// One plugin's rejection of one Pod, turned round, and how many hurdles it is; `None` if nothing changes it.
fn step(plugin: &str, rejection: &Rejection, pod: &PodExplanation) -> Option<(usize, String)> {
    let text = match rejection.reason.code {
        "InsufficientCapacity" => {
            let drained = pod.short.iter().any(|short| short.capacity == 0);
            return Some((if drained { ON_PURPOSE } else { 1 }, pod.short.iter().map(slots).collect::<Vec<_>>().join(" and ")));
        }
        // A workspace never moves, and who terminates does not come back.
        "NotBoundToWorkspace" | "PodTerminating" => return None,
        "HeartbeatStale" | "HeartbeatMissing" => "a fresh heartbeat".into(),
        "PodNotRunning" | "PodNotReady" => "readiness".into(),
        "RequiredAffinityUnmet" => "an active Run that the required affinity matches".into(),
        "AntiAffinityMatched" => "the end of the Run that it avoids".into(),
        "AntiAffinityOfPlacedRun" => "the end of the Run that avoids it".into(),
        "NoWorkspaceAgent" => "an agent that honours workspaces".into(),
        _ => format!("end of {plugin}'s {rejection}"),
    };
    Some((1, text))
}

fn slots(short: &Short) -> String {
    match (&*short.resource, short.missing) {
        (RESOURCE_RUNS, _) if short.capacity == 0 => "the end of the drain (capacity.runs is 0)".into(),
        (other, n) if short.capacity == 0 => format!("an offer of {n} {other}"),
        (RESOURCE_RUNS, 1) => "one more slot".into(),
        (RESOURCE_RUNS, n) => format!("{n} more slots"),
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
    static ENDING: Reason = Reason { code: "PodTerminating", text: "terminating" };
    static ELSEWHERE: Reason = Reason { code: "NotBoundToWorkspace", text: "not bound to workspace {}" };
    static UNBOUND: Reason = Reason { code: "WorkspacePending", text: "workspace {} not bound yet" };
    static NO_TARGET: Reason = Reason { code: "NoAffinityTarget", text: "no active Run matches required affinity {}" };

    fn pod(name: &str, rejections: &[(&'static str, &'static Reason)], short: &[(&str, i128)]) -> PodExplanation {
        pod_of(name, rejections, short, 2)
    }

    fn pod_of(name: &str, rejections: &[(&'static str, &'static Reason)], short: &[(&str, i128)], capacity: i64) -> PodExplanation {
        PodExplanation {
            pod: name.into(),
            fits: rejections.is_empty(),
            verdicts: rejections.iter().map(|(plugin, reason)| (*plugin, Some(Rejection::about(reason, "runs")))).collect(),
            short: short.iter().map(|(resource, missing)| Short { resource: Arc::from(*resource), missing: *missing, capacity }).collect(),
        }
    }

    fn changes(pods: Vec<PodExplanation>) -> Vec<String> {
        smallest(&Explanation { runtime: "bash".into(), pods }, &Diagnosis::default(), None)
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
    fn what_cannot_change_or_was_done_on_purpose_is_not_asked_for() {
        let full = |name: &str| pod(name, &[("Capacity", &ROOM)], &[("runs", 1)]);
        let drained = |name: &str| pod_of(name, &[("Capacity", &ROOM)], &[("runs", 1)], 0);
        let elsewhere = |name: &str| pod(name, &[("WorkspaceFencing", &ELSEWHERE)], &[]);
        let ending = pod("t", &[("RuntimeReady", &ENDING)], &[]);
        let anew = "a Pod with label runtime=bash that is ready and has room";
        let back = "the return of Pod q, which has the Run's workspace: a workspace never moves";
        let of = |pods: Vec<PodExplanation>, bound| smallest(&Explanation { runtime: "bash".into(), pods }, &Diagnosis::default(), bound);
        assert_eq!(of(vec![full("q"), elsewhere("r"), elsewhere("s")], Some("q")), ["one more slot on Pod q"]);
        assert_eq!(of(vec![elsewhere("r"), elsewhere("s")], Some("q")), [back]);
        assert_eq!(of(vec![ending.clone()], None), [anew]);
        assert_eq!(of(vec![full("a"), drained("b"), ending], None), ["one more slot on Pod a"]);
        assert_eq!(of(vec![drained("a"), drained("b")], None), ["the end of the drain (capacity.runs is 0) on any of 2 Pods"]);
        assert_eq!(of(vec![pod_of("a", &[("Capacity", &ROOM)], &[("gpu", 4)], 0)], None), ["an offer of 4 gpu on Pod a"]);
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
        let of = |diagnosis: &Diagnosis, pods: Vec<PodExplanation>| smallest(&Explanation { runtime: "bash".into(), pods }, diagnosis, None);
        assert_eq!(of(&diagnosis, vec![pod("a", &[], &[])]), ["label app=x on an active Run of this runtime"]);
        let ready = "a Pod with label runtime=bash that is ready";
        assert_eq!(of(&diagnosis, Vec::new()), [format!("label app=x on an active Run of this runtime, and {ready}")]);
        let unbound = Diagnosis { refused: Some(("WorkspaceFencing", Rejection::about(&UNBOUND, "w"))), ..Diagnosis::default() };
        let stale = || vec![pod("a", &[("RuntimeReady", &STALE)], &[])];
        assert_eq!(of(&unbound, stale()), [format!("workspace w must be Bound, which needs {ready}")]);
        assert_eq!(of(&unbound, vec![pod("a", &[], &[])]), ["workspace w must be Bound"]);
    }
}
