//! What `berth serve` writes and how often: once per placement, whatever is lost on the way; ends and deletions.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy};
use hyper::StatusCode;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::serve_world::{World, condition, message, phase, run};

#[tokio::test]
async fn one_status_write_per_placement_in_a_burst() -> Result<()> {
    const RUNS: usize = 200;
    let world = World::new("writes-once").await?;
    for n in 0..10 {
        world.pod(&format!("p{n}"), "bash", &[("runs", "25")]).await?;
    }
    let berth = world.berth().await?;
    for n in 0..RUNS {
        world.run(run(&format!("r{n}"))).await?;
    }
    until("all to be placed", PATIENCE, || async { Ok(world.all_runs().await?.values().all(|run| phase(run) == "Scheduled").then_some(())) }).await?;
    let by_pod = world.all_runs().await?.into_values().filter_map(|run| run.status?.assigned_pod).fold(std::collections::BTreeMap::new(), |mut by, pod| {
        *by.entry(pod).or_insert(0) += 1;
        by
    });
    ensure!(by_pod.values().all(|n| *n == RUNS / 10), "evenly: {by_pod:?}");
    let (status, log) = berth.terminate().await?;
    ensure!(status.code() == Some(0), "{status}");
    let mine = |r: &berth_tests::audit::Request| r.namespace == world.namespace && r.user == world.account.user && r.resource == "runs";
    ensure!(world.plane.audit().count(|r| mine(r) && r.is_write())? == RUNS, "one write per placement, no other");
    ensure!(log.matches("run placed").count() == RUNS, "one line per placement");
    Ok(())
}

#[tokio::test]
async fn an_answer_lost_after_the_write_took_effect_is_found_by_reading() -> Result<()> {
    let world = World::new("writes-lost").await?;
    let proxy = Proxy::start(world.plane).await?;
    let mut berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    world.pod("p", "bash", &[("runs", "9")]).await?;
    let cases = [
        ("dropped", Fault::DropAnswer, 1),
        ("refused", Fault::Refuse, 1),
        ("server-error", Fault::Answer(StatusCode::SERVICE_UNAVAILABLE), 2),
        ("throttled", Fault::Answer(StatusCode::TOO_MANY_REQUESTS), 2),
    ];
    for (name, fault, times) in cases {
        let fault = proxy.inject(fault, times, move |seen| seen.is("patch", "runs/status") && seen.name == name);
        world.run(run(name)).await?;
        world.placed_on(name, "p").await?;
        until(&format!("{name} to be settled"), PATIENCE, || async {
            Ok((world.standing(&berth, name).await?.is_none() && fault.hits() == times).then_some(()))
        })
        .await?;
        ensure!(world.status_writes(name)? == 1, "{name}: {} writes took effect", world.status_writes(name)?);
    }
    // While the reads fail too it keeps asking, and counts on nothing in between.
    proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("patch", "runs/status") && seen.name == "blind");
    let blind = proxy.inject(Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR), 6, |seen| seen.is("get", "runs") && seen.name == "blind");
    world.run(run("blind")).await?;
    world.placed_on("blind", "p").await?;
    until("the reads to fail", PATIENCE, || async { Ok((blind.hits() == 6).then_some(())) }).await?;
    until("a placed line", PATIENCE, || async { Ok(berth.log().lines().any(|l| l.contains("run placed") && l.contains("/blind")).then_some(())) }).await?;
    ensure!(world.status_writes("blind")? == 1);
    ensure!(berth.metrics().await?.sum("scheduler_schedule_attempts_total", &[("result", "error")]) == 0.0, "no attempt failed");
    berth.process().must_run()
}

