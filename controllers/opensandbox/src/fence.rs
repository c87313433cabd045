//! A command that starts once at most, however often its start is sent: a lock inside the sandbox, made by `sh` alone (design of Jobs, §2b).
//!
//! Three files hold everything, `FILE` (the lock), `FILE.instance` and `FILE.stop`:
//!
//! ```text
//!  plant NONCE ──► FILE.instance = NONCE        the first one stays; the caller records it before any start
//!  start NONCE ──► 97   unless FILE.instance = NONCE: another disk, so not the sandbox that was recorded
//!              ──► 124  FILE is there: somebody else's start has won
//!              ──► 125  FILE can't be made
//!              ──► FILE = pid, and the sandbox's count of OOM kills; the command runs; FILE += "exit N"
//!  query NONCE ──► other | none | starting | running | exit N | lost | sealed; behind "exit N" and "lost": " stopped", then " oom"
//!  seal NONCE  ──► FILE = "sealed", unless it is there: no start wins any more; then as query
//!  stop NONCE  ──► as seal; a command that has no code yet: FILE.stop, and only if that could be made a signal to its group
//! ```
//!
//! What the command itself does to the files harms nobody but it.
//!
//! execd's own shell is the only one: a command's environment may have a PATH without `sh`. What that shell would take for itself can't be a variable of
//! the command ([`is_passed_on`]).

use std::fmt;

/// What a start exits with where the instance is another.
pub const EXIT_OTHER_INSTANCE: i32 = 97;
/// What a start exits with where another has won.
pub const EXIT_STARTED_BEFORE: i32 = 124;
/// What a start exits with where it can't make the lock.
pub const EXIT_NO_LOCK: i32 = 125;

/// What the variables of a start begin with: an imported one stays exported when it is assigned to, so that no command may have one of such a name.
const VARIABLES: &str = "__berth";
/// Longest text that a start may be, in bytes: Linux takes 128 KiB for one word of execve(2), with its NUL, and execd's `sh -c` has it as one.
pub const TEXT_BYTES_MAX: usize = 131_071;

/// `[` and `read` are built in everywhere; nothing else is needed, nor a PATH.
const PLANT: &str = r#"( set -C; echo "$2" > "$1.instance" ) 2>/dev/null; read n < "$1.instance" && echo "$n""#;

/// `exec` in a subshell: a command is never taken for a builtin, and its signals are the default ones. The trap lets this shell outlive a TERM to
/// the group, so that the end is recorded; it is there before anybody can see that it runs.
const START: &str = r#"trap : HUP INT TERM; __berth=; { read __berth < "$1.instance"; } 2>/dev/null; [ "$__berth" = "$2" ] || exit 97
__berth_o=; for __berth_f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  { while read __berth_k __berth_v; do if [ "$__berth_k" = oom_kill ]; then __berth_o=$__berth_v; fi; done < "$__berth_f"; } 2>/dev/null
done
if ( set -C; echo "$$ $__berth_o" > "$1" ) 2>/dev/null; then ( shift 2; exec "$@" ); __berth=$?; echo "exit $__berth" >> "$1"; exit $__berth; fi
[ -e "$1" ] || exit 125; exit 124"#;

/// The second look after `kill -0` failed is for a command that ended in between. The kernel tells (cgroups of version 2, then 1) whether a process of the sandbox
/// ran out of memory since the start. The mark of a stop is looked for last: it was there before whatever the stop brought about.
const QUERY: &str = r#"l=$1; n=; { read n < "$l.instance"; } 2>/dev/null; [ "$n" = "$2" ] || { echo other; exit; }
p=; c=; e=; { read p c; read e; } 2>/dev/null < "$l"
if [ -z "$e" ]; then
  if [ "$p" = sealed ]; then echo sealed; exit; fi
  if [ -z "$p" ]; then if [ -e "$l" ]; then echo starting; else echo none; fi; exit; fi
  if kill -0 "$p" 2>/dev/null; then echo running; exit; fi
  { read p c; read e; } < "$l"; if [ -z "$e" ]; then e=lost; fi
