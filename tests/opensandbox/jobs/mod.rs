//! Jobs on OpenSandbox: the adapter against a real API server, a real opensandbox-server and a real Docker engine.

mod canaries;
mod credentials;
mod crowd;
mod ends;
mod example;
mod faults;
mod held;
mod losses;
mod metrics;
mod states;
pub mod world;
