//! The suite without a cluster: the core against the exhaustive oracle, in seeded worlds.
//!
//! `SEEDS=20000` tries so many random histories, `SEEDS=17..18` exactly those seeds.

mod check;
mod history;
mod random;
mod search;
mod simulate_cli;
mod world;
