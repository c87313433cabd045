//! Two replicas of `berth serve` as the chart runs them, with its flags, profile and rights, under load and scraped by a real
//! Prometheus: every panel and rule has data, only the alert that should fires, nothing is refused and no right is unused.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::{self, Metrics};
use berth_tests::controlplane::ControlPlane;
use berth_tests::helm::{Helm, RELEASE, object, path};
use berth_tests::https::{self, Trust};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::{Guarded, free_port};
use berth_tests::proxy::{Fault, Proxy};
use berth_tests::release::{Account, apply};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::privilege;
use crate::prometheus::{Prometheus, dashboards, panels, rules};
use crate::world::{World, phase, run};

/// How long Runs come and go at least, so that every rate has points.
const LOAD: Duration = Duration::from_secs(8);
/// Runs a tick.
const BATCH: usize = 4;
const TICK: Duration = Duration::from_millis(100);

/// The tests of this suite share a control plane; whoever runs a scheduler on it holds this.
pub async fn one_scheduler() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// A release of the chart whose processes are ours.
pub struct Release {
    /// The release's namespace.
    pub namespace: String,
    /// Its ServiceAccount.
    pub account: Account,
    /// A token of an account that is bound to the ClusterRole …-metrics-reader, as Prometheus's should be.
    pub prometheus: String,
    /// What helm rendered.
    pub objects: Vec<Value>,
    args: Vec<String>,
}

impl Release {
    /// Renders and applies it in a namespace of its own.
    pub async fn install(helm: &Helm, plane: &ControlPlane, values: &Value) -> Result<Self> {
        let namespace = plane.namespace("release").await?;
        let objects = helm.rendered("release", &namespace, values)?;
        let account = Account::install(plane, &namespace, &objects).await?;
        let prometheus = plane.service_account(&namespace, "prometheus").await?;
        let reader = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": format!("{namespace}-prometheus")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("{namespace}-{RELEASE}-metrics-reader")},
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}],
        });
        apply(&plane.admin()?, &reader).await?;
        let deployment = object(&objects, "Deployment", RELEASE).context("no Deployment")?;
        let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        let args = args.as_array().context("no args")?.iter().filter_map(|arg| arg.as_str().map(str::to_owned)).collect();
        Ok(Self { namespace, account, prometheus, objects, args })
    }

    /// The container's arguments, some with another value.
    pub fn args_with(&self, others: &[(&str, String)]) -> Vec<String> {
        let other = |arg: &String| {
            let found = others.iter().find(|(flag, _)| arg.split_once('=').is_some_and(|(name, _)| name == *flag));
            found.map_or_else(|| arg.clone(), |(flag, value)| format!("{flag}={value}"))
        };
        self.args.iter().map(other).collect()
    }
}

/// GET of an endpoint of a process: code and body.
pub async fn endpoint(port: u16, path: &str, token: Option<&str>) -> Result<(u16, String)> {
    https::get(&format!("https://127.0.0.1:{port}"), path, token, Trust::Anybody).await
}

/// One of its processes.
pub struct Replica {
    process: Guarded,
    /// Of its endpoints.
    pub port: u16,
    token: String,
}

impl Replica {
    /// Starts it with the release's arguments, and waits until it is ready.
    pub async fn start(release: &Release, plane: &ControlPlane, name: &str, kubeconfig: &std::path::Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(berth::binary()?);
        command.args(release.args_with(&[("--metrics-addr", format!("127.0.0.1:{port}"))])).args(["--kubeconfig", &path(kubeconfig)]).env("HOSTNAME", name);
        let process = Guarded::spawn(name, command, &plane.scratch().path().join(format!("{name}.log")))?;
        let mut replica = Self { process, port, token: release.prometheus.clone() };
        until(&format!("{name} to be ready"), PATIENCE, || async { Ok((endpoint(port, "/readyz", None).await?.0 == 200).then_some(())) })
            .await
            .with_context(|| replica.process.log())?;
        replica.process.must_run()?;
        Ok(replica)
    }

    async fn metric_at_least(&self, name: &str, labels: &[(&str, &str)], least: f64) -> Result<()> {
        until(&format!("{name}{labels:?} >= {least}"), PATIENCE, || async {
            let metrics = Metrics::parse(&endpoint(self.port, "/metrics", Some(&self.token)).await?.1)?;
            Ok((metrics.sum(name, labels) >= least).then_some(()))
        })
        .await
    }

