//! When the clock starts: the newest time in the input that is not a future heartbeat.

use berth_api::constants::POD_CONDITION_RUNTIMED_READY;
use jiff::Timestamp;
use serde_json::Value;

/// The newest time seen so far, and where it was.
///
/// Times are when something happened: `metadata.creationTimestamp`, `metadata.managedFields[].time` and every field of
/// `status` whose name ends in `Time`, `Timestamp` or `At`. `metadata.deletionTimestamp` is not one: it lies ahead by the grace period.
#[derive(Clone, Debug)]
pub struct Newest {
    /// A heartbeat after this is in the future.
    today: Timestamp,
    newest: Option<(Timestamp, String)>,
}

impl Newest {
    /// Nothing seen yet; `today` is the real time.
    pub fn new(today: Timestamp) -> Self {
        Self { today, newest: None }
    }

    /// The newest time and what it is the time of.
    pub fn get(&self) -> Option<(Timestamp, &str)> {
        self.newest.as_ref().map(|(time, of)| (*time, of.as_str()))
    }

    /// Looks at an object.
    pub fn see(&mut self, object: &Value) {
        let meta = &object["metadata"];
        let name = || {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            format!("{} {}/{}", text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]))
        };
        self.take(&meta["creationTimestamp"], &|| format!("creation of {}", name()));
        for entry in meta["managedFields"].as_array().into_iter().flatten() {
            self.take(&entry["time"], &|| format!("last change of {}", name()));
        }
        self.below(&object["status"], &name);
    }

    fn below(&mut self, value: &Value, name: &dyn Fn() -> String) {
        match value {
            Value::Object(members) => {
                let is_heartbeat = members.get("type").and_then(Value::as_str) == Some(POD_CONDITION_RUNTIMED_READY);
                for (key, member) in members {
                    if is_heartbeat && key == "lastProbeTime" {
                        if parse(member).is_some_and(|time| time <= self.today) {
                            self.take(member, &|| format!("heartbeat of {}", name()));
                        }
                    } else if ["Time", "Timestamp", "At"].iter().any(|end| key.ends_with(end)) {
                        self.take(member, &|| format!("{key} of {}", name()));
                    } else {
                        self.below(member, name);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.below(item, name)),
            _ => {}
        }
    }

    fn take(&mut self, value: &Value, of: &dyn Fn() -> String) {
        let Some(time) = parse(value) else { return };
        if self.newest.as_ref().is_none_or(|(newest, _)| time > *newest) {
            self.newest = Some((time, of()));
        }
    }
}

fn parse(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn newest(objects: &[Value]) -> Option<String> {
        let mut newest = Newest::new("2026-06-01T00:00:00Z".parse().unwrap_or_default());
        objects.iter().for_each(|object| newest.see(object));
        newest.get().map(|(time, _)| time.to_string())
    }

    #[test]
    fn the_newest_time_counts_unless_it_is_a_future_heartbeat_or_a_deadline() {
        let beat = |time: &str| json!({"kind": "Pod", "status": {"conditions": [{"type": "kruntimes.io/RuntimedReady", "lastProbeTime": time}]}});
        let created = |time: &str| json!({"kind": "Run", "metadata": {"creationTimestamp": time}});
        let rows: [(&[Value], Option<&str>); 7] = [
            (&[], None),
            (&[json!({"kind": "Run", "metadata": {"creationTimestamp": null, "labels": {"startTime": "2026-01-01T00:00:00Z"}}})], None),
            (&[created("2026-01-01T00:00:00Z"), created("2025-01-01T00:00:00Z")], Some("2026-01-01T00:00:00Z")),
            (&[created("2026-01-01T00:00:00Z"), beat("2026-01-02T00:00:00Z")], Some("2026-01-02T00:00:00Z")),
            (&[created("2026-01-01T00:00:00Z"), beat("2099-01-01T00:00:00Z")], Some("2026-01-01T00:00:00Z")),
            (&[created("2099-01-01T00:00:00Z"), beat("2026-01-02T00:00:00Z")], Some("2099-01-01T00:00:00Z")),
            (
                &[
                    json!({"metadata": {"deletionTimestamp": "2026-05-01T00:00:00Z"}, "status": {"containerStatuses": [{"state": {"running": {"startedAt": "2026-01-03T00:00:00Z"}}}]}}),
                ],
                Some("2026-01-03T00:00:00Z"),
            ),
        ];
        for (objects, expected) in rows {
            assert_eq!(newest(objects).as_deref(), expected, "{objects:?}");
        }
    }
}
