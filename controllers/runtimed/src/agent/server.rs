//! Runs carried out by a Runtime Server beside the agent (`--runtime-endpoint`) instead of by processes of its own.
//!
//! ```text
//!  shim: prepares the source only ─► `executed` is written ─► Execute(id = Run UID) ─► Status every 500 ms ─► how it ended
//!                                        │                          Cancel: stop, time is over
//!                                        └─ after a restart: there ─► Status;  not there ─► Execute was never called
//! ```
//! The server forgets everything when it restarts: then the execution is lost (reference kruntimes §7.2).

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_runtime::lock;
use serde::{Deserialize, Serialize};
use tokio::process::Child;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::{Agent, processes};
use crate::executor::runtime_client::RuntimeClient;
use crate::executor::{CancelRequest, ExecuteRequest, ForgetRequest, HealthRequest, State, StatusReply, StatusRequest};
use crate::shim::lines::{Lines, Stream};
use crate::shim::spec::{Exit, Identity, Outcome};

/// File of a state directory: what is to be executed ([`Order`]).
pub const ORDER_FILE: &str = "order.json";
/// File of a state directory: Execute was called, or is about to be.
const EXECUTED_FILE: &str = "executed";
/// Between two questions how the server is.
const HEALTH_EVERY: Duration = Duration::from_secs(2);
/// Between two looks at an execution.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A Status may take that long.
const STATUS_WITHIN: Duration = Duration::from_secs(5);
/// The server may take that long to be there, and Execute to return.
const EXECUTE_WITHIN: Duration = Duration::from_secs(10);
/// What the server keeps of a stream.
const STREAM_BYTES_MAX: usize = 1 << 20;
/// An execution that was cancelled may take that long to end before it counts as unkillable there.
const CANCEL_WITHIN: Duration = Duration::from_secs(30);

/// What is to be executed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Who it is, for the lines of its output.
    pub identity: Identity,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment.
    pub env: HashMap<String, String>,
    /// Absolute path; the server has the same volume in the same place.
    pub working_dir: String,
    /// Relative to it.
    pub entrypoint: String,
    /// Of a function.
    pub handler: String,
    /// Bytes of output that are logged.
    pub log_bytes_max: u64,
    /// When its time is over, in milliseconds since the epoch.
    pub deadline_ms: Option<i64>,
}

/// A Runtime Server.
pub struct RuntimeServer {
    address: String,
    client: RuntimeClient<Channel>,
    /// Why it can't be given Runs; None if it can.
    problem: Mutex<Option<String>>,
    stops: Mutex<HashMap<String, CancellationToken>>,
}

