//! Workspaces under a real agent: shared, kept over restarts, never handed to a namesake, cleaned, and safe from tricks.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use berth_tests::poll::{PATIENCE, until};
use kube::api::DeleteParams;
use serde_json::json;

use super::runtimed_world::{Agents, outputs, script};
use super::serve_world::{condition, message, phase};

#[tokio::test]
async fn runs_share_a_workspace_over_restarts_and_a_namesake_never_sees_it() -> Result<()> {
    let agents = Agents::new("ws-share").await?;
    let setup = agents.setup("bash-1", &[("runs", "4")]).await?;
    let agent = setup.start()?;
    agents.workspace("ci", "bash").await?;
    agents.run(script("checkout", "mkdir src; printf 'int main;\\n' > src/main.c; pwd").workspace("ci")).await?;
    ensure!(phase(&agents.ended("checkout").await?) == "Succeeded");
    let path = agent.root().join("persistent/ci");
    ensure!(agent.output_of("checkout") == [format!("stdout: {}", path.display())], "{:?}", agent.output_of("checkout"));
    let setup = agent.kill()?;
    let agent = setup.start()?;
    agents.run(script("test", "cp src/main.c result; echo lines=$(wc -l < src/main.c) >> $KRUNTIME_OUTPUTS").workspace("ci")).await?;
    let run = agents.ended("test").await?;
    ensure!(outputs(&run) == json!({"lines": "1"}), "{}", message(&run));
    ensure!(std::fs::read_to_string(path.join("result"))? == "int main;\n");
    ensure!(!path.join("outputs").exists() && !path.join("script").exists(), "what belongs to a Run is not in the workspace");

    // Removed past everything; its data is removed when that is seen, at the latest before a namesake uses the name.
    agents.workspaces.delete("ci", &DeleteParams::default()).await?;
    gone(&agents, "ci").await?;
    agents.workspace("ci", "bash").await?;
    agents.run(script("fresh", "ls -A; test -z \"$(ls -A)\"").workspace("ci")).await?;
    let run = agents.ended("fresh").await?;
    ensure!(phase(&run) == "Succeeded", "{:?}", agent.output_of("fresh"));
    Ok(())
}

/// Waits until the binder has let a deleted workspace go, which it does once the agent says Cleaned.
async fn gone(agents: &Agents<'_>, name: &str) -> Result<()> {
    until(&format!("workspace {name} to go"), PATIENCE, || async { Ok(agents.workspaces.get_opt(name).await?.is_none().then_some(())) }).await
}

#[tokio::test]
async fn a_deleted_workspace_is_cleaned_when_nobody_uses_it_any_more() -> Result<()> {
    let agents = Agents::new("ws-clean").await?;
    let agent = agents.agent("bash-1", &[("runs", "4")]).await?;
    agents.workspace("w", "bash").await?;
    agents.workspace_when("w", "Bound").await?;
    let go = agent.root().join("go");
    agents.run(script("user", &format!("echo data > file; while [ ! -e {} ]; do sleep 0.05; done; cat file", go.display())).workspace("w")).await?;
    agents.until_phase("user", "Running").await?;
    let path = agent.root().join("persistent/w");
    until("the file", PATIENCE, || async { Ok(path.join("file").exists().then_some(())) }).await?;
    agents.workspaces.delete("w", &DeleteParams::default()).await?;
    agents.run(script("late", "true").workspace("w")).await?;
    // The agent has seen the deletion when it has carried out something later.
    agents.run(script("beside", "true")).await?;
    agents.ended("beside").await?;
    ensure!(path.join("file").exists(), "in use");
    std::fs::write(&go, "")?;
    ensure!(phase(&agents.ended("user").await?) == "Succeeded");
    until("the directory to be gone", PATIENCE, || async { Ok((!path.exists()).then_some(())) }).await?;
    gone(&agents, "w").await?;
    ensure!(!agent.root().join("persistent/.uid/w").exists());
    ensure!(["Pending", "Scheduled"].contains(&phase(&agents.runs.get("late").await?)), "nothing is claimed on a workspace being deleted");
    agents.nothing_was_refused()
}

