//! By which configuration a Run is judged: the one that was named, else the one in force at the server, else the one of the chart's release,
//! else the defaults; and whether what the scheduler has said of the Run bears that out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use berth_framework::profile::{Profiles, Registry};
use berth_runtime::apiclient::CallError;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;

use super::live::pages;
use super::server::Server;
use crate::cli::causes;
use crate::config;
use crate::printable::one_line;
use crate::serve::configuration::{CONFIG_LABEL, CONFIG_SERVES_LABEL, Candidate, ConfigMapName};

/// The namespace that the docs install into: looked at when not all may be.
const USUAL_NAMESPACE: &str = "berth";
/// ConfigMaps per page.
const PAGE: u32 = 100;

/// Where rules come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// `--with-config`.
    File,
    /// `--config-map`.
    ConfigMap,
    /// `--server`.
    Server,
    /// A release's ConfigMap, found by its label.
    FoundConfigMap,
    /// Nothing was named or found.
    Defaults,
}

/// What is told about the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trust {
    /// Where they come from.
    pub source: Source,
    /// They were named, or nothing speaks against their being in force.
    pub certain: bool,
    /// What the scheduler says of the Run can't come of them.
    pub contradicted: bool,
    /// Why they may not be those in force, and how to ask by those.
    pub doubt: Option<String>,
}

/// The rules.
#[derive(Debug)]
pub struct Rules {
    /// What they are called.
    pub name: String,
    /// Every profile.
    pub profiles: Profiles,
    /// How far they are to be trusted.
    pub trust: Trust,
}

impl Rules {
    fn new(source: Source, name: String, profiles: Profiles) -> Self {
        Self { name, profiles, trust: Trust { source, certain: true, contradicted: false, doubt: None } }
    }

    /// The rules of a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn of_file(file: &Path, registry: &Registry) -> anyhow::Result<Self> {
        Ok(Self::new(Source::File, file.display().to_string(), config::load(Some(file), registry)?))
    }

    /// The rules of a ConfigMap that was named.
    ///
    /// # Errors
    /// It can't be read, or can't be used.
    pub async fn of_config_map(client: &Client, named: &ConfigMapName, registry: &Registry) -> anyhow::Result<Self> {
        let ConfigMapName { namespace, name } = named;
        let map: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let map = map.get_opt(name).await.map_err(CallError::from).with_context(|| format!("cannot get ConfigMap {namespace}/{name}"))?;
        let Some(map) = map else { bail!("ConfigMap {namespace}/{name} not found") };
        Ok(Self::new(Source::ConfigMap, format!("ConfigMap {namespace}/{name}"), Candidate::of(&map, named).load(registry)?.profiles))
    }

    /// The rules in force at a server.
    ///
    /// # Errors
    /// It can't be asked, or says what this binary can't use.
    pub async fn of_server(server: &Server, registry: &Registry) -> anyhow::Result<Self> {
        let profiles = config::parse(&server.configuration().await?, "/configz", registry)?.profiles;
        Ok(Self::new(Source::Server, format!("what is in force at {}", server.url), profiles))
    }

    /// The rules of the release that serves `namespace`, found by the label of its ConfigMap; else the defaults, and a doubt.
    ///
    /// # Errors
    /// There are several releases, or this binary refuses its own defaults.
    pub async fn found(client: &Client, namespace: &str, registry: &Registry, err: &mut dyn Write) -> anyhow::Result<Self> {
        let why = match labelled(client, namespace).await {
            Err(why) => why,
            Ok(maps) => match the_one_for(maps, namespace)? {
                None => "no ConfigMap is labelled as Berth's".to_owned(),
                Some(map) => {
                    let name = ConfigMapName { namespace: map.namespace().unwrap_or_default(), name: map.name_any() };
                    match Candidate::of(&map, &name).load(registry) {
                        Ok(loaded) => return Ok(Self::new(Source::FoundConfigMap, format!("ConfigMap {}/{}", name.namespace, name.name), loaded.profiles)),
                        // The last good one is in force, and only the server knows it.
                        Err(refused) => {
                            writeln!(err, "warning: {}", one_line(&refused.to_string()))?;
                            format!("ConfigMap {}/{} can't be used", name.namespace, name.name)
                        }
                    }
                }
            },
        };
        let mut defaults = Self::new(Source::Defaults, "defaults".to_owned(), config::load(None, registry)?);
        defaults.trust.certain = false;
        defaults.trust.doubt = Some(format!("These are the defaults of this binary, which may not be what is in force: {why}. {HOW_TO_ASK}"));
        Ok(defaults)
    }

    /// Only the profile of this name, which may be a shadow.
    ///
    /// # Errors
    /// There is none.
    pub fn only(&mut self, name: &str) -> anyhow::Result<()> {
        let all: Vec<_> = self.profiles.iter().chain(self.profiles.shadows().iter().map(|shadow| &shadow.profile)).collect();
        let Some(&profile) = all.iter().find(|profile| profile.name == name) else {
            bail!("--profile {name}: {} has {}", self.name, all.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>().join(", "))
        };
        let profile = profile.clone();
        self.profiles = profile.into();
        Ok(())
    }
}

