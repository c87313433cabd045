//! What OpenSandbox is known not to be able to do, so that it is said before anything is made (design of Jobs, §0 and §3).

use berth_opensandbox::fence::{Fence, TEXT_BYTES_MAX, is_passed_on};

use crate::job::adapter::opensandbox::names::{FENCE_FOLDER, NONCE_LENGTH};
use crate::job::api::opensandbox::{ExecutionMode, ImageAuth, OpenSandboxExecutionParametersSpec, RequestMapping};
use crate::job::api::spec::JobSpec;

/// Names of variables that belong to the sandbox.
const RESERVED_NAME: &str = "EXECD_ACCESS_TOKEN";
const RESERVED_PREFIX: &str = "OPENSANDBOX_";
/// Length of a UID.
const UID_LENGTH: usize = 36;

/// What of the Job can't be executed, a line each.
pub fn unsupported(spec: &JobSpec, parameters: &OpenSandboxExecutionParametersSpec) -> Vec<String> {
    let mut problems = Vec::new();
    if spec.task.command.is_empty() {
        problems.push("task.command is required: OpenSandbox doesn't know the image's entrypoint".to_owned());
    }
    let argv = || spec.task.command.iter().chain(&spec.task.args);
    if argv().any(|word| word.contains('\0')) {
        problems.push("task.command and task.args: no word may have a NUL".to_owned());
    }
    if parameters.execution_mode == ExecutionMode::FencedCommand {
        let first = spec.task.command.first().map_or("", String::as_str);
        if !spec.task.command.is_empty() && (first.is_empty() || first.starts_with('-')) {
            problems.push("task.command: its first word may not be empty or begin with a hyphen".to_owned());
        }
        // All of it is one word of execd's shell.
        let argv: Vec<String> = argv().cloned().collect();
        let text = Fence::new(FENCE_FOLDER, &"0".repeat(UID_LENGTH), &"0".repeat(NONCE_LENGTH)).and_then(|fence| fence.start(&argv));
        if let Ok(text) = text
            && text.len() > TEXT_BYTES_MAX
        {
            let message = format!("task.command and task.args: {} bytes as the sandbox's shell gets them, which takes {TEXT_BYTES_MAX} at most", text.len());
            problems.push(message);
        }
        // A shell is between the sandbox and the process, and drops what it has no word for.
        let odd = spec.task.env.iter().filter(|env| !is_passed_on(&env.name));
        problems.extend(odd.map(|env| {
            format!("task.env {}: in mode FencedCommand a name is letters, digits and underscores, no digit first, and none that a shell has", env.name)
        }));
    }
    // With its name and a NUL it is one word of execve(2), which takes as much.
    let is_long = |name: &str, value: &str| name.len() + 1 + value.len() > TEXT_BYTES_MAX;
    let long = spec.task.env.iter().filter(|env| env.value.as_ref().is_some_and(|value| is_long(&env.name, value)));
    problems.extend(long.map(|env| format!("task.env {}: longer than the {TEXT_BYTES_MAX} bytes that a process can be given", env.name)));
    let reserved = spec.task.env.iter().filter(|env| env.name == RESERVED_NAME || env.name.starts_with(RESERVED_PREFIX));
    problems.extend(reserved.map(|env| format!("task.env {} belongs to the sandbox", env.name)));
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    if parameters.resource_mapping.requests == RequestMapping::Reject && requests.is_some_and(|requests| requests.cpu.is_some() || requests.memory.is_some()) {
        problems.push("resources.requests: the backend knows limits alone".to_owned());
    }
    if parameters.image_auth == ImageAuth::Unsupported && !spec.task.image_pull_secrets.is_empty() {
        problems.push("task.imagePullSecrets: the backend takes no registry credentials".to_owned());
    }
    problems
}

/// Whether executing the Job needs the value of a Secret in the controller's hands.
pub fn needs_secrets(spec: &JobSpec) -> bool {
    let from_secret = |env: &crate::job::api::spec::EnvVar| env.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some());
    !spec.task.image_pull_secrets.is_empty() || spec.task.env.iter().any(from_secret)
}
