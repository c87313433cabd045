//! Rows about JobClass and the parameters of the two adapters (design of Jobs, §3).

use super::*;

pub fn rows() -> Vec<Row> {
    [class_rows(), class_updates(), kubernetes_rows(), opensandbox_rows()].concat()
}

fn class(extra: Value) -> Value {
    object(json!({"controllerName": "execution.ayatori.ddupan.top/kubernetes"}), extra)
}

fn class_rows() -> Vec<Row> {
    let accept = |name: &str, extra: Value| JOB_CLASS.accept(format!("class: {name}"), class(extra));
    let refuse =
        |name: &str, extra: Value, path: &str, message: &'static str| JOB_CLASS.refuse(format!("class: {name}"), class(extra), format!("spec.{path}"), message);
    let resources = |fields: Value| json!({ "resources": fields });
    let reference = |fields: Value| json!({"parametersRef": merge(&json!({"group": "execution.ayatori.ddupan.top", "kind": "KubernetesExecutionParameters", "name": "x"}), &fields)});
    let mut rows = vec![
        JOB_CLASS.store(
            "class: the least one",
            class(json!({})),
            "/spec",
            json!({"controllerName": "execution.ayatori.ddupan.top/kubernetes", "secretDelivery": "NodeResolved", "minLossConfirmationAge": "15m"}),
        ),
        accept(
            "in full",
            json!({
                "parametersRef": {"group": "execution.ayatori.ddupan.top", "kind": "KubernetesExecutionParameters", "name": "x"},
                "description": "small and cheap",
                "namespaceSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]},
                "resources": {
                    "default": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": 1, "memory": "1Gi"}},
                    "min": {"cpu": "10m", "memory": "16Mi"},
                    "max": {"cpu": 4, "memory": "8Gi"},
                    "maxLimitRequestRatio": {"cpu": 10, "memory": 2},
                },
                "activeDeadlineSeconds": {"max": 3600, "required": true},
                "ttlSecondsAfterFinished": {"max": 86400, "recommended": 3600, "required": true},
                "secretDelivery": "ControllerResolved",
                "imagePolicy": {"requireDigest": true},
                "minLossConfirmationAge": "0s",
            }),
        ),
        accept("of somebody else", json!({"controllerName": "example.com/their/own"})),
        JOB_CLASS.refuse("class: without spec", json!({}), "spec", ""),
        JOB_CLASS.refuse("class: without controllerName", json!({"spec": {}}), "spec.controllerName", ""),
        refuse("controllerName without path", json!({"controllerName": "kubernetes"}), "controllerName", ""),
        refuse("controllerName of upper case", json!({"controllerName": "A/b"}), "controllerName", ""),
        refuse("description of 65", json!({"description": "d".repeat(65)}), "description", ""),
        refuse("parametersRef without kind", reference(json!({"kind": null})), "parametersRef.kind", ""),
        refuse("parametersRef without group", reference(json!({"group": null})), "parametersRef.group", ""),
        refuse("parametersRef of an empty name", reference(json!({"name": ""})), "parametersRef.name", ""),
        refuse("parametersRef in a namespace, strictly", reference(json!({"namespace": "a"})), "parametersRef.namespace", "unknown field").strictly(),
        accept("parametersRef of another kind is for the controller to judge", reference(json!({"group": "example.com", "kind": "Other"}))),
        refuse(
            "namespaceSelector of another operator",
            json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
            "namespaceSelector.matchExpressions[0].operator",
            "",
        ),
        refuse("min above max", resources(json!({"min": {"cpu": "2"}, "max": {"cpu": "1999m"}})), "resources", "min.cpu must not exceed max.cpu"),
        refuse(
            "min memory above max",
            resources(json!({"min": {"memory": "2Gi"}, "max": {"memory": "2G"}})),
            "resources",
            "min.memory must not exceed max.memory",
        ),
        accept("min equal to max", resources(json!({"min": {"cpu": 1}, "max": {"cpu": "1000m"}}))),
        refuse(
            "default requests above limits",
            resources(json!({"default": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}})),
            "resources.default",
            "requests.cpu must not exceed limits.cpu",
        ),
        refuse("default of no quantity", resources(json!({"default": {"limits": {"cpu": "much"}}})), "resources.default.limits.cpu", ""),
        refuse("max of zero", resources(json!({"max": {"memory": "0"}})), "resources.max.memory", "must be a positive quantity"),
        refuse("min below zero", resources(json!({"min": {"cpu": -1}})), "resources.min.cpu", "must be a positive quantity"),
        refuse("ratio of zero", resources(json!({"maxLimitRequestRatio": {"cpu": 0}})), "resources.maxLimitRequestRatio.cpu", ""),
        refuse("ratio of a half", resources(json!({"maxLimitRequestRatio": {"memory": 1.5}})), "resources.maxLimitRequestRatio.memory", ""),
        refuse("deadline max of 0", json!({"activeDeadlineSeconds": {"max": 0}}), "activeDeadlineSeconds.max", ""),
        refuse("ttl max of -1", json!({"ttlSecondsAfterFinished": {"max": -1}}), "ttlSecondsAfterFinished.max", ""),
        accept("ttl recommended is max", json!({"ttlSecondsAfterFinished": {"max": 5, "recommended": 5}})),
        refuse(
            "ttl recommended above max",
            json!({"ttlSecondsAfterFinished": {"max": 5, "recommended": 6}}),
            "ttlSecondsAfterFinished.recommended",
            "recommended must not exceed max",
        ),
        refuse("secretDelivery of another word", json!({"secretDelivery": "Everybody"}), "secretDelivery", ""),
    ];
    for age in ["0s", "1h30m", "168h"] {
        rows.push(accept(&format!("minLossConfirmationAge {age}"), json!({"minLossConfirmationAge": age})));
    }
    for age in ["", "15", "-1s", "168h1s", "1d"] {
        rows.push(refuse(&format!("minLossConfirmationAge {age:?}"), json!({"minLossConfirmationAge": age}), "minLossConfirmationAge", ""));
    }
    rows
}

