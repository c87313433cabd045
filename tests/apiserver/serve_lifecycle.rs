//! Runs whose Pod can't run them any more, finished ones whose time is over, and what is cancelled when: `berth serve` on a real API server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_api::Run;
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::serve_leader::Candidate;
use super::serve_world::{Draft, World, condition, message, phase, run, time};

/// Longer than the lifecycle takes for what it does at once.
const A_WHILE: Duration = Duration::from_millis(1_500);
/// How long an agent must be silent (reference §3.9), and how long ago it may have beaten when it falls silent.
const LOST: Duration = Duration::from_secs(30);
const BEAT: Duration = Duration::from_secs(5);

/// A Run that may be tried twice.
fn retried(name: &str, backoff: &str) -> Draft {
    run(name).spec("retryPolicy", json!({"maxAttempts": 2, "backoff": backoff}))
}

/// Places a Run, and claims it as an agent does.
async fn claimed(world: &World<'_>, draft: Draft, name: &str, pod: &str) -> Result<()> {
    world.run(draft).await?;
    world.placed_on(name, pod).await?;
    let run = world.runs.get(name).await?;
    let mut conditions = json!(run.status.unwrap_or_default().conditions);
    if let Some(list) = conditions.as_array_mut() {
        list.push(
            json!({"type": "Running", "status": "True", "reason": "Claimed", "message": "claimed by runtimed", "lastTransitionTime": time(Timestamp::now())}),
        );
    }
    world.run_status(name, json!({"phase": "Running", "startTime": time(Timestamp::now()), "conditions": conditions})).await?;
    Ok(())
}

fn attempt(run: &Run) -> Option<i32> {
    run.status.as_ref().and_then(|status| status.attempt)
}

fn assigned(run: &Run) -> Option<&str> {
    run.status.as_ref().and_then(|status| status.assigned_pod.as_deref())
}

/// Condition `kind` as `status/reason`.
fn is(run: &Run, kind: &str) -> String {
    condition(run, kind).map_or_else(String::new, |(status, reason, _)| format!("{status}/{reason}"))
}

