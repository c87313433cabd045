//! What the adapter makes of recorded states of a real node: each row of the observations is a fixture, and its verdict the expectation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use serde_json::{Value, from_value, json};

use super::observe::look;
use super::verdict::{Earlier, execution};
use super::*;
use crate::job::api::kubernetes::InjectedContainers;
use crate::job::machine::{Backend, Ending, Execution, GiveUp, Started, Wait};
use crate::job::reason::{Failure, NotScheduled, Unfinished, Unobserved};
use berth_runtime::informer::Stored;
use k8s_openapi::jiff::Timestamp;

const NOW: &str = "2026-11-29T10:10:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn merge(into: &mut Value, with: &Value) {
    for (field, value) in with.as_object().unwrap() {
        match (&mut into[field.as_str()], value) {
            (old @ Value::Object(_), Value::Object(_)) => merge(old, value),
            (old, value) => *old = value.clone(),
        }
    }
}

/// A Pod of the execution, released and on a node since 10:00:00, with `changes`.
fn pod(changes: Value) -> SeenPod {
    let mut pod = json!({
        "metadata": {"name": "ayj-u-1-abcde", "uid": "p-1", "namespace": "ci", "creationTimestamp": "2026-11-29T09:59:59Z",
            "labels": {"execution.ayatori.ddupan.top/job-uid": "u-1", "execution.ayatori.ddupan.top/job-name": "hello"},
            "finalizers": ["batch.kubernetes.io/job-tracking", names::FINALIZER_RESULT],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "ayj-u-1", "uid": "j-1", "controller": true}]},
        "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T10:00:00Z"}]},
    });
    merge(&mut pod, &changes);
    SeenPod::of(&from_value(pod).unwrap())
}

