//! Files that are generated and committed equal what would be generated now.

use std::collections::BTreeMap;

use berth_tests::controlplane::checkout;

use crate::none;

#[test]
fn deploy_crds_is_what_the_types_say() {
    let generated: BTreeMap<String, String> = berth_scheduler::crds::files().expect("CRDs").into_iter().collect();
    let committed: BTreeMap<String, String> = std::fs::read_dir(checkout().join("deploy/crds"))
        .expect("deploy/crds")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("a text"))
        })
        .collect();
    let mut stale: Vec<&String> = generated.keys().chain(committed.keys()).collect();
    stale.sort();
    stale.dedup();
    stale.retain(|name| generated.get(*name) != committed.get(*name));
    let stale: Vec<String> = stale.into_iter().cloned().collect();
    none("files of deploy/crds that `make crds` would change", &stale);
}

#[test]
fn docs_metrics_tells_every_metric() {
    let guide = std::fs::read_to_string(checkout().join("docs/metrics.md")).expect("docs/metrics.md");
    let (_, told) = guide.split_once("<!-- metrics -->\n").expect("<!-- metrics -->");
    let (told, _) = told.split_once("<!-- end of metrics -->").expect("<!-- end of metrics -->");
    let generated = berth_scheduler::serve::metrics::reference::reference().expect("definitions");
    assert_eq!(told.trim(), generated.trim(), "replace that part of docs/metrics.md by what `berth metrics` prints");
}
