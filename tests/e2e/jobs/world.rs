//! A real node with Jobs on it: control plane and kubelet, a registry that containerd pulls from, and `berth serve --jobs` with the chart's own rights.
//!
//! Each process appends its Job's UID to a file of the node when it begins, and to another when it is told to stop: a policy of this world mounts that
//! folder into every Job's Pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use berth_tests::berth::{Berth, Serve};
use berth_tests::controlplane::{ControlPlane, Options, checkout};
use berth_tests::helm::{RELEASE, documents};
use berth_tests::image::Image;
use berth_tests::node::{Node, PAUSE, options};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::{Scratch, tail};
use berth_tests::proxy::Proxy;
use berth_tests::registry::{Registry, Terms};
use berth_tests::release::{Account, apply};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::judge::{Begun, End, judge};
use crate::cluster;
use crate::job_world::{account_of, install_policies, succeeded, uid};

/// Where the Jobs are.
pub const NAMESPACE: &str = "ci";
/// What the specification's example runs on; served by the world's registry.
pub const ALPINE: &str = "docker.io/library/alpine:3.22";
/// API group of Jobs.
const GROUP: &str = "execution.ayatori.ddupan.top";
/// Ends with 143 when it is told to, and says so.
pub const POLITE: &str = "trap 'echo $JOB_UID >> /node/stopped; exit 143' TERM; sleep 600 & wait";
/// Takes no notice.
pub const STUBBORN: &str = "trap '' TERM; sleep 600";
/// Says that all is well when it is told to stop.
pub const GRACEFUL: &str = "trap 'echo $JOB_UID >> /node/stopped; exit 0' TERM; sleep 600 & wait";

/// All of it. The order of the fields is the order in which it goes.
pub struct World {
    /// The processes, each behind a proxy; the last was started last.
    pub served: tokio::sync::Mutex<Vec<(Berth, Proxy)>>,
    pub node: Node,
    pub plane: ControlPlane,
    pub registry: Registry,
    pub jobs: Api<Job>,
    pub pods: Api<Pod>,
    pub client: Client,
    pub account: Account,
    /// UIDs of Jobs, and how often each may have been begun.
    expected: Mutex<BTreeMap<String, Begun>>,
    shared: Scratch,
}

