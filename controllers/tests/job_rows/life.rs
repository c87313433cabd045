//! Rows about the status of a Job, written through the subresource: a life is allowed, and each way to break an invariant is refused
//! (specification, "Invariants of the state").

use super::*;

/// Moments in the life of a Job, as the controller writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Accepted=False: something is missing.
    Waiting,
    /// Accepted, no execution yet.
    Accepted,
    /// There is an execution.
    Scheduled,
    /// The process has started.
    Running,
    /// It may be running.
    Unknown,
    /// It ended well.
    Succeeded,
    /// It ended badly.
    Failed,
    /// It failed before it was scheduled.
    Rejected,
    /// It was cancelled before it was scheduled.
    Cancelled,
}

impl Stage {
    pub const ALL: [Self; 9] =
        [Self::Waiting, Self::Accepted, Self::Scheduled, Self::Running, Self::Unknown, Self::Succeeded, Self::Failed, Self::Rejected, Self::Cancelled];
}

const T0: &str = "2026-11-29T10:00:00Z";
const T1: &str = "2026-11-29T10:00:05Z";
const T2: &str = "2026-11-29T10:00:09Z";

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": T0, "observedGeneration": 1})
}

/// The status at that moment.
pub fn stage(stage: Stage) -> Value {
    let accepted = || condition("Accepted", "True", "Valid");
    let scheduled = || condition("Scheduled", "True", "BackendCreated");
    let class = json!({"name": "default", "uid": "c-1", "controllerName": "execution.ayatori.ddupan.top/kubernetes",
        "parametersRef": {"group": "execution.ayatori.ddupan.top", "kind": "KubernetesExecutionParameters", "name": "default", "uid": "p-1"}});
    let resources = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}});
    let execution = json!({"adapter": "kubernetes", "references": [{"type": "Job", "id": "j-1"}, {"type": "Pod", "id": "p-1"}]});
    let base = json!({"observedGeneration": 1, "resolvedJobClass": class, "effectiveResources": resources});
    let with = |conditions: Vec<Value>, more: Value| merge(&merge(&base, &json!({ "conditions": conditions })), &more);
    let succeeded = |status: &str, reason: &str| condition("Succeeded", status, reason);
    match stage {
        Stage::Waiting => {
            json!({"observedGeneration": 1, "conditions": [condition("Accepted", "False", "NoDefaultClass"), succeeded("Unknown", "Pending")]})
        }
        Stage::Accepted => with(vec![accepted(), condition("Scheduled", "False", "Pending"), succeeded("Unknown", "Scheduling")], json!({})),
        Stage::Scheduled => with(vec![accepted(), scheduled(), succeeded("Unknown", "Starting")], json!({"execution": execution})),
        Stage::Running => with(vec![accepted(), scheduled(), succeeded("Unknown", "Running")], json!({"execution": execution, "startTime": T1})),
        Stage::Unknown => with(vec![accepted(), scheduled(), succeeded("Unknown", "ResultUnknown")], json!({"execution": execution, "startTime": T1})),
        Stage::Succeeded => with(
            vec![accepted(), scheduled(), succeeded("True", "Completed")],
            json!({"execution": execution, "startTime": T1, "completionTime": T2, "result": {"exitCode": 0, "reason": "Completed"}}),
        ),
        Stage::Failed => with(
            vec![accepted(), scheduled(), succeeded("False", "ProcessFailed")],
            json!({"execution": execution, "startTime": T1, "completionTime": T2, "result": {"exitCode": 3, "reason": "Error"}}),
        ),
        Stage::Rejected => with(vec![accepted(), succeeded("False", "BackendRejected")], json!({"completionTime": T2})),
        Stage::Cancelled => {
            json!({"conditions": [condition("Accepted", "False", "NoDefaultClass"), succeeded("False", "Cancelled")], "completionTime": T2})
        }
    }
}

pub fn rows() -> Vec<Row> {
    [moves(), conditions(), times(), executions(), results(), fields(), removals()].concat()
}

fn at(moment: Stage) -> Value {
    merge(&job(json!({})), &json!({ "status": stage(moment) }))
}

fn cancelled_at(moment: Stage) -> Value {
    merge(&job(json!({"desiredState": "Cancelled"})), &json!({ "status": stage(moment) }))
}

fn ok(name: impl Into<String>, old: Value, patch: Value) -> Row {
    JOB.status(format!("status: {}", name.into()), old, patch)
}

