//! What a kubelet serves of logs: `GET /containerLogs/NAMESPACE/POD/CONTAINER` over TLS, in two pieces with a pause between them; 400 until the
//! container has begun. The API server finds it by the address and the port in the Node's status.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Serves until it is dropped.
pub struct Logs {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    begun: Arc<AtomicBool>,
    _end: DropGuard,
}

impl Logs {
    /// Starts it; `text` is what every container has written, in two pieces.
    pub async fn start(text: [&'static str; 2]) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![cert.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let begun = Arc::<AtomicBool>::default();
        let (end, has_begun) = (CancellationToken::new(), begun.clone());
        tokio::spawn(end.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A connection that breaks is its own matter.
                tokio::spawn(serve(acceptor.clone(), stream, text, has_begun.clone()));
            }
        }));
        Ok(Self { port, begun, _end: end.drop_guard() })
    }

    /// From now on the containers have begun.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, text: [&str; 2], begun: Arc<AtomicBool>) -> Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let line = String::from_utf8(head)?;
    let path = line.split(' ').nth(1).context("a path")?;
    let known = path.starts_with("/containerLogs/") && path.contains("/main");
    let (status, text) = match (known, begun.load(Ordering::SeqCst)) {
        (true, true) => ("200 OK", text),
        (true, false) => ("400 Bad Request", ["container \"main\" is waiting to start: ", "ContainerCreating"]),
        (false, _) => ("404 Not Found", ["", ""]),
    };
    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n{}", text[0]).as_bytes()).await?;
    stream.flush().await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    stream.write_all(text[1].as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}
