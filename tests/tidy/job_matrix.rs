//! The state matrix of Jobs on OpenSandbox is complete, its tests exist and ask it, and its page is what it says.

use std::collections::BTreeSet;
use std::fs::read_to_string;

use berth_tests::controlplane::checkout;
use berth_tests::job_matrix::{ELSEWHERE, NEVER, SHOWN, all, page};

use crate::none;

#[test]
fn every_move_and_reason_of_the_state_machine_has_a_test_on_a_real_server_or_a_reason_why_not() {
    let all = all();
    let shown: BTreeSet<&str> = SHOWN.iter().flat_map(|(_, facts)| *facts).copied().collect();
    let never: BTreeSet<&str> = NEVER.iter().map(|(fact, _)| *fact).chain(ELSEWHERE.iter().map(|(fact, ..)| *fact)).collect();
    let is_open = |fact: &&String| !shown.contains(fact.as_str()) && !never.contains(fact.as_str());
    let mut wrong: Vec<String> = all.iter().filter(is_open).map(|fact| format!("{fact}: no row")).collect();
    wrong.extend(shown.union(&never).filter(|fact| !all.contains(**fact)).map(|fact| format!("{fact}: the state machine does not know it")));
    wrong.extend(shown.intersection(&never).map(|fact| format!("{fact}: shown, and yet never")));
    none("the state matrix of Jobs on OpenSandbox (tests/src/job_matrix.rs)", &wrong);
    assert!(all.len() > 90, "only {} are asked for", all.len());
}

#[test]
fn each_test_of_the_matrix_exists_and_asks_whether_it_has_shown_what_it_stands_for() {
    let mut wrong = Vec::new();
    for (test, _) in SHOWN {
        let (file, function) = test.split_once("::").unwrap();
        let text = read_to_string(checkout().join(format!("tests/opensandbox/jobs/{file}.rs"))).unwrap_or_default();
        if !text.contains(&format!("async fn {function}() -> Result<()>")) || !text.contains(&format!("\"{test}\"")) {
            wrong.push(format!("{test}: not there, or it does not ask"));
        }
    }
    for (_, _, test) in ELSEWHERE {
        let (file, function) = test.split_once("::").unwrap();
        let text = read_to_string(checkout().join(format!("controllers/src/job/adapter/opensandbox/{file}.rs"))).unwrap_or_default();
        if !text.contains(&format!("fn {function}()")) {
            wrong.push(format!("{test}: not there"));
        }
    }
    none("tests of the state matrix", &wrong);
}

/// What is never so is at least named nowhere in the adapter.
#[test]
fn the_adapter_knows_nothing_of_what_it_never_shows() {
    let folder = checkout().join("controllers/src/job/adapter/opensandbox");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| read_to_string(entry.unwrap().path()).unwrap());
    let text: String = files.collect();
    let reasons = NEVER.iter().filter_map(|(fact, _)| fact.split_once('/')).map(|(_, reason)| reason);
    let named: Vec<String> = reasons.filter(|reason| text.contains(&format!("::{reason}"))).map(str::to_owned).collect();
    none("reasons that the OpenSandbox adapter names, and that the matrix says are never", &named);
    assert!(text.contains("::BackendPaused"), "that is what it looks like");
}

#[test]
fn the_page_of_the_matrix_is_what_it_says() {
    let committed = read_to_string(checkout().join("design/job-states-opensandbox.md")).unwrap_or_default();
    assert!(committed == page(), "write design/job-states-opensandbox.md anew: cargo run -p berth-tests --example job-matrix");
}