fn no(name: impl Into<String>, old: Value, patch: Value, message: &'static str) -> Row {
    JOB.status_refused(format!("status: {}", name.into()), old, patch, "status", message)
}

/// The conditions of a moment, some replaced or, with null, taken away.
fn conditions_of(moment: Stage, changes: Value) -> Value {
    let mut list = stage(moment)["conditions"].as_array().cloned().expect("conditions");
    for (kind, change) in changes.as_object().expect("an object") {
        list.retain(|condition| condition["type"] != json!(kind));
        if !change.is_null() {
            list.push(condition(kind, change[0].as_str().expect("status"), change[1].as_str().expect("reason")));
        }
    }
    json!(list)
}

fn moves() -> Vec<Row> {
    use Stage::{Accepted, Cancelled, Failed, Rejected, Running, Scheduled, Succeeded, Unknown, Waiting};
    let mut rows: Vec<Row> = Stage::ALL.iter().map(|to| ok(format!("a new Job, {to:?}"), job(json!({})), stage(*to))).collect();
    let allowed = [
        (Waiting, vec![Accepted, Scheduled, Cancelled]),
        (Accepted, vec![Scheduled, Rejected, Running, Succeeded, Failed]),
        (Scheduled, vec![Running, Unknown, Succeeded, Failed]),
        (Running, vec![Unknown, Succeeded, Failed]),
        (Unknown, vec![Running, Succeeded, Failed]),
    ];
    for (from, to) in allowed {
        rows.extend(to.into_iter().map(|to| ok(format!("{from:?} to {to:?}"), at(from), stage(to))));
    }
    rows.push(ok(
        "a cancelled Job may end",
        cancelled_at(Running),
        json!({"conditions": conditions_of(Running, json!({"Succeeded": ["False", "Cancelled"]})), "completionTime": T2}),
    ));
    rows.push(ok("a cancelled Job may have succeeded", cancelled_at(Running), stage(Succeeded)));
    rows.push(ok(
        "a confirmed loss ends it",
        at(Unknown),
        json!({"conditions": conditions_of(Unknown, json!({"Succeeded": ["False", "BackendLost"]})), "completionTime": T2}),
    ));
    rows.push(ok("a message may change after the end", at(Succeeded), json!({"observedGeneration": 2})));
    rows
}

