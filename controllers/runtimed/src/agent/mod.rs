//! The agent: one process per Runtime Pod.
//!
//! ```text
//!  Runs assigned to this Pod ─► informer ─► queue ─► reconcile: plan (pure) ─► one step: record, write status, start, stop, discard
//!  an execution ended ─────────────────────►┘                                        │
//!  room came ──────────────────────────────►┘                                    shims (processes)
//!  workspaces bound here ─► informer ─► queue ─► cleanup: remove the directory, say Cleaned
//!  Pod ◄─ heartbeat every 5 s ─► capacity
//! ```

pub mod cleanup;
pub mod fence;
pub mod health;
pub mod heartbeat;
pub mod job;
pub mod locals;
mod logging;
pub mod metrics;
pub mod outputs;
pub mod plan;
pub mod processes;
pub mod reconcile;
pub mod server;
pub mod status;
pub mod store;
pub mod verdict;
pub mod watch;
pub mod workspace;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use berth_api::runtime_ready::runtime_of;
use berth_api::{PersistentWorkspace, Run};
use berth_runtime::apiclient::{CallError, Limits, connect, get_uncached};
use berth_runtime::backoff::Backoff;
use berth_runtime::events::{Recorder, RecorderConfig};
use berth_runtime::informer::{Informer, informer};
use berth_runtime::shutdown::{Ended, Supervisor};
use berth_runtime::workqueue::{WorkQueue, run_workers};
use berth_runtime::{Clock, ObjectKey, SystemClock};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::locals::Locals;
use self::metrics::Metrics;
use self::plan::{Me, Standing};
use self::server::RuntimeServer;
use self::store::{Record, Store, StoreError};
use self::watch::Seen;
use crate::args::AgentArgs;

/// Runs worked on at once. Each waits for the API server most of the time.
const WORKERS: usize = 16;
/// Workspaces cleaned at once.
const CLEANERS: usize = 2;
/// How long each part gets when stopping.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// How often the trash is looked at.
const TRASH_EVERY: Duration = Duration::from_secs(30);

/// The command line is wrong, or the process is in the wrong place: another start would not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub String);

/// What every part of the agent shares.
pub struct Agent {
    /// The API server.
    pub client: Client,
    /// The Pod.
    pub me: Me,
    /// Flags.
    pub args: AgentArgs,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// Runs assigned to the Pod.
    pub runs: Informer<Seen<Run>>,
    /// Workspaces bound to it.
    pub workspaces: Informer<Seen<PersistentWorkspace>>,
    /// Attempts on this machine.
    pub locals: Locals,
    /// Files.
    pub store: Arc<Store>,
    /// Runs to look at.
    pub queue: WorkQueue<ObjectKey>,
    /// Workspaces to look at.
    pub cleaning: WorkQueue<ObjectKey>,
    /// Events.
    pub recorder: Recorder,
    /// Numbers.
    pub metrics: Arc<Metrics>,
    /// Who carries out Runs, if not processes of this agent.
    pub server: Option<RuntimeServer>,
    /// Folder in which Runs get cgroups of their own.
    pub cgroup: Option<PathBuf>,
    /// Wakes the heartbeat.
    pub beat_now: Notify,
    /// Wakes the one that empties the trash.
    pub trash_now: Notify,
    draining: AtomicBool,
    gone: AtomicBool,
    cordoned: AtomicBool,
    storage: Mutex<Option<String>>,
}

impl Agent {
    /// Whether both caches have seen a whole list.
    pub fn is_synced(&self) -> bool {
        self.runs.is_synced() && self.workspaces.is_synced()
    }

    /// How long a watch has been failing.
    pub fn blind_for(&self) -> Duration {
        [self.runs.stats().failing_for, self.workspaces.stats().failing_for].into_iter().flatten().max().unwrap_or_default()
    }

    /// Whether the process is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Whether nothing new is claimed: the process is stopping, or something is wrong with the machine.
    pub fn claims_nothing(&self) -> bool {
        heartbeat::wrong(self).is_some()
    }