fn class_updates() -> Vec<Row> {
    let condition = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"});
    vec![
        JOB_CLASS.update_refused(
            "class: controllerName changed",
            class(json!({})),
            json!({"spec": {"controllerName": "execution.ayatori.ddupan.top/opensandbox"}}),
            "spec.controllerName",
            "controllerName is immutable",
        ),
        JOB_CLASS.update("class: limits changed", class(json!({})), json!({"spec": {"resources": {"max": {"cpu": 1}}}})),
        JOB_CLASS.update("class: parametersRef added", class(json!({})), json!({"spec": {"parametersRef": {"group": "g", "kind": "K", "name": "n"}}})),
        JOB_CLASS.status("class: status", class(json!({})), json!({"observedGeneration": 1, "conditions": [condition]})),
        JOB_CLASS.status_refused(
            "class: status of 1970",
            class(json!({})),
            json!({"conditions": [merge(&condition, &json!({"lastTransitionTime": "1970-01-01T00:00:00Z"}))]}),
            "status.conditions[0]",
            "",
        ),
    ]
}

fn kubernetes_rows() -> Vec<Row> {
    let accept = |name: &str, spec: Value| KUBERNETES.accept(format!("kubernetes: {name}"), json!({ "spec": spec }));
    let refuse = |name: &str, spec: Value, path: &str| KUBERNETES.refuse(format!("kubernetes: {name}"), json!({ "spec": spec }), format!("spec.{path}"), "");
    let stays = |name: &str, old: Value, new: Value| {
        KUBERNETES.update_refused(format!("kubernetes: {name}"), json!({ "spec": old }), json!({ "spec": new }), "spec", "parameters are immutable")
    };
    let mut rows = vec![
        KUBERNETES.store(
            "kubernetes: the least ones",
            json!({"spec": {}}),
            "/spec",
            json!({"automountServiceAccountToken": false, "podSecurityProfile": "Inherit", "terminationGracePeriodSeconds": 30, "createErrorGracePeriod": "10m",
                "imagePull": {"policy": "Always", "failureGracePeriod": "5m"}, "nodeLostPolicy": "WaitForConfirmation", "injectedContainers": "StopAfterMain"}),
        ),
        accept(
            "in full",
            json!({
                "serviceAccountName": "runner", "automountServiceAccountToken": true, "runtimeClassName": "gvisor", "priorityClassName": "low",
                "nodeSelector": {"pool": "jobs"}, "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}],
                "podSecurityProfile": "Restricted", "terminationGracePeriodSeconds": 0, "imagePull": {"policy": "IfNotPresent", "failureGracePeriod": "1s"},
                "createErrorGracePeriod": "168h", "nodeLostPolicy": "TrustNodeDeletion", "injectedContainers": "Reject",
            }),
        ),
        KUBERNETES.store(
            "kubernetes: imagePull in part",
            json!({"spec": {"imagePull": {"policy": "Never"}}}),
            "/spec/imagePull",
            json!({"policy": "Never", "failureGracePeriod": "5m"}),
        ),
        KUBERNETES.refuse("kubernetes: without spec", json!({}), "spec", ""),
        refuse("serviceAccountName empty", json!({"serviceAccountName": ""}), "serviceAccountName"),
        refuse("a grace period of a day", json!({"terminationGracePeriodSeconds": 86_400}), "terminationGracePeriodSeconds"),
        refuse("a grace period below zero", json!({"terminationGracePeriodSeconds": -1}), "terminationGracePeriodSeconds"),
        refuse("a pull policy of another word", json!({"imagePull": {"policy": "Sometimes"}}), "imagePull.policy"),
        refuse("a toleration of another operator", json!({"tolerations": [{"operator": "Near"}]}), "tolerations[0].operator"),
        refuse("a toleration of another effect", json!({"tolerations": [{"effect": "NoSleep"}]}), "tolerations[0].effect"),
        refuse("17 tolerations", json!({"tolerations": many(17, |_| json!({"operator": "Exists"}))}), "tolerations"),
        refuse("a security profile of another word", json!({"podSecurityProfile": "Baseline"}), "podSecurityProfile"),
        KUBERNETES.refuse("kubernetes: a Pod template, strictly", json!({"spec": {"template": {}}}), "spec.template", "unknown field").strictly(),
        stays("a field changed", json!({"serviceAccountName": "a"}), json!({"serviceAccountName": "b"})),
        stays("a field added", json!({}), json!({"runtimeClassName": "gvisor"})),
        stays("a field removed", json!({"runtimeClassName": "gvisor"}), json!({"runtimeClassName": null})),
        stays("a grace period changed", json!({}), json!({"imagePull": {"failureGracePeriod": "6m"}})),
        KUBERNETES.update("kubernetes: labels", json!({"spec": {}}), json!({"metadata": {"labels": {"a": "b"}}})),
        KUBERNETES.update("kubernetes: defaults written out", json!({"spec": {}}), json!({"spec": {"nodeLostPolicy": "WaitForConfirmation"}})),
    ];
    for grace in ["0s", "1", "168h1ns", "-5m", "5 minutes"] {
        rows.push(refuse(&format!("createErrorGracePeriod {grace:?}"), json!({"createErrorGracePeriod": grace}), "createErrorGracePeriod"));
    }
    rows
}