/// The same with this state of container `main`.
fn main(phase: &str, state: Value) -> Value {
    json!({"status": {"phase": phase, "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]}})
}

fn terminated(code: i32, reason: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": "2026-11-29T10:00:05Z", "finishedAt": "2026-11-29T10:05:00Z"}})
}

/// `changes` and then `more`.
fn and(mut changes: Value, more: Value) -> Value {
    merge(&mut changes, &more);
    changes
}

/// Being deleted since that time, with a grace of 30 s.
fn deleted(due: &str) -> Value {
    json!({"metadata": {"deletionTimestamp": due, "deletionGracePeriodSeconds": 30}})
}

fn circumstances() -> Circumstances<'static> {
    let graces = Graces { pull: Duration::from_secs(300), create: Duration::from_secs(600) };
    static NONE: Clues = Clues { refusal: None, missing_pull_secret: None, node: NodeFate::Unknown };
    Circumstances { now: at(NOW), earlier: Earlier::default(), graces, clues: &NONE, image: "r/a:1" }
}

fn seen(changes: Value) -> Execution {
    execution(&pod(changes), &circumstances())
}

fn begun() -> Started {
    Started { at: at("2026-11-29T10:00:05Z"), earliest: at("2026-11-29T10:00:00Z") }
}

fn exited(code: i32, oom: bool) -> Execution {
    let message = if oom { format!("exit code {code}; a process of it was ended for using too much memory") } else { format!("exit code {code}") };
    Execution::Ended(Ending::Exited { code, oom, started: Some(begun()), message })
}

#[track_caller]
fn stopped(execution: Execution, code: Option<i32>, ran: bool, words: &str) {
    match execution {
        Execution::Ended(Ending::Stopped { code: found, started, message }) => {
            assert!(found == code && started.is_some() == ran && message.contains(words), "{found:?} {started:?} {message}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn never_started(execution: Execution, failure: Failure, words: &str) {
    match execution {
        Execution::Ended(Ending::NeverStarted { failure: found, message }) => assert!(found == failure && message.contains(words), "{found:?} {message}"),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn lost(execution: Execution, words: &str) {
    match execution {
        Execution::Unknown { reason: Unobserved::NodeLost, message } => assert!(message.contains(words), "{message}"),
        other => panic!("{other:?}"),
    }
}

// Observations, §1: the order of events.

#[test]
fn a_gated_pod_is_idle_and_one_that_is_deleted_never_runs() {
    let gated = || json!({"spec": {"nodeName": null, "schedulingGates": [{"name": names::GATE_START}]}, "status": {"conditions": []}});
    assert_eq!(seen(gated()), Execution::Idle);
    stopped(seen(and(gated(), deleted("2026-11-29T10:05:00Z"))), None, false, "before it was started");
    // The gate came off after the deletion: still no node, and never one.
    let ungated = json!({"spec": {"nodeName": null}, "status": {"conditions": []}});
    stopped(seen(and(ungated, deleted("2026-11-29T10:05:00Z"))), None, false, "before it had a node");
}

#[test]
fn before_the_container_runs() {
    for state in [json!({"waiting": {"reason": "ContainerCreating"}}), json!({"waiting": {"reason": "PodInitializing"}})] {
        assert_eq!(seen(main("Pending", state)), Execution::Starting(None));
    }
    assert_eq!(seen(json!({})), Execution::Starting(None), "the kubelet has said nothing yet");
    let unschedulable = json!({"spec": {"nodeName": null}, "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu."}]}});
    let wait = Wait { reason: Unfinished::WaitingForNode, message: "0/1 nodes are available: 1 Insufficient cpu.".into(), give_up: None };
    assert_eq!(seen(unschedulable), Execution::Starting(Some(wait)));
}

#[test]
fn the_container_runs() {
    let running = || json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}});
    assert_eq!(seen(main("Running", running())), Execution::Running(begun()));
    // Seen waiting after it got its node: it can't have begun before.
    let earlier = Earlier { waited_until: Some(at("2026-11-29T10:00:09Z")), ..Earlier::default() };
    let late = Circumstances { earlier, ..circumstances() };
    let expected = Started { at: at("2026-11-29T10:00:05Z"), earliest: at("2026-11-29T10:00:09Z") };
    assert_eq!(execution(&pod(main("Running", running())), &late), Execution::Running(expected));
    // A clock of the node that knows nothing.
    let now = Started { at: at(NOW), earliest: at("2026-11-29T10:00:00Z") };
    assert_eq!(seen(main("Running", json!({"running": {"startedAt": "1970-01-01T00:00:00Z"}}))), Execution::Running(now));
}

/// 14 of 40 Pods never showed `running`: phase Pending and terminated, or phase Running and terminated.
#[test]
fn running_is_not_always_seen() {
    for phase in ["Pending", "Running", "Succeeded"] {
        assert_eq!(seen(main(phase, terminated(0, "Completed"))), exited(0, false), "{phase}");
    }
}

// Observations, §2: the container ran and ended.

#[test]
fn the_container_ended() {
    for (name, phase, code, reason, expected) in [
        ("exit 0", "Succeeded", 0, "Completed", exited(0, false)),
        ("exit 3", "Failed", 3, "Error", exited(3, false)),
        ("kills itself with SIGKILL", "Failed", 137, "Error", exited(137, false)),
        ("main process over its memory limit", "Failed", 137, "OOMKilled", exited(137, true)),
        ("only a child over it, main exits 0", "Succeeded", 0, "OOMKilled", exited(0, true)),
        ("liveness probe fails", "Failed", 137, "Error", exited(137, false)),
    ] {
        assert_eq!(seen(main(phase, terminated(code, reason))), expected, "{name}");
    }
}

#[test]
fn evicted_by_its_kubelet_is_no_end_of_its_own_whatever_the_code() {
    for code in [137, 0] {
        let evicted = json!({"status": {"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi."}});
        stopped(seen(and(main("Failed", terminated(code, "Error")), evicted)), Some(code), true, "Evicted: Pod ephemeral local storage usage");
    }
}

#[test]
fn the_result_is_that_of_main_whatever_else_is_in_the_pod() {
    let with = |phase: &str, main: Value, other: Value| {
        let status = |name: &str, state: Value| json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        json!({"spec": {"containers": [{"name": "main"}, {"name": "proxy"}]},
            "status": {"phase": phase, "containerStatuses": [status("proxy", other), status("main", main)]}})
    };
    let runs = json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}});
    assert_eq!(seen(with("Running", terminated(3, "Error"), runs.clone())), exited(3, false), "a second container still runs");
    assert_eq!(seen(with("Failed", terminated(0, "Completed"), terminated(137, "Error"))), exited(0, false), "the second failed");
    let seen = pod(with("Running", terminated(0, "Completed"), runs));
    assert!(seen.others_run && seen.injected == ["proxy"]);
}

