//! The admission policies about Jobs on the real API server: who may confirm a loss, force a clean-up, and how long a time to live may be.

use anyhow::{Context as _, Result};
use berth_tests::controlplane::NOBODY;
use berth_tests::kubelet::{now, terminated};
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::job_world::{World, condition, uid};

const CONFIRM: &str = "execution.ayatori.ddupan.top/confirm-backend-lost";
const BY: &str = "execution.ayatori.ddupan.top/backend-lost-confirmed-by";
const REASON: &str = "execution.ayatori.ddupan.top/force-cleanup-reason";

/// What a patch of a Job came to: nothing, or the refusal's code and text.
type Outcome = Result<(), (u16, String)>;

struct Tester<'w> {
    world: &'w World<'static>,
    jobs: Api<berth_controllers::job::api::Job>,
}

impl<'w> Tester<'w> {
    /// Somebody with all rights of a developer on Jobs of the namespace.
    async fn new(world: &'w World<'static>) -> Result<Self> {
        let tester = Self { world, jobs: Api::namespaced(world.plane.client(NOBODY)?, &world.namespace) };
        tester.may("developer", &["get", "list", "watch", "create", "update", "patch", "delete"]).await?;
        until("the developer's rights", PATIENCE, || async { Ok(tester.jobs.list(&Default::default()).await.ok().map(drop)) }).await?;
        Ok(tester)
    }

    async fn may(&self, name: &str, verbs: &[&str]) -> Result<()> {
        let role: Role = serde_json::from_value(json!({"metadata": {"name": name},
            "rules": [{"apiGroups": ["execution.ayatori.ddupan.top"], "resources": ["jobs", "jobs/status"], "verbs": verbs}]}))?;
        let binding: RoleBinding = serde_json::from_value(json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}]}))?;
        Api::namespaced(self.world.client.clone(), &self.world.namespace).create(&PostParams::default(), &role).await?;
        Api::namespaced(self.world.client.clone(), &self.world.namespace).create(&PostParams::default(), &binding).await?;
        Ok(())
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<Outcome> {
        match self.jobs.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(Ok(())),
            Err(kube::Error::Api(status)) => Ok(Err((status.code, status.message.clone()))),
            Err(error) => Err(error.into()),
        }
    }

    async fn annotate(&self, name: &str, key: &str, value: Value) -> Result<Outcome> {
        self.patch(name, json!({"metadata": {"annotations": {key: value}}})).await
    }
}

