//! Text of others on a terminal: names, messages and labels may hold what moves the cursor, recolours or rewrites the line.

use std::borrow::Cow;
use std::io::{self, Write};

/// Control characters, line and paragraph separators, and what turns the direction of writing.
fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text in one line, everything unprintable escaped as in Rust: `\n`, `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable)
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_bad(c) { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    Cow::Owned(line)
}

/// Writes what is unprintable escaped, but for the ends of lines.
pub struct Printable<'w>(pub &'w mut dyn Write);

impl Write for Printable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What is formatted comes in pieces of whole characters.
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(escaped(&text, |c| c != '\n' && is_unprintable(c)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_instead() {
        for (text, line) in [
            ("plain, é 日本 %", "plain, é 日本 %"),
            ("esc\u{1b}[31mred\nline", "esc\\u{1b}[31mred\\nline"),
            ("p\u{1b}]0;pwned\u{7}", "p\\u{1b}]0;pwned\\u{7}"),
            ("\r\t\u{9b}2J\u{7f}", "\\r\\t\\u{9b}2J\\u{7f}"),
            ("\u{202e}txt\u{2028}", "\\u{202e}txt\\u{2028}"),
        ] {
            assert_eq!(one_line(text), line);
        }
        let mut out = Vec::new();
        writeln!(Printable(&mut out), "a\u{1b}{}", String::from("\u{9b}é\n")).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\\u{1b}\\u{9b}é\n\n");
    }
}
