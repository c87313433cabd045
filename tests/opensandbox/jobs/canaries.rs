//! No byte of a Secret anywhere that somebody may look at: the one place that looks at all of it.
//!
//! Every Secret's value in this suite has the word `canary` in it: of variables, API keys, passwords of registries, tokens of tests' own. What the product
//! makes itself, the installation's key and the tokens of its sandboxes' execd, is read where it must be.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use berth_controllers::job::adapter::opensandbox::names::{ENV_EXECD_TOKEN, META_INSTALLATION, META_INSTANCE};
use berth_controllers::job::api::{Job, JobClass, OpenSandboxExecutionParameters};
use berth_opensandbox::Metadata;
use berth_tests::berth::Berth;
use berth_tests::opensandbox::Server;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::world::{RELEASE, World};

/// What is in every value that a test makes.
const CANARY: &[u8] = b"canary";

/// Texts that must not be, each with what it is of.
struct Canaries(Vec<(String, String)>);

impl Canaries {
    fn new() -> Self {
        let mut canaries = Self(Vec::new());
        canaries.add("a test's value", CANARY);
        canaries
    }

    /// As it is, if it is a text, in hexadecimal digits, and in base64, wherever in a longer value it stands.
    fn add(&mut self, of: &str, value: &[u8]) {
        let mut spellings: Vec<String> = std::str::from_utf8(value).into_iter().map(str::to_owned).collect();
        spellings.push(value.iter().map(|byte| format!("{byte:02x}")).collect());
        for before in 0..3 {
            let shifted = [vec![0; before], value.to_vec()].concat();
            // The digits that the value alone decides, six bits each.
            let (first, end) = ((before * 8).div_ceil(6), shifted.len() * 8 / 6);
            for text in [STANDARD_NO_PAD.encode(&shifted), URL_SAFE_NO_PAD.encode(&shifted)] {
                spellings.extend(text.get(first..end).map(str::to_owned));
            }
        }
        // A few digits are in every other text.
        spellings.retain(|spelling| spelling.len() >= 6);
        self.0.extend(spellings.into_iter().map(|spelling| (of.to_owned(), spelling)));
    }

    /// Fails if `text` has one.
    fn are_not_in(&self, what: &str, text: &str) -> Result<()> {
        for (of, spelling) in &self.0 {
            if let Some(at) = text.find(spelling) {
                let start = text.floor_char_boundary(at.saturating_sub(200));
                let end = text.ceil_char_boundary(at + 100);
                anyhow::bail!("{what} has {of}: …{}…", &text[start..end]);
            }
        }
        Ok(())
    }
}

