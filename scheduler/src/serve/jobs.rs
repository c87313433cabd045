//! The Job controller within `berth serve`: its watches, its workers, and what probes see of it.

use std::sync::Arc;

use berth_controllers::job::adapter::kubernetes::names::LABEL_JOB_UID;
use berth_controllers::job::adapter::opensandbox::OwnSecrets;
use berth_controllers::job::api::names::{GROUP, class_condition};
use berth_controllers::job::api::{Job, JobClass, KubernetesExecutionParameters, OpenSandboxExecutionParameters};
use berth_controllers::job::controller::{
    ClassKey, Context, Controller, Informers, read_class, read_job, read_kubernetes, read_namespace, read_native, read_opensandbox, read_pod,
};
use berth_runtime::events::Recorder;
use berth_runtime::informer::{Informer, InformerStats, Watch, WatchConfig, informer};
use berth_runtime::lease::Fence;
use berth_runtime::shutdown::Group;
use berth_runtime::workqueue::{QueueStats, WorkQueue};
use berth_runtime::{ObjectKey, ServerTime};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::batch::v1::Job as NativeJob;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::metrics::jobs::JobsCollector;

/// Jobs worked on at once.
const WORKERS: usize = 8;

/// The controller, and the watches that feed it.
pub struct Jobs {
    controller: Controller,
    informers: Informers,
    watches: Vec<Start>,
    time: Arc<ServerTime>,
    client: Client,
}

/// Starts a watch.
type Start = Box<dyn FnOnce(&mut Group) + Send>;

/// What the controller shares with the rest of the process.
pub struct Shared {
    /// The API server.
    pub client: Client,
    /// Takes Events.
    pub recorder: Recorder,
    /// Asked before every send.
    pub fence: Fence,
    /// The API server's time.
    pub time: Arc<ServerTime>,
    /// Told of the queues' durations.
    pub metrics: Arc<Metrics>,
    /// The installation's own Secrets, if Jobs of OpenSandbox classes are carried.
    pub opensandbox: Option<OwnSecrets>,
}

impl Jobs {
    /// Listens; nothing runs yet.
    pub fn new(shared: Shared) -> Self {
        let Shared { client, recorder, fence, time, metrics, opensandbox: secrets } = shared;
        let labelled = WatchConfig { labels: Some(LABEL_JOB_UID.to_owned()), ..WatchConfig::default() };
        let mut watches = Vec::new();
        let jobs = namespaced::<Job, _>("jobs", &client, WatchConfig::default(), read_job, &mut watches);
        let natives = namespaced::<NativeJob, _>("jobs.batch", &client, labelled.clone(), read_native, &mut watches);
        let pods = namespaced::<Pod, _>("pods-of-jobs", &client, labelled, read_pod, &mut watches);
        let classes = cluster::<JobClass, _>("jobclasses", &client, read_class, &mut watches);
        let kubernetes = cluster::<KubernetesExecutionParameters, _>("kubernetesexecutionparameters", &client, read_kubernetes, &mut watches);
        let opensandbox = cluster::<OpenSandboxExecutionParameters, _>("opensandboxexecutionparameters", &client, read_opensandbox, &mut watches);
        let namespaces = cluster::<Namespace, _>("namespaces", &client, read_namespace, &mut watches);
        let informers = Informers { jobs, classes, kubernetes, opensandbox, namespaces, natives, pods };
        let steps = metrics.jobs.clone();
        let (informers_of, time_of, own) = (informers.clone(), time.clone(), client.clone());
        let context =
            Context { client, informers: informers_of, recorder, fence, time: time_of, workers: WORKERS, observer: metrics, steps, opensandbox: secrets };
        Self { controller: Controller::new(context), informers, watches, time, client: own }
    }

    /// What probes and metrics look at.
    pub fn view(&self) -> View {
        let (jobs, classes) = self.controller.queues();
        View { informers: self.informers.clone(), jobs, classes }
    }

    /// Where Jobs stand, for Prometheus.
    ///
    /// # Errors
    /// A definition is wrong: a mistake in the code.
    pub fn collector(&self) -> prometheus::Result<JobsCollector> {
        let classes = self.informers.classes.clone();
        let controllers = self.controller.controllers();
        let count = move || {
            let mut counts = [0; 2];
            classes.for_each(|class| {
                if let Some(accepted) = is_accepted(&class.object, &controllers) {
                    counts[usize::from(accepted)] += 1;
                }
            });
            counts
        };
        JobsCollector::new(self.controller.tally(), self.time.clone(), count)
    }

