//! The state matrix of Jobs through the OpenSandbox adapter: every move and every reason of the state machine, and the test on a real server that shows
//! it. A test that is named here asks [`missing`] at its end whether it did; tests/tidy holds the table complete.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;
use berth_controllers::job::api::Job;
use berth_controllers::job::machine::{State, TRANSITIONS};
use berth_controllers::job::reason::{
    BACKEND_CREATED, COMPLETED, ERROR, Failure, NotAccepted, NotScheduled, OBSERVED, OOM_KILLED, Unfinished, Unobserved, VALID,
};
use serde_json::Value;

/// Test of tests/opensandbox/jobs (`file::function`), and what it shows.
pub const SHOWN: &[(&str, &[&str])] = &[
    (
        "held::what_holds_a_job_back_is_told_and_it_waits_goes_on_or_goes",
        &[
            "Accepted=False/NoDefaultClass",
            "Accepted=False/JobClassNotFound",
            "Accepted=False/JobClassNotReady",
            "Accepted=False/InvalidJobClass",
            "Accepted=False/NamespaceNotAllowed",
            "Accepted=False/ParametersNotFound",
            "Accepted=False/InvalidParameters",
            "Accepted=False/ResourcesOutOfRange",
            "Accepted=False/DeadlineRequired",
            "Accepted=False/DeadlineTooLong",
            "Accepted=False/TTLRequired",
            "Accepted=False/TTLTooLong",
            "Accepted=False/ImageDigestRequired",
            "Accepted=False/SecretDeliveryNotAllowed",
            "Accepted=False/Unsupported",
            "Accepted=False/SecretNotFound",
            "Accepted=False/SecretKeyNotFound",
            "Accepted=False/ConfigMapNotFound",
            "Accepted=False/ConfigMapKeyNotFound",
            "Succeeded=Unknown/Pending",
            "Scheduled=False/ParametersGone",
            "Resolving → Scheduling",
            "Resolving → Cancelling",
            "Resolving → Deleting",
            "Scheduling → Cancelling",
            "Cancelling → Cancelled",
            "Cancelled → Deleting",
            "Deleting → gone",
        ],
    ),
    (
        "states::a_job_whose_sandbox_is_being_made_or_waits_goes_wherever_it_may",
        &[
            "Scheduled=False/Pending",
            "Succeeded=Unknown/Scheduling",
            "Succeeded=Unknown/WaitingForReference",
            "Accepted=True/Valid",
            "Scheduled=True/BackendCreated",
            "Scheduling → Starting",
            "Scheduling → Cancelling",
            "Scheduling → Deleting",
            "Starting → Running",
            "Starting → Cancelling",
            "Starting → Deleting",
            "Starting → ResultUnknown",
            "ResultUnknown → Starting",
            "BackendObserved=False/BackendPaused",
            "BackendObserved=True/Observed",
        ],
    ),
    (
        "states::what_happened_while_nobody_could_ask_is_told_afterwards",
        &[
            "Succeeded=Unknown/Running",
            "Succeeded=Unknown/ResultUnknown",
            "BackendObserved=False/BackendUnreachable",
            "Running → ResultUnknown",
            "ResultUnknown → Succeeded",
            "ResultUnknown → Failed",
            "ResultUnknown → Cancelling",
            "ResultUnknown → Deleting",
            "BackendUnreachable → Cancelling",
            "BackendUnreachable → Deleting",
            "Running → Cancelling",
            "Running → Deleting",
            "Cancelling → Deleting",
            "Cancelling → Succeeded",
            "Cancelling → Failed",
            "StopRequested=True/Cancelled",
        ],
    ),
    (
        "states::a_sandbox_that_another_key_does_not_see_is_unknown_until_somebody_confirms_its_loss",
        &[
            "BackendObserved=False/SandboxVanished",
            "SandboxVanished → Cancelling",
            "SandboxVanished → Deleting",
            "ResultUnknown → Failed",
            "Succeeded=False/BackendLost",
        ],
    ),
    (
        "states::in_mode_entrypoint_a_start_waits_for_its_server_or_is_unconfirmed",
        &[
            "Succeeded=Unknown/Starting",
            "Succeeded=Unknown/WaitingForContainer",
            "BackendObserved=False/StartUnconfirmed",
            "Starting → ResultUnknown",
            "ResultUnknown → Running",
            "StartUnconfirmed → Cancelling",
            "StartUnconfirmed → Deleting",
        ],
    ),
    (
        "states::what_the_server_refuses_ends_the_job_with_the_reason",
        &[
            "Scheduled=False/BackendRefuses",
            "Succeeded=False/BackendRejected",
            "Succeeded=False/BackendUnavailable",
            "Succeeded=False/InvalidImageName",
            "Succeeded=False/Disrupted",
            "Scheduling → Failed",
            "Running → Failed",
            "Failed → Deleting",
        ],
    ),
    ("losses::a_paused_sandbox_is_unknown_and_goes_on_or_is_cancelled", &["ResultUnknown → Running", "BackendPaused → Cancelling", "BackendPaused → Deleting"]),
    (
        "ends::processes_end_by_themselves_with_their_code",
        &["result/Completed", "result/Error", "Succeeded=True/Completed", "Succeeded=False/ProcessFailed", "Succeeded=False/StartFailed", "Starting → Failed"],
    ),
    (
        "ends::a_stop_is_told_once_it_is_certain_with_the_code_if_there_was_one",
        &[
            "StopRequested=True/DeadlineExceeded",
            "Succeeded=False/DeadlineExceeded",
            "Succeeded=False/Cancelled",
            "Succeeded → Deleting",
            "Running → Failed",
            "Running → Deleting",
        ],
    ),
    ("ends::memory_beyond_the_limit_ends_the_process_and_not_the_sandbox", &["result/OOMKilled"]),
    (
        "ends::in_mode_entrypoint_what_certainly_never_ran_is_told_so",
        &["Succeeded=Unknown/WaitingForImage", "Succeeded=False/ImagePullFailed", "Succeeded=False/ImagePullSecretUnavailable"],
    ),
    ("ends::in_mode_entrypoint_the_sandbox_is_the_process", &["Running → Succeeded", "Running → Failed", "Running → Cancelling"]),
    ("credentials::a_wrong_key_is_told_and_the_right_one_counts_at_once", &["Scheduled=False/BackendUnavailable", "Running → Failed"]),
];

