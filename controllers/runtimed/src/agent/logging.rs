//! The agent's own log, on stderr: stdout belongs to the Runs.

use tracing_subscriber::{EnvFilter, fmt};

use crate::args::LogFormat;

/// Starts logging. `RUST_LOG`, if set, wins over `verbose`.
pub fn start(format: LogFormat, verbose: u8) {
    let level = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("warn,berth_runtimed={level},berth_runtime={level}")));
    let log = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Fails only if there is a subscriber already: then that one is right.
    let _ = match format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