async fn terminating(world: &World<'_>, pod: &str) -> Result<()> {
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    world.pods.patch(pod, &PatchParams::default(), &Patch::Merge(hold)).await?;
    world.pods.delete(pod, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

#[tokio::test]
async fn a_deleted_pod_sends_its_runs_back_retries_fails_or_cancels_them_each_in_one_write() -> Result<()> {
    let world = World::new("lifecycle-deleted").await?;
    let berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    claimed(&world, run("failed"), "failed", "p").await?;
    claimed(&world, retried("retried", "3s"), "retried", "p").await?;
    let picky = run("picky").spec("retryPolicy", json!({"maxAttempts": 5, "retryableReasons": ["Timeout"]}));
    claimed(&world, picky, "picky", "p").await?;
    claimed(&world, run("cancelled"), "cancelled", "p").await?;
    world.patch_run("cancelled", json!({"spec": {"cancelRequested": true}})).await?;
    world.run(run("unclaimed")).await?;
    world.placed_on("unclaimed", "p").await?;
    world.delete_pod("p").await?;

    for (name, wanted, reason) in [("failed", "Failed", "PodGone"), ("picky", "Failed", "PodGone"), ("cancelled", "Cancelled", "Cancelled")] {
        let run = world.run_when(name, wanted, |run| phase(run) == wanted).await?;
        ensure!(is(&run, "Running") == format!("False/{reason}") && is(&run, "Completed") == format!("False/{reason}"), "{name}: {:?}", run.status);
        ensure!(run.status.as_ref().is_some_and(|status| status.completion_time.is_some()) && attempt(&run) == Some(1), "{name}: {:?}", run.status);
        ensure!(world.status_writes(name)? == 2, "{name}: placed once, ended once");
    }
    ensure!(message(&world.runs.get("failed").await?) == "assigned pod was deleted");
    ensure!(message(&world.runs.get("cancelled").await?) == "cancelled by user");
    let run = world.run_when("unclaimed", "sent back", |run| phase(run) == "Pending" && assigned(run).is_none()).await?;
    ensure!(attempt(&run).is_none() && condition(&run, "Running").is_none(), "the same attempt: {:?}", run.status);
    let run = world.run_when("retried", "sent back", |run| phase(run) == "Pending" && assigned(run).is_none()).await?;
    ensure!(attempt(&run) == Some(2) && is(&run, "Running") == "False/PodGone", "{:?}", run.status);
    ensure!(run.status.as_ref().is_some_and(|status| status.start_time.is_none() && status.assigned_pod_uid.is_none()), "{:?}", run.status);
    let lost_at = run.status.and_then(|status| status.conditions.into_iter().find(|c| c.type_ == "Running")).context("condition Running")?.last_transition_time;

    // Another Pod comes: who had not begun goes there at once, who is retried waits its backoff.
    world.pod("q", "bash", &[("runs", "9")]).await?;
    world.placed_on("unclaimed", "q").await?;
    world.placed_on("retried", "q").await?;
    let waited = Timestamp::now().duration_since(lost_at.0);
    ensure!(waited.as_secs() >= 3, "retried after {waited:?}");
    ensure!(attempt(&world.runs.get("retried").await?) == Some(2));

    for (name, type_, reason) in [
        ("failed", "Warning", "StaleRunFailed"),
        ("retried", "Warning", "StaleRunRetrying"),
        ("unclaimed", "Warning", "StaleRunUnassigned"),
        ("cancelled", "Normal", "StaleRunCancelled"),
    ] {
        let told = async || Ok(world.events(name, reason).await?.into_iter().find(|(is, note)| is == type_ && note.contains("(pod p)")));
        until(&format!("Event {reason} of {name}"), PATIENCE, told).await?;
    }
    let metrics = berth.metrics().await?;
    let acted = |action| metrics.sum("berth_run_lifecycle_total", &[("action", action)]);
    ensure!([acted("failed"), acted("retried"), acted("unassigned"), acted("cancelled"), acted("deleted")] == [2.0, 1.0, 1.0, 1.0, 0.0]);
    Ok(())
}

#[tokio::test]
async fn a_replaced_or_terminating_pod_loses_its_runs_at_once() -> Result<()> {
    let world = World::new("lifecycle-replaced").await?;
    let proxy = Proxy::start(world.plane).await?;
    let _berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    world.pod("p", "bash", &[]).await?;
    claimed(&world, run("replaced"), "replaced", "p").await?;
    proxy.hold_watches("pods");
    world.delete_pod("p").await?;
    world.pod("p", "bash", &[]).await?;
    proxy.release_watches("pods");
    let run_ = world.run_when("replaced", "Failed", |run| phase(run) == "Failed").await?;
    ensure!(message(&run_) == "assigned pod was replaced" && is(&run_, "Completed") == "False/PodGone", "{:?}", run_.status);

    world.pod("t", "python", &[("runs", "9")]).await?;
    claimed(&world, retried("retried", "1s").runtime("python"), "retried", "t").await?;
    world.run(run("unclaimed").runtime("python")).await?;
    world.placed_on("unclaimed", "t").await?;
    terminating(&world, "t").await?;
    let run_ = world.run_when("retried", "sent back", |run| phase(run) == "Pending" && attempt(run) == Some(2)).await?;
    ensure!(is(&run_, "Running") == "False/PodTerminating", "{:?}", run_.status);
    world.waits("unclaimed", &["1 terminating"]).await?;
    // It is not placed there again, however long the Pod takes.
    stays("Pending", A_WHILE, async || {
        let runs = [world.runs.get("retried").await?, world.runs.get("unclaimed").await?];
        Ok(runs.iter().all(|run| phase(run) == "Pending"))
    })
    .await
}

#[tokio::test]
async fn an_agent_silent_for_30_s_loses_its_runs_and_its_late_word_is_refused() -> Result<()> {
    let world = World::new("lifecycle-silent").await?;
    let _berth = world.berth().await?;
    world.pod("silent", "bash", &[]).await?;
    world.pod("unready", "python", &[]).await?;
    claimed(&world, retried("retried", "1s"), "retried", "silent").await?;
    claimed(&world, run("failed").runtime("python"), "failed", "unready").await?;
    let old = world.runs.get("retried").await?;
    let since = Instant::now();
    world.silence("silent");
    world.pod_status("unready", false, Timestamp::now()).await?;
    let run_ = world.run_when("retried", "sent back", |run| phase(run) == "Pending").await?;
    ensure!(since.elapsed() >= LOST - BEAT, "{:?}", since.elapsed());
    ensure!(attempt(&run_) == Some(2) && is(&run_, "Running") == "False/PodUnhealthy", "{:?}", run_.status);
    let run_ = world.run_when("failed", "Failed", |run| phase(run) == "Failed").await?;
    ensure!(since.elapsed() >= LOST && message(&run_) == "assigned pod is not ready", "{:?} {:?}", since.elapsed(), run_.status);

    // The old agent comes back and says what became of the first attempt: by compare-and-swap, as agents must.
    let late = json!({"metadata": {"uid": old.metadata.uid, "resourceVersion": old.metadata.resource_version}, "status": {"phase": "Succeeded"}});
    let refused = world.runs.patch_status("retried", &PatchParams::default(), &Patch::Merge(late)).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.is_conflict()), "{refused:?}");
    // It is placed again as soon as its Pod beats again.
    world.pod_status("silent", true, Timestamp::now()).await?;
    world.placed_on("retried", "silent").await?;
    ensure!(attempt(&world.runs.get("retried").await?) == Some(2));
    Ok(())
}

