//! A stand-in for OpenSandbox's execd, which is in no registry: the part of its API that Jobs use, by what was measured of the real one.
//!
//! `/ping`, `/command` in both framings, `/command/status`, `/command/{id}/logs`, `DELETE /command`, the token. Not in the real one:
//! `POST /standin`, which sets the framing and puts faults in place.

mod commands;
mod faults;
mod routes;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

/// Where execd listens.
pub const PORT: u16 = 44772;

/// Serves until it is killed.
#[must_use]
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("execd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `EXECD_ACCESS_TOKEN` is what every request must carry, if set.
fn serve() -> std::io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))).await?;
        let token = std::env::var("EXECD_ACCESS_TOKEN").ok().filter(|token| !token.is_empty());
        axum::serve(listener, routes::router(token)).await
    })
}
