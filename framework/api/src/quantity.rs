//! Quantities as Kubernetes reads them, exactly: no floating point, no allocation beyond the digits.
//!
//! kube_quantity parses through `f64`, loses everything above 2^53 and reads `1e1.5` as a number; hence this module.
//! Rules: reference §4 (requests) and §2 (capacity).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Why a text is no usable integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not of the form `<sign><digits><suffix>` with a suffix Kubernetes knows.
    #[error("not a quantity")]
    Malformed,
    /// Below zero.
    #[error("negative")]
    Negative,
    /// Not a whole number.
    #[error("not an integer")]
    Fractional,
    /// Above 2^63 − 1.
    #[error("greater than 9223372036854775807")]
    TooLarge,
}

/// A whole number from 0 to 2^63 − 1: the semantics of a resource request (reference §4).
///
/// `1k`, `1Ki`, `1e3`, `1000m` and `-0` are integers; `500m`, `1.5` and `-1` are not.
pub fn non_negative_integer(quantity: &Quantity) -> Result<i64, QuantityError> {
    let parts = integer_and_fraction(&quantity.0)?;
    if parts.nanos > 0 { Err(QuantityError::Fractional) } else { Ok(parts.integer) }
}

/// The quantity rounded down to a whole number: the semantics of advertised capacity (decisions, "Capacity").
///
/// # Errors
/// As [`non_negative_integer`], without `Fractional`.
pub fn floor_integer(text: &str) -> Result<i64, QuantityError> {
    integer_and_fraction(text).map(|parts| parts.integer)
}

/// The quantity in units of 10^-9, the resolution that Kubernetes keeps, capped at 2^63 − 1 whole units as Kubernetes does: what
/// quantities are compared by.
///
/// # Errors
/// `Malformed` and `Negative`.
pub fn nanos(text: &str) -> Result<i128, QuantityError> {
    const MAX: i128 = i64::MAX as i128 * NANOS_PER_UNIT as i128;
    match integer_and_fraction(text) {
        Ok(parts) => Ok((i128::from(parts.integer) * i128::from(NANOS_PER_UNIT) + i128::from(parts.nanos)).min(MAX)),
        Err(QuantityError::TooLarge) => Ok(MAX),
        Err(error) => Err(error),
    }
}

/// A non-negative quantity, split.
struct Parts {
    integer: i64,
    /// What remains after the decimal point, in units of 10^-9.
    nanos: u64,
}

const NANOS_PER_UNIT: u64 = 1_000_000_000;

/// Digits after the point that Kubernetes keeps; a non-zero rest is rounded up to one of them.
const NANO_DIGITS: i64 = 9;
/// Most digits of a number below 2^63.
const INTEGER_DIGITS_MAX: i64 = 19;

fn integer_and_fraction(text: &str) -> Result<Parts, QuantityError> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + decimals.len() == 0 || decimals.contains('.') {
        return Err(QuantityError::Malformed);
    }
    let (exponent, doublings_10) = suffix_scale(suffix)?;

    let mut digits: Vec<u8> = whole.bytes().chain(decimals.bytes()).map(|byte| byte - b'0').collect();
    let mut exponent = exponent - i64::try_from(decimals.len()).map_err(|_| QuantityError::TooLarge)?;
    strip_zeros(&mut digits, &mut exponent);
    if digits.is_empty() {
        return Ok(Parts { integer: 0, nanos: 0 });
    }
    if negative {
        return Err(QuantityError::Negative);
    }
    for _ in 0..doublings_10 {
        multiply_by_1024(&mut digits);
    }
    strip_zeros(&mut digits, &mut exponent);
    split_at_point(&digits, exponent)
}

/// Decimal exponent and number of factors 1024 of a suffix.
fn suffix_scale(suffix: &str) -> Result<(i64, u32), QuantityError> {
    let scale = match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 1),
        "Mi" => (0, 2),
        "Gi" => (0, 3),
        "Ti" => (0, 4),
        "Pi" => (0, 5),
        "Ei" => (0, 6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Malformed)?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(QuantityError::Malformed);
            }
            // Go keeps 32 bits of the exponent; what does not fit has no agreed meaning.
            (i64::from(exponent.parse::<i32>().map_err(|_| QuantityError::Malformed)?), 0)
        }
    };
    Ok(scale)
}

/// Drops leading zeros, and trailing ones into the exponent. `digits` is most significant first.
fn strip_zeros(digits: &mut Vec<u8>, exponent: &mut i64) {
    while digits.last() == Some(&0) {
        digits.pop();
        *exponent += 1;
    }
    let leading = digits.iter().take_while(|digit| **digit == 0).count();
    digits.drain(..leading);
}

