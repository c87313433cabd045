//! The five minutes of docs/opensandbox.md, as a reader goes through them: its `sh` block, line by line, by bash with the real kubectl and helm, on a
//! cluster on which the chart is installed as docs/install.md says. The cluster has no nodes: the process that the Deployment describes is the test's.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Serve;
use berth_tests::controlplane::{ADMIN, ControlPlane, Options, checkout};
use berth_tests::helm;
use berth_tests::opensandbox::{API_KEY, BUSYBOX};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::Scratch;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::Value;

use super::world::LONG;
use crate::world::server;

const PAGE: &str = "docs/opensandbox.md";
const EXAMPLE: &str = "examples/jobs/opensandbox.yaml";
/// What the example says of it, and the reader changes.
const ENDPOINT: &str = "endpoint: https://opensandbox.example.com/v1";
/// What stands for the reader's own.
const KEY: &str = "YOUR-API-KEY";

/// The commands of the page's first `sh` block below that heading, those of several lines as one.
fn commands(page: &str, heading: &str) -> Result<Vec<String>> {
    let (_, below) = page.split_once(&format!("\n{heading}\n")).with_context(|| format!("no {heading}"))?;
    let (_, block) = below.split_once("\n```sh\n").context("no sh block")?;
    let (block, _) = block.split_once("\n```").context("an open sh block")?;
    Ok(block.replace("\\\n", " ").lines().map(str::to_owned).collect())
}

/// A reader: a clone of the repository, a kubeconfig, and the tools on the PATH.
struct Reader {
    scratch: Scratch,
    kubeconfig: PathBuf,
    path: String,
}

impl Reader {
    fn new(plane: &ControlPlane) -> Result<Self> {
        let scratch = Scratch::new("reader")?;
        let examples = scratch.path().join("examples/jobs");
        std::fs::create_dir_all(&examples)?;
        symlink(checkout().join("deploy"), scratch.path().join("deploy"))?;
        std::fs::copy(checkout().join("examples/jobs/hello.yaml"), examples.join("hello.yaml"))?;
        let path = format!("{}:{}", helm::folder()?.display(), std::env::var("PATH")?);
        Ok(Self { scratch, kubeconfig: plane.kubeconfig(ADMIN)?, path })
    }

    /// A file of the clone, changed as the page says.
    fn change(&self, file: &str, from: &str, to: &str) -> Result<()> {
        let text = std::fs::read_to_string(checkout().join(file))?;
        ensure!(text.matches(from).count() == 1, "{file} should have {from:?} once");
        std::fs::write(self.scratch.path().join(file), text.replace(from, to))?;
        Ok(())
    }

    /// Types a command; what it says.
    fn types(&self, command: &str) -> Result<String> {
        let mut bash = Command::new("bash");
        bash.args(["-euc", command]).current_dir(self.scratch.path()).stdin(Stdio::null());
        bash.env("PATH", &self.path).env("KUBECONFIG", &self.kubeconfig).env("HOME", self.scratch.path());
        let output = bash.output()?;
        let (said, complaint) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr).into_owned());
        ensure!(output.status.success(), "{command}: {}: {said}{complaint}", output.status);
        Ok(said)
    }
}

/// The status of a condition, out of a list of them.
fn status_of(conditions: &Value, kind: &str) -> String {
    let found = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default().to_owned()
}

/// `berth serve` with the arguments of the Deployment that helm has left, and the rights of its account.
async fn as_deployed(plane: &ControlPlane) -> Result<Serve> {
    let deployment = Api::<Deployment>::namespaced(plane.admin()?, "berth").get("berth").await?;
    let container = deployment.spec.template.spec.and_then(|spec| spec.containers.into_iter().next()).context("no container")?;
    let serve = Serve::new(&plane.kubeconfig(&plane.token_of("berth", "berth").await?)?).secure(ADMIN);
    // Those that the harness gives by itself.
    let is_given = |arg: &String| arg == "serve" || arg == "--delegated-auth" || arg.starts_with("--metrics-addr=");
    Ok(container.args.unwrap_or_default().into_iter().filter(|arg| !is_given(arg)).fold(serve, Serve::arg))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_what_the_five_minutes_say_has_a_class_whose_jobs_run() -> Result<()> {
    let server = server().await?;
    server.engine.run(&["tag", BUSYBOX, "alpine:3.22"])?;
    let plane = ControlPlane::start(Options { controller_manager: true, ..Options::default() }).await?;
    let reader = Reader::new(&plane)?;
    reader.types("command -v kubectl").context("apt-get install kubernetes-client")?;
    reader.types("helm install berth deploy/chart/berth --namespace berth --create-namespace --set image.repository=REGISTRY/berth")?;
    reader.change(EXAMPLE, ENDPOINT, &format!("endpoint: {}", server.url()))?;

    let page = std::fs::read_to_string(checkout().join(PAGE))?;
    let mut commands = commands(&page, "## A class in five minutes")?;
    let look = commands.pop().context("no command")?;
    ensure!(commands.iter().any(|command| command.contains(KEY)) && commands.iter().any(|command| command.contains(EXAMPLE)), "{commands:?}");
    for command in &commands {
        reader.types(&command.replace(KEY, API_KEY))?;
    }
    let berth = as_deployed(&plane).await?.start_ready(plane.scratch()).await?;
    until("BackendReady=True", PATIENCE, || async {
        let conditions: Value = serde_json::from_str(&reader.types(&look)?)?;
        ensure!(status_of(&conditions, "BackendReady") == "True", "{conditions}");
        Ok(Some(()))
    })
    .await
    .with_context(|| berth.log())?;

    // "Then create a Job with `jobClassName: sandbox`": the example, whose Secret and ConfigMap are in the namespace that the values name.
    reader.change("examples/jobs/hello.yaml", "jobClassName: default", "jobClassName: sandbox")?;
    reader.types("kubectl -n ci create secret generic example-token --from-literal=token=canary-of-the-guide")?;
    reader.types("kubectl -n ci create configmap example-config --from-literal=value=x")?;
    // The admission policies are in force some seconds after they were installed.
    let job = until("the Job to be taken", PATIENCE, || async { Ok(Some(reader.types("kubectl create -f examples/jobs/hello.yaml -o name")?)) }).await?;
    let read = format!("kubectl -n ci get {} -o jsonpath='{{.status.conditions}}'", job.trim());
    until("the Job to succeed", LONG, || async {
        let said = reader.types(&read)?;
        ensure!(!said.is_empty(), "no conditions");
        let conditions: Value = serde_json::from_str(&said)?;
        ensure!(status_of(&conditions, "Succeeded") == "True", "{conditions}");
        Ok(Some(()))
    })
    .await
    .with_context(|| berth.log())?;
    ensure!(!berth.log().contains(API_KEY) && !berth.log().contains("canary-of-the-guide"), "a Secret's value was logged");
    Ok(())
}

#[test]
fn the_block_is_read_as_it_is_written() -> Result<()> {
    let page = "# T\n\n## A\n\n```sh\nno\n```\n\n## B\n\nText.\n\n```sh\na --b \\\n  --c\nd 'e f'\n```\n\n```sh\nno\n```\n";
    assert_eq!(commands(page, "## B")?, ["a --b    --c", "d 'e f'"]);
    assert!(commands(page, "## C").is_err());
    Ok(())
}
