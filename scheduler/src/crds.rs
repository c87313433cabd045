//! `berth crds`: the CustomResourceDefinitions, generated from the Rust types and rules of framework/api and of Jobs.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use berth_api::crds::yaml_files;
use clap::Args;

/// Flags of `berth crds`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  berth crds | kubectl apply --server-side -f -\n  berth crds --output deploy/crds")]
pub struct CrdsArgs {
    /// Writes one file per CRD into this folder instead of printing them
    #[arg(long, visible_alias = "out", value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// File name and content of each CRD.
///
/// # Errors
/// None on a tested build.
pub fn files() -> anyhow::Result<Vec<(String, String)>> {
    let jobs = yaml_files(berth_controllers::job::api::crds()?)?;
    Ok(berth_api::crds_yaml()?.into_iter().chain(jobs).collect())
}

/// Prints or writes the CRDs.
///
/// # Errors
/// A folder that can't be written.
pub fn run(args: &CrdsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let files = files()?;
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
