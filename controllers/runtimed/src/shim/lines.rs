//! The output of a Run as JSON lines on stdout: one object a line, each written at once and short enough that the kernel keeps it whole.

use std::collections::VecDeque;

use serde::Serialize;

use super::spec::{Identity, STDERR_TAIL_BYTES};

/// A write of at most that many bytes to a pipe is not mixed with another's (PIPE_BUF).
const LINE_BYTES_MAX: usize = 4_096;
/// What an escaped message may take of a line: names of 253 bytes each and the rest of the object leave room for this much.
const MESSAGE_BYTES_MAX: usize = 2_600;

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// The Run's standard output.
    Stdout,
    /// The Run's standard error.
    Stderr,
    /// Said by the agent about the Run.
    Runtimed,
}

/// A line as it is printed; the first seven fields are the neighbour's (reference kruntimes §7.4).
#[derive(Serialize)]
struct Line<'a> {
    run_uid: &'a str,
    run_name: &'a str,
    namespace: &'a str,
    runtime: &'a str,
    pod: &'a str,
    stream: Stream,
    message: &'a str,
    attempt: i32,
    /// The line goes on in the next object of this stream.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

/// Cuts bytes into lines. Holds at most one unfinished line per stream, and what was cut and not yet taken.
pub struct Lines {
    identity: Identity,
    unfinished: [Vec<u8>; 2],
    /// What the unfinished lines take at most once they are escaped.
    escaped: [usize; 2],
    /// Encoded lines that wait to be written.
    pub queue: VecDeque<Vec<u8>>,
    left: u64,
    limit: u64,
    said: bool,
    tail: VecDeque<u8>,
}

impl Lines {
    /// Logs at most `limit` bytes of both streams together.
    pub fn new(identity: Identity, limit: u64) -> Self {
        Self { identity, unfinished: Default::default(), escaped: [0; 2], queue: VecDeque::new(), left: limit, limit, said: false, tail: VecDeque::new() }
    }

    /// Takes in what was read of a stream.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stderr {
            self.tail.extend(bytes);
            let over = self.tail.len().saturating_sub(STDERR_TAIL_BYTES);
            self.tail.drain(..over);
        }
        let allowed = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.left -= allowed as u64;
        for &byte in &bytes[..allowed] {
            let (line, escaped) = (&mut self.unfinished[index(stream)], &mut self.escaped[index(stream)]);
            if byte == b'\n' {
                let line = std::mem::take(line);
                *escaped = 0;
                self.emit(stream, &line, false);
                continue;
            }
            line.push(byte);
            *escaped += escaped_at_most(byte);
            // The worst escape takes six bytes for one.
            if *escaped > MESSAGE_BYTES_MAX - 6 {
                let rest = line.split_off(line.len() - incomplete_character(line));
                *escaped = rest.iter().copied().map(escaped_at_most).sum();
                let line = std::mem::replace(line, rest);
                self.emit(stream, &line, true);
            }
        }
        if allowed < bytes.len() && !std::mem::replace(&mut self.said, true) {
            self.flush();
            let text = format!("output beyond {} bytes is not logged", self.limit);
            self.emit(Stream::Runtimed, text.as_bytes(), false);
        }
    }

    /// Ends unfinished lines: the streams are over.
    pub fn flush(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let line = std::mem::take(&mut self.unfinished[index(stream)]);
            self.escaped[index(stream)] = 0;
            if !line.is_empty() {
                self.emit(stream, &line, false);
            }
        }
    }

    /// Something the agent says about the Run.
    pub fn say(&mut self, text: &str) {
        self.flush();
        for line in text.lines() {
            self.emit(Stream::Runtimed, &line.as_bytes()[..line.floor_char_boundary(MESSAGE_BYTES_MAX / 6)], false);
        }
    }

    /// Forgets the end of stderr: what comes now belongs to another process.
    pub fn forget_tail(&mut self) {
        self.tail.clear();
    }

    /// The end of stderr, from a line's start where it can be, without surrounding space.
    pub fn stderr_tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let from = match bytes.len() < STDERR_TAIL_BYTES {
            true => 0,
            // The first bytes may be the middle of a character.
            false => bytes.iter().take(4).take_while(|byte| (**byte & 0xC0) == 0x80).count(),
        };
        String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
    }

    fn emit(&mut self, stream: Stream, message: &[u8], partial: bool) {
        let Identity { run_uid, run_name, namespace, runtime, pod, attempt } = &self.identity;
        let message = String::from_utf8_lossy(message);
        let line =
            Line { run_uid, run_name, namespace, runtime, pod, stream, message: message.strip_suffix('\r').unwrap_or(&message), attempt: *attempt, partial };
        // Strings and numbers can't fail to encode.
        if let Ok(mut encoded) = serde_json::to_vec(&line) {
            encoded.push(b'\n');
            debug_assert!(encoded.len() <= LINE_BYTES_MAX, "{}", encoded.len());
            self.queue.push_back(encoded);
        }
    }
}