#[tokio::test]
async fn a_pod_whose_agent_says_that_it_goes_on_keeps_the_runs_it_has_and_loses_those_it_has_not_begun() -> Result<()> {
    let world = World::new("lifecycle-cordoned").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    claimed(&world, retried("begun", "1s"), "begun", "p").await?;
    for name in ["unclaimed", "cancelled"] {
        world.run(run(name)).await?;
        world.placed_on(name, "p").await?;
    }
    world.silence("p");
    let cordoned = async || {
        let beat = json!({"type": "kruntimes.io/RuntimedReady", "status": "False", "reason": "Cordoned", "lastProbeTime": time(Timestamp::now())});
        world.pods.patch_status("p", &PatchParams::default(), &Patch::Strategic(json!({"status": {"conditions": [beat]}}))).await
    };
    cordoned().await?;
    let since = Instant::now();
    world.patch_run("cancelled", json!({"spec": {"cancelRequested": true}})).await?;
    let mut sent_back = None;
    while since.elapsed() < LOST * 2 || (sent_back.is_none() && since.elapsed() < LOST * 3) {
        tokio::time::sleep(BEAT / 2).await;
        cordoned().await?;
        if sent_back.is_none() && phase(&world.runs.get("unclaimed").await?) == "Pending" {
            sent_back = Some(since.elapsed());
        }
    }
    let after = sent_back.context("it was never sent back")?;
    eprintln!("a Run that was not begun was sent back after {after:?}; 30 s are asked for");
    ensure!(after >= LOST - BEAT && after <= LOST * 3, "{after:?}");
    let begun = world.runs.get("begun").await?;
    ensure!(phase(&begun) == "Running" && begun.attempt() == 1, "{:?}", begun.status);
    world.waits("unclaimed", &["1 without heartbeat"]).await?;
    ensure!(phase(&world.runs.get("cancelled").await?) == "Cancelled");
    // Silence is silence.
    let run_ = world.run_when("begun", "sent back", |run| phase(run) == "Pending").await?;
    ensure!(attempt(&run_) == Some(2) && is(&run_, "Running") == "False/PodUnhealthy", "{:?}", run_.status);
    Ok(())
}