#[tokio::test]
async fn a_workspace_deleted_in_the_pause_before_the_next_attempt_keeps_its_files_for_it() -> Result<()> {
    let agents = Agents::new("ws-pause").await?;
    let agent = agents.agent("bash-1", &[("runs", "4")]).await?;
    agents.workspace("w", "bash").await?;
    agents.workspace_when("w", "Bound").await?;
    let text = "test -e first && { echo found=yes >> $KRUNTIME_OUTPUTS; exit 0; }; touch first; exit 1";
    agents.run(script("r", text).workspace("w").spec("retryPolicy", json!({"maxAttempts": 2, "backoff": "6s"}))).await?;
    agents.run_when("r", "in its pause", |run| condition(run, "Running").is_some_and(|c| c.0 == "False")).await?;
    agents.workspaces.delete("w", &DeleteParams::default()).await?;
    // The agent has seen the deletion, and had time to act on it, when it has carried out something later.
    agents.run(script("beside", "sleep 1")).await?;
    agents.ended("beside").await?;
    let run = agents.ended("r").await?;
    ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"found": "yes"}), "{}: {}", message(&run), agent.log());
    gone(&agents, "w").await
}

/// No retryPolicy: that the directory is being made for another must not be seen.
#[tokio::test]
async fn runs_that_come_to_a_new_workspace_together_all_find_it() -> Result<()> {
    let agents = Agents::new("ws-together").await?;
    let _agent = agents.agent("bash-1", &[("runs", "16")]).await?;
    for name in ["a", "b"] {
        agents.workspace(name, "bash").await?;
        agents.workspace_when(name, "Bound").await?;
    }
    let names: Vec<String> = (0..16).map(|n| format!("r{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        agents.run(script(name, &format!("touch {name}; sleep 2; ls {name}")).workspace(["a", "b"][n % 2])).await?;
    }
    for name in &names {
        let run = agents.ended(name).await?;
        ensure!(phase(&run) == "Succeeded", "{name}: {}", message(&run));
    }
    Ok(())
}

#[tokio::test]
async fn tricks_with_the_directory_lead_nowhere() -> Result<()> {
    let agents = Agents::new("ws-tricks").await?;
    let agent = agents.agent("bash-1", &[("runs", "4")]).await?;
    let outside = agents.plane.scratch().path().join("ws-tricks-outside");
    std::fs::create_dir(&outside)?;
    std::fs::write(outside.join("precious"), "x")?;
    agents.workspace("w", "bash").await?;
    // Runs of this suite are root, as the agent is: they can do what --run-as would keep them from.
    let swap = format!("rm -rf $PWD; ln -s {} $PWD", outside.display());
    agents.run(script("swap", &swap).workspace("w")).await?;
    ensure!(phase(&agents.ended("swap").await?) == "Succeeded");
    agents.run(script("victim", "rm -rf ./*").workspace("w")).await?;
    let run = agents.ended("victim").await?;
    ensure!(condition(&run, "Completed").is_some_and(|c| c.1 == "PrepareSource"), "{}", message(&run));
    ensure!(message(&run).contains("is a symbolic link, not a directory; it is left alone"), "{}", message(&run));
    ensure!(outside.join("precious").exists());
    // A workspace that is not bound to this Pod, though a Run that names it is assigned here.
    let pod = agents.pods.get("bash-1").await?;
    agents.workspace("elsewhere", "python").await?;
    agents.run(script("astray", "true").workspace("elsewhere")).await?;
    agents.waits("astray", &["workspace elsewhere"]).await?;
    agents.run_status("astray", json!({"phase": "Scheduled", "assignedPod": "bash-1", "assignedPodUID": pod.metadata.uid})).await?;
    until("the agent to refuse", PATIENCE, || async { Ok(agent.log().contains("workspace elsewhere is of runtime").then_some(())) }).await?;
    ensure!(agents.runs.get("astray").await?.status.unwrap_or_default().start_time.is_none(), "never claimed");
    Ok(())
}

#[tokio::test]
async fn runs_run_as_somebody_else_and_the_workspace_is_theirs() -> Result<()> {
    let agents = Agents::new("ws-user").await?;
    // The suite's own folders are closed to others.
    let open = tempfile::Builder::new().prefix("berth-run-as-").permissions(Permissions::from_mode(0o755)).tempdir()?;
    let agent = agents.setup("bash-1", &[("runs", "4")]).await?.root(&open.path().join("volume")).arg("--run-as=65532:65532").start()?;
    agents.workspace("w", "bash").await?;
    let text = "id -u; id -G; touch file; ls -ln file | cut -d' ' -f3\ncat ../../.runtimed/lock 2>/dev/null || echo private\ntouch ../x 2>/dev/null || echo closed\ngrep NoNewPrivs /proc/self/status";
    agents.run(script("who", text).workspace("w")).await?;
    let run = agents.ended("who").await?;
    ensure!(phase(&run) == "Succeeded", "{}", message(&run));
    let expected = ["65532", "65532", "65532", "private", "closed", "NoNewPrivs:\t1"].map(|line| format!("stdout: {line}"));
    ensure!(agent.output_of("who") == expected, "{:?}", agent.output_of("who"));
    Ok(())
}