/// What a container leaves as its last words may be a log, or a secret: neither is told.
#[test]
fn a_termination_message_is_not_told() {
    let mut state = terminated(3, "Error");
    state["terminated"]["message"] = json!("bad\ncanary");
    assert_eq!(seen(main("Failed", state)), exited(3, false));
}

#[test]
fn a_sidecar_that_is_ended_after_main_decides_nothing() {
    let sidecar = json!([{"name": "proxy", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": terminated(137, "Error")}]);
    let ended = and(main("Succeeded", terminated(0, "Completed")), json!({"status": {"initContainerStatuses": sidecar}}));
    assert_eq!(seen(ended), exited(0, false));
}

/// A deadline that somebody put into the Pod; ours is not there.
#[test]
fn a_pod_s_own_deadline_is_a_stop() {
    let over = json!({"status": {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}});
    stopped(seen(and(main("Failed", terminated(137, "Error")), over)), Some(137), true, "DeadlineExceeded: Pod was active");
}

#[test]
fn an_init_container_that_failed() {
    let init = json!([{"name": "inject", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": terminated(7, "Error")}]);
    let failed = and(main("Failed", json!({"waiting": {"reason": "PodInitializing"}})), json!({"status": {"initContainerStatuses": init}}));
    never_started(seen(failed.clone()), Failure::StartFailed, "init container inject ended with exit code 7");
    // One that was told to stop has not failed.
    stopped(seen(and(failed, deleted("2026-11-29T10:05:20Z"))), None, false, "before the process began");
}

// Observations, §3: the container never ran.

#[test]
fn images_that_cant_be_pulled_are_waited_for_for_the_class_s_grace() {
    let waiting = |reason: &str, message: &str| main("Pending", json!({"waiting": {"reason": reason, "message": message}}));
    let image = |failure, seconds, message: &str| {
        let give_up = Some(GiveUp { failure, after: Duration::from_secs(seconds) });
        Execution::Starting(Some(Wait { reason: Unfinished::WaitingForImage, message: message.into(), give_up }))
    };
    let cause = "rpc error: code = NotFound desc = failed to pull: r/a:1: not found";
    assert_eq!(seen(waiting("ErrImagePull", cause)), image(Failure::ImagePullFailed, 300, cause));
    let backing_off = format!("Back-off pulling image \"r/a:1\": ErrImagePull: {cause}");
    assert_eq!(seen(waiting("ImagePullBackOff", &backing_off)), image(Failure::ImagePullFailed, 300, cause), "the same text: it alternates for ever");
    assert_eq!(seen(waiting("ErrImageNeverPull", "x")), image(Failure::ImagePullFailed, 0, "the node has no image r/a:1, and the class forbids to pull it"));
    assert_eq!(seen(waiting("InvalidImageName", "x")), image(Failure::InvalidImageName, 0, "r/a:1 is no name of an image"));
    let clues = Clues { missing_pull_secret: Some("Unable to retrieve some image pull secrets (late)".into()), ..Clues::default() };
    let missing = Circumstances { clues: &clues, ..circumstances() };
    let expected = image(Failure::ImagePullSecretUnavailable, 300, "Unable to retrieve some image pull secrets (late)");
    assert_eq!(execution(&pod(waiting("ErrImagePull", "401 Unauthorized")), &missing), expected);
}

#[test]
fn missing_references_are_waited_for_for_ever_and_other_refusals_for_the_class_s_grace() {
    let waiting = |reason: &str, message: &str| seen(main("Pending", json!({"waiting": {"reason": reason, "message": message}})));
    for message in
        ["secret \"late\" not found", "configmap \"late\" not found", "couldn't find key token in Secret ci/late", "couldn't find key a in ConfigMap ci/late"]
    {
        let wait = Wait { reason: Unfinished::WaitingForReference, message: message.into(), give_up: None };
        assert_eq!(waiting("CreateContainerConfigError", message), Execution::Starting(Some(wait)), "{message}");
    }
    for (reason, message) in [
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root (pod: \"x\", container: main)"),
        ("CreateContainerError", "failed to create containerd container"),
        ("RunContainerError", "context deadline exceeded"),
    ] {
        let give_up = Some(GiveUp { failure: Failure::ContainerCreateFailed, after: Duration::from_secs(600) });
        assert_eq!(waiting(reason, message), Execution::Starting(Some(Wait { reason: Unfinished::WaitingForContainer, message: message.into(), give_up })));
    }
}

#[test]
fn a_command_that_does_not_exist() {
    let state = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: \"nope\": executable file not found in $PATH",
        "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "2026-11-29T10:05:00Z"}});
    never_started(seen(main("Failed", state)), Failure::StartFailed, "exec: \"nope\": executable file not found");
}

#[test]
fn a_pod_that_the_kubelet_refused() {
    let refused = json!({"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu", "conditions": []}});
    never_started(seen(refused.clone()), Failure::PodRejected, "OutOfcpu: Node didn't have enough resource: cpu");
    let disrupted = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}});
    stopped(seen(and(refused, disrupted)), None, false, "OutOfcpu");
}

#[test]
fn deleted_while_the_image_is_pulled() {
    // Waiting goes back to ContainerCreating, then Failed with an invented code.
    let creating = and(main("Pending", json!({"waiting": {"reason": "ContainerCreating"}})), deleted("2026-11-29T10:10:20Z"));
    assert_eq!(seen(creating), Execution::Starting(None));
    let invented = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": null, "finishedAt": null,
        "message": "The container could not be located when the pod was terminated"}});
    stopped(seen(and(main("Failed", invented), deleted("2026-11-29T10:10:20Z"))), None, false, "exit code is not known");
}

