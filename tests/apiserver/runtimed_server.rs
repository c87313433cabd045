//! An agent with `--runtime-endpoint`: Runs are carried out by a Runtime Server over gRPC, here one that starts `sh` as the neighbour's
//! does, and that can be asked how often it was asked.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use berth_runtimed::executor::runtime_server::{Runtime, RuntimeServer};
use berth_runtimed::executor::*;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::free_port;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::runtimed_world::{Agents, outputs, script};
use super::serve_world::{condition, message, phase, run};

#[derive(Default)]
struct Execution {
    reply: StatusReply,
    cancel: CancellationToken,
}

#[derive(Clone, Default)]
struct Server {
    executions: Arc<Mutex<HashMap<String, Execution>>>,
    asked: Arc<Mutex<Vec<ExecuteRequest>>>,
}

impl Server {
    /// Serves until the token is cancelled; then it forgets everything, as a server that restarts.
    fn start(&self, port: u16) -> CancellationToken {
        let stop = CancellationToken::new();
        let (server, stopped) = (self.clone(), stop.clone());
        tokio::spawn(async move {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let served = tonic::transport::Server::builder().add_service(RuntimeServer::new(server.clone()));
            served.serve_with_shutdown(address, stopped.cancelled_owned()).await.unwrap();
        });
        stop
    }

    fn forget_everything(&self) {
        for (_, execution) in self.executions.lock().unwrap().drain() {
            execution.cancel.cancel();
        }
    }

    fn times(&self, name: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|request| request.env.get("NAME").is_some_and(|given| given == name)).count()
    }
}

async fn carry_out(server: Server, request: ExecuteRequest, cancel: CancellationToken) {
    let file = std::path::Path::new(&request.working_dir).join(&request.entrypoint);
    let mut command = tokio::process::Command::new("sh");
    match file.is_file() {
        true => command.arg(file).args(&request.args),
        false => command.arg("-c").arg(request.args.join("\n")),
    };
    let child = command.current_dir(&request.working_dir).envs(&request.env).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = child.unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let code = tokio::select! {
        (status, ..) = async { tokio::join!(child.wait(), out.read_to_string(&mut stdout), err.read_to_string(&mut stderr)) } => status.unwrap().code().unwrap_or(-1),
        () = cancel.cancelled() => -1,
    };
    if let Some(execution) = server.executions.lock().unwrap().get_mut(&request.id) {
        let state = if code == 0 { State::Succeeded } else { State::Failed };
        execution.reply = StatusReply { id: request.id, state: state.into(), exit_code: code, stdout, stderr, error_message: String::new() };
    }
}

