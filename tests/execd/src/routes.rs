//! The routes, with the real one's statuses and bodies.

use std::convert::Infallible;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{SinkExt as _, StreamExt as _};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Command, Commands, Request, State as CommandState};
use crate::faults::{Faults, Framing, Kind, Setting};

struct Standin {
    token: Option<String>,
    commands: Commands,
    faults: Faults,
}

type Shared = State<Arc<Standin>>;

/// All routes, behind the token if there is one.
pub fn router(token: Option<String>) -> Router {
    let standin = Arc::new(Standin { token, commands: Commands::default(), faults: Faults::default() });
    let routes = Router::new()
        .route("/ping", get(|| async {}))
        .route("/command", post(command).delete(interrupt))
        .route("/command/status/{id}", get(status))
        .route("/command/{id}/logs", get(logs))
        .route("/standin", post(set))
        .layer(from_fn_with_state(Arc::clone(&standin), gate))
        .with_state(standin);
    // The server's addresses lead through execd's own proxy to any port of the sandbox. Here: to execd's own alone.
    Router::new().nest(&format!("/proxy/{}", crate::PORT), routes.clone()).merge(routes)
}

/// The token and the faults, before anything else.
async fn gate(State(standin): Shared, request: HttpRequest, next: Next) -> Response {
    let given = request.headers().get("X-EXECD-ACCESS-TOKEN").and_then(|value| value.to_str().ok());
    if standin.token.is_some() && given != standin.token.as_deref() {
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"}))).into_response();
    }
    let plain = |status: u16| (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), "a fault on demand").into_response();
    match standin.faults.take(request.method().as_str(), request.uri().path()) {
        None => next.run(request).await,
        Some(Kind::Status(status)) => plain(status),
        Some(Kind::StatusAfter(status)) => {
            let _ = next.run(request).await;
            plain(status)
        }
        Some(Kind::Hang) => {
            let _ = next.run(request).await;
            std::future::pending().await
        }
        Some(Kind::EndAfterInit) => {
            let mut request = request;
            request.headers_mut().insert("x-standin-end-after-init", header::HeaderValue::from_static("1"));
            next.run(request).await
        }
    }
}

async fn set(State(standin): Shared, Json(setting): Json<Setting>) {
    standin.faults.set(setting);
}

fn fail(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({"code": code, "message": message}))).into_response()
}

/// Where events go, in the framing that was set when the stream began.
struct Events {
    to: UnboundedSender<Result<Bytes, Infallible>>,
    framing: Framing,
}

impl Events {
    /// False if nobody reads any more.
    async fn send(&mut self, kind: &str, more: Value) -> bool {
        let mut event = json!({"type": kind, "timestamp": Timestamp::now().as_millisecond()});
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        let frame = if self.framing == Framing::Data { format!("data: {event}\n\n") } else { format!("{event}\n\n") };
        self.to.send(Ok(frame.into())).await.is_ok()
    }
}

