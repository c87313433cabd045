//! The result for people.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;

use crate::printable::{Printable, one_line};

use super::report::{ExplainedPod, Report, RunReport, ScoreReport};

/// What is told beside the report.
pub struct Notes<'a> {
    /// Scoring plugins and their weights.
    pub weights: Vec<(&'static str, i64)>,
    /// Kinds that were left alone.
    pub left_alone: &'a BTreeMap<String, usize>,
    /// When the clock started.
    pub start: Timestamp,
    /// Why then.
    pub why: &'a str,
    /// How far it went, milliseconds.
    pub elapsed_ms: u64,
    /// `--until` stopped it.
    pub cut_short: bool,
}

/// Prints everything.
///
/// # Errors
/// What can't be written.
pub fn print(report: &Report, notes: &Notes<'_>, out: &mut dyn Write) -> io::Result<()> {
    let out = &mut Printable(out);
    if !report.workspaces.is_empty() {
        let mut table = table(&["WORKSPACE", "PHASE", "POD", "MESSAGE"]);
        for workspace in &report.workspaces {
            let name = format!("{}/{}", workspace.namespace, workspace.name);
            add_row(&mut table, [&name, &*workspace.phase, workspace.bound_pod.as_deref().unwrap_or("-"), &*workspace.message]);
        }
        write(&table, out)?;
        writeln!(out)?;
    }
    if !report.jobs.is_empty() {
        let mut table = table(&["JOB", "ACCEPTED", "CLASS", "REASON"]);
        for job in &report.jobs {
            let accepted = job.accepted.map_or("-", |accepted| if accepted { "yes" } else { "no" });
            let why = [job.reason.as_str(), job.message.as_str()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
            add_row(&mut table, [format!("{}/{}", job.namespace, job.name), accepted.to_owned(), job.job_class.clone().unwrap_or_default(), why]);
        }
        write(&table, out)?;
        writeln!(out)?;
    }
    let only_jobs = !report.jobs.is_empty() && report.runs.is_empty() && report.workspaces.is_empty();
    if report.runs.is_empty() {
        if !only_jobs {
            writeln!(out, "No Run in the input.")?;
        }
    } else {
        let mut table = table(&["RUN", "PHASE", "POD OR REASON", "SCORE"]);
        for run in &report.runs {
            let name = format!("{}/{}", run.namespace, run.name);
            let score = run.scores.first().map_or_else(String::new, |score| score_text(score, &notes.weights));
            add_row(&mut table, [name, run.phase.to_string(), pod_or_reason(run), score]);
        }
        write(&table, out)?;
    }
    if let Some(explain) = &report.explain {
        writeln!(out)?;
        let heading = format!("Every Pod of runtime {} for Run {}/{}, {}:", explain.runtime, explain.namespace, explain.name, explain.when);
        print_explanation(&heading, &explain.namespace, &explain.pods, &notes.weights, &mark, out)?;
    }
    if !only_jobs {
        writeln!(out)?;
        summary(report, notes, out)?;
    }
    if !report.jobs.is_empty() {
        let count = |accepted| report.jobs.iter().filter(|job| job.accepted == accepted).count();
        let others = match count(None) {
            0 => String::new(),
            count => format!(", {count} not judged"),
        };
        writeln!(out, "Jobs: {} accepted, {} not{others}", count(Some(true)), count(Some(false)))?;
    }
    if !notes.left_alone.is_empty() {
        let kinds: Vec<String> = notes.left_alone.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(out, "Left alone: {}", kinds.join(", "))?;
    }
    Ok(())
}

/// Where a Run is, or why it is nowhere.
pub fn pod_or_reason(run: &RunReport) -> String {
    let why = match (&*run.reason, &*run.message) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        // What every waiting message begins with tells nothing in a table.
        (reason, message) => format!("{reason}: {}", message.strip_prefix("waiting for available runtime pods: ").unwrap_or(message)),
    };
    match &run.assigned_pod {
        Some(pod) if matches!(&*run.phase, "Scheduled" | "Running" | "Ready" | "Succeeded") => pod.to_string(),
        Some(pod) if why.is_empty() => pod.to_string(),
        Some(pod) => format!("{pod}; {why}"),
        None => why,
    }
}