impl RuntimeServer {
    /// The server at `host:port`, plaintext; it need not be there yet.
    ///
    /// # Errors
    /// That is no address.
    pub fn new(address: &str) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(Duration::from_secs(2)).connect_lazy();
        // Both streams, and room for the rest of the message.
        let client = RuntimeClient::new(channel).max_decoding_message_size(4 * STREAM_BYTES_MAX);
        let problem = Mutex::new(Some(format!("the Runtime Server at {address} has not answered yet")));
        Ok(Self { address: address.to_owned(), client, problem, stops: Mutex::default() })
    }

    /// Why it can't be given Runs, as it was when it was last asked.
    pub fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    /// Asks how it is.
    async fn health(&self) -> Result<(), String> {
        let said = match self.client.clone().health(within(HealthRequest {}, STATUS_WITHIN)).await {
            Ok(reply) if reply.get_ref().healthy => return Ok(()),
            Ok(reply) => format!("is not healthy: {}", reply.into_inner().message),
            Err(status) => format!("does not answer: {}", status.message()),
        };
        Err(format!("the Runtime Server at {} {said}", self.address))
    }

    fn stop_of(&self, uid: &str) -> CancellationToken {
        lock(&self.stops).entry(uid.to_owned()).or_default().clone()
    }

    /// Asks for the end of an execution.
    pub fn stop(&self, uid: &str) {
        self.stop_of(uid).cancel();
    }

    /// The Run is let go: nothing of it stays, here and there.
    pub async fn forget(&self, uid: &str) {
        self.clear(uid).await;
        lock(&self.stops).remove(uid);
    }

    /// Lets the server forget an execution, cancelling it if it runs; within 5 s, or not at all.
    async fn clear(&self, uid: &str) {
        let gone = async {
            while self.status(uid).await.is_ok_and(|status| status.is_some()) {
                self.cancel(uid).await;
                let mut client = self.client.clone();
                // It answers FAILED_PRECONDITION while the execution ends.
                let _ = client.forget(within(ForgetRequest { id: uid.to_owned() }, STATUS_WITHIN)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(5), gone).await.is_err() {
            tracing::warn!(uid, "the Runtime Server does not forget an execution");
        }
    }

    /// None for an id that the server does not know.
    async fn status(&self, uid: &str) -> Result<Option<StatusReply>, tonic::Status> {
        match self.client.clone().status(within(StatusRequest { id: uid.to_owned() }, STATUS_WITHIN)).await {
            Ok(reply) => Ok(Some(reply.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn cancel(&self, uid: &str) {
        if let Err(status) = self.client.clone().cancel(within(CancelRequest { id: uid.to_owned() }, STATUS_WITHIN)).await {
            tracing::debug!(uid, %status, "Cancel");
        }
    }

    async fn is_there(&self) -> Result<(), String> {
        let until = tokio::time::Instant::now() + EXECUTE_WITHIN;
        loop {
            match self.health().await {
                Ok(()) => return Ok(()),
                Err(problem) if tokio::time::Instant::now() > until => return Err(problem),
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Calls Execute for an attempt for which that was never done.
    async fn execute(&self, state: &Path, uid: &str, order: &Order) -> Result<(), Outcome> {
        self.is_there().await.map_err(Outcome::NotStarted)?;
        // What an earlier attempt left under the same id.
        self.clear(uid).await;
        let written = std::fs::write(state.join(EXECUTED_FILE), "").and_then(|()| super::store::sync_dir(state));
        written.map_err(|error| Outcome::NotStarted(error.to_string()))?;
        let request = ExecuteRequest {
            id: uid.to_owned(),
            args: order.args.clone(),
            env: order.env.clone(),
            // Cut by our own clock, which goes on from attempt to attempt.
            timeout_seconds: 0,
            working_dir: order.working_dir.clone(),
            entrypoint: order.entrypoint.clone(),
            handler: order.handler.clone(),
        };
        match self.client.clone().execute(within(request, EXECUTE_WITHIN)).await {
            Ok(_) => Ok(()),
            // Nobody knows whether it arrived: Status will say.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled | Code::AlreadyExists) => {
                Ok(())
            }
            Err(status) => Err(Outcome::NotStarted(status.message().to_owned())),
        }
    }
}

/// Keeps asking the agent's server how it is, until `stop`; what changes is told with a heartbeat.
pub async fn keep_asking(agent: Arc<Agent>, stop: CancellationToken) {
    let Some(server) = &agent.server else { return };
    let (mut was_well, mut failures) = (None, 0);
    while let Some(health) = stop.run_until_cancelled(server.health()).await {
        let mut problem = health.err();
        failures = if problem.is_some() { failures + 1 } else { 0 };
        if failures == 1 && was_well == Some(true) {
            // One answer that was lost is none yet.
            problem = None;
        }
        lock(&server.problem).clone_from(&problem);
        if was_well.replace(problem.is_none()) != Some(problem.is_none()) {
            match &problem {
                Some(problem) => tracing::warn!(problem, "no Run is claimed while the Runtime Server is away"),
                None => tracing::info!(address = server.address, "the Runtime Server is there"),
            }
            agent.beat_now.notify_one();
        }
        tokio::select! {
            () = tokio::time::sleep(HEALTH_EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Waits until nothing of the Run runs any more; how it ended. `child` is the shim that prepares, if this process started it.
pub async fn ended(agent: &Arc<Agent>, server: &RuntimeServer, uid: &str, child: Option<Child>) -> Exit {
    let prepared = processes::ended(agent.store.clone(), uid.to_owned(), child, agent.args.run_as).await;
    if prepared.outcome != Outcome::Exited(0) {
        return prepared;
    }
    let state = agent.store.state_dir(uid);
    let exit = |outcome| Exit { outcome, stderr_tail: String::new(), survivors: Vec::new() };
    let Some(order) = std::fs::read(state.join(ORDER_FILE)).ok().and_then(|text| serde_json::from_slice::<Order>(&text).ok()) else {
        return exit(Outcome::Lost);
    };
    let stop = server.stop_of(uid);
    if !state.join(EXECUTED_FILE).exists() {
        if stop.is_cancelled() {
            return exit(Outcome::Stopped);
        }
        if let Err(outcome) = server.execute(&state, uid, &order).await {
            return exit(outcome);
        }
    }
    let mut output = Output { lines: Lines::new(order.identity.clone(), order.log_bytes_max), seen: [0; 2] };
    let outcome = look_until_ended(agent, server, uid, &order, &stop, &mut output).await;
    output.print(true).await;
    Exit { outcome, stderr_tail: output.lines.stderr_tail(), survivors: Vec::new() }
}

async fn look_until_ended(agent: &Agent, server: &RuntimeServer, uid: &str, order: &Order, stop: &CancellationToken, output: &mut Output) -> Outcome {
    let mut ending: Option<(Outcome, tokio::time::Instant)> = None;
    let mut heard = tokio::time::Instant::now();
    loop {
        if ending.is_none() {
            let late = order.deadline_ms.is_some_and(|deadline| agent.clock.now().wall_ms >= deadline);
            let why = if stop.is_cancelled() { Some(Outcome::Stopped) } else { late.then_some(Outcome::TimedOut) };
            ending = why.map(|why| (why, tokio::time::Instant::now()));
        }
        if ending.is_some() {
            server.cancel(uid).await;
        }
        match server.status(uid).await {
            Ok(None) => return ending.map_or(Outcome::Lost, |(why, _)| why),
            Ok(Some(reply)) => {
                heard = tokio::time::Instant::now();
                output.take(&reply);
                output.print(false).await;
                match (reply.state(), ending.take()) {
                    (State::Succeeded, _) => return Outcome::Exited(0),
                    (State::Failed, Some((why, _))) => return why,
                    (State::Failed, None) => return failed(&reply),
                    (_, Some((_, since))) if since.elapsed() > CANCEL_WITHIN => return Outcome::Failed("the Runtime Server does not end it".to_owned()),
                    (_, still) => ending = still,
                }
            }
            Err(status) => {
                tracing::debug!(uid, %status, "Status");
                if let Some((why, _)) = ending.take_if(|(_, since)| since.elapsed() > CANCEL_WITHIN) {
                    return why;
                }
                if heard.elapsed() > agent.args.runtime_lost_after {
                    return Outcome::Lost;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled(), if ending.is_none() => {}
        }
    }
}

/// How a failed execution is classed (reference kruntimes §7.2).
fn failed(reply: &StatusReply) -> Outcome {
    const PREPARE: [&str; 5] = ["no args or script provided", "mkdir:", "git clone:", "git checkout:", "write inline:"];
    let message = reply.error_message.clone();
    match () {
        () if message == "timeout" && reply.exit_code == -1 => Outcome::TimedOut,
        () if PREPARE.iter().any(|prefix| message.starts_with(prefix)) => Outcome::NotPrepared(message),
        () if !message.is_empty() => Outcome::Failed(message),
        () if reply.exit_code != 0 => Outcome::Exited(reply.exit_code),
        () => Outcome::Failed("runtime execution failed".to_owned()),
    }
}

/// What was printed of an execution's streams, which the server tells as a whole each time.
struct Output {
    lines: Lines,
    seen: [usize; 2],
}

impl Output {
    fn take(&mut self, reply: &StatusReply) {
        for (index, (stream, text)) in [(Stream::Stdout, &reply.stdout), (Stream::Stderr, &reply.stderr)].into_iter().enumerate() {
            // A stream that is full may have lost its beginning: what is new in it can't be told.
            if text.len() < STREAM_BYTES_MAX || self.seen[index] == 0 {
                self.lines.push(stream, text.as_bytes().get(self.seen[index]..).unwrap_or_default());
                self.seen[index] = self.seen[index].max(text.len());
            }
        }
    }

    async fn print(&mut self, last: bool) {
        if last {
            self.lines.flush();
        }
        let lines: Vec<Vec<u8>> = self.lines.queue.drain(..).collect();
        let print = move || {
            let mut out = std::io::stdout().lock();
            // A stdout that nobody reads takes everything.
            lines.iter().try_for_each(|line| out.write_all(line)).and_then(|()| out.flush())
        };
        let _ = tokio::task::spawn_blocking(print).await;
    }
}

fn within<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_classed_as_the_neighbour_does() {
        let reply = |exit_code, error_message: &str| StatusReply { exit_code, error_message: error_message.to_owned(), ..StatusReply::default() };
        assert_eq!(failed(&reply(-1, "timeout")), Outcome::TimedOut);
        assert_eq!(failed(&reply(1, "timeout")), Outcome::Failed("timeout".to_owned()));
        assert_eq!(failed(&reply(-1, "git clone: no")), Outcome::NotPrepared("git clone: no".to_owned()));
        assert_eq!(failed(&reply(3, "")), Outcome::Exited(3));
        assert_eq!(failed(&reply(0, "")), Outcome::Failed("runtime execution failed".to_owned()));
    }
}