/// What no Job of this adapter comes to, and why.
pub const NEVER: &[(&str, &str)] = &[
    ("Scheduling → ResultUnknown", "what is on record before a start, a sandbox or a reservation, makes it Starting"),
    ("ResultUnknown → Scheduling", "what is on record stays there"),
    ("Scheduled=False/BackendNameConflict", "the server gives ids; nothing of a Job's is found by a name"),
    ("Succeeded=False/BackendNameConflict", "the same"),
    ("Succeeded=Unknown/WaitingForNode", "the server has no answer that means it: a create without room is BackendRefuses"),
    ("Succeeded=False/PodRejected", "a Pod's"),
    ("Succeeded=False/ContainersInjected", "a Pod's"),
    ("Succeeded=False/ContainerCreateFailed", "the server says SandboxStartFailed for it: StartFailed"),
    ("BackendObserved=False/NodeLost", "a Pod's"),
    ("BackendObserved=False/PodVanished", "a Pod's; SandboxVanished is its like"),
];

/// What a Docker engine brings no Job to, why, and the unit test of the adapter that shows it instead.
pub const ELSEWHERE: &[(&str, &str, &str)] = &[(
    "Succeeded=False/ImageHasNoShell",
    "a container without a shell does not start on Docker, which is StartFailed; on other runtimes the sandbox is there and its execd can run nothing",
    "verdict::only_a_sandbox_that_does_not_live_has_no_shell_and_only_a_command_s_own_code_tells_of_its_folder",
)];

