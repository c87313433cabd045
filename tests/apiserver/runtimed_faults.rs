//! What an agent survives, and what it does not do while it is away: killed in each phase, cut off, out of disk, a child that
//! can't be killed, one that forks without end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_runtimed::shim::tree;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::{Fault, Proxy, Seen};
use berth_tests::runtimed::{Runtimed, Setup};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;

use super::runtimed_world::{Agents, outputs, script};
use super::serve_world::{condition, message, phase, run};

/// A script that says in `journal` that it was executed, then waits for the file `go`.
fn journalled(name: &str, journal: &Path, go: Option<&Path>) -> super::serve_world::Draft {
    let wait = go.map(|go| format!("while [ ! -e {} ]; do sleep 0.05; done\n", go.display())).unwrap_or_default();
    script(name, &format!("echo {name} >> {}\n{wait}echo by={name} >> $KRUNTIME_OUTPUTS", journal.display()))
}

fn executions(journal: &Path) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for line in std::fs::read_to_string(journal).unwrap_or_default().lines() {
        *count.entry(line.to_owned()).or_insert(0) += 1;
    }
    count
}

/// The status write of a Run that turns it into that phase is told by what it carries: a claim has no completionTime. The proxy sees
/// no bodies, so writes are told apart by their number.
fn status_write(seen: &Seen) -> bool {
    seen.is("patch", "runs/status")
}

async fn kill_when(agent: Runtimed, what: &str, probe: impl Fn() -> bool) -> Result<Setup> {
    until(what, PATIENCE, || async { Ok(probe().then_some(())) }).await?;
    agent.kill()
}

#[tokio::test]
async fn killed_in_each_phase_it_goes_on_and_executes_once() -> Result<()> {
    let agents = Agents::new("fault-phases").await?;
    let proxy = Proxy::start(agents.plane).await?;
    let setup = agents.setup_through(&proxy, "bash-1", &[("runs", "9")]).await?;
    let journal = agents.plane.scratch().path().join("fault-phases.journal");
    let go = agents.plane.scratch().path().join("fault-phases.go");

    // The claim is on its way and never arrives; it arrives and its answer is lost.
    for (name, fault) in [("unsent", Fault::Hang), ("unanswered", Fault::HangAnswer)] {
        let agent = setup.start()?;
        agents.run(journalled("warm", &journal, None)).await?;
        agents.ended("warm").await?;
        let placed = proxy.inject(fault, 1, status_write);
        agents.run(journalled(name, &journal, None)).await?;
        until("the claim", PATIENCE, || async { Ok((placed.hits() > 0).then_some(())) }).await?;
        agents.until_phase(name, if name == "unsent" { "Scheduled" } else { "Running" }).await?;
        let setup = agent.kill()?;
        ensure!(!executions(&journal).contains_key(name), "nothing starts before the claim is known");
        let agent = setup.start()?;
        let run = agents.ended(name).await?;
        ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"by": name}), "{name}: {}", message(&run));
        agent.kill()?;
        agents.delete_run("warm").await?;
    }

    // It executes; it has ended while nobody watched.
    let agent = setup.start()?;
    agents.run(journalled("adopted", &journal, Some(&go))).await?;
    agents.run(journalled("ended", &journal, Some(&go.with_extension("first")))).await?;
    let both = || ["adopted", "ended"].iter().all(|name| executions(&journal).contains_key(*name));
    let setup = kill_when(agent, "both to execute", both).await?;
    std::fs::write(go.with_extension("first"), "")?;
    until("one to end", PATIENCE, || async { Ok((setup.shims().len() == 1).then_some(())) }).await?;
    let agent = setup.start()?;
    let run = agents.ended("ended").await?;
    ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"by": "ended"}), "{}", message(&run));
    ensure!(phase(&agents.runs.get("adopted").await?) == "Running");
    std::fs::write(&go, "")?;
    ensure!(phase(&agents.ended("adopted").await?) == "Succeeded");

    // It has ended, and the report never arrives.
    let go = go.with_extension("second");
    agents.run(journalled("unreported", &journal, Some(&go))).await?;
    agents.until_phase("unreported", "Running").await?;
    let placed = proxy.inject(Fault::Hang, usize::MAX, status_write);
    std::fs::write(&go, "")?;
    let setup = kill_when(agent, "the report", || placed.hits() > 0).await?;
    placed.remove();
    let agent = setup.start()?;
    let run = agents.ended("unreported").await?;
    ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"by": "unreported"}), "{}", message(&run));
    for name in ["unsent", "unanswered", "adopted", "ended", "unreported"] {
        ensure!(executions(&journal).get(name) == Some(&1), "{name} was executed {:?} times", executions(&journal).get(name));
    }
    drop(agent);
    Ok(())
}

