//! Who may depend on whom, read from `cargo metadata` and `cargo tree`.

use std::collections::BTreeMap;
use std::process::Command;

use berth_tests::controlplane::checkout;
use cargo_metadata::{Metadata, MetadataCommand};

use crate::none;

/// The arrows of the architecture. Whoever is not named here (tests, benches, examples) may use all.
const ARROWS: &[(&str, &[&str])] = &[
    ("berth-api", &[]),
    ("berth-framework", &["berth-api"]),
    ("berth-plugins", &["berth-framework", "berth-api"]),
    ("berth-runtime", &["berth-api"]),
    ("berth-controllers", &["berth-runtime", "berth-opensandbox", "berth-api"]),
    ("berth-opensandbox", &[]),
    ("berth-runtimed", &["berth-runtime", "berth-api"]),
    ("berth-scheduler", &["berth-plugins", "berth-framework", "berth-controllers", "berth-runtime", "berth-api"]),
];

/// Crates without a client, an executor or a clock, and what must therefore never be below them.
const PURE: &[&str] = &["berth-api", "berth-framework", "berth-plugins"];
const IMPURE: &[&str] = &["tokio", "kube-client", "kube-runtime", "hyper", "futures-executor"];

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(checkout().join("Cargo.toml")).no_deps().other_options(["--locked".to_owned()]).exec().expect("cargo metadata")
}

#[test]
fn only_the_architecture_s_arrows_exist() {
    let metadata = metadata();
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let root = checkout().to_str().expect("a path in UTF-8");
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let Some(allowed) = allowed.get(package.name.as_str()) else {
            let folder = package.manifest_path.strip_prefix(root).expect("a member");
            let first = folder.components().next().map_or_else(String::new, |part| part.to_string());
            if !matches!(first.as_str(), "tests" | "benches" | "examples") {
                wrong.push(format!("{} is a new crate: give it its arrows in {}", package.name, file!()));
            }
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            if !allowed.contains(&dependency.name.as_str()) {
                wrong.push(format!("{} -> {} ({})", package.name, dependency.name, dependency.kind));
            }
        }
    }
    none("edges that the architecture does not have", &wrong);
}

#[test]
fn the_core_is_pure() {
    let mut wrong = Vec::new();
    for name in PURE {
        // `cargo tree` of one package resolves the features that this package alone turns on.
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--edges=normal", "--prefix=none", "--format={p}", "--package", name])
            .current_dir(checkout())
            .output()
            .expect("cargo tree");
        assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let below: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(below.contains(&"serde"), "cargo tree no longer prints what this test reads:\n{text}");
        for impure in IMPURE.iter().filter(|impure| below.contains(impure)) {
            wrong.push(format!("{name} -> … -> {impure}"));
        }
    }
    none("the core knows neither client nor executor", &wrong);
}

#[test]
fn every_dependency_is_used() {
    let mut wrong = Vec::new();
    for package in &metadata().packages {
        let folder = package.manifest_path.parent().expect("a folder").as_std_path();
        let sources = sources(folder);
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
            let used = sources.iter().any(|text| text.lines().any(|line| names(line.split("//").next().unwrap_or_default(), &name)));
            // Taken for its features alone, or named only by what the build generates: the manifest says so in a comment.
            let explained = std::fs::read_to_string(&package.manifest_path).expect("a manifest").lines().any(|line| {
                let same = line.split(['.', ' ', '=']).next() == Some(&dependency.name);
                same && ["# for its features", "# for generated code"].iter().any(|reason| line.contains(reason))
            });
            if !used && !explained {
                wrong.push(format!("{}: {}", package.name, dependency.name));
            }
        }
    }
    none("dependencies that no source names", &wrong);
}

/// Whether the code names a crate: the identifier, whole.
fn names(code: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        !before.ends_with(part) && !after.starts_with(part)
    })
}

/// The Rust sources of a crate; crates below it have a manifest of their own.
fn sources(folder: &std::path::Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() && !entry.join("Cargo.toml").exists() {
            texts.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            texts.push(std::fs::read_to_string(&entry).expect("a source"));
        }
    }
    texts
}

#[test]
fn every_version_stands_in_the_root() {
    let mut wrong = Vec::new();
    for package in &metadata().packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a manifest");
        let mut of_dependencies = false;
        for (number, line) in manifest.lines().enumerate() {
            if line.starts_with('[') {
                of_dependencies = line.trim_end_matches(']').ends_with("dependencies");
            } else if of_dependencies && !line.trim().is_empty() && !line.starts_with('#') && !line.contains("workspace = true") {
                wrong.push(format!("{}:{}: {line}", package.manifest_path, number + 1));
            }
        }
    }
    none("dependencies whose version does not stand in the workspace's manifest", &wrong);
}

#[test]
fn every_crate_obeys_the_workspace() {
    let mut wrong = Vec::new();
    for package in &metadata().packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a manifest");
        for line in ["[lints]\nworkspace = true", "version.workspace = true", "license.workspace = true"] {
            if !manifest.contains(line) {
                wrong.push(format!("{}: no `{}`", package.manifest_path, line.replace('\n', " ")));
            }
        }
        if package.description.as_deref().unwrap_or_default().is_empty() {
            wrong.push(format!("{}: no description", package.manifest_path));
        }
    }
    none("every crate takes version, license and lints from the workspace and says what it is", &wrong);
}
