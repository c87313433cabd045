//! Rows about Job, JobClass and parameters: objects, what is done with them, and what the API server must answer. Two tests read them:
//! `job_api` of the suite on a real API server, and `job_rows_offline` of this crate, which needs none.
#![allow(dead_code, reason = "each of the two tests uses a part")]

use std::sync::LazyLock;

use berth_api::decode::decode;
use berth_controllers::job::api::{self, Job, JobClass, KubernetesExecutionParameters, OpenSandboxExecutionParameters};
use serde_json::{Value, json};

use crate::row::{Kind, Row, many, merge, object};

mod classes;
mod life;
mod spec;
mod update;

#[allow(unused_imports, reason = "each of the two tests uses a part")]
pub use life::{Stage, stage};

pub const JOB: Kind =
    Kind { api_version: "execution.ayatori.ddupan.top/v1alpha1", kind: "Job", plural: "jobs", namespaced: true, definition: || LazyLock::force(&api::JOB) };
pub const JOB_CLASS: Kind = Kind { kind: "JobClass", plural: "jobclasses", namespaced: false, definition: || LazyLock::force(&api::JOB_CLASS), ..JOB };
pub const KUBERNETES: Kind = Kind {
    kind: "KubernetesExecutionParameters",
    plural: "kubernetesexecutionparameters",
    namespaced: false,
    definition: || LazyLock::force(&api::KUBERNETES),
    ..JOB
};
pub const OPENSANDBOX: Kind = Kind {
    kind: "OpenSandboxExecutionParameters",
    plural: "opensandboxexecutionparameters",
    namespaced: false,
    definition: || LazyLock::force(&api::OPENSANDBOX),
    ..JOB
};

/// Every row.
pub fn all() -> Vec<Row> {
    [spec::rows(), update::rows(), life::rows(), classes::rows()].concat()
}

/// What our types say of an object that they can't read.
pub fn undecodable(row: &Row, stored: Value) -> Option<String> {
    let definition = (row.kind.definition)();
    match row.kind.kind {
        "Job" => decode::<Job>("Job", definition, stored).err(),
        "JobClass" => decode::<JobClass>("JobClass", definition, stored).err(),
        "KubernetesExecutionParameters" => decode::<KubernetesExecutionParameters>("KubernetesExecutionParameters", definition, stored).err(),
        _ => decode::<OpenSandboxExecutionParameters>("OpenSandboxExecutionParameters", definition, stored).err(),
    }
    .map(|error| error.to_string())
}

/// A minimal Job with `extra` in its spec; a null there takes a field away.
pub fn job(extra: Value) -> Value {
    object(json!({"task": {"image": "registry.example/app:1"}}), extra)
}

/// A minimal Job with `extra` in its task.
fn task(extra: Value) -> Value {
    let whole = object(json!({"image": "registry.example/app:1"}), extra);
    job(json!({ "task": whole["spec"] }))
}

/// The example of the specification.
fn example() -> Value {
    json!({"spec": {
        "jobClassName": "default",
        "task": {
            "image": "docker.io/library/alpine:3.22",
            "imagePullSecrets": [],
            "command": ["/bin/sh", "-c"],
            "args": ["echo \"hello ${TARGET}\""],
            "workingDir": "/workspace",
            "env": [
                {"name": "TARGET", "value": "world"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "example-token", "key": "token"}}},
                {"name": "CONFIG_VALUE", "valueFrom": {"configMapKeyRef": {"name": "example-config", "key": "value"}}},
            ],
        },
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "activeDeadlineSeconds": 600,
        "ttlSecondsAfterFinished": 3600,
        "desiredState": "Running",
    }})
}
