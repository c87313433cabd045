//! `design/job-specification.md` says of each sentence where it is kept: what it names is there.

use berth_tests::controlplane::checkout;

use crate::none;

/// Functions between backticks, as `path::function`.
fn functions(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let code = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    code.filter_map(|code| code.split_once("::")).filter(|(path, _)| path.ends_with(".rs"))
}

/// Where links lead, from the page's folder; without anchors.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next())
}

/// The first and the last cell of each sentence, which a number begins.
fn sentences(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    cells.filter(|(number, _)| number.starts_with(|first: char| first.is_ascii_digit())).filter_map(|(number, rest)| Some((number, rest.split_once(" | ")?.1)))
}

/// Whether a sentence is kept by something: a test or a record.
fn is_kept(kept: &str) -> bool {
    functions(kept).next().is_some() || kept.contains("](adr/")
}

#[test]
fn every_sentence_about_jobs_is_kept_by_something_that_exists() {
    let design = checkout().join("design");
    let page = std::fs::read_to_string(design.join("job-specification.md")).expect("design/job-specification.md");
    let mut wrong = Vec::new();
    for (path, function) in functions(&page) {
        let text = std::fs::read_to_string(checkout().join(path)).unwrap_or_default();
        if !text.contains(&format!("fn {function}(")) {
            wrong.push(format!("{path} has no {function}"));
        }
    }
    wrong.extend(links(&page).filter(|link| !design.join(link).exists()).map(|link| format!("no {link}")));
    wrong.extend(sentences(&page).filter(|(_, kept)| !is_kept(kept)).map(|(number, _)| format!("{number} is kept by nothing")));
    none("what design/job-specification.md names and is not there", &wrong);
    assert!(sentences(&page).count() > 100, "only {} sentences are read", sentences(&page).count());
}

#[test]
fn the_page_is_read_as_it_is_written() {
    let page = "See `a/b.rs::c`, `a::b` and [x](adr/0001-x.md#y).\n| § | sentence | kept by |\n|---|---|---|\n| 1.2 | it `is` | `d.rs::e` (f) |\n";
    assert_eq!(functions(page).collect::<Vec<_>>(), [("a/b.rs", "c"), ("d.rs", "e")]);
    assert_eq!(links(page).collect::<Vec<_>>(), ["adr/0001-x.md"]);
    assert_eq!(sentences(page).collect::<Vec<_>>(), [("1.2", "`d.rs::e` (f)")]);
    assert!(!is_kept("so it is") && is_kept("[x](adr/0001-x.md)"));
}