#[test]
fn an_invented_code_of_year_one_is_none_either() {
    for time in ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z"] {
        let state = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": time, "finishedAt": time}});
        stopped(seen(main("Failed", state)), None, false, "not known");
    }
}

// Observations, §4: deleted from outside while running.

#[test]
fn deleted_while_running_until_it_has_ended() {
    let running = main("Running", json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}}));
    assert_eq!(seen(and(running.clone(), deleted("2026-11-29T10:10:20Z"))), Execution::Running(begun()), "phase stays Running");
    lost(seen(and(running, deleted("2026-11-29T10:09:00Z"))), "has not ended the Pod in its grace period");
}

/// Asked for at 10:04:50 (due 10:05:20). The process ended at 10:05:00.
#[test]
fn an_end_after_the_deletion_was_asked_for_is_a_stop() {
    for (code, phase) in [(0, "Succeeded"), (143, "Failed"), (137, "Failed")] {
        let ended = main(phase, terminated(code, if code == 0 { "Completed" } else { "Error" }));
        stopped(seen(and(ended, deleted("2026-11-29T10:05:20Z"))), Some(code), true, "the Pod was deleted");
    }
}

#[test]
fn an_end_before_the_deletion_is_its_own_and_the_same_second_proves_nothing() {
    // Asked for at 10:05:01: a second after the end.
    assert_eq!(seen(and(main("Succeeded", terminated(0, "Completed")), deleted("2026-11-29T10:05:31Z"))), exited(0, false));
    assert_eq!(seen(and(main("Failed", terminated(3, "Error")), deleted("2026-11-29T10:05:31Z"))), exited(3, false));
    // Asked for at 10:05:00: a tie.
    stopped(seen(and(main("Succeeded", terminated(0, "Completed")), deleted("2026-11-29T10:05:30Z"))), Some(0), true, "");
}

/// A kubelet deletes a Pod that it has ended with a grace of 0, and the API server then puts the time of that as the deletion's: here 10:05:02, two
/// seconds after the end. The Pod is held, so that is what is left to be read.
#[test]
fn the_kubelets_last_word_about_a_pod_is_no_time_at_which_its_deletion_was_asked_for() {
    for (code, phase) in [(0, "Succeeded"), (143, "Failed"), (3, "Failed")] {
        for grace in [0, 1] {
            let last_word = json!({"metadata": {"deletionTimestamp": "2026-11-29T10:05:02Z", "deletionGracePeriodSeconds": grace}});
            let pod = pod(and(main(phase, terminated(code, "")), last_word));
            let judged = |earlier| execution(&pod, &Circumstances { earlier, ..circumstances() });
            stopped(judged(Earlier::default()), Some(code), true, "the Pod was deleted");
            let asked = |text| Earlier { deletion_requested: Some(at(text)), ..Earlier::default() };
            stopped(judged(asked("2026-11-29T10:04:50Z")), Some(code), true, "the Pod was deleted");
            stopped(judged(asked("2026-11-29T10:05:00Z")), Some(code), true, "the Pod was deleted");
            // Whoever saw it before knows better.
            assert_eq!(judged(asked("2026-11-29T10:05:01Z")), exited(code, false));
            assert_eq!(judged(Earlier { ended_undeleted: true, ..Earlier::default() }), exited(code, false));
        }
    }
    // Nothing that was seen makes an eviction the process's own end.
    let evicted = and(main("Failed", terminated(0, "Completed")), json!({"status": {"reason": "Evicted", "message": "disk"}}));
    let earlier = Earlier { ended_undeleted: true, ..Earlier::default() };
    stopped(execution(&pod(evicted), &Circumstances { earlier, ..circumstances() }), Some(0), true, "Evicted: disk");
}

