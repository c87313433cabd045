//! Rules that hold for every file of the repository.

use std::path::Path;
use std::process::Command;

use berth_tests::controlplane::checkout;

use crate::none;

/// A file longer than this has more than one responsibility, unless it is listed with the reason why not.
const LINES_MAX: usize = 800;
const LONG: &[(&str, &str)] = &[];

/// Formats that have no comments, are generated, or are verbatim texts of others.
const WITHOUT_PURPOSE: &[&str] = &["Cargo.lock", "go.sum", "LICENSE", ".gitignore", ".gitattributes", ".json", ".lock", ".txt"];

/// Every file that git knows or would add: path from the root, and text. Binary files are left out.
fn files() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(checkout())
        .output()
        .expect("git, which this test needs: apt-get install git");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("UTF-8");
    let read = |name: &str| Some((name.to_owned(), std::fs::read_to_string(checkout().join(name)).ok()?));
    let files: Vec<_> = names.split('\0').filter(|name| !name.is_empty()).filter_map(read).collect();
    assert!(files.len() > 20, "git lists only {} files", files.len());
    files
}

/// Whether the first line (after a shebang) says what the file is for.
fn has_purpose(name: &str, text: &str) -> bool {
    let path = Path::new(name);
    let base = path.file_name().and_then(|base| base.to_str()).unwrap_or_default();
    let extension = path.extension().and_then(|ext| ext.to_str()).unwrap_or_default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with("#!/") && !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let says = |mark: &str| first.strip_prefix(mark).is_some_and(|rest| rest.trim_start_matches(['#', '/', '!', ' ']).len() > 10);
    match (base, extension) {
        ("Cargo.toml", _) => says("#") || text.contains("\ndescription = "),
        ("Chart.yaml", _) => says("#") || text.contains("\ndescription: "),
        (_, "rs") => says("//!") || (!first.starts_with("///") && says("//")),
        (_, "mod" | "go" | "c" | "js" | "ts") => says("//"),
        (_, "md") => says("#") || first.starts_with("# "),
        (_, "tpl") => says("{{/*") || says("#"),
        (_, "html" | "svg" | "xml") => says("<!--"),
        ("Makefile" | "Dockerfile" | "Containerfile", _) => says("#"),
        (_, "toml" | "yaml" | "yml" | "sh" | "bash" | "py" | "mk" | "service" | "conf" | "star") => says("#") || says("{{- /*"),
        // A script without an extension.
        _ if text.starts_with("#!") => says("#"),
        _ => true,
    }
}

#[test]
fn every_file_says_its_purpose_in_its_first_line() {
    let exempt = |name: &str| WITHOUT_PURPOSE.iter().any(|end| name.ends_with(end));
    let wrong: Vec<_> = files().into_iter().filter(|(name, text)| !exempt(name) && !has_purpose(name, text)).map(|(name, _)| name).collect();
    none("files that do not say what they are for", &wrong);
}

#[test]
fn no_source_file_is_long_without_a_reason() {
    let files = files();
    let mut wrong = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".rs")) {
        let (lines, listed) = (text.lines().count(), LONG.iter().any(|(long, _)| long == name));
        if lines > LINES_MAX && !listed {
            wrong.push(format!("{name}: {lines} lines"));
        }
        if lines <= LINES_MAX && listed {
            wrong.push(format!("{name}: no longer long; take it off the list"));
        }
    }
    for (long, _) in LONG.iter().filter(|(long, _)| files.iter().all(|(name, _)| name != long)) {
        wrong.push(format!("{long}: gone; take it off the list"));
    }
    none(&format!("source files over {LINES_MAX} lines"), &wrong);
}

#[test]
fn nothing_of_the_machine_it_was_written_on_is_committed() {
    // Put together at run time, or this file would name them itself.
    let banned = [["/wo", "rk/"], ["/ro", "ot/"], ["../sha", "red/"], ["index.cra", "tes.io"], ["static.cra", "tes.io"], ["issues ", "show"]]
        .map(|parts| parts.concat());
    let mut wrong = Vec::new();
    for (name, text) in files() {
        for (number, line) in text.lines().enumerate() {
            for word in banned.iter().filter(|word| line.contains(*word)) {
                wrong.push(format!("{name}:{}: {word}", number + 1));
            }
            let foreign =
                name.ends_with("Cargo.lock") && line.starts_with("source = ") && line != "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
            if foreign {
                wrong.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    none("paths, hosts and tools of one machine", &wrong);
}

#[test]
fn the_core_has_no_clock_and_no_io() {
    const BANNED: &[&str] = &["Instant::now", "SystemTime", "Timestamp::now", "Zoned::now", "std::fs", "std::net", "std::thread", "std::env::", "println!"];
    let mut wrong = Vec::new();
    for (name, text) in files() {
        let core = ["framework/src/", "framework/api/src/", "plugins/src/"].iter().any(|dir| name.starts_with(dir));
        if !core || !name.ends_with(".rs") || name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if line.trim_start() == "#[cfg(test)]" {
                break; // tests stand at the end of a file
            }
            let code = line.split("//").next().unwrap_or_default();
            for word in BANNED.iter().filter(|word| code.contains(**word)) {
                wrong.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    none("the core is given the time and does no I/O", &wrong);
}

#[test]
fn the_rules_find_what_they_are_for() {
    for (name, text, fine) in [
        ("a.rs", "//! What this is for.\n", true),
        ("a.rs", "#![allow(x)]\n//! What this is for.\n", false),
        ("a.rs", "use x;\n", false),
        ("a.rs", "//! a\n", false),
        ("x.sh", "#!/bin/sh\n# Does something useful.\n", true),
        ("x.sh", "#!/bin/sh\nset -e\n", false),
        ("x/Cargo.toml", "[package]\nname = \"x\"\ndescription = \"y\"\n", true),
        ("x.yaml", "kind: X\n", false),
        ("run", "#!/usr/bin/env bash\nset -e\n", false),
        ("Makefile", "all:\n", false),
    ] {
        assert_eq!(has_purpose(name, text), fine, "{name}: {text}");
    }
}