fi
m=${c:-0}; for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  { while read k v; do if [ "$k" = oom_kill ]; then m=$v; fi; done < "$f"; } 2>/dev/null
done
o=; if [ "$m" != "${c:-0}" ]; then o=" oom"; fi
if [ -e "$l.stop" ]; then e="$e stopped"; fi
echo "$e$o""#;

/// Only in the recorded instance; elsewhere there is nothing to keep from starting.
const SEAL: &str = r#"n=; { read n < "$1.instance"; } 2>/dev/null; [ "$n" = "$2" ] && ( set -C; echo sealed > "$1" ) 2>/dev/null"#;

/// The mark comes before the signal: a code that is recorded after it may be the stop's doing. Without a mark there is none.
const STOP: &str = r#"l=$1; n=; { read n < "$l.instance"; } 2>/dev/null
if [ "$n" = "$2" ] && ! ( set -C; echo sealed > "$l" ) 2>/dev/null; then
  p=; c=; e=; { read p c; read e; } 2>/dev/null < "$l"
  if [ -z "$e" ] && [ "$p" != sealed ] && ( : > "$l.stop" ) 2>/dev/null && [ -n "$p" ]; then kill "-$3" "-$p" 2>/dev/null; fi
fi"#;

const FOLDER: &str = r#"[ -d "$1" ] || mkdir -p "$1""#;

/// Shell text that makes a folder, unless it is there, as a kubelet makes a working folder.
pub fn make_folder(path: &str) -> Result<String, InvalidWord> {
    script(FOLDER, [path])
}

/// The text with `words` as its positional parameters, for the shell that reads it.
fn script<'a>(text: &str, words: impl IntoIterator<Item = &'a str>) -> Result<String, InvalidWord> {
    let quoted = shlex::try_join(words).map_err(|_| InvalidWord::Nul)?;
    Ok(format!("set -- {quoted}\n{text}"))
}

/// Whether a command gets a variable of that name as it was set, whichever shell is between: bash, dash and busybox drop or set some themselves, and
/// bash does as some of them say before the lock is made.
#[must_use]
pub fn is_passed_on(name: &str) -> bool {
    const OF_SHELLS: &[&str] = &[
        "_",
        "COMP_WORDBREAKS",
        "DIRSTACK",
        "ENV",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "IFS",
        "LINENO",
        "OLDPWD",
        "OPTARG",
        "OPTERR",
        "OPTIND",
        "PIPESTATUS",
        "POSIXLY_CORRECT",
        "PPID",
        "PS1",
        "PS2",
        "PS4",
        "PWD",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "SHLVL",
        "SRANDOM",
        "UID",
    ];
    let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name && !name.starts_with("BASH") && !name.starts_with(VARIABLES) && !OF_SHELLS.contains(&name)
}

/// Whether a code that execd tells of a start can only be its command's own. One that came too late, or could not make the lock, ends by 97, 124 or 125; a
/// shell that fails (it can't fork, say) by 1, 2 or from 126 on, where no signal's are.
#[must_use]
pub fn is_of_command(code: i32) -> bool {
    !matches!(code, EXIT_OTHER_INSTANCE | EXIT_STARTED_BEFORE | EXIT_NO_LOCK) && matches!(code, 0 | 3..=125 | 129..=192)
}

/// The lock of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    file: String,
    nonce: String,
}

/// How far the command has come, by the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// This is not the sandbox that was recorded, or its disk is another.
    OtherInstance,
    /// It was never started.
    NotStarted,
    /// The lock is taken, nothing more.
    Starting,
    /// It runs.
    Running,
    /// It ended.
    Exited {
        /// With this code; 128+S if by a signal.
        code: i32,
        /// A stop was asked for before that was recorded.
        stopped: bool,
        /// A process of the sandbox was ended for using too much memory since it began.
        oom: bool,
    },
    /// It was started and runs no more; its code was not recorded.
    Lost {
        /// A stop was asked for.
        stopped: bool,
        /// As of [`Exited`](Self::Exited).
        oom: bool,
    },
    /// It was never started and will not be.
    Sealed,
}

