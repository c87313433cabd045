//! The fence in real shells, without a PATH where nothing but the shell is needed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// Whichever of them this machine has; `sh` in the script is that shell, by a folder whose only entry it is.
///
/// bash is tried by its own name as well, which is how execd calls it: it is another one then, not of POSIX.
fn shells() -> Vec<(String, tempfile::TempDir)> {
    let all = [("/bin/dash", "sh"), ("/bin/bash", "sh"), ("/bin/bash", BASH), ("/bin/busybox", "sh")];
    let there: Vec<_> = all.iter().filter(|(path, _)| std::path::Path::new(path).exists()).collect();
    assert!(!there.is_empty(), "none of {all:?}");
    let make = |(path, name): &(&str, &str)| {
        let folder = tempfile::tempdir().unwrap();
        for name in ["sh", *name] {
            let _there_before = std::os::unix::fs::symlink(path, folder.path().join(name));
        }
        (format!("{path} as {name}"), folder)
    };
    there.into_iter().map(make).collect()
}

const BASH: &str = "bash";

/// As execd runs it: in a process group of its own, without stdin.
fn command(folder: &tempfile::TempDir, text: &str, path: &str) -> Command {
    let name = if folder.path().join(BASH).exists() { BASH } else { "sh" };
    let mut command = Command::new(folder.path().join(name));
    command.arg0(name).args(["-c", text]).env_clear().env("PATH", format!("{}{path}", folder.path().display()));
    command.stdin(Stdio::null()).process_group(0);
    command
}

fn run(folder: &tempfile::TempDir, text: &str) -> (i32, String) {
    let output = command(folder, text, "").output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stdout).unwrap())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn fence(folder: &tempfile::TempDir, nonce: &str) -> Fence {
    Fence::new(folder.path().to_str().unwrap(), "6f1c", nonce).unwrap()
}

fn exited(code: i32, stopped: bool) -> State {
    State::Exited { code, stopped, oom: false }
}

fn lost(stopped: bool) -> State {
    State::Lost { stopped, oom: false }
}

/// As the sandbox itself would tell; the machine of the test may have run out of memory before.
fn state(folder: &tempfile::TempDir, fence: &Fence) -> State {
    match told(&run(folder, &fence.query().unwrap()).1) {
        State::Exited { code, stopped, .. } => exited(code, stopped),
        State::Lost { stopped, .. } => lost(stopped),
        state => state,
    }
}

fn told(text: &str) -> State {
    State::parse(text).unwrap_or_else(|| panic!("{text}"))
}

fn wait_for(folder: &tempfile::TempDir, fence: &Fence, wanted: State) {
    let start = Instant::now();
    while state(folder, fence) != wanted {
        assert!(start.elapsed() < Duration::from_secs(30), "not {wanted} but {}", state(folder, fence));
    }
}

#[test]
fn ten_starts_are_one_run_and_its_code_is_kept() {
    for (shell, folder) in shells() {
        let fence = fence(&folder, "n1");
        assert_eq!(state(&folder, &fence), State::OtherInstance, "{shell}: nothing planted");
        assert_eq!(run(&folder, &fence.plant().unwrap()), (0, "n1\n".to_owned()), "{shell}");
        assert_eq!(state(&folder, &fence), State::NotStarted, "{shell}");
        let runs = folder.path().join("runs");
        let text = fence.start(&words(&["sh", "-c", "echo ran >> \"$0\"; exit 7", runs.to_str().unwrap()])).unwrap();
        let children: Vec<_> = (0..10).map(|_| command(&folder, &text, "").stderr(Stdio::null()).spawn().unwrap()).collect();
        let mut codes: Vec<i32> = children.into_iter().map(|mut child| child.wait().unwrap().code().unwrap()).collect();
        codes.sort_unstable();
        assert_eq!(codes, [[7].as_slice(), &[EXIT_STARTED_BEFORE; 9]].concat(), "{shell}");
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "ran\n", "{shell}");
        assert_eq!(state(&folder, &fence), exited(7, false), "{shell}");
    }
}

#[test]
fn another_instance_never_runs_it() {
    for (shell, folder) in shells() {
        let (mine, other) = (fence(&folder, "mine"), fence(&folder, "other"));
        run(&folder, &mine.plant().unwrap());
        assert_eq!(run(&folder, &other.plant().unwrap()).1, "mine\n", "{shell}: the first stays");
        assert_eq!(run(&folder, &other.start(&words(&["sh", "-c", "exit 0"])).unwrap()).0, EXIT_OTHER_INSTANCE, "{shell}");
        assert_eq!(state(&folder, &other), State::OtherInstance, "{shell}");
        assert_eq!(state(&folder, &mine), State::NotStarted, "{shell}");
        run(&folder, &other.seal().unwrap());
        assert_eq!(state(&folder, &mine), State::NotStarted, "{shell}: a stranger seals nothing");
    }
}

