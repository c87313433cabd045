//! A cluster of one real node, with the project's images on it, and the chart installed by helm.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use berth_tests::controlplane::{ADMIN, ControlPlane, checkout};
use berth_tests::engine::Engine;
use berth_tests::helm::{Helm, RELEASE, chart, documents, path};
use berth_tests::image::Image;
use berth_tests::node::{Node, PAUSE, options};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::Scratch;
use berth_tests::release;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

/// What the images are called on the node.
const TAG: &str = "e2e";
/// An image with a shell and without the agent.
pub const OTHER_IMAGE: &str = "localhost/own:1";

/// All of it. The order of the fields is the order in which it goes.
pub struct Cluster {
    pub node: Node,
    pub plane: ControlPlane,
    helm: Helm,
}

impl Cluster {
    /// Starts it; some seconds once the images are built.
    pub async fn start() -> Result<Self> {
        let scratch = Scratch::new("images")?;
        let images = images(&scratch).await?;
        let plane = ControlPlane::start(options()).await?;
        let node = Node::start(&plane, &images, None).await?;
        Ok(Self { node, plane, helm: Helm::new()? })
    }

    /// `helm install` into a new namespace, with the images of this node; waits until everything is ready.
    pub async fn install(&self, namespace: &str, values: &Value) -> Result<()> {
        let file = self.helm.values("e2e", values)?;
        let kubeconfig = path(&self.plane.kubeconfig(ADMIN)?);
        let images = format!("image.repository=berth,image.tag={TAG},runtimed.image.repository=runtimed,runtimed.image.tag={TAG}");
        let chart = path(&chart());
        let args = ["install", RELEASE, &chart, "--kubeconfig", &kubeconfig, "--namespace", namespace, "--create-namespace"];
        let output = self.helm.run(&[&args[..], &["--values", &path(&file), "--set", &images, "--wait", "--timeout", "3m"]].concat())?;
        ensure!(output.status.success(), "helm install: {}\n{}", String::from_utf8_lossy(&output.stderr), self.describe(namespace).await);
        Ok(())
    }

    /// `kubectl apply` of a file of the checkout.
    pub async fn apply(&self, file: &str) -> Result<()> {
        for object in documents(&std::fs::read_to_string(checkout().join(file))?)? {
            release::apply(&self.plane.admin()?, &object).await?;
        }
        Ok(())
    }

    /// The Pods of a Runtime that are Ready and not on their way out.
    pub async fn runtime_pods(&self, namespace: &str, runtime: &str, at_least: usize) -> Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.plane.admin()?, namespace);
        let ready = |pod: &Pod| {
            let conditions = pod.status.clone().unwrap_or_default().conditions.unwrap_or_default();
            pod.metadata.deletion_timestamp.is_none()
                && ["Ready", "kruntimes.io/RuntimedReady"].iter().all(|kind| conditions.iter().any(|c| c.type_ == *kind && c.status == "True"))
        };
        let found = until(&format!("{at_least} Pods of {runtime}"), PATIENCE, || async {
            let pods: Vec<_> = api.list(&ListParams::default().labels(&format!("runtime={runtime}"))).await?.into_iter().filter(ready).collect();
            Ok((pods.len() >= at_least).then_some(pods))
        })
        .await;
        match found {
            Ok(found) => Ok(found),
            Err(error) => Err(error.context(self.describe(namespace).await)),
        }
    }

    /// Statuses of Pods and the node's logs, for a failure message.
    pub async fn describe(&self, namespace: &str) -> String {
        let statuses = async {
            let api: Api<Pod> = Api::namespaced(self.plane.admin()?, namespace);
            let mut text = String::new();
            for pod in api.list(&ListParams::default()).await? {
                let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|c| c.name.clone());
                let log = api.logs(&pod.name_any(), &kube::api::LogParams { container, tail_lines: Some(15), ..Default::default() }).await;
                text += &format!("{}: {}\n{}\n", pod.name_any(), serde_json::to_string(&pod.status)?, log.unwrap_or_else(|error| error.to_string()));
            }
            Ok::<_, anyhow::Error>(text)
        };
        let statuses = statuses.await.unwrap_or_else(|error| error.to_string());
        format!("{statuses}\n{}", self.node.logs())
    }
}

/// `berth` on a cluster: exit code, stdout, stderr.
pub async fn berth(plane: &ControlPlane, args: &[&str]) -> Result<(i32, String, String)> {
    let mut command = tokio::process::Command::new(berth_tests::berth::binary()?);
    command.args(args).arg("--kubeconfig").arg(plane.kubeconfig(ADMIN)?).stdin(Stdio::null());
    let output = command.output().await?;
    Ok((output.status.code().unwrap_or(-1), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

/// The pause image, and both images of the project, built by an engine that is gone afterwards.
async fn images(scratch: &Scratch) -> Result<Vec<PathBuf>> {
    let engine = Engine::start().await?;
    for program in ["berth", "runtimed"] {
        let output = Command::new(checkout().join("deploy/image/build.sh"))
            .arg(format!("{program}:{TAG}"))
            .envs([("PROGRAM", program), ("PROFILE", "dev"), ("DOCKER_BUILDKIT", "0")])
            .env("DOCKER_HOST", engine.host())
            .output()?;
        ensure!(output.status.success(), "build.sh: {}", String::from_utf8_lossy(&output.stderr));
    }
    other(&engine, scratch.path())?;
    let file = scratch.path().join("images.tar");
    engine.run(&["save", "--output", &path(&file), &format!("berth:{TAG}"), &format!("runtimed:{TAG}"), OTHER_IMAGE])?;
    Ok(vec![file, Image::pause()?.archive(PAUSE, scratch)?])
}

fn other(engine: &Engine, folder: &Path) -> Result<()> {
    let context = folder.join("own");
    std::fs::create_dir(&context)?;
    std::fs::copy("/bin/busybox", context.join("busybox"))?;
    std::fs::write(context.join("own"), "of the user\n")?;
    std::fs::write(context.join("Dockerfile"), "FROM scratch\nCOPY busybox /bin/\nCOPY own /\nRUN [\"/bin/busybox\", \"--install\", \"/bin\"]\n")?;
    engine.run(&["build", "--quiet", "--network=none", "--tag", OTHER_IMAGE, &path(&context)])?;
    Ok(())
}
