//! The flags of `berth serve`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Flags of `berth serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Kubeconfig of the cluster; else KUBECONFIG, ~/.kube/config or the Pod's own account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Serves this namespace only
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Where health, metrics and debug endpoints listen; port 0 picks a free one and logs it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub metrics_addr: SocketAddr,
    /// BerthConfiguration: profile, plugins, args
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Status writes of Runs under way at once
    #[arg(long, value_name = "N", default_value = "32")]
    pub bind_workers: NonZeroUsize,
    /// Publishes no Event per placement
    #[arg(long)]
    pub no_scheduled_events: bool,
    /// Format of the log on stderr
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// More log; twice for every attempt
    #[arg(short, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
