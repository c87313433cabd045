//! The Job controller: watches, asks [`decide`](super::machine::decide), writes one status, takes one step.
//!
//! ```text
//! Jobs ───────────────────────► key of the Job ─┐
//! native Jobs, Pods ──► labels ► key of the Job ─┼─► queue ─► reconcile: observe → decide → write status → act
//! JobClasses, parameters, Namespaces ──► Jobs that wait for them
//!        └────────────► queue of classes ─► finalizer, status
//! ```
//! Everything that is needed to go on is in the API objects; what is kept here only saves work.

mod announce;
mod apply;
mod catalog;
mod classes;
mod reconcile;
mod seen;
mod tally;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_runtime::backoff::Backoff;
use berth_runtime::events::Recorder;
use berth_runtime::informer::{Index, Informer};
use berth_runtime::lease::Fence;
use berth_runtime::workqueue::{QueueObserver, WorkQueue, run_workers};
use berth_runtime::{ObjectKey, ServerTime};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::adapter::kubernetes::seen::{SeenNative, SeenPod};
use super::adapter::kubernetes::{Kubernetes, Tools};
use super::adapter::opensandbox::{OpenSandbox, OwnSecrets, Tools as SandboxTools, Wake};
use super::adapter::{Adapter, Adapters};
use super::api::{JobClass, KubernetesExecutionParameters, OpenSandboxExecutionParameters};
use super::machine::Attempt;
use super::measure::JobObserver;
use super::resolve::{KIND_KUBERNETES, KIND_OPENSANDBOX};
use catalog::Known;
pub use classes::ClassKey;
pub use seen::{SeenJob, SeenNamespace, read_class, read_job, read_kubernetes, read_namespace, read_native, read_opensandbox, read_pod};
pub use tally::{Age, Tally};

/// Watches that the controller shares with nobody.
#[derive(Clone)]
pub struct Informers {
    /// Jobs.
    pub jobs: Informer<SeenJob>,
    /// JobClasses.
    pub classes: Informer<JobClass>,
    /// KubernetesExecutionParameters.
    pub kubernetes: Informer<KubernetesExecutionParameters>,
    /// OpenSandboxExecutionParameters.
    pub opensandbox: Informer<OpenSandboxExecutionParameters>,
    /// Namespaces.
    pub namespaces: Informer<SeenNamespace>,
    /// Native Jobs with the label of a Job's UID.
    pub natives: Informer<SeenNative>,
    /// Pods with that label.
    pub pods: Informer<SeenPod>,
}

/// What the controller works with.
pub struct Context {
    /// Where everything is written.
    pub client: Client,
    /// What it watches.
    pub informers: Informers,
    /// Takes Events.
    pub recorder: Recorder,
    /// Open while this process leads and has listed. What comes while it is closed is dropped; whoever opens it adds every Job and class.
    pub fence: Fence,
    /// The API server's time.
    pub time: Arc<ServerTime>,
    /// Jobs worked on at once.
    pub workers: usize,
    /// Told of the queues' durations.
    pub observer: Arc<dyn QueueObserver>,
    /// Told of the steps of Jobs.
    pub steps: Arc<dyn JobObserver>,
    /// The installation's own Secrets, if Jobs of OpenSandbox classes are carried too.
    pub opensandbox: Option<OwnSecrets>,
}

/// The controller with its queues. Made by [`Controller::new`], which begins to listen; works while [`Controller::run`] does.
pub struct Controller {
    context: Context,
    adapters: Adapters,
    known: Known,
    tally: Arc<Tally>,
    jobs: WorkQueue<ObjectKey>,
    classes: WorkQueue<ClassKey>,
    /// Jobs that have not ended, by UID of the class or the parameters that they name.
    users: Index<Arc<str>, SeenJob>,
    users_of_parameters: Index<Arc<str>, SeenJob>,
    /// Resource versions that a write of ours made, by Job, until the cache has caught up.
    outdated: Mutex<HashMap<ObjectKey, Arc<str>>>,
    /// What came of the last attempt to make an execution, by Job, with its UID.
    attempts: Mutex<HashMap<ObjectKey, (Arc<str>, Attempt)>>,
}