/// The node's clock is two seconds behind: what it ended at 10:05:02, when it was told to at 10:05:01, it says to have ended before that.
#[test]
fn a_node_whose_clock_is_behind_makes_a_stop_no_end_of_its_own() {
    for (code, phase) in [(0, "Succeeded"), (143, "Failed")] {
        let ended = pod(and(main(phase, terminated(code, "")), deleted("2026-11-29T10:05:31Z")));
        let judged = |running_by: Option<&str>| {
            execution(&ended, &Circumstances { earlier: Earlier { running_by: running_by.map(at), ..Earlier::default() }, ..circumstances() })
        };
        // It ran for 295 s, by its node's clock, and had begun by 10:00:07 by ours.
        stopped(judged(Some("2026-11-29T10:00:07Z")), Some(code), true, "the Pod was deleted");
        assert_eq!(judged(Some("2026-11-29T10:00:05Z")), exited(code, false), "it had ended a second before");
        assert_eq!(judged(None), exited(code, false), "after a restart the clocks are all there is");
    }
}

#[test]
fn evicted_through_the_api() {
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T10:00:00Z"});
    let disruption = |reason: &str| json!({"status": {"conditions": [scheduled, {"type": "DisruptionTarget", "status": "True", "reason": reason}]}});
    let evicted = and(and(main("Failed", terminated(143, "Error")), deleted("2026-11-29T10:05:20Z")), disruption("EvictionByEvictionAPI"));
    stopped(seen(evicted), Some(143), true, "the Pod was deleted (EvictionByEvictionAPI)");
    // The condition alone decides nothing: it ended before anything came of it.
    let spared = and(main("Succeeded", terminated(0, "Completed")), disruption("EvictionByEvictionAPI"));
    assert_eq!(seen(spared), exited(0, false));
}

// Observations, §5: the node is lost.

#[test]
fn a_node_that_does_not_report() {
    let conditions = json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T10:00:00Z"},
        {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
    let silent = || and(main("Running", json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}})), json!({"status": {"conditions": conditions}}));
    lost(seen(silent()), "node n doesn't report");
    // The taint manager deletes it; nothing is known until the kubelet is back.
    lost(seen(and(silent(), deleted("2026-11-29T10:10:20Z"))), "node n doesn't report");
    // A readiness gate that somebody injected is another matter: it has a reason.
    let gate = json!([{"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}, {"type": "ContainersReady", "status": "True"}]);
    let gated = and(main("Running", json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}})), json!({"status": {"conditions": gate}}));
    assert!(matches!(seen(gated), Execution::Running(_)));
}

#[test]
fn a_pod_that_the_control_plane_gave_up_may_still_run() {
    let given_up = || {
        let disruption = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]}});
        let running = main("Failed", json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}}));
        and(and(running, json!({"metadata": {"deletionTimestamp": "2026-11-29T10:05:00Z", "deletionGracePeriodSeconds": 0}})), disruption)
    };
    lost(seen(given_up()), "given up while its process was running");
    let clues = Clues { node: NodeFate::Over, ..Clues::default() };
    let over = Circumstances { clues: &clues, ..circumstances() };
    stopped(execution(&pod(given_up()), &over), None, true, "node n is out of service");
}

