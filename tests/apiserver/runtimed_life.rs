//! The life of a Run under a real agent: heartbeat, claim, execution, what is reported and what is left behind.

use anyhow::{Result, ensure};
use berth_tests::poll::{PATIENCE, until};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::runtimed_world::{Agents, outputs, script};
use super::serve_world::{condition, message, phase, run};

#[tokio::test]
async fn it_beats_advertises_itself_and_carries_out_what_is_placed_on_it() -> Result<()> {
    let agents = Agents::new("life").await?;
    let mut agent = agents.agent("bash-1", &[("runs", "2")]).await?;
    agents.run(script("hello", "echo out; echo err >&2\necho answer=42 >> \"$KRUNTIME_OUTPUTS\"\npwd")).await?;
    let run = agents.until_phase("hello", "Succeeded").await?;
    let status = run.status.clone().unwrap_or_default();
    ensure!(outputs(&run) == json!({"answer": "42"}), "{status:?}");
    ensure!(status.attempt == Some(1) && status.start_time.is_some() && status.completion_time.is_some(), "{status:?}");
    ensure!(message(&run) == "execution completed", "{}", message(&run));
    ensure!(condition(&run, "Running") == Some(("False".into(), "Completed".into(), String::new())), "{:?}", condition(&run, "Running"));
    ensure!(condition(&run, "Completed") == Some(("True".into(), "RunCompleted".into(), "Completed successfully".into())));
    ensure!(condition(&run, "Scheduled").is_some_and(|c| c.0 == "True"), "the scheduler's condition stays");
    let uid = run.metadata.uid.clone().unwrap_or_default();
    let output = agent.output_of("hello");
    for line in ["stdout: out", "stderr: err"] {
        ensure!(output.iter().any(|said| said == line), "{output:?}");
    }
    ensure!(output.iter().any(|said| said.ends_with(&uid)), "it runs in its own directory: {output:?}");

    let pod = agents.pods.get("bash-1").await?;
    ensure!(pod.metadata.annotations.clone().unwrap_or_default().contains_key("kruntimes.io/workspace-agent"), "{:?}", pod.metadata.annotations);
    let beat = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.clone().unwrap_or_default().conditions.unwrap_or_default();
        conditions.into_iter().find(|c| c.type_ == "kruntimes.io/RuntimedReady").map(|c| (c.status, c.reason, c.last_probe_time, c.last_transition_time))
    };
    let first = beat(&pod);
    ensure!(first.as_ref().is_some_and(|(status, reason, ..)| status == "True" && reason.as_deref() == Some("Heartbeat")), "{first:?}");
    let next = until("another heartbeat", PATIENCE, || async {
        let next = beat(&agents.pods.get("bash-1").await?);
        Ok((next != first).then_some(next))
    })
    .await?;
    ensure!(next.map(|beat| beat.3) == first.map(|beat| beat.3), "lastTransitionTime stays while the status does");
    ensure!(pod.status.unwrap_or_default().conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready"), "the kubelet's conditions stay");
    until("what was kept of the Run to be gone", PATIENCE, || async {
        let left = agent_files(&agent, &uid);
        Ok((!left).then_some(()))
    })
    .await?;
    agent.process().must_run()?;
    let (status, log) = agent.terminate().await?;
    ensure!(status.code() == Some(0), "{status}: {log}");
    let last = beat(&agents.pods.get("bash-1").await?);
    ensure!(last.as_ref().is_some_and(|(status, reason, ..)| status == "False" && reason.as_deref() == Some("Stopped")), "{last:?}");
    agents.nothing_was_refused()
}

fn agent_files(agent: &berth_tests::runtimed::Runtimed, uid: &str) -> bool {
    let root = agent.root();
    root.join(uid).exists() || root.join(".runtimed/runs").join(uid).exists()
}

