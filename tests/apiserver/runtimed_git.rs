//! Runs whose code is a Git repository, cloned by the real git: over https from git's own server, over ssh from a real sshd, and, for the
//! limits, with a stand-in for ssh.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use berth_tests::githttps::GitHttps;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::{Guarded, Scratch, free_port};
use serde_json::json;

use super::runtimed_world::{Agents, outputs};
use super::serve_world::{Draft, condition, message, phase, run};

/// `git` in a folder.
fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"];
    let output = Command::new("git").args(identity).args(arguments).current_dir(folder).output().context("apt-get install git")?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn commit(folder: &Path, files: &[(&str, &str, u32)], text: &str) -> Result<String> {
    for (name, content, mode) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        std::fs::write(&path, content)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode))?;
    }
    git(folder, &["add", "--all"])?;
    git(folder, &["commit", "--quiet", "-m", text])?;
    git(folder, &["rev-parse", "HEAD"])
}

fn of(name: &str, repository: &Path, revision: Option<&str>, task: serde_json::Value) -> Draft {
    let mut source = json!({"repoURL": format!("git@example.com:{}", repository.display())});
    if let Some(revision) = revision {
        source["commitSHA"] = json!(revision);
    }
    run(name).spec("source", source).spec("mode", json!({ "task": task }))
}

