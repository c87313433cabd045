//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_api::duration::parse_go;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// The agent inside a Runtime Pod: carries out the Runs assigned to it
#[derive(Debug, Parser)]
#[command(name = "runtimed", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What else the binary does.
    #[command(subcommand)]
    pub command: Option<Other>,
    /// The agent.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// What else the binary does.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// Copies this binary to a file, for an init container that hands it to another image
    Install {
        /// The file; its folder must exist
        path: PathBuf,
    },
    /// Prints who was started with a variable, as JSON; started by the agent as the user of Runs
    #[command(hide = true)]
    Marked {
        /// NAME=value
        variable: String,
    },
    /// Carries out one attempt; started by the agent
    #[command(hide = true)]
    Shim {
        /// The state directory of the attempt
        state: PathBuf,
    },
}

/// Flags of the agent.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Name of the Pod this runs in
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "")]
    pub pod_name: String,
    /// Namespace of that Pod
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = "")]
    pub pod_namespace: String,
    /// UID of that Pod: tells it from a later Pod of the same name
    #[arg(long, env = "POD_UID", value_name = "UID", default_value = "")]
    pub pod_uid: String,
    /// Name of the Runtime; must equal the Pod's label `runtime`, if given
    #[arg(long, env = "RUNTIME_NAME", value_name = "NAME")]
    pub runtime_name: Option<String>,
    /// Directory of workspaces, runs and state; a volume of the Pod
    #[arg(long, value_name = "DIR", default_value = "/workspace")]
    pub root: PathBuf,
    /// Kubeconfig of the cluster; else KUBECONFIG, ~/.kube/config or the Pod's own account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where health and metrics are served; port 0 picks a free one and logs it
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9094")]
    pub health_addr: SocketAddr,
    /// HOST:PORT of a Runtime Server (gRPC executor.v1) that carries out Runs instead of processes of the agent; it needs the same volume at the same place
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub runtime_endpoint: Option<String>,
    /// A Runtime Server that tells nothing of an execution for that long has lost it
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub runtime_lost_after: Duration,
    /// User and group that Runs run as; needs a root agent. Without it they run as the agent itself
    #[arg(long, value_name = "UID:GID", value_parser = user_and_group)]
    pub run_as: Option<(u32, u32)>,
    /// Between TERM and KILL when a Run is stopped
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub stop_grace: Duration,
    /// At SIGTERM: how long Runs may go on before this process leaves
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub drain_within: Duration,
    /// Bytes of a Run's output that are logged; the rest is dropped, and that is said
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub run_log_bytes_max: u64,
    /// Processes and threads of one Run at once, by a cgroup if one can be made, else by RLIMIT_NPROC
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub run_pids_max: Option<u64>,
    /// Format of the log on stderr
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// More log
    #[arg(short, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl AgentArgs {
    /// Variables that say who the agent is; a Run does not see them.
    pub const OWN_VARIABLES: [&'static str; 8] =
        ["POD_NAME", "POD_NAMESPACE", "POD_UID", "RUNTIME_NAME", "KUBECONFIG", "RUST_LOG", "RUNTIMED_INIT", "RUNTIMED_UNDER_INIT"];
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

fn duration(text: &str) -> Result<Duration, String> {
    parse_go(text).map_err(|error| format!("{error}; write it like 10s or 1m30s"))
}

fn host_and_port(text: &str) -> Result<String, String> {
    const FORM: &str = "write it like localhost:50051 or [::1]:50051";
    let authority: http::uri::Authority = text.parse().map_err(|error| format!("{error}; {FORM}"))?;
    match authority.port_u16() {
        Some(1..) if !authority.host().is_empty() && !text.contains('@') => Ok(text.to_owned()),
        _ => Err(FORM.to_owned()),
    }
}

fn user_and_group(text: &str) -> Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').ok_or("write it like 65532:65532")?;
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{text:?}: {error}"));
    let (user, group) = (number(user)?, number(group)?);
    if user == 0 { Err("a Run does not run as root".to_owned()) } else { Ok((user, group)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_runtime_server_has_a_host_and_a_port() {
        for good in ["localhost:50051", "10.0.0.1:1", "[::1]:50051"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for bad in ["", "localhost", ":50051", "localhost:", "localhost:0", "localhost:99999", "http://localhost:1", "user@localhost:1", "a b:1"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn who_runs_runs_is_two_numbers_and_never_root() {
        assert_eq!(user_and_group("65532:100"), Ok((65_532, 100)));
        for bad in ["", "1", "0:0", "a:1", "1:-1", "1:2:3"] {
            assert!(user_and_group(bad).is_err(), "{bad}");
        }
    }
}
