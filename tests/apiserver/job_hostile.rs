//! Random hostile writes of a Job's status with the controller's own rights: none that breaks an invariant of the specification is accepted,
//! and the offline check gives each the API server's verdict. BERTH_HOSTILE_PATCHES sets their number.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use berth_controllers::job::api;
use berth_tests::controlplane::{ControlPlane, NOBODY};
use berth_tests::job_oracle::{INVARIANTS, broken};
use futures::{StreamExt as _, stream};
use hyper::Request;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::job_rows::{JOB, Stage, job, stage};
use crate::random::Random;
use crate::row::merge;
use crate::row_server::{Answer, Server};

/// Writes per Job; then a fresh one comes.
const WRITES_PER_JOB: usize = 20;

fn number_of_patches() -> Result<usize> {
    std::env::var("BERTH_HOSTILE_PATCHES").map_or(Ok(2_000), |text| text.parse().context("BERTH_HOSTILE_PATCHES"))
}

/// What happened to the writes.
#[derive(Default)]
struct Tally {
    accepted: usize,
    refused: usize,
    /// How often each invariant would have been broken.
    attempts: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

#[tokio::test]
async fn no_hostile_status_write_breaks_an_invariant() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("job-hostile").await?;
    let server = Server { client: plane.admin()?, namespace: namespace.clone() };
    allow_what_the_controller_may(&server.client, &namespace).await?;
    let controller = plane.client(NOBODY)?;
    let count = number_of_patches()?;
    let jobs = count.div_ceil(WRITES_PER_JOB);
    let (server, controller) = (&server, &controller);
    let tallies: Vec<Result<Tally>> = stream::iter(0..jobs).map(|index| harass(server, controller, index)).buffer_unordered(8).collect().await;
    let mut all = Tally::default();
    for tally in tallies {
        let tally = tally?;
        all.accepted += tally.accepted;
        all.refused += tally.refused;
        all.wrong.extend(tally.wrong);
        tally.attempts.into_iter().for_each(|(invariant, times)| *all.attempts.entry(invariant).or_default() += times);
    }
    println!("{} accepted, {} refused; attempts: {:#?}", all.accepted, all.refused, all.attempts);
    assert!(all.wrong.is_empty(), "{} of {count}\n{}", all.wrong.len(), all.wrong.join("\n"));
    assert!(all.accepted * 20 > count && all.refused * 2 > count, "one side is hardly tried: {} accepted, {} refused", all.accepted, all.refused);
    let untried: Vec<_> = INVARIANTS.iter().filter(|invariant| !all.attempts.contains_key(*invariant)).collect();
    assert!(untried.is_empty(), "nobody tried to break {untried:?}");
    Ok(())
}

/// The controller may patch the status of Jobs, and nothing else of them.
async fn allow_what_the_controller_may(client: &Client, namespace: &str) -> Result<()> {
    let role: Role = serde_json::from_value(json!({"metadata": {"name": "job-controller"},
        "rules": [{"apiGroups": ["execution.ayatori.ddupan.top"], "resources": ["jobs/status"], "verbs": ["patch"]}]}))?;
    let binding: RoleBinding = serde_json::from_value(json!({"metadata": {"name": "job-controller"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "job-controller"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}]}))?;
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &role).await?;
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// Writes to one Job, one write after the other.
async fn harass(server: &Server, controller: &Client, index: usize) -> Result<Tally> {
    let mut random = Random::new(0x5eed_0000 + index as u64);
    let name = format!("job-{index}");
    let mut tally = Tally::default();
    let first = *random.pick(&Stage::ALL);
    let mut object = merge(&job(json!({})), &json!({ "status": stage(first) }));
    if random.below(3) == 0 {
        object["spec"]["desiredState"] = json!("Cancelled");
        if object["status"].get("execution").is_some() {
            object["status"] = stage(Stage::Waiting);
        }
    }
    if random.below(8) == 0 {
        object.as_object_mut().context("an object")?.remove("status");
    }
    let mut old = server.create_whole(JOB, &name, &object).await?;
    for round in 0..WRITES_PER_JOB {
        let mut wanted = old.clone();
        disturb(&mut random, &mut wanted);
        let answer = write(&mut random, server, controller, &name, &old, &wanted).await?;
        let would_break = broken(&old, &api::JOB.stored(&wanted));
        would_break.iter().for_each(|invariant| *tally.attempts.entry(invariant).or_default() += 1);
        let offline = api::JOB.validate_update(&wanted, &old);
        let told = || format!("{name} round {round}\n  old {}\n  new {}\n  offline {offline:?}", old["status"], wanted["status"]);
        match answer {
            Ok(new) => {
                tally.accepted += 1;
                let now_broken = broken(&old, &new);
                if !now_broken.is_empty() {
                    tally.wrong.push(format!("accepted although it breaks {now_broken:?}: {}", told()));
                }
                if !offline.is_empty() {
                    tally.wrong.push(format!("accepted, but refused offline: {}", told()));
                }
                old = new;
            }
            Err(status) => {
                tally.refused += 1;
                if status.code != 422 {
                    tally.wrong.push(format!("answered {} {}: {}", status.code, status.message, told()));
                } else if offline.is_empty() {
                    tally.wrong.push(format!("refused ({}), but accepted offline: {}", status.message, told()));
                }
            }
        }
    }
    Ok(tally)
}