#[tokio::test]
async fn a_bind_behind_its_own_message_is_no_conflict() -> Result<()> {
    let world = World::new("writes-behind").await?;
    let proxy = Proxy::start(world.plane).await?;
    let berth = world.serve_through(&proxy)?.start_ready(world.plane.scratch()).await?;
    // The watch shows nothing of our own message for as long as it is held: the bind is decided on the version before it.
    world.run(run("r")).await?;
    world.is_waiting(&berth, "r").await?;
    proxy.hold_watches("runs");
    world.waits("r", &["no Pod has label runtime=bash"]).await?;
    until("the message's answer", PATIENCE, || async {
        Ok((berth.metrics().await?.sum("berth_status_writes_total", &[("kind", "waiting"), ("outcome", "applied")]) == 1.0).then_some(()))
    })
    .await?;
    world.pod("p", "bash", &[]).await?;
    world.placed_on("r", "p").await?;
    proxy.release_watches("runs");
    let run = world.runs.get("r").await?;
    ensure!(message(&run).is_empty() && condition(&run, "Scheduled").is_some_and(|c| c.0 == "True"));
    ensure!(berth.metrics().await?.sum("kruntimes_scheduler_reservation_conflicts_total", &[]) == 0.0);
    ensure!(world.status_writes("r")? == 2);
    Ok(())
}

