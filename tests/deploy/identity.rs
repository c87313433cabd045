//! The installation's own Secrets by a real helm: its identity is filled once, and outlives upgrades and the release; of API keys only those of the values are
//! read, and what is wrong with one is told by the class (ADR 0063).

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Serve;
use berth_tests::controlplane::{ADMIN, ControlPlane};
use berth_tests::helm::{Helm, RELEASE, chart, path};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::apply;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const GROUP: &str = "execution.ayatori.ddupan.top";
/// Where the release is.
const NAMESPACE: &str = "identity";
const SECRET: &str = "berth-installation";

fn values(more: Value) -> Value {
    let mut values = json!({"jobs": {"enabled": true, "openSandbox": {"enabled": true, "apiKeySecrets": [{"namespace": NAMESPACE, "name": "key"}]}}});
    values.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    values
}

struct World {
    plane: ControlPlane,
    helm: Helm,
    client: Client,
}

impl World {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::start(Default::default()).await?;
        let client = plane.admin()?;
        apply(&client, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await?;
        Ok(Self { helm: Helm::new()?, client, plane })
    }

    /// Runs helm against the API server; whether it succeeded, and what it said.
    fn helm(&self, args: &[&str]) -> Result<(bool, String)> {
        let kubeconfig = path(&self.plane.kubeconfig(ADMIN)?);
        let output = self.helm.run(&[args, &["--namespace", NAMESPACE, "--kubeconfig", &kubeconfig]].concat())?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// `helm install` or `upgrade` with those values.
    fn release(&self, verb: &str, values: &Value, more: &[&str]) -> Result<(bool, String)> {
        let file = path(&self.helm.values("values", values)?);
        self.helm(&[&[verb, RELEASE, &path(&chart()), "--values", &file], more].concat())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn identity(&self) -> Result<Option<Vec<u8>>> {
        let secret = self.secrets().get_opt(SECRET).await?;
        Ok(secret.and_then(|secret| secret.data).and_then(|mut data| data.remove("key")).map(|key| key.0))
    }

    /// The process of the release, with its rights.
    async fn berth(&self) -> Result<berth_tests::berth::Berth> {
        let token = self.plane.token_of(NAMESPACE, RELEASE).await?;
        let serve = Serve::new(&self.plane.kubeconfig(&token)?).arg("--jobs").arg(format!("--jobs-opensandbox={NAMESPACE}/{SECRET}"));
        serve.arg(format!("--jobs-opensandbox-api-key={NAMESPACE}/key")).start_ready(self.plane.scratch()).await
    }

    /// A class of a server that does not answer, whose parameters name that Secret and key.
    async fn class(&self, name: &str, secret: &str, key: &str) -> Result<()> {
        let api_version = format!("{GROUP}/v1alpha1");
        let reference = json!({"namespace": NAMESPACE, "name": secret, "key": key});
        let parameters = json!({"apiVersion": api_version, "kind": "OpenSandboxExecutionParameters", "metadata": {"name": name},
            "spec": {"endpoint": "http://127.0.0.1:9/v1", "apiKeySecretRef": reference}});
        apply(&self.client, &parameters).await?;
        let class = json!({"apiVersion": api_version, "kind": "JobClass", "metadata": {"name": name}, "spec": {"controllerName": format!("{GROUP}/opensandbox"),
            "parametersRef": {"group": GROUP, "kind": "OpenSandboxExecutionParameters", "name": name}}});
        self.classes().create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        Ok(())
    }

    fn classes(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1alpha1", "JobClass"), "jobclasses"))
    }

    /// Waits until the class says that its backend is not ready for that reason, in words that hold `part`.
    async fn told(&self, class: &str, reason: &str, part: &str) -> Result<()> {
        until(&format!("class {class} with BackendReady=False/{reason}: {part}"), PATIENCE, || async {
            let class = self.classes().get(class).await?;
            let conditions = class.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.into_iter().find(|condition| condition["type"] == "BackendReady");
            let is = ready
                .is_some_and(|ready| ready["status"] == "False" && ready["reason"] == reason && ready["message"].as_str().unwrap_or_default().contains(part));
            Ok(is.then_some(()))
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_s_identity_is_filled_once_and_its_api_keys_are_those_of_the_values() -> Result<()> {
    let world = World::new().await?;
    let (done, said) = world.release("install", &values(json!({})), &[])?;
    ensure!(done, "{said}");
    assert_eq!(world.identity().await?, None, "the chart's is empty");
    let plural = format!("jobclasses.{GROUP}");
    until("the CRDs to be served", PATIENCE, || async { Ok(world.classes().list(&Default::default()).await.is_ok().then_some(&plural)) }).await?;

    // What is wrong with a key is told apart, and names object and field.
    let berth = world.berth().await?;
    apply(
        &world.client,
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other", "namespace": NAMESPACE}, "stringData": {"key": "canary-other"}}),
    )
    .await?;
    world.class("others", "other", "key").await?;
    world.told("others", "ApiKeyNotAllowed", &format!("OpenSandboxExecutionParameters others, spec.apiKeySecretRef: Secret {NAMESPACE}/other")).await?;
    world.class("mine", "key", "key").await?;
    world.told("mine", "ApiKeyUnavailable", &format!("spec.apiKeySecretRef: Secret {NAMESPACE}/key does not exist")).await?;
    let key = |data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": NAMESPACE}, "stringData": data});
    apply(&world.client, &key(json!({"else": "x"}))).await?;
    world.told("mine", "ApiKeyUnavailable", &format!("Secret {NAMESPACE}/key has no key key")).await?;
    apply(&world.client, &key(json!({"key": "canary-key"}))).await?;
    world.told("mine", "Unreachable", "").await?;
    let identity = until("the identity", PATIENCE, || world.identity()).await?;
    assert_eq!(identity.len(), 32);

    // Nothing that helm does takes it away.
    for (values, more) in [
        (values(json!({"replicas": 1})), &[][..]),
        (values(json!({"replicas": 3})), &["--server-side=false"]),
        (values(json!({"replicas": 2})), &["--server-side=false", "--force-replace"]),
        (values(json!({"jobs": {"enabled": true}})), &[]),
        (values(json!({})), &[]),
    ] {
        let (done, said) = world.release("upgrade", &values, more)?;
        println!("helm upgrade {more:?}: {}", if done { "done" } else { said.lines().last().unwrap_or_default() });
        ensure!(done || more.contains(&"--force-replace"), "{said}");
        assert_eq!(world.identity().await?.as_ref(), Some(&identity), "{more:?}");
    }
    let (done, said) = world.helm(&["uninstall", RELEASE])?;
    ensure!(done, "{said}");
    assert_eq!(world.identity().await?.as_ref(), Some(&identity), "kept");
    let (done, said) = world.release("install", &values(json!({})), &[])?;
    ensure!(done, "{said}");
    assert_eq!(world.identity().await?.as_ref(), Some(&identity), "taken up again");

    // Without its right to the key's Secret, and without the Secret of its identity.
    let roles: Api<k8s_openapi::api::rbac::v1::Role> = Api::namespaced(world.client.clone(), NAMESPACE);
    roles.delete("berth-api-key-0", &DeleteParams::default()).await?;
    world.secrets().delete(SECRET, &DeleteParams::default()).await?;
    drop(berth);
    let berth = world.berth().await?;
    world.told("mine", "InstallationUnavailable", &format!("kubectl create secret generic {SECRET} -n {NAMESPACE}")).await?;
    apply(&world.client, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}})).await?;
    world.told("mine", "ApiKeyUnavailable", &format!("the controller may not get Secret {NAMESPACE}/key")).await?;
    let filled = until("the identity", PATIENCE, || world.identity()).await?;
    assert_ne!(filled, identity, "another installation");
    let log = berth.log();
    assert!(!log.contains("canary"), "{log}");
    let secret = world.secrets().get_opt(SECRET).await?.context("no Secret")?;
    assert_eq!(secret.immutable, Some(true));
    Ok(())
}
