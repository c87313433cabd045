//! The request for a Job's sandbox: a pure function of the Job, its admission and what was resolved for it.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::quantity;
use berth_opensandbox::{CreateSandbox, Image, ImageAuth, Metadata, Platform};
use secrecy::SecretString;

use crate::job::api::opensandbox::{OpenSandboxExecutionParametersSpec, RequestMapping};
use crate::job::api::resources::{Amounts, Resource, ResourceRequirements};

/// Keeps an idle sandbox alive: it asks nothing of the image but what starting a command in it asks.
const KEEP_ALIVE: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"];

/// What a sandbox is made of.
pub struct Parts<'a> {
    /// `task.image`.
    pub image: &'a str,
    /// Credentials of its registry.
    pub auth: Option<ImageAuth>,
    /// What it can be found by.
    pub metadata: Metadata,
    /// The class's parameters.
    pub parameters: &'a OpenSandboxExecutionParametersSpec,
    /// What the Job has been given.
    pub resources: &'a ResourceRequirements,
    /// Environment of all of the sandbox.
    pub env: BTreeMap<String, SecretString>,
    /// How long it lives unless it is renewed.
    pub life: Duration,
}

/// A sandbox in which nothing runs.
pub fn idle(parts: Parts<'_>) -> CreateSandbox {
    sandbox(parts, KEEP_ALIVE.map(str::to_owned).to_vec())
}

/// A sandbox whose process 1 is the Job's.
pub fn sandbox(parts: Parts<'_>, entrypoint: Vec<String>) -> CreateSandbox {
    let Parts { image, auth, metadata, parameters, resources, env, life } = parts;
    let requests = match parameters.resource_mapping.requests {
        RequestMapping::SendAsRequests => amounts(resources.requests.as_ref()),
        _ => BTreeMap::new(),
    };
    let arch = parameters.platform.as_ref().and_then(|platform| platform.arch.clone());
    CreateSandbox {
        image: Image { uri: image.to_owned(), auth },
        entrypoint,
        env,
        resource_limits: amounts(resources.limits.as_ref()),
        resource_requests: requests,
        timeout: Some(life.as_secs().max(60)), // the server takes no less
        metadata,
        // The schema knows one system.
        platform: arch.map(|arch| Platform { os: "linux".to_owned(), arch }),
    }
}

/// In units that every runtime reads: millicores and bytes, rounded up.
fn amounts(amounts: Option<&Amounts>) -> BTreeMap<String, String> {
    let of = |resource: Resource| {
        let nanos = quantity::nanos(&amounts?.get(resource)?.0).ok()?;
        let value = match resource {
            Resource::Cpu => format!("{}m", up(nanos, 1_000_000)),
            Resource::Memory => up(nanos, 1_000_000_000).to_string(),
        };
        Some((resource.name().to_owned(), value))
    };
    Resource::ALL.into_iter().filter_map(of).collect()
}

fn up(nanos: i128, unit: i128) -> i128 {
    (nanos + unit - 1) / unit
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn built(parameters: Value, resources: Value) -> Value {
        let mut spec = json!({"endpoint": "http://s", "apiKeySecretRef": {"namespace": "n", "name": "s", "key": "k"}});
        spec.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
        let parts = Parts {
            image: "r/a:1",
            auth: None,
            metadata: Metadata::new(),
            parameters: &from_value(spec).unwrap(),
            resources: &from_value(resources).unwrap(),
            env: BTreeMap::new(),
            life: Duration::from_secs(5),
        };
        to_value(idle(parts)).unwrap()
    }

    #[test]
    fn amounts_are_in_units_that_every_runtime_reads() {
        let resources = json!({"requests": {"cpu": "0.1", "memory": "1e3"}, "limits": {"cpu": "1500u", "memory": "0.5Gi"}});
        let plain = built(json!({}), resources.clone());
        assert_eq!(plain["resourceLimits"], json!({"cpu": "2m", "memory": "536870912"}));
        assert_eq!((&plain["resourceRequests"], &plain["timeout"], &plain["platform"]), (&Value::Null, &json!(60), &Value::Null));
        let sent = built(json!({"resourceMapping": {"requests": "SendAsRequests"}, "platform": {"arch": "arm64"}}), resources);
        assert_eq!(sent["resourceRequests"], json!({"cpu": "100m", "memory": "1000"}));
        assert_eq!(sent["platform"], json!({"os": "linux", "arch": "arm64"}));
        assert_eq!(built(json!({}), json!({}))["resourceLimits"], json!({}), "required, though empty");
    }
}
