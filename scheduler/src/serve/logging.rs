//! The log of `berth serve`, on stderr: INFO is one line per change of an object, ERROR means that somebody should look.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use super::args::LogFormat;

/// The crates whose level the flags set; everything else says warnings only.
const OURS: [&str; 5] = ["berth", "berth_scheduler", "berth_framework", "berth_runtime", "berth_controllers"];

/// kube tells of every failed request and every connection; whoever made the call tells it with its object.
const TOLD_BY_US: &str = "kube_client::client::builder=off,kube_client::client::tls=error,kube_runtime::watcher=error";

/// Starts logging. `RUST_LOG`, if set, wins over `verbose`. A second call changes nothing.
pub fn start(format: LogFormat, verbose: u8) {
    let level = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let ours: Vec<_> = OURS.iter().map(|name| format!("{name}={level}")).collect();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("warn,{TOLD_BY_US},{}", ours.join(","))));
    let log = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Fails only if there is a subscriber already: then that one is right.
    let _ = match format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
