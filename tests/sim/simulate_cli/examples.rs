//! Every example does what its README says.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{Answer, example, lines, simulate};

fn of(folder: &str, more: &[&str]) -> Value {
    let path = example(folder);
    let Answer { code, out, err } = simulate(&[&["-f", &path, "-o", "json"], more].concat(), "");
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

#[test]
fn every_example_places_as_its_readme_says() {
    let one_sided = example("anti-affinity-spread/one-sided.config");
    let spread = example("weights/spread.config");
    let rows: [(&str, &[&str], &[&str]); 9] = [
        ("data-sharing", &[], &["ci-build-checkout bash-0", "lint bash-1", "ci-build-test bash-0", "ci-build-report bash-0"]),
        (
            "cohort",
            &[],
            &[
                "member-0 bash-a",
                "member-1 bash-a",
                "member-2 bash-a",
                "member-3 Pending/Unschedulable 0/2 fit: 1 without a Run matching required affinity, 1 insufficient runs",
                "stranger Pending/Unschedulable 0/2 fit: 1 without a Run matching required affinity, 1 insufficient runs",
            ],
        ),
        (
            "cohort",
            &["--run-duration", "30s", "--until", "40s"],
            &["member-0 bash-a/Succeeded", "member-1 bash-a/Succeeded", "member-2 bash-a/Succeeded", "member-3 bash-a", "stranger bash-a"],
        ),
        ("weights", &[], &["compile bash-a/Running", "step-0 bash-a", "step-1 bash-a", "step-2 bash-a", "step-3 bash-a"]),
        ("weights", &["--config", &spread, "--place-again"], &["compile bash-a", "step-0 bash-b", "step-1 bash-a", "step-2 bash-b", "step-3 bash-a"]),
        (
            "anti-affinity-spread",
            &[],
            &[
                "replica-0 bash-a",
                "loner bash-b",
                "replica-1 bash-b",
                "replica-2 Pending/Unschedulable 0/2 fit: 2 with a Run matching required anti-affinity",
                "impostor Pending/Unschedulable 0/2 fit: 2 with a Run whose anti-affinity matches",
            ],
        ),
        (
            "anti-affinity-spread",
            &["--config", &one_sided],
            &[
                "replica-0 bash-a",
                "loner bash-b",
                "replica-1 bash-b",
                "replica-2 Pending/Unschedulable 0/2 fit: 2 with a Run matching required anti-affinity",
                "impostor bash-a",
            ],
        ),
        (
            "drained-pod",
            &[],
            &["old bash-drained/Running", "busy bash-small/Running", "new-0 bash-small", "new-1 Pending/Unschedulable 0/2 fit: 2 insufficient runs"],
        ),
        (
            "lost-workspace",
            &[],
            &[
                "on-replaced Pending/WorkspaceNotReady 0/1 fit: 1 workspace replaced lost",
                "on-missing Pending/WorkspaceNotReady 0/1 fit: 1 workspace missing not found",
                "on-pythonic Pending/WorkspaceNotReady 0/1 fit: 1 workspace pythonic of another runtime",
                "without bash-0",
            ],
        ),
    ];
    for (folder, more, expected) in rows {
        assert_eq!(lines(&of(folder, more)), expected, "{folder} {more:?}");
    }
}

#[test]
fn the_binder_binds_by_name_and_knows_a_replaced_pod() {
    let workspace = &of("data-sharing", &[])["workspaces"][0];
    assert_eq!((workspace["phase"].as_str(), workspace["boundPod"].as_str(), workspace["message"].as_str()), (Some("Bound"), Some("bash-0"), Some("")));
    let lost = &of("lost-workspace", &[])["workspaces"][0];
    assert_eq!((lost["phase"].as_str(), lost["boundPod"].as_str()), (Some("Lost"), Some("bash-0")));
    assert_eq!(lost["message"], "runtime pod bash-0 was replaced by a namesake, and the data is gone");
}

#[test]
fn the_drain_ends_when_somebody_makes_room() {
    let result = of("drained-pod", &["--run-duration", "30s"]);
    assert_eq!(lines(&result), ["old bash-drained/Succeeded", "busy bash-small/Succeeded", "new-0 bash-small/Succeeded", "new-1 bash-small/Succeeded"]);
}

#[test]
fn a_burst_is_placed_whole_and_within_every_rule() {
    let script = example("burst/generate.sh");
    let input = Command::new(&script).arg("10000").output().expect("bash and awk");
    let input = String::from_utf8(input.stdout).unwrap();
    let Answer { code, out, err } = simulate(&["-f", "-", "-o", "json", "--require-placed"], &input);
    // A laden machine also tells how far it is.
    assert_eq!((code, err.lines().any(|line| line == "read 10505 objects, 10000 of them Runs")), (0, true), "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((result["summary"]["placed"].as_u64(), result["summary"]["cycles"].as_u64()), (Some(10_000), Some(10_000)));
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    let mut cohorts: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    let mut spreads: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (i, run) in result["runs"].as_array().unwrap().iter().enumerate() {
        let pod = run["assignedPod"].as_str().unwrap();
        *used.entry(pod).or_default() += 1;
        match i % 10 {
            0 => _ = cohorts.entry(i / 100).or_default().insert(pod),
            5 => spreads.entry(i / 1000).or_default().push(pod),
            _ => {}
        }
    }
    for (pod, used) in used {
        let number: usize = pod.trim_start_matches("bash-").parse().unwrap();
        assert!(used <= 28 + number % 3 * 4, "{pod} has {used}");
    }
    assert!(cohorts.values().all(|pods| pods.len() == 1), "a cohort is on one Pod");
    assert!(spreads.values().all(|pods| pods.len() == pods.iter().collect::<BTreeSet<_>>().len()), "those that keep apart are apart");
}

#[test]
fn make_demo_explains_every_pod_and_plugin() {
    let path = example("data-sharing");
    let answer = simulate(&["-f", &path, "--explain", "ci/ci-build-test"], "");
    let expected = "\
Every Pod of runtime bash for Run ci/ci-build-test, before it was placed:
 POD             RuntimeReady  WorkspaceFencing                           RunAffinity                               Capacity  SCORE
 bash-0  chosen  ok            ok                                         ok                                        ok        50 = Capacity 50 + RunAffinity 0
 bash-1  no      ok            not bound to workspace ci-build-workspace  without a Run matching required affinity  ok
 bash-2  no      ok            not bound to workspace ci-build-workspace  without a Run matching required affinity  ok
";
    assert!(answer.out.contains(expected), "{}", answer.out);
}
