//! Jobs on OpenSandbox: the adapter against a real API server, a real opensandbox-server and a real Docker engine.

mod credentials;
mod crowd;
mod ends;
mod example;
mod faults;
mod losses;
pub mod world;
