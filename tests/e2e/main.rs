//! The suite on a real node: kubelet and containerd run the chart's own Pods from the project's own images; nothing stands in for anything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod cluster;
mod data_sharing;
#[path = "../apiserver/job_world.rs"]
#[allow(dead_code, reason = "each suite uses its part of the world")]
mod job_world;
mod jobs;
#[path = "../apiserver/serve_world.rs"]
#[allow(dead_code, reason = "each suite uses its part of the world")]
mod serve_world;
