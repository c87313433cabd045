//! Runs random histories on every core, and shrinks one that fails to the events that matter.

use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::check::Tally;
use crate::history::{History, Timed, history};
use crate::world::World;

/// How many histories are tried unless `SEEDS` says otherwise.
const SEEDS_DEFAULT: u64 = 2_500;
/// How many failing seeds are shrunk and shown.
const FAILURES_SHOWN: usize = 3;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else { return 0..SEEDS_DEFAULT };
    let number = |text: &str| text.trim().parse::<u64>().expect("SEEDS is a number, or two as in 17..18");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => 0..number(&text),
    }
}

/// Plays a history to its end; a panic is a failure as any other.
pub fn play(history: &History, alter: &(dyn Fn(&mut World) + Sync)) -> Result<Tally, String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(history);
        alter(&mut world);
        for (n, timed) in history.events.iter().enumerate() {
            world.happen(timed).map_err(|e| format!("after event {n}: {e}"))?;
            alter(&mut world);
        }
        world.settle().map_err(|e| format!("while settling: {e}"))?;
        Ok(world.tally)
    }));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Drops events while the history still fails.
fn shrink(mut history: History) -> (History, String) {
    let Err(mut failure) = play(&history, &|_| {}) else { unreachable!("shrinks failing histories only") };
    let mut size = history.events.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < history.events.len() {
            let mut shorter = history.clone();
            shorter.events.drain(at..(at + size).min(shorter.events.len()));
            match play(&shorter, &|_| {}) {
                Err(why) => (history, failure) = (shorter, why),
                Ok(_) => at += size,
            }
        }
        size /= 2;
    }
    (history, failure)
}

fn report(seed: u64, history: &History, failure: &str) -> String {
    let mut text = format!("SEEDS={seed}..{} fails; the events that matter:\n", seed + 1);
    let _ = writeln!(text, "  namespaces {}, lag {}, prompt {}, {:?}", history.namespaces, history.lag, history.prompt, history.rules);
    for (n, Timed { event, quiet }) in history.events.iter().enumerate() {
        let _ = writeln!(text, "  {n}{} {event:?}", if *quiet { " (quiet)" } else { "" });
    }
    let _ = writeln!(text, "{failure}");
    text
}

/// Plays the histories that `make` gives for `seeds`, on every core.
pub fn search(seeds: Range<u64>, make: &(dyn Fn(u64) -> History + Sync)) {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let next = AtomicU64::new(seeds.start);
    let failed: Mutex<Vec<u64>> = Mutex::default();
    let total: Mutex<Tally> = Mutex::default();
    let started = Instant::now();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.lock().expect("no panic").len() >= 50 {
                        return;
                    }
                    match play(&make(seed), &|_| {}) {
                        Ok(tally) => total.lock().expect("no panic").add(&tally),
                        Err(_) => failed.lock().expect("no panic").push(seed),
                    }
                }
            });
        }
    });
    std::panic::set_hook(hook);
    let total = total.into_inner().expect("no panic");
    eprintln!("seeds {seeds:?}: {total:?}, {:.1?}", started.elapsed());
    let mut failed = failed.into_inner().expect("no panic");
    failed.sort_unstable();
    if failed.is_empty() {
        return;
    }
    let mut text = String::new();
    for seed in failed.iter().take(FAILURES_SHOWN) {
        let (history, failure) = shrink(make(*seed));
        text += &report(*seed, &history, &failure);
    }
    panic!("{} of the histories {seeds:?} fail: {failed:?}\n{text}", failed.len());
}

#[test]
fn every_attempt_is_the_oracle_s_and_nothing_is_forgotten() {
    search(seeds(), &history);
}
