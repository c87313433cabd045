//! The real helm, built by tests/helm/build.sh, and what it renders.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::controlplane::checkout;
use crate::process::Scratch;

/// Name of the release in every test.
pub const RELEASE: &str = "berth";

/// A folder for helm's own files, with the helm in it.
pub struct Helm {
    scratch: Scratch,
}

impl Helm {
    /// A folder of its own; the helm is built when it is first run.
    pub fn new() -> Result<Self> {
        Ok(Self { scratch: Scratch::new("helm")? })
    }

    /// Runs helm.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        let home = self.scratch.path();
        let mut command = Command::new(folder()?.join("helm"));
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"] {
            command.env(name, home);
        }
        Ok(command.args(args).stdin(Stdio::null()).output()?)
    }

    /// A file of values.
    pub fn values(&self, name: &str, values: &Value) -> Result<PathBuf> {
        self.scratch.write(&format!("{name}.yaml"), values.to_string())
    }

    /// Any other file beside them.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        self.scratch.write(name, text)
    }

    /// The objects that the chart renders with `values` for `namespace`; helm's complaint if it refuses.
    pub fn template(&self, name: &str, namespace: &str, values: &Value) -> Result<Result<Vec<Value>, String>> {
        let file = self.values(name, values)?;
        let output = self.run(&["template", RELEASE, &path(&chart()), "--namespace", namespace, "--values", &path(&file)])?;
        if !output.status.success() {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        documents(&String::from_utf8(output.stdout)?).map(Ok)
    }

    /// The same, where it must succeed.
    pub fn rendered(&self, name: &str, namespace: &str, values: &Value) -> Result<Vec<Value>> {
        self.template(name, namespace, values)?.map_err(|error| anyhow::anyhow!("helm template refuses {name}: {error}"))
    }
}

/// deploy/chart/berth.
#[must_use]
pub fn chart() -> PathBuf {
    checkout().join("deploy/chart/berth")
}

/// A path as an argument.
#[must_use]
pub fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The documents of a YAML file that hold something.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let text = format!("\n{text}");
    let filled = |document: &&str| document.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#') && line != "---");
    text.split("\n---\n").filter(filled).map(|document| serde_saphyr::from_str(document).with_context(|| format!("no YAML:\n{document}"))).collect()
}

/// The one object of that kind whose name is `name`.
#[must_use]
pub fn object<'o>(objects: &'o [Value], kind: &str, name: &str) -> Option<&'o Value> {
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

/// The folder that holds the helm.
pub fn folder() -> Result<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = FOLDER.get() {
        return Ok(path);
    }
    let folder = last_line_of(&checkout().join("tests/helm/build.sh"))?;
    Ok(FOLDER.get_or_init(|| folder))
}

/// Runs one of the suites' build scripts; the last line of its stdout is a folder.
pub fn last_line_of(script: &Path) -> Result<PathBuf> {
    let output = Command::new(script).stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(output.status.success(), "{} failed; its message is above", script.display());
    let text = String::from_utf8(output.stdout)?;
    Ok(PathBuf::from(text.lines().last().context("it named no folder")?))
}