#[tonic::async_trait]
impl Runtime for Server {
    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteReply>, Status> {
        let request = request.into_inner();
        self.asked.lock().unwrap().push(request.clone());
        let cancel = CancellationToken::new();
        {
            let mut executions = self.executions.lock().unwrap();
            if executions.contains_key(&request.id) {
                return Err(Status::already_exists("known"));
            }
            let reply = StatusReply { id: request.id.clone(), state: State::Running.into(), ..StatusReply::default() };
            executions.insert(request.id.clone(), Execution { reply, cancel: cancel.clone() });
        }
        let id = request.id.clone();
        tokio::spawn(carry_out(self.clone(), request, cancel));
        Ok(Response::new(ExecuteReply { id }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        let executions = self.executions.lock().unwrap();
        executions.get(&request.get_ref().id).map(|execution| Response::new(execution.reply.clone())).ok_or_else(|| Status::not_found("unknown"))
    }

    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListReply>, Status> {
        Ok(Response::new(ListReply { entries: self.executions.lock().unwrap().values().map(|execution| execution.reply.clone()).collect() }))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelReply>, Status> {
        let executions = self.executions.lock().unwrap();
        executions.get(&request.get_ref().id).ok_or_else(|| Status::not_found("unknown"))?.cancel.cancel();
        Ok(Response::new(CancelReply {}))
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Result<Response<ForgetReply>, Status> {
        let mut executions = self.executions.lock().unwrap();
        match executions.get(&request.get_ref().id) {
            Some(execution) if execution.reply.state() == State::Running => Err(Status::failed_precondition("it runs")),
            _ => {
                executions.remove(&request.get_ref().id);
                Ok(Response::new(ForgetReply {}))
            }
        }
    }

    async fn health(&self, _: Request<HealthRequest>) -> Result<Response<HealthReply>, Status> {
        Ok(Response::new(HealthReply { healthy: true, message: String::new() }))
    }
}

fn named(name: &str, text: &str) -> super::serve_world::Draft {
    script(name, text).spec("env", json!([{"name": "NAME", "value": name}]))
}

#[tokio::test]
async fn a_runtime_server_carries_out_runs_and_both_may_restart() -> Result<()> {
    let agents = Agents::new("server").await?;
    let (server, port) = (Server::default(), free_port()?);
    let setup = agents.setup("bash-1", &[("runs", "9")]).await?.arg(format!("--runtime-endpoint=127.0.0.1:{port}")).arg("--runtime-lost-after=5s");
    let agent = setup.start()?;
    // While nobody is there, nothing is placed.
    agents.beats("bash-1", &format!("False/RuntimeServerUnavailable: the Runtime Server at 127.0.0.1:{port} does not answer: ")).await?;
    agents.run(named("early", "true")).await?;
    agents.waits("early", &["1 without heartbeat"]).await?;
    let stop = server.start(port);
    ensure!(phase(&agents.ended("early").await?) == "Succeeded");
    agents.workspace("w", "bash").await?;

    agents.run(named("hello", "echo out; echo err >&2; echo answer=42 >> $KRUNTIME_OUTPUTS")).await?;
    let done = agents.ended("hello").await?;
    ensure!(phase(&done) == "Succeeded" && outputs(&done) == json!({"answer": "42"}), "{}", message(&done));
    let mut said = agent.output_of("hello");
    said.sort();
    ensure!(said == ["stderr: err", "stdout: out"], "{said:?}");

    agents.run(named("shared", "echo data > file; ls -A | tr '\\n' ' '").workspace("w")).await?;
    ensure!(phase(&agents.ended("shared").await?) == "Succeeded");
    let workspace = agent.root().join("persistent/w");
    ensure!(std::fs::read_to_string(workspace.join("file"))? == "data\n");
    until("the Run's own folder to be gone", PATIENCE, || async { Ok((std::fs::read_dir(&workspace)?.count() == 1).then_some(())) }).await?;

    agents.run(named("failing", "echo why >&2; exit 3")).await?;
    ensure!(message(&agents.ended("failing").await?) == "exit code 3; runtime stderr: why");
    agents.run(run("args").spec("mode", json!({"task": {"args": ["exit 4"]}}))).await?;
    ensure!(message(&agents.ended("args").await?) == "exit code 4");
    agents.run(named("late", "sleep 60").spec("timeout", json!("1s"))).await?;
    ensure!(phase(&agents.ended("late").await?) == "Timeout");
    agents.run(named("cancelled", "sleep 60")).await?;
    until("it to be executed", PATIENCE, || async { Ok((server.times("cancelled") == 1).then_some(())) }).await?;
    agents.cancel("cancelled").await?;
    ensure!(phase(&agents.ended("cancelled").await?) == "Cancelled");
    agents
        .run(named("again", "[ -e again ] || { touch again; exit 1; }").workspace("w").spec("retryPolicy", json!({"maxAttempts": 2, "backoff": "100ms"})))
        .await?;
    ensure!(phase(&agents.ended("again").await?) == "Succeeded" && server.times("again") == 2);

    // The agent restarts: it adopts. The server restarts: what it executed is lost.
    let go = agents.plane.scratch().path().join("server.go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    agents.run(named("adopted", &wait)).await?;
    until("it to be executed", PATIENCE, || async { Ok((server.times("adopted") == 1).then_some(())) }).await?;
    let setup = agent.kill()?;
    let agent = setup.start()?;
    std::fs::write(&go, "")?;
    ensure!(phase(&agents.ended("adopted").await?) == "Succeeded" && server.times("adopted") == 1);
    agents.run(named("lost", "sleep 600")).await?;
    until("it to be executed", PATIENCE, || async { Ok((server.times("lost") == 1).then_some(())) }).await?;
    server.forget_everything();
    let lost = agents.ended("lost").await?;
    ensure!(condition(&lost, "Completed").is_some_and(|c| c.1 == "ExecutionLost"), "{}", message(&lost));
    agents.run(run("function").spec("mode", json!({"function": {"handler": "main.handle", "args": []}}))).await?;
    agents.ended("function").await?;
    ensure!(server.asked.lock().unwrap().last().is_some_and(|asked| asked.handler == "main.handle"), "a function is what such a server is for");
    until("the server to have forgotten every Run", PATIENCE, || async { Ok(server.executions.lock().unwrap().is_empty().then_some(())) }).await?;
    // It goes away while it executes: that Run is not lost yet, and no other comes.
    agents.run(named("cut", "sleep 600")).await?;
    until("it to be executed", PATIENCE, || async { Ok((server.times("cut") == 1).then_some(())) }).await?;
    stop.cancel();
    agents.beats("bash-1", "False/Cordoned: RuntimeServerUnavailable: ").await?;
    ensure!(phase(&agents.runs.get("cut").await?) == "Running");
    // Until the server has been silent for too long.
    let cut = agents.ended("cut").await?;
    ensure!(condition(&cut, "Completed").is_some_and(|c| c.1 == "ExecutionLost"), "{}", message(&cut));
    agents.beats("bash-1", "False/RuntimeServerUnavailable: ").await?;
    drop(agent);
    Ok(())
}
