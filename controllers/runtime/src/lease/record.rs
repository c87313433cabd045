//! The Lease as the election reads and writes it.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Duration of a record that its holder released (client-go's).
const RELEASED_S: i32 = 1;

/// The holder; None if nobody holds it.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// How long the record counts after it was last seen to change; `default` if it does not say.
pub(super) fn duration(lease: &Lease, default: Duration) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    seconds.filter(|s| *s > 0).map_or(default, Duration::from_secs)
}

/// Changes of holder so far.
pub(super) fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0).max(0)
}

/// Whether `new` tells something that `old` did not. Kubernetes 1.35 and later promise that versions compare as integers; where
/// they don't parse, whatever differs counts as new.
pub(super) fn is_news(old: &Lease, new: &Lease) -> bool {
    let version = |lease: &Lease| lease.metadata.resource_version.clone().unwrap_or_default();
    let (old, new) = (version(old), version(new));
    match (old.parse::<u64>(), new.parse::<u64>()) {
        (Ok(old), Ok(new)) => new > old,
        _ => new != old,
    }
}

/// Whether the holder has given a sign of life between the two: labels and the like don't count.
pub(super) fn same_record(old: &Lease, new: &Lease) -> bool {
    old.metadata.uid == new.metadata.uid && old.spec == new.spec
}

/// What to write on top of `base` (None: no Lease exists), keeping what others put there.
pub(super) fn held(base: Option<&Lease>, names: (&str, &str), holder: &str, lease_s: i32, acquired: Timestamp, now: Timestamp, transitions: i32) -> Lease {
    let mut lease = on_top_of(base, names);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(holder.to_owned());
    spec.lease_duration_seconds = Some(lease_s);
    spec.acquire_time = Some(MicroTime(acquired));
    spec.renew_time = Some(MicroTime(now));
    spec.lease_transitions = Some(transitions);
    lease
}

/// The same, given up: whoever comes may take it at once.
pub(super) fn released(base: &Lease, names: (&str, &str), now: Timestamp) -> Lease {
    held(Some(base), names, "", RELEASED_S, now, now, transitions(base))
}

/// When the current holder took it.
pub(super) fn acquired(lease: &Lease) -> Option<Timestamp> {
    lease.spec.as_ref()?.acquire_time.as_ref().map(|time| time.0)
}

fn on_top_of(base: Option<&Lease>, (namespace, name): (&str, &str)) -> Lease {
    let Some(base) = base else {
        let metadata = ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
        return Lease { metadata, spec: None };
    };
    let mut lease = base.clone();
    lease.metadata.managed_fields = None; // the server keeps its own
    lease
}
