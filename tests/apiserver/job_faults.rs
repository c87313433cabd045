//! Jobs under faults: a crash at every write, before and after it took effect; requests that arrive past the next process's start; two leaders, one of
//! them frozen now and then, and answers that are lost. The node's stand-in counts processes: no Job's is ever begun twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use berth_controllers::job::api::Job;
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{BERTH, ControlPlane, Options};
use berth_tests::kubelet::{now, terminated};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::{Fault, Proxy, Seen};
use futures::StreamExt as _;
use hyper::StatusCode;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::job_world::{A_WHILE, World, condition, exit_code, succeeded, uid};
use crate::random::Random;

/// Later than the next process carries on.
const LATE: Duration = Duration::from_secs(5);

async fn plane() -> Result<ControlPlane> {
    // Without the mutating policies, so that the finalizer is a write of its own.
    ControlPlane::start_with_crds(Options { controller_manager: true, ..Options::default() }).await
}

/// A write about a Job of that namespace, or about what belongs to one.
fn is_about_a_job(seen: &Seen, namespace: &str) -> bool {
    seen.is_write() && seen.namespace == namespace && matches!(seen.resource.as_str(), "jobs" | "pods")
}

async fn serve(plane: &ControlPlane, proxy: &Proxy) -> Result<Berth> {
    Serve::new(&proxy.kubeconfig(plane, BERTH)?).arg("--jobs").start_ready(plane.scratch()).await
}

/// What becomes of a Job while its process crashes.
#[derive(Clone, Copy, Debug)]
enum Life {
    Ends,
    IsCancelled,
    IsDeleted,
    /// Its time to live is over.
    Expires,
}

impl Life {
    /// Brings it to where it begins.
    async fn prepare(self, world: &World<'_>, name: &str) -> Result<()> {
        match self {
            Self::Ends => {}
            Self::IsCancelled | Self::IsDeleted => {
                world.job(name, &["sleep"], json!({})).await?;
                world.succeeded(name, "Unknown", "Running").await?;
            }
            Self::Expires => {
                world.job(name, &["exit", "0"], json!({"ttlSecondsAfterFinished": 3600})).await?;
                world.succeeded(name, "True", "Completed").await?;
            }
        }
        Ok(())
    }

    /// What is struck follows from this; answers the Job's UID.
    async fn go_on(self, world: &World<'_>, name: &str) -> Result<String> {
        if matches!(self, Self::Ends) {
            return Ok(uid(&world.job(name, &["exit", "0"], json!({})).await?));
        }
        let job = uid(&world.jobs.get(name).await?);
        match self {
            Self::Ends => {}
            Self::IsCancelled => world.cancel(name).await?,
            Self::IsDeleted => world.delete(name, &DeleteParams::default()).await?,
            Self::Expires => {
                let at_once = json!({"spec": {"ttlSecondsAfterFinished": 0}});
                world.jobs.patch(name, &PatchParams::default(), &Patch::Merge(at_once)).await?;
            }
        }
        Ok(job)
    }

