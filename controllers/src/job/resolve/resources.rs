//! CPU and memory of an execution: what the Job asks, what the class fills in, and whether the class allows it.
//!
//! ```text
//! limit   = the Job's, else the greater of the class's default and the Job's request, else the class's maximum
//! request = the Job's, else the least of the class's default (or its minimum) and the limit
//! then: minimum ≤ request ≤ limit ≤ maximum, and limit ≤ ratio × request
//! ```
//! What nobody says stays absent: the node decides, as for any Pod. A class with a maximum or a ratio leaves nothing absent that it bounds.

use berth_api::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::job::api::class::ClassResources;
use crate::job::api::resources::{Amounts, Resource, ResourceRequirements};

/// A quantity with its value in 10^-9.
#[derive(Clone, Copy)]
struct Amount<'a> {
    quantity: &'a Quantity,
    nanos: i128,
}

impl<'a> Amount<'a> {
    fn of(amounts: Option<&'a Amounts>, resource: Resource) -> Option<Self> {
        let quantity = amounts?.get(resource)?;
        // The schema admits nothing else; what can't be read counts as absent.
        Some(Self { quantity, nanos: quantity::nanos(&quantity.0).ok()? })
    }
}

/// The resources that a Job gets under a class.
///
/// # Errors
/// One line per rule of the class that is broken.
pub fn effective(asked: Option<&ResourceRequirements>, class: Option<&ClassResources>) -> Result<ResourceRequirements, Vec<String>> {
    let mut effective = ResourceRequirements::default();
    let mut problems = Vec::new();
    for resource in Resource::ALL {
        let (request, limit) = fill_in(asked, class, resource);
        check(resource, request, limit, class, &mut problems);
        if let Some(request) = request {
            *effective.requests.get_or_insert_default().slot(resource) = Some(request.quantity.clone());
        }
        if let Some(limit) = limit {
            *effective.limits.get_or_insert_default().slot(resource) = Some(limit.quantity.clone());
        }
    }
    if problems.is_empty() { Ok(effective) } else { Err(problems) }
}

fn fill_in<'a>(asked: Option<&'a ResourceRequirements>, class: Option<&'a ClassResources>, resource: Resource) -> (Option<Amount<'a>>, Option<Amount<'a>>) {
    let of_job = |part: fn(&ResourceRequirements) -> &Option<Amounts>| asked.and_then(|asked| Amount::of(part(asked).as_ref(), resource));
    let default = class.and_then(|class| class.default.as_ref());
    let by_default = |part: fn(&ResourceRequirements) -> &Option<Amounts>| default.and_then(|default| Amount::of(part(default).as_ref(), resource));
    let bound = |part: fn(&ClassResources) -> &Option<Amounts>| class.and_then(|class| Amount::of(part(class).as_ref(), resource));

    let own_request = of_job(|r| &r.requests);
    let default_limit = by_default(|r| &r.limits).map(|default| match own_request {
        Some(request) if request.nanos > default.nanos => request,
        _ => default,
    });
    let limit = of_job(|r| &r.limits).or(default_limit).or_else(|| bound(|c| &c.max));
    let default_request = by_default(|r| &r.requests).or_else(|| bound(|c| &c.min));
    let request = own_request.or(match (default_request, limit) {
        (Some(default), Some(limit)) if limit.nanos < default.nanos => Some(limit),
        (Some(default), _) => Some(default),
        // Kubernetes takes the limit for a missing request.
        (None, limit) => limit,
    });
    (request, limit)
}