    /// Whether the Pod's object is gone, so that its Runs are others' to speak about.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn set_cordoned(&self, cordoned: bool) {
        if self.cordoned.swap(cordoned, Ordering::SeqCst) && !cordoned {
            self.look_at_every_run();
        }
    }

    /// What is wrong with the volume, if anything is.
    pub fn storage_problem(&self) -> Option<String> {
        berth_runtime::lock(&self.storage).clone()
    }

    /// Remembers that the volume refuses, or that it works.
    pub fn storage_is(&self, result: &std::io::Result<()>) {
        let problem = result.as_ref().err().map(|error| format!("{}: {error}", self.store.root().display()));
        let changed = {
            let mut storage = berth_runtime::lock(&self.storage);
            std::mem::replace(&mut *storage, problem.clone()) != problem
        };
        if changed {
            match problem {
                Some(problem) => tracing::error!(%problem, "the volume can't be written"),
                None => tracing::info!(root = %self.store.root().display(), "the volume can be written again"),
            }
            self.beat_now.notify_one();
        }
    }

    /// Takes in what the Pod offers now.
    fn learn_of(&self, pod: &Pod) {
        let capacity = heartbeat::capacity_of(pod);
        for key in self.locals.set_capacity(capacity.resources) {
            self.queue.add(key);
        }
        self.metrics.heartbeat_sent();
    }

    /// Asks an execution to stop.
    pub async fn stop(&self, uid: &str) {
        if let Some(server) = &self.server {
            server.stop(uid);
        }
        processes::stop(&self.store, uid).await;
    }

    fn look_at_every_run(&self) {
        for run in self.runs.list() {
            self.queue.add(run.key);
        }
    }
}

/// Runs the agent until SIGTERM.
///
/// # Errors
/// [`Misconfigured`], or what keeps it from starting or going on.
pub fn main(args: AgentArgs) -> anyhow::Result<u8> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run(args)).map(|()| 0)
}

async fn run(args: AgentArgs) -> anyhow::Result<()> {
    logging::start(args.log_format, args.verbose);
    check(&args)?;
    let store = match Store::open(&args.root) {
        Ok(store) => Arc::new(store),
        Err(error @ StoreError::Taken(_)) => return Err(Misconfigured(error.to_string()).into()),
        Err(error) => return Err(anyhow::Error::from(error).context("--root")),
    };
    let shutdown = CancellationToken::new();
    listen_to_signals(shutdown.clone())?;
    let metrics = Arc::new(Metrics::new()?);
    let client = connect(args.kubeconfig.as_deref(), Limits::default(), metrics.clone()).await?;
    let listener = TcpListener::bind(args.health_addr).await.with_context(|| format!("cannot listen on {}", args.health_addr))?;
    tracing::info!(address = %listener.local_addr()?, pod = %args.pod_name, namespace = %args.pod_namespace, "runtimed starts");
    let started = tokio::select! {
        started = start(args, client, store, metrics, listener) => started?,
        () = shutdown.cancelled() => return Ok(()),
    };
    let (agent, supervisor, gone) = started;
    let stopped = CancellationToken::new();
    let drain = async {
        tokio::select! { () = shutdown.cancelled() => {} () = gone.cancelled() => {} }
        drain(&agent, gone.is_cancelled()).await;
        stopped.cancel();
    };
    let serve = async {
        let ended = supervisor.run(stopped.clone()).await;
        stopped.cancel();
        ended
    };
    let (ended, ()) = tokio::join!(serve, async {
        tokio::select! { () = drain => {} () = stopped.cancelled() => {} }
    });
    match ended {
        _ if gone.is_cancelled() => anyhow::bail!("this Pod is gone: its Runs were stopped"),
        Ended::Stopped => tracing::info!("stopped"),
        Ended::Aborted(tasks) => tracing::warn!(?tasks, "stopped; not everything came to its end in time"),
        Ended::Failed { task, error } => anyhow::bail!("{task}: {error}"),
    }
    Ok(())
}

fn check(args: &AgentArgs) -> Result<(), Misconfigured> {
    for (value, flag, variable) in
        [(&args.pod_name, "--pod-name", "POD_NAME"), (&args.pod_namespace, "--pod-namespace", "POD_NAMESPACE"), (&args.pod_uid, "--pod-uid", "POD_UID")]
    {
        if value.is_empty() {
            return Err(Misconfigured(format!("{flag} is missing: set it, or {variable} from the Pod's own fields (valueFrom.fieldRef)")));
        }
    }
    if args.run_as.is_some() && !rustix::process::geteuid().is_root() {
        return Err(Misconfigured("--run-as needs an agent that runs as root".to_owned()));
    }
    Ok(())
}

/// SIGTERM and SIGINT ask to stop; the second of them leaves at once.
fn listen_to_signals(shutdown: CancellationToken) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
            if first {
                tracing::info!("asked to stop: no further Run is claimed");
                shutdown.cancel();
            }
        }
        std::process::exit(i32::from(crate::EXIT_FAILED));
    });
    Ok(())
}

