//! What a Runtime Pod offers, by its annotations (reference §2; decisions, "Capacity").

use std::collections::BTreeMap;

use crate::constants::{ANNOTATION_CAPACITY_PREFIX, DEFAULT_RUNS_CAPACITY, RESOURCE_RUNS};
use crate::quantity;

/// Capacity by resource, each a non-negative integer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// What is offered; `runs` is always there.
    pub resources: BTreeMap<String, i64>,
    /// Resource and value of annotations that can't be used: negative, or no quantity.
    pub ignored: Vec<(String, String)>,
}

impl Capacity {
    /// Reads annotations: quantities are floored, `runs` absent or unusable is 2, and an explicit `0` is 0 (drained).
    pub fn of<'a>(annotations: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let mut capacity = Self::default();
        for (key, value) in annotations {
            let Some(resource) = key.strip_prefix(ANNOTATION_CAPACITY_PREFIX).filter(|resource| !resource.is_empty()) else { continue };
            match quantity::floor_integer(value) {
                Ok(amount) => {
                    capacity.resources.insert(resource.to_owned(), amount);
                }
                Err(_) => capacity.ignored.push((resource.to_owned(), value.clone())),
            }
        }
        capacity.resources.entry(RESOURCE_RUNS.to_owned()).or_insert(DEFAULT_RUNS_CAPACITY);
        capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_floored_defaulted_or_ignored() {
        for (annotations, offered, ignored) in [
            (&[][..], "runs=2", ""),
            (&[("runs", "0")], "runs=0", ""),
            (&[("runs", "4"), ("gpu", "1.9"), ("mem", "1Ki"), ("", "1")], "gpu=1 mem=1024 runs=4", ""),
            (&[("runs", "-1"), ("gpu", "many")], "runs=2", "gpu=many runs=-1"),
        ] {
            let annotations: BTreeMap<_, _> = annotations.iter().map(|(name, value)| (format!("kruntimes.io/capacity.{name}"), (*value).to_owned())).collect();
            let capacity = Capacity::of(&annotations);
            let text = |list: Vec<String>| list.join(" ");
            assert_eq!(text(capacity.resources.iter().map(|(name, amount)| format!("{name}={amount}")).collect()), offered);
            assert_eq!(text(capacity.ignored.iter().map(|(name, value)| format!("{name}={value}")).collect()), ignored);
        }
    }
}
