//! The suite without a cluster: the core against the exhaustive oracle, in seeded worlds.
//!
//! `SEEDS=20000` tries so many random histories, `SEEDS=17..18` exactly those seeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod bounds;
mod check;
mod config_meaning;
mod config_rows;
mod history;
mod laps;
mod large;
mod messages;
mod plugins;
mod points;
mod queue;
mod random;
mod search;
mod series;
mod simulate_cli;
mod stage;
mod wakeups;
mod work;
mod world;