/// The node was lost while the image was pulled, which a kubelet goes on with; then the Node object was deleted.
#[test]
fn a_pod_that_was_given_up_before_its_process_was_seen_may_begin_it() {
    let disruption = |reason: &str| json!({"status": {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}});
    let clues = Clues { node: NodeFate::Over, ..Clues::default() };
    let over = Circumstances { clues: &clues, ..circumstances() };
    for state in [Some(json!({"waiting": {"reason": "ContainerCreating"}})), None] {
        let state = state.map_or_else(|| json!({}), |state| main("Failed", state));
        let given_up = and(and(state.clone(), deleted("2026-11-29T10:05:00Z")), disruption("DeletionByPodGC"));
        assert!(is_given_up_without_its_node(&pod(given_up.clone())));
        lost(seen(given_up.clone()), "its process may have begun since");
        stopped(execution(&pod(given_up), &over), None, false, "before the process began");
        // What the kubelet itself has ended can't begin.
        stopped(seen(and(state, disruption("TerminationByKubelet"))), None, false, "before the process began");
    }
}

/// The kubelet tells that the process has ended before it tells that it was the one who ended it.
#[test]
fn what_the_node_had_decided_to_end_did_not_end_by_itself() {
    let failed = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PodFailed"}]}});
    let running = and(main("Running", json!({"running": {"startedAt": "2026-11-29T10:00:05Z"}})), failed.clone());
    assert!(pod(running).is_being_ended);
    let ended = pod(and(main("Running", terminated(0, "Completed")), failed));
    assert!(!ended.is_being_ended, "PodFailed is what any failure says then");
    let earlier = Earlier { was_being_ended: true, ..Earlier::default() };
    stopped(execution(&ended, &Circumstances { earlier, ..circumstances() }), Some(0), true, "the node ended the Pod");
}

#[test]
fn ended_during_the_outage_and_told_when_the_kubelet_is_back() {
    // Lost for 95 s, not evicted: true times.
    assert_eq!(seen(main("Succeeded", terminated(0, "Completed"))), exited(0, false));
    // Evicted meanwhile (asked for at 10:05:30), but it had ended before.
    assert_eq!(seen(and(main("Succeeded", terminated(0, "Completed")), deleted("2026-11-29T10:06:00Z"))), exited(0, false));
    // It was running: killed when the kubelet came back.
    stopped(seen(and(main("Failed", terminated(137, "Error")), deleted("2026-11-29T10:05:20Z"))), Some(137), true, "");
}

// What belongs to a Job.

fn native(changes: &Value) -> Stored<SeenNative> {
    let mut job = json!({"metadata": {"name": "ayj-u-1", "uid": "j-1", "namespace": "ci", "creationTimestamp": "2026-11-29T09:59:58Z",
        "ownerReferences": [{"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job", "name": "hello", "uid": "u-1", "controller": true}],
        "annotations": {"execution.ayatori.ddupan.top/built-of": "this"},
        "labels": {"execution.ayatori.ddupan.top/job-uid": "u-1", "execution.ayatori.ddupan.top/job-name": "hello"}}});
    merge(&mut job, changes);
    let job: batch::Job = from_value(job).unwrap();
    stored(&job.metadata, SeenNative::of(&job))
}

fn known(native: Option<Stored<SeenNative>>, pods: Vec<SeenPod>) -> Known {
    let store = |pod: SeenPod| {
        let meta = kube::core::ObjectMeta { name: Some(pod.name.clone()), uid: Some(pod.uid.clone()), ..Default::default() };
        stored(&meta, pod)
    };
    Known { wanted: Some("this".to_owned()), ..Known::new("u-1", &[], native, pods.into_iter().map(store).collect()) }
}

/// A gated Pod of that UID.
fn gated(uid: &str, changes: Value) -> SeenPod {
    let base = json!({"metadata": {"name": format!("ayj-u-1-{uid}"), "uid": uid}, "spec": {"nodeName": null, "schedulingGates": [{"name": names::GATE_START}]}, "status": {"conditions": []}});
    pod(and(base, changes))
}

fn looked(recorded: Option<&str>, known: &Known, clues: &Clues) -> Seen {
    look("u-1", recorded, known, &InjectedContainers::StopAfterMain, &Circumstances { clues, ..circumstances() })
}

