//! Processes that end by themselves: what the container's record says is what the Job tells.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::apply;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::judge::{Begun, End, exited, message, never, seconds};
use super::world::{ALPINE, NAMESPACE, World};
use crate::job_world::uid;

/// The rows that every adapter passes (tests/src/job_conformance.rs).
pub async fn what_every_adapter_must_do(world: &World) -> Result<()> {
    let left = |uid: String| async move { Ok(world.pods_of(&uid).await?.len()) };
    berth_tests::job_conformance::conforms(&world.jobs, "quick", ALPINE, left).await
}

/// docs/jobs.md, "Install", from the class to the end.
pub async fn the_specification_s_example(world: &World) -> Result<()> {
    for object in world.documents("examples/jobs/class.yaml")? {
        apply(&world.client, &object).await?;
    }
    world.secret("example-token", "Opaque", json!({"token": "canary-of-the-example"})).await?;
    world.config_map("example-config", json!({"value": "canary-of-the-config"})).await?;
    let hello = world.documents("examples/jobs/hello.yaml")?.pop().context("a Job")?;
    let job = world.jobs.create(&PostParams::default(), &serde_json::from_value(hello)?).await?;
    let name = job.name_any();
    // It writes no UID anywhere: it is the specification's to the letter.
    let job = world.ended(&name, End { begun: Begun::Unsaid, ..exited(0) }).await?;
    let status = job.status.context("a status")?;
    ensure!(status.resolved_job_class.is_some_and(|class| class.name == "default" && class.controller_name == "execution.ayatori.ddupan.top/kubernetes"));
    let resources = serde_json::to_value(status.effective_resources)?;
    ensure!(resources == json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}), "{resources}");
    let (code, out, err) = world.berth(&["logs", "job", &name]).await?;
    ensure!((code, out.as_str(), err.as_str()) == (0, "hello world\n", ""), "{code}: {out}{err}");
    let (code, out, err) = world.berth(&["explain", "job", &name, "-o", "json"]).await?;
    ensure!(code == 0, "{err}");
    let told: Value = serde_json::from_str(&out)?;
    ensure!((&told["state"], &told["result"]) == (&json!("Succeeded"), &json!({"exitCode": 0, "reason": "Completed"})), "{out}");
    let moments: Vec<&str> = told["timeline"].as_array().context("a timeline")?.iter().filter_map(|moment| moment["what"].as_str()).collect();
    for what in ["created", "the process started", "Succeeded=True Completed", "ttlSecondsAfterFinished 3600 is over"] {
        ensure!(moments.iter().any(|moment| moment.starts_with(what)), "{what}: {moments:?}");
    }
    Ok(())
}

/// One row of conformance: nobody between Job and process expands or splits anything; references arrive as their values.
pub async fn argv_arrives_as_it_was_given(world: &World) -> Result<()> {
    world.secret("argv", "Opaque", json!({"key": "of the secret"})).await?;
    let env = json!([
        {"name": "TARGET", "value": "world"},
        {"name": "PLAIN", "value": "$(TARGET) $$ $TARGET"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "argv", "key": "key"}}},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "no-such", "key": "key", "optional": true}}},
    ]);
    let script = "printf '<%s>' \"$@\" \"$PLAIN\" \"$SECRET\" \"${ABSENT-unset}\" \"$PWD\"; echo";
    let args = ["sh", "$(TARGET)", "$$", "a  b", "", "\u{fc}\n'\"", "$TARGET"];
    world.job("argv", script, json!({"args": args, "env": env, "workingDir": "/made/for/it"}), json!({})).await?;
    world.ended("argv", exited(0)).await?;
    let (code, out, err) = world.berth(&["logs", "job", "argv"]).await?;
    let expected = "<$(TARGET)><$$><a  b><><\u{fc}\n'\"><$TARGET><$(TARGET) $$ $TARGET><of the secret><unset></made/for/it>\n";
    ensure!((code, out.as_str()) == (0, expected), "{code}: {out}{err}");
    // A namespace's default class, for who names none.
    let default: Namespace = Api::all(world.client.clone()).get(NAMESPACE).await?;
    ensure!(default.annotations().values().any(|class| class == "quick"));
    let job = json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "Job", "metadata": {"name": "no-class"},
        "spec": {"task": {"image": ALPINE, "command": ["true"]}}});
    world.jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    world.ended("no-class", End { begun: Begun::Unsaid, ..exited(0) }).await?;
    Ok(())
}

pub async fn exit_codes_are_told(world: &World) -> Result<()> {
    let codes = [("zero", 0), ("three", 3), ("like-a-kill", 137), ("like-a-stop", 143), ("high", 255)];
    for (name, code) in codes {
        world.job(name, &format!("exit {code}"), json!({}), json!({})).await?;
    }
    world.job("no-program", "", json!({"command": ["/no/such/program"]}), json!({})).await?;
    for (name, code) in codes {
        world.ended(name, exited(code)).await?;
    }
    // Not 128, which the kubelet made up, nor 1970.
    let job = world.ended("no-program", never("StartFailed")).await?;
    ensure!(message(&job).contains("/no/such/program"), "{}", message(&job));
    Ok(())
}

/// It may grow until it is over; then the Job goes, and its Pod with it.
pub async fn a_time_to_live(world: &World) -> Result<()> {
    let job = world.job("ttl", "exit 0", json!({}), json!({"ttlSecondsAfterFinished": 30})).await?;
    let ended = world.ended("ttl", exited(0)).await?;
    world.jobs.patch("ttl", &PatchParams::default(), &Patch::Merge(json!({"spec": {"ttlSecondsAfterFinished": 4}}))).await?;
    let gone = until("the Job to be gone", PATIENCE, || async { Ok(world.jobs.get_opt("ttl").await?.is_none().then(Timestamp::now)) }).await?;
    let lived = seconds(ended.status.context("a status")?.completion_time.context("an end")?.0, gone);
    ensure!((4..20).contains(&lived), "{lived} s");
    until("its Pod to be gone", PATIENCE, || async { Ok(world.pods_of(&uid(&job)).await?.is_empty().then_some(())) }).await
}

pub async fn too_much_memory(world: &World) -> Result<()> {
    const HOG: &str = "awk 'BEGIN { x = \"0123456789\"; while (1) x = x x }'";
    let limits = json!({"resources": {"limits": {"memory": "32Mi"}}});
    world.job("hog", &format!("exec {HOG}"), json!({}), limits.clone()).await?;
    world.job("child-of-hog", &format!("{HOG}; exit 0"), json!({}), limits).await?;
    let job = world.ended("hog", End { result: Some("OOMKilled"), ..exited(137) }).await?;
    ensure!(message(&job).contains("too much memory"), "{}", message(&job));
    // Where cgroups are of version 2 the kernel ends the whole container; else only the child, and the shell goes on to its end.
    let alone = Path::new("/sys/fs/cgroup/memory").is_dir();
    world.ended("child-of-hog", End { result: Some("OOMKilled"), ..exited(if alone { 0 } else { 137 }) }).await?;
    Ok(())
}
