//! The file `$KRUNTIME_OUTPUTS`: `KEY=VALUE` lines with limits (reference kruntimes §7.3).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Keys at most.
const KEYS_MAX: usize = 64;
/// Bytes of a key.
const KEY_BYTES_MAX: usize = 128;
/// Bytes of a value.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// Bytes of all keys and values.
const TOTAL_BYTES_MAX: usize = 64 << 10;
/// Bytes of the file, comments and overwritten keys included.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why outputs can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// More than the API allows.
    #[error("outputs: {0}")]
    TooLarge(String),
    /// Not what the format says.
    #[error("outputs: {0}")]
    Invalid(String),
    /// It can't be read.
    #[error("outputs: {0}")]
    Unreadable(#[from] io::Error),
}

impl OutputsError {
    /// Whether a limit was exceeded.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge(_))
    }
}

/// Reads the file; absent is empty.
///
/// Whoever ran could put anything there, and we may read what it may not: so no link is followed, nothing is waited for,
/// and a file that has another name elsewhere is refused.
///
/// # Errors
/// See [`OutputsError`].
pub fn read(path: &Path) -> Result<BTreeMap<String, String>, OutputsError> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(OutputsError::Invalid("the file is a symbolic link".to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    parse(&text_of(file)?)
}

fn text_of(file: File) -> Result<String, OutputsError> {
    let about = file.metadata()?;
    if !about.is_file() || about.nlink() > 1 {
        return Err(OutputsError::Invalid("not a regular file of one name".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(OutputsError::TooLarge(format!("the file is larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| OutputsError::Invalid("not UTF-8".to_owned()))
}

/// Reads the text: empty lines and `#` comments are left out, keys and values trimmed, the last of a key wins.
fn parse(text: &str) -> Result<BTreeMap<String, String>, OutputsError> {
    let mut outputs = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = number + 1;
        let Some((key, value)) = line.split_once('=') else { return Err(OutputsError::Invalid(format!("line {at} is not KEY=VALUE"))) };
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(OutputsError::Invalid(format!("line {at} has no key")));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(OutputsError::TooLarge(format!("the key in line {at} is longer than {KEY_BYTES_MAX} bytes")));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(OutputsError::TooLarge(format!("the value of {key:?} is longer than {VALUE_BYTES_MAX} bytes")));
        }
        outputs.insert(key.to_owned(), value.to_owned());
        if outputs.len() > KEYS_MAX {
            return Err(OutputsError::TooLarge(format!("more than {KEYS_MAX} keys")));
        }
    }
    let total: usize = outputs.iter().map(|(key, value)| key.len() + value.len()).sum();
    if total > TOTAL_BYTES_MAX {
        return Err(OutputsError::TooLarge(format!("{total} bytes, more than {TOTAL_BYTES_MAX}")));
    }
    Ok(outputs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn lines_become_pairs() {
        let outputs = parse("a=1\n# c\n\n  b = x = y \r\na=2\nempty=\n").unwrap();
        let expected = [("a", "2"), ("b", "x = y"), ("empty", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(outputs, BTreeMap::from(expected));
    }

    #[test]
    fn limits_are_inclusive() {
        let keys = |n: usize| (0..n).map(|n| format!("k{n}=v\n")).collect::<String>();
        let values =
            |n: usize, last: usize| (0..n).map(|n| format!("{n:04}={}\n", "v".repeat(if n == 7 { last } else { VALUE_BYTES_MAX - 4 }))).collect::<String>();
        for (text, fits) in [
            (keys(64), true),
            (keys(65), false),
            (format!("{}=v", "k".repeat(128)), true),
            (format!("{}=v", "k".repeat(129)), false),
            (format!("k={}", "v".repeat(8_192)), true),
            (format!("k={}", "v".repeat(8_193)), false),
            (values(8, VALUE_BYTES_MAX - 4), true),
            (values(8, VALUE_BYTES_MAX - 3), false),
        ] {
            match parse(&text) {
                Ok(_) => assert!(fits, "{} bytes", text.len()),
                Err(error) => assert!(!fits && error.is_too_large(), "{error}"),
            }
        }
        for text in ["novalue", "=x", "a=1\nb"] {
            assert!(!parse(text).unwrap_err().is_too_large());
        }
    }

    #[test]
    fn tricks_with_the_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(read(&at("absent")).unwrap().is_empty());
        std::fs::write(at("secret"), "token=x").unwrap();
        std::os::unix::fs::symlink(at("secret"), at("link")).unwrap();
        std::fs::hard_link(at("secret"), at("hard")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        std::fs::write(at("binary"), [0xFF, b'=', 1]).unwrap();
        for name in ["link", "hard", "folder", "fifo", "binary"] {
            assert!(!read(&at(name)).unwrap_err().is_too_large(), "{name}");
        }
        std::fs::write(at("huge"), vec![b'#'; 2 << 20]).unwrap();
        assert!(read(&at("huge")).unwrap_err().is_too_large());
    }
}
