//! The cost of one event: a heartbeat, a Run that ends, a Run that waits and is woken.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros, and a bench may panic")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_benches::{NOW, Shape, World, pod};
use berth_framework::core::Input;
use berth_framework::model::{Delta, Now, PodObject, Requests, RunObject};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const SIZES: [(usize, usize); 2] = [(100, 1_000), (10_000, 1_000_000)];

fn heartbeat(c: &mut Criterion) {
    let mut group = c.benchmark_group("event/heartbeat");
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for (pods, active) in SIZES {
        let mut world = World::new(Shape::One, pods, active).unwrap();
        let mut beat = 0;
        group.bench_function(BenchmarkId::from_parameter(format!("{pods} Pods, {active} active")), |b| {
            b.iter(|| {
                beat += 1;
                let known = &world.pods[beat % world.pods.len()];
                let fresh = PodObject { probe_ms: Some(NOW.wall_ms + i64::try_from(beat).unwrap()), ..(**known).clone() };
                world.core.handle(Input::Pod(Delta::Applied(Arc::new(fresh))), Now { mono_ms: NOW.mono_ms + 1, ..NOW });
            });
        });
    }
    group.finish();
}

/// Runs that ask for more than any Pod has, so that they wait; one Pod then makes room for exactly one.
fn wake(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue/one of 10,000 waiting Runs is woken by raised capacity and placed");
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for (pods, active) in SIZES {
        let mut world = World::new(Shape::One, pods, active).unwrap();
        let big = Arc::new(Requests::new([(Arc::from("gpu"), 1)]));
        let waiting = |world: &mut World| {
            let run = RunObject { requests: Some(big.clone()), ..(*world.next_run()).clone() };
            world.core.handle(Input::Run(Delta::Applied(Arc::new(run))), NOW);
            while world.core.step(NOW).is_some() {}
        };
        for _ in 0..10_000 {
            waiting(&mut world);
        }
        assert_eq!(world.core.queue().waiting, 10_000, "no Pod has a gpu yet");
        let with_gpu = |pod: &PodObject, gpus: i64| {
            let mut capacity = (*pod.capacity).clone();
            capacity.insert("gpu".into(), gpus);
            Arc::new(PodObject { capacity: Arc::new(capacity), ..pod.clone() })
        };
        let base = pod(0, 1_000_000);
        group.bench_function(BenchmarkId::from_parameter(format!("{pods} Pods, {active} active")), |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    let room = with_gpu(&base, 1);
                    let start = Instant::now();
                    world.core.handle(Input::Pod(Delta::Applied(room)), NOW);
                    while world.core.step(NOW).is_some() {}
                    spent += start.elapsed();
                    assert_eq!(world.core.queue().waiting, 9_999, "one was woken and placed");
                    world.core.handle(Input::Pod(Delta::Applied(with_gpu(&base, 0))), NOW);
                    world.restore();
                    waiting(&mut world);
                }
                spent
            });
        });
    }
    group.finish();
}

criterion_group!(benches, heartbeat, wake);
criterion_main!(benches);
