//! Least privilege, both ways, by the API server's own audit log: nothing that Berth asked for was refused, and nothing that the
//! chart grants went unused.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use berth_tests::audit::Request;
use berth_tests::controlplane::ControlPlane;
use serde_json::Value;

/// A verb on a resource, as `patch runs.kruntimes.io/status`.
type Right = (String, String);

/// Every right of the rendered roles, each bound to the ServiceAccount by the binding beside it.
pub fn granted(objects: &[Value]) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for role in objects.iter().filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))) {
        let rules = role["rules"].as_array().context("no rules")?;
        for rule in rules {
            let list = |name: &str| rule[name].as_array().into_iter().flatten().filter_map(Value::as_str);
            for group in list("apiGroups") {
                for resource in list("resources") {
                    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                    rights.extend(list("verbs").map(|verb| (verb.to_owned(), named(group, resource, subresource))));
                }
            }
        }
    }
    Ok(rights)
}

fn named(group: &str, resource: &str, subresource: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    format!("{resource}{group}{subresource}")
}

/// No request of `user` was answered with 403.
pub fn nothing_was_refused(plane: &ControlPlane, user: &str) -> Result<()> {
    let requests = of(plane, user)?;
    ensure!(!requests.is_empty(), "{user} asked for nothing");
    let refused: Vec<_> = requests.iter().filter(|request| request.code == 403).collect();
    ensure!(refused.is_empty(), "refused: {refused:?}");
    Ok(())
}

/// Every right was used, or is an exception: what the scenario can't use or no request shows, as verb, resource, and why it is granted all the same. No
/// exception was used. Lists each right with how often it was.
pub fn everything_was_used(plane: &ControlPlane, user: &str, granted: &BTreeSet<Right>, exceptions: &[(&str, &str, &str)]) -> Result<()> {
    let mut used: BTreeMap<Right, usize> = granted.iter().map(|right| (right.clone(), 0)).collect();
    for request in of(plane, user)?.into_iter().filter(|request| !matches!(request.code, 0 | 401 | 403)) {
        let right = (request.verb, named(&request.group, &request.resource, &request.subresource));
        used.entry(right).and_modify(|times| *times += 1);
    }
    for ((verb, resource), times) in &used {
        println!("granted: {verb} {resource}, used {times} times");
    }
    let excepted: BTreeSet<Right> = exceptions.iter().map(|(verb, resource, _)| ((*verb).to_owned(), (*resource).to_owned())).collect();
    let unused: BTreeSet<Right> = used.into_iter().filter(|(_, times)| *times == 0).map(|(right, _)| right).collect();
    assert_eq!(unused, excepted, "rights that nothing used, and the exceptions");
    Ok(())
}

fn of(plane: &ControlPlane, user: &str) -> Result<Vec<Request>> {
    Ok(plane.audit().requests()?.into_iter().filter(|request| request.user == user).collect())
}
