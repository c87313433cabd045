//! Credentials for an image out of dockerconfigjson Secrets, matched as Docker and the kubelet match them.
//!
//! The key of an entry is a registry's host, perhaps with a port and a path: the host and port must be the image's (a `*` stands for any part of a
//! name between two dots), the path must be whole leading parts of its repository, and the longest path wins. A scheme is ignored, so are
//! `/v1/` and `/v2/` at the end. Docker Hub has three names, one of them by default.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use oci_spec::distribution::Reference;
use secrecy::{ExposeSecret as _, SecretString, zeroize::Zeroizing};
use serde::Deserialize;

use crate::types::ImageAuth;

/// Other tools leave the padding away.
const BASE64: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));

/// Why there are no credentials. None of them may be taken for leave to pull without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredentials {
    /// The reference is not of distribution's grammar.
    #[error("the image is no reference of an image")]
    InvalidImage,
    /// A Secret is not JSON of that form. Which one, in the order given.
    #[error("secret {0} is no dockerconfigjson")]
    Unreadable(usize),
    /// No entry is for the image's registry.
    #[error("no entry is for the image's registry")]
    NoMatch,
    /// The entry has no user and password, but an identity token or nothing.
    #[error("the entry for the image's registry has no user and password")]
    Unsupported,
}

#[derive(Deserialize)]
struct Config {
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: Option<SecretString>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<SecretString>,
    #[serde(default)]
    identitytoken: Option<SecretString>,
}

/// The credentials for `image` of the Secrets' `.dockerconfigjson`, in the order that the Job names them: the longest path wins, then the first Secret.
pub fn credentials<'a>(image: &str, secrets: impl IntoIterator<Item = &'a [u8]>) -> Result<ImageAuth, NoCredentials> {
    let image: Reference = image.parse().map_err(|_| NoCredentials::InvalidImage)?;
    let mut best: Option<(usize, Entry)> = None;
    for (number, secret) in secrets.into_iter().enumerate() {
        let config: Config = serde_json::from_slice(secret).map_err(|_| NoCredentials::Unreadable(number))?;
        for (key, entry) in config.auths {
            if let Some(length) = matched(&key, &image)
                && best.as_ref().is_none_or(|(other, _)| length > *other)
            {
                best = Some((length, entry));
            }
        }
    }
    best.ok_or(NoCredentials::NoMatch)?.1.auth().ok_or(NoCredentials::Unsupported)
}

/// How long the path of the key is, if it is for the image.
fn matched(key: &str, image: &Reference) -> Option<usize> {
    let key = key.trim().trim_start_matches("https://").trim_start_matches("http://");
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let path = path.trim_matches('/');
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    let host = host.to_ascii_lowercase();
    let registry = image.registry().to_ascii_lowercase();
    let is_host = if is_hub(&registry) { is_hub(&host) } else { host_matches(&host, &registry) };
    let rest = image.repository().strip_prefix(path)?;
    (is_host && (path.is_empty() || rest.is_empty() || rest.starts_with('/'))).then_some(path.len())
}

fn is_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// Ports are part of it: none is another than 443.
fn host_matches(pattern: &str, host: &str) -> bool {
    let split = |whole: &str| whole.rsplit_once(':').map_or((whole.to_owned(), None), |(name, port)| (name.to_owned(), Some(port.to_owned())));
    let ((pattern, pattern_port), (host, port)) = (split(pattern), split(host));
    let parts = |name: &str| name.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (pattern, host) = (parts(&pattern), parts(&host));
    pattern_port == port && pattern.len() == host.len() && pattern.iter().zip(&host).all(|(pattern, part)| part_matches(pattern, part))
}

fn part_matches(pattern: &str, part: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == part,
        Some((before, after)) => {
            let Some(rest) = part.strip_prefix(before) else { return false };
            (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| part_matches(after, &rest[at..]))
        }
    }
}