/// Sends the status of `wanted` as a merge patch, a JSON patch or an apply, each with the controller's rights.
async fn write(random: &mut Random, server: &Server, controller: &Client, name: &str, old: &Value, wanted: &Value) -> Result<Answer> {
    let status = wanted.get("status").filter(|status| !status.is_null());
    let (format, query, body) = match (random.below(3), status) {
        (0, Some(status)) => ("application/json-patch+json", "", json!([{"op": "add", "path": "/status", "value": status}])),
        (0, None) if old.get("status").is_some() => ("application/json-patch+json", "", json!([{"op": "remove", "path": "/status"}])),
        (1, Some(status)) if applicable(status) && contains(status, &old["status"]) => {
            let body = json!({"apiVersion": JOB.api_version, "kind": "Job", "metadata": {"name": name}, "status": status});
            ("application/apply-patch+yaml", "?fieldManager=hostile&force=true", body)
        }
        _ => ("application/merge-patch+json", "", json!({ "status": difference(old.get("status").unwrap_or(&Value::Null), status.unwrap_or(&Value::Null)) })),
    };
    let path = format!("/apis/{}/namespaces/{}/jobs/{name}/status{query}", JOB.api_version, server.namespace);
    let request = Request::patch(path).header("content-type", format).body(serde_json::to_vec(&body)?)?;
    match controller.request::<Value>(request).await {
        Ok(stored) => Ok(Ok(stored)),
        Err(kube::Error::Api(status)) => Ok(Err(*status)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the lists that are maps have keys: an apply of others is refused before anything is judged.
fn applicable(status: &Value) -> bool {
    let keyed = |list: Option<&Value>| match list {
        None => true,
        Some(Value::Array(items)) => {
            let mut keys: Vec<&str> = items.iter().filter_map(|item| item.get("type")?.as_str()).collect();
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            keys.len() == items.len() && count == items.len()
        }
        Some(_) => false,
    };
    status.is_object() && keyed(status.get("conditions")) && keyed(status.pointer("/execution/references")) && no_nulls_and_typed(status)
}

/// An apply is typed: what has another type than the schema says, or is null, never reaches the rules.
fn no_nulls_and_typed(status: &Value) -> bool {
    let stored = api::JOB.stored(&json!({"spec": {"task": {"image": "i"}}, "status": status}));
    let errors = api::JOB.validate(&stored);
    stored["status"] == *status && errors.iter().all(|error| error.kind != berth_api::rules::FieldErrorKind::Type)
}

/// Whether an apply of `status` leaves nothing of `old` behind.
fn contains(status: &Value, old: &Value) -> bool {
    match (status, old) {
        (Value::Object(new), Value::Object(old)) => old.iter().all(|(name, old)| new.get(name).is_some_and(|new| contains(new, old))),
        (Value::Array(new), Value::Array(old)) => old.iter().all(|old| new.iter().any(|new| new.get("type") == old.get("type") && contains(new, old))),
        (_, Value::Null) => true,
        _ => true,
    }
}

/// The merge patch that makes `new` of `old`.
fn difference(old: &Value, new: &Value) -> Value {
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            let removed = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), Value::Null));
            let changed = after.iter().filter(|(name, value)| before.get(*name) != Some(value));
            let changed = changed.map(|(name, value)| (name.clone(), difference(before.get(name).unwrap_or(&Value::Null), value)));
            removed.chain(changed).collect()
        }
        _ => new.clone(),
    }
}

