//! Texts for people: bounded, and without what a terminal obeys.

use std::borrow::Cow;

use crate::constants::MESSAGE_BYTES_MAX;

/// A message cut to fewer than 1,024 bytes at a character boundary; what is cut ends in `…` (decisions, "Wire").
pub fn bounded(mut message: String) -> String {
    if message.len() >= MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX - 4));
        message.push('…');
    }
    message
}

/// Control characters, line and paragraph separators, and what turns the direction of writing: in a text of others they may move the
/// cursor, recolour or rewrite a line.
pub fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text in one line, everything unprintable escaped as in Rust: `\n`, `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable)
}

/// The text with every character escaped that is bad.
pub fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_bad(c) { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn a_long_message_is_cut_between_characters_below_the_limit() {
        for unit in ["a", "é", "漢", "😀"] {
            let cut = bounded(unit.repeat(2_000));
            assert!(cut.len() < MESSAGE_BYTES_MAX && cut.ends_with('…') && cut.starts_with(unit), "{}", cut.len());
        }
        assert_eq!(bounded("short".to_owned()), "short");
    }
}