/// What a stop sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The command may end by itself.
    Term,
    /// It may not.
    Kill,
}

/// A word that can't be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWord {
    /// No process can have it.
    #[error("a word of the command has a NUL")]
    Nul,
    /// `exec` would take it for an option.
    #[error("the command's first word begins with a hyphen")]
    Hyphen,
    /// There is no command.
    #[error("the command is empty")]
    Empty,
    /// An identity or a nonce of other characters than letters, digits, `-` and `_`, or of none.
    #[error("an identity is letters, digits, hyphens and underscores")]
    Identity,
}

impl Fence {
    /// The lock of `identity` in `folder`, which everybody may write to, as `/tmp`. `nonce` tells this sandbox's disk from any other.
    pub fn new(folder: &str, identity: &str, nonce: &str) -> Result<Self, InvalidWord> {
        let is_plain = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        if !is_plain(identity) || !is_plain(nonce) {
            return Err(InvalidWord::Identity);
        }
        if folder.contains('\0') {
            return Err(InvalidWord::Nul);
        }
        Ok(Self { file: format!("{}/.berth-{identity}", folder.trim_end_matches('/')), nonce: nonce.to_owned() })
    }

    /// Shell text that leaves the nonce in the sandbox, unless another is there, and prints the one that counts.
    pub fn plant(&self) -> Result<String, InvalidWord> {
        self.script(PLANT, &[])
    }

    /// Shell text that runs `argv` by execve(2)'s meaning of it, if nothing has before.
    pub fn start(&self, argv: &[String]) -> Result<String, InvalidWord> {
        match argv.first() {
            None => Err(InvalidWord::Empty),
            Some(word) if word.is_empty() => Err(InvalidWord::Empty),
            Some(word) if word.starts_with('-') => Err(InvalidWord::Hyphen),
            Some(_) => self.script(START, argv),
        }
    }

    /// Shell text that prints the state.
    pub fn query(&self) -> Result<String, InvalidWord> {
        self.script(QUERY, &[])
    }

    /// Shell text that keeps the command from ever starting, if it has not yet, and prints the state then.
    pub fn seal(&self) -> Result<String, InvalidWord> {
        self.script(&format!("{SEAL}\n{QUERY}"), &[])
    }

    /// Shell text that keeps the command from starting, or sends its process group that signal if it has no code yet, and prints the state then. Children
    /// that have left the group live on.
    pub fn stop(&self, signal: Signal) -> Result<String, InvalidWord> {
        let word = match signal {
            Signal::Term => "TERM",
            Signal::Kill => "KILL",
        };
        self.script(&format!("{STOP}\n{QUERY}"), &[word.to_owned()])
    }

    fn script(&self, text: &str, more: &[String]) -> Result<String, InvalidWord> {
        // The words of a start come after `--`: `set` takes none of them for an option.
        script(text, [self.file.as_str(), self.nonce.as_str()].into_iter().chain(more.iter().map(String::as_str)))
    }
}

impl State {
    /// Reads what [`Fence::query`] and [`Fence::seal`] print.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "other" => Some(Self::OtherInstance),
            "none" => Some(Self::NotStarted),
            "starting" => Some(Self::Starting),
            "running" => Some(Self::Running),
            "sealed" => Some(Self::Sealed),
            text => {
                let (text, oom) = text.strip_suffix(" oom").map_or((text, false), |text| (text, true));
                let (text, stopped) = text.strip_suffix(" stopped").map_or((text, false), |text| (text, true));
                match text.strip_prefix("exit ") {
                    Some(code) => Some(Self::Exited { code: code.parse().ok()?, stopped, oom }),
                    None => (text == "lost").then_some(Self::Lost { stopped, oom }),
                }
            }
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherInstance => f.write_str("other instance"),
            Self::NotStarted => f.write_str("not started"),
            Self::Starting => f.write_str("starting"),
            Self::Running => f.write_str("running"),
            Self::Exited { code, .. } => write!(f, "exited {code}"),
            Self::Lost { .. } => f.write_str("lost"),
            Self::Sealed => f.write_str("sealed"),
        }
    }
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;
