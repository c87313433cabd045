//! Jobs on a real node: from the specification's example to a node that is lost, all of them on one node, side by side where they don't disturb each other.

mod bench;
mod crowd;
mod ends;
mod judge;
mod losses;
mod stops;
mod waits;
mod world;

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::future::{BoxFuture, FutureExt as _, join_all};

use self::world::World;
use crate::job_world::{History, nothing_was_refused};

/// Values of Secrets and of a ConfigMap, which are told nowhere.
const CANARIES: [&str; 4] = ["canary-of-the-example", "canary-of-the-config", "canary-that-is-late", berth_tests::registry::PASSWORD];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_tell_the_truth_about_real_processes() -> Result<()> {
    let start = Instant::now();
    let world = World::start().await?;
    let history = History::of(world.jobs.clone());
    let another = berth_tests::node::another(&world.plane, "n2").await?;
    eprintln!("node with Jobs after {:?}", start.elapsed());

    let world = &world;
    let scenarios: [(&str, BoxFuture<'_, Result<()>>); 18] = [
        ("example", ends::the_specification_s_example(world).boxed()),
        ("conformance", ends::what_every_adapter_must_do(world).boxed()),
        ("argv", ends::argv_arrives_as_it_was_given(world).boxed()),
        ("codes", ends::exit_codes_are_told(world).boxed()),
        ("time to live", ends::a_time_to_live(world).boxed()),
        ("memory", ends::too_much_memory(world).boxed()),
        ("secret later", waits::a_secret_comes_later(world).boxed()),
        ("image later", waits::an_image_comes_later(world).boxed()),
        ("wrong image", waits::a_wrong_image(world).boxed()),
        ("private registry", waits::a_private_registry(world).boxed()),
        ("pull secret later", waits::a_pull_secret_comes_later(world).boxed()),
        ("slow pull", waits::a_deadline_does_not_count_a_slow_pull(world).boxed()),
        ("cancel", stops::cancels(world).boxed()),
        ("delete", stops::deletions_whatever_their_cascade(world).boxed()),
        ("Pod deleted", stops::a_pod_that_others_delete(world).boxed()),
        ("Pod deleted by force", stops::a_pod_deleted_by_force(world).boxed()),
        ("evicted", stops::evictions(world).boxed()),
        ("deadline", stops::a_deadline_stops(world).boxed()),
    ];
    let told = |name: &str, outcome: Result<()>| {
        eprintln!("{name}: {:?}", start.elapsed());
        outcome.err().map(|error| format!("{name}: {error:#}"))
    };
    let told = &told;
    // Every one of them, so that a failure says what else holds.
    let mut failures: Vec<_> = join_all(scenarios.into_iter().map(|(name, scenario)| async move { told(name, scenario.await) })).await;
    failures.push(told("crowd", crowd::many_at_once_while_leaders_die(world).await));
    failures.push(told("kubelet", losses::the_kubelet_is_killed_and_comes_back(world).await));
    failures.push(told("containerd", losses::containerd_is_killed_and_comes_back(world).await));
    let failures: Vec<_> = failures.into_iter().flatten().collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n\n"));

    let begun = world.none_began_twice()?;
    world.nobody_tells(&CANARIES).await?;
    nothing_was_refused(&world.plane, &world.account.user)?;
    let changes = history.end()?;
    ensure!(changes > begun);
    eprintln!("{begun} processes, none twice; {changes} changes of Jobs, none against the invariants; {:?}", start.elapsed());
    drop(another);
    Ok(())
}
