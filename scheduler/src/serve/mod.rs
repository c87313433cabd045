//! `berth serve`: places Runs on a cluster.
//!
//! ```text
//!                    ┌─► owner (core) ─► dispatcher ─► status writes of Runs
//! 3 informers ───────┤        ▲              │
//! (one watch a kind) │        └── answers ───┘            health, metrics, debug: beside, reading only
//!                    ├─► PersistentWorkspace binder ─► writes of workspaces
//!                    └─► Run lifecycle ─► status writes and deletes of Runs that are past their Pod
//! 7 more, with --jobs ─► Job controller ─► status writes of Jobs, native Jobs, Pods
//! ```
//! Everything that can stop it stops it whole: [`Supervisor`] ends the groups in order, writers first.

pub mod announce;
mod args;
pub mod configuration;
pub mod debug_queue;
pub mod dispatch;
pub mod endpoint;
pub mod health;
pub mod jobs;
pub mod leading;
mod logging;
pub mod metrics;
pub mod objects;
pub mod owner;
pub mod reconcilers;
pub mod shadow;
pub mod traces;
pub mod turn;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::{PersistentWorkspace, Run};
use berth_framework::core::Core;
use berth_framework::model::PodObject;
use berth_framework::profile::{DEFAULT_BIND_WORKERS, Registry};
use berth_runtime::apiclient::{ConnectError, Limits, connect};
use berth_runtime::events::{Recorder, RecorderConfig};
use berth_runtime::informer::{Informer, Watch, WatchConfig, informer};
use berth_runtime::lease::Fence;
use berth_runtime::shutdown::{Ended, Group, Supervisor};
use berth_runtime::{Clock, ServerTime, SystemClock};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::announce::Announcer;
pub use self::args::{LogFormat, ServeArgs};
use self::configuration::{First, Keeper, Reconfigure, SeenConfigMap, Source};
use self::dispatch::{Dispatcher, Tools};
use self::endpoint::Endpoint;
use self::jobs::Jobs;
use self::leading::Election;
use self::metrics::Metrics;
use self::objects::{SeenRun, SeenWorkspace};
use self::owner::{Inputs, Owner, Pulse};
use self::reconcilers::Reconcilers;
use self::traces::{Exporter, Traces};
use self::turn::Turn;

/// Deltas of one kind that may wait for the owner; then the watch itself waits.
const DELTAS_MAX: usize = 1_024;
/// Answers that may wait for the owner; then the dispatcher's workers wait.
const ANSWERS_MAX: usize = 1_024;
/// Questions that may wait for the owner; more are refused.
const QUESTIONS_MAX: usize = 8;
/// How long writes under way get when stopping: longer than one request may take, shorter than a Pod's grace period.
const DRAIN_WITHIN: Duration = Duration::from_secs(20);
/// Signals that come so close together are one wish: a wrapper's and the terminal's, say.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_millis(100);
/// How long everything else gets when stopping.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// The command line or a file it names is wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub String);

