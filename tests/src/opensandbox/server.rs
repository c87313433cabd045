//! The server: from PyPI in a venv that the cache keeps, with an engine of its own.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use berth_opensandbox::{ApiKeys, Client, ServerUrl, Settings};
use secrecy::SecretString;

use super::images;
use crate::controlplane::checkout;
use crate::engine::Engine;
use crate::poll::{PATIENCE, until};
use crate::process::{Guarded, Scratch, free_port, tail};

/// Its API key.
pub const API_KEY: &str = "canary-api-key";

/// The python of the venv that has the server and the vendor's SDK.
pub fn python() -> Result<PathBuf> {
    let output = Command::new(checkout().join("tests/opensandbox/venv.sh")).output()?;
    ensure!(output.status.success(), "venv.sh: {}", String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()).join("bin/python"))
}

/// A running server.
pub struct Server {
    process: Option<Guarded>,
    port: u16,
    scratch: Scratch,
    /// Its engine.
    pub engine: Engine,
}

impl Server {
    /// Starts an engine with the images and a server with it; needs root.
    pub async fn start() -> Result<Self> {
        let engine = Engine::start_with_network().await?;
        images::import(&engine)?;
        let scratch = Scratch::new("opensandbox")?;
        let port = free_port()?;
        scratch.write("config.toml", config(port, &scratch))?;
        let mut server = Self { process: None, port, scratch, engine };
        server.restart().await?;
        Ok(server)
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it anew with what the one before left.
    pub async fn restart(&mut self) -> Result<()> {
        self.process = None;
        let mut command = Command::new(python()?.with_file_name("opensandbox-server"));
        command.arg("--config").arg(self.scratch.path().join("config.toml"));
        command.env("DOCKER_HOST", self.engine.host()).env("HOME", self.scratch.path()).current_dir(self.scratch.path());
        self.process = Some(Guarded::spawn("opensandbox-server", command, &self.scratch.path().join("server.log"))?);
        let client = self.client()?;
        let up = until("opensandbox-server to answer", PATIENCE, || async { Ok(Some(client.health().await?)) }).await;
        up.with_context(|| format!("the end of its log:\n{}", tail(&self.log(), 20)))
    }

    /// Everything that it has written.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.as_ref().map_or_else(String::new, Guarded::log)
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn domain(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The base URL of its API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.domain())
    }

    /// A client with the right key.
    pub fn client(&self) -> Result<Client> {
        self.client_with(Arc::new(SecretString::from(API_KEY)), &Settings::default())
    }

    /// A client with such keys.
    pub fn client_with(&self, keys: Arc<dyn ApiKeys>, settings: &Settings) -> Result<Client> {
        Ok(Client::new(ServerUrl::parse(&self.url())?, keys, settings)?)
    }
}

fn config(port: u16, scratch: &Scratch) -> String {
    format!(
        r#"# The server of the suite.
[server]
host = "127.0.0.1"
port = {port}
api_key = "{API_KEY}"
max_sandbox_timeout_seconds = 172800

[log]
level = "INFO"

[runtime]
type = "docker"
execd_image = "{execd}"

[store]
type = "sqlite"
path = "{store}"

[docker]
network_mode = "bridge"
publish_host = "127.0.0.1"
pids_limit = 512

[ingress]
mode = "direct"
"#,
        execd = images::EXECD,
        store = scratch.path().join("store.db").display(),
    )
}