#[test]
fn what_is_sealed_never_starts_and_what_started_is_not_sealed() {
    for (shell, folder) in shells() {
        let fence = fence(&folder, "n");
        run(&folder, &fence.plant().unwrap());
        assert_eq!(run(&folder, &fence.seal().unwrap()).1, "sealed\n", "{shell}");
        assert_eq!(run(&folder, &fence.start(&words(&["sh", "-c", "exit 0"])).unwrap()).0, EXIT_STARTED_BEFORE, "{shell}");
        assert_eq!(state(&folder, &fence), State::Sealed, "{shell}");

        let ran = Fence::new(folder.path().to_str().unwrap(), "other-job", "n").unwrap();
        run(&folder, &ran.plant().unwrap());
        run(&folder, &ran.start(&words(&["sh", "-c", "exit 3"])).unwrap());
        assert!(run(&folder, &ran.seal().unwrap()).1.starts_with("exit 3"), "{shell}");
    }
}

#[test]
fn a_running_command_is_running_a_terminated_one_has_its_code_and_a_killed_one_is_lost() {
    for (shell, folder) in shells() {
        for (signal, wanted) in [("TERM", exited(143, false)), ("KILL", lost(false))] {
            let fence = Fence::new(folder.path().to_str().unwrap(), signal, "n").unwrap();
            run(&folder, &fence.plant().unwrap());
            let text = fence.start(&words(&["sleep", "1000"])).unwrap();
            let mut child = command(&folder, &text, ":/usr/bin:/bin").spawn().unwrap();
            wait_for(&folder, &fence, State::Running);
            let group = format!("-{}", child.id());
            let recorded = std::fs::read_to_string(folder.path().join(format!(".berth-{signal}"))).unwrap();
            assert_eq!(recorded.split_whitespace().next(), Some(child.id().to_string().as_str()), "{shell}: the recorded process leads the group");
            assert!(Command::new("kill").args(["-s", signal, "--", &group]).status().unwrap().success());
            child.wait().unwrap();
            wait_for(&folder, &fence, wanted);
        }
    }
}

#[test]
fn a_stop_keeps_what_has_not_started_ends_what_runs_and_leaves_what_has_ended() {
    for (shell, folder) in shells() {
        let stopped = |name: &str| {
            let fence = Fence::new(folder.path().to_str().unwrap(), name, "n").unwrap();
            run(&folder, &fence.plant().unwrap());
            fence
        };
        let stop = |fence: &Fence, signal| told(&run(&folder, &fence.stop(signal).unwrap()).1);
        let never = stopped("never");
        assert_eq!(stop(&never, Signal::Term), State::Sealed, "{shell}");
        assert_eq!(run(&folder, &never.start(&words(&["sh", "-c", "exit 0"])).unwrap()).0, EXIT_STARTED_BEFORE, "{shell}");

        let ended = stopped("ended");
        run(&folder, &ended.start(&words(&["sh", "-c", "exit 3"])).unwrap());
        assert!(matches!(stop(&ended, Signal::Kill), State::Exited { code: 3, stopped: false, .. }), "{shell}: it ended before");

        let polite = "trap 'exit 0' TERM; while :; do :; done";
        for (name, script, signal, wanted) in
            [("polite", polite, Signal::Term, exited(0, true)), ("stubborn", "trap '' TERM; while :; do :; done", Signal::Kill, lost(true))]
        {
            let fence = stopped(name);
            let mut child = command(&folder, &fence.start(&words(&["sh", "-c", script])).unwrap(), "").spawn().unwrap();
            wait_for(&folder, &fence, State::Running);
            std::thread::sleep(Duration::from_millis(100)); // for its trap
            stop(&fence, Signal::Term);
            if signal == Signal::Kill {
                assert_eq!(state(&folder, &fence), State::Running, "{shell}");
                stop(&fence, signal);
            }
            child.wait().unwrap();
            wait_for(&folder, &fence, wanted);
        }
    }
}

#[test]
fn a_state_is_read_as_it_is_printed() {
    assert_eq!(State::parse("exit 137 oom\n"), Some(State::Exited { code: 137, stopped: false, oom: true }));
    assert_eq!(State::parse("exit 0 stopped"), Some(exited(0, true)));
    assert_eq!(State::parse("lost stopped oom"), Some(State::Lost { stopped: true, oom: true }));
    for text in ["", "exit", "exit x", "stopped", "exit stopped", "lost oom stopped", "ok"] {
        assert_eq!(State::parse(text), None, "{text}");
    }
}

