//! Which program a Run starts: its script or entrypoint, else its args as a shell takes them (reference kruntimes §7.4, the Bash server).

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::spec::{Command, Source, Spec};

/// The file that is run when none is named.
const DEFAULT_ENTRYPOINT: &str = "script";

/// A program and its arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Absolute path.
    pub path: PathBuf,
    /// Arguments without the program's name.
    pub args: Vec<OsString>,
}

/// Chooses the program; `code` is the folder of the code.
///
/// # Errors
/// There is nothing to run, said for people.
pub fn choose(spec: &Spec, command: &Command, code: &Path) -> Result<Program, String> {
    let (name, named) = match (&spec.source, &command.entrypoint) {
        (Source::Inline { path, .. }, _) => (path.as_str(), true),
        (_, Some(entrypoint)) => (entrypoint.as_str(), true),
        _ => (DEFAULT_ENTRYPOINT, false),
    };
    let args = match spec.source {
        // With a script, entrypoint and args are ignored (reference §1.1).
        Source::Inline { .. } => Vec::new(),
        _ => command.args.iter().map(OsString::from).collect(),
    };
    let file = code.join(name);
    if file.is_file() {
        return if runs_by_itself(&file) {
            Ok(Program { path: file, args })
        } else {
            Ok(Program { path: shell()?, args: std::iter::once(file.into_os_string()).chain(args).collect() })
        };
    }
    if named {
        return Err(format!("spec.mode.task.entrypoint: {name:?} is no file in the source"));
    }
    match command.args.as_slice() {
        [] => Err("no args or script provided: give spec.source, or spec.mode.task.args".to_owned()),
        [program, flag, ..] if matches!(program.as_str(), "sh" | "bash") && flag == "-c" => {
            let path = find(program).ok_or_else(|| format!("there is no {program} in this image"))?;
            Ok(Program { path, args: args.into_iter().skip(1).collect() })
        }
        lines => Ok(Program { path: shell()?, args: vec!["-c".into(), lines.join("\n").into()] }),
    }
}

/// Executable, and the kernel knows how: `#!` or ELF.
fn runs_by_itself(file: &Path) -> bool {
    let Ok(mut open) = File::open(file) else { return false };
    let executable = open.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0);
    let mut start = [0; 4];
    let read = open.read(&mut start).unwrap_or(0);
    executable && (start[..read].starts_with(b"#!") || start[..read] == *b"\x7FELF")
}

/// bash if the image has it, else sh.
fn shell() -> Result<PathBuf, String> {
    find("bash").or_else(|| find("sh")).ok_or_else(|| "there is neither bash nor sh in this image".to_owned())
}

/// By the image's PATH, not by one that the Run sets.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::super::spec::{Identity, Limits};
    use super::*;

    fn spec(source: Source) -> Spec {
        let text = String::new;
        let identity = Identity { run_uid: text(), run_name: text(), namespace: text(), runtime: text(), pod: text(), attempt: 1 };
        let (run_dir, env, env_removed) = (PathBuf::from("/"), Vec::new(), Vec::new());
        Spec { identity, run_dir, workspace_dir: None, source, command: None, env, env_removed, timeout_ms: None, limits: Limits::default(), run_as: None }
    }

    #[test]
    fn what_is_run_follows_the_bash_server() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.to_string_lossy().into_owned()
        };
        let (plain, own) = (file("plain", "echo", 0o755), file("own", "#!/bin/cat\n", 0o755));
        let not_executable = file("shebang", "#!/bin/cat\n", 0o644);
        let shell = shell().unwrap().to_string_lossy().into_owned();
        let chosen = |entrypoint: Option<&str>, args: &[&str]| {
            let command = Command { entrypoint: entrypoint.map(str::to_owned), args: args.iter().map(|arg| (*arg).to_owned()).collect() };
            let words = |program: Program| std::iter::once(program.path.into_os_string()).chain(program.args).map(|word| word.into_string().unwrap()).collect();
            choose(&spec(Source::None), &command, folder.path()).map(words)
        };
        let words = |words: &[&str]| Ok(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(chosen(Some("plain"), &["a", "b"]), words(&[&shell, &plain, "a", "b"]));
        assert_eq!(chosen(Some("own"), &["a"]), words(&[&own, "a"]));
        assert_eq!(chosen(Some("shebang"), &[]), words(&[&shell, &not_executable]));
        assert_eq!(chosen(Some("absent"), &["a"]), Err("spec.mode.task.entrypoint: \"absent\" is no file in the source".to_owned()));
        assert_eq!(chosen(None, &[]), Err("no args or script provided: give spec.source, or spec.mode.task.args".to_owned()));
        assert_eq!(chosen(None, &["echo one"]), words(&[&shell, "-c", "echo one"]));
        assert_eq!(chosen(None, &["echo one", "echo two"]), words(&[&shell, "-c", "echo one\necho two"]));
        let sh = find("sh").unwrap().to_string_lossy().into_owned();
        assert_eq!(chosen(None, &["sh", "-c", "echo $0", "x"]), words(&[&sh, "-c", "echo $0", "x"]));
        let script = file("script", "echo", 0o644);
        assert_eq!(chosen(None, &["x"]), words(&[&shell, &script, "x"]));
    }
}