#[test]
fn an_execution_is_the_oldest_pod_of_the_native_job_until_one_is_on_record() {
    let younger = json!({"metadata": {"creationTimestamp": "2026-11-29T10:00:30Z"}});
    let both = known(Some(native(&json!({}))), vec![gated("b", younger), gated("a", json!({}))]);
    let seen = looked(None, &both, &Clues::default());
    let ids: Vec<_> = seen.backend.references.iter().map(|reference| (reference.type_.as_str(), reference.id.as_str())).collect();
    assert_eq!((seen.backend.execution.clone(), ids), (Execution::Idle, vec![("Job", "j-1"), ("Pod", "a")]));
    assert!(!seen.backend.strays && seen.backend.leftovers);
    let seen = looked(Some("b"), &both, &Clues::default());
    assert!(seen.backend.strays, "the other one must go");
    assert_eq!(seen.backend.references.last().map(|reference| reference.id.as_str()), Some("b"));
    // A replacement is no execution once one is on record.
    let replaced = known(Some(native(&json!({}))), vec![gated("c", json!({}))]);
    let seen = looked(Some("a"), &replaced, &Clues::default());
    assert_eq!((seen.backend.execution, seen.backend.strays), (Execution::Absent, true));
}

#[test]
fn a_label_makes_nothing_ours() {
    let foreign = json!({"metadata": {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "other", "controller": true}]}});
    // A person's copy of the Pod (kubectl debug --copy-to --keep-labels), beside the execution.
    let copy = pod(json!({"metadata": {"name": "debug", "uid": "copy", "ownerReferences": null}}));
    let both = known(Some(native(&json!({}))), vec![gated("a", json!({})), copy]);
    assert_eq!(both.pods.iter().map(|pod| &*pod.uid).collect::<Vec<_>>(), ["a"]);
    // Cut off from its native Job by a deletion that orphans, it is known by its name.
    let orphan = gated("a", json!({"metadata": {"ownerReferences": null}}));
    assert_eq!(known(None, vec![orphan]).pods.len(), 1);
    let seen = looked(None, &known(Some(native(&json!({}))), vec![gated("x", foreign)]), &Clues::default());
    assert_eq!((seen.backend.execution, seen.backend.references.len()), (Execution::Absent, 0));
    let usurper = native(&json!({"metadata": {"labels": {"execution.ayatori.ddupan.top/job-uid": "other"}}}));
    let seen = looked(None, &known(Some(usurper), vec![]), &Clues::default());
    assert!(!seen.backend.leftovers, "it is not ours to remove");
    let give_up = Some(GiveUp { failure: Failure::BackendNameConflict, after: Duration::from_secs(600) });
    let message = "Job ayj-u-1 of batch/v1 exists and is not this Job's".to_owned();
    assert_eq!(seen.attempt, Some(Attempt::Later { reason: NotScheduled::BackendNameConflict, message, give_up }));
}

#[test]
fn only_what_this_job_would_make_now_becomes_its_execution() {
    let of_another_class = native(&json!({"metadata": {"annotations": {names::ANNOTATION_BUILT_OF: "that"}}}));
    let made_by_others = native(&json!({"metadata": {"ownerReferences": null}}));
    for native in [of_another_class, made_by_others.clone()] {
        let seen = looked(None, &known(Some(native.clone()), vec![gated("a", json!({}))]), &Clues::default());
        assert_eq!((seen.backend.execution, seen.backend.references.len(), seen.attempt), (Execution::Absent, 0, None));
        assert!(seen.backend.leftovers, "it is made anew");
        // Once on record it is what it is.
        let seen = looked(Some("a"), &known(Some(native), vec![gated("a", json!({}))]), &Clues::default());
        assert_eq!(seen.backend.execution, Execution::Idle);
    }
    let seen = looked(None, &known(Some(made_by_others), vec![pod(json!({}))]), &Clues::default());
    assert!(matches!(seen.attempt, Some(Attempt::Later { reason: NotScheduled::BackendNameConflict, .. })), "{:?}", seen.attempt);
}

