//! The execd API: commands in one sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, RequestBuilder};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use crate::endpoint::{Route, below};
use crate::error::{Cause, Error, Failure, Operation, Refusal, Unsent};
use crate::events::{Event, events};
use crate::secret::expose_map;
use crate::transport::{Answer, Peer, Transport, cause};

const TOKEN_HEADER: &str = "X-EXECD-ACCESS-TOKEN";
const CURSOR_HEADER: &str = "EXECD-COMMANDS-TAIL-CURSOR";

/// The execd of one sandbox. While that is paused, every call runs into its time-out.
#[derive(Clone)]
pub struct Execd {
    transport: Arc<Transport>,
    route: Route,
}

impl fmt::Debug for Execd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execd").field("url", &self.route.url.as_str()).finish_non_exhaustive()
    }
}

/// A command.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Command {
    /// For `bash -c`, or `sh -c` where there is no bash.
    #[serde(rename = "command")]
    pub text: String,
    /// Folder; one that is not there is a 400.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment, over that of the sandbox.
    #[serde(serialize_with = "expose_map", skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, SecretString>,
    /// When execd kills it; None is never.
    #[serde(rename = "timeout", serialize_with = "millis", skip_serializing_if = "Option::is_none")]
    pub kill_after: Option<Duration>,
}

fn millis<S: serde::Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let millis = value.map(|value| u64::try_from(value.as_millis()).unwrap_or(u64::MAX).max(1)); // 0 is none
    millis.serialize(serializer)
}

#[derive(Serialize)]
struct Request<'a> {
    #[serde(flatten)]
    command: &'a Command,
    background: bool,
}

/// How a command in the foreground ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With this code; -1 if its shell was killed.
    Exited(i32),
    /// It never started.
    NotStarted,
}

/// A command in the foreground that has ended.
#[derive(Clone, PartialEq, Eq)]
pub struct Output {
    /// How.
    pub outcome: Outcome,
    /// Its stdout, line by line, each with a newline.
    pub stdout: String,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

/// A command as execd knows it, in its memory only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CommandStatus {
    /// It has not ended.
    pub running: bool,
    /// N of `exit N`; 128+S if a child died of a signal; -1 if the shell itself did, be it by its time-out, an interrupt or else; 255 if it never started.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// By the sandbox's clock.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// By the sandbox's clock.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
}

/// What an interrupt did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// TERM, and after 3 s KILL, went to its process group. Children that left the group live on.
    Signalled,
    /// It had ended before.
    Ended(CommandStatus),
}

/// A piece of a background command's output, from a cursor to now.
pub struct Logs {
    /// Where the next piece begins. Opaque.
    pub cursor: Option<String>,
    answer: Answer,
    idle: Duration,
}

impl Logs {
    /// The bytes. A piece may end within a line or a character, and may be as long as all the output.
    pub fn bytes(self) -> impl Stream<Item = Result<Bytes, Error>> + Send {
        let Self { answer, idle, .. } = self;
        let (response, place) = answer.into_parts();
        let pieces = response.bytes_stream();
        futures::stream::unfold((Box::pin(pieces), place, false), move |(mut pieces, place, failed)| async move {
            if failed {
                return None;
            }
            let piece = match tokio::time::timeout(idle, pieces.next()).await {
                Ok(None) => return None,
                Ok(Some(piece)) => piece.map_err(|error| cause(&error)),
                Err(_) => Err(Cause::TimedOut),
            };
            let failed = piece.is_err();
            Some((piece.map_err(|cause| Error::no_answer(Operation::CommandLogs, cause)), (pieces, place, failed)))
        })
    }
}

impl Execd {
    pub(crate) fn new(transport: Arc<Transport>, mut route: Route, token: Option<SecretString>) -> Result<Self, Error> {
        if let Some(token) = token {
            let unsent = |_| Error::unsent(Operation::Endpoint, Unsent::Request("the token can't be sent in a header"));
            let mut value = HeaderValue::from_str(token.expose_secret()).map_err(unsent)?;
            value.set_sensitive(true);
            route.headers.insert(TOKEN_HEADER, value);
        }
        Ok(Self { transport, route })
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        self.transport.http.request(method, below(&self.route.url, path)).headers(self.route.headers.clone())
    }

    async fn send(&self, operation: Operation, request: RequestBuilder) -> Result<Answer, Error> {
        self.transport.send(operation, Peer::Sandbox { with_key: self.route.with_key }, request).await
    }

    /// Whether execd is up and takes the token.
    pub async fn ping(&self) -> Result<(), Error> {
        let request = self.request(Method::GET, &["ping"]).timeout(self.transport.timeouts.call);
        self.send(Operation::Ping, request).await.map(drop)
    }

