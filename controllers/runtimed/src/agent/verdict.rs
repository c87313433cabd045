//! How an attempt ended becomes what is said about it: reasons, messages, phases (reference kruntimes §7.2).

use berth_api::Run;
use berth_api::constants::reason;
use berth_api::message::{bounded, one_line};
use berth_api::run::RunPhase;

use super::outputs::OutputsError;
use super::plan::Me;
use crate::shim::spec::{Exit, Outcome};

/// A Run, or an attempt of it, that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason of both conditions.
    pub reason: &'static str,
    /// One line for people, under 1,024 bytes.
    pub message: String,
}

impl Failure {
    /// A failure; the message becomes one bounded line that no terminal obeys.
    pub fn new(reason: &'static str, message: String) -> Self {
        let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Self { reason, message: bounded(one_line(&lines.join(" | ")).into_owned()) }
    }

    /// The user asked for the end.
    pub fn cancelled() -> Self {
        Self::new(reason::CANCELLED, "cancelled by user".to_owned())
    }

    /// Its time was over.
    pub fn timeout(run: &Run) -> Self {
        Self::new(reason::TIMEOUT, format!("timeout after {}", run.spec.timeout.as_deref().unwrap_or_default()))
    }

    /// It ran, perhaps, and nobody knows how it ended.
    pub fn lost() -> Self {
        Self::new(reason::EXECUTION_LOST, "runtime execution not found after runtimed restart".to_owned())
    }

    /// The spec can't be carried out, by any agent of this kind.
    pub fn invalid(message: String) -> Self {
        Self::new(reason::INVALID_SPEC, message)
    }

    fn into_parts(self) -> (&'static str, String) {
        (self.reason, self.message)
    }

    /// The terminal phase.
    pub fn phase(&self) -> RunPhase {
        match self.reason {
            reason::CANCELLED => RunPhase::Cancelled,
            reason::TIMEOUT => RunPhase::Timeout,
            _ => RunPhase::Failed,
        }
    }
}

/// Whether another attempt follows. What the user wants, what can't change, and what has no time left is not repeated.
pub fn is_repeated(run: &Run, attempt: i32, failure: &Failure) -> bool {
    const FINAL: [&str; 6] =
        [reason::CANCELLED, reason::TIMEOUT, reason::INVALID_SPEC, reason::INVALID_RESOURCES, reason::OUTPUTS_INVALID, reason::OUTPUTS_TOO_LARGE];
    !FINAL.contains(&failure.reason) && run.spec.retry_policy.as_ref().is_some_and(|policy| policy.allows_retry(attempt, failure.reason))
}

/// What an exit means; None is success as far as the process can tell.
pub fn failure_of(run: &Run, exit: &Exit) -> Option<Failure> {
    let tail = |what: String| match exit.stderr_tail.is_empty() {
        true => what,
        false => format!("{what}; runtime stderr: {}", exit.stderr_tail),
    };
    let (reason, message) = match &exit.outcome {
        Outcome::Exited(0) => return None,
        Outcome::Exited(code) => (reason::RUNTIME_ERROR, tail(format!("exit code {code}"))),
        Outcome::Failed(text) => (reason::RUNTIME_ERROR, text.clone()),
        Outcome::Signalled(signal) => (reason::RUNTIME_ERROR, tail(format!("killed by signal {signal}{}", signal_name(*signal)))),
        Outcome::NotPrepared(text) => (reason::PREPARE_SOURCE, text.clone()),
        Outcome::NotStarted(text) => (reason::RUNTIME_EXECUTE, format!("runtime Execute: {text}")),
        Outcome::TimedOut => Failure::timeout(run).into_parts(),
        // However it ended, that was wanted.
        Outcome::Lost if run.spec.cancel_requested => Failure::cancelled().into_parts(),
        Outcome::Lost => Failure::lost().into_parts(),
        Outcome::Stopped if run.spec.cancel_requested => Failure::cancelled().into_parts(),
        Outcome::Stopped => (reason::EXECUTION_LOST, format!("stopped by the agent in attempt {}", run.attempt())),
    };
    let message = match exit.survivors.len() {
        0 => message,
        n => format!("{message}; {n} of its processes can't be killed"),
    };
    Some(Failure::new(reason, message))
}

/// What outputs that can't be taken mean.
pub fn failure_of_outputs(error: &OutputsError) -> Failure {
    let reason = if error.is_too_large() { reason::OUTPUTS_TOO_LARGE } else { reason::OUTPUTS_INVALID };
    Failure::new(reason, error.to_string())
}