#[tokio::test]
async fn a_repository_is_cloned_at_its_commit_with_limits() -> Result<()> {
    let agents = Agents::new("git").await?;
    let folder = agents.plane.scratch().path().join("git");
    let repository = folder.join("repo");
    std::fs::create_dir_all(&repository)?;
    git(&repository, &["init", "--quiet"])?;
    let first = commit(&repository, &[("ci/run", "echo v=1 \"$1\"; echo v=1 >> $KRUNTIME_OUTPUTS\n", 0o755)], "first")?;
    commit(&repository, &[("ci/run", "#!/bin/sh\necho v=2 $(git log --oneline | wc -l); echo v=2 >> $KRUNTIME_OUTPUTS\n", 0o755)], "second")?;
    let large = folder.join("large");
    std::fs::create_dir(&large)?;
    git(&large, &["init", "--quiet"])?;
    let mut random = std::fs::File::open("/dev/urandom")?;
    std::io::copy(&mut std::io::Read::take(&mut random, 120 << 20), &mut std::fs::File::create(large.join("blob"))?)?;
    git(&large, &["add", "--all"])?;
    git(&large, &["commit", "--quiet", "-m", "large"])?;
    // What ssh does, without the way: the command is the last argument. A host of the name `slow` never answers.
    let ssh = folder.join("ssh");
    std::fs::write(&ssh, "#!/bin/sh\ncase \"$*\" in *slow*) sleep 600;; esac\nfor last; do :; done\nexec sh -c \"$last\"\n")?;
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755))?;
    let setup = agents.setup("bash-1", &[("runs", "9")]).await?.env("GIT_SSH_COMMAND", &ssh.display().to_string());
    let agent = setup.start()?;

    let entry = json!({"entrypoint": "ci/run", "args": ["arg"]});
    agents.run(of("newest", &repository, None, entry.clone())).await?;
    agents.run(of("pinned", &repository, Some(&first), entry.clone())).await?;
    agents.run(of("no-revision", &repository, Some("0123456789012345678901234567890123456789"), entry.clone())).await?;
    agents.run(of("no-repository", &folder.join("absent"), None, entry.clone())).await?;
    agents.run(of("no-entrypoint", &repository, None, json!({"entrypoint": "ci/absent"}))).await?;
    agents.run(of("too-large", &large, None, json!({"args": ["true"]}))).await?;
    agents.run(run("too-slow").spec("source", json!({"repoURL": "ssh://slow/x"})).spec("mode", json!({"task": {"args": ["true"]}}))).await?;
    agents.run(run("unreachable").spec("source", json!({"repoURL": "https://127.0.0.1:1/x.git"})).spec("mode", json!({"task": {"args": ["true"]}}))).await?;
    agents.run(run("secret").spec("source", json!({"repoURL": "https://me:hunter2@example.com/x.git"}))).await?;

    let newest = agents.ended("newest").await?;
    ensure!(phase(&newest) == "Succeeded" && outputs(&newest) == json!({"v": "2"}), "{}", message(&newest));
    ensure!(agent.output_of("newest").contains(&"stdout: v=2 1".to_owned()), "only the newest commit is fetched: {:?}", agent.output_of("newest"));
    let pinned = agents.ended("pinned").await?;
    ensure!(phase(&pinned) == "Succeeded" && outputs(&pinned) == json!({"v": "1"}), "{}", message(&pinned));
    ensure!(agent.output_of("pinned").contains(&"stdout: v=1 arg".to_owned()), "{:?}", agent.output_of("pinned"));
    for (name, text) in [
        ("no-revision", "git checkout: "),
        ("no-repository", "git clone: "),
        ("no-entrypoint", "spec.mode.task.entrypoint: \"ci/absent\" is no file"),
        ("too-large", "git clone: the repository is larger than 100 MiB"),
        ("too-slow", "git clone: took longer than 30 s"),
        ("unreachable", "git clone: "),
    ] {
        let run = agents.ended(name).await?;
        ensure!(condition(&run, "Completed").is_some_and(|c| c.1 == "PrepareSource") && message(&run).starts_with(text), "{name}: {}", message(&run));
    }
    let secret = agents.ended("secret").await?;
    ensure!(condition(&secret, "Completed").is_some_and(|c| c.1 == "InvalidSpec") && !message(&secret).contains("hunter2"), "{}", message(&secret));
    ensure!(!agent.log().contains("hunter2"), "not in the log either");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_is_cloned_over_https_from_whom_the_pod_trusts() -> Result<()> {
    let agents = Agents::new("git-https").await?;
    let folder = agents.plane.scratch().path().join("git-https");
    let repository = folder.join("repo");
    std::fs::create_dir_all(&repository)?;
    git(&repository, &["init", "--quiet"])?;
    let first = commit(&repository, &[("script", "echo v=1 >> $KRUNTIME_OUTPUTS\n", 0o644)], "first")?;
    git(&repository, &["tag", "v1"])?;
    commit(&repository, &[("script", "echo v=$(cat version) >> $KRUNTIME_OUTPUTS\n", 0o644), ("version", "2\n", 0o644)], "second")?;
    let host = GitHttps::start(&folder, agents.plane.scratch()).await?;
    let trusting = agents.setup("bash-1", &[("runs", "9")]).await?.env("GIT_SSL_CAINFO", &host.certificate().display().to_string()).start()?;
    let of = |name: &str, revision: Option<&str>| {
        let mut source = json!({"repoURL": host.url("repo")});
        if let Some(revision) = revision {
            source["commitSHA"] = json!(revision);
        }
        run(name).spec("source", source)
    };
    for (name, revision, version) in [("newest", None, "2"), ("pinned", Some(first.as_str()), "1"), ("tagged", Some("v1"), "1")] {
        agents.run(of(name, revision)).await?;
        let run = agents.ended(name).await?;
        ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"v": version}), "{name}: {} {:?}", message(&run), trusting.output_of(name));
    }
    agents.run(run("absent").spec("source", json!({"repoURL": host.url("absent")}))).await?;
    let absent = agents.ended("absent").await?;
    ensure!(condition(&absent, "Completed").is_some_and(|c| c.1 == "PrepareSource") && message(&absent).starts_with("git clone: "), "{}", message(&absent));

    // A host that nobody vouches for gets nothing.
    drop(trusting);
    agents.delete_pod("bash-1").await?;
    let _wary = agents.agent("bash-2", &[("runs", "9")]).await?;
    agents.run(of("wary", None)).await?;
    let wary = agents.ended("wary").await?;
    ensure!(condition(&wary, "Completed").is_some_and(|c| c.1 == "PrepareSource") && message(&wary).contains("certificate"), "{}", message(&wary));
    Ok(())
}

