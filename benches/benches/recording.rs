//! What recording costs: the same placements without an observer and with the whole of `berth serve`'s metrics, side by side in one run. Prints
//! the table of benches/README.md; exits 1 if recording takes more than 1 µs per placement.
#![allow(missing_docs, reason = "a program")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use berth_benches::{NOW, Shape, World};
use berth_framework::core::Input;
use berth_framework::model::Delta;
use berth_scheduler::serve::metrics::Metrics;
use berth_scheduler::serve::metrics::cycle::Recorder;

/// Alternating rounds; the median of the differences counts.
const ROUNDS: usize = 41;
/// Placements per round.
const PLACEMENTS: u32 = 500;
const RECORDING_MAX: Duration = Duration::from_micros(1);
const PODS: usize = 1_000;
const ACTIVE: usize = 100_000;

fn without(world: &mut World) -> anyhow::Result<Duration> {
    let runs: Vec<_> = (0..PLACEMENTS).map(|_| world.next_run()).collect();
    let start = Instant::now();
    for run in runs {
        world.place(run)?;
    }
    let spent = start.elapsed() / PLACEMENTS;
    world.restore();
    Ok(spent)
}

/// As the owner of the core and the dispatcher do it, the counters taken over after every single attempt.
fn with(world: &mut World, metrics: &Metrics, last_ns: &AtomicU64) -> anyhow::Result<Duration> {
    let runs: Vec<_> = (0..PLACEMENTS).map(|_| world.next_run()).collect();
    let start = Instant::now();
    for run in runs {
        let before = Instant::now();
        if let Some(event) = world.core.handle(Input::Run(Delta::Applied(run)), NOW) {
            metrics.cycles.handled(event, before.elapsed());
        }
        let decided = Instant::now();
        let attempt = world.core.step(NOW).ok_or_else(|| anyhow::anyhow!("nothing was tried"))?;
        metrics.attempts.attempted(&attempt, "default", Duration::from_nanos(last_ns.load(Ordering::Relaxed)));
        metrics.core.core(&world.core, world.core.queue(), (0, 0));
        let waited = decided.elapsed();
        metrics.attempts.bound("default", waited, waited, attempt.attempts);
        metrics.client.written("bind", "applied");
    }
    let spent = start.elapsed() / PLACEMENTS;
    world.restore();
    Ok(spent)
}

fn median<T: Copy + Ord + Default>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn main() -> anyhow::Result<ExitCode> {
    let mut good = true;
    println!("| world, {PODS} Pods, {ACTIVE} active | without | with | recording (median of {ROUNDS} pairs) |\n|---|---|---|---|");
    for shape in Shape::ALL {
        let (mut plain, mut recorded) = (World::new(shape, PODS, ACTIVE)?, World::new(shape, PODS, ACTIVE)?);
        let metrics = Metrics::new()?;
        metrics.profiles_are(recorded.core.profiles());
        let last_ns = Arc::<AtomicU64>::default();
        let recorder = Recorder::new(metrics.cycles.clone(), recorded.core.profiles(), last_ns.clone());
        recorded.core.observe(Box::new(recorder));
        // The shape's table is built once, however many Runs follow.
        without(&mut plain)?;
        with(&mut recorded, &metrics, &last_ns)?;
        let mut pairs = Vec::new();
        for _ in 0..ROUNDS {
            pairs.push((without(&mut plain)?, with(&mut recorded, &metrics, &last_ns)?));
        }
        let recording = median(pairs.iter().map(|(without, with)| with.saturating_sub(*without)).collect());
        let of = |f: fn(&(Duration, Duration)) -> Duration| median(pairs.iter().map(f).collect());
        println!("| {} | {:?} | {:?} | {recording:?} |", shape.name(), of(|p| p.0), of(|p| p.1));
        good &= recording <= RECORDING_MAX;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
