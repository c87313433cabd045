//! `berth crds`: the CustomResourceDefinitions, generated from the Rust types and rules of framework/api.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

/// Flags of `berth crds`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  berth crds | kubectl apply --server-side -f -\n  berth crds --output deploy/crds")]
pub struct CrdsArgs {
    /// Writes one file per CRD into this folder instead of printing them
    #[arg(long, visible_alias = "out", value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Prints or writes the CRDs.
///
/// # Errors
/// A folder that can't be written.
pub fn run(args: &CrdsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let files = berth_api::crds_yaml()?;
    let Some(folder) = &args.output else {
        for (_, yaml) in files {
            write!(out, "---\n{yaml}")?;
        }
        return Ok(());
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, yaml) in files {
        let path = folder.join(name);
        std::fs::write(&path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}
