//! Jobs whose process can't begin yet: what they wait for, how long, and that no time counts before the process has begun.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_controllers::job::api::Job;
use berth_tests::image::Image;
use berth_tests::registry::{PASSWORD, Registry, Terms, USER};
use serde_json::{Value, json};

use super::judge::{exited, message, never, seconds, stopped};
use super::world::{A_WHILE, POLITE, World};
use crate::job_world::{condition, uid};

/// A Job that waits has one Pod, and neither an end nor a start.
async fn only_waits(world: &World, job: &Job) -> Result<()> {
    let status = job.status.clone().context("a status")?;
    ensure!(status.start_time.is_none() && status.completion_time.is_none() && status.result.is_none());
    ensure!(condition(job, "Accepted").0 == "True" && condition(job, "Scheduled").0 == "True");
    ensure!(world.pods_of(&uid(job)).await?.len() == 1);
    Ok(())
}

/// Seconds from a Job's creation to its start.
fn waited(job: &Job) -> Result<i64> {
    let start = job.status.as_ref().and_then(|status| status.start_time.clone()).context("a start")?.0;
    Ok(seconds(job.metadata.creation_timestamp.clone().context("created")?.0, start))
}

pub async fn a_secret_comes_later(world: &World) -> Result<()> {
    let env = json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}}]);
    world.job("late", "[ \"${#TOKEN}\" = 19 ]", json!({"env": env}), json!({"activeDeadlineSeconds": 4})).await?;
    let job = world.unfinished("late", "WaitingForReference").await?;
    ensure!(message(&job) == "secret \"late\" not found", "{}", message(&job));
    only_waits(world, &job).await?;
    let (_, out, _) = world.berth(&["explain", "job", "late"]).await?;
    ensure!(out.contains("WaitingForReference: secret \"late\" not found") && out.contains("What to do: create what the message names"), "{out}");
    // It is there, without the key.
    world.secret("late", "Opaque", json!({"other": "x"})).await?;
    let job = world.when("late", "to name the key", |job| message(job).contains("key token")).await?;
    only_waits(world, &job).await?;
    world.secret("late", "Opaque", json!({"token": "canary-that-is-late"})).await?;
    let job = world.ended("late", exited(0)).await?;
    ensure!(waited(&job)? > 4, "it began after {} s, within its deadline", waited(&job)?);
    Ok(())
}

pub async fn an_image_comes_later(world: &World) -> Result<()> {
    world.job("image-late", "cat /etc/mark", json!({"image": "docker.io/team/late:1"}), json!({"activeDeadlineSeconds": 4})).await?;
    let job = world.unfinished("image-late", "WaitingForImage").await?;
    ensure!(message(&job).contains("not found"), "{}", message(&job));
    only_waits(world, &job).await?;
    ensure!(condition(&job, "Progressing") == ("False".to_owned(), "ImagePullFailed".to_owned()));
    world.registry.serve("team/late", "1", &Image::shell("late")?, Terms::default());
    let job = world.ended("image-late", exited(0)).await?;
    ensure!(condition(&job, "Progressing").0.is_empty(), "it got on");
    let (_, out, _) = world.berth(&["logs", "job", "image-late"]).await?;
    ensure!(out == "late", "{out}");
    Ok(())
}

pub async fn a_wrong_image(world: &World) -> Result<()> {
    let hasty = json!({"jobClassName": "hasty"});
    world.job("no-image", "", json!({"image": "docker.io/team/none:1"}), hasty.clone()).await?;
    world.job("no-tag", "", json!({"image": "docker.io/library/alpine:0"}), hasty.clone()).await?;
    world.job("no-registry", "", json!({"image": "127.0.0.1:1/none:1"}), hasty).await?;
    // No grace helps here.
    world.job("no-name", "", json!({"image": "docker.io/Team:!"}), json!({})).await?;
    for (name, cause) in [("no-image", "not found"), ("no-tag", "not found"), ("no-registry", "connection refused")] {
        let job = world.ended(name, never("ImagePullFailed")).await?;
        ensure!(message(&job).contains(cause), "{}", message(&job));
        ensure!(condition(&job, "StopRequested") == ("True".to_owned(), "ImagePullFailed".to_owned()));
    }
    world.ended("no-name", never("InvalidImageName")).await?;
    Ok(())
}