#[tokio::test]
async fn what_died_with_its_container_is_lost_and_repeated_only_as_the_next_attempt() -> Result<()> {
    let agents = Agents::new("fault-lost").await?;
    let setup = agents.setup("bash-1", &[("runs", "9")]).await?;
    let journal = agents.plane.scratch().path().join("fault-lost.journal");
    let go = agents.plane.scratch().path().join("fault-lost.go");
    let agent = setup.start()?;
    agents.run(journalled("final", &journal, Some(&go))).await?;
    agents.run(journalled("repeated", &journal, Some(&go)).spec("retryPolicy", json!({"maxAttempts": 2, "backoff": "100ms"}))).await?;
    let setup = kill_when(agent, "both to execute", || executions(&journal).len() == 2).await?;
    setup.kill_shims();
    let agent = setup.start()?;
    let run = agents.ended("final").await?;
    ensure!(phase(&run) == "Failed" && condition(&run, "Completed").is_some_and(|c| c.1 == "ExecutionLost"), "{}", message(&run));
    ensure!(message(&run) == "runtime execution not found after runtimed restart", "{}", message(&run));
    std::fs::write(&go, "")?;
    let run = agents.ended("repeated").await?;
    ensure!(phase(&run) == "Succeeded" && run.status.clone().unwrap_or_default().attempt == Some(2), "{}", message(&run));
    ensure!(executions(&journal) == BTreeMap::from([("final".to_owned(), 1), ("repeated".to_owned(), 2)]), "{:?}", executions(&journal));

    // Everything on the volume is gone.
    agents.run(script("wiped", "sleep 600")).await?;
    agents.until_phase("wiped", "Running").await?;
    until("a shim", PATIENCE, || async { Ok((!agent.shims().is_empty()).then_some(())) }).await?;
    let setup = agent.kill()?;
    setup.kill_shims();
    std::fs::remove_dir_all(&setup.root)?;
    let _agent = setup.start()?;
    let run = agents.ended("wiped").await?;
    ensure!(condition(&run, "Completed").is_some_and(|c| c.1 == "ExecutionLost"), "{}", message(&run));
    Ok(())
}