impl Controller {
    /// Listens to all informers.
    pub fn new(context: Context) -> Self {
        let Informers { jobs: seen_jobs, classes: seen_classes, kubernetes, opensandbox, namespaces, natives, pods } = context.informers.clone();
        let on_kubernetes = Kubernetes::new(Tools {
            client: context.client.clone(),
            natives: natives.clone(),
            pods: pods.clone(),
            fence: context.fence.clone(),
            time: context.time.clone(),
            steps: context.steps.clone(),
        });
        let jobs = WorkQueue::with("job", Backoff::KEYS, context.observer.clone());
        let classes = WorkQueue::with("jobclass", Backoff::KEYS, context.observer.clone());
        let mut adapters: Vec<Arc<dyn Adapter>> = vec![Arc::new(on_kubernetes)];
        let known = Known::new(seen_classes.clone(), kubernetes.clone(), opensandbox.clone(), namespaces.clone(), &seen_jobs);
        if let Some(secrets) = &context.opensandbox {
            let tools = SandboxTools {
                client: context.client.clone(),
                parameters: opensandbox.clone(),
                jobs: seen_jobs.clone(),
                fence: context.fence.clone(),
                time: context.time.clone(),
                steps: context.steps.clone(),
                secrets: secrets.clone(),
            };
            let (queue, classes, of) = (jobs.clone(), classes.clone(), known.clone());
            let wake = Wake {
                job: Box::new(move |key| queue.add(key)),
                parameters: Box::new(move |name| {
                    of.classes_of_parameters(KIND_OPENSANDBOX, &name).into_iter().for_each(|class| classes.add(ClassKey::Class(class)))
                }),
            };
            adapters.push(Arc::new(OpenSandbox::new(tools, wake)));
        }
        let adapters = Adapters::new(adapters);
        let users = seen_jobs.index(|_, job: &SeenJob| job.class_in_use());
        let users_of_parameters = seen_jobs.index(|_, job: &SeenJob| job.parameters_in_use());

        let tally = Arc::<Tally>::default();
        let counts = tally.clone();
        seen_jobs.on_change(move |change| counts.changed(change));
        seen_jobs.feed(&jobs, |change| [change.key.clone()]);
        natives.feed(&jobs, |change| {
            let side = change.new.or(change.old);
            side.map(|native| ObjectKey { namespace: change.key.namespace.clone(), name: Arc::from(native.object.job_name.as_str()) })
        });
        pods.feed(&jobs, |change| {
            let side = change.new.or(change.old);
            side.map(|pod| ObjectKey { namespace: change.key.namespace.clone(), name: Arc::from(pod.object.job_name.as_str()) })
        });
        // Who waits for a class, for its parameters, or for something of a Namespace.
        let waits = known.clone();
        seen_classes.feed(&jobs, move |change| waits.jobs_of_class(&change.key.name));
        let waits = known.clone();
        kubernetes.feed(&jobs, move |change| waits.jobs_of_parameters(KIND_KUBERNETES, &change.key.name));
        let waits = known.clone();
        opensandbox.feed(&jobs, move |change| waits.jobs_of_parameters(KIND_OPENSANDBOX, &change.key.name));
        let waits = known.clone();
        namespaces.feed(&jobs, move |change| waits.jobs_of_namespace(&change.key.name));
        // Classes and parameters: their own changes, those of what they name, and the end of a Job that used them.
        seen_classes.feed(&classes, |change| [ClassKey::Class(change.key.name.clone())]);
        let of = known.clone();
        let of_parameters =
            move |kind: &str, key: ClassKey| of.classes_of_parameters(kind, key.name()).into_iter().map(ClassKey::Class).chain([key]).collect::<Vec<_>>();
        let keys = of_parameters.clone();
        kubernetes.feed(&classes, move |change| keys(KIND_KUBERNETES, ClassKey::Kubernetes(change.key.name.clone())));
        opensandbox.feed(&classes, move |change| of_parameters(KIND_OPENSANDBOX, ClassKey::OpenSandbox(change.key.name.clone())));
        seen_jobs.feed(&classes, classes::freed_by);
        Self { adapters, known, tally, jobs, classes, users, users_of_parameters, outdated: Mutex::default(), attempts: Mutex::default(), context }
    }

    /// The queues, for their numbers.
    pub fn queues(&self) -> (WorkQueue<ObjectKey>, WorkQueue<ClassKey>) {
        (self.jobs.clone(), self.classes.clone())
    }

    /// The controllerNames that this process answers to.
    pub fn controllers(&self) -> Vec<&'static str> {
        self.adapters.controllers()
    }

    /// How many Jobs stand where.
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// What makes everything be looked at again, as a new leader must.
    pub fn look_at_all(&self) -> impl Fn() + Send + Sync + use<> {
        let Informers { jobs: seen_jobs, classes: seen_classes, kubernetes, opensandbox, natives, pods, .. } = self.context.informers.clone();
        let (jobs, classes) = (self.jobs.clone(), self.classes.clone());
        move || {
            seen_classes.list().into_iter().for_each(|class| classes.add(ClassKey::Class(class.key.name)));
            kubernetes.list().into_iter().for_each(|parameters| classes.add(ClassKey::Kubernetes(parameters.key.name)));
            opensandbox.list().into_iter().for_each(|parameters| classes.add(ClassKey::OpenSandbox(parameters.key.name)));
            seen_jobs.list().into_iter().for_each(|job| jobs.add(job.key));
            // What is left of Jobs that are gone.
            let key = |namespace: &Arc<str>, name: &str| ObjectKey { namespace: namespace.clone(), name: Arc::from(name) };
            natives.list().into_iter().for_each(|native| jobs.add(key(&native.key.namespace, &native.object.job_name)));
            pods.list().into_iter().for_each(|pod| jobs.add(key(&pod.key.namespace, &pod.object.job_name)));
        }
    }

    /// Carries Jobs until `shutdown`, then finishes what is under way. Begins when all caches are synced.
    pub async fn run(self, shutdown: CancellationToken) {
        let Informers { jobs, classes, kubernetes, opensandbox, namespaces, natives, pods } = &self.context.informers;
        let synced = async {
            futures::join!(jobs.synced(), classes.synced(), kubernetes.synced(), opensandbox.synced(), namespaces.synced(), natives.synced(), pods.synced())
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = synced => {}
        }
        let adapters: Vec<_> = self.adapters.all().map(Adapter::name).collect();
        tracing::info!(adapters = adapters.join(","), "the Job controller is ready");
        let carry = run_workers(&self.jobs, self.context.workers, shutdown.clone(), |key| {
            let span = tracing::info_span!("reconcile", kind = "Job", object = %key);
            self.reconcile(key).instrument(span)
        });
        let beside = futures::future::join_all(self.adapters.all().map(|adapter| adapter.run(shutdown.clone())));
        let hold = run_workers(&self.classes, 1, shutdown.clone(), |key| {
            let span = tracing::info_span!("reconcile", kind = key.kind(), object = key.name());
            self.reconcile_class(key).instrument(span)
        });
        futures::join!(carry, hold, beside);
    }
}
