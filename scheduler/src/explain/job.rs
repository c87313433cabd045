//! `berth explain job`: where a Job stands, its whole timeline, and what to do next, from the object alone.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::conditions;
use berth_controllers::job::api::Job;
use berth_controllers::job::api::names::condition::{ACCEPTED, BACKEND_OBSERVED, PROGRESSING, SCHEDULED, STOP_REQUESTED, SUCCEEDED};
use berth_controllers::job::api::names::{ANNOTATION_CONFIRM_LOST, ANNOTATION_CONFIRMED_BY, CONTROLLER_OPENSANDBOX};
use berth_controllers::job::api::resources::ResourceRequirements;
use berth_controllers::job::api::status::{Execution, JobResult};
use berth_controllers::job::machine::State;
use berth_controllers::job::reason::{NotAccepted, NotScheduled, Unfinished, Unobserved};
use berth_runtime::apiclient::{CallError, Limits};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, ResourceExt as _};
use serde::Serialize;

use super::place::PlaceArgs;
use crate::cli::EXIT_OK;
use crate::printable::{Printable, one_line};
use crate::simulate::Output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  # Where does it stand, since when, and what is it waiting for?
  berth explain job hello-x7k2p -n ci
  berth explain job ci/hello-x7k2p -o json")]
pub struct JobArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// The answer; its JSON is stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// The Job's namespace.
    pub namespace: String,
    /// The Job's name.
    pub name: String,
    /// `metadata.uid`: what its execution, logs and metrics are found by.
    pub uid: String,
    /// One of the ten states.
    pub state: &'static str,
    /// The class that it was accepted under; else the one that it names.
    pub class: Option<String>,
    /// Reason of Succeeded.
    pub reason: Option<String>,
    /// Message of Succeeded.
    pub message: Option<String>,
    /// What to do, where something can be done.
    pub advice: Option<String>,
    /// What happened and will happen, oldest first.
    pub timeline: Vec<Moment>,
    /// CPU and memory that it really has.
    pub effective_resources: Option<ResourceRequirements>,
    /// Adapter and references.
    pub execution: Option<Execution>,
    /// Exit code and reason.
    pub result: Option<JobResult>,
}

/// A line of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// When.
    pub at: Timestamp,
    /// It is still to come.
    pub ahead: bool,
    /// What.
    pub what: String,
}

/// Explains and prints; answers the exit code.
///
/// # Errors
/// The cluster can't be read, or the Job isn't there.
pub fn run(args: &JobArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let job = runtime.block_on(async {
        let (client, namespace, name) = args.place.find("Job", Limits::default()).await?;
        read(&Api::namespaced(client, &namespace), &namespace, &name).await
    })?;
    let told = tell(&job, Timestamp::now());
    match args.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &told)?;
            writeln!(out)?;
        }
        Output::Table => print(&told, out)?,
    }
    Ok(EXIT_OK)
}

/// The Job.
///
/// # Errors
/// It can't be read, or isn't there.
pub async fn read(jobs: &Api<Job>, namespace: &str, name: &str) -> anyhow::Result<Job> {
    let found = jobs.get_opt(name).await.map_err(CallError::from).with_context(|| format!("cannot get Job {namespace}/{name}"))?;
    let Some(job) = found else { bail!("Job {namespace}/{name} of execution.ayatori.ddupan.top not found") };
    Ok(job)
}

/// What a Job tells at that time.
pub fn tell(job: &Job, now: Timestamp) -> Told {
    let status = job.status.as_ref();
    let state = State::of(job.metadata.deletion_timestamp.is_some(), &job.spec, status);
    let find = |kind: &str| status.and_then(|status| conditions::find(&status.conditions, kind));
    let succeeded = find(SUCCEEDED);
    Told {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
        state: state.name(),
        class: status.and_then(|status| status.resolved_job_class.as_ref()).map(|class| class.name.clone()).or_else(|| job.spec.job_class_name.clone()),
        reason: succeeded.map(|condition| condition.reason.clone()),
        message: succeeded.map(|condition| condition.message.clone()),
        advice: advice(job, state),
        timeline: timeline(job, now),
        effective_resources: status.and_then(|status| status.effective_resources.clone()),
        execution: status.and_then(|status| status.execution.clone()),
        result: status.and_then(|status| status.result.clone()),
    }
}

