//! A comparison for people: the Runs that differ, and a summary.

use std::io::{self, Write};

use berth_framework::profile::Profiles;

use super::{Comparison, RunUnder, SideReport};
use crate::printable::Printable;
use crate::simulate::report::ScoreReport;
use crate::simulate::table::{self, time};

/// Prints everything. `a` and `b` are the profiles of both sides.
///
/// # Errors
/// What can't be written.
pub fn print(comparison: &Comparison, a: &Profiles, b: &Profiles, out: &mut dyn Write) -> io::Result<()> {
    let out = &mut Printable(out);
    writeln!(out, "A = {}, B = {}", comparison.a.config, comparison.b.config)?;
    writeln!(out)?;
    let runs = &comparison.summary;
    if comparison.differences.is_empty() {
        let none = if runs.same + runs.neither == 0 { "No Run was tried." } else { "No placement differs." };
        writeln!(out, "{none}")?;
    } else {
        let mut table = table::table(&["RUN", "UNDER A", "SCORES UNDER A", "UNDER B", "SCORES UNDER B"]);
        for difference in &comparison.differences {
            let (in_a, in_b) = (&difference.a, &difference.b);
            let name = format!("{}/{}", difference.namespace, difference.name);
            table::add_row(&mut table, [name, place(in_a), scores(in_a, in_b, a), place(in_b), scores(in_b, in_a, b)]);
        }
        table::write(&table, out)?;
    }
    writeln!(out)?;
    let mut parts = vec![format!("{} on the same Pod", runs.same), format!("{} on another Pod", runs.different)];
    parts.push(format!("{} placed only under A", runs.only_a));
    parts.push(format!("{} placed only under B", runs.only_b));
    for (count, what) in [(runs.neither, "placed by neither"), (runs.not_tried, "not to be placed")] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    writeln!(out, "Runs: {}", parts.join(", "))?;
    writeln!(out)?;
    let mut table = table::table(&["", "A", "B"]);
    let (a, b) = (&comparison.a, &comparison.b);
    let mut row = |what: &str, of: &dyn Fn(&SideReport) -> String| {
        table::add_row(&mut table, [what.to_owned(), of(a), of(b)]);
    };
    row("Runs placed", &|side| side.summary.placed.to_string());
    row("Runs pending", &|side| side.summary.pending.to_string());
    row("Waited, half no longer", &|side| time(side.waited_ms.p50));
    row("Waited, 99 % no longer", &|side| time(side.waited_ms.p99));
    let of = if a.load.of == "atEnd" { "at the end" } else { "over time" };
    row(&format!("Load of Pods {of}, mean"), &|side| format!("{} %", side.load.mean));
    row("  imbalance (standard deviation)", &|side| format!("{} points", side.load.imbalance));
    let pod = |load: &Option<super::PodLoad>| load.as_ref().map_or_else(|| "-".to_owned(), |pod| format!("{} % {}", pod.load, pod.pod));
    row("  busiest", &|side| pod(&side.load.busiest));
    row("  idlest", &|side| pod(&side.load.idlest));
    row("Clock", &|side| format!("{} of virtual time", time(side.elapsed_ms)));
    table::write(&table, out)
}

/// The Pod, or why there is none.
fn place(run: &RunUnder) -> String {
    match (&run.run.assigned_pod, run.placed_at_ms) {
        (Some(pod), Some(0)) => pod.to_string(),
        (Some(pod), Some(ms)) => format!("{pod} after {}", time(ms)),
        _ => table::pod_or_reason(&run.run),
    }
}

/// What the chosen Pod scored, and what the other side's choice would have scored here, if it was among the best.
fn scores(run: &RunUnder, other: &RunUnder, profiles: &Profiles) -> String {
    let Some(chosen) = run.run.scores.first() else { return "-".into() };
    let weights: Vec<(&'static str, i64)> = profiles.of(&run.runtime).score_weights().collect();
    let text = table::score_text(chosen, &weights);
    let theirs = |score: &&ScoreReport| Some(&score.pod) == other.run.assigned_pod.as_ref() && score.pod != chosen.pod;
    match run.run.scores.iter().find(theirs) {
        Some(score) => format!("{text}; {} {}", score.pod, score.total),
        None => text,
    }
}