/// What a process has logged since it was last asked about.
pub fn in_new_log(berth: &Berth) -> Result<()> {
    /// How far each file was read.
    static READ: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
    let name = berth.log_file().display().to_string();
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let from = read.entry(name.clone()).or_default();
    let mut file = File::open(berth.log_file())?;
    file.seek(SeekFrom::Start(*from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // Up to the last whole line, so that what is cut in two is seen.
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
    bytes.truncate(end + 1);
    *from += bytes.len() as u64;
    let text = String::from_utf8_lossy(&bytes);
    ensure!(!text.contains("panicked at"), "{name}: a panic");
    Canaries::new().are_not_in(&format!("the log {name}"), &text)
}

impl World {
    /// Looks at everything that is written about Jobs: objects, Events, classes, parameters, metrics, the log, what `berth explain` says, the server's log, and
    /// sandboxes as the server and the engine show them.
    ///
    /// # Errors
    /// A Secret's value is in it, or it can't be looked at.
    pub async fn tells_no_secret(&self, server: &Server, berth: &Berth) -> Result<()> {
        let mut canaries = Canaries::new();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), RELEASE);
        let installation = secrets.get("berth-installation").await?.data.and_then(|mut data| data.remove("key")).context("no key of the installation")?;
        ensure!(installation.0.len() >= 16);
        canaries.add("the installation's key", &installation.0);

        let mut sandboxes = 0;
        for mut container in inspect(server)? {
            // What is not Berth's is the other tests'. Of mode Entrypoint the variables are the process's.
            let labels = container["Config"]["Labels"].clone();
            if labels[META_INSTALLATION].is_null() || !labels[META_INSTANCE].is_null() {
                continue;
            }
            let env = container["Config"]["Env"].as_array_mut().context("no variables")?;
            let prefix = format!("{ENV_EXECD_TOKEN}=");
            let token = env.iter().find_map(|line| line.as_str()?.strip_prefix(&prefix).map(str::to_owned)).context("no token")?;
            // Where it must be it is: that is what makes the rest worth looking at.
            ensure!(token.len() >= 32, "its token");
            env.retain(|line| !line.as_str().is_some_and(|line| line.starts_with(&prefix)));
            canaries.add("the token of a sandbox", token.as_bytes());
            canaries.are_not_in("docker inspect", &container.to_string())?;
            sandboxes += 1;
        }

        let all = ListParams::default();
        let mut jobs = self.jobs.list(&all).await?.items;
        let names: Vec<String> =
            jobs.iter().filter(|job| job.spec.job_class_name.as_ref() == Some(&self.class)).filter_map(|job| job.metadata.name.clone()).collect();
        // Tests compare with values in the text of their tasks.
        jobs.iter_mut().for_each(|job: &mut Job| job.spec.task = Default::default());
        canaries.are_not_in("a Job", &serde_json::to_string(&jobs)?)?;
        let events: Api<Event> = Api::all(self.client.clone());
        canaries.are_not_in("an Event", &serde_json::to_string(&events.list(&all).await?.items)?)?;
        let classes: Api<JobClass> = Api::all(self.client.clone());
        canaries.are_not_in("a JobClass", &serde_json::to_string(&classes.list(&all).await?.items)?)?;
        let parameters: Api<OpenSandboxExecutionParameters> = Api::all(self.client.clone());
        canaries.are_not_in("parameters", &serde_json::to_string(&parameters.list(&all).await?.items)?)?;
        let (code, metrics) = berth.get("/metrics").await?;
        ensure!(code == 200 && metrics.contains("berth_job_"), "/metrics: {code}");
        canaries.are_not_in("/metrics", &metrics)?;
        let listed = self.sandboxes.list(&Metadata::new()).await?;
        let metadata: Vec<_> = listed.iter().map(|sandbox| &sandbox.metadata).collect();
        canaries.are_not_in("metadata of a sandbox", &serde_json::to_string(&metadata)?)?;
        canaries.are_not_in("the server's log", &server.log())?;
        let log = berth.log();
        ensure!(log.contains("TRACE"), "it says less than it can");
        canaries.are_not_in("the log", &log)?;
        for name in &names {
            let args = ["explain", "job", name, "-n", super::world::NAMESPACE, "--kubeconfig"];
            let output = tokio::process::Command::new(berth_tests::berth::binary()?).args(args).arg(&self.kubeconfig).output().await?;
            let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            ensure!(told.contains(name.as_str()), "berth explain job {name}: {told}");
            canaries.are_not_in("berth explain", &told)?;
        }
        println!("no Secret in {} Jobs, {sandboxes} sandboxes, {} bytes of log", jobs.len(), log.len());
        Ok(())
    }
}

/// Every sandbox's container, as the engine shows it.
pub fn inspect(server: &Server) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for id in server.engine.run(&["ps", "--all", "--quiet", "--filter", "name=^sandbox-"])?.split_whitespace() {
        // One that has gone meanwhile is none.
        let output = server.engine.docker(&["inspect", id]).output()?;
        if output.status.success() {
            found.extend(serde_json::from_slice::<Vec<Value>>(&output.stdout)?);
        }
    }
    Ok(found)
}

/// The look sees what it is to see, however it is spelled.
#[test]
fn a_value_is_found_in_every_spelling() {
    let canaries = Canaries::new();
    for text in [
        "x canary-1 y".to_owned(),
        "63616e617279".to_owned(),
        STANDARD.encode("canary"),
        format!("Basic {}", STANDARD.encode("berth:a canary-of-1")),
        STANDARD.encode("abcanary-password"),
    ] {
        assert!(canaries.are_not_in("a text", &text).is_err(), "{text}");
    }
    assert!(canaries.are_not_in("a text", "no bird").is_ok());
    let mut made = Canaries::new();
    made.add("bytes", &[0xff, 0xfe, 1, 2, 3, 4, 5, 6, 7]);
    assert!(made.are_not_in("a text", &STANDARD.encode([0xff, 0xfe, 1, 2, 3, 4, 5, 6, 7])).is_err());
}