fn timeline(job: &Job, now: Timestamp) -> Vec<Moment> {
    let status = job.status.clone().unwrap_or_default();
    let ended = status.completion_time.as_ref().map(|time| time.0);
    let mut moments: Vec<(Timestamp, String)> = Vec::new();
    moments.extend(job.metadata.creation_timestamp.as_ref().map(|time| (time.0, "created".to_owned())));
    // In the order of a life, so that moments of one second stay in it.
    for kind in [ACCEPTED, SCHEDULED, PROGRESSING, BACKEND_OBSERVED, STOP_REQUESTED] {
        moments.extend(conditions::find(&status.conditions, kind).map(of_condition));
        if kind == SCHEDULED {
            moments.extend(status.start_time.as_ref().map(|time| (time.0, "the process started".to_owned())));
        }
    }
    // While it is Unknown its reason comes and goes, and its time stays that of the first: told above the timeline.
    moments.extend(conditions::find(&status.conditions, SUCCEEDED).filter(|_| ended.is_some()).map(of_condition));
    moments.extend(job.metadata.deletion_timestamp.as_ref().map(|time| (time.0, "deletion asked for".to_owned())));
    if let (None, Some(start), Some(seconds)) = (ended, &status.start_time, job.spec.active_deadline_seconds) {
        moments.extend(later(start.0, seconds.unsigned_abs()).map(|at| (at, format!("activeDeadlineSeconds {seconds} is over: it is stopped"))));
    }
    if let (Some(ended), Some(seconds), None) = (ended, job.spec.ttl_seconds_after_finished, &job.metadata.deletion_timestamp) {
        moments.extend(later(ended, u64::from(seconds.unsigned_abs())).map(|at| (at, format!("ttlSecondsAfterFinished {seconds} is over: it is deleted"))));
    }
    moments.sort_by_key(|(at, _)| *at);
    moments.into_iter().map(|(at, what)| Moment { at, ahead: at > now, what }).collect()
}

fn of_condition(condition: &Condition) -> (Timestamp, String) {
    let Condition { type_, status, reason, message, .. } = condition;
    (condition.last_transition_time.0, format!("{type_}={status} {reason}: {message}"))
}

fn later(time: Timestamp, seconds: u64) -> Option<Timestamp> {
    time.checked_add(jiff::SignedDuration::try_from(Duration::from_secs(seconds)).ok()?).ok()
}

/// What somebody can do about it. That nothing certain is known goes before the state: what is being cancelled may be on a lost node too.
fn advice(job: &Job, state: State) -> Option<String> {
    let reason = |kind: &str| condition_reason(job, kind);
    let text = match (state, reason(SUCCEEDED).and_then(Unfinished::parse)) {
        (_, Some(Unfinished::ResultUnknown)) => return Some(lost(job, state)),
        (State::Resolving, _) => match reason(ACCEPTED) {
            Some(reason) => not_accepted(NotAccepted::parse(reason)?),
            None => {
                "if it stays so: is Berth up, with jobs.enabled, and is the JobClass one of its own (kubectl get jobclasses -o wide)? Those of other controllers are theirs"
            }
        },
        (State::Scheduling, _) => not_scheduled(NotScheduled::parse(reason(SCHEDULED)?)?, is_sandboxed(job))?,
        (State::Starting, Some(waits)) => not_started(waits)?,
        (State::Deleting, _) if is_sandboxed(job) => {
            "it goes when its OpenSandbox server says that its sandbox is gone; if that server never comes back, see the runbook of docs/opensandbox.md"
        }
        (State::Deleting, _) => "it goes when its execution has verifiably stopped; if its node never comes back, see docs/jobs.md, \"Forced clean-up\"",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Whether an OpenSandbox server carries it.
pub fn is_sandboxed(job: &Job) -> bool {
    job.status.as_ref().and_then(|status| status.resolved_job_class.as_ref()).is_some_and(|class| class.controller_name == CONTROLLER_OPENSANDBOX)
}

fn not_accepted(reason: NotAccepted) -> &'static str {
    match reason {
        NotAccepted::SecretNotFound | NotAccepted::SecretKeyNotFound | NotAccepted::ConfigMapNotFound | NotAccepted::ConfigMapKeyNotFound => {
            "create what the message names; it is looked for again, less and less often, at least every 2 minutes"
        }
        NotAccepted::SecretDeliveryNotAllowed => {
            "the class must have secretDelivery: ControllerResolved, and the chart this namespace in jobs.openSandbox.referenceNamespaces; it is judged again then"
        }
        NotAccepted::NoDefaultClass => {
            "annotate the Namespace with execution.ayatori.ddupan.top/default-job-class, or create the Job anew with spec.jobClassName"
        }
        NotAccepted::JobClassNotFound => "create that JobClass, or create the Job anew with another one: kubectl get jobclasses",
        NotAccepted::JobClassNotReady | NotAccepted::InvalidJobClass | NotAccepted::ParametersNotFound | NotAccepted::InvalidParameters => {
            "the JobClass can't be used as it is; an administrator sees why with kubectl describe jobclass"
        }
        NotAccepted::NamespaceNotAllowed => "ask for a label on the Namespace that the class's namespaceSelector selects, or use another class",
        NotAccepted::TTLRequired | NotAccepted::TTLTooLong => "set spec.ttlSecondsAfterFinished within the class's bounds; it may be changed",
        _ => "the class does not allow this Job: create it anew as the message says, or have the class changed; it is judged again then",
    }
}

fn not_scheduled(reason: NotScheduled, is_sandboxed: bool) -> Option<&'static str> {
    Some(match reason {
        NotScheduled::Pending => return None,
        NotScheduled::BackendRefuses if is_sandboxed => {
            "see to what the message names: image, registry, quota of the OpenSandbox server; it is tried again until the parameters' createWindow is over"
        }
        NotScheduled::BackendUnavailable if is_sandboxed => {
            "see to the OpenSandbox server or its key: kubectl describe jobclass tells by BackendReady. It is tried again for as long as the server can't be asked; creates that come to nothing are counted (maxCreateAttempts)"
        }
        NotScheduled::BackendRefuses => {
            "see to the quota, policy or right that the message names (kubectl describe quota); it is tried again until the class's grace is over"
        }
        NotScheduled::BackendUnavailable => "the backend doesn't answer; it is tried again until the class's grace is over",
        NotScheduled::BackendNameConflict => {
            "somebody else's object has the name that the message tells: have it deleted; it is tried again until the class's grace is over"
        }
        NotScheduled::ParametersGone => "the parameters that it was accepted with are gone, and others are not taken for them: create the Job anew",
    })
}

