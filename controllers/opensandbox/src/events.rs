//! The stream of `POST /command`: one JSON object an event, as server-sent events or bare, each followed by an empty line.

use bytes::Bytes;
use eventsource_stream::Eventsource as _;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use crate::answer::refused_within;
use crate::error::{Cause, Code};
use crate::transport::cause;

/// One line of output is one event.
const LINE_BYTES_MAX: usize = 4 << 20;

/// What execd tells of a command.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The first: the command's id. It may not be asked for yet.
    Init {
        /// 32 hexadecimal digits.
        text: String,
    },
    /// Nothing new; every 3 s.
    Ping,
    /// Output. A line without its newline, or with it, by version.
    Stdout {
        /// The text.
        #[serde(default)]
        text: String,
    },
    /// Output to stderr.
    Stderr {
        /// The text.
        #[serde(default)]
        text: String,
    },
    /// The last, of failure.
    Error {
        /// How it failed.
        error: ExecutionError,
    },
    /// The last, of success; in the background: it is started.
    ExecutionComplete,
    /// An error answer where the head of the answer had said 200.
    #[serde(skip)]
    Refused {
        /// What it says.
        code: Code,
    },
    /// One that this client does not know.
    #[serde(other)]
    Other,
}

/// How a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ExecutionError {
    /// The exit code as text, or, if it never started, a message.
    #[serde(default)]
    pub evalue: String,
}

impl ExecutionError {
    /// The exit code; None if it never started.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        self.evalue.trim().parse().ok()
    }
}

/// The events of a body, in either framing, until it ends.
pub(crate) fn events(body: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static) -> impl Stream<Item = Result<Event, Cause>> + Send {
    // A bare object is a line that server-sent events would take for an unknown field: it becomes a field `data`.
    let reader = StreamReader::new(body.map_err(std::io::Error::other));
    let lines = FramedRead::new(reader, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    let framed = lines.map_ok(|line| {
        let bare = line.starts_with('{');
        Bytes::from(if bare { format!("data: {line}\n\n") } else { format!("{line}\n") })
    });
    // An object may come without the empty line if it is the last.
    let ended = framed.chain(stream::once(async { Ok(Bytes::from_static(b"\n\n")) }));
    ended.eventsource().filter_map(|event| async {
        match event {
            Ok(event) if event.data.is_empty() => None,
            Ok(event) => Some(match serde_json::from_str(&event.data) {
                Ok(event) => Ok(event),
                Err(_) => refused_within(&event.data).map(|code| Event::Refused { code }).ok_or(Cause::Unreadable),
            }),
            Err(eventsource_stream::EventStreamError::Transport(error)) => Some(Err(line_cause(&error))),
            Err(_) => Some(Err(Cause::Unreadable)),
        }
    })
}

fn line_cause(error: &tokio_util::codec::LinesCodecError) -> Cause {
    match error {
        tokio_util::codec::LinesCodecError::MaxLineLengthExceeded => Cause::TooLong,
        tokio_util::codec::LinesCodecError::Io(error) => match error.get_ref().and_then(|error| error.downcast_ref::<reqwest::Error>()) {
            Some(error) => cause(error),
            None => Cause::Io(error.kind()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = concat!(
        "{\"type\":\"init\",\"text\":\"0a\",\"timestamp\":1}\n\n",
        "{\"type\":\"ping\",\"text\":\"pong\",\"timestamp\":1}\n\n",
        "{\"type\":\"stdout\",\"text\":\"data: {\\\"type\\\":\\\"error\\\"} é\",\"timestamp\":1}\n\n",
        "{\"type\":\"execution_count\",\"execution_count\":1,\"timestamp\":1}\n\n",
        "{\"type\":\"error\",\"error\":{\"ename\":\"CommandExecError\",\"evalue\":\"3\",\"traceback\":[\"x\"]},\"timestamp\":1}\n\n",
    );

    async fn read(text: &str, piece: usize) -> Vec<Result<Event, Cause>> {
        let pieces: Vec<reqwest::Result<Bytes>> = text.as_bytes().chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        events(stream::iter(pieces)).collect().await
    }

    fn expected() -> Vec<Result<Event, Cause>> {
        vec![
            Ok(Event::Init { text: "0a".into() }),
            Ok(Event::Ping),
            Ok(Event::Stdout { text: "data: {\"type\":\"error\"} é".into() }),
            Ok(Event::Other),
            Ok(Event::Error { error: ExecutionError { evalue: "3".into() } }),
        ]
    }

    #[tokio::test]
    async fn both_framings_say_the_same_wherever_they_are_cut() {
        let framed = BARE.lines().map(|line| if line.is_empty() { "\r\n".to_owned() } else { format!(": note\r\nid: 7\r\ndata: {line}\r\n") });
        let framed: String = framed.collect();
        for piece in [1, 2, 3, 7, 64, 4096] {
            assert_eq!(read(BARE, piece).await, expected(), "bare, {piece}");
            assert_eq!(read(BARE.trim_end(), piece).await, expected(), "bare, last line open, {piece}");
            assert_eq!(read(&framed, piece).await, expected(), "framed, {piece}");
        }
    }

    #[tokio::test]
    async fn what_is_no_event_is_an_error_and_not_its_text() {
        assert_eq!(read("{\"type\":canary}\n\n", 64).await, [Err(Cause::Unreadable)]);
        assert_eq!(read(&format!("{{{}\n\n", "x".repeat(LINE_BYTES_MAX + 1)), 1 << 16).await.first(), Some(&Err(Cause::TooLong)));
    }
}
