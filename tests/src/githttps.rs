//! Git over https as a host serves it: `git http-backend`, which comes with git, behind TLS with a certificate of its own authority.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_util::sync::CancellationToken;

use crate::process::{Scratch, free_port};

/// A running host; dropping it ends it. It lives on the runtime it was started on.
pub struct GitHttps {
    port: u16,
    certificate: PathBuf,
    end: CancellationToken,
}

impl GitHttps {
    /// Serves every repository below `folder`.
    pub async fn start(folder: &Path, scratch: &Scratch) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()])?;
        let certificate = scratch.write("git-https.crt", cert.pem())?;
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![cert.der().clone()], key.into())?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let port = free_port()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(accept(listener, acceptor, folder.into(), end.clone())));
        Ok(Self { port, certificate, end })
    }

    /// The URL of a repository, by its path below the folder.
    #[must_use]
    pub fn url(&self, repository: &str) -> String {
        format!("https://localhost:{}/{repository}", self.port)
    }

    /// PEM of whom a client has to trust; git takes it from `GIT_SSL_CAINFO`.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }
}

impl Drop for GitHttps {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, folder: Arc<Path>, end: CancellationToken) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, folder) = (acceptor.clone(), Arc::clone(&folder));
        tokio::spawn(end.clone().run_until_cancelled_owned(async move {
            // A client that trusts nobody breaks off here.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper::service::service_fn(move |request| {
                let folder = Arc::clone(&folder);
                async move { Ok::<_, Infallible>(answer(&folder, request).await.unwrap_or_else(|error| failed(&error))) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await; // the client may leave at any time
        }));
    }
}

fn failed(error: &anyhow::Error) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{error:#}"))));
    *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// One request as CGI (RFC 3875) has it.
async fn answer(folder: &Path, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut command = tokio::process::Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", folder).env("GIT_HTTP_EXPORT_ALL", "1");
    command
        .env("REQUEST_METHOD", request.method().as_str())
        .env("PATH_INFO", request.uri().path())
        .env("QUERY_STRING", request.uri().query().unwrap_or_default());
    command.env("CONTENT_TYPE", header("content-type")).env("HTTP_CONTENT_ENCODING", header("content-encoding")).env("GIT_PROTOCOL", header("git-protocol"));
    let body = request.into_body().collect().await?.to_bytes();
    command.env("CONTENT_LENGTH", body.len().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().context("apt-get install git")?;
    let mut input = child.stdin.take().context("no stdin")?;
    let write = async move {
        let _ = input.write_all(&body).await; // it may have read enough
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), write);
    let output = output?;
    ensure!(output.status.success(), "git http-backend: {}", output.status);

    let end = output.stdout.windows(4).position(|four| four == b"\r\n\r\n").context("no end of the headers")?;
    let mut response = Response::builder();
    for line in std::str::from_utf8(&output.stdout[..end])?.lines() {
        let (name, value) = line.split_once(": ").context("no header")?;
        response = match name {
            "Status" => response.status(value.split(' ').next().unwrap_or_default()),
            _ => response.header(name, value),
        };
    }
    Ok(response.header(header::CONNECTION, "close").body(Full::new(Bytes::copy_from_slice(&output.stdout[end + 4..])))?)
}