/// Serves until SIGTERM or SIGINT, then stops in order. A second signal ends the process at once.
///
/// # Errors
/// [`Misconfigured`], or what keeps it from starting or from going on.
pub async fn run(args: ServeArgs, registry: Registry) -> anyhow::Result<()> {
    logging::start(args.log_format, args.verbose);
    let source = args.source();
    let first = configuration::first(&source, &registry)?;
    let metrics = Arc::new(Metrics::new().context("metrics")?);
    let traces = traces(&args, &metrics)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let time = Arc::new(ServerTime::new(clock.clone(), metrics.clone()));
    let client = match connect(args.kubeconfig.as_deref(), Limits::default(), time.clone()).await {
        Ok(client) => client,
        Err(error @ ConnectError::Kubeconfig { .. }) => return Err(Misconfigured(error.to_string()).into()),
        Err(error) => return Err(error.into()),
    };
    let listener = TcpListener::bind(args.metrics_addr).await.with_context(|| format!("cannot listen on {}", args.metrics_addr))?;
    let shutdown = CancellationToken::new();
    listen_to_signals(shutdown.clone())?;
    // From here on it does not end the process.
    let hangup = signal(SignalKind::hangup())?;
    let endpoint = Arc::new(Endpoint::new(&args.endpoint, listener, &client, &metrics).await?);
    let first = match (first, &source) {
        (None, Source::ConfigMap(name)) => configuration::from_config_map(name, &registry, &client, &endpoint, &metrics, &shutdown).await?,
        (first, _) => first,
    };
    let Some(first) = first else { return Ok(()) };
    let in_force = args.overrides().over(first.loaded.effective.clone());
    tracing::info!(
        address = %endpoint.address()?, scheme = endpoint.scheme(), namespace = args.namespace.as_deref().unwrap_or("(all)"),
        config = %first.candidate.source, in_force = crate::config::summary(&in_force), "berth serves"
    );
    let election = Election::new(&in_force.leader_election.unwrap_or_default(), client.default_namespace(), &instance())?;
    let bind_workers = in_force.bind_workers.unwrap_or(DEFAULT_BIND_WORKERS) as usize;
    let parts =
        Parts { args: &args, source, first, bind_workers, hangup, registry, election, metrics, clock, time, client, endpoint, traces, shutdown: &shutdown };
    let ended = assemble(parts)?.run(shutdown).await;
    match ended {
        Ended::Stopped => tracing::info!("stopped"),
        Ended::Aborted(tasks) => tracing::warn!(?tasks, "stopped; not everything came to its end in time"),
        Ended::Failed { task, error } => anyhow::bail!("{task}: {error}"),
    }
    Ok(())
}

/// The traces that flag and environment ask for, if they do.
fn traces(args: &ServeArgs, metrics: &Metrics) -> anyhow::Result<Option<(Traces, Exporter)>> {
    let settings = traces::Settings::read(args.otlp_endpoint.as_deref(), |name| std::env::var(name).ok()).map_err(Misconfigured)?;
    let Some(settings) = settings else { return Ok(None) };
    let made = Traces::new(&settings, &instance(), metrics).map_err(|error| Misconfigured(format!("traces: {error:#}")))?;
    tracing::info!(receiver = settings.receiver(), "traces are sent");
    Ok(Some(made))
}

/// SIGTERM and SIGINT cancel `shutdown`; the second of them ends the process.
fn listen_to_signals(shutdown: CancellationToken) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        let mut asked: Option<Instant> = None;
        while asked.is_none_or(|asked| asked.elapsed() < SAME_SIGNAL_WITHIN) {
            tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
            if asked.is_none() {
                tracing::info!("asked to stop: draining");
                shutdown.cancel();
                asked = Some(Instant::now());
            }
        }
        tracing::warn!("asked to stop again: leaving at once");
        std::process::exit(i32::from(crate::cli::EXIT_FAILED));
    });
    Ok(())
}

/// What is there before anything runs.
struct Parts<'a> {
    args: &'a ServeArgs,
    source: Source,
    first: First,
    bind_workers: usize,
    hangup: Signal,
    registry: Registry,
    election: Option<Election>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    time: Arc<ServerTime>,
    client: Client,
    endpoint: Arc<Endpoint>,
    traces: Option<(Traces, Exporter)>,
    shutdown: &'a CancellationToken,
}