fn conditions() -> Vec<Row> {
    use Stage::{Accepted, Failed, Running, Scheduled, Succeeded, Unknown, Waiting};
    let end = "a terminal Succeeded condition is irreversible";
    let omitted = "Succeeded may not be omitted";
    let only = |moment: Stage, changes: Value| json!({ "conditions": conditions_of(moment, changes) });
    let mut rows = vec![
        no("Succeeded omitted at first", job(json!({})), json!({"conditions": [condition("Accepted", "True", "Valid")]}), omitted),
        no("no conditions at first", job(json!({})), json!({"observedGeneration": 1}), omitted),
        no("Succeeded taken away", at(Running), only(Running, json!({"Succeeded": null})), omitted),
        no("conditions taken away", at(Waiting), json!({"conditions": null}), omitted),
        no("conditions emptied", at(Waiting), json!({"conditions": []}), omitted),
        no("True to False", at(Succeeded), only(Succeeded, json!({"Succeeded": ["False", "Completed"]})), end),
        no("True to Unknown", at(Succeeded), only(Succeeded, json!({"Succeeded": ["Unknown", "Completed"]})), end),
        no("True with another reason", at(Succeeded), only(Succeeded, json!({"Succeeded": ["True", "Other"]})), end),
        no("True taken away", at(Succeeded), only(Succeeded, json!({"Succeeded": null})), end),
        no("False to True", at(Failed), only(Failed, json!({"Succeeded": ["True", "Completed"]})), end),
        no("False to Unknown", at(Failed), only(Failed, json!({"Succeeded": ["Unknown", "ResultUnknown"]})), end),
        no("ProcessFailed to Cancelled", at(Failed), only(Failed, json!({"Succeeded": ["False", "Cancelled"]})), end),
        no("a success that becomes Cancelled", cancelled_at(Succeeded), only(Succeeded, json!({"Succeeded": ["False", "Cancelled"]})), end),
        no("Scheduled=True to Scheduled=False", at(Running), only(Running, json!({"Scheduled": ["False", "Lost"]})), "Scheduled=True never goes back"),
        no("Scheduled=True to Scheduled=Unknown", at(Unknown), only(Unknown, json!({"Scheduled": ["Unknown", "Lost"]})), "Scheduled=True never goes back"),
        no("Scheduled taken away", at(Scheduled), only(Scheduled, json!({"Scheduled": null})), "Scheduled=True never goes back"),
        no("Scheduled taken away after the end", at(Succeeded), only(Succeeded, json!({"Scheduled": null})), "Scheduled=True never goes back"),
        no("Accepted to False", at(Accepted), only(Accepted, json!({"Accepted": ["False", "TTLTooLong"]})), "Accepted=True never goes back"),
        no("Accepted taken away", at(Running), only(Running, json!({"Accepted": null})), "Accepted=True never goes back"),
        no(
            "Scheduled without an execution",
            at(Accepted),
            only(Accepted, json!({"Scheduled": ["True", "BackendCreated"]})),
            "Scheduled=True requires an execution",
        ),
        ok("a further condition", at(Running), only(Running, json!({"StopRequested": ["True", "Cancelled"]}))),
    ];
    let bad = |fields: Value| json!({"conditions": [merge(&condition("Succeeded", "Unknown", "Pending"), &fields)]});
    for (field, value) in [
        ("status", json!("true")),
        ("status", json!(null)),
        ("reason", json!("")),
        ("reason", json!("two words")),
        ("lastTransitionTime", json!("now")),
        ("lastTransitionTime", json!(null)),
        ("message", json!(null)),
        ("observedGeneration", json!(-1)),
    ] {
        let path = format!("status.conditions[0].{field}");
        rows.push(JOB.status_refused(format!("status: condition {field} {value}"), job(json!({})), bad(json!({field: value})), path, ""));
    }
    for time in ["1970-01-01T00:00:00Z", "2026-01-02T03:04:05+99:99", "9999-12-31T23:59:59Z"] {
        let row =
            JOB.status_refused(format!("status: condition of {time}"), job(json!({})), bad(json!({"lastTransitionTime": time})), "status.conditions[0]", "");
        rows.push(row);
    }
    let twice = json!({"conditions": [condition("Succeeded", "Unknown", "Pending"), condition("Succeeded", "True", "Completed")]});
    rows.push(JOB.status_refused("status: two of one type", job(json!({})), twice, "status.conditions[1]", ""));
    let many = many(17, |i| condition(&format!("T{i}"), "True", "R"));
    rows.push(JOB.status_refused("status: 17 conditions", job(json!({})), json!({ "conditions": many }), "status.conditions", ""));
    rows
}

fn times() -> Vec<Row> {
    use Stage::{Accepted, Failed, Rejected, Running, Scheduled, Succeeded, Unknown, Waiting};
    let start = "startTime is immutable once set";
    let completion = "completionTime is immutable once set";
    let no_end = "completionTime requires a terminal Succeeded";
    let ended =
        |moment: Stage, time: Value| json!({"conditions": conditions_of(moment, json!({"Succeeded": ["False", "ProcessFailed"]})), "completionTime": time});
    vec![
        no("startTime changed", at(Running), json!({"startTime": T2}), start),
        no("startTime taken away", at(Running), json!({"startTime": null}), start),
        ok("startTime of another zone", at(Running), json!({"startTime": "2026-11-29T11:00:05+01:00"})),
        no("startTime while Accepted", at(Accepted), json!({"startTime": T1}), "startTime requires Scheduled=True"),
        no("startTime while Waiting", at(Waiting), json!({"startTime": T1}), "startTime requires Scheduled=True"),
        no("startTime after the end", at(Rejected), json!({"startTime": T1}), "startTime"),
        no("startTime of 1970", at(Scheduled), json!({"startTime": "1970-01-01T00:00:00Z"}), "startTime must be a time between"),
        no("startTime that nobody can read", at(Scheduled), json!({"startTime": "2026-01-02T03:04:05+99:99"}), ""),
        JOB.status_refused("status: startTime no time", at(Scheduled), json!({"startTime": "soon"}), "status.startTime", ""),
        no("completionTime changed", at(Succeeded), json!({"completionTime": "2026-11-29T10:00:10Z"}), completion),
        no("completionTime taken away", at(Succeeded), json!({"completionTime": null}), completion),
        no("completionTime while Running", at(Running), json!({"completionTime": T2}), no_end),
        no("completionTime while Unknown", at(Unknown), json!({"completionTime": T2}), no_end),
        no(
            "an end without time",
            at(Running),
            json!({"conditions": conditions_of(Running, json!({"Succeeded": ["True", "Completed"]}))}),
            "terminal Succeeded requires completionTime",
        ),
        no(
            "a failure without time",
            at(Waiting),
            json!({"conditions": [condition("Succeeded", "False", "Cancelled")]}),
            "terminal Succeeded requires completionTime",
        ),
        no("completionTime before startTime", at(Running), ended(Running, json!(T0)), "completionTime before startTime"),
        ok("completionTime at startTime", at(Running), ended(Running, json!(T1))),
        no("completionTime of 1970", at(Scheduled), ended(Scheduled, json!("1970-01-01T00:00:00Z")), "completionTime must be a time between"),
        no("both times changed", at(Failed), json!({"startTime": T0, "completionTime": T1}), start),
    ]
}

