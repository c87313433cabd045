//! OpenSandbox: the client and the vendor's SDK against a real server on a real Docker engine. Needs root, and PyPI once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod client;
mod commands;
mod faults;
mod faulty;
mod fence;
mod images;
#[path = "../apiserver/job_world.rs"]
#[allow(dead_code, reason = "each suite uses its part of the world")]
mod job_world;
mod jobs;
#[path = "../sim/random.rs"]
#[allow(dead_code, reason = "shared with another suite, which uses more of it")]
mod random;
mod sdk;
mod tenants;
mod tls;
mod world;
