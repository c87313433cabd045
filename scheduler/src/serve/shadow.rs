//! What shadow profiles would have done, for the log: one line per shadow and interval, however many attempts there are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_framework::core::{Attempt, AttemptResult};

/// Between two lines about one shadow.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Counts agreement since it was last told.
#[derive(Debug, Default)]
pub struct ShadowLog {
    shadows: BTreeMap<String, Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    told: Option<Instant>,
    agreed: u64,
    disagreed: u64,
    /// The last Run they disagree on: Run, the active profile's Pod, the shadow's.
    example: Option<[String; 3]>,
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The shadow.
    pub shadow: String,
    /// Attempts with the same outcome.
    pub agreed: u64,
    /// Attempts with another.
    pub disagreed: u64,
    /// A Run they disagree on, the active profile's Pod and the shadow's; `none` where no Pod fits.
    pub example: Option<[String; 3]>,
}

impl ShadowLog {
    /// Takes an attempt into account.
    pub fn saw(&mut self, attempt: &Attempt) {
        for choice in &attempt.shadows {
            if !self.shadows.contains_key(&choice.profile) {
                self.shadows.insert(choice.profile.clone(), Tally::default());
            }
            let Some(tally) = self.shadows.get_mut(&choice.profile) else { continue };
            if choice.agrees {
                tally.agreed += 1;
                continue;
            }
            tally.disagreed += 1;
            let active = match &attempt.result {
                AttemptResult::Placed { ranked, .. } => ranked.first().map(|first| first.pod.to_string()),
                _ => None,
            };
            let none = || "none".to_owned();
            tally.example = Some([attempt.key.to_string(), active.unwrap_or_else(none), choice.pod.as_ref().map_or_else(none, ToString::to_string)]);
        }
    }

    /// What is due to be told at `now`.
    pub fn due(&mut self, now: Instant) -> Vec<Line> {
        let due = |(shadow, tally): (&String, &mut Tally)| {
            let nothing = tally.agreed + tally.disagreed == 0;
            if nothing || tally.told.is_some_and(|told| now.saturating_duration_since(told) < TELL_EVERY) {
                return None;
            }
            let Tally { agreed, disagreed, example, .. } = std::mem::replace(tally, Tally { told: Some(now), ..Tally::default() });
            Some(Line { shadow: shadow.clone(), agreed, disagreed, example })
        };
        self.shadows.iter_mut().filter_map(due).collect()
    }

    /// Writes what is due into the log.
    pub fn tell(&mut self) {
        if self.shadows.is_empty() {
            return;
        }
        for Line { shadow, agreed, disagreed, example } in self.due(Instant::now()) {
            match example {
                None => tracing::info!(shadow, agreed, disagreed, "shadow profile agrees"),
                Some([run, pod, shadow_pod]) => tracing::info!(shadow, agreed, disagreed, run, pod, shadow_pod, "shadow profile disagrees"),
            }
        }
    }

    /// Other profiles are in force: those that are no shadows any more are forgotten.
    pub fn only<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        let names: Vec<&str> = names.collect();
        self.shadows.retain(|name, _| names.contains(&name.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_framework::core::ShadowChoice;
    use berth_framework::model::ObjectKey;

    fn attempt(run: &str, agrees: bool) -> Attempt {
        let shadows = vec![ShadowChoice { profile: "s".to_owned(), pod: Some("b".into()), agrees }];
        let result = AttemptResult::Held;
        Attempt { key: ObjectKey::new("ns", run), uid: "u".into(), result, cause: None, attempts: 1, queued_ms: 0, shadows }
    }

    #[test]
    fn a_thousand_attempts_are_one_line_per_interval() {
        let mut log = ShadowLog::default();
        let start = Instant::now();
        assert_eq!(log.due(start), []);
        log.saw(&attempt("first", true));
        assert_eq!(log.due(start), [Line { shadow: "s".to_owned(), agreed: 1, disagreed: 0, example: None }]);
        for n in 0..1_000 {
            log.saw(&attempt(&n.to_string(), n % 2 == 0));
            assert_eq!(log.due(start + Duration::from_secs(9)), []);
        }
        let example = Some(["ns/999", "none", "b"].map(str::to_owned));
        assert_eq!(log.due(start + TELL_EVERY), [Line { shadow: "s".to_owned(), agreed: 500, disagreed: 500, example }]);
        assert_eq!(log.due(start + TELL_EVERY * 3), [], "nothing new");
        log.only(std::iter::once("other"));
        log.saw(&attempt("a", false));
        assert_eq!(log.due(start).len(), 1, "a new shadow of that name begins anew");
    }
}