async fn pull_secret(world: &World, name: &str) -> Result<()> {
    let auths = json!({"auths": {format!("127.0.0.1:{}", world.registry.port()): {"username": USER, "password": PASSWORD}}});
    world.secret(name, "kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": auths.to_string()})).await
}

fn private(registry: &Registry, repository: &str, secret: Option<&str>) -> Result<Value> {
    let terms = Terms { private: true, ..Terms::default() };
    registry.serve(repository, "1", &Image::shell(repository)?, terms);
    let secrets: Vec<_> = secret.iter().map(|name| json!({ "name": name })).collect();
    Ok(json!({"image": format!("127.0.0.1:{}/{repository}:1", registry.port()), "imagePullSecrets": secrets}))
}

pub async fn a_private_registry(world: &World) -> Result<()> {
    pull_secret(world, "pull").await?;
    let with = private(&world.registry, "private/app", Some("pull"))?;
    world.job("private", "cat /etc/mark", with, json!({})).await?;
    world.ended("private", exited(0)).await?;
    let (_, out, _) = world.berth(&["logs", "job", "private"]).await?;
    ensure!(out == "private/app", "{out}");
    // The image is on the node now: whoever has no Secret for it still does not get it.
    let hasty = json!({"jobClassName": "hasty"});
    world.job("unauthorized", "", private(&world.registry, "private/app", None)?, hasty.clone()).await?;
    world.job("no-pull-secret", "", private(&world.registry, "private/app", Some("no-such"))?, hasty).await?;
    let job = world.ended("unauthorized", never("ImagePullFailed")).await?;
    ensure!(message(&job).contains("authorization failed") || message(&job).contains("401"), "{}", message(&job));
    let job = world.ended("no-pull-secret", never("ImagePullSecretUnavailable")).await?;
    ensure!(message(&job).contains("no-such"), "{}", message(&job));
    Ok(())
}

pub async fn a_pull_secret_comes_later(world: &World) -> Result<()> {
    let task = private(&world.registry, "private/late", Some("pull-late"))?;
    world.job("pull-late", "exit 0", task, json!({})).await?;
    let job = world.when("pull-late", "to name the Secret", |job| message(job).contains("pull-late")).await?;
    ensure!(condition(&job, "Progressing") == ("False".to_owned(), "ImagePullSecretUnavailable".to_owned()));
    only_waits(world, &job).await?;
    pull_secret(world, "pull-late").await?;
    world.ended("pull-late", exited(0)).await?;
    Ok(())
}

pub async fn a_deadline_does_not_count_a_slow_pull(world: &World) -> Result<()> {
    const SLOW: Duration = Duration::from_secs(8);
    const DEADLINE: i64 = 3;
    world.registry.serve("team/slow", "1", &Image::shell("slow")?, Terms { slow: SLOW, ..Terms::default() });
    let job = world.job("slow", POLITE, json!({"image": "docker.io/team/slow:1"}), json!({"activeDeadlineSeconds": DEADLINE})).await?;
    tokio::time::sleep(Duration::from_secs(DEADLINE.unsigned_abs()) + A_WHILE).await;
    let pulled = world.jobs.get("slow").await?;
    ensure!(condition(&pulled, "Succeeded").0 == "Unknown" && condition(&pulled, "StopRequested").0.is_empty(), "{:?}", pulled.status);
    only_waits(world, &pulled).await?;
    world.begun(&uid(&job)).await?;
    let job = world.ended("slow", stopped("DeadlineExceeded", 143)).await?;
    ensure!(waited(&job)? >= SLOW.as_secs() as i64 - 1, "{}", waited(&job)?);
    ensure!(condition(&job, "StopRequested") == ("True".to_owned(), "DeadlineExceeded".to_owned()));
    let status = job.status.clone().context("a status")?;
    let ran = seconds(status.start_time.context("a start")?.0, status.completion_time.context("an end")?.0);
    ensure!(ran >= DEADLINE, "stopped after {ran} s");
    Ok(())
}