/// The supervisor alone is killed: what it has left is killed too, also what has left its session and has lost its parent, and the Run is
/// lost. As another user than the agent, too, whose processes' environment the agent's own user need not be able to read.
#[tokio::test]
async fn what_a_killed_shim_has_left_is_killed_in_whatever_session_it_is() -> Result<()> {
    let agents = Agents::new("fault-orphan").await?;
    // A folder that the other user can reach.
    let open = tempfile::tempdir_in("/tmp")?;
    std::fs::set_permissions(open.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let own = agents.setup("bash-1", &[("runs", "1")]).await?.start()?;
    let other = agents.setup("bash-2", &[("runs", "1")]).await?.root(&open.path().join("volume")).arg("--run-as=65532:65532").start()?;
    for name in ["a", "b"] {
        agents.run(script(name, "echo $$; (setsid sh -c 'echo $$; sleep 600' &); sleep 600")).await?;
    }
    for name in ["a", "b"] {
        let pod = agents.until_phase(name, "Running").await?.status.and_then(|status| status.assigned_pod);
        let agent = if pod.as_deref() == Some("bash-1") { &own } else { &other };
        until("it to run", PATIENCE, || async { Ok((agent.output_of(name).len() == 2).then_some(())) }).await?;
        let pids: Vec<i32> = agent.output_of(name).iter().map(|line| line.trim_start_matches("stdout: ").parse()).collect::<Result<_, _>>()?;
        for holder in agent.shims() {
            tree::signal(holder, rustix::process::Signal::KILL);
        }
        let run = agents.ended(name).await?;
        ensure!(condition(&run, "Completed").is_some_and(|c| c.1 == "ExecutionLost"), "{}", message(&run));
        ensure!(pids.iter().all(|pid| tree::start_ticks(*pid).is_none()), "one of {pids:?} lives, of the Run on {pod:?}");
    }
    Ok(())
}

#[tokio::test]
async fn killed_while_it_prepares_pauses_or_stops_it_goes_on_where_it_was() -> Result<()> {
    let agents = Agents::new("fault-between").await?;
    let folder = agents.plane.scratch().path().join("fault-between");
    std::fs::create_dir_all(&folder)?;
    let (ssh, go, asked) = (folder.join("ssh"), folder.join("go"), folder.join("asked"));
    // A host that is slow, and then refuses: what matters is that it is asked once, and when.
    let text = format!("#!/bin/sh\necho asked >> {}\nwhile [ ! -e {} ]; do sleep 0.05; done\nexit 1\n", asked.display(), go.display());
    std::fs::write(&ssh, text)?;
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let setup = agents.setup("bash-1", &[("runs", "9")]).await?.arg("--stop-grace=120s").env("GIT_SSH_COMMAND", &ssh.display().to_string());
    let agent = setup.start()?;
    let journal = folder.join("journal");
    let git = run("prepares").spec("source", json!({"repoURL": "ssh://slow.example.com/x"})).spec("mode", json!({"task": {"args": ["true"]}}));
    agents.run(git).await?;
    let once = "[ $(grep -c paused {}) -gt 1 ] || exit 1".replace("{}", &journal.display().to_string());
    let paused = script("paused", &format!("echo paused >> {}\n{once}", journal.display()));
    agents.run(paused.spec("retryPolicy", json!({"maxAttempts": 2, "backoff": "3s"}))).await?;
    let term = format!(
        "trap 'echo term >> {0}; while [ ! -e {1} ]; do sleep 0.05; done; exit 0' TERM; echo stops >> {0}; while :; do sleep 0.05; done",
        journal.display(),
        go.display()
    );
    agents.run(script("stops", &term)).await?;
    until("it to run", PATIENCE, || async { Ok(executions(&journal).contains_key("stops").then_some(())) }).await?;
    agents.cancel("stops").await?;
    agents.run_when("paused", "in its pause", |run| condition(run, "Running").is_some_and(|c| c.0 == "False")).await?;
    let setup = kill_when(agent, "all three to be on their way", || asked.exists() && executions(&journal).contains_key("term")).await?;
    let _agent = setup.start()?;

    let run = agents.ended("paused").await?;
    ensure!(phase(&run) == "Succeeded" && run.status.clone().unwrap_or_default().attempt == Some(2), "{}", message(&run));
    for name in ["prepares", "stops"] {
        ensure!(phase(&agents.runs.get(name).await?) == "Running", "{name} goes on");
    }
    std::fs::write(&go, "")?;
    let run = agents.ended("prepares").await?;
    ensure!(condition(&run, "Completed").is_some_and(|c| c.1 == "PrepareSource") && message(&run).starts_with("git clone: "), "{}", message(&run));
    let run = agents.ended("stops").await?;
    ensure!(phase(&run) == "Cancelled" && message(&run) == "cancelled by user", "{}", message(&run));
    ensure!(executions(&asked).values().sum::<usize>() == 1, "cloned once");
    ensure!(executions(&journal).get("paused") == Some(&2) && executions(&journal).get("stops") == Some(&1), "{:?}", executions(&journal));
    Ok(())
}

/// Four agents, each killed and started again and again while 200 Runs pass: every Run succeeds, and was executed once.
#[tokio::test]
async fn two_hundred_runs_over_four_agents_that_crash() -> Result<()> {
    const RUNS: usize = 200;
    let agents = Agents::new("fault-many").await?;
    let journal = agents.plane.scratch().path().join("fault-many.journal");
    let mut running = Vec::new();
    for n in 0..4 {
        running.push(Some(agents.agent(&format!("bash-{n}"), &[("runs", "8")]).await?));
    }
    let make = |n: usize| agents.run(journalled(&format!("r{n}"), &journal, None));
    let start = std::time::Instant::now();
    let creating = futures::stream::iter(0..RUNS).map(make).buffer_unordered(8).try_for_each(|_| async { Ok(()) });
    let crashing = async {
        let mut kills = 0;
        for turn in 0.. {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let done = agents.all_runs().await?.values().filter(|run| phase(run) == "Succeeded").count();
            if done >= RUNS * 9 / 10 {
                break;
            }
            let slot = &mut running[turn % 4];
            let setup = slot.take().context("an agent")?.kill()?;
            *slot = Some(setup.start()?);
            kills += 1;
        }
        Ok::<_, anyhow::Error>(kills)
    };
    let (created, kills) = tokio::join!(creating, crashing);
    created?;
    let kills = kills?;
    until("all to succeed", PATIENCE * 2, || async {
        let runs = agents.all_runs().await?;
        let wrong: Vec<_> = runs.values().filter(|run| ["Failed", "Timeout", "Cancelled"].contains(&phase(run))).collect();
        ensure!(wrong.is_empty(), "{:?}", wrong.first().map(|run| (&run.metadata.name, message(run))));
        Ok((runs.len() == RUNS && runs.values().all(|run| phase(run) == "Succeeded")).then_some(()))
    })
    .await?;
    eprintln!("{RUNS} Runs over 4 agents, {kills} of them killed on the way: {:?}", start.elapsed());
    ensure!(kills > 0);
    let executed = executions(&journal);
    ensure!(executed.len() == RUNS && executed.values().all(|n| *n == 1), "{:?}", executed.iter().filter(|(_, n)| **n != 1).collect::<Vec<_>>());
    for run in agents.all_runs().await?.values() {
        ensure!(outputs(run) == json!({"by": run.metadata.name}), "{:?}", run.status);
    }
    Ok(())
}

#[tokio::test]
async fn a_full_disk_ends_runs_with_the_truth_and_takes_no_new_ones_until_there_is_room() -> Result<()> {
    let agents = Agents::new("fault-disk").await?;
    let agent = agents.setup("bash-1", &[("runs", "9")]).await?.disk("3m").start()?;
    agents.workspace("w", "bash").await?;
    agents.run(script("filler", "head -c 100000000 /dev/zero > big").workspace("w")).await?;
    let run = agents.ended("filler").await?;
    ensure!(phase(&run) == "Failed" && message(&run).contains("No space left on device"), "{}", message(&run));
    // What the Run has given back is taken too.
    until("what was kept of it to be gone", PATIENCE, || async {
        Ok(std::fs::read_dir(agent.root_inside().join(".runtimed/runs"))?.next().is_none().then_some(()))
    })
    .await?;
    let rest = std::fs::write(agent.root_inside().join("persistent/w/rest"), vec![0; 4 << 20]);
    ensure!(rest.is_err(), "the disk is full");
    agents.run(script("next", "echo fine=1 >> $KRUNTIME_OUTPUTS").workspace("w")).await?;
    agents.beats("bash-1", "False/StorageBroken: ").await?;
    ensure!(["Scheduled", "Pending"].contains(&phase(&agents.runs.get("next").await?)), "never claimed");
    std::fs::remove_file(agent.root_inside().join("persistent/w/big"))?;
    agents.beats("bash-1", "True/Heartbeat: ").await?;
    let run = agents.ended("next").await?;
    ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"fine": "1"}), "{}", message(&run));
    Ok(())
}

