//! A server's TLS, in front of it: certificates of an authority of the test's own, which may be changed while it is up.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Whoever trusts it trusts what it signed.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// One of that common name.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its certificate, PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names with its key, to be shown by a server.
    pub fn signed(&self, names: &[&str]) -> Result<TlsAcceptor> {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, format!("of {names:?}"));
        let key = KeyPair::generate()?;
        let chain = vec![params.signed_by(&key, &self.0)?.der().clone()];
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Takes TLS and passes on what is within; dropping it ends it.
pub struct TlsFront {
    port: u16,
    shown: Arc<Mutex<TlsAcceptor>>,
    _stop: DropGuard,
}

impl TlsFront {
    /// Starts one in front of `HOST:PORT`, which shows that certificate.
    pub async fn start(upstream: &str, certificate: TlsAcceptor) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (port, shown, stop) = (listener.local_addr()?.port(), Arc::new(Mutex::new(certificate)), CancellationToken::new());
        let (upstream, current, stopped) = (upstream.to_owned(), Arc::clone(&shown), stop.clone());
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let acceptor = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let upstream = upstream.clone();
                tokio::spawn(stopped.clone().run_until_cancelled_owned(async move {
                    // Who does not trust it breaks off here; either side may leave at any time.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    if let Ok(mut server) = TcpStream::connect(upstream).await {
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
                    }
                }));
            }
        });
        Ok(Self { port, shown, _stop: stop.drop_guard() })
    }

    /// Shows another certificate to whoever comes from now on.
    pub fn show(&self, certificate: TlsAcceptor) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = certificate;
    }

    /// The base URL of the server's API through it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}/v1", self.port)
    }
}
