//! Traces of a live `berth serve` at a real receiver: what a cycle and its write tell, what becomes of them when the receiver takes
//! nothing, and what is sent at the end.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Serve;
use berth_tests::otlp::{Answer, Receiver, Span};
use berth_tests::poll::{PATIENCE, until};

use super::serve_world::{World, run};

const SECRET: &str = "canary-of-the-otlp-headers";

/// Sends at once, not every 5 s.
fn traced(serve: Serve, receiver: &Receiver) -> Serve {
    serve.arg(format!("--otlp-endpoint={}", receiver.url())).env("OTEL_BSP_SCHEDULE_DELAY", "20")
}

async fn span(receiver: &Receiver, name: &str, uid: &str, result: &str) -> Result<Span> {
    let wanted = |span: &Span| span.get("berth.run.uid") == uid && span.get("berth.result") == result;
    until(&format!("a span {name} of {uid}, {result}"), PATIENCE, || async { Ok(receiver.spans(name).into_iter().find(wanted)) }).await
}

#[tokio::test]
async fn a_placed_run_has_a_cycle_and_its_dispatch_in_one_trace_and_a_waiting_one_its_reasons() -> Result<()> {
    let world = World::new("traces").await?;
    world.pod("p", "bash", &[("runs", "1")]).await?;
    let receiver = Receiver::start(Answer::Take).await?;
    let serve = traced(world.serve()?, &receiver).env("OTEL_EXPORTER_OTLP_HEADERS", &format!("x-key={SECRET}")).env("RUST_LOG", "trace");
    let berth = serve.start_ready(world.plane.scratch()).await?;
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let placed = world.run(run("placed")).await?.metadata.uid.context("a UID")?;
    world.placed_on("placed", "p").await?;
    let cycle = span(&receiver, "cycle", &placed, "scheduled").await?;
    let dispatch = span(&receiver, "dispatch", &placed, "applied").await?;
    ensure!(cycle.parent_span_id.is_empty() && cycle.trace_id == dispatch.trace_id && dispatch.parent_span_id == cycle.span_id, "{cycle:?} {dispatch:?}");
    for span in [&cycle, &dispatch] {
        let told = ["k8s.namespace.name", "berth.run.name", "berth.profile", "berth.attempt", "k8s.pod.name"].map(|attribute| span.get(attribute));
        ensure!(told == [world.namespace.as_str(), "placed", "default", "1", "p"], "{told:?}");
        ensure!(span.resource.get("service.name").is_some_and(|name| name == "berth"), "{:?}", span.resource);
        ensure!(u128::from(span.start_ns) > before && span.end_ns > span.start_ns && !span.error, "{span:?}");
    }
    ensure!(dispatch.get("berth.write") == "bind" && dispatch.start_ns >= cycle.start_ns, "{dispatch:?}");

    let waiting = world.run(run("waiting")).await?.metadata.uid.context("a UID")?;
    world.waits("waiting", &["1 insufficient runs"]).await?;
    let cycle = span(&receiver, "cycle", &waiting, "unschedulable").await?;
    ensure!((cycle.get("berth.pods"), cycle.get("berth.rejections")) == ("1", "InsufficientCapacity"), "{cycle:?}");
    let dispatch = span(&receiver, "dispatch", &waiting, "applied").await?;
    ensure!(dispatch.get("berth.write") == "waiting" && dispatch.parent_span_id.is_empty(), "written a second later, by no cycle: {dispatch:?}");
    world.annotate_pod("p", "runs", "2").await?;
    world.placed_on("waiting", "p").await?;
    let again = span(&receiver, "cycle", &waiting, "scheduled").await?;
    ensure!(again.get("berth.attempt") == "2" && !again.get("berth.wakeup.cause").is_empty(), "{again:?}");

    ensure!(receiver.headers().get("x-key").is_some_and(|key| key == SECRET), "the headers of the environment");
    ensure!(berth.log().len() > 10_000 && !berth.log().contains(SECRET), "and they are in no log");
    berth.metric_at_least("berth_trace_spans_total", &[("outcome", "exported")], 5.0).await?;
    Ok(())
}

#[tokio::test]
async fn what_waits_for_its_batch_is_sent_when_the_process_stops() -> Result<()> {
    let world = World::new("traces-end").await?;
    world.pod("p", "bash", &[]).await?;
    let receiver = Receiver::start(Answer::Take).await?;
    let serve = world.serve()?.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url()).env("OTEL_BSP_SCHEDULE_DELAY", "600000");
    let berth = serve.start_ready(world.plane.scratch()).await?;
    let uid = world.run(run("r")).await?.metadata.uid.context("a UID")?;
    world.placed_on("r", "p").await?;
    ensure!(receiver.requests() == 0, "its time has not come");
    let (status, log) = berth.terminate().await?;
    ensure!(status.success(), "{status}: {log}");
    for name in ["cycle", "dispatch"] {
        ensure!(receiver.spans(name).iter().any(|span| span.get("berth.run.uid") == uid), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_costs_spans_and_nothing_else() -> Result<()> {
    const RUNS: usize = 40;
    let world = World::new("traces-lost").await?;
    world.pod("p", "bash", &[("runs", "100")]).await?;
    for answer in [Answer::Hang, Answer::Refuse] {
        let receiver = Receiver::start(answer).await?;
        let serve = traced(world.serve()?, &receiver).env("OTEL_BSP_MAX_QUEUE_SIZE", "4").env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2");
        let berth = serve.start_ready(world.plane.scratch()).await?;
        for n in 0..RUNS {
            world.run(run(&format!("{answer:?}-{n}").to_lowercase())).await?;
        }
        for n in 0..RUNS {
            world.placed_on(&format!("{answer:?}-{n}").to_lowercase(), "p").await?;
        }
        let outcome = if answer == Answer::Hang { "dropped" } else { "failed" };
        let lost = berth.metric_at_least("berth_trace_spans_total", &[("outcome", outcome)], 1.0).await?;
        let start = Instant::now();
        let (status, log) = berth.terminate().await?;
        ensure!(status.success(), "{status}: {log}");
        eprintln!("{answer:?}: {lost} spans {outcome}; ended in {:?}", start.elapsed());
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_sent_to_ends_the_start() -> Result<()> {
    let world = World::new("traces-bad").await?;
    let mut berth = world.serve()?.arg("--otlp-endpoint=http://127.0.0.1:1").env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").start(world.plane.scratch())?;
    let status = until("the end", PATIENCE, || std::future::ready(berth.process().exited())).await?;
    ensure!(status.code() == Some(2) && berth.log().contains("traces are sent as http/protobuf only"), "{status}: {}", berth.log());
    Ok(())
}
