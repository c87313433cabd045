//! `berth config`: check a configuration, show what is in force with it, print its schema.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use berth_framework::profile::{BerthConfiguration, Registry};
use clap::{Args, Subcommand, ValueEnum};

use super::{Loaded, Refused, load_whole, read, reference, schema};

/// Flags of `berth config`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  # Everything that is wrong, with line, column and field
  berth config check profile.yaml
  kubectl get configmap berth -o jsonpath='{.data.config\\.yaml}' | berth config check -

  # What is in force with it, defaults merged
  berth config show profile.yaml

  # Editors complete with it: # yaml-language-server: $schema=berth.schema.json
  berth config schema > berth.schema.json

Exit code: 0; 2 if the configuration can't be used.")]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Checks a BerthConfiguration and tells everything that is wrong with it
    Check {
        /// The file, or - for standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
    },
    /// Prints the effective configuration: every profile with its plugins at every point, weights and full args; valid input again
    Show {
        /// The file, or - for standard input; the defaults without it
        #[arg(value_name = "FILE|-")]
        file: Option<PathBuf>,
        /// How it is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: ShowAs,
    },
    /// Prints the JSON Schema of a BerthConfiguration, with the plugins of this binary
    Schema {
        /// How it is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: SchemaAs,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ShowAs {
    #[default]
    Yaml,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SchemaAs {
    /// JSON Schema 2020-12
    #[default]
    Json,
    /// Tables of every field, as in the documentation
    Markdown,
}

/// Runs it.
///
/// # Errors
/// The configuration can't be used, or the output not written.
pub fn run(args: &ConfigArgs, registry: &Registry, input: &mut dyn Read, out: &mut dyn Write) -> anyhow::Result<()> {
    match &args.command {
        Command::Check { file } => {
            let loaded = of(Some(file), registry, input)?;
            writeln!(out, "{}: valid: {}", file.display(), summary(&loaded.effective))?;
        }
        Command::Show { file, output } => {
            let loaded = of(file.as_deref(), registry, input)?;
            match output {
                ShowAs::Yaml => write!(out, "{}", serde_saphyr::to_string(&loaded.effective)?)?,
                ShowAs::Json => writeln!(out, "{}", serde_json::to_string_pretty(&loaded.effective)?)?,
            }
        }
        Command::Schema { output: SchemaAs::Json } => writeln!(out, "{}", serde_json::to_string_pretty(&schema::schema(registry))?)?,
        Command::Schema { output: SchemaAs::Markdown } => write!(out, "{}", reference(registry))?,
    }
    Ok(())
}

fn of(file: Option<&Path>, registry: &Registry, input: &mut dyn Read) -> Result<Loaded, Refused> {
    match file {
        Some(path) if path == Path::new("-") => read(input, "-", registry),
        file => load_whole(file, registry),
    }
}

/// What is in force with an effective configuration, in one line.
pub fn summary(effective: &BerthConfiguration) -> String {
    let profiles = effective.profiles.iter().map(|profile| {
        let name = profile.scheduler_name.as_deref().unwrap_or_default();
        let of = if profile.runtimes.is_empty() { "every other runtime".to_owned() } else { profile.runtimes.join(", ") };
        let scores = profile.plugins.score.enabled.iter().map(|plugin| format!("{} {}", plugin.name, plugin.weight.unwrap_or(1)));
        let scores = scores.collect::<Vec<_>>().join(", ");
        format!("{}profile {name} for {of} (scores: {})", if profile.shadow { "shadow " } else { "" }, if scores.is_empty() { "none" } else { &scores })
    });
    let election = effective.leader_election.as_ref().and_then(|election| election.leader_elect).unwrap_or(false);
    let number = |number: Option<u32>| number.unwrap_or_default();
    format!(
        "{}; back-off {} s to {} s; {} bind workers; leader election {}",
        profiles.collect::<Vec<_>>().join("; "),
        number(effective.run_initial_backoff_seconds),
        number(effective.run_max_backoff_seconds),
        number(effective.bind_workers),
        if election { "on" } else { "off" },
    )
}