/// `150 = RunAffinity 100 + Capacity 50`, weights shown where they aren't 1.
pub fn score_text(score: &ScoreReport, weights: &[(&'static str, i64)]) -> String {
    let parts: Vec<String> = score
        .by_plugin
        .iter()
        .map(|(plugin, value)| match weights.iter().find(|(name, _)| name == plugin) {
            Some((_, weight)) if *weight != 1 => format!("{plugin} {weight}×{value}"),
            _ => format!("{plugin} {value}"),
        })
        .collect();
    if parts.is_empty() { score.total.to_string() } else { format!("{} = {}", score.total, parts.join(" + ")) }
}

fn mark(pod: &ExplainedPod) -> &'static str {
    match (pod.chosen, pod.fits) {
        (true, _) => "chosen",
        (false, true) => "fits",
        (false, false) => "no",
    }
}

/// The verdict of every plugin on Pods of a namespace for one Run; `mark` says what each is to it.
///
/// # Errors
/// What can't be written.
pub fn print_explanation(
    heading: &str,
    namespace: &str,
    pods: &[ExplainedPod],
    weights: &[(&'static str, i64)],
    mark: &dyn Fn(&ExplainedPod) -> &'static str,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "{heading}")?;
    let mut plugins: Vec<&'static str> = Vec::new();
    for verdict in pods.iter().flat_map(|pod| &pod.verdicts) {
        if !plugins.contains(&verdict.plugin) {
            plugins.push(verdict.plugin);
        }
    }
    if pods.is_empty() {
        return writeln!(out, "  there is none in namespace {namespace}");
    }
    let mut header = vec!["POD", ""];
    header.extend(&plugins);
    header.push("SCORE");
    let mut table = table(&header);
    for pod in pods {
        let mut row = vec![pod.pod.to_string(), mark(pod).to_owned()];
        for plugin in &plugins {
            row.push(match pod.verdicts.iter().find(|verdict| verdict.plugin == *plugin) {
                None => "-".to_owned(),
                Some(verdict) if verdict.reason.is_none() => "ok".to_owned(),
                Some(verdict) => verdict.message.to_string(),
            });
        }
        row.push(pod.score.as_ref().map_or_else(String::new, |score| score_text(score, weights)));
        add_row(&mut table, row);
    }
    write(&table, out)
}

fn summary(report: &Report, notes: &Notes<'_>, out: &mut dyn Write) -> io::Result<()> {
    let summary = &report.summary;
    let mut parts = vec![format!("{} placed", summary.placed), format!("{} pending", summary.pending)];
    let others = report.runs.len().saturating_sub(summary.placed + summary.pending + summary.failed + summary.cancelled);
    for (count, what) in [(summary.failed, "failed"), (summary.cancelled, "cancelled"), (others, "as they were")] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    writeln!(out, "Runs: {}", parts.join(", "))?;
    if summary.cycles > 0 {
        writeln!(out, "Decisions: {}, p50 {} µs, p99 {} µs", summary.cycles, summary.decision.p50_us, summary.decision.p99_us)?;
    }
    let end = if notes.cut_short { "stopped by --until" } else { "until nothing moved any more" };
    writeln!(out, "Clock: from {} ({}), {} of virtual time, {end}", notes.start, notes.why, time(notes.elapsed_ms))
}

/// A duration as Go writes it, without parts that are zero: `1h30m`, `1.5s`, `0s`.
pub fn time(ms: u64) -> String {
    let (hours, minutes, rest) = (ms / 3_600_000, ms / 60_000 % 60, Duration::from_millis(ms % 60_000));
    let part = |count: u64, unit: &str| if count == 0 { String::new() } else { format!("{count}{unit}") };
    let seconds = match (rest.is_zero(), ms) {
        (true, 0) => "0s".to_owned(),
        (true, _) => String::new(),
        (false, _) => format!("{rest:?}"),
    };
    format!("{}{}{seconds}", part(hours, "h"), part(minutes, "m"))
}

/// An empty table.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header.to_vec());
    table
}

/// Adds a row, every cell in one line.
pub fn add_row(table: &mut Table, cells: impl IntoIterator<Item = impl AsRef<str>>) {
    table.add_row(cells.into_iter().map(|cell| one_line(cell.as_ref()).into_owned()));
}

/// Prints a table.
///
/// # Errors
/// What can't be written.
pub fn write(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_go() {
        for (ms, text) in [(0, "0s"), (500, "500ms"), (1_500, "1.5s"), (60_000, "1m"), (61_001, "1m1.001s"), (5_400_000, "1h30m"), (90_000_000, "25h")] {
            assert_eq!(time(ms), text);
        }
    }
}