#[tokio::test]
async fn cancel_ends_a_pending_run_and_a_run_being_deleted_is_never_placed() -> Result<()> {
    let world = World::new("writes-ends").await?;
    let berth = world.berth().await?;
    world.run(run("cancelled")).await?;
    world.is_waiting(&berth, "cancelled").await?;
    let finalizer = json!({"metadata": {"finalizers": ["test.example.com/hold"]}});
    world.run(run("deleted")).await?;
    world.patch_run("deleted", finalizer).await?;
    world.is_waiting(&berth, "deleted").await?;

    world.patch_run("cancelled", json!({"spec": {"cancelRequested": true}})).await?;
    let ended = world.run_when("cancelled", "Cancelled", |run| phase(run) == "Cancelled").await?;
    let status = ended.status.clone().unwrap_or_default();
    ensure!(status.completion_time.is_some() && message(&ended) == "cancelled by user");
    for kind in ["Running", "Completed"] {
        ensure!(condition(&ended, kind) == Some(("False".into(), "Cancelled".into(), "cancelled by user".into())), "{kind}");
    }
    let told = world.event("cancelled", "Cancelled").await?;
    ensure!(told == ("Normal".into(), "cancelled by user".into()), "{told:?}");
    world.delete_run("deleted").await?;
    until("the deletion to be seen", PATIENCE, || async { Ok((world.standing(&berth, "deleted").await?.as_deref() == Some("idle")).then_some(())) }).await?;
    world.pod("p", "bash", &[("runs", "1")]).await?;
    world.run(run("next")).await?;
    world.placed_on("next", "p").await?;
    let deleted = world.runs.get("deleted").await?;
    ensure!(phase(&deleted) == "Pending", "never placed");
    // Deleted while active: its room is free.
    world.run(run("heir")).await?;
    world.is_waiting(&berth, "heir").await?;
    world.delete_run("next").await?;
    world.placed_on("heir", "p").await?;
    // Cancelled before it was ever tried.
    world.run(run("stillborn").spec("cancelRequested", json!(true))).await?;
    world.run_when("stillborn", "Cancelled", |run| phase(run) == "Cancelled").await?;
    world.patch_run("deleted", json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

#[tokio::test]
async fn the_event_of_a_placement_can_be_switched_off() -> Result<()> {
    for (flag, expected) in [(None, 1), (Some("--no-scheduled-events"), 0)] {
        let world = World::new("writes-events").await?;
        let serve = flag.into_iter().fold(world.serve()?, |serve, flag| serve.arg(flag));
        let berth = serve.start_ready(world.plane.scratch()).await?;
        world.pod("p", "bash", &[("runs", "1")]).await?;
        world.run(run("placed")).await?;
        world.placed_on("placed", "p").await?;
        // Of two things that happened in this order the second is told.
        world.run(run("waits")).await?;
        until("Event FailedScheduling", PATIENCE, || async { Ok((world.events("waits", "FailedScheduling").await?.len() == 1).then_some(())) }).await?;
        until("the Event of the placement", PATIENCE, || async { Ok((world.events("placed", "Scheduled").await?.len() >= expected).then_some(())) }).await?;
        berth.terminate().await?;
        ensure!(world.events("placed", "Scheduled").await?.len() == expected, "with {flag:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_bad_request_ends_its_run_alone() -> Result<()> {
    let world = World::new("writes-invalid").await?;
    let _berth = world.berth().await?;
    world.pod("p", "bash", &[]).await?;
    world.run(run("bad").spec("resources", json!({"requests": {"gpu": "500m"}}))).await?;
    world.run(run("good")).await?;
    let bad = world.run_when("bad", "Failed", |run| phase(run) == "Failed").await?;
    ensure!(message(&bad) == "resource request \"gpu\" must be a non-negative integer", "{}", message(&bad));
    ensure!(condition(&bad, "Completed").is_some_and(|c| c.1 == "InvalidResources"));
    let told = world.event("bad", "InvalidResources").await?;
    ensure!(told == ("Warning".into(), message(&bad).to_owned()), "{told:?}");
    world.placed_on("good", "p").await
}

/// Condition, message and Event tell the same, of the last attempt: other reasons are another Event, other numbers are not.
#[tokio::test]
async fn an_event_tells_the_reasons_of_the_last_attempt() -> Result<()> {
    let world = World::new("writes-reasons").await?;
    let _berth = world.berth().await?;
    world.run(run("waits").request("runs", 3)).await?;
    let none = world.waits("waits", &["no Pod has label runtime=bash"]).await?;
    let told = |message: &str| ("Warning".to_owned(), format!("Unschedulable: {message}"));
    until("the first Event", PATIENCE, || async { Ok((world.events("waits", "FailedScheduling").await? == [told(&none)]).then_some(())) }).await?;
    // Its own labels make it be tried; the Pod is too small.
    let tries = |value: &str| json!({"metadata": {"labels": {"try": value}}});
    world.pod("p", "bash", &[("runs", "2")]).await?;
    world.patch_run("waits", tries("1")).await?;
    let one = world.waits("waits", &["0/1 fit: 1 insufficient runs"]).await?;
    let both = async || {
        let mut events = world.events("waits", "FailedScheduling").await?;
        events.sort();
        let mut expected = [told(&none), told(&one)];
        expected.sort();
        Ok((events == expected).then_some(()))
    };
    until("the second Event", PATIENCE, &both).await?;
    world.pod("q", "bash", &[("runs", "2")]).await?;
    world.patch_run("waits", tries("2")).await?;
    world.waits("waits", &["0/2 fit: 2 insufficient runs"]).await?;
    // An Event that came of it would be there before this one.
    world.run(run("last")).await?;
    world.event("last", "Scheduled").await?;
    ensure!(both().await?.is_some(), "other numbers are no other reasons: {:?}", world.events("waits", "FailedScheduling").await?);
    Ok(())
}

/// A message is written once, and again only when an attempt of that Run changed it.
#[tokio::test]
async fn what_others_do_does_not_rewrite_messages() -> Result<()> {
    let world = World::new("writes-quiet").await?;
    let berth = world.berth().await?;
    world.run(run("waiter").request("gpu", 1)).await?;
    world.waits("waiter", &["no Pod has label runtime=bash"]).await?;
    for n in 0..3 {
        world.create_pod(&format!("p{n}"), "bash", &[]).await?;
    }
    stays("the number of writes", Duration::from_millis(1_500), || async { Ok(world.status_writes("waiter")? == 1) }).await?;
    // Conditions and messages of others survive ours.
    let theirs = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "Theirs", "status": "True", "reason": "Kept", "message": "kept", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "old", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    world.runs.patch_status("waiter", &PatchParams::default(), &Patch::Merge(theirs)).await?;
    world.pod("p", "bash", &[("gpu", "1")]).await?;
    world.placed_on("waiter", "p").await?;
    let placed = world.runs.get("waiter").await?;
    let conditions = placed.status.unwrap_or_default().conditions;
    let theirs = conditions.iter().find(|c| c.type_ == "Theirs");
    ensure!(theirs.is_some_and(|c| c.reason == "Kept" && c.last_transition_time.0.as_second() == 1_767_225_600), "{conditions:?}");
    let ours = conditions.iter().find(|c| c.type_ == "Scheduled");
    ensure!(ours.is_some_and(|c| c.status == "True" && c.last_transition_time.0.as_second() > 1_767_225_600), "{conditions:?}");
    drop(berth);
    Ok(())
}