#[tokio::test]
async fn how_a_process_ends_is_told_in_status() -> Result<()> {
    let agents = Agents::new("life-ends").await?;
    let _agent = agents.agent("bash-1", &[("runs", "20")]).await?;
    let cases = [
        (script("code", "echo one >&2; echo two >&2; exit 3"), "Failed", "RuntimeError", "exit code 3; runtime stderr: one | two"),
        (script("silent", "exit 4"), "Failed", "RuntimeError", "exit code 4"),
        (script("signal", "kill -SEGV $$"), "Failed", "RuntimeError", "killed by signal 11 (SIGSEGV)"),
        (run("args").spec("mode", json!({"task": {"args": ["echo hi", "exit 7"]}})), "Failed", "RuntimeError", "exit code 7"),
        (run("nothing"), "Failed", "PrepareSource", "no args or script provided: give spec.source, or spec.mode.task.args"),
        (
            run("absent").spec("mode", json!({"task": {"entrypoint": "no/such"}})),
            "Failed",
            "PrepareSource",
            "spec.mode.task.entrypoint: \"no/such\" is no file in the source",
        ),
        (script("interpreter", "#!/no/such/interpreter\n"), "Failed", "RuntimeExecute", "runtime Execute: "),
        (script("bad-output", "echo nonsense >> $KRUNTIME_OUTPUTS"), "Failed", "OutputsInvalid", "outputs: line 1 is not KEY=VALUE"),
        (script("link", "ln -s /etc/passwd $KRUNTIME_OUTPUTS"), "Failed", "OutputsInvalid", "outputs: the file is a symbolic link"),
        (script("large", "yes k=v | head -c 2000000 > $KRUNTIME_OUTPUTS"), "Failed", "OutputsTooLarge", "outputs: the file is larger than 1048576 bytes"),
        (
            script("secret", "true").spec("env", json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])),
            "Failed",
            "InvalidSpec",
            "spec.env[0] (\"TOKEN\"): valueFrom is not supported by the agent",
        ),
        (run("function").spec("mode", json!({"function": {}})), "Failed", "InvalidSpec", "spec.mode.function: runtime bash starts processes"),
        (script("red", "printf '\\033[31mred' >&2; exit 1"), "Failed", "RuntimeError", "exit code 1; runtime stderr: \\u{1b}[31mred"),
        (script("late", "sleep 60").spec("timeout", json!("1s")), "Timeout", "Timeout", "timeout after 1s"),
    ];
    let mut expected = Vec::new();
    for (draft, phase, reason, text) in cases {
        let run = agents.run(draft).await?;
        expected.push((run.metadata.name.unwrap_or_default(), phase, reason, text));
    }
    for (name, wanted, reason, text) in expected {
        let run = agents.ended(&name).await?;
        ensure!(phase(&run) == wanted && message(&run).starts_with(text), "{name}: {} {}", phase(&run), message(&run));
        for kind in ["Running", "Completed"] {
            ensure!(condition(&run, kind) == Some(("False".into(), reason.into(), message(&run).into())), "{name}: {:?}", condition(&run, kind));
        }
        let note = format!("attempt 1 of 1: {reason}: {}", message(&run));
        let told = async || Ok(agents.events(&name, "RunFailed").await?.into_iter().find(|(type_, said)| type_ == "Warning" && *said == note));
        until(&format!("an Event of the end of {name}"), PATIENCE, told).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_process_sees_its_own_variables_and_none_of_the_agent_s() -> Result<()> {
    let agents = Agents::new("life-env").await?;
    let agent = agents.setup("bash-1", &[]).await?.env("FROM_IMAGE", "kept").env("RUST_LOG", "info").start()?;
    let text = "echo A=$A image=$FROM_IMAGE pod=${POD_UID-none}${RUST_LOG-none} home=$HOME; test \"$HOME/outputs\" = \"$KRUNTIME_OUTPUTS\"";
    let env = json!([{"name": "A", "value": "1"}, {"name": "KRUNTIME_OUTPUTS", "value": "/etc/passwd"}]);
    agents.run(script("env", text).spec("env", env)).await?;
    let run = agents.ended("env").await?;
    ensure!(phase(&run) == "Succeeded", "{}", message(&run));
    let home = agent.root().join(run.metadata.uid.unwrap_or_default());
    ensure!(agent.output_of("env") == [format!("stdout: A=1 image=kept pod=nonenone home={}", home.display())], "{:?}", agent.output_of("env"));
    Ok(())
}

#[tokio::test]
async fn cancel_stops_at_every_phase_and_everything_a_run_has_started() -> Result<()> {
    let agents = Agents::new("life-cancel").await?;
    let setup = agents.setup("bash-1", &[("runs", "9")]).await?;
    // Before an agent is there: Scheduled. The heartbeat of an agent that has just gone is still fresh.
    let first = setup.start()?;
    agents.run(script("warm", "true")).await?;
    agents.until_phase("warm", "Succeeded").await?;
    first.kill()?;
    agents.run(script("scheduled", "touch /tmp/never")).await?;
    agents.until_phase("scheduled", "Scheduled").await?;
    agents.cancel("scheduled").await?;
    let agent = setup.start()?;
    let run = agents.ended("scheduled").await?;
    ensure!(phase(&run) == "Cancelled" && message(&run) == "cancelled by user" && run.status.clone().unwrap_or_default().start_time.is_none());

    // One that ignores TERM, with a child in another session.
    let stubborn = "trap '' TERM\nsetsid sh -c 'trap \"\" TERM; echo deep $$; sleep 600' &\necho top $$\nwhile :; do sleep 1; done";
    agents.run(script("stubborn", stubborn)).await?;
    // One that cleans up when asked.
    agents.run(script("polite", "trap 'echo bye; exit 0' TERM\necho ready\nwhile :; do sleep 0.1; done")).await?;
    until("all to be up", PATIENCE, || async {
        let all = [agent.output_of("stubborn"), agent.output_of("polite")].concat();
        Ok(["stdout: deep", "stdout: top", "stdout: ready"].iter().all(|line| all.iter().any(|said| said.starts_with(line))).then_some(()))
    })
    .await?;
    let pids: Vec<i32> = agent.output_of("stubborn").iter().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    ensure!(pids.len() == 2, "{pids:?}");
    agents.cancel("stubborn").await?;
    agents.cancel("polite").await?;
    for name in ["polite", "stubborn"] {
        let run = agents.ended(name).await?;
        ensure!(phase(&run) == "Cancelled" && condition(&run, "Completed").is_some_and(|c| c.1 == "Cancelled"), "{name}: {}", message(&run));
    }
    ensure!(agent.output_of("polite").contains(&"stdout: bye".to_owned()), "TERM comes first: {:?}", agent.output_of("polite"));
    for pid in pids {
        ensure!(berth_runtimed::shim::tree::start_ticks(pid).is_none(), "{pid} lives");
    }
    Ok(())
}

/// The cancel meets a Run that is being prepared, whose shim is starting, or whose process has just begun.
#[tokio::test]
async fn a_cancel_at_the_very_start_is_a_cancel_and_never_a_loss() -> Result<()> {
    let agents = Agents::new("life-cancel-early").await?;
    let _agent = agents.agent("bash-1", &[("runs", "40")]).await?;
    let names: Vec<String> = (0..24).map(|n| format!("r{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        agents.run(script(name, "sleep 600").spec("retryPolicy", json!({"maxAttempts": 3}))).await?;
        agents.until_phase(name, "Running").await?;
        tokio::time::sleep(std::time::Duration::from_millis(2 * n as u64)).await;
        agents.cancel(name).await?;
    }
    for name in &names {
        let run = agents.ended(name).await?;
        let attempt = run.status.clone().unwrap_or_default().attempt.unwrap_or(0);
        ensure!(phase(&run) == "Cancelled" && attempt <= 1, "{name} is {} in attempt {attempt}: {}", phase(&run), message(&run));
    }
    Ok(())
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_in_place_after_its_pause() -> Result<()> {
    let agents = Agents::new("life-retry").await?;
    let agent = agents.agent("bash-1", &[]).await?;
    agents.workspace("w", "bash").await?;
    let count = "n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; echo attempt $n; test $n -ge 3 && echo last=$n >> $KRUNTIME_OUTPUTS";
    let policy = json!({"maxAttempts": 5, "backoff": "1s"});
    agents.run(script("again", count).workspace("w").spec("retryPolicy", policy)).await?;
    let run = agents.ended("again").await?;
    let status = run.status.clone().unwrap_or_default();
    ensure!(phase(&run) == "Succeeded" && status.attempt == Some(3) && outputs(&run) == json!({"last": "3"}), "{status:?}");
    ensure!(agent.output_of("again") == ["stdout: attempt 1", "stdout: attempt 2", "stdout: attempt 3"], "{:?}", agent.output_of("again"));
    let took = status.completion_time.map(|t| t.0.as_second()).unwrap_or_default() - status.start_time.map(|t| t.0.as_second()).unwrap_or_default();
    ensure!(took >= 2, "1 s and 2 s of pause, in whole seconds of condition times: {took} s");
    agents.run(script("never", "exit 1").spec("retryPolicy", json!({"maxAttempts": 2, "backoff": "100ms"}))).await?;
    let run = agents.ended("never").await?;
    ensure!(phase(&run) == "Failed" && run.status.clone().unwrap_or_default().attempt == Some(2));
    agents.run(script("unlisted", "exit 1").spec("retryPolicy", json!({"maxAttempts": 2, "retryableReasons": ["PodGone"]}))).await?;
    ensure!(agents.ended("unlisted").await?.status.unwrap_or_default().attempt == Some(1));
    for (name, reason) in [("again", "RunFailedRetrying"), ("again", "RunRetrying"), ("again", "RunSucceeded"), ("never", "RunRetriesExhausted")] {
        until(&format!("Event {reason} of {name}"), PATIENCE, || async { Ok((!agents.events(name, reason).await?.is_empty()).then_some(())) }).await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_requested_resource_is_admitted_and_who_does_not_fit_waits() -> Result<()> {
    let agents = Agents::new("life-room").await?;
    let agent = agents.agent("bash-1", &[("runs", "9"), ("gpu", "1")]).await?;
    agents.run(script("first", "while [ ! -e ../go ]; do sleep 0.1; done").request("gpu", 1)).await?;
    agents.until_phase("first", "Running").await?;
    // Assigned by hand past the scheduler: the agent's own admission holds it.
    let pod = agents.pods.get("bash-1").await?;
    agents.run(script("second", "echo mine").request("gpu", 1)).await?;
    agents.waits("second", &["insufficient gpu"]).await?;
    agents.run_status("second", json!({"phase": "Scheduled", "assignedPod": "bash-1", "assignedPodUID": pod.metadata.uid})).await?;
    until("the agent to see it", PATIENCE, || async { Ok(agent.log().contains("no room").then_some(())) }).await?;
    ensure!(phase(&agents.runs.get("second").await?) == "Scheduled");
    std::fs::write(agent.root().join("go"), "")?;
    agents.until_phase("second", "Succeeded").await?;
    // A Run assigned to a namesake's UID, and one without UID, are nobody's here.
    for (name, uid) in [("namesake", json!("another")), ("unfenced", json!(null))] {
        agents.run(run(name).runtime("other")).await?;
        agents.run_status(name, json!({"phase": "Scheduled", "assignedPod": "bash-1", "assignedPodUID": uid})).await?;
    }
    agents.run(run("foreign").runtime("python")).await?;
    agents.run_status("foreign", json!({"phase": "Scheduled", "assignedPod": "bash-1", "assignedPodUID": pod.metadata.uid})).await?;
    until("the foreign one to be seen", PATIENCE, || async { Ok(agent.log().contains("of another runtime").then_some(())) }).await?;
    agents.run(script("third", "true")).await?;
    agents.until_phase("third", "Succeeded").await?;
    for name in ["namesake", "unfenced", "foreign"] {
        let run = agents.runs.get(name).await?;
        let never_claimed = run.status.as_ref().is_some_and(|status| status.start_time.is_none());
        // The lifecycle takes a namesake's back.
        ensure!(never_claimed && ["Scheduled", "Pending"].contains(&phase(&run)), "{name}: {:?}", run.status);
    }
    Ok(())
}

#[tokio::test]
async fn a_deleted_run_is_stopped_and_leaves_nothing() -> Result<()> {
    let agents = Agents::new("life-deleted").await?;
    let agent = agents.agent("bash-1", &[]).await?;
    agents.run(script("gone", "echo up; sleep 600")).await?;
    until("it to run", PATIENCE, || async { Ok((!agent.output_of("gone").is_empty()).then_some(())) }).await?;
    let uid = agents.runs.get("gone").await?.metadata.uid.unwrap_or_default();
    agents.delete_run("gone").await?;
    until("nothing to be left", PATIENCE, || async { Ok((!agent_files(&agent, &uid) && agent.shims().is_empty()).then_some(())) }).await?;
    // Recreated under the same name: another Run.
    agents.run(script("gone", "echo again")).await?;
    agents.until_phase("gone", "Succeeded").await?;
    Ok(())
}

#[tokio::test]
async fn ten_megabytes_of_output_pass_bounded_and_whole_lines() -> Result<()> {
    let agents = Agents::new("life-output").await?;
    let agent = agents.setup("bash-1", &[("runs", "4")]).await?.arg("--run-log-bytes-max=12000000").start()?;
    let start = Timestamp::now();
    // Two at once, whose lines must not mix; one beyond its limit.
    for name in ["a", "b"] {
        let line = format!("$(head -c 990 /dev/zero | tr '\\0' {name})");
        agents.run(script(name, &format!("yes \"{line}\" | head -c 10000000; echo end >&2"))).await?;
    }
    agents.run(script("flood", "head -c 30000000 /dev/zero | tr '\\0' 'x'; echo end=1 >> $KRUNTIME_OUTPUTS")).await?;
    for name in ["a", "b", "flood"] {
        ensure!(phase(&agents.ended(name).await?) == "Succeeded");
    }
    eprintln!("10 MB twice and 30 MB once took {:?}", Timestamp::now().duration_since(start));
    for name in ["a", "b"] {
        let output = agent.output_of(name);
        let lines: Vec<&str> = output.iter().filter_map(|line| line.strip_prefix("stdout: ")).collect();
        let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
        ensure!((9_999_999..=10_000_001).contains(&bytes), "{bytes} bytes");
        ensure!(lines.iter().all(|line| line.len() <= 990 && line.bytes().all(|byte| byte == name.as_bytes()[0])), "lines are whole");
        ensure!(output.iter().any(|line| line == "stderr: end"));
    }
    let flood = agent.output_of("flood");
    ensure!(flood.last().is_some_and(|line| line == "runtimed: output beyond 12000000 bytes is not logged"), "{:?}", flood.last().map(|line| &line[..60]));
    let bytes: usize = flood.iter().filter_map(|line| line.strip_prefix("stdout: ")).map(str::len).sum();
    ensure!(bytes == 12_000_000, "{bytes} bytes");
    Ok(())
}