/// Builds every part and starts it; the groups stop in reverse order.
fn assemble(parts: Parts<'_>) -> anyhow::Result<Supervisor> {
    let Parts { args, source, first, bind_workers, hangup, registry, election, metrics, clock, time, client, endpoint, traces, shutdown } = parts;
    let (traces, exporter) = traces.unzip();
    let (runs, watch_runs) = informer::<SeenRun>("runs");
    let (pods, watch_pods) = informer::<PodObject>("pods");
    let (workspaces, watch_workspaces) = informer::<SeenWorkspace>("persistentworkspaces");
    let (config_maps, watch_config_maps) = informer::<SeenConfigMap>("configmaps");
    let (recorder, events) = Recorder::new(client.clone(), clock.clone(), RecorderConfig::new("kruntimes.io/berth", instance()));
    let announcer = Announcer::new(recorder.clone(), !args.no_scheduled_events);
    announcer.watch_capacity(&pods);

    let fence = election.as_ref().map_or_else(Fence::unguarded, |election| election.fence.clone());
    let turn = match &election {
        Some(election) => {
            metrics.register(election.collector()?)?;
            election.turn(runs.clone(), pods.clone(), workspaces.clone())
        }
        None => Turn::always(),
    };

    let (answers, answered) = mpsc::channel(ANSWERS_MAX);
    let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
    let pulse = Arc::new(Pulse::new());
    let tools = Tools {
        client: client.clone(),
        runs: runs.clone(),
        answers,
        fence: fence.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
        announcer,
        traces: traces.clone(),
    };
    let dispatcher = Dispatcher::new(bind_workers, tools);
    let (to_owner, reconfigured) = mpsc::channel::<Reconfigure>(1);
    let keeper = Keeper::new(&first, args.overrides(), registry, to_owner, metrics.clone());
    let inputs = Inputs {
        runs: runs.subscribe(DELTAS_MAX),
        pods: pods.subscribe(DELTAS_MAX),
        workspaces: workspaces.subscribe(DELTAS_MAX),
        answers: answered,
        questions: asked,
        profiles: reconfigured,
    };
    let reconcilers = Reconcilers::new(reconcilers::Tools {
        client: client.clone(),
        runs: runs.clone(),
        pods: pods.clone(),
        workspaces: workspaces.clone(),
        policies: keeper.policies(),
        recorder: recorder.clone(),
        fence: fence.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    });
    let mut jobs = args.jobs.then(|| {
        let (client, recorder, metrics) = (client.clone(), recorder.clone(), metrics.clone());
        Jobs::new(jobs::Shared { client, recorder, fence, time, metrics, opensandbox: args.opensandbox() })
    });
    if let Some(jobs) = &jobs {
        metrics.register(jobs.collector()?)?;
    }
    let seen = owner::Tools {
        runs: runs.clone(),
        dispatcher: dispatcher.clone(),
        clock,
        metrics: metrics.clone(),
        pulse: pulse.clone(),
        traces,
        turn,
        began: all_of([Some(reconcilers.look_at_all()), jobs.as_ref().map(Jobs::look_at_all)]),
    };
    let owner = Owner::new(Core::new(first.loaded.profiles), inputs, seen);
    let lease_metrics = metrics.clone();
    let views = health::Views {
        metrics,
        pulse,
        shutdown: shutdown.clone(),
        runs,
        pods,
        workspaces,
        config_maps: matches!(source, Source::ConfigMap(_)).then(|| config_maps.clone()),
        queues: reconcilers.queues(),
        recorder: recorder.clone(),
        dispatcher: dispatcher.clone(),
        questions,
        namespace: args.namespace.clone(),
        configuration: keeper.in_force(),
        election: election.as_ref().map(|election| election.view.clone()),
        jobs: jobs.as_ref().map(Jobs::view),
    };

    let mut supervisor = Supervisor::new();
    let group = supervisor.group(STOP_WITHIN);
    let (routes, stop) = (health::routes(Arc::new(views)), group.stop());
    group.spawn("endpoints", async move { endpoint.serve(routes, stop).await });
    if let Some(exporter) = exporter {
        group.spawn("traces", ends(exporter.run(group.stop())));
    }
    let group = supervisor.group(STOP_WITHIN);
    let config = WatchConfig { namespace: args.namespace.clone(), ..WatchConfig::default() };
    let labelled = WatchConfig { labels: Some(berth_api::constants::LABEL_RUNTIME.to_owned()), ..config.clone() };
    group.spawn("runs", watch::<Run, _>(watch_runs, client.clone(), config.clone(), objects::read_run, group.stop()));
    group.spawn("pods", watch::<Pod, _>(watch_pods, client.clone(), labelled, objects::read_pod, group.stop()));
    group.spawn("workspaces", watch::<PersistentWorkspace, _>(watch_workspaces, client.clone(), config, objects::read_workspace, group.stop()));
    if let Some(jobs) = &mut jobs {
        jobs.watch(group);
    }
    follow(group, source, (config_maps, watch_config_maps), keeper, hangup, client, recorder);
    let group = supervisor.group(STOP_WITHIN);
    let stop = group.stop();
    group.spawn("events", async move {
        events.run(stop).await;
        Ok::<(), String>(())
    });
    if let Some(election) = election {
        // Stopped when all that writes as leader has ended: drain, then release.
        let group = supervisor.group(STOP_WITHIN);
        group.spawn("leader-election", election.on_a_thread(args.kubeconfig.as_deref(), lease_metrics, group.stop())?);
    }
    let group = supervisor.group(STOP_WITHIN);
    group.spawn("owner", on_a_thread(owner, shutdown.clone(), group.stop())?);
    let group = supervisor.group(DRAIN_WITHIN);
    group.spawn("dispatcher", dispatcher.run(group.stop()));
    group.spawn("binder", ends(reconcilers.binder.run(group.stop())));
    group.spawn("run-lifecycle", ends(reconcilers.lifecycle.run(group.stop())));
    if let Some(jobs) = jobs {
        jobs.work(group);
    }
    Ok(supervisor)
}