/// Whether this agent can carry out the spec at all.
///
/// # Errors
/// It can't, said for people with the field's name.
pub fn check(run: &Run, me: &Me) -> Result<(), Failure> {
    let spec = &run.spec;
    if spec.mode.function.is_some() && !me.functions {
        let runtime = &me.runtime;
        return Err(Failure::invalid(format!(
            "spec.mode.function: runtime {runtime} starts processes; a function needs one with a Runtime Server, or use spec.mode.task"
        )));
    }
    if let Err(error) = spec.requests() {
        return Err(Failure::new(reason::INVALID_RESOURCES, error.to_string()));
    }
    if let Err(error) = spec.timeout() {
        return Err(Failure::invalid(format!("spec.timeout {:?}: {error}", spec.timeout.as_deref().unwrap_or_default())));
    }
    for (index, variable) in spec.env.iter().enumerate() {
        let field = format!("spec.env[{index}] ({:?})", variable.name);
        if variable.value_from.is_some() {
            return Err(Failure::invalid(format!(
                "{field}: valueFrom is not supported by the agent; write the value itself, or mount it into the Runtime Pod"
            )));
        }
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) || variable.value.as_ref().is_some_and(|value| value.contains('\0')) {
            return Err(Failure::invalid(format!("{field}: not a variable that a process can have")));
        }
    }
    if let Some(url) = spec.source.as_ref().and_then(|source| source.repo_url.as_deref()) {
        check_git(url, spec.source.as_ref().and_then(|source| source.commit_sha.as_deref())).map_err(Failure::invalid)?;
    }
    let task = spec.mode.task.as_ref();
    if let Some(index) = task.and_then(|task| task.args.iter().position(|arg| arg.contains('\0'))) {
        return Err(Failure::invalid(format!("spec.mode.task.args[{index}]: an argument of a process holds no NUL")));
    }
    if task.and_then(|task| task.entrypoint.as_ref()).is_some_and(|entrypoint| entrypoint.contains('\0')) {
        return Err(Failure::invalid("spec.mode.task.entrypoint: a path holds no NUL".to_owned()));
    }
    Ok(())
}

/// https, ssh or `user@host:path`, and no password in it: what is in a Run, everybody who may read Runs can read.
fn check_git(url: &str, revision: Option<&str>) -> Result<(), String> {
    const FIELD: &str = "spec.source.repoURL";
    let authority = |rest: &str| rest.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
    let user = match url.split_once("://") {
        Some(("https", rest)) => {
            if authority(rest).contains('@') {
                return Err(format!("{FIELD}: credentials in the URL are refused; give them to git in the Runtime Pod"));
            }
            None
        }
        Some(("ssh", rest)) => authority(rest).rsplit_once('@').map(|(user, _)| user.to_owned()),
        Some((scheme, _)) => return Err(format!("{FIELD}: scheme {scheme:?} is not supported, only https and ssh")),
        // scp-like; a path or an option has no host before the colon.
        None => match url.split_once(':').and_then(|(host, _)| host.split_once('@')) {
            Some((user, host)) if !user.is_empty() && !host.is_empty() && !url.starts_with('-') && !host.contains('/') => Some(user.to_owned()),
            _ => return Err(format!("{FIELD}: neither https://, ssh:// nor user@host:path")),
        },
    };
    if user.is_some_and(|user| user.contains(':')) {
        return Err(format!("{FIELD}: a password in the URL is refused; give git a key in the Runtime Pod"));
    }
    if url.contains(['\0', '\n']) {
        return Err(format!("{FIELD}: a URL has no NUL and no end of line"));
    }
    if revision.is_some_and(|revision| revision.starts_with('-') || revision.contains(['\0', '\n'])) {
        return Err("spec.source.commitSHA: a revision begins with no `-` and has no NUL and no end of line".to_owned());
    }
    Ok(())
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        6 => " (SIGABRT)",
        9 => " (SIGKILL; out of memory?)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_name_no_secret_and_no_other_protocol_reach_git() {
        for url in ["https://example.com/a.git", "ssh://git@example.com:22/a.git", "ssh://example.com/a", "git@example.com:a/b.git"] {
            assert_eq!(check_git(url, Some("v1.0")), Ok(()), "{url}");
        }
        for url in [
            "http://example.com/a",
            "file:///etc",
            "ext::sh -c x",
            "/etc/passwd",
            "-uhttps://x",
            "--upload-pack=x@y:z",
            "https://token@example.com/a",
            "https://user:pass@example.com/a",
            "ssh://user:pass@example.com/a",
            "git://example.com/a",
            "",
            "host:path",
        ] {
            let refused = check_git(url, None);
            assert!(refused.as_ref().is_err_and(|text| !text.contains("pass@") && !text.contains("token")), "{url}: {refused:?}");
        }
        assert!(check_git("https://example.com/a", Some("--upload-pack=x")).is_err());
    }

    #[test]
    fn a_message_is_one_bounded_line() {
        let failure = Failure::new(reason::RUNTIME_ERROR, format!("a\n\n  b \r\n{}", "é".repeat(2_000)));
        assert!(failure.message.starts_with("a | b | éé") && failure.message.len() < 1_024, "{}", failure.message);
        assert_eq!(Failure::new(reason::RUNTIME_ERROR, "\u{1b}[31mred\u{9b}2J".to_owned()).message, "\\u{1b}[31mred\\u{9b}2J");
    }
}