/// The count of the machine's own cgroup, where it tells it.
fn kills() -> Option<String> {
    let files = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
    let events = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    events.lines().find_map(|line| line.strip_prefix("oom_kill ").map(str::to_owned))
}

#[test]
fn only_what_the_kernel_has_killed_since_the_start_counts() {
    for (shell, folder) in shells() {
        let fence = fence(&folder, "n");
        run(&folder, &fence.plant().unwrap());
        run(&folder, &fence.start(&words(&["sh", "-c", "exit 3"])).unwrap());
        let lock = folder.path().join(".berth-6f1c");
        let text = std::fs::read_to_string(&lock).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        let (pid, count) = first.split_once(' ').unwrap();
        let Some(kills) = kills() else {
            assert_eq!(count, "", "{shell}");
            continue;
        };
        assert_eq!(count, kills, "{shell}");
        let oom = || told(&run(&folder, &fence.query().unwrap()).1) == State::Exited { code: 3, stopped: false, oom: true };
        assert!(!oom(), "{shell}: one of before the start is nobody's");
        std::fs::write(&lock, format!("{pid} 1000000\n{rest}")).unwrap();
        assert!(oom(), "{shell}: the count has changed since");
    }
}

#[test]
fn a_stop_that_cannot_leave_its_mark_signals_nobody() {
    for (shell, folder) in shells() {
        let fence = fence(&folder, "n");
        run(&folder, &fence.plant().unwrap());
        // A link to nowhere, which holds for root as well.
        std::os::unix::fs::symlink("/absent/x", folder.path().join(".berth-6f1c.stop")).unwrap();
        let mut child = command(&folder, &fence.start(&words(&["sh", "-c", "while :; do :; done"])).unwrap(), "").spawn().unwrap();
        wait_for(&folder, &fence, State::Running);
        assert_eq!(told(&run(&folder, &fence.stop(Signal::Kill).unwrap()).1), State::Running, "{shell}");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(state(&folder, &fence), State::Running, "{shell}");
        assert!(Command::new("kill").args(["-s", "KILL", "--", &format!("-{}", child.id())]).status().unwrap().success());
        child.wait().unwrap();
    }
}

#[test]
fn a_code_is_the_command_s_own_if_no_other_start_can_have_it() {
    for code in [0, 3, 42, 123, 137, 143] {
        assert!(is_of_command(code), "{code}");
    }
    for code in [-1, 1, 2, EXIT_OTHER_INSTANCE, EXIT_STARTED_BEFORE, EXIT_NO_LOCK, 126, 127, 128, 254, 255] {
        assert!(!is_of_command(code), "{code}");
    }
}

#[test]
fn a_start_that_cannot_write_says_so() {
    for (shell, folder) in shells() {
        let fence = Fence::new(&format!("{}/absent", folder.path().display()), "a", "n").unwrap();
        assert_ne!(run(&folder, &fence.plant().unwrap()).0, 0, "{shell}");
        let fence = self::fence(&folder, "n");
        run(&folder, &fence.plant().unwrap());
        // Nobody has it and it can't be made: a link to nowhere, which holds for root as well.
        std::os::unix::fs::symlink("/absent/x", folder.path().join(".berth-6f1c")).unwrap();
        assert_eq!(run(&folder, &fence.start(&words(&["sh", "-c", "exit 0"])).unwrap()).0, EXIT_NO_LOCK, "{shell}");
    }
}

#[test]
fn a_command_is_a_program_and_not_a_word_of_the_shell() {
    for (shell, folder) in shells() {
        for (number, name) in ["exit", "export", "cd", "set", "A=b", ":", "if"].into_iter().enumerate() {
            let fence = Fence::new(folder.path().to_str().unwrap(), &number.to_string(), "n").unwrap();
            run(&folder, &fence.plant().unwrap());
            let code = command(&folder, &fence.start(&words(&[name, "0"])).unwrap(), "").stderr(Stdio::null()).status().unwrap().code();
            assert_eq!(code, Some(127), "{shell}: {name}");
        }
    }
}