/// Follows the configuration where it comes from.
fn follow(
    group: &mut Group,
    source: Source,
    config_maps: (Informer<SeenConfigMap>, Watch<SeenConfigMap>),
    keeper: Keeper,
    hangup: Signal,
    client: Client,
    recorder: Recorder,
) {
    let stop = group.stop();
    match source {
        Source::Defaults => group.spawn("configuration", ends(configuration::follow_nothing(keeper, hangup, stop))),
        Source::File(path) => group.spawn("configuration", ends(configuration::follow_file(path, keeper, hangup, stop))),
        Source::ConfigMap(name) => {
            let (maps, watch_maps) = config_maps;
            let deltas = maps.subscribe(DELTAS_MAX);
            let fields = Some(format!("metadata.name={}", name.name));
            let only = WatchConfig { namespace: Some(name.namespace.clone()), fields, ..WatchConfig::default() };
            let read = move |value| configuration::read_config_map(value, &name);
            group.spawn("configmaps", watch::<ConfigMap, _>(watch_maps, client, only, read, group.stop()));
            group.spawn("configuration", ends(configuration::follow_config_map(deltas, keeper, recorder, hangup, stop)));
        }
    }
}

/// All of them, in order.
fn all_of<const N: usize>(steps: [Option<Box<dyn Fn() + Send>>; N]) -> Box<dyn Fn() + Send> {
    Box::new(move || steps.iter().flatten().for_each(|step| step()))
}

async fn ends(task: impl Future<Output = ()>) -> Result<(), String> {
    task.await;
    Ok(())
}

async fn watch<K, T>(
    watch: Watch<T>,
    client: Client,
    config: WatchConfig,
    read: impl Fn(serde_json::Value) -> Result<T, String> + Send + Sync,
    stop: CancellationToken,
) -> Result<(), String>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Send + 'static,
    T: Send + Sync + 'static,
{
    watch.run_with::<K>(client, config, read, stop).await;
    Ok(())
}

/// Runs the owner on a thread of its own. A thread that can't be stopped does not hold up the end of the process.
fn on_a_thread(owner: Owner, shutdown: CancellationToken, stop: CancellationToken) -> anyhow::Result<impl Future<Output = Result<(), String>> + Send> {
    let (ended, end) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new().name("owner".to_owned()).spawn(move || {
        let result = runtime.block_on(owner.run(shutdown, stop));
        // If nobody waits any more, the process is at its end.
        let _ = ended.send(result);
    })?;
    Ok(async move { end.await.unwrap_or_else(|_| Err("panicked".to_owned())) })
}

/// Who reports Events: the Pod's name in a cluster.
fn instance() -> String {
    std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| format!("berth-{}", std::process::id()))
}
