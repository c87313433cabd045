//! Prints the table of benches/README.md: cost per placement in a small and a large world, side by side in one run,
//! and the memory of a waiting and of an active Run. Exits 1 if a ratio is above 3 or a Run takes 1 KiB or more.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use berth_benches::{Shape, World};
use berth_framework::core::Input;
use berth_framework::model::Delta;

/// Pods and active Runs of the small and the large world.
const SMALL: (usize, usize) = (100, 1_000);
const LARGE: (usize, usize) = (10_000, 1_000_000);
/// Alternating rounds; the median of the ratios counts.
const ROUNDS: usize = 15;
/// Placements per round.
const PLACEMENTS: u32 = 500;
const RATIO_MAX: f64 = 3.0;
const BYTES_MAX: usize = 1024;

fn round(world: &mut World) -> anyhow::Result<Duration> {
    let runs: Vec<_> = (0..PLACEMENTS).map(|_| world.next_run()).collect();
    let start = Instant::now();
    for run in runs {
        world.place(run)?;
    }
    let spent = start.elapsed() / PLACEMENTS;
    world.restore();
    Ok(spent)
}

fn median<T: Copy + PartialOrd>(mut values: Vec<T>) -> Option<T> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

/// Resident memory of this process, bytes.
fn resident() -> anyhow::Result<usize> {
    let pages: usize = std::fs::read_to_string("/proc/self/statm")?.split_whitespace().nth(1).unwrap_or("0").parse()?;
    Ok(pages * 4096)
}

/// What the name, namespace, UID and labels of a Run take by themselves, bytes: they are the user's.
fn identity() -> anyhow::Result<usize> {
    const RUNS: usize = 200_000;
    let before = resident()?;
    let of = |i: usize| {
        let key = berth_framework::model::ObjectKey::new("bench", format!("run-{i:07}"));
        let uid: std::sync::Arc<str> = format!("run-uid-{i:07}").into();
        let labels: std::collections::BTreeMap<String, String> = [("app".to_owned(), "new".to_owned())].into();
        (key, uid, std::sync::Arc::new(labels))
    };
    let all: Vec<_> = (0..RUNS).map(of).collect();
    let size = resident()?.saturating_sub(before) / all.len();
    // Kept on purpose: memory given back would be used again and hide what is measured next.
    std::mem::forget(all);
    Ok(size)
}

fn memory() -> anyhow::Result<(usize, usize)> {
    const RUNS: usize = 200_000;
    let identity = identity()?;
    // Measured in this order: what the waiting world frees must not hide what the active one takes.
    let before = resident()?;
    let active_world = World::new(Shape::One, 100, 1_000_000)?;
    // Active Runs of this world share their labels, so only the whole is told.
    let active = resident()?.saturating_sub(before) / 1_000_000;
    let mut world = World::new(Shape::One, 100, 1_000)?;
    let before = resident()?;
    world.core.stop_placing();
    let gpu = std::sync::Arc::new(berth_framework::model::Requests::new([("gpu".into(), 1)]));
    let mut objects = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let mut run = (*world.next_run()).clone();
        // More than any Pod has, so that it waits.
        run.requests = Some(gpu.clone());
        objects.push(std::sync::Arc::new(run));
    }
    for run in &objects {
        world.core.handle(Input::Run(Delta::Applied(run.clone())), berth_benches::NOW);
    }
    world.core.start_placing();
    while world.core.step(berth_benches::NOW).is_some() {}
    anyhow::ensure!(world.core.queue().waiting == RUNS, "all wait");
    let waiting = (resident()?.saturating_sub(before) / RUNS).saturating_sub(identity);
    drop((world, objects, active_world));
    Ok((waiting, active))
}

fn main() -> anyhow::Result<ExitCode> {
    // First, while nothing freed can be used again.
    let (waiting, active) = memory()?;
    let mut good = waiting < BYTES_MAX && active < BYTES_MAX;
    println!("| world | {} Pods, {} active | {} Pods, {} active | ratio (median of {ROUNDS} pairs) |", SMALL.0, SMALL.1, LARGE.0, LARGE.1);
    println!("|---|---|---|---|");
    for shape in Shape::ALL {
        let mut small = World::new(shape, SMALL.0, SMALL.1)?;
        let mut large = World::new(shape, LARGE.0, LARGE.1)?;
        // Every shape's table is built once, however many Runs follow; that is not the cost of a placement.
        round(&mut small)?;
        round(&mut large)?;
        let mut pairs = Vec::new();
        for _ in 0..ROUNDS {
            pairs.push((round(&mut small)?, round(&mut large)?));
        }
        let ratio = median(pairs.iter().map(|(s, l)| l.as_secs_f64() / s.as_secs_f64()).collect()).unwrap_or(f64::INFINITY);
        let of = |f: fn(&(Duration, Duration)) -> Duration| median(pairs.iter().map(f).collect::<Vec<_>>()).unwrap_or_default();
        println!("| {} | {:?} | {:?} | {ratio:.2} |", shape.name(), of(|p| p.0), of(|p| p.1));
        good &= ratio <= RATIO_MAX;
    }
    println!("\nResident memory per waiting Run: {waiting} bytes beyond names and labels; per active Run: {active} bytes in all.");
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