fn multiply_by_1024(digits: &mut Vec<u8>) {
    let mut carry: u32 = 0;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = (product % 10) as u8;
        carry = product / 10;
    }
    let mut front = Vec::new();
    while carry > 0 {
        front.push((carry % 10) as u8);
        carry /= 10;
    }
    front.reverse();
    digits.splice(0..0, front);
}

/// `digits` × 10^`exponent`; digits are neither empty nor do they begin or end with 0.
fn split_at_point(digits: &[u8], exponent: i64) -> Result<Parts, QuantityError> {
    let count = i64::try_from(digits.len()).map_err(|_| QuantityError::TooLarge)?;
    let integer_digits = count + exponent;
    if integer_digits > INTEGER_DIGITS_MAX {
        return Err(QuantityError::TooLarge);
    }
    let at = |position: i64| usize::try_from(position).ok().and_then(|index| digits.get(index)).copied().unwrap_or(0);
    let mut integer: u64 = 0;
    for position in 0..integer_digits.max(0) {
        integer = integer * 10 + u64::from(at(position)); // at most 19 digits: below 10^19 < 2^64
    }
    let mut nanos: u64 = 0;
    for position in integer_digits..integer_digits + NANO_DIGITS {
        nanos = nanos * 10 + u64::from(if position < 0 { 0 } else { at(position) });
    }
    // Kubernetes rounds what is finer than 10^-9 up, so that a tiny amount is never nothing.
    if count > integer_digits + NANO_DIGITS {
        nanos += 1;
    }
    if nanos == NANOS_PER_UNIT {
        nanos = 0;
        integer += 1;
    }
    let integer = i64::try_from(integer).map_err(|_| QuantityError::TooLarge)?;
    Ok(Parts { integer, nanos })
}

#[cfg(test)]
mod tests {
    use super::QuantityError::{Fractional, Malformed, Negative, TooLarge};
    use super::*;

    type Read = Result<i64, QuantityError>;

