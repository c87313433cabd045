//! The answer for people: what to be wary of, the sentence, what it shows, what would help, and the table of Pods.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::answer::Answer;
use super::server::Queue;
use crate::printable::{Printable, one_line};
use crate::serve::debug_queue::{Doing, RunView};
use crate::simulate::{ExplainedPod, print_pods};

/// Of more Pods than this only the best are told one by one; `-o json` has them all.
const PODS_MAX: usize = 40;
/// So many: the one that is taken and two runners-up.
const BEST: usize = 3;

/// Prints everything.
///
/// # Errors
/// What can't be written.
pub fn print(answer: &Answer, weights: &BTreeMap<&'static str, i64>, out: &mut dyn Write) -> io::Result<()> {
    let out = &mut Printable(out);
    let doubt = answer.rules.doubt.as_deref().unwrap_or_default();
    if answer.rules.contradicted {
        let said = answer.shown.as_ref().map_or("", |shown| shown.message.as_str());
        writeln!(out, "CAUTION: what follows contradicts the scheduler, which says: {}", one_line(said))?;
        writeln!(out, "CAUTION: {}\n", one_line(doubt))?;
    }
    writeln!(out, "Run {}/{} ({}, runtime {})", answer.namespace, answer.name, answer.phase, answer.runtime)?;
    writeln!(out, "{}.", one_line(&answer.verdict))?;
    writeln!(out, "Judged by profile {} ({}).", answer.profile, answer.judged_by)?;
    if !answer.rules.contradicted && !doubt.is_empty() {
        writeln!(out, "{}", one_line(doubt))?;
    }
    if let Some(waiting) = &answer.waiting {
        writeln!(out, "\nNow:   {}: {} ({})", waiting.reason, one_line(&waiting.message), answer.judged_at)?;
    }
    if let Some(shown) = &answer.shown {
        let since = shown.since.map(|since| format!("{} since {since}", if answer.phase == "Pending" { "waiting" } else { "so" }));
        let attempt = shown.last_attempt.map(|at| format!("last attempt {at}"));
        let times: Vec<String> = since.into_iter().chain(attempt).collect();
        let times = if times.is_empty() { String::new() } else { format!(" ({})", times.join(", ")) };
        writeln!(out, "Shown: {}: {}{times}", one_line(&shown.reason), one_line(&shown.message))?;
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
        print_queue(answer, queue, out)?;
    }
    if !answer.rejections.is_empty() {
        writeln!(out, "\nPods by first rejection:")?;
        for row in &answer.rejections {
            writeln!(out, "  {:>6}  {} {}", row.pods, row.plugin, row.reason)?;
        }
    }
    writeln!(out)?;
    let many = answer.pods.len() > PODS_MAX;
    let pods = if many { best(answer) } else { answer.pods.clone() };
    if !many || !pods.is_empty() {
        let heading = if many {
            format!("The best of {} Pods of runtime {}, now:", answer.pods.len(), answer.runtime)
        } else {
            format!("Every Pod of runtime {} for Run {}/{}, now:", answer.runtime, answer.namespace, answer.name)
        };
        let weights: Vec<(&'static str, i64)> = weights.iter().map(|(plugin, weight)| (*plugin, *weight)).collect();
        print_pods(&heading, &answer.namespace, &pods, &weights, &|pod| mark(answer, pod), out)?;
    }
    if many { print_rest(answer, out) } else { Ok(()) }
}

/// What a Pod is to the Run.
fn mark(answer: &Answer, pod: &ExplainedPod) -> &'static str {
    let placed = answer.assigned_pod.as_ref() == Some(&pod.pod) && pod.chosen;
    match (placed, pod.fits) {
        (true, true) => "here",
        (true, false) => "here; no more",
        (false, _) if answer.would_take.as_ref() == Some(&pod.pod) => "would take",
        (false, true) => "fits",
        (false, false) => "no",
    }
}

/// The Pod it is on or would take, and those next to it by score.
fn best(answer: &Answer) -> Vec<ExplainedPod> {
    let mut best: Vec<&ExplainedPod> = answer.pods.iter().filter(|pod| pod.chosen || pod.score.is_some()).collect();
    let rank = |pod: &ExplainedPod| (pod.chosen, answer.would_take.as_ref() == Some(&pod.pod));
    let score = |pod: &ExplainedPod| pod.score.as_ref().map_or(0.0, |score| score.total);
    best.sort_by(|a, b| rank(b).cmp(&rank(a)).then(score(b).total_cmp(&score(a))));
    best.into_iter().take(BEST).cloned().collect()
}

