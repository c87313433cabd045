//! The formats of texts, as the API server checks them.

/// What the API server takes for a date-time: it looks at the digits only, so that `24:00:00` is none, and
/// an offset of `+99:99` is one.
pub(super) fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_date = date.len() == 10 && date.parse::<k8s_openapi::jiff::civil::Date>().is_ok();
    let (Some(clock), Some(rest)) = (time.get(..8), time.get(8..)) else {
        return false;
    };
    let below = |range: std::ops::Range<usize>, most: &str| clock.get(range).is_some_and(|text| digits(text) && text <= most);
    let is_clock = below(0..2, "23") && below(3..5, "59") && below(6..8, "59") && &clock[2..3] == ":" && &clock[5..6] == ":";
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let end = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len());
            if end == 0 {
                return false;
            } else {
                &fraction[end..]
            }
        }
        None => rest,
    };
    let is_offset = zone.len() == 6
        && zone.starts_with(['+', '-'])
        && zone.get(1..3).is_some_and(digits)
        && zone.get(3..4) == Some(":")
        && zone.get(4..6).is_some_and(digits);
    is_date && is_clock && (zone == "z" || is_offset)
}

/// Standard base64 with padding.
pub(super) fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    !text.is_empty() && text.len().is_multiple_of(4) && padding <= 2 && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_format_that_kubernetes_sees_in_them() {
        for good in ["2026-01-02T03:04:05Z", "2026-01-02t03:04:05.1z", "2026-01-02T03:04:05+01:30", "2026-01-02T03:04:05+99:99"] {
            assert!(is_date_time(good), "{good}");
        }
        for bad in [
            "",
            "T",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-01-02T24:04:05Z",
            "2026-01-02T03:04:60Z",
            "2026-02-30T03:04:05Z",
            "2026-01-02T03:04:05.Z",
            "2026-01-02T03:04:05+1:30",
            "2026-1-2T03:04:05Z",
            "20260102T030405Z",
            "2026-01-02T03:04:05Zé",
        ] {
            assert!(!is_date_time(bad), "{bad}");
        }
        for (text, expected) in [("aGVsbG8=", true), ("aA==", true), ("aGVs", true), ("", false), ("aA=", false), ("a===", false), ("?AAA", false)] {
            assert_eq!(is_base64(text), expected, "{text:?}");
        }
    }
}