    /// Whether nothing is left to be written.
    async fn is_over(self, world: &World<'_>, name: &str, uid: &str) -> Result<bool> {
        let pods = world.pods_of(uid).await?;
        let let_go = pods.iter().all(|pod| pod.finalizers().is_empty());
        let Some(job) = world.jobs.get_opt(name).await?.filter(|job| self::uid(job) == uid) else { return Ok(pods.is_empty()) };
        Ok(match self {
            Self::Ends => succeeded(&job) == ("True".to_owned(), "Completed".to_owned()) && let_go,
            Self::IsCancelled => succeeded(&job) == ("False".to_owned(), "Cancelled".to_owned()) && let_go,
            Self::IsDeleted | Self::Expires => false,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_every_write_loses_nothing_and_begins_nothing_twice() -> Result<()> {
    let plane = plane().await?;
    let world = World::on(&plane, "job-crash", json!({}), json!({})).await?;
    let history = world.history();
    let proxy = Proxy::start(&plane).await?;
    let mut berth = serve(&plane, &proxy).await?;
    let mut crashes = Vec::new();
    for life in [Life::Ends, Life::IsCancelled, Life::IsDeleted, Life::Expires] {
        for (fault, when) in [(Fault::Hang, "before"), (Fault::HangAnswer, "after")] {
            for at in 0.. {
                let name = format!("{life:?}-{when}-{at}").to_lowercase();
                life.prepare(&world, &name).await?;
                let (count, namespace) = (AtomicUsize::new(0), world.namespace.clone());
                let sent = proxy.requests().len();
                let placed = proxy.inject(fault.clone(), 1, move |seen| is_about_a_job(seen, &namespace) && count.fetch_add(1, Ordering::SeqCst) == at);
                let job = life.go_on(&world, &name).await?;
                let struck = until(&format!("write {at} of {name}, or its end"), PATIENCE, || async {
                    let over = life.is_over(&world, &name, &job).await?;
                    Ok(if placed.hits() > 0 { Some(true) } else { over.then_some(false) })
                })
                .await?;
                if !struck {
                    placed.remove();
                    break;
                }
                let wrote = proxy.requests().into_iter().skip(sent).filter(|seen| is_about_a_job(seen, &world.namespace)).nth(at).context("the request")?;
                crashes.push(format!("{life:?}: {when} {} {} {}", wrote.verb, wrote.resource, wrote.subresource));
                berth.kill()?;
                berth = serve(&plane, &proxy).await?;
                until(&format!("{name} to be over"), PATIENCE, || async { Ok(life.is_over(&world, &name, &job).await?.then_some(())) })
                    .await
                    .with_context(|| format!("{crashes:?}; its log:\n{}", berth.log()))?;
                let begun = world.kubelet.begun_of(&job);
                ensure!(begun == 1, "{name}: begun {begun} times");
            }
        }
    }
    println!("{} crashes:\n{}", crashes.len(), crashes.join("\n"));
    for (life, least) in [("Ends", 10), ("IsCancelled", 6), ("IsDeleted", 6), ("Expires", 4)] {
        let count = crashes.iter().filter(|crash| crash.starts_with(life)).count();
        ensure!(count >= least, "{life}: only {count} writes were struck");
    }
    ensure!(history.end()? > 0, "nothing was seen");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_past_the_next_process_starts_nothing() -> Result<()> {
    let plane = plane().await?;
    let world = World::on(&plane, "job-late", json!({}), json!({})).await?;
    let history = world.history();
    // The native Job, the references, the release: each late, while the Job is cancelled or deleted.
    for (name, verb, resource) in [("made", "create", "jobs"), ("recorded", "patch", "jobs/status"), ("released", "patch", "pods")] {
        for deleted in [false, true] {
            let name = format!("{name}-{deleted}");
            let proxy = Proxy::start(&plane).await?;
            let berth = serve(&plane, &proxy).await?;
            let namespace = world.namespace.clone();
            let late = proxy.inject(Fault::Delay(LATE), 1, move |seen| seen.namespace == namespace && seen.is(verb, resource));
            let job = uid(&world.job(&name, &["exit", "0"], json!({})).await?);
            until("the late request to be sent", PATIENCE, || async { Ok((late.hits() > 0).then_some(())) }).await?;
            berth.kill()?;
            if deleted {
                world.delete(&name, &DeleteParams::default()).await?
            } else {
                world.cancel(&name).await?
            }
            let through = Proxy::start(&plane).await?;
            let next = serve(&plane, &through).await?;
            if deleted {
                world.gone(&name).await?;
            } else {
                world.succeeded(&name, "False", "Cancelled").await?;
            }
            until("the late request to be answered", PATIENCE, || async {
                let answered = proxy.count(|seen| seen.namespace == world.namespace && seen.is(verb, resource) && seen.code.is_some());
                Ok((answered > 0).then_some(()))
            })
            .await?;
            // What it made, if anything, goes: nobody may run it.
            if deleted {
                world.nothing_left(&job).await.with_context(|| next.log())?;
            } else {
                stays("the processes", A_WHILE, || async { Ok(world.kubelet.begun_of(&job) == 0) }).await?;
            }
            ensure!(world.kubelet.begun_of(&job) == 0, "{name}: it was begun");
            next.terminate().await?;
        }
    }
    history.end()?;
    Ok(())
}

/// The API server moves the deletion's time when the kubelet has its last word, and a process that comes then sees no other. A process that was told
/// to stop has not succeeded, and a cancel is no failure of the process.
/// The DELETE of a Job whose time to live is over arrives when a namesake is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_delete_after_a_time_to_live_takes_no_namesake() -> Result<()> {
    let plane = plane().await?;
    let world = World::on(&plane, "job-ttl-late", json!({}), json!({})).await?;
    let proxy = Proxy::start(&plane).await?;
    let berth = serve(&plane, &proxy).await?;
    let namespace = world.namespace.clone();
    let is_late = move |seen: &Seen| seen.namespace == namespace && seen.is("delete", "jobs") && seen.name == "again";
    let late = proxy.inject(Fault::Delay(3 * LATE), 1, is_late);
    let first = world.job("again", &["exit", "0"], json!({"ttlSecondsAfterFinished": 0})).await?;
    until("the DELETE to be sent", PATIENCE, || async { Ok((late.hits() > 0).then_some(())) }).await?;
    berth.kill()?;
    // Another process takes the first one away; then there is a second of that name.
    let through = Proxy::start(&plane).await?;
    let _next = serve(&plane, &through).await?;
    world.gone("again").await?;
    let second = world.job("again", &["sleep"], json!({})).await?;
    let answered = |code: u16| proxy.count(|seen| seen.is("delete", "jobs") && seen.name == "again" && seen.code == Some(code));
    assert_eq!(answered(409), 0, "it is still under way");
    until("the late DELETE to be refused: its UID is another's", PATIENCE, || async { Ok((answered(409) > 0).then_some(())) }).await?;
    assert_ne!(uid(&first), uid(&second));
    stays("the namesake", A_WHILE, || async { Ok(world.jobs.get("again").await?.metadata.deletion_timestamp.is_none()) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_told_to_stop_did_not_end_by_itself_though_its_record_is_older_than_the_deletion_that_the_pod_shows() -> Result<()> {
    let plane = plane().await?;
    let world = World::on(&plane, "job-last-word", json!({}), json!({})).await?;
    let history = world.history();
    let proxy = Proxy::start(&plane).await?;
    let mut berth = serve(&plane, &proxy).await?;
    for (name, code, reason) in [("stopped", 0, "Disrupted"), ("failed", 3, "Disrupted"), ("cancelled", 143, "Cancelled")] {
        let job = uid(&world.job(name, &["held"], json!({})).await?);
        let pod = world.bound(&job).await?.name_any();
        let began = now();
        world.kubelet.report(&pod, "Running", json!({"running": {"startedAt": began}})).await?;
        world.succeeded(name, "Unknown", "Running").await?;
        berth.kill()?;
        if reason == "Cancelled" {
            world.cancel(name).await?;
        }
        world.pods.delete(&pod, &DeleteParams::default()).await?;
        let ended = terminated(code, if code == 0 { "Completed" } else { "Error" }, &began);
        // The kubelet takes its time to clean up; then it says that the Pod is over.
        tokio::time::sleep(A_WHILE).await;
        world.kubelet.report(&pod, if code == 0 { "Succeeded" } else { "Failed" }, ended.clone()).await?;
        let shown = world.pod(&job, "the kubelet's last word", |pod| pod.metadata.deletion_grace_period_seconds == Some(0)).await?;
        let finished: jiff::Timestamp = ended["terminated"]["finishedAt"].as_str().context("a time")?.parse()?;
        let deletion = shown.metadata.deletion_timestamp.context("a deletion")?.0;
        ensure!(finished < deletion, "{finished} {deletion}: the API server does not move the time any more");
        berth = serve(&plane, &proxy).await?;
        let told = world.succeeded(name, "False", reason).await?;
        ensure!(exit_code(&told) == Some(code), "{:?}", told.status);
    }
    history.end()?;
    Ok(())
}

/// A quota that the native Job itself meets: it may pass, so it is told and tried again, until the class's grace is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_job_that_is_refused_is_told_and_given_up() -> Result<()> {
    let plane = plane().await?;
    let world = World::on(&plane, "job-refused", json!({}), json!({"createErrorGracePeriod": "3s"})).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), &world.namespace);
    let quota = serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}))?;
    quotas.create(&Default::default(), &quota).await?;
    until("the quota to be in force", PATIENCE, || async { Ok(quotas.get("none").await?.status.and_then(|status| status.hard)) }).await?;
    let proxy = Proxy::start(&plane).await?;
    let berth = serve(&plane, &proxy).await?;
    world.job("refused", &["exit", "0"], json!({})).await?;
    let refused = ("False".to_owned(), "BackendRefuses".to_owned());
    let job = world.until("refused", "to tell of the quota", |job| condition(job, "Scheduled") == refused).await?;
    let told = job.status.context("a status")?;
    ensure!(told.conditions.iter().any(|condition| condition.message.contains("exceeded quota: none")), "{:?}", told.conditions);
    let ended = world.succeeded("refused", "False", "BackendUnavailable").await?.status.context("a status")?;
    ensure!((&ended.execution, &ended.start_time, &ended.result) == (&None, &None, &None), "{ended:?}");
    berth.terminate().await?;
    Ok(())
}

fn number(variable: &str, default: usize) -> Result<usize> {
    std::env::var(variable).map_or(Ok(default), |text| text.parse().with_context(|| variable.to_owned()))
}

/// Faults of every kind for a share of the writes about Jobs; which, is drawn.
fn disturb(proxy: &Proxy, namespace: &str, seed: u64) {
    let faults = [
        (Fault::DropAnswer, 8),
        (Fault::Refuse, 16),
        (Fault::Answer(StatusCode::SERVICE_UNAVAILABLE), 16),
        (Fault::Answer(StatusCode::TOO_MANY_REQUESTS), 20),
        (Fault::Delay(Duration::from_millis(700)), 12),
        (Fault::DelayAnswer(Duration::from_millis(500)), 12),
        (Fault::Delay(LATE), 60),
    ];
    for (index, (fault, one_in)) in faults.into_iter().enumerate() {
        let (namespace, random) = (namespace.to_owned(), std::sync::Mutex::new(Random::new(seed + index as u64)));
        proxy.inject(fault, usize::MAX, move |seen| is_about_a_job(seen, &namespace) && random.lock().unwrap().below(one_in) == 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_leaders_and_lost_answers_begin_no_job_twice_and_tell_every_end() -> Result<()> {
    let (runs, cancels) = (number("BERTH_JOBS_UNDER_FAULTS", 60)?, number("BERTH_CANCELS_UNDER_FAULTS", 30)?);
    let plane = plane().await?;
    let world = World::on(&plane, "job-faults", json!({}), json!({})).await?;
    let history = world.history();
    let watched = tokio::spawn(cancelled_jobs_have_stopped(world.jobs.clone(), world.pods.clone(), cancels));
    let proxies = [Proxy::start(&plane).await?, Proxy::start(&plane).await?];
    let mut leaders = Vec::new();
    for (index, proxy) in proxies.iter().enumerate() {
        disturb(proxy, &world.namespace, 100 * index as u64);
        let lease = ["--leader-elect", "--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=400ms"];
        let serve = Serve::new(&proxy.kubeconfig(&plane, BERTH)?).arg("--jobs").arg(format!("--leader-elect-namespace={}", world.namespace));
        leaders.push(lease.iter().fold(serve, |serve, flag| serve.arg(*flag)).start_ready(plane.scratch()).await?);
    }
    let mut random = Random::new(7);
    let (mut expected, mut to_cancel) = (Vec::new(), Vec::new());
    for index in 0..runs {
        let (command, status, reason) =
            *random.pick(&[(["exit", "0"], "True", "Completed"), (["exit", "3"], "False", "ProcessFailed"), (["quick", "0"], "True", "Completed")]);
        let job = world.job(&format!("run-{index}"), &command, json!({})).await?;
        expected.push((job.name_any(), uid(&job), status, reason));
        if index < cancels {
            let job = world.job(&format!("cancel-{index}"), &["sleep"], json!({})).await?;
            to_cancel.push((job.name_any(), uid(&job)));
        }
        // The leader is frozen for longer than its lease, and wakes up with what it had in hand.
        if index % 20 == 10 {
            let leader = &mut leaders[index / 20 % 2];
            leader.process().signal("STOP")?;
            tokio::time::sleep(Duration::from_secs(4)).await;
            leader.process().signal("CONT")?;
        }
        if index % 2 == 1 && random.below(2) == 0 {
            for (name, _) in std::mem::take(&mut to_cancel) {
                world.cancel(&name).await?;
                expected.push((name.clone(), uid(&world.jobs.get(&name).await?), "False", "Cancelled"));
                tokio::time::sleep(Duration::from_millis(random.below(40) as u64)).await;
            }
        }
    }
    for (name, uid) in to_cancel {
        world.cancel(&name).await?;
        expected.push((name, uid, "False", "Cancelled"));
    }
    let wait = tokio::time::Instant::now();
    for (name, uid, status, reason) in &expected {
        let what = format!("{name} to end {reason}");
        let told = until(&what, PATIENCE, || async {
            let job = world.jobs.get(name).await?;
            Ok((succeeded(&job).0 != "Unknown" && !succeeded(&job).0.is_empty()).then(|| succeeded(&job)))
        });
        let told =
            told.await.with_context(|| format!("{:?}", leaders.iter().map(Berth::log).map(|log| berth_tests::process::tail(&log, 30)).collect::<Vec<_>>()))?;
        if told != ((*status).to_owned(), (*reason).to_owned()) {
            let labelled = kube::api::ListParams::default().labels(&format!("execution.ayatori.ddupan.top/job-uid={uid}"));
            let (job, pods) = (world.jobs.get(name).await?, world.pods.list(&labelled).await?);
            bail!("{name} ended {told:?}, not {reason}: {}\n{}", serde_json::to_string(&job)?, serde_json::to_string(&pods.items)?);
        }
        let begun = world.kubelet.begun_of(uid);
        ensure!(begun <= 1 && (begun == 1 || *reason == "Cancelled"), "{name} was begun {begun} times");
    }
    let seen = tokio::time::timeout(PATIENCE, watched).await???;
    let struck: usize = proxies.iter().map(|proxy| proxy.count(|seen| is_about_a_job(seen, &world.namespace))).sum();
    let unanswered: usize = proxies.iter().map(|proxy| proxy.count(|seen| is_about_a_job(seen, &world.namespace) && seen.code.is_none())).sum();
    println!(
        "{} Jobs ended as they had to, {seen} of them cancelled; {} processes; {struck} writes sent, {unanswered} of them never passed on; {:?} after the last creation",
        expected.len(),
        world.kubelet.begun(),
        wait.elapsed()
    );
    for proxy in &proxies {
        ensure!(proxy.count(|seen| is_about_a_job(seen, &world.namespace)) > 0, "one of them never led");
    }
    history.end()?;
    Ok(())
}

/// Looks at each Job's Pods at the instant its cancel is told: `main` has ended or never began, and the Pod's deletion was asked for.
async fn cancelled_jobs_have_stopped(jobs: Api<Job>, pods: Api<Pod>, count: usize) -> Result<usize> {
    let mut events = watcher(jobs, watcher::Config::default()).default_backoff().boxed();
    let mut told = std::collections::BTreeSet::new();
    while told.len() < count {
        let Some(event) = events.next().await else { bail!("the watch ended") };
        let Ok(Event::Apply(job) | Event::InitApply(job)) = event else { continue };
        if succeeded(&job) != ("False".to_owned(), "Cancelled".to_owned()) || !told.insert(uid(&job)) {
            continue;
        }
        let labelled = kube::api::ListParams::default().labels(&format!("execution.ayatori.ddupan.top/job-uid={}", uid(&job)));
        for pod in pods.list(&labelled).await?.items {
            let shown = serde_json::to_value(&pod.status)?;
            let running = shown.pointer("/containerStatuses/0/state/running").is_some();
            let gated = pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()));
            ensure!(!running && (gated || pod.metadata.deletion_timestamp.is_some()), "{} was told to be cancelled, and its Pod is {shown}", job.name_any());
        }
    }
    Ok(told.len())
}
