//! Rows about `Run.status`, written through the status subresource (reference §1.2, §1.4).

use serde_json::json;

use super::*;

pub fn rows() -> Vec<Row> {
    [field_rows(), condition_rows(), artifact_rows()].concat()
}

fn ok(name: impl Into<String>, patch: Value) -> Row {
    super::status(format!("status {}", name.into()), run(json!({})), patch)
}

fn no(name: impl Into<String>, patch: Value, path: &str, message: &'static str) -> Row {
    status_refused(format!("status {}", name.into()), run(json!({})), patch, format!("status.{path}"), message)
}

fn field_rows() -> Vec<Row> {
    let mut rows = vec![
        RUN.row("status {} is Pending", Act::Status(run(json!({})), json!({"status": {}})), Expect::Accepted(None)),
        RUN.row(
            "status without phase is Pending",
            Act::Status(run(json!({})), json!({"status": {"message": "m"}})),
            Expect::Accepted(Some(("/status", json!({"phase": "Pending", "message": "m"})))),
        ),
        RUN.row(
            "status assigned",
            Act::Status(run(json!({})), json!({"status": {"phase": "Scheduled", "assignedPod": "p", "assignedPodUID": "u"}})),
            Expect::Accepted(Some(("/status", json!({"phase": "Scheduled", "assignedPod": "p", "assignedPodUID": "u"})))),
        ),
        ok("message of 4096", json!({"message": "é".repeat(4096)})),
        no("message of 4097", json!({"message": "m".repeat(4097)}), "message", ""),
        ok("assignedPodUID of 253", json!({"assignedPodUID": "u".repeat(253)})),
        no("assignedPodUID of 254", json!({"assignedPodUID": "u".repeat(254)}), "assignedPodUID", ""),
        ok("times", json!({"startTime": "2026-01-02T03:04:05Z", "completionTime": "2026-01-02T03:04:05.123456+01:00"})),
        no("time without zone", json!({"startTime": "2026-01-02T03:04:05"}), "startTime", ""),
        no("time without time", json!({"startTime": "2026-01-02"}), "startTime", ""),
        no("time of the 25th hour", json!({"startTime": "2026-01-02T25:04:05Z"}), "startTime", ""),
        no("time of a leap second", json!({"startTime": "2026-12-31T23:59:60Z"}), "startTime", ""),
        no("time on the 30th of February", json!({"startTime": "2026-02-30T03:04:05Z"}), "startTime", ""),
        no("time as a number", json!({"startTime": 5}), "startTime", ""),
        ok("time with an impossible offset", json!({"startTime": "2026-01-02T03:04:05+99:99"}))
            .undecodable("the format check of Kubernetes looks at the digits of an offset only"),
        ok("attempt", json!({"attempt": 3})),
        no("attempt a text", json!({"attempt": "3"}), "attempt", ""),
        ok("64 outputs", json!({"outputs": map_of(64, json!("v"))})),
        no("65 outputs", json!({"outputs": map_of(65, json!("v"))}), "outputs", ""),
        no("output a number", json!({"outputs": {"k": 1}}), "outputs.k", ""),
        ok("endpoint", json!({"endpoint": {"protocol": "HTTPS", "url": "https://x", "caBundle": "aGVsbG8="}})),
        no("endpoint HTTP", json!({"endpoint": {"protocol": "HTTP", "url": "http://x"}}), "endpoint.protocol", ""),
        no("endpoint without url", json!({"endpoint": {"protocol": "HTTPS"}}), "endpoint.url", ""),
        no("endpoint url of 2049", json!({"endpoint": {"protocol": "HTTPS", "url": "u".repeat(2049)}}), "endpoint.url", ""),
        no("endpoint caBundle no base64", json!({"endpoint": {"protocol": "HTTPS", "url": "u", "caBundle": "?"}}), "endpoint.caBundle", ""),
        no("an unknown field, strictly", json!({"boundPodUID": "u"}), "boundPodUID", "unknown field").strictly(),
        ok("an unknown field, leniently", json!({"phase": "Running", "boundPodUID": "u"})),
    ];
    for phase in ["Pending", "Scheduled", "Running", "Ready", "Succeeded", "Failed", "Timeout", "Cancelled"] {
        rows.push(ok(format!("phase {phase}"), json!({"phase": phase})));
    }
    for phase in ["Suspended", "running", ""] {
        rows.push(no(format!("phase {phase:?}"), json!({"phase": phase}), "phase", ""));
    }
    rows
}

fn condition(fields: Value) -> Value {
    merge(
        &json!({"type": "Scheduled", "status": "True", "reason": "Assigned", "message": "m",
            "lastTransitionTime": "2026-01-02T03:04:05Z"}),
        &fields,
    )
}

