//! Runs random histories on every core, and shrinks one that fails to the events that matter.

use std::cell::Cell;
use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::Instant;

use berth_tests::oracle::Rules;

use crate::check::Tally;
use crate::history::{History, Timed, history};
use crate::large::{changing, crowded, many_shapes};
use crate::world::World;

/// How many histories are tried unless `SEEDS` says otherwise.
const SEEDS_DEFAULT: u64 = 20_000;
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

thread_local! {
    static PLAYING: Cell<bool> = const { Cell::new(false) };
}

/// Panics of a thread that plays are told by whoever plays; all others as ever.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !PLAYING.get() {
                usual(panic);
            }
        }));
    });
}

/// Plays a history to its end; a panic is a failure as any other.
pub fn play(history: &History, alter: &(dyn Fn(&mut World) + Sync)) -> Result<Tally, String> {
    quiet_panics();
    PLAYING.set(true);
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
    PLAYING.set(false);
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

#[test]
fn a_term_may_hold_on_few_pods_or_on_many() {
    search(0..60, &crowded);
}

#[test]
fn a_shape_may_be_forgotten_and_come_back() {
    search(0..12, &many_shapes);
}

#[test]
fn a_shape_may_sleep_longer_than_the_log_of_changes_reaches() {
    search(0..8, &changing);
}

/// If the oracle followed another rule, how soon would it be seen?
#[test]
fn a_wrong_rule_is_found_out() {
    type Change = fn(&mut Rules);
    let wrong: [(&str, Change); 5] = [
        ("symmetricAntiAffinity", |r| r.run_affinity = r.run_affinity.map(|(symmetric, weight)| (!symmetric, weight))),
        ("the weight of RunAffinity", |r| r.run_affinity = r.run_affinity.map(|(symmetric, weight)| (symmetric, weight + 1))),
        ("strategy", |r| r.capacity = r.capacity.map(|(most, weight)| (!most, weight))),
        ("requireHeartbeat", |r| r.runtime_ready = r.runtime_ready.map(|require| !require)),
        ("requireWorkspaceAgent", |r| r.workspace_fencing = r.workspace_fencing.map(|require| !require)),
    ];
    for (what, change) in wrong {
        let alter = move |world: &mut World| {
            world.oracle.rules = world.rules.clone();
            change(&mut world.oracle.rules);
        };
        let found = (0..2_000).find(|seed| play(&history(*seed), &alter).is_err());
        eprintln!("another {what}: seed {found:?}");
        assert!(found.is_some(), "2,000 histories do not notice another {what}");
    }
}

/// If the core forgot an event, how soon would it be seen?
#[test]
fn a_lost_event_is_found_out() {
    let forgets = |seed| {
        let mut n = 0;
        let history = history(seed);
        let mut world = World::new(&history);
        history.events.iter().any(|timed| {
            n += 1;
            // Every 20th event only the oracle hears of.
            world.deaf = n % 20 == 0;
            world.happen(timed).is_err()
        })
    };
    assert!((0..50).any(forgets), "50 histories do not notice lost events");
}
