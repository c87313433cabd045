//! Many Jobs at once on one node, while the API server's answers get lost and the process that carries them is killed: none begins
//! twice. `BERTH_JOBS_ON_NODE` sets how many.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::{Fault, Placed, Proxy, Seen};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use hyper::StatusCode;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;

use super::judge::{Begun, exited, runs};
use super::stops::cancel;
use super::world::{NAMESPACE, POLITE, World};
use crate::job_world::{condition, uid};

fn is_about_a_job(seen: &Seen) -> bool {
    seen.is_write() && seen.namespace == NAMESPACE && matches!(seen.resource.as_str(), "jobs" | "pods")
}

/// Every so many-th write about a Job meets that fault.
fn disturb(proxy: &Proxy) -> Vec<Placed> {
    let faults = [
        (Fault::DropAnswer, 7),
        (Fault::Refuse, 13),
        (Fault::Answer(StatusCode::SERVICE_UNAVAILABLE), 17),
        (Fault::DelayAnswer(Duration::from_millis(500)), 11),
        (Fault::Delay(Duration::from_secs(8)), 29),
    ];
    let place = |(fault, one_in)| {
        let count = Mutex::new(0);
        proxy.inject(fault, usize::MAX, move |seen| {
            let Ok(mut count) = count.lock() else { return false };
            *count += usize::from(is_about_a_job(seen));
            is_about_a_job(seen) && *count % one_in == 0
        })
    };
    faults.into_iter().map(place).collect()
}

/// Waits until so many Jobs of the crowd have ended: for as long as they get on, since a node does a few at a time.
async fn all_over(world: &World, expected: usize) -> Result<()> {
    let mut over = 0;
    while over < expected {
        over = until(&format!("more than {over} of {expected} Jobs to end"), PATIENCE * 2, || async {
            let jobs = world.jobs.list(&ListParams::default()).await?;
            let has_ended = |job: &&Job| job.name_any().starts_with("crowd-") && job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
            let now = jobs.iter().filter(has_ended).count();
            Ok((now > over).then_some(now))
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

pub async fn many_at_once_while_leaders_die(world: &World) -> Result<()> {
    // So many end by themselves; a quarter as many are cancelled besides. Sixty in all.
    let jobs: usize = std::env::var("BERTH_JOBS_ON_NODE").map_or(Ok(48), |text| text.parse()).context("BERTH_JOBS_ON_NODE")?;
    world.serve().await?;
    let mut placed: Vec<Placed> = world.served.lock().await.iter().flat_map(|(_, proxy)| disturb(proxy)).collect();
    let start = Instant::now();
    let made = stream::iter(0..jobs).map(|index| async move {
        let name = format!("crowd-{index}");
        let code = if index % 5 == 4 { 3 } else { 0 };
        world.job(&name, &format!("sleep 0.{}; exit {code}", index % 10), json!({}), json!({})).await?;
        if index % 4 == 0 {
            let name = format!("crowd-cancelled-{index}");
            world.job(&name, POLITE, json!({}), json!({})).await?;
            tokio::time::sleep(Duration::from_millis(300 * (index % 40) as u64)).await;
            cancel(world, &name).await?;
        }
        anyhow::Ok(())
    });
    let leaders = async move {
        // What a dead process has sent may still arrive.
        let mut dead = Vec::new();
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            // The one that leads, in the middle of its work; the other takes over when its lease is over.
            until("it to lead", PATIENCE, || async { Ok((world.served.lock().await[0].1.count(is_about_a_job) > 0).then_some(())) }).await?;
            let (berth, proxy) = world.served.lock().await.remove(0);
            berth.kill()?;
            dead.push(proxy);
            world.serve().await?;
            placed.extend(world.served.lock().await.last().into_iter().flat_map(|(_, proxy)| disturb(proxy)));
        }
        Ok((dead, placed))
    };
    let made = made.buffer_unordered(40).try_for_each(|()| async { Ok(()) });
    let ((), (_dead, placed)) = tokio::try_join!(made, leaders)?;
    all_over(world, jobs + jobs.div_ceil(4)).await?;
    for index in 0..jobs {
        world.ended(&format!("crowd-{index}"), exited(if index % 5 == 4 { 3 } else { 0 })).await?;
        if index % 4 == 0 {
            let name = format!("crowd-cancelled-{index}");
            let job = world.when(&name, "to be cancelled", |job| condition(job, "Succeeded") == ("False".to_owned(), "Cancelled".to_owned())).await?;
            let (uid, began) = (uid(&job), job.status.is_some_and(|status| status.start_time.is_some()));
            // A shell that is told to stop before it has set its trap takes no notice, and then its grace.
            ensure!(!world.pods_of(&uid).await?.iter().any(runs), "{name} runs");
            world.expect(&uid, if began { Begun::Once } else { Begun::Perhaps });
        }
    }
    let struck: usize = placed.iter().map(Placed::hits).sum();
    ensure!(struck > 10, "only {struck} writes were struck");
    eprintln!("{jobs} Jobs at once and {} cancelled: all over after {:?}; two leaders killed, {struck} writes struck", jobs / 4, start.elapsed());
    placed.iter().for_each(Placed::remove);
    Ok(())
}
