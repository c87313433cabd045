//! Values that nobody may print: API keys that may be rotated, the token of a sandbox's execd, and how a request carries them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ring::hmac;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Serialize, Serializer};
use tokio::sync::watch;

/// Where the API key of a server comes from. It is asked at each call, so that a rotated key counts at once.
pub trait ApiKeys: Send + Sync + 'static {
    /// The key as it is now; None if there is none.
    fn current(&self) -> Option<SecretString>;
}

/// A key that stays.
impl ApiKeys for SecretString {
    fn current(&self) -> Option<SecretString> {
        Some(self.clone())
    }
}

/// A key that somebody else keeps up to date.
impl ApiKeys for watch::Receiver<Option<SecretString>> {
    fn current(&self) -> Option<SecretString> {
        self.borrow().clone()
    }
}

/// The token for the execd of one sandbox: HMAC-SHA-256 of `identity` by the installation's `key`, as 64 hexadecimal digits.
///
/// It need not be stored to survive a restart, and knowing one tells nothing of another.
#[must_use]
pub fn access_token(key: &[u8], identity: &str) -> SecretString {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, identity.as_bytes());
    let hex = tag.as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    hex.into()
}

pub(crate) fn expose<S: Serializer>(value: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    value.expose_secret().serialize(serializer)
}

pub(crate) fn expose_map<S: Serializer>(map: &BTreeMap<String, SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().map(|(name, value)| (name, value.expose_secret())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_same_after_a_restart_and_another_for_another() {
        let token = |key: &[u8], of: &str| access_token(key, of).expose_secret().to_owned();
        // RFC 4231, test case 2.
        assert_eq!(token(b"Jefe", "what do ya want for nothing?"), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_ne!(token(b"key", "a"), token(b"key", "b"));
        assert_ne!(token(b"key", "a"), token(b"kez", "a"));
    }
}