/// Waits until the Pod says who we are, then starts every part. The token is cancelled when the Pod is gone.
async fn start(
    args: AgentArgs,
    client: Client,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    listener: TcpListener,
) -> anyhow::Result<(Arc<Agent>, Supervisor, CancellationToken)> {
    let (me, pod) = identify(&args, &client).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (runs, watch_runs) = informer::<Seen<Run>>("runs");
    let (workspaces, watch_workspaces) = informer::<Seen<PersistentWorkspace>>("persistentworkspaces");
    let (recorder, events) = Recorder::new(client.clone(), clock.clone(), RecorderConfig::new("kruntimes.io/runtimed", me.name.as_str()));
    let cgroup = match args.run_pids_max {
        None => None,
        Some(_) => processes::pids_cgroup().map_err(|why| said_unbounded(&args, &why)).ok(),
    };
    let server = match &args.runtime_endpoint {
        Some(address) => Some(RuntimeServer::new(address).map_err(|error| Misconfigured(format!("--runtime-endpoint {address}: {error}")))?),
        None => None,
    };
    let agent = Arc::new(Agent {
        me,
        server,
        clock,
        runs,
        workspaces,
        locals: Locals::default(),
        store,
        queue: WorkQueue::new("runs"),
        cleaning: WorkQueue::new("workspaces"),
        recorder,
        metrics,
        cgroup,
        beat_now: Notify::new(),
        trash_now: Notify::new(),
        draining: AtomicBool::new(false),
        gone: AtomicBool::new(false),
        cordoned: AtomicBool::new(false),
        storage: Mutex::new(None),
        client: client.clone(),
        args,
    });
    agent.locals.set_capacity(heartbeat::capacity_of(&pod).resources);
    recover(&agent)?;
    agent.runs.feed(&agent.queue, |change| [change.key.clone()]);
    agent.workspaces.feed(&agent.cleaning, |change| [change.key.clone()]);

    let name = agent.me.name.clone();
    let narrow_runs = until_answered(|| watch::narrowed::<Run>(&client, &agent.me.namespace, "status.assignedPod", &name)).await?;
    let narrow_workspaces = until_answered(|| watch::narrowed::<PersistentWorkspace>(&client, &agent.me.namespace, "status.boundPod", &name)).await?;
    let gone = CancellationToken::new();
    let mut supervisor = Supervisor::new();

    let group = supervisor.group(STOP_WITHIN);
    let (pod, stop) = (name.clone(), group.stop());
    group.spawn("runs", finished(watch_runs.run_with::<Run>(client.clone(), narrow_runs, move |value| watch::read_run(value, &pod), stop)));
    let (pod, stop) = (name, group.stop());
    let read = move |value| watch::read_workspace(value, &pod);
    group.spawn("workspaces", finished(watch_workspaces.run_with::<PersistentWorkspace>(client, narrow_workspaces, read, stop)));
    group.spawn("events", finished(events.run(group.stop())));
    group.spawn("health", health::serve(listener, agent.clone(), group.stop()));
    group.spawn("trash", finished(empty_trash(agent.clone(), group.stop())));
    if agent.server.is_some() {
        group.spawn("runtime-server", finished(server::keep_asking(agent.clone(), group.stop())));
    }

    let group = supervisor.group(STOP_WITHIN);
    let (beating, told, stop) = (agent.clone(), gone.clone(), group.stop());
    group.spawn("heartbeat", async move {
        if let Err(error) = heartbeat::run(beating, stop.clone()).await {
            tracing::error!(%error, "stopping every Run");
            told.cancel();
            stop.cancelled().await;
        }
        Ok::<(), String>(())
    });

    let group = supervisor.group(STOP_WITHIN);
    let (working, stop) = (agent.clone(), group.stop());
    group.spawn("workers", async move {
        working.runs.synced().await;
        working.workspaces.synced().await;
        working.beat_now.notify_one();
        let work = |key| reconcile::reconcile(working.clone(), key);
        run_workers(&working.queue, WORKERS, stop, work).await;
        Ok::<(), String>(())
    });
    let (cleaning, stop) = (agent.clone(), group.stop());
    group.spawn("cleaners", async move {
        cleaning.workspaces.synced().await;
        cleaning.runs.synced().await;
        // Data of workspaces that went while there was no agent.
        match workspace::all(&cleaning.store) {
            Ok(here) => here.into_iter().for_each(|here| cleaning.cleaning.add(ObjectKey::new(cleaning.me.namespace.as_str(), here.name.as_str()))),
            Err(error) => tracing::warn!(%error, "can't look for data of workspaces that are gone"),
        }
        let work = |key| cleanup::reconcile(cleaning.clone(), key);
        run_workers(&cleaning.cleaning, CLEANERS, stop, work).await;
        Ok::<(), String>(())
    });
    Ok((agent, supervisor, gone))
}