    /// Runs a command and waits for its end, at most as long as a call may take besides what [`Command::kill_after`] allows. Its stdout is read
    /// up to `stdout_bytes_max`; more is an error. The command does not end with the call.
    pub async fn run(&self, command: &Command, stdout_bytes_max: usize) -> Result<Output, Error> {
        let limit = self.transport.timeouts.call + command.kill_after.unwrap_or_default();
        let request = self.command(command, false).timeout(limit);
        let fail = |cause| Error::no_answer(Operation::Run, cause);
        let (response, _place) = self.send(Operation::Run, request).await?.into_parts();
        let mut events = pin!(events(response.bytes_stream()));
        let mut stdout = String::new();
        loop {
            let event = tokio::time::timeout(self.transport.timeouts.idle, events.next()).await.map_err(|_| fail(Cause::TimedOut))?;
            let outcome = match event.ok_or_else(|| fail(Cause::Cut))?.map_err(fail)? {
                Event::Stdout { text } => {
                    stdout.push_str(&text);
                    if !text.ends_with('\n') {
                        stdout.push('\n');
                    }
                    if stdout.len() > stdout_bytes_max {
                        return Err(fail(Cause::TooLong));
                    }
                    continue;
                }
                Event::ExecutionComplete => Outcome::Exited(0),
                Event::Error { error } => error.exit_code().map_or(Outcome::NotStarted, Outcome::Exited),
                Event::Refused { code } => return Err(refused(Operation::Run, code)),
                _ => continue,
            };
            return Ok(Output { outcome, stdout });
        }
    }

    /// Starts a command in the background; its id. Once that is there, it can be asked for.
    pub async fn start(&self, command: &Command) -> Result<String, Error> {
        let request = self.command(command, true).timeout(self.transport.timeouts.call);
        let fail = |cause| Error::no_answer(Operation::Start, cause);
        let (response, _place) = self.send(Operation::Start, request).await?.into_parts();
        let mut events = pin!(events(response.bytes_stream()));
        let mut id = None;
        while let Some(event) = events.next().await {
            match event.map_err(fail)? {
                Event::Init { text } => id = Some(text),
                // Only now is it registered: right after `init` its status is a 404.
                Event::ExecutionComplete => return id.ok_or_else(|| fail(Cause::Unreadable)),
                Event::Refused { code } => return Err(refused(Operation::Start, code)),
                Event::Error { .. } => return Err(refused(Operation::Start, crate::Code::RuntimeError)),
                _ => {}
            }
        }
        Err(fail(Cause::Cut))
    }

    fn command(&self, command: &Command, background: bool) -> RequestBuilder {
        let accept = HeaderValue::from_static("text/event-stream");
        self.request(Method::POST, &["command"]).header(ACCEPT, accept).json(&Request { command, background })
    }

    /// How a command is. [`Error::is_command_not_found`]: execd has not got it (any more).
    pub async fn status(&self, id: &str) -> Result<CommandStatus, Error> {
        let request = self.request(Method::GET, &["command", "status", id]).timeout(self.transport.timeouts.call);
        self.send(Operation::CommandStatus, request).await?.json().await
    }

    /// Output of a background command since a cursor, stdout and stderr as they came. None begins at the beginning.
    pub async fn logs(&self, id: &str, cursor: Option<&str>) -> Result<Logs, Error> {
        let request = self.request(Method::GET, &["command", id, "logs"]);
        let request = if let Some(cursor) = cursor { request.query(&[("cursor", cursor)]) } else { request };
        let late = |_| Error::no_answer(Operation::CommandLogs, Cause::TimedOut);
        let sent = tokio::time::timeout(self.transport.timeouts.call, self.send(Operation::CommandLogs, request)).await;
        let answer = sent.map_err(late)??;
        let next = answer.header(CURSOR_HEADER);
        Ok(Logs { cursor: next, answer, idle: self.transport.timeouts.idle })
    }

    /// Asks a command to stop and waits until execd has signalled it, at most some 3 s.
    pub async fn interrupt(&self, id: &str) -> Result<Interrupted, Error> {
        let request = self.request(Method::DELETE, &["command"]).query(&[("id", id)]).timeout(self.transport.timeouts.call);
        match self.send(Operation::Interrupt, request).await {
            Ok(_) => Ok(Interrupted::Signalled),
            // One that has ended is a 500 as well.
            Err(error) if error.refusal().is_some_and(|refusal| refusal.status == 500) => {
                let status = self.status(id).await?;
                if status.running { Err(error) } else { Ok(Interrupted::Ended(status)) }
            }
            Err(error) => Err(error),
        }
    }
}

/// A refusal on a stream whose head said 200.
fn refused(operation: Operation, code: crate::Code) -> Error {
    Error { operation, failure: Failure::Refused(Refusal { status: 200, code, retry_after: None }) }
}