/// Of many Pods: how many fit, and why the others don't.
fn print_rest(answer: &Answer, out: &mut dyn Write) -> io::Result<()> {
    let fit = answer.pods.iter().filter(|pod| pod.fits).count();
    if fit > 0 {
        writeln!(out, "\nOf {} Pods {fit} fit; the others by first rejection:", answer.pods.len())?;
        let mut rows: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for verdict in answer.pods.iter().filter_map(|pod| pod.verdicts.iter().find(|verdict| verdict.reason.is_some())) {
            *rows.entry((verdict.plugin, verdict.reason.unwrap_or_default())).or_default() += 1;
        }
        for ((plugin, reason), pods) in rows {
            writeln!(out, "  {pods:>6}  {plugin} {reason}")?;
        }
    }
    writeln!(out, "{} Pods; -o json tells the verdict on each.", answer.pods.len())
}

fn print_queue(answer: &Answer, queue: &Queue, out: &mut dyn Write) -> io::Result<()> {
    let Queue { state, leader, namespace, served, pending, run } = queue;
    let pending = if *pending == 1 { "1 Run is pending".to_owned() } else { format!("{pending} Runs are pending") };
    let run = run.as_ref().filter(|run| run.standing != "idle");
    let text = match (state, run) {
        _ if !served => format!("not of this process, which serves namespace {} alone", namespace.as_deref().unwrap_or_default()),
        (Doing::Standby, _) => {
            let leader = leader.as_deref().map_or("nobody, as far as it knows,".to_owned(), |leader| format!("{leader}, by the Lease,"));
            format!("this process stands by; {leader} places, and knows more")
        }
        (Doing::Starting, _) => "this process reads the cluster and does not place yet".to_owned(),
        (Doing::Stopping, _) => "this process is stopping and does not place any more".to_owned(),
        (Doing::Placing, None) if answer.phase != "Pending" => format!("no longer, it is {}; {pending}", answer.phase),
        (Doing::Placing, None) => format!("not there: the scheduler has not seen it yet, or does not place it; {pending}"),
        (Doing::Placing, Some(run)) => format!("{}; {pending}", standing(run)),
    };
    writeln!(out, "\nIn the queue: {}", one_line(&text))?;
    match run {
        Some(run) if *state == Doing::Placing && run.attempts > 0 => writeln!(out, "  {}", one_line(&attempts(run))),
        _ => Ok(()),
    }
}

/// Where it stands, and before how many.
fn standing(run: &RunView) -> String {
    let place = |of: &str| match run.position {
        Some(position) if position.of == 1 => String::new(),
        Some(position) if position.before == 0 => format!(", the first of {} {of}", position.of),
        Some(position) => format!(", behind {} of {} {of}", position.before, position.of),
        None => String::new(),
    };
    match run.standing.as_str() {
        "active" => format!("to be tried{}", place("to be tried")),
        "waiting" => format!("waits for an event{}", place("that ask for the same")),
        "backoff" => format!("backs off{}", run.backoff_until.map_or_else(String::new, |until| format!(" until {until}"))),
        "assumed" => format!("its placement{} is being written", run.pod.as_ref().map_or_else(String::new, |pod| format!(" on {pod}"))),
        "terminating" => "its end is being written".to_owned(),
        other => other.to_owned(),
    }
}

/// How often it was tried, when last, and what for.
fn attempts(run: &RunView) -> String {
    let times = if run.attempts == 1 { "once".to_owned() } else { format!("{} times", run.attempts) };
    let last = run.last_attempt.map_or_else(String::new, |at| format!(", last at {at}"));
    // What it is queued for now, it was not tried for yet.
    let cause = match (&run.cause, run.standing.as_str()) {
        (Some(cause), "active") => format!("; woken by {cause}"),
        (Some(cause), _) => format!(" because of {cause}"),
        (None, _) => String::new(),
    };
    let since = run.waiting_since.map_or_else(String::new, |since| format!("; waits since {since}"));
    format!("tried {times}{last}{cause}{since}")
}