fn not_started(reason: Unfinished) -> Option<&'static str> {
    Some(match reason {
        Unfinished::WaitingForReference => "create what the message names; the Job goes on by itself",
        Unfinished::WaitingForImage => "see to image and imagePullSecrets; it is pulled again until the class's grace is over",
        Unfinished::WaitingForNode => "no node has room for it; it waits",
        Unfinished::WaitingForContainer => "the node can't make the container; it is tried again until the class's grace is over",
        _ => return None,
    })
}

fn condition_reason<'a>(job: &'a Job, kind: &str) -> Option<&'a str> {
    Some(conditions::find(&job.status.as_ref()?.conditions, kind)?.reason.as_str())
}

/// Of a Job of which nothing certain is known.
fn lost(job: &Job, state: State) -> String {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    let class = job.status.as_ref().and_then(|status| status.resolved_job_class.as_ref()).map_or("", |class| class.name.as_str());
    if is_confirmed(job) {
        let by = job.annotations().get(ANNOTATION_CONFIRMED_BY).map_or("an administrator", String::as_str);
        return format!(
            "{by} confirmed its loss. It ends BackendLost when BackendObserved has been False for the class's minLossConfirmationAge (15m by default): \
             kubectl get jobclass {class} -o jsonpath='{{.spec.minLossConfirmationAge}}'"
        );
    }
    let force =
        if state == State::Deleting { " Deleted as it is, it then stays until somebody forces its clean-up (docs/jobs.md, \"Forced clean-up\")." } else { "" };
    let what = match (is_sandboxed(job), condition_reason(job, BACKEND_OBSERVED).and_then(Unobserved::parse)) {
        (true, Some(Unobserved::BackendPaused)) => "its sandbox is paused: resume it, or cancel the Job, and the sandbox is removed.",
        (true, _) => {
            "its sandbox can't be asked, as the message says. It goes on by itself when it answers again; cancelled, it ends once the server has removed its sandbox."
        }
        (false, _) => "its node or its Pod can't be asked. It goes on by itself when it answers again.",
    };
    format!(
        "{what}{force} If it never will, an administrator can confirm the loss; \
         that counts once BackendObserved has been False for the class's minLossConfirmationAge, 15m by default (docs/jobs.md, \"When a backend is lost\"): kubectl annotate ajob {name} -n {namespace} {ANNOTATION_CONFIRM_LOST}={}",
        job.uid().unwrap_or_default()
    )
}

/// Its loss was confirmed with its own UID.
fn is_confirmed(job: &Job) -> bool {
    job.annotations().get(ANNOTATION_CONFIRM_LOST).is_some_and(|confirmed| Some(confirmed) == job.metadata.uid.as_ref())
}