async fn command(State(standin): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let bad = |message: &str| fail(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", message);
    let request: Request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return bad(&format!("error parsing request, MAYBE invalid body format. {error}")),
    };
    if request.command.is_empty() {
        return bad("invalid request, validation error command is required");
    }
    if request.timeout < 0 {
        return bad("invalid request, validation error timeout must be at least 1");
    }
    if let Some(cwd) = request.cwd.as_deref().filter(|cwd| !FilePath::new(cwd).is_dir()) {
        return bad(&format!("cwd {cwd} is no directory"));
    }
    let (framing, known_after) = standin.faults.manner();
    let is_background = request.background;
    let (to, from) = unbounded();
    let mut events = Events { to, framing };
    let command = match standin.commands.start(request, if is_background { known_after } else { Duration::ZERO }) {
        Ok(command) => command,
        Err(message) => return fail(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", &message),
    };
    let is_cut = headers.contains_key("x-standin-end-after-init");
    tokio::spawn(async move {
        if !events.send("init", json!({"text": command.id})).await || is_cut {
            return;
        }
        events.send("ping", json!({"text": "pong"})).await;
        if command.is_background {
            tokio::time::sleep_until(command.known_from).await;
            events.send("execution_complete", json!({})).await;
        } else {
            follow(&command, &mut events).await;
        }
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (head, Body::from_stream(from)).into_response()
}

/// Output as it comes, a line an event; then the end. The command does not end with the stream.
async fn follow(command: &Command, events: &mut Events) {
    let begun = tokio::time::Instant::now();
    let mut tails = [Tail::new(&command.stdout, "stdout"), Tail::new(&command.stderr, "stderr")];
    let mut state = command.state.clone();
    let mut next_ping = begun + Duration::from_secs(3);
    loop {
        let ended = match &*state.borrow_and_update() {
            CommandState::Running => None,
            CommandState::Ended(code, error, _) => Some((*code, error.clone())),
        };
        for tail in &mut tails {
            for line in tail.lines(ended.is_some()) {
                events.send(tail.name, json!({"text": line})).await;
            }
        }
        match ended {
            Some((0, _)) => {
                let millis = begun.elapsed().as_millis() as u64;
                events.send("execution_complete", if millis == 0 { json!({}) } else { json!({"execution_time": millis}) }).await;
                return;
            }
            Some((code, error)) => {
                let error = json!({"ename": "CommandExecError", "evalue": code.to_string(), "traceback": [error]});
                events.send("error", json!({"error": error})).await;
                return;
            }
            None => {}
        }
        if tokio::time::Instant::now() >= next_ping {
            next_ping += Duration::from_secs(3);
            if !events.send("ping", json!({"text": "pong"})).await {
                return;
            }
        }
        let _ = tokio::time::timeout(Duration::from_millis(100), state.changed()).await;
    }
}

/// A file that grows, read by lines.
struct Tail {
    file: Option<std::fs::File>,
    name: &'static str,
    rest: Vec<u8>,
}

impl Tail {
    fn new(path: &FilePath, name: &'static str) -> Self {
        Self { file: std::fs::File::open(path).ok(), name, rest: Vec::new() }
    }

    /// Whole lines without their newlines, an empty one as a newline; at the end also what has none.
    fn lines(&mut self, is_end: bool) -> Vec<String> {
        if let Some(file) = &mut self.file {
            let _ = file.read_to_end(&mut self.rest);
        }
        let mut lines = Vec::new();
        while let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=at).collect();
            let text = &line[..at];
            lines.push(if text.is_empty() { "\n".to_owned() } else { String::from_utf8_lossy(text).into_owned() });
        }
        if is_end && !self.rest.is_empty() {
            lines.push(String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned());
        }
        lines
    }
}

async fn status(State(standin): Shared, Path(id): Path<String>) -> Response {
    match standin.commands.get(&id) {
        Some(command) => Json(command.status()).into_response(),
        None => fail(StatusCode::NOT_FOUND, "INVALID_REQUEST_BODY", &format!("command not found: {id}")),
    }
}

#[derive(Deserialize)]
struct Cursor {
    cursor: Option<String>,
}

async fn logs(State(standin): Shared, Path(id): Path<String>, Query(Cursor { cursor }): Query<Cursor>) -> Response {
    let cursor: i64 = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let command = standin.commands.get(&id).filter(|command| command.is_background);
    let (Some(command), Ok(from)) = (command, u64::try_from(cursor)) else {
        return fail(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", "no such background command, or a negative cursor");
    };
    let read = || -> std::io::Result<(u64, std::fs::File)> {
        let mut file = std::fs::File::open(&command.stdout)?;
        let end = file.metadata()?.len().max(from);
        file.seek(SeekFrom::Start(from))?;
        Ok((end, file))
    };
    let Ok((end, file)) = read() else { return fail(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", "no output file") };
    // By pieces: it may be much longer than the sandbox's memory.
    let pieces = futures::stream::unfold((file, end - from), |(mut file, left)| async move {
        let mut piece = vec![0; usize::try_from(left.min(1 << 16)).unwrap_or(1 << 16)];
        let count = file.read(&mut piece).ok().filter(|count| *count > 0)?;
        piece.truncate(count);
        Some((Ok::<_, Infallible>(Bytes::from(piece)), (file, left - count as u64)))
    });
    let head = [("content-type", "text/plain; charset=utf-8".to_owned()), ("EXECD-COMMANDS-TAIL-CURSOR", end.to_string())];
    (head, Body::from_stream(pieces.boxed())).into_response()
}

#[derive(Deserialize)]
struct Id {
    id: Option<String>,
}

async fn interrupt(State(standin): Shared, Query(Id { id }): Query<Id>) -> Response {
    let Some(id) = id else { return fail(StatusCode::BAD_REQUEST, "MISSING_QUERY", "missing query parameter 'id'") };
    let error = |message: &str| fail(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", &format!("error interrupting code context. {message}"));
    match standin.commands.get(&id) {
        None => error("no such session"),
        Some(command) if command.interrupt().await => StatusCode::OK.into_response(),
        Some(_) => error(&format!("command {id} is not running")),
    }
}
