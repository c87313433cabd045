//! What the tests share: one server, and sandboxes of each test's own, which it finds and removes by a label.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use berth_opensandbox::{Access, Client, Command, CreateSandbox, Execd, Image, Metadata, Outcome, Sandbox};
use berth_tests::opensandbox::{BUSYBOX, Server};
use berth_tests::poll::{PATIENCE, until};
use secrecy::SecretString;
use tokio::sync::OnceCell;

/// The token of every sandbox's execd.
pub const TOKEN: &str = "canary-execd-token";
const LABEL: &str = "berth.test/of";

/// The suite's server.
pub async fn server() -> Result<&'static Server> {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_try_init(Server::start).await
}

/// One test's part of it.
pub struct World {
    /// The server.
    pub server: &'static Server,
    /// Its client.
    pub client: Client,
    label: String,
}

impl World {
    pub async fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = server().await?;
        Ok(Self { server, client: server.client()?, label: format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)) })
    }

    /// What all of this test's sandboxes have.
    pub fn metadata(&self) -> Metadata {
        Metadata::from([(LABEL.to_owned(), self.label.clone())])
    }

    /// A request for an idle sandbox.
    pub fn idle(&self) -> CreateSandbox {
        CreateSandbox {
            image: Image { uri: BUSYBOX.to_owned(), auth: None },
            entrypoint: ["tail", "-f", "/dev/null"].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("EXECD_ACCESS_TOKEN".to_owned(), SecretString::from(TOKEN))]),
            resource_limits: BTreeMap::from([("cpu", "500m"), ("memory", "64Mi")].map(|(key, value)| (key.to_owned(), value.to_owned()))),
            resource_requests: BTreeMap::new(),
            timeout: Some(600),
            metadata: self.metadata(),
            platform: None,
        }
    }

    /// An idle sandbox whose execd answers.
    pub async fn sandbox(&self) -> Result<(Sandbox, Execd)> {
        let sandbox = self.client.create(&self.idle()).await?;
        let execd = self.client.execd(&sandbox.id, Access::Direct, Some(TOKEN.into())).await?;
        until("execd to answer", PATIENCE, || async { Ok(Some(execd.ping().await?)) }).await?;
        Ok((sandbox, execd))
    }

    /// Removes them all and sees that none is left.
    pub async fn end(self) -> Result<()> {
        for sandbox in self.client.list(&self.metadata()).await? {
            self.client.delete(&sandbox.id).await?;
        }
        let left = self.client.list(&self.metadata()).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    }
}

/// A command.
pub fn command(text: &str) -> Command {
    Command { text: text.to_owned(), ..Command::default() }
}

/// Runs it; its stdout.
pub async fn run(execd: &Execd, text: &str) -> Result<String> {
    let output = execd.run(&command(text), 1 << 20).await?;
    ensure!(output.outcome == Outcome::Exited(0), "{text}: {:?}", output.outcome);
    Ok(output.stdout)
}

/// Whether execd is the stand-in, which can be told what to do wrong.
pub fn has_standin() -> bool {
    std::env::var_os("EXECD_BINARY").is_none()
}

/// Tells the stand-in, from within the sandbox.
pub async fn tell(execd: &Execd, setting: &serde_json::Value) -> Result<()> {
    let headers = format!("--header 'X-EXECD-ACCESS-TOKEN: {TOKEN}' --header 'Content-Type: application/json'");
    run(execd, &format!("wget -q -O - {headers} --post-data '{setting}' http://127.0.0.1:44772/standin")).await.map(drop)
}
