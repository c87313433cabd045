//! What carrying a Job costs, beside bare Jobs of batch/v1 on the same node in the same run: rate, latency of the start, own writes.
//! `BERTH_BENCH_JOBS` sets how many; with a hundred and more rate and mean of the writes are held to their limits. `BERTH_BENCH_QPS` sets what the controller manager may
//! ask per second; without its default, which is what limits both, the ratio is told and held to nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_tests::audit::Request;
use berth_tests::poll::{PATIENCE, until};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::batch::v1::Job as NativeJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::world::{ALPINE, NAMESPACE, World};
use crate::job_world::succeeded;

/// At least so much of the rate of bare Jobs, where the controller manager limits both (issue of Jobs).
const RATE_MIN: f64 = 0.9;
/// Own writes per Job that succeeds, Events apart.
const WRITES_MAX: f64 = 6.0;
/// Of a Job that both waits and runs for long (ADR 0052), as on a laden machine every one of a few may.
const WRITES_OF_ONE: f64 = 7.0;

/// By Pod: when nothing held it back any more, and its container's first sign.
#[derive(Default)]
struct Starts(BTreeMap<String, (Instant, Option<Instant>)>);

impl Starts {
    fn see(&mut self, pod: &Pod) {
        if pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.iter().flatten().next().is_some()) {
            return;
        }
        let (_, began) = self.0.entry(pod.name_any()).or_insert((Instant::now(), None));
        let states = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()).filter_map(|status| status.state.as_ref());
        if began.is_none() && states.into_iter().any(|state| state.running.is_some() || state.terminated.is_some()) {
            *began = Some(Instant::now());
        }
    }

    /// The median of the times between both.
    fn median(&self) -> Duration {
        let mut spans: Vec<_> = self.0.values().filter_map(|(free, began)| Some(began.as_ref()?.duration_since(*free))).collect();
        spans.sort_unstable();
        spans.get(spans.len() / 2).copied().unwrap_or_default()
    }
}

/// Creates `count` at once with `create`, waits until `ended` tells as many; answers Jobs per second and the median latency of the start.
async fn measured<C, E>(world: &World, what: &str, count: usize, create: impl Fn(usize) -> C, ended: impl Fn() -> E) -> Result<(f64, Duration)>
where
    C: Future<Output = Result<()>>,
    E: Future<Output = Result<usize>>,
{
    let (sender, mut pods) = tokio::sync::mpsc::unbounded_channel();
    let known: BTreeSet<_> = world.pods.list(&ListParams::default()).await?.iter().map(kube::ResourceExt::name_any).collect();
    let watched = world.pods.clone();
    let watching = tokio::spawn(async move {
        let mut starts = Starts::default();
        let mut events = watcher(watched, watcher::Config::default()).default_backoff().boxed();
        let _ = sender.send(());
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event
                && !known.contains(&pod.name_any())
            {
                starts.see(&pod);
                if starts.0.len() == count && starts.0.values().all(|(_, began)| began.is_some()) {
                    break;
                }
            }
        }
        starts
    });
    pods.recv().await.context("the watch")?;
    let start = Instant::now();
    stream::iter(0..count).map(&create).buffer_unordered(16).try_for_each(|()| async { Ok(()) }).await?;
    until(&format!("{count} {what} to end"), PATIENCE * 5, || async { Ok((ended().await? == count).then_some(())) }).await?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    Ok((rate, tokio::time::timeout(PATIENCE, watching).await??.median()))
}

async fn ours(world: &World, round: usize, count: usize) -> Result<(f64, Duration)> {
    let create = |index: usize| async move {
        let job = json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job", "metadata": {"name": format!("ours-{round}-{index}")},
            "spec": {"jobClassName": "quick", "task": {"image": ALPINE, "command": ["true"]}}});
        world.jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
        anyhow::Ok(())
    };
    let prefix = format!("ours-{round}-");
    let ended = || async {
        let jobs = world.jobs.list(&ListParams::default()).await?;
        Ok(jobs.iter().filter(|job| job.name_any().starts_with(&prefix) && succeeded(job).0 == "True").count())
    };
    measured(world, "Jobs", count, create, ended).await
}

async fn bare(world: &World, round: usize, count: usize) -> Result<(f64, Duration)> {
    let natives: Api<NativeJob> = Api::namespaced(world.client.clone(), NAMESPACE);
    let natives = &natives;
    let create = |index: usize| async move {
        let pod = json!({"restartPolicy": "Never", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": ALPINE, "imagePullPolicy": "Always", "command": ["true"]}]});
        let job = json!({"metadata": {"name": format!("bare-{round}-{index}")}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}});
        natives.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
        anyhow::Ok(())
    };
    let prefix = format!("bare-{round}-");
    let ended = || async {
        let jobs = natives.list(&ListParams::default()).await?;
        let done = |job: &NativeJob| job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
        Ok(jobs.iter().filter(|job| job.name_any().starts_with(&prefix) && done(job)).count())
    };
    measured(world, "bare Jobs", count, create, ended).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_of_jobs_beside_bare_ones() -> Result<()> {
    let count: usize = std::env::var("BERTH_BENCH_JOBS").map_or(Ok(8), |text| text.parse()).context("BERTH_BENCH_JOBS")?;
    let unthrottled = std::env::var("BERTH_BENCH_QPS").ok();
    let flags = unthrottled.as_ref().map(|qps| [format!("--kube-api-qps={qps}"), format!("--kube-api-burst={qps}")]);
    let flags: Vec<&str> = flags.iter().flatten().map(String::as_str).collect();
    let world = World::start_with(&flags).await?;
    // The image, and every cache.
    ours(&world, 0, 4).await?;
    bare(&world, 0, 4).await?;
    let mut rates = Vec::new();
    for round in 1..=2 {
        let (theirs, own) = (bare(&world, round, count).await?, ours(&world, round, count).await?);
        println!("{count} at once: bare {:.2}/s, start {:?}; Jobs {:.2}/s, start {:?}", theirs.0, theirs.1, own.0, own.1);
        rates.push(own.0 / theirs.0);
    }
    let all = 4 + 2 * count;
    // The Pods are let go a little after the end; then nothing more is written.
    until("every Pod to be let go", PATIENCE, || async {
        let held = |pod: &Pod| pod.finalizers().iter().any(|finalizer| finalizer.starts_with("execution."));
        Ok((!world.pods.list(&ListParams::default()).await?.iter().any(held)).then_some(()))
    })
    .await?;
    let own = |request: &Request| {
        request.user == world.account.user && request.namespace == NAMESPACE && request.is_write() && request.succeeded() && request.resource != "events"
    };
    let writes = || world.plane.audit().count(own);
    let written = writes()?;
    let each = written as f64 / all as f64;
    let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
    for request in world.plane.audit().requests()?.into_iter().filter(own) {
        *kinds.entry([request.verb, request.resource, request.subresource].join(" ")).or_default() += 1;
    }
    println!("{kinds:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("Jobs at {:.2} of the rate of bare ones; {each:.2} own writes per Job, none at rest", rates.iter().sum::<f64>() / rates.len() as f64);
    ensure!(writes()? == written, "written at rest");
    // Of a few the mean and the rate say little.
    ensure!(each <= if count < 100 { WRITES_OF_ONE } else { WRITES_MAX }, "{each} writes per Job");
    ensure!(count < 100 || unthrottled.is_some() || rates.iter().any(|rate| *rate >= RATE_MIN), "{rates:?}");
    Ok(())
}
