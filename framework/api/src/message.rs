//! Texts for people, bounded.

use crate::constants::MESSAGE_BYTES_MAX;

/// A message cut to fewer than 1,024 bytes at a character boundary; what is cut ends in `…` (decisions, "Wire").
pub fn bounded(mut message: String) -> String {
    if message.len() >= MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX - 4));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters_below_the_limit() {
        for unit in ["a", "é", "漢", "😀"] {
            let cut = bounded(unit.repeat(2_000));
            assert!(cut.len() < MESSAGE_BYTES_MAX && cut.ends_with('…') && cut.starts_with(unit), "{}", cut.len());
        }
        assert_eq!(bounded("short".to_owned()), "short");
    }
}