#[test]
fn resources_that_were_changed_on_the_way_are_told() {
    let given = |resources: Value| pod(json!({"spec": {"containers": [{"name": "main", "resources": resources}]}}));
    let accepted = |resources: Value| from_value(resources).unwrap();
    let same = given(json!({"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}));
    assert_eq!(adjusted(&same, &accepted(json!({"requests": {"cpu": "1000m"}, "limits": {"memory": "1024Mi"}}))), None);
    let message = "the Pod was given other resources than the Job was accepted with: requests.cpu 1 instead of 500m, limits.memory 1Gi instead of none";
    assert_eq!(adjusted(&same, &accepted(json!({"requests": {"cpu": "500m"}}))).as_deref(), Some(message));
    assert_eq!(adjusted(&given(json!({})), &accepted(json!({}))), None);
}

#[test]
fn a_pod_that_was_deleted_before_it_was_recorded_is_nothing_to_record() {
    let seen = looked(None, &known(Some(native(&json!({}))), vec![gated("a", deleted("2026-11-29T10:05:00Z"))]), &Clues::default());
    assert_eq!((seen.backend.execution, seen.backend.references.len(), seen.backend.leftovers), (Execution::Absent, 0, true));
}

#[test]
fn a_native_job_that_gets_no_pod_is_asked_why() {
    let young = native(&json!({"metadata": {"creationTimestamp": NOW}}));
    let refusal = || Clues { refusal: Some("exceeded quota: q".into()), ..Clues::default() };
    let both = known(Some(young), vec![]);
    assert!(!is_late(&both, "u-1", at(NOW)));
    let seen = looked(None, &both, &Clues::default());
    assert_eq!((seen.attempt, seen.look_again), (None, Some(at("2026-11-29T10:10:02Z"))));
    let old = known(Some(native(&json!({}))), vec![]);
    assert!(is_late(&old, "u-1", at(NOW)));
    let seen = looked(None, &old, &refusal());
    let give_up = Some(GiveUp { failure: Failure::PodRejected, after: Duration::from_secs(600) });
    assert_eq!(seen.attempt, Some(Attempt::Later { reason: NotScheduled::BackendRefuses, message: "exceeded quota: q".into(), give_up }));
    assert_eq!(seen.look_again, Some(at("2026-11-29T10:11:00Z")), "a trouble that has lasted is asked for seldom");
    let recent = native(&json!({"metadata": {"creationTimestamp": "2026-11-29T10:09:56Z"}}));
    assert_eq!(looked(None, &known(Some(recent), vec![]), &refusal()).look_again, Some(at("2026-11-29T10:10:05Z")));
    let finished = native(&json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}));
    assert!(!is_late(&known(Some(finished), vec![]), "u-1", at(NOW)));
}

#[test]
fn a_pod_is_held_until_the_native_job_has_seen_its_end() {
    let ended = || pod(main("Failed", terminated(3, "Error")));
    let finished = || native(&json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}));
    let held = |known: &Known| looked(Some("p-1"), known, &Clues::default()).backend.held;
    assert!(!held(&known(Some(native(&json!({}))), vec![ended()])));
    assert!(held(&known(Some(finished()), vec![ended()])));
    assert!(held(&known(None, vec![ended()])), "the native Job was deleted");
    let let_go = pod(and(main("Failed", terminated(3, "Error")), json!({"metadata": {"finalizers": []}})));
    assert!(!held(&known(Some(finished()), vec![let_go])));
    // What others put beside main is stopped once main's end is stored; it is asked for once.
    let beside =
        json!({"name": "proxy", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-29T10:00:05Z"}}});
    let with_proxy = || {
        let mut shown = main("Running", terminated(3, "Error"));
        shown["status"]["containerStatuses"].as_array_mut().unwrap().push(beside.clone());
        shown
    };
    assert!(held(&known(Some(native(&json!({}))), vec![pod(with_proxy())])));
    assert!(!held(&known(Some(native(&json!({}))), vec![pod(and(with_proxy(), deleted("2026-11-29T10:10:20Z")))])));
    let never = gated("p-1", deleted("2026-11-29T10:05:00Z"));
    assert!(held(&known(Some(native(&json!({}))), vec![never])), "nothing will ever end it");
}

#[test]
fn containers_of_others_are_stopped_after_main_or_refused() {
    let injected = gated("a", json!({"spec": {"containers": [{"name": "main"}, {"name": "proxy"}]}}));
    let both = known(Some(native(&json!({}))), vec![injected]);
    assert_eq!(looked(None, &both, &Clues::default()).backend.execution, Execution::Idle);
    let seen = look("u-1", None, &both, &InjectedContainers::Reject, &circumstances());
    let message = "containers were put into the Pod, and the class forbids it: proxy".to_owned();
    assert_eq!(seen.attempt, Some(Attempt::Refused { failure: Failure::ContainersInjected, message }));
    assert_eq!(seen.backend.execution, Execution::Absent);
}

#[test]
fn nothing_at_all_is_nothing() {
    assert_eq!(looked(None, &Known::default(), &Clues::default()), Seen { backend: Backend::default(), ..Seen::default() });
}