/// Changes the status in a way or three: what a confused, late or malicious writer might send.
fn disturb(random: &mut Random, object: &mut Value) {
    if object.get("status").is_none() || random.below(6) == 0 {
        object["status"] = stage(*random.pick(&Stage::ALL));
        if random.below(3) > 0 {
            return;
        }
    }
    for _ in 0..=random.below(3) {
        let status = &mut object["status"];
        match random.below(16) {
            0..=4 => disturb_condition(random, status),
            5..=7 => disturb_time(random, status),
            8..=9 => disturb_execution(random, status),
            10 => {
                set(status, "result", random.pick(&[json!({"exitCode": 0}), json!({"exitCode": 137, "reason": "OOMKilled"}), json!({}), Value::Null]).clone())
            }
            11 => {
                set(status, "resolvedJobClass", random.pick(&[json!({"name": "other", "uid": "o", "controllerName": "a/b"}), Value::Null, json!({})]).clone())
            }
            12 => set(status, "effectiveResources", random.pick(&[json!({"limits": {"cpu": "9"}}), json!({}), Value::Null]).clone()),
            13 => *status = random.pick(&[Value::Null, json!({}), json!({"conditions": []}), json!({"conditions": null})]).clone(),
            14 => set(status, "observedGeneration", random.pick(&[json!(9), json!(-1), Value::Null]).clone()),
            _ => random.mutate(status),
        }
    }
}

fn set(status: &mut Value, field: &str, value: Value) {
    let Some(members) = status.as_object_mut() else { return };
    if value.is_null() {
        members.remove(field);
    } else {
        members.insert(field.to_owned(), value);
    }
}

fn disturb_condition(random: &mut Random, status: &mut Value) {
    let kind = *random.pick(&["Succeeded", "Succeeded", "Scheduled", "Accepted", "StopRequested"]);
    let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    let at = list.iter().position(|condition| condition["type"] == json!(kind));
    match (at, random.below(8)) {
        (Some(at), 0) => drop(list.remove(at)),
        (Some(at), 1) => list.push(list[at].clone()),
        (Some(at), _) => {
            list[at]["status"] = json!(random.pick(&["True", "False", "Unknown"]));
            if random.below(2) == 0 {
                list[at]["reason"] = json!(random.pick(&["Completed", "Cancelled", "ResultUnknown", "Running", "ProcessFailed"]));
            }
        }
        (None, _) => list.push(json!({"type": kind, "status": random.pick(&["True", "False", "Unknown"]), "reason": "Completed", "message": "",
            "lastTransitionTime": random.pick(&["2026-11-29T10:00:00Z", "1970-01-01T00:00:00Z"])})),
    }
}

fn disturb_time(random: &mut Random, status: &mut Value) {
    const TIMES: [&str; 8] = [
        "2026-11-29T09:00:00Z",
        "2026-11-29T10:00:05Z",
        "2026-11-29T11:00:05+01:00",
        "2026-11-29T10:00:09Z",
        "2026-11-29T12:00:00Z",
        "1970-01-01T00:00:00Z",
        "2026-11-29T10:00:05+99:99",
        "9999-12-31T23:59:59Z",
    ];
    let value = if random.below(4) == 0 { Value::Null } else { json!(random.pick(&TIMES)) };
    let field = random.pick::<&str>(&["startTime", "completionTime"]);
    set(status, field, value);
}

fn disturb_execution(random: &mut Random, status: &mut Value) {
    let other = json!({"adapter": "kubernetes", "references": [{"type": "Job", "id": "j-1"}, {"type": "Pod", "id": "p-2"}]});
    let Some(execution) = status.get_mut("execution").filter(|execution| execution.is_object()) else {
        return set(status, "execution", other);
    };
    match random.below(5) {
        0 => set(status, "execution", Value::Null),
        1 => execution["adapter"] = json!("opensandbox"),
        2 => *execution = other,
        3 => {
            if let Some(list) = execution["references"].as_array_mut() {
                list.pop();
            }
        }
        _ => {
            if let Some(list) = execution["references"].as_array_mut() {
                list.push(json!({"type": random.pick(&["Command", "Pod"]), "id": "x"}));
            }
        }
    }
}