    /// SIGTERM, and a good end.
    pub async fn stop(mut self) -> Result<()> {
        self.process.terminate()?;
        let (status, log) = tokio::task::spawn_blocking(move || anyhow::Ok((self.process.wait(PATIENCE)?, self.process.log()))).await??;
        ensure!(status.success(), "{status}: {log}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_the_chart_runs_it_every_panel_has_data_and_every_right_its_use() -> Result<()> {
    let _alone = one_scheduler().await;
    let plane = ControlPlane::shared().await?;
    let values = json!({"leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"}, "configuration": {"profiles": [
        {"schedulerName": "default"},
        {"schedulerName": "packed", "shadow": true, "pluginConfig": [{"name": "Capacity", "args": {"strategy": "MostAllocated"}}]},
    ]}});
    let release = Release::install(&Helm::new()?, plane, &values).await?;
    let proxy = Proxy::start(plane).await?;
    let first = Replica::start(&release, plane, "berth-a", &proxy.kubeconfig(plane, &release.account.token)?).await?;
    first.metric_at_least("leader_election_master_status", &[], 1.0).await?;
    let second = Replica::start(&release, plane, "berth-b", &plane.kubeconfig(&release.account.token)?).await?;
    let prometheus = Prometheus::start(plane.scratch(), &[("berth-a", first.port), ("berth-b", second.port)], &release.prometheus).await?;
    let world = World::new("live").await?;

    rare_things(&world, &proxy, &first).await?;
    load(&world, &first).await?;
    // This release carries no Jobs; live_jobs does.
    every_panel_has_data(&prometheus, |file| file != JOBS_DASHBOARD).await?;
    every_rule_has_data(&prometheus).await?;
    until("the alert on lost heartbeats", PATIENCE, || async { Ok((!prometheus.firing().await?.is_empty()).then_some(())) }).await?;
    assert_eq!(prometheus.firing().await?, ["BerthHeartbeatsLost"]);

    // A planned handover: the second has the same rights and goes on.
    first.stop().await?;
    second.metric_at_least("leader_election_master_status", &[], 1.0).await?;
    world.run(run("after")).await?;
    world.placed("after").await?;
    second.stop().await?;
    privilege::nothing_was_refused(plane, &release.account.user)?;
    privilege::everything_was_used(plane, &release.account.user, &privilege::granted(&release.objects)?, &[])
}

/// What happens seldom, once each: lost answers, conflicts, workspaces bound and lost, a Pod whose agent falls silent.
async fn rare_things(world: &World<'_>, proxy: &Proxy, berth: &Replica) -> Result<()> {
    for pod in ["p0", "p1", "p2", "p3"] {
        world.pod(pod, "bash", &[("runs", "20")]).await?;
        let patch = json!({"metadata": {"annotations": {"kruntimes.io/workspace-agent": "v1"}}});
        world.pods.patch(pod, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    world.pod("silent", "bash", &[]).await?;
    world.silence("silent");

    // A Run that nobody can take, and one whose follower may go only where it went.
    world.run(run("lonely").runtime("none")).await?;
    world.waits("lonely", &["waiting for available"]).await?;
    world.run(run("leader").label("app", "x")).await?;
    let pod = world.placed("leader").await?;
    world.run(run("follower").requires("runAffinity", "app", "x").prefers("runAntiAffinity", 5, "app", "y")).await?;
    world.placed_on("follower", &pod).await?;

    // The answers to a binding and to a placement are lost: both are read back.
    let lost = proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("patch", "persistentworkspaces/status"));
    world.workspace("files", "bash").await?;
    world.workspace_when("files", "Bound").await?;
    assert_eq!(lost.hits(), 1);
    let lost = proxy.inject(Fault::DropAnswer, 1, |seen| seen.is("patch", "runs/status") && seen.name == "home");
    world.run(run("home").workspace("files")).await?;
    world.placed("home").await?;
    assert_eq!(lost.hits(), 1);

    // A workspace whose Pod goes.
    world.pod("gone", "once", &[]).await?;
    world.workspace("gone", "once").await?;
    world.workspace_when("gone", "Bound").await?;
    world.delete_pod("gone").await?;
    world.workspace_when("gone", "Lost").await?;

    // A workspace and a Run whose time to live is over are deleted.
    let brief = json!({"metadata": {"name": "brief"}, "spec": {"runtime": "bash", "ttlSecondsAfterUnused": 1}});
    world.workspaces.create(&PostParams::default(), &serde_json::from_value(brief)?).await?;
    world.workspace_when("brief", "Released").await?;
    until("the workspace to be deleted", PATIENCE, || async { Ok(world.workspaces.get("brief").await?.metadata.deletion_timestamp.map(drop)) }).await?;
    world.run(run("brief").spec("ttlSecondsAfterFinished", json!(1))).await?;
    world.placed("brief").await?;
    world.run_status("brief", json!({"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"})).await?;
    until("the Run to be deleted", PATIENCE, || async { Ok(world.runs.get_opt("brief").await?.is_none().then_some(())) }).await?;

    // A Run that changes unseen between its rejection and its placement.
    world.run(run("late").runtime("later")).await?;
    world.waits("late", &["waiting for available"]).await?;
    proxy.hold_watches("runs");
    world.patch_run("late", json!({"metadata": {"labels": {"a": "b"}}})).await?;
    world.pod("later", "later", &[]).await?;
    berth.metric_at_least("berth_status_writes_total", &[("kind", "bind"), ("outcome", "conflict")], 1.0).await?;
    proxy.release_watches("runs");
    world.placed("late").await?;

    // The same Event twice is a series.
    for amount in ["-1", "1", "-1"] {
        world.annotate_pod("p0", "gpu", amount).await?;
        tokio::time::sleep(TICK).await; // so that the watch shows each
    }
    Ok(())
}

/// Runs come, are placed and end, until the silent Pod has gone stale.
async fn load(world: &World<'_>, berth: &Replica) -> Result<()> {
    let start = std::time::Instant::now();
    let stale = berth.metric_at_least("berth_pods_went_stale_total", &[], 1.0);
    tokio::pin!(stale);
    let mut is_stale = false;
    for number in 0.. {
        if is_stale && start.elapsed() > LOAD {
            break;
        }
        for part in 0..BATCH {
            world.run(run(&format!("load-{number}-{part}")).label("app", if part == 0 { "y" } else { "z" })).await?;
        }
        if number % 10 == 0 {
            world.workspace(&format!("files-{number}"), "bash").await?;
            world.run(run(&format!("big-{number}")).request("runs", 99)).await?; // every Pod rejects it
        }
        for (name, seen) in world.all_runs().await? {
            if name.starts_with("load-") && phase(&seen) == "Scheduled" {
                world.succeed(&name).await?;
                world.delete_run(&name).await?;
            }
        }
        tokio::select! {
            result = &mut stale, if !is_stale => { result?; is_stale = true; }
            () = tokio::time::sleep(TICK) => {}
        }
    }
    Ok(())
}

/// The dashboard of Jobs.
pub const JOBS_DASHBOARD: &str = "berth-jobs.json";

/// A query as Grafana would send it.
fn asked(query: &str) -> String {
    query.replace("$job", "berth").replace("$__rate_interval", "1m")
}

/// Of each dashboard whose file is `wanted`; there is one.
pub async fn every_panel_has_data(prometheus: &Prometheus, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let dashboards: Vec<_> = dashboards()?.into_iter().filter(|(file, _)| wanted(file)).collect();
    ensure!(!dashboards.is_empty(), "no such dashboard");
    let mut empty = Vec::new();
    for (file, dashboard) in dashboards {
        for (title, queries) in panels(&dashboard) {
            for query in queries {
                if prometheus.query(&asked(&query)).await?.is_empty() {
                    empty.push(format!("{file}, {title}: {query}"));
                }
            }
        }
    }
    ensure!(empty.is_empty(), "panels without data:\n{}", empty.join("\n"));
    Ok(())
}

/// A recording rule has recorded something; a selector of an alert finds a series with the labels that it asks for, whatever
/// their values: an alert itself should find nothing.
async fn every_rule_has_data(prometheus: &Prometheus) -> Result<()> {
    let mut questions = BTreeSet::new();
    for rule in rules("rules")? {
        let (name, quantile) = (rule["record"].as_str().context("no name")?, rule["labels"]["quantile"].as_str().unwrap_or_default());
        questions.insert(format!("{name}{{quantile=\"{quantile}\"}}"));
        ensure!(!prometheus.query(rule["expr"].as_str().context("no expr")?).await?.is_empty(), "{name} has no data");
    }
    for rule in rules("alerts")? {
        questions.extend(selectors(rule["expr"].as_str().context("no expr")?));
    }
    // Those of Jobs are asked by live_jobs.
    questions.retain(|question| !question.starts_with("berth_job_"));
    for question in questions {
        ensure!(!prometheus.query(&question).await?.is_empty(), "{question} finds nothing");
    }
    Ok(())
}

/// `name{label!="",…}` of each selector `name{label="value",…}` of an expression.
pub fn selectors(expression: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (at, _) in expression.match_indices('{') {
        let before = &expression[..at];
        let name = &before[before.rfind(|c| !is_name(c)).map_or(0, |end| end + 1)..];
        let inside = expression[at + 1..].split('}').next().unwrap_or_default();
        let labels = inside.split(',').filter_map(|matcher| matcher.split(['=', '!']).next()).map(|label| format!("{label}!=\"\""));
        found.push(format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(",")));
    }
    found
}

#[test]
fn selectors_are_found_in_expressions() {
    let expression = "sum without (a) (rate(x_total{job=\"berth\",code=~\"5..|<error>\"}[5m])) / y{job=\"berth\"}";
    assert_eq!(selectors(expression), ["x_total{job!=\"\",code!=\"\"}", "y{job!=\"\"}"]);
}