    /// text, as a request, as capacity
    const ROWS: &[(&str, Read, Read)] = &[
        ("0", Ok(0), Ok(0)),
        ("-0", Ok(0), Ok(0)),
        ("00", Ok(0), Ok(0)),
        ("007", Ok(7), Ok(7)),
        ("1", Ok(1), Ok(1)),
        ("+1", Ok(1), Ok(1)),
        ("1.", Ok(1), Ok(1)),
        ("1.0", Ok(1), Ok(1)),
        (".5", Err(Fractional), Ok(0)),
        ("0.5", Err(Fractional), Ok(0)),
        ("1.5", Err(Fractional), Ok(1)),
        ("2.999", Err(Fractional), Ok(2)),
        ("500m", Err(Fractional), Ok(0)),
        ("1500m", Err(Fractional), Ok(1)),
        ("1000m", Ok(1), Ok(1)),
        ("2000000u", Ok(2), Ok(2)),
        ("3000000000n", Ok(3), Ok(3)),
        ("1n", Err(Fractional), Ok(0)),
        ("1k", Ok(1000), Ok(1000)),
        ("1.5k", Ok(1500), Ok(1500)),
        ("1M", Ok(1_000_000), Ok(1_000_000)),
        ("1G", Ok(1_000_000_000), Ok(1_000_000_000)),
        ("1T", Ok(1_000_000_000_000), Ok(1_000_000_000_000)),
        ("1P", Ok(1_000_000_000_000_000), Ok(1_000_000_000_000_000)),
        ("1E", Ok(1_000_000_000_000_000_000), Ok(1_000_000_000_000_000_000)),
        ("10E", Err(TooLarge), Err(TooLarge)),
        ("1Ki", Ok(1024), Ok(1024)),
        ("1.5Ki", Ok(1536), Ok(1536)),
        ("0.0009765625Ki", Ok(1), Ok(1)),
        ("0.1Ki", Err(Fractional), Ok(102)),
        ("1Mi", Ok(1 << 20), Ok(1 << 20)),
        ("1Gi", Ok(1 << 30), Ok(1 << 30)),
        ("1Ti", Ok(1 << 40), Ok(1 << 40)),
        ("1Pi", Ok(1 << 50), Ok(1 << 50)),
        ("1Ei", Ok(1 << 60), Ok(1 << 60)),
        ("7Ei", Ok(7 << 60), Ok(7 << 60)),
        ("8Ei", Err(TooLarge), Err(TooLarge)),
        ("1e3", Ok(1000), Ok(1000)),
        ("1E3", Ok(1000), Ok(1000)),
        ("1e+3", Ok(1000), Ok(1000)),
        ("1e-3", Err(Fractional), Ok(0)),
        ("1500e-2", Ok(15), Ok(15)),
        ("1e0", Ok(1), Ok(1)),
        ("1e00000000000003", Ok(1000), Ok(1000)),
        ("9007199254740993", Ok(9_007_199_254_740_993), Ok(9_007_199_254_740_993)),
        ("9223372036854775807", Ok(i64::MAX), Ok(i64::MAX)),
        ("9223372036854775807.5", Err(Fractional), Ok(i64::MAX)),
        ("9223372036854775808", Err(TooLarge), Err(TooLarge)),
        ("99999999999999999999999999999999999999999999", Err(TooLarge), Err(TooLarge)),
        ("0e999999999", Ok(0), Ok(0)),
        ("1e18", Ok(1_000_000_000_000_000_000), Ok(1_000_000_000_000_000_000)),
        ("1e19", Err(TooLarge), Err(TooLarge)),
        ("1e999999999", Err(TooLarge), Err(TooLarge)),
        ("1e-999999999", Err(Fractional), Ok(0)),
        ("1e2147483647", Err(TooLarge), Err(TooLarge)),
        ("1e2147483648", Err(Malformed), Err(Malformed)),
        ("1e4294967296", Err(Malformed), Err(Malformed)),
        ("1e99999999999999999999", Err(Malformed), Err(Malformed)),
        ("0.9999999999", Ok(1), Ok(1)),
        ("0.999999999", Err(Fractional), Ok(0)),
        ("1.0000000001", Err(Fractional), Ok(1)),
        ("-1", Err(Negative), Err(Negative)),
        ("-0.5", Err(Negative), Err(Negative)),
        ("-1e999999999", Err(Negative), Err(Negative)),
        ("", Err(Malformed), Err(Malformed)),
        ("+", Err(Malformed), Err(Malformed)),
        ("-", Err(Malformed), Err(Malformed)),
        (".", Err(Malformed), Err(Malformed)),
        ("..", Err(Malformed), Err(Malformed)),
        ("k", Err(Malformed), Err(Malformed)),
        ("1..2", Err(Malformed), Err(Malformed)),
        ("1.2.3", Err(Malformed), Err(Malformed)),
        ("1e", Err(Malformed), Err(Malformed)),
        ("1e+", Err(Malformed), Err(Malformed)),
        ("1e+-3", Err(Malformed), Err(Malformed)),
        ("1e1.5", Err(Malformed), Err(Malformed)),
        ("1e1e1", Err(Malformed), Err(Malformed)),
        ("1K", Err(Malformed), Err(Malformed)),
        ("1ki", Err(Malformed), Err(Malformed)),
        ("1Kii", Err(Malformed), Err(Malformed)),
        ("1 k", Err(Malformed), Err(Malformed)),
        (" 1", Err(Malformed), Err(Malformed)),
        ("1 ", Err(Malformed), Err(Malformed)),
        ("--1", Err(Malformed), Err(Malformed)),
        ("0x10", Err(Malformed), Err(Malformed)),
        ("NaN", Err(Malformed), Err(Malformed)),
        ("inf", Err(Malformed), Err(Malformed)),
        ("１", Err(Malformed), Err(Malformed)),
        ("1µ", Err(Malformed), Err(Malformed)),
        ("-é", Err(Malformed), Err(Malformed)),
        ("é", Err(Malformed), Err(Malformed)),
    ];

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, request, capacity) in ROWS {
            assert_eq!(non_negative_integer(&Quantity((*text).to_owned())), *request, "request {text:?}");
            assert_eq!(floor_integer(text), *capacity, "capacity {text:?}");
        }
    }

    #[test]
    fn quantities_are_compared_at_the_resolution_of_kubernetes() {
        let max = i128::from(i64::MAX) * 1_000_000_000;
        for (text, expected) in [
            ("0", Ok(0)),
            ("1n", Ok(1)),
            ("0.1n", Ok(1)),
            ("100m", Ok(100_000_000)),
            ("0.1", Ok(100_000_000)),
            ("1", Ok(1_000_000_000)),
            ("1000m", Ok(1_000_000_000)),
            ("128Mi", Ok(134_217_728_000_000_000)),
            ("8Ei", Ok(max)),
            ("9223372036854775807.5", Ok(max)),
            ("1e99", Ok(max)),
            ("-1", Err(Negative)),
            ("1K", Err(Malformed)),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
        }
    }

    #[test]
    fn a_megabyte_of_digits_is_read_in_linear_time() {
        let nines = "9".repeat(1 << 20);
        for (text, expected) in [
            (format!("{nines}Ei"), Err(TooLarge)),
            (format!("0.{nines}Ki"), Ok(1024)),
            (format!("{}1", "0".repeat(1 << 20)), Ok(1)),
            (format!("1{}e-1048576", "0".repeat(1 << 20)), Ok(1)),
        ] {
            assert_eq!(floor_integer(&text), expected);
        }
    }
}
