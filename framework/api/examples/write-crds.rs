//! Writes the CRDs into deploy/crds, as `berth crds` does.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    std::fs::create_dir_all(&folder)?;
    for (name, yaml) in berth_api::crds::crds_yaml()? {
        std::fs::write(folder.join(&name), yaml)?;
    }
    Ok(())
}
