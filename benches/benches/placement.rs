//! One cycle, and the drain of a backlog, in worlds of growing size.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros, and a bench may panic")]

use std::time::{Duration, Instant};

use berth_benches::{Shape, World};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Pods and active Runs.
const SIZES: [(usize, usize); 4] = [(10, 1_000), (100, 1_000), (1_000, 100_000), (10_000, 1_000_000)];
/// Placements between two restorations of the world.
const BATCH: u64 = 200;

fn one_cycle(c: &mut Criterion) {
    for shape in Shape::ALL {
        let mut group = c.benchmark_group(format!("cycle/{}", shape.name()));
        group.sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
        for (pods, active) in SIZES {
            let mut world = World::new(shape, pods, active).unwrap();
            group.bench_function(BenchmarkId::from_parameter(format!("{pods} Pods, {active} active")), |b| {
                b.iter_custom(|iterations| {
                    let mut spent = Duration::ZERO;
                    let mut left = iterations;
                    while left > 0 {
                        let batch = left.min(BATCH);
                        let runs: Vec<_> = (0..batch).map(|_| world.next_run()).collect();
                        let start = Instant::now();
                        for run in runs {
                            world.place(run).unwrap();
                        }
                        spent += start.elapsed();
                        world.restore();
                        left -= batch;
                    }
                    spent
                });
            });
        }
        group.finish();
    }
}

fn drain(c: &mut Criterion) {
    let mut group = c.benchmark_group("drain of 2,000 waiting Runs");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).throughput(Throughput::Elements(2_000));
    for shape in Shape::ALL {
        let mut world = World::new(shape, 1_000, 100_000).unwrap();
        group.bench_function(shape.name(), |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    world.core.stop_placing();
                    for _ in 0..2_000 {
                        let run = world.next_run();
                        world.core.handle(berth_framework::core::Input::Run(berth_framework::model::Delta::Applied(run)), berth_benches::NOW);
                    }
                    world.core.start_placing();
                    let start = Instant::now();
                    while world.core.step(berth_benches::NOW).is_some() {}
                    spent += start.elapsed();
                    assert_eq!(world.core.queue().waiting, 0, "all were placed");
                    world.restore();
                }
                spent
            });
        });
    }
    group.finish();
}

criterion_group!(benches, one_cycle, drain);
criterion_main!(benches);
