//! What every adapter must do with the same Job: the rows that both suites with a real backend run, without a word about which one it is.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::poll::{stays, until};

/// What a busy machine takes for one of them.
const LONG: Duration = Duration::from_secs(150);

/// What is done to a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    /// Once it runs, and again once it has ended.
    Cancel,
    /// Once it runs, twice.
    Delete,
    /// It is changed over and over, by what means nothing: whoever carries it sees to it each time.
    Touch,
    /// What it refers to is made after a while.
    Provide,
    /// Its time to live is cut short once it has ended.
    Expire,
}

/// A Job, and what must become of it.
struct Row {
    name: &'static str,
    argv: &'static [&'static str],
    more: fn() -> Value,
    then: Then,
    /// Status and reason of Succeeded.
    end: (&'static str, &'static str),
    code: Option<i32>,
}

fn nothing() -> Value {
    json!({})
}

/// A Secret and a ConfigMap that come late.
const LATE: &str = "conforms-late";
const POLITE: &str = "trap 'exit 3' TERM; while :; do sleep 1 & wait $!; done";
const WORDS: &str = r#"[ "$1" = '$HOME $$ $(x) `y` "z"' ] && [ "$2" = "it's" ] && [ "$3" = '' ] && [ "$#" = 3 ]"#;

const ROWS: &[Row] = &[
    Row { name: "success", argv: &["true"], more: nothing, then: Then::Nothing, end: ("True", "Completed"), code: Some(0) },
    Row { name: "failure", argv: &["sh", "-c", "exit 7"], more: nothing, then: Then::Nothing, end: ("False", "ProcessFailed"), code: Some(7) },
    // The first process of a container is deaf to its own KILL, so a child of it tells.
    Row {
        name: "signal",
        argv: &["sh", "-c", "sh -c 'kill -9 $$'; exit $?"],
        more: nothing,
        then: Then::Nothing,
        end: ("False", "ProcessFailed"),
        code: Some(137),
    },
    Row {
        name: "words",
        argv: &["sh", "-c", WORDS, "sh", "$HOME $$ $(x) `y` \"z\"", "it's", ""],
        more: nothing,
        then: Then::Nothing,
        end: ("True", "Completed"),
        code: Some(0),
    },
    Row {
        name: "environment",
        argv: &["sh", "-c", "[ \"$A\" = '$(B) $$' ] && [ \"$B\" = \"$(printf 'two\\nlines')\" ] && [ \"$PWD\" = /made/for/it ]"],
        more: || json!({"task": {"workingDir": "/made/for/it", "env": [{"name": "A", "value": "$(B) $$"}, {"name": "B", "value": "two\nlines"}]}}),
        then: Then::Nothing,
        end: ("True", "Completed"),
        code: Some(0),
    },
    // Names that a script between would use, and a PATH that has nothing.
    Row {
        name: "names",
        argv: &["/bin/sh", "-c", "[ \"$n$l$c\" = 567 ] && [ \"$PATH\" = /opt/tool/bin ]"],
        more: || {
            let env = [("n", "5"), ("l", "6"), ("c", "7"), ("PATH", "/opt/tool/bin")].map(|(name, value)| json!({"name": name, "value": value}));
            json!({"task": {"env": env}})
        },
        then: Then::Nothing,
        end: ("True", "Completed"),
        code: Some(0),
    },
    Row { name: "cancel", argv: &["sh", "-c", POLITE], more: nothing, then: Then::Cancel, end: ("False", "Cancelled"), code: Some(3) },
    Row {
        name: "deadline",
        argv: &["sh", "-c", POLITE],
        more: || json!({"activeDeadlineSeconds": 2}),
        then: Then::Nothing,
        end: ("False", "DeadlineExceeded"),
        code: Some(3),
    },
    // A second start in the same place finds the first one's folder.
    Row { name: "touched", argv: &["sh", "-c", "mkdir /tmp/once && sleep 3"], more: nothing, then: Then::Touch, end: ("True", "Completed"), code: Some(0) },
    Row {
        name: "references",
        argv: &["sh", "-c", "[ \"$A$B\" = secretmap ] && [ -z \"${C+set}\" ]"],
        more: || {
            let from = |name: &str, kind: &str, object: &str, optional: bool| json!({"name": name, "valueFrom": {kind: {"name": object, "key": "k", "optional": optional}}});
            let never = from("C", "secretKeyRef", "conforms-never", true);
            json!({"task": {"env": [from("A", "secretKeyRef", LATE, false), from("B", "configMapKeyRef", LATE, false), never]}})
        },
        then: Then::Provide,
        end: ("True", "Completed"),
        code: Some(0),
    },
    Row { name: "kept", argv: &["true"], more: || json!({"ttlSecondsAfterFinished": 3600}), then: Then::Expire, end: ("True", "Completed"), code: Some(0) },
    Row { name: "delete", argv: &["sh", "-c", POLITE], more: nothing, then: Then::Delete, end: ("", ""), code: None },
    Row { name: "expiry", argv: &["true"], more: || json!({"ttlSecondsAfterFinished": 0}), then: Then::Nothing, end: ("", ""), code: None },
];

