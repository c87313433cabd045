//! Text of others on a terminal: names, messages and labels may hold what moves the cursor, recolours or rewrites the line.

use std::io::{self, Write};

pub use berth_api::message::one_line;
use berth_api::message::{escaped, is_unprintable};

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
        let mut out = Vec::new();
        writeln!(Printable(&mut out), "a\u{1b}{}", String::from("\u{9b}é\n")).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\\u{1b}\\u{9b}é\n\n");
    }
}
