//! The answer for people: the sentence, what it shows, what would help, and the table of Pods.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Answer;
use crate::printable::{Printable, one_line};
use crate::simulate::{ExplainReport, print_pods};

/// More Pods than this are told by reason only; `-o json` has them all.
const PODS_MAX: usize = 40;

/// Prints everything.
///
/// # Errors
/// What can't be written.
pub fn print(answer: &Answer, weights: &BTreeMap<&'static str, i64>, out: &mut dyn Write) -> io::Result<()> {
    let out = &mut Printable(out);
    writeln!(out, "Run {}/{} ({}, runtime {})", answer.namespace, answer.name, answer.phase, answer.runtime)?;
    writeln!(out, "{}.", answer.verdict)?;
    writeln!(out, "Judged by profile {} ({}).", answer.profile, answer.judged_by)?;
    if let Some(waiting) = &answer.waiting {
        writeln!(out, "\nNow:   {}: {}", waiting.reason, one_line(&waiting.message))?;
    }
    if let Some(shown) = &answer.shown {
        let since = shown.since.map(|since| format!(" (since {since})")).unwrap_or_default();
        writeln!(out, "Shown: {}: {}{since}", one_line(&shown.reason), one_line(&shown.message))?;
    }
    match answer.smallest_changes.as_slice() {
        [] => {}
        [one] => writeln!(out, "\nSmallest change that would place it: {one}.")?,
        many => {
            writeln!(out, "\nAny one of these would place it:")?;
            for change in many {
                writeln!(out, "  - {change}")?;
            }
        }
    }
    if let Some(queue) = &answer.queue {
        match queue["run"]["standing"].as_str() {
            Some(standing) => writeln!(out, "\nIn the queue: {standing}; {} Runs are pending", queue["pending"])?,
            None if answer.phase != "Pending" => writeln!(out, "\nIn the queue: no longer, it is {}; {} Runs are pending", answer.phase, queue["pending"])?,
            None => writeln!(out, "\nIn the queue: not among the 500 oldest; {} Runs are pending", queue["pending"])?,
        }
    }
    if !answer.rejections.is_empty() {
        writeln!(out, "\nPods by first rejection:")?;
        for row in &answer.rejections {
            writeln!(out, "  {:>6}  {} {}", row.pods, row.plugin, row.reason)?;
        }
    }
    if answer.pods.len() > PODS_MAX {
        return writeln!(out, "\n{} Pods; -o json tells the verdict on each.", answer.pods.len());
    }
    writeln!(out)?;
    let report = ExplainReport {
        namespace: answer.namespace.clone(),
        name: answer.name.clone(),
        when: "now",
        runtime: answer.runtime.clone(),
        pods: answer.pods.clone(),
    };
    let weights: Vec<(&'static str, i64)> = weights.iter().map(|(plugin, weight)| (*plugin, *weight)).collect();
    print_pods(&report, &weights, out)
}
