//! Durations as Go's `time.ParseDuration` reads them: the form of every duration on the wire (reference §0.4).

use std::time::Duration;

/// Why a text is no usable duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a sequence of numbers with a unit each.
    #[error("not a Go duration")]
    Malformed,
    /// A number has no unit.
    #[error("missing unit in duration")]
    MissingUnit,
    /// A unit other than ns, us, µs, ms, s, m, h.
    #[error("unknown unit in duration")]
    UnknownUnit,
    /// Beyond about 292 years, more than Go's 64 bits of nanoseconds hold.
    #[error("duration out of range")]
    OutOfRange,
    /// Below zero, where only a length of time makes sense.
    #[error("negative duration")]
    Negative,
}

/// Reads a duration that may not be negative. `0`, `0s`, `1h30m`, `1.5s` are fine.
///
/// # Errors
/// See [`DurationError`]; never panics, whatever the text.
pub fn parse_go(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_go_nanos(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| DurationError::Negative)
}

/// Reads a duration with its sign, in nanoseconds; every text that Go accepts, and no other.
///
/// # Errors
/// See [`DurationError`], except `Negative`.
pub fn parse_go_nanos(text: &str) -> Result<i64, DurationError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(DurationError::Malformed);
    }
    // Go sums up to 2^63, so that the smallest number, -2^63, can be written.
    const LIMIT: u64 = 1 << 63;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after_whole) = split_digits(rest);
        let (decimals, after_number) = match after_whole.strip_prefix('.') {
            Some(after_point) => split_digits(after_point),
            None => ("", after_whole),
        };
        if whole.is_empty() && decimals.is_empty() {
            return Err(DurationError::Malformed);
        }
        let unit_end = after_number.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after_number.len());
        let (unit, after_unit) = after_number.split_at(unit_end);
        let unit_nanos = unit_nanos(unit)?;
        let mut value = whole_nanos(whole, unit_nanos).ok_or(DurationError::OutOfRange)?;
        value = value.saturating_add(fraction_nanos(decimals, unit_nanos));
        total = total.saturating_add(value);
        if total > LIMIT {
            return Err(DurationError::OutOfRange);
        }
        rest = after_unit;
    }
    if negative { Ok(0_i64.wrapping_sub_unsigned(total)) } else { i64::try_from(total).map_err(|_| DurationError::OutOfRange) }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Result<u64, DurationError> {
    Ok(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3600 * 1_000_000_000,
        "" => return Err(DurationError::MissingUnit),
        _ => return Err(DurationError::UnknownUnit),
    })
}

fn whole_nanos(digits: &str, unit_nanos: u64) -> Option<u64> {
    let mut value: u64 = 0;
    for digit in digits.bytes() {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    value.checked_mul(unit_nanos)
}

/// The part of a unit after the point, rounded down; digits beyond the 18th are below a nanosecond of any unit.
fn fraction_nanos(digits: &str, unit_nanos: u64) -> u64 {
    let mut numerator: u128 = 0;
    let mut denominator: u128 = 1;
    for digit in digits.bytes().take(18) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    u64::try_from(numerator * u128::from(unit_nanos) / denominator).unwrap_or(unit_nanos)
}

#[cfg(test)]
mod tests {
    use super::DurationError::{Malformed, MissingUnit, OutOfRange, UnknownUnit};
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let second = 1_000_000_000_i64;
        let rows: &[(&str, Result<i64, DurationError>)] = &[
            ("0", Ok(0)),
            ("-0", Ok(0)),
            ("0s", Ok(0)),
            ("0h0m0s", Ok(0)),
            ("5s", Ok(5 * second)),
            ("+5s", Ok(5 * second)),
            ("-5s", Ok(-5 * second)),
            ("300ms", Ok(300_000_000)),
            ("1m30s", Ok(90 * second)),
            ("1h", Ok(3600 * second)),
            ("1.5h", Ok(5400 * second)),
            (".5s", Ok(second / 2)),
            ("5.s", Ok(5 * second)),
            ("1us", Ok(1000)),
            ("1µs", Ok(1000)),
            ("1μs", Ok(1000)),
            ("1ns", Ok(1)),
            ("0.4ns", Ok(0)),
            ("0.3333333333333333333h", Ok(1_199_999_999_999)),
            ("0.9223372036854775807h", Ok(3_320_413_933_267)),
            ("2562047h47m16.854775807s", Ok(i64::MAX)),
            ("-2562047h47m16.854775808s", Ok(i64::MIN)),
            ("2562047h47m16.854775808s", Err(OutOfRange)),
            ("-2562047h47m16.854775809s", Err(OutOfRange)),
            ("9223372036854775807ns", Ok(i64::MAX)),
            ("9223372036854775808ns", Err(OutOfRange)),
            ("99999999999999999999h", Err(OutOfRange)),
            ("2562047h2562047h", Err(OutOfRange)),
            ("", Err(Malformed)),
            ("+", Err(Malformed)),
            ("-", Err(Malformed)),
            (".", Err(Malformed)),
            ("-.", Err(Malformed)),
            (".s", Err(Malformed)),
            ("s", Err(Malformed)),
            ("+-5s", Err(Malformed)),
            ("5", Err(MissingUnit)),
            ("1s5", Err(MissingUnit)),
            ("3000", Err(MissingUnit)),
            ("00", Err(MissingUnit)),
            ("abc", Err(Malformed)),
            ("5d", Err(UnknownUnit)),
            ("5S", Err(UnknownUnit)),
            ("1h 30m", Err(UnknownUnit)),
            ("5s ", Err(UnknownUnit)),
            (" 5s", Err(Malformed)),
            ("1,5s", Err(UnknownUnit)),
            ("5é", Err(UnknownUnit)),
            ("é", Err(Malformed)),
        ];
        for (text, expected) in rows {
            assert_eq!(parse_go_nanos(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn a_length_of_time_is_not_negative() {
        assert_eq!(parse_go("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_go("-1ns"), Err(DurationError::Negative));
        assert_eq!(parse_go("-0s"), Ok(Duration::ZERO));
    }
}
