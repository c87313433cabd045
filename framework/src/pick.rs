//! Normalises the scores of feasible Pods and picks the best.

use std::sync::Arc;

use crate::cycle::{Choice, Ranked};
use crate::evaluate::Scored;
use crate::plugin::MAX_SCORE;
use crate::profile::Profile;
use crate::views::PodId;

/// A feasible Pod.
pub(crate) struct Candidate<'a> {
    pub pod: PodId,
    pub name: &'a Arc<str>,
    pub scored: &'a Scored,
}

/// Normalises and picks the best; ties by the tie key, then the smallest name.
pub(crate) fn pick<'a>(profile: &Profile, candidates: impl Iterator<Item = Candidate<'a>>, keep: usize) -> Option<Choice> {
    let candidates: Vec<Candidate<'a>> = candidates.collect();
    let mut ends = vec![(i64::MAX, i64::MIN); profile.normalized];
    for candidate in &candidates {
        for (end, raw) in ends.iter_mut().zip(&candidate.scored.raw) {
            *end = (end.0.min(*raw), end.1.max(*raw));
        }
    }
    let weights: Vec<i64> = profile.normalizing_weights();
    let total = |scored: &Scored| {
        let normalized = scored.raw.iter().zip(&ends).zip(&weights).map(|((raw, end), weight)| weight * min_max(*raw, *end));
        scored.fixed + normalized.sum::<i64>()
    };
    let order = |a: &&Candidate<'a>, b: &&Candidate<'a>| {
        let totals = total(b.scored).cmp(&total(a.scored));
        totals.then_with(|| a.scored.tie.cmp(&b.scored.tie)).then_with(|| a.name.cmp(b.name))
    };
    let told = |c: &Candidate<'a>| Ranked { pod: c.name.clone(), total: total(c.scored), by_plugin: by_plugin(profile, c.scored, &ends) };
    if keep <= 1 {
        let best = candidates.iter().min_by(order)?;
        return Some(Choice { pod: best.pod, ranked: vec![told(best)] });
    }
    let mut ranked: Vec<&Candidate<'a>> = candidates.iter().collect();
    ranked.sort_by(order);
    let pod = ranked.first()?.pod;
    Some(Choice { pod, ranked: ranked.into_iter().take(keep).map(told).collect() })
}

/// Min-max to 0..=[`MAX_SCORE`], floored; all equal is 0 (decisions "Preferred").
fn min_max(raw: i64, (min, max): (i64, i64)) -> i64 {
    if max <= min {
        return 0;
    }
    let [raw, min, max] = [raw, min, max].map(i128::from);
    let scaled = (raw - min) * i128::from(MAX_SCORE) / (max - min);
    i64::try_from(scaled).unwrap_or(MAX_SCORE)
}

fn by_plugin(profile: &Profile, scored: &Scored, ends: &[(i64, i64)]) -> Vec<(&'static str, i64)> {
    let mut raw = scored.raw.iter().zip(ends);
    let mut parts = scored.parts.iter();
    profile
        .scores
        .iter()
        .map(|&(index, _)| {
            let name = profile.plugins[index].plugin.name();
            let value = if profile.is_normalizing(index) { raw.next().map_or(0, |(raw, end)| min_max(*raw, *end)) } else { parts.next().copied().unwrap_or(0) };
            (name, value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_between_any_two_ends_become_0_to_the_maximum() {
        for (raw, min, max, expected) in [
            (0, 0, 10, 0),
            (5, 0, 10, 50_000),
            (10, 0, 10, MAX_SCORE),
            (1, 0, 3, 33_333),
            (7, 7, 7, 0),
            (i64::MAX, i64::MIN, i64::MAX, MAX_SCORE),
            (i64::MIN, i64::MIN, i64::MAX, 0),
            (0, i64::MIN, i64::MAX, 50_000),
            (-1, i64::MIN, i64::MAX, 49_999),
            (i64::MAX, i64::MAX - 1, i64::MAX, MAX_SCORE),
        ] {
            assert_eq!(min_max(raw, (min, max)), expected, "{raw} in {min}..={max}");
        }
    }
}
