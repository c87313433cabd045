//! Images, made on the spot out of busybox-static: one with execd, from which the server takes it, and one to run.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::controlplane::checkout;
use crate::engine::Engine;
use crate::process::Scratch;

/// The image that the server takes execd from.
pub const EXECD: &str = "execd:test";
/// An image with a shell and the usual tools.
pub const BUSYBOX: &str = "team/busybox:test";

/// The stand-in of execd's image for the script that is process 1 of a sandbox: execd beside it, and it ends as the entrypoint does.
const BOOTSTRAP: &str = "#!/bin/sh\n# A stand-in for OpenSandbox's bootstrap.sh.\ntrap 'exit 0' TERM\n/opt/opensandbox/execd &\n\"$@\" &\nwait $!\n";

/// Imports both.
pub fn import(engine: &Engine) -> Result<()> {
    let scratch = Scratch::new("images")?;
    let plain = root(&scratch.path().join("plain"))?;
    load(engine, &scratch, &plain, BUSYBOX)?;
    let with_execd = root(&scratch.path().join("execd"))?;
    std::fs::copy(execd()?, with_execd.join("execd"))?;
    std::fs::write(with_execd.join("bootstrap.sh"), BOOTSTRAP)?;
    ensure!(Command::new("chmod").arg("755").args([with_execd.join("execd"), with_execd.join("bootstrap.sh")]).status()?.success(), "chmod");
    load(engine, &scratch, &with_execd, EXECD)
}

/// The file system of an image: busybox with all its names, and a folder for everybody.
fn root(folder: &Path) -> Result<PathBuf> {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin)?;
    let busybox =
        ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists()).context("no busybox: apt-get install busybox-static")?;
    std::fs::copy(busybox, bin.join("busybox"))?;
    let list = Command::new(busybox).arg("--list").output()?;
    for name in String::from_utf8(list.stdout)?.lines().filter(|name| *name != "busybox") {
        symlink("busybox", bin.join(name))?;
    }
    let etc = folder.join("etc");
    std::fs::create_dir(&etc)?;
    std::fs::write(etc.join("passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    let tmp = folder.join("tmp");
    ensure!(Command::new("install").args(["-d", "-m", "1777"]).arg(&tmp).status()?.success(), "install");
    Ok(folder.to_owned())
}

fn load(engine: &Engine, scratch: &Scratch, root: &Path, name: &str) -> Result<()> {
    let archive = scratch.path().join("root.tar");
    let status = Command::new("tar").args(["--owner=0", "--group=0", "-cf"]).arg(&archive).arg("-C").arg(root).arg(".").status()?;
    ensure!(status.success(), "tar");
    engine.run(&["import", "--change", "ENV PATH=/bin", &archive.display().to_string(), name]).map(drop)
}

/// The binary that is execd in the sandboxes.
fn execd() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("EXECD_BINARY") {
        return Ok(PathBuf::from(path));
    }
    let output = Command::new(checkout().join("tests/execd/build.sh")).output()?;
    ensure!(output.status.success(), "build.sh: {}", String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
