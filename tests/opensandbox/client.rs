//! The lifecycle API: a sandbox's life, and what the real server answers to what is wrong.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use berth_opensandbox::{Access, Cause, Certainty, Code, Failure, Metadata, ServerUrl, Settings, State, Timeouts};
use berth_tests::opensandbox::API_KEY;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;

use crate::world::{TOKEN, World, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_made_found_renewed_paused_and_removed() -> Result<()> {
    let world = World::new().await?;
    let client = &world.client;
    assert!(client.list(&world.metadata()).await?.is_empty());
    let (first, execd) = world.sandbox().await?;
    let (second, _) = world.sandbox().await?;
    assert_ne!(first.id, second.id, "two equal creates are two sandboxes");

    let found = client.list(&world.metadata()).await?;
    assert_eq!(found.iter().map(|sandbox| &sandbox.id).collect::<Vec<_>>(), [&second.id, &first.id], "newest first");
    let mut more = world.metadata();
    more.insert("absent".into(), "x".into());
    assert!(client.list(&more).await?.is_empty(), "all of it");
    assert!(client.list(&Metadata::new()).await?.len() >= 2);

    let wanted = Timestamp::now() + SignedDuration::from_hours(2);
    let confirmed = client.renew(&first.id, wanted).await?;
    assert!((confirmed.as_millisecond() - wanted.as_millisecond()).abs() < 1000, "{confirmed} for {wanted}");
    assert_eq!(client.get(&first.id).await?.expires_at.map(Timestamp::as_second), Some(confirmed.as_second()));
    let past = client.renew(&first.id, Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert_eq!((past.code(), past.certainty()), (Some(Code::InvalidExpiration), Certainty::Definite));

    assert_eq!(client.resume(&first.id).await.unwrap_err().code(), Some(Code::SandboxNotPaused));
    client.pause(&first.id).await?;
    assert_eq!(client.get(&first.id).await?.status.state, State::Paused);
    assert_eq!(client.pause(&first.id).await.unwrap_err().code(), Some(Code::SandboxNotRunning));
    let timeouts = Timeouts { call: Duration::from_secs(1), ..Timeouts::default() };
    let hasty = world.server.client_with(Arc::new(SecretString::from(API_KEY)), &Settings { timeouts, ..Settings::default() })?;
    let frozen = hasty.execd(&first.id, Access::Direct, Some(TOKEN.into())).await?.ping().await.unwrap_err();
    assert_eq!((frozen.failure.clone(), frozen.certainty()), (Failure::NoAnswer(Cause::TimedOut), Certainty::Retryable));
    client.resume(&first.id).await?;
    assert_eq!(run(&execd, "echo thawed").await?, "thawed\n");

    assert!(client.delete(&first.id).await?);
    assert!(!client.delete(&first.id).await?, "gone is done");
    let gone = client.get(&first.id).await.unwrap_err();
    assert!(gone.is_sandbox_not_found(), "{gone}");
    assert!(client.renew(&first.id, wanted).await.unwrap_err().is_sandbox_not_found());
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entrypoint_that_ends_ends_its_sandbox_and_its_code_is_told() -> Result<()> {
    let world = World::new().await?;
    for (code, state) in [(0, State::Terminated), (7, State::Failed)] {
        let mut request = world.idle();
        request.entrypoint = vec!["sh".into(), "-c".into(), format!("exit {code}")];
        let sandbox = world.client.create(&request).await?;
        let ended = berth_tests::poll::until("the end", berth_tests::poll::PATIENCE, || async {
            let status = world.client.get(&sandbox.id).await?.status;
            Ok((status.state == state).then_some(status))
        });
        assert_eq!(ended.await?.exit_code(), Some(code));
    }
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told_by_a_code_and_never_by_what_was_sent() -> Result<()> {
    let world = World::new().await?;
    let strange = world.server.client_with(Arc::new(SecretString::from("canary-wrong-key")), &Settings::default())?;
    let error = strange.create(&world.idle()).await.unwrap_err();
    assert_eq!((error.code(), error.certainty(), error.is_unauthorized()), (Some(Code::InvalidApiKey), Certainty::Definite, true));

    let astray = ServerUrl::parse(&format!("{}/nowhere", world.server.url()))?;
    let astray = berth_opensandbox::Client::new(astray, Arc::new(SecretString::from(API_KEY)), &Settings::default())?;
    let error = astray.get("00000000-0000-0000-0000-000000000000").await.unwrap_err();
    assert_eq!((error.code(), error.is_sandbox_not_found()), (Some(Code::Route), false), "a wrong URL is no missing sandbox");
    assert!(world.client.get("00000000-0000-0000-0000-000000000000").await.unwrap_err().is_sandbox_not_found());

    let mut request = world.idle();
    request.timeout = Some(5);
    let schema = world.client.create(&request).await.unwrap_err();
    let mut request = world.idle();
    request.metadata.insert("a b".into(), "echoed-metadata".into());
    let label = world.client.create(&request).await.unwrap_err();
    let mut request = world.idle();
    // No Secret, and the server logs it: so no canary.
    request.resource_limits.insert("memory".into(), "echoed-amount".into());
    let amount = world.client.create(&request).await.unwrap_err();
    let rows = [(&schema, Code::Schema, 422), (&label, Code::InvalidMetadata, 400), (&amount, Code::InvalidParameter, 400)];
    for (error, code, status) in rows {
        assert_eq!((error.code(), error.certainty()), (Some(code), Certainty::Definite), "{error}");
        assert_eq!(error.refusal().map(|refusal| refusal.status), Some(status));
        assert!(!format!("{error} {error:?}").contains("echoed"), "{error:?}");
    }
    world.end().await
}
