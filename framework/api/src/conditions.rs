//! The list of conditions in a status: one entry per type, at most 16, and a time that tells when the status changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::constants::CONDITIONS_MAX;

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// Holds.
    True,
    /// Does not hold.
    False,
    /// Not known.
    Unknown,
}

impl ConditionStatus {
    /// The text on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What [`set_condition`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionChange {
    /// Was there already, word for word: no write is needed.
    Unchanged,
    /// Added, or differs in status, reason or message.
    Changed,
    /// A new type, but there are 16 already: nothing was done.
    Full,
}

/// Longest message of a condition, in characters (metav1.Condition).
const MESSAGE_CHARS_MAX: usize = 32_768;

/// Sets the condition of type `kind`. `lastTransitionTime` becomes `now` only if `status` changes (reference §1.4).
///
/// `now` is cut to whole seconds when it is written. `message` is cut to 32,768 characters.
pub fn set_condition(conditions: &mut Vec<Condition>, kind: &str, status: ConditionStatus, reason: &str, message: &str, now: &Time) -> ConditionChange {
    let message = match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => &message[..end],
        None => message,
    };
    if let Some(old) = conditions.iter_mut().find(|condition| condition.type_ == kind) {
        if old.status == status.as_str() && old.reason == reason && old.message == message {
            return ConditionChange::Unchanged;
        }
        if old.status != status.as_str() {
            old.last_transition_time = now.clone();
        }
        old.status = status.as_str().to_owned();
        old.reason = reason.to_owned();
        old.message = message.to_owned();
        return ConditionChange::Changed;
    }
    if conditions.len() >= CONDITIONS_MAX {
        return ConditionChange::Full;
    }
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: now.clone(),
        observed_generation: None,
    });
    ConditionChange::Changed
}

/// The condition of type `kind`, if any.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::new(second, 0).unwrap_or_default())
    }

    #[test]
    fn the_time_tells_when_the_status_changed() {
        let mut list = Vec::new();
        let mut set = |status, message: &str, second| {
            let change = set_condition(&mut list, "Scheduled", status, "Reason", message, &at(second));
            (change, list[0].last_transition_time.clone(), list[0].message.clone())
        };
        use ConditionChange::{Changed, Unchanged};
        assert_eq!(set(ConditionStatus::False, "a", 1), (Changed, at(1), "a".into()));
        assert_eq!(set(ConditionStatus::False, "a", 2), (Unchanged, at(1), "a".into()));
        assert_eq!(set(ConditionStatus::False, "b", 3), (Changed, at(1), "b".into()));
        assert_eq!(set(ConditionStatus::True, "b", 4), (Changed, at(4), "b".into()));
    }

    #[test]
    fn a_full_list_refuses_a_new_type_and_still_updates_the_old() {
        let mut list = Vec::new();
        for index in 0..CONDITIONS_MAX {
            let kind = format!("T{index}");
            assert_eq!(set_condition(&mut list, &kind, ConditionStatus::True, "R", "", &at(1)), ConditionChange::Changed);
        }
        assert_eq!(set_condition(&mut list, "New", ConditionStatus::True, "R", "", &at(1)), ConditionChange::Full);
        assert_eq!(set_condition(&mut list, "T3", ConditionStatus::False, "R", "", &at(2)), ConditionChange::Changed);
        assert_eq!(list.len(), CONDITIONS_MAX);
        assert_eq!(find(&list, "T3").map(|condition| condition.status.as_str()), Some("False"));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut list = Vec::new();
        set_condition(&mut list, "A", ConditionStatus::True, "R", &"é".repeat(40_000), &at(1));
        assert_eq!(list[0].message.chars().count(), MESSAGE_CHARS_MAX);
    }
}
