//! Finished Jobs cost nothing: no write and no read of theirs at rest, nor when a process begins among them. BERTH_FINISHED_JOBS sets their number.

use anyhow::{Context as _, Result, ensure};
use berth_tests::berth::Serve;
use berth_tests::controlplane::{BERTH, ControlPlane};
use berth_tests::poll::{PATIENCE, stays, until};
use berth_tests::proxy::Proxy;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;

use crate::job_rows::{self, JOB, Stage, stage};
use crate::job_world::A_WHILE;
use crate::row::merge;
use crate::row_server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_jobs_cost_neither_writes_nor_reads() -> Result<()> {
    let count: usize = std::env::var("BERTH_FINISHED_JOBS").map_or(Ok(300), |text| text.parse()).context("BERTH_FINISHED_JOBS")?;
    let plane = ControlPlane::start_with_crds(Default::default()).await?;
    let server = Server { client: plane.admin()?, namespace: plane.namespace("job-rest").await? };
    // As they are after their life: finalizer, time to live, conditions of this generation.
    let mut status = stage(Stage::Failed);
    for condition in status["conditions"].as_array_mut().context("conditions")? {
        condition["observedGeneration"] = json!(1);
    }
    let meta = json!({"metadata": {"finalizers": ["execution.ayatori.ddupan.top/job-cleanup"]}});
    let whole = merge(&merge(&job_rows::job(json!({"ttlSecondsAfterFinished": 2_000_000_000})), &meta), &json!({ "status": status }));
    let made = stream::iter(0..count).map(|index| {
        let (server, whole) = (&server, &whole);
        async move { server.create_whole(JOB, &format!("done-{index}"), whole).await.map(drop) }
    });
    made.buffer_unordered(8).try_for_each(|()| async { Ok(()) }).await?;

    let proxy = Proxy::start(&plane).await?;
    let berth = Serve::new(&proxy.kubeconfig(&plane, BERTH)?).arg("--jobs").start_ready(plane.scratch()).await?;
    berth.metric_at_least("berth_job_states", &[("state", "Failed")], count as f64).await?;
    // Each was looked at.
    berth.metric_at_least("workqueue_work_duration_seconds_count", &[("name", "job")], count as f64).await?;
    until("the queue to be empty", PATIENCE, || async { Ok((berth.metrics().await?.sum("workqueue_depth", &[("name", "job")]) == 0.0).then_some(())) }).await?;
    let asked = || proxy.count(|seen| !seen.name.is_empty() && (seen.namespace == server.namespace || seen.resource == "jobs"));
    ensure!(asked() == 0, "{:?}", proxy.requests().iter().filter(|seen| seen.namespace == server.namespace).take(5).collect::<Vec<_>>());
    stays("no request about any of them", A_WHILE, || async { Ok(asked() == 0) }).await?;
    let memory = berth.metrics().await?.sum("process_resident_memory_bytes", &[]);
    println!("{count} finished Jobs: no write and no read about them; {:.0} MiB resident", memory / f64::from(1 << 20));
    Ok(())
}