fn condition_rows() -> Vec<Row> {
    let one = |fields: Value| json!({"conditions": [condition(fields)]});
    let numbered = |count| json!({"conditions": many(count, |i| condition(json!({"type": format!("T{i}")})))});
    let mut rows = vec![
        ok("condition", one(json!({}))),
        ok("condition with a prefix and a generation", one(json!({"type": "kruntimes.io/X", "observedGeneration": 0}))),
        ok("condition without text in its message", one(json!({"message": ""}))),
        ok("condition message of 32768", one(json!({"message": "m".repeat(32_768)}))),
        no("condition message of 32769", one(json!({"message": "m".repeat(32_769)})), "conditions[0].message", ""),
        ok("16 conditions", numbered(16)),
        no("17 conditions", numbered(17), "conditions", ""),
        no("two conditions of one type", json!({"conditions": [condition(json!({})), condition(json!({"status": "False"}))]}), "conditions[1]", ""),
        no("condition reason of 1025", one(json!({"reason": "R".repeat(1025)})), "conditions[0].reason", ""),
        no("condition generation below zero", one(json!({"observedGeneration": -1})), "conditions[0].observedGeneration", ""),
        no("condition time nonsense", one(json!({"lastTransitionTime": "now"})), "conditions[0].lastTransitionTime", ""),
    ];
    for field in ["status", "reason", "message", "lastTransitionTime"] {
        rows.push(no(format!("condition without {field}"), one(json!({field: null})), &format!("conditions[0].{field}"), ""));
    }
    for (field, value) in
        [("status", "true"), ("status", ""), ("reason", ""), ("reason", "two words"), ("reason", "1st"), ("type", "two words"), ("type", ""), ("type", "X/y/z")]
    {
        rows.push(no(format!("condition {field} {value:?}"), one(json!({field: value})), &format!("conditions[0].{field}"), ""));
    }
    rows
}

fn artifact(fields: Value) -> Value {
    merge(
        &json!({"name": "a", "driver": "filesystem", "type": "file", "sizeBytes": 1, "createdAt": "2026-01-02T03:04:05Z",
            "location": {"filesystem": {"path": "a"}}}),
        &fields,
    )
}

fn artifact_rows() -> Vec<Row> {
    let one = |fields: Value| json!({"artifactRefs": [artifact(fields)]});
    let store = |fields: Value| json!({ "artifactStore": fields });
    let s3 = json!({"filesystem": null, "s3": {"bucket": "b", "key": "k"}});
    let location = "exactly one of filesystem and s3 must be set";
    let matches = "location must match driver";
    let configured = "exactly the configuration that matches driver must be set";
    vec![
        ok("artifact", one(json!({"digest": "sha256:x", "contentType": "text/plain"}))),
        ok("artifact in s3", one(json!({"driver": "s3", "type": "blob", "location": s3}))),
        ok("32 artifacts", json!({"artifactRefs": many(32, |_| artifact(json!({})))})),
        no("33 artifacts", json!({"artifactRefs": many(33, |_| artifact(json!({})))}), "artifactRefs", ""),
        no("artifact without name", one(json!({"name": null})), "artifactRefs[0].name", ""),
        no("artifact with an empty name", one(json!({"name": ""})), "artifactRefs[0].name", ""),
        no("artifact of another driver", one(json!({"driver": "nfs"})), "artifactRefs[0].driver", ""),
        no("artifact of another type", one(json!({"type": "dir"})), "artifactRefs[0].type", ""),
        no("artifact size below zero", one(json!({"sizeBytes": -1})), "artifactRefs[0].sizeBytes", ""),
        no("artifact without time", one(json!({"createdAt": null})), "artifactRefs[0].createdAt", ""),
        no("artifact nowhere", one(json!({"location": {"filesystem": null}})), "artifactRefs[0].location", location),
        no("artifact in two places", one(json!({"location": {"s3": {"bucket": "b", "key": "k"}}})), "artifactRefs[0].location", location),
        no("artifact not where its driver is", one(json!({"driver": "s3"})), "artifactRefs[0]", matches),
        no("artifact digest of 257", one(json!({"digest": "d".repeat(257)})), "artifactRefs[0].digest", ""),
        ok("store filesystem", store(json!({"driver": "filesystem", "filesystem": {"volumeClaimName": "c"}}))),
        ok(
            "store s3",
            store(json!({"driver": "s3", "s3": {"bucket": "b", "prefix": "p", "region": "r", "endpoint": "e",
            "forcePathStyle": true, "credentialsSecretName": "s", "uploadPartSize": 5_242_880, "uploadConcurrency": 1}})),
        ),
        no("store of another driver", store(json!({"driver": "nfs"})), "artifactStore.driver", ""),
        no("store without configuration", store(json!({"driver": "s3"})), "artifactStore", configured),
        no("store with both", store(json!({"driver": "s3", "s3": {"bucket": "b"}, "filesystem": {"volumeClaimName": "c"}})), "artifactStore", configured),
        no("store bucket with a slash", store(json!({"driver": "s3", "s3": {"bucket": "a/b"}})), "artifactStore.s3.bucket", ""),
        no("store part size", store(json!({"driver": "s3", "s3": {"bucket": "b", "uploadPartSize": 1}})), "artifactStore.s3.uploadPartSize", ""),
    ]
}
