//! The suite of deploy/: the chart, rendered, linted and applied to a real API server; the rights it grants; the image on a real
//! engine, both programs'; rules and dashboards on a real Prometheus.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[path = "../apiserver/runtimed_world.rs"]
#[allow(dead_code, reason = "each suite uses its part of the world")]
mod agents;
mod chart;
mod identity;
mod image;
#[path = "../apiserver/job_world.rs"]
#[allow(dead_code, reason = "each suite uses its part of the world")]
mod job_world;
mod live;
mod live_jobs;
mod privilege;
mod prometheus;
mod rules;
mod runtimed;
#[path = "../apiserver/serve_world.rs"]
#[allow(dead_code, reason = "each suite uses its part of the world")]
mod world;
use world as serve_world;