/// An sshd of its own, in a mount namespace in which root's home holds one authorized key and nothing else.
struct Sshd {
    process: Guarded,
    port: u16,
    folder: PathBuf,
}

impl Sshd {
    async fn start(scratch: &Scratch) -> Result<Self> {
        let (folder, port) = (scratch.path().join("sshd"), free_port()?);
        std::fs::create_dir(&folder)?;
        let key = |name: &str| folder.join(name).display().to_string();
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &key("user")]).output().context("apt-get install openssh-client")?;
        ensure!(made.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&made.stderr));
        let host = Command::new("dropbearkey").args(["-t", "ed25519", "-f", &key("host")]).output().context("apt-get install dropbear-bin")?;
        let told = String::from_utf8(host.stdout)?;
        let public = told.lines().find(|line| line.starts_with("ssh-ed25519 ")).context("no public key")?;
        std::fs::write(folder.join("known_hosts"), format!("[127.0.0.1]:{port} {public}\n"))?;
        let script =
            "mount -t tmpfs -o mode=700 home ~root && mkdir -m 700 ~root/.ssh && install -m 600 \"$1\" ~root/.ssh/authorized_keys && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", script, "sh", &key("user.pub")]);
        command.args(["dropbear", "-F", "-E", "-s", "-j", "-k", "-r", &key("host"), "-p", &format!("127.0.0.1:{port}"), "-P", &key("pid")]);
        let process = Guarded::spawn("dropbear", command, &folder.join("log"))?;
        until("sshd to listen", PATIENCE, || async { Ok(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop)) })
            .await
            .with_context(|| process.log())?;
        Ok(Self { process, port, folder })
    }

    /// How git calls ssh, with this known hosts file.
    fn command(&self, known_hosts: &str) -> String {
        let at = |name: &str| self.folder.join(name).display().to_string();
        format!("ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile={} -i {}", at(known_hosts), at("user"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_is_cloned_over_ssh_with_the_pod_s_key_from_a_known_host() -> Result<()> {
    let agents = Agents::new("git-ssh").await?;
    let repository = agents.plane.scratch().path().join("git-ssh");
    std::fs::create_dir_all(&repository)?;
    git(&repository, &["init", "--quiet"])?;
    let first = commit(&repository, &[("script", "echo v=1 >> $KRUNTIME_OUTPUTS\n", 0o644)], "first")?;
    commit(&repository, &[("script", "echo v=2 >> $KRUNTIME_OUTPUTS\n", 0o644)], "second")?;
    let sshd = Sshd::start(agents.plane.scratch()).await?;
    let of = |name: &str, revision: Option<&str>| {
        let mut source = json!({"repoURL": format!("ssh://root@127.0.0.1:{}{}", sshd.port, repository.display())});
        if let Some(revision) = revision {
            source["commitSHA"] = json!(revision);
        }
        run(name).spec("source", source)
    };
    let agent = agents.setup("bash-1", &[("runs", "9")]).await?.env("GIT_SSH_COMMAND", &sshd.command("known_hosts")).start()?;
    for (name, revision, version) in [("newest", None, "2"), ("pinned", Some(first.as_str()), "1")] {
        agents.run(of(name, revision)).await?;
        let run = agents.ended(name).await?;
        ensure!(phase(&run) == "Succeeded" && outputs(&run) == json!({"v": version}), "{name}: {}\n{}", message(&run), sshd.process.log());
    }
    drop(agent);
    agents.delete_pod("bash-1").await?;
    let _wary = agents.setup("bash-2", &[("runs", "9")]).await?.env("GIT_SSH_COMMAND", &sshd.command("nobody")).start()?;
    agents.run(of("unknown", None)).await?;
    let unknown = agents.ended("unknown").await?;
    ensure!(
        condition(&unknown, "Completed").is_some_and(|c| c.1 == "PrepareSource") && message(&unknown).contains("Host key verification failed"),
        "{}",
        message(&unknown)
    );
    Ok(())
}
