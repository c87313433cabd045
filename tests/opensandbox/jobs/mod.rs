//! Jobs on OpenSandbox: the adapter against a real API server, a real opensandbox-server and a real Docker engine.

mod canaries;
mod credentials;
mod crowd;
mod ends;
mod engine;
mod example;
mod faults;
mod guide;
mod held;
mod losses;
mod metrics;
mod peers;
mod restarts;
mod states;
pub mod world;