fn executions() -> Vec<Row> {
    use Stage::{Accepted, Cancelled, Rejected, Running, Scheduled, Succeeded, Waiting};
    let reference = |kind: &str, id: &str| json!({"type": kind, "id": id});
    let of = |references: Value| json!({"execution": {"adapter": "kubernetes", "references": references}});
    let (job_, pod) = (reference("Job", "j-1"), reference("Pod", "p-1"));
    let stays = "an execution reference cannot be replaced or removed";
    let at_execution =
        |name: &str, patch: Value, message: &'static str| JOB.status_refused(format!("status: {name}"), at(Running), patch, "status.execution", message);
    let root = |name: &str, old: Value, patch: Value, message: &'static str| JOB.status_refused(format!("status: {name}"), old, patch, "", message);
    vec![
        ok("a reference added", at(Running), of(json!([job_, pod, reference("Command", "c-1")]))),
        ok("references reordered", at(Running), of(json!([pod, job_]))),
        ok("a reference added after the end", at(Succeeded), of(json!([job_, pod, reference("Command", "c-1")]))),
        at_execution("a reference removed", of(json!([job_])), stays),
        at_execution("a reference replaced", of(json!([job_, reference("Pod", "p-2")])), stays),
        at_execution("a reference renamed", of(json!([job_, reference("Sandbox", "p-1")])), stays),
        at_execution("another adapter", json!({"execution": {"adapter": "opensandbox"}}), "adapter is immutable"),
        JOB.status_refused(
            "status: two references of one type",
            at(Running),
            of(json!([job_, pod, reference("Pod", "p-2")])),
            "status.execution.references[2]",
            "",
        ),
        JOB.status_refused("status: no references", at(Accepted), of(json!([])), "status.execution.references", ""),
        JOB.status_refused("status: 9 references", at(Accepted), of(many(9, |i| reference(&format!("T{i}"), "x"))), "status.execution.references", ""),
        JOB.status_refused("status: a reference without id", at(Accepted), of(json!([{"type": "Job"}])), "status.execution.references[0].id", ""),
        JOB.status_refused("status: a reference of an empty id", at(Accepted), of(json!([reference("Job", "")])), "status.execution.references[0].id", ""),
        JOB.status_refused(
            "status: a reference of a long id",
            at(Accepted),
            of(json!([reference("Job", &"x".repeat(257))])),
            "status.execution.references[0].id",
            "",
        ),
        JOB.status_refused(
            "status: a reference with an address, strictly",
            at(Accepted),
            of(json!([{"type": "Job", "id": "x", "endpoint": "http://x"}])),
            "status.execution.references[0].endpoint",
            "unknown field",
        )
        .strictly(),
        no("the execution taken away", at(Running), json!({"execution": null}), "execution cannot be removed"),
        no("an execution while Waiting", at(Waiting), of(json!([job_, pod])), "an execution requires Accepted=True and resolvedJobClass"),
        no("an execution after the end", at(Rejected), of(json!([job_, pod])), "a finished Job cannot acquire an execution"),
        root("an execution of a Job cancelled before", cancelled_at(Accepted), stage(Scheduled), "a cancelled Job cannot acquire an execution"),
        root(
            "an execution of a Job cancelled at birth",
            job(json!({"desiredState": "Cancelled"})),
            stage(Scheduled),
            "a cancelled Job cannot acquire an execution",
        ),
        root("an execution of a Job that ended Cancelled", cancelled_at(Cancelled), of(json!([job_, pod])), "a cancelled Job cannot acquire an execution"),
        ok("a cancelled Job goes on with its execution", cancelled_at(Scheduled), stage(Running)),
        ok("a cancelled Job adds a reference", cancelled_at(Running), of(json!([job_, pod, reference("Command", "c-1")]))),
    ]
}

