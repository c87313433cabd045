//! Events about a Job: one for each thing that a status write tells anew. Bounded by the recorder; the status tells everything without them.

use berth_api::conditions::find;
use berth_runtime::events::EventType;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::job::api::names::condition::{ACCEPTED, SCHEDULED, STOP_REQUESTED, SUCCEEDED};
use crate::job::api::status::JobStatus;
use crate::job::reason::{COMPLETED, Failure, NotAccepted, NotScheduled, OOM_KILLED, Unfinished};

/// Type, reason and note.
pub(super) type News = (EventType, &'static str, String);

/// What `new` tells that `old` did not.
pub(super) fn news(old: Option<&JobStatus>, new: &JobStatus) -> Vec<News> {
    let mut news = Vec::new();
    let before = |kind: &str| old.and_then(|old| find(&old.conditions, kind)).map(|condition| (condition.status.as_str(), condition.reason.as_str()));
    // A condition whose status or reason is new.
    let changed = |kind: &str| find(&new.conditions, kind).filter(|now| before(kind) != Some((now.status.as_str(), now.reason.as_str())));
    if let Some(condition) = changed(ACCEPTED) {
        news.extend(match condition.status.as_str() {
            "True" => Some((EventType::Normal, "Accepted", condition.message.clone())),
            _ => NotAccepted::parse(&condition.reason).map(|reason| (EventType::Warning, reason.as_str(), condition.message.clone())),
        });
    }
    if let Some(condition) = changed(SCHEDULED) {
        news.extend(match (condition.status.as_str(), NotScheduled::parse(&condition.reason)) {
            ("True", _) => Some((EventType::Normal, "Scheduled", condition.message.clone())),
            (_, Some(NotScheduled::Pending) | None) => None,
            (_, Some(reason)) => Some((EventType::Warning, reason.as_str(), condition.message.clone())),
        });
    }
    if new.start_time.is_some() && old.is_none_or(|old| old.start_time.is_none()) {
        news.push((EventType::Normal, "Started", "the process runs, or has run".to_owned()));
    }
    if let Some(condition) = changed(STOP_REQUESTED) {
        news.push((EventType::Normal, "StopRequested", format!("{}: {}", condition.reason, condition.message)));
    }
    if let Some(condition) = changed(SUCCEEDED) {
        news.extend(of_result(condition));
        let oom = new.result.as_ref().is_some_and(|result| result.reason.as_deref() == Some(OOM_KILLED));
        if condition.status == "True" && oom {
            news.push((EventType::Warning, OOM_KILLED, condition.message.clone()));
        }
    }
    news
}

fn of_result(condition: &Condition) -> Option<News> {
    let note = condition.message.clone();
    match condition.status.as_str() {
        "True" => Some((EventType::Normal, COMPLETED, note)),
        "False" => Failure::parse(&condition.reason).map(|failure| {
            let kind = if failure == Failure::Cancelled { EventType::Normal } else { EventType::Warning };
            (kind, failure.as_str(), note)
        }),
        _ => match Unfinished::parse(&condition.reason)? {
            Unfinished::Pending | Unfinished::Scheduling | Unfinished::Starting | Unfinished::Running => None,
            reason => Some((EventType::Warning, reason.as_str(), note)),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use serde_json::{Value, from_value, json};

    use super::*;

    fn status(conditions: &[(&str, &str, &str)], extra: Value) -> JobStatus {
        let list: Vec<Value> = conditions
            .iter()
            .map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        let mut status = json!({ "conditions": list });
        status.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        from_value(status).unwrap()
    }

    fn reasons(old: Option<&JobStatus>, new: &JobStatus) -> Vec<&'static str> {
        news(old, new).into_iter().map(|(_, reason, _)| reason).collect()
    }

    #[test]
    fn each_thing_is_told_once() {
        let scheduled = status(&[("Accepted", "True", "Valid"), ("Scheduled", "True", "BackendCreated"), ("Succeeded", "Unknown", "Starting")], json!({}));
        assert_eq!(reasons(None, &scheduled), ["Accepted", "Scheduled"]);
        assert_eq!(reasons(Some(&scheduled), &scheduled), Vec::<&str>::new());
        let waiting = status(&[("Accepted", "True", "Valid"), ("Scheduled", "True", "BackendCreated"), ("Succeeded", "Unknown", "WaitingForImage")], json!({}));
        assert_eq!(reasons(Some(&scheduled), &waiting), ["WaitingForImage"]);
        let ended = status(
            &[("Accepted", "True", "Valid"), ("Scheduled", "True", "BackendCreated"), ("Succeeded", "True", "Completed")],
            json!({"startTime": "2026-01-01T00:00:00Z", "result": {"exitCode": 0, "reason": "OOMKilled"}}),
        );
        assert_eq!(reasons(Some(&waiting), &ended), ["Started", "Completed", "OOMKilled"]);
        let refused = status(&[("Accepted", "False", "NoDefaultClass"), ("Succeeded", "Unknown", "Pending")], json!({}));
        assert_eq!(reasons(None, &refused), ["NoDefaultClass"]);
        let failed = status(&[("StopRequested", "True", "DeadlineExceeded"), ("Succeeded", "False", "DeadlineExceeded")], json!({}));
        assert_eq!(reasons(None, &failed), ["StopRequested", "DeadlineExceeded"]);
    }
}
