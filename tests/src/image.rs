//! Container images of one layer, built by tar alone, without an engine and without a registry.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::controlplane::checkout;
use crate::helm::path;
use crate::process::Scratch;

/// An image: its configuration and its one layer, as they lie in a registry.
#[derive(Clone, Debug)]
pub struct Image {
    /// The image's configuration, JSON.
    pub config: Vec<u8>,
    /// The layer, an uncompressed tar.
    pub layer: Vec<u8>,
}

impl Image {
    /// What keeps a Pod's namespaces.
    pub fn pause() -> Result<Self> {
        let scratch = Scratch::new("pause")?;
        let root = root(&scratch)?;
        let output = Command::new("gcc").args(["-O2", "-static", "-s", "-o"]).arg(root.join("pause")).arg(checkout().join("tests/node/pause.c")).output()?;
        ensure!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
        Self::of(&scratch, &["/pause"])
    }

    /// A shell and its tools (busybox), as small distributions have them. `mark` makes its layer differ from every other's.
    pub fn shell(mark: &str) -> Result<Self> {
        let scratch = Scratch::new("shell")?;
        let root = root(&scratch)?;
        for folder in ["bin", "tmp", "etc", "proc", "sys", "dev", "root", "var", "run"] {
            std::fs::create_dir(root.join(folder))?;
        }
        std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
        std::fs::write(root.join("etc/mark"), mark)?;
        std::fs::copy("/bin/busybox", root.join("bin/busybox")).context("apt-get install busybox-static")?;
        let list = Command::new("/bin/busybox").arg("--list").output()?;
        for applet in String::from_utf8(list.stdout)?.lines().filter(|applet| *applet != "busybox") {
            symlink("/bin/busybox", root.join("bin").join(applet))?;
        }
        Self::of(&scratch, &[])
    }

    fn of(scratch: &Scratch, entrypoint: &[&str]) -> Result<Self> {
        let layer = tar(&scratch.path().join("root"), &scratch.path().join("layer.tar"))?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Entrypoint": entrypoint},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        Ok(Self { config: config.to_string().into_bytes(), layer })
    }

    /// Writes it as a docker-archive that names it `reference`.
    pub fn archive(&self, reference: &str, scratch: &Scratch) -> Result<PathBuf> {
        let folder = tempfile::tempdir_in(scratch.path())?;
        std::fs::write(folder.path().join("config.json"), &self.config)?;
        std::fs::write(folder.path().join("layer.tar"), &self.layer)?;
        let manifest = json!([{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]);
        std::fs::write(folder.path().join("manifest.json"), manifest.to_string())?;
        let file = folder.path().with_extension("tar");
        tar(folder.path(), &file)?;
        Ok(file)
    }
}

/// `sha256:` and the digest of these bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn root(scratch: &Scratch) -> Result<PathBuf> {
    let root = scratch.path().join("root");
    std::fs::create_dir(&root)?;
    Ok(root)
}

/// Everything below `folder`, of root, as a file.
fn tar(folder: &Path, file: &Path) -> Result<Vec<u8>> {
    let names: Vec<_> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    let output = Command::new("tar").args(["--owner=0", "--group=0", "-C", &path(folder), "-cf", &path(file)]).args(names).output().context("no tar")?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    Ok(std::fs::read(file)?)
}