fn index(stream: Stream) -> usize {
    usize::from(stream == Stream::Stderr)
}

/// An upper bound of what a byte takes in a JSON string: a control six, quotes and backslashes two, one that is no UTF-8 the three
/// of its replacement.
fn escaped_at_most(byte: u8) -> usize {
    match byte {
        0..=0x1F => 6,
        b'"' | b'\\' => 2,
        0x80.. => 3,
        _ => 1,
    }
}

/// How many bytes at the end are the beginning of a character that is not there yet.
fn incomplete_character(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn lines(limit: u64) -> Lines {
        let long = "n".repeat(253);
        let identity =
            Identity { run_uid: "u".repeat(36), run_name: long.clone(), namespace: "s".repeat(63), runtime: "r".repeat(63), pod: long, attempt: 100 };
        Lines::new(identity, limit)
    }

    fn messages(lines: &Lines) -> Vec<(String, bool, String)> {
        let read = |line: &Vec<u8>| {
            assert!(line.len() <= LINE_BYTES_MAX && line.ends_with(b"\n"), "{}", line.len());
            let value: serde_json::Value = serde_json::from_slice(line).unwrap();
            (value["stream"].as_str().unwrap().to_owned(), value["partial"] == true, value["message"].as_str().unwrap().to_owned())
        };
        lines.queue.iter().map(read).collect()
    }

    #[test]
    fn lines_are_cut_at_their_ends_however_they_arrive() {
        let mut cut = lines(1_000);
        for piece in ["on", "e\ntwo\r\n", "\nth", "ree"] {
            cut.push(Stream::Stdout, piece.as_bytes());
        }
        cut.push(Stream::Stderr, b"err\n");
        cut.flush();
        let said: Vec<String> = messages(&cut).into_iter().map(|(stream, _, message)| format!("{stream}:{message}")).collect();
        assert_eq!(said, ["stdout:one", "stdout:two", "stdout:", "stderr:err", "stdout:three"]);
    }

    #[test]
    fn a_long_line_becomes_parts_that_fit_and_add_up_whatever_it_is_made_of() {
        for unit in ["a", "\u{1}", "\"", "é", "漢", "😀", "\\"] {
            let text = unit.repeat(20_000);
            let mut cut = lines(u64::MAX);
            for piece in text.as_bytes().chunks(777) {
                cut.push(Stream::Stdout, piece);
            }
            cut.flush();
            let parts = messages(&cut);
            assert!(parts.len() > 1 && parts.iter().rev().skip(1).all(|(_, partial, _)| *partial));
            assert_eq!(parts.into_iter().map(|(_, _, message)| message).collect::<String>(), text, "{unit:?}");
        }
        let mut cut = lines(u64::MAX);
        cut.push(Stream::Stdout, &[0xFF; 10_000]);
        cut.flush();
        assert_eq!(messages(&cut).iter().map(|(_, _, message)| message.chars().count()).sum::<usize>(), 10_000);
    }

    #[test]
    fn beyond_the_limit_it_is_said_once_and_the_tail_goes_on() {
        let mut cut = lines(5);
        for _ in 0..3 {
            cut.push(Stream::Stderr, b"abcd\n");
        }
        let said: Vec<String> = messages(&cut).into_iter().map(|(stream, _, message)| format!("{stream}:{message}")).collect();
        assert_eq!(said, ["stderr:abcd", "runtimed:output beyond 5 bytes is not logged"]);
        assert_eq!(cut.stderr_tail(), "abcd\nabcd\nabcd");
    }

    #[test]
    fn the_tail_is_bounded_and_starts_at_a_character() {
        let mut cut = lines(u64::MAX);
        cut.push(Stream::Stderr, "漢".repeat(5_000).as_bytes());
        let tail = cut.stderr_tail();
        assert!(tail.len() <= STDERR_TAIL_BYTES && tail.chars().all(|c| c == '漢'), "{tail}");
    }
}