fn check(resource: Resource, request: Option<Amount<'_>>, limit: Option<Amount<'_>>, class: Option<&ClassResources>, problems: &mut Vec<String>) {
    let name = resource.name();
    if let (Some(request), Some(limit)) = (request, limit)
        && request.nanos > limit.nanos
    {
        problems.push(format!("resources.requests.{name} {} exceeds the limit {}", request.quantity.0, limit.quantity.0));
    }
    let Some(class) = class else { return };
    if let (Some(min), Some(request)) = (Amount::of(class.min.as_ref(), resource), request)
        && request.nanos < min.nanos
    {
        problems.push(format!("resources.requests.{name} {} is below the class's minimum {}", request.quantity.0, min.quantity.0));
    }
    if let (Some(max), Some(limit)) = (Amount::of(class.max.as_ref(), resource), limit)
        && limit.nanos > max.nanos
    {
        problems.push(format!("resources.limits.{name} {} exceeds the class's maximum {}", limit.quantity.0, max.quantity.0));
    }
    let ratio = class.max_limit_request_ratio.as_ref().and_then(|ratios| match resource {
        Resource::Cpu => ratios.cpu,
        Resource::Memory => ratios.memory,
    });
    let Some(ratio) = ratio else { return };
    match (request, limit) {
        (Some(request), Some(limit)) if limit.nanos > request.nanos * i128::from(ratio) => {
            problems.push(format!("resources.limits.{name} {} is more than {ratio} times the request {}", limit.quantity.0, request.quantity.0));
        }
        (Some(_), Some(_)) => {}
        _ => problems.push(format!("resources.limits.{name} is required: the class limits it to {ratio} times the request")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn effective_of(asked: &Value, class: &Value) -> Result<Value, String> {
        let asked: Option<ResourceRequirements> = from_value(asked.clone()).unwrap();
        let class: Option<ClassResources> = from_value(class.clone()).unwrap();
        effective(asked.as_ref(), class.as_ref()).map(|effective| to_value(effective).unwrap()).map_err(|problems| problems.join("; "))
    }

    #[test]
    fn what_is_missing_is_filled_in() {
        let class = json!({"default": {"requests": {"cpu": "200m"}, "limits": {"cpu": "1"}}});
        let bounded = json!({"min": {"memory": "64Mi"}, "max": {"memory": "1Gi"}});
        for (name, asked, class, expected) in [
            ("nobody says anything", json!(null), json!(null), json!({})),
            (
                "the Job's own",
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}),
                json!(null),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}),
            ),
            ("a limit alone is the request too", json!({"limits": {"cpu": "2"}}), json!(null), json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}})),
            ("a request alone has no limit", json!({"requests": {"cpu": "2"}}), json!(null), json!({"requests": {"cpu": "2"}})),
            ("both by default", json!({}), class.clone(), json!({"requests": {"cpu": "200m"}, "limits": {"cpu": "1"}})),
            ("a missing request is the default", json!({"limits": {"cpu": "4"}}), class.clone(), json!({"requests": {"cpu": "200m"}, "limits": {"cpu": "4"}})),
            (
                "a missing request is at most the limit",
                json!({"limits": {"cpu": "100m"}}),
                class.clone(),
                json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "100m"}}),
            ),
            (
                "a missing limit is at least the request",
                json!({"requests": {"cpu": "3"}}),
                class.clone(),
                json!({"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}),
            ),
            ("a missing limit is the default", json!({"requests": {"cpu": "500m"}}), class, json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}})),
            ("bounds fill in, too", json!({}), bounded.clone(), json!({"requests": {"memory": "64Mi"}, "limits": {"memory": "1Gi"}})),
            ("the text is kept", json!({"limits": {"memory": "0.5Gi"}}), bounded, json!({"requests": {"memory": "64Mi"}, "limits": {"memory": "0.5Gi"}})),
        ] {
            assert_eq!(effective_of(&asked, &class), Ok(expected), "{name}");
        }
    }

    #[test]
    fn what_the_class_forbids_is_named() {
        let bounds = json!({"min": {"cpu": "100m", "memory": "64Mi"}, "max": {"cpu": "2", "memory": "1Gi"}});
        let ratio = json!({"maxLimitRequestRatio": {"cpu": 4}});
        for (name, asked, class, expected) in [
            ("at the bounds", json!({"requests": {"cpu": "0.1"}, "limits": {"cpu": "2000m"}}), &bounds, ""),
            ("below the minimum", json!({"requests": {"cpu": "99m"}}), &bounds, "resources.requests.cpu 99m is below the class's minimum 100m"),
            ("above the maximum", json!({"limits": {"memory": "1025Mi"}}), &bounds, "resources.limits.memory 1025Mi exceeds the class's maximum 1Gi"),
            ("a request above the maximum", json!({"requests": {"cpu": "3"}}), &bounds, "resources.requests.cpu 3 exceeds the limit 2"),
            (
                "all at once",
                json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "9", "memory": "9Gi"}}),
                &bounds,
                "resources.requests.cpu 1m is below the class's minimum 100m; resources.limits.cpu 9 exceeds the class's maximum 2; \
                 resources.limits.memory 9Gi exceeds the class's maximum 1Gi",
            ),
            ("at the ratio", json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}), &ratio, ""),
            (
                "beyond the ratio",
                json!({"requests": {"cpu": "499m"}, "limits": {"cpu": "2"}}),
                &ratio,
                "resources.limits.cpu 2 is more than 4 times the request 499m",
            ),
            ("nothing to compare", json!({"requests": {"cpu": "1"}}), &ratio, "resources.limits.cpu is required: the class limits it to 4 times the request"),
        ] {
            assert_eq!(effective_of(&asked, class).err().unwrap_or_default(), expected, "{name}");
        }
    }
}
