//! Jobs in the input: which their class would take, and why not the others.

use serde_json::{Value, json};

use super::{Answer, example, result, simulate};

fn job(name: &str, spec: Value) -> String {
    let mut whole = json!({"task": {"image": "i"}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let group = "execution.ayatori.ddupan.top";
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "Job", "metadata": {"name": name, "namespace": "ci"}, "spec": whole}).to_string() + "\n"
}

#[test]
fn each_job_is_told_whether_its_class_takes_it() {
    let class = |name: &str, spec: Value| {
        json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": "JobClass", "metadata": {"name": name}, "spec": spec}).to_string() + "\n"
    };
    let ours = "execution.ayatori.ddupan.top/kubernetes";
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ci", "annotations": {"execution.ayatori.ddupan.top/default-job-class": "small"}}});
    let input = class(
        "small",
        json!({"controllerName": ours, "resources": {"max": {"cpu": "1"}, "default": {"requests": {"cpu": "100m"}}}, "activeDeadlineSeconds": {"max": 60}}),
    ) + &class("others", json!({"controllerName": "example.com/x"}))
        + &(namespace.to_string() + "\n")
        + &job("by-default", json!({}))
        + &job("too-long", json!({"activeDeadlineSeconds": 61}))
        + &job("nowhere", json!({"jobClassName": "none"}))
        + &job("foreign", json!({"jobClassName": "others"}))
        + &job("wrong", json!({"activeDeadlineSeconds": 0}));
    let told = result(&[], &input);
    let jobs = told["jobs"].as_array().unwrap();
    let line = |job: &Value| (job["name"].clone(), job["accepted"].clone(), job["reason"].clone());
    let lines: Vec<_> = jobs.iter().map(line).collect();
    let expected = [
        ("by-default", json!(true), "Valid"),
        ("too-long", json!(false), "DeadlineTooLong"),
        ("nowhere", json!(false), "JobClassNotFound"),
        ("foreign", json!(null), ""),
        ("wrong", json!(false), "Invalid"),
    ];
    assert_eq!(lines, expected.map(|(name, accepted, reason)| (json!(name), accepted, json!(reason))));
    assert_eq!(jobs[0]["jobClass"], "small");
    assert_eq!(jobs[0]["effectiveResources"], json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}));
    assert!(jobs[4]["message"].as_str().unwrap().starts_with("<stdin>:8: spec.activeDeadlineSeconds: "), "{}", jobs[4]);
}

#[test]
fn the_example_is_accepted_and_the_table_says_so() {
    let Answer { code, out, err } = simulate(&["-f", &example("jobs")], "");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == ["ci/hello-00001", "yes", "default", "Valid"]), "{out}");
}