fn results() -> Vec<Row> {
    use Stage::{Failed, Rejected, Running, Succeeded};
    let frozen = "result is immutable once terminal";
    vec![
        no("a result before the end", at(Running), json!({"result": {"exitCode": 0}}), "result requires completionTime"),
        no("the exit code changed", at(Failed), json!({"result": {"exitCode": 4}}), frozen),
        no("the exit code taken away", at(Failed), json!({"result": {"exitCode": null}}), frozen),
        no("the result's reason changed", at(Succeeded), json!({"result": {"reason": "Other"}}), frozen),
        no("the result taken away", at(Succeeded), json!({"result": null}), frozen),
        no("a result added after the end", at(Rejected), json!({"result": {"exitCode": 1}}), frozen),
        ok(
            "a success without exit code",
            at(Running),
            json!({"conditions": conditions_of(Running, json!({"Succeeded": ["True", "Completed"]})), "completionTime": T2}),
        ),
        JOB.status_refused("status: an exit code of 64 bits", at(Running), json!({"result": {"exitCode": 4_294_967_296_u64}}), "status.result.exitCode", ""),
        JOB.status_refused("status: a result's reason of two words", at(Running), json!({"result": {"reason": "it failed"}}), "status.result.reason", ""),
    ]
}

fn fields() -> Vec<Row> {
    use Stage::{Accepted, Running, Waiting};
    let class = "resolvedJobClass is immutable once set";
    let resources = "effectiveResources is immutable once set";
    vec![
        no("another class", at(Accepted), json!({"resolvedJobClass": {"uid": "c-2"}}), class),
        no("other parameters", at(Running), json!({"resolvedJobClass": {"parametersRef": {"uid": "p-2"}}}), class),
        no("parameters taken away", at(Running), json!({"resolvedJobClass": {"parametersRef": null}}), class),
        no("the class taken away", at(Accepted), json!({"resolvedJobClass": null}), class),
        no("other resources", at(Running), json!({"effectiveResources": {"limits": {"cpu": "2"}}}), resources),
        no("a resource added", at(Running), json!({"effectiveResources": {"limits": {"memory": null}}}), resources),
        no("resources taken away", at(Running), json!({"effectiveResources": null}), resources),
        JOB.status_refused(
            "status: a class without uid",
            at(Waiting),
            json!({"resolvedJobClass": {"name": "x", "controllerName": "a/b"}}),
            "status.resolvedJobClass.uid",
            "",
        ),
        JOB.status_refused(
            "status: resources below zero",
            at(Waiting),
            json!({"effectiveResources": {"limits": {"cpu": "-1"}}}),
            "status.effectiveResources.limits.cpu",
            "",
        ),
        JOB.status_refused(
            "status: requests above limits",
            at(Waiting),
            json!({"effectiveResources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}),
            "status.effectiveResources",
            "requests.cpu must not exceed limits.cpu",
        ),
        JOB.status_refused("status: a phase, strictly", at(Running), json!({"phase": "Running"}), "status.phase", "unknown field").strictly(),
        JOB.row(
            "status: a spec in an update of the status is dropped",
            crate::row::Act::Status(at(Running), json!({"spec": {"desiredState": "Cancelled"}, "status": {"observedGeneration": 2}})),
            crate::row::Expect::Accepted(Some(("/spec/desiredState", json!("Running")))),
        )
        .differs_offline("only the API server knows which subresource is written"),
    ]
}

fn removals() -> Vec<Row> {
    let whole = |name: &str, old: Value, patch: Value, message: &'static str, path: &str| {
        JOB.row(format!("status: {name}"), crate::row::Act::Status(old, patch), crate::row::Expect::Refused { path: path.to_owned(), message })
    };
    vec![
        whole("removed", at(Stage::Running), json!({"status": null}), "status cannot be removed", ""),
        whole("removed after the end", at(Stage::Succeeded), json!({"status": null}), "status cannot be removed", ""),
        whole("a text", at(Stage::Running), json!({"status": "x"}), "", "status"),
        whole("a list", at(Stage::Running), json!({"status": []}), "", "status"),
    ]
}