/// A folder of the cgroup freezer: on version 1 a frozen process takes no KILL, like one that waits for a dead disk.
struct Freezer(PathBuf);

impl Freezer {
    fn freeze(name: &str, pid: i32) -> Result<Self> {
        let folder = Path::new("/sys/fs/cgroup/freezer").join(name);
        std::fs::create_dir_all(&folder).context("this test needs root and the cgroup v1 freezer: mount -t cgroup -o freezer none /sys/fs/cgroup/freezer")?;
        std::fs::write(folder.join("cgroup.procs"), pid.to_string())?;
        std::fs::write(folder.join("freezer.state"), "FROZEN")?;
        Ok(Self(folder))
    }

    fn thaw(&self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test]
async fn a_child_that_cant_be_killed_is_told_and_its_pod_takes_nothing_more() -> Result<()> {
    let agents = Agents::new("fault-unkillable").await?;
    let agent = agents.agent("bash-1", &[("runs", "9")]).await?;
    let go = agents.plane.scratch().path().join("fault-unkillable.go");
    agents.run(script("other", &format!("while [ ! -e {} ]; do sleep 0.05; done", go.display()))).await?;
    agents.run(script("frozen", "echo $$; sleep 600")).await?;
    until("it to run", PATIENCE, || async { Ok((!agent.output_of("frozen").is_empty()).then_some(())) }).await?;
    let pid: i32 = agent.output_of("frozen")[0].trim_start_matches("stdout: ").parse()?;
    let freezer = Freezer::freeze(&agents.namespace, pid)?;
    agents.cancel("frozen").await?;
    let run = agents.ended("frozen").await?;
    ensure!(phase(&run) == "Cancelled" && message(&run) == "cancelled by user; 1 of its processes can't be killed", "{}", message(&run));
    // The other one goes on: that is no loss, and nothing more comes.
    agents.beats("bash-1", "False/Cordoned: ProcessesUnkillable: 1 processes of ended Runs can't be killed; Runs that go on: 1").await?;
    agents.run(script("next", "true")).await?;
    agents.waits("next", &["1 without heartbeat"]).await?;
    ensure!(phase(&agents.runs.get("other").await?) == "Running");
    std::fs::write(&go, "")?;
    ensure!(phase(&agents.ended("other").await?) == "Succeeded");
    agents.beats("bash-1", "False/ProcessesUnkillable: 1 processes of ended Runs can't be killed").await?;
    ensure!(phase(&agents.runs.get("next").await?) == "Pending");
    freezer.thaw();
    ensure!(phase(&agents.ended("next").await?) == "Succeeded");
    ensure!(tree::start_ticks(pid).is_none(), "KILL took effect when it could");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_stops_says_so_at_once_and_its_runs_get_their_time() -> Result<()> {
    let agents = Agents::new("fault-drain").await?;
    let go = agents.plane.scratch().path().join("fault-drain.go");
    let setup = agents.setup("bash-1", &[("runs", "9")]).await?.arg("--drain-within=60s");
    let agent = setup.start()?;
    agents.run(script("goes-on", &format!("while [ ! -e {} ]; do sleep 0.05; done", go.display()))).await?;
    agents.until_phase("goes-on", "Running").await?;
    let ended = tokio::spawn(agent.terminate());
    agents.beats("bash-1", "False/Cordoned: Draining: runtimed is stopping; Runs that go on: 1").await?;
    agents.run(script("next", "true")).await?;
    agents.waits("next", &["1 without heartbeat"]).await?;
    std::fs::write(&go, "")?;
    ensure!(phase(&agents.ended("goes-on").await?) == "Succeeded");
    ensure!(ended.await??.0.success());
    agents.beats("bash-1", "False/Stopped: runtimed has stopped").await?;
    let _agent = setup.start()?;
    ensure!(phase(&agents.ended("next").await?) == "Succeeded");
    Ok(())
}

/// As on a cluster with the neighbour's CRDs.
#[tokio::test]
async fn where_the_crd_has_no_selectable_field_it_picks_its_own_out_of_the_namespace() -> Result<()> {
    let agents = Agents::new("fault-fields").await?;
    let proxy = Proxy::start(agents.plane).await?;
    let narrowed = |seen: &Seen| ["runs", "persistentworkspaces"].iter().any(|resource| seen.is("list", resource)) && seen.uri.contains("fieldSelector");
    let placed = proxy.inject(Fault::Answer(hyper::StatusCode::BAD_REQUEST), usize::MAX, narrowed);
    let agent = agents.setup_through(&proxy, "bash-1", &[("runs", "9")]).await?.start()?;
    let _other = agents.agent("bash-2", &[("runs", "9")]).await?;
    agents.workspace("w", "bash").await?;
    agents.run(script("writes", "echo data > file").workspace("w")).await?;
    ensure!(phase(&agents.ended("writes").await?) == "Succeeded");
    for number in 0..10 {
        agents.run(script(&format!("r-{number}"), "echo done=1 >> $KRUNTIME_OUTPUTS")).await?;
    }
    let mut here = 0;
    for number in 0..10 {
        let run = agents.ended(&format!("r-{number}")).await?;
        ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"done": "1"}), "{}", message(&run));
        here += usize::from(run.status.and_then(|status| status.assigned_pod).as_deref() == Some("bash-1"));
    }
    ensure!(placed.hits() == 2 && agent.log().contains("no such selectable field"), "{} hits", placed.hits());
    ensure!((1..10).contains(&here), "{here} of 10 on the Pod that watches all: both must have had some");
    Ok(())
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_by_its_cgroup_and_ends_with_its_run() -> Result<()> {
    let agents = Agents::new("fault-bomb").await?;
    let agent = agents.setup("bash-1", &[("runs", "4")]).await?.arg("--run-pids-max=40").start()?;
    agents.run(script("bomb", "sleep 600 &\nbomb() { bomb | bomb & }; bomb 2>/dev/null\nwait").spec("timeout", json!("4s"))).await?;
    until("the bomb to go off", PATIENCE, || async {
        let shims = agent.shims();
        Ok(shims.first().is_some_and(|holder| tree::descendants(holder.pid).len() > 30).then_some(()))
    })
    .await?;
    ensure!(!agent.log().contains("no cgroup can be made"), "this test needs root and a writable pids cgroup");
    agents.run(script("beside", "echo fine=1 >> $KRUNTIME_OUTPUTS")).await?;
    ensure!(phase(&agents.ended("beside").await?) == "Succeeded", "others are not hurt");
    let most = agent.shims().iter().map(|holder| tree::descendants(holder.pid).len()).max().unwrap_or(0);
    ensure!(most <= 40, "{most} processes");
    let run = agents.ended("bomb").await?;
    ensure!(phase(&run) == "Timeout" && message(&run) == "timeout after 4s", "{}", message(&run));
    ensure!(agent.shims().is_empty(), "nothing of it is left");
    Ok(())
}