#[test]
fn what_cannot_be_passed_on_is_refused() {
    let fence = Fence::new("/tmp", "6f1c", "n").unwrap();
    let start = |list: &[&str]| fence.start(&words(list)).unwrap_err();
    assert_eq!(start(&[]), InvalidWord::Empty);
    assert_eq!(start(&[""]), InvalidWord::Empty);
    assert_eq!(start(&["-x"]), InvalidWord::Hyphen);
    assert_eq!(start(&["a", "b\0c"]), InvalidWord::Nul);
    for name in ["", "a b", "$(x)", "../x", "ä"] {
        assert_eq!(Fence::new("/tmp", name, "n"), Err(InvalidWord::Identity), "{name}");
        assert_eq!(Fence::new("/tmp", "a", name), Err(InvalidWord::Identity), "{name}");
    }
}

#[test]
fn a_command_has_the_environment_that_it_was_given_and_no_shell_in_its_path_is_needed() {
    for (shell, folder) in shells() {
        let fence = fence(&folder, "nonce");
        run(&folder, &fence.plant().unwrap());
        let text = fence.start(&words(&["/usr/bin/env"])).unwrap();
        // Names that a script would think of, and one that is every program's.
        let set = [("n", "5"), ("l", "6"), ("c", "7"), ("p", "8"), ("e", "9"), ("PATH", "/opt/tool/bin"), ("PATH_2", " a\\b ")];
        let output = command(&folder, &text, "").env_clear().envs(set).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        let told = String::from_utf8(output.stdout).unwrap();
        for (name, value) in set {
            assert!(told.lines().any(|line| line == format!("{name}={value}")), "{shell}: {name} in {told}");
        }
        assert!(!told.contains("nonce") && !told.contains("__berth"), "{shell}: {told}");
    }
}

#[test]
fn what_a_shell_takes_for_itself_is_not_passed_on() {
    for name in ["A", "n", "path_2", "HOME", "PATH", "TERM", "LANG", "_A", "PS3"] {
        assert!(is_passed_on(name), "{name}");
    }
    for name in ["", "1A", "A.B", "A-B", "Ä", "__berth", "__berth_o", "BASH_ENV", "BASHOPTS", "SHELLOPTS", "IFS", "PWD", "_"] {
        assert!(!is_passed_on(name), "{name}");
    }
}

#[test]
fn the_longest_text_is_what_linux_takes_for_one_word() {
    for (length, fits) in [(TEXT_BYTES_MAX, true), (TEXT_BYTES_MAX + 1, false)] {
        let text = format!(":{}", " ".repeat(length - 1));
        assert_eq!(Command::new("/bin/sh").args(["-c", &text]).status().is_ok(), fits, "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever a shell lets through by [`is_passed_on`] arrives, in each of them.
    #[test]
    fn every_variable_that_is_passed_on_arrives(
        set in prop::collection::btree_map(prop_oneof!["[A-Za-z_][A-Za-z0-9_]{0,6}", "(PS|OPT|BASH|SH|_)[A-Z0-9_]{0,3}"], "[^\0\n]{0,12}", 0..5)
    ) {
        let set: Vec<_> = set.into_iter().filter(|(name, _)| is_passed_on(name) && !name.starts_with("LD_")).collect();
        for (shell, folder) in shells() {
            let fence = fence(&folder, "n");
            run(&folder, &fence.plant().unwrap());
            let output = command(&folder, &fence.start(&words(&["/usr/bin/env", "-0"])).unwrap(), "").env_clear().envs(set.iter().cloned()).output().unwrap();
            let told = String::from_utf8(output.stdout).unwrap();
            for (name, value) in &set {
                prop_assert!(told.split('\0').any(|line| line == format!("{name}={value}")), "{}: {} in {:?}", shell, name, told);
            }
        }
    }

    /// Also after a second start and a repeat of the quoting: the words arrive as they are, in each shell.
    #[test]
    fn every_word_arrives_as_it_is(list in prop::collection::vec(prop_oneof!["[^\0]{0,24}", "[ '\"\\\\$`!*?~#&;|<>(){}\\[\\]\n\t=-]{0,12}"], 0..6)) {
        for (shell, folder) in shells() {
            let fence = fence(&folder, "n");
            run(&folder, &fence.plant().unwrap());
            let argv: Vec<String> = words(&["sh", "-c", "printf '%s\\0' \"$@\"", "name"]).into_iter().chain(list.iter().cloned()).collect();
            let output = command(&folder, &fence.start(&argv).unwrap(), ":/usr/bin:/bin").output().unwrap();
            let mut told: Vec<String> = String::from_utf8(output.stdout).unwrap().split('\0').map(str::to_owned).collect();
            prop_assert_eq!(told.pop(), Some(String::new()));
            // printf without words prints its format once.
            let wanted = if list.is_empty() { vec![String::new()] } else { list.clone() };
            prop_assert_eq!(told, wanted, "{}", shell);
        }
    }
}