fn said_unbounded(args: &AgentArgs, why: &str) {
    let user = args.run_as.map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
    match user {
        0 => tracing::warn!(why, "no cgroup can be made and Runs run as root: --run-pids-max has no effect; set the kubelet's podPidsLimit"),
        _ => tracing::warn!(why, user, "no cgroup can be made: --run-pids-max bounds all processes of this user on the node together (RLIMIT_NPROC)"),
    }
}

async fn finished(task: impl Future<Output = ()>) -> Result<(), String> {
    task.await;
    Ok(())
}

/// Asks again until there is an answer; only a refusal ends it.
async fn until_answered<T, F: Future<Output = Result<T, CallError>>>(mut ask: impl FnMut() -> F) -> anyhow::Result<T> {
    let mut failures = 0;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            // The account's rights may come a moment after the Pod.
            Err(error) if error.is_definite() && !error.is_forbidden() => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "the API server gives no answer yet"),
        }
        tokio::time::sleep(Backoff::KEYS.delay(failures)).await;
        failures += 1;
    }
}

/// Reads the own Pod. One with another UID is another Pod.
async fn identify(args: &AgentArgs, client: &Client) -> anyhow::Result<(Me, Pod)> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &args.pod_namespace);
    let pod = until_answered(|| get_uncached(&api, &args.pod_name)).await?;
    let wrong = |text: String| Misconfigured(format!("Pod {}/{}: {text}", args.pod_namespace, args.pod_name));
    let Some(pod) = pod else { return Err(wrong("not found".to_owned()).into()) };
    if pod.metadata.uid.as_deref() != Some(&args.pod_uid) {
        return Err(wrong(format!("its UID is not {}: another Pod has the name now", args.pod_uid)).into());
    }
    let Some(runtime) = runtime_of(&pod).map(str::to_owned) else { return Err(wrong("it has no label `runtime`".to_owned()).into()) };
    if args.runtime_name.as_ref().is_some_and(|name| *name != runtime) {
        let wanted = args.runtime_name.as_deref().unwrap_or_default();
        return Err(wrong(format!("its label `runtime` is {runtime:?}, not {wanted:?} as --runtime-name says")).into());
    }
    for (resource, value) in heartbeat::capacity_of(&pod).ignored {
        tracing::warn!(resource, value, "capacity annotation is no non-negative quantity; it is ignored");
    }
    let me = Me {
        namespace: args.pod_namespace.clone(),
        name: args.pod_name.clone(),
        uid: args.pod_uid.clone(),
        runtime,
        functions: args.runtime_endpoint.is_some(),
    };
    Ok((me, pod))
}

/// Takes up what an earlier process left: what runs is adopted, what ended is reported.
fn recover(agent: &Arc<Agent>) -> anyhow::Result<()> {
    for record in agent.store.recover(&agent.me.uid)? {
        let uid = record.uid.clone();
        let anew = Record { started: false, ..record.clone() };
        let started = record.started && !(processes::never_began(&agent.store, &uid) && agent.store.begin(&anew).is_ok());
        tracing::info!(run = %record.name, uid, attempt = record.attempt, started, "taken up again");
        agent.locals.insert(if started { record } else { anew });
        if started {
            agent.locals.update(&uid, |entry| entry.standing = Standing::Executing { stopping: false });
            reconcile::follow(agent.clone(), uid, None);
        }
    }
    agent.trash_now.notify_one();
    Ok(())
}

async fn empty_trash(agent: Arc<Agent>, stop: CancellationToken) {
    loop {
        let store = agent.store.clone();
        match tokio::task::spawn_blocking(move || store.empty_trash()).await {
            Ok(0) | Err(_) => {}
            Ok(left) => tracing::warn!(left, "not everything in the trash can be removed yet"),
        }
        tokio::select! {
            () = agent.trash_now.notified() => {}
            () = tokio::time::sleep(TRASH_EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Claims nothing more. A Pod that is gone stops its Runs; else they get their time, and what goes on then is taken up by the
/// next process, or ends with the container.
async fn drain(agent: &Arc<Agent>, gone: bool) {
    agent.draining.store(true, Ordering::SeqCst);
    agent.beat_now.notify_one();
    agent.gone.store(gone, Ordering::SeqCst);
    if gone {
        for entry in agent.locals.all() {
            agent.stop(&entry.record.uid).await;
        }
    }
    let limit = if gone { agent.args.stop_grace + Duration::from_secs(15) } else { agent.args.drain_within };
    let idle = async {
        while (if gone { agent.locals.executing() } else { agent.locals.len() }) > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(limit, idle).await.is_err() {
        tracing::warn!(runs = agent.locals.len(), "leaving while Runs go on");
    }
}
