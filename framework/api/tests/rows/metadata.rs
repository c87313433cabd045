//! Rows about metadata, which the API server checks of every object alike.

use super::{Row, accept, merge_keeping_nulls, refuse, run, update_refused};
use serde_json::{Value, json};

pub(super) fn rows() -> Vec<Row> {
    let with = |metadata: Value| merge_keeping_nulls(&run(json!({})), &json!({ "metadata": metadata }));
    let owner = |name: &str, controller: bool| json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": "u", "controller": controller});
    let (key, value) = ("name part must consist of alphanumeric characters", "a valid label must be an empty string or consist of");
    vec![
        accept("labels and annotations", with(json!({"labels": {"example.com/a": "x", "b": ""}, "annotations": {"Example.COM/A": "日本"}}))),
        refuse("a label's key with two slashes", with(json!({"labels": {"a/b/c": "x"}})), "metadata.labels", "a valid label key must consist of"),
        refuse("a label's key 日本", with(json!({"labels": {"日本": "x"}})), "metadata.labels", key),
        refuse(
            "a label's key with a prefix in capitals",
            with(json!({"labels": {"Example.com/a": "x"}})),
            "metadata.labels",
            "prefix part a lowercase RFC 1123",
        ),
        refuse("a label's value with a space", with(json!({"labels": {"a": "x y"}})), "metadata.labels", value),
        refuse("a label's value of 64", with(json!({"labels": {"a": "x".repeat(64)}})), "metadata.labels", "must be no more than 63 bytes"),
        refuse("an annotation's key 日本", with(json!({"annotations": {"日本": "x"}})), "metadata.annotations", key),
        accept("annotations of 256 KiB", with(json!({"annotations": {"a": "x".repeat((256 << 10) - 1)}}))),
        refuse(
            "annotations beyond 256 KiB",
            with(json!({"annotations": {"a": "x".repeat(256 << 10)}})),
            "metadata.annotations",
            "may not be more than 262144 bytes",
        ),
        accept("an owner", with(json!({"ownerReferences": [owner("a", true), owner("b", false)]}))),
        refuse("an owner without anything", with(json!({"ownerReferences": [{}]})), "metadata.ownerReferences[0].apiVersion", "must not be empty"),
        refuse(
            "an owner without uid",
            with(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]})),
            "metadata.ownerReferences[0].uid",
            "must not be empty",
        ),
        refuse(
            "an owner of an apiVersion in three parts",
            with(json!({"ownerReferences": [{"apiVersion": "a/b/c", "kind": "Pod", "name": "p", "uid": "u"}]})),
            "metadata.ownerReferences[0].apiVersion",
            "must be <group>/<version> or <version>",
        ),
        refuse(
            "two controllers",
            with(json!({"ownerReferences": [owner("a", true), owner("b", true)]})),
            "metadata.ownerReferences",
            "Only one reference can have Controller",
        ),
        accept("a finalizer", with(json!({"finalizers": ["example.com/hold"]}))),
        refuse("a finalizer 日本", with(json!({"finalizers": ["日本"]})), "metadata.finalizers", key),
        update_refused("a bad label put on later", run(json!({})), json!({"metadata": {"labels": {"a": "x y"}}}), "metadata.labels", value),
    ]
}