#[tokio::test]
async fn what_is_cancelled_is_ended_by_whoever_can() -> Result<()> {
    let world = World::new("lifecycle-cancel").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "3")]).await?;
    let cancel = json!({"spec": {"cancelRequested": true}});
    world.run(run("scheduled")).await?;
    world.placed_on("scheduled", "p").await?;
    claimed(&world, retried("running", "1s"), "running", "p").await?;
    world.run(run("ended")).await?;
    world.placed_on("ended", "p").await?;
    world.succeed("ended").await?;
    world.run(run("pending").runtime("none")).await?;
    world.waits("pending", &["no Pod"]).await?;
    for name in ["scheduled", "running", "ended", "pending"] {
        world.patch_run(name, cancel.clone()).await?;
    }
    // The scheduler ends what waits. On a Pod that lives it is the agent who does; nobody touches what has ended.
    world.run_when("pending", "Cancelled", |run| phase(run) == "Cancelled").await?;
    stays("left to the agent", A_WHILE, async || {
        let phases = [world.runs.get("scheduled").await?, world.runs.get("running").await?, world.runs.get("ended").await?];
        Ok(phases.iter().map(phase).eq(["Scheduled", "Running", "Succeeded"]))
    })
    .await?;
    world.delete_pod("p").await?;
    for name in ["scheduled", "running"] {
        let run = world.run_when(name, "Cancelled", |run| phase(run) == "Cancelled").await?;
        ensure!(is(&run, "Completed") == "False/Cancelled", "{:?}", run.status);
    }
    stays("ended", A_WHILE, async || Ok(phase(&world.runs.get("ended").await?) == "Succeeded")).await
}

#[tokio::test]
async fn finished_runs_are_deleted_when_their_time_is_over_also_after_a_restart() -> Result<()> {
    let world = World::new("lifecycle-ttl").await?;
    let proxy = Proxy::start(world.plane).await?;
    let berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    let ended = async |name: &str, ttl_s: u32| -> Result<()> {
        world.run(run(name).spec("ttlSecondsAfterFinished", json!(ttl_s))).await?;
        world.run_status(name, json!({"phase": "Succeeded", "completionTime": time(Timestamp::now())})).await?;
        Ok(())
    };
    let gone = async |name: &str| until(&format!("{name} to be deleted"), PATIENCE, async || Ok(world.runs.get_opt(name).await?.is_none().then_some(()))).await;
    proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("delete", "runs"));
    ended("brief", 1).await?;
    ended("kept", 0).await?;
    ended("long", 3_600).await?;
    gone("brief").await?;
    // Raised before its time has come, unseen: it is read again before it is deleted.
    world.run(run("raised").spec("ttlSecondsAfterFinished", json!(3))).await?;
    world.is_waiting(&berth, "raised").await?;
    world.run_status("raised", json!({"phase": "Succeeded", "completionTime": time(Timestamp::now())})).await?;
    until("its end to be seen", PATIENCE, async || Ok(world.standing(&berth, "raised").await?.is_none().then_some(()))).await?;
    proxy.hold_watches("runs");
    world.patch_run("raised", json!({"spec": {"ttlSecondsAfterFinished": 3_600}})).await?;
    until("a second look", PATIENCE, async || Ok((proxy.count(|seen| seen.is("get", "runs") && seen.name == "raised") > 0).then_some(()))).await?;
    proxy.release_watches("runs");
    // While nobody watches, time passes.
    let (status, log) = berth.terminate().await?;
    ensure!(status.success(), "{log}");
    ended("meanwhile", 1).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _berth = world.berth().await?;
    gone("meanwhile").await?;
    for name in ["kept", "long", "raised"] {
        ensure!(world.runs.get_opt(name).await?.is_some(), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_retried_run_whose_workspace_is_lost_waits_and_says_so() -> Result<()> {
    let world = World::new("lifecycle-workspace").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    world.workspace("w", "bash").await?;
    world.workspace_when("w", "Bound").await?;
    claimed(&world, retried("retried", "1s").workspace("w"), "retried", "p").await?;
    world.pod("q", "bash", &[("runs", "9")]).await?;
    world.delete_pod("p").await?;
    world.workspace_when("w", "Lost").await?;
    world.waits("retried", &["workspace w lost"]).await?;
    let run = world.runs.get("retried").await?;
    ensure!(attempt(&run) == Some(2) && is(&run, "Scheduled") == "False/WorkspaceNotReady", "{:?}", run.status);
    // Its owner decides: a new workspace of the name, and it goes on.
    world.workspaces.delete("w", &DeleteParams::default()).await?;
    until("the workspace to go", PATIENCE, async || Ok(world.workspaces.get_opt("w").await?.is_none().then_some(()))).await?;
    world.workspace("w", "bash").await?;
    world.placed_on("retried", "q").await
}

#[tokio::test]
async fn a_run_placed_and_not_begun_leaves_a_workspace_that_is_being_deleted() -> Result<()> {
    let world = World::new("lifecycle-released").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    world.workspace("w", "bash").await?;
    world.workspace_when("w", "Bound").await?;
    world.run(run("unclaimed").workspace("w")).await?;
    world.placed_on("unclaimed", "p").await?;
    claimed(&world, run("running").workspace("w"), "running", "p").await?;
    world.workspaces.delete("w", &DeleteParams::default()).await?;
    world.waits("unclaimed", &["workspace w being deleted"]).await?;
    ensure!(phase(&world.runs.get("running").await?) == "Running");
    // Who runs keeps it; then it goes, and there is nothing left to wait for but another one.
    stays("held", A_WHILE, async || Ok(world.workspaces.get_opt("w").await?.is_some())).await?;
    world.succeed("running").await?;
    until("the workspace to go", PATIENCE, async || Ok(world.workspaces.get_opt("w").await?.is_none().then_some(()))).await?;
    world.waits("unclaimed", &["workspace w not found"]).await?;
    world.workspace("w", "bash").await?;
    world.placed_on("unclaimed", "p").await
}

#[tokio::test]
async fn an_answer_that_is_lost_costs_no_second_attempt() -> Result<()> {
    let world = World::new("lifecycle-answer").await?;
    let proxy = Proxy::start(world.plane).await?;
    let _berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    world.pod("p", "bash", &[]).await?;
    claimed(&world, run("r").spec("retryPolicy", json!({"maxAttempts": 9})), "r", "p").await?;
    let lost = proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("patch", "runs/status") && seen.name == "r");
    world.delete_pod("p").await?;
    world.run_when("r", "sent back", |run| phase(run) == "Pending" && assigned(run).is_none()).await?;
    ensure!(lost.hits() == 1);
    until("its Event", PATIENCE, async || Ok(world.events("r", "StaleRunRetrying").await?.pop())).await?;
    stays("the second attempt", A_WHILE, async || Ok(attempt(&world.runs.get("r").await?) == Some(2))).await
}

#[tokio::test]
async fn a_placement_by_hand_with_another_pods_uid_is_left_alone() -> Result<()> {
    let world = World::new("lifecycle-inconsistent").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[]).await?;
    let other = world.pod("q", "bash", &[]).await?;
    world.run(run("r").runtime("by-hand")).await?;
    let by_hand = json!({"phase": "Running", "assignedPod": "p", "assignedPodUID": other.metadata.uid, "startTime": time(Timestamp::now())});
    world.run_status("r", by_hand).await?;
    stays("Running", A_WHILE, async || Ok(phase(&world.runs.get("r").await?) == "Running")).await?;
    world.delete_pod("p").await?;
    world.run_when("r", "Failed", |run| phase(run) == "Failed" && message(run) == "assigned pod was deleted").await.map(drop)
}

