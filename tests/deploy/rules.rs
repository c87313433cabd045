//! Rules, alerts and dashboards as files: what promtool says of them, and that alerts, their tests and the runbook name each other.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use berth_tests::controlplane::checkout;
use berth_tests::helm::path;
use serde_json::Value;

use crate::prometheus::{dashboards, panels, promtool, rule_file, rules};

#[test]
fn promtool_finds_nothing_wrong_and_every_alert_does_what_its_unit_tests_say() -> Result<()> {
    promtool(&["check", "rules", &path(&rule_file("rules")), &path(&rule_file("alerts"))])?;
    promtool(&["test", "rules", &path(&checkout().join("tests/deploy/alerts_test.yaml"))])
}

#[test]
fn every_alert_is_seen_firing_and_quiet_and_is_in_the_runbook() -> Result<()> {
    let tests: Value = serde_saphyr::from_str(&std::fs::read_to_string(checkout().join("tests/deploy/alerts_test.yaml"))?)?;
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for case in tests["tests"].as_array().into_iter().flatten().flat_map(|test| test["alert_rule_test"].as_array().into_iter().flatten()) {
        let name = case["alertname"].as_str().context("no alertname")?.to_owned();
        let set = if case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()) { &mut firing } else { &mut quiet };
        set.insert(name);
    }
    let runbook = std::fs::read_to_string(checkout().join("docs/runbook.md"))?;
    let entries: BTreeSet<String> = runbook.lines().filter_map(|line| line.strip_prefix("## Berth")).map(|rest| format!("Berth{rest}")).collect();
    let mut alerts = BTreeSet::new();
    for alert in rules("alerts")? {
        let name = alert["alert"].as_str().context("no name")?.to_owned();
        // GitHub's and Grafana's anchor of a heading of one word.
        let link = format!("docs/runbook.md#{}", name.to_lowercase());
        ensure!(alert["annotations"]["runbook_url"] == link, "{name}: {}", alert["annotations"]["runbook_url"]);
        ensure!(matches!(alert["labels"]["severity"].as_str(), Some("critical" | "warning" | "info")), "{name} has no severity");
        alerts.insert(name);
    }
    assert_eq!(alerts, firing, "alerts, and those seen firing");
    assert_eq!(alerts, quiet, "alerts, and those seen quiet");
    assert_eq!(alerts, entries, "alerts, and the entries of docs/runbook.md");
    Ok(())
}

#[test]
fn every_dashboard_can_be_imported_and_asks_only_berth() -> Result<()> {
    let mut ids = BTreeSet::new();
    let dashboards = dashboards()?;
    ensure!(!dashboards.is_empty(), "deploy/grafana has no dashboard");
    for (file, dashboard) in dashboards {
        let uid = dashboard["uid"].as_str().with_context(|| format!("{file}: no uid"))?.to_owned();
        ensure!(ids.insert(uid), "{file}: its uid is taken");
        let panels = panels(&dashboard);
        ensure!(!panels.is_empty(), "{file}: no panel");
        for (title, queries) in panels {
            ensure!(!title.is_empty() && !queries.is_empty(), "{file}: a panel without title or query");
            for query in queries {
                // kube-scheduler's metrics have the same names.
                let selectors = query.matches('{').count();
                ensure!(selectors > 0 && query.matches("job=~\"$job\"").count() == selectors, "{file}, {title}: {query} asks other jobs too");
            }
        }
        for panel in dashboard["panels"].as_array().into_iter().flatten().filter(|panel| panel["type"] != "row") {
            ensure!(panel["datasource"]["uid"] == "${datasource}", "{file}: {} has a fixed data source", panel["title"]);
            ensure!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{file}: {} does not say what it shows", panel["title"]);
        }
    }
    Ok(())
}