impl World {
    /// Starts it.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with more flags for the controller manager.
    pub async fn start_with(controller_manager: &[&str]) -> Result<Self> {
        let registry = Registry::start().await?;
        registry.serve("library/alpine", "3.22", &Image::shell("alpine")?, Terms::default());
        let lost_soon = ["--node-monitor-period=500ms", "--node-monitor-grace-period=8s"];
        let lost_soon = lost_soon.iter().chain(controller_manager).map(|flag| (*flag).to_owned()).collect();
        let plane = ControlPlane::start_with_crds(Options { controller_manager_args: lost_soon, ..options() }).await?;
        let shared = Scratch::new("shared")?;
        let node = Node::start(&plane, &[Image::pause()?.archive(PAUSE, &shared)?], Some(registry.port())).await?;
        let client = plane.admin()?;
        install_policies(&client).await?;
        let account = account_of(&plane, &plane.namespace("release").await?).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "annotations": {format!("{GROUP}/default-job-class"): "quick"}}});
        apply(&client, &namespace).await?;
        let world = Self {
            served: tokio::sync::Mutex::default(),
            node,
            plane,
            registry,
            jobs: Api::namespaced(client.clone(), NAMESPACE),
            pods: Api::namespaced(client.clone(), NAMESPACE),
            client,
            account,
            expected: Mutex::default(),
            shared,
        };
        std::fs::create_dir(world.folder())?;
        world.mounts_in_pods().await?;
        world.serve().await?;
        let soon = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2});
        world.class("quick", json!({"terminationGracePeriodSeconds": 3}), json!({"minLossConfirmationAge": "1s"})).await?;
        world.class("hasty", json!({"terminationGracePeriodSeconds": 3, "imagePull": {"failureGracePeriod": "6s"}}), json!({})).await?;
        let tolerations = [soon("unreachable"), soon("not-ready")];
        world.class("impatient", json!({"terminationGracePeriodSeconds": 3, "tolerations": tolerations}), json!({})).await?;
        Ok(world)
    }

    /// Starts a process that carries Jobs, or stands by for the one that does.
    pub async fn serve(&self) -> Result<()> {
        let proxy = Proxy::start(&self.plane).await?;
        let namespace = self.account.user.split(':').nth(2).unwrap_or_default();
        let flags = ["lease-duration=5s", "renew-deadline=4s", "retry-period=500ms"].map(|flag| format!("--leader-elect-{flag}"));
        let names = [format!("--leader-elect-namespace={namespace}"), format!("--leader-elect-resource-name={RELEASE}")];
        let serve = Serve::new(&proxy.kubeconfig(&self.plane, &self.account.token)?).arg("--jobs").arg("--leader-elect");
        let serve = flags.into_iter().chain(names).fold(serve, Serve::arg);
        let berth = serve.start_ready(self.plane.scratch()).await?;
        self.served.lock().await.push((berth, proxy));
        Ok(())
    }

    /// A class, and the parameters of its name.
    async fn class(&self, name: &str, parameters: Value, class: Value) -> Result<()> {
        let object = |kind: &str, spec: Value| json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": {"name": name}, "spec": spec});
        apply(&self.client, &object("KubernetesExecutionParameters", parameters)).await?;
        let mut spec =
            json!({"controllerName": format!("{GROUP}/kubernetes"), "parametersRef": {"group": GROUP, "kind": "KubernetesExecutionParameters", "name": name}});
        spec.as_object_mut().context("an object")?.extend(class.as_object().context("an object")?.clone());
        apply(&self.client, &object("JobClass", spec)).await
    }

    fn folder(&self) -> PathBuf {
        self.shared.path().join("node")
    }

    /// A policy puts the folder into each Job's Pod, and the Job's UID into its environment, as somebody's webhook would. A Pod of a Job
    /// called `hoarder` may keep little on the node's disk.
    async fn mounts_in_pods(&self) -> Result<()> {
        let label = |name: &str| format!("object.metadata.labels['{GROUP}/{name}']");
        let of_a_job = format!("has(object.metadata.labels) && '{GROUP}/job-uid' in object.metadata.labels");
        let mount = format!(
            "Object{{spec: Object.spec{{volumes: [Object.spec.volumes{{name: 'node', hostPath: Object.spec.volumes.hostPath{{path: '{}'}}}}], \
             containers: [Object.spec.containers{{name: 'main', env: [Object.spec.containers.env{{name: 'JOB_UID', value: {}}}], \
             volumeMounts: [Object.spec.containers.volumeMounts{{name: 'node', mountPath: '/node'}}]}}]}}}}",
            self.folder().display(),
            label("job-uid")
        );
        let limit = format!(
            "{} == 'hoarder' ? Object{{spec: Object.spec{{containers: [Object.spec.containers{{name: 'main', \
             resources: Object.spec.containers.resources{{limits: {{'ephemeral-storage': '1Mi'}}}}}}]}}}} : Object{{}}",
            label("job-name")
        );
        let name = "node-folder.tests.example";
        let mutation = |expression: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
        let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": {"resourceRules": rules},
            "matchConditions": [{"name": "of-a-job", "expression": of_a_job}], "mutations": [mutation(&mount), mutation(&limit)]});
        let object = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        apply(&self.client, &object("MutatingAdmissionPolicy", spec)).await?;
        apply(&self.client, &object("MutatingAdmissionPolicyBinding", json!({"policyName": name}))).await?;
        // The API server takes it into use a little later.
        let pod = json!({"metadata": {"name": "first", "labels": {format!("{GROUP}/job-uid"): "u", format!("{GROUP}/job-name"): "n"}},
            "spec": {"containers": [{"name": "main", "image": "i"}]}});
        let (pod, dry) = (serde_json::from_value(pod)?, PostParams { dry_run: true, ..PostParams::default() });
        until("the folder to be mounted", PATIENCE, || async {
            let made: Pod = self.pods.create(&dry, &pod).await?;
            Ok(made.spec.and_then(|spec| spec.volumes).is_some_and(|volumes| volumes.iter().any(|volume| volume.name == "node")).then_some(()))
        })
        .await
    }

    /// Creates a Job of class `quick` whose shell says that it has begun and runs `script`; `extra` goes into its spec, `task` into its task.
    pub async fn job(&self, name: &str, script: &str, task: Value, extra: Value) -> Result<Job> {
        let mut whole = json!({"image": ALPINE, "command": ["/bin/sh", "-c", format!("echo $JOB_UID >> /node/begun; {script}")]});
        whole.as_object_mut().context("an object")?.extend(task.as_object().context("an object")?.clone());
        let mut spec = json!({"jobClassName": "quick", "task": whole});
        spec.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
        let job = json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "Job", "metadata": {"name": name}, "spec": spec});
        let job = self.jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
        self.expect(&uid(&job), Begun::Perhaps);
        Ok(job)
    }

    /// The objects of a file of the checkout.
    pub fn documents(&self, file: &str) -> Result<Vec<Value>> {
        documents(&std::fs::read_to_string(checkout().join(file))?)
    }

    /// Creates or replaces a Secret.
    pub async fn secret(&self, name: &str, kind: &str, data: Value) -> Result<()> {
        apply(
            &self.client,
            &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "type": kind, "stringData": data}),
        )
        .await
    }

    /// Creates a ConfigMap.
    pub async fn config_map(&self, name: &str, data: Value) -> Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        maps.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": name}, "data": data}))?).await?;
        Ok(())
    }

    /// Waits until a Job is as `wanted` says.
    pub async fn when(&self, name: &str, what: &str, wanted: impl Fn(&Job) -> bool) -> Result<Job> {
        let found = until(&format!("Job {name}: {what}"), PATIENCE * 2, || async {
            let job = self.jobs.get(name).await?;
            Ok(wanted(&job).then_some(job))
        })
        .await;
        match found {
            Ok(job) => Ok(job),
            Err(error) => Err(error.context(self.describe(name).await)),
        }
    }

    /// Waits until Succeeded=Unknown has this reason.
    pub async fn unfinished(&self, name: &str, reason: &str) -> Result<Job> {
        self.when(name, reason, |job| succeeded(job) == ("Unknown".to_owned(), reason.to_owned())).await
    }

    /// Waits for a Job's end and holds all that it tells against what it must, and against its Pod's record.
    pub async fn ended(&self, name: &str, end: End) -> Result<Job> {
        let job = self.when(name, &format!("to end {end:?}"), |job| matches!(succeeded(job).0.as_str(), "True" | "False")).await?;
        let pod = self.pods_of(&uid(&job)).await?.pop();
        self.expect(&uid(&job), end.begun);
        match judge(&job, pod.as_ref(), end) {
            Ok(()) => Ok(job),
            Err(error) => Err(error.context(self.describe(name).await)),
        }
    }

    /// The Pods of a Job, by its UID.
    pub async fn pods_of(&self, uid: &str) -> Result<Vec<Pod>> {
        Ok(self.pods.list(&ListParams::default().labels(&format!("{GROUP}/job-uid={uid}"))).await?.items)
    }

    /// The Pod of a Job, once there is one like that.
    pub async fn pod(&self, uid: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Result<Pod> {
        until(&format!("a Pod of {uid}: {what}"), PATIENCE, || async { Ok(self.pods_of(uid).await?.into_iter().find(|pod| wanted(pod))) }).await
    }

    /// Waits until the process has said that it has begun.
    pub async fn begun(&self, uid: &str) -> Result<()> {
        until(&format!("the process of {uid}"), PATIENCE * 2, || async { Ok(self.said("begun")?.iter().any(|said| said == uid).then_some(())) }).await
    }

    /// Waits until the Job and all of its backend are gone, and its process is: not before it was told to stop and said so.
    pub async fn gone(&self, name: &str, uid: &str) -> Result<()> {
        let gone = until(&format!("Job {name} to be gone"), PATIENCE * 2, || async { Ok(self.jobs.get_opt(name).await?.is_none().then_some(())) }).await;
        if let Err(error) = gone {
            return Err(error.context(self.describe(name).await));
        }
        ensure!(self.said("stopped")?.iter().any(|said| said == uid), "{name} went before its process had stopped");
        let natives: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        until(&format!("nothing of {name} to be left"), PATIENCE, || async {
            Ok((self.pods_of(uid).await?.is_empty() && natives.get_opt(&format!("ayj-{uid}")).await?.is_none()).then_some(()))
        })
        .await
    }

    /// Deletes a Job.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<()> {
        self.jobs.delete(name, params).await?;
        Ok(())
    }

    /// The UIDs that processes have written into that file of the node.
    pub fn said(&self, file: &str) -> Result<Vec<String>> {
        match std::fs::read_to_string(self.folder().join(file)) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets processes go on that wait for that file of the node.
    pub fn let_go(&self, file: &str) -> Result<()> {
        Ok(std::fs::write(self.folder().join(file), "")?)
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<String, Begun>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the process of that UID must have begun in the end.
    pub fn expect(&self, uid: &str, begun: Begun) {
        self.expected().insert(uid.to_owned(), begun);
    }

    /// Counts what the processes themselves have written: none began twice, each that had to began, and no other.
    pub fn none_began_twice(&self) -> Result<usize> {
        let begun = self.said("begun")?;
        let distinct: BTreeSet<_> = begun.iter().collect();
        ensure!(distinct.len() == begun.len(), "begun twice: {begun:?}");
        for (uid, expected) in self.expected().iter() {
            let is = distinct.contains(uid);
            ensure!(matches!(expected, Begun::Perhaps | Begun::Unsaid) || is == (*expected == Begun::Once), "{uid} should have begun {expected:?}; it is {is}");
        }
        Ok(begun.len())
    }

    /// `berth` on this cluster: exit code, stdout, stderr.
    pub async fn berth(&self, args: &[&str]) -> Result<(i32, String, String)> {
        cluster::berth(&self.plane, &[args, &["-n", NAMESPACE]].concat()).await
    }

    /// A Job, its Pods and the processes' logs, for a failure message.
    async fn describe(&self, name: &str) -> String {
        let text = async {
            let job = self.jobs.get(name).await?;
            let pods = self.pods_of(&uid(&job)).await?;
            let shown = |pod: &Pod| json!({"metadata": {"deletionTimestamp": pod.metadata.deletion_timestamp, "finalizers": pod.metadata.finalizers}, "status": pod.status});
            anyhow::Ok(format!("{}\n{}", json!({"metadata": job.metadata, "status": job.status}), json!(pods.iter().map(shown).collect::<Vec<_>>())))
        };
        let text = text.await.unwrap_or_else(|error| format!("{error:#}"));
        let logs: Vec<_> = self.served.lock().await.iter().map(|(berth, _)| tail(&berth.log(), 15)).collect();
        format!("{text}\n{}", logs.join("\n"))
    }

    /// No value of a Secret in any log of the processes, nor in an Event.
    pub async fn nobody_tells(&self, canaries: &[&str]) -> Result<()> {
        let logs: String = self.served.lock().await.iter().map(|(berth, _)| berth.log()).collect();
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let told = [
            logs,
            serde_json::to_string(&events.list(&ListParams::default()).await?.items)?,
            serde_json::to_string(&self.jobs.list(&ListParams::default()).await?.items)?,
        ];
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        ensure!(!secrets.list(&ListParams::default()).await?.items.is_empty());
        for canary in canaries {
            ensure!(told.iter().all(|text| !text.contains(canary)), "{canary} was told");
        }
        Ok(())
    }
}

/// How long what must not happen is watched for.
pub const A_WHILE: Duration = Duration::from_secs(2);