const HOW_TO_ASK: &str =
    "To ask by what is in force: --server URL, --config-map NAMESPACE/NAME (berth/berth, as docs/install.md installs it), or --with-config FILE.";

impl Trust {
    /// Looks at what a waiting Run shows, and what it would show by these rules (`None`: a Pod fits).
    pub fn compare(&mut self, shown: &str, now: Option<&str>) {
        let said = rows(shown);
        let contradicts = match (self.source, now) {
            (Source::File | Source::ConfigMap | Source::Server, _) => false,
            (Source::FoundConfigMap | Source::Defaults, None) => !said.is_empty(),
            // A release's rules may be right, and the Pods others than at the last attempt.
            (Source::FoundConfigMap, Some(_)) => false,
            (Source::Defaults, Some(now)) => !said.is_empty() && said.is_disjoint(&rows(now)),
        };
        if contradicts {
            (self.certain, self.contradicted) = (false, true);
            if self.source == Source::FoundConfigMap {
                let either = "Either the process that serves the Run goes by another configuration, or it has not tried the Run since (does it run?).";
                self.doubt = Some(format!("{either} {HOW_TO_ASK}"));
            }
        }
    }
}

/// The rows of a waiting message, without their numbers: `insufficient runs`.
fn rows(message: &str) -> BTreeSet<&str> {
    let rows = message.split_once(" fit: ").map_or("", |(_, rows)| rows).split("; ").next().unwrap_or_default();
    rows.split(", ").map(|row| row.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start()).filter(|row| !row.is_empty()).collect()
}

/// Every ConfigMap with the label that may be seen; or why none may.
async fn labelled(client: &Client, namespace: &str) -> Result<Vec<ConfigMap>, String> {
    let params = ListParams::default().labels(&format!("{CONFIG_LABEL}=true")).limit(PAGE);
    let why = |error: &CallError| format!("ConfigMaps can't be listed ({error})");
    match pages(&Api::all(client.clone()), params.clone()).await {
        Ok(maps) => return Ok(maps),
        Err(error) if !error.is_forbidden() => return Err(why(&error)),
        Err(_) => {}
    }
    let mut found = Vec::new();
    let mut refused = None;
    for looked_at in BTreeSet::from([USUAL_NAMESPACE, client.default_namespace(), namespace]) {
        match pages(&Api::namespaced(client.clone(), looked_at), params.clone()).await {
            Ok(maps) => found.extend(maps),
            Err(error) => refused = Some(why(&error)),
        }
    }
    // Where one is found, that others may not be seen is no obstacle.
    match refused {
        Some(why) if found.is_empty() => Err(why),
        _ => Ok(found),
    }
}