/// Cut off past the time after which a Run counts as lost: the Run is given to another Pod. When the old agent is back it stops what
/// still executes, forgets what has ended, and overwrites nothing.
#[tokio::test]
async fn an_agent_that_was_cut_off_does_not_overwrite_the_next_attempt() -> Result<()> {
    let agents = Agents::new("fault-partition").await?;
    let proxy = Proxy::start(agents.plane).await?;
    let old = agents.setup_through(&proxy, "a-1", &[("runs", "2")]).await?.env("WHERE", "a").start()?;
    let at = |name: &str| agents.plane.scratch().path().join(format!("fault-partition-{name}"));
    for name in ["ended", "executing"] {
        let wait = format!("echo up; while [ ! -e {}-$WHERE ]; do sleep 0.05; done; echo where=$WHERE >> $KRUNTIME_OUTPUTS", at(name).display());
        agents.run(script(name, &wait).spec("retryPolicy", json!({"maxAttempts": 3, "backoff": "1s"}))).await?;
    }
    until("both to execute", PATIENCE, || async { Ok(["ended", "executing"].iter().all(|name| !old.output_of(name).is_empty()).then_some(())) }).await?;
    let new = agents.setup("b-1", &[("runs", "2")]).await?.env("WHERE", "b").start()?;

    proxy.partition(true);
    std::fs::write(at("ended-a"), "")?;
    until("the old agent to see its end", PATIENCE, || async { Ok((old.shims().len() == 1).then_some(())) }).await?;
    let on_b = |run: &berth_api::Run| {
        let status = run.status.clone().unwrap_or_default();
        phase(run) == "Running" && status.attempt == Some(2) && status.assigned_pod.as_deref() == Some("b-1")
    };
    for name in ["ended", "executing"] {
        agents.run_when(name, "attempt 2 on b-1", on_b).await?;
    }
    until("both to execute again", PATIENCE, || async { Ok((new.shims().len() == 2).then_some(())) }).await?;
    let versions = || async {
        let runs = agents.all_runs().await?;
        Ok::<_, anyhow::Error>(runs.into_values().map(|run| run.metadata.resource_version).collect::<Vec<_>>())
    };
    let before = versions().await?;
    proxy.partition(false);
    until("the old agent to let go", PATIENCE, || async {
        let kept = std::fs::read_dir(old.root().join(".runtimed/runs"))?.count();
        Ok((old.shims().is_empty() && kept == 0).then_some(()))
    })
    .await?;
    ensure!(versions().await? == before, "nothing was written by it");
    for name in ["ended", "executing"] {
        std::fs::write(at(&format!("{name}-b")), "")?;
        let run = agents.ended(name).await?;
        ensure!(
            phase(&run) == "Succeeded" && outputs(&run) == json!({"where": "b"}) && run.status.clone().unwrap_or_default().attempt == Some(2),
            "{:?}",
            run.status
        );
    }
    Ok(())
}
