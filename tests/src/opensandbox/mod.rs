//! A real opensandbox-server on a real Docker engine. Its execd is the stand-in of tests/execd, unless `EXECD_BINARY` names another.

mod images;
mod server;

pub use images::{BUSYBOX, EXECD};
pub use server::{API_KEY, Server, python};