/// The ConfigMap whose release serves the namespace: alone, or with all others.
fn the_one_for(maps: Vec<ConfigMap>, namespace: &str) -> anyhow::Result<Option<ConfigMap>> {
    let serves = |map: &ConfigMap| map.labels().get(CONFIG_SERVES_LABEL).cloned();
    let (alone, others): (Vec<_>, Vec<_>) = maps.into_iter().partition(|map| serves(map).as_deref() == Some(namespace));
    let mut candidates = if alone.is_empty() { others.into_iter().filter(|map| serves(map).is_none()).collect() } else { alone };
    // Of equal ones any will do.
    let mut different: BTreeMap<String, &ConfigMap> = BTreeMap::new();
    for map in &candidates {
        different.entry(format!("{:?}", map.data)).or_insert(map);
    }
    if different.len() > 1 {
        let names: Vec<_> = candidates.iter().map(|map| format!("{}/{}", map.namespace().unwrap_or_default(), map.name_any())).collect();
        bail!("there are several configurations of Berth: {}; name the one that serves namespace {namespace} with --config-map", names.join(", "));
    }
    Ok(candidates.pop())
}

/// Told once the server that was named could not be asked, and that is not the end.
pub(super) fn unasked(server: &Server, error: &anyhow::Error, err: &mut dyn Write) -> std::io::Result<()> {
    writeln!(err, "warning: --server {}: {}; going on without it", server.url, one_line(&causes(error.as_ref())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_scheduler_says_is_held_against_rules_that_may_not_be_in_force() {
        let said = |rows: &str| format!("waiting for available runtime pods: 0/5 fit: {rows}");
        let (full, silent) = (said("1 terminating, 4 insufficient runs; waits for ns/b, which waits for it"), said("5 without heartbeat"));
        let mixed = said("2 without heartbeat, 3 insufficient runs");
        let rows: [(Source, &str, Option<&str>, bool); 10] = [
            (Source::Defaults, &full, None, true),
            (Source::Defaults, &full, Some(&silent), true),
            (Source::Defaults, &full, Some(&mixed), false),
            (Source::Defaults, &full, Some(&full), false),
            (Source::Defaults, "somebody else's words", None, false),
            (Source::FoundConfigMap, &full, None, true),
            (Source::FoundConfigMap, &full, Some(&silent), false),
            (Source::Server, &full, None, false),
            (Source::File, &full, None, false),
            (Source::ConfigMap, &full, Some(&silent), false),
        ];
        for (source, shown, now, contradicted) in rows {
            let mut trust = Trust { source, certain: source != Source::Defaults, contradicted: false, doubt: None };
            trust.compare(shown, now);
            assert_eq!(trust.contradicted, contradicted, "{source:?} {shown} {now:?}");
            assert_eq!(trust.certain, source != Source::Defaults && !contradicted);
        }
    }

    #[test]
    fn the_release_that_serves_the_namespace_is_found_and_several_are_an_error() {
        let map = |name: &str, serves: Option<&str>, text: &str| -> ConfigMap {
            let labels = serves.map(|serves| json!({CONFIG_SERVES_LABEL: serves}));
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": name, "labels": labels}, "data": {"config.yaml": text}})).unwrap()
        };
        let name = |maps: Vec<ConfigMap>| the_one_for(maps, "ci").map(|map| map.map(|map| map.name_any())).map_err(|error| error.to_string());
        assert_eq!(name(Vec::new()), Ok(None));
        assert_eq!(name(vec![map("other", Some("team"), "a")]), Ok(None));
        assert_eq!(name(vec![map("all", None, "a"), map("other", Some("team"), "b"), map("ci", Some("ci"), "c")]), Ok(Some("ci".to_owned())));
        assert_eq!(name(vec![map("all", None, "a"), map("other", Some("team"), "b")]), Ok(Some("all".to_owned())));
        assert!(name(vec![map("a", None, "same"), map("b", None, "same")]).unwrap().is_some());
        let error = name(vec![map("a", None, "one"), map("b", None, "two")]).unwrap_err();
        assert_eq!(error, "there are several configurations of Berth: ns/a, ns/b; name the one that serves namespace ci with --config-map");
    }
}
