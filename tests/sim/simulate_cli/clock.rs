//! The virtual clock: where it starts, who is fresh, who goes first, when Runs end.

use super::{a_run, beat, lines, pod, result, simulate};

fn created(time: &str) -> String {
    format!(r#""creationTimestamp":"{time}""#)
}

#[test]
fn the_clock_starts_at_the_newest_time_that_is_not_a_future_heartbeat() {
    let stale = "a Pending/Unschedulable 0/1 fit: 1 heartbeat stale";
    let rows = [
        // (heartbeat, creation of the Run, --now, what becomes of the Run)
        ("2026-01-01T00:00:00Z", None, None, "a p"),
        ("2026-01-01T00:00:00Z", Some("2026-01-01T00:00:15Z"), None, "a p"),
        ("2026-01-01T00:00:00Z", Some("2026-01-01T00:00:16Z"), None, stale),
        ("2026-01-01T00:00:00Z", Some("2025-01-01T00:00:00Z"), None, "a p"),
        ("2026-01-01T00:00:00Z", Some("2026-01-01T00:00:16Z"), Some("2026-01-01T00:00:10Z"), "a p"),
        ("2026-01-01T00:00:00Z", None, Some("2026-01-01T00:01:00Z"), stale),
        // In the future of the real clock: fresh, as at first sight on a cluster.
        ("2199-01-01T00:00:00Z", Some("2026-01-01T00:00:00Z"), None, "a p"),
        // A Run from the future sets the clock.
        ("2026-01-01T00:00:00Z", Some("2199-01-01T00:00:00Z"), None, stale),
    ];
    for (heartbeat, creation, now, expected) in rows {
        let input = pod("p", 2, &beat(heartbeat)) + &a_run("a", &creation.map(created).unwrap_or_default(), "");
        let args = now.map_or_else(Vec::new, |now| vec!["--now", now]);
        assert_eq!(lines(&result(&args, &input)), [expected], "{heartbeat} {creation:?} {now:?}");
    }
}

#[test]
fn a_deadline_is_no_time_that_has_come() {
    let dying = pod("dying", 2, &beat("2026-01-01T00:00:00Z")).replace(r#""name":"dying""#, r#""name":"dying","deletionTimestamp":"2026-01-01T00:00:30Z""#);
    let input = dying + &pod("p", 2, &beat("2026-01-01T00:00:00Z")) + &a_run("a", "", "");
    assert_eq!(lines(&result(&[], &input)), ["a p"]);
}

#[test]
fn who_is_fresh_goes_on_beating_and_who_is_stale_does_not() {
    for heartbeat in ["2026-01-01T00:00:00Z", "2199-01-01T00:00:00Z"] {
        let input = pod("dead", 9, &beat("2025-12-31T23:00:00Z"))
            + &pod("p", 1, &beat(heartbeat))
            + &a_run("a", &created("2026-01-01T00:00:00Z"), "")
            + &a_run("b", &created("2026-01-01T00:00:00Z"), "")
            + &a_run("c", &created("2026-01-01T00:00:00Z"), "");
        let lines = lines(&result(&["--run-duration", "1h"], &input));
        assert_eq!(lines, ["a p/Succeeded", "b p/Succeeded", "c p/Succeeded"], "{heartbeat}");
    }
}

#[test]
fn the_oldest_goes_first_and_equals_in_input_order() {
    let input = pod("p", 1, "")
        + &a_run("no-time-0", "", "")
        + &a_run("no-time-1", "", "")
        + &a_run("old", &created("2026-01-01T00:00:00Z"), "")
        + &a_run("new", &created("2026-01-01T00:00:05Z"), "")
        + &(0..12).map(|i| a_run(&format!("later-{i}"), "", "")).collect::<String>();
    // One at a time: who is Scheduled after n seconds is the n-th of the queue.
    let order: Vec<String> = (0..16)
        .map(|n| {
            let until = format!("{}ms", n * 1000 + 500);
            let result = result(&["--run-duration", "1s", "--until", &until], &input);
            let placed = result["runs"].as_array().unwrap().iter().find(|run| run["phase"] == "Scheduled").unwrap();
            placed["name"].as_str().unwrap().to_owned()
        })
        .collect();
    let later: Vec<String> = (0..12).map(|i| format!("later-{i}")).collect();
    // `new` was made at the clock's start, as those without a time: input order.
    assert_eq!(order[..4], ["old", "no-time-0", "no-time-1", "new"]);
    assert_eq!(order[4..], later);
}

#[test]
fn runs_of_a_dump_end_that_long_after_they_were_placed() {
    let held = |name: &str, time: &str| {
        let condition = format!(r#"{{"type":"Scheduled","status":"True","reason":"Assigned","message":"","lastTransitionTime":"{time}"}}"#);
        a_run(name, "", &format!(r#""status":{{"phase":"Running","assignedPod":"p","conditions":[{condition}]}}"#))
    };
    let input = pod("p", 2, "")
        + &held("recent", "2026-01-01T00:00:50Z")
        + &held("long-ago", "2026-01-01T00:00:00Z")
        + &a_run("a", &created("2026-01-01T00:01:00Z"), "");
    for (until, expected) in [
        ("1s", ["recent p/Running", "long-ago p/Succeeded", "a p"]),
        ("49s", ["recent p/Running", "long-ago p/Succeeded", "a p"]),
        ("51s", ["recent p/Succeeded", "long-ago p/Succeeded", "a p"]),
        ("2m", ["recent p/Succeeded", "long-ago p/Succeeded", "a p/Succeeded"]),
    ] {
        assert_eq!(lines(&result(&["--run-duration", "1m", "--until", until], &input)), expected, "{until}");
    }
}

#[test]
fn without_a_duration_runs_never_end_and_the_clock_stops() {
    let input = pod("p", 1, "") + &a_run("a", "", "") + &a_run("b", "", "");
    let expected = ["a p", "b Pending/Unschedulable 0/1 fit: 1 insufficient runs"];
    assert_eq!(lines(&result(&[], &input)), expected);
    assert_eq!(lines(&result(&["--until", "1000h"], &input)), expected);
}

#[test]
fn a_retried_run_waits_for_its_back_off() {
    let status = r#""status":{"phase":"Pending","attempt":3,"conditions":[{"type":"Running","status":"False","reason":"PodGone","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}"#;
    let input = pod("p", 1, &beat("2026-01-01T00:00:00Z")) + &a_run("a", "", status);
    assert_eq!(lines(&result(&["--until", "1s"], &input)), ["a Pending/ waits for the back-off of its retry"]);
    assert_eq!(lines(&result(&["--until", "2s"], &input)), ["a p"]);
}

#[test]
fn a_clock_that_makes_pods_stale_says_so() {
    let input = pod("p", 1, &beat("2026-01-01T00:00:00Z")) + &a_run("a", "", "");
    let answer = simulate(&["-f", "-", "--now", "2026-01-02T00:00:00Z"], &input);
    assert_eq!(answer.err, "note: 1 of 1 Pods have a stale heartbeat when the clock starts; --now sets another time\n");
    assert!(answer.out.contains("Clock: from 2026-01-02T00:00:00Z (--now)"), "{}", answer.out);
    let answer = simulate(&["-f", "-"], &input);
    assert!(answer.out.contains("Clock: from 2026-01-01T00:00:00Z (heartbeat of Pod ns/p)"), "{}", answer.out);
}