/// Everything that a row is needed for.
pub fn all() -> BTreeSet<String> {
    let mut all: BTreeSet<String> = TRANSITIONS.iter().map(|transition| moved(transition.from.name(), transition.to.name())).collect();
    all.insert(moved(State::Deleting.name(), GONE));
    let mut reasons = |kind: &str, status: &str, words: Vec<&'static str>| all.extend(words.into_iter().map(|word| condition(kind, status, word)));
    reasons("Accepted", "False", NotAccepted::ALL.iter().map(|reason| reason.as_str()).collect());
    reasons("Accepted", "True", vec![VALID]);
    reasons("Scheduled", "False", NotScheduled::ALL.iter().map(|reason| reason.as_str()).collect());
    reasons("Scheduled", "True", vec![BACKEND_CREATED]);
    reasons("Succeeded", "Unknown", Unfinished::ALL.iter().map(|reason| reason.as_str()).collect());
    reasons("Succeeded", "False", Failure::ALL.iter().map(|reason| reason.as_str()).collect());
    reasons("Succeeded", "True", vec![COMPLETED]);
    reasons("BackendObserved", "False", Unobserved::ALL.iter().map(|reason| reason.as_str()).collect());
    reasons("BackendObserved", "True", vec![OBSERVED]);
    // A stop that gives up has the reason of what was waited for, which is among the ends.
    reasons("StopRequested", "True", [Failure::Cancelled, Failure::DeadlineExceeded].map(Failure::as_str).to_vec());
    all.extend([COMPLETED, ERROR, OOM_KILLED].map(|reason| format!("result/{reason}")));
    // A stop while nothing is certain, for each of the reasons of that.
    let known: BTreeSet<&str> = NEVER.iter().map(|(fact, _)| *fact).collect();
    for reason in Unobserved::ALL.iter().map(|reason| reason.as_str()).filter(|reason| !known.contains(&*condition("BackendObserved", "False", reason))) {
        all.extend([State::Cancelling, State::Deleting].map(|to| moved(reason, to.name())));
    }
    all
}

const GONE: &str = "gone";

fn moved(from: &str, to: &str) -> String {
    format!("{from} → {to}")
}

fn condition(kind: &str, status: &str, reason: &str) -> String {
    format!("{kind}={status}/{reason}")
}

/// What a change of a Job shows; None as `new`: it is gone.
///
/// # Errors
/// It is no Job.
pub fn shown(old: Option<&Value>, new: Option<&Value>) -> Result<BTreeSet<String>> {
    let read = |job: Option<&Value>| job.map(|job| serde_json::from_value::<Job>(job.clone())).transpose();
    let (old, new) = (read(old)?, read(new)?);
    let state = |job: &Job| State::of(job.metadata.deletion_timestamp.is_some(), &job.spec, job.status.as_ref());
    let mut shown = BTreeSet::new();
    if let Some(old) = &old {
        let (from, to) = (state(old), new.as_ref().map_or(GONE, |new| state(new).name()));
        if from.name() != to {
            shown.insert(moved(from.name(), to));
            let observed = old.status.iter().flat_map(|status| &status.conditions).find(|found| found.type_ == "BackendObserved");
            if let Some(reason) = observed.filter(|found| from == State::ResultUnknown && found.status == "False") {
                shown.insert(moved(&reason.reason, to));
            }
        }
    }
    let status = new.as_ref().and_then(|new| new.status.as_ref());
    shown.extend(status.iter().flat_map(|status| &status.conditions).map(|found| condition(&found.type_, &found.status, &found.reason)));
    shown.extend(status.and_then(|status| status.result.as_ref()?.reason.as_ref()).map(|reason| format!("result/{reason}")));
    Ok(shown)
}

/// What a test is to show, and has not.
pub fn missing<'a>(test: &str, seen: &'a BTreeSet<String>) -> impl Iterator<Item = &'static str> + use<'a> {
    let wanted: Vec<_> = SHOWN.iter().filter(|(name, _)| *name == test).flat_map(|(_, facts)| *facts).copied().collect();
    assert!(!wanted.is_empty(), "{test} is not in the matrix");
    wanted.into_iter().filter(|fact| !seen.contains(*fact))
}

/// The page `design/job-states-opensandbox.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# The states of a Job on OpenSandbox\n\nEvery move of [job-states](job-states.md) and every reason, and the test on a real server that shows it. Written by\n\
         `cargo run -p berth-tests --example job-matrix` from `tests/src/job_matrix.rs`. tests/tidy holds it complete against the state machine's own lists; each test\n\
         named here fails if what it stands for was not among what the API server stored. `X → Cancelling` with a reason as X: from ResultUnknown for that reason.\n\n\
         | move or reason | tests/opensandbox/jobs |\n|---|---|\n",
    );
    for fact in all() {
        let tests: Vec<String> = SHOWN.iter().filter(|(_, facts)| facts.contains(&&*fact)).map(|(test, _)| format!("`{test}`")).collect();
        let never = NEVER.iter().find(|(never, _)| *never == fact).map(|(_, why)| format!("never: {why}"));
        let elsewhere = ELSEWHERE.iter().find(|(other, ..)| *other == fact).map(|(_, why, test)| format!("unit test `{test}`: {why}"));
        let _ = writeln!(page, "| {fact} | {} |", never.or(elsewhere).unwrap_or_else(|| tests.join(", ")));
    }
    page
}
