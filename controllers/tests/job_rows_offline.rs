//! The rows of Jobs' API without a cluster: the offline check gives the verdict of the API server, and the types read what is accepted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;

use row::{Act, Expect, Row};

mod job_rows;
#[path = "../../framework/api/tests/rows/row.rs"]
mod row;

#[test]
fn the_offline_check_agrees_with_the_expectation_of_every_row() {
    let rows = job_rows::all();
    let wrong: Vec<String> = rows.iter().filter_map(Row::difference_offline).collect();
    assert!(wrong.is_empty(), "{} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    let mut names = BTreeSet::new();
    let twice: Vec<_> = rows.iter().filter(|row| !names.insert(&row.name)).map(|row| &row.name).collect();
    assert!(twice.is_empty(), "names of rows are unique: {twice:?}");
    let of = |is: fn(&Act) -> bool| rows.iter().filter(|row| is(&row.act)).count();
    let (create, update, status) =
        (of(|act| matches!(act, Act::Create(_))), of(|act| matches!(act, Act::Update(..))), of(|act| matches!(act, Act::Status(..))));
    assert!(create >= 80 && update >= 40 && status >= 60, "{create} creates, {update} updates, {status} writes of status");
}

#[test]
fn what_is_accepted_can_be_read() {
    let mut read = 0;
    for row in job_rows::all() {
        let (stored, errors) = row.judge();
        if errors.is_empty() && matches!(row.expect, Expect::Accepted(_)) {
            assert_eq!(job_rows::undecodable(&row, stored), None, "{}", row.name);
            read += 1;
        }
    }
    assert!(read > 60, "only {read}");
}
