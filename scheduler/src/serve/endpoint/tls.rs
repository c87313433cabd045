//! The certificate of the endpoints: from files that are looked at again and again, or made in memory.
//!
//! ```text
//! files ─► changed, and the same at two looks in a row ─┬─ certificate and key that belong together ─► the next handshake has them
//!                                                       └─ anything else ─► the last good one stays: log, berth_tls_certificate_valid 0
//! ```
//! Looked at, not watched: a mounted Secret changes by a symbolic link, and certificate and key of a folder one after the other.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use ring::digest;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::{TLS12, TLS13};
use tokio::sync::watch;

/// Between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where a certificate and its key are, PEM both.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, intermediates after it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What is served by, now and later; see the module.
pub struct Tls {
    in_use: watch::Sender<Arc<ServerConfig>>,
    files: Option<Watched>,
}

struct Watched {
    files: Files,
    valid: IntGauge,
    /// What the process was started with.
    first: Print,
}

/// Tells one state of the files from another, without keeping the key.
type Print = Vec<u8>;

/// The contents of both files.
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Pair {
    async fn read(files: &Files) -> Result<Self, String> {
        let read = async |path: &Path| tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()));
        Ok(Self { certificate: read(&files.certificate).await?, key: read(&files.key).await? })
    }

    fn print(&self) -> Print {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.certificate.len().to_be_bytes());
        context.update(&self.certificate);
        context.update(&self.key);
        context.finish().as_ref().to_vec()
    }

    /// No message quotes what the files hold.
    fn config(&self, files: &Files) -> Result<Arc<ServerConfig>, String> {
        let at = |path: &Path, what: &str| format!("{}: {what}", path.display());
        let chain = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| at(&files.certificate, "holds no certificate in PEM"))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| at(&files.key, "holds no private key in PEM"))?;
        config(chain, key).map_err(|error| format!("{} and {}: {error}", files.certificate.display(), files.key.display()))
    }
}

impl Tls {
    /// Serves by `files`; `valid` tells whether they can be used as they are now.
    ///
    /// # Errors
    /// What keeps them from being used.
    pub async fn from_files(files: Files, valid: IntGauge) -> Result<Self, String> {
        let pair = Pair::read(&files).await?;
        let in_use = watch::Sender::new(pair.config(&files)?);
        valid.set(1);
        Ok(Self { in_use, files: Some(Watched { first: pair.print(), files, valid }) })
    }

    /// Serves by a certificate that nobody else knows, as kube-scheduler does: what is sent can't be read on the way, but a client
    /// can't tell who answers.
    ///
    /// # Errors
    /// None is to be expected.
    pub fn self_signed(listening: IpAddr) -> anyhow::Result<Self> {
        let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
        let names = host.into_iter().chain(["localhost".to_owned(), "127.0.0.1".to_owned(), listening.to_string()]);
        let made = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>())?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self { in_use: watch::Sender::new(config(vec![made.cert.der().clone()], key.into())?), files: None })
    }

    /// What the next handshake is made with.
    pub fn in_use(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.in_use.subscribe()
    }

    /// Follows the files, for ever.
    pub async fn follow(&self) {
        let Some(Watched { files, valid, first }) = &self.files else { return std::future::pending().await };
        let mut judged = Ok(first.clone());
        let mut before = judged.clone();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let pair = Pair::read(files).await;
            let print = pair.as_ref().map(Pair::print).map_err(Clone::clone);
            let settled = before == print;
            before = print.clone();
            if !settled || judged == print {
                continue;
            }
            judged = print;
            match pair.and_then(|pair| pair.config(files)) {
                Ok(config) => {
                    self.in_use.send_replace(config);
                    valid.set(1);
                    tracing::info!(certificate = %files.certificate.display(), "certificate of the endpoints read again; it is in use");
                }
                Err(error) => {
                    valid.set(0);
                    tracing::error!(error, "the certificate of the endpoints can't be used; the last good one is served");
                }
            }
        }
    }
}

/// TLS 1.2 or 1.3, HTTP/1.1. A configuration of its own for each certificate, so that no session of an older one is resumed.
fn config(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13, &TLS12])?;
    let mut config = versions.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    const SECRET: &str = "TUlJRXZRSUJBREFOQmdrcWhraUc5dzBCQVFFRkFBU0NCS2N3";

    fn made(names: &[&str]) -> (String, String) {
        let made = rcgen::generate_simple_self_signed(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_refused_by_file_and_never_quoted() {
        let (folder, (certificate, key)) = (tempfile::tempdir().unwrap(), made(&["a"]));
        let (other, _) = made(&["b"]);
        let files = Files { certificate: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
        let broken = format!("-----BEGIN PRIVATE KEY {SECRET}\n{SECRET}\n-----END PRIVATE KEY-----\n");
        let no_key = format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n");
        let rows = [
            (certificate.as_str(), key.as_str(), ""),
            (&certificate, "", "tls.key: holds no private key in PEM"),
            (&certificate, &broken, "tls.key: holds no private key in PEM"),
            (&certificate, &no_key, "tls.key: "),
            (&certificate, &certificate, "tls.key: holds no private key in PEM"),
            ("", &key, "tls.crt: holds no certificate in PEM"),
            (&key, &key, "tls.crt: holds no certificate in PEM"),
            (&format!("-----BEGIN CERTIFICATE-----\n{SECRET}\n-----END CERTIFICATE-----\n"), &key, "tls.crt and "),
            (&other, &key, "tls.crt and "),
        ];
        for (certificate, key, wanted) in rows {
            std::fs::write(&files.certificate, certificate).unwrap();
            std::fs::write(&files.key, key).unwrap();
            let told = Tls::from_files(files.clone(), IntGauge::new("g", "g").unwrap()).await.err().unwrap_or_default();
            assert!(told.contains(wanted) && told.is_empty() == wanted.is_empty(), "{told:?}, not {wanted:?}");
            assert!(!told.contains(SECRET), "{told}");
        }
        std::fs::remove_file(&files.key).unwrap();
        let told = Tls::from_files(files, IntGauge::new("g", "g").unwrap()).await.err().unwrap();
        assert!(told.contains("tls.key: No such file"), "{told}");
    }

    #[test]
    fn a_self_signed_certificate_can_be_served() {
        for listening in ["127.0.0.1", "0.0.0.0", "::"] {
            Tls::self_signed(listening.parse().unwrap()).unwrap();
        }
    }
}