/// Runs every row on the backend of a class. `left` counts what is left of a Job's execution, by its UID.
///
/// # Errors
/// A row that became of it what it must not, with the Job.
pub async fn conforms<F>(jobs: &Api<Job>, class: &str, image: &str, left: impl Fn(String) -> F) -> Result<()>
where
    F: Future<Output = Result<usize>>,
{
    for row in ROWS {
        let name = format!("conforms-{}", row.name);
        let mut spec =
            json!({"jobClassName": class, "task": {"image": image, "command": row.argv}, "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}});
        merge(&mut spec, (row.more)());
        let job = json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
        jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    }
    let mut uids = Vec::new();
    for row in ROWS {
        let name = format!("conforms-{}", row.name);
        match row.then {
            Then::Nothing | Then::Expire => {}
            Then::Touch => {
                for number in 0..20 {
                    annotate(jobs, &name, number).await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            Then::Provide => provide(jobs, &name).await?,
            Then::Cancel => {
                uids.push(running(jobs, &name).await?);
                cancel(jobs, &name).await?;
            }
            Then::Delete => {
                uids.push(running(jobs, &name).await?);
                for _ in 0..2 {
                    // The second may come too late.
                    let deleted = jobs.delete(&name, &DeleteParams::default()).await;
                    ensure!(deleted.is_ok() || jobs.get_opt(&name).await?.is_none(), "{name}: {deleted:?}");
                }
            }
        }
    }
    for row in ROWS {
        let name = format!("conforms-{}", row.name);
        let ended = until(&format!("the end of {name}"), LONG, || async {
            let job = jobs.get_opt(&name).await?;
            Ok(match &job {
                Some(found) if row.end.0.is_empty() || succeeded(found).0 == "Unknown" || succeeded(found).0.is_empty() => None,
                _ => Some(job),
            })
        })
        .await;
        let Some(job) = ended? else {
            ensure!(row.end.0.is_empty(), "{name} is gone");
            continue;
        };
        let status = job.status.clone().unwrap_or_default();
        let code = status.result.as_ref().and_then(|result| result.exit_code);
        ensure!(succeeded(&job) == row.end && code == row.code, "{name}: {}", serde_json::to_string(&status)?);
        ensure!(status.start_time <= status.completion_time && status.start_time.is_some(), "{name}: {}", serde_json::to_string(&status)?);
        uids.push(job.metadata.uid.clone().context("no UID")?);
        match row.then {
            Then::Cancel => cancel(jobs, &name).await?,
            Then::Expire => drop(jobs.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"ttlSecondsAfterFinished": 1}}))).await?),
            _ => {}
        }
        if row.then == Then::Expire {
            until(&format!("{name} to expire"), LONG, || async { Ok(jobs.get_opt(&name).await?.is_none().then_some(())) }).await?;
            continue;
        }
        let after = jobs.get(&name).await?;
        ensure!(succeeded(&after) == row.end && after.status.map(|status| status.result) == Some(status.result), "{name} has ended, and changed");
        jobs.delete(&name, &DeleteParams::default()).await?;
    }
    for uid in uids {
        until(&format!("nothing of {uid} to be left"), LONG, || async { Ok((left(uid.clone()).await? == 0).then_some(())) }).await?;
    }
    Ok(())
}

/// Waits until it runs; its UID.
async fn running(jobs: &Api<Job>, name: &str) -> Result<String> {
    let running = until(&format!("{name} to run"), LONG, || async {
        let job = jobs.get(name).await?;
        Ok((succeeded(&job) == ("Unknown", "Running")).then_some(job))
    })
    .await;
    let uid = running?.metadata.uid.context("no UID")?;
    // For its trap.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(uid)
}

async fn cancel(jobs: &Api<Job>, name: &str) -> Result<()> {
    jobs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"desiredState": "Cancelled"}}))).await?;
    Ok(())
}

async fn annotate(jobs: &Api<Job>, name: &str, number: usize) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"example.com/touched": number.to_string()}}});
    jobs.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Makes what a Job waits for, once it is certain that it waits.
async fn provide(jobs: &Api<Job>, name: &str) -> Result<()> {
    let waits = |job: &Job| {
        let conditions = job.status.iter().flat_map(|status| &status.conditions);
        // Whoever resolves what a Job refers to, it is told.
        let is_told = conditions.into_iter().any(|condition| matches!(condition.reason.as_str(), "WaitingForReference" | "SecretNotFound"));
        let is_begun = job.status.as_ref().is_some_and(|status| status.start_time.is_some());
        is_told && !is_begun && succeeded(job).0 == "Unknown"
    };
    let job = until(&format!("{name} to wait"), LONG, || async { Ok(Some(jobs.get(name).await?).filter(waits)) }).await?;
    stays(&format!("{name} waits"), Duration::from_secs(2), || async { Ok(waits(&jobs.get(name).await?)) }).await?;
    let (client, namespace) = (jobs.clone().into_client(), job.metadata.namespace.context("no namespace")?);
    let meta = json!({"name": LATE});
    let secret: Secret = serde_json::from_value(json!({"metadata": meta, "stringData": {"k": "secret"}}))?;
    Api::namespaced(client.clone(), &namespace).create(&PostParams::default(), &secret).await?;
    let map: ConfigMap = serde_json::from_value(json!({"metadata": meta, "data": {"k": "map"}}))?;
    Api::namespaced(client, &namespace).create(&PostParams::default(), &map).await?;
    Ok(())
}

fn succeeded(job: &Job) -> (&str, &str) {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|condition| condition.type_ == "Succeeded").map_or(("", ""), |found| (found.status.as_str(), found.reason.as_str()))
}

/// `more` over `value`, objects into objects.
pub fn merge(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}
