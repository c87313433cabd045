//! Files that are generated and committed equal what would be generated now.

use berth_tests::crds;

use crate::none;

#[test]
fn deploy_crds_can_be_read() {
    let names: Vec<_> = crds::read()
        .expect("deploy/crds")
        .into_iter()
        .map(|crd| crd.spec.names.kind)
        .collect();
    let missing: Vec<_> = ["Run", "PersistentWorkspace"]
        .iter()
        .filter(|kind| !names.iter().any(|name| name == **kind))
        .map(|kind| format!("no CRD of {kind}"))
        .collect();
    none("deploy/crds", &missing);
}