impl Entry {
    fn auth(self) -> Option<ImageAuth> {
        if self.identitytoken.is_some_and(|token| !token.expose_secret().is_empty()) {
            return None;
        }
        let pair = self.auth.filter(|auth| !auth.expose_secret().is_empty()).map(|auth| {
            let bytes = Zeroizing::new(BASE64.decode(auth.expose_secret().trim()).ok()?);
            let (username, password) = std::str::from_utf8(&bytes).ok()?.trim_end_matches('\0').split_once(':')?;
            Some((username.to_owned(), SecretString::from(password)))
        });
        // `auth` counts, as Docker has it, though it be wrong.
        let (username, password) = match pair {
            Some(pair) => pair?,
            None => (self.username?, self.password?),
        };
        (!username.is_empty() && !password.expose_secret().is_empty()).then_some(ImageAuth { username, password })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn config(keys: &[&str]) -> Vec<u8> {
        let auths: serde_json::Map<_, _> = keys.iter().map(|key| ((*key).to_owned(), serde_json::json!({"username": key, "password": "canary"}))).collect();
        serde_json::to_vec(&serde_json::json!({ "auths": auths })).unwrap()
    }

    /// Image, keys, the key that is taken.
    const ROWS: &[(&str, &[&str], Option<&str>)] = &[
        ("busybox", &["https://index.docker.io/v1/"], Some("https://index.docker.io/v1/")),
        ("busybox:1", &["docker.io"], Some("docker.io")),
        ("docker.io/team/a", &["registry-1.docker.io"], Some("registry-1.docker.io")),
        ("index.docker.io/team/a", &["docker.io"], Some("docker.io")),
        ("team/a", &["docker.io", "docker.io/team"], Some("docker.io/team")),
        ("busybox", &["docker.io/library"], Some("docker.io/library")),
        ("busybox", &["registry.example.com"], None),
        ("reg.example.com/a", &["docker.io"], None),
        ("reg.example.com:5000/a:1", &["reg.example.com:5000"], Some("reg.example.com:5000")),
        ("reg.example.com:5000/a:1", &["reg.example.com"], None),
        ("reg.example.com/a", &["reg.example.com:5000"], None),
        ("localhost:5000/a", &["localhost:5000"], Some("localhost:5000")),
        (
            "127.0.0.1:5000/a/b@sha256:0123456789012345678901234567890123456789012345678901234567890123",
            &["http://127.0.0.1:5000/v2/"],
            Some("http://127.0.0.1:5000/v2/"),
        ),
        (
            "reg.example.com/team/a",
            &["reg.example.com", "reg.example.com/team", "reg.example.com/team/a", "reg.example.com/te"],
            Some("reg.example.com/team/a"),
        ),
        ("reg.example.com/teammate/a", &["reg.example.com/team"], None),
        ("reg.example.com/teammate/a", &["reg.example.com/team", "reg.example.com"], Some("reg.example.com")),
        ("Reg.Example.com/a", &["reg.example.COM"], Some("reg.example.COM")),
        ("reg.example.com/a", &["*.example.com"], Some("*.example.com")),
        ("a.reg.example.com/a", &["*.example.com"], None),
        ("eu-1.reg.example.com/a", &["eu-*.reg.*.com/a"], Some("eu-*.reg.*.com/a")),
        ("reg.example.com/a", &[], None),
    ];

    #[test]
    fn an_entry_is_for_its_host_port_and_path_and_the_longest_wins() {
        for (image, keys, taken) in ROWS {
            let found = credentials(image, [config(keys).as_slice()]);
            match taken {
                Some(key) => assert_eq!(found.unwrap().username, *key, "{image}"),
                None => assert_eq!(found.unwrap_err(), NoCredentials::NoMatch, "{image}"),
            }
        }
    }

    #[test]
    fn the_first_secret_wins_among_equals_and_one_that_cannot_be_read_is_no_match() {
        let (a, b) = (br#"{"auths":{"r.io":{"username":"a","password":"x"}}}"#, br#"{"auths":{"r.io":{"username":"b","password":"x"}}}"#);
        assert_eq!(credentials("r.io/i", [a.as_slice(), b]).unwrap().username, "a");
        for text in ["", "{}", "[]", r#"{"auths":{"r.io":7}}"#, r#"{"auths":null}"#] {
            assert_eq!(credentials("r.io/i", [a.as_slice(), text.as_bytes()]).unwrap_err(), NoCredentials::Unreadable(1), "{text}");
        }
        assert_eq!(credentials("R/ /", [a.as_slice()]).unwrap_err(), NoCredentials::InvalidImage);
    }

    #[test]
    fn user_and_password_are_read_as_docker_does_or_it_is_said_that_they_are_not_there() {
        let read = |entry: &str| credentials("r.io/i", [format!(r#"{{"auths":{{"r.io":{entry}}}}}"#).as_bytes()]);
        let pair = |entry: &str| read(entry).map(|auth| (auth.username, auth.password.expose_secret().to_owned()));
        assert_eq!(pair(r#"{"auth":"dTpwOnc="}"#).unwrap(), ("u".to_owned(), "p:w".to_owned()), "the first colon");
        assert_eq!(pair(r#"{"auth":"dTpwOnc"}"#).unwrap().1, "p:w", "without padding");
        assert_eq!(pair(r#"{"auth":"dTpwOnc=","username":"x","password":"y"}"#).unwrap().0, "u", "auth counts");
        assert_eq!(pair(r#"{"auth":"","username":"x","password":"y"}"#).unwrap().0, "x");
        for entry in [r#"{}"#, r#"{"auth":"%%"}"#, r#"{"auth":"dQ=="}"#, r#"{"auth":"dTo="}"#, r#"{"auth":"dTpw","identitytoken":"t"}"#, r#"{"username":"x"}"#]
        {
            assert_eq!(read(entry).unwrap_err(), NoCredentials::Unsupported, "{entry}");
        }
        assert!(!format!("{:?}", read(r#"{"username":"x","password":"canary"}"#).unwrap()).contains("canary"));
    }
}