fn sandbox(extra: Value) -> Value {
    object(json!({"endpoint": "https://sandbox.example:8080/v1", "apiKeySecretRef": {"namespace": "berth", "name": "key", "key": "token"}}), extra)
}

fn opensandbox_rows() -> Vec<Row> {
    let accept = |name: &str, extra: Value| OPENSANDBOX.accept(format!("opensandbox: {name}"), sandbox(extra));
    let refuse = |name: &str, extra: Value, path: &str, message: &'static str| {
        OPENSANDBOX.refuse(format!("opensandbox: {name}"), sandbox(extra), format!("spec.{path}"), message)
    };
    let change = |name: &str, old: Value, new: Value| OPENSANDBOX.update(format!("opensandbox: {name}"), sandbox(old), json!({ "spec": new }));
    let stays = |name: &str, old: Value, new: Value| {
        OPENSANDBOX.update_refused(
            format!("opensandbox: {name}"),
            sandbox(old),
            json!({ "spec": new }),
            "spec",
            "parameters are immutable, except apiKeySecretRef, tls and concurrency",
        )
    };
    let lease = "leaseTTL must exceed orphanTTL, and orphanTTL createWindow and 60s";
    let mut rows = vec![
        OPENSANDBOX.store(
            "opensandbox: the least ones",
            sandbox(json!({})),
            "/spec",
            json!({"endpoint": "https://sandbox.example:8080/v1", "apiKeySecretRef": {"namespace": "berth", "name": "key", "key": "token"},
                "execdAccess": "ServerProxy", "executionMode": "FencedCommand", "createTimeout": "3m", "createWindow": "5m", "orphanTTL": "10m", "leaseTTL": "24h",
                "maxCreateAttempts": 3, "resourceMapping": {"requests": "AdmissionOnly"}, "imageAuth": "PerRequest", "concurrency": 50}),
        ),
        accept(
            "in full",
            json!({"tls": {"caBundle": "aGVsbG8="}, "execdAccess": "Direct", "executionMode": "Entrypoint", "createTimeout": "1s", "createWindow": "1s", "orphanTTL": "60s",
                "leaseTTL": "61s", "maxCreateAttempts": 10, "resourceMapping": {"requests": "Reject"}, "imageAuth": "Unsupported", "platform": {"os": "linux", "arch": "arm64"},
                "concurrency": 1000}),
        ),
        OPENSANDBOX.refuse("opensandbox: without endpoint", object(json!({"apiKeySecretRef": {"namespace": "a", "name": "b", "key": "c"}}), json!({})), "spec.endpoint", ""),
        refuse("without key", json!({"apiKeySecretRef": null}), "apiKeySecretRef", ""),
        refuse("a key without namespace", json!({"apiKeySecretRef": {"name": "b", "key": "c"}}), "apiKeySecretRef.namespace", ""),
        refuse("a key in the open, strictly", json!({"apiKey": "secret"}), "apiKey", "unknown field").strictly(),
        refuse("caBundle no base64", json!({"tls": {"caBundle": "-----BEGIN"}}), "tls.caBundle", ""),
        refuse("createWindow below createTimeout", json!({"createTimeout": "6m"}), "createWindow", "createWindow must cover createTimeout"),
        refuse("orphanTTL below 60s", json!({"createTimeout": "1s", "createWindow": "1s", "orphanTTL": "59s"}), "leaseTTL", lease),
        refuse("orphanTTL at createWindow", json!({"createWindow": "10m"}), "leaseTTL", lease),
        refuse("leaseTTL at orphanTTL", json!({"leaseTTL": "10m"}), "leaseTTL", lease),
        refuse("maxCreateAttempts 0", json!({"maxCreateAttempts": 0}), "maxCreateAttempts", ""),
        refuse("maxCreateAttempts 11", json!({"maxCreateAttempts": 11}), "maxCreateAttempts", ""),
        refuse("platform of another system", json!({"platform": {"os": "windows"}}), "platform.os", ""),
        refuse("concurrency 0", json!({"concurrency": 0}), "concurrency", ""),
        refuse("executionMode of another word", json!({"executionMode": "Batch"}), "executionMode", ""),
        stays("endpoint changed", json!({}), json!({"endpoint": "https://other.example"})),
        stays("executionMode changed", json!({}), json!({"executionMode": "Entrypoint"})),
        stays("platform added", json!({}), json!({"platform": {"arch": "amd64"}})),
        stays("platform removed", json!({"platform": {"arch": "amd64"}}), json!({"platform": null})),
        stays("leaseTTL spelt otherwise", json!({}), json!({"leaseTTL": "1440m"})),
        stays("resourceMapping changed", json!({}), json!({"resourceMapping": {"requests": "Reject"}})),
        change("the key rotated", json!({}), json!({"apiKeySecretRef": {"name": "key-2"}})),
        change("tls added", json!({}), json!({"tls": {"caBundle": "aGVsbG8="}})),
        change("tls removed", json!({"tls": {"caBundle": "aGVsbG8="}}), json!({"tls": null})),
        change("concurrency changed", json!({}), json!({"concurrency": 1})),
    ];
    for endpoint in ["http://127.0.0.1:8080", "https://a", "http://[::1]:80/v1", "https://a.b/c/d"] {
        rows.push(accept(&format!("endpoint {endpoint}"), json!({"endpoint": endpoint})));
    }
    for endpoint in
        ["", "sandbox:8080", "ftp://a", "https://", "https://user:password@a", "https://a/?key=secret", "https://a/#x", "https://a b", "https://a\n"]
    {
        rows.push(refuse(&format!("endpoint {endpoint:?}"), json!({"endpoint": endpoint}), "endpoint", ""));
    }
    rows
}