#[track_caller]
fn refused(outcome: Outcome, code: u16, words: &str) {
    match outcome {
        Err((found, message)) => assert!(found == code && message.contains(words), "{found} {message}"),
        Ok(()) => panic!("accepted"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_confirmed_by_whoever_may_and_proves_nothing() -> Result<()> {
    let world = World::with("job-confirm", json!({"minLossConfirmationAge": "0s"}), json!({})).await?;
    let tester = Tester::new(&world).await?;
    let job = world.job("lost", &["held"], json!({})).await?;
    let pod = world.bound(&uid(&job)).await?;
    world.kubelet.report(&pod.name_any(), "Running", json!({"running": {"startedAt": now()}})).await?;
    world.succeeded("lost", "Unknown", "Running").await?;
    refused(tester.annotate("lost", CONFIRM, json!(uid(&job))).await?, 403, "only be confirmed while Succeeded=Unknown/ResultUnknown");
    let silent = json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]});
    world.kubelet.patch(&pod.name_any(), &silent).await?;
    world.succeeded("lost", "Unknown", "ResultUnknown").await?;

    refused(tester.annotate("lost", CONFIRM, json!(uid(&job))).await?, 403, "user nobody lacks verb confirm-lost");
    assert_eq!(tester.annotate("lost", "example.com/other", json!("x")).await?, Ok(()), "other annotations are free");
    refused(tester.annotate("lost", BY, json!("somebody")).await?, 403, "written by the API server alone");
    let born = json!({"metadata": {"name": "born", "annotations": {CONFIRM: "x"}}, "apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job",
        "spec": {"task": {"image": "i"}}});
    let created = tester.jobs.create(&PostParams::default(), &serde_json::from_value(born)?).await;
    assert!(matches!(created, Err(kube::Error::Api(status)) if status.code == 403), "not at creation");
    let smuggled = json!({"metadata": {"annotations": {CONFIRM: uid(&job)}}});
    tester.jobs.patch_status("lost", &PatchParams::default(), &Patch::Merge(smuggled)).await?;
    assert!(!world.jobs.get("lost").await?.annotations().contains_key(CONFIRM), "nor through the status");

    tester.may("operator", &["confirm-lost"]).await?;
    until("the operator's right", PATIENCE, || async {
        let wrong = tester.annotate("lost", CONFIRM, json!("another-uid")).await?;
        Ok(matches!(wrong, Err((422, _))).then_some(()))
    })
    .await?;
    refused(tester.annotate("lost", CONFIRM, json!("another-uid")).await?, 422, "must be this Job's metadata.uid");
    assert_eq!(tester.annotate("lost", CONFIRM, json!(uid(&job))).await?, Ok(()));
    let ended = world.succeeded("lost", "False", "BackendLost").await?;
    let told = ended.status.clone().context("a status")?;
    assert_eq!((told.result, condition(&ended, "BackendObserved").0.as_str()), (None, "False"));
    assert!(told.conditions.iter().any(|condition| condition.message.starts_with("nobody confirmed that the backend is lost")), "{:?}", told.conditions);
    refused(tester.annotate("lost", CONFIRM, json!(null)).await?, 403, "cannot be changed or withdrawn");
    // An administrator with every right is no controller, which alone takes it away.
    let admin = Tester { world: &world, jobs: world.jobs.clone() };
    refused(admin.annotate("lost", CONFIRM, json!(null)).await?, 403, "cannot be changed or withdrawn");

    // Deleted, it stays: nothing is proven. Only force takes it away, and only with a reason.
    world.delete("lost", &DeleteParams::default()).await?;
    let strip = json!({"metadata": {"finalizers": null}});
    refused(tester.patch("lost", strip.clone()).await?, 403, "removing job-cleanup needs verb force-cleanup; nobody lacks it");
    tester.may("cleaner", &["force-cleanup"]).await?;
    until("the cleaner's right", PATIENCE, || async { Ok(matches!(tester.patch("lost", strip.clone()).await?, Err((422, _))).then_some(())) }).await?;
    refused(tester.patch("lost", strip).await?, 422, "state the reason in annotation");
    // Nor does that administrator go without.
    refused(admin.patch("lost", json!({"metadata": {"finalizers": null}})).await?, 422, "state the reason in annotation");
    let noted = world.plane.audit().count(|request| {
        let note = request.annotations.get("job-force-cleanup.execution.ayatori.ddupan.top/force-cleanup");
        note.is_some_and(|note| note.starts_with(&format!("requested by admin for {}/lost uid ", world.namespace)))
    })?;
    assert_eq!(noted, 1, "who asks is in the audit log");
    let forced = json!({"metadata": {"finalizers": null, "annotations": {REASON: "rack 4 burnt down"}}});
    assert_eq!(tester.patch("lost", forced).await?, Ok(()));
    world.gone("lost").await?;
    // What is left of it goes with it, the Pod when its node is back.
    let pod = world.pod(&uid(&job), "to be given up", |pod| pod.metadata.deletion_timestamp.is_some() && pod.finalizers().is_empty()).await?;
    world.kubelet.report(&pod.name_any(), "Failed", terminated(137, "Error", &now())).await?;
    world.nothing_left(&uid(&job)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_class_bounds_the_time_to_live_before_and_after_acceptance() -> Result<()> {
    let class = json!({"ttlSecondsAfterFinished": {"max": 3600, "recommended": 600, "required": true}});
    let world = World::with("job-ttl-policy", class, json!({})).await?;
    let tester = Tester::new(&world).await?;
    // Recommended at birth, visibly, in the spec.
    let job = until("the recommended time to live", PATIENCE, || async {
        let job = world.job(&format!("born-{}", world.jobs.list(&Default::default()).await?.items.len()), &["held"], json!({})).await?;
        Ok(job.spec.ttl_seconds_after_finished.is_some().then_some(job))
    })
    .await?;
    assert_eq!((job.spec.ttl_seconds_after_finished, job.finalizers()), (Some(600), &["execution.ayatori.ddupan.top/job-cleanup".to_owned()][..]));
    let name = job.name_any();
    world.until(&name, "acceptance", |job| condition(job, "Accepted").0 == "True").await?;
    let ttl = |seconds: Value| json!({"spec": {"ttlSecondsAfterFinished": seconds}});
    assert_eq!(tester.patch(&name, ttl(json!(3600))).await?, Ok(()));
    let class = &world.class;
    refused(tester.patch(&name, ttl(json!(3601))).await?, 422, &format!("exceeds the maximum of JobClass {class}, 3600"));
    refused(tester.patch(&name, ttl(json!(null))).await?, 422, &format!("JobClass {class} requires ttlSecondsAfterFinished"));
    // Before acceptance it is the controller's verdict, and may be mended.
    world.job("long", &["held"], json!({"ttlSecondsAfterFinished": 9999})).await?;
    world.until("long", "the verdict", |job| condition(job, "Accepted") == ("False".to_owned(), "TTLTooLong".to_owned())).await?;
    assert_eq!(tester.patch("long", ttl(json!(60))).await?, Ok(()));
    world.until("long", "acceptance", |job| condition(job, "Accepted").0 == "True").await?;
    Ok(())
}
