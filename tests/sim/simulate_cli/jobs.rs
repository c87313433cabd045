//! Jobs in the input: which their class would take, and why not the others.

use serde_json::{Value, json};

use super::{Answer, example, result, simulate};

fn of_group(kind: &str, name: &str, spec: &Value) -> String {
    json!({"apiVersion": "execution.ayatori.ddupan.top/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}).to_string() + "\n"
}

fn class(name: &str, spec: Value) -> String {
    of_group("JobClass", name, &spec)
}

fn ours(more: Value) -> Value {
    let mut spec = json!({"controllerName": "execution.ayatori.ddupan.top/kubernetes"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// Name, verdict, reason and message of each Job.
fn told(input: &str) -> Vec<(String, Value, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |job: &Value| (text(&job["name"]), job["accepted"].clone(), text(&job["reason"]), text(&job["message"]));
    result(&[], input)["jobs"].as_array().unwrap().iter().map(line).collect()
}

fn job(name: &str, spec: Value) -> String {
    let mut whole = json!({"task": {"image": "i"}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let group = "execution.ayatori.ddupan.top";
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "Job", "metadata": {"name": name, "namespace": "ci"}, "spec": whole}).to_string() + "\n"
}

#[test]
fn each_job_is_told_whether_its_class_takes_it() {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ci", "annotations": {"execution.ayatori.ddupan.top/default-job-class": "small"}}});
    let input =
        class("small", ours(json!({"resources": {"max": {"cpu": "1"}, "default": {"requests": {"cpu": "100m"}}}, "activeDeadlineSeconds": {"max": 60}})))
            + &class("others", json!({"controllerName": "example.com/x"}))
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

#[test]
fn what_is_settled_is_not_judged_again() {
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z"});
    let class = json!({"name": "small", "uid": "c-1", "controllerName": "execution.ayatori.ddupan.top/kubernetes",
        "parametersRef": {"group": "execution.ayatori.ddupan.top", "kind": "KubernetesExecutionParameters", "name": "small", "uid": "p-1"}});
    let accepted = [condition("Accepted", "True", "Valid"), condition("Succeeded", "Unknown", "Scheduling")];
    let dumped = |name: &str, spec: Value, meta: Value, status: Value| {
        let mut job: Value = serde_json::from_str(&job(name, spec)).unwrap();
        job["metadata"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        if !status.is_null() {
            job["status"] = status;
        }
        job.to_string() + "\n"
    };
    let waits = json!({"conditions": accepted, "resolvedJobClass": class, "effectiveResources": {"requests": {"cpu": "1"}}});
    let mut runs = waits.clone();
    runs["execution"] = json!({"adapter": "kubernetes", "references": [{"type": "Job", "id": "j"}, {"type": "Pod", "id": "p"}]});
    runs["conditions"].as_array_mut().unwrap().push(condition("Scheduled", "True", "BackendCreated"));
    let cancelled = json!({"conditions": [condition("Succeeded", "False", "Cancelled")], "completionTime": "2026-01-02T03:04:05Z"});
    let input = dumped("runs", json!({}), json!({}), runs)
        + &dumped("waits", json!({}), json!({}), waits)
        + &dumped("ended", json!({}), json!({}), cancelled)
        + &job("cancelled", json!({"desiredState": "Cancelled"}))
        + &dumped("deleted", json!({}), json!({"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["x.y/z"]}), Value::Null);
    let told = result(&[], &input);
    let line = |job: &Value| [&job["name"], &job["accepted"], &job["reason"], &job["jobClass"]].map(Clone::clone);
    let lines: Vec<_> = told["jobs"].as_array().unwrap().iter().map(line).collect();
    let expected = [
        json!(["runs", true, "Valid", "small"]),
        json!(["waits", true, "Valid", "small"]),
        json!(["ended", null, "Cancelled", null]),
        json!(["cancelled", null, "Cancelled", null]),
        json!(["deleted", null, "Cancelled", null]),
    ];
    assert_eq!(json!(lines), json!(expected));
    assert_eq!(told["jobs"][0]["message"], "it was accepted and is not judged again");
    let gone =
        "it was accepted and is not judged again, but can't go on: KubernetesExecutionParameters small does not exist; the Job was accepted with UID p-1";
    assert_eq!(told["jobs"][1]["message"], gone);
    assert_eq!(told["jobs"][1]["effectiveResources"], json!({"requests": {"cpu": "1"}}));
}

#[test]
fn a_namespace_has_its_name_as_a_label_as_the_api_server_sees_to() {
    let selects = |name: &str| class("small", ours(json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}})));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ci"}}).to_string() + "\n";
    for (name, expected) in [("ci", true), ("prod", false)] {
        let [(_, accepted, ..)] = &told(&(selects(name) + &namespace + &job("a", json!({"jobClassName": "small"}))))[..] else { panic!("{name}") };
        assert_eq!(accepted, &json!(expected));
    }
}

#[test]
fn what_the_input_lacks_is_told_as_that() {
    let rows = [
        (job("a", json!({})), "NoDefaultClass", "default-job-class (the input has no Namespace ci)"),
        (job("a", json!({"jobClassName": "smal"})), "JobClassNotFound", "JobClass smal does not exist (the input has no JobClass)"),
        (class("small", ours(json!({}))) + &job("a", json!({"jobClassName": "smal"})), "JobClassNotFound", "does not exist; did you mean small?"),
        (class("small", ours(json!({}))) + &job("a", json!({"jobClassName": "elsewhere"})), "JobClassNotFound", "JobClass elsewhere does not exist"),
        (
            class("small", json!({"controllerName": 5})) + &job("a", json!({"jobClassName": "small"})),
            "JobClassNotFound",
            "(the API would refuse the one of the input)",
        ),
        (
            class("small", ours(json!({"namespaceSelector": {"matchLabels": {"team": "a"}}}))) + &job("a", json!({"jobClassName": "small"})),
            "NamespaceNotAllowed",
            "doesn't select namespace ci (the input has no Namespace ci)",
        ),
    ];
    for (input, reason, end) in rows {
        let [(_, accepted, found, message)] = &told(&input)[..] else { panic!("{input}") };
        assert!((accepted, found.as_str()) == (&json!(false), reason) && message.ends_with(end), "{found}: {message}");
    }
}

#[test]
fn classes_and_jobs_that_are_wrong_are_told_with_their_place() {
    let group = "execution.ayatori.ddupan.top";
    let parameters = |kind: &str| ours(json!({"parametersRef": {"group": group, "kind": kind, "name": "p"}}));
    let bounded = json!({"resources": {"min": {"memory": "64Mi"}, "max": {"cpu": "1", "memory": "1Gi"}, "maxLimitRequestRatio": {"cpu": 2}}, "ttlSecondsAfterFinished": {"required": true, "recommended": 60},
        "activeDeadlineSeconds": {"required": true}, "imagePolicy": {"requireDigest": true}});
    let classes = class("missing", parameters("KubernetesExecutionParameters"))
        + &class("kind", parameters("OpenSandboxExecutionParameters"))
        + &class("bounded", ours(bounded));
    let of = |name: &str, class: &str, more: Value| {
        let mut spec = json!({ "jobClassName": class });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job(name, spec)
    };
    let fits = json!({"task": {"image": format!("i@sha256:{}", "0".repeat(64))}, "activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1, "resources": {"requests": {"cpu": "500m"}}});
    let rows: [(String, Value, &str, &[&str]); 8] = [
        (of("a", "missing", json!({})), json!(false), "ParametersNotFound", &["KubernetesExecutionParameters p does not exist"]),
        (of("a", "kind", json!({})), json!(false), "InvalidParameters", &["must name a KubernetesExecutionParameters"]),
        (of("a", "bounded", fits), json!(true), "Valid", &[]),
        // Everything at once, the first as the reason.
        (
            of("a", "bounded", json!({"resources": {"requests": {"cpu": "3"}}})),
            json!(false),
            "ResourcesOutOfRange",
            &["cpu 3 exceeds the limit 1", "activeDeadlineSeconds is required", "ttlSecondsAfterFinished is required (recommended: 60)", "digest"],
        ),
        (
            job("a", json!({"resources": {"requests": {"cpu": "-1"}}})),
            json!(false),
            "Invalid",
            &["<stdin>:4: spec.resources.requests.cpu: must be a positive quantity"],
        ),
        (job("a", json!({"desiredState": "Stopped"})), json!(false), "Invalid", &["<stdin>:4: spec.desiredState: unsupported value"]),
        (job("Bad_Name", json!({})), json!(false), "Invalid", &["<stdin>:4: metadata.name: "]),
        (job("a", json!({})).replace("v1alpha1", "v2"), json!(false), "Invalid", &["must be execution.ayatori.ddupan.top/v1alpha1, not"]),
    ];
    for (input, accepted, reason, words) in rows {
        let [(_, found, why, message)] = &told(&(classes.clone() + &input))[..] else { panic!("{input}") };
        assert!((found, why.as_str()) == (&accepted, reason) && words.iter().all(|word| message.contains(word)), "{input}{why}: {message}");
    }
    let Answer { err, .. } = simulate(
        &["-f", "-"],
        &(class("typo", ours(json!({"resource": {}}))) + &class("wrong", json!({"controllerName": 5})) + &job("a", json!({"activeDeadlineSecond": 3}))),
    );
    let expected = [
        "warning: <stdin>:1: JobClass typo: unknown field spec.resource has no effect",
        "warning: <stdin>:2: spec.controllerName: must be of type string, not integer; the API would refuse this JobClass, and it is left out",
        "warning: <stdin>:3: Job ci/a: unknown field spec.activeDeadlineSecond has no effect",
    ];
    assert_eq!(err.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn an_opensandbox_class_takes_no_secret_that_it_may_not_read() {
    let group = "execution.ayatori.ddupan.top";
    let parameters = json!({"endpoint": "http://sandboxes:8080", "apiKeySecretRef": {"namespace": "a", "name": "b", "key": "c"}});
    let of = |name: &str, more: Value| {
        let mut spec =
            json!({"controllerName": format!("{group}/opensandbox"), "parametersRef": {"group": group, "kind": "OpenSandboxExecutionParameters", "name": "p"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        class(name, spec)
    };
    let secret = |class: &str| {
        let env = json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        job(class, json!({"jobClassName": class, "task": {"image": "i", "command": ["sh"], "env": env}}))
    };
    let input = of_group("OpenSandboxExecutionParameters", "p", &parameters)
        + &of("nodes", json!({}))
        + &of("reads", json!({"secretDelivery": "ControllerResolved"}))
        + &secret("nodes")
        + &secret("reads");
    let lines: Vec<_> = told(&input).into_iter().map(|(name, accepted, reason, _)| (name, accepted, reason)).collect();
    let expected = [("nodes", json!(false), "SecretDeliveryNotAllowed"), ("reads", json!(true), "Valid")];
    assert_eq!(lines, expected.map(|(name, accepted, reason)| (name.to_owned(), accepted, reason.to_owned())));
}

#[test]
fn what_comes_twice_is_applied_over_the_first_as_far_as_the_api_allows() {
    let input = class("c", ours(json!({"activeDeadlineSeconds": {"max": 5}})))
        + &class("c", ours(json!({"activeDeadlineSeconds": {"max": 60}})))
        + &class("c", json!({"controllerName": "example.com/x"}))
        + &job("a", json!({"jobClassName": "c", "activeDeadlineSeconds": 10}))
        + &job("a", json!({"jobClassName": "c", "activeDeadlineSeconds": 10, "ttlSecondsAfterFinished": 1}))
        + &job("a", json!({"jobClassName": "c", "activeDeadlineSeconds": 99}));
    let Answer { code, out, err } = simulate(&["-f", "-"], &input);
    let expected = [
        "warning: <stdin>:2: JobClass c is applied over the one of <stdin>:1",
        "warning: <stdin>:3: spec.controllerName: controllerName is immutable; the API would refuse this change of JobClass c, and the one of <stdin>:2 counts",
        "warning: <stdin>:5: Job ci/a is applied over the one of <stdin>:4",
    ];
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines[..3], expected, "{err}");
    assert!(
        lines.len() == 4
            && lines[3].contains("immutable")
            && lines[3].ends_with("the API would refuse this change of Job ci/a, and the one of <stdin>:5 counts"),
        "{err}"
    );
    assert!(code == 0 && out.ends_with("ci/a  yes       c      Valid\n\nJobs: 1 accepted, 0 not\n"), "{out}");
}

#[test]
fn require_accepted_exits_1_only_if_a_job_would_not_be_accepted() {
    let input = class("c", ours(json!({"activeDeadlineSeconds": {"max": 5}}))) + &class("others", json!({"controllerName": "example.com/x"}));
    let fits = job("a", json!({"jobClassName": "c"})) + &job("b", json!({"jobClassName": "others"})) + &job("c", json!({"desiredState": "Cancelled"}));
    let long = job("d", json!({"jobClassName": "c", "activeDeadlineSeconds": 6}));
    for (jobs, flags, code) in [(fits.clone(), &["--require-accepted"][..], 0), (fits.clone() + &long, &[], 0), (fits + &long, &["--require-accepted"], 1)] {
        let answer = simulate(&[&["-f", "-"], flags].concat(), &(input.clone() + &jobs));
        assert_eq!(answer.code, code, "{flags:?} {}", answer.out);
        assert!(answer.out.contains(", 2 not judged\n"), "{}", answer.out);
    }
    let Answer { code, err, .. } = simulate(&["-f", "-", "--explain", "ci/d"], &(input + &long));
    assert!(code == 2 && err.contains("this is a Job; its row tells why"), "{err}");
}

#[test]
fn twenty_thousand_jobs_are_judged_in_input_order() {
    let class = class("c", ours(json!({})));
    let input =
        (0..20_000).map(|number| job(&format!("job-{number}"), json!({"jobClassName": if number % 2 == 0 { "c" } else { "none" }}))).collect::<String>();
    let told = told(&(class + &input));
    assert_eq!(told.len(), 20_000);
    for (number, (name, accepted, ..)) in told.iter().enumerate() {
        assert_eq!((name.as_str(), accepted), (format!("job-{number}").as_str(), &json!(number % 2 == 0)));
    }
}
