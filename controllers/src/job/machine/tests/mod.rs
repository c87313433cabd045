//! Tests of the state machine on a small world: a stored Job, a backend that makes gated Pods, a clock, and writers that crash or come late.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod matrix;
mod more;
mod properties;
mod sentences;
mod world;
