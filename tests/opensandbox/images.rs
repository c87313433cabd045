//! Images of a registry that wants credentials, and creates that take longer than their client waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use berth_opensandbox::{Certainty, Code, ImageAuth, Settings, Timeouts, registry};
use berth_tests::image::Image;
use berth_tests::opensandbox::API_KEY;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::registry::{PASSWORD, Registry, Terms, USER};
use secrecy::SecretString;
use serde_json::json;

use crate::world::World;

const REPOSITORY: &str = "team/shell";
/// How long the slow registry takes for the image's layer.
const PULL: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_out_of_a_secret_pull_and_wrong_ones_are_a_definite_refusal() -> Result<()> {
    let world = World::new().await?;
    let registry = Registry::start().await?;
    registry.serve(REPOSITORY, "1", &Image::shell("credentials")?, Terms { private: true, ..Terms::default() });
    let image = format!("{}/{REPOSITORY}:1", registry.host());
    let secret = json!({"auths": {
        "127.0.0.1": {"username": "x", "password": "another port"},
        registry.host(): {"username": "x", "password": "a shorter path"},
        format!("{}/team", registry.host()): {"username": USER, "password": PASSWORD},
    }});
    let secret = serde_json::to_vec(&secret)?;
    let with = |auth: Option<ImageAuth>| {
        let mut request = world.idle();
        request.image.uri.clone_from(&image);
        request.image.auth = auth;
        request
    };
    let wrong = ImageAuth { username: USER.to_owned(), password: "canary-wrong-password".into() };
    for auth in [None, Some(wrong.clone())] {
        let error = world.client.create(&with(auth)).await.unwrap_err();
        assert_eq!((error.code(), error.certainty()), (Some(Code::ImagePullFailed), Certainty::Definite), "{error}");
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
    assert!(registry.refused() >= 2);
    assert!(world.client.list(&world.metadata()).await?.is_empty(), "a refused create leaves nothing");

    let right = registry::credentials(&image, [secret.as_slice()])?;
    world.client.create(&with(Some(right))).await?;
    // What the adapter must know: an image that is there is not asked for again.
    world.client.create(&with(Some(wrong))).await.context("a cached image needs no credentials")?;
    assert!(!world.server.log().contains("canary-wrong-password"), "not in the server's log either");
    world.end().await?;
    world_without(&image).await
}

/// The engine is shared; the next test must pull.
async fn world_without(image: &str) -> Result<()> {
    crate::world::server().await?.engine.run(&["image", "rm", "--force", image]).map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_was_given_up_makes_its_sandbox_all_the_same_and_an_empty_list_proves_nothing() -> Result<()> {
    let world = World::new().await?;
    let registry = Registry::start().await?;
    registry.serve(REPOSITORY, "1", &Image::shell("slow")?, Terms { slow: PULL, ..Terms::default() });
    let mut request = world.idle();
    request.image.uri = format!("{}/{REPOSITORY}:1", registry.host());
    let timeouts = Timeouts { create: Duration::from_millis(500), ..Timeouts::default() };
    let hasty = world.server.client_with(Arc::new(SecretString::from(API_KEY)), &Settings { timeouts, ..Settings::default() })?;
    let start = Instant::now();
    let error = hasty.create(&request).await.unwrap_err();
    assert_eq!(error.certainty(), Certainty::Ambiguous, "{error}");
    assert!(world.client.list(&world.metadata()).await?.is_empty(), "nothing yet, {:?} after", start.elapsed());
    let found = until("the sandbox that nobody waited for", PATIENCE, || async { Ok(world.client.list(&world.metadata()).await?.pop()) });
    let id = found.await?.id;
    assert!(start.elapsed() >= PULL, "{:?}: it was not pulled", start.elapsed());
    println!("{id} appeared {:?} after its create, whose pull took at least {PULL:?}", start.elapsed());
    world.end().await?;
    world_without(&request.image.uri).await
}