    /// What is to be done when a term begins.
    pub fn look_at_all(&self) -> Box<dyn Fn() + Send> {
        Box::new(self.controller.look_at_all())
    }

    /// Starts the watches in `group`.
    pub fn watch(&mut self, group: &mut Group) {
        self.watches.drain(..).for_each(|start| start(group));
    }

    /// Starts the workers in `group`.
    pub fn work(self, group: &mut Group) {
        let (controller, client, stop) = (self.controller, self.client, group.stop());
        group.spawn("jobs", async move {
            futures::join!(controller.run(stop.clone()), stop.run_until_cancelled(warn_of_too_many_rights(&client)));
            Ok::<(), String>(())
        });
    }
}

/// An account that may force a clean-up is an administrator's to the admission policies: they ask it for a reason with each finalizer that it takes
/// off, and so no deleted Job goes. Better told at the start than with the first deletion that hangs.
async fn warn_of_too_many_rights(client: &Client) {
    let verb = "force-cleanup";
    let asked =
        ResourceAttributes { group: Some(GROUP.to_owned()), resource: Some("jobs".to_owned()), verb: Some(verb.to_owned()), ..ResourceAttributes::default() };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(asked), ..SelfSubjectAccessReviewSpec::default() },
        ..SelfSubjectAccessReview::default()
    };
    match Api::all(client.clone()).create(&PostParams::default(), &review).await {
        Ok(review) if review.status.as_ref().is_some_and(|status| status.allowed) => {
            tracing::warn!(verb, resource = %format_args!("jobs.{GROUP}"), "this account has a right that the policies of deploy/jobs take for an administrator's: with them, no deleted Job goes; run with the account of the chart");
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, verb, "not known whether this account has it"),
    }
}

/// What probes and metrics look at.
#[derive(Clone)]
pub struct View {
    informers: Informers,
    jobs: WorkQueue<ObjectKey>,
    classes: WorkQueue<ClassKey>,
}

impl View {
    /// Each queue's numbers.
    pub fn queues(&self) -> [(&'static str, QueueStats); 2] {
        [(self.jobs.name(), self.jobs.stats()), (self.classes.name(), self.classes.stats())]
    }

    /// Each watch's numbers.
    pub fn informers(&self) -> [(&'static str, InformerStats); 7] {
        let Informers { jobs, classes, kubernetes, opensandbox, namespaces, natives, pods } = &self.informers;
        [
            (jobs.name(), jobs.stats()),
            (classes.name(), classes.stats()),
            (kubernetes.name(), kubernetes.stats()),
            (opensandbox.name(), opensandbox.stats()),
            (namespaces.name(), namespaces.stats()),
            (natives.name(), natives.stats()),
            (pods.name(), pods.stats()),
        ]
    }
}

/// Whether a class of ours can be used; None for others, and while that is not known.
fn is_accepted(class: &JobClass, controllers: &[&str]) -> Option<bool> {
    controllers.contains(&class.spec.controller_name.as_str()).then_some(())?;
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|condition| condition.type_ == class_condition::ACCEPTED).map(|condition| condition.status == "True").next()
}

fn namespaced<K, T>(name: &'static str, client: &Client, config: WatchConfig, read: fn(Value) -> Result<T, String>, watches: &mut Vec<Start>) -> Informer<T>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Send + 'static,
    T: Send + Sync + 'static,
{
    let client = client.clone();
    started(name, watches, move |watch, stop| watch.run_with::<K>(client, config, read, stop))
}

fn cluster<K, T>(name: &'static str, client: &Client, read: fn(Value) -> Result<T, String>, watches: &mut Vec<Start>) -> Informer<T>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Send + 'static,
    T: Send + Sync + 'static,
{
    let client = client.clone();
    started(name, watches, move |watch, stop| watch.run_cluster_with::<K>(client, WatchConfig::default(), read, stop))
}

/// An informer whose watch runs as a task of that name when its group is started.
fn started<T, F>(name: &'static str, watches: &mut Vec<Start>, run: impl FnOnce(Watch<T>, CancellationToken) -> F + Send + 'static) -> Informer<T>
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (informer, watch) = informer(name);
    watches.push(Box::new(move |group: &mut Group| {
        let stop = group.stop();
        group.spawn(name, async move {
            run(watch, stop).await;
            Ok::<(), String>(())
        });
    }));
    informer
}