fn print(told: &Told, out: &mut dyn Write) -> io::Result<()> {
    let out = &mut Printable(out);
    let class = told.class.as_deref().map_or_else(String::new, |class| format!(", class {class}"));
    writeln!(out, "Job {}/{} ({}{class})", told.namespace, told.name, told.state)?;
    match (&told.reason, &told.message) {
        (Some(reason), Some(message)) => writeln!(out, "{reason}: {}", one_line(message))?,
        _ => writeln!(out, "No controller has looked at it yet.")?,
    }
    if let Some(JobResult { exit_code: Some(code), .. }) = &told.result {
        writeln!(out, "Exit code {code}.")?;
    }
    if let Some(advice) = &told.advice {
        writeln!(out, "What to do: {}", one_line(advice))?;
    }
    writeln!(out)?;
    for Moment { at, ahead, what } in &told.timeline {
        writeln!(out, "{at}  {}{}", if *ahead { "(to come) " } else { "" }, one_line(what))?;
    }
    writeln!(out)?;
    if let Some(ResourceRequirements { requests, limits }) = &told.effective_resources {
        let list = |of: &Option<_>| serde_json::to_string(of).unwrap_or_default();
        writeln!(out, "Resources: requests {}, limits {}", list(requests), list(limits))?;
    }
    if let Some(execution) = &told.execution {
        let references: Vec<String> = execution.references.iter().map(|reference| format!("{} {}", reference.type_, reference.id)).collect();
        writeln!(out, "Execution: {}, {}", execution.adapter, one_line(&references.join(", ")))?;
    }
    writeln!(out, "UID: {}", told.uid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn condition(kind: &str, status: &str, reason: &str, second: u32) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": format!("about {reason}"), "lastTransitionTime": format!("2026-01-02T03:04:{second:02}Z")})
    }

    fn told(status: Value, more: Value) -> Told {
        let mut job = json!({"metadata": {"name": "hello", "namespace": "ci", "uid": "u-1", "creationTimestamp": "2026-01-02T03:04:00Z"},
            "spec": {"task": {"image": "i"}, "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 30}});
        if !status.is_null() {
            job["status"] = status;
        }
        for (at, value) in more.as_object().unwrap() {
            let (parent, field) = at.rsplit_once('/').unwrap();
            job.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        tell(&from_value(job).unwrap(), "2026-01-02T03:04:30Z".parse().unwrap())
    }

    fn text(told: &Told) -> String {
        let mut out = Vec::new();
        print(told, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn running() -> Value {
        json!({"conditions": [condition("Accepted", "True", "Valid", 1), condition("Scheduled", "True", "BackendCreated", 1), condition("Succeeded", "Unknown", "Running", 5)],
            "startTime": "2026-01-02T03:04:05Z", "resolvedJobClass": {"name": "small", "uid": "c", "controllerName": "x/y"},
            "execution": {"adapter": "kubernetes", "references": [{"type": "Job", "id": "j-1"}, {"type": "Pod", "id": "p-1"}]}})
    }

    #[test]
    fn a_running_job_tells_its_life_and_its_deadline() {
        let told = told(running(), json!({}));
        assert_eq!((told.state, told.class.as_deref(), told.advice.as_deref()), ("Running", Some("small"), None));
        let lines: Vec<&str> = told.timeline.iter().map(|moment| moment.what.split([':', '=']).next().unwrap()).collect();
        assert_eq!(lines, ["created", "Accepted", "Scheduled", "the process started", "activeDeadlineSeconds 60 is over"]);
        assert_eq!(told.timeline.iter().map(|moment| moment.ahead).collect::<Vec<_>>(), [false, false, false, false, true]);
        let text = text(&told);
        assert!(text.starts_with("Job ci/hello (Running, class small)\nRunning: about Running\n"), "{text}");
        assert!(text.contains("Execution: kubernetes, Job j-1, Pod p-1\nUID: u-1\n"), "{text}");
    }

    #[test]
    fn an_end_tells_when_the_job_goes() {
        let mut status = running();
        status["conditions"][2] = condition("Succeeded", "False", "ProcessFailed", 9);
        status["completionTime"] = json!("2026-01-02T03:04:09Z");
        status["result"] = json!({"exitCode": 3, "reason": "Error"});
        let told = told(status, json!({}));
        assert_eq!(told.state, "Failed");
        assert_eq!(told.timeline.last().unwrap().what, "ttlSecondsAfterFinished 30 is over: it is deleted");
        assert!(text(&told).contains("ProcessFailed: about ProcessFailed\nExit code 3.\n"), "{}", text(&told));
    }

    #[test]
    fn whoever_waits_is_told_what_to_do() {
        let advice = |status: Value| told(status, json!({})).advice.unwrap_or_default();
        for (reason, words) in [
            ("NoDefaultClass", "annotate the Namespace"),
            ("JobClassNotFound", "create that JobClass"),
            ("TTLTooLong", "may be changed"),
            ("ResourcesOutOfRange", "anew"),
            ("SecretKeyNotFound", "create what the message names"),
            ("SecretDeliveryNotAllowed", "referenceNamespaces"),
        ] {
            let status = json!({"conditions": [condition("Accepted", "False", reason, 1), condition("Succeeded", "Unknown", "Pending", 1)]});
            assert!(advice(status).contains(words), "{reason}");
        }
        let mut starting = running();
        starting.as_object_mut().unwrap().remove("startTime");
        for (reason, words) in [("WaitingForReference", "goes on by itself"), ("WaitingForImage", "imagePullSecrets"), ("WaitingForNode", "no node")] {
            starting["conditions"][2] = condition("Succeeded", "Unknown", reason, 5);
            assert!(advice(starting.clone()).contains(words), "{reason}");
        }
        let scheduling = |reason: &str| json!({"conditions": [condition("Accepted", "True", "Valid", 1), condition("Scheduled", "False", reason, 1), condition("Succeeded", "Unknown", "Scheduling", 1)]});
        for (reason, words) in
            [("BackendRefuses", "quota"), ("BackendNameConflict", "have it deleted"), ("ParametersGone", "anew"), ("BackendUnavailable", "tried again")]
        {
            assert!(advice(scheduling(reason)).contains(words), "{reason}");
        }
        assert_eq!(advice(scheduling("Pending")), "");
        let sandboxed = |mut status: Value| {
            status["resolvedJobClass"] = json!({"name": "sandbox", "uid": "c", "controllerName": CONTROLLER_OPENSANDBOX});
            advice(status)
        };
        for (reason, words) in [("BackendRefuses", "createWindow"), ("BackendUnavailable", "describe jobclass"), ("ParametersGone", "anew")] {
            assert!(sandboxed(scheduling(reason)).contains(words), "{reason}");
        }
        for (reason, words) in [("BackendPaused", "resume it, or cancel"), ("BackendUnreachable", "once the server has removed its sandbox")] {
            let mut unknown = running();
            unknown["conditions"][2] = condition("Succeeded", "Unknown", "ResultUnknown", 9);
            unknown["conditions"].as_array_mut().unwrap().push(condition("BackendObserved", "False", reason, 9));
            assert!(sandboxed(unknown.clone()).contains(words) && advice(unknown).contains("its node or its Pod"), "{reason}");
        }
        let untouched = told(Value::Null, json!({}));
        assert!(text(&untouched).contains("No controller has looked at it yet.\nWhat to do: if it stays so: is Berth up"), "{}", text(&untouched));
    }

    #[test]
    fn a_lost_job_tells_the_whole_command_and_that_its_loss_was_confirmed() {
        let unknown = || {
            let mut status = running();
            status["conditions"][2] = condition("Succeeded", "Unknown", "ResultUnknown", 5);
            status
        };
        let advice = |more: Value| told(unknown(), more).advice.unwrap_or_default();
        let command = "kubectl annotate ajob hello -n ci execution.ayatori.ddupan.top/confirm-backend-lost=u-1";
        for more in [json!({}), json!({"/spec/desiredState": "Cancelled"}), json!({"/metadata/deletionTimestamp": "2026-01-02T03:04:20Z"})] {
            let advice = advice(more.clone());
            assert!(advice.ends_with(command) && advice.contains("minLossConfirmationAge"), "{more}: {advice}");
            assert_eq!(advice.contains("Forced clean-up"), more.get("/metadata/deletionTimestamp").is_some(), "{more}");
        }
        let confirmed = |uid: &str| json!({"/metadata/annotations": {"execution.ayatori.ddupan.top/confirm-backend-lost": uid, "execution.ayatori.ddupan.top/backend-lost-confirmed-by": "eve"}});
        let waits = advice(confirmed("u-1"));
        assert!(waits.starts_with("eve confirmed its loss. It ends BackendLost when") && waits.contains("kubectl get jobclass small"), "{waits}");
        assert!(advice(confirmed("u-0")).ends_with(command), "another Job's");
    }
}