#[tokio::test]
async fn a_standby_touches_nothing_and_the_next_leader_finds_what_happened() -> Result<()> {
    let world = World::new("lifecycle-leader").await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    let first = Candidate::start(&world).await?;
    first.leads().await?;
    let second = Candidate::start(&world).await?;
    claimed(&world, retried("early", "1s"), "early", "p").await?;
    world.pod("x", "python", &[]).await?;
    claimed(&world, retried("late", "1s").runtime("python"), "late", "x").await?;
    world.run(run("over").spec("ttlSecondsAfterFinished", json!(1))).await?;
    world.delete_pod("p").await?;
    world.run_when("early", "sent back", |run| phase(run) == "Pending" && attempt(run) == Some(2)).await?;
    ensure!(second.writes() == 0, "a standby writes nothing");
    first.berth.kill()?;
    // Nobody leads now; what happens in this time must not be forgotten.
    world.delete_pod("x").await?;
    world.run_status("over", json!({"phase": "Succeeded", "completionTime": time(Timestamp::now())})).await?;
    world.run_when("late", "sent back", |run| phase(run) == "Pending" && attempt(run) == Some(2)).await?;
    until("the finished one to be deleted", PATIENCE, async || Ok(world.runs.get_opt("over").await?.is_none().then_some(()))).await
}
